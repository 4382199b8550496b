/* scenarios.c - worlds that must go exactly so: what the design promises, and
 * the counterexamples that shaped its rules. No message is lost or late in
 * them, unless the story asks for it. */
#include "test/sim/admission.h"

#include "base/check.h"

/* what the design promises */

/* 64 rooms of 16,336 rows, through 64 blocks of 8,192 rows, all end. */
static void many_large(void)
{
    quiet_pair(64, 64, 8192, 1);
    for (uint64_t r = 1; r <= 64; r++) {
        announce(e0, r, 16336, r % 7);
        request(l0, e0, r, r % 5);
    }
    all_succeed(64);
}

/* langd is full of first grants for rooms that wait for source blocks; encoded
 * is full of rows that wait for a grant. Also C4 of the first draft's
 * counterexamples. */
static void both_full(void)
{
    quiet_pair(8, 8, 16, 2);
    for (uint64_t r = 1; r <= 4; r++)
        request(l0, e0, r, 0);
    for (uint64_t r = 5; r <= 8; r++)
        announce(e0, r, 32, 10);
    for (uint64_t r = 1; r <= 4; r++)
        announce(e0, r, 32, 100);
    for (uint64_t r = 5; r <= 8; r++)
        request(l0, e0, r, 200);
    all_succeed(8);
}

static void to_both(struct daemon *e, uint64_t room, uint64_t when_ms,
    struct daemon *first, struct daemon *second)
{
    struct prod *p = announce(e, room, 64, when_ms);

    p->required = 2;
    request(first, e, room, when_ms)->required = 2;
    request(second, e, room, when_ms + 3)->required = 2;
}

/* Two rooms and two langds that each hold one of them, asked in opposite orders
 * (C5-C8). */
static void opposite_orders(void)
{
    quiet_world(1, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 16, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    start_all();
    to_both(e0, 1, 5, l0, l1);
    to_both(e0, 2, 5, l1, l0);
    to_both(e0, 3, 6, l1, l0);
    all_succeed(3);
}

/* The same with two encoders and a source pool that holds one room. */
static void two_encoders(void)
{
    quiet_world(2, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 4, 16, 0);
    e1 = make(ROLE_ENCODED, "e1", ROW_4K, 4, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    start_all();
    to_both(e0, 1, 5, l0, l1);
    to_both(e1, 2, 5, l1, l0);
    to_both(e0, 3, 5, l1, l0);
    to_both(e1, 4, 5, l0, l1);
    all_succeed(4);
}

/* 10,000 rows through 16 blocks of 128. */
static void stream_through(void)
{
    struct cons *c;

    quiet_pair(80, 16, 128, 8);
    announce(e0, 1, 10000, 1)->pieces = 8;
    c = request(l0, e0, 1, 1);
    c->mode = MODE_STREAM;
    all_succeed(1);
}

/* resumes */

static void count_resumes(
    uint32_t rows, bool known, uint32_t least, uint32_t most)
{
    const struct ended *h;
    struct prod *p;
    uint64_t wants;

    quiet_pair(64, 64, 128, 8);
    request(l0, e0, 1, 1);
    p = announce(e0, 1, rows, 20);
    p->known = known;
    p->max_rows = 4096;
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + MS);
    h = brain_ended(l0->brain, 0);
    CHECK(h, "no room ended");
    wants = daemon_number(e0, "stats", "wants");
    HOLDS(h->state == ROOM_SUCCESS && h->of.resumes >= least &&
              h->of.resumes <= most,
        "resumes are as promised", "%u rows %s: %u resumes", rows,
        known ? "announced" : "known at commit", h->of.resumes);
    HOLDS(!known || wants == 0, "no pass is wasted", "%llu wants",
        (unsigned long long)wants);
    all_succeed(1);
}

static void resumes_500(void)
{
    count_resumes(500, true, 0, 0);
}

static void resumes_2000(void)
{
    count_resumes(2000, true, 0, 1);
}

static void resumes_at_commit(void)
{
    count_resumes(2000, false, 1, 1);
}

/* counterexamples to the first draft */

/* C1-C3: each room fills the pool, lands in part, and is taken back in turn. */
static void taken_back(void)
{
    quiet_world(1, 1);
    W.is.data_us = 20000;
    W.is.rendezvous = 500;
    pair(64, 3, 8, 1);
    for (uint64_t r = 1; r <= 8; r++) {
        struct prod *p = announce(e0, r, 24, 3 * r);

        p->known = r % 2 == 0;
        p->pieces = 3;
        request(l0, e0, r, 50 - 3 * r);
    }
    all_succeed(8);
}

static void engine_dies(void *p, uint64_t a, uint64_t b)
{
    const struct prod *of = p;

    if (of->h[0])
        econn_die(of->h[0]->c);
}

static void done_engine_dies(void *p, uint64_t a, uint64_t b)
{
    const struct prod *of = p;

    if (of->final_sent)
        engine_dies(p, a, b);
}

/* C9, C10, C12: the encode engine dies while rows are on their way. Its id is
 * announced again, and its blocks are needed by another room. langd's first
 * generation fails, the next one gets the new rows only. */
static void announced_again(void)
{
    struct prod *first, *next;
    struct cons *c;

    quiet_world(1, 1);
    W.is.rendezvous = 1000;
    W.is.data_us = 30000;
    pair(4, 8, 16, 4);
    c = request(l0, e0, 1, 1);
    c->must_succeed = false;
    first = announce(e0, 1, 64, 1);
    first->pieces = 4;
    at(16 * MS, engine_dies, first, 0, 0);
    next = announce(e0, 1, 60, 40);
    next->session = 2;
    announce(e0, 2, 64, 41);
    request(l0, e0, 2, 42);
    request(l0, e0, 1, 2000);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded == 2, "the new rows arrive", "%u rooms succeeded",
        W.succeeded);
    world_finish(LIMIT);
}

