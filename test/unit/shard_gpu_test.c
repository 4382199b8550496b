/* shard_gpu_test.c - whole shards over data_mem with pools on a GPU, at either
 * end or both, over the driver's double: every byte of a room at its place,
 * slow copies, messages that are fetched, a GPU that is lost in between. */
#include "node/shard/shard.h"
#include "test/data_mem.h"
#include "test/gpu.h"
#include "test/orders.h"
#include "test/t.h"

#include "core/move/landing.h"
#include "core/move/sending.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define KIB    1024u
#define SLOTS  64
#define LAYOUT "embedding:bf16:256,ids:i32:1,pos:i32:3"

/* One side: its pool, and a copy of all its bytes for the test to look at. */
struct side {
    struct shard *shard;
    struct shard_pool pool;
    struct mem mem;
    uint8_t *bytes;
};

static struct world {
    /* The first is NULL: data_mem. `by`: of two, which the peer has chosen. */
    const struct data_ops *carriers[2];
    uint8_t by;
    const char *layout;  /* NULL: LAYOUT */
    uint32_t window;     /* 0: 16 MiB */
    struct data *sender; /* of `remembered` */
    bool to_other;
    bool copy;               /* langd is told where rows lie, and copies them */
    struct side e, l, other; /* other: a second langd, peer 2 */
    struct wake wake;
    struct source *source; /* of source_tell */
    uint32_t landed[SLOTS], land_quiet, send_quiet, lost;
} w;

static void pool_make(
    struct side *s, const char *kind, uint32_t blocks, uint32_t block_rows)
{
    struct mem_opt opt = {
        .name = "test", .kind = kind, .numa_node = -1, .engines_write = true};
    uint32_t at;

    s->pool.blocks = blocks;
    s->pool.block_rows = block_rows;
    T_OK(layout_parse(
        span_str(w.layout ? w.layout : LAYOUT), &s->pool.layout, &at));
    T_TRUE(layout_place(&s->pool.layout, (uint64_t)blocks * block_rows, 4096,
        s->pool.offsets, &opt.bytes));
    T_OK(mem_kind(kind)->open(&s->mem, &opt));
    s->pool.mem = &s->mem;
    s->bytes = calloc(1, s->mem.bytes);
    T_TRUE(s->bytes != NULL);
}

static void side_start(struct side *s, uint8_t role, uint32_t sender_segment,
    uint32_t receiver_segment)
{
    const uint32_t segments[] = {
        [ROLE_ENCODED] = sender_segment, [ROLE_LANGD] = receiver_segment};
    const struct data_ops *first = w.carriers[0];
    struct shard_conf c = {
        .carriers = {first ? first : &data_mem, w.carriers[1]},
        .data = {.segment_bytes = segments[role], .stall_ms = T_NEVER_MS},
        .role = role,
        .count = 1,
        .slots = SLOTS,
        .peers = 4,
        .window_bytes = w.window ? w.window : 16384 * KIB,
        .orders = 4096,
        .notes = 4096,
        .cpu = -1,
        .gpu = true,
        .pools = &s->pool,
        .pools_count = 1,
        .wake = &w.wake};

    T_OK(shard_start(&s->shard, &c));
}

/* Tells encoded's shard of langd's, which is peer 1. */
static void meet(uint32_t segment)
{
    uint8_t blob[8192];
    struct writer b = writer_of(blob, sizeof(blob));

    put_span(&b, shard_address(w.l.shard, w.by), 2, 4096);
    T_TRUE(shard_peer_by(w.e.shard, 1, span_of(b.p, b.len), segment, w.by));
    T_TRUE(shard_push(
        w.e.shard, &(struct data_cmd){.type = PEER_OPEN, .peer = 1}));
    shard_flush(w.e.shard);
}

static void start(const char *from, const char *to, uint32_t segment)
{
    gpu_use();
    T_OK(wake_init(&w.wake));
    pool_make(&w.e, from, 512, 16);
    pool_make(&w.l, to, 2048, 8);
    side_start(&w.e, ROLE_ENCODED, segment, segment);
    side_start(&w.l, ROLE_LANGD, segment, segment);
    meet(segment);
}

static void side_stop(struct side *s)
{
    shard_stop(&s->shard);
    s->mem.ops->close(&s->mem);
    free(s->bytes);
}

