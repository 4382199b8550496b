/* tcp_records_test.c - the records that carry encrypted rows. Each of our ends
 * runs against OpenSSL's TLS 1.3, which knows nothing of ours: with each suite,
 * and with keys that change. Then invalid records, which this file makes with
 * keys that OpenSSL derives. */
#include "io/data/tcp_safe.h"
#include "test/t.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#define KIB      ((size_t)1024)
#define SECRET   32 /* of SHA-256 */
#define ROWS     (3 * 1024 * KIB)
#define REKEY    (200 * KIB)
#define IDENTITY (4 + TCP_KEY_ID + TCP_TOKEN + 4)

static const uint8_t token[TCP_TOKEN] = "0123456789abcdef";
static struct tcp_key key = {
    true, DATA_KEY_ENCRYPT, {1, 2, 3}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
static const char *const suites[] = {"TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_256_GCM_SHA384"};

/* Returns byte i of what is sent. */

static uint8_t byte_of(size_t i)
{
    return (uint8_t)(i * 7 + (i >> 8) * 3 + (i >> 16));
}

static uint8_t *rows(size_t n)
{
    uint8_t *p = malloc(n);

    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(i);
    return p;
}

static void verify(const uint8_t *p, size_t at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        T_CHECK(p[i] == byte_of(at + i), "byte %zu is %u, not %u", at + i, p[i],
            byte_of(at + i));
}

/* OpenSSL's end */

static void put_name(uint8_t *out)
{
    struct writer w = writer_of(out, IDENTITY);

    put_bytes(&w, "mmx1", 4);
    put_bytes(&w, key.id, TCP_KEY_ID);
    put_bytes(&w, token, TCP_TOKEN);
    put_u32(&w, 5);
    T_FALSE(w.failed);
}

static SSL_SESSION *session(SSL *ssl)
{
    const unsigned char aes[] = {0x13, key.bits & DATA_KEY_AES_256 ? 2 : 1};
    SSL_SESSION *s = SSL_SESSION_new();

    T_TRUE(SSL_SESSION_set1_master_key(s, key.secret, TCP_KEY_SECRET));
    T_TRUE(SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes)));
    T_TRUE(SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION));
    return s;
}

static int use(SSL *ssl, const EVP_MD *md, const unsigned char **id,
    size_t *len, SSL_SESSION **out)
{
    static uint8_t name[IDENTITY];

    put_name(name);
    *id = name;
    *len = sizeof(name);
    *out = session(ssl);
    return 1;
}

static int find(
    SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **out)
{
    uint8_t name[IDENTITY];

    put_name(name);
    T_EQ_U64(len, sizeof(name));
    T_EQ_MEM(id, name, len);
    *out = session(ssl);
    return 1;
}

/* Counts the KeyUpdates that OpenSSL was sent. */
static void on_message(int sends, int version, int type, const void *p,
    size_t n, SSL *ssl, void *ud)
{
    *(uint32_t *)ud += !sends && type == 22 && n == 5 && *(const char *)p == 24;
}

struct both {
    int ours_fd, theirs_fd;
    struct tcp_safe *safe;
    struct tcp_records *ours;
    SSL_CTX *c;
    SSL *theirs;
    uint32_t updates;
    struct tcp_keys keys;
};

static void open_theirs(struct both *b, const char *suite, bool server)
{
    b->c = SSL_CTX_new(TLS_method());
    T_TRUE(SSL_CTX_set_min_proto_version(b->c, TLS1_3_VERSION));
    T_TRUE(SSL_CTX_set_ciphersuites(b->c, suite));
    T_TRUE(SSL_CTX_set_num_tickets(b->c, 0));
    SSL_CTX_set_psk_use_session_callback(b->c, use);
    SSL_CTX_set_psk_find_session_callback(b->c, find);
    SSL_CTX_set_msg_callback(b->c, on_message);
    SSL_CTX_set_msg_callback_arg(b->c, &b->updates);
    b->theirs = SSL_new(b->c);
    T_TRUE(SSL_set_fd(b->theirs, b->theirs_fd));
    if (server)
        SSL_set_accept_state(b->theirs);
    else
        SSL_set_connect_state(b->theirs);
}