static void crash(void *p, uint64_t a, uint64_t b)
{
    daemon_crash(p);
}

static void start(void *p, uint64_t a, uint64_t b)
{
    daemon_start(p);
}

/* C11: encoded restarts during a room; nothing of the room reaches the new
 * run. */
static void restarted(void)
{
    quiet_world(1, 1);
    W.is.data_us = 80000;
    pair(8, 8, 16, 2);
    announce(e0, 1, 100, 1);
    request(l0, e0, 1, 1)->must_succeed = false;
    at(25 * MS, crash, e0, 0, 0);
    at(60 * MS, start, e0, 0, 0);
    announce(e0, 1, 90, 400);
    request(l0, e0, 1, 1500);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded == 1, "the new rows arrive", "%u rooms succeeded",
        W.succeeded);
    world_finish(LIMIT);
}

/* C13: all rows have landed, then the encode engine dies: both sides say
 * success. */
static void early_fail(void)
{
    struct prod *p;

    quiet_world(1, 1);
    W.is.net_us = 30000;
    pair(8, 8, 16, 8);
    request(l0, e0, 1, 1);
    p = announce(e0, 1, 64, 200);
    for (uint64_t ms = 210; ms < 300; ms += 5)
        at(ms * MS, done_engine_dies, p, 0, 0);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    world_finish(LIMIT);
}

/* An encode engine ends after its final commit; langd asks later. */
static void rows_outlive(void)
{
    struct cons *c;

    quiet_pair(8, 8, 16, 2);
    at(500 * MS, engine_dies, announce(e0, 1, 64, 1), 0, 0);
    c = request(l0, e0, 1, 1000);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(c->h[0] && c->h[0]->seen_ready, "rows outlive their engine",
        "langd waits%s", cons_left());
    world_finish(LIMIT);
}

/* Clients leave between encode and decode: their rooms hold up others for
 * timeouts.unclaimed, not for timeouts.bootstrap, and say why they ended. */
static void unclaimed(void)
{
    quiet_pair(16, 16, 16, 4);
    for (uint64_t r = 1; r <= 8; r++)
        announce(e0, r, 32, 10 * r)->expected = ERR_GONE;
    for (uint64_t r = 9; r <= 12; r++) {
        announce(e0, r, 64, 100);
        request(l0, e0, r, 100);
    }
    while (W.succeeded < 4 && W.now_ns < 10000 * MS)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded == 4 && W.failed > 0, "who left holds up none",
        "%u rooms succeeded, %u failed", W.succeeded, W.failed);
    world_finish(LIMIT);
}

