/* rowmap.h - which rows of a room are there when they arrive in any order:
 * committed at encoded, landed at langd. Every block has a bit per unit, so a
 * room needs no memory of its own. Pure. */
#ifndef MMX_CORE_MOVE_ROWMAP_H
#define MMX_CORE_MOVE_ROWMAP_H

#include "core/move/pool.h"

struct rowmap {
    uint64_t *bits; /* a bit per unit of every block */
    uint32_t block_rows, unit;
};

/* Makes an empty map for units of one row. The owner may set a larger `unit`,
 * which divides block_rows, while the map is empty. */
void rowmap_init(
    struct rowmap *m, struct slab *s, uint32_t blocks, uint32_t block_rows);
/* Clears the bits of the chain of runs from first_run on. */
void rowmap_clear(struct rowmap *m, const struct pool *p, uint32_t first_run);

/* Adds rows [first, first + rows) to an extent whose first block begins with
 * row `base`; rows [0, prefix) were there before. Returns the new prefix: a
 * multiple of the unit unless the added rows end elsewhere. */
uint32_t rowmap_add(struct rowmap *m, const struct pool *p,
    const struct extent *e, uint32_t base, uint32_t prefix, uint32_t first,
    uint32_t rows);

#endif