static void stop(void)
{
    side_stop(&w.e);
    side_stop(&w.l);
    source_close(&w.source);
    wake_fini(&w.wake);
    if (gpu_real())
        return;
    T_EQ_I64(gpu_get("streams"), 0);
    T_EQ_I64(gpu_get("events"), 0);
    T_EQ_I64(gpu_get("created"), 0);
}

/* notes */

static void drain(struct shard *s)
{
    struct data_note n;

    while (s && shard_note(s, &n)) {
        if (n.type == NOTE_LANDED)
            w.landed[n.slot] += n.rows;
        else if (n.type == NOTE_LAND_QUIET)
            w.land_quiet++;
        else if (n.type == NOTE_SEND_QUIET)
            w.send_quiet++;
        else if (n.type == NOTE_POOL_LOST)
            w.lost++;
        else
            T_FAIL("note of type %u", n.type);
    }
}

static void wait_for(const uint32_t *value, uint32_t wanted)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (;;) {
        struct pollfd fd = {.fd = w.wake.fd, .events = POLLIN};

        drain(w.e.shard);
        drain(w.l.shard);
        drain(w.other.shard);
        if (*value >= wanted)
            return;
        T_CHECK(t_now_ns() < end, "%u of %u, %u lost", *value, wanted, w.lost);
        wake_sleep(&w.wake);
        drain(w.e.shard);
        drain(w.l.shard);
        drain(w.other.shard);
        if (*value < wanted)
            poll(&fd, 1, 50);
        wake_clear(&w.wake);
    }
}

/* rows */

static uint8_t *row_of(struct side *s, uint32_t f, uint64_t row)
{
    return s->bytes + s->pool.offsets[f] +
           row * s->pool.layout.fields[f].row_bytes;
}

/* Every row, field and room has bytes of its own. */
static uint8_t byte_of(uint64_t g, uint32_t f, uint64_t row, uint32_t i)
{
    uint64_t x = g * 1000003 + f * 100003 + row;

    return (uint8_t)((x * UINT64_C(0x9e3779b97f4a7c15)) >> (i % 56));
}

static void source_fill(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < w.e.pool.layout.count; f++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < w.e.pool.layout.fields[f].row_bytes; i++)
                row_of(&w.e, f, (uint64_t)block * 16 + r)[i] =
                    byte_of(g, f, r, i);
}

/* The pool's memory as `bytes` has it, or the other way round. */
static void source_write(void)
{
    if (w.e.mem.gpu)
        gpu_write(w.e.mem.gpu, w.e.mem.device, w.e.bytes, w.e.mem.bytes);
    else
        memcpy(w.e.mem.base, w.e.bytes, w.e.mem.bytes);
}

static void place_read(void)
{
    if (w.l.mem.gpu)
        gpu_read(w.l.mem.gpu, w.l.bytes, w.l.mem.device, w.l.mem.bytes);
    else
        memcpy(w.l.bytes, w.l.mem.base, w.l.mem.bytes);
}

static void place_check(uint64_t g, uint32_t block, uint32_t rows)
{
    for (uint32_t f = 0; f < w.l.pool.layout.count; f++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < w.l.pool.layout.fields[f].row_bytes; i++) {
                uint8_t got = row_of(&w.l, f, (uint64_t)block * 8 + r)[i];

                T_CHECK(got == byte_of(g, f, r, i),
                    "room %llu field %u row %u byte %u is %u, not %u",
                    (unsigned long long)g, f, r, i, got, byte_of(g, f, r, i));
            }
}

/* rooms */

static void push(struct side *s, uint8_t type, uint64_t g, uint32_t a,
    uint32_t b, uint32_t total)
{
    const struct shard_pool *p = &w.l.pool;
    uint32_t unit = layout_unit_rows(&p->layout, p->block_rows);
    struct data_cmd c = {.type = type,
        .slot = (uint32_t)(g % SLOTS),
        .generation = g,
        .room = g ^ 0x5555,
        .peer = s == &w.e ? w.to_other ? 2 : 1 : 1,
        .unit_rows = unit,
        .part_rows = layout_part_rows(&p->layout, unit),
        .total = total,
        .reply = true,
        .copy = w.copy,
        .a = a,
        .b = b};

    T_TRUE(shard_push(s->shard, &c));
    shard_flush(s->shard);
}

