/* table.c - results as a table or as JSON. Best is the least time, median the
 * middle one; ratios are ours by the yardstick's. After the run, one
 * thread. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The value below which `share` of all lie; sorts them. */
static double share_of(uint64_t *v, size_t n, double share)
{
    qsort(v, n, sizeof *v, by_value);
    return (double)v[(size_t)(share * (double)(n - 1))];
}

static unsigned lines;

static void line(
    const char *name, const char *unit, double ours, double yard, double ratio)
{
    if (opt.json) {
        printf("%s\n  {\"case\": \"%s\", \"unit\": \"%s\", \"ours\": %.4g",
            lines ? "," : "[", name, unit, ours);
        if (yard > 0)
            printf(", \"yardstick\": %.4g, \"ratio\": %.4g", yard, ratio);
        printf("}");
    } else {
        if (!lines)
            printf("%-38s %-8s %10s %10s %7s\n", "case", "unit", "ours",
                "yardstick", "ratio");
        printf("%-38s %-8s %10.4g", name, unit, ours);
        if (yard > 0)
            printf(" %10.4g %7.2f", yard, ratio);
        printf("\n");
    }
    lines++;
}

static void print_bulk(struct shared *s)
{
    double bytes = (double)BULK_ROWS * ROW_BYTES, best = 0, median = 0, b;

    for (unsigned i = 0; i < PIECES; i++) {
        b = bytes / share_of(s->tcp[i], opt.rounds, 0);
        best = b > best ? b : best;
        b = bytes / share_of(s->tcp[i], opt.rounds, 0.5);
        median = b > median ? b : median;
    }
    b = bytes / share_of(s->bulk, opt.rounds, 0);
    line("535 MB room, best (raw TCP, best)", "GB/s", b, best, b / best);
    b = bytes / share_of(s->bulk, opt.rounds, 0.5);
    line("535 MB room, median (raw TCP)", "GB/s", b, median, b / median);
}

static void print_copy(struct shared *s)
{
    double bytes = (double)BULK_ROWS * ROW_BYTES;
    double b = bytes / share_of(s->bulk, opt.rounds, 0);
    double y = bytes / share_of(s->copy, opt.rounds, 0);

    line("535 MB room, one host, best (NT copy)", "GB/s", b, y, b / y);
    b = bytes / share_of(s->bulk, opt.rounds, 0.5);
    y = bytes / share_of(s->copy, opt.rounds, 0.5);
    line("535 MB room, one host, median (NT copy)", "GB/s", b, y, b / y);
}

static void print_latency(struct shared *s)
{
    size_t n = (size_t)opt.rounds * PINGS;
    double p50 = share_of(s->room, n, 0.5) / 1e3;
    double p99 = share_of(s->room, n, 0.99) / 1e3;
    double am = share_of(s->am, n, 0.5) / 1e3;
    double tcp = share_of(s->ping, n, 0.5) / 1e3;

    line("4 KiB room, p50 (sleeping AM, p50)", "us", p50, am, p50 / am);
    line("4 KiB room, p99 (sleeping AM, p50)", "us", p99, am, p99 / am);
    line("4 KiB room, p50 (sleeping TCP, p50)", "us", p50, tcp, p50 / tcp);
}

static void print_rate(struct shared *s)
{
    double b = RATE_ROOMS * 1e9 / share_of(s->rate, opt.rounds, 0.5);
    double y = RATE_ROOMS * 1e9 / share_of(s->packets, opt.rounds, 0.5);

    line("4 KiB rooms, whole life (bare packets)", "1/s", b, y, b / y);
}

static void print_resume(struct shared *s)
{
    double y = share_of(s->resume[EXACT], opt.rounds, 0.5) / 1e6;
    double b = share_of(s->resume[ANNOUNCED], opt.rounds, 0.5) / 1e6;

    line("resume, announced first (exact grant)", "ms", b, y, b / y);
    b = share_of(s->resume[AT_COMMIT], opt.rounds, 0.5) / 1e6;
    line("resume, known at commit (exact grant)", "ms", b, y, b / y);
}

void print_all(struct shared *s)
{
    if (wanted("bulk") && opt.same_host)
        print_copy(s);
    else if (wanted("bulk"))
        print_bulk(s);
    if (wanted("latency"))
        print_latency(s);
    if (wanted("rate"))
        print_rate(s);
    if (wanted("resume"))
        print_resume(s);
    if (wanted("poll"))
        line("mmx_poll", "ns", (double)s->polls / POLLS, 0, 0);
    if (opt.json)
        printf("\n]\n");
}
