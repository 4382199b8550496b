/* data_tcp_test.c - promises that only data_tcp makes: who may connect, which
 * input it refuses, and messages that are fetched whole. Strangers are sockets
 * of this test; one thread runs everything. */
#include "io/data/tcp.h"
#include "test/side.h"
#include "test/t.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Returns a connection to s. */
static int stranger(struct side *s)
{
    struct pollfd p = {.events = POLLOUT};
    struct tcp_place place;

    T_OK(tcp_place_get(s->ops->address(s->d), &place));
    T_OK(tcp_connect(&place, 0, &p.fd));
    T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
    return p.fd;
}

/* Does what stranger() does, and sends a peer's greeting. */
static int friend(struct side *s)
{
    struct span a = s->ops->address(s->d);
    int fd = stranger(s);

    /* an address begins with the greeting */
    T_EQ_I64(write(fd, a.p, TCP_HELLO), TCP_HELLO);
    return fd;
}

static void send_all(int fd, const void *p, size_t n)
{
    T_EQ_I64(write(fd, p, n), (ssize_t)n);
}

/* Sends a frame, and a header in the form of side.c. */
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

static bool ended(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static bool stays_open(struct side *s, int fd)
{
    side_settle(s, NULL);
    return !ended(fd);
}

/* True if s closes fd at once, and not for lack of a greeting. */
static bool closed(struct side *s, int fd)
{
    uint64_t limit = t_now_ns() + SIDE_GREETING_MS * NS_PER_MS / 2;
    bool over = false;

    for (uint32_t i = 0; !over && (i < 100 || t_now_ns() < limit); i++) {
        side_turn(s, NULL);
        over = ended(fd);
    }
    return over;
}

TEST(who_does_not_know_the_token_is_closed)
{
    SIDE a;
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
}

TEST(a_frame_may_come_byte_by_byte)
{
    SIDE a;
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
}

TEST(a_header_that_is_too_long_ends_the_connection)
{
    SIDE a;
    int fd;

    side_open(&a, &data_tcp);
    fd = friend(&a);
    send_head(fd, 1 << 20, 0, 0);
    T_TRUE(closed(&a, fd));
    T_EQ_U64(a.arrived_count, 0);
    close(fd);
}

/* Announces a message of `len` bytes and sends none of them. The test asks for
 * the message whole, if it gets there. */
static void a_body(uint32_t len, bool closes)
{
    SIDE a;
    int fd;

    side_open(&a, &data_tcp);
    a.whole = true;
    fd = friend(&a);
    send_head(fd, 8, 1, len);
    T_TRUE(closes ? closed(&a, fd) : stays_open(&a, fd));
    T_EQ_U64(a.arrived_count, 0);
    close(fd);
}

/* With some of these the sum of a frame's lengths wraps at 2^32. */
TEST(a_body_that_cannot_be_meant_ends_the_connection)
{
    static const uint32_t wraps[] = {16, 15, 8, 1, 56, 2600};

    for (size_t i = 0; i < ARRAY_LEN(wraps); i++)
        a_body(0 - wraps[i], true);
    a_body(SIDE_MESSAGE + 1, true);
    a_body(0x80000000u, true);
    a_body(SIDE_MESSAGE, false);
}

TEST(a_message_that_is_not_ended_fails_its_fetch)
{
    static uint8_t some[40000];
    SIDE a;
    const uint64_t tenth = SIDE_STALL_MS * NS_PER_MS / 10;
    uint64_t now = 1000 * NS_PER_S;
    int fd;

    side_open(&a, &data_tcp);
    a.fetch_pieces = 3;
    a.any_bytes = true;
    fd = friend(&a);
    send_head(fd, 8, 1, 1000000);
    side_until(&a, NULL, &a.arrived_count, 1);
    data_tcp.tick(a.d, now);
    data_tcp.tick(a.d, now + 9 * tenth);
    T_EQ_U64(a.fetched_count, 0);
    for (int i = 0; i < 10; i++) { /* bytes arrive: the time begins anew */
        send_all(fd, some, sizeof(some));
        side_settle(&a, NULL);
    }
    for (uint32_t i = 18; i < 28; i++) { /* one byte each time is not enough */
        data_tcp.tick(a.d, now + i * tenth);
        T_EQ_U64(a.fetched_count, 0);
        send_all(fd, some, 1);
        side_settle(&a, NULL);
    }
    data_tcp.tick(a.d, now + 28 * tenth);
    T_EQ_U64(a.fetched_count, 1);
    T_EQ_U64(a.failed_count, 1);
    T_TRUE(closed(&a, fd));
    close(fd);
}

/* Silent connections take no places from peers. */
TEST(silent_strangers_give_way)
{
    struct data_conf c = side_conf();
    SIDE a, b;
    int fds[6];
    uint8_t p[8];

    c.inbound_max = 4;
    side_open_with(&a, &data_tcp, &c);
    side_open(&b, &data_tcp);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = stranger(&a);
        side_settle(&a, NULL);
    }
    T_OK(data_tcp.connect(b.d, 0, data_tcp.address(a.d), NO_KEY));
    side_send(&b, 0, 2, p, 8);
    side_until(&a, &b, &a.arrived_count, 1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* Peers that connect in one turn, after silent connections have taken all
 * places: none of the peers evicts another. */
TEST(the_oldest_stranger_gives_way)
{
    struct data_conf c = side_conf();
    SIDE a;
    int silent[8], fds[4];

    c.inbound_max = ARRAY_LEN(silent);
    c.greeting_ms = T_NEVER_MS;
    side_open_with(&a, &data_tcp, &c);
    for (size_t i = 0; i < ARRAY_LEN(silent); i++) {
        silent[i] = stranger(&a);
        side_settle(&a, NULL);
    }
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = stranger(&a);
    side_turn(&a, NULL); /* all are accepted, and have sent nothing yet */
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        send_all(fds[i], data_tcp.address(a.d).p, TCP_HELLO);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        T_TRUE(stays_open(&a, fds[i]));
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        T_TRUE(i < ARRAY_LEN(fds) ? closed(&a, silent[i])
                                  : stays_open(&a, silent[i]));
    T_EQ_U64(a.counts.strangers, ARRAY_LEN(fds));
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        close(silent[i]);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* While fd is open, turns `a` only when its descriptor is readable, and never
 * ticks it. Returns the number of turns. */
static uint32_t turns_until_closed(struct side *a, int fd)
{
    struct pollfd p = {.fd = data_tcp.fd(a->d), .events = POLLIN};
    uint32_t turns = 0;
    char c;

    for (; recv(fd, &c, 1, MSG_DONTWAIT) != 0; turns++) {
        while (data_tcp.progress(a->d) > 0)
            ;
        T_OK(data_tcp.arm(a->d));
        T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
        side_turn(a, NULL);
    }
    return turns;
}

TEST(silence_ends_while_nothing_else_happens)
{
    struct data_conf c = side_conf();
    SIDE a;
    int peer, fd;
    uint64_t begun;

    c.greeting_ms = 1000;
    side_open_with(&a, &data_tcp, &c);
    peer = friend(&a);
    side_settle(&a, NULL);
    begun = t_now_ns();
    fd = stranger(&a);
    send_all(fd, TCP_MAGIC, 4);
    T_TRUE(turns_until_closed(&a, fd) < 10);
    T_TRUE(t_now_ns() - begun >= c.greeting_ms * NS_PER_MS);
    T_TRUE(stays_open(&a, peer));
    T_EQ_U64(a.counts.strangers, 1);
    close(peer);
    close(fd);
}

static bool fd_free(void)
{
    int fd = dup(STDERR_FILENO);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* errno of the next accept4(); 0: the kernel's */
static int of_network;

int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
    errno = of_network;
    of_network = 0;
    return errno ? -1 : (int)syscall(SYS_accept4, fd, from, len, flags);
}

/* accept(2) reports errors of the network there. */
TEST(an_error_of_the_network_refuses_no_connection)
{
    SIDE a, b;
    uint8_t bytes[8];

    side_open(&b, &data_tcp);
    side_open(&a, &data_tcp);
    T_OK(data_tcp.connect(b.d, 0, data_tcp.address(a.d), NO_KEY));
    of_network = EPROTO;
    side_send(&b, 0, 2, bytes, 8);
    side_until(&a, &b, &a.arrived_count, 1);
    T_EQ_I64(of_network, 0);
    T_EQ_U64(a.counts.refused, 0);
}

/* Another thread takes the spare descriptor. The carrier does not spin, and
 * serves the connection once there are descriptors again. */
/* F37 */
TEST(without_any_descriptor_connections_wait)
{
    struct rlimit old, few;
    SIDE a, b;
    struct pollfd p;
    uint8_t bytes[8];

    side_open(&b, &data_tcp);
    side_open(&a, &data_tcp);
    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &old), 0);
    T_OK(data_tcp.connect(b.d, 0, data_tcp.address(a.d), NO_KEY));
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    T_FALSE(fd_free());
    p = (struct pollfd){.fd = data_tcp.fd(a.d), .events = POLLIN};
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &old), 0);
    T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1); /* the connection came */
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    data_tcp.progress(a.d);
    T_EQ_U64(data_tcp.progress(a.d), 0);
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &old), 0);
    /* the carrier does not poll the listener now */
    T_EQ_I64(poll(&p, 1, 0), 0);
    side_send(&b, 0, 2, bytes, 8);
    side_until(&a, &b, &a.arrived_count, 1);
    T_EQ_U64(a.counts.refused, 0);
}

