/* shard_wire_test.c - a langd shard of TCP, and a peer that is a socket of this
 * test: what the peer may send without a row landing where none was granted,
 * and what costs it the connection. */
#include "core/move/landing.h"
#include "wire/segment.h"
#include "io/data/tcp.h"
#include "node/shard/shard.h"
#include "test/orders.h"
#include "test/t.h"

#include <poll.h>
#include <stdatomic.h>

#define SEGMENT    16384u
#define ROW_BYTES  12582912u /* more than fits into DATA_IOV_MAX segments */
#define SMALL_ROWS 64u

static struct world {
    struct wake wake;
    struct shard *shard;
    struct shard_pool pools[2]; /* of 64 bytes a row, and of huge rows */
    struct mem mems[2];
    int fd; /* of the peer */
} w;

static void pool_make(uint32_t i, const char *layout, uint32_t blocks)
{
    struct shard_pool *p = &w.pools[i];
    uint64_t bytes;
    uint32_t bad;

    p->blocks = blocks;
    p->block_rows = 8;
    T_OK(layout_parse(span_str(layout), &p->layout, &bad));
    T_TRUE(layout_place(
        &p->layout, (uint64_t)blocks * 8, 4096, p->offsets, &bytes));
    w.mems[i] = (struct mem){.base = calloc(1, bytes), .bytes = bytes};
    p->mem = &w.mems[i];
}

static void dial(void)
{
    struct pollfd p = {.events = POLLOUT};
    struct span a = shard_address(w.shard, CARRIER_TCP);
    struct tcp_place place;

    T_OK(tcp_place_get(a, &place));
    T_OK(tcp_connect(&place, 0, &w.fd));
    p.fd = w.fd;
    T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
    T_EQ_I64(write(w.fd, a.p, TCP_HELLO), TCP_HELLO);
}

static void start_safe(enum data_safe safe)
{
    struct shard_conf c = {.carriers = {&data_tcp},
        .data = {.tls = "",
            .devices = "lo",
            .ports = "",
            .segment_bytes = SEGMENT,
            .keepalive_ms = 1000,
            .stall_ms = T_NEVER_MS,
            .safe = safe},
        .role = ROLE_LANGD,
        .count = 1,
        .slots = 4,
        .peers = 2,
        .window_bytes = 1u << 20,
        .orders = 256,
        .cpu = -1,
        .pools = w.pools,
        .pools_count = 2,
        .wake = &w.wake};

    T_OK(wake_init(&w.wake));
    pool_make(0, "embedding:u8:64", 16);
    pool_make(1, "embedding:u8:12582912", 1);
    T_OK(shard_start(&w.shard, &c));
    w.fd = -1;
}

static void start(void)
{
    start_safe(SAFE_OFF);
    dial();
}

static void stop(void)
{
    if (w.fd >= 0)
        close(w.fd);
    shard_stop(&w.shard);
    free(w.mems[0].base);
    free(w.mems[1].base);
    wake_fini(&w.wake);
}

/* Grants the first rows of a room of peer 1. */
static void grant(void)
{
    struct data_cmd c = {.type = LAND_OPEN,
        .slot = 1,
        .generation = 5,
        .room = 6,
        .peer = 1,
        .total = SMALL_ROWS};

    T_TRUE(shard_push(w.shard, &c));
    c.type = LAND_RUN;
    c.b = SMALL_ROWS / 8;
    T_TRUE(shard_push(w.shard, &c));
    shard_flush(w.shard);
}

/* Returns a segment of all granted rows. */
static struct segment good(void)
{
    return (struct segment){.room = 6,
        .generation = 5,
        .rows = SMALL_ROWS,
        .total = SMALL_ROWS,
        .bytes = SMALL_ROWS * 64,
        .fields = SEGMENT_ALL};
}

/* Returns a segment of a room that does not exist. */
static struct segment bogus(uint32_t bytes)
{
    return (struct segment){.room = 7,
        .generation = 9,
        .rows = 1,
        .total = 1,
        .bytes = bytes,
        .fields = SEGMENT_ALL};
}

static void send_head(const struct segment *s, uint32_t n, uint32_t body)
{
    uint8_t p[8 + DATA_HEADER_MAX];
    uint32_t len = segments_put(p + 8, s, n, SEGMENTS_BYTES);
    struct writer head = writer_of(p, 8);

    put_u32(&head, len);
    put_u32(&head, body);
    T_EQ_I64(write(w.fd, p, 8 + len), 8 + (ssize_t)len);
}

static void send_bytes(uint32_t n)
{
    static uint8_t bytes[65536];

    memset(bytes, 7, sizeof(bytes));
    while (n > 0) {
        struct pollfd p = {.fd = w.fd, .events = POLLOUT};
        ssize_t sent;

        T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
        sent = write(w.fd, bytes, min_u32(n, sizeof(bytes)));
        T_TRUE(sent > 0);
        n -= (uint32_t)sent;
    }
}

static bool closed(void)
{
    struct pollfd p = {.fd = w.fd, .events = POLLIN};
    char c;

    return poll(&p, 1, T_WAIT_MS) == 1 &&
           (recv(w.fd, &c, 1, 0) == 0 || errno == ECONNRESET);
}

