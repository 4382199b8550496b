/* memory.c - see memory.h. No timer is needed: lookups skip expired entries,
 * and eviction reuses them. Owned by the loop's thread.
 *
 * Invariants: the index has (id, scope) iff a used entry has; the entries of
 * one (id, scope) are chained from latest to earliest; an entry is free, or in
 * by_age and the list of its holder.
 *
 * Rejected: a share of the entries for each holder. A daemon with one user
 * could use only a part of its entries. */
#include "core/memory.h"

#include "base/check.h"

#include <string.h>

void memory_init(struct memory *m, struct slab *s, uint32_t cap, size_t size,
    uint64_t seed, uint64_t keep_ns)
{
    CHECK(cap > 0 && size >= sizeof(struct memo), "%u entries of %zu bytes",
        cap, size);
    *m = (struct memory){
        .entries = slab_take(s, cap, size), .size = size, .keep_ns = keep_ns};
    table_init(&m->index, s, cap, seed);
    slots_init(&m->slots, s, cap);
    list_init(&m->by_age);
    for (uint32_t i = 0; i < MEMORY_HOLDERS; i++)
        list_init(&m->of[i]);
}

static struct memo *unexpired(
    const struct memory *m, uint64_t now_ns, uint32_t i)
{
    struct memo *g = NULL;

    while (i != NONE && (g = memory_at(m, i))->until_ns <= now_ns)
        i = g->next;
    return i == NONE ? NULL : g;
}

void *memory_get(
    const struct memory *m, uint64_t now_ns, uint64_t id, uint32_t scope)
{
    return m->used ? unexpired(m, now_ns, table_get(&m->index, id, scope))
                   : NULL;
}

void *memory_next(const struct memory *m, uint64_t now_ns, const void *entry)
{
    return unexpired(m, now_ns, ((const struct memo *)entry)->next);
}

void memory_drop(struct memory *m, void *entry)
{
    struct memo *g = entry;
    uint32_t i = table_get(&m->index, g->id, g->scope);
    uint32_t *to = &i;

    CHECK(g->used && m->used > 0, "entry of %llu is forgotten twice",
        (unsigned long long)g->id);
    while (*to != NONE && memory_at(m, *to) != entry)
        to = &((struct memo *)memory_at(m, *to))->next;
    CHECK(*to != NONE, "an entry is not chained to %llu",
        (unsigned long long)g->id);
    slots_give(&m->slots, *to);
    *to = g->next;
    if (i == NONE)
        table_remove(&m->index, g->id, g->scope);
    else if (to == &i)
        (void)table_put(&m->index, g->id, g->scope, i);
    g->used = false;
    m->used--;
    m->held[g->holder]--;
    list_remove(&g->node);
    list_remove(&g->by_age);
}

void memory_forget(struct memory *m, uint64_t id, uint32_t scope)
{
    uint32_t i;

    while ((i = table_get(&m->index, id, scope)) != NONE)
        memory_drop(m, memory_at(m, i));
}

void *memory_evicts(const struct memory *m, uint64_t now_ns)
{
    struct memo *oldest = LIST_FIRST(&m->by_age, struct memo, by_age);
    uint32_t most = 0;

    if (m->used < m->slots.max)
        return NULL;
    if (oldest->until_ns <= now_ns)
        return oldest;
    for (uint32_t i = 1; i < MEMORY_HOLDERS; i++)
        most = m->held[i] > m->held[most] ? i : most;
    return LIST_FIRST(&m->of[most], struct memo, node);
}

void *memory_put(
    struct memory *m, uint64_t now_ns, const void *entry, uint32_t holder)
{
    struct memo *old = memory_evicts(m, now_ns), *to;
    uint32_t i;

    m->forgotten += old && old->until_ns > now_ns;
    if (old)
        memory_drop(m, old);
    i = slots_take(&m->slots);
    to = memory_at(m, i);
    memcpy(to, entry, m->size);
    to->until_ns = now_ns + m->keep_ns;
    to->used = true;
    to->holder = (uint8_t)(holder * UINT32_C(2654435769) >> 27);
    to->next = table_get(&m->index, to->id, to->scope);
    CHECK(table_put(&m->index, to->id, to->scope, i),
        "no place in the index for one of %u entries", m->slots.max);
    list_push_tail(&m->of[to->holder], &to->node);
    list_push_tail(&m->by_age, &to->by_age);
    m->held[to->holder]++;
    m->used++;
    old = memory_evicts(m, now_ns);
    if (old) /* by the next put */
        table_soon(&m->index, old->id, old->scope);
    return to;
}

struct tomb *tomb_put(struct memory *m, uint64_t now_ns, uint64_t id,
    uint32_t scope, uint32_t holder, uint8_t state, uint8_t reason)
{
    struct tomb t = {.memo = {.id = id, .scope = scope},
        .owner = NONE,
        .state = state,
        .reason = reason};

    memory_forget(m, id, scope);
    return memory_put(m, now_ns, &t, holder);
}
