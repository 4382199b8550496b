/* runs.h - chains of runs of neighbouring blocks, stored by first block in
 * arrays over all blocks of a pool. Many chains share the arrays. A walk must
 * know where its chain ends (by its last run, or by rows): `next` of the last
 * run may be in another chain. */
#ifndef MMX_CORE_MOVE_RUNS_H
#define MMX_CORE_MOVE_RUNS_H

#include "wire/segment.h"
#include "base/check.h"

struct runs {
    uint32_t *len, *next; /* by first block of a run */
    uint32_t block_rows;
};

/* A run of a chain, and the room's first row in it. */
struct run_at {
    uint32_t run, row;
};

static inline uint64_t runs_rows(const struct runs *r, uint32_t run)
{
    return (uint64_t)r->len[run] * r->block_rows;
}

/* Moves *at forward to the run that holds `row`. The chain must have the row,
 * at or after *at. */
static inline void runs_seek(
    const struct runs *r, struct run_at *at, uint32_t row)
{
    for (uint64_t rows; (rows = runs_rows(r, at->run)) <= row - at->row;) {
        at->row += (uint32_t)rows;
        at->run = r->next[at->run];
    }
}

/* Describes rows [first, first + rows) of the chain in at most `max` pieces.
 * *at is any run of it, and is moved to the one that holds `first`; head: the
 * first run. Returns the number of rows described, in *n pieces. */
static inline uint32_t runs_pieces(const struct runs *r, struct run_at *at,
    struct run_at head, uint32_t first, uint32_t rows, struct piece *out,
    uint32_t max, uint32_t *n)
{
    uint32_t run, left = rows;
    uint64_t row;

    CHECK(head.run != NONE && head.row <= first, "row %u of runs from %u on",
        first, head.row);
    if (at->row > first)
        *at = head;
    runs_seek(r, at, first);
    run = at->run;
    row = first - at->row;
    for (*n = 0; left > 0 && *n < max; row = 0) {
        uint32_t take = (uint32_t)min_u64(left, runs_rows(r, run) - row);

        out[(*n)++] = (struct piece){run + (uint32_t)(row / r->block_rows),
            (uint32_t)(row % r->block_rows), take};
        left -= take;
        if (left > 0)
            run = r->next[run];
    }
    return rows - left;
}

#endif
