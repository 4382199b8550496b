/* table.c - a report as a table, as wide as the terminal at most. Widths of
 * columns are known only after the last row, so that a table takes two passes.
 * Elsewhere than on a terminal nothing is cut. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table cuts a longer value; JSON has all of it. */
#define CELL_MAX    104
#define COLUMNS_MAX 64
#define TEXT_MIN    8 /* a column of text is made no smaller */
/* What a value may take beside its name. */
#define UPRIGHT(width) ((width) > 30 ? (width)-22 : 8)

struct column {
    struct span name;
    int width;
    bool number;
    char cell[CELL_MAX]; /* of the row that is printed */
};

struct table {
    bool upright, exact;
    bool sized;           /* the row is of a counter of bytes */
    int width;            /* of the terminal; 0: there is none */
    uint32_t count, last; /* last: column after that of the last cell */
    uint32_t shown;       /* columns that fit */
    struct column columns[COLUMNS_MAX];
};

/* Returns the cell's column, a new one if needed; NULL: there are too many. The
 * search begins behind the last cell, where most rows go on. */
static struct column *column_of(struct table *t, const struct cell *c)
{
    uint32_t k = t->last, i = 0;

    while (i < t->count && !span_eq(t->columns[k % t->count].name, c->name))
        k++, i++;
    if (i == t->count && t->count == COLUMNS_MAX)
        return NULL;
    if (i == t->count) {
        k = t->count++;
        t->columns[k].name = c->name;
        t->columns[k].number = c->kind == CELL_NUMBER;
        t->columns[k].width = (int)c->name.len;
    }
    k %= t->count;
    CHECK(span_eq(t->columns[k].name, c->name), "column %u of %u", k, t->count);
    t->last = k + 1;
    return &t->columns[k];
}

/* True if the cell is a number of bytes; that of a row is part of a layout, and
 * stays exact. */
static bool is_size(const struct table *t, const struct cell *c)
{
    size_t len = c->name.len;

    return c->kind == CELL_NUMBER &&
           (span_eq(c->name, span_str("bytes")) ||
               span_eq(c->name, span_str("bytes_moved")) ||
               (len > 6 && !memcmp(c->name.p + len - 6, "_bytes", 6) &&
                   !span_eq(c->name, span_str("row_bytes"))) ||
               (t->sized && span_eq(c->name, span_str("value"))));
}

/* Fills in the cell's column, and makes it as wide as needed. */
static void take_cell(struct table *t, const struct cell *c)
{
    bool cut = c->text.len >= CELL_MAX;
    struct column *column = column_of(t, c);
    char size[SIZE_TEXT];

    if (!column)
        return;
    if (c->kind == CELL_TEXT && span_eq(c->name, span_str("name")))
        t->sized = c->text.len > 6 && !memcmp(c->text.p, "bytes_", 6);
    if (is_size(t, c)) {
        size_text(c->number, t->exact, size);
        snprintf(column->cell, CELL_MAX, "%s", size);
    } else {
        rows_text(c, column->cell, CELL_MAX - (cut ? 3 : 0));
    }
    if (cut)
        strcat(column->cell, "...");
    if (!t->shown && column->width < (int)strlen(column->cell))
        column->width = (int)strlen(column->cell);
}

/* Takes columns of text in, the widest first, then leaves out the last columns,
 * until a row fits the terminal. */
static void fit(struct table *t)
{
    t->shown = t->count;
    while (t->width && t->shown > 1) {
        struct column *widest = NULL;
        int sum = -2;

        for (uint32_t i = 0; i < t->shown; i++) {
            struct column *c = &t->columns[i];

            sum += c->width + 2;
            if (!c->number && c->width > TEXT_MIN &&
                (!widest || c->width > widest->width))
                widest = c;
        }
        if (sum <= t->width)
            return;
        if (widest)
            widest->width--;
        else
            t->shown--;
    }
}

/* Cuts the text to the width, and shows that. */
static void cut_to(char *cell, int width)
{
    int at = width - 1;

    CHECK(width > 0, "no column for %s", cell);
    if ((int)strlen(cell) <= width)
        return;
    while (at > 0 && ((unsigned char)cell[at] & 0xc0) == 0x80)
        at--;
    cell[at] = '~';
    cell[at + 1] = 0;
}

/* Prints the cells of one row and clears them. */
static void print_row(struct table *t)
{
    int pending = 0; /* spaces, unless nothing follows them */

    for (uint32_t i = 0; i < t->shown; i++) {
        struct column *c = &t->columns[i];
        int len, pad;

        if (t->width)
            cut_to(c->cell, t->upright ? UPRIGHT(t->width) : c->width);
        len = (int)strlen(c->cell);
        pad = c->width - len;
        CHECK(pad >= 0, "%d columns for %s", c->width, c->cell);
        if (t->upright) {
            printf("%-20.*s  %s\n", (int)c->name.len, (const char *)c->name.p,
                c->cell);
        } else if (len == 0) {
            pending += c->width;
        } else {
            printf("%*s%s", pending + (c->number ? pad : 0), "", c->cell);
            pending = c->number ? 0 : pad;
        }
        pending += 2;
    }
    for (uint32_t i = 0; i < t->count; i++)
        t->columns[i].cell[0] = 0;
    if (!t->upright)
        putchar('\n');
}

static void print_head(struct table *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        span_copy_str(t->columns[i].name, t->columns[i].cell, CELL_MAX);
    if (!t->upright && t->count)
        print_row(t);
}

void rows_table(struct reader rows, bool upright, bool exact)
{
    struct table t = {
        .upright = upright, .exact = exact, .width = screen_width()};
    struct reader rest = rows, row;
    struct cell c;

    while (cell_get(&rest, &c))
        if (c.kind != CELL_ROW)
            take_cell(&t, &c);
    if (upright)
        t.shown = t.count;
    else
        fit(&t);
    print_head(&t);
    if (!t.count)
        puts("none");
    while (rows_next(&rows, &row)) {
        while (cell_get(&row, &c))
            take_cell(&t, &c);
        print_row(&t);
    }
    if (t.shown < t.count)
        printf("(%u more columns: --json)\n", t.count - t.shown);
}
