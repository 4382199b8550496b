/* html.c - small parts of the page: escaped text, numbers with units for
 * people, rows as HTML. */
#include "html.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

void html_text(FILE *out, const char *s)
{
    static const char from[] = "&<>\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&quot;"};

    for (; *s; s++) {
        const char *at = strchr(from, *s);

        if (at)
            fputs(to[at - from], out);
        else
            putc(*s, out);
    }
}

/* measures */

struct unit {
    double of;
    const char *name;
};
static const struct unit units[][7] = {
    [TIMES] = {{1, " \u00b5s"}, {1e3, " ms"}, {1e6, " s"}, {60e6, " min"},
        {3600e6, " h"}, {86400e6, " days"}},
    [SIZES] = {{1, " B"}, {0x1p10, " KiB"}, {0x1p20, " MiB"}, {0x1p30, " GiB"},
        {0x1p40, " TiB"}},
    [COUNTS] = {{1, ""}},
};

static const struct unit *fitting(enum html_unit unit, double value)
{
    const struct unit *u = units[unit];

    CHECK(value >= 0, "a measure of %f", value);
    while (u[1].name && value >= u[1].of * 0.9995)
        u++;
    return u;
}

static void number(FILE *out, double v)
{
    bool whole = fabs(v - rint(v)) < 0.0005;

    fprintf(out, "%.*f", whole || v >= 99.95 ? 0 : v < 9.995 ? 2 : 1, v);
}

void html_measure(FILE *out, enum html_unit unit, double value)
{
    const struct unit *u = fitting(unit, value);

    number(out, value / u->of);
    fputs(u->name, out);
}

void html_range(FILE *out, enum html_unit unit, double low, double high)
{
    const struct unit *u = fitting(unit, high > 0 ? high : low);

    fputs(low <= 0 ? "\u2264 " : high <= 0 ? "&gt; " : "", out);
    number(out, (low > 0 ? low : high) / u->of);
    if (low > 0 && high > 0) {
        fputs(" to ", out);
        number(out, high / u->of);
    }
    fputs(u->name, out);
}

/* rows */

static void state(FILE *out, const char *text)
{
    static const char good[] = " Success ready up ",
                      warn[] = " draining unknown ";
    char word[HTML_VALUE + 2];

    snprintf(word, sizeof(word), " %.200s ", text);
    fprintf(out, "<span class=\"state %s\">",
        strstr(good, word)   ? "good"
        : strstr(warn, word) ? "warn"
                             : "bad");
    html_text(out, text);
    fputs("</span>", out);
}

static void cell(FILE *out, char kind, struct reader row, const char *column)
{
    double value = row_number(row, column);
    char text[1024];

    rows_get(row, column, text, sizeof(text));
    if (!text[0])
        return;
    if (kind == '@')
        html_measure(out, TIMES,
            floor(strstr(column, "_ms") ? value / 1e3 : value) * 1e6);
    else if (kind == '#' || kind == '~' || kind == '%')
        html_measure(out,
            kind == '#'   ? COUNTS
            : kind == '~' ? TIMES
                          : SIZES,
            value);
    else if (kind == '!')
        state(out, text);
    else
        html_text(out, text);
}

void html_row(FILE *out, const char *html, struct reader row)
{
    while (*html) {
        size_t len = strcspn(html, "{");
        char column[32] = "";

        fwrite(html, 1, len, out);
        html += len;
        if (!*html)
            return;
        len = strcspn(++html, "}");
        CHECK(html[len] && len < sizeof(column), "a column {%s", html);
        memcpy(column, html, len);
        cell(out, column[0], row, column + !!strchr("#@~%!", column[0]));
        html += len + 1;
    }
}
