/* lookup.h - the addresses of a host by its name, found by a thread of its
 * own: what DNS does not answer keeps no other waiting, and an end of the
 * daemon waits for no thread. Called by one thread, which asks again and again
 * whether the answer is there. */
#ifndef MMX_IO_LOOKUP_H
#define MMX_IO_LOOKUP_H

#include "base/base.h"

#define LOOKUP_ADDRESSES 4  /* the first of those that a name has */
#define LOOKUPS_MAX      64 /* threads at once, whatever was dropped */
#define LOOKUP_TEXT      72 /* an IPv6 address with its zone */

struct lookup_result {
    uint32_t count;
    char addresses[LOOKUP_ADDRESSES][LOOKUP_TEXT]; /* numbers, as text */
    const char *error; /* count 0: why, static text */
};

struct lookup;

/* Starts to look for a name; NULL: too many are under way, or there is no
 * thread. */
struct lookup *lookup_start(const char *name);
/* True if the answer is there: *out is set. */
bool lookup_done(const struct lookup *l, struct lookup_result *out);
/* Forgets it, answered or not; NULL is fine. */
void lookup_drop(struct lookup **l);

#endif
