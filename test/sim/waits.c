/* waits.c - which room waits for which. At a quiet moment, when no message,
 * row, copy, command or call is under way, a room that has not ended waits for
 * an engine that acts in its own time, for a message that is repeated, or for
 * another room. A room that waits for none of these, or only for rooms that do
 * not move, waits for ever: the world fails at once, whatever deadline would
 * end the room.
 *
 * Nodes are the rooms of langds and the items of encodeds. The search is for
 * the least set of nodes that move: those that wait only for time, and those
 * that wait for nodes that move. Of the holders of a pool's blocks one that
 * moves is enough; of an item's destinations all must move. If a rule is
 * simplified here, a node may be in the set by mistake: that can hide a circle,
 * but not invent one. */
#include "test/sim/sim.h"

#include "core/encode/encode.h"
#include "core/lang/lang.h"

/* By daemon, and by slot of a room (langd) or item (encoded): whether it
 * moves. */
static bool *moving[DAEMONS_MAX];

/* The search is for nodes that move without a further message of any daemon,
 * and without a deadline: in a calm world nothing is lost. */
static bool at_once;

#define LOOKS_NS  (20 * MS)
#define STANDS_NS (50 * MS) /* shorter than the first repetition */

/* A langd's room that does not move at once: what it has, and for how long. */
struct standing {
    uint64_t mark, for_ns;
};
static struct standing *standing[DAEMONS_MAX];

static bool lroom_moves(const struct daemon *d, const struct lroom *m)
{
    const struct langd *l = d->brain;

    return moving[d->index][m - l->rooms];
}

static bool item_moves(const struct daemon *d, const struct item *it)
{
    const struct encoded *e = d->brain;

    return moving[d->index][it - e->items];
}

/* engines */

/* Returns the engine that has the room now, or NULL: none has, or it is not
 * meant to see the room's end. */
static struct cons *asker_of(const struct daemon *d, const struct lroom *m)
{
    for (struct cons *c = cons_all(); c; c = c->next) {
        struct secret s = secret_of(c->secret);

        if (c->d == d && c->room == m->r.id && secret_eq(&s, &m->secret) &&
            c->requested && !c->over && c->must_succeed && !c->thief &&
            !c->declines && !c->ghost)
            return c;
    }
    return NULL;
}

/* True if an engine will announce the room, or continue it, in its own time.
 * held: the room has its blocks, which the engine must know. */
static bool will_write(const struct daemon *d, uint64_t room, bool held)
{
    for (struct prod *p = prods_all(); p; p = p->next)
        if (p->d == d && p->room == room && !p->over && !p->final_sent &&
            (!at_once || !held || (p->h[0] && p->h[0]->seen_granted)))
            return true;
    return false;
}

static const struct lroom *lroom_of_id(const struct daemon *d, uint64_t room)
{
    const struct langd *l = d->brain;

    for (uint32_t i = 0; i < l->rooms_max; i++)
        if (l->rooms[i].r.used && l->rooms[i].r.id == room)
            return &l->rooms[i];
    return NULL;
}

/* True if an engine will ask for the room in its own time, or has asked, and
 * its langd repeats the INIT, which was refused as busy. */
static bool will_ask(uint64_t room)
{
    for (struct cons *c = cons_all(); c; c = c->next) {
        const struct lroom *m = c->room == room && c->d->alive && c->requested
                                    ? lroom_of_id(c->d, room)
                                    : NULL;

        if (c->room == room && !c->requested && !c->over)
            return true;
        if (m && lroom_alive(m) && m->init != INIT_CONFIRMED)
            return true;
    }
    return false;
}

/* True if the room of another engine's request will end. */
static bool other_comes(const struct cons *c)
{
    const struct lroom *m;

    while (c->again)
        c = c->again;
    if (c->ready_ns || !c->requested || !c->d->alive)
        return true;
    m = lroom_of_id(c->d, c->room);
    return !m || lroom_moves(c->d, m);
}

/* True if the engine will read and release the READY room. An engine that
 * consumes several rooms together waits for all of them. */
static bool reader_moves(const struct cons *c)
{
    if (c->twin && !other_comes(c->twin))
        return false;
    for (const struct cons *o = cons_all(); c->together && o; o = o->next)
        if (o->d == c->d && (uint32_t)o->group == (uint32_t)c->group &&
            !other_comes(o))
            return false;
    return true;
}

/* blocks of a langd's pool */

