/* curves.c - what test/bench/curves.gp draws: one file of columns per picture.
 * After the run, one thread. */
#include "test/bench/bench.h"

static FILE *columns(const char *name, const char *head)
{
    char path[600];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", opt.out, name);
    f = fopen(path, "we");
    if (!f)
        die("%s cannot be written", path);
    fprintf(f, "# %s\n", head);
    return f;
}

static void end(FILE *f)
{
    if (fclose(f) != 0)
        die("a curve cannot be written");
}

static void write_sizes(struct shared *s)
{
    FILE *f = columns("sizes.dat", "bytes, GB/s of a room, GB/s of raw TCP");

    for (int i = 0; i < SIZES; i++) {
        double bytes = (double)size_rows[i] * ROW_BYTES;

        fprintf(f, "%.0f %.4g %.4g\n", bytes,
            bytes / share_of(s, S_SIZE + i, 0.5),
            bytes / share_of(s, S_SIZE_TCP + i, 0.5));
    }
    end(f);
}

static void write_latency(struct shared *s)
{
    FILE *f = columns("latency.dat",
        "percent of all below it: us of a 4 KiB room, of a sleeping AM ping, "
        "of a sleeping TCP ping");

    for (int i = 1; i < 200; i++)
        fprintf(f, "%.1f %.4g %.4g %.4g\n", i / 2.0,
            share_of(s, S_ROOM, i / 200.0) / 1e3,
            share_of(s, S_AM, i / 200.0) / 1e3,
            share_of(s, S_TCP_PING, i / 200.0) / 1e3);
    end(f);
}

static void write_open(struct shared *s)
{
    FILE *f = columns("open.dat",
        "open rooms: us of a 4 KiB room (p50, p99), us of the daemons' time "
        "per room");

    for (int i = 0; i < STEPS; i++)
        fprintf(f, "%u %.4g %.4g %.4g\n", open_steps[i],
            share_of(s, S_OPEN_ROOM + i, 0.5) / 1e3,
            share_of(s, S_OPEN_ROOM + i, 0.99) / 1e3,
            share_of(s, S_OPEN_CPU + i, 0.5) / 1e3);
    end(f);
}

void write_curves(struct shared *s)
{
    if (s->series[S_SIZE].count)
        write_sizes(s);
    if (s->series[S_ROOM].count)
        write_latency(s);
    if (s->series[S_OPEN_ROOM].count)
        write_open(s);
}
