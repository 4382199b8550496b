/* world.c - the processes of a run: two daemons with configurations of their
 * own in a directory of their own, two engines, and the parent that watches.
 *
 * Nothing outlives the parent: the children ask to be killed with it. */
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void side_path(int which, const char *suffix, char *out, size_t size)
{
    snprintf(out, size, "%s/%s.%s", opt.dir, which == ENC ? "encoded" : "langd",
        suffix);
}

static void pin_to(int which)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;

    if (!opt.pin)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)(which % (cores > 0 ? cores : 1)), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("pinning: %s", strerror(errno));
}

static void engine_open(struct side *x)
{
    char path[128], why[256] = "";
    struct mmx_opt o = {.size = sizeof o,
        .role = x->which == ENC ? MMX_ENCODED : MMX_LANGD,
        .socket = path,
        .engine = "mmx-bench",
        .timeout_ms = START_MS,
        .why = why,
        .why_size = sizeof why};

    side_path(x->which, "sock", path, sizeof path);
    if (mmx_open(&o, &x->m) != 0)
        die("%s", why);
    x->rows.size = x->small.size = sizeof x->rows;
    must(mmx_pool(x->m, "rows", NULL, START_MS, &x->rows), "pool rows");
    must(mmx_pool(x->m, "small", NULL, START_MS, &x->small), "pool small");
    if (x->which == LANG)
        x->landing = faulted((size_t)BULK_ROWS * ROW_BYTES);
    sweep(x);
}

NORETURN static void engine(
    struct shared *s, int which, int listener, uint16_t port)
{
    struct side x = {.s = s, .which = which, .seed = 1};

    pin_to(which);
    engine_open(&x);
    tcp_open(&x, listener, port);
    am_open(&x);
    for (size_t i = 0; i < bench_cases_count; i++)
        for (unsigned r = 0; wanted(bench_cases[i].name) && r < opt.rounds; r++)
            bench_cases[i].round(&x, r);
    meet(&x);
    mmx_close(&x.m);
    am_close();
    exit(0);
}

static uint16_t free_port(int *listener)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, len) != 0 ||
        listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        die("no port on loopback: %s", strerror(errno));
    if (listener)
        *listener = fd;
    else
        close(fd);
    return ntohs(sa.sin_port);
}

static void write_conf(int which, uint16_t port)
{
    char path[128], sock[128];
    FILE *f;

    side_path(which, "yaml", path, sizeof path);
    side_path(which, "sock", sock, sizeof sock);
    f = fopen(path, "we");
    if (!f)
        die("%s: %s", path, strerror(errno));
    fprintf(f, "name: bench-%s\nlog: warn\nsocket:\n  path: %s\n",
        which == ENC ? "enc" : "lang", sock);
    if (which == ENC)
        fprintf(f, "control:\n  listen: tcp://127.0.0.1:%u\n", port);
    else
        fprintf(f,
            "peers:\n  - name: bench-enc\n    address: tcp://127.0.0.1:%u\n",
            port);
    fprintf(f, "transfer:\n  shards: %u\n  same_host: %s\npools:\n", opt.shards,
        opt.same_host ? "copy" : "off");
    fprintf(f,
        "  - name: rows\n    block_rows: %d\n    blocks: %d\n"
        "    layout: embedding:bf16:%d\n",
        BLOCK_ROWS, (BULK_ROWS + BLOCK_ROWS - 1) / BLOCK_ROWS, ROW_BYTES / 2);
    fprintf(f,
        "  - name: small\n    block_rows: 1\n    blocks: %d\n"
        "    layout: embedding:u8:%d\n",
        4 * IN_FLIGHT, SMALL_BYTES);
    if (fclose(f) != 0)
        die("%s: %s", path, strerror(errno));
}

static pid_t start_daemon(int which)
{
    char conf[128], log[128], exe[600];
    const char *name = which == ENC ? "mmx-encoded" : "mmx-langd";
    pid_t pid;
    int fd;

    side_path(which, "yaml", conf, sizeof conf);
    side_path(which, "log", log, sizeof log);
    snprintf(exe, sizeof exe, "%s/%s", opt.build, name);
    pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_to(which);
    fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execl(exe, name, "--config", conf, (char *)NULL);
    fprintf(stderr, "%s: %s\n", exe, strerror(errno));
    _exit(127);
}

static void show_log(int which)
{
    char path[128], line[512];
    FILE *f;

    side_path(which, "log", path, sizeof path);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        fprintf(stderr, "%s: %s", which == ENC ? "encoded" : "langd", line);
    if (f)
        fclose(f);
}

/* Waits for the engines; false: something ended that should not. */
static bool watch(const pid_t engines[SIDES])
{
    unsigned left = SIDES;

    while (left) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        bool is_engine = pid == engines[ENC] || pid == engines[LANG];

        if (pid < 0 || !is_engine || status != 0) {
            if (pid > 0 && WIFSIGNALED(status))
                fprintf(stderr, "mmx-bench: %s\n", strsignal(WTERMSIG(status)));
            return false;
        }
        left--;
    }
    return true;
}

static void stop(pid_t pid, int sig)
{
    kill(pid, sig);
    (void)waitpid(pid, NULL, 0);
}

void remove_dir(void)
{
    static const char *const suffixes[] = {"sock", "yaml", "log"};
    char path[128];

    for (int w = 0; w < SIDES; w++)
        for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
            side_path(w, suffixes[i], path, sizeof path);
            unlink(path);
        }
    rmdir(opt.dir);
}

bool run_all(struct shared *s)
{
    pid_t daemons[SIDES], engines[SIDES];
    int listener;
    uint16_t control = free_port(NULL), port = free_port(&listener);
    bool good;

    for (int w = 0; w < SIDES; w++) {
        write_conf(w, control);
        daemons[w] = start_daemon(w);
    }
    for (int w = 0; w < SIDES; w++) {
        engines[w] = fork();
        if (engines[w] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            engine(s, w, listener, port);
        }
    }
    good = watch(engines);
    for (int w = 0; w < SIDES; w++) {
        if (!good)
            stop(engines[w], SIGKILL);
        stop(daemons[w], good ? SIGTERM : SIGKILL);
        if (!good)
            show_log(w);
    }
    return good;
}
