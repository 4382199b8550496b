/* shard_test.c - whole shards, threads and rings, over data_mem: every byte of
 * a room at its place, faults of the carrier, a loop that reads late. A case
 * under BOTH runs in threads and, as inline_<case>, also in the loop. */
#include "test/unit/shard_side.h"

#include <sched.h>

#define KIB       1024u
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

static struct data_ops ops; /* data_mem, which remembers its carriers */
static struct data *carriers[2 * SHARDS];
static _Atomic uint32_t carriers_count;

static enum err remember(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    enum err e = data_mem.open(out, c, calls);

    if (e == OK)
        carriers[atomic_fetch_add(&carriers_count, 1)] = *out;
    return e;
}

static void conf(void)
{
    w.sent = true;
    carriers_count = 0;
    ops = data_mem;
    ops.open = remember;
    world_conf(&ops, "embedding:bf16:256,ids:i32:1,pos:i32:3", 512, 2048);
    w.conf.data.stall_ms = T_WAIT_MS;
    T_EQ_U64(w.l.pool.layout.row_bytes, ROW_BYTES);
}

static void begin(uint32_t es, uint32_t ls)
{
    conf();
    world_start(es, ls);
    peer_open();
}

/* Moves room 1, after which both sides have what they need. */
static void begin_with_a_room(uint32_t rows)
{
    begin(1, 1);
    room(1, 0, 7, rows);
    WAIT(w.seen[1].landed, rows);
}

/* cases */

TEST(start_and_stop)
{
    struct shard *none = NULL;

    shard_stop(&none);
    conf();
    world_start(1, 2);
    T_TRUE(shard_address(w.e.shards[0], ops.number).len > 0);
    T_FALSE(span_eq(shard_address(w.l.shards[0], ops.number),
        shard_address(w.l.shards[1], ops.number)));
    world_stop();
}

static enum err no_carrier(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    return ERR_INTERNAL;
}

TEST_AROUND(start_fails_with_its_carrier, conf(), world_stop())
{
    struct shard *s = (struct shard *)&w;
    struct shard_conf c;

    ops.open = no_carrier;
    c = w.conf;
    c.role = ROLE_LANGD;
    c.count = 1;
    c.pools = &w.l.pool;
    T_ERR(shard_start(&s, &c), ERR_INTERNAL);
    T_TRUE(s == (struct shard *)&w);
}

/* True if this is what shard 0 of the sender says of a peer. */
static bool transport_is(uint32_t peer, const char *name)
{
    char text[32];

    shard_say(w.e.shards[0], peer, SHARD_TRANSPORT, text, sizeof(text));
    return strcmp(text, name) == 0;
}

static bool goes_by(void *name)
{
    return transport_is(1, name);
}

static void moves(uint32_t es, uint32_t ls)
{
    begin(es, ls);
    room(1, 3, 7, 2001);
    WAIT(w.seen[1].landed, 2001);
    T_EQ_U64(w.seen[1].landed, 2001);
    place_check(1, 7, 0, 2001);
    T_EQ_U64(SUM(w.l, bytes_landed), 2001 * ROW_BYTES);
    T_EQ_U64(SUM(w.e, bytes_sent), 2001 * ROW_BYTES);
    T_EQ_U64(SUM(w.l, segments_landed), SUM(w.e, segments_sent));
    T_EQ_U64(SUM(w.l, segments_dropped), 0);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, es);
    WAIT(w.seen[1].land_quiet, ls);
    if (es == 1 && ls == 1) {
        T_TRUE(transport_is(1, "mem"));
        T_TRUE(transport_is(0, ""));
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
    begin(1, 2);
    push(&w.l, cmd_of(LAND_OPEN, 1));
    send_open(1, 0, 1000);
    for (uint32_t granted = 0; granted < 1000; granted += 40) {
        runs(&w.l, 1, 2000 - granted / 4, 40);
        send_limit(1, min_u32(granted + 40, 1000), 1000);
        WAIT(w.seen[1].landed, min_u32(granted + 40, 1000));
    }
    for (uint32_t granted = 0; granted < 1000; granted += 40)
        place_check(1, 2000 - granted / 4, granted, 40);
    world_stop();
}

BOTH(many_rooms_at_once)
{
    begin(2, 2);
    for (uint32_t g = 1; g < SLOTS; g++)
        room(g, g * 8, g * 16, g * 2);
    for (uint32_t g = 1; g < SLOTS; g++) {
        WAIT(w.seen[g].landed, g * 2);
        T_EQ_U64(w.seen[g].landed, g * 2);
        place_check(g, g * 16, 0, g * 2);
    }
    world_stop();
}

