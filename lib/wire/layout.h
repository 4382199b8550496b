/* layout.h - the fields of a pool: what a row is made of, and where each
 * field's region lies in the pool's memory. A layout's text is its identity:
 * "embedding:bf16:8192,fill_ids:i32:1". Pure; any thread. */
#ifndef MMX_WIRE_LAYOUT_H
#define MMX_WIRE_LAYOUT_H

#include "base/bytes.h"
#include "base/err.h"

#define LAYOUT_FIELDS_MAX 32
#define LAYOUT_NAME_MAX   31
#define LAYOUT_TEXT_MAX   1024
#define ROW_BYTES_MAX     (1u << 24)

struct field {
    char name[LAYOUT_NAME_MAX + 1];
    char dtype[8]; /* of dtype.def */
    uint32_t elements;
    uint32_t row_bytes; /* elements x size of dtype */
};

struct layout {
    struct field fields[LAYOUT_FIELDS_MAX];
    uint32_t count;
    uint32_t row_bytes; /* of all fields together */
    uint64_t hash;      /* FNV-1a 64 of the text */
    char text[LAYOUT_TEXT_MAX + 1];
};

/* Reads a layout's text. On error *at is the offset of the part that cannot be
 * read, and *out is unchanged. */
MUST_CHECK enum err layout_parse(
    struct span text, struct layout *out, uint32_t *at);

/* Computes the offset of each field's region and the bytes of the whole pool,
 * for `rows` rows and regions aligned to `align`. False: more than 2^62 bytes.
 */
bool layout_place(const struct layout *l, uint64_t rows, uint64_t align,
    uint64_t offsets[LAYOUT_FIELDS_MAX], uint64_t *bytes);

/* Returns the bytes of one element, 0 for an unknown dtype. */
uint32_t dtype_bytes(struct span dtype);

/* Returns the landing unit of a pool in rows: the largest power-of-two divisor
 * of block_rows whose rows fit in UNIT_BYTES; at least 1. */
#define UNIT_BYTES 32768
uint32_t layout_unit_rows(const struct layout *l, uint32_t block_rows);
/* Returns the most bytes that a unit can have with any number of block_rows. */
uint32_t layout_unit_most(const struct layout *l);

/* Returns the rows of a part; the parts of a room are divided among the shards.
 * A multiple of the unit, of about PART_BYTES. */
#define PART_BYTES (4u << 20)
uint32_t layout_part_rows(const struct layout *l, uint32_t unit_rows);

#endif
