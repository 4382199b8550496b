/* histogram.h - counts of values in buckets whose bounds double: value v is in
 * the first bucket with v <= first << bucket, or in the last one. The caller
 * gives `first`, the same in each call for one histogram.
 *
 * Adding takes no lock and no memory. A histogram has one owner thread, which
 * adds and reads; the reader merges those of several owners, or of several
 * pools.
 *
 * Rejected: bounds 1, 2, 5. They need a table look-up for each value, and are
 * no finer. Rejected: finer buckets. 20 must reach from microseconds to
 * seconds. */
#ifndef MMX_CORE_HISTOGRAM_HISTOGRAM_H
#define MMX_CORE_HISTOGRAM_HISTOGRAM_H

#include "base/base.h"

#define HISTOGRAM_BUCKETS 20

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t sum; /* sum of the values */
};

/* Returns the greatest value of a bucket; UINT64_MAX for the last. */
static inline uint64_t histogram_bound(uint64_t first, uint32_t bucket)
{
    return bucket < HISTOGRAM_BUCKETS - 1 ? first << bucket : UINT64_MAX;
}

static inline uint32_t histogram_bucket(uint64_t first, uint64_t value)
{
    uint64_t firsts = (value - (value > 0)) / first;
    uint32_t bits = firsts ? 64 - (uint32_t)__builtin_clzll(firsts) : 0;

    return min_u32(bits, HISTOGRAM_BUCKETS - 1);
}

static inline void histogram_add(
    struct histogram *h, uint64_t first, uint64_t value)
{
    h->counts[histogram_bucket(first, value)]++;
    h->sum += value;
}

/* Returns how many values were added. */
uint64_t histogram_count(const struct histogram *h);
/* Adds the counts of `from`, which has the same `first`. */
void histogram_merge(struct histogram *h, const struct histogram *from);
/* Returns a value that per_mille of 1,000 values do not exceed, as if the
 * values of a bucket were evenly spread; the greatest bound for the last
 * bucket; 0: there are no values. */
uint64_t histogram_quantile(
    const struct histogram *h, uint64_t first, uint32_t per_mille);

#endif
