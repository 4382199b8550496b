/* metrics.c - Prometheus' text format. All samples of a metric must be
 * together, so each metric is looked up in the reports of all daemons. Labels
 * are bounded: the daemon, names of pools and peers, states and reasons; never
 * a room. */
#include "exporter.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 128, VALUE_MAX = 256 };

/* A metric that is a column of a report. */
struct metric {
    unsigned what;
    const char *column, *name, *type, *help;
    double unit;       /* the column's unit in the metric's unit */
    const char *label; /* second label, a column of the same name; or NULL */
};

#define GAUGE   "gauge"
#define COUNTER "counter"
#define STATUS(column, name, type, help)                                       \
    {                                                                          \
        SAID_STATUS, column, name, type, help, 1, NULL                         \
    }
#define POOL(column, name, help, unit)                                         \
    {                                                                          \
        SAID_POOLS, column, name, GAUGE, help, unit, "pool"                    \
    }

static const struct metric metrics[] = {
    {SAID_HEALTH, "ready", "mmx_ready", GAUGE,
        "1 if a room could complete now; mmxctl health has the reason", 1,
        NULL},
    STATUS("uptime_s", "mmx_uptime_seconds", GAUGE, "Time since the start"),
    STATUS("draining", "mmx_draining", GAUGE, "1 while no new room is taken"),
    STATUS("rooms_open", "mmx_rooms_open", GAUGE, "Rooms that have not ended"),
    STATUS("rooms_held", "mmx_rooms_held", GAUGE,
        "Places of the table of rooms in use, ended ones included"),
    STATUS("rooms_ended", "mmx_rooms_ended_total", COUNTER, "Rooms that ended"),
    STATUS(
        "peers_up", "mmx_peers_up", GAUGE, "Peer daemons that are connected"),
    STATUS("attachments", "mmx_attachments", GAUGE, "Cells in use by engines"),
    STATUS("aux_free_bytes", "mmx_aux_free_bytes", GAUGE, "Free aux space"),
    STATUS("connections", "mmx_engine_connections", GAUGE,
        "Connections of engines and of mmxctl"),
    STATUS("shards", "mmx_shards", GAUGE, "Transfer threads"),
    STATUS("loop_turns", "mmx_loop_turns_total", COUNTER,
        "Turns of the daemon's loop"),
    STATUS("brain_steps", "mmx_brain_steps_total", COUNTER,
        "Events that the brain has taken"),
    POOL("bytes", "mmx_pool_bytes", "Memory of the pool", 1),
    POOL("blocks", "mmx_pool_blocks", "Blocks of the pool", 1),
    POOL("free", "mmx_pool_free_blocks", "Blocks that are free", 1),
    POOL("ready", "mmx_pool_ready_blocks",
        "Blocks whose rows wait to be read or are being read", 1),
    POOL("oldest_ready_ms", "mmx_pool_oldest_ready_seconds",
        "Time since READY of the oldest room whose rows are not released",
        1e-3),
    POOL(
        "kept", "mmx_pool_kept_blocks", "Blocks whose rows an engine keeps", 1),
    POOL("quarantined", "mmx_pool_quarantined_blocks",
        "Blocks that wait for a reader, a writer or a landing", 1),
    POOL("waiting_items", "mmx_pool_waiting_items",
        "Items that wait for source blocks", 1),
    POOL("waiting_rooms", "mmx_pool_waiting_rooms",
        "Rooms that wait for destination blocks", 1),
    POOL("head_wait_max_us", "mmx_pool_head_wait_max_seconds",
        "Longest time that the first of the queue has waited", 1e-6),
    POOL("stands_ms", "mmx_pool_stands_seconds",
        "Time for which rooms have waited for blocks and none has got any",
        1e-3),
};

/* Prints a label's value, escaped as the format requires. */
static void label(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            putc('\\', out);
        putc(*text == '\n' ? ' ' : *text, out);
    }
}

static void begin(
    FILE *out, const char *name, const char *type, const char *help)
{
    CHECK(!strncmp(name, "mmx_", 4), "a metric named %s", name);
    fprintf(out, "# HELP %s %s.\n# TYPE %s %s\n", name, help, name, type);
}

