/* tcp_records.c - see tcp_records.h. Records are those of RFC 8446 (5), so that
 * any TLS 1.3 may be at the other end: a header of 5 bytes; the plaintext,
 * which ends with a byte for its type; a tag. The nonce is made of the record's
 * number under its keys and the iv; the header is authenticated, too. Keys
 * follow from a secret, the next secret from that one (7.1 to 7.3).
 *
 * The sender encrypts rows from where they lie into a box that takes a message
 * of 256 KiB, and sends that at once. The receiver reads as much at once, and
 * decrypts rows into their place, before the record's tag is checked. If the
 * tag is wrong the connection ends, and the message is never complete: nothing
 * may rely on a part of a message. A piece that fills a record begins a new
 * one, so that the header before it does not share its record.
 *
 * Invariant: only whole records are in a sender's box, and their numbers are
 * used once. A record whose rows cannot be read is begun again with its number;
 * nothing of the first attempt was sent.
 *
 * Rejected: OpenSSL's own records, each of which was a copy at each end, a send
 * and a wake-up: at least twice the cost of the cipher. Kernel TLS, which needs
 * a module that hosts do not load. */
#include "io/data/tcp_records.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/carrier.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HEAD       5
#define TAG        16
#define IV         12
#define KEY_MAX    32
#define UPDATE     5 /* bytes of a KeyUpdate */
#define RECORD_ALL (HEAD + RECORD_MAX + 1 + TAG)
#define BOX        (18 * RECORD_ALL) /* the last is room for a KeyUpdate */
#define SMALL      ((size_t)256)     /* records that are decrypted in the box */

enum { TYPE_ALERT = 21, TYPE_HANDSHAKE = 22, TYPE_DATA = 23 };
enum { CLOSE_NOTIFY = 0 };

/* The message does not ask the other end to change its keys, too. */
static uint8_t key_update[UPDATE] = {24, 0, 0, 1, 0};

struct tcp_records {
    EVP_CIPHER_CTX *c;
    const EVP_CIPHER *kind;
    const EVP_MD *hash;
    uint8_t secret[RECORD_SECRET_MAX], iv[IV];
    uint64_t number; /* of the next record */
    uint64_t rekey, since;
    size_t at, len; /* box[at..len): to send, or not opened yet */
    uint8_t box[BOX];
};

/* keys */

/* HKDF-Expand-Label of the secret without context, of at most one block. */
static bool expand(
    struct tcp_records *r, const char *label, uint8_t *out, size_t n)
{
    uint8_t all[EVP_MAX_MD_SIZE];
    char info[32];
    /* u16 n, u8 length and label, u8 0 for the context; 1: HKDF's first block
     */
    int len = snprintf(info, sizeof(info), "%c%c%ctls13 %s%c%c", 0, (int)n,
        (int)strlen(label) + 6, label, 0, 1);
    int hash = EVP_MD_get_size(r->hash);
    bool ok =
        HMAC(r->hash, r->secret, hash, (uint8_t *)info, (size_t)len, all, NULL);

    CHECK(len < (int)sizeof(info) && n <= (size_t)hash, "label %s", label);
    if (ok)
        memcpy(out, all, n);
    OPENSSL_cleanse(all, sizeof(all));
    return ok;
}

/* Derives the keys of the present secret. */
static bool use_secret(struct tcp_records *r)
{
    size_t len = (size_t)EVP_CIPHER_get_key_length(r->kind);
    uint8_t key[KEY_MAX];
    bool ok = len <= KEY_MAX && expand(r, "key", key, len) &&
              expand(r, "iv", r->iv, IV) &&
              EVP_CipherInit_ex(r->c, r->kind, NULL, key, r->iv, r->rekey > 0);

    OPENSSL_cleanse(key, sizeof(key));
    r->number = r->since = 0;
    return ok;
}

static bool next_secret(struct tcp_records *r)
{
    return expand(
               r, "traffic upd", r->secret, (size_t)EVP_MD_get_size(r->hash)) &&
           use_secret(r);
}

