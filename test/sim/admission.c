/* admission.c - scenarios of RULES 5: who gets blocks where one thing is held
 * while another is waited for. */
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

static void coupled_world(void)
{
    quiet_world(1, 2);
    W.is.data_us = 400000;
    W.is.rendezvous = 1000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 16, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 4, 16, 1);
    start_all();
}

void coupled_calm(void)
{
    coupled_world();
    to_both_coupled(1, 5);
    to_both_coupled(2, 8);
    all_succeed(2);
}

void coupled_breaks(void)
{
    coupled_world();
    to_both_coupled(1, 5);
    to_both_coupled(2, 8);
    at(30 * MS, breaks_now, NULL, 0, 0);
    all_succeed(2);
}

static void restart(void *p, uint64_t up, uint64_t b)
{
    (up ? daemon_start : daemon_crash)(p);
}

/* The first langd restarts, and is then asked for the second room first: what
 * the first room has at the other langd goes back. */
void coupled_restarts(void)
{
    coupled_world();
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

/* An encoder writes its rows bit by bit, and says their number when all are
 * written, some 100 ms later. */
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
 * six. Those of both rooms without landed rows are taken back at once, since
 * the group's blocks are not for it. */
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
static struct prod *circle_of_three(uint32_t source_blocks, uint64_t asked_ms)
{
    struct prod *p;

    quiet_pair(source_blocks, 2, 16, 0);
    in_group(request(l0, e0, 1, 1), 1, 2, 2);
    in_group(request(l0, e0, 2, 2), 1, 2, 2);
    request(l0, e0, 3, asked_ms);
    p = announce(e0, 3, 16, 5);
    announce(e0, 1, 16, 40);
    announce(e0, 2, 16, 41);
    return p;
}

void victim(void)
{
    (void)circle_of_three(1, 60);
    must_all_succeed(3, 1, 1);
}

/* The victim's engine still encodes when its turn to be ended comes: until 90
 * ms. */
void victim_at_work(void)
{
    circle_of_three(1, 50)->pieces = 16;
    e0->conf->timeout_revoke_after = 20 * MS;
    must_all_succeed(3, 1, 1);
}

static void cut(void *p, uint64_t from_langd, uint64_t for_ms)
{
    net_partition(
        from_langd ? l0 : e0, from_langd ? e0 : l0, for_ms * MS, false);
}

/* The victim's langd does not know yet that the rows are written. */
void victim_unheard(void)
{
    circle_of_three(1, 60)->must_succeed = true;
    at(55 * MS, cut, NULL, false, 200);
    (void)run_until(1000 * MS);
    must_all_succeed(3, 1, 1);
}

/* Another room, 4, has ended before: its blocks come back when langd
 * answers. */
void victim_in_time(void)
{
    struct prod *p;

    (void)circle_of_three(2, 60);
    request(l0, e0, 4, 61)->must_succeed = false;
    p = announce(e0, 4, 16, 6);
    p->aborts = true;
    p->abort_ns = 120 * MS;
    at(110 * MS, cut, NULL, true, 200);
    (void)run_until(1000 * MS);
    while (!world_over() && W.now_ns < 20 * NS_PER_S)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(world_over() && ended_for_others() == 0 && W.succeeded == 3,
        "blocks that come back are waited for", "%u succeeded, %llu ended",
        W.succeeded, (unsigned long long)ended_for_others());
    world_finish(LIMIT);
}

/* Another langd, whose pool is full, asks again for a kept room. The older room
 * 1 has the grants there and lacks only source blocks. */
void victim_kept(void)
{
    struct daemon *l2;

    quiet_world(1, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 1, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 1, 16, 0);
    l2 = make(ROLE_LANGD, "l2", ROW_4K, 1, 16, 0);
    start_all();
    request(l0, e0, 9, 1)->hold_ns = 80 * MS;
    in_group(request(l0, e0, 1, 2), 1, 1, 2);
    announce(e0, 9, 16, 1);
    request(l2, e0, 3, 20);
    announce(e0, 3, 16, 20)->flags |= FLAG_KEEP;
    request(l0, e0, 3, 35)->must_succeed = false;
    announce(e0, 1, 16, 45);
    must_all_succeed(3, 1, 1);
}

/* Two rooms of one item, or two items of one batch, are each a group. langd's
 * pool holds one of them; what that one needs is held by room 3. */
static void full_by_one(uint64_t key)
{
    struct prod *a, *b;

    quiet_world(1, 1);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, key ? 1 : 2, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 1, 16, 0);
    start_all();
    in_group(request(l0, e0, 1, 1), 1, 1, 2);
    in_group(request(l0, e0, 2, 2), 2, 1, 2);
    request(l0, e0, 3, 60);
    announce(e0, 3, 16, 5);
    a = announce(e0, 1, 16, 40);
    b = announce(e0, 2, 16, 40);
    b->session = a->session;
    for (struct cons *c = cons_all(); key && c; c = c->next)
        c->key = c->room < 3 ? key : 0;
    if (key) {
        (void)prod_key(a, key, 16);
        (void)prod_key(b, key, 16);
    } else {
        a->mate = b;
        b->led = a;
    }
    must_all_succeed(3, 1, 1);
}

