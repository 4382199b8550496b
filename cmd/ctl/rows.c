/* rows.c - what mmxctl makes of a report: the cells of one row, or JSON. */
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

void rows_json_part(struct json *json, struct reader rows, const char *daemon)
{
    /* No cell needs more as JSON than this. */
    static uint8_t out[64 + 6 * (ROWS_NAME_MAX + ROWS_TEXT_MAX)];
    struct writer w = writer_of(out, sizeof(out));
    struct cell c;

    for (; cell_get(&rows, &c); w.len = 0) {
        if (json->rows || c.kind == CELL_ROW)
            json_cell(&w, json, &c);
        if (daemon && c.kind == CELL_ROW)
            json_cell(&w, json,
                &(struct cell){
                    CELL_TEXT, span_str("daemon"), span_str(daemon), 0});
        CHECK(!w.failed, "a cell of %u bytes", c.text.len);
        fwrite(w.p, 1, w.len, stdout);
    }
}

void rows_json_end(const struct json *json)
{
    uint8_t out[8];
    struct writer w = writer_of(out, sizeof(out));

    json_end(&w, json);
    fwrite(w.p, 1, w.len, stdout);
}

void rows_json(struct reader rows)
{
    struct json json = {0};

    rows_json_part(&json, rows, NULL);
    rows_json_end(&json);
}
