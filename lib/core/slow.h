/* slow.h - the slowest rooms that succeeded and the last that failed, since the
 * start: what the history of ended rooms has forgotten by the time that it is
 * asked for. A room that is not among the slowest costs one comparison. Pure;
 * the loop's thread. */
#ifndef MMX_CORE_SLOW_H
#define MMX_CORE_SLOW_H

#include "core/brain.h"

#define SLOW_MAX 16 /* of either kind */

/* Zero at its start. */
struct slow {
    uint32_t slowest_count;
    uint64_t failed_count;          /* that were ever put there */
    struct ended slowest[SLOW_MAX]; /* the slowest first */
    struct ended failed[SLOW_MAX];  /* a ring */
};

/* Notes a room that has ended. */
void slow_take(struct slow *s, const struct ended *e);
/* Returns row i as it is shown: the slowest first, then the failed, the newest
 * first; NULL: there is none. */
const struct ended *slow_row(const struct slow *s, uint32_t i);
/* Returns what the longest part of the room's life led to, and its length in
 * *us. */
const char *slow_longest(uint8_t role, const struct ended *e, uint64_t *us);

#endif
