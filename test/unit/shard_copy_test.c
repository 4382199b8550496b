/* shard_copy_test.c - whole shards that copy out of a mapped pool: every byte
 * at its place, hostile runs, sources that go, rooms that end in the middle. */
#include "node/shard/shard.h"
#include "test/data_mem.h"
#include "test/orders.h"
#include "test/t.h"

#include "core/move/landing.h"
#include "core/move/sending.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARDS 3
#define SLOTS  64
#define LAYOUT "embedding:u8:4704,ids:i32:1,pos:i32:3"
#define FIELDS 3
#define FROM   16 /* rows of a block, encoded's pool */
#define TO     8  /* langd's */

struct seen {
    uint32_t landed, land_quiet, send_quiet, land_bad, gone;
};

static struct world {
    struct wake wake;
    struct shard *e[SHARDS], *l[SHARDS];
    uint32_t es, ls;
    struct shard_pool pools[2]; /* encoded's, langd's */
    struct mem mems[2];
    struct source *source;
    struct seen seen[SLOTS];
    uint32_t slot;           /* that is waited for */
    struct data_calls calls; /* of langd's shard, for said_by() */
    _Atomic uint32_t who;
    _Atomic bool holds, held; /* said_by() waits; it has begun to */
} w;

static void pool_make(uint32_t i, uint32_t blocks, uint32_t block_rows)
{
    struct shard_pool *p = &w.pools[i];
    struct mem_opt opt = {
        .name = "test", .kind = "host", .engines_write = i == 0};
    uint32_t at;

    opt.numa_node = -1;
    p->blocks = blocks;
    p->block_rows = block_rows;
    T_OK(layout_parse(span_str(LAYOUT), &p->layout, &at));
    T_TRUE(layout_place(&p->layout, (uint64_t)blocks * block_rows, 4096,
        p->offsets, &opt.bytes));
    T_OK(mem_host.open(&w.mems[i], &opt));
    p->mem = &w.mems[i];
}

/* What encoded would say of its pool. */
static struct local_pool_info info_of(uint8_t fields[FIELDS * 12])
{
    const struct shard_pool *p = &w.pools[0];
    struct writer out = writer_of(fields, FIELDS * 12);

    for (uint32_t f = 0; f < FIELDS; f++) {
        put_u64(&out, p->offsets[f]);
        put_u32(&out, p->layout.fields[f].row_bytes);
    }
    return (struct local_pool_info){.block_rows = p->block_rows,
        .blocks = p->blocks,
        .bytes = p->mem->bytes,
        .name = span_str("test"),
        .memory = span_str("host"),
        .layout = span_str(p->layout.text),
        .fields = span_of(fields, FIELDS * 12)};
}

static struct source *source_make(uint32_t blocks)
{
    uint8_t fields[FIELDS * 12];
    struct local_pool_info m = info_of(fields);
    struct source *s;
    const char *why;

    m.blocks = blocks;
    T_OK(source_open(&s, dup(w.mems[0].fd), &m, m.bytes, &why));
    T_OK(source_map(s, 0));
    return s;
}

static void world_start_by(
    const struct data_ops *carrier, uint32_t es, uint32_t ls)
{
    struct shard_conf c = {.carriers = {carrier},
        .data = {.segment_bytes = 32768, .stall_ms = T_NEVER_MS},
        .slots = SLOTS,
        .peers = 4,
        .window_bytes = 131072,
        .orders = 4096,
        .notes = 4096,
        .cpu = -1,
        .pools_count = 1,
        .wake = &w.wake};

    T_OK(wake_init(&w.wake));
    w.slot = 1;
    pool_make(0, 256, FROM);
    pool_make(1, 512, TO);
    w.es = es;
    w.ls = ls;
    c.role = ROLE_ENCODED;
    c.count = es;
    c.pools = &w.pools[0];
    for (c.index = 0; c.index < es; c.index++)
        T_OK(shard_start(&w.e[c.index], &c));
    c.role = ROLE_LANGD;
    c.count = ls;
    c.pools = &w.pools[1];
    for (c.index = 0; c.index < ls; c.index++)
        T_OK(shard_start(&w.l[c.index], &c));
}

