/* reference_langd.c - who gets blocks of a langd, from whom they are taken, and
 * in which order: RULES 5.1 to 5.8 in the plainest words, held against every
 * step of the brain. Looks at what was before a step and at what is after it.
 *
 * Its own are what a room wants, which rooms wait and in which order, what is
 * full, stands or is spare, what each lost blocks for, and all clocks. It takes
 * the brain's word for what came from outside (requests, lengths, WANTs, rows,
 * grants), for ages, for the lives of rooms, and for three things of long ago:
 * that a group was admitted, that an item is a victim, that it asks ahead.
 *
 * A second brain that is stepped beside the first was rejected: it would have
 * to be told the same messages, and what it said would be as hard to read. */
#include "test/sim/sim.h"

#include "core/lang/lang.h"

/* For "%s room %llu". */
#define THE(m) k->d->conf->name, (unsigned long long)(m)->r.id

/* blocks of a langd */

struct lwas {
    uint64_t generation, broken_ns;
    uint32_t held, base, attempt, landed;
    bool alive, firm, led, spec, victim;
    struct lgroup *group;
};

struct lbook {
    uint32_t life;
    const struct daemon *d;
    struct langd *l;
    const struct lroom **live; /* the rooms that there are now */
    uint32_t count;
    struct lwas *rooms; /* by slot */
    struct {
        uint64_t age;
        uint32_t gone; /* blocks of members that are READY */
        bool capped, admitted;
    } * groups;
    uint64_t head_age[CONF_POOLS_MAX], head_ns[CONF_POOLS_MAX];
    uint64_t served[CONF_POOLS_MAX]; /* age of the oldest in this step */
    struct queue_book {
        /* Before the step a room was READY, or landing into a firm grant. */
        bool spares;
        uint32_t need, supply; /* of the head; free blocks and those to come */
        uint32_t lost;         /* the most that one room lost in this step */
    } q[CONF_POOLS_MAX];
};

/* RULES 5.9 */
static uint32_t cap_of(const struct lpool *p, uint8_t mode)
{
    uint32_t most = (uint32_t)p->meta->conf->max_room_blocks;

    if (most || mode == MODE_WHOLE)
        return most ? most : p->p.blocks;
    return min_u32(max_u32(p->p.blocks / 2, STREAM_MIN), p->p.blocks);
}

/* Blocks for the rows that the room is to have places for (4.1, 4.3, 5.1, 5.6),
 * as far as one room may hold them (5.9). */
static uint32_t needs(const struct lbook *k, const struct lroom *m)
{
    const struct lpool *p = &k->l->pools[m->pool];
    uint64_t rows = m->expected, hold;

    if (!rows)
        rows = p->meta->conf->default_blocks * p->block_rows;
    if (m->mode == MODE_STREAM) { /* what it was promised (5.20) */
        hold = max_u64(STREAM_MIN,
            min_u64(p->meta->conf->default_blocks, cap_of(p, MODE_STREAM)));
        rows = max_u64(rows, m->base + hold * p->block_rows);
    }
    if (m->total != ROWS_UNKNOWN)
        rows = m->total;
    else if (m->length_known && m->group)
        rows = k->groups[m->group - k->l->groups].capped ? m->committed
                                                         : m->max_rows;
    else if (m->length_known)
        rows = m->want ? m->max_rows
                       : min_u64(max_u64(rows, m->committed), m->max_rows);
    rows -= min_u64(rows, m->base);
    return (uint32_t)min_u64(
        (rows + p->block_rows - 1) / p->block_rows, cap_of(p, m->mode));
}

static bool plays(const struct lbook *k, const struct lroom *m)
{
    return m->r.used && lroom_alive(m) && !lroom_closing(m) &&
           m->peer != NONE && k->l->pools[m->pool].meta->ready;
}

