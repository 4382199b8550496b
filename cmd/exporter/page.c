/* page.c - the page for people: the state of each daemon, its pools and peers,
 * how long rooms took, and the last of them (bars.c). Plain HTML and SVG
 * without a script; nothing comes from elsewhere. */
#include "html.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { AGAIN_S = 5, BUCKETS_MAX = 32 };

static void fact(FILE *out, const char *name, double value)
{
    fprintf(out, "<div><dt>%s</dt><dd>", name);
    html_count(out, value);
    fputs("</dd></div>", out);
}

/* Prints the daemon's name, whether rooms pass, and the figures of its status.
 */
static void print_status(FILE *out, const struct daemon *d)
{
    struct reader rows = d->said[SAID_STATUS], status = reader_of(NULL, 0);
    struct reader healths = d->said[SAID_HEALTH], health = reader_of(NULL, 0);
    char state[HTML_VALUE], text[HTML_VALUE];

    (void)rows_next(&rows, &status);
    (void)rows_next(&healths, &health);
    rows_get(health, "state", state, sizeof(state));
    rows_get(health, "text", text, sizeof(text));
    fprintf(out, "<div class=\"title\"><h2>mmx-%s</h2>", d->label);
    html_pill(out,
        !strcmp(state, "ready")      ? "good"
        : !strcmp(state, "draining") ? "warn"
                                     : "bad",
        state[0] ? state : "unknown");
    fputs("<small>", out);
    html_cell(out, status, "name");
    fputs(", version ", out);
    html_cell(out, status, "software");
    fputs(", up for ", out);
    html_age(out, row_number(status, "uptime_s"));
    fputs("</small></div>\n", out);
    if (strcmp(text, state) != 0) {
        fputs("<p class=\"why\">", out);
        html_text(out, text);
        fputs("</p>\n", out);
    }
    fputs("<dl>", out);
    fact(out, "rooms open", row_number(status, "rooms_open"));
    fact(out, "rooms ended", row_number(status, "rooms_ended"));
    fact(out, "peers up", row_number(status, "peers_up"));
    fact(out, "connections", row_number(status, "connections"));
    fputs("</dl>\n", out);
}

/* pools */

static double part(FILE *out, double from, double blocks, double all,
    const char *kind, const char *text)
{
    if (blocks <= 0 || blocks > all) /* not of one moment, or no numbers */
        return from;
    CHECK(from >= 0, "a part from %f on", from);
    fprintf(out,
        "<rect class=\"%s\" x=\"%.2f\" width=\"%.2f\" height=\"12\"><title>",
        kind, from / all * 1000, blocks / all * 1000);
    html_count(out, blocks);
    fprintf(out, " %s</title></rect>", text);
    return from + blocks;
}

/* Prints what the blocks of a pool are in use for. */
static void print_blocks(FILE *out, struct reader row)
{
    double all = row_number(row, "blocks"), at;
    double ready = row_number(row, "ready"), kept = row_number(row, "kept");
    double gone = row_number(row, "quarantined");
    double used = all - row_number(row, "free") - ready - kept - gone;

    fputs("<td class=\"part\"><svg viewBox=\"0 0 1000 12\" height=\"12\" "
          "preserveAspectRatio=\"none\" role=\"img\" "
          "aria-label=\"blocks in use\"><rect class=\"track\" width=\"1000\" "
          "height=\"12\"><title>free</title></rect>",
        out);
    at = part(out, 0, used, all, "first", "blocks of open rooms");
    at = part(out, at, ready, all, "done", "blocks that are READY");
    at = part(out, at, kept, all, "announced", "blocks that are kept");
    (void)part(out, at, gone, all, "blocks", "blocks in quarantine");
    fputs("</svg></td>", out);
}

static void print_pool(FILE *out, struct reader row)
{
    char state[HTML_VALUE];

    rows_get(row, "state", state, sizeof(state));
    fputs("<tr><td>", out);
    html_cell(out, row, "pool");
    fputs("</td><td>", out);
    html_pill(out, strcmp(state, "ready") ? "bad" : "good", state);
    fputs("</td>", out);
    print_blocks(out, row);
    fputs("<td class=\"n\">", out);
    html_count(out, row_number(row, "free"));
    fputs(" of ", out);
    html_count(out, row_number(row, "blocks"));
    fputs("</td><td class=\"n\">", out);
    html_count(out,
        row_number(row, "waiting_items") + row_number(row, "waiting_rooms"));
    fputs("</td><td class=\"n\">", out);
    html_bytes(out, row_number(row, "bytes"));
    fputs("</td><td>", out);
    html_cell(out, row, "memory");
    fputs("</td><td class=\"soft\">", out);
    html_list(out, row, "layout");
    fputs("</td></tr>\n", out);
}

