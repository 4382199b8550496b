/* report.c - see report.h. */
#include "node/admin/report.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns a writer over n free bytes at the end of the report; over no bytes if
 * the report would be larger than REPORT_MAX. */
static struct writer space(struct report *r, size_t n)
{
    size_t want = r->len + n, cap = r->cap ? r->cap : 16384;
    uint8_t *more = r->p;

    CHECK(r->len <= r->cap, "%zu bytes of %zu", r->len, r->cap);
    if (r->failed || want > REPORT_MAX) {
        r->failed = true;
        return writer_of(NULL, 0);
    }
    while (cap < want)
        cap *= 2;
    if (cap > r->cap)
        more = realloc(r->p, cap);
    if (!more) {
        r->failed = true;
        return writer_of(NULL, 0);
    }
    r->p = more;
    r->cap = cap;
    return writer_of(r->p + r->len, n);
}

void report_add(struct report *r, const char *text)
{
    size_t n = strlen(text);
    struct writer w = space(r, n);

    put_bytes(&w, text, n);
    r->len += w.len;
}

/* rows */

static void gather(struct rows_out *s, const struct cell *c)
{
    struct report *r = (struct report *)s;
    struct writer w = space(r, cell_bytes(c));

    cell_put(&w, c);
    r->len += w.failed ? 0 : w.len;
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

/* life */

void report_init(struct report *r)
{
    *r = (struct report){.rows_out = {on_row, on_text, on_number, NONE}};
}

void report_fini(struct report *r)
{
    free(r->p);
    r->p = NULL;
}
