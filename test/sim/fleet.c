/* fleet.c - as many daemons as a cluster has: every langd asks every encoded,
 * rooms of several users come all the time, with keys that follow Zipf's law,
 * for a while many at once at one encoder; each daemon is reloaded, and in turn
 * drained and restarted. There is no fault, so no room may be lost.
 *
 * Worlds of this size are not checked completely after each step (W.sparse).
 * What a room costs the brains must not depend on the number of daemons. */
#include "test/sim/stage.h"

#include "base/check.h"

#include <sys/resource.h>
#include <time.h>

#define PAIRS_LEAST 5
#define USERS       4
#define KEYS        2000
#define KEY_ROOMS   UINT32_C(0x40000000) /* instances that keys name */
#define FIRST_ROOM  2000000
#define PAIR_RATE   UINT64_C(40) /* rooms a second of each encoded */
/* rate of the last user's burst, in PAIR_RATEs */
#define CROWD       60
#define LOOK_ALL    10000
#define SWEEP_ROOMS 10000
/* time after which routers know that a daemon drains */
#define ENDS_NS (200 * MS)
#define OLD_NS  (2 * NS_PER_S)

static uint32_t pairs;
static double *work; /* cost of a room; written by the child process */
static uint64_t rooms, started, ended, length_ns;
/* the daemon's life that takes no new rooms */
static uint32_t leaves[DAEMONS_MAX];
static double zipf[KEYS];
static struct waits {
    uint32_t *us, count, cap;
} waits[USERS];

/* daemons */

static void make_daemons(void)
{
    for (uint32_t i = 0; i < 2 * pairs; i++) {
        bool langd = i >= pairs;
        struct daemon *d;
        char name[16];

        snprintf(name, sizeof(name), langd ? "l%u" : "e%u", i % pairs);
        d = make(langd ? ROLE_LANGD : ROLE_ENCODED, name, ROW_4K, 64, 16, 2);
        d->conf->limit_peers = pairs;
        d->conf->limit_rooms = 8192;
        d->conf->limit_attachments = 16384;
        W.cells = 8192;
        d->conf->limit_tombstones = 16384;
        d->host = i;
        d->conf->pools[0].blocks = i ? 64 : 24; /* less than the crowd needs */
    }
}

static bool takes_rooms(const struct daemon *d)
{
    return d->alive && leaves[d->index] != d->life;
}

static void starts_anew(void *p, uint64_t a, uint64_t b)
{
    daemon_start(p);
}

/* The daemon ends when all langds know how its rooms ended. */
static void goes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;
    bool empty = brain_open_rooms(d->brain) == 0;

    if (!empty || !a) {
        at(W.now_ns + 50 * MS, goes, d, empty, 0);
        return;
    }
    daemon_crash(d);
    at(W.now_ns + 100 * MS, starts_anew, d, 0, 0);
}

static void drains(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;
    struct event ev = {.type = EV_ENDING};

    d->draining = true;
    daemon_step(d, &ev);
    at(W.now_ns + 50 * MS, goes, d, false, 0);
}

static void leaves_soon(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;

    leaves[d->index] = d->life;
    at(W.now_ns + ENDS_NS, drains, d, 0, 0);
}

/* rooms */

