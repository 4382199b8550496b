/* trouble.h - what can be wrong with a peer: numbers, and words for them. Pure.
 */
#ifndef MMX_CORE_TROUBLE_H
#define MMX_CORE_TROUBLE_H

#include "base/base.h"

enum trouble {
    TROUBLE_NONE,
#define TROUBLE(NAME, number, name, key, mend, doc) TROUBLE_##NAME = (number),
#include "core/peers/trouble.def"
    TROUBLE_END
};

/* "" for TROUBLE_NONE, as the next two. */
const char *trouble_name(enum trouble t);
/* Returns the key of the YAML that mends it; "-": none does. */
const char *trouble_key(enum trouble t);
/* Returns what mends it, for people. */
const char *trouble_mend(enum trouble t);

/* True if rows cannot go, while the two talk. */
static inline bool trouble_of_data(enum trouble t)
{
    return t >= TROUBLE_DATA_LOOPBACK;
}

#endif