static uint32_t wants(const struct lbook *k, const struct lroom *m)
{
    uint32_t n = plays(k, m) ? needs(k, m) : 0;

    return n - min_u32(n, m->held.blocks);
}

/* A group is in the queue as one, by its first member (5.5). */
/* RULES 5.5 */
static bool gathered(const struct lroom *m)
{
    const struct lgroup *g = m->group;

    if (g->admitted || g->joined < g->size || g->members.next != &m->in_group)
        return false;
    LIST_FOREACH (n, &g->members) {
        const struct lroom *o = LIST_ENTRY(n, struct lroom, in_group);

        if (!o->length_known || lroom_lacks_aux(o) || lroom_closing(o))
            return false;
    }
    return true;
}

static bool queued(const struct lbook *k, const struct lroom *m)
{
    if (!plays(k, m) || m->group)
        return m->r.used && m->group && gathered(m);
    return m->want && (m->length_known || m->required > 1) &&
           !lroom_lacks_aux(m) && (wants(k, m) > 0 || !lroom_firm(m));
}

/* It has no rows, and could use blocks (5.3). */
/* RULES 5.3 */
static bool idle(const struct lbook *k, const struct lroom *m)
{
    return plays(k, m) && !m->group && !m->want && m->required <= 1 &&
           !lroom_lacks_aux(m) && wants(k, m) > 0;
}

/* The oldest of the pool for which `is` holds; NULL: none. */
static const struct lroom *oldest(const struct lbook *k, uint32_t pool,
    bool (*is)(const struct lbook *, const struct lroom *))
{
    const struct lroom *first = NULL;

    for (uint32_t i = 0; i < k->count; i++)
        if (k->live[i]->pool == pool &&
            (!first || k->live[i]->age < first->age) && is(k, k->live[i]))
            first = k->live[i];
    return first;
}

/* What the head of the queue is to get at once. */
static uint32_t wanted(const struct lbook *k, const struct lroom *m)
{
    uint32_t all = 0, held = 0;

    if (!m->group)
        return wants(k, m);
    LIST_FOREACH (n, &m->group->members) {
        const struct lroom *o = LIST_ENTRY(n, struct lroom, in_group);

        all += needs(k, o);
        held += o->held.blocks;
    }
    all = min_u32(all, cap_of(&k->l->pools[m->pool], MODE_WHOLE));
    return all - min_u32(all, held);
}

static bool same(const struct lwas *b, const struct lroom *m)
{
    return m->r.used && b->generation == m->generation && b->alive &&
           lroom_alive(m);
}

/* A default grant into which nothing has landed, not of one that was the head
 * (5.4). */
/* RULES 5.3 */
static bool speculative(const struct lwas *b, const struct lroom *m)
{
    return m->r.used && lroom_alive(m) && !lroom_closing(m) &&
           m->held.blocks > 0 && m->exposed == 0 && !lroom_firm(m) &&
           m->landed == 0 && !(b->led && b->generation == m->generation);
}

/* Rows that landed and are not shown, of a room that waits (5.4, 5.8). */
static bool victim(const struct lbook *k, const struct lroom *m)
{
    return plays(k, m) && (queued(k, m) || lroom_lacks_aux(m)) &&
           m->held.blocks > 0 && m->exposed == 0 && !lroom_firm(m) &&
           m->landed > 0;
}

static struct lwas see(
    const struct lbook *k, const struct lroom *m, const struct lwas *b)
{
    bool led = b->generation == m->generation && b->led && m->held.blocks > 0;

    return (struct lwas){.generation = m->generation,
        .broken_ns = m->broken_ns,
        .held = m->held.blocks,
        .base = m->base,
        .attempt = m->attempt,
        .landed = m->landed,
        .alive = lroom_alive(m),
        .firm = lroom_firm(m),
        .led =
            led || (m->held.blocks > 0 && k->head_age[m->pool] == m->age + 1),
        .spec = speculative(b, m),
        .victim = victim(k, m),
        .group = m->group};
}

