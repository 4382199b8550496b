/* tcp_safe_in.h - inside of tcp_safe.h, shared by tcp_safe.c (one interface),
 * tcp_proof.c (a challenge and its answer) and tcp_tls.c (TLS). Private to
 * them. */
#ifndef MMX_IO_TCP_SAFE_IN_H
#define MMX_IO_TCP_SAFE_IN_H

#include "io/data/tcp_safe.h"

#include <openssl/ssl.h>

#define NONCE_BYTES 32
#define MAC_BYTES   32
/* The name of the key in TLS: magic, id, token, u32 stream. */
#define IDENTITY_BYTES (4 + TCP_KEY_ID + TCP_TOKEN + 4)

struct tcp_safe {
    int fd;
    bool server, answered;
    uint8_t bits;                /* DATA_KEY_* */
    const struct tcp_keys *keys; /* server */
    const uint8_t *token;
    uint32_t stream;
    struct tcp_key key; /* server: set once it knows which */
    const char *why;

    /* tcp_proof.c */
    uint8_t box[128]; /* bytes so far of the other end's message */
    uint32_t have;
    uint8_t ours[NONCE_BYTES], theirs[NONCE_BYTES];

    /* tcp_tls.c */
    SSL *ssl; /* NULL: no TLS */
    uint8_t identity[IDENTITY_BYTES];
    uint8_t secret[RECORD_SECRET_MAX]; /* of the client's records */
    size_t secret_len;
    uint64_t rekey;              /* bytes until the keys change */
    struct tcp_records *records; /* after the handshake */
};

/* 2^22 records of 16 KiB: a sixth of what AES-GCM allows one key. */
#define REKEY_BYTES (UINT64_C(1) << 36)

/* Stores why the proof fails; returns PROOF_FAILED. */
enum tcp_proof safe_failed(struct tcp_safe *s, const char *why);

enum tcp_proof proof_step(struct tcp_safe *s);

/* Allocates a connection's memory; false with a log line. */
bool tls_open(struct tcp_safe *s);
void tls_close(struct tcp_safe *s);
enum tcp_proof tls_step(struct tcp_safe *s);

#endif