static void world_start(uint32_t es, uint32_t ls)
{
    world_start_by(&data_mem, es, ls);
}

static void world_stop(void)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_stop(&w.e[i]);
        shard_stop(&w.l[i]);
    }
    source_close(&w.source);
    mem_host.close(&w.mems[0]);
    mem_host.close(&w.mems[1]);
    wake_fini(&w.wake);
}

/* the loop's part */

static void on_note(const struct data_note *n)
{
    struct seen *s = &w.seen[n->slot];

    s->landed += n->type == NOTE_LANDED ? n->rows : 0;
    s->land_quiet += n->type == NOTE_LAND_QUIET;
    s->send_quiet += n->type == NOTE_SEND_QUIET;
    s->land_bad += n->type == NOTE_LAND_BAD;
    s->gone += n->type == NOTE_LAND_GONE;
}

static uint32_t drain(void)
{
    struct data_note n;
    uint32_t count = 0;

    for (uint32_t i = 0; i < SHARDS; i++) {
        for (; w.e[i] && shard_note(w.e[i], &n); count++)
            on_note(&n);
        for (; w.l[i] && shard_note(w.l[i], &n); count++)
            on_note(&n);
    }
    return count;
}

static void wait_for(bool (*cond)(uint32_t), uint32_t n, const char *what)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (;;) {
        struct pollfd fd = {.fd = w.wake.fd, .events = POLLIN};

        drain();
        if (cond(n))
            return;
        T_CHECK(t_now_ns() < end, "%s %u: slot %u landed %u, quiet %u %u", what,
            n, w.slot, w.seen[w.slot].landed, w.seen[w.slot].land_quiet,
            w.seen[w.slot].send_quiet);
        wake_sleep(&w.wake);
        if (drain() == 0)
            poll(&fd, 1, 10);
        wake_clear(&w.wake);
    }
}

static bool landed(uint32_t n)
{
    return w.seen[w.slot].landed >= n;
}

static bool land_quiet(uint32_t n)
{
    return w.seen[w.slot].land_quiet >= n;
}

static bool send_quiet(uint32_t n)
{
    return w.seen[w.slot].send_quiet >= n;
}

static uint64_t count_l(size_t offset)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < w.ls; i++)
        n += atomic_load(
            (_Atomic uint64_t *)(void *)((uintptr_t)shard_stats(w.l[i]) +
                                         offset));
    return n;
}
#define COUNT_L(name) count_l(offsetof(struct shard_stats, name))

static bool dropped(uint32_t n)
{
    return COUNT_L(segments_dropped) >= n;
}

static void push(struct shard **shards, uint32_t count, struct data_cmd c)
{
    for (uint32_t i = 0; i < count; i++) {
        T_TRUE(shard_push(shards[i], &c));
        shard_flush(shards[i]);
    }
}

static void sources(struct source *s)
{
    for (uint32_t i = 0; i < w.ls; i++)
        T_TRUE(shard_source(w.l[i], 2, 0, s));
}

