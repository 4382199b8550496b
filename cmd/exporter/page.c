/* page.c - the page for people: for each daemon its state, its slow and failed
 * rooms, its pools and peers, and how long rooms took. Plain HTML without
 * scripts, and with nothing from other servers; it fits a telephone's width.
 * Only states have colours.
 *
 * Rejected: graphs of the last minute. The exporter would ask the daemons each
 * second, also without a viewer. conf/grafana-dashboard.json has graphs. */
#include "html.h"

#include "base/check.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { AGAIN_S = 5, SLOW = 5, NAMES = 12, BUCKETS = 20 };

static bool is(struct reader row, const char *column, const char *text)
{
    char value[HTML_VALUE];

    return !strcmp(value_of(row, column, value), text);
}

static void begin(FILE *out, const char *title)
{
    fprintf(out, "<h3>%s</h3>\n<ul>\n", title);
}

/* Ends a list, or prints `none` if it had no rows. */
static void end(FILE *out, bool any, const char *none)
{
    fprintf(out, any ? "</ul>\n" : "<li>%s</li></ul>\n", none);
}

static void print_status(FILE *out, const struct daemon *d)
{
    struct reader rows = d->said[SAID_STATUS], row;
    struct reader healths = d->said[SAID_HEALTH], health;

    while (rows_next(&healths, &health)) {
        html_row(out, "{!state}", health);
        if (!is(health, "text", "ready"))
            html_row(out, "<small>{text}</small>", health);
    }
    while (rows_next(&rows, &row))
        html_row(out,
            "<small>{name}, version {software}, up for {@uptime_s}; rooms: "
            "{#rooms_open} open, {#rooms_ended} ended; {#peers_up} peers up, "
            "{#connections} connections</small>",
            row);
}

/* rooms: ids only if the command line asks for them, since readers of the page
 * need not be the rooms' users */

static void print_room(FILE *out, struct reader row, uint32_t like_it, bool ids)
{
    double ended_us =
        row_number(row, "opened_ns") / 1e3 + row_number(row, "done_us");
    double ago_us = (double)clock_ns() / 1e3 - ended_us;
    bool failed = is(row, "state", "Failed");

    html_row(out, failed ? "<li>{!reason}" : "<li>{!state}", row);
    if (like_it > 1)
        fprintf(out, "<span>%u times, the last:</span>", like_it);
    html_row(out, "<b>{~done_us}</b><span>", row);
    html_measure(out, TIMES, ago_us > 0 ? ago_us - fmod(ago_us, 1e6) : 0);
    html_row(out, ids ? " ago</span><code>{room}</code>" : " ago</span>", row);
    if (row_number(row, "total") > 0)
        html_row(out, "<span>{#total} rows</span><span>{%bytes}</span>", row);
    html_row(out,
        "<span>{peer}</span><small>{~longest_us} {longest}</small>"
        "<small>{text}</small></li>\n",
        row);
}

/* Counts the rooms that failed for the same reason as this row; 0: a newer row
 * counts them. */
static uint32_t like(struct reader rows, struct reader row)
{
    char reason[HTML_VALUE];
    uint32_t count = 0;
    struct reader other;

    value_of(row, "reason", reason);
    while (rows_next(&rows, &other)) {
        if (!is(other, "state", "Failed") || !is(other, "reason", reason))
            continue;
        if (count++ == 0 && other.at != row.at)
            return 0;
    }
    return count;
}

static void print_rooms(FILE *out, const struct daemon *d)
{
    struct reader all = d->said[SAID_SLOW], rows = all, row;
    uint32_t count, slow = 0;

    begin(out, "Slow and failed rooms since the start");
    fprintf(out, "<li><small>%s</small></li>\n",
        d->ids ? "mmxctl trace ID says what happened in one."
               : "Their ids: mmxctl slow, or mmx-exporter --ids.");
    while (rows_next(&rows, &row))
        if (is(row, "state", "Failed") && (count = like(all, row)))
            print_room(out, row, count, d->ids);
    rows = all;
    while (rows_next(&rows, &row))
        if (!is(row, "state", "Failed") && slow++ < SLOW)
            print_room(out, row, 1, d->ids);
    end(out, all.len > 0, "No room has ended yet.");
}

static void print_pools(FILE *out, struct reader rows)
{
    struct reader row;

    begin(out, "Pools");
    while (rows_next(&rows, &row))
        html_row(out,
            "<li><strong>{pool}</strong>{!state}"
            "<progress max=\"{blocks}\" value=\"{free}\"></progress>"
            "<span>{#free} of {#blocks} blocks free</span>"
            "<span>{#ready}{#kept} held by engines, {#quarantined} in "
            "quarantine</span><span>{waiting_items}{waiting_rooms} wait</span>"
            "<span>{%bytes} of {memory}</span><small>{layout}</small></li>\n",
            row);
    end(out, true, "");
}