/* True if the room's blocks will come back. */
static bool gives_back(const struct daemon *d, const struct lroom *m)
{
    const struct langd *l = d->brain;
    const struct lpool *p = &l->pools[m->pool];
    const struct cons *c = asker_of(d, m);

    if (lroom_closing(m) || m->r.state == ROOM_FAILED)
        return true;
    if (m->held.blocks == 0)
        return false;
    if (m->r.state == ROOM_SUCCESS)
        return !c || reader_moves(c);
    if (!lroom_firm(m) && m->exposed == 0 && p->ready_rooms == 0 &&
        p->landing_rooms == 0)
        return true; /* taken back for the head (RULES 5.4) */
    return lroom_moves(d, m);
}

/* True if the room, which waits in its pool's queue, will get its blocks. */
static bool queue_moves(const struct daemon *d, const struct lroom *m)
{
    struct langd *l = d->brain;
    struct lpool *p = &l->pools[m->pool];
    struct heap_node *n = heap_first(&p->want);
    const struct lroom *head =
        n ? CONTAINER_OF(n, struct lroom, want_node) : NULL;

    if (head && head != m && !(m->group && head->group == m->group))
        return lroom_moves(d, head);
    if (m->exposed > m->released)
        return true; /* the stream's reader will release blocks of its own */
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *o = &l->rooms[i];

        if (o->r.used && o != m && o->pool == m->pool &&
            !(m->group && o->group == m->group && lroom_alive(o)) &&
            gives_back(d, o))
            return true;
    }
    return false;
}

/* True if the lengths of all members of the group will be known. */
static bool group_moves(const struct daemon *d, const struct lroom *m)
{
    if (lgroup_known(m->group))
        return queue_moves(d, m);
    LIST_FOREACH (n, &m->group->members) {
        const struct lroom *o = LIST_ENTRY(n, struct lroom, in_group);

        if (o != m && !o->length_known && !lroom_moves(d, o))
            return false;
    }
    for (const struct cons *c = cons_all(); c; c = c->next)
        if (c->d == d && c->group == m->group->id && !c->requested && !c->over)
            return true;
    return m->group->joined == m->group->size;
}

static bool aux_moves(const struct daemon *d, const struct lroom *m)
{
    const struct langd *l = d->brain;

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *o = &l->rooms[i];
        const struct cons *c = asker_of(d, o);

        if (!o->r.used || o == m || o->aux_state != LAUX_STORED ||
            o->aux_len == 0)
            continue;
        if (lroom_alive(o) ? lroom_moves(d, o) : !c || reader_moves(c))
            return true;
    }
    return false;
}

/* a room of a langd */

/* Returns the room's destination at its encoder, or NULL. */
static const struct edst *dst_of(
    const struct lroom *m, const struct daemon **encoder)
{
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        const struct daemon *d = W.daemons[i];
        const struct encoded *e = d->brain;

        if (d->role != ROLE_ENCODED || !d->alive)
            continue;
        for (uint32_t k = 0; k < e->rooms_max; k++)
            if (e->dsts[k].state == DST_ACTIVE &&
                e->dsts[k].generation == m->generation) {
                *encoder = d;
                return &e->dsts[k];
            }
    }
    return NULL;
}

/* True if the room has all blocks that it needs, or will get them. */
static bool grant_comes(const struct daemon *d, const struct lroom *m)
{
    return m->group && !m->group->admitted ? group_moves(d, m)
                                           : queue_moves(d, m);
}

static bool is_queued(const struct lroom *m)
{
    return heap_linked(&m->want_node) ||
           (m->group && !m->group->admitted && m->length_known && !m->hopes);
}

static bool lroom_would(const struct daemon *d, const struct lroom *m)
{
    const struct daemon *encoder = NULL;
    const struct edst *n = dst_of(m, &encoder);
    const struct cons *c = asker_of(d, m);

    if (!c)
        return true; /* a deadline ends it */
    if (!n)          /* or its user has not been shown yet (RULES 10.2) */
        return !at_once || (W.is.hosts && W.is.pools > 1);
    if (lroom_closing(m))
        return !at_once;
    if (!at_once && (m->debt.owe || n->debt.owe || m->answer_due))
        return true; /* a message is repeated */
    if (!eroom_announced(n->room))
        return will_write(encoder, m->r.id, false);
    if (m->exposed > m->released)
        return true;
    if (!eroom_serves(n->room))
        return !at_once;
    if (lroom_lacks_aux(m))
        return aux_moves(d, m);
    if (m->hopes && item_done(n->room->item))
        return true; /* its rows are lent, or a grant is asked for */
    if (is_queued(m) && grant_comes(d, m))
        return true;
    return (!is_queued(m) || m->from + m->landed < m->granted) &&
           item_moves(encoder, n->room->item);
}

/* items of an encoded */

