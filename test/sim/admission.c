/* admission.c - scenarios of RULES 5: which room gets blocks when rooms hold
 * some blocks and wait for others. */
#include "test/sim/admission.h"

/* firm grants */

static void breaks_now(void *p, uint64_t a, uint64_t b)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (e0->shards[0].peers[i].count > 0 &&
            e0->shards[0].peers[i].to == l0->index)
            data_break(&e0->shards[0], i);
}

static void in_four_pieces(uint64_t room, uint64_t when_ms)
{
    struct prod *p = announce(e0, room, 128, when_ms);

    p->known = false;
    p->pieces = 4;
    p->pace_ns = 3 * MS;
}

/* A firm grant's endpoint breaks while a younger room waits. */
void broken_order(void)
{
    const struct ended *h;

    quiet_world(1, 1);
    W.is.data_us = 200000;
    W.is.rendezvous = 1000;
    pair(64, 8, 16, 0);
    request(l0, e0, 1, 1);
    request(l0, e0, 2, 5);
    in_four_pieces(1, 10);
    in_four_pieces(2, 11);
    at(40 * MS, breaks_now, NULL, 0, 0);
    all_succeed(2);
    h = brain_ended(l0->brain, 0);
    HOLDS(h && h->room == 1, "the oldest is served first", "room %llu was",
        (unsigned long long)(h ? h->room : 0));
}

/* An engine whose ranks belong to two langds continues when both have the rows:
 * this is why destinations are asked in one order. */
static void to_both_coupled(uint64_t room, uint64_t when_ms)
{
    struct prod *p = announce(e0, room, 64, when_ms);
    struct cons *c, *d;

    p->required = 2;
    c = request(l0, e0, room, when_ms);
    d = request(l1, e0, room, when_ms);
    c->required = d->required = 2;
    c->twin = d;
    d->twin = c;
}

static void restart(void *p, uint64_t up, uint64_t b)
{
    (up ? daemon_start : daemon_crash)(p);
}

/* The first langd restarts, and is then asked for the second room first: what
 * the first room has at the other langd goes back. */
void coupled_restarts(void)
{
    quiet_world(1, 2);
    W.is.data_us = 400000;
    W.is.rendezvous = 1000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 16, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    start_all();
    to_both_coupled(1, 5);
    to_both_coupled(2, 8);
    at(30 * MS, restart, l0, false, 0);
    at(40 * MS, restart, l0, true, 0);
    for (uint64_t room = 2; room > 0; room--) {
        struct cons *c = cons_all(), *d;

        while (c->room != room || c->d != l1)
            c = c->next;
        c->twin->must_succeed = false;
        d = request(l0, e0, room, 140 - 20 * room);
        d->required = 2;
        c->twin = d;
        d->twin = c;
    }
    all_succeed(2);
}

/* groups and source pools */

static void in_group(
    struct cons *c, uint64_t group, uint16_t size, uint32_t session)
{
    c->session = session;
    c->group = group;
    c->group_size = size;
}

/* Two groups whose members need one source pool, announced alternately. */
void group_source(void)
{
    quiet_pair(2, 16, 16, 2);
    for (uint64_t r = 1; r <= 4; r++) {
        announce(e0, r, 16, 10 * r)->session = 0;
        in_group(request(l0, e0, r, 1), 1 + (r - 1) % 2, 2, 2);
    }
    all_succeed(4);
}

/* One group, larger than the source pool. */
void group_larger(void)
{
    quiet_pair(1, 16, 16, 2);
    for (uint64_t r = 1; r <= 2; r++) {
        announce(e0, r, 16, 10 * r)->session = 0;
        in_group(request(l0, e0, r, 1), 1, 2, 2);
    }
    all_succeed(2);
}

/* Two groups over two encoders, each of which has space for one item. Each
 * engine announces one item at a time, so no batch can help. */
void group_two_encoders(void)
{
    struct daemon *of[5];

    quiet_world(2, 1);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 1, 16, 0);
    e1 = make(ROLE_ENCODED, "e1", ROW_4K, 1, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 16, 16, 2);
    start_all();
    of[1] = of[3] = e0;
    of[2] = of[4] = e1;
    announce(of[1], 1, 16, 10)->session = 0;
    announce(of[4], 4, 16, 10)->session = 0;
    announce(of[3], 3, 16, 20)->session = 0;
    announce(of[2], 2, 16, 20)->session = 0;
    for (uint64_t r = 1; r <= 4; r++)
        in_group(request(l0, of[r], r, 1), r <= 2 ? 1 : 2, 2, 2);
    all_succeed(4);
}

static void end_of_twins(void *p, uint64_t a, uint64_t b)
{
    struct cons *c = p;

    HOLDS(W.succeeded == 1 && W.failed == 0 && !c->over && !c->twin->over,
        "the rooms of one engine wait for each other", "%u succeeded, %u not",
        W.succeeded, W.failed);
    c->twin->twin = NULL; /* from now on it consumes each READY room */
    c->twin = NULL;
}

