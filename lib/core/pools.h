/* pools.h - pools as engines and peers see them: layout, memory, and the
 * answer to POOL. Pure; one thread. */
#ifndef MMX_CORE_POOLS_H
#define MMX_CORE_POOLS_H

#include "core/brain.h"

#define POOL_SHARE_MAX  16
#define POOL_HANDLE_MAX 128

/* A pool, as engines and peers see it. */
struct pool_meta {
    const struct conf_pool *conf;
    struct layout layout; /* count 0: no engine has declared it yet */
    bool ready, broken;   /* it has its memory; or that could not be had */
    bool lost;            /* it stood, and works no more */
    bool fixing;          /* ACT_POOL_FIX is out: the memory is being made */
    bool news; /* calls that wait for the memory have no answer yet */
    uint64_t offsets[LAYOUT_FIELDS_MAX], bytes;
    char share[POOL_SHARE_MAX + 1]; /* how engines map it */
    uint8_t handle[POOL_HANDLE_MAX];
    uint32_t handle_len;
};

void pool_meta_init(struct pool_meta *m, const struct conf_pool *c);
/* Takes the memory of pool i; NULL: it cannot be had. */
void pools_take(struct brain *b, uint32_t i, const struct pool_memory *m);
/* Takes it out of service, as its memory works no more. false: that was
 * known. */
bool pool_meta_lost(struct pool_meta *m);

/* Pool i as this connection may use it, or the reason why not. */
MUST_CHECK enum err pools_usable(
    const struct brain *b, uint32_t conn, uint32_t i, const char **text);
/* Answers POOL, or lets it wait for the pool's memory. */
void pools_call(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m);
/* Sends POOL_INFO for pool i, with its descriptor. */
void pools_say(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i);
/* Answers the POOL calls that waited for memory, and notifies the peers. */
void pools_serve(struct brain *b, struct out *out);
bool pools_pending(const struct brain *b);

#endif