/* C14: rows of a stream that are shown stay, though an older room needs the
 * pool. */
static void exposed_stays(void)
{
    struct cons *c;

    quiet_pair(64, 8, 16, 2);
    request(l0, e0, 1, 1);
    c = request(l0, e0, 2, 2);
    c->mode = MODE_STREAM;
    announce(e0, 2, 300, 3)->pieces = 8;
    c = request(l0, e0, 3, 4);
    c->mode = MODE_STREAM;
    announce(e0, 3, 300, 5)->pieces = 8;
    announce(e0, 1, 128, 30)->known = false;
    all_succeed(3);
}

/* daemons of one host */

static void one_host(uint32_t source_blocks)
{
    quiet_world(1, 1);
    W.is.hosts = 1;
    W.is.copy_us = 100000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, source_blocks, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 16, 16, 4);
    start_all();
}

/* Rows are copied, and none are sent. */
static void same_host(void)
{
    one_host(32);
    for (uint64_t r = 1; r <= 8; r++) {
        announce(e0, r, 60, 50 + r);
        request(l0, e0, r, 50 + r);
    }
    all_succeed(8);
    HOLDS(W.copies >= 8 && W.copying == 0, "rows are copied",
        "%u copies, %u go on", W.copies, W.copying);
}

static void dies_copying(void *p, uint64_t a, uint64_t b)
{
    HOLDS(W.copying > 0, "the scenario is the one that is meant",
        "%u copies go on", W.copying);
    daemon_crash(p);
}

/* Requests a room that two of the engine's connections read. */
static struct cons *two_read(uint64_t room, uint64_t when_ms)
{
    struct cons *c = request(l0, e0, room, when_ms);

    c->session = 1;
    c->readers = 1;
    c->conns = 2;
    return c;
}

/* Engines read rows where they are: no row is copied. */
static void lent(void)
{
    one_host(8);
    W.is.lend = 1;
    e0->conf->transfer_same_host = l0->conf->transfer_same_host =
        SAME_HOST_LEND;
    /* the first room opens the connections */
    for (uint64_t r = 1; r <= 9; r++) {
        announce(e0, r, 60, 50 + r * 100);
        two_read(r, 50 + r * 100);
    }
    all_succeed(9);
    HOLDS(W.lent >= 16 && W.copies == 1, "rows are read where they are",
        "%u rooms were lent, %u copies", W.lent, W.copies);
}

/* langd, or a reader's process, is killed while a lent room is read, after
 * another reader's connection has ended. A second room needs some of the
 * blocks: it gets them when no process can read them any more. */
static void killed_lent(bool language)
{
    struct cons *c;
    struct prod *p;
    uint64_t now = 200;

    one_host(8);
    W.is.lend = 1;
    e0->conf->transfer_same_host = l0->conf->transfer_same_host =
        SAME_HOST_LEND;
    announce(e0, 1, 8, 50); /* this room opens the connections */
    two_read(1, 50);
    announce(e0, 2, 64, now);
    c = two_read(2, now);
    c->must_succeed = false;
    c->hold_ns = 400 * MS;
    while (W.lent < 2 && now < 2000)
        (void)run_until(++now * MS);
    HOLDS(W.lent >= 2 && W.copies <= 1, "the scenario is the one that is meant",
        "%u rooms were lent, %u copies", W.lent, W.copies);
    map_lose_reader();
    if (language) {
        daemon_crash(l0);
        at(W.now_ns + 40 * MS, start, l0, 0, 0);
    } else {
        econn_die(c->h[1]->c);
    }
    p = announce(e0, 3, 80, now + 1);
    p->session = 2;
    request(l0, e0, 3, now + 100)->session = 2;
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded >= (language ? 2 : 3), "the next room is served",
        "%u rooms succeeded", W.succeeded);
    world_finish(LIMIT);
}

static void lending_langd_killed(void)
{
    killed_lent(true);
}

static void reader_killed(void)
{
    killed_lent(false);
}

/* One of the two daemons is killed while rows are copied. Another room needs
 * the source blocks: it gets them when no process can be reading them. */