/* Opens both ends, with OpenSSL as the server or as the client, and completes
 * the handshake at OpenSSL's end. */
static void both_open(struct both *b, const char *suite, bool server)
{
    int fds[2], n;

    signal(SIGPIPE, SIG_IGN);
    memset(b, 0, sizeof(*b));
    T_EQ_I64(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    b->ours_fd = fds[0];
    b->theirs_fd = fds[1];
    key.bits = DATA_KEY_ENCRYPT;
    if (strcmp(suite, suites[2]) == 0)
        key.bits |= DATA_KEY_AES_256;
    b->keys = (struct tcp_keys){&key, 1};
    open_theirs(b, suite, server);
    b->safe = server ? tcp_safe_client(fds[0], &key, token, 5, REKEY)
                     : tcp_safe_server(fds[0], &b->keys, token, key.bits);
    while ((n = SSL_do_handshake(b->theirs)) != 1 && !b->ours) {
        T_EQ_I64(SSL_get_error(b->theirs, n), SSL_ERROR_WANT_READ);
        if (tcp_safe_prove(b->safe) == PROOF_DONE)
            b->ours = tcp_safe_end(&b->safe);
    }
    T_TRUE(n == 1 || SSL_do_handshake(b->theirs) == 1);
    T_EQ_STR(SSL_get_cipher(b->theirs), suite);
}

static void ours_proves(struct both *b)
{
    if (!b->ours && tcp_safe_prove(b->safe) == PROOF_DONE)
        b->ours = tcp_safe_end(&b->safe);
    T_TRUE(b->ours && !b->safe);
}

static void both_close(struct both *b)
{
    tcp_records_free(&b->ours);
    SSL_free(b->theirs);
    SSL_CTX_free(b->c);
    close(b->ours_fd);
    close(b->theirs_fd);
}

/* records of our sender */

/* Cuts rows into pieces of any size, many small ones and some large. */
static unsigned cut(
    uint8_t *p, size_t n, struct iovec *iov, unsigned most, uint64_t *seed)
{
    unsigned k = 0;

    for (size_t at = 0; at < n && k < most; k++) {
        size_t len =
            t_rand_below(seed, t_rand_below(seed, 8) > 0 ? 40 : 100 * KIB);

        len = len < n - at ? len : n - at;
        iov[k] = (struct iovec){p + at, len};
        at += len;
    }
    return k;
}

/* Has OpenSSL read what has come; returns the number of bytes. */
static size_t theirs_reads(struct both *b, size_t at)
{
    static uint8_t some[20000];
    size_t all = 0, n;

    while (SSL_read_ex(b->theirs, some, sizeof(some), &n)) {
        verify(some, at + all, n);
        all += n;
    }
    T_EQ_I64(SSL_get_error(b->theirs, 0), SSL_ERROR_WANT_READ);
    return all;
}

TEST(openssl_reads_what_ours_sends)
{
    for (size_t s = 0; s < ARRAY_LEN(suites); s++) {
        struct both b;
        uint8_t *p = rows(ROWS);
        struct iovec iov[100];
        size_t sent = 0, heard = 0;
        uint64_t seed = 7;

        both_open(&b, suites[s], true);
        ours_proves(&b);
        while (heard < ROWS) {
            unsigned k = cut(p + sent, ROWS - sent, iov, 100, &seed);
            ssize_t n = tcp_records_send(b.ours, b.ours_fd, iov, k);

            T_TRUE(n >= 0 || errno == EAGAIN);
            T_TRUE(n >= 0 || tcp_records_wait(b.ours));
            sent += n > 0 ? (size_t)n : 0;
            if (n <= 0 || sent == ROWS)
                heard += theirs_reads(&b, heard);
        }
        T_EQ_U64(heard, ROWS);
        T_TRUE(b.updates > ROWS / REKEY / 2);
        both_close(&b);
        free(p);
    }
}

/* our receiver */

/* Opens all records that have come, into pieces of any size; returns the number
 * of bytes. */
static size_t ours_opens(struct both *b, size_t at, uint64_t *seed, int *end)
{
    static uint8_t place[200 * KIB];
    struct iovec iov[101];
    size_t all = 0;

    for (;;) {
        unsigned k = cut(place, 100 * KIB, iov, 100, seed);
        ssize_t n;

        iov[k] = (struct iovec){place + 100 * KIB, RECORD_MAX};
        n = tcp_records_open(b->ours, iov);
        *end = n < 0 ? errno : 0;
        if (n <= 0)
            return all;
        for (unsigned i = 0; n > 0; i++) {
            size_t part =
                iov[i].iov_len < (size_t)n ? iov[i].iov_len : (size_t)n;

            verify(iov[i].iov_base, at + all, part);
            all += part;
            n -= (ssize_t)part;
        }
    }
}

/* The rows come right behind the client's last handshake message. */
TEST(ours_reads_what_openssl_sends)
{
    for (size_t i = 0; i < 2 * ARRAY_LEN(suites); i++) {
        struct both b;
        uint8_t *p = rows(ROWS);
        size_t sent = 0, heard = 0, n;
        uint64_t seed = 7;
        int end = EAGAIN;

        both_open(&b, suites[i / 2], false);
        if (i % 2)
            T_TRUE(SSL_set_block_padding(b.theirs, 1000));
        while (heard < ROWS) {
            size_t len = 1 + t_rand_below(&seed, 50 * KIB);

            len = len < ROWS - sent ? len : ROWS - sent;
            if (len > 0 && SSL_write_ex(b.theirs, p + sent, len, &n)) {
                sent += len;
                if (len % 5 == 0 && sent < ROWS)
                    T_TRUE(SSL_key_update(b.theirs, len % 2));
                if (sent < 100 * KIB)
                    continue;
            }
            if (!b.ours)
                ours_proves(&b);
            while (tcp_records_read(b.ours, b.ours_fd) > 0) {
                heard += ours_opens(&b, heard, &seed, &end);
                T_EQ_I64(end, EAGAIN);
            }
        }
        SSL_shutdown(b.theirs);
        T_TRUE(tcp_records_read(b.ours, b.ours_fd) > 0);
        T_EQ_U64(ours_opens(&b, heard, &seed, &end), 0);
        T_EQ_I64(end, 0);
        both_close(&b);
        free(p);
    }
}

/* records that are made here */

struct maker {
    uint8_t secret[SECRET], key[16], iv[12];
    uint64_t number;
    struct tcp_records *r; /* reads from fds[1] */
    int fds[2];
};

/* Derives a key with OpenSSL's own derivation. */
static void expand(struct maker *m, const char *label, uint8_t *out, size_t n)
{
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "TLS13-KDF", NULL);
    EVP_KDF_CTX *c = EVP_KDF_CTX_new(kdf);
    OSSL_PARAM params[] = {OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, "SHA256", 0),
        OSSL_PARAM_construct_octet_string(
            OSSL_KDF_PARAM_KEY, m->secret, SECRET),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, "tls13 ", 6),
        OSSL_PARAM_construct_octet_string(
            OSSL_KDF_PARAM_LABEL, (void *)(uintptr_t)label, strlen(label)),
        OSSL_PARAM_construct_end()};

    T_TRUE(EVP_KDF_derive(c, out, n, params) > 0);
    EVP_KDF_CTX_free(c);
    EVP_KDF_free(kdf);
}

