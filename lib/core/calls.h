/* calls.h - the calls of engines that both daemons answer alike: HELLO, POOL,
 * and what a pool is to an engine. Pure; one thread. */
#ifndef MMX_CORE_CALLS_H
#define MMX_CORE_CALLS_H

#include "core/engines.h"
#include "core/peers.h"

#define POOL_SHARE_MAX  16
#define POOL_HANDLE_MAX 128

/* What engines and peers are told of a pool; first member of the brains'
 * pools. */
struct pool_meta {
    const struct conf_pool *conf;
    struct layout layout; /* count 0: no engine has declared it yet */
    bool ready, broken;   /* the memory stands; or could not be had */
    bool lost;            /* it stood, and works no more */
    bool fixing;          /* ACT_POOL_FIX is out: the memory is being made */
    bool news;            /* it stands or not, and who waits is not told yet */
    uint64_t offsets[LAYOUT_FIELDS_MAX], bytes;
    char share[POOL_SHARE_MAX + 1]; /* how engines map it */
    uint8_t handle[POOL_HANDLE_MAX];
    uint32_t handle_len;
};

/* Fills a pool's meta from its config. */
void pool_meta_init(struct pool_meta *m, const struct conf_pool *c);
/* The body's word on the pool's memory. */
void pool_meta_ready(
    struct pool_meta *m, bool ok, const uint64_t *offsets, uint64_t bytes);
/* How engines map it; before pool_meta_ready. Never: a memfd. */
void pool_meta_share(
    struct pool_meta *m, const char *share, struct span handle);
/* Its memory works no more: nothing opens in it from now on. false: that was
 * known. */
bool pool_meta_lost(struct pool_meta *m);

struct calls {
    struct engines *engines;
    struct peers *peers;
    struct pool_meta *(*meta)(void *brain, uint32_t i);
    void *brain;
    uint32_t pools_count;
    bool engines_write; /* encoded: pools are writable for their engines */
};

void call_hello(const struct calls *c, struct out *out, uint32_t conn,
    const struct local_msg *m);
void call_pool(const struct calls *c, struct out *out, uint32_t conn,
    const struct local_msg *m);
/* POOL_INFO for pool i, with its descriptor. */
void call_say_pool(const struct calls *c, struct out *out, uint32_t conn,
    uint32_t seq, uint32_t i);
/* Counts and answers a frame that could not be read. */
void call_bad(const struct calls *c, struct out *out, const struct event *ev);
/* Answers the POOL calls that waited for memory, and tells the peers. */
void calls_pools_ready(const struct calls *c, struct out *out);
bool calls_pools_waiting(const struct calls *c);
/* Pool i as this connection may use it, or the reason why not. */
MUST_CHECK enum err call_pool_check(
    const struct calls *c, uint32_t conn, uint32_t i, const char **text);

#endif
