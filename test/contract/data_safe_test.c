/* data_safe_test.c - connections with a key under attack: no key, a wrong or an
 * old key, replayed bytes, and a relay that changes bytes between the ends.
 * Both kinds of proof: plain and encrypted. */
#include "io/data/tcp.h"
#include "test/relay.h"
#include "test/side.h"
#include "test/t.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Connects endpoint 0 through the relay, and sends message 1 of n bytes. */
static void through(
    struct relay *r, struct side *a, struct side *b, uint8_t *p, size_t n)
{
    const uint32_t *count =
        n > 16 * KIB ? &b->fetched_count : &b->arrived_count;

    side_fill(p, n, 1);
    T_OK(a->ops->connect(a->d, 0, span_of(r->address, r->address_len), NO_KEY));
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

/* One end has this key, the other end that of side.c. */
static void refused_with(bool encrypt, const uint8_t *key, size_t len)
{
    SIDE a, b;
    uint8_t p[8];
    uint64_t unproven;

    side_open(&a, side_safe(encrypt));
    side_open_soon(&b, side_safe(encrypt));
    side_fill(p, sizeof(p), 1);
    T_OK(data_tcp.connect(a.d, 0, b.ops->address(b.d), span_of(key, len)));
    T_OK(side_post(&a, 0, 1, p, sizeof(p)));
    side_until(&a, &b, &a.broken_count, 1);
    unproven = b.counts.unproven;
    T_EQ_U64(unproven, 1);
    T_EQ_U64(b.arrived_count, 0);
    T_EQ_U64(a.counts.unproven, 1);
}

TEST(a_wrong_key_is_refused)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        uint8_t key[SIDE_KEY];

        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        key[SIDE_KEY - 1] ^= 1; /* the id stays right */
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
    SIDE a, b;

    side_open(&a, side_encrypted());
    side_open(&b, &data_tcp);
    T_ERR(
        data_tcp.connect(a.d, 0, data_tcp.address(b.d), NO_KEY), ERR_PEER_LOST);
    T_ERR(data_tcp.connect(a.d, 0, data_tcp.address(b.d), side_key(false)),
        ERR_PEER_LOST);
}

TEST(the_token_is_not_enough)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        SIDE b;
        struct span at;
        struct tcp_place place;
        int fd;

        side_open(&b, side_safe(encrypt));
        at = data_tcp.address(b.d);
        T_OK(tcp_place_get(at, &place));
        T_OK(tcp_connect(&place, 0, &fd));
        side_turn(&b, NULL);
        T_EQ_I64(write(fd, at.p, TCP_HELLO), TCP_HELLO);
        T_TRUE(closed(&b, fd));
        T_EQ_U64(b.counts.strangers, 1);
        close(fd);
    }
}

/* One end uses plain proofs, the other requires encryption, and vice versa. */
TEST(neither_way_is_taken_for_the_other)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        SIDE a, b;
        uint8_t p[8];

        side_open(&a, side_proved());
        side_open(&b, side_safe(!encrypt));
        side_fill(p, sizeof(p), 1);
        T_OK(
            data_tcp.connect(a.d, 0, data_tcp.address(b.d), side_key(encrypt)));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &a.broken_count, 1);
        T_EQ_U64(b.arrived_count, 0);
    }
}

/* keys that come and go */

TEST(a_key_may_come_after_its_connection)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        SIDE a, b;
        uint8_t p[8];

        side_open(&a, side_safe(encrypt));
        side_open(&b, side_safe(encrypt));
        data_tcp.admit(b.d, 0, span_of(NULL, 0));
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d), NO_KEY));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_settle(&a, &b);
        T_EQ_U64(b.arrived_count, 0);
        data_tcp.admit(b.d, 0, side_key(encrypt));
        side_until(&a, &b, &b.arrived_count, 1);
        T_EQ_U64(a.broken_count, 0);
    }
}

TEST(a_key_that_is_replaced_ends_its_connections)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        SIDE a, b;
        uint8_t p[8], key[SIDE_KEY];

        side_open(&a, side_safe(encrypt));
        side_open_soon(&b, side_safe(encrypt));
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d), NO_KEY));
        side_send(&a, 0, 1, p, sizeof(p));
        side_until(&a, &b, &b.arrived_count, 1);
        memcpy(key, side_key(encrypt).p, SIDE_KEY);
        key[1] ^= 1;
        data_tcp.admit(b.d, 0, span_of(key, SIDE_KEY));
        side_until(&a, &b, &a.broken_count, 1);
        a.ops->disconnect(a.d, 0);
        T_OK(a.ops->connect(
            a.d, 0, b.ops->address(b.d), NO_KEY)); /* the old key */
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &a.broken_count, 2);
        T_EQ_U64(b.arrived_count, 1);
    }
}

/* Three ends with keys of their own send large and small messages to a fourth.
 * Each message has the number under which the key was admitted. */