static void peer_open(void)
{
    uint8_t blob[8192];
    struct writer b = writer_of(blob, sizeof(blob));

    for (uint32_t i = 0; i < w.ls; i++)
        put_span(&b, shard_address(w.l[i], data_mem.number), 2, 4096);
    for (uint32_t i = 0; i < w.es; i++)
        T_TRUE(shard_peer(w.e[i], 1, span_of(b.p, b.len), 32768));
    push(w.e, w.es, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
}

/* langd is peer 1 of encoded, encoded is peer 2 of langd. */
static struct data_cmd cmd_of(uint8_t type, uint64_t g)
{
    const struct layout *l = &w.pools[1].layout;
    uint32_t unit = layout_unit_rows(l, TO);

    return (struct data_cmd){.type = type,
        .slot = (uint32_t)(g % SLOTS),
        .generation = g,
        .room = g ^ 0x5555,
        .peer = type >= SEND_OPEN ? 1 : 2,
        .unit_rows = unit,
        .part_rows = layout_part_rows(l, unit),
        .total = ROWS_UNKNOWN,
        .copy = true,
        .reply = true};
}

static uint8_t *row_of(uint32_t pool, uint32_t field, uint64_t row)
{
    struct shard_pool *p = &w.pools[pool];

    return p->mem->base + p->offsets[field] +
           row * p->layout.fields[field].row_bytes;
}

static uint8_t byte_of(uint64_t g, uint32_t f, uint32_t row, uint32_t i)
{
    return (uint8_t)(((g * 31 + f) * 1000003 + row) * 2654435761u >> (i % 24));
}

/* Source blocks: every second one, from `block` on. */
static uint64_t source_row(uint32_t block, uint32_t row)
{
    return (uint64_t)(block + 2 * (row / FROM)) * FROM + row % FROM;
}

/* Destination blocks: downwards, from `block` on. */
static uint64_t place_row(uint32_t block, uint32_t row)
{
    return (uint64_t)(block - row / TO) * TO + row % TO;
}

static void source_fill(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < FIELDS; f++)
        for (uint32_t r = 0; r < rows; r++) {
            uint8_t *at = row_of(0, f, source_row(block, r));

            for (uint32_t i = 0; i < w.pools[0].layout.fields[f].row_bytes; i++)
                at[i] = byte_of(g, f, r, i);
        }
}

static void place_check(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < FIELDS; f++)
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *at = row_of(1, f, place_row(block, r));

            for (uint32_t i = 0; i < w.pools[1].layout.fields[f].row_bytes; i++)
                T_CHECK(at[i] == byte_of(g, f, r, i),
                    "field %u row %u byte %u is %02x", f, r, i, at[i]);
        }
}

static void land_open(uint64_t g, uint32_t block, uint32_t rows)
{
    struct data_cmd c = cmd_of(LAND_RUN, g);

    push(w.l, w.ls, cmd_of(LAND_OPEN, g));
    for (uint32_t i = 0; i < div_up(rows, TO); i++) {
        c.a = block - i;
        c.b = 1;
        push(w.l, w.ls, c);
    }
}

static void send_open(uint64_t g, uint32_t block, uint32_t rows)
{
    struct data_cmd c = cmd_of(SEND_OPEN, g);

    source_fill(g, block, rows);
    push(w.e, w.es, c);
    c.type = SEND_RUN;
    for (uint32_t i = 0; i < div_up(rows, FROM); i++) {
        c.a = block + 2 * i;
        c.b = 1;
        push(w.e, w.es, c);
    }
    c.type = SEND_LIMIT;
    c.a = c.total = rows;
    push(w.e, w.es, c);
}

/* cases */

static void moves(uint32_t es, uint32_t ls)
{
    world_start(es, ls);
    w.source = source_make(256);
    sources(w.source);
    peer_open();
    land_open(1, 400, 1901);
    send_open(1, 3, 1901);
    wait_for(landed, 1901, "landed");
    T_EQ_U64(w.seen[1].landed, 1901);
    place_check(1, 400, 1901);
    T_EQ_U64(COUNT_L(segments_dropped), 0);
    T_EQ_U64(COUNT_L(segments_copied), COUNT_L(segments_landed));
    T_EQ_U64(COUNT_L(bytes_landed), 1901 * w.pools[1].layout.row_bytes);
    push(w.e, w.es, cmd_of(SEND_CLOSE, 1));
    push(w.l, w.ls, cmd_of(LAND_CLOSE, 1));
    wait_for(send_quiet, es, "send quiet");
    wait_for(land_quiet, ls, "land quiet");
    world_stop();
}

TEST(one_to_one)
{
    moves(1, 1);
}

TEST(two_to_three)
{
    moves(2, 3);
}

