/* data_streams_test.c - data_tcp with several connections to a peer: over
 * rails, small messages beside large ones, and one connection that is refused,
 * stalls or breaks. One thread runs everything. */
#include "io/data/tcp.h"
#include "test/side.h"
#include "test/t.h"

/* A sender, b, to rails that the test makes. */
struct wide {
    struct side a, b; /* b sends to a */
    struct tcp_place place;
    uint8_t *p;
};

static void wide_open_by(struct wide *w, const struct data_ops *ops)
{
    struct data_conf c = side_conf();

    c.streams = 0; /* the carrier chooses */
    side_open_with(&w->a, ops, &c);
    side_open_with(&w->b, ops, &c);
    T_OK(tcp_place_get(data_tcp.address(w->a.d), &w->place));
    w->a.any_bytes = true;
    w->p = calloc(1, MIB);
}

static void wide_open(struct wide *w)
{
    wide_open_by(w, side_streams());
}

static void wide_connect(struct wide *w)
{
    uint8_t bytes[TCP_ADDRESS_MAX];
    struct writer to = writer_of(bytes, sizeof(bytes));

    tcp_place_put(&to, &w->place);
    T_OK(w->b.ops->connect(w->b.d, 0, span_of(to.p, to.len), NO_KEY));
}

static void wide_close(struct wide *w)
{
    side_close(&w->b);
    side_close(&w->a);
    free(w->p);
}

/* Posts messages of 1 MiB while the carrier takes them, `n` of them at most. */
static uint32_t wide_post(struct wide *w, uint32_t from, uint32_t n)
{
    uint32_t id = from;

    while (id < from + n && side_post(&w->b, 0, id, w->p, MIB) == OK)
        id++;
    return id - from;
}

/* Returns the number of connections of this process, each end counted. */
static uint32_t descriptors(void)
{
    uint32_t n = 0;

    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage at;
        socklen_t len = sizeof(at);

        n += getpeername(fd, (struct sockaddr *)&at, &len) == 0;
    }
    return n;
}

