/* report.h - the text of an answer to QUERY: rows given to a rows_out become an
 * aligned table or JSON, in steps of a bounded size. Memory is bounded
 * (REPORT_MAX). The loop's thread. */
#ifndef MMX_NODE_REPORT_H
#define MMX_NODE_REPORT_H

#include "base/err.h"
#include "core/flow.h"

#define REPORT_MAX (16u << 20)

struct bytes {
    char *p;
    size_t len, cap;
    bool failed; /* larger than REPORT_MAX, or no memory */
};

/* Appends n bytes, or sets `failed`. */
void bytes_add(struct bytes *b, const char *p, size_t n);
void bytes_free(struct bytes *b);

/* A table cuts a longer value; JSON has all of it. */
#define CELL_MAX    104
#define COLUMNS_MAX 64

struct column {
    char name[32];
    int width;
    bool number;
    const char *cell; /* of the row that is printed; NULL: none */
};

struct report {
    struct rows_out rows_out; /* takes the rows */
    struct bytes text;        /* whole when report_print returned true */
    bool json;
    bool upright; /* a table with one column per line */
    uint32_t rows;
    uint32_t last; /* JSON: columns of the row; table: column of the value */
    /* A table's rows are gathered first, because the width of a column is known
     * only after the last row. */
    struct bytes gathered;
    size_t printed; /* bytes of `gathered` */
    bool headed;    /* column names are printed */
    uint32_t count;
    struct column columns[COLUMNS_MAX];
};

void report_init(struct report *r, bool json, bool upright);
void report_fini(struct report *r);
/* Appends to the text, as it is or as a JSON string. */
void report_add(struct report *r, const char *text);
void report_add_string(struct report *r, const char *text);
/* Prints at most `rows` rows, after the last row was given; true when the text
 * is whole. */
bool report_print(struct report *r, uint32_t rows);
/* True if the report would be larger than REPORT_MAX. */
bool report_failed(const struct report *r);

#endif