static void killed_copying(bool language)
{
    struct daemon *d;
    struct prod *p;
    uint64_t now = 0;

    one_host(4);
    d = language ? l0 : e0;
    announce(e0, 1, 64, 50);
    request(l0, e0, 1, 50)->must_succeed = false;
    while (W.copying == 0 && now < 1000)
        (void)run_until(++now * MS);
    at(W.now_ns + 1, dies_copying, d, 0, 0);
    at(W.now_ns + 40 * MS, start, d, 0, 0);
    p = announce(e0, 2, 64, language ? now + 1 : now + 100);
    p->session = 2;
    request(l0, e0, 2, now + 500);
    while (!world_over() && W.now_ns < LIMIT)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded == 1 && W.copying == 0, "the next room is served",
        "%u rooms succeeded, %u copies go on", W.succeeded, W.copying);
    world_finish(LIMIT);
}

static void langd_killed(void)
{
    killed_copying(true);
}

static void encoded_killed(void)
{
    killed_copying(false);
}

const struct scenario scenarios[] = {
    /* RULES 5.1, 5.10 */
    {"many-large", many_large},
    /* RULES 5.4; F17 */
    {"both-full", both_full},
    /* RULES 5.16 */
    {"opposite-orders", opposite_orders},
    /* RULES 5.16 */
    {"two-encoders", two_encoders},
    /* RULES 5.20 */
    {"stream-through", stream_through},
    /* RULES 4.1 */
    {"resumes-500", resumes_500},
    /* RULES 4.5 */
    {"resumes-2000", resumes_2000},
    /* RULES 4.5 */
    {"resumes-at-commit", resumes_at_commit},
    /* RULES 5.4 */
    {"taken-back", taken_back},
    /* RULES 1.6 */
    {"announced-again", announced_again},
    /* RULES 9.1 */
    {"restarted", restarted},
    /* RULES 4.6 */
    {"early-fail", early_fail},
    /* RULES 6.3 */
    {"rows-outlive", rows_outlive},
    /* RULES 5.21 */
    {"unclaimed", unclaimed},
    /* RULES 6.1 */
    {"exposed-stays", exposed_stays},
    /* RULES 3.3 */
    {"carriers-differ", carriers_differ},
    /* RULES 3.4 */
    {"same-host", same_host},
    /* RULES 6.2 */
    {"langd-killed", langd_killed},
    /* RULES 9.2 */
    {"encoded-killed", encoded_killed},
    /* RULES 6.7 */
    {"lent", lent},
    /* RULES 6.7 */
    {"lent-langd-killed", lending_langd_killed},
    /* RULES 6.7 */
    {"lent-reader-killed", reader_killed},
    {"coupled-calm", coupled_calm},
    {"coupled-breaks", coupled_breaks},
    /* RULES 5.16 */
    {"coupled-restarts", coupled_restarts},
    /* RULES 5.16 */
    {"broken-order", broken_order},
    /* RULES 5.11 */
    {"group-source", group_source},
    /* RULES 5.10 */
    {"consumed-together", consumed_together},
    /* RULES 5.5 */
    {"group-larger", group_larger},
    /* RULES 5.5 */
    {"group-two-encoders", group_two_encoders},
    /* RULES 5.4 */
    {"rows-are-spared", rows_are_spared},
    /* RULES 5.6 */
    {"spare-is-kept", spare_is_kept},
    /* RULES 5.12 */
    {"victim", victim},
    {"victim-at-work", victim_at_work},
    {"victim-unheard", victim_unheard},
    {"victim-in-time", victim_in_time},
    /* RULES 5.15 */
    {"victim-kept", victim_kept},
    /* RULES 5.11 */
    {"full-by-one-room", full_by_one_room},
    {"full-by-one-item", full_by_one_item},
    {"victim-of-two", victim_of_two},
    /* RULES 5.11 */
    {"open-victim", open_victim},
    {"victims-in-a-batch", victims_in_a_batch},
    /* RULES 5.12 */
    {"overload-drains", overload_drains},
    /* RULES 5.1 */
    {"users-take-turns", users_take_turns},
    {"two-users-in-groups", two_users_in_groups},
    /* RULES 5.13 */
    {"groups-of-three", groups_of_three},
    /* RULES 5.17, 7.6; F30 */
    {"crowd", crowd_at_limits},
    /* RULES 9.7 */
    {"reloads", swarm_of_reloads},
};
const uint32_t scenarios_count = ARRAY_LEN(scenarios);
