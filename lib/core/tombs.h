/* tombs.h - what is remembered of the dead: rooms and generations that ended,
 * for a while, at most `cap`; the oldest is forgotten first. Pure. */
#ifndef MMX_CORE_TOMBS_H
#define MMX_CORE_TOMBS_H

#include "base/table.h"

struct tomb {
    uint64_t id;
    uint32_t scope;
    uint8_t state, reason;
    uint8_t end_reason; /* as its owner heard it */
    bool used;
    uint32_t owner; /* session that may ask; NONE: none may */
    uint64_t until_ns;
};

struct tombs {
    struct tomb *ring;
    struct table index; /* (id, scope) -> place in ring */
    uint32_t cap, next;
    uint64_t keep_ns;
};

void tombs_init(struct tombs *t, struct slab *s, uint32_t cap, uint64_t seed,
    uint64_t keep_ns);
/* Remembers, or remembers anew. */
void tombs_put(struct tombs *t, uint64_t now_ns, uint64_t id, uint32_t scope,
    uint8_t state, uint8_t reason);
/* Adds the session that may ask how it ended. */
void tombs_own(struct tombs *t, uint64_t id, uint32_t scope, uint32_t owner,
    uint8_t end_reason);
/* NULL: never was, or forgotten. Valid until the next put. */
const struct tomb *tombs_get(
    const struct tombs *t, uint64_t now_ns, uint64_t id, uint32_t scope);
/* True if it is still here, however old. */
bool tombs_has(const struct tombs *t, uint64_t id, uint32_t scope);
/* Returns the one that the next put pushes out; NULL: none. */
const struct tomb *tombs_oldest(const struct tombs *t);
void tombs_forget(struct tombs *t, uint64_t id, uint32_t scope);

#endif
