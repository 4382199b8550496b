/* shard_loop_test.c - a shard whose work the loop does, served exactly as
 * node_inline.c serves it: rooms come whole, however small the window or the
 * segments are, and a shard does not sleep while it could send. */
#include "node/shard/shard.h"
#include "test/data_mem.h"
#include "test/orders.h"
#include "test/t.h"

#include "core/move/landing.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define KIB        1024u
#define ROW_BYTES  4096u
#define BLOCK_ROWS 16
#define PEER       1

struct end {
    struct shard *shard;
    struct shard_pool pool;
    struct mem mem;
    bool watched;    /* the node's loop polls its descriptor */
    uint32_t handed; /* how often its thread took the work over */
};

static struct world {
    struct wake wake;
    struct end e, l;
    uint32_t landed;
} w;

static bool alone; /* the thread always has the work */

static struct shard_conf conf_of(struct end *at, uint8_t role,
    const struct data_ops *first, const struct data_ops *second)
{
    return (struct shard_conf){.carriers = {first, second},
        .data = {.tls = "tcp",
            .devices = "lo",
            .ports = "",
            .segment_bytes = 64 * KIB,
            .keepalive_ms = 1000,
            .stall_ms = T_NEVER_MS},
        .role = role,
        .count = 1,
        .slots = 4,
        .peers = 2,
        .window_bytes = 64 * KIB,
        .orders = 256,
        .cpu = -1,
        .may_inline = !alone && (!first || first->any_thread) &&
                      (!second || second->any_thread),
        .pools = &at->pool,
        .pools_count = 1,
        .wake = &w.wake};
}

static void fill(struct end *at)
{
    for (uint64_t i = 0; i < at->mem.bytes; i += 8) {
        uint64_t x = i * UINT64_C(0x9e3779b97f4a7c15);

        memcpy(at->mem.base + i, &x, 8);
    }
}

static void start_conf(struct end *at, const struct shard_conf *c)
{
    uint64_t bytes;
    uint32_t bad;

    at->pool.blocks = 256;
    at->pool.block_rows = BLOCK_ROWS;
    T_OK(layout_parse(span_str("embedding:u8:4096"), &at->pool.layout, &bad));
    T_TRUE(layout_place(
        &at->pool.layout, 256 * BLOCK_ROWS, 4096, at->pool.offsets, &bytes));
    at->mem = (struct mem){.base = calloc(1, bytes), .bytes = bytes};
    at->pool.mem = &at->mem;
    if (at == &w.e)
        fill(at);
    T_OK(shard_start(&at->shard, c));
}

/* Starts one shard for each side that has a carrier. */
static void start(const struct data_ops *e, const struct data_ops *l,
    uint32_t window, uint32_t segment)
{
    struct shard_conf of_e = conf_of(&w.e, ROLE_ENCODED, e, NULL);
    struct shard_conf of_l = conf_of(&w.l, ROLE_LANGD, l, NULL);

    of_e.window_bytes = of_l.window_bytes = window;
    of_e.data.segment_bytes = of_l.data.segment_bytes = segment;
    T_OK(wake_init(&w.wake));
    if (e)
        start_conf(&w.e, &of_e);
    if (l)
        start_conf(&w.l, &of_l);
}

/* Starts one shard for each side, with both carriers. */
static void start_two(
    const struct data_ops *first, const struct data_ops *second)
{
    struct shard_conf e = conf_of(&w.e, ROLE_ENCODED, first, second);
    struct shard_conf l = conf_of(&w.l, ROLE_LANGD, first, second);

    T_OK(wake_init(&w.wake));
    start_conf(&w.e, &e);
    start_conf(&w.l, &l);
}

static void stop(void)
{
    shard_stop(&w.e.shard);
    shard_stop(&w.l.shard);
    free(w.e.mem.base);
    free(w.l.mem.base);
    wake_fini(&w.wake);
}

static struct data_cmd cmd_of(uint8_t type, uint32_t rows)
{
    const struct layout *l = w.l.shard ? &w.l.pool.layout : &w.e.pool.layout;
    uint32_t unit = layout_unit_rows(l, BLOCK_ROWS);

    return (struct data_cmd){.type = type,
        .slot = 1,
        .generation = 9,
        .peer = PEER,
        .unit_rows = unit,
        .part_rows = layout_part_rows(l, unit),
        .total = rows};
}

static void push(struct end *to, struct data_cmd c)
{
    T_TRUE(shard_push(to->shard, &c));
}

