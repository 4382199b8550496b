/* shard_test.c - whole shards, threads and rings, over data_mem: every byte
 * of a room at its place, faults of the carrier, a loop that reads late. What
 * is called BOTH runs in threads and, as inline_<case>, also in the loop. */
#include "node/shard/shard.h"
#include "test/data_mem.h"
#include "test/orders.h"
#include "test/t.h"

#include "core/move/landing.h"
#include "core/move/sending.h"

#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define KIB       1024u
#define SHARDS    3
#define SLOTS     64
#define ROWS_MAX  8192
#define SEGMENT   (32 * KIB)
#define ROW_BYTES 528

#define BOTH(id)                                                               \
    static void id(void);                                                      \
    TEST(id)                                                                   \
    {                                                                          \
        id();                                                                  \
    }                                                                          \
    TEST(inline_##id)                                                          \
    {                                                                          \
        w.may_inline = true;                                                   \
        id();                                                                  \
    }                                                                          \
    static void id(void)

/* What the brains would know of one room; landed in rows. */
struct seen {
    uint8_t row[ROWS_MAX];
    uint32_t landed, land_quiet, land_bad, send_quiet;
};

static struct world {
    struct data_ops ops; /* data_mem, with the carriers remembered */
    struct data *carriers[2 * SHARDS];
    _Atomic uint32_t carriers_count;
    struct wake wake;
    struct shard *e[SHARDS], *l[SHARDS];
    uint32_t es, ls;
    struct shard_pool pools[2]; /* encoded's, langd's */
    struct mem mems[2];
    struct shard_conf conf; /* of the next to start */
    struct seen seen[SLOTS];
    uint32_t broken, notes;
    uint64_t last_first[SLOTS];
    bool may_inline;
} w;

static enum err remember(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    enum err e = data_mem.open(out, c, calls);

    if (e == OK)
        w.carriers[atomic_fetch_add(&w.carriers_count, 1)] = *out;
    return e;
}

static void pool_make(uint32_t i, uint32_t blocks, uint32_t block_rows)
{
    struct shard_pool *p = &w.pools[i];
    uint64_t bytes;
    uint32_t at;

    p->blocks = blocks;
    p->block_rows = block_rows;
    T_OK(layout_parse(
        span_str("embedding:bf16:256,ids:i32:1,pos:i32:3"), &p->layout, &at));
    T_EQ_U64(p->layout.row_bytes, ROW_BYTES);
    T_TRUE(layout_place(
        &p->layout, (uint64_t)blocks * block_rows, 4096, p->offsets, &bytes));
    p->mem = &w.mems[i];
    p->mem->base = calloc(1, bytes);
    p->mem->bytes = bytes;
}

static void world_conf(void)
{
    w.ops = data_mem;
    w.ops.open = remember;
    T_OK(wake_init(&w.wake));
    pool_make(0, 512, 16);
    pool_make(1, 2048, 8);
    w.conf = (struct shard_conf){.carriers = {&w.ops},
        .data = {.segment_bytes = SEGMENT, .stall_ms = T_WAIT_MS},
        .slots = SLOTS,
        .peers = 4,
        .window_bytes = 128 * KIB,
        .orders = 4096,
        .notes = 4096,
        .cpu = -1,
        .may_inline = w.may_inline,
        .pools_count = 1,
        .wake = &w.wake};
}

static void start(
    struct shard **out, uint8_t role, uint32_t index, uint32_t count)
{
    struct shard_conf c = w.conf;

    c.role = role;
    c.index = index;
    c.count = count;
    c.pools = &w.pools[role == ROLE_LANGD];
    T_OK(shard_start(out, &c));
}

static void world_start(uint32_t es, uint32_t ls)
{
    w.es = es;
    w.ls = ls;
    for (uint32_t i = 0; i < es; i++)
        start(&w.e[i], ROLE_ENCODED, i, es);
    for (uint32_t i = 0; i < ls; i++)
        start(&w.l[i], ROLE_LANGD, i, ls);
}

static void world_stop(void)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_stop(&w.e[i]);
        shard_stop(&w.l[i]);
        T_TRUE(w.e[i] == NULL && w.l[i] == NULL);
    }
    free(w.mems[0].base);
    free(w.mems[1].base);
    wake_fini(&w.wake);
}

/* the loop's part */

