/* rows.h - rows of names and values, as in a REPORT. A row is a mark and its
 * cells; each cell has its column's name. Pure; any thread. */
#ifndef MMX_WIRE_ROWS_H
#define MMX_WIRE_ROWS_H

#include "base/bytes.h"

/* Limits of a cell's name and its text, in bytes. */
#define ROWS_NAME_MAX 255
#define ROWS_TEXT_MAX (1u << 20)

enum cell_kind { CELL_ROW = 1, CELL_TEXT, CELL_NUMBER };

struct cell {
    enum cell_kind kind;
    struct span name, text; /* text: of CELL_TEXT; CELL_ROW: both empty */
    uint64_t number;
};

void cell_put(struct writer *w, const struct cell *c);
/* Reads the next cell; its spans point into the reader's buffer. False: at the
 * end, or the rest is malformed. */
MUST_CHECK bool cell_get(struct reader *r, struct cell *c);
/* Returns an upper bound of the cell's bytes. */
size_t cell_bytes(const struct cell *c);

#endif
