/* admit.c - which rooms get blocks of a pool, and which lose them again (RULES
 * 5.1 to 5.6). Owned by the loop's thread.
 *
 * Each pool has one queue of the rooms whose grant is used up and whose rows
 * wait at encoded: oldest request first, no overtaking, the whole remainder at
 * once. Rooms without rows get blocks only while that queue is empty; such
 * grants are speculative. When the head does not fit, speculative grants into
 * which nothing has landed are taken back, youngest first; then landed rows of
 * waiting rooms younger than the head. A grant from the queue is firm.
 *
 * Rejected: letting any room that fits overtake. Large rooms would starve. */
#include "core/lang/lang.h"

void admit_leave(struct langd *l, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);

    heap_remove(&p->want, &m->want_node);
    heap_remove(&p->need, &m->need_node);
    heap_remove(&p->spec, &m->spec_node);
    heap_remove(&p->victim, &m->victim_node);
    laux_leave(l, m);
}

void admit_sort(struct langd *l, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    bool alive = lroom_alive(m) && !lroom_closing(m);
    uint32_t wanted = grant_wanted(l, m);
    /* A room with enough blocks waits too: its turn makes them firm. */
    bool waits = alive && m->want && (m->length_known || m->required > 1) &&
                 (wanted > 0 || !lroom_firm(m));
    bool aux = alive && lroom_lacks_aux(m); /* aux is granted before blocks */
    bool queued = waits && !aux && !m->group;
    bool need = alive && !m->want && wanted > 0 && m->required <= 1 && !aux &&
                !m->group;
    bool loose = alive && m->held.blocks > 0 && m->exposed == 0;
    bool ready = m->r.state == ROOM_SUCCESS && m->held.blocks > 0;
    bool landing = alive && lroom_firm(m) && m->from + m->landed < m->granted;

    grant_clock(
        l, m, wanted > 0 && (queued || need || (m->group && m->group->queued)));
    if (!m->group)
        heap_place(&p->want, &m->want_node, queued, m->age);
    heap_place(&p->need, &m->need_node, need, m->age);
    heap_place(&p->spec, &m->spec_node,
        loose && m->grade == GRADE_SPECULATIVE && m->landed == 0, ~m->age);
    heap_place(&p->victim, &m->victim_node,
        (waits || aux) && loose && !lroom_firm(m) && m->landed > 0, ~m->age);
    if (ready != m->ready_counted)
        p->ready_rooms += ready ? 1 : UINT32_MAX;
    if (landing != m->landing_counted)
        p->landing_rooms += landing ? 1 : UINT32_MAX;
    m->ready_counted = ready;
    m->landing_counted = landing;
    grant_count(l, m, true);
    if (m->group)
        group_sort(l, m);
    laux_classify(l, m);
    p->dirty |= queued || need || p->want.len || p->need.len ||
                !list_empty(&p->drawing);
}

/* the queue */

uint64_t admit_turn(const struct lpool *p)
{
    return min_u64(heap_due(&p->want), heap_due(&p->need));
}

/* Marks the oldest waiting room: it keeps its blocks from now on. */
static void keep_head(struct lpool *p, struct lroom *m)
{
    CHECK(m->group || heap_linked(&m->want_node), "room ..%08x is no head",
        (uint32_t)m->r.id);
    m->grade = (uint8_t)max_u32(m->grade, GRADE_KEPT);
    heap_remove(&p->spec, &m->spec_node);
}

/* Takes back all blocks of the room; its rows are sent again. */
static void revoke(struct langd *l, struct out *out, struct lroom *m)
{
    CHECK(lroom_alive(m) && !lroom_closing(m) && m->held.blocks > 0,
        "room ..%08x of life %u and %u blocks gives way", (uint32_t)m->r.id,
        m->life, m->held.blocks);
    CHECK(m->exposed == 0 && !lroom_firm(m),
        "room ..%08x gives way, %u rows are shown, grade %u", (uint32_t)m->r.id,
        m->exposed, m->grade);
    l->b.stats[STAT_revokes]++;
    grant_restart(l, out, m, 0);
    admit_sort(l, m);
}

/* Takes one grant back for `head`, which does not fit. False: no grant may be
 * taken back, or not before revoke_ns. */
