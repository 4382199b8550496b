/* bars.c - the last rooms of a daemon, each with a bar of where its time went.
 * All bars of a daemon have one scale, which most of its rooms fit into; a
 * longer one fills the width by its own scale and is marked. No room ids: who
 * reads the page need not be the rooms' user. */
#include "html.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { ROOMS_SHOWN = 32, WIDTH = 1000, HEIGHT = 12, MOMENTS = 6 };

/* A moment of a room: a column of the report, and what the time before it was
 * for. The colour of one meaning is the same at both daemons. */
struct moment {
    const char *column, *kind, *text;
};

static const struct moment of_encoded[MOMENTS] = {
    {"length_us", "announced", "until it was announced"},
    {"granted_us", "blocks", "until it had source blocks"},
    {"init_us", "asked", "until it was asked for"},
    {"first_us", "first", "until the first row could go"},
    {"committed_us", "written", "until all rows were written"},
    {"done_us", "done", "until READY was heard"},
};
static const struct moment of_langd[MOMENTS] = {
    {"init_us", "asked", "until the encoder was asked"},
    {"length_us", "announced", "until it was announced"},
    {"granted_us", "blocks", "until it had blocks"},
    {"first_us", "first", "until the first row landed"},
    {"done_us", "done", "until all rows had landed"},
};
static const struct moment ended_badly = {NULL, "failed", "until it failed"};

/* The time between two moments. */
struct stretch {
    double from, to; /* us since the room was opened */
    const struct moment *moment;
};

static bool is_langd(const struct daemon *d)
{
    return !strcmp(d->label, "langd");
}

static bool failed(struct reader row)
{
    char state[HTML_VALUE];

    rows_get(row, "state", state, sizeof(state));
    return !strcmp(state, "Failed");
}

/* Cuts the room's life at its moments, whatever their order; returns the number
 * of stretches. */
static uint32_t stretches(struct reader row, const struct moment *moments,
    struct stretch out[MOMENTS])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < MOMENTS && moments[i].column; i++) {
        double at = row_number(row, moments[i].column);
        uint32_t k = count;

        if (at <= 0)
            continue;
        for (; k > 0 && out[k - 1].to > at; k--)
            out[k] = out[k - 1];
        out[k] = (struct stretch){0, at, &moments[i]};
        count++;
    }
    for (uint32_t i = 0; i < count; i++)
        out[i].from = i > 0 ? out[i - 1].to : 0;
    CHECK(count <= MOMENTS, "%u stretches", count);
    if (count > 0 && failed(row))
        out[count - 1].moment = &ended_badly;
    return count;
}

/* the scale */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the width of the bars in us, 1, 2 or 5 times a power of ten: nine of
 * ten rooms are not longer. */
static double scale_of(const struct reader *rooms, uint32_t count)
{
    double took[ROOMS_SHOWN], most, scale = 10;
    static const double steps[] = {2, 2.5, 2};

    CHECK(count > 0 && count <= ROOMS_SHOWN, "%u rooms", count);
    for (uint32_t i = 0; i < count; i++)
        took[i] = row_number(rooms[i], "done_us");
    qsort(took, count, sizeof(*took), by_value);
    most = took[(count - 1) * 9 / 10];
    if (took[count - 1] <= 2 * most) /* all of them, then */
        most = took[count - 1];
    for (uint32_t i = 0; scale < most; i++)
        scale *= steps[i % ARRAY_LEN(steps)];
    return scale;
}

/* printing */

static void print_bar(
    FILE *out, struct reader row, const struct moment *moments, double scale)
{
    double took = row_number(row, "done_us");
    struct stretch parts[MOMENTS];
    uint32_t count = stretches(row, moments, parts);
    bool cut = took > scale;

    CHECK(scale > 0, "a scale of %f us", scale);
    if (cut)
        scale = took;
    fprintf(out,
        "<td class=\"graph\"><svg viewBox=\"0 0 %d %d\" height=\"%d\" "
        "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
        WIDTH, HEIGHT, HEIGHT);
    for (uint32_t i = 0; i < count; i++) {
        html_time(out, parts[i].to - parts[i].from);
        fprintf(out, " %s%s", parts[i].moment->text, i + 1 < count ? ", " : "");
    }
    fprintf(out, "\"><rect class=\"track\" width=\"%d\" height=\"%d\"/>", WIDTH,
        HEIGHT);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out,
            "<rect class=\"%s\" x=\"%.2f\" width=\"%.2f\" height=\"%d\">"
            "<title>",
            parts[i].moment->kind, parts[i].from / scale * WIDTH,
            (parts[i].to - parts[i].from) / scale * WIDTH, HEIGHT);
        html_time(out, parts[i].to - parts[i].from);
        fprintf(out, " %s</title></rect>", parts[i].moment->text);
    }
    for (int x = 960; cut && x <= 975; x += 15)
        fprintf(out, "<rect class=\"cut\" x=\"%d\" width=\"6\" height=\"%d\"/>",
            x, HEIGHT);
    fputs("</svg></td>", out);
}