/* The receiver takes only small messages: larger ones are fetched; what it does
 * not want of them is dropped. */
BOTH(rendezvous)
{
    conf();
    world_start(1, 0);
    w.conf.data.segment_bytes = 4 * KIB;
    start(&w.l, 1);
    peer_open();
    room(1, 0, 7, 1000);
    WAIT(w.seen[1].landed, 1000);
    place_check(1, 7, 0, 1000);
    sends(2, 100, 100); /* langd does not have this room */
    room(3, 200, 300, 900);
    WAIT(w.seen[3].landed, 900);
    place_check(3, 300, 0, 900);
    push(&w.l, cmd_of(LAND_CLOSE, 1));
    WAIT(w.seen[1].land_quiet, 1);
    T_TRUE(SUM(w.l, segments_dropped) > 0);
    world_stop();
}

BOTH(dropped_and_bad_segments)
{
    struct data_cmd c;

    begin(1, 1);
    c = cmd_of(LAND_OPEN, 1);
    c.total = 90;
    push(&w.l, c);
    runs(&w.l, 1, 0, 128);
    send_open(1, 0, 100); /* the sender says another total: 100 */
    send_limit(1, 100, 100);
    WAIT(w.seen[1].land_bad, 1);
    T_EQ_U64(w.seen[1].landed, 0);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    T_TRUE(SUM(w.l, segments_dropped) >= 1);
    world_stop();
}

/* langd gives a new attempt; encoded starts again, and all rows land. */
static void next_attempt(uint64_t g, uint32_t to, uint32_t rows)
{
    struct data_cmd c = cmd_of(LAND_OPEN, g);
    uint32_t slot = (uint32_t)(g % SLOTS), quiet = w.seen[slot].land_quiet;

    push(&w.l, cmd_of(LAND_CLOSE, g));
    WAIT(w.seen[slot].land_quiet, quiet + w.l.count);
    memset(&w.seen[slot], 0, sizeof(w.seen[slot]));
    c.attempt = 1;
    push(&w.l, c);
    runs(&w.l, g, to, rows);
    c = cmd_of(SEND_REWIND, g);
    c.attempt = 1;
    c.a = rows;
    push(&w.e, c);
    WAIT(w.seen[slot].landed, rows);
    T_EQ_U64(w.seen[slot].landed, rows);
    place_check(g, to, 0, rows);
}

static void fault_case(enum data_fault fault)
{
    conf();
    if (fault == DATA_FAULT_STALL)
        w.conf.data.stall_ms = 2000;
    world_start(1, 1);
    peer_open();
    room(1, 0, 7, 100);
    WAIT(w.seen[1].landed, 100);
    data_mem_fault(carriers[0], SEND_ADDRESSES_MAX, fault, 2);
    room(2, 100, 500, 1000);
    WAIT(w.broken, 1);
    T_EQ_U64(SUM(w.e, endpoints_lost), 1);
    next_attempt(2, 900, 1000);
    T_EQ_U64(w.broken, 1);
    push(&w.e, cmd_of(SEND_CLOSE, 2));
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
    begin_with_a_room(10);
    data_mem_fault(carriers[0], SEND_ADDRESSES_MAX, DATA_FAULT_DELAY, 3);
    room(2, 100, 500, 1000);
    WAIT(w.seen[2].landed, 1000);
    place_check(2, 500, 0, 1000);
    world_stop();
}

/* The receiver dies with everything in flight, and comes back at other
 * addresses. Another peer may get its number meanwhile. */
BOTH(receiver_restarts)
{
    begin_with_a_room(100);
    T_WAIT(goes_by, (char[]){"mem"});
    shard_stop(&w.l.shards[0]);
    sends(2, 100, 1000);
    WAIT(w.broken, 1);
    push(&w.e, cmd_of(SEND_CLOSE, 2));
    push(&w.e, (struct data_cmd){.type = PEER_CLOSE, .peer = 1});
    WAIT(w.seen[2].send_quiet, 1);
    T_WAIT(goes_by, (char[]){""});
    start(&w.l, 1);
    peer_open();
    room(3, 200, 300, 500);
    WAIT(w.seen[3].landed, 500);
    place_check(3, 300, 0, 500);
    world_stop();
}

/* A repeated HELLO of a living run loses no rows. */
TEST_AROUND(peer_says_the_same_again, begin(1, 1), world_stop())
{
    room(1, 0, 7, 4000);
    for (int i = 0; i < 5; i++)
        peer_open();
    WAIT(w.seen[1].landed, 4000);
    T_EQ_U64(w.broken, 0);
}

