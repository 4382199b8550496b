/* table.c - linear probing at most half full, backward shift on removal, so
 * that there are no graves to sweep. Owned by the table's owner; no locks. */
#include "base/table.h"

#include "base/check.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* A scope moves the key by an odd number of all bits; without the seed its
 * collisions with other scopes are as unknown as those of ids. */
static uint32_t home(const struct table *t, uint64_t id, uint32_t scope)
{
    uint64_t key = (id ^ t->seed) + scope * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)mix(key) & t->mask;
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
    for (uint32_t i = 0; t->entries && i < n; i++)
        t->entries[i].value = NONE;
}

static struct table_entry *find(
    const struct table *t, uint64_t id, uint32_t scope)
{
    uint32_t i = home(t, id, scope);

    while (t->entries[i].value != NONE &&
           (t->entries[i].id != id || t->entries[i].scope != scope))
        i = (i + 1) & t->mask;
    return &t->entries[i];
}

uint32_t table_get(const struct table *t, uint64_t id, uint32_t scope)
{
    return find(t, id, scope)->value;
}

bool table_put(struct table *t, uint64_t id, uint32_t scope, uint32_t value)
{
    struct table_entry *e = find(t, id, scope);

    CHECK(value != NONE && t->len <= t->cap, "%u of %u", t->len, t->cap);
    if (e->value == NONE) {
        if (t->len == t->cap)
            return false;
        t->len++;
    }
    *e = (struct table_entry){id, scope, value};
    return true;
}

void table_remove(struct table *t, uint64_t id, uint32_t scope)
{
    struct table_entry *hole = find(t, id, scope);
    uint32_t i = (uint32_t)(hole - t->entries);

    if (hole->value == NONE)
        return;
    CHECK(t->len > 0, "an entry of an empty table");
    t->len--;
    for (uint32_t j = (i + 1) & t->mask; t->entries[j].value != NONE;
         j = (j + 1) & t->mask) {
        uint32_t h = home(t, t->entries[j].id, t->entries[j].scope);

        /* Entry j may fill the hole unless its home lies in (i, j]. */
        if (((j - h) & t->mask) >= ((j - i) & t->mask)) {
            t->entries[i] = t->entries[j];
            i = j;
        }
    }
    t->entries[i].value = NONE;
}
