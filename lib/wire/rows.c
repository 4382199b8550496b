/* rows.c - see rows.h. Rejected: JSON for mmxctl too. mmxctl would need a
 * parser for what the daemon has as names and values. */
#include "wire/rows.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

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
    return 64 + 6 * ((size_t)c->name.len + c->text.len);
}

/* JSON */

static void put(struct writer *w, const char *s)
{
    put_bytes(w, s, strlen(s));
}

/* Appends a string. Names come from engines: bytes that are not UTF-8 become a
 * question mark, control characters are escaped. */
static void put_string(struct writer *w, struct span s)
{
    size_t at = 0, len;

    put(w, "\"");
    for (; at < s.len; at += max_u64(len, 1)) {
        unsigned char c = s.p[at];
        char escaped[8];

        len = text_char((const char *)s.p + at, s.len - at);
        if (c == '"' || c == '\\') {
            put_u8(w, '\\');
            put_u8(w, c);
        } else if (c == '\n') {
            put(w, "\\n");
        } else if (c < 0x20 || c == 0x7f) {
            snprintf(escaped, sizeof(escaped), "\\u%04x", c);
            put(w, escaped);
        } else if (len) {
            put_bytes(w, s.p + at, len);
        } else {
            put(w, "?");
        }
    }
    put(w, "\"");
}

void json_cell(struct writer *w, struct json *j, const struct cell *c)
{
    char number[24];

    if (c->kind == CELL_ROW) {
        put(w, j->rows ? "},\n{" : "[\n{");
        *j = (struct json){.rows = true};
        return;
    }
    CHECK(j->rows, "a cell before the first row");
    put(w, j->cells ? ", " : "");
    j->cells = true;
    put_string(w, c->name);
    put(w, ": ");
    snprintf(number, sizeof(number), "%llu", (unsigned long long)c->number);
    if (c->kind == CELL_TEXT)
        put_string(w, c->text);
    else
        put(w, number);
}

void json_end(struct writer *w, const struct json *j)
{
    put(w, j->rows ? "}\n]\n" : "[]\n");
}
