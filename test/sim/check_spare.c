/* check_spare.c - blocks that a group of unknown totals keeps for members that
 * grow, and that the members can get these blocks: RULES 5.6. */
#include "test/sim/reference.h"

/* Returns what the group may still take: all that it may hold, less what its
 * members have, until all totals are known and each has its blocks. */
/* RULES 5.6 */
static uint32_t kept(const struct lorder *k, const struct lgroup *g)
{
    struct spare *s = &k->groups[g - k->l->groups];
    const struct lpool *p = &k->l->pools[g->pool];
    uint32_t most = blocks_most(p, MODE_WHOLE), all = 0;
    uint32_t least = s->gone, held = least;
    bool open = false;

    LIST_FOREACH (n, &g->members) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        bool known = m->total != ROWS_UNKNOWN;

        all += m->length_known
                   ? div_up(known ? m->total : m->max_rows, p->block_rows)
                   : 0;
        least += div_up(known ? m->total : m->committed, p->block_rows);
        held += m->held.blocks;
        open |= !known || div_up(m->total, p->block_rows) > m->held.blocks;
    }
    HOLDS(least <= most, "a group that cannot fit has ended", "%s: %u of %u",
        k->d->conf->name, least, most);
    if (!s->admitted)
        s->capped = g->admitted && all > most;
    s->admitted = g->admitted;
    return s->capped && open ? most - min_u32(most, held) : 0;
}

void spare_look(struct lorder *k)
{
    uint32_t spare[CONF_POOLS_MAX] = {0}, coming[CONF_POOLS_MAX] = {0};

    for (uint32_t i = 0; i < k->l->rooms_max; i++) {
        const struct lfact *b = &k->was[i], *f = &k->now[i];

        if (f->m && b->generation == f->generation && b->alive && b->group &&
            f->m->r.state == ROOM_SUCCESS)
            k->groups[b->group - k->l->groups].gone += f->held;
    }
    for (uint32_t i = 0; i < k->count; i++) {
        const struct lfact *f = k->live[i];
        const struct lgroup *g = f->group;
        struct spare *s = g ? &k->groups[g - k->l->groups] : NULL;

        coming[f->pool] += f->m->closing.blocks;
        coming[f->pool] += f->m->r.state == ROOM_FAILED ? f->held : 0;
        if (!g || g->members.next != &f->m->in_group)
            continue;
        if (s->age != g->age + 1)
            *s = (struct spare){.age = g->age + 1};
        spare[g->pool] += kept(k, g);
    }
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        const struct lpool *p = &k->l->pools[i];

        HOLDS(p->spare == spare[i] && spare[i] <= p->p.free + coming[i],
            "what groups keep is spare, and free", "%s: %u, not %u, free %u",
            k->d->conf->name, p->spare, spare[i], p->p.free);
    }
}
