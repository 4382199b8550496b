/* shard_side.h - whole shards of two sides, encoded's and langd's, in threads
 * or served as the loop does: pools, commands, rows with bytes of their own,
 * and the shards' notes. Each program has its own. */
#ifndef MMX_TEST_SHARD_SIDE_H
#define MMX_TEST_SHARD_SIDE_H

#include "node/shard/shard.h"
#include "core/move/landing.h"
#include "core/move/sending.h"
#include "test/data_mem.h"
#include "test/orders.h"
#include "test/t.h"

#include <poll.h>
#include <stdatomic.h>

#define SHARDS   3
#define SLOTS    64
#define FROM     16 /* rows of a block in encoded's pool */
#define TO       8  /* rows of a block in langd's pool */
#define ROWS_MAX 32768
#define SEGMENT  32768u

struct side {
    struct shard *shards[SHARDS];
    uint32_t count;
    union {
        struct shard_pool pool;
        struct shard_pool pools[2]; /* the last one is for pools_count 2 */
    };
    struct mem mem;
    /* the pool's memory, or a copy of it if the pool is on a GPU */
    uint8_t *bytes;
};

/* What the brains would know of one room. landed: number of rows. */
struct seen {
    uint8_t row[ROWS_MAX];
    uint32_t landed, land_quiet, land_bad, send_quiet, gone;
};

static struct world {
    struct wake wake;
    struct side e, l, other; /* other: a second langd */
    struct shard_conf conf;  /* for the next start */
    struct seen seen[SLOTS];
    uint32_t broken, lost;
    bool scattered; /* no two blocks of a room are neighbours */
    bool sent;      /* rows are sent even if they could be copied */
    bool may_inline;
    bool pool_without_memory; /* there is a second pool */
} w;

/* the two sides */

static inline void pool_make(struct side *s, const char *kind,
    const char *layout, uint32_t blocks, uint32_t block_rows)
{
    struct mem_opt opt = {.name = "test",
        .kind = kind,
        .numa_node = -1,
        .engines_write = s == &w.e};
    uint32_t at;

    s->pool.blocks = blocks;
    s->pool.block_rows = block_rows;
    T_OK(layout_parse(span_str(layout), &s->pool.layout, &at));
    T_TRUE(layout_place(&s->pool.layout, (uint64_t)blocks * block_rows, 4096,
        s->pool.offsets, &opt.bytes));
    T_OK(mem_kind(kind)->open(&s->mem, &opt));
    s->pool.mem = &s->mem;
    s->bytes = s->mem.gpu ? calloc(1, s->mem.bytes) : s->mem.base;
    T_TRUE(s->bytes != NULL);
}

static inline void conf_make(const struct data_ops *carrier)
{
    w.conf = (struct shard_conf){.carriers = {carrier},
        .data = {.segment_bytes = SEGMENT, .stall_ms = T_NEVER_MS},
        .slots = SLOTS,
        .peers = 4,
        .window_bytes = 131072,
        .orders = 4096,
        .cpu = -1,
        .may_inline = w.may_inline,
        .pools_count = w.pool_without_memory ? 2 : 1,
        .wake = &w.wake};
}

/* Makes both pools, and w.conf, which may be changed before the start. */
static inline void world_conf(const struct data_ops *carrier,
    const char *layout, uint32_t e_blocks, uint32_t l_blocks)
{
    T_OK(wake_init(&w.wake));
    pool_make(&w.e, "host", layout, e_blocks, FROM);
    pool_make(&w.l, "host", layout, l_blocks, TO);
    conf_make(carrier);
}

static inline void start(struct side *s, uint32_t count)
{
    struct shard_conf c = w.conf;

    c.role = s == &w.e ? ROLE_ENCODED : ROLE_LANGD;
    c.count = s->count = count;
    c.pools = s->pools;
    for (c.index = 0; c.index < count; c.index++)
        T_OK(shard_start(&s->shards[c.index], &c));
}

static inline void world_start(uint32_t es, uint32_t ls)
{
    start(&w.e, es);
    start(&w.l, ls);
}

static inline void side_stop(struct side *s)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_stop(&s->shards[i]);
        T_TRUE(s->shards[i] == NULL);
    }
    if (s->mem.gpu)
        free(s->bytes);
    if (s->mem.ops)
        s->mem.ops->close(&s->mem);
}