/* Opens the peers; number: of the carrier that they have chosen. */
static void peer_open(uint32_t segment, uint8_t number)
{
    uint8_t blob[1024];
    struct writer b = writer_of(blob, sizeof(blob));

    put_span(&b, shard_address(w.l.shard, number), 2, 1000);
    T_TRUE(
        shard_peer_by(w.e.shard, PEER, span_of(b.p, b.len), segment, number));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = PEER});
}

static void push_sends(uint32_t rows)
{
    struct data_cmd c = cmd_of(SEND_OPEN, rows);

    push(&w.e, c);
    c.type = SEND_RUN;
    c.a = 0;
    c.b = div_up(rows, BLOCK_ROWS);
    push(&w.e, c);
    c.type = SEND_LIMIT;
    c.a = rows;
    push(&w.e, c);
}

static void room(uint32_t rows)
{
    struct data_cmd c = cmd_of(LAND_OPEN, rows);

    push(&w.l, c);
    c.type = LAND_RUN;
    c.a = 0;
    c.b = div_up(rows, BLOCK_ROWS);
    push(&w.l, c);
    push_sends(rows);
}

/* One turn of the loop for a shard; readable: its descriptor is. */
static void serve(struct end *at, bool readable)
{
    struct data_note n;

    if (shard_handed(at->shard)) {
        at->watched = false;
        at->handed++;
    }
    if (!at->watched && shard_inline(at->shard))
        at->watched = readable = true; /* the work came back: one call is due */
    if (readable || shard_busy(at->shard))
        shard_work(at->shard);
    shard_flush(at->shard);
    while (shard_note(at->shard, &n)) {
        if (n.type == NOTE_PEER_BROKEN)
            continue; /* the peer's addresses have changed */
        T_EQ_U64(n.type, NOTE_LANDED);
        w.landed += n.rows;
    }
}

/* Waits as the node's loop does: only descriptors wake it. */
static void wait_for_rows(uint32_t rows)
{
    struct pollfd fds[3] = {
        {.fd = w.wake.fd, .events = POLLIN}, {.fd = -1}, {.fd = -1}};
    struct end *ends[2] = {&w.e, &w.l};

    for (;;) {
        bool busy = false;

        for (int i = 0; i < 2; i++)
            serve(ends[i], fds[1 + i].revents != 0);
        if (w.landed >= rows)
            return;
        wake_sleep(&w.wake);
        for (int i = 0; i < 2; i++) {
            bool mine = shard_inline(ends[i]->shard);

            fds[1 + i] = (struct pollfd){
                .fd = mine ? shard_fd(ends[i]->shard) : -1, .events = POLLIN};
            busy |= shard_busy(ends[i]->shard) || (mine && !ends[i]->watched);
        }
        T_CHECK(poll(fds, 3, busy ? 0 : T_WAIT_MS) > 0 || busy,
            "%u of %u rows came, then all sleep", w.landed, rows);
        if (fds[0].revents)
            wake_clear(&w.wake);
        else
            wake_awake(&w.wake);
    }
}

static void moves(
    const struct data_ops *carrier, uint32_t window, uint32_t segment)
{
    const uint32_t rows = 1000;

    start(carrier, carrier, window, segment);
    peer_open(segment, carrier->number);
    room(rows);
    wait_for_rows(rows);
    T_EQ_U64(w.landed, rows);
    T_EQ_MEM(w.l.mem.base, w.e.mem.base, (size_t)rows * ROW_BYTES);
    stop();
}

#define MOVES(carrier, window_kib, segment_kib)                                \
    TEST(carrier##_window_##window_kib##_kib_segment_##segment_kib##_kib)      \
    {                                                                          \
        moves(&carrier, window_kib *KIB, segment_kib *KIB);                    \
    }
MOVES(data_tcp, 64, 64)
MOVES(data_tcp, 512, 256)
MOVES(data_tcp, 1024, 256)
MOVES(data_tcp, 1024, 16)
MOVES(data_tcp, 1024, 3) /* a unit is larger than a segment */
MOVES(data_mem, 64, 64)
MOVES(data_mem, 1024, 16)

/* several carriers */

/* Moves one row, in a slot of its own generation. */
static void small_room(void)
{
    static uint64_t generation = 101; /* the next use of slot 1 of 4 */
    const uint32_t before = w.landed;
    uint8_t types[] = {LAND_OPEN, LAND_RUN, SEND_OPEN, SEND_RUN, SEND_LIMIT};

    memset(w.l.mem.base, 0, ROW_BYTES);
    generation += 4;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct data_cmd c = cmd_of(types[i], 1);

        c.generation = generation;
        c.a = types[i] == SEND_LIMIT;
        c.b = types[i] != SEND_LIMIT;
        push(types[i] <= LAND_RUN ? &w.l : &w.e, c);
    }
    wait_for_rows(before + 1);
    T_EQ_MEM(w.l.mem.base, w.e.mem.base, ROW_BYTES);
}

