/* data_safe_test.c - connections that have to prove a key, under attack: no
 * key, a wrong or an old one, bytes that were heard before, and a relay between
 * the two ends that changes what passes. Both ways, proved and encrypted.
 *
 * The relay is sockets of this test; one thread turns everything. */
#include "io/data/tcp.h"
#include "test/side.h"
#include "test/t.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HEARD_MAX ((size_t)512 * 1024)

/* A sanitizer, which clang does not name here, keeps memory that was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||           \
    defined(__clang__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* Bytes on their way from one end of the relay to the other. */
struct pipe {
    int from, to;
    uint8_t *heard; /* all of them so far */
    size_t len, sent;
};

/* A man in the middle of one connection. */
struct relay {
    int listener;
    struct tcp_place to;
    struct pipe up, down; /* up: to the listener of rows */
    size_t flip_at;       /* of `up`: this byte is changed; SIZE_MAX: none */
    size_t cut_at;        /* and nothing goes on from here */
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
};

static int nonblocking(int fd)
{
    T_TRUE(fd >= 0);
    T_EQ_I64(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* Opens a relay in front of `to`; its address differs in the port alone. */
static void relay_open(struct relay *r, struct side *to)
{
    struct tcp_place place;
    struct writer w = writer_of(r->address, sizeof(r->address));
    int fds[TCP_RAILS];

    *r = (struct relay){.flip_at = SIZE_MAX, .cut_at = SIZE_MAX};
    T_OK(tcp_place_get(to->ops->address(to->d), &r->to));
    T_OK(tcp_listen("lo", "", 0, fds, &place));
    memcpy(place.token, r->to.token, TCP_TOKEN);
    tcp_place_put(&w, &place);
    r->address_len = (uint32_t)w.len;
    r->listener = nonblocking(fds[0]);
    r->up = r->down = (struct pipe){-1, -1, NULL, 0, 0};
    r->up.heard = malloc(HEARD_MAX);
    r->down.heard = malloc(HEARD_MAX);
}

static void relay_end(struct relay *r)
{
    if (r->up.from >= 0)
        close(r->up.from);
    if (r->up.to >= 0)
        close(r->up.to);
    r->up.from = r->up.to = r->down.from = r->down.to = -1;
}

static void relay_close(struct relay *r)
{
    relay_end(r);
    close(r->listener);
    free(r->up.heard);
    free(r->down.heard);
}

/* Returns a connection to where the rows go. */
static int onward(const struct relay *r)
{
    struct pollfd p = {.events = POLLOUT};

    T_OK(tcp_connect(&r->to, 0, 0, &p.fd));
    T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
    return p.fd;
}

static bool pass(struct pipe *p, size_t flip_at, size_t cut_at)
{
    ssize_t n = 1;

    if (p->from < 0)
        return true;
    if (p->len < HEARD_MAX)
        n = recv(p->from, p->heard + p->len, HEARD_MAX - p->len, MSG_DONTWAIT);
    if (n > 0 && p->len < HEARD_MAX) {
        if (flip_at >= p->len && flip_at < p->len + (size_t)n)
            p->heard[flip_at] ^= 0x40;
        p->len += (size_t)n;
    }
    if (p->sent < p->len && p->sent < cut_at) {
        size_t most = (p->len < cut_at ? p->len : cut_at) - p->sent;
        ssize_t s =
            send(p->to, p->heard + p->sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);

        p->sent += s > 0 ? (size_t)s : 0;
    }
    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* Connects onward for a connection that has come. */
static void relay_accept(struct relay *r)
{
    int fd = accept(r->listener, NULL, NULL);

    if (fd < 0)
        return;
    r->up.from = r->down.to = nonblocking(fd);
    r->up.to = r->down.from = onward(r);
    r->up.len = r->up.sent = r->down.len = r->down.sent = 0;
}

static void relay_turn(struct relay *r)
{
    if (r->up.from < 0)
        relay_accept(r);
    if (r->up.from < 0)
        return;
    if (!pass(&r->up, r->flip_at, r->cut_at) ||
        !pass(&r->down, SIZE_MAX, SIZE_MAX) || r->up.sent == r->cut_at)
        relay_end(r);
}

/* Turns all until *count is `wanted`, or a's endpoint broke. */
static void relay_until(struct relay *r, struct side *a, struct side *b,
    const uint32_t *count, uint32_t wanted)
{
    uint64_t limit = t_end_ns(T_WAIT_MS);

    while (*count < wanted && a->broken_count == 0 && t_now_ns() < limit) {
        relay_turn(r);
        side_turn(a, b);
    }
}

static const struct data_ops *by(bool encrypt)
{
    return encrypt ? side_encrypted() : side_proved();
}

#define SOON_MS 1000

/* Opens a side that soon ends a connection whose proof does not come. */
static void side_open_soon(struct side *s, const struct data_ops *ops)
{
    struct data_conf c = side_conf();

    c.greeting_ms = SOON_MS;
    side_open_with(s, ops, &c);
}

/* Connects endpoint 0 through the relay, and sends message 1 of n bytes. */
static void through(
    struct relay *r, struct side *a, struct side *b, uint8_t *p, size_t n)
{
    const uint32_t *count =
        n > 16 * KIB ? &b->fetched_count : &b->arrived_count;

    side_fill(p, n, 1);
    T_OK(a->ops->connect(a->d, 0, span_of(r->address, r->address_len)));
    T_OK(side_post(a, 0, 1, p, n));
    relay_until(r, a, b, count, *count + 1);
}

static bool closed(struct side *s, int fd)
{
    uint64_t limit = t_end_ns(T_WAIT_MS);
    char c[256];
    ssize_t n;

    do {
        side_turn(s, NULL);
        n = recv(fd, c, sizeof(c), MSG_DONTWAIT);
    } while ((n > 0 || (n < 0 && errno == EAGAIN)) && t_now_ns() < limit);
    return n == 0 || errno == ECONNRESET;
}

/* who is refused */

/* One end has this key, the other that of side.c. */
static void refused_with(bool encrypt, const uint8_t *key, size_t len)
{
    struct side a, b;
    uint8_t p[8];
    uint64_t unproven;

    side_open(&a, by(encrypt));
    side_open_soon(&b, by(encrypt));
    side_fill(p, sizeof(p), 1);
    data_tcp.prove(a.d, 0, span_of(key, len));
    T_OK(data_tcp.connect(a.d, 0, b.ops->address(b.d)));
    T_OK(side_post(&a, 0, 1, p, sizeof(p)));
    side_until(&a, &b, &a.broken_count, 1);
    unproven = data_tcp.counts(b.d)->unproven;
    T_EQ_U64(unproven, 1);
    T_EQ_U64(b.arrived_count, 0);
    T_EQ_U64(data_tcp.counts(a.d)->unproven, 1);
    side_close(&a);
    side_close(&b);
}

TEST(a_wrong_key_is_refused)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        uint8_t key[SIDE_KEY];

        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        key[SIDE_KEY - 1] ^= 1; /* the id is right */
        refused_with(encrypt, key, SIDE_KEY);
    }
}

TEST(a_key_of_another_pair_or_run_is_refused)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        uint8_t key[SIDE_KEY];

        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        key[1] ^= 1; /* another id */
        refused_with(encrypt, key, SIDE_KEY);
    }
}

