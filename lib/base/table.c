/* table.c - linear probing, at most half full. Removal shifts entries back, so
 * no deleted entries remain. Each entry has a byte that is 0 if the entry is
 * empty, otherwise a part of its hash: so a search need not look at most other
 * entries.
 *
 * A table uses only as much memory as it ever needed, since entries spread over
 * a large area miss the caches. It begins with FIRST entries; when half are
 * used, it is twice as large, and entries move within it. The last such move,
 * with 16,384 entries, takes a third of a millisecond, once in a process's
 * life.
 *
 * Owned by the table's owner; no locks. */
#include "base/table.h"

#include "base/check.h"

#include <string.h>

#define FIRST 256u

/* The scope adds a multiple of an odd number that changes all bits. With the
 * secret seed its collisions are as unpredictable as those of ids. The low bits
 * give an entry's home position, the high bits its byte. */
static uint64_t hash(const struct table *t, uint64_t id, uint32_t scope)
{
    uint64_t x = (id ^ t->seed) + scope * UINT64_C(0x9e3779b97f4a7c15);

    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint8_t byte_of(uint64_t h)
{
    return (uint8_t)(h >> 56 | 1);
}

void table_init(struct table *t, struct slab *s, uint32_t cap, uint64_t seed)
{
    uint32_t n = 4;

    CHECK(cap < 1u << 30, "a table of %u", cap);
    while (n < 2 * cap)
        n *= 2;
    t->size = min_u32(n, FIRST);
    t->len = 0;
    t->cap = cap;
    t->seed = seed;
    t->entries = slab_take(s, n, sizeof(*t->entries));
    t->bytes = slab_take(s, n, 1);
}

/* Returns the position behind i. */
static uint32_t next(const struct table *t, uint32_t i)
{
    return (i + 1) & (t->size - 1);
}

static uint32_t home(const struct table *t, uint64_t h)
{
    return (uint32_t)h & (t->size - 1);
}

/* Returns the position of the entry, or the empty one where it would go. */
static uint32_t find(
    const struct table *t, uint64_t h, uint64_t id, uint32_t scope)
{
    uint32_t i = home(t, h);
    uint8_t byte = byte_of(h);

    while (t->bytes[i] != 0 && (t->bytes[i] != byte || t->entries[i].id != id ||
                                   t->entries[i].scope != scope))
        i = next(t, i);
    return i;
}

uint32_t table_get(const struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i;

    if (t->len == 0)
        return NONE;
    i = find(t, hash(t, id, scope), id, scope);
    return t->bytes[i] != 0 ? t->entries[i].value : NONE;
}

/* Moves each entry towards its home, to the first empty position. A move may
 * leave a gap before other entries, so this is repeated until a round moves
 * none. There is such a round, since entries only get nearer to their homes. */
static void grow(struct table *t)
{
    t->size *= 2;
    for (uint32_t i = 0, still = 0; still < t->size; i = next(t, i), still++) {
        const struct table_entry *e = &t->entries[i];
        uint32_t to;

        if (t->bytes[i] == 0)
            continue;
        to = home(t, hash(t, e->id, e->scope));
        while (to != i && t->bytes[to] != 0)
            to = next(t, to);
        if (to == i)
            continue;
        t->bytes[to] = t->bytes[i];
        t->entries[to] = *e;
        t->bytes[i] = 0;
        still = 0;
    }
}

bool table_put(struct table *t, uint64_t id, uint32_t scope, uint32_t value)
{
    uint64_t h = hash(t, id, scope);
    uint32_t i = find(t, h, id, scope);

    CHECK(value != NONE && t->len <= t->cap, "%u of %u", t->len, t->cap);
    if (t->bytes[i] == 0) {
        if (t->len == t->cap)
            return false;
        if (2 * ++t->len > t->size) {
            grow(t);
            i = find(t, h, id, scope);
        }
        t->bytes[i] = byte_of(h);
    }
    t->entries[i] = (struct table_entry){id, scope, value};
    return true;
}

void table_remove(struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = find(t, hash(t, id, scope), id, scope);
    uint32_t mask = t->size - 1;

    if (t->bytes[i] == 0)
        return;
    CHECK(t->len > 0, "an entry of an empty table");
    t->len--;
    for (uint32_t j = next(t, i); t->bytes[j] != 0; j = next(t, j)) {
        const struct table_entry *e = &t->entries[j];
        uint32_t at = home(t, hash(t, e->id, e->scope));

        /* Entry j may move to the hole i unless its home is in (i, j]. */
        if (((j - at) & mask) >= ((j - i) & mask)) {
            t->entries[i] = *e;
            t->bytes[i] = t->bytes[j];
            i = j;
        }
    }
    t->bytes[i] = 0;
}

void table_soon(const struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = home(t, hash(t, id, scope));

    __builtin_prefetch(&t->bytes[i]);
    __builtin_prefetch(&t->entries[i]);
}
