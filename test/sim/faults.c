/* faults.c - small worlds in which one thing goes wrong, at every moment in
 * turn: the k-th message of a type is lost, doubled or late; the endpoints
 * break; a daemon crashes. Faults are enumerated, not drawn: a message that is
 * sent only once, or a case that is forgotten at one moment only, fails every
 * time.
 *
 * A lost message costs one repetition, never a room, and no deadline. */
#include "test/sim/stage.h"

#include "base/check.h"
#include "core/debt.h"

#include <stdarg.h>

#define MESSAGES 6              /* of each type that are tried, in turn */
#define SOON     (8 * NS_PER_S) /* a few repetitions, of 2 s at most */
#define LATE_MS  330            /* what a fault of a DECLINE may cost */
#define STILL_MS 20             /* how long a stopped clock stands */
/* shorter than timeouts.unreachable and similar times */
#define JUMP_NS (4 * NS_PER_S)

static uint32_t rooms_wanted;

static void good(uint64_t room, uint32_t rows, bool known, uint64_t when_ms)
{
    struct prod *p = announce(e0, room, rows, when_ms);

    p->known = known;
    p->aux = 100;
    p->pieces = rows > 4 ? 4 : 1;
    p->must_succeed = true;
    rooms_wanted++;
}

/* Unknown lengths, grants used up, rows that come before and after their
 * request. */
static void plain(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 64, 16, 2);
    good(1, 200, false, 1);
    request(l0, e0, 1, 10);
    good(2, 100, true, 20);
    request(l0, e0, 2, 1);
    good(3, 0, true, 5);
    request(l0, e0, 3, 6)->readers = 0;
    good(4, 16, true, 40);
    request(l0, e0, 4, 30)->rows = 16;
}

/* Rooms of a second pool beside plain ones. */
static void pools(void)
{
    struct daemon *of[2];

    plain();
    of[0] = e0;
    of[1] = l0;
    for (uint32_t i = 0; i < ARRAY_LEN(of); i++) {
        conf_give(of[i]->conf, "pools[1].name=more");
        conf_give(of[i]->conf, "pools[1].blocks=64");
        conf_give(of[i]->conf, "pools[1].layout=" ROW_4K);
        of[i]->conf->pools[1].block_rows = 16;
    }
    for (uint64_t r = 11; r <= 13; r++) {
        good(r, 100, r % 2, 10 * (r - 10));
        prods_all()->pool = 1;
        request(l0, e0, r, 11)->pool = 1;
    }
}

/* More rows than the pool holds: queues, and grants that are taken back. */
static void pressure(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 8, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 6, 8, 2);
    for (uint64_t r = 1; r <= 5; r++) {
        good(r, 48, r % 2 == 0, 2 * r);
        request(l0, e0, r, 12 - 2 * r);
    }
}

static void to_two(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 32, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 8, 16, 2);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 8, 16, 2);
    for (uint64_t r = 1; r <= 3; r++) {
        good(r, 100, r != 2, 2 * r);
        prods_all()->required = 2;
        request(r % 2 ? l0 : l1, e0, r, 3)->required = 2;
        request(r % 2 ? l1 : l0, e0, r, 3 + r)->required = 2;
    }
}

static void streams(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 12, 16, 3);
    for (uint64_t r = 1; r <= 2; r++) {
        good(r, 300, r == 1, 2 * r);
        request(l0, e0, r, 5 * r)->mode = MODE_STREAM;
    }
}

static void grouped(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 8, 16, 2);
    for (uint64_t r = 1; r <= 4; r++) {
        struct cons *c = request(l0, e0, r, 2 * r);

        good(r, 40, true, 9 - 2 * r);
        c->session = 1;
        c->group = 1 + (r - 1) / 2;
        c->group_size = 2;
    }
}