static const struct lroom *lroom_of_dst(
    const struct edst *n, const struct daemon **langd)
{
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        const struct daemon *d = W.daemons[i];
        const struct langd *l = d->brain;

        if (d->role != ROLE_LANGD || !d->alive)
            continue;
        for (uint32_t k = 0; k < l->rooms_max; k++)
            if (l->rooms[k].r.used && l->rooms[k].generation == n->generation) {
                *langd = d;
                return &l->rooms[k];
            }
    }
    return NULL;
}

static bool room_of_dst_moves(const struct edst *n)
{
    const struct daemon *d = NULL;
    const struct lroom *m = lroom_of_dst(n, &d);

    return m && lroom_moves(d, m);
}

/* True if another destination of the room is asked first, or has not asked yet
 * (RULES 5.16). */
static bool others_come(const struct edst *n)
{
    const struct eroom *r = n->room;

    if (r->asked < r->required && will_ask(r->r.id))
        return true;
    LIST_FOREACH (k, &r->dsts) {
        const struct edst *o = LIST_ENTRY(k, struct edst, in_room);

        if (o != n && o->state == DST_ACTIVE && room_of_dst_moves(o))
            return true;
    }
    return false;
}

/* True if the destination will get all its rows. */
static bool dst_moves(const struct edst *n)
{
    const struct daemon *d = NULL;
    const struct lroom *m;

    if (at_once)
        return room_of_dst_moves(n) || others_come(n);
    m = n->debt.owe ? NULL : lroom_of_dst(n, &d);
    return !m || m->debt.owe || !is_queued(m) || grant_comes(d, m);
}

/* True if all rooms of the complete item will end: then its blocks come
 * back. */
static bool item_drains(const struct item *it)
{
    LIST_FOREACH (r, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        if (!eroom_serves(m))
            continue;
        LIST_FOREACH (n, &m->dsts) {
            const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

            if (o->state == DST_ACTIVE && !dst_moves(o))
                return false;
        }
        if (m->asked > 0 && m->asked < m->required && !will_ask(m->r.id))
            return false;
    }
    return true;
}

/* True if one of the rooms will get all its grants, which makes the item full.
 * An open room with one grant is full already. */
static bool item_fills(const struct item *it)
{
    LIST_FOREACH (r, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);
        uint32_t lacking = 0, moves = 0, firm = 0;

        LIST_FOREACH (n, &m->dsts) {
            const struct edst *o = LIST_ENTRY(n, struct edst, in_room);
            bool has = o->firm == FIRM_YES;

            if (o->state != DST_ACTIVE)
                continue;
            firm += has;
            lacking += !has;
            moves += !has && dst_moves(o);
        }
        if (m->asked < m->required && will_ask(m->r.id))
            return true;
        if (m->flags & FLAG_OPEN ? firm == 0 && moves > 0
                                 : lacking > 0 && moves == lacking)
            return true;
    }
    return false;
}

/* True if the item will be ended for a full one that waits (RULES 5.12). */
static bool is_prey(const struct item *it)
{
    if (item_firm(it) || !item_complete(it))
        return false;
    LIST_FOREACH (r, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        if (m->asked < m->required && !(m->flags & FLAG_OPEN))
            return true;
        LIST_FOREACH (n, &m->dsts) {
            const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

            if (o->state == DST_ACTIVE && o->firm != FIRM_YES && o->want_known)
                return true;
        }
    }
    return false;
}

/* True if blocks will come back for the batch, which is the first of the
 * queue. */
static bool head_moves(
    const struct daemon *d, const struct epool *p, const struct item *head)
{
    if (head->batch->blocks <= p->p.free)
        return false; /* it would have been served */
    LIST_FOREACH (n, &p->held) {
        const struct item *it = LIST_ENTRY(n, struct item, in_held);

        if (item_moves(d, it) || (head == queue_firm(p) && is_prey(it)))
            return true;
    }
    return false;
}

static bool item_would(const struct daemon *d, struct item *it)
{
    struct encoded *e = d->brain;
    struct epool *p = &e->pools[it->pool];
    struct item *first = it;
    const struct item *head = NULL;

    if (item_held(it)) {
        LIST_FOREACH (r, &it->rooms)
            if (!item_done(it) &&
                will_write(d, LIST_ENTRY(r, struct eroom, in_item)->r.id, true))
                return true;
        return item_drains(it);
    }
    LIST_FOREACH (n, &it->in_batch)
        if (LIST_ENTRY(n, struct item, in_batch)->life == ITEM_QUEUED)
            first = LIST_ENTRY(n, struct item, in_batch);
    if (first->life != ITEM_QUEUED)
        return true; /* its engine has still to close the batch */
    for (uint32_t q = 0; q < QUEUES; q++) {
        struct heap_node *n = heap_first(&p->queues[q]);
        struct item *o = n ? CONTAINER_OF(n, struct item, in_queue) : NULL;

        if (o && (!head || q == QUEUE_FIRM || o->turn < head->turn))
            head = o;
    }
    if (heap_linked(&first->in_queue) &&
        (head == first ? head_moves(d, p, head) : item_moves(d, head)))
        return true;
    if (item_firm(first))
        return false;
    /* then it is full, and another item is ended for it */
    if (item_fills(first))
        return true;
    LIST_FOREACH (n, &first->in_batch)
        if (item_fills(LIST_ENTRY(n, struct item, in_batch)))
            return true;
    return false;
}

