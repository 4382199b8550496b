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
    POOL("lent", "mmx_pool_lent_blocks",
        "Blocks that language engines of this host read where they are", 1),
    POOL("orphaned", "mmx_pool_orphaned_blocks",
        "Those of them whose mmx-langd is dead", 1),
    POOL("waiting_items", "mmx_pool_waiting_items",
        "Items that wait for source blocks", 1),
    POOL("waiting_rooms", "mmx_pool_waiting_rooms",
        "Rooms that wait for destination blocks", 1),
    POOL("head_wait_max_us", "mmx_pool_head_wait_max_seconds",
        "Longest time that the first of the queue has waited", 1e-6),
    POOL("stands_ms", "mmx_pool_stands_seconds",
        "Time for which rooms have waited for blocks and none has got any",
        1e-3),
    {SAID_ENDS, "rooms", "mmx_rooms_ended_by_reason_total", COUNTER,
        "Rooms that ended, by reason; ok: in Success", 1, "reason"},
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

/* The rows of a report of all daemons, one after the other. */
struct walk {
    const struct daemon *d; /* whose row it is */
    uint32_t left;          /* daemons after `d` */
    unsigned what;
    struct reader rows, row;
};

static struct walk walk_of(
    const struct daemon *daemons, uint32_t count, unsigned what)
{
    CHECK(
        count > 0 && what < SAID_COUNT, "report %u of %u daemons", what, count);
    return (struct walk){.d = daemons,
        .left = count - 1,
        .what = what,
        .rows = daemons->said[what]};
}

static bool walk_next(struct walk *w)
{
    while (!rows_next(&w->rows, &w->row)) {
        if (w->left == 0)
            return false;
        w->left--;
        w->rows = (++w->d)->said[w->what];
    }
    return true;
}

/* Adds a label with the text of the row's column. */
static void with_cell(
    FILE *out, const char *name, struct reader row, const char *column)
{
    char text[VALUE_MAX];

    rows_get(row, column, text, sizeof(text));
    with(out, name, text);
}

/* Prints the metric for all daemons that have its column. */
static void print_metric(FILE *out, const struct metric *m,
    const struct daemon *daemons, uint32_t count)
{
    struct walk w = walk_of(daemons, count, m->what);
    bool begun = false;

    while (walk_next(&w)) {
        if (!has(w.row, m->column))
            continue;
        if (!begun)
            begin(out, m->name, m->type, m->help);
        begun = true;
        sample(out, m->name, w.d);
        if (m->label)
            with_cell(out, m->label, w.row, m->label);
        is(out, row_number(w.row, m->column) * m->unit);
    }
}

/* Moves on to the next row of this name. */
static bool walk_named(struct walk *w, const char *name)
{
    char text[NAME_MAX_BYTES] = "";
    bool any;

    do {
        any = walk_next(w);
        if (any)
            rows_get(w->row, "name", text, sizeof(text));
    } while (any && strcmp(text, name) != 0);
    return any;
}

/* Moves on to the next row that is the first of its name in all reports. */
static bool walk_new(struct walk *w, const struct daemon *daemons,
    uint32_t count, char name[NAME_MAX_BYTES])
{
    char last[NAME_MAX_BYTES];
    struct walk first;

    do {
        memcpy(last, name, sizeof(last));
        if (!walk_next(w))
            return false;
        rows_get(w->row, "name", name, NAME_MAX_BYTES);
        first = walk_of(daemons, count, w->what);
    } while (!strcmp(name, last) || !walk_named(&first, name) ||
             first.row.p != w->row.p || first.row.at != w->row.at);
    return true;
}