static void room(uint64_t g, uint32_t from, uint32_t to, uint32_t rows)
{
    push(&w.l, LAND_OPEN, g, 0, 0, ROWS_UNKNOWN);
    push(&w.l, LAND_RUN, g, to, div_up(rows, 8), ROWS_UNKNOWN);
    push(&w.e, SEND_OPEN, g, 0, 0, rows);
    push(&w.e, SEND_RUN, g, from, div_up(rows, 16), ROWS_UNKNOWN);
    push(&w.e, SEND_LIMIT, g, rows, 0, rows);
}

static void close_room(uint64_t g, uint32_t quiets)
{
    push(&w.e, SEND_CLOSE, g, 0, 0, ROWS_UNKNOWN);
    push(&w.l, LAND_CLOSE, g, 0, 0, ROWS_UNKNOWN);
    wait_for(&w.send_quiet, quiets);
    wait_for(&w.land_quiet, quiets);
}

static void moves(const char *from, const char *to, uint32_t segment)
{
    start(from, to, segment);
    source_fill(1, 3, 4001);
    source_fill(2, 300, 77);
    source_write();
    room(1, 3, 7, 4001);
    room(2, 300, 1000, 77);
    wait_for(&w.landed[1], 4001);
    wait_for(&w.landed[2], 77);
    T_EQ_U64(w.landed[1], 4001);
    T_EQ_U64(w.landed[2], 77);
    place_read();
    place_check(1, 7, 4001);
    place_check(2, 1000, 77);
    close_room(1, 1);
    close_room(2, 2);
    T_EQ_U64(w.lost, 0);
    stop();
}

/* As langd maps the pool of an encoded on its host. */
static void source_tell(const char *to)
{
    uint32_t gpu = mem_gpu(to), readers = gpu == NONE ? 0 : 1u << gpu;
    uint8_t fields[512];
    struct writer b = writer_of(fields, sizeof(fields));
    const char *why;
    struct local_pool_info m = {.block_rows = w.e.pool.block_rows,
        .blocks = w.e.pool.blocks,
        .bytes = w.e.mem.bytes,
        .memory = span_str(w.e.mem.gpu ? "cuda:0" : "host"),
        .layout = span_str(w.e.pool.layout.text),
        .share = span_str(w.e.mem.share),
        .handle = span_of(w.e.mem.handle, w.e.mem.handle_bytes)};

    for (uint32_t f = 0; f < w.e.pool.layout.count; f++) {
        put_u64(&b, w.e.pool.offsets[f]);
        put_u32(&b, w.e.pool.layout.fields[f].row_bytes);
    }
    m.fields = span_of(fields, b.len);
    T_OK(source_open(&w.source, dup(w.e.mem.fd), &m, m.bytes, &why));
    T_OK(source_map(w.source, readers));
    T_TRUE(shard_source(w.l.shard, 1, 0, w.source));
    shard_flush(w.l.shard);
}

static void copies(const char *from, const char *to)
{
    start(from, to, 256 * KIB);
    w.copy = true;
    source_tell(to);
    source_fill(1, 3, 8001);
    source_fill(2, 506, 77);
    source_write();
    room(1, 3, 7, 8001);
    room(2, 506, 1100, 77);
    wait_for(&w.landed[1], 8001);
    wait_for(&w.landed[2], 77);
    place_read();
    place_check(1, 7, 8001);
    place_check(2, 1100, 77);
    T_TRUE(atomic_load(&shard_stats(w.l.shard)->segments_copied) > 0);
    close_room(1, 1);
    close_room(2, 2);
    T_EQ_U64(w.lost, 0);
    stop();
}

TEST(copied_on_one_gpu)
{
    copies("cuda:0", "cuda:0");
}

TEST(copied_from_one_gpu_to_another)
{
    gpu_use();
    gpu_double_only();
    copies("cuda:0", "cuda:1");
}

TEST(copied_from_host_to_gpu)
{
    copies("host", "cuda:0");
}

TEST(copied_from_gpu_to_host)
{
    copies("cuda:0", "host");
}

TEST(copied_slowly)
{
    gpu_use();
    gpu_double_only();
    gpu_set("delay_us", 2000);
    copies("host", "cuda:1");
}

TEST(gpu_to_gpu)
{
    moves("cuda:0", "cuda:0", 256 * KIB);
}

TEST(gpu_to_another_gpu)
{
    gpu_use();
    gpu_double_only(); /* not every host has two */
    moves("cuda:0", "cuda:1", 256 * KIB);
}

TEST(host_to_gpu)
{
    moves("host", "cuda:0", 256 * KIB);
}

