/* langd_group.c - rooms of one request that are admitted together or wait
 * together (RULES 5). Owned by the loop's thread.
 *
 * A group gets no blocks before every member that lives has rows waiting; then
 * it is one item of its pool's queue, with the age of its first member. One
 * member stands in the queue for all. A member that failed or is READY leaves;
 * the group stays known until all have come and gone or its session is over, so
 * that a late member does not wait for one that was here. */
#include "core/langd.h"

#include <stdio.h>

void groups_init(struct langd *l)
{
    list_init(&l->groups_idle);
    list_init(&l->groups_free);
    for (uint32_t i = 0; i < l->c.conf->limit_connections; i++)
        list_init(&l->session_groups[i]);
}

static void drop(struct langd *l, struct lgroup *g)
{
    table_remove(&l->group_ids, g->id, g->session);
    list_remove(&g->in_session);
    list_remove(&g->in_place);
    list_push_tail(&l->groups_free, &g->in_place);
    g->used = false;
}

/* Returns a place for a group: one that was never used, a free one, or that of
 * the group without members that has been without the longest. Groups with
 * members are fewer than rooms, so there is one. */
static struct lgroup *vacant(struct langd *l)
{
    if (l->groups_fresh < l->rooms_max)
        return &l->groups[l->groups_fresh++];
    if (list_empty(&l->groups_free)) {
        CHECK(!list_empty(&l->groups_idle), "no place for a group, %u rooms",
            l->rooms_used);
        drop(l, LIST_FIRST(&l->groups_idle, struct lgroup, in_place));
    }
    return LIST_ENTRY(list_pop(&l->groups_free), struct lgroup, in_place);
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
            .id = n->group,
            .session = session,
            .pool = n->pool,
            .size = n->group_size,
            .age = m->age};
        list_init(&g->members);
        list_init(&g->in_place);
        list_push_tail(&l->session_groups[session], &g->in_session);
        (void)table_put(
            &l->group_ids, g->id, session, (uint32_t)(g - l->groups));
    }
    list_remove(&g->in_place);
    g->joined++;
    m->group = g;
    m->age = g->age;
    list_push_tail(&g->members, &m->in_group);
}

void group_leave(struct langd *l, struct lroom *m)
{
    struct lgroup *g = m->group;

    if (!g)
        return;
    heap_remove(&lroom_pool(l, m)->want, &m->want_node);
    list_remove(&m->in_group);
    m->group = NULL;
    if (!list_empty(&g->members))
        group_place(l, g);
    else if (g->joined == g->size)
        drop(l, g); /* all have come and gone */
    else
        list_push_tail(&l->groups_idle, &g->in_place);
}

void groups_session_over(struct langd *l, uint32_t session)
{
    LIST_FOREACH_SAFE (n, &l->session_groups[session])
        drop(l, LIST_ENTRY(n, struct lgroup, in_session));
}

uint32_t group_wanted(struct langd *l, const struct lgroup *g)
{
    uint32_t blocks = 0;

    LIST_FOREACH (n, &g->members)
        blocks += grant_wanted(l, LIST_ENTRY(n, struct lroom, in_group));
    return blocks;
}

/* Has every member rows waiting, or all that it needs? */
static bool ready(struct langd *l, const struct lgroup *g)
{
    if (g->joined < g->size)
        return false;
    LIST_FOREACH (n, &g->members) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        bool served = m->length_known && m->total != ROWS_UNKNOWN &&
                      grant_wanted(l, m) == 0;

        if (m->closing_left || (!m->want && !served))
            return false;
    }
    return true;
}

void group_place(struct langd *l, struct lgroup *g)
{
    struct lpool *p = &l->pools[g->pool];
    bool queued = g->used && ready(l, g) && group_wanted(l, g) > 0;

    LIST_FOREACH (n, &g->members) {
        struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);

        if (!queued)
            heap_remove(&p->want, &m->want_node);
        else if (!heap_linked(&m->want_node))
            heap_set(&p->want, &m->want_node, g->age);
        queued = false; /* the first stands for all */
    }
    p->dirty |= p->want.len > 0;
}

bool group_take(struct langd *l, struct out *out, struct lgroup *g)
{
    struct lpool *p = &l->pools[g->pool];
    bool some = false;

    if (group_wanted(l, g) > p->p.free)
        return false;
    LIST_FOREACH (n, &g->members) {
        struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        uint32_t wanted = grant_wanted(l, m);

        if (!out_has_room(out))
            break; /* it stays the head, and what is left stays free */
        if (wanted == 0 || !grant_take(l, out, m, wanted, true))
            continue;
        m->want = false;
        some = true;
    }
    group_place(l, g);
    return some;
}

void group_check_size(struct langd *l, struct lgroup *g)
{
    const struct lpool *p = &l->pools[g->pool];
    uint64_t blocks = 0, rows = 0;

    LIST_FOREACH (n, &g->members) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);

        if (m->total == ROWS_UNKNOWN)
            continue;
        blocks += div_up(m->total, p->block_rows);
        rows += m->total;
    }
    if (blocks <= p->cap_whole)
        return;
    LIST_FOREACH_SAFE (n, &g->members)
        lroom_fail(l, LIST_ENTRY(n, struct lroom, in_group), ERR_TOO_LARGE,
            (uint32_t)min_u64(rows, UINT32_MAX - 1),
            p->cap_whole * p->block_rows,
            "the group is larger than the pool lets its rooms hold");
}
