/* html.c - the small pieces of the page: text that is safe, numbers with units
 * for people, tables. */
#include "html.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

void html_text(FILE *out, const char *s)
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

void html_list(FILE *out, struct reader row, const char *column)
{
    char value[1024], *item = value, *end;

    rows_get(row, column, value, sizeof(value));
    for (; (end = strchr(item, ',')); item = end + 1) {
        *end = 0;
        html_text(out, item);
        fputs(",<wbr>", out);
    }
    html_text(out, item);
}

/* Prints a number of three digits. */
static void short_number(FILE *out, double v)
{
    fprintf(out, "%.*f", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v);
}

void html_time(FILE *out, double us)
{
    static const struct {
        double us;
        const char *name;
    } units[] = {{1, "\u00b5s"}, {1e3, "ms"}, {1e6, "s"}};
    uint32_t i = 0;

    CHECK(us >= 0, "a time of %f us", us);
    if (us >= 120e6) {
        html_age(out, us / 1e6);
        return;
    }
    while (i + 1 < ARRAY_LEN(units) && us >= units[i + 1].us * 0.9995)
        i++;
    if (i == 0)
        fprintf(out, "%.0f", us);
    else
        short_number(out, us / units[i].us);
    fprintf(out, " %s", units[i].name);
}

void html_age(FILE *out, double seconds)
{
    unsigned long s = seconds > 0 ? (unsigned long)seconds : 0;

    if (s < 120)
        fprintf(out, "%lu s", s);
    else if (s < 7200)
        fprintf(out, "%lu min", s / 60);
    else if (s < 172800)
        fprintf(out, "%lu h %lu min", s / 3600, s / 60 % 60);
    else
        fprintf(out, "%lu days", s / 86400);
}

void html_bytes(FILE *out, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    uint32_t i = 0;

    CHECK(bytes >= 0, "%f bytes", bytes);
    while (i + 1 < ARRAY_LEN(units) && bytes >= 1023.5) {
        bytes /= 1024;
        i++;
    }
    if (i == 0 || bytes >= 99.95)
        fprintf(out, "%.0f %s", bytes, units[i]);
    else
        fprintf(out, "%.1f %s", bytes, units[i]);
}

void html_count(FILE *out, double count)
{
    char digits[32];
    int len = snprintf(digits, sizeof(digits), "%.0f", count);

    CHECK(len > 0, "%f has no digits", count);
    if (len >= (int)sizeof(digits)) /* no count of ours is that large */
        return;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            fputs("\u202f", out); /* narrow, no break */
        putc(digits[i], out);
    }
}

void html_cell(FILE *out, struct reader row, const char *column)
{
    char value[HTML_VALUE];

    rows_get(row, column, value, sizeof(value));
    html_text(out, value);
}

void html_head(FILE *out, const char *const headings[])
{
    fputs("<table><thead><tr>", out);
    for (; *headings; headings++) {
        bool number = **headings == '#';

        fprintf(out, "<th%s>%s</th>", number ? " class=\"n\"" : "",
            *headings + number);
    }
    fputs("</tr></thead><tbody>\n", out);
}

void html_pill(FILE *out, const char *kind, const char *text)
{
    fprintf(out, "<span class=\"pill %s\">", kind);
    html_text(out, text);
    fputs("</span>", out);
}
