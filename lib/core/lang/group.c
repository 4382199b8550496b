/* group.c - rooms of one request that are admitted together or wait together
 * (RULES 5.5 to 5.7). Owned by the loop's thread.
 *
 * A group gets no blocks until every live member has a length. Then it is one
 * entry of its pool's queue, with the age of its first member; one member
 * stands for all. A member that failed or is READY leaves. The group is known
 * until all members have come and left or its session has ended, so that a late
 * member does not wait for one that left.
 *
 * Rejected: waiting until all members have rows. One member would hold its
 * encoder's blocks while another waits for them. A length that is not known yet
 * counts as max_rows. If the sum exceeds what a group may hold, the group gets
 * the maximum: members get blocks as they have rows, and the rest is spare, for
 * members that turn out to need it.
 *
 * Nothing here needs to start a look at the queues: the blocks of a group
 * change only while one of its rooms settles, or before it settles, and
 * admit_sort then looks at the queues of the pool. */
#include "core/lang/lang.h"

void groups_init(struct langd *l)
{
    list_init(&l->groups_free);
    for (uint32_t i = 0; i < l->b.engines.conns_max; i++)
        list_init(&l->groups_idle[i]);
}

/* Frees the group's spare blocks for other rooms. */
static void uncap(struct langd *l, struct lgroup *g)
{
    struct lpool *p = &l->pools[g->pool];

    CHECK(g->spare <= p->spare, "a group keeps %u of %u spare blocks", g->spare,
        p->spare);
    p->spare -= g->spare;
    g->spare = 0;
    g->capped = false;
}

/* Takes the group off the idle ones, if it is there. */
static void busy(struct langd *l, struct lgroup *g)
{
    share_give(&l->idle_share, g->uid, list_linked(&g->in_place));
    list_remove(&g->in_place);
}

static void drop(struct langd *l, struct lgroup *g)
{
    CHECK(g->used && list_empty(&g->members),
        "group %llx has members, or was dropped before",
        (unsigned long long)g->id);
    uncap(l, g);
    table_remove(&l->group_ids, g->id, g->session);
    busy(l, g);
    list_push_tail(&l->groups_free, &g->in_place);
    g->used = false;
}

/* True if the idle group `a` gives way before b: its user has more of them, or
 * it has been idle longer. */
static bool sooner(
    const struct langd *l, const struct lgroup *a, const struct lgroup *b)
{
    uint32_t of_a = share_used(&l->idle_share, a->uid);
    uint32_t of_b = share_used(&l->idle_share, b->uid);

    return of_a != of_b ? of_a > of_b : a->idle_ns < b->idle_ns;
}

/* Returns a slot for a group. Takes one that was never used, else a free one.
 * Else drops a group without members: of the user with most such groups, the
 * one that has been empty longest. Looks at the first of each session, at most
 * one for each connection. There always is one, since groups with members never
 * exceed the number of rooms. */
static struct lgroup *vacant(struct langd *l)
{
    struct lgroup *idle = NULL;

    if (l->groups_fresh < l->rooms_max)
        return &l->groups[l->groups_fresh++];
    if (list_empty(&l->groups_free)) {
        for (uint32_t i = 0; i < l->b.engines.conns_max; i++) {
            struct lgroup *g =
                LIST_FIRST(&l->groups_idle[i], struct lgroup, in_place);

            if (g && (!idle || sooner(l, g, idle)))
                idle = g;
        }
        CHECK(idle, "no place for a group, %u rooms", l->rooms_used);
        drop(l, idle);
    }
    return LIST_ENTRY(list_pop(&l->groups_free), struct lgroup, in_place);
}

bool group_begun(const struct langd *l, uint64_t id, uint32_t session)
{
    uint32_t i = id ? table_get(&l->group_ids, id, session) : NONE;

    return i != NONE && !list_empty(&l->groups[i].members);
}

