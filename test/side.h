/* side.h - for tests of carriers: one end of a connection, and what it has
 * received. A message has an id below SIDE_IDS. Id and length begin its header
 * and determine every byte, so that a message is checked as it arrives. Usually
 * one thread runs both sides of a test. */
#ifndef MMX_TEST_SIDE_H
#define MMX_TEST_SIDE_H

#include "io/data.h"

#define KIB           ((size_t)1024)
#define MIB           (1024 * KIB)
#define SIDE_IDS      512
#define SIDE_SEGMENT  (256 * KIB)
#define SIDE_MESSAGE  (8 * MIB) /* the longest message */
#define SIDE_MESSAGES 64
/* Tests count time by ticks; for a peer that does not read the kernel has a
 * time of its own. */
#define SIDE_STALL_MS    60000
#define SIDE_GREETING_MS 4000
#define SIDE_STREAMS     4

/* A carrier, and its reports by message id. */
struct side {
    const struct data_ops *ops;
    struct data *d;
    struct data_counts counts;
    uint8_t arrived[SIDE_IDS], done[SIDE_IDS], fetched[SIDE_IDS],
        failed[SIDE_IDS];
    uint32_t arrived_count, done_count, fetched_count, failed_count;
    uint32_t who[SIDE_IDS]; /* `who` of the message */
    uint32_t broken[32], broken_count, made_count;
    uint32_t fetch_pieces; /* pieces of a rendezvous; 0: drops it */
    bool drop, posting;
    bool drop_one;      /* drops the next message only */
    bool whole;         /* asks for whole messages instead of fetching */
    bool any_bytes;     /* does not check the content */
    uint8_t answer[16]; /* bytes for a message that heard() posts */
    void (*heard)(struct side *s, uint32_t id);
    /* the test's memory for the next rendezvous; or NULL */
    uint8_t *memory;
    uint8_t *into[SIDE_IDS]; /* where each rendezvous was fetched to */
    size_t into_len[SIDE_IDS];
};

/* Returns data_tcp with SIDE_STREAMS connections to a peer, over two rails. */
const struct data_ops *side_streams(void);

/* Returns data_tcp with the pair's key SIDE_KEY at both ends: with plain
 * proofs, or encrypted over several connections, with new keys for each MiB. */
const struct data_ops *side_proved(void);
const struct data_ops *side_encrypted(void);
static inline const struct data_ops *side_safe(bool encrypt)
{
    return encrypt ? side_encrypted() : side_proved();
}
/* Values of data_key in HELLO. */
#define NO_KEY   span_of(NULL, 0)
#define SIDE_KEY 49
struct span side_key(bool encrypt);

/* Returns a configuration for TCP on loopback, with the limits above. */
struct data_conf side_conf(void);
void side_open(struct side *s, const struct data_ops *ops);
void side_open_with(
    struct side *s, const struct data_ops *ops, const struct data_conf *c);
/* side_open_soon(): the side ends a connection without a proof after this
 * time. */
#define SIDE_SOON_MS 1000
void side_open_soon(struct side *s, const struct data_ops *ops);
void side_close(struct side *s);
void side_close_both(struct side *first, struct side *second);
/* `SIDE a, b;` are closed at the end of their block, unless closed before. */
#define SIDE __attribute__((cleanup(side_end))) struct side
void side_end(struct side *s);
/* Opens both sides; a's endpoint 0 leads to b. */
void side_pair(struct side *a, struct side *b, const struct data_ops *ops);

/* Fills p with the bytes of message id. */
void side_fill(uint8_t *p, size_t n, uint32_t id);
MUST_CHECK enum err side_post(
    struct side *s, uint32_t ep, uint32_t id, void *p, size_t n);
/* Fills and posts message id. */
void side_send(struct side *s, uint32_t ep, uint32_t id, uint8_t *p, size_t n);
/* Posts a message in pieces; the header has at least 8 bytes. */
MUST_CHECK enum err side_post_iov(struct side *s, uint32_t ep, uint32_t id,
    const struct iovec *iov, uint32_t iovs, uint32_t header_len);
/* Posts messages from id 0 on until the carrier takes no more; returns how
 * many. */
uint32_t side_post_many(struct side *a, uint32_t ep, uint8_t *p, size_t n);

/* Returns the transport of ep, which must have no trouble. */
const char *side_goes(const struct side *s, uint32_t ep);

/* Makes one turn of progress for each open side; b may be NULL. */
unsigned side_turn(struct side *a, struct side *b);
/* Turns both sides until *count is `wanted`; fails if that takes too long. */
void side_until(
    struct side *a, struct side *b, const uint32_t *count, uint32_t wanted);
/* Turns for 20 ms, and some times in any case, until nothing more arrives. */
void side_settle(struct side *a, struct side *b);

#endif