TEST(without_a_key_nobody_is_connected_to)
{
    struct side a, b;

    side_open(&a, side_encrypted());
    side_open(&b, &data_tcp);
    T_ERR(data_tcp.connect(a.d, 0, data_tcp.address(b.d)), ERR_PEER_LOST);
    data_tcp.prove(a.d, 0, side_key(false)); /* proof alone is less */
    T_ERR(data_tcp.connect(a.d, 0, data_tcp.address(b.d)), ERR_PEER_LOST);
    side_close(&a);
    side_close(&b);
}

TEST(the_token_is_not_enough)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side b;
        struct span at;
        struct tcp_place place;
        int fd;

        side_open(&b, by(encrypt));
        at = data_tcp.address(b.d);
        T_OK(tcp_place_get(at, &place));
        T_OK(tcp_connect(&place, 0, 0, &fd));
        side_turn(&b, NULL);
        T_EQ_I64(write(fd, at.p, TCP_HELLO), TCP_HELLO);
        T_TRUE(closed(&b, fd));
        T_EQ_U64(data_tcp.counts(b.d)->strangers, 1);
        close(fd);
        side_close(&b);
    }
}

/* One end proves, the other wants encryption, or the other way round. */
TEST(neither_way_is_taken_for_the_other)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        uint8_t p[8];

        side_open(&a, side_proved());
        side_open(&b, by(!encrypt));
        side_fill(p, sizeof(p), 1);
        data_tcp.prove(a.d, 0, side_key(encrypt));
        T_OK(data_tcp.connect(a.d, 0, data_tcp.address(b.d)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &a.broken_count, 1);
        T_EQ_U64(b.arrived_count, 0);
        side_close(&a);
        side_close(&b);
    }
}

