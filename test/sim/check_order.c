/* check_order.c - who should have been given blocks of a language side's pools,
 * and from whom they should have been taken: RULES 5 once more, in the plainest
 * words, held against every step of the brain. Looks at what was before a step
 * and what is after it; how many blocks a room wants is the brain's own word.
 *
 * A second brain that is stepped beside the first was rejected: it would have
 * to be told the same messages, and what it said would be as hard to read. */
#include "test/sim/sim.h"

#include "core/lang/lang.h"

#include <stdlib.h>

/* A room as it was before the step. */
struct before {
    uint64_t generation, age;
    uint32_t held, base, attempt, landed, exposed;
    uint64_t broken_ns;
    bool alive, firm, waits, spec, victim;
};

struct order_book {
    uint32_t life;
    struct before *rooms;
    uint64_t head_age[CONF_POOLS_MAX], head_ns[CONF_POOLS_MAX];
    bool head_was[CONF_POOLS_MAX];
    /* How long rows are ready and none come, by room. */
    struct {
        uint64_t since_ns;
        uint32_t landed;
        bool due;
    } * still;
    uint64_t most_ns; /* a room keeps the deadlines that it began with */
};

static struct order_book *of[DAEMONS_MAX];

static bool waits(struct langd *l, const struct lroom *m)
{
    return m->r.used && lroom_alive(m) && !lroom_closing(m) && m->want &&
           !lroom_lacks_aux(m) && (m->length_known || m->required > 1) &&
           grant_wanted(l, m) > 0;
}

/* A grant into which nothing has landed, and that nobody promised. */
static bool speculative(const struct lroom *m)
{
    return m->r.used && lroom_alive(m) && !lroom_closing(m) &&
           m->held.blocks > 0 && m->exposed == 0 &&
           m->grade == GRADE_SPECULATIVE && m->landed == 0;
}

/* Rows that landed, of a room that waits for more. */
static bool victim(struct langd *l, const struct lroom *m)
{
    return m->r.used && (waits(l, m) || lroom_lacks_aux(m)) &&
           m->held.blocks > 0 && m->exposed == 0 && !lroom_firm(m) &&
           m->landed > 0;
}

static struct before see(struct langd *l, const struct lroom *m)
{
    if (!m->r.used)
        return (struct before){.generation = 0};
    return (struct before){.generation = m->generation,
        .age = m->age,
        .held = m->held.blocks,
        .base = m->base,
        .attempt = m->attempt,
        .broken_ns = m->broken_ns,
        .landed = m->landed,
        .exposed = m->exposed,
        .alive = lroom_alive(m),
        .firm = lroom_firm(m),
        .waits = waits(l, m),
        .spec = speculative(m),
        .victim = victim(l, m)};
}

static bool same(const struct before *b, const struct lroom *m)
{
    return m->r.used && b->generation == m->generation && b->alive;
}

/* The room wants blocks now, as it did before: nobody younger was served. */
static const struct lroom *passed_over(struct langd *l,
    const struct order_book *a, const struct lroom *by, uint64_t age)
{
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (m != by && same(&a->rooms[i], m) && a->rooms[i].waits &&
            m->pool == by->pool && m->age < age && waits(l, m) && !m->group)
            return m;
    }
    return NULL;
}

/* The room got blocks in this step. Those that a stream gives back come again
 * to it, as it was promised. */
static void see_given(const struct daemon *d, struct langd *l,
    const struct order_book *a, const struct lroom *m, const struct before *b)
{
    const struct lroom *o;

    if (m->held.blocks <= b->held || m->base != b->base || m->group)
        return; /* a group draws on what was kept for it */
    HOLDS(!lroom_firm(m) || !m->want, "what was served waits no more",
        "%s room %llu got %u blocks", d->conf->name,
        (unsigned long long)m->r.id, m->held.blocks - b->held);
    o = passed_over(l, a, m, lroom_firm(m) ? m->age : UINT64_MAX);
    HOLDS(!o, "the oldest is served first",
        "%s room %llu (age %llu, %s) got %u blocks; room %llu (age %llu) waits",
        d->conf->name, (unsigned long long)m->r.id, (unsigned long long)m->age,
        lroom_firm(m) ? "firm" : "speculative", m->held.blocks - b->held,
        (unsigned long long)(o ? o->r.id : 0),
        (unsigned long long)(o ? o->age : 0));
}

/* True if o stood before the step, and stands, younger than age, as one that
 * should have given way first. */
static bool younger_spared(const struct langd *l, const struct order_book *a,
    const struct lroom *o, uint16_t pool, uint64_t age)
{
    const struct before *b = &a->rooms[o - l->rooms];

    return same(b, o) && o->pool == pool && o->age > age &&
           o->attempt == b->attempt;
}

