/* histograms.h - how long rooms took and waited, and how large they were, for
 * each pool. The histograms are the rows of histograms.def. Owned by the loop's
 * thread.
 *
 * A histogram counts values in buckets whose bounds double: value v is in the
 * first bucket with v <= first << bucket, or in the last one. The caller gives
 * `first`, the same in each call for one histogram. To add a value takes no
 * lock and no memory; the reader merges the histograms of several pools.
 *
 * Rejected: bounds 1, 2, 5. They need a table look-up for each value, and are
 * no finer. Rejected: finer buckets. 20 must reach from microseconds to
 * seconds. */
#ifndef MMX_CORE_HISTOGRAMS_H
#define MMX_CORE_HISTOGRAMS_H

#include "core/flow.h"

struct brain;

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

enum histogram_name {
#define HISTOGRAM(name, roles, unit, text) HISTOGRAM_##name,
#include "core/histogram/histograms.def"
    HISTOGRAM_COUNT
};

/* Of one pool. */
struct histograms {
    struct histogram of[HISTOGRAM_COUNT];
};

/* The greatest value of the first bucket. */
#define HISTOGRAM_FIRST_NS    UINT64_C(64000)
#define HISTOGRAM_FIRST_BYTES UINT64_C(4096)

static inline void histograms_time(
    struct histograms *h, enum histogram_name name, uint64_t ns)
{
    histogram_add(&h->of[name], HISTOGRAM_FIRST_NS, ns);
}

static inline void histograms_bytes(
    struct histograms *h, enum histogram_name name, uint64_t bytes)
{
    histogram_add(&h->of[name], HISTOGRAM_FIRST_BYTES, bytes);
}

/* Shows count, mean, p50 and p99 for each pool, and for all if there are
 * several. */
void histograms_show(
    const struct brain *b, struct show_at *at, struct rows_out *s);
/* Shows for each bucket how many values do not exceed its bound, and for the
 * last bucket also the sum. */
void histograms_show_buckets(
    const struct brain *b, struct show_at *at, struct rows_out *s);

#endif
