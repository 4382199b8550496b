/* data_tcp_test.c - what data_tcp alone promises: who may connect, what is not
 * believed, and messages that are asked for whole. Strangers are sockets of
 * this test; one thread turns everything. */
#include "io/data/tcp.h"
#include "test/side.h"
#include "test/t.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* A connection to where s listens. */
static int stranger(struct side *s)
{
    struct pollfd p = {.events = POLLOUT};
    struct tcp_place place;

    T_OK(tcp_place_get(s->ops->address(s->d), &place));
    T_OK(tcp_connect(&place, 0, 0, &p.fd));
    T_EQ_I64(poll(&p, 1, 1000), 1);
    return p.fd;
}

/* As stranger(), with the greeting of a peer. */
static int friend(struct side *s)
{
    struct span a = s->ops->address(s->d);
    int fd = stranger(s);

    T_EQ_I64(write(fd, a.p, TCP_HELLO), TCP_HELLO); /* an address begins so */
    return fd;
}

static void send_all(int fd, const void *p, size_t n)
{
    T_EQ_I64(write(fd, p, n), (ssize_t)n);
}

/* Frame, and a header as side.c wants it. */
static void send_head(int fd, uint32_t header, uint32_t id, uint32_t len)
{
    uint8_t head[16] = {0};
    struct writer w = writer_of(head, sizeof(head));

    put_u32(&w, header);
    put_u32(&w, len);
    put_u32(&w, id);
    put_u32(&w, len);
    send_all(fd, head, w.len);
}

