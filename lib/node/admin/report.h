/* report.h - the answer to QUERY: gathers the rows given to a rows_out. Memory
 * is bounded (REPORT_MAX). Called only by the loop's thread. */
#ifndef MMX_NODE_REPORT_H
#define MMX_NODE_REPORT_H

#include "core/flow.h"
#include "wire/rows.h"

#define REPORT_MAX (16u << 20)

struct report {
    struct rows_out rows_out; /* takes the rows */
    /* Called before each row, to append to the one that ends. NULL: nothing */
    void (*row_ends)(struct report *r);
    uint8_t *p; /* the rows, or the text of a refusal */
    size_t len, cap;
    bool failed; /* larger than REPORT_MAX, or no memory */
};

void report_init(struct report *r);
void report_fini(struct report *r);
/* Appends text as it is. */
void report_add(struct report *r, const char *text);

#endif
