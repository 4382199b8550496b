/* report.c - see report.h. Rows are kept in the form that mmxctl draws its
 * tables from; engines ask for JSON.
 *
 * Rejected: asking the brain twice, once for each form. Tables change between
 * two slices, and rows are costly to make. */
#include "node/admin/report.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns a writer over n free bytes at the end; one of no bytes if it would
 * be larger than REPORT_MAX. */
static struct writer space(struct bytes *b, size_t n)
{
    size_t want = b->len + n, cap = b->cap ? b->cap : 16384;
    uint8_t *more = b->p;

    CHECK(b->len <= b->cap, "%zu bytes of %zu", b->len, b->cap);
    if (b->failed || want > REPORT_MAX) {
        b->failed = true;
        return writer_of(NULL, 0);
    }
    while (cap < want)
        cap *= 2;
    if (cap > b->cap)
        more = realloc(b->p, cap);
    if (!more) {
        b->failed = true;
        return writer_of(NULL, 0);
    }
    b->p = more;
    b->cap = cap;
    return writer_of(b->p + b->len, n);
}

static void bytes_free(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){.failed = b->failed};
}

void report_add(struct report *r, const char *text)
{
    size_t n = strlen(text);
    struct writer w = space(&r->text, n);

    put_bytes(&w, text, n);
    r->text.len += w.len;
}

/* rows */

static void gather(struct rows_out *s, const struct cell *c)
{
    struct report *r = (struct report *)s;
    struct writer w = space(&r->rows, cell_bytes(c));

    cell_put(&w, c);
    r->rows.len += w.failed ? 0 : w.len;
}

static void on_row(struct rows_out *s)
{
    struct report *r = (struct report *)s;

    if (r->row_ends)
        r->row_ends(r);
    gather(s, &(struct cell){.kind = CELL_ROW});
}

static void on_text(struct rows_out *s, const char *name, const char *value)
{
    gather(s, &(struct cell){CELL_TEXT, span_str(name), span_str(value), 0});
}

static void on_number(struct rows_out *s, const char *name, uint64_t value)
{
    gather(
        s, &(struct cell){CELL_NUMBER, span_str(name), span_of("", 0), value});
}

bool report_turn(struct report *r, uint32_t rows)
{
    struct reader in = reader_of(r->rows.p, r->rows.len);
    struct writer w;
    struct cell c;

    CHECK(r->turned <= r->rows.len, "%zu of %zu", r->turned, r->rows.len);
    if (r->form == FORM_ROWS) {
        r->text = r->rows;
        r->rows = (struct bytes){0};
        return true;
    }
    in.at = r->turned;
    for (; rows > 0 && cell_get(&in, &c); rows -= c.kind == CELL_ROW) {
        w = space(&r->text, cell_bytes(&c));
        json_cell(&w, &r->json, &c);
        r->text.len += w.len;
        r->turned = in.at;
    }
    CHECK(!in.failed, "malformed at %zu of %zu", in.at, in.len);
    if (r->turned < r->rows.len)
        return false;
    w = space(&r->text, 8);
    json_end(&w, &r->json);
    r->text.len += w.len;
    return true;
}

/* life */

void report_init(struct report *r, uint8_t form)
{
    *r = (struct report){
        .rows_out = {on_row, on_text, on_number, NONE}, .form = form};
}

void report_fini(struct report *r)
{
    bytes_free(&r->text);
    bytes_free(&r->rows);
}
