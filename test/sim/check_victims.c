/* check_victims.c - which item is ended for a full one that waits for source
 * blocks, and when: RULES 5.12. */
#include "test/sim/reference.h"

/* True if one of the room's destinations waits in its langd's queue, or has not
 * asked yet. */
static bool room_lacks(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

        if (o->state == DST_ACTIVE && o->firm != FIRM_YES && o->want_known &&
            edst_rows_wait(o))
            return true;
    }
    return !eroom_ended(m) && !(m->flags & FLAG_OPEN) &&
           m->asked < max_u32(m->required, 1);
}

void victims_see(const struct item *it, struct efact *f)
{
    f->ends = true;
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);
        bool gone = eroom_failing(m) || m->life >= EROOM_RELEASING;

        f->lacks_grants |= room_lacks(m);
        f->active |= m->active > 0;
        f->ends &= eroom_failing(m) || (gone && m->active == 0);
        f->ended |= eroom_failing(m) && m->fail_reason == ERR_NO_BLOCKS;
    }
}

/* True if the item's blocks and rows have not moved for timeouts.progress. */
static bool rested(const struct eorder *k, const struct efact *f)
{
    return k->d->now_ns - f->moved_ns >= k->e->b.c.conf->timeout_progress;
}

/* True if the item makes no progress: it lacks grants, and its rows are written
 * or do not move. */
static bool stands(const struct eorder *k, const struct efact *f)
{
    return f->age && f->blocks > 0 && f->lacks_grants && !f->ends &&
           !f->own_full && (f->complete || rested(k, f));
}

/* Checks that the item was ended for a full head that had waited long enough,
 * and was the youngest that made no progress. */
/* RULES 5.12 */
static void see_ended(struct eorder *k, const struct efact *b)
{
    struct eline *line = &k->line[b->pool];

    HOLDS(stands(k, b), "what is ended stands", "%s item of turn %llu",
        NAMED(b->turn));
    HOLDS(line->turn && line->lacks_ns <= k->d->now_ns &&
              k->d->now_ns - line->head_ns >= line->least_ns,
        "a full head waits before one is ended for it", "%s item of turn %llu",
        NAMED(b->turn));
    line->stuck_ns = 0;
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i];

        HOLDS(!efact_same(&k->was[i], f) || f->pool != b->pool ||
                  f->turn <= b->turn || !stands(k, &k->was[i]) ||
                  !f->lacks_grants || f->own_full,
            "the youngest that stands is ended", "%s turn %llu, not %llu",
            NAMED(b->turn), (unsigned long long)f->turn);
    }
}

/* True if item i had blocks, and is gone. */
static bool went(const struct eorder *k, uint32_t i)
{
    const struct efact *b = &k->was[i];

    return b->age && !b->waits && !b->ended && !efact_same(b, &k->now[i]);
}

/* Checks the items that were ended in this step, `left` of them. Items that are
 * gone were ended if there are no more of them than that. */
static void see_all_ended(struct eorder *k, uint64_t left)
{
    uint32_t gone = 0, here = 0;

    for (uint32_t i = 0; left > 0 && i < k->e->rooms_max; i++) {
        const struct efact *b = &k->was[i], *f = &k->now[i];

        gone += went(k, i);
        if (!efact_same(b, f) || b->waits || b->ended || !f->ended)
            continue;
        see_ended(k, b);
        here++;
    }
    for (uint32_t i = 0; left > 0 && i < k->e->rooms_max; i++)
        if (gone + here <= left && went(k, i))
            see_ended(k, &k->was[i]);
}

/* A full head waits: the youngest item is ended in time, unless blocks come
 * back by themselves. */
/* RULES 5.11, 5.12 */
static void see_head(struct eorder *k, uint32_t pool)
{
    struct eline *line = &k->line[pool];
    const struct efact *head = line->head;
    uint64_t coming = k->e->pools[pool].p.free, rests_ns = TIME_NEVER;
    uint64_t turn = head && head->full ? head->turn + 1 : 0;
    bool drains = false, stuck = false, goes = false, enough;

    for (uint32_t i = 0; head && i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i];
        bool idle = f->it && rested(k, f);

        if (!f->it || f->waits || f->pool != pool || f->blocks == 0)
            continue;
        coming += f->ends && !idle ? f->blocks : 0;
        if (!f->ends && f->active && f->it->committed > 0 && !f->lacks_grants) {
            goes |= f->complete;
            drains |= f->own_full && !idle;
        }
        if (!idle)
            rests_ns = min_u64(
                rests_ns, f->moved_ns + k->e->b.c.conf->timeout_progress);
        stuck |= stands(k, f);
    }
    enough = head && coming >= head->lacks;
    if (turn != line->turn) {
        line->head_ns = k->d->now_ns;
        line->least_ns = TIME_NEVER;
    }
    line->least_ns =
        min_u64(line->least_ns, k->e->b.c.conf->timeout_revoke_after);
    if (turn != line->turn || !turn || goes || drains || !stuck || enough)
        line->stuck_ns = 0;
    else if (!line->stuck_ns)
        line->stuck_ns = k->d->now_ns;
    line->turn = turn;
    line->lacks_ns = !head || goes      ? TIME_NEVER
                     : drains || enough ? rests_ns
                                        : 0;
    k->after_ns =
        max_u64(k->after_ns, max_u64(MS, k->e->b.c.conf->timeout_revoke_after));
    HOLDS(!line->stuck_ns || k->d->last != EV_TIME ||
              k->d->now_ns - line->stuck_ns <= k->after_ns,
        "a full head gets its blocks", "%s item of turn %llu waits",
        NAMED(head->turn));
}

void victims_look(struct eorder *k)
{
    uint64_t ended = k->e->b.stats[STAT_sources_revoked];

    see_all_ended(k, ended - k->revoked);
    k->revoked = ended;
    for (uint32_t i = 0; i < k->e->b.pools_count; i++)
        see_head(k, i);
}