static bool told(void *ud)
{
    return shard_note(w.shard, ud);
}

/* Waits until the shard reports the landing; then the rows may be read. */
static void expect_landed(void)
{
    struct data_note n;

    T_WAIT(told, &n);
    T_EQ_U64(n.type, NOTE_LANDED);
    T_EQ_U64(n.rows, SMALL_ROWS);
    T_EQ_U64(w.mems[0].base[0], 7);
}

/* One segment announces a length with which the sum for the frame wraps; the
 * other one has a grant. No byte that was not sent may land. */
static void wrapped(bool bogus_first)
{
    struct segment s[2] = {good(), good()};
    uint32_t body;

    start();
    grant();
    s[!bogus_first] = bogus(0xffffffc8 - good().bytes);
    body = s[0].bytes + s[1].bytes;
    send_head(s, 2, body);
    T_TRUE(closed());
    T_EQ_U64(atomic_load(&shard_stats(w.shard)->segments_landed), 0);
    close(w.fd);
    dial(); /* the next connection is served */
    s[0] = good();
    send_head(s, 1, s[0].bytes);
    send_bytes(s[0].bytes);
    expect_landed();
    stop();
}

TEST_IS(a_length_that_wraps_before_rows_ends_the_connection, wrapped(true));
TEST_IS(a_length_that_wraps_behind_rows_ends_the_connection, wrapped(false));

/* However large the segment is: the connection has other messages, too. */
/* RULES 3.3 */
TEST_AROUND(a_refused_segment_alone_is_only_dropped, start(), stop())
{
    struct segment s = bogus(ROW_BYTES);

    grant();
    send_head(&s, 1, s.bytes);
    send_bytes(s.bytes);
    s = good();
    send_head(&s, 1, s.bytes);
    send_bytes(s.bytes);
    expect_landed();
    T_EQ_U64(atomic_load(&shard_stats(w.shard)->segments_dropped), 1);
}

/* senders with keys */

struct sender {
    struct data *d;
    struct data_counts counts;
    uint8_t bytes[SMALL_ROWS * 64];
};

static void on_done(void *ud, void *cookie) {}

static void on_broken(void *ud, uint32_t ep)
{
    T_FAIL("endpoint %u broke", ep);
}

/* Opens a sender that has the key of peer `who`. */
static void sender_open(struct sender *s, uint32_t who)
{
    struct data_conf c = {.tls = "",
        .devices = "lo",
        .ports = "",
        .segment_bytes = SEGMENT,
        .keepalive_ms = 1000,
        .stall_ms = T_NEVER_MS,
        .endpoints_max = 1,
        .messages_max = 4,
        .safe = SAFE_PROVED,
        .counts = &s->counts};
    struct data_calls calls = {.ud = s, .done = on_done, .broken = on_broken};
    uint8_t key[DATA_KEY_BYTES];

    memset(key, 20 + (int)who, sizeof(key));
    key[0] = 0; /* the proof is done */
    T_TRUE(shard_key(w.shard, who, span_of(key, sizeof(key))));
    shard_flush(w.shard);
    T_OK(data_tcp.open(&s->d, &c, &calls));
    T_OK(data_tcp.connect(s->d, 0, shard_address(w.shard, CARRIER_TCP),
        span_of(key, sizeof(key))));
}

/* Sends all rows of the room, with each byte `byte`. */
static void sender_send(struct sender *s, int byte)
{
    struct segment seg = good();
    struct iovec iov = {s->bytes, sizeof(s->bytes)};
    uint8_t header[DATA_HEADER_MAX];
    uint32_t len = segments_put(header, &seg, 1, SEGMENTS_BYTES);

    memset(s->bytes, byte, sizeof(s->bytes));
    T_OK(data_tcp.post(s->d, 0, span_of(header, len), &iov, 1, NULL));
}

static bool is_dropped(void *ud)
{
    struct sender *s = ud;

    (void)data_tcp.progress(s->d);
    return atomic_load(&shard_stats(w.shard)->segments_dropped) == 1;
}

static bool is_landed(void *ud)
{
    struct sender *s = ud;

    (void)data_tcp.progress(s->d);
    return atomic_load(&shard_stats(w.shard)->segments_landed) == 1;
}

/* A peer with a key of its own knows all of another peer's room: it can neither
 * write into the room nor keep the right rows from landing. */
/* RULES 10.6 */
TEST(a_key_opens_rooms_of_its_own_peer_alone)
{
    static struct sender liar, owner;

    start_safe(SAFE_PROVED);
    grant();
    sender_open(&liar, 0);
    sender_open(&owner, 1);
    sender_send(&liar, 8);
    T_WAIT(is_dropped, &liar);
    T_EQ_U64(atomic_load(&shard_stats(w.shard)->segments_landed), 0);
    T_EQ_U64(w.mems[0].base[0], 0);
    sender_send(&owner, 7);
    T_WAIT(is_landed, &owner);
    expect_landed();
    data_tcp.close(&liar.d);
    data_tcp.close(&owner.d);
    stop();
}
