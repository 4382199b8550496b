/* check_fair.c - how often an item that waits for source blocks is passed by
 * those with more right: at most once for each that is older and waits, since
 * each time the oldest begins to ask ahead (RULES 5.14). */
#include "test/sim/reference.h"

static bool fresh(const struct eorder *k, uint32_t i)
{
    return k->now[i].plain &&
           !(efact_same(&k->was[i], &k->now[i]) && k->was[i].plain);
}

/* An item that waited as full may have been plain for an instant of this step,
 * been passed, and have begun to ask ahead or have gone: it was before those
 * that are younger, too. */
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
        struct efact *b = &k->was[i];

        if (!f->plain || fresh(k, i) || f->pool != by->pool ||
            f->turn > by->turn)
            continue;
        b->passed++;
        HOLDS(b->passed <= b->older, "none is passed too often",
            "%s item of age %llu was passed %u times, %u older ones waited",
            NAMED(f->age), b->passed, b->older);
    }
}

/* Counts, for each that does not ask ahead, those before it in the queue that
 * do not either, each once: f began to be one of them. */
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
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        if (k->now[i].plain && !fresh(k, i)) {
            k->now[i].passed = k->was[i].passed;
            k->now[i].older = k->was[i].older;
        }
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        if (fresh(k, i))
            count_fresh(k, &k->now[i]);
}
