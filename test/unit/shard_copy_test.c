/* shard_copy_test.c - whole shards that copy out of a mapped pool: every byte
 * at its place, hostile runs, sources that go away, rooms that end during a
 * copy. */
#include "test/unit/shard_side.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define LAYOUT "embedding:u8:4704,ids:i32:1,pos:i32:3"
#define FIELDS 3

static struct source *source;
/* the real calls of langd's shard, behind said_by() */
static struct data_calls langds;
static _Atomic uint32_t who;
/* holds: said_by() is to wait; held: it waits */
static _Atomic bool holds, held;

/* Returns what encoded would say of its pool. */
static struct local_pool_info info_of(uint8_t fields[FIELDS * 12])
{
    const struct shard_pool *p = &w.e.pool;
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
    T_OK(source_open(&s, dup(w.e.mem.fd), &m, m.bytes, &why));
    T_OK(source_map(s, 0, &(struct mem_watch){0}));
    return s;
}

static void sources(struct source *s)
{
    for (uint32_t i = 0; i < w.l.count; i++)
        T_TRUE(shard_source(w.l.shards[i], 2, 0, s));
}

/* Starts shards where only the first blocks of encoded's pool are mapped. */
static void begin_by(
    const struct data_ops *carrier, uint32_t es, uint32_t ls, uint32_t blocks)
{
    w.scattered = true;
    world_conf(carrier, LAYOUT, 256, 512);
    world_start(es, ls);
    source = source_make(blocks);
    sources(source);
    peer_open();
}

static void begin(uint32_t es, uint32_t ls)
{
    begin_by(&data_mem, es, ls, 256);
}

static void end(void)
{
    world_stop();
    source_close(&source);
}

static bool dropped(const void *ud)
{
    return SUM(w.l, segments_dropped) >= 1;
}

/* Checks that room 1 was looked at, and that no row of it landed. */
static void nothing_lands(void)
{
    wait_for(dropped, NULL, "dropped");
    T_EQ_U64(w.seen[1].landed, 0);
}

/* cases */

static void moves(uint32_t es, uint32_t ls)
{
    begin(es, ls);
    room(1, 3, 400, 1901);
    WAIT(w.seen[1].landed, 1901);
    T_EQ_U64(w.seen[1].landed, 1901);
    place_check(1, 400, 0, 1901);
    T_EQ_U64(SUM(w.l, segments_dropped), 0);
    T_EQ_U64(SUM(w.l, segments_copied), SUM(w.l, segments_landed));
    T_EQ_U64(SUM(w.l, bytes_landed), 1901 * w.l.pool.layout.row_bytes);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, es);
    WAIT(w.seen[1].land_quiet, ls);
    end();
}

TEST_IS(one_to_one, moves(1, 1));
TEST_IS(two_to_three, moves(2, 3));

/* The same shards take copied and sent rows, of small rooms and large ones. */
TEST_AROUND(kinds_side_by_side, begin(1, 1), end())
{
    for (uint64_t g = 1; g < 30; g++) {
        uint32_t block = (uint32_t)g * 8 % 200, to = (uint32_t)g * 16 + 16;
        uint32_t rows = g == 7 ? 50 : 1 + (uint32_t)g;

        w.sent = g % 3 == 0;
        room(g, block, to, rows);
        WAIT(w.seen[g].landed, rows);
        place_check(g, to, 0, rows);
    }
    T_TRUE(SUM(w.l, segments_copied) > 0);
    T_TRUE(SUM(w.l, segments_copied) < SUM(w.l, segments_landed));
}

/* No source is mapped, or only that of another peer: no row lands. */
TEST_AROUND(no_source, begin(1, 1), end())
{
    sources(NULL);
    T_TRUE(shard_source(w.l.shards[0], 1, 0, source));
    T_TRUE(shard_source(w.l.shards[0], 2, 1, source));
    room(1, 3, 100, 40);
    nothing_lands();
}

/* Delivers to langd's shard as if from peer `who`. */
static bool said_by(void *ud, struct data *d, const struct data_in *in)
{
    struct data_in m = *in;

    m.who = atomic_load(&who);
    atomic_store(&held, true);
    while (atomic_load(&holds))
        poll(NULL, 0, 1);
    return langds.arrived(ud, d, &m);
}