static void print_counters(
    FILE *out, const struct daemon *daemons, uint32_t count)
{
    struct walk all = walk_of(daemons, count, SAID_STATS);
    char counter[NAME_MAX_BYTES] = "", name[NAME_MAX_BYTES + 16];
    char help[VALUE_MAX];

    while (walk_new(&all, daemons, count, counter)) {
        struct walk w = walk_of(daemons, count, SAID_STATS);

        /* Prometheus would read "bits" as a unit. */
        CHECK(counter[0], "a counter of %s without a name", all.d->label);
        snprintf(name, sizeof(name), "mmx_%s_total",
            strcmp(counter, "unknown_bits") ? counter : "unknown_flags");
        rows_get(all.row, "meaning", help, sizeof(help));
        begin(out, name, COUNTER, help);
        while (walk_named(&w, counter)) {
            sample(out, name, w.d);
            is(out, row_number(w.row, "value"));
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
    char name[sizeof(h->name) + 16];

    snprintf(name, sizeof(name), "%s%s", h->name, part);
    sample(out, name, d);
    with_cell(out, "pool", row, "pool");
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

static void print_histograms(
    FILE *out, const struct daemon *daemons, uint32_t count)
{
    struct walk all = walk_of(daemons, count, SAID_BUCKETS);
    char name[NAME_MAX_BYTES] = "", help[VALUE_MAX];

    while (walk_new(&all, daemons, count, name)) {
        struct walk w = walk_of(daemons, count, SAID_BUCKETS);
        struct histogram h = histogram_of(all.row);

        help[0] = 0;
        while (!help[0] && walk_named(&w, name))
            rows_get(w.row, "meaning", help, sizeof(help));
        begin(out, h.name, "histogram", help);
        w = walk_of(daemons, count, SAID_BUCKETS);
        while (walk_named(&w, name))
            print_bucket(out, &h, w.d, w.row);
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
        /* A refused report does not mean that there are no rooms. */
        for (uint32_t k = 0;
             k < ARRAY_LEN(states) && daemons[i].memory[SAID_ROOMS]; k++) {
            sample(out, "mmx_rooms", &daemons[i]);
            with(out, "state", states[k]);
            is(out, (double)rooms[k]);
        }
    }
}

/* A metric of each pool or peer: 1 if its state is one of two, otherwise 0. */
static const struct state_metric {
    unsigned what;
    const char *name, *help, *one_of[2];
    const char *labels[9]; /* a label, its column, and so on; NULL */
} state_metrics[] = {
    {SAID_POOLS, "mmx_pool_usable", "1 if the pool is ready or has no layout",
        {"ready", "no-layout"}, {"pool", "pool"}}, /* RULES 9.6 */
    {SAID_PEERS, "mmx_peer_up",
        "1 if the peer is connected; with what rows go by to it, and what is "
        "wrong with it",
        {"up", "draining"},
        {"peer", "name", "carrier", "carrier", "path", "path", "trouble",
            "trouble"}},
    {SAID_PEERS, "mmx_peer_draining", "1 while the peer takes no new room",
        {"draining", "draining"}, {"peer", "name"}},
};

enum { GONE_MS = 60 * 1000 };

/* True for a refused stranger, for an encoder that a reload has taken out, for
 * one that langd connects to at first use, and for an unconfigured peer that is
 * down for a while, as pods come and go. */
static bool is_no_peer(struct reader row, const char *state)
{
    bool asked = !strcmp(state, "named") || !strcmp(state, "connecting");
    bool down =
        asked || !strcmp(state, "away") || !strcmp(state, "unreachable");

    return !strcmp(state, "refused") || !strcmp(state, "leaving") ||
           (asked && !has(row, "trouble_ms")) ||
           (down && row_number(row, "configured") != 1 &&
               row_number(row, "trouble_ms") > GONE_MS);
}

static void print_state(FILE *out, const struct state_metric *m,
    const struct daemon *daemons, uint32_t count)
{
    struct walk w = walk_of(daemons, count, m->what);
    char state[VALUE_MAX];

    begin(out, m->name, GAUGE, m->help);
    while (walk_next(&w)) {
        rows_get(w.row, "state", state, sizeof(state));
        if (is_no_peer(w.row, state))
            continue;
        sample(out, m->name, w.d);
        for (uint32_t k = 0; m->labels[k]; k += 2)
            with_cell(out, m->labels[k], w.row, m->labels[k + 1]);
        is(out, !strcmp(state, m->one_of[0]) || !strcmp(state, m->one_of[1]));
    }
}

static void print_up(FILE *out, const struct daemon *daemons, uint32_t count)
{
    struct walk w = walk_of(daemons, count, SAID_STATUS);

    begin(out, "mmx_up", GAUGE, "1 if the daemon answered");
    for (uint32_t i = 0; i < count; i++) {
        sample(out, "mmx_up", &daemons[i]);
        is(out, daemons[i].up);
    }
    begin(out, "mmx_info", GAUGE, "The daemon's name in the fleet and version");
    while (walk_next(&w)) {
        sample(out, "mmx_info", w.d);
        with_cell(out, "name", w.row, "name");
        with_cell(out, "version", w.row, "software");
        is(out, 1);
    }
}

bool metrics_print(FILE *out, const struct daemon *daemons, uint32_t count)
{
    print_up(out, daemons, count);
    for (uint32_t i = 0; i < ARRAY_LEN(metrics); i++)
        print_metric(out, &metrics[i], daemons, count);
    for (uint32_t i = 0; i < ARRAY_LEN(state_metrics); i++)
        print_state(out, &state_metrics[i], daemons, count);
    print_states(out, daemons, count);
    print_histograms(out, daemons, count);
    print_counters(out, daemons, count);
    return true;
}
