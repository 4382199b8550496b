/* aux.c - which rooms get space for aux, and which lose it again (RULES 2.2,
 * 5.8). Owned by the loop's thread.
 *
 * Aux comes before blocks: a room that waits for space for its aux gets no more
 * blocks until then. Rooms wait in three classes, served in this order: firm
 * grants; rows, or a group with all lengths known; no rows. Within a class only
 * the oldest is served. A group's space is reserved at once for all members.
 * The encoder keeps the bytes until the room has ended and can send them again.
 * So a room without a firm grant may lose its space: first rooms without rows,
 * youngest first, then rooms younger than the head.
 *
 * Aux of a late length, in a group that has its blocks, is first in line. Two
 * such groups that each hold part of the space wait until a deadline ends one
 * of them (no-blocks).
 *
 * Otherwise there is no circular wait: firm grants wait only for space that
 * firm grants hold, and among other rooms the oldest gets both space and
 * blocks. Rejected: keeping space from the first LENGTH on. Two groups held it
 * against each other. */
#include "core/lang/lang.h"

/* The class is in the upper bits of a key. The lower bits are the age, or its
 * complement. */
enum { WAITS_FIRM, WAITS_ROWS, WAITS_BARE };
enum { HOLDS_BARE, HOLDS_ROWS };
#define CLASS_SHIFT 60

static uint64_t key_of(unsigned class, uint64_t order)
{
    return (uint64_t) class << CLASS_SHIFT |
           (order & ((UINT64_C(1) << CLASS_SHIFT) - 1));
}

static unsigned class_of(const struct heap_node *n)
{
    return (unsigned)(n->key >> CLASS_SHIFT);
}

/* True if rows of the room are there, or it will have none. */
static bool has_rows(const struct lroom *m)
{
    return m->want || m->landed > 0 || m->total == 0 || m->lent_runs.len > 0;
}

static bool is_firm(const struct lroom *m)
{
    return lroom_firm(m) || m->exposed > 0;
}

/* sorting */

/* Puts the room into the heap of those that may lose their space, or takes it
 * out. whole: the room has all the space that it needs, so only an older room
 * may take it. */
static void sort_held(struct langd *l, struct lroom *m, bool whole)
{
    bool holds = lroom_alive(m) && (m->aux.len > 0 || m->aux.reserved > 0) &&
                 !is_firm(m) && !(m->group && m->group == l->aux_kept);

    heap_place(&l->aux_held, &m->hold_node, holds,
        key_of(whole ? HOLDS_ROWS : HOLDS_BARE, ~m->age));
}

static void sort_group(struct langd *l, struct lgroup *g)
{
    LIST_FOREACH (n, &g->members)
        sort_held(l, LIST_ENTRY(n, struct lroom, in_group), g->aux_whole);
}

void laux_place_group(struct langd *l, struct lgroup *g)
{
    struct lroom *first = LIST_FIRST(&g->members, struct lroom, in_group);
    bool known = g->used && first && lgroup_known(g);
    bool whole = known && g->sums[OF_LACKS] == 0, waits = known && !whole;

    if (whole != g->aux_whole) {
        g->aux_whole = whole;
        sort_group(l, g);
    }
    if (g->aux_queued && (!waits || g->aux_queued != first)) {
        heap_remove(&l->aux_queue, &g->aux_queued->aux_node);
        g->aux_queued = NULL;
    }
    if (!waits)
        return;
    g->aux_queued = first;
    heap_place(&l->aux_queue, &first->aux_node, true,
        key_of(g->admitted ? WAITS_FIRM : WAITS_ROWS, g->age));
    l->aux_dirty = true;
}

static unsigned waits_as(const struct lroom *m)
{
    return is_firm(m) ? WAITS_FIRM : has_rows(m) ? WAITS_ROWS : WAITS_BARE;
}

void laux_classify(struct langd *l, struct lroom *m)
{
    l->aux_dirty |= l->aux_queue.len > 0;
    if (m->aux_len == 0 && !m->group && !heap_linked(&m->aux_node) &&
        !heap_linked(&m->hold_node))
        return; /* it has no aux, and had none */
    if (!m->group)
        heap_place(&l->aux_queue, &m->aux_node,
            lroom_alive(m) && lroom_lacks_aux(m), key_of(waits_as(m), m->age));
    sort_held(l, m, m->group ? m->group->aux_whole : has_rows(m));
    l->aux_dirty |= l->aux_queue.len > 0;
}

/* Sorts the room again after its aux changed. Settling does the rest. */
static void changed(struct langd *l, struct lroom *m)
{
    grant_count(l, m, true);
    if (m->group)
        laux_place_group(l, m->group);
    laux_classify(l, m);
    lroom_touch(l, m);
}

