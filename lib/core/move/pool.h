/* pool.h - block numbers of one pool: which are free, and which runs an extent
 * has. Owns no memory of blocks; mem_* turns a number into an address. One
 * thread: the daemon's loop.
 *
 * An extent is an ordered chain of runs; a run is a series of neighbouring
 * blocks, named by its first block. pool_take prefers a single run. State is
 * location: a block is free or in exactly one extent. */
#ifndef MMX_CORE_MOVE_POOL_H
#define MMX_CORE_MOVE_POOL_H

#include "base/base.h"
#include "base/bytes.h"
#include "base/slab.h"

/* The most runs of an extent, so that an event holds them. */
#define POOL_RUNS_MAX 2000

struct extent {
    uint32_t head, tail; /* first block of first and last run; NONE: empty */
    uint32_t blocks, runs;
};

struct pool {
    uint32_t blocks, free;
    uint64_t *free_map; /* bit set: free */
    uint32_t hint;      /* where the last search ended */
    uint32_t *run_len;  /* by first block of a run */
    uint32_t *run_next; /* first block of the next run, NONE at the end */
    uint32_t *by_len;   /* during a search: first free run of each length, + 1;
                           0: none */
    uint32_t longest;   /* no free run is longer */
    uint32_t scattered; /* taking this many blocks failed: too many runs for an
                           extent with scattered_runs runs; NONE: not known */
    uint32_t scattered_runs;
    uint64_t steps; /* number of free runs examined by searches, for tests */
};

static inline struct extent extent_none(void)
{
    return (struct extent){NONE, NONE, 0, 0};
}

/* Makes a pool with all blocks free. */
void pool_init(struct pool *p, struct slab *s, uint32_t blocks);

/* Appends n blocks to e in few runs; looks at each free run twice at most.
 * False: too few blocks are free, or they are too scattered for POOL_RUNS_MAX;
 * nothing changed. *first_run: the first run added (NONE for n = 0). */
bool pool_take(
    struct pool *p, struct extent *e, uint32_t n, uint32_t *first_run);

/* Frees all blocks of e; e is empty afterwards. */
void pool_give(struct pool *p, struct extent *e);

/* Splits e after its first n blocks: *e keeps them, the rest is returned. */
struct extent pool_split(struct pool *p, struct extent *e, uint32_t n);

/* To walk the runs: for (b = e->head; b != NONE; b = p->run_next[b])
 * p->run_len[b]. */

/* Checks that the bitmap and the count of free blocks agree. For tests:
 * O(blocks). */
void pool_check(const struct pool *p);

/* Appends the first block and the length of each run of the extent. */
void pool_put_runs(
    const struct pool *p, const struct extent *e, struct writer *w);

#endif