static bool both_are_back(void *ud)
{
    serve(&w.e, false);
    serve(&w.l, false);
    return shard_inline(w.e.shard) && shard_inline(w.l.shard);
}

/* If one of the carriers is UCX the thread does all the work. */
TEST(a_peer_changes_its_carrier_while_rooms_come_and_go)
{
    start_two(&data_ucx, &data_tcp);
    T_TRUE(shard_address(w.l.shard, CARRIER_UCX).len > 0);
    for (uint32_t round = 0; round < 6; round++) {
        peer_open(64 * KIB, round % 2 ? CARRIER_TCP : CARRIER_UCX);
        small_room();
        small_room();
        T_FALSE(shard_inline(w.e.shard) || shard_inline(w.l.shard));
    }
    stop();
}

/* If any thread may call both carriers the loop does the work, too. */
TEST(small_rooms_need_no_thread_where_two_carriers_are_open)
{
    static struct data_ops other;

    other = data_mem;
    other.number = CARRIER_UCX;
    start_two(&other, &data_tcp);
    T_WAIT(both_are_back, NULL);
    peer_open(64 * KIB, CARRIER_TCP);
    for (uint32_t i = 0; i < 50; i++)
        small_room();
    T_EQ_U64(w.e.handed + w.l.handed, 0);
    stop();
}

static enum err not_opened(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    return ERR_INTERNAL;
}

/* Without the last carrier, to which a pair falls back, the shard does not
 * start. */
TEST(a_carrier_that_does_not_open_is_left_out_but_for_the_last)
{
    static struct data_ops shut;
    struct shard_conf c = conf_of(&w.l, ROLE_LANGD, &data_mem, &shut);
    struct shard *s = NULL;

    shut = data_mem;
    shut.number = CARRIER_UCX;
    shut.open = not_opened;
    start_two(&shut, &data_mem);
    T_EQ_U64(shard_address(w.l.shard, CARRIER_UCX).len, 0);
    peer_open(64 * KIB, data_mem.number);
    small_room();
    T_ERR(shard_start(&s, &c), ERR_INTERNAL);
    stop();
}

/* Returns the next note of this type. */
static struct data_note next_of(uint8_t type)
{
    struct data_note n = {0};

    for (uint64_t end = t_end_ns(T_WAIT_MS); n.type != type;) {
        T_CHECK(t_now_ns() < end, "no note %u, the last is %u", type, n.type);
        shard_flush(w.e.shard);
        shard_work(w.e.shard);
        (void)shard_note(w.e.shard, &n);
    }
    return n;
}

TEST(a_peer_whose_carrier_is_not_open_is_broken)
{
    uint8_t blob[64];
    struct writer b = writer_of(blob, sizeof(blob));

    start_two(&data_mem, NULL);
    T_WAIT(both_are_back, NULL);
    put_span(&b, shard_address(w.l.shard, data_mem.number), 2, 60);
    T_TRUE(shard_peer_by(
        w.e.shard, PEER, span_of(b.p, b.len), 64 * KIB, CARRIER_UCX));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = PEER});
    push_sends(100);
    (void)next_of(NOTE_PEER_BROKEN);
    stop();
}

static void try_address(uint32_t attempt, uint32_t address)
{
    push(&w.e,
        (struct data_cmd){
            .type = PEER_TRY, .peer = PEER, .attempt = attempt, .a = address});
}

/* Checks what is told of an address, with the number of a try. It may be told
 * twice. */
static void is_told(uint32_t attempt, uint32_t address, enum trouble t)
{
    struct data_note n = next_of(NOTE_PEER_TRIED);
    char why[128];

    while (n.slot != address)
        n = next_of(NOTE_PEER_TRIED);
    T_EQ_U64(n.attempt, attempt);
    T_EQ_U64(n.rows, t);
    shard_say(w.e.shard, PEER, SHARD_WHY, why, sizeof(why));
    T_EQ_STR(why, t ? "mem: closed" : "");
}