/* The configuration leaves the number of connections to the carrier. */
TEST(streams_are_chosen_by_link_and_cores)
{
    static const struct {
        uint64_t mbits;
        uint32_t cores, streams;
    } cases[] = {{1000, 64, 1}, {10000, 64, 1}, {25000, 64, 3}, {40000, 64, 4},
        {400000, 64, STREAMS_CHOSEN}, {400000, 2, 2}, {25000, 2, 2},
        /* Link speed unknown. */
        {0, 64, STREAMS_CHOSEN / 2}, {0, 2, 2}, {0, 0, 1}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        T_EQ_U64(
            tcp_streams_for(cases[i].mbits, cases[i].cores), cases[i].streams);
    T_EQ_U64(tcp_streams_of("tcp/lo"), 1);
    T_EQ_U64(tcp_streams_of("tcp"), 1);
}

TEST(rows_go_by_several_connections)
{
    struct wide w;

    wide_open(&w);
    T_EQ_U64(w.place.rails, 2);
    T_EQ_U64(w.place.streams, SIDE_STREAMS);
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    side_until(&w.b, &w.a, &w.a.fetched_count, 40);
    T_EQ_U64(w.a.failed_count, 0);
    T_EQ_U64(descriptors(), 2 * SIDE_STREAMS);
    T_EQ_I64(strcmp(side_goes(&w.b, 0), "tcp/lo x4"), 0);
    wide_close(&w);
}

/* Messages of more pieces than one system call takes: a message that has begun
 * goes on while another connection has the turn. */
TEST(messages_of_many_pieces_go_by_several_connections)
{
    struct iovec iov[DATA_IOV_MAX];
    struct wide w;

    wide_open(&w);
    wide_connect(&w);
    for (uint32_t i = 0; i < DATA_IOV_MAX; i++)
        iov[i] = (struct iovec){w.p + (size_t)i * 512, 300};
    for (uint32_t id = 0; id < 400; id++) {
        while (side_post_iov(&w.b, 0, id, iov, DATA_IOV_MAX, 48) != OK)
            (void)side_turn(&w.b, &w.a);
    }
    side_until(&w.b, &w.a, &w.b.done_count, 400);
    side_until(&w.b, &w.a, &w.a.fetched_count, 400);
    wide_close(&w);
}

TEST(little_goes_by_one_connection)
{
    struct wide w;

    wide_open(&w);
    wide_connect(&w);
    for (uint32_t id = 0; id < 8; id++)
        T_OK(side_post(&w.b, 0, id, w.p, 4 * KIB));
    side_until(&w.b, &w.a, &w.a.arrived_count, 8);
    T_EQ_U64(descriptors(), 2);
    wide_close(&w);
}

/* Opens a listener of the test as the second rail. */
static int other_rail(struct wide *w, bool listens)
{
    struct sockaddr_in at = *(struct sockaddr_in *)&w->place.at[1];
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_port = 0;
    T_EQ_I64(bind(fd, (struct sockaddr *)&at, len), 0);
    T_TRUE(!listens || listen(fd, 8) == 0);
    T_EQ_I64(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    memcpy(&w->place.at[1], &at, sizeof(at));
    return fd;
}

/* A connection that is refused costs the others nothing. */
TEST(a_rail_that_is_refused_is_done_without)
{
    struct wide w;
    int fd;

    wide_open(&w);
    fd = other_rail(&w, false);
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    side_until(&w.b, &w.a, &w.a.fetched_count, 40);
    T_EQ_U64(w.b.broken_count, 0);
    T_EQ_U64(descriptors(), 4); /* two of four streams, at both ends */
    close(fd);
    wide_close(&w);
}

/* Neither does a connection whose other end has no key. */
TEST(a_rail_without_a_proof_is_done_without)
{
    struct wide w;
    int fd, one;

    wide_open_by(&w, side_encrypted());
    fd = other_rail(&w, true);
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    side_until(&w.b, &w.a, &w.a.fetched_count, 40);
    one = accept(fd, NULL, NULL);
    T_EQ_I64(write(one, "400 Bad Request\r\n", 17), 17);
    while (w.b.counts.unproven == 0)
        (void)side_turn(&w.b, &w.a);
    T_TRUE(side_goes(&w.b, 0)[0]); /* no trouble is known */
    T_EQ_U64(w.b.broken_count, 0);
    close(one);
    close(fd);
    wide_close(&w);
}

/* One connection's messages are not read. The others go on, and after stall_ms
 * the endpoint breaks, once. */
/* F44 */
TEST(one_connection_that_stalls_breaks_the_endpoint)
{
    struct wide w;
    uint64_t now = 1000 * NS_PER_S;
    uint32_t posted = 0;
    int fd;

    wide_open(&w);
    w.a.drop = true;
    fd = other_rail(&w, true);
    wide_connect(&w);
    /* two streams to the test's rail have begun one message each */
    while (w.b.done_count < 398) {
        posted += wide_post(&w, posted, 400 - posted);
        (void)side_turn(&w.b, &w.a);
    }
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.done_count, 398);
    data_tcp.tick(w.b.d, now);
    T_OK(side_post(&w.b, 0, 400, w.p, 4 * KIB)); /* the other streams go on */
    side_settle(&w.b, &w.a);
    data_tcp.tick(w.b.d, now + (SIDE_STALL_MS - 100) * NS_PER_MS);
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.broken_count, 0);
    data_tcp.tick(w.b.d, now + (SIDE_STALL_MS + 100) * NS_PER_MS);
    side_until(&w.b, &w.a, &w.b.done_count, 401);
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.broken[0], 1);
    close(fd);
    wide_close(&w);
}

/* F43 */
TEST(one_connection_that_breaks_breaks_the_endpoint)
{
    struct wide w;
    int fd, one;

    wide_open(&w);
    fd = other_rail(&w, true);
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    while (w.b.done_count < 20)
        (void)side_turn(&w.b, &w.a);
    one = accept(fd, NULL, NULL);
    T_TRUE(one >= 0);
    close(one);
    side_until(&w.b, &w.a, &w.b.broken_count, 1);
    side_until(&w.b, &w.a, &w.b.done_count, 40);
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.broken_count, 1);
    T_ERR(side_post(&w.b, 0, 41, w.p, 8), ERR_PEER_LOST);
    data_tcp.disconnect(w.b.d, 0);
    close(fd);
    wide_close(&w);
}

/* small messages beside large ones, where the carrier chooses the streams */

#define SMALL_ID (SIDE_IDS - 1)

static void auto_open(struct wide *w)
{
    wide_open_by(w, &data_tcp);
    T_EQ_U64(w->place.streams, STREAMS_CHOSEN + 1);
    wide_connect(w);
}

