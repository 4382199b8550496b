/* sending_side.h - shared by the tests of core/move/sending.c: a sender over
 * one pool with a peer, jobs, and checks of the next message. Each program has
 * its own. */
#ifndef MMX_TEST_SENDING_SIDE_H
#define MMX_TEST_SENDING_SIDE_H

#include "core/move/sending.h"
#include "test/slab.h"
#include "test/t.h"

#define SLOTS 256
#define PEERS 4
#define ROW   1000 /* bytes */
#define KIB   1024u

/* Blocks of 16 rows; destinations ask for units of 4 and parts of 64. */
static const struct sending_pool POOL = {256, ROW, 16, 2, 0, 0};

static struct send_batch batch;
static uint32_t quiets;
static struct data_note last_quiet;

static inline void on_quiet(void *ud, const struct data_note *n)
{
    T_EQ_U64(n->type, NOTE_SEND_QUIET);
    quiets++;
    last_quiet = *n;
}

static inline struct sending *make_with(uint32_t shard, uint32_t shards,
    uint32_t window, uint32_t segment, const struct sending_pool *pool)
{
    static struct sending *d; /* a new one replaces the last one */
    struct slab s = {0};

    free(d);
    d = sending_init(&s, SLOTS, PEERS, shard, shards, window, segment, pool, 1);
    T_CHECK(!d, "a count gave %p", (void *)d);
    s = slab_fresh(s.used);
    d = sending_init(&s, SLOTS, PEERS, shard, shards, window, segment, pool, 1);
    T_CHECK(
        d && !s.failed && s.used == s.cap, "used %zu of %zu", s.used, s.cap);
    return d;
}

/* Returns a sender with messages of about 50 rows, and a window of four. */
static inline struct sending *make(void)
{
    struct sending *d = make_with(0, 1, 256 * KIB, 52 * KIB, &POOL);

    sending_peer(d, 1, 1, 52 * KIB);
    return d;
}

static inline struct data_cmd cmd_of(
    uint8_t type, uint32_t slot, uint64_t generation)
{
    return (struct data_cmd){.type = type,
        .slot = slot,
        .generation = generation,
        .room = generation * 10,
        .peer = 1,
        .unit_rows = 4,
        .part_rows = 64,
        .total = ROWS_UNKNOWN};
}

static inline bool give(struct sending *d, struct data_cmd c)
{
    bool quiet;

    sending_cmd(d, &c, &quiet);
    return quiet;
}

static inline void run(struct sending *d, uint32_t slot, uint64_t g,
    uint32_t block, uint32_t blocks)
{
    struct data_cmd c = cmd_of(SEND_RUN, slot, g);

    c.a = block;
    c.b = blocks;
    T_FALSE(give(d, c));
}

static inline void limit(
    struct sending *d, uint32_t slot, uint64_t g, uint32_t rows, uint32_t total)
{
    struct data_cmd c = cmd_of(SEND_LIMIT, slot, g);

    c.a = rows;
    c.total = total;
    T_FALSE(give(d, c));
}

/* Opens a job with blocks of its own: rows of slot i begin at block 8 i. */
static inline void job(struct sending *d, uint32_t slot, uint64_t g,
    uint32_t blocks, uint32_t rows, uint32_t total)
{
    T_FALSE(give(d, cmd_of(SEND_OPEN, slot, g)));
    run(d, slot, g, slot * 8 % 256, blocks);
    limit(d, slot, g, rows, total);
}

static inline void done(struct sending *d, uint32_t token)
{
    sending_done(d, token, on_quiet, NULL);
}

/* Checks that the next message is one segment of these rows; returns its
 * token. */
static inline uint32_t expect(
    struct sending *d, uint32_t slot, uint32_t first, uint32_t rows)
{
    uint32_t token;

    T_TRUE(sending_next(d, &batch, &token));
    T_EQ_U64(batch.count, 1);
    T_EQ_U64(batch.from[0].slot, slot);
    T_EQ_U64(batch.segments[0].first, first);
    T_EQ_U64(batch.segments[0].rows, rows);
    T_EQ_U64(batch.bytes, rows * ROW);
    return token;
}

static inline void nothing(struct sending *d)
{
    uint32_t token;

    T_FALSE(sending_next(d, &batch, &token));
}

#endif