static void maker_keys(struct maker *m)
{
    expand(m, "key", m->key, sizeof(m->key));
    expand(m, "iv", m->iv, sizeof(m->iv));
    m->number = 0;
}

static void maker_open(struct maker *m)
{
    memset(m, 0, sizeof(*m));
    memset(m->secret, 11, SECRET);
    maker_keys(m);
    T_EQ_I64(socketpair(AF_UNIX, SOCK_STREAM, 0, m->fds), 0);
    m->r = tcp_records_new(EVP_aes_128_gcm(), EVP_sha256(), m->secret, 0);
}

static void maker_close(struct maker *m)
{
    tcp_records_free(&m->r);
    close(m->fds[0]);
    close(m->fds[1]);
}

/* Makes a record around `inside`; returns its bytes. */
static size_t make(struct maker *m, uint8_t *out, const void *inside, size_t n)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    uint8_t nonce[12];
    int len;

    memcpy(nonce, m->iv, sizeof(nonce));
    nonce[11] ^= (uint8_t)m->number;
    nonce[10] ^= (uint8_t)(m->number++ >> 8);
    memcpy(out,
        (uint8_t[]){23, 3, 3, (uint8_t)((n + 16) >> 8), (uint8_t)(n + 16)}, 5);
    T_TRUE(EVP_EncryptInit_ex(c, EVP_aes_128_gcm(), NULL, m->key, nonce));
    T_TRUE(EVP_EncryptUpdate(c, NULL, &len, out, 5));
    T_TRUE(EVP_EncryptUpdate(c, out + 5, &len, inside, (int)n));
    T_TRUE(EVP_EncryptFinal_ex(c, nonce, &len));
    T_TRUE(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, 16, out + 5 + n));
    EVP_CIPHER_CTX_free(c);
    return 5 + n + 16;
}

