/* report.h - the text of an answer to QUERY: rows that a shower is told become
 * an aligned table or JSON, in steps of a bounded size. Memory is bounded
 * (REPORT_MAX). The loop's thread. */
#ifndef MMX_NODE_REPORT_H
#define MMX_NODE_REPORT_H

#include "base/err.h"
#include "core/flow.h"

#define REPORT_MAX (16u << 20)

struct bytes {
    char *p;
    size_t len, cap;
    bool failed; /* it would not fit, or there is no memory */
};

void bytes_add(struct bytes *b, const char *p, size_t n);
void bytes_free(struct bytes *b);

/* A value longer than this is cut; JSON has all of it. */
#define CELL_MAX    104
#define COLUMNS_MAX 64

struct column {
    char name[32];
    int width;
    bool number;
    const char *cell; /* of the row that is printed; NULL: none */
};

struct report {
    struct shower shower; /* tell it the rows */
    struct bytes text;    /* whole after report_print said so */
    bool json;
    bool upright; /* a table with one column to a line */
    uint32_t rows;
    uint32_t last; /* JSON: columns of the row; table: column of the value */
    /* A table's rows are gathered first: a column is as wide as what is in it,
     * which is known at the end. */
    struct bytes gathered;
    size_t printed; /* of what was gathered */
    bool headed;    /* the column names are printed */
    uint32_t count;
    struct column columns[COLUMNS_MAX];
};

void report_init(struct report *r, bool json, bool upright);
void report_fini(struct report *r);
/* Appends to the text at its end, as it is or as a JSON string. */
void report_add(struct report *r, const char *text);
void report_add_string(struct report *r, const char *text);
/* After the last row: prints so many rows at most; true when the text is
 * whole. */
bool report_print(struct report *r, uint32_t rows);
/* True if it would have been larger than REPORT_MAX. */
bool report_failed(const struct report *r);

#endif