enum err group_check(const struct langd *l, const struct local_request *n,
    uint32_t session, const char **text)
{
    uint32_t i = table_get(&l->group_ids, n->group, session);
    const struct lgroup *g = &l->groups[i == NONE ? 0 : i];

    *text = "a group has 1 to 65535 rooms in whole mode, with one destination";
    if (n->group_size == 0 || n->mode != MODE_WHOLE || n->required_dst > 1)
        return ERR_MALFORMED;
    *text = "a group has one size and one pool, and no more members than that";
    if (i != NONE && (g->size != n->group_size || g->pool != n->pool ||
                         g->joined == g->size))
        return ERR_MALFORMED;
    *text = "";
    return OK;
}

void group_join(struct langd *l, struct lroom *m, const struct local_request *n,
    uint32_t session)
{
    uint32_t i = table_get(&l->group_ids, n->group, session);
    struct lgroup *g = i == NONE ? vacant(l) : &l->groups[i];

    if (i == NONE) {
        *g = (struct lgroup){.used = true,
            .uid = m->uid,
            .id = n->group,
            .session = session,
            .pool = n->pool,
            .size = n->group_size,
            .age = m->age};
        list_init(&g->members);
        list_init(&g->in_place);
        (void)table_put(
            &l->group_ids, g->id, session, (uint32_t)(g - l->groups));
    }
    CHECK(g->joined < g->size && g->pool == m->pool && !m->group,
        "group %llx has %u of %u members, pool %u", (unsigned long long)g->id,
        g->joined, g->size, g->pool);
    busy(l, g);
    g->joined++;
    m->group = g;
    m->age = g->age;
    list_push_tail(&g->members, &m->in_group);
    grant_count(l, m, true);
}

static void unqueue(struct langd *l, struct lgroup *g)
{
    if (g->queued)
        heap_remove(&l->pools[g->pool].want, &g->queued->want_node);
    g->queued = NULL;
}

void groups_session_over(struct langd *l, uint32_t session)
{
    LIST_FOREACH_SAFE (n, &l->groups_idle[session])
        drop(l, LIST_ENTRY(n, struct lgroup, in_place));
}

uint32_t group_wanted(const struct langd *l, const struct lgroup *g)
{
    uint64_t most = min_u64(g->sums[OF_MOST], l->pools[g->pool].cap_whole);

    return (uint32_t)(most - min_u64(most, g->sums[OF_HELD]));
}

/* True if the group can be admitted: the lengths of all members are known. */
static bool ready(const struct lgroup *g)
{
    return g->used && !g->admitted && g->joined == g->size &&
           g->sums[OF_UNREADY] == 0 && g->copied && !list_empty(&g->members);
}

/* Puts the group into its pool's queue, or takes it out, and frees its spare
 * blocks once all totals are known and all members have their blocks. */
static void place(struct langd *l, struct lgroup *g)
{
    struct lroom *first = LIST_FIRST(&g->members, struct lroom, in_group);
    bool queued = g->queued != NULL;

    if (g->sums[OF_GROWS] == 0)
        uncap(l, g);
    laux_place_group(l, g);
    if (!ready(g)) {
        unqueue(l, g);
        return;
    }
    if (g->queued != first) {
        g->queued = first;
        heap_set(&l->pools[g->pool].want, &first->want_node, g->age);
    }
    if (!queued) {
        LIST_FOREACH (n, &g->members) {
            struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);

            grant_clock(l, m, grant_wanted(l, m) > 0);
        }
    }
}

