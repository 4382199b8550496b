/* histogram.c - computes numbers from a histogram; see histogram.h. Pure. */
#include "core/histogram/histogram.h"

#include "base/check.h"

uint64_t histogram_count(const struct histogram *h)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        count += h->counts[i];
    return count;
}

void histogram_merge(struct histogram *h, const struct histogram *from)
{
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        h->counts[i] += from->counts[i];
    h->sum += from->sum;
}

uint64_t histogram_quantile(
    const struct histogram *h, uint64_t first, uint32_t per_mille)
{
    double rank = (double)histogram_count(h) * per_mille / 1000, below = 0;
    uint64_t from = 0;

    CHECK(first > 0 && per_mille <= 1000, "%u of 1,000 in buckets from %llu",
        per_mille, (unsigned long long)first);
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
        uint64_t to = histogram_bound(first, i);
        double in = (double)h->counts[i];

        if (in > 0 && below + in >= rank)
            return from +
                   (uint64_t)((double)(to - from) * (rank - below) / in + 0.5);
        below += in;
        from = to;
    }
    return rank > 0 ? from : 0;
}
