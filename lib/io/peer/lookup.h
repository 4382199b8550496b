/* lookup.h - the addresses of a host name, one thread per lookup: a name
 * without an answer from DNS delays no other, and the daemon's exit waits for
 * no thread. Called by one thread, which polls for the answer. */
#ifndef MMX_IO_LOOKUP_H
#define MMX_IO_LOOKUP_H

#include "base/base.h"

#define LOOKUP_ADDRESSES 4  /* addresses kept per name */
#define LOOKUPS_MAX      64 /* threads at once, including dropped lookups */
#define LOOKUP_TEXT      72 /* an IPv6 address with its zone */

struct lookup_result {
    uint32_t count;
    char addresses[LOOKUP_ADDRESSES][LOOKUP_TEXT]; /* numeric, as text */
    const char *error; /* cause if count is 0; static text */
};

struct lookup;

/* Starts to look up a name. NULL: too many lookups, or no thread. */
struct lookup *lookup_start(const char *name);
/* True if the answer has come; *out is set only then. */
bool lookup_done(const struct lookup *l, struct lookup_result *out);
/* Releases the lookup, answered or not. Accepts NULL. */
void lookup_drop(struct lookup **l);

#endif