/* keys that come and go */

TEST(a_key_may_come_after_its_connection)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        uint8_t p[8];

        side_open(&a, by(encrypt));
        side_open(&b, by(encrypt));
        data_tcp.admit(b.d, 0, span_of(NULL, 0));
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_settle(&a, &b);
        T_EQ_U64(b.arrived_count, 0);
        data_tcp.admit(b.d, 0, side_key(encrypt));
        side_until(&a, &b, &b.arrived_count, 1);
        T_EQ_U64(a.broken_count, 0);
        side_close(&a);
        side_close(&b);
    }
}

TEST(a_key_that_is_replaced_ends_its_connections)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        uint8_t p[8], key[SIDE_KEY];

        side_open(&a, by(encrypt));
        side_open_soon(&b, by(encrypt));
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d)));
        side_fill(p, sizeof(p), 1);
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &b.arrived_count, 1);
        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        key[1] ^= 1;
        data_tcp.admit(b.d, 0, span_of(key, SIDE_KEY));
        side_until(&a, &b, &a.broken_count, 1);
        a.ops->disconnect(a.d, 0);
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d))); /* the old one */
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &a.broken_count, 2);
        T_EQ_U64(b.arrived_count, 1);
        side_close(&a);
        side_close(&b);
    }
}

/* Three ends with keys of their own send to one, large messages and small: each
 * comes with the number that its key was admitted under. */
TEST(a_message_says_whose_key_its_connection_has)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        uint8_t *p = malloc(64 * KIB), key[SIDE_KEY];
        struct side b, a[3];

        c.safe = encrypt ? SAFE_ENCRYPTED : SAFE_PROVED;
        c.keys_max = 5;
        side_open_with(&b, &data_tcp, &c);
        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        for (uint32_t i = 0; i < 3; i++) {
            side_open_with(&a[i], &data_tcp, &c);
            key[1] = key[SIDE_KEY - 1] = (uint8_t)(100 + i);
            data_tcp.admit(b.d, 4 - i, span_of(key, SIDE_KEY));
            data_tcp.prove(a[i].d, 0, span_of(key, SIDE_KEY));
            T_OK(data_tcp.connect(a[i].d, 0, data_tcp.address(b.d)));
        }
        for (uint32_t id = 0; id < 12; id++) {
            size_t n = id & 4 ? 64 * KIB : 64;

            b.whole = id >= 8;
            side_fill(p, n, id);
            T_OK(side_post(&a[id % 3], 0, id, p, n));
            side_until(&a[id % 3], &b, &b.arrived_count, id + 1);
            side_until(&a[id % 3], &b, &a[id % 3].done_count, id / 3 + 1);
            T_EQ_U64(b.who[id], 4 - id % 3);
        }
        for (uint32_t i = 0; i < 3; i++)
            side_close(&a[i]);
        side_close(&b);
        free(p);
    }
}

