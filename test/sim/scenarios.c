/* scenarios.c - worlds with one exact course: what the design promises, and
 * cases that led to its rules. No message is lost or late in them, unless the
 * scenario needs it. */
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
 * is full of rows that wait for a grant. */
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

static void to_both(uint64_t room, uint64_t when_ms, struct daemon *first,
    struct daemon *second)
{
    struct prod *p = announce(e0, room, 64, when_ms);

    p->required = 2;
    request(first, e0, room, when_ms)->required = 2;
    request(second, e0, room, when_ms + 3)->required = 2;
}

/* Two rooms and two langds that each hold one of them, asked in opposite
 * orders. */
static void opposite_orders(void)
{
    quiet_world(1, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 16, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    start_all();
    to_both(1, 5, l0, l1);
    to_both(2, 5, l1, l0);
    to_both(3, 6, l1, l0);
    all_succeed(3);
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

/* Rows that two connections of an engine read where they are: nothing is
 * copied. */
static void lent(void)
{
    struct cons *c;

    one_host(8);
    W.is.lend = 1;
    e0->conf->transfer_same_host = l0->conf->transfer_same_host =
        SAME_HOST_LEND;
    /* the first room opens the connections */
    for (uint64_t r = 1; r <= 9; r++) {
        announce(e0, r, 60, 50 + r * 100);
        c = request(l0, e0, r, 50 + r * 100);
        c->session = c->readers = 1;
        c->conns = 2;
    }
    all_succeed(9);
    HOLDS(W.lent >= 16 && W.copies == 1, "rows are read where they are",
        "%u rooms were lent, %u copies", W.lent, W.copies);
}

const struct scenario scenarios[] = {
    /* RULES 5.1, 5.10 */
    {"many-large", many_large},
    /* RULES 5.4; F17 */
    {"both-full", both_full},
    /* RULES 5.16 */
    {"opposite-orders", opposite_orders},
    /* RULES 4.1 */
    {"resumes-500", resumes_500},
    /* RULES 4.5 */
    {"resumes-2000", resumes_2000},
    /* RULES 4.5 */
    {"resumes-at-commit", resumes_at_commit},
    /* RULES 3.3 */
    {"carriers-differ", carriers_differ},
    /* RULES 3.4 */
    {"same-host", same_host},
    /* RULES 6.7 */
    {"lent", lent},
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
    /* RULES 5.11 */
    {"open-victim", open_victim},
    {"two-users-in-groups", two_users_in_groups},
    /* RULES 5.13 */
    {"groups-of-three", groups_of_three},
    /* RULES 5.17, 7.6; F30 */
    {"crowd", crowd_at_limits},
    /* RULES 9.7 */
    {"reloads", swarm_of_reloads},
};
const uint32_t scenarios_count = ARRAY_LEN(scenarios);