static void on_landed(const struct data_note *n)
{
    struct seen *s = &w.seen[n->slot];

    T_CHECK(n->rows > 0 && (uint64_t)n->first + n->rows <= ROWS_MAX,
        "rows %u + %u", n->first, n->rows);
    for (uint32_t r = n->first; r < n->first + n->rows; r++) {
        s->row[r]++;
        T_EQ_U64(s->row[r], 1);
    }
    s->landed += n->rows;
}

static void on_note(const struct data_note *n)
{
    w.notes++;
    switch (n->type) {
    case NOTE_LANDED:
        on_landed(n);
        break;
    case NOTE_LAND_BAD:
        w.seen[n->slot].land_bad++;
        break;
    case NOTE_LAND_QUIET:
        w.seen[n->slot].land_quiet++;
        break;
    case NOTE_SEND_QUIET:
        w.seen[n->slot].send_quiet++;
        break;
    case NOTE_PEER_BROKEN:
        w.broken++;
        break;
    default:
        T_FAIL("note of type %u", n->type);
    }
}

/* Does what is ours to do. */
static void work(void)
{
    for (uint32_t i = 0; i < 2 * SHARDS; i++) {
        struct shard **s = i < SHARDS ? &w.e[i] : &w.l[i - SHARDS];

        if (*s)
            shard_work(*s);
    }
}

static uint32_t drain(void)
{
    struct data_note n;
    uint32_t count = 0;

    work();
    for (uint32_t i = 0; i < SHARDS; i++) {
        for (; w.e[i] && shard_note(w.e[i], &n); count++)
            on_note(&n);
        for (; w.l[i] && shard_note(w.l[i], &n); count++)
            on_note(&n);
    }
    return count;
}

/* Sleeps as the loop does, until cond holds. */
static void wait_for(
    bool (*cond)(const void *), const void *ud, const char *what)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (;;) {
        struct pollfd fd = {.fd = w.wake.fd, .events = POLLIN};

        drain();
        if (cond(ud))
            return;
        T_CHECK(t_now_ns() < end,
            "%s: slot 1 landed %u, quiet %u %u; broken %u", what,
            w.seen[1].landed, w.seen[1].land_quiet, w.seen[1].send_quiet,
            w.broken);
        wake_sleep(&w.wake);
        if (drain() == 0)
            poll(&fd, 1, w.may_inline ? 1 : 1000);
        wake_clear(&w.wake);
    }
}

struct want {
    const uint32_t *value;
    uint32_t at_least;
};

static bool reached(const void *ud)
{
    const struct want *want = ud;

    return *want->value >= want->at_least;
}

#define WAIT(field, n)                                                         \
    wait_for(reached, &(struct want){&(field), (n)}, #field " >= " #n)

static void push(struct shard **shards, uint32_t count, struct data_cmd c)
{
    for (uint32_t i = 0; i < count; i++) {
        T_TRUE(shard_push(shards[i], &c));
        shard_flush(shards[i]);
    }
}

static void peer_open(void)
{
    uint8_t blob[8192];
    struct writer b = writer_of(blob, sizeof(blob));

    for (uint32_t i = 0; i < w.ls; i++)
        put_span(&b, shard_address(w.l[i], w.ops.number), 2, 4096);
    for (uint32_t i = 0; i < w.es; i++)
        T_TRUE(shard_peer(w.e[i], 1, span_of(b.p, b.len), SEGMENT));
    push(w.e, w.es, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
}

static struct data_cmd cmd_of(uint8_t type, uint64_t g)
{
    return (struct data_cmd){.type = type,
        .slot = (uint32_t)(g % SLOTS),
        .generation = g,
        .room = g ^ 0x5555,
        .peer = 1,
        .unit_rows = layout_unit_rows(&w.pools[1].layout, 8),
        .part_rows = layout_part_rows(
            &w.pools[1].layout, layout_unit_rows(&w.pools[1].layout, 8)),
        .total = ROWS_UNKNOWN,
        .reply = true};
}

/* rows */

static uint8_t *row_of(uint32_t pool, uint32_t field, uint64_t row)
{
    struct shard_pool *p = &w.pools[pool];

    return p->mem->base + p->offsets[field] +
           row * p->layout.fields[field].row_bytes;
}

/* Every row, field and room has bytes of its own. */
static void row_fill(
    uint8_t *out, uint32_t bytes, uint64_t g, uint32_t field, uint32_t row)
{
    uint64_t x = g * 1000003 + field * 100003 + row;

    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)((x * UINT64_C(0x9e3779b97f4a7c15)) >> (i % 56));
}

static void source_fill(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < 3; f++)
        for (uint32_t r = 0; r < rows; r++)
            row_fill(row_of(0, f, block * 16 + r),
                w.pools[0].layout.fields[f].row_bytes, g, f, r);
}

