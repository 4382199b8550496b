/* reference_step.c - looks at a brain after each step, for the reference and
 * the oracles of order (reference.h), and keeps the facts of the step
 * before. */
#include "test/sim/reference.h"

static void see_room(
    const struct lorder *k, const struct lroom *m, struct lfact *f)
{
    *f = (struct lfact){.m = m,
        .group = m->group,
        .generation = m->generation,
        .age = m->age,
        .broken_ns = m->broken_ns,
        .pool = m->pool,
        .attempt = m->attempt,
        .held = m->held.blocks,
        .base = m->base,
        .landed = m->landed,
        .alive = lroom_alive(m),
        .firm = lroom_firm(m),
        .admitted = m->group && m->group->admitted,
        .aux = m->aux.len > 0 || m->aux.reserved > 0};
    f->plays = f->alive && !lroom_closing(m) && m->peer != NONE &&
               k->l->pools[m->pool].meta->ready;
    reference_room(k, m, f);
}

static struct lorder *lorder_of(const struct daemon *d)
{
    static struct lorder of[DAEMONS_MAX];
    struct lorder *k = &of[d->index];
    struct langd *l = d->brain;

    if (!k->d || k->life != d->life)
        *k = (struct lorder){.life = d->life,
            .d = d,
            .l = l,
            .now = must_alloc(l->rooms_max, sizeof(*k->now)),
            .was = must_alloc(l->rooms_max, sizeof(*k->was)),
            .live = must_alloc(l->rooms_max, sizeof(struct lfact *)),
            .groups = must_alloc(l->rooms_max, sizeof(*k->groups))};
    return k;
}

void order_langd(struct daemon *d)
{
    struct lorder *k = lorder_of(d);
    struct lfact *was = k->was;

    k->count = 0;
    for (uint32_t i = 0; i < k->l->rooms_max; i++) {
        k->now[i] = (struct lfact){0};
        if (!k->l->rooms[i].r.used)
            continue;
        k->live[k->count++] = &k->now[i];
        see_room(k, &k->l->rooms[i], &k->now[i]);
    }
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        k->line[i].head = k->line[i].idle = NULL;
        k->line[i].served = UINT64_MAX;
    }
    spare_look(k);
    reference_blocks(k);
    reference_space(k);
    taken_look(k);
    k->was = k->now;
    k->now = was;
}

static void see_item(
    const struct eorder *k, const struct item *it, struct efact *f)
{
    *f = (struct efact){.age = it->life == ITEM_FREE ? 0 : it->in_line.weight};
    if (!f->age)
        return;
    f->it = it;
    f->turn = it->turn;
    f->moved_ns = it->moved_ns;
    f->pool = it->pool;
    f->blocks = it->src.blocks;
    f->leaves = it->leaving == it->refs;
    f->waits = it->life < ITEM_HELD;
    f->complete = item_complete(it);
    f->ahead = it->ahead;
    reference_item(k, it, f);
    victims_see(it, f);
    kept_see(it, f);
}

static struct eorder *eorder_of(const struct daemon *d)
{
    static struct eorder of[DAEMONS_MAX];
    struct eorder *k = &of[d->index];
    struct encoded *e = d->brain;

    if (!k->d || k->life != d->life)
        *k = (struct eorder){.life = d->life,
            .d = d,
            .e = e,
            .now = must_alloc(e->rooms_max, sizeof(*k->now)),
            .was = must_alloc(e->rooms_max, sizeof(*k->was)),
            .bare = must_alloc(e->rooms_max, sizeof(*k->bare))};
    return k;
}

void order_encoded(struct daemon *d)
{
    struct eorder *k = eorder_of(d);
    struct efact *was = k->was;

    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        see_item(k, &k->e->items[i], &k->now[i]);
    for (uint32_t i = 0; i < k->e->b.pools_count; i++)
        k->line[i].head = NULL;
    reference_sources(k);
    fair_look(k);
    victims_look(k);
    kept_look(k);
    k->was = k->now;
    k->now = was;
}