/* Some pages of the rows are gone when they are sent: zeros go instead, and the
 * endpoint still sends other messages. */
static void some_pages_left(
    const struct data_ops *ops, size_t bytes, size_t left)
{
    int file = memfd_create("rows", 0);
    struct side a, b;
    uint8_t *p, other[8];

    T_EQ_I64(ftruncate(file, (off_t)left), 0);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    T_TRUE(p != MAP_FAILED);
    side_pair(&a, &b, ops);
    b.fetch_pieces = 1;
    b.any_bytes = true;
    T_OK(side_post(&a, 0, 1, p, bytes));
    side_until(&a, &b, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 0);
    side_until(&a, &b, &a.done_count, 1);
    b.any_bytes = false;
    side_send(&a, 0, 2, other, 8);
    side_until(&a, &b, &b.arrived_count, 2);
    T_EQ_U64(a.broken_count, 0);
    side_close_both(&a, &b);
    munmap(p, bytes);
    close(file);
}

/* The first page is missing, so the kernel takes nothing. One test per fault,
 * since the thread sanitizer leaves the signal blocked after a process's first
 * fault. */
TEST_IS(pages_that_were_taken_away_go_as_zeros,
    some_pages_left(&data_tcp, 64 * KIB, 16 * KIB));

/* The kernel takes the pages before the missing one. */
TEST_IS(pages_that_are_missed_later_go_as_zeros,
    some_pages_left(&data_tcp, MIB, 512 * KIB));

