/* cost.c - what a step of a brain costs, as the number of blocks of code that
 * it runs, in objects that are built to count them (Makefile, COUNTED). Time
 * was rejected: it depends on the machine, and on what else runs there. */
#include "test/sim/stage.h"

#include "base/check.h"

#define KINDS 160
#define LOCAL 32 /* first kind of local messages; PEER: of peers' */
#define PEER  96

static uint64_t blocks_run, before;
/* of the last event; EV_MORE continues it */
static uint32_t kind;
static struct cost kinds[2][KINDS]; /* by role and kind */

/* The compiler's own name: it calls this at the begin of each block.
 * NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
{
    blocks_run++;
}

void cost_begin(void)
{
    before = blocks_run;
}

static uint32_t kind_of(const struct event *ev)
{
    if (ev->type == EV_LOCAL)
        return LOCAL + ev->local->type;
    if (ev->type == EV_PEER)
        return PEER + ev->peer->type;
    return ev->type;
}

void cost_end(const struct daemon *d, const struct event *ev)
{
    uint64_t work = blocks_run - before;
    struct cost *c;

    if (ev->type != EV_MORE)
        kind = kind_of(ev);
    CHECK(kind < KINDS, "an event of kind %u", kind);
    c = &kinds[d->role == ROLE_LANGD][kind];
    c->steps++;
    c->work += work;
    c->most = max_u64(c->most, work);
}

static bool about_rooms(uint32_t k)
{
    return k >= LOCAL ? k != PEER + PEER_HELLO
                      : k == EV_TIME || k == EV_NOTE || k == EV_CONN_END ||
                            k == EV_CONN_DEAD;
}

struct cost cost_of(bool rooms)
{
    struct cost all = {0};

    for (uint32_t i = 0; i < 2 * KINDS; i++) {
        const struct cost *c = &kinds[i / KINDS][i % KINDS];

        if (about_rooms(i % KINDS) != rooms)
            continue;
        all.steps += c->steps;
        all.work += c->work;
        if (c->most > all.most)
            all.kind = i;
        all.most = max_u64(all.most, c->most);
    }
    return all;
}

static const char *kind_name(uint32_t i)
{
    static const char *const events[] = {[EV_CONN_END] = "connection ends",
        [EV_CONN_DEAD] = "process is dead",
        [EV_NOTE] = "note of a shard",
        [EV_TIME] = "time"};
    static char text[40];
    uint32_t k = i % KINDS;
    const char *name = k >= PEER               ? peer_name(k - PEER)
                       : k >= LOCAL            ? local_name(k - LOCAL)
                       : k < ARRAY_LEN(events) ? events[k]
                                               : NULL;

    snprintf(text, sizeof(text), "%c %s", i < KINDS ? 'E' : 'L',
        name ? name : "of a link");
    return text;
}

void cost_print(void)
{
    for (uint32_t i = 0; i < 2 * KINDS; i++) {
        const struct cost *c = &kinds[i / KINDS][i % KINDS];

        if (c->steps)
            printf("    %-20s %8llu steps of %7llu, at most %llu\n",
                kind_name(i), (unsigned long long)c->steps,
                (unsigned long long)(c->work / c->steps),
                (unsigned long long)c->most);
    }
}

/* worlds */

static void make_both(uint32_t n, uint32_t sources, uint32_t blocks)
{
    quiet_world(1, 1);
    W.sparse = 100000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, sources, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, blocks, 16, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct conf *c = W.daemons[i]->conf;

        c->limit_rooms = n + 16;
        c->limit_attachments = 2 * n + 16;
        W.cells = n + 16;
        c->limit_tombstones = 2 * n + 16;
    }
}

/* All rooms wait for blocks, at both sides. */
static void rooms_wait(uint32_t n)
{
    make_both(n, n / 8 + 1, n / 16 + 1);
    start_all();
    for (uint32_t r = 1; r <= n; r++) {
        announce(e0, r, 16, 5 + r / 5);
        request(l0, e0, r, 50 + n / 5 + r / 5);
    }
}

/* Rooms are kept after their end, and others need their blocks. */
static void rooms_kept(uint32_t n)
{
    make_both(2 * n, n, n);
    start_all();
    for (uint32_t r = 1; r <= 2 * n; r++) {
        struct prod *p = announce(e0, r, 16, 5 + r / 5);

        p->key = r;
        p->flags |= FLAG_KEEP;
        request(l0, e0, r, 5 + r / 5)->key = r;
    }
}

/* A group of n rooms over a langd pool of `blocks` blocks. They announce
 * max_rows; known: that is their length, too. */