/* Makes a record of `n` bytes of rows from `at` on. */
static size_t make_rows(struct maker *m, uint8_t *out, size_t at, size_t n)
{
    uint8_t *inside = malloc(n + 1);

    for (size_t i = 0; i < n; i++)
        inside[i] = byte_of(at + i);
    inside[n] = 23;
    n = make(m, out, inside, n + 1);
    free(inside);
    return n;
}

/* Gives these bytes to the receiver, which opens one record; returns its
 * result, or -errno. */
static ssize_t given(struct maker *m, const uint8_t *p, size_t n)
{
    static uint8_t place[RECORD_MAX + 1];
    struct iovec iov = {place, RECORD_MAX};
    ssize_t got;

    T_EQ_I64(send(m->fds[0], p, n, 0), (ssize_t)n);
    for (size_t in = 0; in < n; in += (size_t)got) {
        got = tcp_records_read(m->r, m->fds[1]);
        T_TRUE(got > 0);
    }
    place[RECORD_MAX] = 77;
    got = tcp_records_open(m->r, &iov);
    T_EQ_U64(place[RECORD_MAX], 77);
    if (got > 0)
        verify(place, 0, (size_t)got);
    return got < 0 ? -errno : got;
}

static const size_t lengths[] = {1, 5, 100, 255, 256, 257, 1000, RECORD_MAX};

TEST(a_record_with_a_bit_changed_is_none)
{
    static uint8_t p[20 * 1024];

    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        size_t step = 1 + lengths[i] / 300, all = lengths[i] + 22;

        for (size_t at = 0; at < all;
             at += at < 6 || all - at < 20 ? 1 : step) {
            struct maker m;
            ssize_t got;

            maker_open(&m);
            T_EQ_U64(make_rows(&m, p, 0, lengths[i]), all);
            p[at] ^= 1;
            got = given(&m, p, all);
            if (at < 5 && got == -EAGAIN) /* the receiver expects more bytes */
                got = given(&m, p, 256);
            T_CHECK(got == -EPROTO, "%zu bytes, changed at %zu: %zd",
                lengths[i], at, got);
            maker_close(&m);
        }
    }
}

TEST(a_record_that_is_cut_is_waited_for)
{
    static uint8_t p[20 * 1024];

    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        size_t step = 1 + lengths[i] / 30;

        for (size_t at = 1; at < lengths[i] + 22; at += step) {
            struct maker m;
            size_t n;

            maker_open(&m);
            n = make_rows(&m, p, 0, lengths[i]);
            T_EQ_I64(given(&m, p, at), -EAGAIN);
            T_EQ_I64(given(&m, p + at, n - at), (ssize_t)lengths[i]);
            maker_close(&m);
        }
    }
}

TEST(a_record_is_good_once_and_in_its_turn)
{
    static uint8_t first[2000], second[2000];
    struct maker m;
    size_t n;

    maker_open(&m);
    n = make_rows(&m, first, 0, 1000);
    T_EQ_I64(given(&m, first, n), 1000);
    T_EQ_I64(given(&m, first, n), -EPROTO);
    maker_close(&m);
    maker_open(&m); /* the second record before the first */
    n = make_rows(&m, first, 0, 1000);
    T_EQ_U64(make_rows(&m, second, 0, 1000), n);
    T_EQ_I64(given(&m, second, n), -EPROTO);
    maker_close(&m);
}

