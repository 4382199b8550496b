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

/* The words for each; all are empty for TROUBLE_NONE. */
extern const struct trouble_words {
    const char *name;
    const char *key;  /* of the YAML, that mends it; "-": no key does */
    const char *mend; /* for people: how to mend it */
} trouble_words[TROUBLE_END];

/* True if rows cannot go although the two daemons talk. */
static inline bool trouble_of_data(enum trouble t)
{
    return t >= TROUBLE_DATA_LOOPBACK;
}

#endif