/* Either side gives rooms up, and another room goes on. */
/* F32 */
static void ends(void)
{
    struct prod *p;
    struct cons *c;

    plain();
    p = announce(e0, 5, 300, 1);
    p->aborts = true;
    p->abort_ns = 12 * MS;
    p->known = false;
    p->pieces = 8;
    request(l0, e0, 5, 1)->must_succeed = false;
    announce(e0, 6, 300, 3)->pieces = 8;
    c = request(l0, e0, 6, 3);
    c->must_succeed = false;
    c->aborts = true;
    c->abort_ns = 20 * MS;
    /* together with room 9 of the same key; the engine aborts */
    p = announce(e0, 8, 300, 1);
    p->key = 5;
    p->aborts = true;
    p->abort_ns = 14 * MS;
    p->pieces = 8;
    c = request(l0, e0, 8, 2);
    c->key = 5;
    c->must_succeed = false;
    p = announce(e0, 9, 300, 4);
    (void)prod_key(p, 5, UINT64_MAX);
    c = request(l0, e0, 9, 5);
    c->key = 5;
    c->must_succeed = false;
    announce(e0, 7, 10, 30);
    c = cons_new(l0, e0->index, 7);
    c->session = 1; /* of the announcing user, whose decline counts */
    c->declines = c->must_succeed = true;
    cons_start(c, 40 * MS);
}

static void all_break(void *p, uint64_t a, uint64_t b)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (e0->shards[0].peers[i].count > 0)
            data_break(&e0->shards[0], i);
}

/* An endpoint is lost while rows are on their way. */
static void breaking(void)
{
    plain();
    W.is.rendezvous = 500;
    W.is.data_us = 8000;
    at(24 * MS, all_break, NULL, 0, 0);
}

/* A room is ended for a group that needs its blocks, and comes again. */
static void ended_for_others(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 1, 32, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 2, 32, 0);
    e0->conf->timeout_revoke_after = 4 * MS;
    for (uint64_t r = 1; r <= 2; r++) {
        struct cons *c = request(l0, e0, r, r);

        good(r, 16, true, 6 + r);
        /* a langd that was lost does not ask again */
        prods_all()->deadline_ms = 2000;
        c->session = 1;
        c->group = 1;
        c->group_size = 2;
    }
    good(3, 16, true, 1);
    prods_all()->deadline_ms = 2000;
    request(l0, e0, 3, 10);
}

/* 700 ms after the encoder's drain langd must know of it. */
static void drain_is_known(void *p, uint64_t a, uint64_t b)
{
    if (e0->alive && l0->alive)
        langd_knows_drain(l0, e0);
}

static void order(void *p, uint64_t type, uint64_t b)
{
    struct event ev = {.type = (enum event_type)type};

    if (!e0->alive)
        return;
    trace("e0 %s", type == EV_DRAIN ? "drains" : "drains no longer");
    daemon_step(e0, &ev);
}

/* One room from before the drain, and one from afterwards. */
static void drained(void)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 64, 16, 2);
    good(1, 200, false, 1);
    request(l0, e0, 1, 4);
    at(10 * MS, order, NULL, EV_DRAIN, 0);
    at(710 * MS, drain_is_known, NULL, 0, 0);
    at(711 * MS, order, NULL, EV_UNDRAIN, 0);
    at(1411 * MS, drain_is_known, NULL, 0, 0);
    good(2, 100, true, 1412);
    request(l0, e0, 2, 1412);
}

static const struct {
    const char *name;
    void (*make)(void);
    uint32_t langds;
    uint32_t ends_ms; /* without a fault every room has ended by then */
} worlds[] = {{"plain", plain, 1, 100}, {"pressure", pressure, 1, 80},
    {"two", to_two, 2, 70}, {"stream", streams, 1, 60},
    /* RULES 5.7 */
    {"group", grouped, 1, 65}, {"ends", ends, 1, 90},
    /* RULES 1.5 */
    {"break", breaking, 1, 100},
    /* RULES 5.12 */
    {"victim", ended_for_others, 1, 135}, {"drain", drained, 1, 1465},
    /* RULES 6.6 */
    {"pools", pools, 1, 110}};

