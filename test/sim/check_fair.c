/* check_fair.c - how often a turn that waits for source blocks is overtaken by
 * others with more right: at most once for each older turn that waits, since
 * each time the oldest begins to ask ahead (RULES 5.14). A turn may go from one
 * item to another of the same langd (5.11), so turns are followed, not
 * items. */
#include "test/sim/reference.h"

/* Returns the item that waited with this turn before the step, or NULL. */
static struct efact *before(const struct eorder *k, uint32_t i)
{
    const struct efact *f = &k->now[i];
    struct efact *b = &k->was[i];

    if (!f->plain || (b->plain && b->turn == f->turn && b->pool == f->pool))
        return f->plain ? b : NULL;
    for (uint32_t n = 0; n < k->e->rooms_max; n++)
        if (k->was[n].plain && k->was[n].turn == f->turn &&
            k->was[n].pool == f->pool)
            return &k->was[n];
    return NULL;
}

static bool fresh(const struct eorder *k, uint32_t i)
{
    return k->now[i].plain && !before(k, i);
}

/* Within the step an item that waited as full may have been plain for a moment
 * and been overtaken; then it began to ask ahead, or left. It, too, counts as
 * older than the younger plain items. */
static void count_short(struct eorder *k, uint32_t n)
{
    const struct efact *b = &k->was[n], *f = &k->now[n];

    if (!b->waits || b->plain || b->ahead ||
        (f->queued && efact_same(b, f) && !f->ahead))
        return;
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        k->was[i].older += k->was[i].plain && k->was[i].pool == b->pool &&
                           k->was[i].turn > b->turn;
}

/* RULES 5.14 */
static void see_passed(struct eorder *k, const struct efact *by)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i];
        struct efact *b = before(k, i);

        if (!b || f->pool != by->pool || f->turn > by->turn)
            continue;
        b->passed++;
        HOLDS(b->passed <= b->older, "none is passed too often",
            "%s item of turn %llu was passed %u times, %u older ones waited",
            NAMED(f->turn), b->passed, b->older);
    }
}

/* f has become plain, which means that it is not full and does not ask ahead.
 * Counts f once as an older item for each plain item behind it, and each one
 * before it as an older item for f. */
static void count_fresh(struct eorder *k, struct efact *f)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        struct efact *o = &k->now[i];

        if (!o->plain || o->pool != f->pool)
            continue;
        o->older += o->turn > f->turn;
        f->older += o->turn < f->turn && !fresh(k, i);
    }
}

void fair_look(struct eorder *k)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        count_short(k, i);
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        if (k->now[i].got)
            see_passed(k, &k->now[i]);
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *b = before(k, i);

        k->now[i].passed = b ? b->passed : 0;
        k->now[i].older = b ? b->older : 0;
    }
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        if (fresh(k, i))
            count_fresh(k, &k->now[i]);
}