struct tcp_records *tcp_records_new(const EVP_CIPHER *cipher,
    const EVP_MD *hash, const uint8_t *secret, uint64_t rekey)
{
    /* pages of the box stay untouched until used */
    struct tcp_records *r = malloc(sizeof(*r));

    if (r) {
        memset(r, 0, offsetof(struct tcp_records, box));
        r->kind = cipher;
        r->hash = hash;
        r->rekey = rekey;
        memcpy(r->secret, secret, (size_t)EVP_MD_get_size(hash));
        r->c = EVP_CIPHER_CTX_new();
    }
    if (r && r->c && use_secret(r))
        return r;
    log_error("tls: no memory for a connection");
    tcp_records_free(&r);
    return NULL;
}

void tcp_records_free(struct tcp_records **rp)
{
    struct tcp_records *r = *rp;

    *rp = NULL;
    if (!r)
        return;
    EVP_CIPHER_CTX_free(r->c);
    OPENSSL_cleanse(r, offsetof(struct tcp_records, box));
    free(r);
}

/* the cipher */

/* Bytes that go through the cipher. */
struct part {
    EVP_CIPHER_CTX *c;
    uint8_t *to;
    const uint8_t *from;
    int n;
    bool ok;
};

static void update(void *ud)
{
    struct part *p = ud;

    p->ok = EVP_CipherUpdate(p->c, p->to, &p->n, p->from, p->n);
}

/* Encrypts n bytes of v into `box`, or decrypts `box` into them. False with
 * errno. */
static bool cipher(
    struct tcp_records *r, const struct iovec *v, uint8_t *box, size_t n)
{
    for (; n > 0; v++) {
        size_t part = v->iov_len < n ? v->iov_len : n;
        struct part p = {r->c, r->rekey ? box : v->iov_base,
            r->rekey ? v->iov_base : box, (int)part, false};
        bool there = guard_call(update, &p);

        errno = there ? EPROTO : EFAULT; /* a signal may have changed it */
        if (!there || !p.ok)
            return false;
        box += part;
        n -= part;
    }
    return true;
}

/* Seals or opens the record at `head`: n bytes of v, then its type. False with
 * errno; it can be begun again. */
static bool pass(struct tcp_records *r, uint8_t *head, const struct iovec *v,
    size_t n, uint8_t *type)
{
    struct iovec last = {type, 1};
    uint8_t nonce[IV], *tag = head + HEAD + n + 1;
    int done;

    memcpy(nonce, r->iv, IV);
    for (unsigned i = 0; i < 8; i++)
        nonce[IV - 1 - i] ^= (uint8_t)(r->number >> 8 * i);
    errno = EPROTO;
    if (!EVP_CipherInit_ex(r->c, NULL, NULL, NULL, nonce, -1) ||
        !EVP_CipherUpdate(r->c, NULL, &done, head, HEAD) ||
        !cipher(r, v, head + HEAD, n) || !cipher(r, &last, tag - 1, 1))
        return false;
    if (r->rekey)
        return EVP_CipherFinal_ex(r->c, nonce, &done) > 0 &&
               EVP_CIPHER_CTX_ctrl(r->c, EVP_CTRL_AEAD_GET_TAG, TAG, tag) > 0;
    return EVP_CIPHER_CTX_ctrl(r->c, EVP_CTRL_AEAD_SET_TAG, TAG, tag) > 0 &&
           EVP_CipherFinal_ex(r->c, nonce, &done) > 0;
}

/* sending */

/* Returns the bytes of the next record. */
static size_t next_len(const struct iovec *v, const struct iovec *end)
{
    size_t len = 0;

    for (; v < end && len < RECORD_MAX; v++) {
        size_t room = RECORD_MAX - len;

        if (len > 0 && v->iov_len >= RECORD_MAX)
            break;
        len += v->iov_len < room ? v->iov_len : room;
    }
    return len;
}

/* Appends a record of n bytes of v to the box. False with errno. */
static bool seal(
    struct tcp_records *r, uint8_t type, const struct iovec *v, size_t n)
{
    uint8_t *head = r->box + r->len;
    size_t len = n + 1 + TAG;

    CHECK(n <= RECORD_MAX && r->len + HEAD + len <= BOX, "%zu bytes at %zu", n,
        r->len);
    head[0] = TYPE_DATA; /* the true type is inside */
    head[1] = head[2] = 3;
    head[3] = (uint8_t)(len >> 8);
    head[4] = (uint8_t)len;
    if (!pass(r, head, v, n, &type))
        return false;
    r->number++;
    r->len += HEAD + len;
    return true;
}