/* Posts large messages from id `from` on until the kernel has taken all it can.
 * Returns the next id. */
static uint32_t wide_clog(struct wide *w, uint32_t from)
{
    while (from - w->b.done_count < 8) {
        T_EQ_U64(wide_post(w, from, 4), 4);
        from += 4;
        side_settle(&w->b, NULL);
    }
    return from;
}

TEST(a_small_message_overtakes_large_ones)
{
    struct wide w;
    uint32_t posted;

    auto_open(&w);
    T_EQ_U64(wide_post(&w, 0, 2), 2);
    side_until(&w.b, &w.a, &w.a.fetched_count, 2);
    /* the first one since the new stream is connected */
    T_EQ_U64(wide_post(&w, 2, 1), 1);
    side_until(&w.b, &w.a, &w.a.fetched_count, 3);
    side_settle(&w.b, &w.a);
    T_EQ_U64(descriptors(), 4);
    posted = wide_clog(&w, 3);
    T_OK(side_post(&w.b, 0, SMALL_ID, w.p, DATA_SMALL));
    side_settle(&w.b, NULL);
    T_EQ_U64(w.b.done[SMALL_ID], 1);
    while (!w.a.arrived[SMALL_ID])
        (void)side_turn(&w.a, NULL);
    T_CHECK(w.a.fetched_count < posted - 1, "%u of %u large ones came first",
        w.a.fetched_count, posted);
    side_until(&w.b, &w.a, &w.b.done_count, posted + 1);
    T_EQ_U64(w.b.broken_count, 0);
    wide_close(&w);
}

/* The carrier opens no more connections than the peer takes. */
TEST(one_connection_is_for_all_sizes_where_one_was_asked_for)
{
    struct wide w;

    wide_open_by(&w, &data_tcp);
    w.place.streams = 1;
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    T_OK(side_post(&w.b, 0, SMALL_ID, w.p, KIB));
    side_until(&w.b, &w.a, &w.b.done_count, 41);
    T_EQ_U64(wide_post(&w, 40, 1), 1);
    side_until(&w.b, &w.a, &w.b.done_count, 42);
    T_EQ_U64(descriptors(), 2);
    wide_close(&w);
}

/* If large messages need each device, none is kept for small messages. */
TEST(each_rail_carries_large_messages_where_connections_are_few)
{
    struct wide w;

    wide_open_by(&w, &data_tcp);
    w.place.at[1] = w.place.at[0];
    w.place.rails = w.place.streams = 2;
    wide_connect(&w);
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    side_until(&w.b, &w.a, &w.b.done_count, 40);
    T_EQ_U64(wide_post(&w, 40, 40), 40);
    side_until(&w.b, &w.a, &w.b.done_count, 80);
    T_EQ_I64(strcmp(side_goes(&w.b, 0), "tcp/lo x2"), 0);
    T_EQ_U64(descriptors(), 4);
    wide_close(&w);
}

/* Places in a HELLO that are cut off, or have impossible numbers. */
TEST(places_that_cannot_be_meant_are_refused)
{
    struct tcp_place back;
    uint8_t bytes[TCP_ADDRESS_MAX];
    struct writer to = writer_of(bytes, sizeof(bytes));
    struct wide w;

    wide_open(&w);
    w.place.streams = TCP_STREAMS;
    tcp_place_put(&to, &w.place);
    for (size_t n = 0; n < to.len; n++)
        T_ERR(tcp_place_get(span_of(bytes, n), &back), ERR_MALFORMED);
    T_OK(tcp_place_get(span_of(bytes, to.len), &back));
    T_EQ_I64(memcmp(&back, &w.place, sizeof(back)), 0);
    for (size_t i = 0; i < 3; i++) { /* streams, of, rails */
        uint8_t was = bytes[TCP_HELLO + i];

        bytes[TCP_HELLO + i] = 0;
        T_ERR(tcp_place_get(span_of(bytes, to.len), &back), ERR_MALFORMED);
        bytes[TCP_HELLO + i] = i == 1 ? 0 : TCP_STREAMS + 1;
        T_ERR(tcp_place_get(span_of(bytes, to.len), &back), ERR_MALFORMED);
        bytes[TCP_HELLO + i] = was;
    }
    wide_close(&w);
}