/* Room m got blocks in this step, or its blocks became firm: no room with as
 * much right is older and waits (5.1, 5.2, 5.3). */
/* RULES 5.1 */
static void see_given(
    struct lbook *k, const struct lroom *m, const struct lwas *b)
{
    uint32_t gave = (m->base - b->base) / k->l->pools[m->pool].block_rows;
    bool firm = lroom_firm(m), got = m->held.blocks + gave > b->held;
    const struct lroom *o;

    if (!same(b, m) || m->attempt != b->attempt || (!got && firm == b->firm) ||
        (!firm && !got) || gave > 0)
        return; /* a stream gets again what it gave back (5.20) */
    if (m->group && k->groups[m->group - k->l->groups].admitted)
        return; /* what was kept for it (5.6) */
    if (firm)
        k->served[m->pool] = min_u64(k->served[m->pool], m->age);
    HOLDS(!firm || m->group || wants(k, m) == 0, "firm is all that is needed",
        "%s room %llu wants %u more", THE(m), wants(k, m));
    o = oldest(k, m->pool, queued);
    HOLDS(!o || (firm && o->age > m->age), "the oldest is served first",
        "%s room %llu (firm %d) has %u blocks, had %u; room %llu waits", THE(m),
        firm, m->held.blocks, b->held, (unsigned long long)o->r.id);
    o = firm ? NULL : oldest(k, m->pool, idle);
    HOLDS(!o || o->age > m->age, "the oldest is served first",
        "%s room %llu got blocks, room %llu could use them", THE(m),
        (unsigned long long)o->r.id);
}

/* How long what landed of younger rooms is spared (5.4). */
/* RULES 5.4 */
static uint64_t spared_until(const struct lbook *k, uint32_t pool)
{
    for (uint32_t i = 0; i < k->count; i++) {
        const struct lroom *m = k->live[i];

        if (m->pool == pool && m->held.blocks > 0 &&
            (m->r.state == ROOM_SUCCESS ||
                (lroom_alive(m) && !lroom_closing(m) && lroom_firm(m) &&
                    m->from + m->landed < m->granted)))
            return k->head_ns[pool] + k->l->b.c.conf->timeout_revoke_after;
    }
    return 0;
}

/* True if o stood before the step and stands, and was to give way before m.
 * landed: rows of m had. */
static bool spared(const struct lbook *k, const struct lroom *m, bool landed,
    const struct lroom *o)
{
    const struct lwas *was = &k->rooms[o - k->l->rooms];

    if (!same(was, o) || o->pool != m->pool || o->attempt != was->attempt)
        return false;
    if (was->spec && speculative(was, o) && k->head_age[o->pool] != o->age + 1)
        return landed || o->age > m->age;
    return landed && was->victim && victim(k, o) && o->age > m->age;
}

/* The brain took the room's blocks back by itself: for the head, and from those
 * that are to give way first (5.4). */
/* RULES 5.4 */
static void see_taken(
    struct lbook *k, const struct lroom *m, const struct lwas *b)
{
    struct queue_book *q = &k->q[m->pool];
    uint64_t age = k->served[m->pool], own = UINT64_MAX;
    bool landed = b->landed > 0 || k->d->landed_of == m->generation;

    if (!same(b, m) || m->attempt == b->attempt || b->held == 0 ||
        m->held.blocks > 0 || m->broken_ns != b->broken_ns || m->required > 1)
        return; /* an outage, or its encoder asked for that (5.16) */
    if (k->head_age[m->pool])
        age = min_u64(age, k->head_age[m->pool] - 1);
    if (age == UINT64_MAX || landed || k->d->asked_of == m->generation)
        own = m->age; /* it waited itself */
    HOLDS(!b->firm && (!b->led || landed) && m->exposed == 0 && age < own,
        "what the head has, what is firm and what is shown stays",
        "%s room %llu had %u blocks", THE(m), b->held);
    HOLDS(!landed || !q->spares || k->d->now_ns >= spared_until(k, m->pool),
        "rows are spared while others may end", "%s room %llu", THE(m));
    for (uint32_t i = 0; i < k->count; i++)
        HOLDS(!spared(k, m, landed, k->live[i]), "the youngest gives way first",
            "%s room %llu (landed %u) gave way before %llu", THE(m), landed,
            (unsigned long long)k->live[i]->r.id);
    q->lost = max_u32(q->lost, b->held);
}