/* Pages go missing while they are encrypted. */
TEST_IS(pages_that_were_taken_away_go_as_zeros_encrypted,
    some_pages_left(side_encrypted(), 64 * KIB, 16 * KIB));
TEST_IS(pages_that_are_missed_later_go_as_zeros_encrypted,
    some_pages_left(side_encrypted(), MIB, 512 * KIB));

static uint8_t *no_pages(size_t bytes)
{
    int file = memfd_create("rows", 0);
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    T_TRUE(p != MAP_FAILED);
    close(file);
    return p;
}

/* The place of rows is gone when they arrive: the connection ends. */
TEST(a_place_that_was_taken_away_fails_its_fetch)
{
    static uint8_t some[40000];
    struct side a;
    int fd;

    side_open(&a, &data_tcp);
    a.memory = no_pages(MIB);
    a.any_bytes = true;
    fd = friend(&a);
    send_head(fd, 8, 1, 100000);
    send_all(fd, some, sizeof(some));
    side_until(&a, NULL, &a.failed_count, 1);
    T_TRUE(closed(&a, fd));
    munmap(a.memory, MIB);
    side_close(&a);
    close(fd);
}

TEST(the_same_where_rows_are_encrypted)
{
    static uint8_t some[100000];
    SIDE a, b;

    side_pair(&a, &b, side_encrypted());
    b.memory = no_pages(MIB);
    b.any_bytes = true;
    T_OK(side_post(&a, 0, 1, some, sizeof(some)));
    side_until(&a, &b, &b.failed_count, 1);
    side_until(&a, &b, &a.broken_count, 1);
    T_EQ_U64(b.counts.malformed, 0);
    munmap(b.memory, MIB);
}