static void place_check(
    uint64_t g, uint32_t block, uint32_t first, uint32_t rows)
{
    uint8_t wanted[1024];

    for (uint32_t f = 0; f < 3; f++) {
        uint32_t bytes = w.pools[1].layout.fields[f].row_bytes;

        for (uint32_t r = 0; r < rows; r++) {
            row_fill(wanted, bytes, g, f, first + r);
            T_EQ_MEM(row_of(1, f, block * 8 + r), wanted, bytes);
        }
    }
}

static void send_open(uint64_t g, uint32_t block, uint32_t rows)
{
    struct data_cmd c = cmd_of(SEND_OPEN, g);

    source_fill(g, block, rows);
    c.total = rows;
    push(w.e, w.es, c);
    c = cmd_of(SEND_RUN, g);
    c.a = block;
    c.b = div_up(rows, 16);
    push(w.e, w.es, c);
}

static void send_limit(uint64_t g, uint32_t rows, uint32_t total)
{
    struct data_cmd c = cmd_of(SEND_LIMIT, g);

    c.a = rows;
    c.total = total;
    push(w.e, w.es, c);
}

static void land_run(uint64_t g, uint32_t block, uint32_t blocks)
{
    struct data_cmd c = cmd_of(LAND_RUN, g);

    c.a = block;
    c.b = blocks;
    push(w.l, w.ls, c);
}

/* A whole room from source block to destination block. */
static void room(uint64_t g, uint32_t from, uint32_t to, uint32_t rows)
{
    push(w.l, w.ls, cmd_of(LAND_OPEN, g));
    land_run(g, to, div_up(rows, 8));
    send_open(g, from, rows);
    send_limit(g, rows, rows);
}

static uint64_t sum(uint32_t count, struct shard **shards, size_t offset)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        n += atomic_load(
            (_Atomic uint64_t *)(void *)((uintptr_t)shard_stats(shards[i]) +
                                         offset));
    return n;
}
#define SUM_E(name) sum(w.es, w.e, offsetof(struct shard_stats, name))
#define SUM_L(name) sum(w.ls, w.l, offsetof(struct shard_stats, name))

/* cases */

TEST(start_and_stop)
{
    struct shard *none = NULL;

    shard_stop(&none);
    world_conf();
    world_start(1, 2);
    T_TRUE(shard_address(w.e[0], w.ops.number).len > 0);
    T_FALSE(span_eq(shard_address(w.l[0], w.ops.number),
        shard_address(w.l[1], w.ops.number)));
    world_stop();
}

static enum err no_carrier(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    (void)out;
    (void)c;
    (void)calls;
    return ERR_INTERNAL;
}

TEST(start_fails_with_its_carrier)
{
    struct shard *s = (struct shard *)&w;
    struct shard_conf c;

    world_conf();
    w.ops.open = no_carrier;
    c = w.conf;
    c.role = ROLE_LANGD;
    c.count = 1;
    c.pools = &w.pools[1];
    T_ERR(shard_start(&s, &c), ERR_INTERNAL);
    T_TRUE(s == (struct shard *)&w);
    world_stop();
}

static void moves(uint32_t es, uint32_t ls)
{
    char transport[32];

    world_conf();
    world_start(es, ls);
    peer_open();
    room(1, 3, 7, 2001);
    WAIT(w.seen[1].landed, 2001);
    T_EQ_U64(w.seen[1].landed, 2001);
    place_check(1, 7, 0, 2001);
    T_EQ_U64(SUM_L(bytes_landed), 2001 * ROW_BYTES);
    T_EQ_U64(SUM_E(bytes_sent), 2001 * ROW_BYTES);
    T_EQ_U64(SUM_L(segments_landed), SUM_E(segments_sent));
    T_EQ_U64(SUM_L(segments_dropped), 0);
    push(w.e, es, cmd_of(SEND_CLOSE, 1));
    push(w.l, ls, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, es);
    WAIT(w.seen[1].land_quiet, ls);
    if (es == 1 && ls == 1) {
        shard_transport(w.e[0], 1, transport, sizeof(transport));
        T_EQ_STR(transport, "mem");
        shard_transport(w.e[0], 0, transport, sizeof(transport));
        T_EQ_STR(transport, "");
    }
    world_stop();
}