TEST(headers_that_cannot_be_are_refused_before_their_record_comes)
{
    static const struct {
        uint8_t head[5];
        int gives;
    } cases[] = {
        {{23, 3, 3, 0, 0}, EPROTO},
        {{23, 3, 3, 0, 16}, EPROTO}, /* a tag, but no type */
        {{23, 3, 3, 0, 17}, EAGAIN},
        {{23, 3, 3, 0x40, 0x11}, EAGAIN}, /* RECORD_MAX, type, tag */
        {{23, 3, 3, 0x40, 0x12}, EPROTO},
        {{23, 3, 3, 0x41, 0x01}, EPROTO}, /* 2^14 + 257 */
        {{23, 3, 3, 0xff, 0xff}, EPROTO},
        {{20, 3, 3, 0, 1}, EPROTO},
        {{21, 3, 3, 0, 2}, EPROTO},
        {{22, 3, 3, 0, 17}, EPROTO},
        {{0, 0, 0, 0, 0}, EPROTO},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker m;

        maker_open(&m);
        T_CHECK(
            given(&m, cases[i].head, 5) == -cases[i].gives, "header %zu", i);
        maker_close(&m);
    }
}

/* Content other than rows, from a peer that has the keys. */
TEST(what_is_no_row_of_a_record_is_understood_or_ends_it)
{
    static const struct {
        uint8_t inside[12];
        size_t n, zeros; /* padding behind it */
        ssize_t gives;
    } cases[] = {
        {{0, 23}, 2, 0, 1},    /* a row */
        {{0, 23}, 2, 9, 1},    /* a padded row */
        {{0, 23}, 2, 5000, 1}, /* a padded row larger than a small record */
        {{23}, 1, 0, -EAGAIN}, /* no row */
        {{23}, 1, 5000, -EAGAIN},
        {{0}, 1, 0, -EPROTO}, /* no type */
        {{0}, 1, 5000, -EPROTO},
        {{1, 0, 21}, 3, 0, 0}, /* close_notify */
        {{2, 0, 21}, 3, 0, 0},
        {{2, 20, 21}, 3, 0, -EPROTO}, /* another alert */
        {{1, 0, 0, 21}, 4, 0, -EPROTO},
        {{24, 0, 0, 1, 0, 22}, 6, 0, -EAGAIN}, /* KeyUpdate */
        {{24, 0, 0, 1, 1, 22}, 6, 0, -EAGAIN},
        {{24, 0, 0, 1, 1, 22}, 6, 5000, -EAGAIN},
        {{24, 0, 0, 1, 2, 22}, 6, 0, -EPROTO},
        {{24, 0, 0, 0, 22}, 5, 0, -EPROTO},
        {{24, 0, 0, 1, 0, 0, 22}, 7, 0, -EPROTO},
        {{24, 22}, 2, 0, -EPROTO}, /* a part of a KeyUpdate */
        {{4, 0, 0, 1, 0, 22}, 6, 0, -EPROTO},
        {{22}, 1, 0, -EPROTO},
        {{1, 20}, 2, 0, -EPROTO}, /* ChangeCipherSpec */
        {{0, 99}, 2, 0, -EPROTO},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static uint8_t p[20 * 1024], inside[10 * 1024];
        struct maker m;
        ssize_t got;

        maker_open(&m);
        memset(inside, 0, sizeof(inside));
        memcpy(inside, cases[i].inside, cases[i].n);
        got = given(&m, p, make(&m, p, inside, cases[i].n + cases[i].zeros));
        T_CHECK(got == cases[i].gives, "case %zu gives %zd", i, got);
        if (got == -EAGAIN && cases[i].inside[0] == 24) {
            expand(&m, "traffic upd", m.secret, SECRET);
            maker_keys(&m);
        }
        if (got == -EAGAIN || got > 0)
            T_EQ_I64(given(&m, p, make_rows(&m, p, 0, 3)), 3);
        maker_close(&m);
    }
}

/* A whole record of another type is first decrypted into the rows' place. */
TEST(a_long_record_of_another_type_ends_the_connection)
{
    static uint8_t p[20 * 1024], inside[5000];
    struct maker m;

    maker_open(&m);
    inside[sizeof(inside) - 1] = 22;
    T_EQ_I64(given(&m, p, make(&m, p, inside, sizeof(inside))), -EPROTO);
    maker_close(&m);
}
