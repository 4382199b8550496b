/* report.h - the answer to QUERY: gathers the rows given to a rows_out, and
 * turns them into JSON for a program that asks for it. Memory is
 * bounded (REPORT_MAX). The loop's thread. */
#ifndef MMX_NODE_REPORT_H
#define MMX_NODE_REPORT_H

#include "core/flow.h"
#include "wire/rows.h"

#define REPORT_MAX (16u << 20)

struct bytes {
    uint8_t *p;
    size_t len, cap;
    bool failed; /* larger than REPORT_MAX, or no memory */
};

struct report {
    struct rows_out rows_out; /* takes the rows */
    /* Called before each row, to append to the one that ends. NULL: nothing */
    void (*row_ends)(struct report *r);
    uint8_t form;      /* FORM_ of the answer */
    struct bytes text; /* whole when report_turn returned true */
    struct bytes rows; /* gathered */
    size_t turned;     /* bytes of `rows` */
    struct json json;
};

void report_init(struct report *r, uint8_t form);
void report_fini(struct report *r);
/* Appends to the text as it is. */
void report_add(struct report *r, const char *text);
/* Turns at most `rows` rows into text, after the last row was given. True when
 * the text is whole. */
bool report_turn(struct report *r, uint32_t rows);
#endif
