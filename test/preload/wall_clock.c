/* wall_clock.c - preloaded into a daemon by a test: the wall clock is wrong by
 * the number of seconds in the file MMX_CLOCK, an int64 that the test changes.
 * Any thread; the monotonic clocks are those of the kernel. Rejected: a time
 * namespace, which has no wall clock of its own. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *wrong;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("MMX_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *p;

    if (fd < 0)
        return;
    p = mmap(NULL, sizeof(*wrong), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p != MAP_FAILED)
        wrong = p;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, id, t);

    if (r == 0 && wrong &&
        (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += atomic_load(wrong);
    return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