#define MOVES(id, es, ls)                                                      \
    BOTH(id)                                                                   \
    {                                                                          \
        moves(es, ls);                                                         \
    }
MOVES(one_to_one, 1, 1)
MOVES(two_to_three, 2, 3)
MOVES(three_to_one, 3, 1)
MOVES(one_to_two, 1, 2)

/* Grants come one after the other, in scattered blocks. */
BOTH(resumes)
{
    world_conf();
    world_start(1, 2);
    peer_open();
    push(w.l, w.ls, cmd_of(LAND_OPEN, 1));
    send_open(1, 0, 1000);
    for (uint32_t granted = 0; granted < 1000; granted += 40) {
        land_run(1, 2000 - granted / 4, 5);
        send_limit(1, min_u32(granted + 40, 1000), 1000);
        WAIT(w.seen[1].landed, min_u32(granted + 40, 1000));
    }
    for (uint32_t granted = 0; granted < 1000; granted += 40)
        place_check(1, 2000 - granted / 4, granted, 40);
    world_stop();
}

BOTH(many_rooms_at_once)
{
    world_conf();
    world_start(2, 2);
    peer_open();
    for (uint32_t g = 1; g < SLOTS; g++)
        room(g, g * 8, g * 16, g * 2);
    for (uint32_t g = 1; g < SLOTS; g++) {
        WAIT(w.seen[g].landed, g * 2);
        T_EQ_U64(w.seen[g].landed, g * 2);
        place_check(g, g * 16, 0, g * 2);
    }
    world_stop();
}

/* The receiver takes small messages only: the rest is fetched, and what it
 * does not want of it goes nowhere. */
