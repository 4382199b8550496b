/* slab.h - memory taken once, at start. The same carving code runs twice:
 * over a slab without memory it only counts, over a real one it hands out
 * pieces. The memory is zero when it comes (fresh pages), and stays untouched
 * until it is used. Pieces are never given back one by one. */
#ifndef MMX_BASE_SLAB_H
#define MMX_BASE_SLAB_H

#include "base/base.h"

struct slab {
    uint8_t *p; /* NULL: counting */
    size_t used, cap;
    bool failed; /* cap was too small */
    bool clean;  /* p is zero already (fresh pages): they stay untouched */
};

#define SLAB_ALIGN 64

/* n objects of size bytes, aligned to SLAB_ALIGN; NULL while counting or when
 * the slab is too small. */
static inline void *slab_take(struct slab *s, size_t n, size_t size)
{
    size_t bytes = (n * size + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    void *out = NULL;

    if (s->p && bytes > s->cap - s->used)
        s->failed = true;
    if (s->failed)
        return NULL;
    if (s->p)
        out = s->p + s->used;
    s->used += bytes;
    return out;
}

/* The place of an array that is used next: one that is free again, or the
 * first that never was used; NONE: all are in use. */
static inline uint32_t slab_next(uint32_t free, uint32_t fresh, uint32_t max)
{
    return free != NONE ? free : fresh < max ? fresh : NONE;
}

#endif