/* RULES 10.6 */
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
            T_OK(data_tcp.connect(
                a[i].d, 0, data_tcp.address(b.d), span_of(key, SIDE_KEY)));
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

        side_open(&a, side_safe(encrypt));
        side_open(&b, side_safe(encrypt));
        relay_open(&r, &b);
        through(&r, &a, &b, p, 64 * KIB);
        T_EQ_U64(b.fetched_count, 1);
        T_EQ_U64(b.failed_count, 0);
        fd = relay_onward(&r);
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
        T_EQ_U64(b.counts.unproven, 1);
        close(fd);
        side_close_both(&a, &b);
        relay_close(&r);
        free(p);
    }
}

/* Flips a byte of each part. In a proof of either kind, the proof fails; in
 * encrypted rows the connection ends, and the changed message does not
 * arrive. */
/* F45 */
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
        side_close_both(&a, &b);
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
        side_close_both(&a, &b);
        relay_close(&r);
    }
}

/* A connection is cut inside a message: the message does not count, and the
 * next connection brings it. */
TEST(what_is_cut_comes_again_whole)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);

        side_open(&a, side_safe(encrypt));
        side_open(&b, side_safe(encrypt));
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
        side_close_both(&a, &b);
        relay_close(&r);
        free(p);
    }
}

/* A relay leads the sender to another shard's listener. */
TEST(connections_cannot_be_swapped)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b, c;
        struct relay r;
        struct tcp_place other;
        uint8_t p[8];

        side_open(&a, side_safe(encrypt));
        side_open(&b, side_safe(encrypt));
        side_open(&c, side_safe(encrypt)); /* the same key, another token */
        relay_open(&r, &b);
        T_OK(tcp_place_get(data_tcp.address(c.d), &other));
        r.to.at[0] = other.at[0];
        through(&r, &a, &c, p, sizeof(p));
        T_EQ_U64(a.broken_count, 1);
        T_EQ_U64(c.arrived_count, 0);
        side_close_both(&a, &b);
        side_close(&c);
        relay_close(&r);
    }
}

/* The relay sees plain rows, but no encrypted ones. */
TEST(only_encrypted_rows_are_hidden)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        uint8_t *p = malloc(64 * KIB);
        bool seen;

        side_open(&a, side_safe(encrypt));
        side_open(&b, side_safe(encrypt));
        relay_open(&r, &b);
        through(&r, &a, &b, p, 64 * KIB);
        T_EQ_U64(b.fetched_count, 1);
        seen = memmem(r.up.heard, r.up.len, p + 1000, 16) != NULL;
        T_TRUE(seen == !encrypt);
        side_close_both(&a, &b);
        relay_close(&r);
        free(p);
    }
}

/* OpenSSL of this host cannot encrypt. Each end that may have to encrypt finds
 * that at the start; others open. */
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
    c.safe = SAFE_AUTO; /* a listener at loopback does not encrypt */
    T_OK(data_tcp.open(&d, &c, &calls));
    data_tcp.close(&d);
    c.inbound_max = 0; /* listeners of others may encrypt */
    T_ERR(data_tcp.open(&d, &c, &calls), ERR_INTERNAL);
    c.safe = SAFE_PROVED;
    T_OK(data_tcp.open(&d, &c, &calls));
    data_tcp.close(&d);
}

/* A pair's key allows as many connections as the pair may have. */
TEST(a_newer_connection_ends_the_older_of_its_number)
{
    enum { TIMES = 8 };

    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        struct side a[TIMES], b;
        uint8_t p[8];

        c.inbound_max = 2;
        side_open_with(&b, side_safe(encrypt), &c);
        side_fill(p, sizeof(p), 1);
        for (uint32_t i = 0; i < TIMES; i++) {
            side_open(&a[i], side_safe(encrypt));
            T_OK(a[i].ops->connect(a[i].d, 0, b.ops->address(b.d), NO_KEY));
            T_OK(side_post(&a[i], 0, 1, p, sizeof(p)));
            side_until(&a[i], &b, &b.arrived_count, i + 1);
            if (i > 0)
                side_until(&a[i - 1], &b, &a[i - 1].broken_count, 1);
        }
        T_EQ_U64(a[TIMES - 1].broken_count, 0);
        T_EQ_U64(b.counts.refused, 0);
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

        /* one connection at each address */
        c.streams = c.addresses = SIDE_STREAMS;
        side_open_with(&b, side_safe(encrypt), &c);
        c.addresses = 1;
        side_open_with(&a, side_safe(encrypt), &c);
        T_OK(tcp_place_get(data_tcp.address(b.d), &place));
        place.of = 1; /* as if all connections went to this address */
        tcp_place_put(&w, &place);
        b.any_bytes = true;
        T_OK(a.ops->connect(a.d, 0, span_of(w.p, (uint32_t)w.len), NO_KEY));
        T_EQ_U64(side_post_many(&a, 0, p, SIDE_SEGMENT), SIDE_MESSAGES);
        side_until(&a, &b, &a.broken_count, 1);
        T_TRUE(b.counts.refused > 0);
        side_close_both(&a, &b);
        free(p);
    }
}
