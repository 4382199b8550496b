/* mmx-bench - measures mmx on this machine, and simpler programs ("yardsticks")
 * for comparison.
 *
 * Starts daemons of its own, and engines: one process encodes, one is the
 * language side, some read along, all through libmmx. Every case runs in
 * rounds, in which mmx and its yardstick take turns, because a machine's speed
 * changes between minutes, but the ratio of two programs within one minute does
 * not. Each side's processes are on one core, the yardstick's too. Times are
 * stamped with the monotonic clock in one engine and taken in the other, by way
 * of a shared page. What is moved is compared.
 *
 * All engines run the same list of cases and meet at a barrier before every
 * step, so none needs to know how far the others are. One thread each.
 * test/bench/README.md says what bounds the figures.
 *
 * Rejected: a benchmark of parts (a shard, a brain). Early experiments measured
 * parts; here the whole is compared with what the kernel alone can do. */
#include "test/bench/bench.h"

#include <getopt.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

struct bench_opt opt = {.rounds = 9, .pin = true};

void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("mmx-bench: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

int must(int result, const char *what)
{
    const char *text, *name = mmx_reason(result, &text, NULL);

    if (result < 0)
        die("%s: %s: %s", what, name, text);
    return result;
}

uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

void gap(struct side *x)
{
    struct timespec ts = {0, 0};

    x->seed = x->seed * UINT64_C(6364136223846793005) + 1;
    ts.tv_nsec = (long)(150000 + (x->seed >> 33) % 300000);
    nanosleep(&ts, NULL);
}

void meet(struct side *x)
{
    pthread_barrier_wait(&x->s->meet);
}

void note(struct side *x, int series, uint64_t value)
{
    struct series *v = &x->s->series[series];

    if (v->count == SAMPLES_MAX)
        die("more samples than there is room for");
    v->v[v->count++] = value;
}

bool wanted(const char *name)
{
    return !opt.only || strcmp(opt.only, name) == 0 ||
           strcmp(name, "count") == 0;
}

static void usage(FILE *f)
{
    fputs("usage: mmx-bench [options]\n"
          "  --rounds N      rounds of every case (9; at most 99)\n"
          "  --case NAME     only this one:",
        f);
    for (size_t w = 0; w < worlds_count; w++)
        for (size_t i = 0; i < worlds[w].cases_count; i++)
            fprintf(f, " %s", worlds[w].cases[i].name);
    fputs(" start\n"
          "  --ucx TLS       rows that are sent go by UCX, over these "
          "transports\n"
          "  --devices D     of UCX, with --ucx (lo)\n"
          "  --free          not each side's processes on one core\n"
          "  --clear         daemons without a key, and nothing encrypted, as "
          "most yardsticks are\n"
          "  --instructions  also count them per room, with valgrind\n"
          "  --json          as JSON\n"
          "  --out DIR       also bench.json and columns for curves there\n"
          "  --version\n",
        f);
}

static bool known_case(void)
{
    for (size_t w = 0; w < worlds_count; w++)
        if (world_wanted(&worlds[w]))
            return true;
    return wanted("start") || opt.instructions;
}

static void parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"rounds", required_argument, NULL, 'r'},
        {"case", required_argument, NULL, 'c'},
        {"ucx", required_argument, NULL, 'u'},
        {"devices", required_argument, NULL, 'd'},
        {"out", required_argument, NULL, 'o'}, {"free", no_argument, NULL, 'f'},
        {"clear", no_argument, NULL, 'l'},
        {"instructions", no_argument, NULL, 'i'},
        {"json", no_argument, NULL, 'j'}, {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (c == 'r')
            opt.rounds = (unsigned)atoi(optarg);
        else if (c == 'c')
            opt.only = optarg;
        else if (c == 'o')
            opt.out = optarg;
        else if (c == 'u')
            opt.ucx = optarg;
        else if (c == 'd')
            opt.devices = optarg;
        else if (c == 'f')
            opt.pin = false;
        else if (c == 'l')
            opt.clear = true;
        else if (c == 'i')
            opt.instructions = true;
        else if (c == 'j')
            opt.json = true;
        else if (c == 'v' && printf("mmx-bench %s\n", mmx_version()))
            exit(0);
        else {
            usage(c == 'h' ? stdout : stderr);
            exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind == argc && known_case() && opt.rounds > 0 &&
        opt.rounds <= ROUNDS_MAX)
        return;
    usage(stderr);
    exit(2);
}

static void find_build(void)
{
    ssize_t n = readlink("/proc/self/exe", opt.build, sizeof opt.build - 1);
    char *slash;

    opt.build[n > 0 ? n : 0] = 0;
    slash = strrchr(opt.build, '/');
    if (slash)
        *slash = 0;
}

static bool run_all(struct shared *s)
{
    for (size_t w = 0; w < worlds_count; w++) {
        if (!world_wanted(&worlds[w]))
            continue;
        fprintf(stderr, "mmx-bench: %s\n", worlds[w].name);
        if (!world_run(&worlds[w], s))
            return false;
    }
    if (wanted("start"))
        start_case(s);
    return !opt.instructions || count_instructions(s);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    struct shared *s;
    bool good;

    if (argc > 1 && strcmp(argv[1], "sealed") == 0)
        return sealed_main(argc - 1, argv + 1);
    parse(argc, argv);
    find_build();
    snprintf(opt.dir, sizeof opt.dir, "%.40s/mmx-bench-%d",
        tmp ? tmp : P_tmpdir, (int)getpid());
    if (mkdir(opt.dir, 0700) != 0)
        die("%s: %s", opt.dir, strerror(errno));
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        die("no memory");
    if (opt.out && mkdir(opt.out, 0777) != 0 && errno != EEXIST)
        die("%s: %s", opt.out, strerror(errno));
    good = run_all(s);
    remove_dir();
    if (!good)
        return 1;
    print_all(s);
    if (opt.out)
        write_curves(s);
    return 0;
}
