/* rows.c - what mmxctl makes of a report: the cells of one row, a table, or
 * JSON. Widths of columns are known only after the last row, so that a table
 * takes two passes. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* A table cuts a longer value; JSON has all of it. */
#define CELL_MAX    104
#define COLUMNS_MAX 64

struct column {
    struct span name;
    int width;
    bool number;
    char cell[CELL_MAX]; /* of the row that is printed */
};

struct table {
    bool upright;
    uint32_t count, last; /* last: column after that of the last cell */
    struct column columns[COLUMNS_MAX];
};

/* Copies the value as text. An engine's name must not send control characters
 * to a terminal. */
static void cell_text(const struct cell *c, char *out, size_t size)
{
    if (c->kind == CELL_NUMBER)
        snprintf(out, size, "%llu", (unsigned long long)c->number);
    else
        text_copy(c->text, out, size);
}

bool rows_next(struct reader *rows, struct reader *row)
{
    struct cell c;
    size_t end;

    if (!cell_get(rows, &c) || c.kind != CELL_ROW)
        return false;
    *row = *rows;
    do
        end = rows->at;
    while (cell_get(rows, &c) && c.kind != CELL_ROW);
    CHECK(end >= row->at, "a row that ends at %zu", end);
    rows->at = row->len = end;
    return true;
}

void rows_get(struct reader row, const char *name, char *out, size_t size)
{
    struct cell c;

    CHECK(size > 0, "no byte for %s", name);
    out[0] = 0;
    while (cell_get(&row, &c))
        if (span_eq(c.name, span_str(name))) {
            cell_text(&c, out, size);
            return;
        }
}

/* tables */

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

/* Fills in the cell's column, and makes it as wide as needed. */
static void take_cell(struct table *t, const struct cell *c)
{
    bool cut = c->text.len >= CELL_MAX;
    struct column *column = column_of(t, c);

    if (!column)
        return;
    cell_text(c, column->cell, CELL_MAX - (cut ? 3 : 0));
    if (cut)
        strcat(column->cell, "...");
    if (column->width < (int)strlen(column->cell))
        column->width = (int)strlen(column->cell);
}

/* Prints the cells of one row and clears them. */
static void print_row(struct table *t)
{
    int pending = 0; /* spaces, unless nothing follows them */

    for (uint32_t i = 0; i < t->count; i++) {
        struct column *c = &t->columns[i];
        int len = (int)strlen(c->cell), pad = c->width - len;

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
        c->cell[0] = 0;
    }
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

void rows_table(struct reader rows, bool upright)
{
    struct table t = {.upright = upright};
    struct reader rest = rows, row;
    struct cell c;

    while (cell_get(&rest, &c))
        if (c.kind != CELL_ROW)
            take_cell(&t, &c);
    print_head(&t);
    if (!t.count)
        puts("none");
    while (rows_next(&rows, &row)) {
        while (cell_get(&row, &c))
            take_cell(&t, &c);
        print_row(&t);
    }
}

void rows_json(struct reader rows)
{
    /* No cell needs more as JSON than this. */
    static uint8_t out[64 + 6 * (ROWS_NAME_MAX + ROWS_TEXT_MAX)];
    struct writer w = writer_of(out, sizeof(out));
    struct json json = {0};
    struct cell c;

    for (; cell_get(&rows, &c); w.len = 0) {
        if (json.rows || c.kind == CELL_ROW)
            json_cell(&w, &json, &c);
        CHECK(!w.failed, "a cell of %u bytes", c.text.len);
        fwrite(w.p, 1, w.len, stdout);
    }
    json_end(&w, &json);
    fwrite(w.p, 1, w.len, stdout);
}