/* RULES 9.6 */
TEST(each_address_that_cannot_be_connected_is_told)
{
    uint8_t blob[64];
    struct writer b = writer_of(blob, sizeof(blob));

    start_two(&data_mem, NULL);
    T_WAIT(both_are_back, NULL);
    put_span(&b, shard_address(w.l.shard, data_mem.number), 2, 50);
    put_span(&b, span_str("mem:none"), 2, 10);
    T_TRUE(shard_peer_by(
        w.e.shard, PEER, span_of(b.p, b.len), 64 * KIB, data_mem.number));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = PEER});
    try_address(7, 0);
    is_told(7, 0, TROUBLE_NONE);
    push_sends(1000);
    is_told(7, 1, TROUBLE_DATA_LOST);
    T_EQ_U64(next_of(NOTE_PEER_BROKEN).slot, 1);
    try_address(8, 1);
    is_told(8, 1, TROUBLE_DATA_LOST);
    try_address(9, 0);
    is_told(9, 0, TROUBLE_NONE);
    stop();
}

/* A carrier whose progress returns only when `stands` is false. A call that
 * waits for it sets is_there. */
static struct data_ops stuck;
static _Atomic bool stands, is_there;

static unsigned no_progress(struct data *d)
{
    while (stands) {
        is_there = true;
        sched_yield();
    }
    return data_mem.progress(d);
}

static bool it_stands(void *ud)
{
    return is_there;
}

#define T0 (1000 * NS_PER_S)

static bool it_goes_on(void *ud)
{
    return shard_silent_ns(ud, T0 + 20 * NS_PER_S) == 0;
}

/* What the watchdog asks: of a thread that sleeps, works, or hangs. */
/* RULES 9.6 */
TEST(a_thread_that_stands_still_hangs)
{
    stuck = data_mem;
    stuck.progress = no_progress;
    alone = true;
    stands = true; /* the thread hangs in its first turn, without a wake-up */
    start(NULL, &stuck, 65536, 65536);
    T_WAIT(it_stands, NULL);
    T_EQ_U64(
        /* the turn that hangs was counted when it began */
        shard_silent_ns(w.l.shard, T0), 0);
    T_EQ_U64(shard_silent_ns(w.l.shard, T0 + NS_PER_S), NS_PER_S);
    T_TRUE(shard_silent_ns(w.l.shard, T0 + 4 * NS_PER_S) > SHARD_HANGS_NS);
    stands = false;
    T_WAIT(it_goes_on, w.l.shard);
    stop();
}

/* A carrier in whose turns a new key and a pool's memory are ordered, before
 * messages arrive. */
static struct data_ops keyed;
static pthread_t loop;
static bool inside;
static uint32_t keys, admitted, memories;

static void order_key(uint32_t key)
{
    struct order o = {
        .type = ORDER_KEY, .key = {.peer = PEER, .len = sizeof(key)}};

    memcpy(o.key.bytes, &key, sizeof(key));
    shard_order(w.l.shard, &o);
}

static unsigned progress_with_orders(struct data *d)
{
    unsigned n;

    if (!pthread_equal(loop, pthread_self()))
        return data_mem.progress(d);
    order_key(++keys);
    T_TRUE(shard_pool_ready(w.l.shard, 0));
    inside = true;
    n = data_mem.progress(d);
    inside = false;
    return n;
}

static void take_key(struct data *d, uint32_t who, struct span key)
{
    T_FALSE(inside);
    T_EQ_U64(who, PEER);
    T_EQ_U64(key.len, sizeof(admitted));
    memcpy(&admitted, key.p, sizeof(admitted));
}

static bool take_memory(
    struct data *d, const void *base, uint64_t bytes, bool gpu)
{
    T_FALSE(inside);
    memories++;
    return data_mem.memory(d, base, bytes, gpu);
}

/* An order may be found while a message arrives. It must wait: its connections
 * would end under the message. */
TEST(no_key_and_no_pool_reaches_a_carrier_that_delivers)
{
    keyed = data_mem;
    keyed.progress = progress_with_orders;
    keyed.admit = take_key;
    keyed.memory = take_memory;
    loop = pthread_self();
    start(&data_mem, &keyed, 65536, 4096);
    T_WAIT(both_are_back, NULL);
    peer_open(4096, data_mem.number);
    room(100);
    wait_for_rows(100);
    T_TRUE(keys > 0);
    T_TRUE(memories > 1); /* the first one came at the start */
    T_WAIT(both_are_back, NULL);
    order_key(1000000);
    shard_flush(w.l.shard);
    T_EQ_U64(admitted, 1000000);
    stop();
}