/* The first worlds: no room in them needs another one. */
#define PLAIN_WORLDS 4

/* what goes wrong */

static const char *const hows[] = {"", "lost", "twice", "late"};

enum fault_how fault_of(struct span frame)
{
    struct fault *f = &W.fault;
    struct reader r = reader_of(frame.p, frame.len);
    struct peer_msg m;

    if (!f->type || peer_get(&r, &m) != OK || m.type != f->type ||
        ++f->seen != f->k)
        return FAULT_NONE;
    trace("this message is %s:", hows[f->how]);
    return f->how;
}

/* Runs until every room has ended, at most costs_ns longer than without the
 * fault. */
static void run_to_end(uint64_t costs_ns)
{
    uint64_t end = worlds[W.fault.world].ends_ms * MS + costs_ns;

    while (W.now_ns < end && !world_over())
        (void)run_until(W.now_ns + MS);
    HOLDS(world_over(), "every room ends soon", "encode%s; language%s",
        prods_left(), cons_left());
}

/* True if the message is repeated: one that is not may get lost. */
static bool repeated(uint8_t type)
{
    return type != PEER_DECLINE;
}

/* How long a message is missing: until it is repeated (RULES 2.1), which takes
 * five times as long for a HELLO. */
static uint64_t message_costs(void)
{
    uint64_t retry = e0->conf->timeout_retry;

    if (W.fault.how == FAULT_TWICE)
        return 0;
    if (!repeated(W.fault.type))
        return LATE_MS * MS;
    return W.fault.type == PEER_HELLO ? 5 * retry : retry;
}

static void prepare(void)
{
    const uint32_t i = W.fault.world;

    rooms_wanted = 0;
    quiet_world(1, worlds[i].langds);
    worlds[i].make();
    for (uint32_t k = 0; W.fault.both && k < W.daemons_count; k++)
        W.daemons[k]->carriers = 1u << CARRIER_TCP | 1u << CARRIER_UCX;
    start_all();
}

