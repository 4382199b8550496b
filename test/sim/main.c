/* main.c - the simulator's command line. Every seed and every scenario runs in
 * a process of its own, so that a crash names the one that crashed. Threads
 * were rejected: a world is one process's globals. */
#include "test/sim/sim.h"

#include "base/check.h"

#include <sys/wait.h>

#define FULL_TRACES 3
#define JOBS_MAX    64
#define CALM_CANARY 8 /* this canary shows only where all must succeed */

/* One world to run. */
struct job {
    const char *option; /* runs the world again: --option name */
    char name[48];
    void (*run)(void);
    uint64_t seed;
    /* words of --set and --only; NULL: those of the command line */
    const char *words;
    bool muted, told;
};

struct options {
    uint64_t first, count, seed, jobs, limit_s, pairs, rooms;
    bool one, steps, seeds_given, calm, swarm, stop, shrink, fleet, cost;
    const char *scenario, *fault, *canary;
};

static const struct world_pinned {
    void (*run)(void);
    uint64_t seed;
    const char *words;
} pinned[] = {
#define WORLD(mutant, kind, seed, words, what) {kind##_run, seed, words},
#include "test/sim/worlds.def"
#undef WORLD
};

static struct options opt = {
    .first = 1, .count = 100, .jobs = 1, .limit_s = 120, .rooms = 1000000};
static struct {
    pid_t pid;
    struct job job;
} running[JOBS_MAX];
static uint32_t running_count, passed, failed;

static void on_check(void)
{
    trace_print();
}

/* Prints the numbers of a seed's world. */
static void show_steps(uint64_t seed)
{
    static const char *const names[] = {"rooms_succeeded", "rooms_failed",
        "resumes", "widened", "wants", "revokes", "broken", "retries",
        "stale_epoch", "stale_attempt", "deadlines", "blocks_quarantined",
        "peers_lost"};

    printf("seed %llu: steps %llu, ms %llu", (unsigned long long)seed,
        (unsigned long long)W.steps, (unsigned long long)(W.now_ns / MS));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        uint64_t n = 0;

        for (uint32_t k = 0; k < W.daemons_count; k++)
            n += daemon_number(W.daemons[k], "stats", names[i]);
        printf(", %s %llu", names[i], (unsigned long long)n);
    }
    printf(", copies %u, lent %u\n", W.copies, W.lent);
}

static void run_one(const struct job *j)
{
    char words[WORDS_MAX];

    CHECK(!j->words || options_read(j->words), "%s", j->words);
    options_words(words, sizeof(words));
    W.seed = W.moves = j->seed;
    W.from = &W.moves;
    snprintf(W.replay, sizeof(W.replay), "%s%s%s%s%s%s%s",
        j->option ? " --" : "", j->option ? j->option : "",
        j->name[0] ? " " : "", j->name, W.canary ? " --canary " : "",
        W.canary ? W.canary : "", words);
    check_set_printer(on_check);
    alarm((unsigned)opt.limit_s);
    j->run();
    if (W.show_steps)
        show_steps(j->seed);
    fflush(stdout);
}

static void tell_end(const struct job *j, int status)
{
    bool ok = status == 0;

    passed += ok;
    failed += !ok;
    W.quiet = failed >= FULL_TRACES;
    if (j->told)
        printf("%s %-32s %s\n", j->option, j->name, ok ? "passed" : "FAILED");
    if (WIFSIGNALED(status) && !j->muted)
        fprintf(stderr, "%s %s seed %llu: signal %d%s; replay: sim --seed %llu",
            j->option ? j->option : "", j->name, (unsigned long long)j->seed,
            WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? " (took too long)" : "",
            (unsigned long long)j->seed);
    if (WIFSIGNALED(status) && !j->muted)
        fprintf(stderr, "%s%s%s%s\n", j->option ? " --" : "",
            j->option ? j->option : "", j->name[0] ? " " : "", j->name);
}

