/* aux_arena.h - bounded space for the opaque bytes of rooms: chains of small
 * chunks, so that nothing is allocated and nothing fragments. Pure. */
#ifndef MMX_CORE_AUX_ARENA_H
#define MMX_CORE_AUX_ARENA_H

#include "base/bytes.h"
#include "core/share.h"

#define AUX_CHUNK 256

struct aux_arena {
    uint8_t *bytes;
    uint32_t *next; /* of a chunk, NONE at the end */
    uint32_t first_free, free, chunks;
    struct share share;
};

struct aux {
    uint32_t head, len; /* len 0: nothing is stored */
    uint32_t reserved;  /* chunks that are taken for bytes to come */
    uint64_t who;       /* whose share the chunks are of */
};

static inline uint32_t aux_chunks(uint32_t len)
{
    return div_up(len, AUX_CHUNK);
}

void aux_init(
    struct aux_arena *a, struct slab *s, const struct conf *c, uint64_t seed);
/* Replaces *x by a copy of the bytes, in the share of `who`. false:
 * a->share.why says why not, *x is as before. */
bool aux_set(
    struct aux_arena *a, struct aux *x, uint64_t who, struct span bytes);
/* Takes chunks for `len` bytes, which aux_set will bring, while nothing is
 * stored or reserved. As aux_set on failure. */
MUST_CHECK bool aux_reserve(
    struct aux_arena *a, struct aux *x, uint64_t who, uint32_t len);
/* Gives back what is stored or reserved. */
void aux_drop(struct aux_arena *a, struct aux *x);
/* Copies out x->len bytes; out holds AUX_MAX. */
struct span aux_get(
    const struct aux_arena *a, const struct aux *x, uint8_t *out);

#endif
