/* world.c - the processes of a run: daemons with configurations of their own
 * in a directory of their own, the engines, and the parent that watches.
 *
 * Nothing outlives the parent: the children ask the kernel to kill them when it
 * ends. Sides with even numbers run on the first core, odd ones on the
 * second. */
#include "test/bench/bench.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void file_of(
    int role, unsigned i, const char *suffix, char *out, size_t size)
{
    snprintf(out, size, "%s/%s-%u.%s", opt.dir,
        role == ENC ? "encoded" : "langd", i, suffix);
}

static void pin_to(int role)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;

    if (!opt.pin)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)(role == ENC || cores < 2 ? 0 : 1), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("pinning: %s", strerror(errno));
}

/* engines */

static void end_open(struct side *x, struct end *e, unsigned i)
{
    char path[128], why[256] = "";
    int role = x->which == ENC ? ENC : LANG;
    struct mmx_opt o = {.size = sizeof o,
        .role = role == ENC ? MMX_ENCODED : MMX_LANGD,
        .socket = path,
        .engine = "mmx-bench",
        .session = role == ENC ? "bench-enc" : "bench-lang",
        .cells = i ? 256 : OPEN_MAX + 512,
        .timeout_ms = START_MS,
        .why = why,
        .why_size = sizeof why};

    file_of(role, i, "sock", path, sizeof path);
    if (mmx_open(&o, &e->m) != 0)
        die("%s: %s", path, why);
    snprintf(e->encoder, sizeof e->encoder, "bench-enc-%u",
        role == ENC ? i : world_encoder(x->w, i));
    for (int p = 0; p < POOLS; p++) {
        e->pools[p].size = sizeof e->pools[p];
        if (world_blocks(x->w, role, i, p))
            must(mmx_pool(e->m, pool_names[p], NULL, START_MS, &e->pools[p]),
                pool_names[p]);
    }
    sweep(e);
}

static bool has_yardsticks(const struct side *x)
{
    return !x->w->small && !x->w->ranks && x->which < SIDES;
}

static void engine_open(struct side *x, int listener, uint16_t port)
{
    unsigned n = x->which == ENC ? x->w->encs : x->w->langs;

    x->ends = x->e = calloc(n, sizeof *x->ends);
    if (!x->ends)
        die("no memory");
    for (unsigned i = 0; i < n; i++)
        end_open(x, &x->ends[i], i);
    if (!has_yardsticks(x))
        return;
    if (x->which == LANG)
        x->landing = faulted(BULK_BYTES);
    tcp_open(x, listener, port);
    zmq_open(x);
    am_open(x);
}

static void engine_close(struct side *x)
{
    unsigned n = x->which == ENC ? x->w->encs : x->w->langs;

    for (unsigned i = 0; i < n; i++)
        mmx_close(&x->ends[i].m);
    free(x->ends);
    if (!has_yardsticks(x))
        return;
    am_close();
    zmq_end(x);
    munmap(x->landing, x->landing ? BULK_BYTES : 0);
}

NORETURN static void engine(const struct world *w, struct shared *s, int which,
    int listener, uint16_t port)
{
    struct side x = {.s = s, .w = w, .which = which, .seed = 1};

    pin_to(which);
    engine_open(&x, listener, port);
    meet(&x);
    for (size_t i = 0; i < w->cases_count; i++) {
        const struct bench_case *c = &w->cases[i];
        unsigned rounds = c->rounds ? c->rounds : opt.rounds;

        for (unsigned r = 0; wanted(c->name) && r < rounds; r++)
            c->round(&x, r);
    }
    meet(&x);
    engine_close(&x);
    exit(0);
}

/* daemons */

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

static void conf_pools(FILE *f, const struct world *w, int role, unsigned i)
{
    fprintf(f, "pools:\n");
    for (int p = 0; p < POOLS; p++) {
        uint32_t blocks = world_blocks(w, role, i, p);

        if (blocks)
            fprintf(f,
                "  - name: %s\n    block_rows: %u\n    blocks: %u\n"
                "    layout: embedding:u8:%u\n",
                pool_names[p], pool_block_rows[p], blocks, pool_row_bytes[p]);
        if (blocks && role == LANG && blocks < 8)
            fprintf(f, "    default_blocks: %u\n", blocks);
    }
}

/* Returns the file with the daemons' key, and makes it at the first call. */
const char *bench_key(void)
{
    static char path[600];
    char words[1400];

    snprintf(path, sizeof path, "%s/fleet.key", opt.dir);
    snprintf(
        words, sizeof words, "%s/mmxctl keygen %s >/dev/null", opt.build, path);
    if (access(path, R_OK) != 0 && system(words) != 0)
        die("%s: no key", path);
    return path;
}

