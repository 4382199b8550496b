/* transfer_test.c - sending.c and landing.c joined without a carrier: whatever
 * is granted when, in whatever runs, order and number of copies messages come,
 * every row lands once, and where it belongs. */
#include "core/move/landing.h"
#include "core/move/sending.h"
#include "test/slab.h"
#include "test/t.h"

#define KIB 1024u
#define ROW 1000 /* bytes */

/* Blocks of 16 rows here, of 8 there; units of 4 and parts of 32. */
static const struct sending_pool POOL = {256, ROW, 16, 2, 0, 0};

static void on_quiet(void *ud, const struct data_note *n)
{
    T_FAIL("slot %u is quiet and nobody asked", n->slot);
}

static struct sending *send_make(uint32_t shard, uint32_t shards)
{
    struct slab s = {0};

    T_TRUE(sending_init(
               &s, 8, 2, shard, shards, 128 * KIB, 26 * KIB, &POOL, 1) == NULL);
    s = slab_fresh(s.used);
    return sending_init(&s, 8, 2, shard, shards, 128 * KIB, 26 * KIB, &POOL, 1);
}

static struct data_cmd cmd_of(uint8_t type, uint32_t slot, uint64_t generation)
{
    return (struct data_cmd){.type = type,
        .slot = slot,
        .generation = generation,
        .room = generation * 10,
        .peer = 1,
        .unit_rows = 4,
        .part_rows = 32,
        .total = ROWS_UNKNOWN};
}

static bool give(struct sending *d, struct data_cmd c)
{
    bool quiet;

    sending_cmd(d, &c, &quiet);
    return quiet;
}

/* Every shard of a sender sends to every shard of a receiver. */
#define L_SHARDS_MAX 3
#define QUEUE        64

struct wire_message {
    struct send_batch b;
    uint32_t shard, token;
    bool done;
};

struct world {
    struct sending *send[3];
    struct landing *land[L_SHARDS_MAX];
    uint32_t senders, receivers, rows, granted;
    uint32_t source[4096], place[4096], landed[4096];
    uint64_t generation;
    struct wire_message queue[QUEUE];
    uint32_t queued;
};

static const struct landing_pool LAND = {512, 8, 4, 32, ROW};
static struct world w;

static struct landing *land_make(uint32_t shard, uint32_t shards)
{
    struct slab s = {0};

    T_TRUE(landing_init(&s, 8, LANDINGS_MIN, shard, shards, &LAND, 1) == NULL);
    s = slab_fresh(s.used);
    return landing_init(&s, 8, LANDINGS_MIN, shard, shards, &LAND, 1);
}

static void land_all(struct data_cmd c)
{
    bool quiet;

    c.slot = (uint32_t)(c.generation % 8);
    for (uint32_t i = 0; i < w.receivers; i++)
        T_TRUE(landing_cmd(w.land[i], &c, &quiet));
}

static void send_all(struct data_cmd c)
{
    for (uint32_t i = 0; i < w.senders; i++)
        T_FALSE(give(w.send[i], c));
}

static void world_init(uint64_t *seed, uint32_t senders, uint32_t receivers)
{
    struct data_cmd c;
    uint32_t block = 0;

    w = (struct world){.senders = senders,
        .receivers = receivers,
        .rows = 1 + (uint32_t)t_rand_below(seed, 2000),
        .generation = t_rand(seed)};
    for (uint32_t i = 0; i < receivers; i++)
        w.land[i] = land_make(i, receivers);
    for (uint32_t i = 0; i < senders; i++) {
        w.send[i] = send_make(i, senders);
        sending_peer(w.send[i], 1, receivers, 52 * KIB);
    }
    c = cmd_of(LAND_OPEN, 0, w.generation);
    land_all(c);
    c = cmd_of(SEND_OPEN, 5, w.generation);
    send_all(c);
    for (uint32_t row = 0; row < w.rows;) {
        uint32_t blocks = 1 + (uint32_t)t_rand_below(seed, 3);

        c = cmd_of(SEND_RUN, 5, w.generation);
        c.a = block;
        c.b = blocks;
        send_all(c);
        for (uint32_t r = 0; r < blocks * 16 && row < 4096; r++)
            w.source[row++] = block * 16 + r;
        block += blocks + (uint32_t)t_rand_below(seed, 2);
        block = min_u32(block, 250); /* the rest in one run */
    }
}

