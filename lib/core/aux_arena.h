/* aux_arena.h - bounded space for the opaque bytes of rooms: chains of small
 * chunks, so that nothing is allocated and nothing fragments. Pure. */
#ifndef MMX_CORE_AUX_ARENA_H
#define MMX_CORE_AUX_ARENA_H

#include "base/bytes.h"
#include "base/slab.h"

#define AUX_CHUNK 256

struct aux_arena {
    uint8_t *bytes;
    uint32_t *next; /* of a chunk, NONE at the end */
    uint32_t first_free, free, chunks;
};

struct aux {
    uint32_t head, len; /* len 0: nothing is stored */
};

void aux_init(struct aux_arena *a, struct slab *s, uint64_t bytes);
/* Replaces *x by a copy of the bytes. false: full, *x is as before. */
bool aux_set(struct aux_arena *a, struct aux *x, struct span bytes);
void aux_drop(struct aux_arena *a, struct aux *x);
/* Copies out x->len bytes; out holds AUX_MAX. */
struct span aux_get(
    const struct aux_arena *a, const struct aux *x, uint8_t *out);

#endif
