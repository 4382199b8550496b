/* tcp_safe.h - connections of a pair of daemons that has a key: each end proves
 * that it has the key before any row is sent, and with DATA_KEY_ENCRYPT
 * everything after the proof is records of TLS (tcp_records.h). Private to
 * lib/io/data. Called only by the thread that owns the carrier.
 *
 * The client is the end that connects, to send rows. Both ends prove that they
 * mean the same listener (its token) and the same stream of the endpoint. */
#ifndef MMX_IO_TCP_SAFE_H
#define MMX_IO_TCP_SAFE_H

#include "base/bytes.h"
#include "io/data/tcp.h"
#include "io/data/tcp_records.h"

#define TCP_KEY_ID     16
#define TCP_KEY_SECRET 32

/* A pair's key, drawn by langd for the present run of both. */
struct tcp_key {
    bool there;
    uint8_t bits;           /* DATA_KEY_* */
    uint8_t id[TCP_KEY_ID]; /* public: identifies pair and run */
    uint8_t secret[TCP_KEY_SECRET];
};

/* Reads the data_key of a HELLO. False: it is not a key, and out->there is
 * unset. */
bool tcp_key_get(struct span s, struct tcp_key *out);
/* Overwrites the key in memory. */
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

/* Prepares one end on fd, which the caller still owns; the process ignores
 * SIGPIPE. NULL: no memory, with a log line. The key is copied; token and keys
 * must stay valid. rekey: bytes after which the client changes its keys; 0: the
 * default. */
struct tcp_safe *tcp_safe_client(int fd, const struct tcp_key *key,
    const uint8_t *token, uint32_t stream, uint64_t rekey);
struct tcp_safe *tcp_safe_server(
    int fd, const struct tcp_keys *keys, const uint8_t *token, uint8_t bits);
/* Accepts a pointer to NULL. */
void tcp_safe_free(struct tcp_safe **s);

/* PROOF_UNKNOWN: the client's key is not in force here. It may still come: try
 * again when keys have come, else refuse. */
enum tcp_proof { PROOF_WAITS, PROOF_DONE, PROOF_UNKNOWN, PROOF_FAILED };
/* Continues the proof until it must wait for the other end. */
enum tcp_proof tcp_safe_prove(struct tcp_safe *s);
/* Returns the cause of a failure for people; a few words. */
const char *tcp_safe_why(const struct tcp_safe *s);

/* After PROOF_DONE: frees *s. Returns the records through which all further
 * bytes go if they are encrypted, else NULL. */
struct tcp_records *tcp_safe_end(struct tcp_safe **s);
/* Returns the id of the key; NULL: not known yet. */
const uint8_t *tcp_safe_id(const struct tcp_safe *s);
/* Returns the number of the stream, once the id is known. */
uint32_t tcp_safe_stream(const struct tcp_safe *s);

#endif