static bool closed(struct side *s, int fd)
{
    char c;

    side_settle(s, NULL);
    return recv(fd, &c, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

TEST(who_does_not_know_the_token_is_closed)
{
    struct side a;
    uint8_t hello[TCP_HELLO] = TCP_MAGIC;
    int fd;

    side_open(&a, &data_tcp);
    fd = stranger(&a);
    send_all(fd, hello, sizeof(hello));
    T_TRUE(closed(&a, fd));
    close(fd);
    fd = stranger(&a);
    send_all(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    T_TRUE(closed(&a, fd));
    close(fd);
    T_EQ_U64(a.arrived_count, 0);
    side_close(&a);
}

TEST(a_frame_may_come_byte_by_byte)
{
    struct side a;
    uint8_t p[100];
    int fd;

    side_open(&a, &data_tcp);
    fd = friend(&a);
    side_fill(p, sizeof(p), 3);
    for (uint32_t round = 1; round <= 3; round++) {
        uint8_t head[16];
        struct writer w = writer_of(head, sizeof(head));

        put_u32(&w, 8);
        put_u32(&w, sizeof(p));
        put_u32(&w, 3);
        put_u32(&w, sizeof(p));
        for (size_t i = 0; i < sizeof(head) + sizeof(p); i++) {
            send_all(fd, i < sizeof(head) ? &head[i] : &p[i - sizeof(head)], 1);
            side_turn(&a, NULL);
        }
        side_until(&a, NULL, &a.arrived_count, round);
    }
    close(fd);
    side_close(&a);
}

TEST(a_header_that_is_too_long_ends_the_connection)
{
    struct side a;
    int fd;

    side_open(&a, &data_tcp);
    fd = friend(&a);
    send_head(fd, 1 << 20, 0, 0);
    T_TRUE(closed(&a, fd));
    T_EQ_U64(a.arrived_count, 0);
    close(fd);
    side_close(&a);
}

/* A message of so many bytes, none of which come, asked for whole if it gets
 * so far. */
static bool a_body_closes(uint32_t len)
{
    struct side a;
    bool over;
    int fd;

    side_open(&a, &data_tcp);
    a.whole = true;
    fd = friend(&a);
    send_head(fd, 8, 1, len);
    over = closed(&a, fd);
    T_EQ_U64(a.arrived_count, 0);
    close(fd);
    side_close(&a);
    return over;
}

/* The sum of a frame's lengths wraps at 2^32 for some of these. */
TEST(a_body_that_cannot_be_meant_ends_the_connection)
{
    static const uint32_t wraps[] = {16, 15, 8, 1, 56, 2600};

    for (size_t i = 0; i < ARRAY_LEN(wraps); i++)
        T_TRUE(a_body_closes(0 - wraps[i]));
    T_TRUE(a_body_closes(SIDE_MESSAGE + 1));
    T_TRUE(a_body_closes(0x80000000u));
    T_FALSE(a_body_closes(SIDE_MESSAGE));
}

TEST(a_message_that_is_not_ended_fails_its_fetch)
{
    static uint8_t some[40000];
    struct side a;
    uint64_t now = 1000 * NS_PER_S;
    int fd;

    side_open(&a, &data_tcp);
    a.fetch_pieces = 3;
    a.any_bytes = true;
    fd = friend(&a);
    send_head(fd, 8, 1, 100000);
    send_all(fd, some, sizeof(some));
    side_until(&a, NULL, &a.arrived_count, 1);
    side_settle(&a, NULL);
    data_tcp.tick(a.d, now);
    data_tcp.tick(a.d, now + 900 * NS_PER_MS);
    T_EQ_U64(a.fetched_count, 0);
    send_all(fd, some, 1); /* it lives: the time begins anew */
    side_settle(&a, NULL);
    data_tcp.tick(a.d, now + 1800 * NS_PER_MS);
    data_tcp.tick(a.d, now + 2700 * NS_PER_MS);
    T_EQ_U64(a.fetched_count, 0);
    data_tcp.tick(a.d, now + 2800 * NS_PER_MS);
    T_EQ_U64(a.fetched_count, 1);
    T_EQ_U64(a.failed_count, 1);
    T_TRUE(closed(&a, fd));
    close(fd);
    side_close(&a);
}

/* Connections that say nothing take no place from those of peers. */
TEST(silent_strangers_give_way)
{
    struct data_conf c = side_conf();
    struct side a, b;
    int fds[6];
    uint8_t p[8];

    c.inbound_max = 4;
    side_open_with(&a, &data_tcp, &c);
    side_open(&b, &data_tcp);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = stranger(&a);
        side_settle(&a, NULL);
    }
    T_OK(data_tcp.connect(b.d, 0, data_tcp.address(a.d)));
    side_fill(p, 8, 2);
    T_OK(side_post(&b, 0, 2, p, 8));
    side_until(&a, &b, &a.arrived_count, 1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    side_close(&a);
    side_close(&b);
}

/* Peers that come in one turn, after as many silent ones as there are places:
 * none of them makes another give way. */
TEST(the_oldest_stranger_gives_way)
{
    struct data_conf c = side_conf();
    struct side a;
    int silent[8], fds[4];

    c.inbound_max = ARRAY_LEN(silent);
    side_open_with(&a, &data_tcp, &c);
    for (size_t i = 0; i < ARRAY_LEN(silent); i++) {
        silent[i] = stranger(&a);
        side_settle(&a, NULL);
    }
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = stranger(&a);
    side_turn(&a, NULL); /* all are taken in, nothing was said yet */
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        send_all(fds[i], data_tcp.address(a.d).p, TCP_HELLO);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        T_FALSE(closed(&a, fds[i]));
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        T_TRUE(closed(&a, silent[i]) == (i < ARRAY_LEN(fds)));
    T_EQ_U64(data_tcp.counts(a.d)->strangers, ARRAY_LEN(fds));
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        close(silent[i]);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    side_close(&a);
}

/* Turns a only when its descriptor says so, and never ticks it: as long as
 * fd is open. Returns the turns. */
static uint32_t turns_until_closed(struct side *a, int fd)
{
    struct pollfd p = {.fd = data_tcp.fd(a->d), .events = POLLIN};
    uint32_t turns = 0;
    char c;

    for (; recv(fd, &c, 1, MSG_DONTWAIT) != 0; turns++) {
        while (data_tcp.progress(a->d) > 0)
            ;
        T_OK(data_tcp.arm(a->d));
        T_EQ_I64(poll(&p, 1, 15000), 1);
        side_turn(a, NULL);
    }
    return turns;
}

TEST(silence_ends_while_nothing_else_happens)
{
    struct side a;
    int peer, fd;
    uint64_t begun;

    side_open(&a, &data_tcp);
    peer = friend(&a);
    side_settle(&a, NULL);
    begun = t_now_ns();
    fd = stranger(&a);
    send_all(fd, TCP_MAGIC, 4);
    T_TRUE(turns_until_closed(&a, fd) < 10);
    T_TRUE(t_now_ns() - begun >= SIDE_GREETING_MS * NS_PER_MS);
    T_FALSE(closed(&a, peer));
    T_EQ_U64(data_tcp.counts(a.d)->strangers, 1);
    close(peer);
    close(fd);
    side_close(&a);
}

static bool fd_free(void)
{
    int fd = dup(STDERR_FILENO);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Another thread takes the spare descriptor: nothing spins, and the connection
 * is served when there are descriptors again. */
TEST(without_any_descriptor_connections_wait)
{
    struct rlimit old, few;
    struct side a, b;
    struct pollfd p;
    uint8_t bytes[8];

    side_open(&b, &data_tcp);
    side_open(&a, &data_tcp);
    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &old), 0);
    T_OK(data_tcp.connect(b.d, 0, data_tcp.address(a.d)));
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    T_FALSE(fd_free());
    p = (struct pollfd){.fd = data_tcp.fd(a.d), .events = POLLIN};
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &old), 0);
    T_EQ_I64(poll(&p, 1, 1000), 1); /* it came */
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    data_tcp.progress(a.d);
    T_EQ_U64(data_tcp.progress(a.d), 0);
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &old), 0);
    T_EQ_I64(poll(&p, 1, 0), 0); /* and does not keep us awake */
    side_fill(bytes, 8, 2);
    T_OK(side_post(&b, 0, 2, bytes, 8));
    side_until(&a, &b, &a.arrived_count, 1);
    T_EQ_U64(data_tcp.counts(a.d)->refused, 0);
    side_close(&a);
    side_close(&b);
}