/* Begins a sample with the labels of every sample; more labels may follow. */
static void sample(FILE *out, const char *name, const struct daemon *d)
{
    fprintf(out, "%s{daemon=\"%s\"", name, d->label);
}

static void with(FILE *out, const char *name, const char *value)
{
    fprintf(out, ",%s=\"", name);
    label(out, value);
    putc('"', out);
}

/* Ends a sample with its value. */
static void is(FILE *out, double value)
{
    fprintf(out, "} %.15g\n", value);
}

static bool has(struct reader row, const char *column)
{
    char text[VALUE_MAX];

    rows_get(row, column, text, sizeof(text));
    return text[0] != 0;
}

/* Prints the metric for all daemons that have its column. */
static void print_metric(FILE *out, const struct metric *m,
    const struct daemon *daemons, uint32_t count)
{
    char text[VALUE_MAX];
    bool begun = false;

    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[m->what], row;

        while (rows_next(&rows, &row)) {
            if (!has(row, m->column))
                continue;
            if (!begun)
                begin(out, m->name, m->type, m->help);
            begun = true;
            sample(out, m->name, &daemons[i]);
            if (m->label) {
                rows_get(row, m->label, text, sizeof(text));
                with(out, m->label, text);
            }
            is(out, row_number(row, m->column) * m->unit);
        }
    }
}

/* Finds the row whose column has the value. */
static bool find(struct reader rows, const char *column, const char *value,
    struct reader *row)
{
    char text[VALUE_MAX];

    while (rows_next(&rows, row)) {
        rows_get(*row, column, text, sizeof(text));
        if (!strcmp(text, value))
            return true;
    }
    return false;
}

/* Prints one counter of the stats tables for all daemons from `i` on. */
static void print_counter(FILE *out, const char *counter, struct reader first,
    const struct daemon *daemons, uint32_t count, uint32_t i)
{
    char name[NAME_MAX_BYTES + 16], help[VALUE_MAX];
    struct reader row;

    /* Prometheus would read "bits" as a unit. */
    snprintf(name, sizeof(name), "mmx_%s_total",
        strcmp(counter, "unknown_bits") ? counter : "unknown_flags");
    CHECK(counter[0], "a counter of %s without a name", daemons[i].label);
    rows_get(first, "meaning", help, sizeof(help));
    begin(out, name, COUNTER, help);
    for (; i < count; i++)
        if (find(daemons[i].said[SAID_STATS], "name", counter, &row)) {
            sample(out, name, &daemons[i]);
            is(out, row_number(row, "value"));
        }
}

static void print_counters(
    FILE *out, const struct daemon *daemons, uint32_t count)
{
    char counter[NAME_MAX_BYTES];
    struct reader row, other;

    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[SAID_STATS];

        while (rows_next(&rows, &row)) {
            bool earlier = false;

            rows_get(row, "name", counter, sizeof(counter));
            for (uint32_t k = 0; k < i && !earlier; k++)
                earlier =
                    find(daemons[k].said[SAID_STATS], "name", counter, &other);
            if (!earlier && counter[0])
                print_counter(out, counter, row, daemons, count, i);
        }
    }
}

/* A histogram, in Prometheus' unit. */
struct histogram {
    char column[NAME_MAX_BYTES], name[NAME_MAX_BYTES + 32];
    double unit; /* the report's unit in the metric's unit */
};

static struct histogram histogram_of(struct reader row)
{
    struct histogram h = {.unit = 1};
    char unit[16];

    rows_get(row, "name", h.column, sizeof(h.column));
    rows_get(row, "unit", unit, sizeof(unit));
    if (!strcmp(unit, "us"))
        h.unit = 1e-6;
    snprintf(h.name, sizeof(h.name), "mmx_%s_%s", h.column,
        strcmp(unit, "us") ? unit : "seconds");
    return h;
}