static enum err keyed_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data_calls own = *calls;

    if (c->keys_max > 0) {
        langds = *calls;
        own.arrived = said_by;
    }
    return data_mem.open(out, c, &own);
}

/* The source is that of the room's peer, whichever peer names the room: no
 * other peer can have rows copied into it. */
/* RULES 10.6 */
TEST(copies_are_ordered_by_the_peer_of_the_room)
{
    struct data_ops keyed = data_mem;

    keyed.open = keyed_open;
    begin_by(&keyed, 1, 1, 256);
    T_TRUE(shard_source(w.l.shards[0], 3, 0, source));
    atomic_store(&who, 3);
    room(1, 3, 100, 40);
    wait_for(dropped, NULL, "dropped");
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    T_EQ_U64(w.seen[1].landed, 0);
    T_EQ_U64(SUM(w.l, segments_copied), 0);
    atomic_store(&who, 2);
    room(2, 3, 200, 40);
    WAIT(w.seen[2].landed, 40);
    place_check(2, 200, 0, 40);
    T_EQ_U64(w.seen[1].landed, 0);
    end();
}

static bool is_held(const void *ud)
{
    return atomic_load(&held);
}

/* A message came under the old key; when it is looked at the peer's place
 * belongs to another. */
/* RULES 10.6 */
TEST(a_key_that_was_replaced_lands_nothing)
{
    struct data_ops keyed = data_mem;

    keyed.open = keyed_open;
    begin_by(&keyed, 1, 1, 256);
    atomic_store(&who, 2);
    atomic_store(&holds, true);
    sends(1, 3, 4);
    wait_for(is_held, NULL, "held");
    T_TRUE(shard_key(w.l.shards[0], 2, span_of("new", 3)));
    lands(1, 100, 4);
    atomic_store(&holds, false);
    wait_for(dropped, NULL, "dropped");
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    T_EQ_U64(w.seen[1].landed, 0);
    room(2, 3, 200, 4);
    WAIT(w.seen[2].landed, 4);
    end();
}

/* Runs beyond the mapped part of the pool. */
TEST_AROUND(runs_outside, begin_by(&data_mem, 1, 1, 20), end())
{
    room(1, 17, 100, 40); /* blocks 17, 19 and 21 */
    nothing_lands();
}

TEST_AROUND(another_layout, begin(1, 1), end())
{
    uint32_t at;

    sources(NULL);
    T_OK(layout_parse(span_str("embedding:u8:4708,ids:i32:1,pos:i32:2"),
        &source->layout, &at));
    sources(source);
    room(1, 3, 100, 10);
    nothing_lands();
}

/* Takes the pages from this row's on away, as in a file of huge pages when the
 * system has none to give. The pages have no other rows. */
static void take_away(const uint8_t *row)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint8_t *at = (uint8_t *)(((uintptr_t)row + page - 1) / page * page);
    int empty = memfd_create("empty", 0);

    T_TRUE(empty >= 0);
    T_TRUE(mmap(at, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               empty, 0) == at);
    close(empty);
}

/* Room 1 has rows in the hole, room 2 has none: room 1 is reported, room 2
 * lands. */
static void a_hole(bool at_source)
{
    begin(1, 1);
    if (at_source)
        take_away(source->base + row_at(&w.e, 3, 20) * 4704);
    else
        take_away(place_of(&w.l, 0, 400, 20));
    room(1, 3, 400, 64);
    WAIT(w.seen[1].gone, 1);
    T_TRUE(w.seen[1].landed < 64);
    room(2, 100, 200, 300);
    WAIT(w.seen[2].landed, 300);
    place_check(2, 200, 0, 300);
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    end();
}

TEST_IS(pages_taken_out_of_the_source_cost_their_room, a_hole(true));
TEST_IS(pages_taken_out_of_our_pool_cost_their_room, a_hole(false));

/* A source goes away while copies out of it wait; running ones complete. */
TEST_AROUND(source_goes, begin(1, 1), end())
{
    room(1, 3, 400, 1901);
    sources(NULL);
    /* Messages from before are copied; later ones are refused. */
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    T_TRUE(source_alone(source)); /* the shard does not read it any more */
}