/* the man in the middle */

TEST(what_was_heard_cannot_be_said_again)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);
        int fd;

        side_open(&a, by(encrypt));
        side_open(&b, by(encrypt));
        relay_open(&r, &b);
        through(&r, &a, &b, p, 64 * KIB);
        T_EQ_U64(b.fetched_count, 1);
        T_EQ_U64(b.failed_count, 0);
        fd = onward(&r);
        for (size_t at = 0; at < r.up.len;) {
            ssize_t n = send(fd, r.up.heard + at, r.up.len - at,
                MSG_DONTWAIT | MSG_NOSIGNAL);

            if (n < 0 && errno != EAGAIN)
                break;
            at += n > 0 ? (size_t)n : 0;
            side_turn(&b, NULL);
        }
        T_TRUE(closed(&b, fd));
        T_EQ_U64(b.arrived_count, 1);
        T_EQ_U64(data_tcp.counts(b.d)->unproven, 1);
        close(fd);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
        free(p);
    }
}

/* A byte of each part is flipped: of the proof either way fails it; of the
 * encrypted rows it ends the connection, and no message with it comes. */
TEST(a_byte_that_is_flipped_comes_nowhere)
{
    static const size_t places[] = {
        5, 30, 60, 100, 200, 260, 400, 5 * KIB, 20 * KIB, 60 * KIB};

    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);

        side_open(&a, side_encrypted());
        side_open(&b, side_encrypted());
        relay_open(&r, &b);
        r.flip_at = places[i];
        through(&r, &a, &b, p, 64 * KIB);
        T_CHECK(a.broken_count == 1 || b.failed_count == 1,
            "a flip at %zu did nothing", places[i]);
        relay_until(&r, &a, &b, &a.broken_count, 1);
        T_EQ_U64(a.broken_count, 1);
        T_EQ_U64(b.fetched_count, b.failed_count);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
        free(p);
    }
}

TEST(a_proof_that_is_changed_is_none)
{
    static const size_t places[] = {0, 5, 21, 30, 57, 80};

    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct side a, b;
        struct relay r;
        uint8_t p[8];

        side_open(&a, side_proved());
        side_open_soon(&b, side_proved());
        relay_open(&r, &b);
        r.flip_at = places[i];
        through(&r, &a, &b, p, sizeof(p));
        T_EQ_U64(a.broken_count, 1);
        T_EQ_U64(b.arrived_count, 0);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
    }
}

/* Cut inside a message: it is not believed; by the next connection it comes. */
TEST(what_is_cut_comes_again_whole)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);

        side_open(&a, by(encrypt));
        side_open(&b, by(encrypt));
        relay_open(&r, &b);
        r.cut_at = 40 * KIB;
        through(&r, &a, &b, p, 64 * KIB);
        relay_until(&r, &a, &b, &a.broken_count, 1);
        side_until(&a, &b, &b.failed_count, 1);
        T_EQ_U64(b.fetched_count, 1);
        a.ops->disconnect(a.d, 0);
        a.broken_count = 0;
        r.cut_at = SIZE_MAX;
        through(&r, &a, &b, p, 64 * KIB);
        T_EQ_U64(b.fetched_count, 2);
        T_EQ_U64(b.failed_count, 1);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
        free(p);
    }
}