static void print_pools(FILE *out, struct reader rows)
{
    static const char *const heads[] = {"pool", "state", "blocks in use",
        "#free blocks", "#rooms waiting", "#size", "memory", "layout", NULL};
    struct reader row;

    fputs("<h3>Pools</h3>\n<ul class=\"key\">"
          "<li><i class=\"first\"></i>of open rooms</li>"
          "<li><i class=\"done\"></i>READY</li>"
          "<li><i class=\"announced\"></i>kept</li>"
          "<li><i class=\"blocks\"></i>in quarantine</li></ul>\n"
          "<div class=\"wide\">",
        out);
    html_head(out, heads);
    while (rows_next(&rows, &row))
        print_pool(out, row);
    fputs("</tbody></table></div>\n", out);
}

/* peers */

static void print_peer(FILE *out, struct reader row)
{
    char state[HTML_VALUE], path[HTML_VALUE];
    bool up, drains;

    rows_get(row, "state", state, sizeof(state));
    rows_get(row, "path", path, sizeof(path));
    drains = !strcmp(state, "draining");
    up = drains || !strcmp(state, "up");
    fputs("<tr><td>", out);
    html_cell(out, row, "name");
    fputs("</td><td>", out);
    html_pill(out,
        drains                      ? "warn"
        : up                        ? "good"
        : !strcmp(state, "unknown") ? "plain"
                                    : "bad",
        state);
    fputs("</td><td>", out);
    if (up && !strcmp(path, "copy"))
        fputs("copied on this host", out);
    else if (up)
        html_cell(out, row, "carrier");
    fputs("</td><td>", out);
    html_cell(out, row, "address");
    fputs("</td><td class=\"soft\">", out);
    html_cell(out, row, up ? "not_by" : "refused");
    fputs("</td></tr>\n", out);
}

static void print_peers(FILE *out, struct reader rows)
{
    static const char *const heads[] = {
        "peer", "state", "rows go by", "address", "why not otherwise", NULL};
    struct reader row;
    bool any = false;

    fputs("<h3>Peers</h3>\n", out);
    while (rows_next(&rows, &row)) {
        if (!any) {
            fputs("<div class=\"wide\">", out);
            html_head(out, heads);
        }
        any = true;
        print_peer(out, row);
    }
    fputs(any ? "</tbody></table></div>\n"
              : "<p class=\"none\">None has connected.</p>\n",
        out);
}

/* times and sizes */

static void measure(FILE *out, struct reader row, const char *column)
{
    char unit[HTML_VALUE];

    rows_get(row, "unit", unit, sizeof(unit));
    if (!strcmp(unit, "us"))
        html_time(out, row_number(row, column));
    else
        html_bytes(out, row_number(row, column));
}

static bool same(struct reader a, struct reader b, const char *column)
{
    char one[HTML_VALUE], other[HTML_VALUE];

    rows_get(a, column, one, sizeof(one));
    rows_get(b, column, other, sizeof(other));
    return !strcmp(one, other);
}

/* Takes the buckets of the histogram in `row`; returns their number. */
static uint32_t buckets_of(struct reader row, struct reader buckets,
    struct reader found[BUCKETS_MAX], double counts[BUCKETS_MAX])
{
    struct reader bucket;
    uint32_t n = 0;
    double below = 0;

    while (n < BUCKETS_MAX && rows_next(&buckets, &bucket)) {
        if (!same(row, bucket, "name") || !same(row, bucket, "pool"))
            continue;
        found[n] = bucket;
        counts[n] = row_number(bucket, "count") - below;
        below += counts[n++];
    }
    CHECK(n <= BUCKETS_MAX, "%u buckets", n);
    return n;
}

/* Prints one column for each bucket, the highest over the whole height, and the
 * range that the columns are for. */
