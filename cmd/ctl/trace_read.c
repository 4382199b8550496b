/* trace_read.c - reads happenings from the rows of a daemon's report. One
 * thread. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

const struct happening_row happening_rows[HAPPENED_COUNT] = {
#define HAPPENING(NAME, word, a, b, doc) {word, a, b},
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
    else if (c->kind == CELL_TEXT && is(c->name, happening_rows[h->kind].a))
        text_copy(c->text, h->text, sizeof(h->text));
    else if (is(c->name, happening_rows[h->kind].a))
        h->a = number;
    else if (is(c->name, happening_rows[h->kind].b))
        h->b = number;
}

/* Adds the rows of a report. False: malformed, or no memory. */
static bool take(struct happenings *g, uint32_t side, struct reader rows)
{
    struct reader row;
    struct cell c;

    while (rows_next(&rows, &row)) {
        struct happening *h;

        if (g->count == g->cap) {
            size_t cap = g->cap ? 2 * g->cap : 8192;

            h = realloc(g->all, cap * sizeof(*h));
            if (!h)
                return false;
            g->all = h;
            g->cap = cap;
        }
        h = &g->all[g->count];
        *h = (struct happening){.kind = HAPPENED_COUNT,
            .side = (uint8_t)side,
            .a = ROWS_UNKNOWN,
            .b = ROWS_UNKNOWN};
        while (cell_get(&row, &c))
            take_cell(h, &c);
        /* A context is one row of three happenings. */
        g->next = h->number + (h->kind == HAPPENED_CONTEXT ? 3 : 1);
        g->count += h->kind < HAPPENED_COUNT;
    }
    CHECK(g->count <= g->cap, "%zu of %zu happenings", g->count, g->cap);
    return rows.at == rows.len;
}

bool trace_ask(
    struct ctl *c, struct happenings *g, uint32_t side, struct local_msg *m)
{
    char what[48];

    snprintf(what, sizeof(what), "trace %llu", (unsigned long long)g->next);
    if (!ctl_ask(c, what, m))
        return false;
    errno = EPROTO; /* if it is malformed */
    return take(g, side, c->got);
}
