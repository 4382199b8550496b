/* histograms.h - how long rooms took and waited, and how large they were, for
 * each pool: the rows of histograms.def, and their reports. Owned by the loop's
 * thread. */
#ifndef MMX_CORE_HISTOGRAMS_H
#define MMX_CORE_HISTOGRAMS_H

#include "core/histogram/histogram.h"
#include "core/flow.h"

struct brain;

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