static void print_spread(FILE *out, struct reader row, struct reader all)
{
    struct reader found[BUCKETS_MAX];
    double counts[BUCKETS_MAX], most = 1;
    uint32_t n = buckets_of(row, all, found, counts);

    for (uint32_t i = 0; i < n; i++)
        most = counts[i] > most ? counts[i] : most;
    fputs("<td class=\"spread\"><svg viewBox=\"0 0 200 20\" height=\"20\" "
          "preserveAspectRatio=\"none\" role=\"img\" "
          "aria-label=\"how many in each bucket\">"
          "<rect class=\"track\" y=\"19\" width=\"200\" height=\"1\"/>",
        out);
    for (uint32_t i = 0; i < n; i++) {
        double high = counts[i] > 0 ? 1.5 + counts[i] / most * 17.5 : 0;
        bool last = i > 0 && i + 1 == n;

        fprintf(out,
            "<rect class=\"first\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
            "height=\"%.1f\"><title>",
            i * 200.0 / n, 20 - high, 200.0 / n - 1.5, high);
        html_count(out, counts[i]);
        fputs(last ? " above " : " up to ", out);
        measure(out, found[last ? i - 1 : i], "up_to");
        fputs("</title></rect>", out);
    }
    fputs("</svg></td><td class=\"range\">", out);
    if (n > 1) {
        measure(out, found[0], "up_to");
        fputs(" to ", out);
        measure(out, found[n - 2], "up_to");
    }
    fputs("</td>", out);
}

/* Prints a quantile; what lies in the first bucket is not known closer. */
static void print_quantile(
    FILE *out, struct reader row, const char *column, struct reader buckets)
{
    struct reader found[BUCKETS_MAX];
    double counts[BUCKETS_MAX];
    uint32_t n = buckets_of(row, buckets, found, counts);

    fputs("<td class=\"n\">", out);
    if (n > 0 && row_number(row, column) <= row_number(found[0], "up_to")) {
        fputs("\u2264 ", out);
        measure(out, found[0], "up_to");
    } else {
        measure(out, row, column);
    }
    fputs("</td>", out);
}

static void print_measure(FILE *out, struct reader row, struct reader buckets)
{
    char name[HTML_VALUE];

    rows_get(row, "name", name, sizeof(name));
    for (char *p = name; *p; p++)
        *p = *p == '_' ? ' ' : *p;
    fputs("<tr><td>", out);
    html_text(out, name);
    fputs("</td><td>", out);
    html_cell(out, row, "pool");
    fputs("</td><td class=\"n\">", out);
    html_count(out, row_number(row, "count"));
    fputs("</td>", out);
    print_quantile(out, row, "p50", buckets);
    print_quantile(out, row, "p99", buckets);
    print_spread(out, row, buckets);
    fputs("</tr>\n", out);
}

static void print_measures(FILE *out, const struct daemon *d)
{
    static const char *const heads[] = {
        "", "pool", "#count", "#p50", "#p99", "how many by value", "", NULL};
    struct reader rows = d->said[SAID_HISTOGRAMS], row;
    bool any = false;

    while (rows_next(&rows, &row)) {
        char pool[HTML_VALUE];

        rows_get(row, "pool", pool, sizeof(pool));
        if (row_number(row, "count") <= 0 || !strcmp(pool, "*"))
            continue;
        if (!any) {
            fputs("<h3>Times and sizes since the start</h3>\n"
                  "<div class=\"wide\">",
                out);
            html_head(out, heads);
        }
        any = true;
        print_measure(out, row, d->said[SAID_BUCKETS]);
    }
    if (any)
        fputs("</tbody></table></div>\n", out);
}

/* the page */

static void print_daemon(FILE *out, const struct daemon *d)
{
    CHECK(d->up || !d->memory[SAID_STATUS], "%s is away", d->label);
    fputs("<section>\n", out);
    if (d->up) {
        print_status(out, d);
        print_pools(out, d->said[SAID_POOLS]);
        print_peers(out, d->said[SAID_PEERS]);
        print_measures(out, d);
        bars_print(out, d);
    } else {
        fprintf(out, "<div class=\"title\"><h2>mmx-%s</h2>", d->label);
        html_pill(out, "bad", "away");
        fputs("</div>\n<p class=\"why\">does not answer at ", out);
        html_text(out, d->path);
        fputs("</p>\n", out);
    }
    fputs("</section>\n", out);
}

void page_print(FILE *out, const struct daemon *daemons, uint32_t count)
{
    char host[HTML_VALUE] = "this host", clock[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = 0;
    if (gmtime_r(&now, &utc))
        strftime(clock, sizeof(clock), "%H:%M:%S", &utc);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n",
        out);
    fprintf(out, "<meta http-equiv=\"refresh\" content=\"%d\">\n<title>mmx on ",
        AGAIN_S);
    html_text(out, host);
    fprintf(out, "</title>\n<style>\n%s</style></head><body>\n<header><h1>",
        page_style);
    fputs("mmx on ", out);
    html_text(out, host);
    fprintf(out, "</h1><p>%s UTC, again every %d s</p></header>\n<main>\n",
        clock, AGAIN_S);
    for (uint32_t i = 0; i < count; i++)
        print_daemon(out, &daemons[i]);
    fputs("</main></body></html>\n", out);
}
