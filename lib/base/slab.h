/* slab.h - memory taken once, at start. The code that takes pieces runs twice:
 * first with a slab that has no memory, to count the bytes, then with a real
 * slab, to take the pieces. The memory is zero at first (fresh pages), and no
 * page is touched before its use. A piece is never given back alone. */
#ifndef MMX_BASE_SLAB_H
#define MMX_BASE_SLAB_H

#include "base/check.h"

struct slab {
    uint8_t *p; /* NULL: counting */
    size_t used, cap;
    bool failed; /* cap was too small */
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

/* Which entries of an array are in use. Freed entries are reused before entries
 * that were never used, whose memory stays untouched until then. */
struct slots {
    uint32_t *next; /* by free entry */
    uint32_t free;  /* entry freed last; NONE */
    uint32_t fresh; /* entries from here on were never used */
    uint32_t max;
};

static inline void slots_init(struct slots *s, struct slab *slab, uint32_t max)
{
    s->next = slab_take(slab, max, sizeof(*s->next));
    s->free = NONE;
    s->fresh = 0;
    s->max = max;
}

/* Takes an entry; returns its index. NONE: all are in use. */
static inline uint32_t slots_take(struct slots *s)
{
    uint32_t i = s->free;

    if (i == NONE)
        return s->fresh < s->max ? s->fresh++ : NONE;
    s->free = s->next[i];
    return i;
}

/* Frees entry i, which must be in use. */
static inline void slots_give(struct slots *s, uint32_t i)
{
    CHECK(i < s->fresh, "place %u was never taken", i);
    s->next[i] = s->free;
    s->free = i;
}

#endif
