/* check_taken.c - what langd takes back for the head of a queue: blocks (RULES
 * 5.2, 5.4) and space for aux (5.8). It takes no more than is needed, in order,
 * and all that it may take while the head does not fit. reference.c says which
 * room the head is. */
#include "test/sim/reference.h"

/* What happened in a pool in this step. */
struct taken {
    uint32_t lost;   /* most blocks that one room lost */
    uint32_t supply; /* free blocks, and those that will come back */
    /* rows of younger rooms are spared until then; 0: no longer */
    uint64_t until;
};

/* True if the room's blocks will come back: it is READY, or rows land into its
 * firm grant. */
static bool gives_back(const struct lfact *f)
{
    const struct lroom *m = f->m;

    return f->held > 0 && (m->r.state == ROOM_SUCCESS ||
                              (f->alive && !lroom_closing(m) && f->firm &&
                                  m->from + m->landed < m->granted));
}

/* Sets the head's clock, and what may be taken back of each room: a default
 * grant into which no row has landed, unless the room was the head; landed rows
 * that are not shown, if the room waits. */
/* RULES 5.3, 5.4 */
static void see_all(struct lorder *k, struct taken *t)
{
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        struct lline *line = &k->line[i];
        uint64_t age = line->head ? line->head->age + 1 : 0;

        if (!age || line->head_age != age)
            line->head_ns = k->d->now_ns;
        line->head_age = age;
        t[i].supply = k->l->pools[i].p.free;
    }
    for (uint32_t i = 0; i < k->count; i++) {
        struct lfact *f = k->live[i];
        const struct lfact *b = &k->was[f - k->now];
        const struct lline *line = &k->line[f->pool];
        bool led = b->led && b->generation == f->generation;
        bool open = f->held > 0 && f->m->exposed == 0 && !f->firm;

        f->spec =
            open && f->alive && !lroom_closing(f->m) && !f->landed && !led;
        f->rows = open && f->plays && f->landed > 0 &&
                  (f->queued || lroom_lacks_aux(f->m));
        f->led = f->held > 0 && (led || line->head_age == f->age + 1);
        t[f->pool].supply += f->m->closing.blocks;
        if (gives_back(f))
            t[f->pool].until =
                line->head_ns + k->l->b.c.conf->timeout_revoke_after;
    }
}

/* Checks that as long as the head does not fit, all that may be taken for it
 * is. */
/* RULES 5.4 */
static void see_giving(
    const struct lorder *k, const struct lfact *f, const struct taken *t)
{
    const struct lfact *head = k->line[f->pool].head;

    if (!head || f == head || (!f->spec && f->age < head->age) ||
        k->line[f->pool].lacks + k->l->pools[f->pool].spare <= t->supply)
        return;
    HOLDS(!f->spec && (!f->rows || k->d->now_ns < t->until),
        "the head gets its blocks", "%s room %llu lacks %u, room %llu has %u",
        NAMED(head->m->r.id), k->line[f->pool].lacks,
        (unsigned long long)f->m->r.id, f->held);
    HOLDS(!f->rows || brain_deadline(&k->l->b) <= t->until,
        "patience ends in time", "%s room %llu waits", NAMED(head->m->r.id));
}

/* True if o kept its blocks in this step although it had to give way before f.
 * landed: f lost landed rows. */
static bool spared(const struct lorder *k, const struct lfact *f, bool landed,
    const struct lfact *o)
{
    const struct lfact *b = &k->was[o - k->now];

    if (!lfact_same(b, o) || o->pool != f->pool || o->attempt != b->attempt)
        return false;
    if (b->spec && o->spec && k->line[o->pool].head_age != o->age + 1)
        return landed || o->age > f->age;
    return landed && b->rows && o->rows && o->age > f->age;
}

/* The brain took the room's blocks back by itself: for the head, and from those
 * that are to give way first. */
/* RULES 5.2, 5.4 */
static void see_taken(
    const struct lorder *k, const struct lfact *f, struct taken *t)
{
    const struct lfact *b = &k->was[f - k->now];
    const struct lline *line = &k->line[f->pool];
    bool landed = b->landed > 0 || k->d->landed_of == f->generation;
    uint64_t age = line->served, own = UINT64_MAX;

    if (!lfact_same(b, f))
        return;
    HOLDS(!b->firm || f->firm || f->held == 0, "a firm grant stays firm",
        "%s room %llu has %u blocks", NAMED(f->m->r.id), f->held);
    if (f->attempt == b->attempt || b->held == 0 || f->held > 0 ||
        f->broken_ns != b->broken_ns || f->m->required > 1)
        return; /* an outage, or its encoder asked for that (5.16) */
    if (line->head)
        age = min_u64(age, line->head->age);
    if (age == UINT64_MAX || landed || k->d->asked_of == f->generation)
        own = f->age; /* it waited itself */
    HOLDS(!b->firm && (!b->led || landed) && f->m->exposed == 0 && age < own,
        "what the head has, what is firm and what is shown stays",
        "%s room %llu had %u blocks", NAMED(f->m->r.id), b->held);
    HOLDS(!landed || !line->spares || k->d->now_ns >= t->until,
        "rows are spared while others may end", "%s room %llu",
        NAMED(f->m->r.id));
    for (uint32_t i = 0; i < k->count; i++)
        HOLDS(!spared(k, f, landed, k->live[i]), "the youngest gives way first",
            "%s room %llu (landed %u) gave way before %llu", NAMED(f->m->r.id),
            landed, (unsigned long long)k->live[i]->m->r.id);
    t->lost = max_u32(t->lost, b->held);
}

/* aux */

/* The head waits: no room may have space that has to be taken for it. */
/* RULES 5.8 */
static void see_space(const struct lorder *k, const struct lfact *f)
{
    const struct lroom *m = f->m, *head = k->aux_head;
    bool rows = aux_class_of(m) != AUX_BARE;
    struct gfact g;

    if (!head || !f->alive || !f->aux || f->firm || m->exposed > 0 ||
        (m->group && m->group == head->group) || aux_class_of(head) == AUX_BARE)
        return;
    if (m->group) {
        g = group_of(k, m->group);
        rows = g.known && !g.lacks_aux;
    }
    HOLDS(rows && aux_class_of(head) != AUX_FIRST && m->age <= head->age,
        "space for aux is taken", "%s room %llu waits, room %llu has it",
        NAMED(head->r.id), (unsigned long long)m->r.id);
}

void taken_look(struct lorder *k)
{
    struct taken t[CONF_POOLS_MAX] = {{0}};

    see_all(k, t);
    for (uint32_t i = 0; i < k->count; i++) {
        const struct lfact *f = k->live[i];

        see_giving(k, f, &t[f->pool]);
        see_taken(k, f, &t[f->pool]);
        see_space(k, f);
    }
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        struct lline *line = &k->line[i];
        uint32_t need = line->head ? line->lacks + k->l->pools[i].spare : 0;

        HOLDS(!t[i].lost || t[i].supply < t[i].lost + need,
            "no more is taken than is needed", "%s: %u blocks, %u for %u",
            k->d->conf->name, t[i].lost, t[i].supply, need);
        line->spares = t[i].until > 0;
    }
}
