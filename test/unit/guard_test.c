/* guard_test.c - copies out of and into a file's map whose pages are gone. */
#include "base/guard.h"
#include "test/t.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE  ((size_t)sysconf(_SC_PAGESIZE))
#define PAGES 8u
#define GONE  5u /* the first page that is not there */

/* PAGES pages of which those from GONE on are behind the file's end. */
static uint8_t *half_gone(void)
{
    int fd = memfd_create("half", 0);
    uint8_t *p;

    T_TRUE(fd >= 0);
    T_EQ_I64(ftruncate(fd, (off_t)(GONE * PAGE)), 0);
    p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    T_TRUE(p != MAP_FAILED);
    memset(p, 7, GONE * PAGE);
    close(fd);
    return p;
}

static void write_last(void *p)
{
    ((uint8_t *)p)[PAGE - 1] = 7;
}

static void copies(void)
{
    uint8_t *p = half_gone(), *own = malloc(PAGES * PAGE);
    struct iovec places[] = {{p, PAGE}, {p, 0}, {p + PAGE, PAGES * PAGE}};

    guard_install();
    for (int i = 0; i < 3; i++) { /* the signal is not blocked after one */
        T_TRUE(guard_copy(own, p, GONE * PAGE));
        T_FALSE(guard_copy(own, p, PAGES * PAGE));
        T_FALSE(guard_copy(own, p + GONE * PAGE, 1));
        T_FALSE(guard_copy(p, own, PAGES * PAGE));
        T_TRUE(guard_call(write_last, p));
        T_FALSE(guard_call(write_last, p + GONE * PAGE));
        T_TRUE(guard_scatter(places, own, GONE * PAGE));
        T_FALSE(guard_scatter(places, own, GONE * PAGE + 1));
        T_TRUE(guard_readable(p + 5, GONE * PAGE - 5));
        T_FALSE(guard_readable(p + 5, GONE * PAGE));
    }
    memset(own, 9, PAGES * PAGE);
    T_TRUE(guard_copy_zeros(own, p + 3, GONE * PAGE - 3));
    T_FALSE(guard_copy_zeros(own, p + 3, PAGES * PAGE - 3));
    T_EQ_U64(own[GONE * PAGE - 4], 7);
    T_EQ_U64(own[GONE * PAGE - 3], 0);
    T_EQ_U64(own[PAGES * PAGE - 4], 0);
    T_EQ_U64(own[PAGES * PAGE - 3], 9);
    free(own);
    munmap(p, PAGES * PAGE);
}

TEST_IS(what_is_gone_fails_the_copy, copies());

static void *thread(void *ud)
{
    for (int i = 0; i < 20; i++)
        copies();
    return NULL;
}

TEST(each_thread_has_its_own)
{
    pthread_t threads[4];

    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        T_EQ_I64(pthread_create(&threads[i], NULL, thread, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
}

TEST(any_other_bus_error_ends_the_process)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        volatile uint8_t *p = half_gone();

        guard_install();
        p[GONE * PAGE] = 1;
        _exit(0);
    }
    T_EQ_I64(waitpid(pid, &status, 0), pid);
    T_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}
