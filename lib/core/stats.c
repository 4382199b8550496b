/* stats.c - names of the counters. Pure data; any thread. */
#include "core/brain.h"

static const struct {
    const char *name, *text;
} rows[] = {
#define STAT(name, doc) {#name, doc},
#include "core/stats.def"
};

_Static_assert(ARRAY_LEN(rows) == STAT_COUNT, "a name for each counter");

const char *stat_name(enum counter c)
{
    return rows[c].name;
}

const char *stat_text(enum counter c)
{
    return rows[c].text;
}
