/* t.c - runs the cases of one test program, each in a process of its own.
 *
 * Invariants: the parent has no threads and does nothing but fork, wait and
 * count, so that forking is safe under every sanitizer. A case ends by exit
 * code: 0 passed, SKIPPED, anything else failed. The limit is the parent's:
 * it kills the case's whole process group, also when the case itself blocks
 * signals or has forked daemons.
 *
 * Rejected: a framework (a dependency for 200 lines), and cases in one
 * process (the first CHECK that fires would hide all the others). */
#include "test/t.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define SKIPPED     77
#define LATE_MAX    3 /* cases; each takes its whole limit */
#define AT_ONCE_MAX 16

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 4
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||     \
    __has_feature(memory_sanitizer)
#define SLOWER 4
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

static struct t_case *cases, **cases_end = &cases;
static char dir[256];

void t_register(struct t_case *c)
{
    *cases_end = c;
    cases_end = &c->next;
}

void t_fail(const char *file, int line, const char *fmt, ...)
{
    char text[4096];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    fflush(NULL);
    /* Not exit: other threads may still run, and what failed must not be
     * drowned in leak reports. */
    _exit(1);
}

void t_skip(const char *fmt, ...)
{
    va_list ap;

    fputs("skipped: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(SKIPPED);
}

void t_u64(const char *file, int line, const char *a, const char *b, uint64_t x,
    uint64_t y)
{
    if (x != y)
        t_fail(file, line, "%s is %llu (0x%llx), not %s = %llu (0x%llx)", a,
            (unsigned long long)x, (unsigned long long)x, b,
            (unsigned long long)y, (unsigned long long)y);
}

void t_i64(const char *file, int line, const char *a, const char *b, int64_t x,
    int64_t y)
{
    if (x != y)
        t_fail(file, line, "%s is %lld, not %s = %lld", a, (long long)x, b,
            (long long)y);
}

void t_str(const char *file, int line, const char *a, const char *b,
    const char *x, const char *y)
{
    if (!x || !y || strcmp(x, y) != 0)
        t_fail(file, line, "%s is\n  \"%s\", not %s =\n  \"%s\"", a,
            x ? x : "(null)", b, y ? y : "(null)");
}

void t_has(const char *file, int line, const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        t_fail(file, line, "\"%s\" is not in\n  \"%s\"", part,
            text ? text : "(null)");
}

void t_mem(const char *file, int line, const char *a, const void *x,
    const void *y, size_t n)
{
    const uint8_t *p = x, *q = y;

    for (size_t i = 0; i < n; i++)
        if (p[i] != q[i])
            t_fail(file, line, "%s differs at byte %zu of %zu: %02x, not %02x",
                a, i, n, p[i], q[i]);
}

void t_err(
    const char *file, int line, const char *a, enum err got, enum err wanted)
{
    if (got != wanted)
        t_fail(file, line, "%s gave %s (%d), not %s (%d)", a, err_name(got),
            (int)got, err_name(wanted), (int)wanted);
}

uint64_t t_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t t_end_ns(unsigned limit_ms)
{
    return t_now_ns() + (uint64_t)limit_ms * SLOWER * NS_PER_MS;
}

static void pause_1ms(void)
{
    const struct timespec ts = {0, 1000000};

    nanosleep(&ts, NULL);
}

bool t_wait(bool (*cond)(void *ud), void *ud, unsigned limit_ms)
{
    uint64_t end = t_end_ns(limit_ms);

    for (;;) {
        if (cond(ud))
            return true;
        if (t_now_ns() >= end)
            return false;
        pause_1ms();
    }
}

uint64_t t_rand(uint64_t *state)
{
    uint64_t x = *state ? *state : 1;

    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(0x2545F4914F6CDD1D);
}

uint64_t t_rand_below(uint64_t *state, uint64_t n)
{
    return (t_rand(state) >> 11) % n;
}

void t_rand_bytes(uint64_t *state, void *p, size_t n)
{
    uint8_t *b = p;

    for (size_t i = 0; i < n; i++)
        b[i] = (uint8_t)(t_rand(state) >> 56);
}

const char *t_dir(void)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        t_fail(__FILE__, __LINE__, "mkdir %s: %s", dir, strerror(errno));
    return dir;
}

static int remove_one(
    const char *path, const struct stat *st, int flag, struct FTW *f)
{
    return remove(path);
}