static void group_in(uint32_t n, uint32_t blocks, uint32_t max_rows, bool known)
{
    make_both(n, n / 2 + 1, blocks);
    start_all();
    for (uint32_t r = 1; r <= n; r++) {
        struct cons *c = request(l0, e0, r, 5 + r / 10);
        struct prod *p = announce(e0, r, 16, 20 + n / 10 + r / 10);

        p->must_succeed = blocks >= n;
        p->max_rows = max_rows;
        p->known = known;
        c->must_succeed = blocks >= n;
        c->session = 2;
        c->group = 1;
        c->group_size = (uint16_t)n;
    }
}

static void one_group(uint32_t n)
{
    group_in(n, n, 16, true);
}

/* The group's max_rows are more than the pool holds: members get blocks for
 * rows that are committed. */
static void group_spares(uint32_t n)
{
    group_in(n, n, 32, false);
}

/* The group is too large, and fails as a whole. */
static void group_fails(uint32_t n)
{
    group_in(n, n / 2, 16, true);
}

/* One batch, beside single rooms. */
static void one_batch(uint32_t n)
{
    struct prod *last = NULL;

    make_both(2 * n, n, n);
    start_all();
    for (uint32_t r = 1; r <= n; r++) {
        struct prod *p = announce(e0, r, 16, 5);

        p->session = 0;
        if (last) {
            last->mate = p;
            p->led = last;
        }
        last = p;
        announce(e0, n + r, 16, 4 + r / 20)->session = 1;
        request(l0, e0, r, 40 + r / 10);
        request(l0, e0, n + r, 30 + r / 10);
    }
}

/* One host: rows are copied, with fences meanwhile. */
static void rooms_copied(uint32_t n)
{
    make_both(n, 2 * n, n);
    W.is.hosts = 1;
    W.is.copy_us = 20000;
    start_all();
    for (uint32_t r = 1; r <= n; r++) {
        announce(e0, r, 16, 5 + r / 5);
        request(l0, e0, r, 50 + n / 5 + r / 5);
    }
}

static const struct {
    const char *name;
    void (*make)(uint32_t n);
    uint32_t most;
    double growth; /* growth of a step's cost; heaps are deeper in larger
                      worlds */
    /* The longest step may run `longest` blocks of code, and `each` for every
     * room. */
    uint32_t longest, each;
} worlds[] = {{"rooms that wait", rooms_wait, 10000, 1.2, 2000, 0},
    {"rooms that are kept", rooms_kept, 10000, 1.2, 2000, 0},
    {"rooms that are copied", rooms_copied, 10000, 1.3, 2000, 0},
    /* Groups and batches are admitted, served and ended in one step. */
    {"a group", one_group, 1000, 1.2, 2000, 450},
    {"a group that is larger", group_spares, 1000, 1.2, 2000, 450},
    {"a group that fails", group_fails, 1000, 1.2, 2000, 450},
    {"a batch", one_batch, 1000, 1.2, 2000, 450}};

static const uint32_t sizes[] = {10, 100, 1000, 10000};
static uint32_t world, size;
static struct cost *found; /* counted in the child process */

static void run_world(void)
{
    worlds[world].make(sizes[size]);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    *found = cost_of(true);
    if (W.show_steps)
        cost_print();
    HOLDS(world_over(), "every room ends", "encode%s, language%s", prods_left(),
        cons_left());
}

bool cost_run(bool (*in_child)(void (*run)(void)))
{
    uint32_t grow = 0;
    bool grows;

    found = shared_alloc(sizeof(*found));
    puts("blocks of code of a step, and of the longest, in worlds of 10, 100, "
         "1000, 10000 rooms");
    for (world = 0; world < ARRAY_LEN(worlds); world++) {
        double least = 0, mean = 0;

        grows = false;
        printf("%-24s", worlds[world].name);
        for (size = 0;
             size < ARRAY_LEN(sizes) && sizes[size] <= worlds[world].most;
             size++) {
            if (!in_child(run_world))
                return false;
            mean = (double)found->work / (double)max_u64(found->steps, 1);
            least = least > 0 && least < mean ? least : mean;
            grows |=
                mean > worlds[world].growth * least ||
                found->most > worlds[world].longest +
                                  (uint64_t)worlds[world].each * sizes[size];
            printf(" %7.0f %8llu", mean, (unsigned long long)found->most);
        }
        printf("  %s%s\n", kind_name(found->kind), grows ? ", GROWS" : "");
        grow += grows;
    }
    printf("%zu passed, %u failed\n", ARRAY_LEN(worlds) - grow, grow);
    return grow == 0;
}
