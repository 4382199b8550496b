/* tombs.c - see tombs.h. A ring in order of death under an index: no timer is
 * needed, what is too old is not believed. */
#include "core/tombs.h"

#include "base/check.h"

void tombs_init(struct tombs *t, struct slab *s, uint32_t cap, uint64_t seed,
    uint64_t keep_ns)
{
    CHECK(cap > 0, "%u tombstones", cap);
    t->cap = cap;
    t->next = 0;
    t->keep_ns = keep_ns;
    t->ring = slab_take(s, cap, sizeof(*t->ring));
    table_init(&t->index, s, cap, seed);
}

void tombs_put(struct tombs *t, uint64_t now_ns, uint64_t id, uint32_t scope,
    uint8_t state, uint8_t reason)
{
    struct tomb *tomb;

    tombs_forget(t, id, scope);
    tomb = &t->ring[t->next];
    if (tomb->used)
        table_remove(&t->index, tomb->id, tomb->scope);
    *tomb = (struct tomb){.id = id,
        .scope = scope,
        .state = state,
        .reason = reason,
        .used = true,
        .owner = NONE,
        .until_ns = now_ns + t->keep_ns};
    CHECK(table_put(&t->index, id, scope, t->next),
        "no place in the index for one of %u tombstones", t->cap);
    t->next = t->next + 1 < t->cap ? t->next + 1 : 0;
    tomb = &t->ring[t->next]; /* the next put removes it */
    if (tomb->used)
        table_soon(&t->index, tomb->id, tomb->scope);
}

void tombs_own(struct tombs *t, uint64_t id, uint32_t scope, uint32_t owner,
    uint8_t end_reason)
{
    uint32_t i = table_get(&t->index, id, scope);

    if (i == NONE)
        return;
    t->ring[i].owner = owner;
    t->ring[i].end_reason = end_reason;
}

const struct tomb *tombs_get(
    const struct tombs *t, uint64_t now_ns, uint64_t id, uint32_t scope)
{
    uint32_t i = table_get(&t->index, id, scope);

    return i == NONE || t->ring[i].until_ns <= now_ns ? NULL : &t->ring[i];
}

bool tombs_has(const struct tombs *t, uint64_t id, uint32_t scope)
{
    return table_get(&t->index, id, scope) != NONE;
}

const struct tomb *tombs_oldest(const struct tombs *t)
{
    return t->ring[t->next].used ? &t->ring[t->next] : NULL;
}

void tombs_forget(struct tombs *t, uint64_t id, uint32_t scope)
{
    uint32_t i = table_get(&t->index, id, scope);

    if (i == NONE)
        return;
    CHECK(
        t->ring[i].used && t->ring[i].id == id, "tombstone %u is another's", i);
    t->ring[i].used = false;
    table_remove(&t->index, id, scope);
}