TEST(more_connections_of_peers_than_agreed_are_refused)
{
    struct data_conf c = side_conf();
    SIDE a;
    int fds[3];

    c.inbound_max = 2;
    side_open_with(&a, &data_tcp, &c);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = friend(&a);
        side_settle(&a, NULL);
    }
    T_TRUE(stays_open(&a, fds[0]));
    T_TRUE(closed(&a, fds[2]));
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

TEST(who_only_sends_has_no_address)
{
    struct data_conf c = side_conf();
    SIDE a, b;
    uint8_t p[8];

    c.inbound_max = 0;
    side_open_with(&a, &data_tcp, &c);
    side_open(&b, &data_tcp);
    T_EQ_U64(data_tcp.address(a.d).len, 0);
    T_OK(data_tcp.connect(a.d, 0, data_tcp.address(b.d), NO_KEY));
    side_send(&a, 0, 1, p, 8);
    side_until(&a, &b, &b.arrived_count, 1);
}

TEST(says_what_cannot_be_had)
{
    struct data_conf c = side_conf();
    struct data_calls calls = {.ud = NULL};
    struct data *d = NULL;
    SIDE a, b;
    struct tcp_place place;
    char ports[32];
    unsigned port;

    c.devices = "nosuchdevice0";
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    T_TRUE(d == NULL);
    side_open(&a, &data_tcp);
    side_open(&b, &data_ucx);
    T_ERR(
        data_tcp.connect(a.d, 0, data_ucx.address(b.d), NO_KEY), ERR_MALFORMED);
    T_ERR(
        data_ucx.connect(b.d, 0, data_tcp.address(a.d), NO_KEY), ERR_MALFORMED);
    side_close(&b);
    /* Another socket has the only port of the range. */
    T_OK(tcp_place_get(data_tcp.address(a.d), &place));
    port = ntohs(((struct sockaddr_in *)&place.at[0])->sin_port);
    snprintf(ports, sizeof(ports), "%u-%u", port, port);
    c = side_conf();
    c.ports = ports;
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
}

/* Two messages are fetched whole, with small ones around them. */
/* RULES 3.3 */
TEST(a_message_is_brought_whole_when_asked)
{
    static const size_t sizes[] = {100, 300 * KIB, 10, 200 * KIB, 20 * KIB, 0};
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT * 2];

    side_pair(&a, &b, &data_tcp);
    b.whole = true;
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        side_send(&a, 0, i, p, sizes[i]);
        side_until(&a, &b, &a.done_count, i + 1);
    }
    side_until(&a, &b, &b.arrived_count, ARRAY_LEN(sizes));
    T_EQ_U64(b.fetched_count, 0);
}

/* Returns a place at a port of this test's socket, which is bound, and listens
 * unless `backlog` is negative. */
static struct tcp_place trap(int *fd, int backlog)
{
    struct tcp_place p = {.rails = 1, .streams = 1, .of = 1};
    socklen_t len = sizeof(p.at[0]);

    p.at[0].ss_family = AF_INET;
    ((struct sockaddr_in *)&p.at[0])->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    T_EQ_I64(
        bind(*fd, (struct sockaddr *)&p.at[0], sizeof(struct sockaddr_in)), 0);
    T_EQ_I64(getsockname(*fd, (struct sockaddr *)&p.at[0], &len), 0);
    if (backlog >= 0)
        T_EQ_I64(listen(*fd, backlog), 0);
    return p;
}

