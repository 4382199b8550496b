/* memory.h - remembers rooms and generations that ended, and rooms that were
 * declined: entries by (id, scope), in memory taken at start. Each entry counts
 * for a holder (a user, a daemon) and expires. When none is free, the oldest
 * entry is evicted if it has expired, else the oldest of the holder with most
 * entries: a holder cannot evict entries of one with fewer. Pure; one thread.
 */
#ifndef MMX_CORE_MEMORY_H
#define MMX_CORE_MEMORY_H

#include "base/list.h"
#include "base/table.h"

/* Holders are counted by a hash of their number. */
#define MEMORY_HOLDERS 32u

/* The head of an entry: its first member. */
struct memo {
    uint64_t id, until_ns;
    uint32_t scope, next; /* next: older entry of (id, scope); NONE */
    uint8_t holder;
    bool used;
    struct list node, by_age; /* of its holder; of all */
};

/* How a room or generation ended; remembered for TOMB_KEEP_NS. */
#define TOMB_KEEP_NS (30 * NS_PER_S)
struct tomb {
    struct memo memo;
    uint32_t owner; /* serial of the session that may ask; NONE: none may */
    uint8_t state, reason, end_reason; /* end_reason: as its owner was told */
};

struct memory {
    uint8_t *entries;
    size_t size;        /* of one */
    struct table index; /* (id, scope) -> latest entry */
    struct slots slots;
    struct list by_age, of[MEMORY_HOLDERS]; /* oldest first */
    uint32_t held[MEMORY_HOLDERS];
    uint32_t used;
    uint64_t keep_ns, forgotten; /* entries evicted before they expired */
};

void memory_init(struct memory *m, struct slab *s, uint32_t cap, size_t size,
    uint64_t seed, uint64_t keep_ns);
/* Returns entry i, which may be unused. */
static inline void *memory_at(const struct memory *m, uint32_t i)
{
    return m->entries + i * m->size;
}
/* Returns the entry that a put evicts now; NULL: an entry is free. */
void *memory_evicts(const struct memory *m, uint64_t now_ns);
/* Stores a copy of the entry, whose head has id and scope, and returns it. */
void *memory_put(
    struct memory *m, uint64_t now_ns, const void *entry, uint32_t holder);
/* Returns the latest entry of (id, scope) that has not expired, or
 * (memory_next) the one before `entry`; NULL: none. Valid until the next put.
 */
void *memory_get(
    const struct memory *m, uint64_t now_ns, uint64_t id, uint32_t scope);
void *memory_next(const struct memory *m, uint64_t now_ns, const void *entry);
/* Forgets one entry, or all of (id, scope). */
void memory_drop(struct memory *m, void *entry);
void memory_forget(struct memory *m, uint64_t id, uint32_t scope);
/* Stores how (id, scope) ended, and forgets what was stored before. */
struct tomb *tomb_put(struct memory *m, uint64_t now_ns, uint64_t id,
    uint32_t scope, uint32_t holder, uint8_t state, uint8_t reason);

#endif