/* What was given firmly stays so while a block of it is there (5.2). */
/* RULES 5.2 */
static void see_firm(
    const struct lbook *k, const struct lroom *m, const struct lwas *b)
{
    HOLDS(!same(b, m) || !b->firm || lroom_firm(m) || m->held.blocks == 0,
        "a firm grant stays firm", "%s room %llu has %u blocks", THE(m),
        m->held.blocks);
}

/* Blocks that the group keeps free for members that grow: all that it may hold,
 * less what they have, until all totals are known (5.6). */
/* RULES 5.6 */
static uint32_t kept_spare(struct lbook *k, uint32_t i)
{
    const struct lgroup *g = &k->l->groups[i];
    const struct lpool *p = &k->l->pools[g->pool];
    uint32_t most = cap_of(p, MODE_WHOLE), gone = k->groups[i].gone;
    uint32_t all = 0, least = gone, held = gone;
    bool open = false;

    LIST_FOREACH (n, &g->members) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        bool known = m->total != ROWS_UNKNOWN;

        all += m->length_known
                   ? div_up(known ? m->total : m->max_rows, p->block_rows)
                   : 0;
        least += div_up(known ? m->total : m->committed, p->block_rows);
        held += m->held.blocks;
        open |= !known || wants(k, m) > 0;
    }
    HOLDS(least <= most, "a group that cannot fit has ended", "%s: %u of %u",
        k->d->conf->name, least, most);
    if (!k->groups[i].admitted)
        k->groups[i].capped = g->admitted && all > most;
    return k->groups[i].capped && open ? most - min_u32(most, held) : 0;
}

static uint32_t see_groups(struct lbook *k, uint32_t pool)
{
    uint32_t spare = 0;

    for (uint32_t n = 0; n < k->count; n++) {
        const struct lgroup *g = k->live[n]->group;
        uint32_t i = g ? (uint32_t)(g - k->l->groups) : 0;

        if (!g || g->pool != pool || g->members.next != &k->live[n]->in_group)
            continue;
        if (k->groups[i].age != g->age + 1) {
            memset(&k->groups[i], 0, sizeof(k->groups[i]));
            k->groups[i].age = g->age + 1;
        }
        spare += kept_spare(k, i);
        k->groups[i].admitted = g->admitted;
    }
    return spare;
}

/* The head does not fit: whatever may be taken for it is. */
/* RULES 5.4 */
static void see_giving(const struct lbook *k, uint32_t pool,
    const struct lroom *head, uint32_t lacks)
{
    uint64_t until = spared_until(k, pool);

    for (uint32_t i = 0; i < k->count; i++) {
        const struct lroom *m = k->live[i];
        bool spec = speculative(&k->rooms[lroom_slot(k->l, m)], m);
        bool rows = victim(k, m);

        if (m->pool != pool || m == head || (!spec && m->age < head->age))
            continue;
        HOLDS(!spec && (!rows || k->d->now_ns < until),
            "the head gets its blocks",
            "%s room %llu lacks %u, room %llu has %u", THE(head), lacks,
            (unsigned long long)m->r.id, m->held.blocks);
        HOLDS(!rows || brain_deadline(&k->l->b) <= until,
            "patience ends in time", "%s room %llu waits", THE(head));
    }
}

