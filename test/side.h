/* side.h - for tests of carriers: one end, and what it has heard. A message
 * has an id below SIDE_IDS; id and length lead its header and decide every
 * byte, so that whatever arrives is checked on the spot. The two sides of a
 * test are usually turned by one thread. */
#ifndef MMX_TEST_SIDE_H
#define MMX_TEST_SIDE_H

#include "io/data.h"

#define KIB           ((size_t)1024)
#define MIB           (1024 * KIB)
#define SIDE_IDS      512
#define SIDE_SEGMENT  (256 * KIB)
#define SIDE_MESSAGE  (8 * MIB) /* the longest that comes */
#define SIDE_MESSAGES 64
/* Of the tests' own clock by ticks; the kernel's for a peer that does not read.
 */
#define SIDE_STALL_MS    60000
#define SIDE_GREETING_MS 4000
#define SIDE_STREAMS     4

/* A carrier, and what it has heard, by message id. */
struct side {
    const struct data_ops *ops;
    struct data *d;
    struct data_counts counts;
    uint8_t arrived[SIDE_IDS], done[SIDE_IDS], fetched[SIDE_IDS],
        failed[SIDE_IDS];
    uint32_t arrived_count, done_count, fetched_count, failed_count;
    uint32_t who[SIDE_IDS]; /* as it came with the message */
    uint32_t broken[32], broken_count, made_count;
    uint32_t fetch_pieces; /* into how many pieces rendezvous go; 0: drop */
    bool drop, posting;
    bool drop_one;      /* the next message only */
    bool whole;         /* asks for messages whole instead of fetching */
    bool any_bytes;     /* the content is not of interest */
    uint8_t answer[16]; /* bytes of a message that heard() may post */
    void (*heard)(struct side *s, uint32_t id);
    uint8_t *memory;         /* the test's, for the next rendezvous; or NULL */
    uint8_t *into[SIDE_IDS]; /* where rendezvous go */
    size_t into_len[SIDE_IDS];
};

/* Returns data_tcp with SIDE_STREAMS connections to a peer, over two rails. */
const struct data_ops *side_streams(void);

/* Returns data_tcp where both ends have the pair's key SIDE_KEY: proved, or
 * encrypted over several connections with new keys for each MiB. */
const struct data_ops *side_proved(void);
const struct data_ops *side_encrypted(void);
static inline const struct data_ops *side_safe(bool encrypt)
{
    return encrypt ? side_encrypted() : side_proved();
}
/* Data_keys of HELLO. */
#define NO_KEY   span_of(NULL, 0)
#define SIDE_KEY 49
struct span side_key(bool encrypt);

/* TCP on loopback, with the limits above. */
struct data_conf side_conf(void);
void side_open(struct side *s, const struct data_ops *ops);
void side_open_with(
    struct side *s, const struct data_ops *ops, const struct data_conf *c);
/* It ends a connection whose proof does not come in this time. */
#define SIDE_SOON_MS 1000
void side_open_soon(struct side *s, const struct data_ops *ops);
void side_close(struct side *s);
void side_close_both(struct side *first, struct side *second);
/* SIDE a, b; are closed where their block ends, unless they are before. */
#define SIDE __attribute__((cleanup(side_end))) struct side
void side_end(struct side *s);
/* Opens both; a's endpoint 0 leads to b. */
void side_pair(struct side *a, struct side *b, const struct data_ops *ops);

/* The bytes of message id. */
void side_fill(uint8_t *p, size_t n, uint32_t id);
MUST_CHECK enum err side_post(
    struct side *s, uint32_t ep, uint32_t id, void *p, size_t n);
/* Fills the message with what its number says, and posts it. */
void side_send(struct side *s, uint32_t ep, uint32_t id, uint8_t *p, size_t n);
/* The header is at least 8 bytes. */
MUST_CHECK enum err side_post_iov(struct side *s, uint32_t ep, uint32_t id,
    const struct iovec *iov, uint32_t iovs, uint32_t header_len);
/* Ids from 0 on until the carrier takes no more; returns how many. */
uint32_t side_post_many(struct side *a, uint32_t ep, uint8_t *p, size_t n);

/* Returns the transport of ep, to which nothing has happened. */
const char *side_goes(const struct side *s, uint32_t ep);

/* One turn of progress for each that is open; b may be NULL. */
unsigned side_turn(struct side *a, struct side *b);
/* Turns both until *count is `wanted`; fails when it is not in time. */
void side_until(
    struct side *a, struct side *b, const uint32_t *count, uint32_t wanted);
/* Turns for 20 ms, and often in any case, until all that is on its way has come
 * and nothing more does. */
void side_settle(struct side *a, struct side *b);

#endif
