/* reference_aux.c - who gets a langd's space for aux, and who loses it: RULES
 * 5.8 in the plainest words, held against every step as in reference_langd.c.
 * The brain's word it takes for what a user may have (7.6), too. */
#include "test/sim/sim.h"

#include "core/lang/lang.h"

enum { FIRST, ROWS, BARE }; /* who comes first */

struct abook {
    uint32_t life;
    uint64_t *had; /* by slot: generation + 1 of a room with space; 0: none */
};

static bool has_space(const struct lroom *m)
{
    return m->aux.len > 0 || m->aux.reserved > 0;
}

/* Chunks that the room lacks; a group lacks them as one, by its first member,
 * once its lengths are known. */
static uint32_t lacks(const struct lroom *m)
{
    uint32_t n = 0;

    if (!m->group)
        return lroom_lacks_aux(m) ? aux_chunks(m->aux_len) : 0;
    if (m->group->joined < m->group->size)
        return 0;
    LIST_FOREACH (i, &m->group->members) {
        const struct lroom *o = LIST_ENTRY(i, struct lroom, in_group);

        if (!o->length_known)
            return 0;
        n += lroom_lacks_aux(o) ? aux_chunks(o->aux_len) : 0;
    }
    return n;
}

/* True if all lengths of its group are known, and none lacks aux. */
static bool is_whole(const struct lgroup *g)
{
    LIST_FOREACH (i, &g->members) {
        const struct lroom *o = LIST_ENTRY(i, struct lroom, in_group);

        if (!o->length_known || lroom_lacks_aux(o))
            return false;
    }
    return g->joined == g->size;
}

static int class_of(const struct lroom *m)
{
    if (m->group)
        return m->group->admitted ? FIRST : ROWS;
    if (lroom_firm(m) || m->exposed > 0)
        return FIRST;
    return m->want || m->landed > 0 || m->total == 0 ? ROWS : BARE;
}

static bool comes_before(const struct lroom *a, const struct lroom *b)
{
    return class_of(a) != class_of(b) ? class_of(a) < class_of(b)
                                      : a->age < b->age;
}

/* True if the room may lose its space to the head. */
/* RULES 5.8 */
static bool yields(const struct lroom *m, const struct lroom *head)
{
    bool rows = m->group ? is_whole(m->group) : class_of(m) != BARE;

    if (!lroom_alive(m) || !has_space(m) || lroom_firm(m) || m->exposed > 0 ||
        (m->group && m->group == head->group) || class_of(head) == BARE)
        return false;
    return !rows || class_of(head) == FIRST || m->age > head->age;
}

/* The room got space: none that comes before it waits, but of a user whose
 * queue is not its own. */
/* RULES 5.8 */
static void see_got(const struct daemon *d, const struct langd *l,
    const struct lroom *m, const struct lroom *head)
{
    const struct share *s = &l->b.aux.share;
    bool passes = head && head->uid != m->uid &&
                  share_used(s, m->uid) <= (s->total - s->limit) / 2;

    HOLDS(!head || passes || !comes_before(head, m) || m->group == head->group,
        "the first gets space for its aux", "%s room %llu, room %llu waits",
        d->conf->name, (unsigned long long)m->r.id,
        (unsigned long long)head->r.id);
}

static struct abook *abook_of(struct daemon *d)
{
    static struct abook *of[DAEMONS_MAX];
    const struct langd *l = d->brain;
    struct abook *k = of[d->index];

    if (k && k->life == d->life)
        return k;
    k = of[d->index] = must_alloc(1, sizeof(*k));
    k->life = d->life;
    k->had = must_alloc(l->rooms_max, sizeof(uint64_t));
    return k;
}

void reference_aux(struct daemon *d)
{
    const struct langd *l = d->brain;
    struct abook *k = abook_of(d);
    const struct lroom *head = NULL;

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (m->r.used && lroom_alive(m) && lacks(m) > 0 &&
            (!head || comes_before(m, head)))
            head = m;
    }
    HOLDS(!head || !share_may(&l->b.aux.share, head->uid, lacks(head)),
        "aux that fits is given space", "%s room %llu waits", d->conf->name,
        (unsigned long long)head->r.id);
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];
        uint64_t now = m->r.used && has_space(m) ? m->generation + 1 : 0;

        if (now && now != k->had[i] && lroom_alive(m))
            see_got(d, l, m, head);
        k->had[i] = now;
        HOLDS(!head || !m->r.used || !yields(m, head), "space for aux is taken",
            "%s room %llu waits, room %llu has it", d->conf->name,
            (unsigned long long)head->r.id, (unsigned long long)m->r.id);
    }
}