TEST(gpu_to_host)
{
    moves("cuda:0", "host", 256 * KIB);
}

TEST(small_messages)
{
    moves("cuda:0", "cuda:0", 32 * KIB);
}

TEST(slow_copies_hold_back_and_lose_nothing)
{
    gpu_use();
    gpu_double_only();
    gpu_set("delay_us", 3000);
    moves("cuda:0", "cuda:1", 256 * KIB);
}

static bool have_gone(void *ud)
{
    return atomic_load(&shard_stats(w.e.shard)->bytes_sent) ==
           *(const uint64_t *)ud;
}

/* A landing is not told before its copy is over. */
TEST(nothing_has_landed_before_it_is_on_the_gpu)
{
    uint64_t wanted = 500 * 528;

    gpu_use();
    gpu_double_only();
    start("host", "cuda:0", 64 * KIB);
    source_fill(1, 0, 500);
    source_write();
    gpu_set("hold", 1);
    room(1, 0, 0, 500);
    T_WAIT(have_gone, &wanted);
    push(&w.e, SEND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    wait_for(&w.send_quiet, 1); /* all of it has arrived */
    push(&w.l, LAND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    drain(w.l.shard);
    T_EQ_U64(w.landed[1], 0);
    T_EQ_U64(w.land_quiet, 0); /* the blocks are not free either */
    gpu_set("hold", 0);
    wait_for(&w.land_quiet, 1);
    stop();
}

TEST(rows_larger_than_pinned_memory_are_refused)
{
    gpu_use();
    gpu_double_only();
    w.layout = "embedding:f32:800000"; /* 3 MB */
    T_OK(wake_init(&w.wake));
    pool_make(&w.e, "cuda:0", 2, 4);
    side_start(&w.e, ROLE_ENCODED, 256 * KIB, 256 * KIB);
    wait_for(&w.lost, 1);
    side_stop(&w.e);
    wake_fini(&w.wake);
}

static void lose(const char *from, const char *to)
{
    gpu_use();
    gpu_double_only();
    start(from, to, 64 * KIB);
    if (w.copy)
        source_tell(to);
    source_fill(1, 0, 2000);
    source_write();
    gpu_set("fail_copy", w.copy ? 1 : 3);
    room(1, 0, 0, 2000);
    wait_for(&w.lost, 1);
    push(&w.e, SEND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    push(&w.l, LAND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    wait_for(&w.send_quiet, 1); /* nobody waits for ever */
    wait_for(&w.land_quiet, 1);
    T_TRUE(w.landed[1] < 2000);
    side_stop(&w.e);
    side_stop(&w.l);
    wake_fini(&w.wake);
}

TEST(a_source_gpu_that_is_lost)
{
    lose("cuda:0", "host");
}

TEST(a_destination_gpu_that_is_lost)
{
    lose("host", "cuda:0");
}

TEST(a_gpu_that_is_lost_between_copies)
{
    w.copy = true;
    lose("host", "cuda:0");
}

/* The receiver's segments are smaller than the sender's: every message is
 * fetched into pinned memory. */
static void start_fetching(
    const char *from, uint32_t segment, uint32_t receiver_segment)
{
    gpu_use();
    T_OK(wake_init(&w.wake));
    pool_make(&w.e, from, 2051, 16);
    pool_make(&w.l, "cuda:0", 4110, 8);
    side_start(&w.e, ROLE_ENCODED, segment, receiver_segment);
    side_start(&w.l, ROLE_LANGD, segment, receiver_segment);
    meet(segment);
}

static void fetches(uint32_t rows)
{
    source_fill(1, 3, rows);
    source_write();
    room(1, 3, 7, rows);
    wait_for(&w.landed[1], rows);
    place_read();
    place_check(1, 7, rows);
    T_EQ_U64(atomic_load(&shard_stats(w.l.shard)->segments_dropped), 0);
    close_room(1, 1);
    stop();
}

TEST(fetched_messages)
{
    start_fetching("cuda:0", 128 * KIB, 16 * KIB);
    fetches(2001);
}

/* More of them at once than slots may wait for. */
TEST(fetched_messages_beyond_pinned_memory)
{
    start_fetching("host", 256 * KIB, 16 * KIB);
    fetches(32768);
}

/* A carrier that reads and writes memory of GPUs itself. */
static _Atomic uint32_t posted_straight, fetched_straight;

static const struct iovec *reached(
    const struct iovec *iov, uint32_t iovs, struct iovec *host, bool *gpu)
{
    *gpu = iovs > 0 && gpu_host(iov[0].iov_base) != iov[0].iov_base;
    for (uint32_t i = 1; i < iovs; i++)
        T_TRUE(!*gpu && gpu_host(iov[i].iov_base) == iov[i].iov_base);
    if (!*gpu)
        return iov;
    *host = (struct iovec){gpu_host(iov[0].iov_base), iov[0].iov_len};
    return host;
}

static enum err reaching_post(struct data *d, uint32_t ep, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct iovec host;
    bool gpu;

    iov = reached(iov, iovs, &host, &gpu);
    posted_straight += gpu;
    return data_mem.post(d, ep, header, iov, iovs, cookie);
}

static enum err reaching_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct iovec host;
    bool gpu;

    iov = reached(iov, iovs, &host, &gpu);
    fetched_straight += gpu;
    return data_mem.fetch(d, in, iov, iovs, cookie);
}

static bool reaches(struct data *d, const void *base, uint64_t bytes, bool gpu)
{
    (void)d;
    return base && bytes > 0 && gpu;
}

static struct data_ops reaching, staging;

static void start_reaching(const char *layout, uint32_t receiver_segment)
{
    gpu_use();
    gpu_double_only();
    reaching = data_mem;
    reaching.number = w.by ? CARRIER_UCX : 0;
    reaching.post = reaching_post;
    reaching.fetch = reaching_fetch;
    reaching.memory = reaches;
    reaching.gpu = true;
    w.carriers[0] = &reaching;
    w.window = 512 * KIB; /* no more than may be fetched at once */
    w.layout = layout;
    start_fetching("cuda:0", 128 * KIB, receiver_segment);
}

#define STAGED(side) atomic_load(&shard_stats((side).shard)->segments_staged)

TEST(rows_in_one_place_go_straight)
{
    start_reaching("embedding:bf16:256", 16 * KIB);
    source_fill(1, 3, 8192);
    source_write();
    room(1, 3, 7, 8192);
    wait_for(&w.landed[1], 8192);
    place_read();
    place_check(1, 7, 8192);
    T_TRUE(posted_straight >= 31 && fetched_straight == posted_straight);
    T_TRUE(STAGED(w.e) <= 2 && STAGED(w.l) <= 2); /* small ones at the ends */
    T_EQ_U64((uint64_t)gpu_get("flushes"), fetched_straight);
    close_room(1, 1);
    stop();
}

/* Several carriers are open, of which one reaches GPUs: how rows go is decided
 * by what the peer has chosen. */
static void of_several_carriers(uint8_t by)
{
    w.carriers[1] = &staging;
    w.by = by;
    staging = data_mem;
    staging.number = CARRIER_TCP;
    start_reaching("embedding:bf16:256", 16 * KIB);
    fetches(8192);
}

TEST(rows_go_straight_where_the_peer_chose_what_reaches_gpus)
{
    of_several_carriers(CARRIER_UCX);
    T_CHECK(posted_straight >= 31 && fetched_straight == posted_straight,
        "%u messages went straight, %u came so", posted_straight,
        fetched_straight);
}

TEST(rows_are_staged_where_the_peer_chose_what_does_not)
{
    of_several_carriers(CARRIER_TCP);
    T_EQ_U64(posted_straight + fetched_straight, 0);
}

TEST(rows_in_several_places_are_staged)
{
    start_reaching(LAYOUT, 16 * KIB);
    fetches(2001);
    T_EQ_U64(posted_straight + fetched_straight, 0);
}

TEST(messages_that_come_at_once_are_staged)
{
    start_reaching("embedding:bf16:256", 128 * KIB);
    fetches(4001);
    T_TRUE(posted_straight > 0);
    T_EQ_U64(fetched_straight, 0);
}

TEST(without_a_flush_nothing_goes_straight)
{
    gpu_use();
    gpu_double_only();
    gpu_set("no_flush", 1);
    start_reaching("embedding:bf16:256", 16 * KIB);
    fetches(2001);
    T_EQ_U64(posted_straight + fetched_straight, 0);
}

TEST(a_gpu_that_is_lost_when_rows_came_straight)
{
    start_reaching("embedding:bf16:256", 16 * KIB);
    source_fill(1, 0, 2000);
    source_write();
    gpu_set("fail_cuFlushGPUDirectRDMAWrites", 3);
    room(1, 0, 0, 2000);
    wait_for(&w.lost, 1);
    push(&w.e, SEND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    push(&w.l, LAND_CLOSE, 1, 0, 0, ROWS_UNKNOWN);
    wait_for(&w.send_quiet, 1);
    wait_for(&w.land_quiet, 1);
    T_TRUE(w.landed[1] < 2000);
    side_stop(&w.e);
    side_stop(&w.l);
    wake_fini(&w.wake);
}

/* data_mem; the first carrier that is opened is encoded's. */
static enum err remembered(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    enum err e = data_mem.open(out, c, calls);

    if (!w.sender)
        w.sender = *out;
    return e;
}

static void peer_open(uint32_t peer, struct side *langd)
{
    uint8_t blob[8192];
    struct writer b = writer_of(blob, sizeof(blob));

    put_span(&b, shard_address(langd->shard, data_mem.number), 2, 4096);
    T_TRUE(shard_peer(w.e.shard, peer, span_of(b.p, b.len), 256 * KIB));
    T_TRUE(shard_push(
        w.e.shard, &(struct data_cmd){.type = PEER_OPEN, .peer = peer}));
}

static void to_other(uint64_t g, uint32_t from, uint32_t to, uint32_t rows)
{
    w.to_other = true;
    push(&w.other, LAND_OPEN, g, 0, 0, ROWS_UNKNOWN);
    push(&w.other, LAND_RUN, g, to, div_up(rows, 8), ROWS_UNKNOWN);
    push(&w.e, SEND_OPEN, g, 0, 0, rows);
    push(&w.e, SEND_RUN, g, from, div_up(rows, 16), ROWS_UNKNOWN);
    push(&w.e, SEND_LIMIT, g, rows, 0, rows);
    w.to_other = false;
}

/* Peer 1 takes nothing from its second message on. */
static void start_stalled(void)
{
    static struct data_ops ops;

    gpu_use();
    gpu_double_only();
    ops = data_mem;
    ops.open = remembered;
    w.carriers[0] = &ops;
    T_OK(wake_init(&w.wake));
    pool_make(&w.e, "cuda:0", 1600, 16);
    pool_make(&w.l, "host", 4096, 8);
    pool_make(&w.other, "host", 1024, 8);
    side_start(&w.e, ROLE_ENCODED, 256 * KIB, 256 * KIB);
    side_start(&w.l, ROLE_LANGD, 256 * KIB, 256 * KIB);
    side_start(&w.other, ROLE_LANGD, 256 * KIB, 256 * KIB);
    peer_open(1, &w.l);
    peer_open(2, &w.other);
    source_fill(1, 0, 20);
    source_fill(2, 2, 20000);
    source_fill(3, 1300, 4001);
    source_write();
    room(1, 0, 0, 20);
    wait_for(&w.landed[1], 20);
    data_mem_fault(w.sender, SEND_ADDRESSES_MAX, DATA_FAULT_STALL, 1000);
}

static void stop_stalled(void)
{
    T_EQ_U64(w.landed[2], 0);
    side_stop(&w.e);
    side_stop(&w.l);
    side_stop(&w.other);
    wake_fini(&w.wake);
}

static bool memory_is_full(void *ud)
{
    (void)ud;
    return atomic_load(&shard_stats(w.e.shard)->messages_sent) >= 32;
}

/* All pinned memory is full of what a peer does not take. */
TEST(a_peer_that_stands_still_holds_up_nobody)
{
    start_stalled();
    room(2, 2, 10, 20000); /* 10 MB, of 8 MiB that are pinned */
    T_WAIT(memory_is_full, NULL);
    to_other(3, 1300, 5, 4001);
    wait_for(&w.landed[3], 4001);
    stop_stalled();
}

/* One small message in each slot is enough to hold it. */
TEST(nor_does_a_trickle_to_it)
{
    start_stalled();
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t quiet = w.send_quiet;

        room(4 + i, 2 + 4 * i, 10 + 8 * i, 64);
        to_other(40, 1300, 5, 64);
        wait_for(&w.landed[40], 64);
        w.landed[40] = 0;
        push(&w.e, SEND_CLOSE, 40, 0, 0, ROWS_UNKNOWN);
        push(&w.other, LAND_CLOSE, 40, 0, 0, ROWS_UNKNOWN);
        wait_for(&w.send_quiet, quiet + 1);
        wait_for(&w.land_quiet, i + 1);
    }
    stop_stalled();
}
