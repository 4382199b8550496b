/* trace_read.c - reads happenings from rows, which a daemon sends or a file
 * stores. One thread. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

#define FILE_MAX (64u << 20)

const struct happening_row happening_rows[HAPPENED_COUNT] = {
#define HAPPENING(NAME, word, a, b, phase, doc) {word, a, b, phase},
#include "wire/happening.def"
};

static bool is(struct span name, const char *word)
{
    return word[0] && span_eq(name, span_str(word));
}

/* Returns the kind of a word; HAPPENED_COUNT: unknown, from a newer daemon. */
static uint8_t kind_of(struct span word)
{
    uint8_t k = 0;

    while (k < HAPPENED_COUNT && !is(word, happening_rows[k].word))
        k++;
    return k;
}

static uint8_t message_of(struct span word)
{
    for (unsigned i = 1; i < UINT8_MAX; i++)
        if (is(word, peer_name((enum peer_type)i)))
            return (uint8_t)i;
    return 0;
}

static void take_cell(struct happening *h, const struct cell *c)
{
    uint32_t number = (uint32_t)c->number;

    if (is(c->name, "number"))
        h->number = c->number;
    else if (is(c->name, "ns"))
        h->ns = (int64_t)c->number;
    else if (is(c->name, "room")) {
        h->of_room = c->kind == CELL_NUMBER;
        h->room = c->number;
    } else if (is(c->name, "what"))
        h->kind = kind_of(c->text);
    else if (is(c->name, "message"))
        h->message = message_of(c->text);
    else if (is(c->name, "peer"))
        text_copy(c->text, h->peer, sizeof(h->peer));
    else if (h->kind == HAPPENED_COUNT)
        return;
    else if (is(c->name, "seq"))
        h->seq = number;
    else if (c->kind == CELL_TEXT && is(c->name, happening_rows[h->kind].a))
        text_copy(c->text, h->text, sizeof(h->text));
    else if (is(c->name, happening_rows[h->kind].a))
        h->a = number;
    else if (is(c->name, happening_rows[h->kind].b))
        h->b = number;
}

bool trace_take(struct side *s, uint32_t number, struct reader rows)
{
    struct reader row;
    struct cell c;

    while (rows_next(&rows, &row)) {
        struct happening *h;

        if (s->count == s->cap) {
            size_t cap = s->cap ? 2 * s->cap : 8192;

            h = realloc(s->all, cap * sizeof(*h));
            if (!h)
                return false;
            s->all = h;
            s->cap = cap;
        }
        h = &s->all[s->count];
        *h = (struct happening){.kind = HAPPENED_COUNT,
            .side = (uint8_t)number,
            .a = ROWS_UNKNOWN,
            .b = ROWS_UNKNOWN};
        while (cell_get(&row, &c))
            take_cell(h, &c);
        s->next = h->number + 1;
        s->count += h->kind < HAPPENED_COUNT;
    }
    CHECK(s->count <= s->cap, "%zu of %zu happenings", s->count, s->cap);
    return rows.at == rows.len;
}

/* files: one row that names the side, then the rows of its reports */

void trace_put(struct writer *w, const struct happening *h, bool seq)
{
    const struct happening_row *row = &happening_rows[h->kind];

    rows_put(w);
    rows_put_number(w, "number", h->number);
    rows_put_number(w, "ns", (uint64_t)h->ns);
    if (h->of_room)
        rows_put_number(w, "room", h->room);
    rows_put_text(w, "what", row->word); /* take_cell reads the next by it */
    if (h->message)
        rows_put_text(w, "message", peer_name((enum peer_type)h->message));
    if (h->message && seq)
        rows_put_number(w, "seq", h->seq);
    if (h->peer[0])
        rows_put_text(w, "peer", h->peer);
    if (h->text[0])
        rows_put_text(w, row->a, h->text);
    else if (h->a != ROWS_UNKNOWN)
        rows_put_number(w, row->a, h->a);
    if (h->b != ROWS_UNKNOWN)
        rows_put_number(w, row->b, h->b);
}

bool trace_save(const struct side *s, const char *path)
{
    FILE *f = fopen(path, "we");
    uint8_t bytes[1024];
    struct writer w = writer_of(bytes, sizeof(bytes));
    bool ok = f != NULL;

    rows_put(&w);
    rows_put_text(&w, "trace", s->name);
    rows_put_number(&w, "role", s->role);
    for (size_t i = 0; ok; i++) {
        CHECK(!w.failed, "happening %zu does not fit", i);
        ok = fwrite(w.p, 1, w.len, f) == w.len;
        w.len = 0;
        if (i == s->count)
            break;
        trace_put(&w, &s->all[i], true);
    }
    return f && fclose(f) == 0 && ok;
}

/* Returns the file's bytes; NULL: it cannot be read. */
static uint8_t *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "re");
    uint8_t *bytes = f ? malloc(FILE_MAX) : NULL;

    *len = bytes ? fread(bytes, 1, FILE_MAX, f) : 0;
    if (f)
        fclose(f);
    return bytes;
}

bool trace_load(struct side *s, uint32_t number, const char *path)
{
    size_t len;
    uint8_t *bytes = slurp(path, &len);
    struct reader rows = reader_of(bytes, len), row;
    char role[24];
    bool ok = bytes && rows_next(&rows, &row);

    if (ok) {
        rows_get(row, "trace", s->name, sizeof(s->name));
        rows_get(row, "role", role, sizeof(role));
        s->role = (uint8_t)strtoul(role, NULL, 10);
        rows.len = len; /* rows_next ends at the row */
        ok = s->name[0] && trace_take(s, number, rows);
    }
    free(bytes);
    return ok;
}
