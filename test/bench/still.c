/* still.c - what daemons cost that move nothing: status polls, an idle pair,
 * memory, a start. Others' processor time and memory are read from outside,
 * by their process ids. One thread. */
#include "test/bench/bench.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define IDLE_S      8
#define START_BYTES (UINT64_C(1) << 30)
#define STARTS      5

uint64_t cpu_ns(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        die("processor time of %d: %s", (int)pid, strerror(errno));
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t daemons_cpu(const struct side *x)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < x->w->encs + x->w->langs; i++)
        sum += cpu_ns(x->s->pids[i]);
    return sum;
}

/* Returns the number behind a word in a file of /proc. */
static uint64_t number_in(const char *path, const char *word)
{
    char line[256];
    uint64_t n = 0;
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, word, strlen(word)) == 0)
            n = strtoull(line + strlen(word), NULL, 10);
    if (f)
        fclose(f);
    return n;
}

uint64_t rss_outside(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return 1024 * (number_in(path, "RssAnon:") + number_in(path, "RssFile:"));
}

void poll_round(struct side *x, unsigned round)
{
    struct mmx_state st;
    mmx_room r;
    uint64_t t;

    next_room(x);
    if (x->which == LANG) {
        r = request(x->e, POOL_SMALL, x->s->id, 1);
        sweep(x->e);
        t = now_ns();
        for (unsigned i = 0; i < POLLS; i++)
            if (mmx_poll(x->e->m, &r, 1, &st) == MMX_SUCCESS)
                die("a room without rows is ready");
        note(x, S_POLL, now_ns() - t);
        t = now_ns();
        for (unsigned i = 0; i < POLLS; i++)
            if (now_ns() < t)
                die("the clock goes back");
        note(x, S_CLOCK, now_ns() - t);
        must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
        sweep(x->e);
    }
    meet(x);
}

/* idle */

#define THREADS_MAX 64

struct wakes {
    unsigned threads;
    uint64_t of[THREADS_MAX];
};

/* Counts how often each thread has gone to sleep, in the order of /proc. */
static void count_wakes(pid_t pid, struct wakes *w)
{
    char path[300];
    struct dirent *d;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    dir = opendir(path);
    w->threads = 0;
    while (dir && (d = readdir(dir)) && w->threads < THREADS_MAX) {
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/status", (int)pid,
            d->d_name);
        w->of[w->threads++] = number_in(path, "voluntary_ctxt_switches:");
    }
    if (dir)
        closedir(dir);
}

void idle_round(struct side *x, unsigned round)
{
    struct timespec t = {IDLE_S, 0};
    struct wakes a[SIDES], b[SIDES];
    uint64_t used[SIDES];

    one_room(x, POOL_SMALL, 1, false, S_ALONE); /* so that all is connected */
    meet(x);
    for (int i = 0; x->which == LANG && i < SIDES; i++) {
        count_wakes(x->s->pids[i], &a[i]);
        used[i] = cpu_ns(x->s->pids[i]);
    }
    if (x->which == LANG)
        nanosleep(&t, NULL);
    for (int i = 0; x->which == LANG && i < SIDES; i++) {
        x->s->idle_cpu[i] = (cpu_ns(x->s->pids[i]) - used[i]) / IDLE_S;
        count_wakes(x->s->pids[i], &b[i]);
        for (unsigned k = 0; k < a[i].threads && k < b[i].threads; k++) {
            uint64_t n = b[i].of[k] - a[i].of[k];

            x->s->idle_wakes[i] += n;
            if (n > x->s->idle_busiest[i])
                x->s->idle_busiest[i] = n;
        }
    }
    for (int i = 0; x->which == LANG && i < SIDES; i++)
        x->s->idle_wakes[i] = x->s->idle_wakes[i] * 1000 / IDLE_S;
    for (int i = 0; x->which == LANG && i < SIDES; i++)
        x->s->idle_busiest[i] = x->s->idle_busiest[i] * 1000 / IDLE_S;
    meet(x);
}

/* start */

static uint64_t populate(void)
{
    uint64_t t = now_ns();
    int fd = memfd_create("populate", MFD_CLOEXEC);
    void *p = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)START_BYTES) == 0)
        p = mmap(NULL, START_BYTES, PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED)
        die("no memory for a pool");
    t = now_ns() - t;
    munmap(p, START_BYTES);
    close(fd);
    return t;
}

static void start_conf(const char *path, const char *sock)
{
    FILE *f = fopen(path, "we");

    if (!f)
        die("%s: %s", path, strerror(errno));
    fprintf(f,
        "name: bench-start\nlog: warn\nsocket:\n  path: %s\n"
        "control:\n  keys: [%s]\npools:\n"
        "  - name: rows\n    block_rows: %d\n    blocks: %d\n"
        "    layout: embedding:bf16:%d\n",
        sock, bench_key(), BLOCK_ROWS,
        (int)(START_BYTES / ROW_BYTES / BLOCK_ROWS), ROW_BYTES / 2);
    if (fclose(f) != 0)
        die("%s: %s", path, strerror(errno));
}

static uint64_t start_once(
    const char *conf, const char *log, int s, const char *notify)
{
    char said[512] = "";
    uint64_t t = now_ns();
    pid_t pid = daemon_start(conf, log, LANG, false, notify);

    while (!strstr(said, "READY=1")) {
        ssize_t n = recv(s, said, sizeof said - 1, 0);

        if (n < 0)
            die("a daemon did not start: %s", strerror(errno));
        said[n] = 0;
    }
    t = now_ns() - t;
    stop(pid, SIGTERM);
    return t;
}

void start_case(struct shared *s)
{
    char conf[128], sock[128], log[128];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {60, 0};
    struct side x = {.s = s};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(conf, sizeof conf, "%s/start.yaml", opt.dir);
    snprintf(sock, sizeof sock, "%s/start.sock", opt.dir);
    snprintf(log, sizeof log, "%s/start.log", opt.dir);
    snprintf(a.sun_path, sizeof a.sun_path, "%s/start.notify", opt.dir);
    start_conf(conf, sock);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0)
        die("%s: %s", a.sun_path, strerror(errno));
    for (int i = 0; i < STARTS; i++) {
        note(&x, S_POPULATE, populate());
        note(&x, S_START, start_once(conf, log, fd, a.sun_path));
    }
    close(fd);
}