/* Prints a row for each peer that has a problem, and one row for all others. */
static void print_peers(FILE *out, struct reader all)
{
    struct reader rows = all, row;
    uint32_t up = 0;

    begin(out, "Peers");
    while (rows_next(&rows, &row))
        if (!is(row, "state", "up"))
            html_row(out,
                row_number(row, "trouble_ms") > 0
                    ? "<li><strong>{name}</strong>{!state}<span>for "
                      "{@trouble_ms}</span>"
                      "<span>{address}</span><small>{what}</small></li>\n"
                    : "<li><strong>{name}</strong>{!state}<span>{address}</"
                      "span>"
                      "<small>{what}</small></li>\n",
                row);
    rows = all;
    while (rows_next(&rows, &row)) {
        if (!is(row, "state", "up") || ++up > NAMES)
            continue;
        html_row(out, up > 1 ? ", {name}" : "<li>{!state}<span>{name}", row);
        html_row(out, is(row, "path", "copy") ? " (copied)" : " (by {carrier})",
            row);
    }
    if (up > NAMES)
        fprintf(out, " and %u more", up - NAMES);
    fputs(up ? "</span></li>\n" : "", out);
    end(out, all.len > 0, "None has connected.");
}

/* A histogram as reported: running sums and their bounds. */
struct buckets {
    struct reader last;                    /* its last row, for names */
    double upto[BUCKETS], bounds[BUCKETS]; /* the last bound is 0: unlimited */
};

/* Reads the next histogram from QUERY buckets. False: none left. */
static bool buckets_next(struct reader *rows, struct buckets *b)
{
    uint32_t i = 0;

    for (; i < BUCKETS && rows_next(rows, &b->last); i++) {
        b->upto[i] = row_number(b->last, "count");
        b->bounds[i] = row_number(b->last, "up_to");
    }
    return i == BUCKETS;
}

/* Returns the first bucket whose running sum reaches this part of all; BUCKETS:
 * the histogram is empty. */
static uint32_t buckets_at(const double upto[BUCKETS], double part)
{
    uint32_t i = 0;

    while (i < BUCKETS && (upto[i] <= 0 || upto[i] < part * upto[BUCKETS - 1]))
        i++;
    return i;
}

/* Prints the bounds of quantiles of times and sizes. */
static void print_measures(FILE *out, struct reader rows)
{
    static const double parts[] = {0.5, 0.99};
    struct buckets b;
    bool any = false;

    begin(out, "Times and sizes since the start");
    while (buckets_next(&rows, &b)) {
        if (b.upto[BUCKETS - 1] <= 0)
            continue;
        any = true;
        html_row(out, "<li><strong>{name}</strong><span>{pool}</span>", b.last);
        html_row(out, "<span>{#count} rooms</span>", b.last);
        for (uint32_t i = 0; i < ARRAY_LEN(parts); i++) {
            uint32_t k = buckets_at(b.upto, parts[i]);

            fprintf(out, "<span>%.0f %%: ", 100 * parts[i]);
            html_range(out, is(b.last, "unit", "us") ? TIMES : SIZES,
                k > 0 ? b.bounds[k - 1] : 0, b.bounds[k]);
            fputs("</span>", out);
        }
        fputs("</li>\n", out);
    }
    end(out, any, "No room has ended yet.");
}

static void print_daemon(FILE *out, const struct daemon *d)
{
    CHECK(d->up || !d->memory[SAID_STATUS], "%s is away", d->label);
    fprintf(out, "<section>\n<div><h2>mmx-%s</h2>", d->label);
    if (d->up) {
        print_status(out, d);
    } else {
        fputs("<span class=\"state bad\">away</span><small>does not answer at ",
            out);
        html_text(out, d->path);
        fputs("</small>", out);
    }
    fputs("</div>\n", out);
    if (d->memory[SAID_SLOW])
        print_rooms(out, d);
    if (d->memory[SAID_POOLS])
        print_pools(out, d->said[SAID_POOLS]);
    if (d->memory[SAID_PEERS])
        print_peers(out, d->said[SAID_PEERS]);
    if (d->memory[SAID_BUCKETS])
        print_measures(out, d->said[SAID_BUCKETS]);
    fputs("</section>\n", out);
}

bool page_print(FILE *out, const struct daemon *daemons, uint32_t count)
{
    char host[HTML_VALUE] = "this host", clock[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = 0;
    if (gmtime_r(&now, &utc))
        strftime(clock, sizeof(clock), "%H:%M:%S", &utc);
    fprintf(out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width\">\n"
        "<meta http-equiv=\"refresh\" content=\"%d\">\n<title>mmx</title>\n"
        "<style>\n%s</style></head><body>\n<h1>mmx on ",
        AGAIN_S, page_style);
    html_text(out, host);
    fprintf(
        out, " <small>%s UTC, again every %d s</small></h1>\n", clock, AGAIN_S);
    for (uint32_t i = 0; i < count; i++)
        print_daemon(out, &daemons[i]);
    fputs("</body></html>\n", out);
    return true;
}