/* Rows of which some pages are gone when they are sent: zeros go, and the
 * endpoint has other messages. */
TEST(pages_that_were_taken_away_go_as_zeros)
{
    const size_t bytes = 64 * KIB, left = 16 * KIB;
    int file = memfd_create("rows", 0);
    struct side a, b;
    uint8_t *p, other[8];

    T_EQ_I64(ftruncate(file, (off_t)left), 0);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    T_TRUE(p != MAP_FAILED);
    side_pair(&a, &b, &data_tcp);
    b.fetch_pieces = 1;
    b.any_bytes = true;
    T_OK(side_post(&a, 0, 1, p, bytes));
    side_until(&a, &b, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 0);
    side_until(&a, &b, &a.done_count, 1);
    b.any_bytes = false;
    side_fill(other, 8, 2);
    T_OK(side_post(&a, 0, 2, other, 8));
    side_until(&a, &b, &b.arrived_count, 2);
    T_EQ_U64(a.broken_count, 0);
    side_close(&a);
    side_close(&b);
    munmap(p, bytes);
    close(file);
}

TEST(more_connections_of_peers_than_agreed_are_refused)
{
    struct data_conf c = side_conf();
    struct side a;
    int fds[3];

    c.inbound_max = 2;
    side_open_with(&a, &data_tcp, &c);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = friend(&a);
        side_settle(&a, NULL);
    }
    T_FALSE(closed(&a, fds[0]));
    T_TRUE(closed(&a, fds[2]));
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    side_close(&a);
}

TEST(who_only_sends_has_no_address)
{
    struct data_conf c = side_conf();
    struct side a, b;
    uint8_t p[8];

    c.inbound_max = 0;
    side_open_with(&a, &data_tcp, &c);
    side_open(&b, &data_tcp);
    T_EQ_U64(data_tcp.address(a.d).len, 0);
    T_OK(data_tcp.connect(a.d, 0, data_tcp.address(b.d)));
    side_fill(p, 8, 1);
    T_OK(side_post(&a, 0, 1, p, 8));
    side_until(&a, &b, &b.arrived_count, 1);
    side_close(&a);
    side_close(&b);
}

TEST(says_what_cannot_be_had)
{
    struct data_conf c = side_conf();
    struct data_calls calls = {.ud = NULL};
    struct data *d = NULL;
    struct side a, b;
    struct tcp_place place;
    char ports[32];
    unsigned port;

    c.devices = "nosuchdevice0";
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    T_TRUE(d == NULL);
    side_open(&a, &data_tcp);
    side_open(&b, &data_ucx);
    T_ERR(data_tcp.connect(a.d, 0, data_ucx.address(b.d)), ERR_MALFORMED);
    T_ERR(data_ucx.connect(b.d, 0, data_tcp.address(a.d)), ERR_MALFORMED);
    side_close(&b);
    /* A range of one port that is taken. */
    T_OK(tcp_place_get(data_tcp.address(a.d), &place));
    port = ntohs(((struct sockaddr_in *)&place.at[0])->sin_port);
    snprintf(ports, sizeof(ports), "%u-%u", port, port);
    c = side_conf();
    c.ports = ports;
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    side_close(&a);
}

/* Two messages asked for whole, small ones around them. */
TEST(a_message_is_brought_whole_when_asked)
{
    static const size_t sizes[] = {100, 300 * KIB, 10, 200 * KIB, 20 * KIB, 0};
    struct side a, b;
    uint8_t *p = malloc(SIDE_SEGMENT * 2);

    side_pair(&a, &b, &data_tcp);
    b.whole = true;
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        side_fill(p, sizes[i], i);
        T_OK(side_post(&a, 0, i, p, sizes[i]));
        side_until(&a, &b, &a.done_count, i + 1);
    }
    side_until(&a, &b, &b.arrived_count, ARRAY_LEN(sizes));
    T_EQ_U64(b.fetched_count, 0);
    side_close(&a);
    side_close(&b);
    free(p);
}

/* several connections */

/* A side that sends to rails of the test's own making. */
struct wide {
    struct side a, b; /* b sends to a */
    struct tcp_place place;
    uint8_t *p;
};

#define WIDE_STALL_MS 10000 /* the kernel's own limit, too */