static void see_taken(const struct daemon *d, struct langd *l,
    const struct order_book *a, const struct lroom *m, const struct before *b)
{
    if (m->attempt == b->attempt || m->broken_ns != b->broken_ns ||
        b->held == 0)
        return;
    if (m->required > 1 && m->held.blocks == 0)
        return; /* its encoder asked for that */
    HOLDS(!b->firm, "a firm grant is not taken back",
        "%s room %llu had %u blocks, has %u", d->conf->name,
        (unsigned long long)m->r.id, b->held, m->held.blocks);
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *o = &l->rooms[i];
        bool first = b->landed > 0 ? a->rooms[i].spec && speculative(o) : false;

        if (!younger_spared(l, a, o, m->pool, first ? 0 : m->age))
            continue;
        if (b->landed == 0)
            first = a->rooms[i].spec && speculative(o);
        else
            first |= a->rooms[i].victim && victim(l, o) && b->victim;
        HOLDS(!first, "the youngest gives way first",
            "%s room %llu (age %llu, landed %u) gave way before %llu (age "
            "%llu, landed %u)",
            d->conf->name, (unsigned long long)m->r.id,
            (unsigned long long)m->age, b->landed, (unsigned long long)o->r.id,
            (unsigned long long)o->age, o->landed);
    }
}

/* What was given firmly stays so as long as a block of it is there. */
static void see_firm(
    const struct daemon *d, const struct lroom *m, const struct before *b)
{
    HOLDS(!b->firm || lroom_firm(m) || m->held.blocks == 0 || !lroom_alive(m),
        "a firm grant stays firm", "%s room %llu has %u blocks", d->conf->name,
        (unsigned long long)m->r.id, m->held.blocks);
}

/* the queue's head */

struct head {
    const struct lroom *m;
    uint32_t wanted;
};

/* The oldest that waits for blocks of the pool; a group waits as one. */
static struct head head_of(struct langd *l, uint32_t pool)
{
    struct head h = {NULL, 0};

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (m->r.used && m->pool == pool && heap_linked(&m->want_node) &&
            (!h.m || m->age < h.m->age))
            h.m = m;
    }
    if (h.m)
        h.wanted =
            h.m->group ? group_wanted(l, h.m->group) : grant_wanted(l, h.m);
    return h;
}

/* Blocks that ended rooms, and grants that were taken back, give up soon. */
static uint32_t coming(const struct langd *l, uint32_t pool)
{
    uint32_t blocks = l->pools[pool].closing_blocks;

    for (uint32_t i = 0; i < l->rooms_max; i++)
        if (l->rooms[i].r.used && l->rooms[i].pool == pool &&
            l->rooms[i].r.state == ROOM_FAILED)
            blocks += l->rooms[i].held.blocks;
    return blocks;
}

/* Everything that waits is in the queue, and the head waits for a reason. */
static void see_head(
    const struct daemon *d, struct langd *l, struct order_book *a, uint32_t i)
{
    const struct lpool *p = &l->pools[i];
    struct head h = head_of(l, i);

    uint32_t free = p->p.free > p->spare ? p->p.free - p->spare : 0;

    HOLDS(p->spare <= p->p.free + coming(l, i), "what is spare is free",
        "%s: %u of %u", d->conf->name, p->spare, p->p.free);
    HOLDS(!h.m || h.wanted > free, "a head that fits is served",
        "%s room %llu waits for %u blocks, %u are free", d->conf->name,
        (unsigned long long)h.m->r.id, h.wanted, free);
    if (h.m && (!a->head_was[i] || a->head_age[i] != h.m->age)) {
        a->head_age[i] = h.m->age;
        a->head_ns[i] = W.now_ns;
    }
    a->head_was[i] = h.m != NULL;
    for (uint32_t k = 0; k < l->rooms_max; k++) {
        const struct lroom *m = &l->rooms[k];
        bool idle = m->r.used && m->pool == i && lroom_alive(m) &&
                    !lroom_closing(m) && !m->want && !m->group &&
                    !lroom_lacks_aux(m) && m->required <= 1;

        HOLDS(m->group || !waits(l, m) || m->pool != i ||
                  heap_linked(&m->want_node),
            "what waits is in the queue", "%s room %llu", d->conf->name,
            (unsigned long long)m->r.id);
        HOLDS(h.m || !idle || grant_wanted(l, m) == 0 ||
                  grant_wanted(l, m) > free || heap_linked(&m->need_node),
            "what could be used is given", "%s room %llu wants %u of %u",
            d->conf->name, (unsigned long long)m->r.id, grant_wanted(l, m),
            free);
    }
}

