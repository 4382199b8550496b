/* tcp_safe.c - see tcp_safe.h. The key at the client and the listener at the
 * server decide before the connect whether it is encrypted; neither end ever
 * falls back to the other way. One thread. */
#include "io/data/tcp_safe_in.h"

#include "base/check.h"
#include "base/log.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

bool tcp_key_get(struct span s, struct tcp_key *out)
{
    struct reader r = reader_of(s.p, s.len);
    uint8_t bits = get_u8(&r);
    const uint8_t *id = get_bytes(&r, TCP_KEY_ID);
    const uint8_t *secret = get_bytes(&r, TCP_KEY_SECRET);

    *out = (struct tcp_key){0};
    if (r.failed || !id || !secret)
        return false;
    out->there = true;
    out->bits = bits & (DATA_KEY_ENCRYPT | DATA_KEY_AES_256);
    memcpy(out->id, id, TCP_KEY_ID);
    memcpy(out->secret, secret, TCP_KEY_SECRET);
    return true;
}

void tcp_key_wipe(struct tcp_key *k)
{
    OPENSSL_cleanse(k, sizeof(*k));
}

const struct tcp_key *tcp_keys_find(
    const struct tcp_keys *keys, const uint8_t *id)
{
    for (uint32_t i = 0; i < keys->count; i++)
        if (keys->of[i].there && memcmp(keys->of[i].id, id, TCP_KEY_ID) == 0)
            return &keys->of[i];
    return NULL;
}

static struct tcp_safe *safe_new(int fd, const uint8_t *token, uint8_t bits)
{
    struct tcp_safe *s = calloc(1, sizeof(*s));

    if (!s) {
        log_error("tcp: out of memory for a connection");
        return NULL;
    }
    s->fd = fd;
    s->token = token;
    s->bits = bits;
    s->why = "";
    return s;
}

/* Completes s; if memory is missing, frees it and returns NULL. */
static struct tcp_safe *complete(struct tcp_safe *s)
{
    if (s->bits && !tls_open(s))
        tcp_safe_free(&s);
    return s;
}

struct tcp_safe *tcp_safe_client(int fd, const struct tcp_key *key,
    const uint8_t *token, uint32_t stream, uint64_t rekey)
{
    struct tcp_safe *s = safe_new(fd, token, key->bits);

    CHECK(key->there, "a proof without a key");
    if (!s)
        return NULL;
    s->key = *key;
    s->stream = stream;
    s->rekey = rekey ? rekey : REKEY_BYTES;
    return complete(s);
}

struct tcp_safe *tcp_safe_server(
    int fd, const struct tcp_keys *keys, const uint8_t *token, uint8_t bits)
{
    struct tcp_safe *s = safe_new(fd, token, bits);

    if (!s)
        return NULL;
    s->server = true;
    s->keys = keys;
    return complete(s);
}

void tcp_safe_free(struct tcp_safe **sp)
{
    struct tcp_safe *s = *sp;

    *sp = NULL;
    if (!s)
        return;
    tls_close(s);
    tcp_records_free(&s->records);
    OPENSSL_cleanse(s, sizeof(*s));
    free(s);
}

enum tcp_proof safe_failed(struct tcp_safe *s, const char *why)
{
    s->why = why;
    return PROOF_FAILED;
}

enum tcp_proof tcp_safe_prove(struct tcp_safe *s)
{
    return s->bits ? tls_step(s) : proof_step(s);
}

const char *tcp_safe_why(const struct tcp_safe *s)
{
    return s->why;
}

struct tcp_records *tcp_safe_end(struct tcp_safe **sp)
{
    struct tcp_records *out = (*sp)->records;

    CHECK(!(*sp)->bits == !out, "the proof is not complete");
    (*sp)->records = NULL;
    tcp_safe_free(sp);
    return out;
}

const uint8_t *tcp_safe_id(const struct tcp_safe *s)
{
    return s->key.there ? s->key.id : NULL;
}

uint32_t tcp_safe_stream(const struct tcp_safe *s)
{
    return s->stream;
}
