/* report.c - see report.h.
 *
 * Rejected: asking for all rows twice, for widths and for print. Tables change
 * between two slices, and rows are costly to make. */
#include "node/report.h"

#include "base/check.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* a text that grows */

void bytes_add(struct bytes *b, const char *p, size_t n)
{
    size_t want = b->len + n;

    if (b->failed || want > REPORT_MAX) {
        b->failed = true;
        return;
    }
    if (want > b->cap) {
        size_t cap = b->cap ? b->cap : 16384;
        char *more;

        while (cap < want)
            cap *= 2;
        more = realloc(b->p, cap);
        if (!more) {
            b->failed = true;
            return;
        }
        b->p = more;
        b->cap = cap;
    }
    memcpy(b->p + b->len, p, n);
    b->len = want;
}

void bytes_free(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){.failed = b->failed};
}

void report_add(struct report *r, const char *text)
{
    bytes_add(&r->text, text, strlen(text));
}

PRINTF_LIKE(2, 3)
static void add(struct report *r, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof(line))
        n = (int)sizeof(line) - 1;
    bytes_add(&r->text, line, n > 0 ? (size_t)n : 0);
}

/* JSON: an array of objects */

/* Appends a JSON string. Names come from engines: bytes that are not UTF-8
 * become a question mark, control characters are escaped. */
void report_add_string(struct report *r, const char *s)
{
    size_t n = strlen(s), at = 0, len;

    report_add(r, "\"");
    for (; at < n; at += max_u64(len, 1)) {
        unsigned char c = (unsigned char)s[at];

        len = text_char(s + at, n - at);
        if (c == '"' || c == '\\')
            add(r, "\\%c", c);
        else if (c == '\n')
            report_add(r, "\\n");
        else if (c < 0x20 || c == 0x7f)
            add(r, "\\u%04x", c);
        else
            bytes_add(&r->text, len ? s + at : "?", max_u64(len, 1));
    }
    report_add(r, "\"");
}

static void json_row(struct rows_out *s)
{
    struct report *r = (struct report *)s;

    report_add(r, r->rows ? "},\n{" : "[\n{");
    r->rows++;
    r->last = 0;
}

static void json_name(struct report *r, const char *name)
{
    if (r->last++)
        report_add(r, ", ");
    report_add_string(r, name);
    report_add(r, ": ");
}

static void json_text(struct rows_out *s, const char *name, const char *value)
{
    struct report *r = (struct report *)s;

    json_name(r, name);
    report_add_string(r, value);
}

static void json_number(struct rows_out *s, const char *name, uint64_t value)
{
    struct report *r = (struct report *)s;

    json_name(r, name);
    add(r, "%llu", (unsigned long long)value);
}

/* text: gathered as a mark for each row, then the column's number, its value
 * and a zero for each cell */

#define ROW_MARK ((char)0xff)

static void table_row(struct rows_out *s)
{
    struct report *r = (struct report *)s;

    bytes_add(&r->gathered, &(char){ROW_MARK}, 1);
    r->rows++;
    r->last = 0;
}

/* Returns the number of the column, a new one if needed; NONE: there are too
 * many. The search begins behind the last value, where most rows go on. */
static uint32_t table_column(struct report *r, const char *name, bool number)
{
    struct column *c;

    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t k = (r->last + i) % r->count;

        if (strcmp(r->columns[k].name, name) == 0)
            return k;
    }
    if (r->count == COLUMNS_MAX)
        return NONE;
    c = &r->columns[r->count];
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->width = (int)strlen(c->name);
    c->number = number;
    return r->count++;
}

static void table_value(
    struct report *r, const char *name, const char *value, bool number)
{
    uint32_t k = table_column(r, name, number);
    size_t n = strlen(value);
    char cell[CELL_MAX];

    if (k == NONE)
        return;
    /* A name of an engine must not send control characters to a terminal. */
    text_copy(span_of(value, n), cell, sizeof(cell) - (n < CELL_MAX ? 0 : 3));
    if (n >= sizeof(cell))
        strcat(cell, "...");
    n = strlen(cell);
    if ((int)n > r->columns[k].width)
        r->columns[k].width = (int)n;
    CHECK(k < r->count && n < sizeof(cell), "column %u of %u", k, r->count);
    bytes_add(&r->gathered, &(char){(char)k}, 1);
    bytes_add(&r->gathered, cell, n + 1);
    r->last = k + 1;
}

static void table_text(struct rows_out *s, const char *name, const char *value)
{
    table_value((struct report *)s, name, value, false);
}

static void table_number(struct rows_out *s, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    table_value((struct report *)s, name, text, true);
}

/* Prints the cells of one row and clears them. */
static void print_cells(struct report *r)
{
    int pending = 0; /* spaces, unless nothing follows them */

    for (uint32_t i = 0; i < r->count; i++) {
        struct column *c = &r->columns[i];
        int len = c->cell ? (int)strlen(c->cell) : 0, pad = c->width - len;

        if (r->upright) {
            add(r, "%-20s  %s\n", c->name, len ? c->cell : "");
        } else if (len == 0) {
            pending += c->width;
        } else {
            add(r, "%*s%s", pending + (c->number ? pad : 0), "", c->cell);
            pending = c->number ? 0 : pad;
        }
        pending += 2;
        c->cell = NULL;
    }
    if (!r->upright)
        report_add(r, "\n");
}

static void print_head(struct report *r)
{
    r->headed = true;
    if (r->upright)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        r->columns[i].cell = r->columns[i].name;
    print_cells(r);
}

static void print_row(struct report *r)
{
    const char *p = r->gathered.p + r->printed + 1; /* behind its mark */
    const char *end = r->gathered.p + r->gathered.len;

    while (p < end && *p != ROW_MARK) {
        r->columns[(uint8_t)*p].cell = p + 1;
        p += strlen(p + 1) + 2;
    }
    r->printed = (size_t)(p - r->gathered.p);
    print_cells(r);
}

static bool print_table(struct report *r, uint32_t rows)
{
    if (!r->headed)
        print_head(r);
    for (; rows > 0 && r->printed < r->gathered.len; rows--)
        print_row(r);
    if (r->printed < r->gathered.len)
        return false;
    bytes_free(&r->gathered);
    r->printed = 0;
    return true;
}

/* life */

void report_init(struct report *r, bool json, bool upright)
{
    *r = (struct report){.json = json, .upright = upright};
    r->rows_out = json ? (struct rows_out){json_row, json_text, json_number}
                       : (struct rows_out){table_row, table_text, table_number};
}

void report_fini(struct report *r)
{
    bytes_free(&r->text);
    bytes_free(&r->gathered);
}

bool report_failed(const struct report *r)
{
    return r->text.failed || r->gathered.failed;
}

bool report_print(struct report *r, uint32_t rows)
{
    if (report_failed(r))
        return true;
    if (r->json)
        report_add(r, r->rows ? "}\n]\n" : "[]\n");
    else if (r->rows == 0)
        report_add(r, "none\n");
    else
        return print_table(r, rows);
    return true;
}
