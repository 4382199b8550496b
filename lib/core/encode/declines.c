/* declines.c - see declines.h. No timer is needed: what has expired is passed
 * over, and its place is taken in its turn. Owned by the loop's thread.
 *
 * Invariant: the index has a room iff a place of the ring has; the places of a
 * room are chained from the latest to the earliest. */
#include "core/encode/declines.h"

#include "base/check.h"

void declines_init(struct declines *d, struct slab *s, uint32_t cap,
    uint64_t seed, uint64_t keep_ns)
{
    CHECK(cap > 0, "room for %u declines", cap);
    d->cap = cap;
    d->next = d->used = 0;
    d->keep_ns = keep_ns;
    d->ring = slab_take(s, cap, sizeof(*d->ring));
    table_init(&d->index, s, cap, seed);
}

void declines_drop(struct declines *d, struct decline *g)
{
    uint32_t at = (uint32_t)(g - d->ring);
    uint32_t i = table_get(&d->index, g->room, g->name);

    CHECK(at < d->cap && g->used && i != NONE && d->used > 0,
        "decline %u of %u, of room %llu", at, d->cap,
        (unsigned long long)g->room);
    if (i == at && g->next == NONE)
        table_remove(&d->index, g->room, g->name);
    else if (i == at)
        (void)table_put(&d->index, g->room, g->name, g->next);
    else {
        while (i != NONE && d->ring[i].next != at)
            i = d->ring[i].next;
        CHECK(i != NONE, "decline %u is not chained to room %llu", at,
            (unsigned long long)g->room);
        d->ring[i].next = g->next;
    }
    g->used = false;
    d->used--;
}

/* Returns place i, or the next older one that has not expired; NULL: none. */
static struct decline *unexpired(
    const struct declines *d, uint64_t now_ns, uint32_t i)
{
    while (i != NONE && d->ring[i].until_ns <= now_ns)
        i = d->ring[i].next;
    return i == NONE ? NULL : &d->ring[i];
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

bool declines_put(struct declines *d, uint64_t now_ns, const struct decline *g)
{
    struct decline *old = declines_find(d, now_ns, g->room, g->name, g->langd);
    struct decline *to;
    bool lost;

    if (old)
        declines_drop(d, old);
    to = &d->ring[d->next];
    lost = to->used && to->until_ns > now_ns;
    if (to->used)
        declines_drop(d, to);
    *to = *g;
    to->until_ns = now_ns + d->keep_ns;
    to->used = true;
    to->next = table_get(&d->index, g->room, g->name);
    (void)table_put(&d->index, g->room, g->name, d->next);
    d->next = (d->next + 1) % d->cap;
    d->used++;
    return lost;
}