/* More commands than the ring holds. The loop carries out the first ones
 * itself, until their notes have to wait; then commands go through the ring
 * while it has places. All are carried out in order. */
TEST(orders_that_fill_the_ring_come_in_order)
{
    const uint32_t orders = 3000;
    struct data_cmd c;
    struct data_note n;
    uint32_t seen = 0, full = 0;

    start(NULL, &data_mem, 65536, 65536);
    c = cmd_of(LAND_TRIM, 1); /* a command that is answered */
    c.a = ROWS_UNKNOWN;
    for (uint64_t end = t_end_ns(T_WAIT_MS); seen < orders;) {
        T_CHECK(t_now_ns() < end, "%u of %u orders", seen, orders);
        while (c.attempt < orders && shard_push(w.l.shard, &c))
            c.attempt++;
        full += shard_space(w.l.shard) == 0;
        shard_work(w.l.shard);
        shard_flush(w.l.shard);
        for (; shard_note(w.l.shard, &n); seen++) {
            T_EQ_U64(n.type, NOTE_LAND_QUIET);
            T_EQ_U64(n.attempt, seen);
        }
    }
    T_TRUE(full > 0);
    stop();
}

/* Orders that no shard has carried out free what they own. */
TEST(orders_that_still_wait_at_the_end_are_freed)
{
    uint8_t blob[64] = {0};

    start(NULL, &data_mem, 65536, 65536);
    for (uint32_t i = 0; i < 256; i++)
        T_TRUE(shard_peer(w.l.shard, PEER, span_of(blob, sizeof(blob)), 4096));
    T_EQ_U64(shard_space(w.l.shard), 0);
    stop();
}

/* A peer says addresses that cannot be read while messages wait for it: they
 * are not sent to its old address. */
TEST(messages_for_an_address_that_has_gone_are_dropped)
{
    uint8_t blob[64], bad[] = {9, 0, 'x'};
    struct writer b = writer_of(blob, sizeof(blob));

    start(&data_mem, NULL, 65536, 65536);
    put_span(&b, span_str("mem:1"), 2, 100);
    T_TRUE(shard_peer(w.e.shard, PEER, span_of(b.p, b.len), 65536));
    push(&w.e, (struct data_cmd){.type = PEER_OPEN, .peer = PEER});
    push_sends(100);
    T_TRUE(shard_peer(w.e.shard, PEER, span_of(bad, sizeof(bad)), 65536));
    (void)next_of(NOTE_PEER_BROKEN);
    T_EQ_U64(shard_stats(w.e.shard)->messages_sent, 0);
    stop();
}

/* A carrier that always has more to do, as with a large room. */
static struct data_ops endless;
static _Atomic bool came, goes_on;
static _Atomic uint32_t calls; /* of progress */
/* the last key, and the number of calls before it */
static _Atomic uint32_t taken, taken_at;

static unsigned progress_endless(struct data *d)
{
    unsigned n;

    while (came && !goes_on)
        sched_yield();
    calls++;
    n = data_mem.progress(d);
    came = came || n > 0;
    return n + 1;
}

static void take_order(struct data *d, uint32_t who, struct span key)
{
    uint32_t number;

    take_key(d, who, key);
    memcpy(&number, key.p, sizeof(number));
    taken_at = calls;
    taken = number;
}

static void start_endless(void)
{
    endless = data_mem;
    endless.progress = progress_endless;
    endless.admit = take_order;
    alone = true;
    start(&data_mem, &endless, 65536, 65536);
}

static void stop_endless(void)
{
    goes_on = true;
    stop();
}

/* The thread waits behind the turn in which the room came. */
TEST(the_loop_hears_of_a_small_room_while_a_large_one_goes_on)
{
    start_endless();
    peer_open(65536, data_mem.number);
    room(1);
    wait_for_rows(1);
    stop_endless();
}

static bool is_taken(void *ud)
{
    return taken == *(const uint32_t *)ud;
}

TEST(an_order_is_carried_out_while_a_large_room_goes_on)
{
    start_endless();
    goes_on = true;
    for (uint32_t i = 1; i <= 50; i++) {
        uint32_t then;

        order_key(i);
        shard_flush(w.l.shard);
        then = calls;
        T_WAIT(is_taken, &i);
        T_CHECK(taken_at <= then + 1, "%u calls of the carrier before an order",
            taken_at - then);
    }
    stop_endless();
}
