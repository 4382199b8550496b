/* tcp_safe.h - connections of a pair of daemons that has a key: each end proves
 * that it has it before any row goes, and with `encrypt` what follows is TLS.
 * Private to lib/io/data; the thread that owns the carrier.
 *
 * The client is the end that connects, to send rows. Both ends prove that they
 * mean the same listener (its token) and the same stream of the endpoint. */
#ifndef MMX_IO_TCP_SAFE_H
#define MMX_IO_TCP_SAFE_H

#include "base/bytes.h"
#include "io/data/tcp.h"

#include <sys/types.h>

#define TCP_KEY_ID     16
#define TCP_KEY_SECRET 32

/* A pair's key, as langd has drawn it for this run of both. */
struct tcp_key {
    bool there, encrypt;
    uint8_t id[TCP_KEY_ID]; /* public: which pair and run */
    uint8_t secret[TCP_KEY_SECRET];
};

/* Reads the data_key of a HELLO. False: it is none, and *out has none. */
bool tcp_key_get(struct span s, struct tcp_key *out);
/* Takes the key out of memory. */
void tcp_key_wipe(struct tcp_key *k);

/* The keys that a listener accepts, by peer. */
struct tcp_keys {
    struct tcp_key *of;
    uint32_t count;
};
/* Returns the key with this id; NULL: it is not in force. */
const struct tcp_key *tcp_keys_find(
    const struct tcp_keys *keys, const uint8_t *id);

/* True if OpenSSL can encrypt here; else a log line has its reason. */
bool tcp_safe_ready(void);

struct tcp_safe;

/* Prepares an end on fd, which stays the caller's. NULL: no memory, with a log
 * line. The key is copied, token and keys stay valid. */
struct tcp_safe *tcp_safe_client(
    int fd, const struct tcp_key *key, const uint8_t *token, uint32_t stream);
/* Makes the client change keys after this number of bytes; 0: the default. */
void tcp_safe_rekey(struct tcp_safe *s, uint64_t bytes);
struct tcp_safe *tcp_safe_server(
    int fd, const struct tcp_keys *keys, const uint8_t *token, bool encrypt);
/* Accepts NULL inside. */
void tcp_safe_free(struct tcp_safe **s);

/* PROOF_UNKNOWN: the client names a key that is not in force: it may be on its
 * way to us, so try again when keys have come, else refuse. */
enum tcp_proof { PROOF_WAITS, PROOF_DONE, PROOF_UNKNOWN, PROOF_FAILED };
/* Goes on with the proof until it has to wait for the other end. */
enum tcp_proof tcp_safe_prove(struct tcp_safe *s);
/* Returns why it failed, for people; one word or a few. */
const char *tcp_safe_why(const struct tcp_safe *s);

/* True if what follows the proof is encrypted: then only by these calls. */
bool tcp_safe_encrypts(const struct tcp_safe *s);
/* Returns the id of the key; NULL: not known yet. */
const uint8_t *tcp_safe_id(const struct tcp_safe *s);
/* Returns the number of the stream, where the id is known. */
uint32_t tcp_safe_stream(const struct tcp_safe *s);

/* As send() and recv(), EAGAIN included. What was refused with EAGAIN has to be
 * sent again as it was. EPROTO: a record that the other end did not write. */
ssize_t tcp_safe_send(struct tcp_safe *s, const void *p, size_t n);
ssize_t tcp_safe_recv(struct tcp_safe *s, void *p, size_t n);
/* Allows `reads` more looks at the socket: tcp_safe_recv() says EAGAIN after
 * them, with no whole record left inside. */
void tcp_safe_turn(struct tcp_safe *s, unsigned reads);

#endif