/* The same shards take rows of either kind, and small rooms among large. */
TEST(kinds_side_by_side)
{
    world_start(1, 1);
    w.source = source_make(256);
    sources(w.source);
    peer_open();
    for (uint64_t g = 1; g < 30; g++) {
        uint32_t block = (uint32_t)g * 8 % 200, to = (uint32_t)g * 16 + 16;
        uint32_t rows = g == 7 ? 50 : 1 + (uint32_t)g;
        struct data_cmd c = cmd_of(SEND_OPEN, g);

        land_open(g, to, rows);
        c.copy = g % 3 != 0;
        source_fill(g, block, rows);
        push(w.e, 1, c);
        c.type = SEND_RUN;
        c.b = 1;
        for (uint32_t i = 0; i < div_up(rows, FROM); i++) {
            c.a = block + 2 * i;
            push(w.e, 1, c);
        }
        c.type = SEND_LIMIT;
        c.a = c.total = rows;
        push(w.e, 1, c);
        w.slot = (uint32_t)g;
        wait_for(landed, rows, "landed");
        place_check(g, to, rows);
    }
    T_TRUE(COUNT_L(segments_copied) > 0);
    T_TRUE(COUNT_L(segments_copied) < COUNT_L(segments_landed));
    world_stop();
}

/* Nothing is mapped, or of another peer only: nothing lands. */
TEST(no_source)
{
    world_start(1, 1);
    w.source = source_make(256);
    T_TRUE(shard_source(w.l[0], 1, 0, w.source));
    T_TRUE(shard_source(w.l[0], 2, 1, w.source));
    peer_open();
    land_open(1, 100, 40);
    send_open(1, 3, 40);
    wait_for(dropped, 1, "dropped");
    T_EQ_U64(w.seen[1].landed, 0);
    world_stop();
}

/* What comes to langd's shard is from w.who. */
static bool said_by(void *ud, struct data *d, const struct data_in *in)
{
    struct data_in m = *in;

    m.who = atomic_load(&w.who);
    atomic_store(&w.held, true);
    while (atomic_load(&w.holds))
        poll(NULL, 0, 1);
    return w.calls.arrived(ud, d, &m);
}

static enum err keyed_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data_calls own = *calls;

    if (c->keys_max > 0) {
        w.calls = *calls;
        own.arrived = said_by;
    }
    return data_mem.open(out, c, &own);
}

/* The source is the room's peer's whichever peer names it: another peer has
 * nothing copied into that room. */
/* RULES 10.6 */
TEST(copies_are_ordered_by_the_peer_of_the_room)
{
    struct data_ops keyed = data_mem;

    keyed.open = keyed_open;
    world_start_by(&keyed, 1, 1);
    w.source = source_make(256);
    sources(w.source);
    T_TRUE(shard_source(w.l[0], 3, 0, w.source));
    peer_open();
    atomic_store(&w.who, 3);
    land_open(1, 100, 40);
    send_open(1, 3, 40);
    wait_for(dropped, 1, "dropped");
    push(w.l, 1, cmd_of(LAND_CLOSE, 1));
    wait_for(land_quiet, 1, "land quiet");
    T_EQ_U64(w.seen[1].landed, 0);
    T_EQ_U64(COUNT_L(segments_copied), 0);
    atomic_store(&w.who, 2);
    land_open(2, 200, 40);
    send_open(2, 3, 40);
    w.slot = 2;
    wait_for(landed, 40, "landed");
    place_check(2, 200, 40);
    T_EQ_U64(w.seen[1].landed, 0);
    world_stop();
}

static bool held(uint32_t n)
{
    (void)n;
    return atomic_load(&w.held);
}

/* The peer's place is another's by the time at which a message is looked at
 * that came by the old key. */