static bool take_back(
    struct langd *l, struct out *out, struct lpool *p, struct lroom *head)
{
    struct heap_node *n;
    struct lroom *v;

    keep_head(p, head);
    n = heap_first(&p->spec);
    if (n) {
        v = CONTAINER_OF(n, struct lroom, spec_node);
    } else {
        bool calm = p->ready_rooms == 0 && p->landing_rooms == 0;
        uint64_t after = l->b.c.conf->timeout_revoke_after;

        n = heap_first(&p->victim);
        if (!n || ~n->key <= head->age)
            return false;
        if (!calm && l->b.now_ns - p->head_since_ns < after) {
            p->revoke_ns = p->head_since_ns + after;
            return false;
        }
        v = CONTAINER_OF(n, struct lroom, victim_node);
    }
    CHECK(v != head, "room ..%08x gives way to itself", (uint32_t)v->r.id);
    revoke(l, out, v);
    return true;
}

/* Serves the head of the queue. False: there is none, or it must wait. */
static bool serve_head(struct langd *l, struct out *out, struct lpool *p)
{
    struct heap_node *n = heap_first(&p->want);
    struct lroom *m;
    uint32_t wanted;

    if (!n) {
        p->head_since_ns = TIME_NEVER;
        return false;
    }
    m = CONTAINER_OF(n, struct lroom, want_node);
    CHECK(lroom_pool(l, m) == p && m->want_node.key == m->age,
        "room ..%08x is in the queue of another pool or age",
        (uint32_t)m->r.id);
    CHECK(m->group ? m->group->aux_whole : !lroom_lacks_aux(m),
        "room ..%08x is in the queue without space for its aux",
        (uint32_t)m->r.id);
    wanted = m->group ? group_wanted(l, m->group) : grant_wanted(l, m);
    if (wanted == 0 && !m->group) {
        m->grade = GRADE_FIRM;
        m->want &= m->mode == MODE_STREAM; /* a stream will want more blocks */
        admit_sort(l, m);
        lroom_touch(l, m);
        return true;
    }
    if (m->group ? group_take(l, out, m->group)
                 : grant_take(l, out, m, wanted, GRADE_FIRM)) {
        if (p->head_since_ns != TIME_NEVER && p->head_age == m->age) {
            p->head_wait_ns =
                max_u64(p->head_wait_ns, l->b.now_ns - p->head_since_ns);
            p->head_since_ns = TIME_NEVER;
        }
        m->want &= m->group != NULL;
        admit_sort(l, m);
        return true;
    }
    if (p->head_since_ns == TIME_NEVER || p->head_age != m->age) {
        p->head_since_ns = l->b.now_ns;
        p->head_age = m->age;
    }
    if (p->closing_blocks > 0 &&
        p->p.free + p->closing_blocks >= (uint64_t)wanted + p->spare)
        return false; /* enough blocks are coming back */
    return take_back(l, out, p, m);
}

/* Serves the oldest room without rows. False: none, or it must wait. */
static bool serve_need(struct langd *l, struct out *out, struct lpool *p)
{
    struct heap_node *n = heap_first(&p->need);
    struct lroom *m;
    uint32_t wanted;

    if (!n || p->want.len > 0)
        return false;
    m = CONTAINER_OF(n, struct lroom, need_node);
    CHECK(lroom_pool(l, m) == p && !m->group && m->required <= 1,
        "room ..%08x gets no default grant", (uint32_t)m->r.id);
    wanted = grant_wanted(l, m);
    if (wanted > 0 && !grant_take(l, out, m, wanted, GRADE_SPECULATIVE))
        return false;
    if (m->length_known && wanted > 0)
        l->b.stats[STAT_widened]++;
    admit_sort(l, m);
    return true;
}

void admit_serve(struct langd *l, struct out *out, struct lpool *p, bool *again)
{
    *again = false;
    p->revoke_ns = TIME_NEVER;
    while (groups_draw(l, out, p) || serve_head(l, out, p) ||
           serve_need(l, out, p)) {
        if (!out_has_room(out)) {
            *again = p->dirty = true;
            return;
        }
    }
    p->dirty = false;
}
