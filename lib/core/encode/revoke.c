/* revoke.c - ends an item so that another one gets its source blocks (RULES
 * 5.12, 5.13, 5.15, 5.21). Owned by the loop's thread.
 *
 * When the full item at the head of a pool's queue has not fitted for
 * timeouts.revoke_after, one item is ended with no-blocks: the youngest of
 * those that have no room with all its grants, and have all their rows or an
 * idle encoder. Its engine announces it again. The item is remembered
 * (queue_remembers) and gets blocks only when it is full, so it is ended at
 * most once for each of its rooms that is served. */
#include "core/encode/encode.h"

/* True if the item is ending: only its blocks must still come back. */
static bool ending(const struct item *it)
{
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        if (!eroom_failing(m) &&
            !(m->life >= EROOM_RELEASING && m->active == 0))
            return false;
    }
    return true;
}

/* True if the room lacks a destination, or one of its destinations waits in a
 * langd's queue. */
static bool room_waits(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->state == DST_ACTIVE && d->firm != FIRM_YES && d->want_known &&
            edst_rows_wait(d))
            return true;
    }
    return !eroom_ended(m) && !(m->flags & FLAG_OPEN) &&
           m->asked < max_u32(m->required, 1);
}

static bool waits(const struct item *it)
{
    LIST_FOREACH (n, &it->rooms)
        if (room_waits(LIST_ENTRY(n, struct eroom, in_item)))
            return true;
    return false;
}

static bool idle(const struct encoded *e, const struct item *it)
{
    return e->b.now_ns - it->moved_ns >= e->b.c.conf->timeout_progress;
}

/* True if rows of the item are being sent, so that its blocks come back without
 * revoking it. */
static bool drains(const struct encoded *e, const struct item *it)
{
    uint32_t active = 0;

    LIST_FOREACH (n, &it->rooms)
        active += LIST_ENTRY(n, struct eroom, in_item)->active;
    return active > 0 && it->committed > 0 && !waits(it) &&
           (item_complete(it) || (item_firm(it) && !idle(e, it)));
}

/* True if the item may be revoked: it lacks a grant, and its encoder has
 * committed all rows or is idle. */
static bool prey(const struct encoded *e, const struct item *it)
{
    return it->src.blocks > 0 && !item_firm(it) && waits(it) &&
           (item_complete(it) || idle(e, it));
}

static void end_room(struct encoded *e, struct eroom *m, const struct item *it)
{
    static const char text[] =
        "a room with all its grants waits for these blocks: announce it again";

    if (!eroom_ended(m)) {
        tomb_put(&e->victims, e->b.now_ns, m->r.id, it->uid, it->uid,
            ROOM_FAILED, ERR_NO_BLOCKS)
            ->owner = m->served;
        eroom_keep_declines(e, m);
        eroom_fail(e, m, ERR_NO_BLOCKS, text);
        eroom_unlink(e, m, ERR_NO_BLOCKS); /* frees the id for an INIT */
        return;
    }
    /* A kept room that destinations asked for again. */
    LIST_FOREACH (n, &m->dsts)
        edst_fail(e, LIST_ENTRY(n, struct edst, in_room), ERR_GONE, text);
    eroom_unlink(e, m, ERR_GONE);
}

static void end_item(struct encoded *e, struct item *it)
{
    CHECK(item_held(it),
        "an item of state %u is ended for its %u "
        "blocks",
        it->life, it->src.blocks);
    e->b.stats[STAT_sources_revoked]++;
    item_hide(e, it);
    it->moved_ns = e->b.now_ns;
    if (item_has_key(it))
        (void)tomb_put(&e->victims, e->b.now_ns,
            item_key_hash(&it->key, it->uid), it->uid, it->uid, ROOM_FAILED,
            ERR_NO_BLOCKS);
    /* The end of the writer's room would fail the others for another reason, so
     * it is ended last. */
    for (int writers = 0; writers < 2; writers++)
        LIST_FOREACH_SAFE (n, &it->rooms) {
            struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

            if (m->have != writers)
                end_room(e, m, it);
        }
}

void epool_revoke(struct encoded *e, struct epool *p)
{
    struct item *head = queue_firm(p), *victim = NULL;
    uint64_t after = e->b.c.conf->timeout_revoke_after, coming = p->p.free;

    p->revoke_ns = e->b.now_ns + (after > NS_PER_MS ? after : NS_PER_MS);
    if (!head || head->batch->blocks <= p->p.free) {
        p->head_since_ns = p->revoke_ns = TIME_NEVER;
        epool_serve(e, p);
        return;
    }
    LIST_FOREACH (n, &p->held) {
        struct item *it = LIST_ENTRY(n, struct item, in_held);

        if (ending(it))
            coming += idle(e, it) ? 0 : it->src.blocks;
        else if (drains(e, it))
            return;
        else if (prey(e, it) && (!victim || it->turn >= victim->turn))
            victim = it;
    }
    if (victim && coming < head->batch->blocks)
        end_item(e, victim);
}

void epool_yield(struct encoded *e, struct epool *p)
{
    while (queue_yield_ns(e, p) <= e->b.now_ns) {
        struct eroom *m =
            LIST_ENTRY(p->unclaimed.next, struct eroom, in_unclaimed);
        struct item *it = m->item;

        CHECK(it->unclaimed > 0 && it->refs > 0,
            "room ..%08x is unclaimed, its item counts %u of %u",
            (uint32_t)m->r.id, it->unclaimed, it->refs);
        list_remove(&m->in_unclaimed);
        if (m->life != EROOM_LIVE || !list_empty(&m->dsts) ||
            it->unclaimed + it->leaving < it->refs) {
            /* Other rooms on the item keep the blocks, or the room was just
             * asked for. */
            m->unclaimed_ns = e->b.now_ns;
            list_push_tail(&p->unclaimed, &m->in_unclaimed);
            continue;
        }
        it->unclaimed--;
        m->leaving = true;
        queue_refer(e, it, 0, 1);
        e->b.stats[STAT_unclaimed]++;
        eroom_fail(e, m, ERR_GONE,
            "no langd asked for its rows, and another room waits for blocks");
    }
}
