/* past.c - what a daemon did in each second of the last minute: rooms and
 * bytes, how full its pools were, how long rooms took. A second in which it did
 * not answer or was restarted is a gap. */
#include "html.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

enum { HIGH = 30, NOW_S = 5 };

bool buckets_next(struct reader *rows, struct buckets *b)
{
    uint32_t i = 0;

    for (; i < BUCKETS && rows_next(rows, &b->last); i++) {
        b->upto[i] = row_number(b->last, "count");
        b->bounds[i] = row_number(b->last, "up_to");
    }
    return i == BUCKETS;
}

uint32_t buckets_at(const double upto[BUCKETS], double part)
{
    uint32_t i = 0;

    while (i < BUCKETS && (upto[i] <= 0 || upto[i] < part * upto[BUCKETS - 1]))
        i++;
    return i;
}

/* Sums up the counters of all pools. */
static void add_up(struct past *p, const struct daemon *d)
{
    struct reader rows = d->said[SAID_POOLS], row;
    char name[HTML_VALUE];
    struct buckets b;

    while (rows_next(&rows, &row)) {
        double blocks = row_number(row, "blocks");

        p->rooms += row_number(row, "rooms_moved");
        p->bytes += row_number(row, "bytes_moved");
        if (blocks > 0 && 1 - row_number(row, "free") / blocks > p->used)
            p->used = 1 - row_number(row, "free") / blocks;
    }
    rows = d->said[SAID_BUCKETS];
    while (buckets_next(&rows, &b)) {
        if (!strstr(value_of(b.last, "name", name), "_to_ready"))
            continue;
        for (uint32_t i = 0; i < BUCKETS; i++)
            p->upto[i] += b.upto[i];
        memcpy(p->bounds, b.bounds, sizeof(p->bounds));
    }
}

void past_take(struct past *p, const struct daemon *d)
{
    double *to = p->seconds[p->count++ % PAST_S], s;
    struct past was = *p;

    p->up = d->up;
    p->at_ns = clock_ns();
    p->rooms = p->bytes = p->used = 0;
    memset(p->upto, 0, sizeof(p->upto));
    add_up(p, d);
    s = (double)(p->at_ns - was.at_ns) / 1e9;
    for (uint32_t i = 0; i < PAST_COUNT; i++)
        to[i] = NAN;
    if (!p->up || !was.up || p->rooms < was.rooms)
        return;
    to[PAST_ROOMS] = (p->rooms - was.rooms) / s;
    to[PAST_BYTES] = (p->bytes - was.bytes) / s;
    to[PAST_USE] = p->used * 100;
    for (uint32_t i = 0; i < BUCKETS; i++)
        was.upto[i] = p->upto[i] - was.upto[i];
    to[PAST_P99] = (buckets_at(was.upto, 0.99) + 1) % (BUCKETS + 1);
}

static const struct graph {
    const char *name, *unit;
    double full; /* 0: scale to the highest value */
} graphs[PAST_COUNT] = {
    [PAST_ROOMS] = {"rooms", "/s", 0},
    [PAST_BYTES] = {"rows", "/s", 0},
    [PAST_USE] = {"fullest pool", " %", 100},
    [PAST_P99] = {"99 of 100 rooms, in the worst second", "", BUCKETS},
};

/* Prints the mean of the last seconds; for times the worst of the minute. */
static void print_value(
    FILE *out, const struct past *p, uint32_t of, double mean, double most)
{
    uint32_t i = (uint32_t)most;

    if (isnan(mean) || (of == PAST_P99 && i == 0)) {
        fputs("\u2013", out);
    } else if (of == PAST_P99) {
        html_range(out, TIMES, i > 1 ? p->bounds[i - 2] : 0, p->bounds[i - 1]);
    } else {
        html_measure(out, of == PAST_BYTES ? SIZES : COUNTS, mean);
        fputs(graphs[of].unit, out);
    }
}

static void print_graph(FILE *out, const struct past *p, uint32_t of)
{
    uint32_t count = (uint32_t)min_u64(p->count, PAST_S), n = 0;
    double v[PAST_S], most = 0, sum = 0, full;

    for (uint32_t i = 0; i < count; i++) { /* newest first */
        v[i] = p->seconds[(p->count - 1 - i) % PAST_S][of];
        if (v[i] > most)
            most = v[i];
        if (i < NOW_S && !isnan(v[i])) {
            sum += v[i];
            n++;
        }
    }
    full = graphs[of].full > 0 ? graphs[of].full : most;
    fprintf(out, "<figure><figcaption>%s <b>", graphs[of].name);
    print_value(out, p, of, n ? sum / n : NAN, most);
    fprintf(out,
        "</b></figcaption><svg viewBox=\"0 0 %d %d\" height=\"%d\" "
        "preserveAspectRatio=\"none\"><title>each second of the last minute, "
        "the last at the right</title><path d=\"",
        PAST_S, HIGH, HIGH);
    for (uint32_t i = 0; i < count; i++)
        if (!isnan(v[i]))
            fprintf(out, "M%u %dV%.1fh.8V%dz", PAST_S - 1 - i, HIGH,
                (HIGH - 1) * (full > 0 ? 1 - v[i] / full : 1), HIGH);
    fputs("\"/></svg></figure>\n", out);
}

void past_print(FILE *out, const struct past *p)
{
    CHECK(p->at_ns <= clock_ns(), "looked at later than now");
    fputs("<div class=\"past\">", out);
    for (uint32_t i = 0; i < PAST_COUNT; i++)
        print_graph(out, p, i);
    fputs("</div>\n", out);
}