/* Connects without a message and waits until the endpoint breaks; returns
 * why. */
static const char *breaks(struct side *s, const struct tcp_place *p)
{
    uint8_t bytes[TCP_ADDRESS_MAX];
    struct writer w = writer_of(bytes, sizeof(bytes));
    uint64_t limit = t_end_ns(T_WAIT_MS);
    const char *text = "";

    tcp_place_put(&w, p);
    T_OK(s->ops->connect(s->d, 0, span_of(bytes, (uint32_t)w.len), NO_KEY));
    while (s->broken_count == 0 && t_now_ns() < limit) {
        side_turn(s, NULL);
        s->ops->tick(s->d, t_now_ns());
    }
    T_EQ_U64(s->broken_count, 1);
    T_EQ_U64(s->made_count, 0);
    /* Both ends are on this host, and the address is loopback. */
    T_EQ_U64(s->ops->state(s->d, 0, &text), TROUBLE_DATA_LOOPBACK);
    return text;
}

/* RULES 9.6 */
TEST(who_is_refused_hears_why)
{
    SIDE a;
    struct tcp_place p;
    int fd;

    side_open(&a, &data_tcp);
    p = trap(&fd, -1);
    T_TRUE(strstr(breaks(&a, &p), ": Connection refused") != NULL);
    close(fd);
}

/* Sets small buffers on this process's connections to p. */
static void small_buffers(const struct tcp_place *p)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in at;
        socklen_t len = sizeof(at);
        int bytes = 64 * KIB;

        if (getpeername(fd, (struct sockaddr *)&at, &len) == 0 &&
            at.sin_port == ((const struct sockaddr_in *)&p->at[0])->sin_port)
            T_EQ_I64(
                setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)),
                0);
    }
}

/* The receiver reads on, but so slowly that the message would take hours. */
TEST(who_reads_by_drops_is_broken)
{
    static uint8_t p[SIDE_MESSAGE], address[TCP_ADDRESS_MAX];
    struct writer w = writer_of(address, sizeof(address));
    uint64_t now = 1000 * NS_PER_S;
    int fd, one, bytes = 64 * KIB;
    struct tcp_place place = trap(&fd, 8);
    SIDE a;

    side_open(&a, &data_tcp);
    T_EQ_I64(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    tcp_place_put(&w, &place);
    T_OK(a.ops->connect(a.d, 0, span_of(w.p, (uint32_t)w.len), NO_KEY));
    small_buffers(&place);
    T_OK(side_post(&a, 0, 1, p, sizeof(p)));
    side_until(&a, NULL, &a.made_count, 1);
    one = accept(fd, NULL, NULL);
    side_settle(&a, NULL);
    for (uint32_t i = 0; i < 9 && a.broken_count == 0; i++) {
        T_EQ_I64(recv(one, p, 64 * KIB, MSG_WAITALL), 64 * KIB);
        side_settle(&a, NULL);
        data_tcp.tick(a.d, now + i * SIDE_STALL_MS * NS_PER_MS / 3);
    }
    side_settle(&a, NULL);
    T_EQ_U64(a.broken_count, 1);
    close(one);
    close(fd);
}

/* A full backlog drops connections, as a firewall does. */
/* RULES 9.6 */
TEST(who_gets_no_answer_hears_why)
{
    SIDE a;
    struct tcp_place p;
    struct data_conf c = side_conf();
    struct pollfd fill[8];
    int fd, n = 0;

    c.stall_ms = 200;
    side_open_with(&a, &data_tcp, &c);
    p = trap(&fd, 0);
    do {
        T_TRUE(n < 8);
        fill[n].events = POLLOUT;
        T_OK(tcp_connect(&p, 0, &fill[n].fd));
    } while (poll(&fill[n++], 1, 100) == 1);
    T_TRUE(strstr(breaks(&a, &p), ": no answer") != NULL);
    while (n > 0)
        close(fill[--n].fd);
    close(fd);
}
