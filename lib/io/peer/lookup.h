/* lookup.h - the addresses of a host by its name, one thread per lookup: a name
 * that DNS does not answer delays no other, and the daemon's exit waits for no
 * thread. Called by one thread, which polls for the answer. */
#ifndef MMX_IO_LOOKUP_H
#define MMX_IO_LOOKUP_H

#include "base/base.h"

#define LOOKUP_ADDRESSES 4  /* kept of a name, the first ones */
#define LOOKUPS_MAX      64 /* threads at once, those of dropped lookups too */
#define LOOKUP_TEXT      72 /* an IPv6 address with its zone */

struct lookup_result {
    uint32_t count;
    char addresses[LOOKUP_ADDRESSES][LOOKUP_TEXT]; /* numeric, as text */
    const char *error; /* why count is 0; static text */
};

struct lookup;

/* Starts to look up a name. NULL: too many lookups, or no thread. */
struct lookup *lookup_start(const char *name);
/* True if the answer is there; *out is set only then. */
bool lookup_done(const struct lookup *l, struct lookup_result *out);
/* Releases the lookup, answered or not. Accepts NULL. */
void lookup_drop(struct lookup **l);

#endif