static void case_process(const struct t_case *c, int out, pid_t parent)
{
    setpgid(0, 0);
    /* If the program ends, the case ends, too. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
    }
    c->run();
    fflush(NULL);
    exit(0);
}

/* Copies the case's output to our stdout. */
static void show_output(int out)
{
    char buf[4096];
    ssize_t n;

    lseek(out, 0, SEEK_SET);
    while ((n = read(out, buf, sizeof buf)) > 0)
        fwrite(buf, 1, (size_t)n, stdout);
}

static int capture_file(void)
{
    FILE *f = tmpfile();
    int fd = f ? fcntl(fileno(f), F_DUPFD_CLOEXEC, 3) : -1;

    if (f)
        fclose(f);
    return fd;
}

/* A running case. */
struct running {
    const struct t_case *c;
    pid_t pid;
    int out;
    uint64_t end_ns;
    char dir[sizeof(dir)];
};

static struct running running[AT_ONCE_MAX];
static unsigned running_count, at_once = 1, passed, failed, skipped, late;

void t_at_once(unsigned cases_at_once)
{
    at_once = cases_at_once < AT_ONCE_MAX ? cases_at_once : AT_ONCE_MAX;
}

static void start(const struct t_case *c)
{
    struct running *r = &running[running_count++];
    const char *tmp = getenv("TMPDIR");
    pid_t parent = getpid();

    *r = (struct running){.c = c, .out = capture_file()};
    snprintf(dir, sizeof dir, "%s/mmx-test-%d-%s", tmp ? tmp : "/tmp",
        (int)getpid(), c->name);
    memcpy(r->dir, dir, sizeof(dir));
    r->end_ns = t_end_ns(c->limit_s * 1000);
    fflush(NULL);
    r->pid = fork();
    if (r->pid == 0)
        case_process(c, r->out, parent);
    if (r->pid < 0) {
        perror("fork");
        exit(2);
    }
    setpgid(r->pid, r->pid);
}

/* True if the case has ended, or its limit has passed (is_late). */
static bool over(const struct running *r, bool *is_late)
{
    siginfo_t si = {.si_pid = 0};

    *is_late = false;
    /* WNOWAIT keeps the pid, and with it the number of the case's process
     * group. */
    if (waitid(P_PID, (id_t)r->pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        si.si_pid == r->pid)
        return true;
    return *is_late = t_now_ns() >= r->end_ns;
}

/* Kills the case's process group in any case, and prints the result. */
static void end(const struct running *r, bool is_late)
{
    int status = 0;
    bool good, skip;

    kill(-r->pid, SIGKILL);
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
        ;
    nftw(r->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    good = !is_late && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    skip = !is_late && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
    if (!good)
        show_output(r->out);
    if (is_late)
        printf("failed: %s: not over after %u s\n", r->c->name,
            r->c->limit_s * SLOWER);
    else if (WIFSIGNALED(status))
        printf("failed: %s: %s\n", r->c->name, strsignal(WTERMSIG(status)));
    else if (!good && !skip)
        printf("failed: %s\n", r->c->name);
    close(r->out);
    passed += good;
    skipped += skip;
    failed += !good && !skip;
    late += is_late;
}

/* Waits until fewer than n cases run. */
static void wait_below(unsigned n)
{
    while (running_count >= n) {
        for (unsigned i = 0; i < running_count; i++) {
            bool is_late;

            if (!over(&running[i], &is_late))
                continue;
            end(&running[i], is_late);
            running[i--] = running[--running_count];
        }
        if (running_count >= n)
            pause_1ms();
    }
}

static bool wanted(const struct t_case *c, int argc, char **argv)
{
    bool filtered = false;

    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        filtered = true;
        if (strstr(c->name, argv[i]))
            return true;
    }
    return !filtered;
}

static bool flag_given(const char *flag, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    bool list = flag_given("--list", argc, argv);
    bool nofork = flag_given("--nofork", argc, argv);

    for (const struct t_case *c = cases; c; c = c->next) {
        if (!wanted(c, argc, argv))
            continue;
        if (late == LATE_MAX) {
            printf("failed: %u cases were not over in time: no more are run\n",
                late);
            break;
        }
        if (list) {
            puts(c->name);
        } else if (nofork) {
            snprintf(dir, sizeof dir, "/tmp/mmx-test-%d", (int)getpid());
            c->run();
            passed++;
        } else {
            wait_below(at_once);
            start(c);
        }
    }
    wait_below(1);
    if (!list)
        printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}
