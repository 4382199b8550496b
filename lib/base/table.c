/* table.c - linear probing at most half full, backward shift on removal, so
 * that there are no graves to sweep. A byte per entry, 0 for an empty one, else
 * part of its hash, says whether it is worth a look: most of a large table is
 * in no cache, its bytes are. Owned by the table's owner; no locks. */
#include "base/table.h"

#include "base/check.h"

#include <string.h>

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* A scope moves the key by an odd number of all bits; without the seed its
 * collisions with other scopes are as unknown as those of ids. The low bits say
 * where an entry is at home, the high ones are its byte. */
static uint64_t hash(const struct table *t, uint64_t id, uint32_t scope)
{
    return mix((id ^ t->seed) + scope * UINT64_C(0x9e3779b97f4a7c15));
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
    t->mask = n - 1;
    t->len = 0;
    t->cap = cap;
    t->seed = seed;
    t->entries = slab_take(s, n, sizeof(*t->entries));
    t->bytes = slab_take(s, n, 1);
    if (t->bytes && !s->clean)
        memset(t->bytes, 0, n);
}

/* Returns the place of the entry, or the empty one where it would be. */
static uint32_t find(const struct table *t, uint64_t id, uint32_t scope)
{
    uint64_t h = hash(t, id, scope);
    uint32_t i = (uint32_t)h & t->mask;
    uint8_t byte = byte_of(h);

    while (t->bytes[i] != 0 && (t->bytes[i] != byte || t->entries[i].id != id ||
                                   t->entries[i].scope != scope))
        i = (i + 1) & t->mask;
    return i;
}

uint32_t table_get(const struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = t->len > 0 ? find(t, id, scope) : 0;

    return t->len > 0 && t->bytes[i] != 0 ? t->entries[i].value : NONE;
}

bool table_put(struct table *t, uint64_t id, uint32_t scope, uint32_t value)
{
    uint32_t i = find(t, id, scope);

    CHECK(value != NONE && t->len <= t->cap, "%u of %u", t->len, t->cap);
    if (t->bytes[i] == 0) {
        if (t->len == t->cap)
            return false;
        t->len++;
        t->bytes[i] = byte_of(hash(t, id, scope));
    }
    t->entries[i] = (struct table_entry){id, scope, value};
    return true;
}

void table_remove(struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = find(t, id, scope);

    if (t->bytes[i] == 0)
        return;
    CHECK(t->len > 0, "an entry of an empty table");
    t->len--;
    for (uint32_t j = (i + 1) & t->mask; t->bytes[j] != 0;
         j = (j + 1) & t->mask) {
        const struct table_entry *e = &t->entries[j];
        uint32_t h = (uint32_t)hash(t, e->id, e->scope) & t->mask;

        /* Entry j may fill the hole unless its home lies in (i, j]. */
        if (((j - h) & t->mask) >= ((j - i) & t->mask)) {
            t->entries[i] = *e;
            t->bytes[i] = t->bytes[j];
            i = j;
        }
    }
    t->bytes[i] = 0;
}

void table_soon(const struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = (uint32_t)hash(t, id, scope) & t->mask;

    __builtin_prefetch(&t->bytes[i]);
    __builtin_prefetch(&t->entries[i]);
}
