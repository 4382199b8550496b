/* slab.h - memory taken once, at start. The same carving code runs twice:
 * over a slab without memory it only counts, over a real one it hands out
 * pieces. The memory is zero when it comes (fresh pages), and stays untouched
 * until it is used. Pieces are never given back one by one. */
#ifndef MMX_BASE_SLAB_H
#define MMX_BASE_SLAB_H

#include "base/check.h"

struct slab {
    uint8_t *p; /* NULL: counting */
    size_t used, cap;
    bool failed; /* cap was too small */
    bool clean;  /* p is zero already (fresh pages): they stay untouched */
};

#define SLAB_ALIGN 64

/* Takes n objects of size bytes, aligned to SLAB_ALIGN. NULL while counting, or
 * when the slab is too small. */
static inline void *slab_take(struct slab *s, size_t n, size_t size)
{
    size_t bytes = (n * size + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    void *out = NULL;

    CHECK(!s->p || s->used <= s->cap, "%zu bytes of %zu", s->used, s->cap);
    if (s->p && bytes > s->cap - s->used)
        s->failed = true;
    if (s->failed)
        return NULL;
    if (s->p)
        out = s->p + s->used;
    s->used += bytes;
    return out;
}

/* Which places of an array are in use. A place that was given back is taken
 * before one that never was used, whose memory stays untouched till then. */
struct slots {
    uint32_t *next; /* by free place */
    uint32_t free;  /* the place given back last; NONE: none */
    uint32_t fresh; /* no place from here on was ever used */
    uint32_t max;
};

static inline void slots_init(struct slots *s, struct slab *slab, uint32_t max)
{
    s->next = slab_take(slab, max, sizeof(*s->next));
    s->free = NONE;
    s->fresh = 0;
    s->max = max;
}

/* Returns the place that is used next; NONE: all are in use. */
static inline uint32_t slots_take(struct slots *s)
{
    uint32_t i = s->free;

    if (i == NONE)
        return s->fresh < s->max ? s->fresh++ : NONE;
    s->free = s->next[i];
    return i;
}

/* Gives back place i, which is in use. */
static inline void slots_give(struct slots *s, uint32_t i)
{
    CHECK(i < s->fresh, "place %u was never taken", i);
    s->next[i] = s->free;
    s->free = i;
}

#endif
