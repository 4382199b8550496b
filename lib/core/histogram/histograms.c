/* histograms.c - numbers from histograms, and their reports, which show times
 * in microseconds; see histograms.h. Owned by the loop's thread. */
#include "core/show.h"

#include "base/check.h"

#include <stdio.h>

#define ALL_POOLS "*"

struct unit {
    const char *name;
    uint64_t first, of; /* the first bound; value of one unit */
};
static const struct unit units[] = {
    {"us", HISTOGRAM_FIRST_NS, 1000}, {"bytes", HISTOGRAM_FIRST_BYTES, 1}};
enum { US, BYTES };

/* By role. */
enum { E = 1 << ROLE_ENCODED, L = 1 << ROLE_LANGD, EL = E | L };

static const struct {
    const char *name, *text;
    uint8_t roles, unit;
} rows[] = {
#define HISTOGRAM(name, roles, unit, text) {#name, text, roles, unit},
#include "core/histogram/histograms.def"
};
_Static_assert(ARRAY_LEN(rows) == HISTOGRAM_COUNT, "a row for each histogram");

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

/* reports */

static bool of_role(const struct brain *b, uint32_t i)
{
    CHECK(i < HISTOGRAM_COUNT, "histogram %u", i);
    return rows[i].roles >> b->c.conf->role & 1;
}

static void show_one(
    const struct brain *b, uint32_t i, uint32_t pool, struct rows_out *s)
{
    const struct unit *u = &units[rows[i].unit];
    struct histogram h = {0};
    uint64_t count;

    for (uint32_t k = 0; k < b->pools_count; k++)
        if (k == pool || pool == b->pools_count)
            histogram_merge(&h, &b->histograms[k].of[i]);
    count = histogram_count(&h);
    s->row(s);
    s->text(s, "name", rows[i].name);
    s->text(s, "pool",
        pool < b->pools_count ? b->metas[pool].conf->name : ALL_POOLS);
    s->text(s, "unit", u->name);
    s->number(s, "count", count);
    s->number(s, "mean", count ? h.sum / count / u->of : 0);
    s->number(s, "p50", histogram_quantile(&h, u->first, 500) / u->of);
    s->number(s, "p99", histogram_quantile(&h, u->first, 990) / u->of);
}

void histograms_show(
    const struct brain *b, struct show_at *at, struct rows_out *s)
{
    /* The last index is the sum of all pools, if there are several. */
    uint64_t each = (uint64_t)b->pools_count + (b->pools_count > 1);
    uint64_t end = HISTOGRAM_COUNT * each;

    CHECK(each > 0, "%u pools", b->pools_count);
    for (; at->at < end && show_place(at); at->at++)
        if (of_role(b, (uint32_t)(at->at / each)))
            show_one(
                b, (uint32_t)(at->at / each), (uint32_t)(at->at % each), s);
    at->over = at->at >= end;
}

static void show_bucket(const struct brain *b, uint32_t i, uint32_t pool,
    uint32_t bucket, struct rows_out *s)
{
    const struct histogram *h = &b->histograms[pool].of[i];
    const struct unit *u = &units[rows[i].unit];
    uint64_t count = 0;
    char bound[24] = "+Inf";

    for (uint32_t k = 0; k <= bucket; k++)
        count += h->counts[k];
    if (bucket < HISTOGRAM_BUCKETS - 1)
        snprintf(bound, sizeof(bound), "%llu",
            (unsigned long long)(histogram_bound(u->first, bucket) / u->of));
    s->row(s);
    s->text(s, "name", rows[i].name);
    s->text(s, "pool", b->metas[pool].conf->name);
    s->text(s, "unit", u->name);
    s->text(s, "up_to", bound);
    s->number(s, "count", count);
    if (bucket < HISTOGRAM_BUCKETS - 1)
        return;
    s->number(s, "sum", h->sum / u->of);
    s->text(s, "meaning", rows[i].text);
}

void histograms_show_buckets(
    const struct brain *b, struct show_at *at, struct rows_out *s)
{
    uint64_t each = (uint64_t)b->pools_count * HISTOGRAM_BUCKETS;
    uint64_t end = HISTOGRAM_COUNT * each;

    for (; at->at < end && show_place(at); at->at++) {
        uint32_t i = (uint32_t)(at->at / each);
        uint32_t rest = (uint32_t)(at->at % each);

        if (of_role(b, i))
            show_bucket(
                b, i, rest / HISTOGRAM_BUCKETS, rest % HISTOGRAM_BUCKETS, s);
    }
    at->over = at->at >= end;
}
