/* page.c - the page for people: pools, peers, and the last rooms with a bar of
 * where their time went. Plain HTML and SVG; nothing comes from elsewhere. */
#include "exporter.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { VALUE_MAX = 256, ROOMS_SHOWN = 40, BAR = 480 };

/* What a room waits for between two of its moments. */
static const struct {
    const char *column, *colour, *text;
} moments[] = {
    {"init_us", "#9aa5b1", "until the other side asked"},
    {"length_us", "#7b61a8", "until the length was known"},
    {"first_us", "#d98e04", "until the first row moved"},
    {"done_us", "#2a7f62", "until all had landed"},
};

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"refresh\" content=\"5\"><title>mmx</title>\n"
    "<style>\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;"
    "padding:0 1em;color:#1f2933;background:#fff}\n"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid "
    "#e4e7eb}\nth{font-weight:600;color:#52606d}\n"
    "td.n{text-align:right}.bad{color:#b3261e}.key i{display:inline-block;"
    "width:.8em;height:.8em;margin:0 .3em 0 1em}\n"
    "</style></head><body>\n<h1>mmx on this host</h1>\n";

static void text(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '&')
            fputs("&amp;", out);
        else if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '>')
            fputs("&gt;", out);
        else if (*s == '"')
            fputs("&quot;", out);
        else
            putc(*s, out);
    }
}

/* A column of a table: its heading, and the report's column. */
struct column {
    const char *heading, *column;
    bool number;
};

static void cell(FILE *out, struct reader row, const struct column *c)
{
    char value[VALUE_MAX];

    rows_get(row, c->column, value, sizeof(value));
    fputs(c->number ? "<td class=\"n\">" : "<td>", out);
    text(out, value);
    fputs("</td>", out);
}

/* Prints the rows of one report as a table. */
static void table(FILE *out, struct reader rows, const struct column *columns)
{
    struct reader row;

    fputs("<table><tr>", out);
    for (const struct column *c = columns; c->heading; c++)
        fprintf(out, "<th>%s</th>", c->heading);
    fputs("</tr>\n", out);
    while (rows_next(&rows, &row)) {
        fputs("<tr>", out);
        for (const struct column *c = columns; c->heading; c++)
            cell(out, row, c);
        fputs("</tr>\n", out);
    }
    fputs("</table>\n", out);
}

/* Prints a bar: one stretch for each moment that the room has reached, whose
 * whole width is `most` microseconds. */
static void bar(FILE *out, struct reader row, double most)
{
    double from = 0;

    CHECK(most > 0, "a bar of %.0f us", most);
    fprintf(out, "<td><svg width=\"%d\" height=\"14\" role=\"img\">", BAR);
    for (uint32_t i = 0; i < ARRAY_LEN(moments); i++) {
        double at = row_number(row, moments[i].column);

        if (at <= from)
            continue;
        fprintf(out,
            "<rect x=\"%.1f\" width=\"%.1f\" height=\"14\" fill=\"%s\">"
            "<title>%.0f us %s</title></rect>",
            from / most * BAR, (at - from) / most * BAR, moments[i].colour,
            at - from, moments[i].text);
        from = at;
    }
    fputs("</svg></td>", out);
}

/* Finds the last rooms that ended, newest first; returns their number. */
static uint32_t last_rooms(
    struct reader rows, struct reader found[ROOMS_SHOWN], double *most)
{
    static const char mark[] = "ended";
    char value[VALUE_MAX];
    struct reader row;
    uint32_t count = 0;

    while (rows_next(&rows, &row)) {
        rows_get(row, mark, value, sizeof(value));
        if (!value[0])
            continue;
        memmove(found + 1, found, (ROOMS_SHOWN - 1) * sizeof(*found));
        found[0] = row;
        count += count < ROOMS_SHOWN;
    }
    *most = 1;
    for (uint32_t i = 0; i < count; i++)
        if (row_number(found[i], "done_us") > *most)
            *most = row_number(found[i], "done_us");
    return count;
}

static void rooms(FILE *out, struct reader rows)
{
    static const struct column columns[] = {{"room", "room", true},
        {"peer", "peer", false}, {"rows", "total", true},
        {"bytes", "bytes", true}, {"reason", "reason", false},
        {"us", "done_us", true}};
    struct reader found[ROOMS_SHOWN];
    double most;
    uint32_t count = last_rooms(rows, found, &most);

    CHECK(count <= ROOMS_SHOWN, "%u rooms", count);
    fputs("<p class=\"key\">the last rooms", out);
    for (uint32_t i = 0; i < ARRAY_LEN(moments); i++)
        fprintf(out, "<i style=\"background:%s\"></i>%s", moments[i].colour,
            moments[i].text);
    fputs("</p>\n<table><tr>", out);
    for (uint32_t i = 0; i < ARRAY_LEN(columns); i++)
        fprintf(out, "<th>%s</th>", columns[i].heading);
    fputs("<th>where the time went</th></tr>\n", out);
    for (uint32_t k = 0; k < count; k++) {
        fputs("<tr>", out);
        for (uint32_t i = 0; i < ARRAY_LEN(columns); i++)
            cell(out, found[k], &columns[i]);
        bar(out, found[k], most);
        fputs("</tr>\n", out);
    }
    fputs("</table>\n", out);
}

static void one(FILE *out, const struct daemon *d)
{
    static const struct column status[] = {{"name", "name", false},
        {"version", "software", false}, {"up for, s", "uptime_s", true},
        {"rooms open", "rooms_open", true},
        {"rooms ended", "rooms_ended", true}, {"peers up", "peers_up", true},
        {"draining", "draining", true}, {NULL, NULL, false}};
    static const struct column pools[] = {{"pool", "pool", false},
        {"memory", "memory", false}, {"state", "state", false},
        {"layout", "layout", false}, {"blocks", "blocks", true},
        {"free", "free", true}, {"quarantined", "quarantined", true},
        {NULL, NULL, false}};
    static const struct column peers[] = {{"peer", "name", false},
        {"address", "address", false}, {"state", "state", false},
        {"carrier", "carrier", false}, {"path", "path", false},
        {"not by", "not_by", false}, {"refused", "refused", false},
        {NULL, NULL, false}};

    CHECK(d->up || !d->memory[SAID_COUNT - 1], "%s is away", d->label);
    fprintf(out, "<h2>mmx-%s</h2>\n", d->label);
    if (!d->up) {
        fputs("<p class=\"bad\">does not answer at ", out);
        text(out, d->path);
        fputs("</p>\n", out);
        return;
    }
    table(out, d->said[SAID_STATUS], status);
    table(out, d->said[SAID_POOLS], pools);
    table(out, d->said[SAID_PEERS], peers);
    rooms(out, d->said[SAID_ROOMS]);
}

void page_print(FILE *out, const struct daemon *daemons, uint32_t count)
{
    fputs(head, out);
    for (uint32_t i = 0; i < count; i++)
        one(out, &daemons[i]);
    fputs("</body></html>\n", out);
}
