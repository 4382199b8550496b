/* slab.h - a slab of fresh memory, as daemons have. */
#ifndef MMX_TEST_SLAB_H
#define MMX_TEST_SLAB_H

#include "base/slab.h"

#include <stdlib.h>
#include <string.h>

/* The caller frees p, or its process ends. */
static inline struct slab slab_fresh(size_t bytes)
{
    struct slab s = {.p = aligned_alloc(SLAB_ALIGN, bytes), .cap = bytes};

    CHECK(s.p, "no memory for %zu bytes", bytes);
    memset(s.p, 0, bytes);
    return s;
}

#endif