/* the set */

static uint32_t places(const struct daemon *d)
{
    return d->role == ROLE_LANGD ? ((struct langd *)d->brain)->rooms_max
                                 : ((struct encoded *)d->brain)->rooms_max;
}

/* Adds nodes of a daemon that move since others do. True if there are any. */
static bool add_moving(const struct daemon *d)
{
    bool any = false, *to = moving[d->index];

    if (d->role == ROLE_LANGD) {
        const struct langd *l = d->brain;

        for (uint32_t i = 0; i < l->rooms_max; i++)
            if (!to[i] && l->rooms[i].r.used &&
                (!lroom_alive(&l->rooms[i]) || lroom_would(d, &l->rooms[i])))
                any = to[i] = true;
    } else {
        const struct encoded *e = d->brain;

        for (uint32_t i = 0; i < e->rooms_max; i++)
            if (!to[i] && e->items[i].life != ITEM_FREE &&
                item_would(d, &e->items[i]))
                any = to[i] = true;
    }
    return any;
}

static void find_moving(void)
{
    bool any = true;

    for (uint32_t i = 0; i < W.daemons_count; i++)
        memset(moving[i], 0, places(W.daemons[i]) * sizeof(bool));
    while (any) {
        any = false;
        for (uint32_t i = 0; i < W.daemons_count; i++)
            any |= add_moving(W.daemons[i]);
    }
}

static bool stays(const struct daemon *d, const struct lroom *m)
{
    return m->r.used && lroom_alive(m) && !lroom_moves(d, m);
}

static const char *waits_for(const struct lroom *m)
{
    return lroom_lacks_aux(m) ? "aux" : is_queued(m) ? "blocks" : "rows";
}

/* No room of a calm world waits for a repetition. Returns the number of rooms
 * that do not move at once. */
static uint32_t look_at_standing(const struct daemon *d, uint64_t ago_ns)
{
    const struct langd *l = d->brain;
    uint32_t stay = 0;

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];
        struct standing *s = &standing[d->index][i];
        uint64_t mark = m->generation + m->attempt + m->granted + m->landed +
                        m->released + m->committed;

        if (!stays(d, m))
            continue;
        stay++;
        if (s->mark != mark)
            *s = (struct standing){mark, 0};
        else
            s->for_ns += ago_ns;
        HOLDS(s->for_ns < STANDS_NS, "no room waits without need",
            "%s room %llu waits for %s", d->conf->name,
            (unsigned long long)m->r.id, waits_for(m));
    }
    return stay;
}

static void look_at_rooms(const struct daemon *d)
{
    const struct langd *l = d->brain;

    for (uint32_t i = 0; i < l->rooms_max; i++)
        HOLDS(!stays(d, &l->rooms[i]),
            "what waits, waits for something that moves",
            "%s room %llu waits for ever, for %s", d->conf->name,
            (unsigned long long)l->rooms[i].r.id, waits_for(&l->rooms[i]));
}

void waits_look(void)
{
    static uint64_t last_ns;
    uint64_t ago_ns = min_u64(W.now_ns - last_ns, LOOKS_NS);
    uint32_t stay = 0;

    last_ns = W.now_ns;
    if (!world_quiet())
        return;
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        struct daemon *d = W.daemons[i];

        if (!d->alive)
            return;
        if (!moving[i])
            moving[i] = must_alloc(places(d), sizeof(bool));
        if (!standing[i])
            standing[i] = must_alloc(places(d), sizeof(struct standing));
    }
    at_once = W.is.calm;
    find_moving();
    for (uint32_t i = 0; i < W.daemons_count && at_once; i++)
        if (W.daemons[i]->role == ROLE_LANGD)
            stay += look_at_standing(W.daemons[i], ago_ns);
    if (at_once && stay == 0)
        return;
    at_once = false;
    find_moving();
    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (W.daemons[i]->role == ROLE_LANGD)
            look_at_rooms(W.daemons[i]);
}