/* An engine consumes two rooms together without having said so, and the pool
 * holds one: it waits for itself. Later it consumes them in READY order. */
void consumed_together(void)
{
    struct cons *c, *d;

    quiet_pair(16, 4, 16, 1);
    for (uint64_t r = 1; r <= 2; r++)
        announce(e0, r, 64, 10);
    c = request(l0, e0, 1, 1);
    d = request(l0, e0, 2, 2);
    c->twin = d;
    d->twin = c;
    at(20 * NS_PER_S, end_of_twins, c, 0, 0);
    all_succeed(2);
}

/* what is taken back for a head */

/* An encoder writes its rows in small pieces, and says their number when all
 * are written, some 100 ms later. */
static void bit_by_bit(
    uint64_t room, uint32_t rows, uint32_t max_rows, uint64_t when_ms)
{
    struct prod *p = announce(e0, room, rows, when_ms);

    p->known = false;
    p->max_rows = max_rows;
    p->pieces = 16;
}

/* The oldest room lacks blocks while rows land into a firm grant. Landed rows
 * of a younger room are not taken back, since the firm grant will end. */
void rows_are_spared(void)
{
    quiet_pair(64, 8, 16, 1);
    request(l0, e0, 1, 1);
    in_group(request(l0, e0, 2, 2), 1, 1, 2);
    request(l0, e0, 3, 3);
    bit_by_bit(1, 96, 112, 10);
    announce(e0, 3, 32, 45)->pieces = 2;
    announce(e0, 2, 64, 70);
    all_succeed(3);
    HOLDS(daemon_number(l0, "stats", "revokes") == 0,
        "rows are spared while others may end", "%llu grants were taken back",
        (unsigned long long)daemon_number(l0, "stats", "revokes"));
}

/* A group keeps blocks for rows that it may have. The oldest other room lacks
 * six blocks. The blocks of both rooms without landed rows are taken back for
 * it at once, since it cannot have the group's blocks. */
void spare_is_kept(void)
{
    quiet_world(1, 1);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 16, 16, 1);
    l0->conf->pools[0].max_room_blocks = 8;
    start_all();
    for (uint64_t r = 1; r <= 2; r++) {
        in_group(request(l0, e0, r, 1), 1, 2, 2);
        bit_by_bit(r, 32, 128, 10);
    }
    for (uint64_t r = 3; r <= 4; r++) {
        request(l0, e0, r, 20)->rows = 64;
        announce(e0, r, 64, 500);
    }
    request(l0, e0, 5, 30);
    announce(e0, 5, 96, 62);
    all_succeed(5);
    HOLDS(daemon_number(l0, "stats", "revokes") == 2, "spare is no supply",
        "%llu grants were taken back",
        (unsigned long long)daemon_number(l0, "stats", "revokes"));
}

/* victims */

static uint64_t ended_for_others(void)
{
    uint64_t n = daemon_number(e0, "stats", "sources_revoked");

    return n + (e1 ? daemon_number(e1, "stats", "sources_revoked") : 0);
}

static void must_all_succeed(uint32_t rooms, uint64_t least, uint64_t most)
{
    for (struct prod *p = prods_all(); p; p = p->next)
        p->must_succeed = true;
    while (!world_over() && W.now_ns < 60 * NS_PER_S) {
        (void)run_until(W.now_ns + 20 * MS);
        waits_look();
    }
    HOLDS(ended_for_others() >= least && ended_for_others() <= most,
        "encodes are lost where nothing else helps",
        "%llu rooms were ended for others",
        (unsigned long long)ended_for_others());
    HOLDS(world_over(), "no room waits for a deadline", "encode%s, language%s",
        prods_left(), cons_left());
    all_succeed(rooms);
}

/* Rooms 1 and 2, a group, hold langd's pool from 41 ms on. Room 1 waits for
 * source blocks that room 3 holds; room 3 waits for langd's pool. */
void victim(void)
{
    quiet_pair(1, 2, 16, 0);
    in_group(request(l0, e0, 1, 1), 1, 2, 2);
    in_group(request(l0, e0, 2, 2), 1, 2, 2);
    request(l0, e0, 3, 60);
    announce(e0, 3, 16, 5);
    announce(e0, 1, 16, 40);
    announce(e0, 2, 16, 41);
    must_all_succeed(3, 1, 1);
}

/* Requests an open room (1) and one of two destinations (2), in opposite orders
 * at the two langds, and announces them. */
