/* slow.h - the slowest successful rooms and the last failed ones, since the
 * start. They are kept here because the history of ended rooms has often lost
 * them when a report is requested. A room that is not among the slowest costs
 * one comparison. Pure; the loop's thread. */
#ifndef MMX_CORE_SLOW_H
#define MMX_CORE_SLOW_H

#include "core/brain.h"

#define SLOW_MAX 16 /* rows of each kind */

/* Zero at the start. */
struct slow {
    uint32_t slowest_count;
    uint64_t failed_count;          /* failed rooms since the start */
    struct ended slowest[SLOW_MAX]; /* the slowest first */
    struct ended failed[SLOW_MAX];  /* a ring */
};

/* Adds a room that has ended. */
void slow_take(struct slow *s, const struct ended *e);
/* Returns row i in the order of the report: the slowest first, then the failed,
 * newest first; NULL: there is none. */
const struct ended *slow_row(const struct slow *s, uint32_t i);
/* Returns the end of the longest part of the room's life, and the length of
 * that part in *us. */
const char *slow_longest(uint8_t role, const struct ended *e, uint64_t *us);

#endif