/* Begins a sample of a histogram with the row's labels. */
static void of_histogram(FILE *out, const struct histogram *h, const char *part,
    const struct daemon *d, struct reader row)
{
    char name[sizeof(h->name) + 16], pool[VALUE_MAX];

    snprintf(name, sizeof(name), "%s%s", h->name, part);
    rows_get(row, "pool", pool, sizeof(pool));
    sample(out, name, d);
    with(out, "pool", pool);
}

/* Prints a row of the report: a bucket; for the last one also sum and count. */
static void print_bucket(FILE *out, const struct histogram *h,
    const struct daemon *d, struct reader row)
{
    char bound[32];

    rows_get(row, "up_to", bound, sizeof(bound));
    if (strcmp(bound, "+Inf") != 0)
        snprintf(
            bound, sizeof(bound), "%.15g", row_number(row, "up_to") * h->unit);
    of_histogram(out, h, "_bucket", d, row);
    with(out, "le", bound);
    is(out, row_number(row, "count"));
    if (strcmp(bound, "+Inf") != 0)
        return;
    of_histogram(out, h, "_sum", d, row);
    is(out, row_number(row, "sum") * h->unit);
    of_histogram(out, h, "_count", d, row);
    is(out, row_number(row, "count"));
}

/* Prints one histogram of all pools, for all daemons from `i` on. */
static void print_histogram(FILE *out, const struct histogram *h,
    const struct daemon *daemons, uint32_t count, uint32_t i)
{
    char help[VALUE_MAX] = "", name[NAME_MAX_BYTES];
    struct reader rows = daemons[i].said[SAID_BUCKETS], row;

    CHECK(h->column[0], "a histogram of %s without a name", daemons[i].label);
    while (!help[0] && rows_next(&rows, &row)) {
        rows_get(row, "name", name, sizeof(name));
        if (!strcmp(name, h->column))
            rows_get(row, "meaning", help, sizeof(help));
    }
    begin(out, h->name, "histogram", help);
    for (; i < count; i++)
        for (rows = daemons[i].said[SAID_BUCKETS]; rows_next(&rows, &row);) {
            rows_get(row, "name", name, sizeof(name));
            if (!strcmp(name, h->column))
                print_bucket(out, h, &daemons[i], row);
        }
}

static void print_histograms(
    FILE *out, const struct daemon *daemons, uint32_t count)
{
    struct reader row, other;

    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[SAID_BUCKETS];
        char last[NAME_MAX_BYTES] = "";

        while (rows_next(&rows, &row)) {
            struct histogram h = histogram_of(row);
            bool known = !h.column[0] || !strcmp(h.column, last);

            for (uint32_t k = 0; k < i && !known; k++)
                known = find(
                    daemons[k].said[SAID_BUCKETS], "name", h.column, &other);
            memcpy(last, h.column, sizeof(last));
            if (!known)
                print_histogram(out, &h, daemons, count, i);
        }
    }
}

/* Prints the number of ended rooms, by reason. */
static void print_ends(FILE *out, const struct daemon *daemons, uint32_t count)
{
    char reason[VALUE_MAX];
    struct reader row;

    begin(out, "mmx_rooms_ended_by_reason_total", COUNTER,
        "Rooms that ended, by reason; ok: in Success");
    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[SAID_ENDS];

        while (rows_next(&rows, &row)) {
            rows_get(row, "reason", reason, sizeof(reason));
            sample(out, "mmx_rooms_ended_by_reason_total", &daemons[i]);
            with(out, "reason", reason);
            is(out, row_number(row, "rooms"));
        }
    }
}

/* The states of rooms. */
static const char *const states[] = {
#define STATE(NAME, number, name, doc) name,
#include "wire/room.def"
    "not-announced"};