static void open_and_coupled(uint64_t when_ms, bool must_succeed)
{
    struct cons *c[4];
    struct prod *p[2];

    c[0] = request(l0, e0, 2, when_ms);
    c[1] = request(l0, e0, 1, when_ms + 20);
    c[2] = request(l1, e0, 1, when_ms + 40);
    c[3] = request(l1, e0, 2, when_ms + 60);
    c[0]->required = c[3]->required = 2;
    p[0] = announce(e0, 1, 16, when_ms + 100);
    p[1] = announce(e0, 2, 64, when_ms + 100);
    p[0]->flags |= FLAG_OPEN;
    p[0]->required = 0;
    p[1]->required = 2;
    for (uint32_t i = 0; i < ARRAY_LEN(c); i++)
        c[i]->must_succeed = must_succeed;
    p[0]->must_succeed = p[1]->must_succeed = must_succeed;
}

/* Both rooms were ended for a full item. They come again while READY rooms
 * leave langds' pools: each holds what the other needs there, and neither has
 * source blocks. */
void open_victim(void)
{
    struct daemon *l2;

    quiet_world(1, 3);
    /* the engine releases an open room once its rows are there */
    W.is.calm = true;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 5, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    l2 = make(ROLE_LANGD, "l2", ROW_4K, 5, 16, 1);
    start_all();
    request(l0, e0, 101, 1)->hold_ns = 4000 * MS;
    request(l1, e0, 102, 1)->hold_ns = 4000 * MS;
    announce(e0, 101, 64, 5);
    announce(e0, 102, 64, 50);
    open_and_coupled(500, false);
    in_group(request(l2, e0, 3, 1000), 9, 1, 2);
    announce(e0, 3, 80, 1000);
    open_and_coupled(2000, true);
    while (!world_over() && W.now_ns < 20 * NS_PER_S) {
        (void)run_until(W.now_ns + 20 * MS);
        waits_look();
    }
    HOLDS(ended_for_others() >= 2, "the world is what it says",
        "%llu rooms were ended for others",
        (unsigned long long)ended_for_others());
    HOLDS(world_over(), "no room waits for a deadline", "encode%s, language%s",
        prods_left(), cons_left());
    world_finish(LIMIT);
}

/* Two users request more than there is, half of it in groups. Both sides give
 * blocks in one order, so few rooms are encoded twice. */
void two_users_in_groups(void)
{
    uint32_t left = 0, group = 0;
    uint16_t members = 0;
    uint64_t when = 10;

    quiet_world(2, 1);
    W.is.data_us = 20000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 4, 16, 0);
    e1 = make(ROLE_ENCODED, "e1", ROW_4K, 4, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 12, 16, 1);
    for (struct daemon **d = (struct daemon *[]){e0, e1, l0, NULL}; *d; d++) {
        (*d)->conf->limit_rooms = 300;
        (*d)->conf->limit_attachments = 600;
        W.cells = 256;
    }
    start_all();
    for (uint64_t r = 1; r <= 240; r++, when += between(0, 4)) {
        struct daemon *e = chance(500) ? e0 : e1;
        struct cons *c = request(l0, e, r, when + between(0, 19));
        struct prod *p =
            announce(e, r, 16 * (uint32_t)between(1, 4), when + between(0, 19));

        p->pace_ns = (e == e0 ? 5 : 1) * MS;
        c->hold_ns = between(5, 34) * MS;
        if (left == 0 && r < 236 && chance(333)) {
            left = members = (uint16_t)between(2, 3);
            group++;
        }
        c->session = p->session = left ? group % 2 : r % 2;
        if (left > 0) {
            in_group(c, group, members, c->session);
            left--;
        }
    }
    must_all_succeed(240, 0, 5);
}

/* Groups of three over two encoders beside single rooms, in pools of one and
 * two items. All are served. A single room comes again at most once, a room of
 * a group at most once for each member. */
void groups_of_three(void)
{
    uint64_t room = 0;

    quiet_world(2, 1);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 1, 16, 0);
    e1 = make(ROLE_ENCODED, "e1", ROW_4K, 2, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 5, 16, 1);
    start_all();
    for (uint64_t g = 1; g <= 8; g++) {
        for (uint32_t i = 0; i < 3; i++) {
            struct daemon *e = (g + i) % 2 ? e0 : e1;

            in_group(request(l0, e, ++room, between(1, 200)), g, 3, 2);
            announce(e, room, 16, between(1, 200))->known = g % 3 != 0;
        }
        for (uint32_t i = 0; i < 2; i++) {
            request(l0, i ? e0 : e1, ++room, between(1, 200));
            announce(i ? e0 : e1, room, 16, between(1, 200))->known = g % 2;
        }
    }
    must_all_succeed(40, 0, 16);
    for (const struct prod *p = prods_all(); p; p = p->next) {
        uint32_t times = 0, most = (p->room - 1) % 5 < 3 ? 3 : 1;

        for (const struct prod *n = p->again; n; n = n->again)
            times++;
        HOLDS(times <= most, "a room is a victim once",
            "room %llu came again %u times", (unsigned long long)p->room,
            times);
    }
}
