/* shard_gpu_test.c - whole shards over data_mem with pools on a GPU, at either
 * end or both, over the driver's double: every byte of a room at its place,
 * slow copies, fetched messages, a GPU that is lost meanwhile. */
#include "test/gpu.h"
#include "test/unit/shard_side.h"

#define KIB    1024u
#define LAYOUT "embedding:bf16:256,ids:i32:1,pos:i32:3"

/* Settings for the next start. */
static struct {
    /* The first NULL: data_mem alone. `by`: the carrier that the peer has
     * chosen of two. */
    const struct data_ops *carriers[2];
    uint8_t by;
    const char *layout; /* NULL: LAYOUT */
    uint32_t window;    /* 0: 16 MiB */
    bool copy;          /* langd gets the rows' places, and copies the rows */
} how;

/* the first carrier that was opened, by `remembered` */
static struct data *sender;
static struct source *source;

static void make(struct side *s, const char *kind, uint32_t blocks)
{
    pool_make(s, kind, how.layout ? how.layout : LAYOUT, blocks,
        s == &w.e ? FROM : TO);
}

static void begin(struct side *s, uint32_t segment)
{
    w.conf.data.segment_bytes = segment;
    start(s, 1);
}

static void conf(void)
{
    gpu_use();
    T_OK(wake_init(&w.wake));
    conf_make(how.carriers[0] ? how.carriers[0] : &data_mem);
    w.conf.carriers[1] = how.carriers[1];
    w.conf.window_bytes = how.window ? how.window : 16384 * KIB;
    w.conf.gpu = true;
    w.sent = !how.copy;
}

/* Opens both sides; the receiver's messages may be smaller than the
 * sender's. */
static void open_both(const char *from, uint32_t from_blocks, const char *to,
    uint32_t to_blocks, uint32_t segment, uint32_t receiver_segment)
{
    conf();
    make(&w.e, from, from_blocks);
    make(&w.l, to, to_blocks);
    begin(&w.e, segment);
    begin(&w.l, receiver_segment);
    meet(1, &w.l, how.by, segment);
}

static void open_world(const char *from, const char *to, uint32_t segment)
{
    open_both(from, 512, to, 2048, segment, segment);
}

static void stop(void)
{
    world_stop();
    source_close(&source);
    if (gpu_real())
        return;
    T_EQ_I64(gpu_get("streams"), 0);
    T_EQ_I64(gpu_get("events"), 0);
    T_EQ_I64(gpu_get("created"), 0);
}

/* Writes the pool's memory from `bytes`, or reads it back. */
static void source_write(void)
{
    if (w.e.mem.gpu)
        gpu_write(w.e.mem.gpu, w.e.mem.device, w.e.bytes, w.e.mem.bytes);
}

static void place_read(void)
{
    if (w.l.mem.gpu)
        gpu_read(w.l.mem.gpu, w.l.bytes, w.l.mem.device, w.l.mem.bytes);
}

static void close_room(uint64_t g)
{
    push(&w.e, cmd_of(SEND_CLOSE, g));
    push(&w.l, cmd_of(LAND_CLOSE, g));
    WAIT(w.seen[g].send_quiet, 1);
    WAIT(w.seen[g].land_quiet, 1);
}

static void moves(const char *from, const char *to, uint32_t segment)
{
    open_world(from, to, segment);
    source_fill(1, 3, 4001);
    source_fill(2, 300, 77);
    source_write();
    room(1, 3, 7, 4001);
    room(2, 300, 1000, 77);
    WAIT(w.seen[1].landed, 4001);
    WAIT(w.seen[2].landed, 77);
    T_EQ_U64(w.seen[1].landed, 4001);
    T_EQ_U64(w.seen[2].landed, 77);
    place_read();
    place_check(1, 7, 0, 4001);
    place_check(2, 1000, 0, 77);
    close_room(1);
    close_room(2);
    T_EQ_U64(w.lost, 0);
    stop();
}

/* Maps encoded's pool as langd does on one host. */
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
    T_OK(source_open(&source, dup(w.e.mem.fd), &m, m.bytes, &why));
    T_OK(source_map(source, readers, &(struct mem_watch){0}));
    T_TRUE(shard_source(w.l.shards[0], 2, 0, source));
    shard_flush(w.l.shards[0]);
}

static void copies(const char *from, const char *to)
{
    how.copy = true;
    open_world(from, to, 256 * KIB);
    source_tell(to);
    source_fill(1, 3, 8001);
    source_fill(2, 506, 77);
    source_write();
    room(1, 3, 7, 8001);
    room(2, 506, 1100, 77);
    WAIT(w.seen[1].landed, 8001);
    WAIT(w.seen[2].landed, 77);
    place_read();
    place_check(1, 7, 0, 8001);
    place_check(2, 1100, 0, 77);
    T_TRUE(SUM(w.l, segments_copied) > 0);
    close_room(1);
    close_room(2);
    T_EQ_U64(w.lost, 0);
    stop();
}