/* A relay leads the sender to the listener of another shard. */
TEST(connections_cannot_be_swapped)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b, c;
        struct relay r;
        struct tcp_place other;
        uint8_t p[8];

        side_open(&a, by(encrypt));
        side_open(&b, by(encrypt));
        side_open(&c, by(encrypt)); /* the same key, another token */
        relay_open(&r, &b);
        T_OK(tcp_place_get(data_tcp.address(c.d), &other));
        r.to.at[0] = other.at[0];
        through(&r, &a, &c, p, sizeof(p));
        T_EQ_U64(a.broken_count, 1);
        T_EQ_U64(c.arrived_count, 0);
        side_close(&a);
        side_close(&b);
        side_close(&c);
        relay_close(&r);
    }
}

/* Rows in the clear are seen by the relay, encrypted ones are not. */
TEST(only_encrypted_rows_are_hidden)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);
        bool seen;

        side_open(&a, by(encrypt));
        side_open(&b, by(encrypt));
        relay_open(&r, &b);
        through(&r, &a, &b, p, 64 * KIB);
        T_EQ_U64(b.fetched_count, 1);
        seen = memmem(r.up.heard, r.up.len, p + 1000, 16) != NULL;
        T_TRUE(seen == !encrypt);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
        free(p);
    }
}

/* OpenSSL of this host cannot encrypt: found at the start, by either end that
 * may have to, and by no other. */
TEST(without_encryption_here_nothing_is_opened_that_needs_it)
{
    static const char conf[] = "openssl_conf = a\n[a]\nproviders = b\n"
                               "[b]\nnull = c\n[c]\nactivate = 1\n";
    int fd = memfd_create("openssl.cnf", 0);
    char path[64];
    struct data_conf c = side_conf();
    struct data_calls calls = {0};
    struct data *d = NULL;

    T_EQ_I64(write(fd, conf, strlen(conf)), (ssize_t)strlen(conf));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    T_EQ_I64(setenv("OPENSSL_CONF", path, 1), 0);
    c.keys_max = 1;
    c.safe = SAFE_ENCRYPTED;
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    close(fd);
    c.safe = SAFE_AUTO; /* loopback: its listener does not encrypt */
    T_OK(data_tcp.open(&d, &c, &calls));
    data_tcp.close(&d);
    c.inbound_max = 0; /* the listeners it connects to might */
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    c.safe = SAFE_PROVED;
    T_OK(data_tcp.open(&d, &c, &calls));
    data_tcp.close(&d);
}

/* A pair's key is good for as many connections as the pair may have. */
TEST(a_newer_connection_ends_the_older_of_its_number)
{
    enum { TIMES = 8 };

    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a[TIMES], b;
        uint8_t p[8];

        c.inbound_max = 2;
        side_open_with(&b, by(encrypt), &c);
        side_fill(p, sizeof(p), 1);
        for (uint32_t i = 0; i < TIMES; i++) {
            side_open(&a[i], by(encrypt));
            T_OK(a[i].ops->connect(a[i].d, 0, b.ops->address(b.d)));
            T_OK(side_post(&a[i], 0, 1, p, sizeof(p)));
            side_until(&a[i], &b, &b.arrived_count, i + 1);
            if (i > 0)
                side_until(&a[i - 1], &b, &a[i - 1].broken_count, 1);
        }
        T_EQ_U64(a[TIMES - 1].broken_count, 0);
        T_EQ_U64(data_tcp.counts(b.d)->refused, 0);
        for (uint32_t i = 0; i < TIMES; i++)
            side_close(&a[i]);
        side_close(&b);
    }
}

TEST(a_number_beyond_those_of_a_peer_is_refused)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a, b;
        struct tcp_place place;
        uint8_t more[TCP_ADDRESS_MAX], *p = calloc(1, SIDE_SEGMENT);
        struct writer w = writer_of(more, sizeof(more));

        c.streams = c.addresses = SIDE_STREAMS; /* one at each */
        side_open_with(&b, by(encrypt), &c);
        c.addresses = 1;
        side_open_with(&a, by(encrypt), &c);
        T_OK(tcp_place_get(data_tcp.place(b.d), &place));
        place.of = 1; /* takes it that all are at this one */
        tcp_place_put_all(&w, &place);
        b.any_bytes = true;
        T_OK(a.ops->connect(a.d, 0, span_of(w.p, (uint32_t)w.len)));
        T_EQ_U64(side_post_many(&a, 0, p, SIDE_SEGMENT), SIDE_MESSAGES);
        side_until(&a, &b, &a.broken_count, 1);
        T_TRUE(data_tcp.counts(b.d)->refused > 0);
        side_close(&a);
        side_close(&b);
        free(p);
    }
}