TEST_AROUND(addresses_that_cannot_be_read, conf(), world_stop())
{
    static const uint8_t bad[] = {9, 0, 'm', 'e', 'm'};
    static const uint8_t nobody[] = {5, 0, 'm', 'e', 'm', ':', 'x'};

    world_start(1, 1);
    T_TRUE(shard_peer(w.e.shards[0], 1, span_of(bad, sizeof(bad)), SEGMENT));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
    sends(1, 0, 100);
    push(&w.e, cmd_of(SEND_CLOSE, 1));
    WAIT(w.seen[1].send_quiet, 1);
    T_EQ_U64(SUM(w.e, messages_sent), 0);
    T_TRUE(
        shard_peer(w.e.shards[0], 1, span_of(nobody, sizeof(nobody)), SEGMENT));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = 1});
    sends(2, 0, 100);
    WAIT(w.broken, 1);
    push(&w.e, cmd_of(SEND_CLOSE, 2));
    WAIT(w.seen[2].send_quiet, 1);
}

BOTH(layout_comes_later)
{
    struct shard_pool *pools[] = {&w.e.pool, &w.l.pool};
    struct layout layouts[2];

    conf();
    for (int i = 0; i < 2; i++) {
        layouts[i] = pools[i]->layout;
        memset(&pools[i]->layout, 0, sizeof(layouts[i]));
    }
    world_start(1, 1);
    for (int i = 0; i < 2; i++)
        pools[i]->layout = layouts[i];
    T_TRUE(shard_pool_ready(w.e.shards[0], 0));
    T_TRUE(shard_pool_ready(w.l.shards[0], 0));
    peer_open();
    room(1, 3, 7, 321);
    WAIT(w.seen[1].landed, 321);
    place_check(1, 7, 0, 321);
    world_stop();
}

/* Pushes a command to a shard whose ring is short, when it has space. */
static void push_patiently(struct data_cmd c)
{
    for (; !shard_push(w.l.shards[0], &c); sched_yield())
        ;
    shard_flush(w.l.shards[0]);
}

/* Sends rows eight by eight, for many notes. */
static void send_slowly(uint32_t grants)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    for (uint32_t g = 0; g < grants; g++) {
        send_limit(1, g * 8 + 8, 1600);
        for (; SUM(w.l, segments_landed) < g + 1 && t_now_ns() < end; work())
            sched_yield();
    }
    T_CHECK(SUM(w.l, segments_landed) >= grants, "%lu segments landed",
        (unsigned long)SUM(w.l, segments_landed));
}

/* The loop reads no notes while more come than its ring holds: no note is lost,
 * and none comes out of order. */
static void late(uint32_t trims, uint32_t grants)
{
    struct data_note n, last = {0};
    uint32_t total = 0;

    conf();
    world_start(1, 0);
    w.conf.orders = 2;
    start(&w.l, 1);
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
        if (!shard_note(w.l.shards[0], &n))
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

/* The ring is half full of notes: the carrier rests until the loop reads. */
TEST_IS(a_loop_that_reads_too_late, late(160, 0));

/* Looks for half a second, up to 20 times; true after one with 3 wake-ups at
 * most. */
static bool they_sleep(void *ud)
{
    static uint64_t since_ns, before;
    static uint32_t looks;
    uint64_t now_ns = t_now_ns(), spent_ns = now_ns - since_ns, all, woken;

    if (spent_ns < 500 * NS_PER_MS)
        return false;
    T_TRUE(++looks <= 20);
    all = SUM(w.e, shard_wakeups) + SUM(w.l, shard_wakeups);
    woken = since_ns ? all - before : UINT64_MAX;
    before = all;
    since_ns = now_ns;
    return woken <= 3 + 2 * (spent_ns / SHARD_SLEEP_NS);
}

/* An idle shard does not poll, once it has come to rest. */
TEST_AROUND(idle_shards_sleep, begin(1, 1), world_stop())
{
    room(1, 3, 7, 321);
    WAIT(w.seen[1].landed, 321);
    T_WAIT(they_sleep, NULL);
}

BOTH(stop_with_everything_in_flight)
{
    for (int i = 0; i < 20; i++) {
        memset(&w, 0, sizeof(w));
        begin(2, 2);
        for (uint32_t g = 1; g < 5; g++)
            room(g, g * 100, g * 400, 1000);
        if (i % 2)
            WAIT(w.seen[1].landed, 1);
        world_stop();
    }
}