static void grant_more(uint64_t *seed)
{
    uint32_t blocks = 1 + (uint32_t)t_rand_below(seed, 20), at = w.granted / 8;
    struct data_cmd c = cmd_of(LAND_RUN, 0, w.generation);
    uint32_t first = 511 - at - blocks; /* runs go downwards */

    if (w.granted >= w.rows || at + blocks > 500)
        blocks = 0;
    if (blocks > 0) {
        c.a = first;
        c.b = blocks;
        land_all(c);
        for (uint32_t r = 0; r < blocks * 8; r++)
            w.place[w.granted++] = first * 8 + r;
    }
    c = cmd_of(SEND_LIMIT, 5, w.generation);
    c.a = min_u32(w.granted, w.rows);
    if (c.a == w.rows || t_rand_below(seed, 4) == 0)
        c.total = w.rows;
    send_all(c);
}

static void deliver_segment(
    const struct send_batch *b, uint32_t i, const struct piece *from)
{
    struct landing *l = w.land[b->address];
    struct piece to[PIECES_MAX];
    struct data_note note, quiet;
    uint32_t pool, n, token, bad_slot, q, row = b->segments[i].first, s = 0;
    enum err e = landing_begin(
        l, NONE, &b->segments[i], &pool, to, &n, &token, &bad_slot);

    if (e == ERR_STALE)
        return; /* a duplicate */
    T_OK(e);
    for (uint32_t k = 0, r = 0; r < b->segments[i].rows; r++) {
        if (s == from[k].rows) {
            k++;
            s = 0;
        }
        T_EQ_U64(from[k].block * 16 + from[k].at + s++, w.source[row + r]);
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t r = 0; r < to[k].rows; r++, row++) {
            T_EQ_U64(to[k].block * 8 + to[k].at + r, w.place[row]);
            T_EQ_U64(++w.landed[row], 1);
        }
    T_TRUE(landing_end(l, token, true, &note, &q, &quiet));
}

static void deliver(uint64_t *seed)
{
    uint32_t i = (uint32_t)t_rand_below(seed, w.queued);
    struct wire_message *m = &w.queue[i];
    const struct piece *from = m->b.pieces;

    for (uint32_t k = 0; k < m->b.count; k++) {
        deliver_segment(&m->b, k, from);
        from += m->b.from[k].pieces;
    }
    if (!m->done)
        sending_done(w.send[m->shard], m->token, on_quiet, NULL);
    m->done = true;
    if (t_rand_below(seed, 4) != 0)
        w.queue[i] = w.queue[--w.queued];
}

static void world_run(uint64_t *seed, uint32_t senders, uint32_t receivers)
{
    bool more = true;

    world_init(seed, senders, receivers);
    while (more || w.queued > 0 || w.granted < w.rows) {
        if (t_rand_below(seed, 10) == 0)
            grant_more(seed);
        more = false;
        for (uint32_t i = 0; i < senders && w.queued < QUEUE; i++) {
            struct wire_message *m = &w.queue[w.queued];

            if (!sending_next(w.send[i], &m->b, &m->token))
                continue;
            m->shard = i;
            m->done = false;
            w.queued++;
            more = true;
        }
        if (w.queued > 0)
            deliver(seed);
    }
    for (uint32_t r = 0; r < w.rows; r++)
        T_CHECK(w.landed[r] == 1, "row %u of %u landed %u times: %u to %u", r,
            w.rows, w.landed[r], senders, receivers);
    for (uint32_t i = 0; i < senders; i++) {
        T_EQ_U64(sending_active(w.send[i]), 0);
        T_TRUE(give(w.send[i], cmd_of(SEND_CLOSE, 5, w.generation)));
        free(w.send[i]);
    }
    for (uint32_t i = 0; i < receivers; i++) {
        T_TRUE(landing_full(w.land[i], (uint32_t)(w.generation % 8)) ||
               w.granted > w.rows);
        free(w.land[i]);
    }
}

/* RULES 3.2 */
TEST(every_row_lands_once)
{
    uint64_t seed = 7;

    for (int i = 0; i < 20; i++)
        for (uint32_t n = 1; n <= 3; n++)
            for (uint32_t m = 1; m <= 3; m++)
                world_run(&seed, n, m);
}