/* Prints the open rooms, by state. */
static void print_states(
    FILE *out, const struct daemon *daemons, uint32_t count)
{
    char state[VALUE_MAX];
    struct reader row;

    begin(out, "mmx_rooms", GAUGE, "Rooms that have not ended, by state");
    for (uint32_t i = 0; i < count; i++) {
        uint64_t rooms[ARRAY_LEN(states)] = {0};
        struct reader rows = daemons[i].said[SAID_ROOMS];

        while (rows_next(&rows, &row)) {
            rows_get(row, "state", state, sizeof(state));
            for (uint32_t k = 0; k < ARRAY_LEN(states); k++)
                rooms[k] += !has(row, "ended") && !strcmp(state, states[k]);
        }
        for (uint32_t k = 0; k < ARRAY_LEN(states) && daemons[i].up; k++) {
            sample(out, "mmx_rooms", &daemons[i]);
            with(out, "state", states[k]);
            is(out, (double)rooms[k]);
        }
    }
}

/* Prints for each pool or peer 1 if its state is one of two, otherwise 0. The
 * labels are columns. */
static void print_state(FILE *out, const struct daemon *daemons, uint32_t count,
    unsigned what, const char *name, const char *const one_of[2],
    const char *const labels[])
{
    char text[VALUE_MAX];
    struct reader row;

    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[what];

        while (rows_next(&rows, &row)) {
            bool is_so;

            rows_get(row, "state", text, sizeof(text));
            /* A refused stranger is not a peer; langd connects to some at first
             * use. */
            if (!strcmp(text, "refused") ||
                ((!strcmp(text, "named") || !strcmp(text, "connecting")) &&
                    !has(row, "trouble_ms")))
                continue;
            is_so = !strcmp(text, one_of[0]) || !strcmp(text, one_of[1]);
            sample(out, name, &daemons[i]);
            for (uint32_t k = 0; labels[k]; k += 2) {
                rows_get(row, labels[k + 1], text, sizeof(text));
                with(out, labels[k], text);
            }
            is(out, is_so);
        }
    }
}

static void print_up(FILE *out, const struct daemon *daemons, uint32_t count)
{
    char text[VALUE_MAX];
    struct reader row;

    begin(out, "mmx_up", GAUGE, "1 if the daemon answered");
    for (uint32_t i = 0; i < count; i++) {
        sample(out, "mmx_up", &daemons[i]);
        is(out, daemons[i].up);
    }
    begin(out, "mmx_info", GAUGE, "The daemon's name in the fleet and version");
    for (uint32_t i = 0; i < count; i++) {
        struct reader rows = daemons[i].said[SAID_STATUS];

        if (!rows_next(&rows, &row))
            continue;
        sample(out, "mmx_info", &daemons[i]);
        rows_get(row, "name", text, sizeof(text));
        with(out, "name", text);
        rows_get(row, "software", text, sizeof(text));
        with(out, "version", text);
        is(out, 1);
    }
}

bool metrics_print(FILE *out, const struct daemon *daemons, uint32_t count)
{
    static const char *const of_pools[] = {"pool", "pool", NULL};
    static const char *const of_peers[] = {"peer", "name", "carrier", "carrier",
        "path", "path", "trouble", "trouble", NULL};
    static const char *const of_drains[] = {"peer", "name", NULL};
    static const char *const usable[] = {"ready", "ready"};
    static const char *const up[] = {"up", "draining"};
    static const char *const drains[] = {"draining", "draining"};

    CHECK(count > 0, "no daemon to ask");
    print_up(out, daemons, count);
    for (uint32_t i = 0; i < ARRAY_LEN(metrics); i++)
        print_metric(out, &metrics[i], daemons, count);
    begin(out, "mmx_pool_usable", GAUGE, "1 if the pool can take rooms");
    print_state(
        out, daemons, count, SAID_POOLS, "mmx_pool_usable", usable, of_pools);
    begin(out, "mmx_peer_up", GAUGE,
        "1 if the peer is connected; with what rows go by to it, and what is "
        "wrong with it");
    print_state(out, daemons, count, SAID_PEERS, "mmx_peer_up", up, of_peers);
    begin(
        out, "mmx_peer_draining", GAUGE, "1 while the peer takes no new room");
    print_state(out, daemons, count, SAID_PEERS, "mmx_peer_draining", drains,
        of_drains);
    print_states(out, daemons, count);
    print_ends(out, daemons, count);
    print_histograms(out, daemons, count);
    print_counters(out, daemons, count);
    return true;
}