static void print_room(FILE *out, const struct daemon *d, struct reader row,
    const struct moment *moments, double scale)
{
    double took = row_number(row, "done_us");
    double ended = row_number(row, "opened_ns") / 1e9 + took / 1e6;

    fputs("<tr><td class=\"ago\">", out);
    html_age(out, (double)ctl_now_ns() / 1e9 - ended);
    fputs(" ago</td>", out);
    if (is_langd(d)) {
        fputs("<td>", out);
        html_cell(out, row, "peer");
        fputs("</td>", out);
    }
    fputs("<td class=\"n\">", out);
    html_count(out, row_number(row, "total"));
    fputs(" rows</td><td class=\"n\">", out);
    html_bytes(out, row_number(row, "bytes"));
    fputs("</td><td>", out);
    if (failed(row)) {
        char reason[HTML_VALUE];

        rows_get(row, "reason", reason, sizeof(reason));
        html_pill(out, "bad", reason);
    } else {
        html_pill(out, "good", "ok");
    }
    fputs("</td><td class=\"n\">", out);
    html_time(out, took);
    fputs("</td>", out);
    print_bar(out, row, moments, scale);
    fputs("</tr>\n", out);
}

/* Finds the last rooms that ended, newest first; returns their number. */
static uint32_t last_rooms(struct reader rows, struct reader out[ROOMS_SHOWN])
{
    char value[HTML_VALUE];
    struct reader row;
    uint32_t count = 0;

    while (rows_next(&rows, &row)) {
        rows_get(row, "ended", value, sizeof(value));
        if (!value[0])
            continue;
        memmove(out + 1, out, (ROOMS_SHOWN - 1) * sizeof(*out));
        out[0] = row;
        count += count < ROOMS_SHOWN;
    }
    return count;
}

static void print_key(FILE *out, const struct moment *moments)
{
    fputs("<ul class=\"key\">", out);
    for (uint32_t i = 0; i < MOMENTS && moments[i].column; i++)
        fprintf(out, "<li><i class=\"%s\"></i>%s</li>", moments[i].kind,
            moments[i].text);
    fprintf(out, "<li><i class=\"%s\"></i>%s</li></ul>\n", ended_badly.kind,
        ended_badly.text);
}

void bars_print(FILE *out, const struct daemon *d)
{
    const struct moment *moments = is_langd(d) ? of_langd : of_encoded;
    struct reader rooms[ROOMS_SHOWN];
    uint32_t count = last_rooms(d->said[SAID_ROOMS], rooms);
    bool any_cut = false;
    double scale;

    fputs("<h3>The last rooms, and where their time went</h3>\n", out);
    if (!count) {
        fputs("<p class=\"none\">No room has ended yet.</p>\n", out);
        return;
    }
    scale = scale_of(rooms, count);
    print_key(out, moments);
    fprintf(out,
        "<table class=\"rooms\"><thead><tr><th>ended</th>%s"
        "<th class=\"n\">length</th><th class=\"n\">size</th><th>end</th>"
        "<th class=\"n\">took</th><th class=\"graph\"><div class=\"axis\">",
        is_langd(d) ? "<th>encoder</th>" : "");
    for (int i = 0; i <= 2; i++) {
        fputs("<span>", out);
        html_time(out, scale * i / 2);
        fputs("</span>", out);
    }
    fputs("</div></th></tr></thead><tbody>\n", out);
    for (uint32_t i = 0; i < count; i++) {
        print_room(out, d, rooms[i], moments, scale);
        any_cut |= row_number(rooms[i], "done_us") > scale;
    }
    fputs("</tbody></table>\n", out);
    if (any_cut)
        fputs("<p class=\"note\">A bar with two gaps at its end is longer than "
              "the scale, and drawn by its own.</p>\n",
            out);
}