/* RULES 10.6 */
TEST(a_key_that_was_replaced_lands_nothing)
{
    struct data_ops keyed = data_mem;

    keyed.open = keyed_open;
    world_start_by(&keyed, 1, 1);
    w.source = source_make(256);
    sources(w.source);
    peer_open();
    atomic_store(&w.who, 2);
    atomic_store(&w.holds, true);
    send_open(1, 3, 4);
    wait_for(held, 1, "held");
    T_TRUE(shard_key(w.l[0], 2, span_of("new", 3)));
    land_open(1, 100, 4);
    atomic_store(&w.holds, false);
    wait_for(dropped, 1, "dropped");
    push(w.l, 1, cmd_of(LAND_CLOSE, 1));
    wait_for(land_quiet, 1, "land quiet");
    T_EQ_U64(w.seen[1].landed, 0);
    land_open(2, 200, 4);
    send_open(2, 3, 4);
    w.slot = 2;
    wait_for(landed, 4, "landed");
    world_stop();
}

/* Rows that lie beyond what is mapped. */
TEST(runs_outside)
{
    world_start(1, 1);
    w.source = source_make(20);
    sources(w.source);
    peer_open();
    land_open(1, 100, 40);
    send_open(1, 17, 40); /* blocks 17, 19 and 21 */
    wait_for(dropped, 1, "dropped");
    T_EQ_U64(w.seen[1].landed, 0);
    world_stop();
}

TEST(another_layout)
{
    uint32_t at;

    world_start(1, 1);
    w.source = source_make(20);
    T_OK(layout_parse(span_str("embedding:u8:4708,ids:i32:1,pos:i32:2"),
        &w.source->layout, &at));
    sources(w.source);
    peer_open();
    land_open(1, 100, 10);
    send_open(1, 3, 10);
    wait_for(dropped, 1, "dropped");
    T_EQ_U64(w.seen[1].landed, 0);
    world_stop();
}

/* A source goes while copies out of it wait; those end well. */
static bool gone(uint32_t n)
{
    return w.seen[w.slot].gone >= n;
}

/* Takes the pages from this row's on away, as a hole in a file of huge pages
 * does when the system has none to give. Nothing else is in them. */
static void take_away(const uint8_t *row)
{
    uint8_t *at = (uint8_t *)(((uintptr_t)row + 4095) & ~(uintptr_t)4095);
    int empty = memfd_create("empty", 0);

    T_TRUE(empty >= 0);
    T_TRUE(mmap(at, 16 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               empty, 0) == at);
    close(empty);
}

/* Room 1 has rows in the hole, room 2 has none: the one is told of, the other
 * lands. */
static void a_hole(bool at_source)
{
    world_start(1, 1);
    w.source = source_make(256);
    sources(w.source);
    peer_open();
    if (at_source)
        take_away(w.source->base + source_row(3, 20) * 4704);
    else
        take_away(row_of(1, 0, place_row(400, 20)));
    land_open(1, 400, 64);
    send_open(1, 3, 64);
    wait_for(gone, 1, "gone");
    T_TRUE(w.seen[1].landed < 64);
    w.slot = 2;
    land_open(2, 200, 300);
    send_open(2, 100, 300);
    wait_for(landed, 300, "landed");
    place_check(2, 200, 300);
    push(w.l, w.ls, cmd_of(LAND_CLOSE, 1));
    w.slot = 1;
    wait_for(land_quiet, 1, "land quiet");
    world_stop();
}

TEST(pages_taken_out_of_the_source_cost_their_room)
{
    a_hole(true);
}

TEST(pages_taken_out_of_our_pool_cost_their_room)
{
    a_hole(false);
}

TEST(source_goes)
{
    world_start(1, 1);
    w.source = source_make(256);
    sources(w.source);
    peer_open();
    land_open(1, 400, 1901);
    send_open(1, 3, 1901);
    sources(NULL);
    /* What came before it went is copied; the rest is refused. */
    push(w.e, 1, cmd_of(SEND_CLOSE, 1));
    wait_for(send_quiet, 1, "send quiet");
    push(w.l, 1, cmd_of(LAND_CLOSE, 1));
    wait_for(land_quiet, 1, "land quiet");
    T_TRUE(source_alone(w.source)); /* the shard reads it no more */
    world_stop();
}