/* RULES 5.1 */
static void see_queue(struct lbook *k, uint32_t pool)
{
    const struct lpool *p = &k->l->pools[pool];
    const struct lroom *head = oldest(k, pool, queued);
    const struct lroom *m = head ? head : oldest(k, pool, idle);
    uint32_t spare = see_groups(k, pool), n = m ? wanted(k, m) : 0;
    uint32_t closing = 0, failed = 0;

    for (uint32_t i = 0; i < k->count; i++)
        if (k->live[i]->pool == pool) {
            closing += k->live[i]->closing.blocks;
            failed += k->live[i]->r.state == ROOM_FAILED
                          ? k->live[i]->held.blocks
                          : 0;
        }
    HOLDS(p->spare == spare && spare <= p->p.free + closing + failed,
        "what groups keep is spare, and free", "%s: %u, not %u, free %u",
        k->d->conf->name, p->spare, spare, p->p.free);
    if (!head || k->head_age[pool] != head->age + 1)
        k->head_ns[pool] = k->d->now_ns;
    k->head_age[pool] = head ? head->age + 1 : 0;
    HOLDS(!m || n + spare > p->p.free,
        head ? "a head that fits is served" : "what could be used is given",
        "%s room %llu waits for %u blocks, %u are free, %u spare", THE(m), n,
        p->p.free, spare);
    k->q[pool].need = head ? n + spare : 0;
    k->q[pool].supply = p->p.free + closing;
    k->q[pool].lost = 0;
    if (k->q[pool].need > k->q[pool].supply)
        see_giving(k, pool, head, n + spare - p->p.free);
}

static struct lbook *lbook_of(struct daemon *d)
{
    static struct lbook *of[DAEMONS_MAX];
    struct lbook *k = of[d->index];

    if (k && k->life == d->life)
        return k;
    k = of[d->index] = must_alloc(1, sizeof(*k));
    k->life = d->life;
    k->d = d;
    k->l = d->brain;
    k->live = must_alloc(k->l->rooms_max, sizeof(*k->live));
    k->rooms = must_alloc(k->l->rooms_max, sizeof(*k->rooms));
    k->groups = must_alloc(k->l->rooms_max, sizeof(*k->groups));
    return k;
}

void reference_langd(struct daemon *d)
{
    struct lbook *k = lbook_of(d);

    k->count = 0;
    for (uint32_t i = 0; i < k->l->rooms_max; i++) {
        const struct lwas *b = &k->rooms[i];
        const struct lroom *m = &k->l->rooms[i];

        if (!m->r.used)
            continue;
        k->live[k->count++] = m;
        if (b->generation == m->generation && b->alive && b->group &&
            m->r.state == ROOM_SUCCESS)
            k->groups[b->group - k->l->groups].gone += m->held.blocks;
    }
    for (uint32_t i = 0; i < k->count; i++) {
        const struct lwas *b = &k->rooms[lroom_slot(k->l, k->live[i])];

        k->served[k->live[i]->pool] = UINT64_MAX;
        see_firm(k, k->live[i], b);
    }
    for (uint32_t i = 0; i < k->count; i++)
        see_given(k, k->live[i], &k->rooms[lroom_slot(k->l, k->live[i])]);
    for (uint32_t i = 0; i < k->l->b.pools_count; i++)
        see_queue(k, i);
    for (uint32_t i = 0; i < k->count; i++)
        see_taken(k, k->live[i], &k->rooms[lroom_slot(k->l, k->live[i])]);
    for (uint32_t i = 0; i < k->count; i++) {
        struct lwas *b = &k->rooms[lroom_slot(k->l, k->live[i])];

        *b = see(k, k->live[i], b);
    }
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        struct queue_book *q = &k->q[i];

        HOLDS(!q->lost || q->supply < q->lost + q->need,
            "no more is taken than is needed", "%s: %u blocks, %u for %u",
            d->conf->name, q->lost, q->supply, q->need);
        q->spares = spared_until(k, i) > 0;
    }
}