BOTH(rendezvous)
{
    world_conf();
    world_start(1, 0);
    w.conf.data.segment_bytes = 4 * KIB;
    w.ls = 1;
    start(&w.l[0], ROLE_LANGD, 0, 1);
    peer_open();
    room(1, 0, 7, 1000);
    WAIT(w.seen[1].landed, 1000);
    place_check(1, 7, 0, 1000);
    send_open(2, 100, 100); /* nobody wants these */
    send_limit(2, 100, 100);
    room(3, 200, 300, 900);
    WAIT(w.seen[3].landed, 900);
    place_check(3, 300, 0, 900);
    push(w.l, 1, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    T_TRUE(SUM_L(segments_dropped) > 0);
    world_stop();
}

BOTH(dropped_and_bad_segments)
{
    struct data_cmd c;

    world_conf();
    world_start(1, 1);
    peer_open();
    c = cmd_of(LAND_OPEN, 1);
    c.total = 90;
    push(w.l, 1, c);
    land_run(1, 0, 16);
    send_open(1, 0, 100); /* says that its total is 100 */
    send_limit(1, 100, 100);
    WAIT(w.seen[1].land_bad, 1);
    T_EQ_U64(w.seen[1].landed, 0);
    push(w.e, 1, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    T_TRUE(SUM_L(segments_dropped) >= 1);
    world_stop();
}

/* Langd gives a new attempt; encoded starts again, and all of it lands. */
static void next_attempt(uint64_t g, uint32_t to, uint32_t rows)
{
    struct data_cmd c = cmd_of(LAND_OPEN, g);
    uint32_t slot = (uint32_t)(g % SLOTS), quiet = w.seen[slot].land_quiet;

    push(w.l, w.ls, cmd_of(LAND_CLOSE, g));
    WAIT(w.seen[slot].land_quiet, quiet + w.ls);
    memset(&w.seen[slot], 0, sizeof(w.seen[slot]));
    c.attempt = 1;
    push(w.l, w.ls, c);
    land_run(g, to, div_up(rows, 8));
    c = cmd_of(SEND_REWIND, g);
    c.attempt = 1;
    c.a = rows;
    push(w.e, w.es, c);
    WAIT(w.seen[slot].landed, rows);
    T_EQ_U64(w.seen[slot].landed, rows);
    place_check(g, to, 0, rows);
}

static void fault_case(enum data_fault fault)
{
    world_conf();
    if (fault == DATA_FAULT_STALL)
        w.conf.data.stall_ms = 2000;
    world_start(1, 1);
    peer_open();
    room(1, 0, 7, 100);
    WAIT(w.seen[1].landed, 100);
    data_mem_fault(w.carriers[0], SEND_ADDRESSES_MAX, fault, 2);
    room(2, 100, 500, 1000);
    WAIT(w.broken, 1);
    T_EQ_U64(SUM_E(endpoints_lost), 1);
    next_attempt(2, 900, 1000);
    T_EQ_U64(w.broken, 1);
    push(w.e, 1, cmd_of(SEND_CLOSE, 2));
    WAIT(w.seen[2].send_quiet, 1);
    world_stop();
}

BOTH(broken_endpoint)
{
    fault_case(DATA_FAULT_BREAK);
}

BOTH(stalled_endpoint)
{
    fault_case(DATA_FAULT_STALL);
}

BOTH(delayed_messages_overtake)
{
    world_conf();
    world_start(1, 1);
    peer_open();
    room(1, 0, 7, 10);
    WAIT(w.seen[1].landed, 10);
    data_mem_fault(w.carriers[0], SEND_ADDRESSES_MAX, DATA_FAULT_DELAY, 3);
    room(2, 100, 500, 1000);
    WAIT(w.seen[2].landed, 1000);
    place_check(2, 500, 0, 1000);
    world_stop();
}

/* The receiver dies with everything in flight and comes back elsewhere. */
BOTH(receiver_restarts)
{
    world_conf();
    world_start(1, 1);
    peer_open();
    room(1, 0, 7, 100);
    WAIT(w.seen[1].landed, 100);
    shard_stop(&w.l[0]);
    send_open(2, 100, 1000);
    send_limit(2, 1000, 1000);
    WAIT(w.broken, 1);
    push(w.e, 1, cmd_of(SEND_CLOSE, 2));
    push(w.e, 1, (struct data_cmd){.type = PEER_CLOSE, .peer = 1});
    WAIT(w.seen[2].send_quiet, 1);
    start(&w.l[0], ROLE_LANGD, 0, 1);
    peer_open();
    room(3, 200, 300, 500);
    WAIT(w.seen[3].landed, 500);
    place_check(3, 300, 0, 500);
    world_stop();
}

/* A HELLO repeated on a living epoch loses nothing. */
TEST(peer_says_the_same_again)
{
    world_conf();
    world_start(1, 1);
    peer_open();
    room(1, 0, 7, 4000);
    for (int i = 0; i < 5; i++)
        peer_open();
    WAIT(w.seen[1].landed, 4000);
    T_EQ_U64(w.broken, 0);
    world_stop();
}

TEST(addresses_that_cannot_be_read)
{
    static const uint8_t bad[] = {9, 0, 'm', 'e', 'm'};
    static const uint8_t nobody[] = {5, 0, 'm', 'e', 'm', ':', 'x'};

    world_conf();
    world_start(1, 1);
    T_TRUE(shard_peer(w.e[0], 1, span_of(bad, sizeof(bad)), SEGMENT));
    push(w.e, 1, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
    send_open(1, 0, 100);
    send_limit(1, 100, 100);
    push(w.e, 1, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    T_EQ_U64(SUM_E(messages_sent), 0);
    T_TRUE(shard_peer(w.e[0], 1, span_of(nobody, sizeof(nobody)), SEGMENT));
    push(w.e, 1, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
    send_open(2, 0, 100);
    send_limit(2, 100, 100);
    WAIT(w.broken, 1);
    push(w.e, 1, cmd_of(SEND_CLOSE, 2));
    WAIT(w.seen[2].send_quiet, 1);
    world_stop();
}

BOTH(layout_comes_later)
{
    struct layout layouts[2];

    world_conf();
    for (int i = 0; i < 2; i++) {
        layouts[i] = w.pools[i].layout;
        memset(&w.pools[i].layout, 0, sizeof(layouts[i]));
    }
    world_start(1, 1);
    for (int i = 0; i < 2; i++)
        w.pools[i].layout = layouts[i];
    T_TRUE(shard_pool_ready(w.e[0], 0));
    T_TRUE(shard_pool_ready(w.l[0], 0));
    peer_open();
    room(1, 3, 7, 321);
    WAIT(w.seen[1].landed, 321);
    place_check(1, 7, 0, 321);
    world_stop();
}

/* Commands for a shard whose ring is short. */
static void push_patiently(struct data_cmd c)
{
    for (; !shard_push(w.l[0], &c); sched_yield())
        ;
    shard_flush(w.l[0]);
}

/* Rows are sent eight by eight, so that many notes come of them. */
static void send_slowly(uint32_t grants)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (uint32_t g = 0; g < grants; g++) {
        send_limit(1, g * 8 + 8, 1600);
        for (; SUM_L(segments_landed) < g + 1 && t_now_ns() < end; work())
            sched_yield();
    }
    T_CHECK(SUM_L(segments_landed) >= grants, "%lu segments landed",
        (unsigned long)SUM_L(segments_landed));
}

/* The loop reads nothing while more happens than its ring can hold: no note
 * is lost, and none comes out of order. */
static void late(uint32_t trims, uint32_t grants)
{
    struct data_note n, last = {0};
    uint32_t total = 0;

    world_conf();
    world_start(1, 0);
    w.conf.orders = w.conf.notes = 2;
    w.ls = 1;
    start(&w.l[0], ROLE_LANGD, 0, 1);
    peer_open();
    push_patiently(cmd_of(LAND_OPEN, 1));
    send_open(1, 0, 1600);
    for (uint32_t g = 0; g < 200; g++) {
        struct data_cmd c = cmd_of(LAND_RUN, 1);

        c.a = g;
        c.b = 1;
        push_patiently(c);
        c = cmd_of(LAND_TRIM, 1); /* changes nothing, but is answered */
        c.a = ROWS_UNKNOWN;
        if (g < trims)
            push_patiently(c);
    }
    send_slowly(grants);
    send_limit(1, 1600, 1600);
    for (uint64_t end = t_end_ns(T_WAIT_MS); total < 1600;) {
        T_CHECK(t_now_ns() < end, "%u rows told", total);
        work();
        if (!shard_note(w.l[0], &n))
            continue;
        if (n.type == NOTE_LAND_QUIET) {
            w.seen[1].land_quiet++;
            T_EQ_U64(total, 0);
            continue;
        }
        T_EQ_U64(n.type, NOTE_LANDED);
        T_EQ_U64(n.first, last.first + last.rows);
        last = n;
        total += n.rows;
    }
    T_EQ_U64(w.seen[1].land_quiet, trims);
    world_stop();
}

BOTH(a_loop_that_reads_late)
{
    late(20, 40);
}

/* Half a backlog of notes waits: the carrier rests until the loop reads. */
TEST(a_loop_that_reads_too_late)
{
    late(100, 0);
}

/* True after half a second with 3 wake-ups at most; it looks at 20 of those. */
static bool they_sleep(void *ud)
{
    static uint64_t since_ns, before;
    static uint32_t looks;
    uint64_t now_ns = t_now_ns(), spent_ns = now_ns - since_ns, all, woken;

    (void)ud;
    if (spent_ns < 500 * NS_PER_MS)
        return false;
    T_TRUE(++looks <= 20);
    all = SUM_E(shard_wakeups) + SUM_L(shard_wakeups);
    woken = since_ns ? all - before : UINT64_MAX;
    before = all;
    since_ns = now_ns;
    return woken <= 3 + 2 * (spent_ns / SHARD_SLEEP_NS);
}

/* What an idle shard costs, once it has come to rest: it does not poll. */
TEST(idle_shards_sleep)
{
    world_conf();
    world_start(1, 1);
    peer_open();
    room(1, 3, 7, 321);
    WAIT(w.seen[1].landed, 321);
    T_WAIT(they_sleep, NULL);
    world_stop();
}

BOTH(stop_with_everything_in_flight)
{
    for (int i = 0; i < 20; i++) {
        memset(&w, 0, sizeof(w));
        world_conf();
        world_start(2, 2);
        peer_open();
        for (uint32_t g = 1; g < 5; g++)
            room(g, g * 100, g * 400, 1000);
        if (i % 2)
            WAIT(w.seen[1].landed, 1);
        world_stop();
    }
}