TEST(copied_on_one_gpu)
{
    copies("cuda:0", "cuda:0");
}

TEST(copied_from_one_gpu_to_another)
{
    gpu_use_double();
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
    gpu_use_double();
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
    gpu_double_only(); /* few hosts have two */
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
    gpu_use_double();
    gpu_set("delay_us", 3000);
    moves("cuda:0", "cuda:1", 256 * KIB);
}

static bool have_gone(void *ud)
{
    return SUM(w.e, bytes_sent) == *(const uint64_t *)ud;
}

/* A landing is not reported before its copy has ended. */
TEST_AROUND(nothing_has_landed_before_it_is_on_the_gpu, gpu_use(), stop())
{
    uint64_t wanted = 500 * 528;

    gpu_double_only();
    open_world("host", "cuda:0", 64 * KIB);
    source_fill(1, 0, 500);
    source_write();
    gpu_set("hold", 1);
    room(1, 0, 0, 500);
    T_WAIT(have_gone, &wanted);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1); /* all messages have arrived */
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    drain();
    T_EQ_U64(w.seen[1].landed, 0);
    T_EQ_U64(w.seen[1].land_quiet, 0); /* nor are the blocks free */
    gpu_set("hold", 0);
    WAIT(w.seen[1].land_quiet, 1);
}

TEST_AROUND(rows_larger_than_pinned_memory_are_refused, gpu_use(), world_stop())
{
    gpu_double_only();
    how.layout = "embedding:f32:800000"; /* 3 MB */
    conf();
    make(&w.e, "cuda:0", 2);
    begin(&w.e, 256 * KIB);
    WAIT(w.lost, 1);
}

static void lose(const char *from, const char *to)
{
    gpu_use_double();
    open_world(from, to, 64 * KIB);
    if (how.copy)
        source_tell(to);
    source_fill(1, 0, 2000);
    source_write();
    gpu_set("fail_copy", how.copy ? 1 : 3);
    room(1, 0, 0, 2000);
    WAIT(w.lost, 1);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1); /* a close ends although copies fail */
    WAIT(w.seen[1].land_quiet, 1);
    T_TRUE(w.seen[1].landed < 2000);
    world_stop();
}

/* The loop may be giving a pool its memory: shards read it once they are
 * told. */
TEST(a_pool_that_shards_are_not_told_of_is_not_looked_at)
{
    w.pool_without_memory = true;
    w.e.pools[1].layout.count = 1;
    gpu_use_double();
    open_world("cuda:0", "host", 64 * KIB);
    w.e.pools[1].mem = &w.e.mem;
    source_fill(1, 0, 2000);
    source_write();
    gpu_set("fail_copy", 3);
    room(1, 0, 0, 2000);
    WAIT(w.lost, 1);
    close_room(1);
    T_EQ_U64(w.lost, 1);
    world_stop();
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
    how.copy = true;
    lose("host", "cuda:0");
}

/* Opens sides whose receiver has the smaller segments: it fetches every message
 * into pinned memory. */
static void fetching(
    const char *from, uint32_t segment, uint32_t receiver_segment)
{
    open_both(from, 2051, "cuda:0", 4110, segment, receiver_segment);
}

static void fetches(uint32_t rows)
{
    source_fill(1, 3, rows);
    source_write();
    room(1, 3, 7, rows);
    WAIT(w.seen[1].landed, rows);
    place_read();
    place_check(1, 7, 0, rows);
    T_EQ_U64(SUM(w.l, segments_dropped), 0);
    close_room(1);
    stop();
}

TEST(fetched_messages)
{
    fetching("cuda:0", 128 * KIB, 16 * KIB);
    fetches(2001);
}

/* More fetched messages at once than there are slots. */
TEST(fetched_messages_beyond_pinned_memory)
{
    fetching("host", 256 * KIB, 16 * KIB);
    fetches(32768);
}

/* A carrier that reads and writes GPU memory itself. */
static _Atomic uint32_t posted_straight, fetched_straight;

static const struct iovec *on_host(
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

    iov = on_host(iov, iovs, &host, &gpu);
    posted_straight += gpu;
    return data_mem.post(d, ep, header, iov, iovs, cookie);
}

static enum err reaching_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct iovec host;
    bool gpu;

    iov = on_host(iov, iovs, &host, &gpu);
    fetched_straight += gpu;
    return data_mem.fetch(d, in, iov, iovs, cookie);
}

static bool reaches(struct data *d, const void *base, uint64_t bytes, bool gpu)
{
    return base && bytes > 0 && gpu;
}

static struct data_ops reaching, staging;