static void write_conf(
    const struct world *w, int role, unsigned i, const uint16_t *ports)
{
    unsigned enc = role == ENC ? i : world_encoder(w, i);
    char path[128], sock[128];
    FILE *f;

    file_of(role, i, "yaml", path, sizeof path);
    file_of(role, i, "sock", sock, sizeof sock);
    f = fopen(path, "we");
    if (!f)
        die("%s: %s", path, strerror(errno));
    fprintf(f, "name: bench-%s-%u\nlog: warn\nsocket:\n  path: %s\n",
        role == ENC ? "enc" : "lang", i, sock);
    if (opt.clear)
        fprintf(f, "insecure: true\n");
    /* Under valgrind everything takes much longer. */
    fprintf(f, "control:\n  heartbeat: %s\n  lost_after: %s\n",
        w->valgrind ? "60s" : "1s", w->valgrind ? "60s" : "500ms");
    if (!opt.clear)
        fprintf(f, "  keys: [%s]\n", bench_key());
    if (role == ENC)
        fprintf(f, "  listen: tcp://127.0.0.1:%u\n", ports[enc]);
    else
        fprintf(f,
            "peers:\n  - name: bench-enc-%u\n"
            "    address: tcp://127.0.0.1:%u\n",
            enc, ports[enc]);
    if (w->valgrind)
        fprintf(f, "timeouts:\n  retry: 3s\n  hello: 60s\n%s",
            role == ENC ? "" : "  unreachable: 60s\n");
    fprintf(f, "transfer:\n  shards: %u\n  same_host: %s\n", world_shards(w, i),
        w->same_host);
    world_carrier(w, role, i, f);
    conf_pools(f, w, role, i);
    if (fclose(f) != 0)
        die("%s: %s", path, strerror(errno));
}

pid_t daemon_start(const char *conf, const char *log, int role, bool valgrind,
    const char *notify)
{
    const char *name = role == ENC ? "mmx-encoded" : "mmx-langd";
    char exe[600], counts[128];
    pid_t pid = fork();
    int fd;

    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_to(role);
    snprintf(exe, sizeof exe, "%s/%s", opt.build, name);
    snprintf(counts, sizeof counts, "--callgrind-out-file=%s/counts-%d",
        opt.dir, role);
    if (notify)
        setenv("NOTIFY_SOCKET", notify, 1);
    fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (valgrind)
        execlp("valgrind", "valgrind", "--tool=callgrind", counts, exe,
            "--config", conf, (char *)NULL);
    else
        execl(exe, name, "--config", conf, (char *)NULL);
    fprintf(stderr, "%s: %s\n", exe, strerror(errno));
    _exit(127);
}

static void start_all(const struct world *w, struct shared *s)
{
    unsigned n = w->encs + w->langs;
    char conf[128], log[128];
    uint16_t ports[4];

    for (unsigned i = 0; i < w->encs; i++)
        ports[i] = free_port(NULL);
    for (unsigned k = 0; k < n; k++) {
        int role = k < w->encs ? ENC : LANG;
        unsigned i = role == ENC ? k : k - w->encs;

        write_conf(w, role, i, ports);
        file_of(role, i, "yaml", conf, sizeof conf);
        file_of(role, i, "log", log, sizeof log);
        s->pids[k] = daemon_start(conf, log, role, w->valgrind, NULL);
    }
}

static void show_logs(void)
{
    char path[400], line[512];
    struct dirent *d;
    DIR *dir = opendir(opt.dir);

    while (dir && (d = readdir(dir))) {
        FILE *f;

        if (!strstr(d->d_name, ".log"))
            continue;
        snprintf(path, sizeof path, "%s/%s", opt.dir, d->d_name);
        f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
            fprintf(stderr, "%s: %s", d->d_name, line);
        if (f)
            fclose(f);
    }
    if (dir)
        closedir(dir);
}

/* Waits for the engines. False: a process ended too early, or failed. */
static bool watch(const pid_t *engines, unsigned n)
{
    unsigned left = n;

    while (left) {
        bool is_engine = false;
        int status;
        pid_t pid = waitpid(-1, &status, 0);

        for (unsigned i = 0; i < n; i++)
            is_engine |= pid == engines[i];
        if (pid < 0 || !is_engine || status != 0) {
            if (pid > 0 && WIFSIGNALED(status))
                fprintf(stderr, "mmx-bench: %s\n", strsignal(WTERMSIG(status)));
            return false;
        }
        left--;
    }
    return true;
}

void stop(pid_t pid, int sig)
{
    kill(pid, sig);
    (void)waitpid(pid, NULL, 0);
}

void remove_dir(void)
{
    char path[400];
    struct dirent *d;
    DIR *dir = opendir(opt.dir);

    while (dir && (d = readdir(dir))) {
        snprintf(path, sizeof path, "%s/%s", opt.dir, d->d_name);
        if (d->d_name[0] != '.')
            unlink(path);
    }
    if (dir)
        closedir(dir);
    rmdir(opt.dir);
}

bool world_run(const struct world *w, struct shared *s)
{
    unsigned n = SIDES + w->ranks, daemons = w->encs + w->langs;
    pid_t engines[SIDES + RANKS];
    pthread_barrierattr_t a;
    int listener;
    uint16_t port = free_port(&listener);
    bool good;

    pthread_barrierattr_init(&a);
    pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&s->meet, &a, n);
    start_all(w, s);
    for (unsigned i = 0; i < n; i++) {
        engines[i] = fork();
        if (engines[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            engine(w, s, (int)i, listener, port);
        }
    }
    close(listener);
    good = watch(engines, n);
    for (unsigned i = 0; !good && i < n; i++)
        stop(engines[i], SIGKILL);
    for (unsigned k = 0; k < daemons; k++)
        kill(s->pids[k], good ? SIGTERM : SIGKILL);
    for (unsigned k = 0; k < daemons; k++)
        (void)waitpid(s->pids[k], NULL, 0);
    if (!good)
        show_logs();
    return good;
}