void group_leave(struct langd *l, struct lroom *m)
{
    struct lgroup *g = m->group;

    if (!g)
        return;
    CHECK(!lroom_alive(m), "room ..%08x leaves its group", (uint32_t)m->r.id);
    heap_remove(&l->pools[g->pool].want, &m->want_node);
    list_remove(&m->in_drawing);
    if (m->r.state == ROOM_SUCCESS)
        g->gone += m->held.blocks;
    else
        group_trimmed(l, m, m->held.blocks);
    list_remove(&m->in_group);
    grant_count(l, m, false);
    m->group = NULL;
    place(l, g);
    if (group_lent(g))
        lroom_touch(l, LIST_FIRST(&g->members, struct lroom, in_group));
    if (!list_empty(&g->members))
        return;
    if (g->joined == g->size) {
        drop(l, g); /* no further member comes */
        return;
    }
    CHECK(share_take(&l->idle_share, g->uid, 1), "group %llx: %u are idle",
        (unsigned long long)g->id, l->idle_share.used);
    g->idle_ns = l->b.now_ns;
    list_push_tail(&l->groups_idle[g->session], &g->in_place);
}

void group_sort(struct langd *l, struct lroom *m)
{
    struct lgroup *g = m->group;
    bool draws = g->admitted && g->capped && grant_wanted(l, m) > 0;

    if (!draws)
        list_remove(&m->in_drawing);
    else if (!list_linked(&m->in_drawing))
        list_push_tail(&l->pools[g->pool].drawing, &m->in_drawing);
    place(l, g);
}

/* Gives each member the blocks that it wants, up to `left` in all. False: the
 * list of actions is full, or free blocks are too scattered. A member with all
 * its blocks is not settled again, or the queues would be served forever. */
static bool take_each(
    struct langd *l, struct out *out, struct lgroup *g, uint32_t left)
{
    LIST_FOREACH (n, &g->members) {
        struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        uint32_t wanted = min_u32(grant_wanted(l, m), left);

        if (wanted == 0 && lroom_firm(m))
            continue;
        if (!out_has_room(out))
            return false;
        if (wanted > 0 && !grant_take(l, out, m, wanted, GRADE_FIRM))
            return false;
        left -= wanted;
        m->grade = GRADE_FIRM;
        m->want = false;
        lroom_touch(l, m);
    }
    return true;
}

bool group_take(struct langd *l, struct out *out, struct lgroup *g)
{
    struct lpool *p = &l->pools[g->pool];
    uint32_t wanted = group_wanted(l, g), before = p->p.free;

    g->capped = g->sums[OF_MOST] > p->cap_whole;
    if ((uint64_t)wanted + p->spare > p->p.free)
        return false;
    if (!take_each(l, out, g, wanted)) {
        /* The group stays at the head and is served again at once, unless free
         * blocks are too scattered for the next member. */
        return p->p.free < before || !out_has_room(out);
    }
    g->admitted = true;
    unqueue(l, g);
    if (g->capped) {
        CHECK(g->spare == 0 && before - p->p.free <= wanted,
            "group %llx took %u of %u blocks", (unsigned long long)g->id,
            before - p->p.free, wanted);
        g->spare = wanted - (before - p->p.free);
        p->spare += g->spare;
    }
    return true;
}

/* Free blocks may be too scattered for one member. The members behind it are
 * served. */
bool groups_draw(struct langd *l, struct out *out, struct lpool *p)
{
    LIST_FOREACH (n, &p->drawing) {
        struct lroom *m = LIST_ENTRY(n, struct lroom, in_drawing);
        uint32_t wanted = grant_wanted(l, m);

        if (wanted > m->group->spare ||
            !grant_take_own(l, out, m, wanted, GRADE_FIRM))
            continue;
        CHECK(wanted <= p->spare, "%u of %u spare blocks are taken", wanted,
            p->spare);
        m->group->spare -= wanted;
        p->spare -= wanted;
        m->want = false;
        group_sort(l, m);
        return true;
    }
    return false;
}

void group_trimmed(struct langd *l, struct lroom *m, uint32_t blocks)
{
    struct lgroup *g = m->group;

    if (!g || !g->admitted || !g->capped)
        return;
    g->spare += blocks;
    l->pools[g->pool].spare += blocks;
}
