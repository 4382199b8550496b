/* table.h - table from (id, scope) to an index, in memory taken at start: open
 * addressing, no allocation, and a keyed hash so that others cannot fill one
 * slot on purpose. */
#ifndef MMX_BASE_TABLE_H
#define MMX_BASE_TABLE_H

#include "base/base.h"
#include "base/slab.h"

struct table_entry {
    uint64_t id;
    uint32_t scope, value;
};

struct table {
    struct table_entry *entries;
    uint8_t *bytes; /* per entry; 0: empty */
    uint32_t size;  /* entries in use now: a power of two */
    uint32_t len, cap;
    uint64_t seed;
};

/* Makes a table of at most cap entries; the seed is random per process. */
void table_init(struct table *t, struct slab *s, uint32_t cap, uint64_t seed);

/* Returns the value, or NONE. */
uint32_t table_get(const struct table *t, uint64_t id, uint32_t scope);

/* Adds or replaces. False: there are cap entries already; nothing changed. */
bool table_put(struct table *t, uint64_t id, uint32_t scope, uint32_t value);

/* Removes the entry, if it is there. */
void table_remove(struct table *t, uint64_t id, uint32_t scope);

/* Prefetches the memory of an entry that is removed soon. */
void table_soon(const struct table *t, uint64_t id, uint32_t scope);

#endif
