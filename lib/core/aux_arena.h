/* aux_arena.h - bounded space for the opaque bytes of rooms: chains of small
 * chunks, so that nothing is allocated and nothing fragments. Pure. */
#ifndef MMX_CORE_AUX_ARENA_H
#define MMX_CORE_AUX_ARENA_H

#include "base/bytes.h"
#include "core/share.h"

#define AUX_CHUNK 256

struct aux_arena {
    uint8_t *bytes;
    struct slots chunks; /* next[]: of a chain as well; none behind its end */
    uint32_t free;
    struct share share;
};

struct aux {
    uint32_t head, len; /* len 0: nothing is stored */
    uint32_t reserved;  /* chunks reserved for bytes to come */
    uint64_t who;       /* user whose share the chunks count to */
};

static inline uint32_t aux_chunks(uint32_t len)
{
    return div_up(len, AUX_CHUNK);
}

void aux_init(
    struct aux_arena *a, struct slab *s, const struct conf *c, uint64_t seed);
/* Replaces *x by a copy of the bytes, in the share of `who`. False: no space,
 * for the reason in a->share.why; *x is unchanged. */
bool aux_set(
    struct aux_arena *a, struct aux *x, uint64_t who, struct span bytes);
/* Reserves chunks for `len` bytes, which aux_set will store; nothing may be
 * stored or reserved before. Fails as aux_set. */
MUST_CHECK bool aux_reserve(
    struct aux_arena *a, struct aux *x, uint64_t who, uint32_t len);
/* Frees what is stored or reserved. */
void aux_drop(struct aux_arena *a, struct aux *x);
/* Copies out x->len bytes; out must hold AUX_MAX. */
struct span aux_get(
    const struct aux_arena *a, const struct aux *x, uint8_t *out);

#endif