void full_by_one_room(void)
{
    full_by_one(77);
}

void full_by_one_item(void)
{
    full_by_one(0);
}

/* The same for a room that has its grant at one langd and waits for that of the
 * next: its blocks at the first go back, too. */
void victim_of_two(void)
{
    quiet_world(1, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 1, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 2, 16, 0);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 2, 16, 0);
    start_all();
    in_group(request(l1, e0, 1, 1), 1, 2, 2);
    in_group(request(l1, e0, 2, 2), 1, 2, 2);
    announce(e0, 3, 16, 5)->required = 2;
    request(l0, e0, 3, 20)->required = 2;
    request(l1, e0, 3, 80)->required = 2;
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

/* Items of a batch, one of them shared by two rooms. */
void victims_in_a_batch(void)
{
    struct prod *a, *b, *c;

    quiet_pair(2, 2, 16, 0);
    in_group(request(l0, e0, 1, 1), 1, 2, 2);
    in_group(request(l0, e0, 2, 2), 1, 2, 2);
    for (uint64_t r = 3; r <= 5; r++)
        request(l0, e0, r, 60 + r);
    a = announce(e0, 3, 16, 5);
    b = announce(e0, 4, 16, 5);
    a->mate = b;
    b->led = a;
    b->session = a->session;
    c = announce(e0, 5, 16, 20);
    c->session = b->session;
    for (struct cons *k = cons_all(); k; k = k->next)
        k->key = k->room == 5 || k->room == 4 ? 77 : 0;
    (void)prod_key(b, 77, 16);
    (void)prod_key(c, 77, 16);
    announce(e0, 1, 16, 40);
    announce(e0, 2, 16, 41);
    must_all_succeed(5, 1, 2);
}

/* A source pool is full of rooms that are sent slowly: it empties. */
void overload_drains(void)
{
    quiet_world(1, 1);
    W.is.data_us = 900000;
    W.is.rendezvous = 1000;
    pair(2, 16, 16, 0);
    for (uint64_t r = 1; r <= 8; r++) {
        request(l0, e0, r, r);
        announce(e0, r, 16, 5 + r);
    }
    for (uint64_t r = 9; r <= 12; r++) {
        in_group(request(l0, e0, r, r), 1 + r / 11, 2, 2);
        announce(e0, r, 16, 30 + r);
    }
    must_all_succeed(12, 0, 0);
}

/* One user requests 150 rooms at once, another one a room now and then. The
 * latter waits for rooms that hold blocks, and at each side for one more of the
 * first user's, not for all. */
void users_take_turns(void)
{
    quiet_world(1, 1);
    W.is.data_us = 100000;
    W.is.rendezvous = 1000;
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 4, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 4, 16, 1);
    e0->conf->limit_rooms = l0->conf->limit_rooms = 200;
    W.cells = 160;
    start_all();
    for (uint64_t r = 2; r <= 300; r += 2) {
        request(l0, e0, r, r);
        announce(e0, r, 16, r + 3);
    }
    (void)run_until(500 * MS);
    for (uint64_t r = 1; r <= 9; r += 2) {
        uint32_t before = W.succeeded;
        struct cons *c = request(l0, e0, r, 0);

        announce(e0, r, 16, 1);
        while (!c->over)
            (void)run_until(W.now_ns + MS);
        HOLDS(W.succeeded - before < 12, "users take turns for blocks",
            "room %llu waited for %u others", (unsigned long long)r,
            W.succeeded - before - 1);
    }
    all_succeed(155);
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
