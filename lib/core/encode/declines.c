/* declines.c - see declines.h. No timer is needed: what is too old is not
 * believed, and its place is taken in its turn. Owned by the loop's thread.
 *
 * Invariant: the index has a room iff a place of the ring has; the places of a
 * room are chained from the latest to the earliest. */
#include "core/encode/declines.h"

#include "base/check.h"

void declines_init(struct declines *d, struct slab *s, uint32_t cap,
    uint64_t seed, uint64_t keep_ns)
{
    d->cap = cap;
    d->next = d->used = 0;
    d->keep_ns = keep_ns;
    d->ring = slab_take(s, cap, sizeof(*d->ring));
    table_init(&d->index, s, cap, seed);
}

void declines_drop(struct declines *d, struct decline *g)
{
    uint32_t at = (uint32_t)(g - d->ring);
    uint32_t i = table_get(&d->index, g->room, 0);

    CHECK(g->used && i != NONE, "decline %u of room %llu", at,
        (unsigned long long)g->room);
    if (i == at && g->next == NONE)
        table_remove(&d->index, g->room, 0);
    else if (i == at)
        (void)table_put(&d->index, g->room, 0, g->next);
    else {
        while (d->ring[i].next != at)
            i = d->ring[i].next;
        d->ring[i].next = g->next;
    }
    g->used = false;
    d->used--;
}

/* The place itself or the next older one that is still believed. */
static struct decline *believed(
    const struct declines *d, uint64_t now_ns, uint32_t i)
{
    while (i != NONE && d->ring[i].until_ns <= now_ns)
        i = d->ring[i].next;
    return i == NONE ? NULL : &d->ring[i];
}

struct decline *declines_first(
    const struct declines *d, uint64_t now_ns, uint64_t room)
{
    return d->used ? believed(d, now_ns, table_get(&d->index, room, 0)) : NULL;
}

struct decline *declines_next(
    const struct declines *d, uint64_t now_ns, const struct decline *g)
{
    return believed(d, now_ns, g->next);
}

struct decline *declines_find(
    const struct declines *d, uint64_t now_ns, uint64_t room, uint32_t langd)
{
    struct decline *g = declines_first(d, now_ns, room);

    while (g && g->langd != langd)
        g = declines_next(d, now_ns, g);
    return g;
}

bool declines_put(struct declines *d, uint64_t now_ns, const struct decline *g)
{
    struct decline *old = declines_find(d, now_ns, g->room, g->langd);
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
    to->next = table_get(&d->index, g->room, 0);
    (void)table_put(&d->index, g->room, 0, d->next);
    d->next = (d->next + 1) % d->cap;
    d->used++;
    return lost;
}
