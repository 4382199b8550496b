/* table.h - the rows of conf.def as data, and what conf.c, diff.c, check.c and
 * print.c share. Private to this folder. */
#ifndef MMX_CORE_CONF_TABLE_H
#define MMX_CORE_CONF_TABLE_H

#include "core/conf/conf.h"

enum conf_kind {
    KIND_TEXT,
    KIND_COUNT,
    KIND_SIZE,
    KIND_TIME,
    KIND_BOOL,
    KIND_NAMES,
    KIND_LIST
};

/* What a change of a key needs. */
enum conf_takes { TAKES_RELOAD, TAKES_RESTART };

struct conf_row {
    const char *key, *def, *doc;
    enum conf_kind kind;
    uint8_t roles; /* bits: ROLE_ENCODED, ROLE_LANGD */
    enum conf_takes takes;
    uint64_t min, max;
    size_t offset; /* of the field in its struct */
};

/* A table of keys: those of the file, of an item of pools, or of an item of
 * peers. */
struct conf_rows {
    const char *list; /* "pools", "peers"; NULL: the file itself */
    const struct conf_row *rows;
    size_t count;
};

extern const struct conf_rows conf_keys, conf_pool_keys, conf_peer_keys;

/* Writes an amount as text, "256KiB"; at most size - 1 bytes. */
void conf_amount(enum conf_kind kind, uint64_t value, char *out, size_t size);

/* Fills in the error; returns ERR_MALFORMED. */
enum err conf_refuse(struct conf_error *e, const char *fmt, ...)
    PRINTF_LIKE(2, 3);

/* Writes a value as text, a list with commas. */
void conf_value(
    const struct conf_row *row, const void *base, char *out, size_t size);

/* Returns word i of a NAMES row; empty after the last one. */
struct span conf_word(const struct conf_row *row, uint64_t i);

#endif