/* clocks */

/* No room outlives a deadline of its own. */
static void see_deadlines(const struct daemon *d, const struct lroom *m)
{
    HOLDS(m->total_ns > W.now_ns && m->bootstrap_ns > W.now_ns &&
              m->stall_ns > W.now_ns,
        "a deadline ends its room", "%s room %llu lives", d->conf->name,
        (unsigned long long)m->r.id);
}

/* Rows that are ready, and have a place, come or the room ends. */
static void see_progress(const struct daemon *d, const struct langd *l,
    struct order_book *a, const struct lroom *m)
{
    uint32_t i = lroom_slot(l, m), unit = l->pools[m->pool].unit_rows;
    uint32_t ready = min_u32(m->granted, m->committed);
    const struct conf *c = l->b.c.conf;
    uint64_t now = max_u64(c->timeout_first_byte, c->timeout_progress);
    bool due;

    a->most_ns = max_u64(a->most_ns, now);
    if (ready < m->total)
        ready -= ready % unit;
    due =
        !lroom_closing(m) && m->held.blocks > 0 && m->from + m->landed < ready;
    if (!due || !a->still[i].due || a->still[i].landed != m->landed ||
        a->rooms[i].generation != m->generation ||
        a->rooms[i].attempt != m->attempt)
        a->still[i].since_ns = W.now_ns;
    a->still[i].due = due;
    a->still[i].landed = m->landed;
    HOLDS(W.now_ns - a->still[i].since_ns <= a->most_ns || d->last != EV_TIME,
        "rows that are ready come",
        "%s room %llu: %u of %u landed, for %llu ms", d->conf->name,
        (unsigned long long)m->r.id, m->from + m->landed, ready,
        (unsigned long long)((W.now_ns - a->still[i].since_ns) / MS));
}

/* Rows that landed in order are shown at once where the promise is kept. */
static void see_shown(
    const struct daemon *d, const struct langd *l, const struct lroom *m)
{
    const struct lpool *p = &l->pools[m->pool];
    uint32_t end = m->exposed + (p->hold_stream - 1) * p->block_rows;

    if (m->mode != MODE_STREAM || m->prefix <= m->exposed || lroom_closing(m))
        return;
    HOLDS(
        m->granted < end && (m->total == ROWS_UNKNOWN || m->granted < m->total),
        "a stream shows what landed",
        "%s room %llu: %u landed, %u shown, %u released, granted %u",
        d->conf->name, (unsigned long long)m->r.id, m->prefix, m->exposed,
        m->released, m->granted);
}

/* Rows are shown when the stream's blocks are there, which then stay. */
static void see_promise(const struct daemon *d, const struct langd *l,
    const struct lroom *m, const struct before *b)
{
    const struct lpool *p = &l->pools[m->pool];
    uint32_t rest =
        div_up(min_u32(m->total, m->max_rows) - m->base, p->block_rows);

    HOLDS(m->exposed == b->exposed ||
              m->held.blocks >= min_u32(rest, p->hold_stream),
        "a stream has its window", "%s room %llu shows rows, with %u blocks",
        d->conf->name, (unsigned long long)m->r.id, m->held.blocks);
}

static struct order_book *book_of(struct daemon *d)
{
    const struct langd *l = d->brain;
    struct order_book *a = of[d->index];

    if (a && a->life == d->life)
        return a;
    a = of[d->index] = must_alloc(1, sizeof(*a));
    a->life = d->life;
    a->rooms = must_alloc(l->rooms_max, sizeof(*a->rooms));
    a->still = must_alloc(l->rooms_max, sizeof(*a->still));
    return a;
}

void order_watch(struct daemon *d)
{
    struct langd *l = d->brain;
    struct order_book *a = book_of(d);

    HOLDS(d->last != EV_TIME || d->full || brain_deadline(&l->b) > W.now_ns,
        "what is due is done", "%s has a deadline that has passed",
        d->conf->name);
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];
        const struct before *b = &a->rooms[i];

        if (same(b, m) && lroom_alive(m)) {
            see_given(d, l, a, m, b);
            see_taken(d, l, a, m, b);
            see_firm(d, m, b);
            see_promise(d, l, m, b);
        }
        if (m->r.used && lroom_alive(m)) {
            if (d->last == EV_TIME) /* a late loop hears of them then */
                see_deadlines(d, m);
            see_progress(d, l, a, m);
            see_shown(d, l, m);
        }
    }
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        see_head(d, l, a, i);
    for (uint32_t i = 0; i < l->rooms_max; i++)
        a->rooms[i] = see(l, &l->rooms[i]);
}