/* Once the present keys are used up, announces the next ones and uses them. */
static bool change_keys(struct tcp_records *r, size_t n)
{
    struct iovec v = {key_update, UPDATE};

    r->since += n;
    return r->since < r->rekey ||
           (seal(r, TYPE_HANDSHAKE, &v, UPDATE) && next_secret(r));
}

/* Sends what is sealed. False with errno. */
static bool flush(struct tcp_records *r, int fd)
{
    while (r->at < r->len) {
        ssize_t n = send(
            fd, r->box + r->at, r->len - r->at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        r->at += (size_t)n;
    }
    r->at = r->len = 0;
    return true;
}

ssize_t tcp_records_send(
    struct tcp_records *r, int fd, struct iovec *iov, unsigned n)
{
    const struct iovec *end = iov + n;
    size_t sealed = 0, len;

    CHECK(r->rekey, "a receiver sends");
    if (!flush(r, fd))
        return -1;
    while (r->len + 2 * RECORD_ALL <= BOX && (len = next_len(iov, end)) > 0) {
        if (!seal(r, TYPE_DATA, iov, len)) {
            if (sealed == 0 || errno != EFAULT)
                return -1;
            break;
        }
        sealed += len;
        iov = iov_skip(iov, len);
        if (!change_keys(r, len))
            return -1;
    }
    return flush(r, fd) || errno == EAGAIN ? (ssize_t)sealed : -1;
}

size_t tcp_records_wait(const struct tcp_records *r)
{
    return r->len - r->at;
}

/* receiving */

ssize_t tcp_records_read(struct tcp_records *r, int fd)
{
    size_t have = r->len - r->at;
    ssize_t n;

    CHECK(!r->rekey && have < RECORD_ALL, "%zu bytes are not opened", have);
    memmove(r->box, r->box + r->at, have);
    r->at = 0;
    r->len = have;
    n = recv(fd, r->box + have, BOX - have, MSG_DONTWAIT);
    r->len += n > 0 ? (size_t)n : 0;
    return n;
}

/* Handles a record that was decrypted in the box: few rows, padded ones, or
 * something else. Returns as tcp_records_open(); EAGAIN: nothing for rows. */
static ssize_t other(
    struct tcp_records *r, const struct iovec *iov, const uint8_t *p, size_t n)
{
    uint8_t type = 0;
    bool good;

    while (n > 0 && type == 0) /* zeros may follow the type */
        type = p[--n];
    if (type == TYPE_DATA && n > 0 && guard_scatter(iov, p, n))
        return (ssize_t)n;
    if (type == TYPE_ALERT && n == 2 && p[1] == CLOSE_NOTIFY)
        return 0;
    good = type == TYPE_DATA ||
           (type == TYPE_HANDSHAKE && n == UPDATE && p[UPDATE - 1] <= 1 &&
               memcmp(p, key_update, UPDATE - 1) == 0 && next_secret(r));
    errno = !good ? EPROTO : n > 0 && type == TYPE_DATA ? EFAULT : EAGAIN;
    return -1;
}

/* Opens a record of n bytes and a tag. Returns as other(). */
static ssize_t open_one(
    struct tcp_records *r, const struct iovec *iov, uint8_t *head, size_t n)
{
    struct iovec own = {head + HEAD, n - 1};
    uint8_t type = 0;

    if (n > SMALL && !pass(r, head, iov, n - 1, &type))
        return -1;
    if (type != TYPE_DATA && !pass(r, head, &own, n - 1, &head[HEAD + n - 1]))
        return -1;
    r->number++;
    return type == TYPE_DATA ? (ssize_t)n - 1 : other(r, iov, head + HEAD, n);
}

ssize_t tcp_records_open(struct tcp_records *r, const struct iovec *iov)
{
    ssize_t got = -1;

    do {
        uint8_t *head = r->box + r->at;
        size_t have = r->len - r->at, n;

        errno = EAGAIN;
        if (have < HEAD)
            return -1;
        n = (size_t)head[3] << 8 | head[4];
        errno = EPROTO;
        if (head[0] != TYPE_DATA || n < 1 + TAG || n > RECORD_MAX + 1 + TAG)
            return -1;
        errno = EAGAIN;
        if (have < HEAD + n)
            return -1;
        r->at += HEAD + n;
        got = open_one(r, iov, head, n - TAG);
    } while (got < 0 && errno == EAGAIN);
    return got;
}
