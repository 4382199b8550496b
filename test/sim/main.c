/* main.c - the simulator's command line. Every seed and every scenario runs in
 * a process of its own, so that a crash of one says which one it was. */
#include "test/sim/sim.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEED_LIMIT_S 120
#define FULL_TRACES  3

struct options {
    uint64_t first, count, seed;
    bool one, steps, seeds_given;
    const char *scenario, *canary;
};

static void on_check(void)
{
    trace_print();
}

/* What happened in a seed, in numbers. */
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
    printf(", copies %u\n", W.copies);
}

static void one(uint64_t seed, const struct scenario *s)
{
    W.seed = W.rng = seed;
    check_set_printer(on_check);
    alarm(SEED_LIMIT_S);
    if (s)
        s->run();
    else
        swarm_run();
    if (W.show_steps)
        show_steps(seed);
    fflush(stdout);
}
static bool in_child(uint64_t seed, const struct scenario *s, bool muted)
{
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        if (muted && !freopen("/dev/null", "w", stderr))
            _exit(1);
        one(seed, s);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    if (status == 0)
        return true;
    if (WIFSIGNALED(status) && !muted)
        fprintf(stderr, "seed %llu: signal %d%s; replay: sim --seed %llu\n",
            (unsigned long long)seed, WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? " (took too long)" : "",
            (unsigned long long)seed);
    return false;
}

/* The tests' test: every rule that is broken on purpose must be noticed. */
static uint32_t run_canaries(const struct options *o, uint32_t *passed)
{
    static const char *const names[] = {"attempt", "landing-fence",
        "send-fence", "landed-twice", "end-is-death", "no-ack", "early-ack",
        "map-end-is-death"};
    uint32_t failed = 0;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        uint64_t n = 0;

        if (strcmp(o->canary, "all") != 0 && strcmp(o->canary, names[i]) != 0)
            continue;
        W.canary = names[i];
        while (n < o->count && in_child(o->first + n, NULL, true))
            n++;
        printf("canary %-20s %s %llu seeds\n", names[i],
            n < o->count ? "noticed after" : "NOT NOTICED in",
            (unsigned long long)(n < o->count ? n + 1 : n));
        *passed += n < o->count;
        failed += n >= o->count;
    }
    return failed;
}

static uint32_t run_scenarios(const char *only, uint32_t *passed)
{
    uint32_t failed = 0;

    for (uint32_t i = 0; i < scenarios_count; i++) {
        const struct scenario *s = &scenarios[i];
        bool ok;

        if (only && strcmp(only, "all") != 0 && strcmp(only, s->name) != 0)
            continue;
        ok = in_child(1, s, false);
        printf("scenario %-24s %s\n", s->name, ok ? "passed" : "FAILED");
        *passed += ok;
        failed += !ok;
    }
    return failed;
}

static int usage(void)
{
    fputs("sim [--seeds N] [--first S] [--seed S] [--steps] "
          "[--scenario NAME|all] [--canary NAME|all]\n",
        stderr);
    return 2;
}

static bool read_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--steps") == 0) {
            o->steps = true;
            continue;
        }
        if (!value)
            return false;
        if (strcmp(argv[i], "--seeds") == 0) {
            o->count = strtoull(value, NULL, 0);
            o->seeds_given = true;
        } else if (strcmp(argv[i], "--first") == 0) {
            o->first = strtoull(value, NULL, 0);
        } else if (strcmp(argv[i], "--seed") == 0) {
            o->seed = strtoull(value, NULL, 0);
            o->one = true;
        } else if (strcmp(argv[i], "--scenario") == 0) {
            o->scenario = value;
        } else if (strcmp(argv[i], "--canary") == 0) {
            o->canary = value;
        } else {
            return false;
        }
        i++;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.first = 1, .count = 100};
    uint32_t passed = 0, failed = 0;

    if (!read_options(argc, argv, &o))
        return usage();
    W.show_steps = o.steps;
    if (o.one) {
        W.loud = true;
        W.canary = o.canary;
        one(o.seed, NULL);
        printf("seed %llu passed\n", (unsigned long long)o.seed);
        return 0;
    }
    if (o.canary)
        failed = run_canaries(&o, &passed);
    else
        failed = run_scenarios(o.scenario, &passed);
    for (uint64_t i = 0;
         !o.canary && !(o.scenario && !o.seeds_given) && i < o.count; i++) {
        bool ok = in_child(o.first + i, NULL, false);

        passed += ok;
        failed += !ok;
        W.quiet = failed >= FULL_TRACES;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