/* The fence: from the moment a closed room is quiet nothing of its source is
 * read, though messages about it are still on their way. */
TEST(quiet_means_nothing_is_read)
{
    uint8_t *to, *copy;
    size_t bytes;

    for (uint32_t i = 0; i < 10; i++) {
        memset(&w, 0, sizeof(w));
        world_start(1, 2);
        w.source = source_make(256);
        sources(w.source);
        peer_open();
        land_open(1, 400, 1901);
        send_open(1, 3, 1901);
        if (i % 2)
            wait_for(landed, 1 + i * 100, "landed");
        push(w.l, w.ls, cmd_of(LAND_CLOSE, 1));
        wait_for(land_quiet, 2, "land quiet");
        to = w.mems[1].base;
        bytes = w.mems[1].bytes;
        copy = malloc(bytes);
        memcpy(copy, to, bytes);
        memset(w.mems[0].base, 0xee, w.mems[0].bytes);
        push(w.e, 1, cmd_of(SEND_CLOSE, 1));
        wait_for(send_quiet, 1, "send quiet");
        T_EQ_MEM(copy, to, bytes);
        free(copy);
        world_stop();
    }
}

/* what a source may be */

static void refused_in(
    struct local_pool_info m, int fd, uint64_t room, const char *part)
{
    struct source *s = NULL;
    const char *why = "";

    T_TRUE(source_open(&s, fd, &m, room, &why) != OK);
    T_TRUE(s == NULL);
    T_HAS(why, part);
}

static void refused(struct local_pool_info m, int fd, const char *part)
{
    refused_in(m, fd, UINT64_MAX, part);
}

/* Returns a sealed file of that size with `there` bytes of pages. */
static int file_of(uint64_t bytes, uint64_t there)
{
    int fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    T_TRUE(ftruncate(fd, (off_t)bytes) == 0);
    T_TRUE(there == 0 || fallocate(fd, 0, 0, (off_t)there) == 0);
    T_TRUE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

/* RULES 3.4 */
TEST(sources_are_checked)
{
    uint8_t fields[FIELDS * 12], bad[FIELDS * 12];
    struct local_pool_info m, good;
    int fd;

    pool_make(0, 4, FROM);
    good = m = info_of(fields);
    m.share = span_str("cuda-ipc");
    m.handle = span_of(bad, MEM_HANDLE_MAX + 1);
    refused(m, dup(w.mems[0].fd), "handle");
    m = good;
    m.layout = span_str("embedding:u9:3");
    refused(m, dup(w.mems[0].fd), "layout");
    m = good;
    m.layout = span_str("embedding:u8:4704,ids:i32:1,pos:i32:4");
    refused(m, dup(w.mems[0].fd), "regions");
    m = good;
    m.fields.len--;
    refused(m, dup(w.mems[0].fd), "regions");
    m = good;
    m.blocks = 5;
    refused(m, dup(w.mems[0].fd), "regions");
    m.blocks = UINT32_MAX;
    m.block_rows = UINT32_MAX;
    refused(m, dup(w.mems[0].fd), "regions");
    m = good;
    memset(bad, 0xff, 8);
    memcpy(bad + 8, fields + 8, sizeof(bad) - 8);
    m.fields = span_of(bad, sizeof(bad));
    refused(m, dup(w.mems[0].fd), "regions");
    m = good;
    m.bytes += 4096;
    refused(m, dup(w.mems[0].fd), "size");
    fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    T_TRUE(ftruncate(fd, (off_t)good.bytes) == 0);
    refused(good, fd, "shrink");
    refused(good, dup(0), "shrink");
    refused(good, file_of(good.bytes, 0), "pages");
    refused(good, file_of(good.bytes, good.bytes - 4096), "pages");
    refused_in(good, file_of(good.bytes, good.bytes), good.bytes - 1, "memory");
    refused_in(good, dup(w.mems[0].fd), good.bytes - 1, "memory");
    mem_host.close(&w.mems[0]);
}