/* Waits until one of the worlds has ended. */
static void reap(void)
{
    int status = 0;
    pid_t pid = waitpid(-1, &status, 0);
    uint32_t i = 0;

    CHECK(pid > 0, "waitpid");
    while (i < running_count && running[i].pid != pid)
        i++;
    CHECK(i < running_count, "a child that was not started");
    tell_end(&running[i].job, status);
    running[i] = running[--running_count];
}

static void reap_all(void)
{
    while (running_count > 0)
        reap();
}

/* True if no further worlds are to be started. */
static bool enough(void)
{
    return opt.stop && failed > 0;
}

/* In builds for scripts/cover: writes what this process has reached. */
extern void __gcov_dump(void) __attribute__((weak));

static void start(struct job j)
{
    pid_t pid;

    while (running_count >= opt.jobs)
        reap();
    if (enough())
        return;
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        if (j.muted && !freopen("/dev/null", "w", stderr))
            _exit(1);
        run_one(&j);
        if (__gcov_dump)
            __gcov_dump();
        _exit(0);
    }
    running[running_count].pid = pid;
    running[running_count++].job = j;
}

/* Tests the tests: every rule that is broken on purpose must be noticed. */
static void run_canaries(void)
{
    static const char *const names[] = {"attempt", "landing-fence",
        "send-fence", "landed-twice", "end-is-death", "no-ack", "early-ack",
        "map-end-is-death", "early-message"};
    uint32_t noticed = 0, missed = 0;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        uint64_t n = 0;

        if (strcmp(opt.canary, "all") != 0 && strcmp(opt.canary, names[i]) != 0)
            continue;
        W.canary = names[i];
        for (failed = 0; n < opt.count && failed == 0; n++) {
            start((struct job){.run = i == CALM_CANARY ? calm_run : swarm_run,
                .seed = opt.first + n,
                .muted = true});
            reap_all();
        }
        printf("canary %-20s %s %llu seeds\n", names[i],
            failed ? "noticed after" : "NOT NOTICED in", (unsigned long long)n);
        noticed += failed > 0;
        missed += failed == 0;
    }
    passed = noticed;
    failed = missed;
}

static void start_named(
    const char *option, const char *name, void (*run)(void), bool told)
{
    struct job j = {.option = option, .run = run, .seed = 1, .told = told};

    snprintf(j.name, sizeof(j.name), "%s", name);
    start(j);
}

static bool wanted(const char *only, const char *name)
{
    return !only || strcmp(only, "all") == 0 || strcmp(only, name) == 0;
}

static void run_scenarios(const struct scenario *s, uint32_t count,
    const char *option, const char *only)
{
    for (uint32_t i = 0; i < count; i++)
        if (wanted(only, s[i].name))
            start_named(option, s[i].name, s[i].run, true);
}

static void run_pinned(void)
{
    for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
        start((struct job){.option = pinned[i].run == calm_run ? "calm" : NULL,
            .run = pinned[i].run,
            .seed = pinned[i].seed,
            .words = pinned[i].words});
}

/* True if the seed's world fails, with the present words. */
static bool seed_fails(void)
{
    failed = 0;
    start((struct job){.option = opt.calm ? "calm" : NULL,
        .run = opt.calm ? calm_run : swarm_run,
        .seed = opt.seed,
        .muted = true});
    reap_all();
    return failed > 0;
}

static int shrink_seed(void)
{
    char words[WORDS_MAX];
    struct nature drawn;

    if (!seed_fails()) {
        puts("this world passes");
        return 2;
    }
    W.seed = opt.seed;
    (opt.calm ? draw_calm : draw_nature)();
    drawn = W.is;
    memset(&W.is, 0, sizeof(W.is));
    shrink(seed_fails, &drawn);
    options_words(words, sizeof(words));
    printf("sim --seed %llu%s%s\n", (unsigned long long)opt.seed,
        opt.calm ? " --calm" : "", words);
    return 0;
}

static void start_fault(const char *name, void (*run)(void))
{
    if (wanted(opt.fault, name))
        start_named("fault", name, run, false);
}

static void run_seeds(const char *option, void (*run)(void))
{
    for (uint64_t i = 0; i < opt.count && !enough(); i++)
        start(
            (struct job){.option = option, .run = run, .seed = opt.first + i});
}

