/* declines.c - see declines.h. No timer is needed: lookups skip expired
 * entries, and eviction reuses them in order of age. Owned by the loop's
 * thread.
 *
 * Invariants: the index has a room iff the room has a used entry; the entries
 * of a room are chained from latest to earliest; a used entry is in by_age,
 * which is also the order of expiry, and any other is free. */
#include "core/encode/declines.h"

#include "base/check.h"

void declines_init(struct declines *d, struct slab *s, uint32_t cap,
    uint64_t seed, uint64_t keep_ns)
{
    CHECK(cap > 0, "room for %u declines", cap);
    d->cap = cap;
    d->used = 0;
    d->keep_ns = keep_ns;
    d->all = slab_take(s, cap, sizeof(*d->all));
    list_init(&d->free);
    list_init(&d->by_age);
    for (uint32_t i = 0; i < DECLINE_USERS; i++)
        list_init(&d->of_user[i]);
    for (uint32_t i = 0; d->all && i < cap; i++) {
        list_init(&d->all[i].of_user);
        list_push_tail(&d->free, &d->all[i].by_age);
    }
    table_init(&d->index, s, cap, seed);
}

/* Returns the share, by a hash of the uid, that a withdrawal counts to. */
static uint32_t user_of(const struct decline *g)
{
    return g->uid * UINT32_C(2654435769) >> 28;
}

void declines_drop(struct declines *d, struct decline *g)
{
    uint32_t at = (uint32_t)(g - d->all);
    uint32_t i = table_get(&d->index, g->room, g->name);

    CHECK(at < d->cap && g->used && i != NONE && d->used > 0,
        "decline %u of %u, of room %llu", at, d->cap,
        (unsigned long long)g->room);
    if (i == at && g->next == NONE)
        table_remove(&d->index, g->room, g->name);
    else if (i == at)
        (void)table_put(&d->index, g->room, g->name, g->next);
    else {
        while (i != NONE && d->all[i].next != at)
            i = d->all[i].next;
        CHECK(i != NONE, "decline %u is not chained to room %llu", at,
            (unsigned long long)g->room);
        d->all[i].next = g->next;
    }
    g->used = false;
    d->used--;
    if (g->langd == WITHDRAWN)
        d->held[user_of(g)]--;
    list_remove(&g->of_user);
    list_remove(&g->by_age);
    list_push_tail(&d->free, &g->by_age);
}

/* Returns entry i, or the next older entry that has not expired; NULL: none. */
static struct decline *unexpired(
    const struct declines *d, uint64_t now_ns, uint32_t i)
{
    while (i != NONE && d->all[i].until_ns <= now_ns)
        i = d->all[i].next;
    return i == NONE ? NULL : &d->all[i];
}

struct decline *declines_first(
    const struct declines *d, uint64_t now_ns, uint64_t room, uint32_t name)
{
    return d->used ? unexpired(d, now_ns, table_get(&d->index, room, name))
                   : NULL;
}

struct decline *declines_next(
    const struct declines *d, uint64_t now_ns, const struct decline *g)
{
    return unexpired(d, now_ns, g->next);
}

struct decline *declines_find(const struct declines *d, uint64_t now_ns,
    uint64_t room, uint32_t name, uint32_t langd)
{
    struct decline *g = declines_first(d, now_ns, room, name);

    while (g && g->langd != langd)
        g = declines_next(d, now_ns, g);
    return g;
}

/* Returns the entry to evict for the new one; NULL: an entry is free. */
static struct decline *in_the_way(
    const struct declines *d, const struct decline *g)
{
    uint32_t share = max_u32(d->cap / DECLINE_USERS, 1);

    if (g->langd == WITHDRAWN && d->held[user_of(g)] >= share)
        return LIST_FIRST(&d->of_user[user_of(g)], struct decline, of_user);
    if (!list_empty(&d->free))
        return NULL;
    return LIST_FIRST(&d->by_age, struct decline, by_age);
}

bool declines_put(struct declines *d, uint64_t now_ns, const struct decline *g)
{
    struct decline *old = declines_find(d, now_ns, g->room, g->name, g->langd);
    struct decline *to;
    bool lost;

    if (old)
        declines_drop(d, old);
    old = in_the_way(d, g);
    lost = old && old->until_ns > now_ns;
    if (old)
        declines_drop(d, old);
    to = LIST_ENTRY(list_pop(&d->free), struct decline, by_age);
    *to = *g;
    to->until_ns = now_ns + d->keep_ns;
    to->used = true;
    to->next = table_get(&d->index, g->room, g->name);
    (void)table_put(&d->index, g->room, g->name, (uint32_t)(to - d->all));
    list_init(&to->by_age);
    list_init(&to->of_user);
    list_push_tail(&d->by_age, &to->by_age);
    if (g->langd == WITHDRAWN) {
        list_push_tail(&d->of_user[user_of(g)], &to->of_user);
        d->held[user_of(g)]++;
    }
    d->used++;
    return lost;
}