/* before the proof nothing costs */

/* Returns bytes of this process that are in memory. */
static size_t resident(void)
{
    size_t total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    T_TRUE(f && fscanf(f, "%zu %zu", &total, &pages) == 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Skips the case where there cannot be n descriptors. */
static void many_descriptors(int n)
{
    struct rlimit most;

    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &most), 0);
    if (getdtablesize() < n)
        t_skip("%d descriptors are too few", getdtablesize());
}

TEST(half_open_proofs_are_bounded)
{
    enum { FLOOD = 5000 };

    many_descriptors(FLOOD + 600);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a, b;
        struct tcp_place place;
        size_t before;
        uint8_t p[8];
        int fds[FLOOD];

        c.inbound_max = 512;
        c.greeting_ms = T_NEVER_MS;
        side_open(&a, by(encrypt));
        side_open_with(&b, by(encrypt), &c);
        T_OK(tcp_place_get(data_tcp.address(b.d), &place));
        before = resident();
        for (int i = 0; i < FLOOD; i++) {
            T_OK(tcp_connect(&place, 0, 0, &fds[i]));
            (void)!write(fds[i], encrypt ? "\26\3\1" : "tcp3", 3);
            side_turn(&b, NULL);
        }
        side_settle(&b, NULL);
        T_CHECK(SANITIZED || resident() < before + 32 * MIB,
            "%zu KiB for %d half-open", (resident() - before) / KIB, FLOOD);
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &b.arrived_count, 1);
        T_TRUE(data_tcp.counts(b.d)->strangers >= FLOOD - 512);
        for (int i = 0; i < FLOOD; i++)
            close(fds[i]);
        side_close(&a);
        side_close(&b);
    }
}

/* Strangers connect, more than there are places, and say a little. */
static void flood(struct side *b, const struct tcp_place *to, bool encrypt)
{
    enum { PLACES = 128 };
    static int fds[2 * PLACES];
    static uint32_t at;

    for (int i = 0; i < 3 * PLACES / 2; i++, at++) {
        int *fd = &fds[at % ARRAY_LEN(fds)];

        if (*fd > 0)
            close(*fd);
        T_OK(tcp_connect(to, 0, 0, fd));
        (void)!write(*fd, encrypt ? "\26\3\1" : "tcp3", 3);
        side_turn(b, NULL);
    }
}

/* All places are taken anew while it waits for each answer. */
TEST(a_peer_whose_answers_take_long_proves_its_key_in_a_flood)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        uint64_t limit = t_end_ns(T_WAIT_MS);
        struct side a, b;
        struct relay r;
        uint8_t p[8];

        c.inbound_max = 512;
        c.greeting_ms = T_NEVER_MS;
        side_open(&a, by(encrypt));
        side_open_with(&b, by(encrypt), &c);
        relay_open(&r, &b);
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, span_of(r.address, r.address_len)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        while (b.arrived_count == 0) {
            T_CHECK(a.broken_count == 0 && t_now_ns() < limit,
                "it was closed after %zu bytes", r.up.sent);
            relay_turn(&r);
            side_turn(&a, &b);
            if (r.up.sent > 0)
                flood(&b, &r.to, encrypt);
        }
        side_close(&a);
        side_close(&b);
        relay_close(&r);
    }
}