void laux_leave(struct langd *l, struct lroom *m)
{
    heap_remove(&l->aux_queue, &m->aux_node);
    heap_remove(&l->aux_held, &m->hold_node);
    if (m->group && m->group->aux_queued == m)
        m->group->aux_queued = NULL;
}

/* giving and taking back */

/* True if n chunks may go to the room at once. It may pass the queue only if
 * another user's room is at the head, and its own user holds less than a part
 * of the reserve: one user's queue does not hold up others. */
static bool passes(const struct langd *l, const struct lroom *m, uint32_t n)
{
    const struct share *s = &l->b.aux.share;
    const struct heap_node *head = heap_first(&l->aux_queue);

    if (m->aux.reserved >= n || !head)
        return true;
    return CONTAINER_OF(head, struct lroom, aux_node)->uid != m->uid &&
           share_used(s, m->uid) + n <= (s->total - s->limit) / 2;
}

void laux_take(struct langd *l, struct lroom *m, struct span bytes)
{
    CHECK(lroom_alive(m) && m->aux_state != LAUX_STORED,
        "room ..%08x of state %u takes aux again", (uint32_t)m->r.id,
        m->r.state);
    if (passes(l, m, aux_chunks(bytes.len)) &&
        aux_set(&l->b.aux, &m->aux, m->uid, bytes)) {
        m->aux_state = LAUX_STORED;
        debt_paid(&m->debt, OWE_AUX);
    } else {
        l->b.stats[STAT_aux_full] += m->aux_state == LAUX_UNKNOWN;
        m->aux_state = LAUX_LACKING;
    }
    m->aux_len = bytes.len;
}

void laux_drop(struct langd *l, struct lroom *m)
{
    aux_drop(&l->b.aux, &m->aux);
    l->aux_dirty |= l->aux_queue.len > 0;
}

static void reserve(struct langd *l, struct lroom *m)
{
    if (!lroom_lacks_aux(m) ||
        !aux_reserve(&l->b.aux, &m->aux, m->uid, m->aux_len))
        return;
    debt_owe(&m->debt, OWE_AUX);
    changed(l, m);
}

static void give(struct langd *l, struct lroom *head)
{
    if (head->group)
        LIST_FOREACH (n, &head->group->members)
            reserve(l, LIST_ENTRY(n, struct lroom, in_group));
    else
        reserve(l, head);
}

/* Frees the space of the room's aux, which must be sent again. */
static void lose(struct langd *l, struct lroom *m)
{
    CHECK(!is_firm(m) && (m->aux.len > 0 || m->aux.reserved > 0),
        "room ..%08x of grade %u loses %u bytes of aux", (uint32_t)m->r.id,
        m->grade, m->aux.len);
    laux_drop(l, m);
    m->aux_state = LAUX_LACKING;
    debt_paid(&m->debt, OWE_AUX);
    l->b.stats[STAT_aux_taken_back]++;
    changed(l, m);
}

/* Makes the group at the head of the queue keep the space of its members. */
static void keep_head(struct langd *l, struct lgroup *g)
{
    struct lgroup *before = l->aux_kept;

    if (before == g)
        return;
    l->aux_kept = g;
    if (before && before->used)
        sort_group(l, before);
    if (g)
        sort_group(l, g);
}

/* Serves the head. False: there is none, or it must wait. */
static bool serve_head(struct langd *l)
{
    struct heap_node *n = heap_first(&l->aux_queue), *h;
    struct lroom *m, *v;
    uint32_t lacks;

    if (!n)
        return false;
    m = CONTAINER_OF(n, struct lroom, aux_node);
    CHECK(lroom_alive(m) && (!m->group || m->group->aux_queued == m),
        "room ..%08x of state %u waits for aux", (uint32_t)m->r.id, m->r.state);
    keep_head(l, m->group);
    lacks =
        m->group ? (uint32_t)m->group->sums[OF_LACKS] : aux_chunks(m->aux_len);
    if (share_may(&l->b.aux.share, m->uid, lacks)) {
        give(l, m);
        return true;
    }
    h = heap_first(&l->aux_held);
    if (!h || class_of(n) == WAITS_BARE)
        return false;
    v = CONTAINER_OF(h, struct lroom, hold_node);
    if (class_of(n) != WAITS_FIRM && class_of(h) != HOLDS_BARE &&
        v->age <= m->age)
        return false;
    lose(l, v);
    return true;
}

void laux_serve(struct langd *l)
{
    if (!l->aux_dirty)
        return;
    while (serve_head(l))
        ;
    l->aux_dirty = false;
}