/* Once a closed room is quiet its source is not read any more, though messages
 * about it are still on their way. */
TEST(quiet_means_nothing_is_read)
{
    uint8_t *to, *copy;
    size_t bytes;

    for (uint32_t i = 0; i < 10; i++) {
        memset(&w, 0, sizeof(w));
        begin(1, 2);
        room(1, 3, 400, 1901);
        if (i % 2)
            WAIT(w.seen[1].landed, 1 + i * 100);
        push(&w.l, cmd_of(LAND_CLOSE, 1));
        WAIT(w.seen[1].land_quiet, 2);
        to = w.l.mem.base;
        bytes = w.l.mem.bytes;
        copy = malloc(bytes);
        memcpy(copy, to, bytes);
        memset(w.e.mem.base, 0xee, w.e.mem.bytes);
        push(&w.e, cmd_of(SEND_CLOSE, 1));
        WAIT(w.seen[1].send_quiet, 1);
        T_EQ_MEM(copy, to, bytes);
        free(copy);
        end();
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

/* While it is set: no page is populated, and the first call stops the rest. */
static struct mem_watch *stopped_by_populate;
static uint64_t populated;

int madvise(void *p, size_t n, int advice)
{
    if (advice != MADV_POPULATE_READ || !stopped_by_populate)
        return (int)syscall(SYS_madvise, p, n, advice);
    populated += n;
    atomic_store(&stopped_by_populate->stop, true);
    return 0;
}

TEST(a_stop_ends_the_population_of_a_source_after_one_piece)
{
    struct source s = {.fd = memfd_create("large", MFD_CLOEXEC),
        .bytes = 4 * MEM_PIECE,
        .holders = 1};
    struct mem_watch watch = {0};

    T_TRUE(ftruncate(s.fd, (off_t)s.bytes) == 0);
    stopped_by_populate = &watch;
    T_EQ_I64(source_map(&s, 0, &watch), ERR_ABORTED);
    T_EQ_U64(populated, MEM_PIECE);
    T_TRUE(!s.base);
    close(s.fd);
}

/* Returns a sealed file of `bytes` bytes, of which `there` have pages. */
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

    pool_make(&w.e, "host", LAYOUT, 4, FROM);
    good = m = info_of(fields);
    m.share = span_str("cuda-vmm");
    m.handle = span_of(bad, MEM_HANDLE_MAX + 1);
    refused(m, dup(w.e.mem.fd), "handle");
    m = good;
    m.layout = span_str("embedding:u9:3");
    refused(m, dup(w.e.mem.fd), "layout");
    m = good;
    m.layout = span_str("embedding:u8:4704,ids:i32:1,pos:i32:4");
    refused(m, dup(w.e.mem.fd), "regions");
    m = good;
    m.fields.len--;
    refused(m, dup(w.e.mem.fd), "regions");
    m = good;
    m.blocks = 5;
    refused(m, dup(w.e.mem.fd), "regions");
    m.blocks = UINT32_MAX;
    m.block_rows = UINT32_MAX;
    refused(m, dup(w.e.mem.fd), "regions");
    m = good;
    memset(bad, 0xff, 8);
    memcpy(bad + 8, fields + 8, sizeof(bad) - 8);
    m.fields = span_of(bad, sizeof(bad));
    refused(m, dup(w.e.mem.fd), "regions");
    m = good;
    m.bytes += 4096;
    refused(m, dup(w.e.mem.fd), "size");
    fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    T_TRUE(ftruncate(fd, (off_t)good.bytes) == 0);
    refused(good, fd, "shrink");
    refused(good, dup(0), "shrink");
    refused(good, file_of(good.bytes, 0), "pages");
    refused(good,
        file_of(good.bytes, good.bytes - (uint64_t)sysconf(_SC_PAGESIZE)),
        "pages");
    refused_in(good, file_of(good.bytes, good.bytes), good.bytes - 1, "memory");
    refused_in(good, dup(w.e.mem.fd), good.bytes - 1, "memory");
    mem_host.close(&w.e.mem);
}
