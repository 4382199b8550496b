/* histogram_test.c - buckets: their bounds, the largest, merging, quantiles. */
#include "core/histogram/histograms.h"
#include "test/t.h"

#define FIRST UINT64_C(64000)
#define LAST  (HISTOGRAM_BUCKETS - 1)

TEST(a_value_is_in_the_first_bucket_whose_bound_it_is_not_above)
{
    T_EQ_U64(histogram_bucket(FIRST, 0), 0);
    T_EQ_U64(histogram_bucket(FIRST, 1), 0);
    for (uint32_t i = 0; i < LAST; i++) {
        uint64_t bound = histogram_bound(FIRST, i);

        T_EQ_U64(bound, FIRST << i);
        T_EQ_U64(histogram_bucket(FIRST, bound - 1), i);
        T_EQ_U64(histogram_bucket(FIRST, bound), i);
        T_EQ_U64(histogram_bucket(FIRST, bound + 1), i + 1);
    }
    T_EQ_U64(histogram_bound(FIRST, LAST), UINT64_MAX);
    T_EQ_U64(histogram_bucket(FIRST, UINT64_MAX), LAST);
    T_EQ_U64(histogram_bucket(1, UINT64_MAX), LAST);
}

/* With a bound that is no power of two, against a search. */
TEST(buckets_against_a_search)
{
    uint64_t seed = 5;

    for (uint32_t n = 0; n < 100000; n++) {
        uint64_t first = 1 + t_rand_below(&seed, 1 << 20);
        uint64_t v = t_rand(&seed) >> t_rand_below(&seed, 64);
        uint32_t i = 0;

        while (i < LAST && v > histogram_bound(first, i))
            i++;
        T_EQ_U64(histogram_bucket(first, v), i);
    }
}

TEST(what_is_added_is_counted_and_merged)
{
    struct histogram a = {0}, b = {0};

    T_EQ_U64(histogram_count(&a), 0);
    histogram_add(&a, FIRST, 0);
    histogram_add(&a, FIRST, FIRST);
    histogram_add(&b, FIRST, FIRST + 1);
    histogram_add(&b, FIRST, FIRST << 30);
    histogram_merge(&a, &b);
    T_EQ_U64(histogram_count(&a), 4);
    T_EQ_U64(histogram_count(&b), 2);
    T_EQ_U64(a.counts[0], 2);
    T_EQ_U64(a.counts[1], 1);
    T_EQ_U64(a.counts[LAST], 1);
    T_EQ_U64(a.sum, 2 * FIRST + 1 + (FIRST << 30));
}

TEST(quantiles_lie_in_their_bucket)
{
    struct histogram h = {0};

    T_EQ_U64(histogram_quantile(&h, FIRST, 500), 0);
    for (uint32_t i = 0; i < 99; i++)
        /* above 2 * FIRST, at most 4 * FIRST */
        histogram_add(&h, FIRST, 3 * FIRST);
    T_EQ_U64(histogram_quantile(&h, FIRST, 1000), 4 * FIRST);
    T_EQ_U64(histogram_quantile(&h, FIRST, 500), 3 * FIRST);
    histogram_add(&h, FIRST, UINT64_MAX);
    T_EQ_U64(histogram_quantile(&h, FIRST, 990), 4 * FIRST);
    T_EQ_U64(
        histogram_quantile(&h, FIRST, 1000), histogram_bound(FIRST, LAST - 1));
}
