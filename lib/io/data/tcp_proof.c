/* tcp_proof.c - a proof without encryption: each end sends a fresh number, and
 * answers the other's with a MAC of both numbers under the key. See tcp_safe.h.
 *
 *   client: "tcp3", id of the key, u32 stream, 32 bytes    TCP_PROOF_HELLO
 *   server: 32 bytes, MAC of "server"
 *   client: MAC of "client", then frames as without a proof
 *
 * A MAC is HMAC-SHA256 of: 16 bytes of its role, the listener's token, the id,
 * the stream, both numbers. So recorded messages cannot be replayed, to this
 * listener or another, in either role. Later bytes are not protected: on a path
 * where bytes can be changed, encrypt.
 *
 * Messages have fixed lengths, and no byte beyond one is read. One thread. */
#include "io/data/tcp_safe_in.h"

#include "base/check.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

#define MAGIC        "tcp3"
#define HELLO_BYTES  (4 + TCP_KEY_ID + 4 + NONCE_BYTES)
#define ANSWER_BYTES (NONCE_BYTES + MAC_BYTES)
#define ROLE_BYTES   16
#define SAID_BYTES                                                             \
    (ROLE_BYTES + TCP_TOKEN + TCP_KEY_ID + 4 + NONCE_BYTES + NONCE_BYTES)

_Static_assert(sizeof(((struct tcp_safe *)0)->box) >= HELLO_BYTES &&
                   sizeof(((struct tcp_safe *)0)->box) >= ANSWER_BYTES,
    "each message fits the box");

/* Reads until the box has `need` bytes. False: not yet; s->why is set if they
 * can never come. */
static bool receive(struct tcp_safe *s, uint32_t need)
{
    CHECK(s->have <= need && need <= sizeof(s->box), "%u of %u bytes", s->have,
        need);
    while (s->have < need) {
        ssize_t n = recv(s->fd, s->box + s->have, need - s->have, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0) {
            s->why = "the other end closed it";
            return false;
        }
        s->have += (uint32_t)n;
    }
    s->have = 0;
    return true;
}

/* Sends n bytes, which a new connection's buffer always takes. */
static bool say(struct tcp_safe *s, const uint8_t *p, size_t n)
{
    return send(s->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

static bool mac(const struct tcp_safe *s, const char *role, uint8_t *out)
{
    const uint8_t *client = s->server ? s->theirs : s->ours;
    const uint8_t *server = s->server ? s->ours : s->theirs;
    char label[ROLE_BYTES] = {0};
    uint8_t said[SAID_BYTES];
    struct writer w = writer_of(said, sizeof(said));
    unsigned n = 0;

    memcpy(label, role, strlen(role));
    put_bytes(&w, label, ROLE_BYTES);
    put_bytes(&w, s->token, TCP_TOKEN);
    put_bytes(&w, s->key.id, TCP_KEY_ID);
    put_u32(&w, s->stream);
    put_bytes(&w, client, NONCE_BYTES);
    put_bytes(&w, server, NONCE_BYTES);
    CHECK(!w.failed && w.len == SAID_BYTES, "%zu bytes", w.len);
    return HMAC(EVP_sha256(), s->key.secret, TCP_KEY_SECRET, said, w.len, out,
               &n) &&
           n == MAC_BYTES;
}

/* True if `theirs` is the MAC of that role. */
static bool proves(
    const struct tcp_safe *s, const char *role, const uint8_t *theirs)
{
    uint8_t right[MAC_BYTES];

    return mac(s, role, right) && CRYPTO_memcmp(right, theirs, MAC_BYTES) == 0;
}

static bool fresh(struct tcp_safe *s)
{
    return getrandom(s->ours, NONCE_BYTES, 0) == NONCE_BYTES;
}

static enum tcp_proof wait_or_fail(struct tcp_safe *s)
{
    return s->why[0] ? PROOF_FAILED : PROOF_WAITS;
}

static enum tcp_proof client_hello(struct tcp_safe *s)
{
    uint8_t hello[HELLO_BYTES];
    struct writer w = writer_of(hello, sizeof(hello));

    if (!fresh(s))
        return safe_failed(s, "no random bytes");
    put_bytes(&w, MAGIC, 4);
    put_bytes(&w, s->key.id, TCP_KEY_ID);
    put_u32(&w, s->stream);
    put_bytes(&w, s->ours, NONCE_BYTES);
    CHECK(!w.failed && w.len == HELLO_BYTES, "%zu bytes", w.len);
    s->answered = true;
    return say(s, hello, w.len) ? PROOF_WAITS : safe_failed(s, "not connected");
}

static enum tcp_proof client_step(struct tcp_safe *s)
{
    uint8_t answer[MAC_BYTES];

    if (!s->answered) {
        enum tcp_proof step = client_hello(s);

        if (step != PROOF_WAITS)
            return step;
    }
    if (!receive(s, ANSWER_BYTES))
        return wait_or_fail(s);
    memcpy(s->theirs, s->box, NONCE_BYTES);
    if (!proves(s, "mmx server", s->box + NONCE_BYTES))
        return safe_failed(s, "the listener does not have the key");
    if (!mac(s, "mmx client", answer) || !say(s, answer, MAC_BYTES))
        return safe_failed(s, "not connected");
    return PROOF_DONE;
}

/* Handles the client's first message, which is in the box, and answers it. */
static enum tcp_proof answer(struct tcp_safe *s)
{
    struct reader r = reader_of(s->box + 4, HELLO_BYTES - 4);
    const uint8_t *id = get_bytes(&r, TCP_KEY_ID);
    const struct tcp_key *key = tcp_keys_find(s->keys, id);
    uint8_t said[ANSWER_BYTES];

    if (memcmp(s->box, MAGIC, 4) != 0)
        return safe_failed(s, "it names no key");
    if (!key) {
        s->have = HELLO_BYTES; /* keep the message, to try again later */
        return PROOF_UNKNOWN;
    }
    s->key = *key;
    s->stream = get_u32(&r);
    memcpy(s->theirs, get_bytes(&r, NONCE_BYTES), NONCE_BYTES);
    if (!fresh(s) || !mac(s, "mmx server", said + NONCE_BYTES))
        return safe_failed(s, "no random bytes");
    memcpy(said, s->ours, NONCE_BYTES);
    s->answered = true;
    return say(s, said, ANSWER_BYTES) ? PROOF_WAITS
                                      : safe_failed(s, "not connected");
}

static enum tcp_proof server_step(struct tcp_safe *s)
{
    if (!s->answered) {
        enum tcp_proof step;

        if (!receive(s, HELLO_BYTES))
            return s->have >= 4 && memcmp(s->box, MAGIC, 4) != 0
                       ? safe_failed(s, "it names no key")
                       : wait_or_fail(s);
        step = answer(s);
        if (step != PROOF_WAITS)
            return step;
    }
    if (!receive(s, MAC_BYTES))
        return wait_or_fail(s);
    return proves(s, "mmx client", s->box)
               ? PROOF_DONE
               : safe_failed(s, "it does not have the key");
}

enum tcp_proof proof_step(struct tcp_safe *s)
{
    return s->server ? server_step(s) : client_step(s);
}