static uint64_t draw_key(void)
{
    double x = (double)(draw() >> 11) / (double)(UINT64_C(1) << 53);
    uint32_t lo = 0, hi = KEYS - 1;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (zipf[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo + 1;
}

static struct daemon *one_of(uint32_t first)
{
    struct daemon *d;

    do
        d = W.daemons[first + draw() % pairs];
    while (!takes_rooms(d));
    return d;
}

static void open_room(struct daemon *e, bool crowd)
{
    uint64_t room = FIRST_ROOM + started++, key = chance(500) ? draw_key() : 0;
    uint32_t to = pairs > 1 && chance(50) ? 2 : 1;
    uint32_t session = crowd         ? USERS - 1
                       : chance(500) ? 0
                                     : (uint32_t)(draw() % USERS);
    struct prod *p = prod_new(e, room);
    uint64_t content = key ? key * 2654435761 : draw();

    p->session = session;
    p->total = p->max_rows = 1 + (uint32_t)(content >> 3) % 40;
    p->pieces = 1 + (uint32_t)(content >> 13) % min_u32(3, p->total);
    p->aux = (uint32_t)(content >> 17) % 100;
    p->known = !chance(200);
    p->required = to;
    p->must_succeed = p->patient = true;
    p->pace_ns = 2 * MS;
    if (key) {
        p->key = key;
        p->instance = KEY_ROOMS + (uint32_t)key;
        p->flags |= FLAG_KEEP;
    }
    prod_start(p, W.now_ns + between(0, 5) * MS);
    for (uint32_t i = 0, first = NONE; i < to; i++) {
        struct daemon *l = one_of(pairs);
        struct cons *c;

        while (l->index == first)
            l = one_of(pairs);
        first = l->index;
        c = cons_new(l, e->index, room);
        c->session = session;
        c->required = to;
        c->key = key;
        c->mode = to == 1 && chance(100) ? MODE_STREAM : MODE_WHOLE;
        c->window = 1;
        c->must_succeed = true;
        c->hold_ns = between(0, 10) * MS;
        cons_start(c, W.now_ns + between(0, 5) * MS);
    }
}

static void see_end(const struct cons *c)
{
    struct waits *w = &waits[c->session];

    HOLDS(c->ready_ns, "no room is lost", "%s room %llu was not ready",
        c->d->conf->name, (unsigned long long)c->room);
    if (w->count == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 1024;
        w->us = realloc(w->us, w->cap * sizeof(*w->us));
        CHECK(w->us, "no memory for %u waits", w->cap);
    }
    w->us[w->count++] = (uint32_t)((c->ready_ns - c->start_ns) / 1000);
}

static void sweep(uint64_t old_ns)
{
    for (const struct prod *p = prods_all(); p; p = p->next)
        if (p->over && W.now_ns - p->end_ns >= old_ns) {
            HOLDS(prod_saw_done(p), "no room is lost", "%s room %llu",
                p->d->conf->name, (unsigned long long)p->room);
            ended++;
        }
    for (const struct cons *c = cons_all(); c; c = c->next)
        if (c->over && W.now_ns - c->end_ns >= old_ns)
            see_end(c);
    prods_forget(old_ns);
    cons_forget(old_ns);
}

static void room_comes(void *p, uint64_t until_ns, uint64_t rate)
{
    uint64_t gap_us = 1000000 / rate;

    if (started >= rooms || W.now_ns > until_ns)
        return;
    if (!p || takes_rooms(p))
        open_room(p ? p : one_of(0), p);
    if (started % SWEEP_ROOMS == 0)
        sweep(OLD_NS);
    at_leisure(W.now_ns + between(0, 2 * gap_us) * 1000, room_comes, p,
        until_ns, rate);
}

/* the run */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void tell_waits(void)
{
    for (uint32_t u = 0; u < USERS; u++) {
        struct waits *w = &waits[u];

        if (w->count == 0)
            continue;
        qsort(w->us, w->count, sizeof(*w->us), by_value);
        printf("%s%u.%u / %u.%u",
            u ? ", " : "  ms p50 / p99 by user: ", w->us[w->count / 2] / 1000,
            w->us[w->count / 2] / 100 % 10,
            w->us[w->count - 1 - w->count / 100] / 1000,
            w->us[w->count - 1 - w->count / 100] / 100 % 10);
    }
    putchar('\n');
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void schedule(void)
{
    uint64_t crowd_ns = length_ns / 100, from_ns = NS_PER_S + length_ns / 3;

    at_leisure(NS_PER_S, room_comes, NULL, TIME_NEVER, PAIR_RATE * pairs);
    at_leisure(from_ns, room_comes, W.daemons[0], from_ns + crowd_ns,
        PAIR_RATE * CROWD);
    for (uint32_t i = 0; i < 2 * pairs; i++)
        at_leisure(
            NS_PER_S + length_ns / 10 + length_ns * 8 / 10 * i / pairs / 2,
            leaves_soon, W.daemons[i], 0, 0);
    W.is.reload_ms = (uint32_t)max_u64(1, length_ns / MS / pairs / 2);
    reloads_start();
}

static void fleet_run(void)
{
    struct cost cost, links;
    struct rusage use;
    double sum = 0, begun = cpu_s(), all;

    length_ns = rooms * NS_PER_S / (PAIR_RATE * pairs);
    quiet_world(pairs, pairs);
    W.healing = false;
    W.is.calm = true;
    W.sparse = LOOK_ALL;
    for (uint32_t i = 0; i < KEYS; i++)
        zipf[i] = sum += 1.0 / (i + 1);
    for (uint32_t i = 0; i < KEYS; i++)
        zipf[i] /= sum;
    make_daemons();
    start_all();
    schedule();
    while (started < rooms || !world_over())
        (void)run_until(W.now_ns + NS_PER_S);
    sweep(0);
    HOLDS(ended == rooms && W.failed == 0, "no room is lost",
        "%llu of %llu ended, %u failed", (unsigned long long)ended,
        (unsigned long long)rooms, W.failed);
    W.healing = true;
    reloads_end();
    all = cpu_s() - begun;
    getrusage(RUSAGE_SELF, &use);
    cost = cost_of(true);
    links = cost_of(false);
    printf("%3u daemons: %7llu rooms, %5.0f a second, %4.0f s, %4ld MiB; of a "
           "room %.1f steps, %.0f blocks of code; of links %.1f, %.0f\n",
        2 * pairs, (unsigned long long)rooms, (double)rooms / all, all,
        use.ru_maxrss / 1024, (double)cost.steps / (double)rooms,
        (double)cost.work / (double)rooms, (double)links.steps / (double)rooms,
        (double)links.work / (double)rooms);
    tell_waits();
    world_finish(200 * NS_PER_S);
    *work = (double)cost.work / (double)rooms;
}

bool fleets_run(bool (*in_child)(void (*run)(void)), uint32_t n, uint64_t all)
{
    static const uint32_t parts[] = {20, 4, 1};
    double least = 0, most = 0;

    work = shared_alloc(sizeof(*work));
    for (uint32_t i = 0; i < ARRAY_LEN(parts); i++) {
        pairs = n / parts[i];
        rooms = all / parts[i];
        if (pairs < PAIRS_LEAST)
            continue;
        if (!in_child(fleet_run))
            return false;
        least = least > 0 && least < *work ? least : *work;
        most = most > *work ? most : *work;
    }
    printf("no room was lost; what a room costs differs by %.1f %%\n",
        least > 0 ? 100 * (most - least) / least : 0);
    return most <= 1.1 * least;
}
