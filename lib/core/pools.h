/* pools.h - pools as engines and peers see them: layout, memory, and the answer
 * to POOL. Pure; one thread. */
#ifndef MMX_CORE_POOLS_H
#define MMX_CORE_POOLS_H

#include "core/brain.h"

#define POOL_SHARE_MAX  16
#define POOL_HANDLE_MAX 128

/* A pool, as engines and peers see it. */
struct pool_meta {
    const struct conf_pool *conf;
    struct layout layout; /* count 0: no engine has declared it yet */
    bool ready, broken;   /* has its memory; or could not get it */
    bool lost;            /* it had memory, which works no more */
    bool fixing;          /* ACT_POOL_FIX was sent: the memory is being made */
    bool news;            /* waiting calls can be answered now */
    uint64_t offsets[LAYOUT_FIELDS_MAX], bytes;
    char share[POOL_SHARE_MAX + 1]; /* how engines map it */
    uint8_t handle[POOL_HANDLE_MAX];
    uint32_t handle_len;
};

void pool_meta_init(struct pool_meta *m, const struct conf_pool *c);
/* Sets the memory of pool i; NULL: it cannot be had. */
void pools_take(struct brain *b, uint32_t i, const struct pool_memory *m);
/* Takes the pool out of service after its memory failed. False: it was out
 * already. */
bool pool_meta_lost(struct pool_meta *m);

/* Returns pool i if this connection may use it, or the reason why not. */
MUST_CHECK enum err pools_usable(
    const struct brain *b, uint32_t conn, uint32_t i, const char **text);
/* Answers POOL, or makes it wait for the pool's memory. */
void pools_call(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m);
/* Sends POOL_INFO for pool i, with its descriptor. */
void pools_say(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i);
/* Answers the POOL calls that waited for memory, and notifies the peers. */
void pools_serve(struct brain *b, struct out *out);
bool pools_pending(const struct brain *b);

#endif