static inline void world_stop(void)
{
    side_stop(&w.e);
    side_stop(&w.l);
    side_stop(&w.other);
    wake_fini(&w.wake);
}

/* the loop's part */

static inline void on_note(const struct data_note *n)
{
    struct seen *s = &w.seen[n->slot];

    T_CHECK(n->type != NOTE_LANDED ||
                (n->rows > 0 && (uint64_t)n->first + n->rows <= ROWS_MAX),
        "rows %u + %u", n->first, n->rows);
    switch (n->type) {
    case NOTE_LANDED:
        for (uint32_t r = n->first; r < n->first + n->rows; r++)
            T_EQ_U64(++s->row[r], 1);
        s->landed += n->rows;
        break;
    case NOTE_LAND_BAD:
        s->land_bad++;
        break;
    case NOTE_LAND_QUIET:
        s->land_quiet++;
        break;
    case NOTE_LAND_GONE:
        s->gone++;
        break;
    case NOTE_SEND_QUIET:
        s->send_quiet++;
        break;
    case NOTE_PEER_BROKEN:
        w.broken++;
        break;
    case NOTE_POOL_LOST:
        w.lost++;
        break;
    default:
        T_FAIL("note of type %u", n->type);
    }
}

static inline struct shard *shard_of(uint32_t i)
{
    struct side *sides[] = {&w.e, &w.l, &w.other};

    return sides[i / SHARDS]->shards[i % SHARDS];
}

/* Does the work of the shards that the loop owns. */
static inline void work(void)
{
    for (uint32_t i = 0; i < 3 * SHARDS; i++)
        if (shard_of(i))
            shard_work(shard_of(i));
}

static inline uint32_t drain(void)
{
    struct data_note n;
    uint32_t count = 0;

    work();
    for (uint32_t i = 0; i < 3 * SHARDS; i++)
        for (; shard_of(i) && shard_note(shard_of(i), &n); count++)
            on_note(&n);
    return count;
}

/* Sleeps as the loop does, until cond holds. */
static inline void wait_for(
    bool (*cond)(const void *), const void *ud, const char *what)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (;;) {
        struct pollfd fd = {.fd = w.wake.fd, .events = POLLIN};

        drain();
        if (cond(ud))
            return;
        T_CHECK(t_now_ns() < end,
            "%s: slot 1 landed %u, quiet %u %u; broken %u, lost %u", what,
            w.seen[1].landed, w.seen[1].land_quiet, w.seen[1].send_quiet,
            w.broken, w.lost);
        wake_sleep(&w.wake);
        if (drain() == 0)
            poll(&fd, 1, w.may_inline ? 1 : 10);
        wake_clear(&w.wake);
    }
}

struct want {
    const uint32_t *value;
    uint32_t at_least;
};

static inline bool reached(const void *ud)
{
    const struct want *want = ud;

    return *want->value >= want->at_least;
}

#define WAIT(field, n)                                                         \
    wait_for(reached, &(struct want){&(field), (n)}, #field " >= " #n)

static inline uint64_t sum(const struct side *s, size_t offset)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->count; i++)
        n += atomic_load(
            (_Atomic uint64_t *)(void *)((uintptr_t)shard_stats(s->shards[i]) +
                                         offset));
    return n;
}
#define SUM(side, name) sum(&(side), offsetof(struct shard_stats, name))

/* commands */

static inline void push(struct side *s, struct data_cmd c)
{
    for (uint32_t i = 0; i < s->count; i++) {
        T_TRUE(shard_push(s->shards[i], &c));
        shard_flush(s->shards[i]);
    }
}

/* Tells encoded about a peer, and its addresses for this carrier. */
static inline void meet(
    uint32_t peer, struct side *s, uint8_t carrier, uint32_t segment)
{
    uint8_t blob[8192];
    struct writer b = writer_of(blob, sizeof(blob));

    for (uint32_t i = 0; i < s->count; i++)
        put_span(&b, shard_address(s->shards[i], carrier), 2, 4096);
    for (uint32_t i = 0; i < w.e.count; i++)
        T_TRUE(shard_peer_by(
            w.e.shards[i], peer, span_of(b.p, b.len), segment, carrier));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = peer});
}

static inline void peer_open(void)
{
    meet(1, &w.l, data_mem.number, SEGMENT);
}