static void start_reaching(const char *layout, uint32_t receiver_segment)
{
    gpu_use_double();
    reaching = data_mem;
    reaching.number = how.by ? CARRIER_UCX : 0;
    reaching.post = reaching_post;
    reaching.fetch = reaching_fetch;
    reaching.memory = reaches;
    reaching.gpu = true;
    how.carriers[0] = &reaching;
    how.window = 512 * KIB; /* as much as may be fetched at once */
    how.layout = layout;
    fetching("cuda:0", 128 * KIB, receiver_segment);
}

#define STAGED(side) SUM(side, segments_staged)

TEST(rows_in_one_place_go_straight)
{
    start_reaching("embedding:bf16:256", 16 * KIB);
    source_fill(1, 3, 8192);
    source_write();
    room(1, 3, 7, 8192);
    WAIT(w.seen[1].landed, 8192);
    place_read();
    place_check(1, 7, 0, 8192);
    T_TRUE(posted_straight >= 31 && fetched_straight == posted_straight);
    /* only the small pieces at the ends */
    T_TRUE(STAGED(w.e) <= 2 && STAGED(w.l) <= 2);
    T_EQ_U64((uint64_t)gpu_get("flushes"), fetched_straight);
    close_room(1);
    stop();
}

/* Several carriers are open, one of which reaches GPUs: the peer's choice
 * decides how rows go. */
static void of_several_carriers(uint8_t by)
{
    how.carriers[1] = &staging;
    how.by = by;
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
    gpu_use_double();
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
    WAIT(w.lost, 1);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    WAIT(w.seen[1].land_quiet, 1);
    T_TRUE(w.seen[1].landed < 2000);
    world_stop();
}

/* Opens data_mem, and remembers the first, encoded's. */
static enum err remembered(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    enum err e = data_mem.open(out, c, calls);

    if (!sender)
        sender = *out;
    return e;
}

/* Returns the command for peer 2. */
static struct data_cmd for_other(uint8_t type, uint64_t g)
{
    struct data_cmd c = cmd_of(type, g);

    c.peer = 2;
    return c;
}

static void to_other(uint64_t g, uint32_t from, uint32_t to, uint32_t rows)
{
    struct data_cmd open = for_other(SEND_OPEN, g);

    push(&w.other, cmd_of(LAND_OPEN, g));
    runs(&w.other, g, to, rows);
    open.total = rows;
    push(&w.e, open);
    runs(&w.e, g, from, rows);
    send_limit(g, rows, rows);
}

/* Starts shards where peer 1 takes no message after the first. */
static void start_stalled(void)
{
    static struct data_ops ops;

    gpu_use_double();
    ops = data_mem;
    ops.open = remembered;
    how.carriers[0] = &ops;
    conf();
    make(&w.e, "cuda:0", 1600);
    make(&w.l, "host", 4096);
    make(&w.other, "host", 1024);
    begin(&w.e, 256 * KIB);
    begin(&w.l, 256 * KIB);
    begin(&w.other, 256 * KIB);
    meet(1, &w.l, data_mem.number, 256 * KIB);
    meet(2, &w.other, data_mem.number, 256 * KIB);
    source_fill(1, 0, 20);
    source_fill(2, 2, 20000);
    source_fill(3, 1300, 4001);
    source_write();
    room(1, 0, 0, 20);
    WAIT(w.seen[1].landed, 20);
    data_mem_fault(sender, SEND_ADDRESSES_MAX, DATA_FAULT_STALL, 1000);
}

static void stop_stalled(void)
{
    T_EQ_U64(w.seen[2].landed, 0);
    world_stop();
}

static bool memory_is_full(void *ud)
{
    return SUM(w.e, messages_sent) >= 32;
}

/* Rows for a peer that takes none fill all pinned memory. */
TEST(a_peer_that_stands_still_holds_up_nobody)
{
    start_stalled();
    room(2, 2, 10, 20000); /* 10 MB, more than the 8 MiB that are pinned */
    T_WAIT(memory_is_full, NULL);
    to_other(3, 1300, 5, 4001);
    WAIT(w.seen[3].landed, 4001);
    stop_stalled();
}

/* One small message in each slot is enough to fill it. */
TEST(nor_does_a_trickle_to_it)
{
    start_stalled();
    for (uint32_t i = 0; i < 24; i++) {
        room(4 + i, 2 + 4 * i, 10 + 8 * i, 64);
        to_other(40, 1300, 5, 64);
        WAIT(w.seen[40].landed, 64);
        push(&w.e, cmd_of(SEND_CLOSE, 40));
        push(&w.other, cmd_of(LAND_CLOSE, 40));
        WAIT(w.seen[40].send_quiet, 1);
        WAIT(w.seen[40].land_quiet, 1);
        memset(&w.seen[40], 0, sizeof(w.seen[40]));
    }
    stop_stalled();
}
