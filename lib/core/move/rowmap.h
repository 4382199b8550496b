/* rowmap.h - which rows of a room are there when they come out of order:
 * committed at encoded, landed at langd. The bits live with the blocks, so
 * that no room needs memory of its own. Pure. */
#ifndef MMX_CORE_MOVE_ROWMAP_H
#define MMX_CORE_MOVE_ROWMAP_H

#include "core/move/pool.h"

struct rowmap {
    uint64_t *bits; /* a bit per unit of every block */
    uint32_t block_rows, unit;
};

/* unit divides block_rows; the map is made for any unit >= unit_min. */
void rowmap_init(
    struct rowmap *m, struct slab *s, uint32_t blocks, uint32_t block_rows);
/* Forgets what was there in the runs of e from first_run on. */
void rowmap_clear(struct rowmap *m, const struct pool *p, uint32_t first_run);

/* Rows [first, first + rows) are there; e's first block holds row `base`.
 * prefix: rows [0, prefix) were there. Returns the new prefix, a multiple of
 * the unit unless the addition itself ended elsewhere. */
uint32_t rowmap_add(struct rowmap *m, const struct pool *p,
    const struct extent *e, uint32_t base, uint32_t prefix, uint32_t first,
    uint32_t rows);

#endif