/* Opens n connections that say `len` bytes of p; `keep` has room for n. */
static void crowd(struct side *b, const struct tcp_place *to, int *keep, int n,
    const uint8_t *p, size_t len)
{
    for (int i = 0; i < n; i++) {
        T_OK(tcp_connect(to, 0, 0, &keep[i]));
        (void)!send(keep[i], p, len, MSG_NOSIGNAL);
        side_turn(b, NULL);
    }
}

static void crowd_ends(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* A peer's host is slow to say its first bytes after it has connected. */
TEST(a_peer_that_speaks_late_proves_its_key_beside_silent_ones)
{
    enum { SILENT = 900 };

    many_descriptors(8 * 1024 + 1);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a, b;
        struct relay r;
        uint8_t p[8];
        int fds[SILENT];

        c.inbound_max = 512;
        c.greeting_ms = T_NEVER_MS;
        side_open(&a, by(encrypt));
        side_open_with(&b, by(encrypt), &c);
        relay_open(&r, &b);
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, span_of(r.address, r.address_len)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        while (r.up.from < 0)
            relay_accept(&r);
        side_settle(&b, NULL);
        crowd(&b, &r.to, fds, SILENT, p, 0);
        relay_until(&r, &a, &b, &b.arrived_count, 1);
        T_EQ_U64(b.arrived_count, 1);
        crowd_ends(fds, SILENT);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
    }
}

/* A listener on the way says the first bytes of a peer again, many times: its
 * connections take each other's places, and not that of the peer. */
TEST(a_name_that_was_heard_spares_no_crowd)
{
    enum { NAMED = 140, SILENT = 900 };

    many_descriptors(8 * 1024 + 1);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a, b;
        struct relay r;
        uint8_t p[8];
        int fds[NAMED + SILENT];

        c.inbound_max = 512;
        c.greeting_ms = T_NEVER_MS;
        side_open(&a, by(encrypt));
        side_open_with(&b, by(encrypt), &c);
        relay_open(&r, &b);
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, span_of(r.address, r.address_len)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        while (r.up.sent == 0 || r.up.sent < r.up.len) {
            side_turn(&a, NULL);
            relay_turn(&r);
        }
        crowd(&b, &r.to, fds, NAMED, r.up.heard, r.up.len);
        relay_end(&r);
        side_until(&a, &b, &a.broken_count, 1);
        a.broken_count = 0;
        a.ops->disconnect(a.d, 0);
        T_OK(a.ops->connect(a.d, 0, span_of(r.address, r.address_len)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        while (r.up.from < 0)
            relay_accept(&r);
        side_settle(&b, NULL);
        crowd(&b, &r.to, fds + NAMED, SILENT, p, 0);
        relay_until(&r, &a, &b, &b.arrived_count, 1);
        T_EQ_U64(b.arrived_count, 1);
        crowd_ends(fds, NAMED + SILENT);
        side_close(&a);
        side_close(&b);
        relay_close(&r);
    }
}

/* A byte now and then does not keep a proof alive beyond its time. */
TEST(a_slow_proof_ends)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side b;
        struct tcp_place place;
        uint64_t begun = t_now_ns();
        bool over = false;
        int fd;

        side_open_soon(&b, by(encrypt));
        T_OK(tcp_place_get(data_tcp.address(b.d), &place));
        T_OK(tcp_connect(&place, 0, 0, &fd));
        for (int i = 0; !over && i < 4000; i++) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            const char *slow = encrypt ? "\26\3\1\2\0\1\0\1\374\3\3" : "tcp3";
            size_t n = strlen(slow);

            (void)!send(fd, i < (int)n ? slow + i : "", 1, MSG_NOSIGNAL);
            side_turn(&b, NULL);
            over = poll(&p, 1, 25) == 1;
        }
        T_TRUE(over && t_now_ns() - begun >= SOON_MS * NS_PER_MS);
        T_EQ_U64(data_tcp.counts(b.d)->strangers, 1);
        close(fd);
        side_close(&b);
    }
}