static void wide_open_by(struct wide *w, const struct data_ops *ops)
{
    struct data_conf c = side_conf();

    c.stall_ms = WIDE_STALL_MS;
    side_open_with(&w->a, ops, &c);
    side_open_with(&w->b, ops, &c);
    T_OK(tcp_place_get(data_tcp.place(w->a.d), &w->place));
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

    tcp_place_put_all(&to, &w->place);
    T_OK(data_tcp.connect(w->b.d, 0, span_of(to.p, to.len)));
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
    T_EQ_I64(strcmp(data_tcp.transport(w.b.d, 0), "tcp/lo x4"), 0);
    wide_close(&w);
}

TEST(a_peer_of_before_gets_one_connection)
{
    struct wide w;

    wide_open(&w);
    T_OK(data_tcp.connect(w.b.d, 0, data_tcp.address(w.a.d)));
    T_EQ_U64(wide_post(&w, 0, 40), 40);
    side_until(&w.b, &w.a, &w.a.fetched_count, 40);
    T_EQ_U64(descriptors(), 2);
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

/* A listener of the test, in place of the second rail. */
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

/* A connection of several that never comes about costs the others nothing. */
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
    T_EQ_U64(descriptors(), 4); /* two of four streams, both ends */
    close(fd);
    wide_close(&w);
}

/* Messages on a connection where nothing is read: the others go on, and the
 * endpoint breaks, once, when stall_ms are over. */
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
    while (w.b.done_count < 398) { /* the two there have begun one each */
        posted += wide_post(&w, posted, 400 - posted);
        (void)side_turn(&w.b, &w.a);
    }
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.done_count, 398);
    data_tcp.tick(w.b.d, now);
    T_OK(side_post(&w.b, 0, 400, w.p, 4 * KIB)); /* the others go on */
    side_settle(&w.b, &w.a);
    data_tcp.tick(w.b.d, now + (WIDE_STALL_MS - 100) * NS_PER_MS);
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.broken_count, 0);
    data_tcp.tick(w.b.d, now + (WIDE_STALL_MS + 100) * NS_PER_MS);
    side_until(&w.b, &w.a, &w.b.done_count, 401);
    side_settle(&w.b, &w.a);
    T_EQ_U64(w.b.broken[0], 1);
    close(fd);
    wide_close(&w);
}

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
    side_until(&w.b, &w.a, &w.a.fetched_count, 1);
    T_EQ_U64(wide_post(&w, 2, 1), 1); /* the first when it was connected */
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

/* The number of connections that the peer takes is kept to. */
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

/* A device that large messages cannot do without is not left to small ones. */
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
    T_EQ_I64(strcmp(data_tcp.transport(w.b.d, 0), "tcp/lo x2"), 0);
    T_EQ_U64(descriptors(), 4);
    wide_close(&w);
}

/* Places of a HELLO that are cut, or mean too much. */
TEST(places_that_cannot_be_meant_are_refused)
{
    struct tcp_place back;
    uint8_t bytes[TCP_ADDRESS_MAX];
    struct writer to = writer_of(bytes, sizeof(bytes));
    struct wide w;

    wide_open(&w);
    w.place.streams = TCP_STREAMS;
    tcp_place_put_all(&to, &w.place);
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

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

/* Returns how many connections' ends have both buffers of `bytes`, which the
 * kernel counts twice; 0: that the kernel may size both. */
static uint32_t buffers_of(unsigned bytes)
{
    uint32_t n = 0;

    for (int fd = 3; fd < 256; fd++) {
        unsigned sent = 0, got = 0, fixed = 3;
        struct sockaddr_storage at;
        socklen_t len = sizeof(at);

        if (getpeername(fd, (struct sockaddr *)&at, &len) != 0)
            continue;
        len = sizeof(int);
        T_EQ_I64(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sent, &len), 0);
        T_EQ_I64(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &len), 0);
        if (getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &fixed, &len) != 0)
            fixed = bytes ? 3 : 0; /* older than 5.14 */
        n += bytes ? sent == 2 * bytes && got == 2 * bytes && fixed == 3
                   : fixed == 0;
    }
    return n;
}

/* Both ends of a connection have the buffers of the configuration, or those
 * that the kernel likes. */
TEST(buffers_are_as_configured)
{
    const unsigned sizes[] = {100000, 0};

    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct data_conf c = side_conf();
        struct side a, b;

        c.buffer_bytes = sizes[i];
        side_open_with(&a, &data_tcp, &c);
        side_open_with(&b, &data_tcp, &c);
        T_OK(data_tcp.connect(a.d, 0, data_tcp.address(b.d)));
        T_OK(side_post(&a, 0, 0, NULL, 0));
        side_until(&a, &b, &b.arrived_count, 1);
        T_EQ_U64(descriptors(), 2);
        T_EQ_U64(buffers_of(sizes[i]), 2);
        side_close(&a);
        side_close(&b);
    }
}