/* Runs all kinds of worlds, or those that were named. */
static void run_all(void)
{
    bool named = opt.scenario || opt.fault || opt.calm || opt.swarm;

    if (opt.scenario || !named)
        run_scenarios(scenarios, scenarios_count, "scenario", opt.scenario);
    if (!named)
        run_pinned();
    if (opt.fault || !named)
        faults_list(start_fault);
    W.fault = (struct fault){.type = 0};
    if (opt.calm || !named || (opt.scenario && opt.seeds_given))
        run_seeds("calm", calm_run);
    if (opt.swarm || !named || (opt.scenario && opt.seeds_given))
        run_seeds(NULL, swarm_run);
    reap_all();
}

/* True if a world that run() makes passes, in a process of its own. */
static bool in_child(void (*run)(void))
{
    start((struct job){.run = run, .seed = opt.seed});
    reap_all();
    return failed == 0;
}

static int usage(void)
{
    fputs("sim [--seeds N] [--first S] [--jobs J] [--stop] [--limit SECONDS]\n"
          "    [--calm] [--swarm] [--scenario NAME|all] [--fault NAME|all]\n"
          "sim --canary NAME|all [--seeds N]\n"
          "sim --seed S [--calm] [--canary NAME] [--steps] [--shrink]\n"
          "    [--set NAME=NUMBER,...] [--only DELIVERY,...]\n"
          "sim --cost\n"
          "sim --fleet PAIRS [--rooms N]\n",
        stderr);
    return 2;
}

static bool read_flag(const char *arg)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--steps", &opt.steps}, {"--calm", &opt.calm},
        {"--swarm", &opt.swarm}, {"--stop", &opt.stop},
        {"--shrink", &opt.shrink}, {"--cost", &opt.cost}};

    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (strcmp(arg, flags[i].name) == 0)
            return *flags[i].flag = true;
    return false;
}

static bool read_value(const char *arg, const char *value)
{
    const struct {
        const char *name;
        uint64_t *number;
        const char **text;
        bool *given;
    } values[] = {{"--seeds", &opt.count, NULL, &opt.seeds_given},
        {"--first", &opt.first, NULL, NULL},
        {"--seed", &opt.seed, NULL, &opt.one},
        {"--jobs", &opt.jobs, NULL, NULL},
        {"--limit", &opt.limit_s, NULL, NULL},
        {"--fleet", &opt.pairs, NULL, &opt.fleet},
        {"--rooms", &opt.rooms, NULL, NULL},
        {"--scenario", NULL, &opt.scenario, NULL},
        {"--fault", NULL, &opt.fault, NULL},
        {"--canary", NULL, &opt.canary, NULL}};

    if (value && (strcmp(arg, "--set") == 0 || strcmp(arg, "--only") == 0))
        return option_read(arg, value);
    for (size_t i = 0; value && i < ARRAY_LEN(values); i++) {
        if (strcmp(arg, values[i].name) != 0)
            continue;
        if (values[i].number)
            *values[i].number = strtoull(value, NULL, 0);
        else
            *values[i].text = value;
        if (values[i].given)
            *values[i].given = true;
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!read_flag(argv[i])) {
            if (!read_value(argv[i], i + 1 < argc ? argv[i + 1] : NULL))
                return usage();
            i++;
        }
    if (opt.jobs == 0 || opt.jobs > JOBS_MAX)
        return usage();
    W.show_steps = opt.steps;
    if (opt.fleet)
        return !fleets_run(in_child, (uint32_t)opt.pairs, opt.rooms);
    if (opt.cost)
        return !cost_run(in_child);
    if (opt.one && opt.shrink)
        return shrink_seed();
    if (opt.one) {
        W.loud = true;
        W.canary = opt.canary;
        run_one(&(struct job){.option = opt.calm ? "calm" : NULL,
            .run = opt.calm ? calm_run : swarm_run,
            .seed = opt.seed});
        printf("seed %llu passed\n", (unsigned long long)opt.seed);
        return 0;
    }
    if (opt.canary)
        run_canaries();
    else
        run_all();
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