/* Returns a command. langd is peer 1 of encoded, encoded is peer 2 of langd. */
static inline struct data_cmd cmd_of(uint8_t type, uint64_t g)
{
    const struct layout *l = &w.l.pool.layout;
    uint32_t unit = layout_unit_rows(l, TO);

    return (struct data_cmd){.type = type,
        .slot = (uint32_t)(g % SLOTS),
        .generation = g,
        .room = g ^ 0x5555,
        .peer = type >= SEND_OPEN ? 1 : 2,
        .unit_rows = unit,
        .part_rows = layout_part_rows(l, unit),
        .total = ROWS_UNKNOWN,
        .copy = !w.sent,
        .reply = true};
}

/* Gives a side the blocks for a room's rows, from `block` on. */
static inline void runs(
    struct side *s, uint64_t g, uint32_t block, uint32_t rows)
{
    uint32_t blocks = div_up(rows, s->pool.block_rows);
    struct data_cmd c = cmd_of(s == &w.e ? SEND_RUN : LAND_RUN, g);

    c.b = w.scattered ? 1 : blocks;
    for (uint32_t i = 0; i < (w.scattered ? blocks : 1); i++) {
        c.a = s == &w.e ? block + 2 * i : block - i;
        push(s, c);
    }
}

/* rows */

/* Returns where a row of a room is: encoded's rows are in every second block,
 * langd's in blocks with descending numbers, or all of them in adjacent
 * blocks. */
static inline uint64_t row_at(
    const struct side *s, uint32_t block, uint32_t row)
{
    uint32_t n = s->pool.block_rows, i = row / n;

    if (w.scattered)
        block = s == &w.e ? block + 2 * i : block - i;
    else
        block += i;
    return (uint64_t)block * n + row % n;
}

static inline uint8_t *place_of(
    struct side *s, uint32_t f, uint32_t block, uint32_t row)
{
    return s->bytes + s->pool.offsets[f] +
           row_at(s, block, row) * s->pool.layout.fields[f].row_bytes;
}

/* Fills a row with bytes that differ for every row, field and room. */
static inline void row_fill(
    uint8_t *out, uint32_t bytes, uint64_t g, uint32_t field, uint32_t row)
{
    uint64_t x = g * 1000003 + field * 100003 + row;

    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)((x * UINT64_C(0x9e3779b97f4a7c15)) >> (i % 56));
}

static inline void source_fill(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < w.e.pool.layout.count; f++)
        for (uint32_t r = 0; r < rows; r++)
            row_fill(place_of(&w.e, f, block, r),
                w.e.pool.layout.fields[f].row_bytes, g, f, r);
}

/* Checks rows from `first` on; the first one is at the begin of `block`. */
static inline void place_check(
    uint64_t g, uint32_t block, uint32_t first, uint32_t rows)
{
    uint8_t wanted[8192];

    for (uint32_t f = 0; f < w.l.pool.layout.count; f++) {
        uint32_t bytes = w.l.pool.layout.fields[f].row_bytes;

        for (uint32_t r = 0; r < rows; r++) {
            row_fill(wanted, bytes, g, f, first + r);
            T_EQ_MEM(place_of(&w.l, f, block, r), wanted, bytes);
        }
    }
}

/* rooms */

static inline void send_open(uint64_t g, uint32_t block, uint32_t rows)
{
    struct data_cmd c = cmd_of(SEND_OPEN, g);

    source_fill(g, block, rows);
    c.total = rows;
    push(&w.e, c);
    runs(&w.e, g, block, rows);
}

static inline void send_limit(uint64_t g, uint32_t rows, uint32_t total)
{
    struct data_cmd c = cmd_of(SEND_LIMIT, g);

    c.a = rows;
    c.total = total;
    push(&w.e, c);
}

static inline void sends(uint64_t g, uint32_t block, uint32_t rows)
{
    send_open(g, block, rows);
    send_limit(g, rows, rows);
}

static inline void lands(uint64_t g, uint32_t block, uint32_t rows)
{
    push(&w.l, cmd_of(LAND_OPEN, g));
    runs(&w.l, g, block, rows);
}

/* Moves a whole room from a source block to a destination block. */
static inline void room(uint64_t g, uint32_t from, uint32_t to, uint32_t rows)
{
    lands(g, to, rows);
    sends(g, from, rows);
}

#endif
