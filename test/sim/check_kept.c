/* check_kept.c - rows that were kept, and rows that no langd asks for, give way
 * to items that wait for source blocks (RULES 5.21): no more of them than
 * needed, in time, and none whose blocks would not come back. */
#include "test/sim/reference.h"

/* Blocks of a pool in this step. gone: those of the largest kept item that was
 * let go before its time; others: those of all other items whose blocks came
 * back; leave, end: free blocks, and those of items that are leaving, or
 * ending. left: an item left the queue without blocks. */
struct back {
    uint32_t gone, others;
    uint64_t leave, end;
    bool left;
};

static bool unclaimed(const struct eroom *m)
{
    return m->life == EROOM_LIVE && item_done(m->item) && m->served == 0 &&
           list_empty(&m->dsts);
}

/* True if a destination of the room may still read its rows; sends: or sends
 * of ours. */
static bool read_on(const struct eroom *m, bool sends)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

        if (o->state != DST_ENDED || o->map != NONE ||
            (sends && o->job != JOB_NONE))
            return true;
    }
    return false;
}

void kept_see(const struct item *it, struct efact *f)
{
    f->kept = f->bare = true;
    f->kept_ns = TIME_NEVER;
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);
        bool gone = eroom_failing(m) || m->life >= EROOM_RELEASING;

        f->bare &= unclaimed(m) || (gone && !read_on(m, true));
        f->held |= !unclaimed(m) && (!gone || read_on(m, false));
        f->kept &= m->life == EROOM_KEPT && m->active == 0;
        f->kept_ns = min_u64(f->kept_ns, m->kept_ns);
        f->room = m->r.id;
        f->name = m->name;
    }
}

/* Counts the blocks of item i: those that came back in this step, and those
 * that are still to come. */
static void count_back(const struct eorder *k, uint32_t i, struct back *of)
{
    const struct efact *b = &k->was[i], *f = &k->now[i];
    struct back *p = &of[b->pool], *next = &of[f->pool];
    bool here = efact_same(b, f);
    bool back = b->blocks && !b->leaves && (!here || f->leaves);
    const struct tomb *t =
        b->kept && b->kept_ns > k->d->now_ns
            ? memory_get(&k->e->ended_rooms, k->d->now_ns, b->room, b->name)
            : NULL;

    if (back && t && t->reason == ERR_GONE)
        p->gone = max_u32(p->gone, b->blocks);
    else if (back)
        p->others += b->blocks;
    p->left |= b->waits && !here;
    next->leave += f->leaves ? f->blocks : 0;
    next->end += f->ends ? f->blocks : 0;
}

/* ended: rooms gave way in this step. */
/* RULES 5.21 */
static void see_unclaimed(
    struct eorder *k, uint32_t i, bool ended, const struct back *of)
{
    const struct eroom *m = &k->e->rooms[i];
    const struct item *it = m->item;
    struct bare *b = &k->bare[i];
    uint64_t opened = m->life == EROOM_FREE ? 0 : m->history.opened_ns + 1;
    uint64_t patience = k->e->b.c.conf->timeout_unclaimed;
    bool was = b->room_ns && b->opened_ns == opened;
    bool one = opened && unclaimed(m) && it->src.blocks > 0;
    bool all = one && k->now[it - k->e->items].bare;
    bool gave_way =
        was && ended && !eroom_serves(m) && m->fail_reason == ERR_GONE;

    HOLDS(!gave_way || k->d->now_ns - b->room_ns + 1 >= patience,
        "rows that none asked for stay a while", "%s room %llu ends",
        NAMED(m->r.id));
    HOLDS(!gave_way || !k->now[b->item].held || k->now[b->item].age != b->age,
        "rows stay whose blocks would not come", "%s room %llu ends",
        NAMED(m->r.id));
    if (!one || !was)
        b->room_ns = one ? k->d->now_ns + 1 : 0;
    if (!all || !was || !b->item_ns)
        b->item_ns = all ? k->d->now_ns + 1 : 0;
    b->opened_ns = opened;
    if (one) {
        b->item = (uint32_t)(it - k->e->items);
        b->age = it->in_line.weight;
    }
    HOLDS(!all || k->d->last != EV_TIME ||
              of[it->pool].end >= k->line[it->pool].lacks ||
              brain_deadline(&k->e->b) <= k->d->now_ns || /* at once */
              k->d->now_ns - b->item_ns + 1 < patience,
        "rows that none asked for give way", "%s room %llu stays",
        NAMED(m->r.id));
}

/* Checks that kept items are let go only when needed: without the largest of
 * them, and without other blocks that came back, the head would lack blocks. */
/* RULES 5.21 */
static void see_let_go(
    const struct eorder *k, const struct back *p, uint32_t needed)
{
    HOLDS(!p->gone || p->left ||
              p->leave < (uint64_t)p->gone + p->others + needed,
        "no more is let go of than is needed",
        "%s: %u blocks, %u others came back, there are %u for %u",
        k->d->conf->name, p->gone, p->others, (uint32_t)p->leave, needed);
}

void kept_look(struct eorder *k)
{
    const uint64_t *stats = k->e->b.stats;
    uint64_t others =
        stats[STAT_table_full] + stats[STAT_gave_place] + stats[STAT_dropped];
    struct back of[CONF_POOLS_MAX] = {{0}};

    for (uint32_t i = 0; i < k->e->b.pools_count; i++)
        of[i].leave = of[i].end = k->e->pools[i].p.free;
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        count_back(k, i, of);
    for (uint32_t i = 0; i < k->e->b.pools_count && k->others == others; i++)
        if (!k->e->b.metas[i].lost) /* else all go */
            see_let_go(k, &of[i], k->line[i].lacks);
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct eroom *m = &k->e->rooms[i];

        HOLDS(m->life != EROOM_KEPT || !k->e->b.metas[m->item->pool].lost,
            "rows of a lost pool are not kept", "%s room %llu is",
            NAMED(m->r.id));
        see_unclaimed(k, i, k->unclaimed != stats[STAT_unclaimed], of);
    }
    k->others = others;
    k->unclaimed = stats[STAT_unclaimed];
}