/* F18, F19, F20, F22 */
static void message_fault(void)
{
    prepare();
    run_to_end(message_costs());
    HOLDS(W.succeeded >= rooms_wanted, "one message costs no room",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

/* F43 */
static void break_fault(void)
{
    prepare();
    W.is.rendezvous = 500;
    at(W.fault.when_ns, all_break, NULL, 0, 0);
    run_to_end(e0->conf->timeout_retry);
    /* More rooms than wanted may succeed: one that an engine gives up may
     * succeed before that. */
    HOLDS(W.succeeded >= rooms_wanted, "one lost endpoint costs no room",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

/* The carrier that all have chosen breaks for good. At its second outage (at
 * earliest transfer.stall later) the other one is chosen. */
/* RULES 3.3 */
static void shut_comes(void *p, uint64_t a, uint64_t b)
{
    for (uint32_t i = 0; i < worlds[W.fault.world].langds; i++)
        carrier_shut(e0, i ? l1 : l0, CARRIER_UCX);
}

static void shut_fault(void)
{
    W.fault.both = true;
    prepare();
    at(W.fault.when_ns, shut_comes, NULL, 0, 0);
    run_to_end(l0->conf->transfer_stall + 2 * RETRY_MAX_NS);
    HOLDS(W.succeeded >= rooms_wanted, "a carrier costs no room",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

static void starts_again(void *p, uint64_t a, uint64_t b)
{
    daemon_start(p);
}

static void crashes(void *p, uint64_t a, uint64_t b)
{
    daemon_crash(p);
}

/* Rooms that the crash ends fail as RULES 9.1 says, later ones are served. */
/* F02, F03, F04 */
static void crash_fault(void)
{
    struct daemon *d;
    uint64_t room = 500;

    prepare();
    d = W.daemons[W.fault.k];
    at(W.fault.when_ns, crashes, d, 0, 0);
    at(W.fault.when_ns + 30 * MS, starts_again, d, 0, 0);
    for (struct prod *p = prods_all(); p; p = p->next)
        p->must_succeed = false;
    for (struct cons *c = cons_all(); c; c = c->next) {
        c->must_succeed = false;
        c->lost_with_daemon = true;
    }
    (void)run_until(1500 * MS);
    rooms_wanted = W.succeeded;
    for (uint32_t i = 0; i < worlds[W.fault.world].langds; i++) {
        good(++room, 32, true, 1500);
        request(i ? l1 : l0, e0, room, 1500);
    }
    (void)run_until(1500 * MS + SOON);
    HOLDS(W.succeeded >= rooms_wanted, "what comes later is served",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

/* True if the engine of the room knows its end, or has its rows. */
static bool knows(const struct cons *c)
{
    return c->over ||
           (c->h[0] && (c->h[0]->seen_failed || c->h[0]->seen_ready));
}

/* The encoder's daemon ends and does not come back: every room ends when that
 * is known, without waiting for a deadline. */
/* F01 */
static void gone_fault(void)
{
    struct daemon *d;

    prepare();
    d = W.daemons[0];
    CHECK(d->role == ROLE_ENCODED, "daemon 0 has role %u", d->role);
    at(W.fault.when_ns, crashes, d, 0, 0);
    for (struct prod *p = prods_all(); p; p = p->next)
        p->must_succeed = false;
    for (struct cons *c = cons_all(); c; c = c->next) {
        c->must_succeed = false;
        c->lost_with_daemon = true;
    }
    /* timeouts.unreachable is 5 s */
    (void)run_until(W.fault.when_ns + 6 * NS_PER_S);
    for (struct cons *c = cons_all(); c; c = c->next)
        HOLDS(knows(c), "what is gone is not waited for", "room %llu waits",
            (unsigned long long)c->room);
    daemon_start(d);
    world_finish(LIMIT);
}

/* Stops the clock of a host, then lets it jump forward: no room may fail. */
static void clock_stops(void *p, uint64_t a, uint64_t b)
{
    clock_stands(p, STILL_MS * MS, JUMP_NS);
}

/* F33 */
static void clock_fault(void)
{
    prepare();
    at(W.fault.when_ns, clock_stops, W.daemons[W.fault.k], 0, 0);
    run_to_end(STILL_MS * MS + message_costs());
    HOLDS(W.succeeded >= rooms_wanted, "a clock costs no room",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

static void pool_is_lost(void *p, uint64_t a, uint64_t b)
{
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_POOL_LOST}};

    for (struct prod *of = prods_all(); of && p == e0; of = of->next)
        if (of->pool == 0 && of->max_rows > 0 && !of->final_sent)
            of->expected = ERR_INTERNAL;
    daemon_step(p, &ev);
}

static bool refused(const struct handle *h)
{
    return h && h->refused;
}

/* Each room has ended, unless the engine at its other end got no pool. */
static void look_at_pools(void)
{
    for (const struct cons *c = cons_all(); c; c = c->next)
        for (const struct prod *p = prods_of_room(c->room); p; p = p->in_room)
            HOLDS(p->room != c->room || ((c->over || refused(p->h[0])) &&
                                            (p->over || refused(c->h[0]))),
                "every room ends soon", "room %llu waits",
                (unsigned long long)c->room);
}

/* The first pool's memory is lost: its rooms end, others succeed. */
static void pool_fault(void)
{
    struct daemon *d;

    prepare();
    d = W.daemons[W.fault.k];
    for (struct prod *p = prods_all(); p; p = p->next)
        p->must_succeed = p->pool == 1;
    for (struct cons *c = cons_all(); c; c = c->next)
        c->must_succeed = c->pool == 1;
    rooms_wanted = 3;
    at(W.fault.when_ns, pool_is_lost, d, 0, 0);
    (void)run_until(worlds[W.fault.world].ends_ms * MS);
    look_at_pools();
    for (const struct prod *p = prods_all(); p; p = p->next)
        HOLDS(!p->expected || !prod_saw_done(p), "a lost pool's rooms end",
            "room %llu succeeds", (unsigned long long)p->room);
    HOLDS(W.succeeded >= rooms_wanted, "a lost pool ends its own rooms",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    daemon_crash(d);
    daemon_start(d);
    world_finish(LIMIT);
}

static void engine_dies(void *p, uint64_t session, uint64_t b)
{
    struct prod *of = p;

    if (of->h[0])
        econn_die(of->h[0]->c);
}

/* The engine that encodes room 1 dies: its rooms end at once, others
 * succeed. */
/* F06 */
static void engine_fault(void)
{
    struct prod *of = NULL;

    prepare();
    for (struct prod *p = prods_all(); p; p = p->next)
        if (p->room == 1)
            of = p;
    CHECK(of, "world %u has no room 1", W.fault.world);
    for (struct prod *p = prods_all(); p; p = p->next)
        if (p->session == of->session) {
            p->must_succeed = false;
            rooms_wanted--;
        }
    for (struct cons *c = cons_all(); c; c = c->next)
        c->must_succeed = c->room % 4 != 1;
    at(W.fault.when_ns, engine_dies, of, 0, 0);
    run_to_end(W.fault.when_ns);
    HOLDS(W.succeeded >= rooms_wanted, "an engine's end is its own",
        "%u of %u rooms succeeded", W.succeeded, rooms_wanted);
    world_finish(LIMIT);
}

/* the list of all */

static void one(fault_runner start, void (*run)(void), const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static void one(fault_runner start, void (*run)(void), const char *fmt, ...)
{
    char name[48];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    start(name, run);
    W.fault = (struct fault){.world = W.fault.world};
}

static void messages(fault_runner start, const char *name)
{
    for (uint8_t how = FAULT_LOST; how <= FAULT_LATE; how++)
        for (uint8_t type = PEER_HELLO; type <= PEER_NACK; type++)
            for (uint32_t k = 1; k <= MESSAGES; k++) {
                if (how == FAULT_LOST && !repeated(type))
                    continue;
                W.fault.how = how;
                W.fault.type = type;
                W.fault.k = k;
                one(start, message_fault, "%s/%s-%s-%u", name, hows[how],
                    peer_name(type), k);
            }
}

void faults_list(fault_runner start)
{
    for (uint32_t i = 0; i < ARRAY_LEN(worlds); i++) {
        const char *name = worlds[i].name;

        W.fault = (struct fault){.world = i};
        messages(start, name);
        for (uint32_t ms = 1; ms <= 40; ms++) {
            W.fault.when_ns = ms * MS;
            one(start, break_fault, "%s/break-%u", name, ms);
        }
        for (uint32_t ms = 2; ms <= 40 && i < PLAIN_WORLDS; ms++) {
            W.fault.when_ns = ms * MS + 500000;
            one(start, engine_fault, "%s/engine-%u", name, ms);
            W.fault.when_ns = ms * MS + 500000;
            one(start, shut_fault, "%s/shut-%u", name, ms);
        }
        for (uint32_t ms = 1; ms <= 40; ms += 2) {
            W.fault.when_ns = ms * MS + 500000;
            one(start, gone_fault, "%s/gone-%u", name, ms);
        }
        for (uint32_t k = 0; k <= worlds[i].langds; k++)
            for (uint32_t ms = 2; ms <= 40; ms += 2) {
                W.fault.k = k;
                W.fault.when_ns = ms * MS + 500000;
                one(start, crash_fault, "%s/crash-%u-%u", name, k, ms);
                W.fault.k = k;
                W.fault.when_ns = ms * MS;
                one(start, clock_fault, "%s/clock-%u-%u", name, k, ms);
                W.fault.k = k;
                W.fault.when_ns = ms * MS;
                if (worlds[i].make == pools)
                    one(start, pool_fault, "%s/lost-%u-%u", name, k, ms);
            }
    }
}
