/* rows.c - see rows.h. Rejected: JSON. A daemon would write numbers as text,
 * and each client would need a parser to read them. */
#include "wire/rows.h"

#include "base/check.h"

void cell_put(struct writer *w, const struct cell *c)
{
    CHECK(c->kind >= CELL_ROW && c->kind <= CELL_NUMBER, "kind %u", c->kind);
    put_u8(w, (uint8_t)c->kind);
    if (c->kind == CELL_ROW)
        return;
    put_span(w, c->name, 1, ROWS_NAME_MAX);
    if (c->kind == CELL_TEXT)
        put_span(w, c->text, 4, ROWS_TEXT_MAX);
    else
        put_u64(w, c->number);
}

bool cell_get(struct reader *r, struct cell *c)
{
    if (r->at == r->len)
        return false;
    *c = (struct cell){.kind = get_u8(r)};
    if (c->kind != CELL_ROW)
        c->name = get_span(r, 1, ROWS_NAME_MAX);
    if (c->kind == CELL_TEXT)
        c->text = get_span(r, 4, ROWS_TEXT_MAX);
    else if (c->kind == CELL_NUMBER)
        c->number = get_u64(r);
    else if (c->kind != CELL_ROW)
        r->failed = true;
    return !r->failed;
}

size_t cell_bytes(const struct cell *c)
{
    return 16 + (size_t)c->name.len + c->text.len;
}
