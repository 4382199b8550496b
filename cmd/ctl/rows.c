/* rows.c - reads a report for mmxctl, cell by cell, and writes rows. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* An engine's name must not send control characters to a terminal. */
void rows_text(const struct cell *c, char *out, size_t size)
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

uint64_t rows_number(struct reader row, const char *name)
{
    char text[24];

    rows_get(row, name, text, sizeof(text));
    return strtoull(text, NULL, 10);
}

void rows_get(struct reader row, const char *name, char *out, size_t size)
{
    struct cell c;

    CHECK(size > 0, "no byte for %s", name);
    out[0] = 0;
    while (cell_get(&row, &c))
        if (span_eq(c.name, span_str(name))) {
            rows_text(&c, out, size);
            return;
        }
}

void rows_put(struct writer *w)
{
    cell_put(w, &(struct cell){.kind = CELL_ROW});
}

void rows_put_text(struct writer *w, const char *name, const char *text)
{
    cell_put(w, &(struct cell){CELL_TEXT, span_str(name), span_str(text), 0});
}

void rows_put_number(struct writer *w, const char *name, uint64_t number)
{
    cell_put(
        w, &(struct cell){CELL_NUMBER, span_str(name), span_of("", 0), number});
}
