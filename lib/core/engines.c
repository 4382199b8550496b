/* engines.c - see engines.h. Owned by the loop's thread.
 *
 * Invariants: a view is in its connection's list and under its cell from
 * view_add to view_drop; it is on a room's list or on a session's waiting list
 * or on neither (its room has gone); a connection's number is not reused while
 * one of its views is left. Disconnecting an engine that does not read was
 * rejected: events fold into one word per view, so silence costs nothing. */
#include "core/engines.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

#define TURN_NS NS_PER_MS /* to the next turn; a timer is this late at most */

void engines_init(
    struct engines *g, struct slab *s, const struct conf *c, uint64_t seed)
{
    g->conns_max = share_connections(c);
    g->cells_max = (uint32_t)c->limit_cells;
    share_init(
        &g->share, s, c, "limits.attachments", c->limit_attachments, 1, seed);
    g->views_max = g->share.total;
    g->conns = slab_take(s, g->conns_max, sizeof(*g->conns));
    g->sessions = slab_take(s, g->conns_max, sizeof(*g->sessions));
    g->views = slab_take(s, g->views_max, sizeof(*g->views));
    g->cell_view = slab_take(
        s, (size_t)g->conns_max * g->cells_max, sizeof(*g->cell_view));
    slots_init(&g->slots, s, g->views_max);
    g->hello_ns = c->timeout_hello;
    list_init(&g->silent);
    heap_init(&g->timers, s, g->views_max);
}

void room_init(struct room *r, uint64_t id)
{
    memset(r, 0, sizeof(*r));
    r->id = id;
    r->used = true;
    r->state = ROOM_BOOTSTRAPPING;
    r->session = NONE;
    list_init(&r->views);
    list_init(&r->in_session);
    list_init(&r->todo);
}

void room_orphan(struct room *r)
{
    list_remove(&r->in_session);
    r->session = NONE;
}

/* connections and sessions */

void engine_open(struct engines *g, const struct event *ev)
{
    struct conn *c = &g->conns[ev->conn];

    CHECK(ev->conn < g->conns_max && c->state == CONN_FREE,
        "connection %u is in state %u", ev->conn, c->state);
    memset(c, 0, sizeof(*c));
    c->state = CONN_OPEN;
    c->uid = ev->uid;
    c->gid = ev->gid;
    c->pid = ev->pid;
    c->session = NONE;
    list_init(&c->views);
    list_init(&c->dirty);
    list_init(&c->in_session);
    c->hello_by_ns = ev->now_ns + g->hello_ns;
    list_init(&c->in_silent);
    list_push_tail(&g->silent, &c->in_silent);
}

void engine_known(struct engines *g, struct out *out, uint32_t conn)
{
    list_remove(&g->conns[conn].in_silent);
    out_action(out, ACT_CONN_KNOWN)->conn = conn;
}

static uint32_t session_join(struct engines *g, uint32_t uid, struct span name)
{
    uint32_t free = NONE;
    struct session *s;

    for (uint32_t i = 0; i < g->conns_max; i++) {
        s = &g->sessions[i];
        if (s->used && s->uid == uid && span_eq(span_str(s->name), name)) {
            s->conns++;
            return i;
        }
        if (!s->used && free == NONE)
            free = i;
    }
    CHECK(free != NONE, "no session for one of %u connections", g->conns_max);
    s = &g->sessions[free];
    memset(s, 0, sizeof(*s));
    s->used = true;
    s->uid = uid;
    s->conns = 1;
    span_copy_str(name, s->name, sizeof(s->name));
    list_init(&s->rooms);
    list_init(&s->waiting);
    return free;
}

static void session_leave(struct engines *g, uint32_t session, uint64_t now_ns)
{
    struct session *s = &g->sessions[session];

    if (--s->conns > 0)
        return;
    LIST_FOREACH_SAFE (n, &s->rooms) {
        struct room *r = LIST_ENTRY(n, struct room, in_session);

        room_orphan(r);
        g->ops->orphaned(g->brain, r, now_ns);
    }
    LIST_FOREACH_SAFE (n, &s->waiting)
        list_remove(n);
    if (g->ops->session_over)
        g->ops->session_over(g->brain, session);
    s->used = false;
}

enum err engine_hello(struct engines *g, uint32_t conn,
    const struct local_hello *m, uint8_t role, const char **text)
{
    struct conn *c = &g->conns[conn];

    *text = "HELLO may come only once";
    if (c->state != CONN_OPEN)
        return ERR_MALFORMED;
    *text = "not an mmx client: wrong magic";
    if (m->magic != LOCAL_MAGIC)
        return ERR_MALFORMED;
    *text = "the daemon speaks protocol version 1";
    if (m->version_min > WIRE_VERSION || m->version_max < WIRE_VERSION)
        return ERR_VERSION;
    *text = role == ROLE_ENCODED ? "this is mmx-encoded, not mmx-langd"
                                 : "this is mmx-langd, not mmx-encoded";
    if (m->role != ROLE_ANY && m->role != role)
        return ERR_MALFORMED;
    *text = "names have at most 63 bytes";
    if (m->name.len > 63 || m->session.len > 63)
        return ERR_MALFORMED;
    c->cells = max_u32(min_u32(m->cells, g->cells_max), 1);
    c->abilities = m->abilities;
    text_copy(m->name, c->name, sizeof(c->name));
    c->session = session_join(g, c->uid, m->session);
    c->state = CONN_READY;
    *text = "";
    return OK;
}

void engine_end(struct engines *g, uint32_t conn, uint64_t now_ns)
{
    struct conn *c = &g->conns[conn];

    if (c->state == CONN_FREE || c->state == CONN_ENDED)
        return;
    c->state = CONN_ENDED;
    list_remove(&c->in_silent);
    if (g->ops->conn_over)
        g->ops->conn_over(g->brain, conn);
    LIST_FOREACH_SAFE (n, &c->views) {
        struct view *v = LIST_ENTRY(n, struct view, in_conn);

        v->pending = 0;
        list_remove(&v->in_dirty);
        /* What was never shown cannot be in use; BYE says nothing is. */
        if (c->bye || !v->shown)
            view_drop(g, v);
    }
    if (!c->bye && c->session != NONE)
        g->stats[STAT_engines_lost]++;
    if (c->session != NONE)
        session_leave(g, c->session, now_ns);
    c->session = NONE;
}

bool engine_empty(const struct engines *g, uint32_t conn)
{
    const struct conn *c = &g->conns[conn];

    return c->state == CONN_ENDED && list_empty(&c->views);
}

void engine_dead(struct engines *g, uint32_t conn, uint64_t now_ns)
{
    struct conn *c = &g->conns[conn];

    CHECK(c->state != CONN_FREE, "connection %u died while free", conn);
    engine_end(g, conn, now_ns);
    LIST_FOREACH_SAFE (n, &c->views)
        view_drop(g, LIST_ENTRY(n, struct view, in_conn));
    c->state = CONN_FREE;
}

static bool list_has(const struct conf_list *l, uint32_t id)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", id);
    for (uint32_t i = 0; i < l->count; i++)
        if (strcmp(l->items[i], text) == 0)
            return true;
    return false;
}

bool engine_may(const struct engines *g, uint32_t conn,
    const struct conf_list *uids, const struct conf_list *gids)
{
    const struct conn *c = &g->conns[conn];

    return (uids->count == 0 && gids->count == 0) || list_has(uids, c->uid) ||
           list_has(gids, c->gid);
}

bool engines_wait_for(const struct engines *g, uint32_t scope)
{
    for (uint32_t i = 0; i < g->timers.len; i++)
        if (CONTAINER_OF(g->timers.nodes[i], struct view, timer)->scope ==
            scope)
            return true;
    return false;
}

static void end_silent(struct engines *g, struct out *out, uint32_t conn)
{
    g->stats[STAT_hello_overdue]++;
    out_answer(out, conn, 0, ERR_TIMEOUT, 0, 0,
        "no hello within timeouts.hello, %llu ms",
        (unsigned long long)(g->hello_ns / NS_PER_MS));
    out_action(out, ACT_CONN_CLOSE)->conn = conn;
}

/* True if the loop itself is late, for the first time: the HELLO may be in the
 * socket, which is read before this deadline counts. */
static bool seen_late(struct conn *c, uint64_t now_ns)
{
    if (c->hello_seen_late || now_ns - c->hello_by_ns <= TURN_NS)
        return false;
    c->hello_seen_late = true;
    c->hello_by_ns = now_ns + TURN_NS;
    return true;
}

void engines_expire(struct engines *g, struct out *out, uint64_t now_ns)
{
    struct heap_node *n;

    while (
        (n = heap_first(&g->timers)) && n->key <= now_ns && out_has_room(out))
        view_fail(g, out, CONTAINER_OF(n, struct view, timer), ERR_TIMEOUT);
    LIST_FOREACH_SAFE (at, &g->silent) {
        struct conn *c = LIST_ENTRY(at, struct conn, in_silent);

        if (c->hello_by_ns > now_ns || !out_has_room(out))
            return;
        if (seen_late(c, now_ns))
            continue;
        list_remove(at);
        end_silent(g, out, (uint32_t)(c - g->conns));
    }
}

uint64_t engines_deadline(const struct engines *g)
{
    const struct conn *c = LIST_FIRST(&g->silent, struct conn, in_silent);
    uint64_t at = c ? c->hello_by_ns : TIME_NEVER;

    return heap_first(&g->timers) ? min_u64(at, heap_first(&g->timers)->key)
                                  : at;
}

/* views */

static uint32_t *cell_slot(
    const struct engines *g, uint32_t conn, uint32_t cell)
{
    return &g->cell_view[(size_t)conn * g->cells_max + cell];
}

enum err view_add(struct engines *g, uint32_t conn, uint32_t cell, uint32_t tag,
    uint8_t rights, struct view **out, const char **text)
{
    struct conn *c = &g->conns[conn];
    struct view *v;
    uint32_t i;

    *text = "no cell of that number";
    if (cell >= c->cells)
        return ERR_MALFORMED;
    *text = "tags are 1 to 4194303";
    if (tag == 0 || tag > TAG_MAX) /* a cell that was never used reads as 0 */
        return ERR_MALFORMED;
    *text = "the cell is in use";
    if (*cell_slot(g, conn, cell))
        return ERR_MALFORMED;
    *text = g->share.why;
    if (!share_take(&g->share, c->uid, 1)) {
        g->stats[STAT_table_full]++;
        return ERR_QUOTA;
    }
    i = slots_take(&g->slots);
    CHECK(i != NONE, "no place for one of %u views", g->views_used);
    v = &g->views[i];
    *cell_slot(g, conn, cell) = i + 1;
    g->views_used++;
    memset(v, 0, sizeof(*v));
    v->used = true;
    v->conn = conn;
    v->cell = cell;
    v->tag = tag;
    v->rights = rights;
    list_init(&v->in_room);
    list_init(&v->in_dirty);
    list_init(&v->in_waiting);
    list_push_tail(&c->views, &v->in_conn);
    *text = "";
    *out = v;
    return OK;
}

struct view *view_get(
    const struct engines *g, uint32_t conn, uint32_t cell, uint32_t tag)
{
    const struct conn *c = &g->conns[conn];
    uint32_t i;

    if (c->state != CONN_READY || cell >= c->cells)
        return NULL;
    i = *cell_slot(g, conn, cell);
    return i && g->views[i - 1].tag == tag ? &g->views[i - 1] : NULL;
}

void view_join(struct engines *g, struct view *v, struct room *r)
{
    list_remove(&v->in_waiting);
    heap_remove(&g->timers, &v->timer);
    v->room = r;
    v->room_id = r->id;
    v->fresh = true;
    list_push_tail(&r->views, &v->in_room);
    r->views_count++;
    g->ops->touched(g->brain, r);
}

void view_wait(struct engines *g, struct view *v, uint64_t room_id,
    uint32_t scope, uint64_t deadline_ns)
{
    struct session *s = &g->sessions[g->conns[v->conn].session];

    v->room_id = room_id;
    v->scope = scope;
    v->deadline_ns = deadline_ns;
    list_push_tail(&s->waiting, &v->in_waiting);
    heap_set(&g->timers, &v->timer, deadline_ns);
}

static void cell_put(struct out *out, const struct view *v, uint64_t word)
{
    struct action *a = out_action(out, ACT_CELL);

    a->conn = v->conn;
    a->index = v->cell;
    a->word = word;
}

void view_over(struct engines *g, struct out *out, struct view *v,
    uint8_t state, enum err reason)
{
    list_remove(&v->in_waiting);
    heap_remove(&g->timers, &v->timer);
    v->released = (uint32_t)reason; /* kept for the event: it has no room */
    cell_put(out, v, cell_word(state, reason, v->tag, 0));
    view_tell(g, out, v, state == ROOM_SUCCESS ? EVENT_DONE : EVENT_FAILED);
}

void view_fail(
    struct engines *g, struct out *out, struct view *v, enum err reason)
{
    view_over(g, out, v, ROOM_FAILED, reason);
}

void view_drop(struct engines *g, struct view *v)
{
    if (v->room) {
        g->ops->leaving(g->brain, v);
        v->room->views_count--;
    }
    *cell_slot(g, v->conn, v->cell) = 0;
    list_remove(&v->in_room);
    list_remove(&v->in_conn);
    list_remove(&v->in_dirty);
    list_remove(&v->in_waiting);
    heap_remove(&g->timers, &v->timer);
    v->used = false;
    slots_give(&g->slots, (uint32_t)(v - g->views));
    g->views_used--;
    share_give(&g->share, g->conns[v->conn].uid, 1);
}

void view_release(struct engines *g, struct out *out, struct view *v)
{
    if (g->conns[v->conn].state == CONN_READY)
        cell_put(out, v, 0);
    view_drop(g, v);
}

void engine_notify(struct engines *g, struct out *out, uint32_t conn)
{
    struct conn *c = &g->conns[conn];

    if (c->state != CONN_READY || c->notified)
        return;
    c->notified = true;
    out_action(out, ACT_NOTIFY)->conn = conn;
}

void view_tell(
    struct engines *g, struct out *out, struct view *v, uint16_t what)
{
    struct conn *c = &g->conns[v->conn];

    if (c->state != CONN_READY)
        return;
    v->pending |= what;
    if (!list_linked(&v->in_dirty))
        list_push_tail(&c->dirty, &v->in_dirty);
    engine_notify(g, out, v->conn);
}

struct view *engine_next_dirty(struct engines *g, uint32_t conn)
{
    struct conn *c = &g->conns[conn];
    struct view *v = c->state == CONN_READY
                         ? LIST_FIRST(&c->dirty, struct view, in_dirty)
                         : NULL;

    if (!v)
        c->notified = false;
    return v;
}

void room_tell(
    struct engines *g, struct out *out, struct room *r, uint16_t what)
{
    LIST_FOREACH (n, &r->views)
        view_tell(g, out, LIST_ENTRY(n, struct view, in_room), what);
}

void room_cells(struct engines *g, struct out *out, struct room *r)
{
    LIST_FOREACH (n, &r->views) {
        struct view *v = LIST_ENTRY(n, struct view, in_room);

        if (g->conns[v->conn].state == CONN_READY)
            cell_put(
                out, v, cell_word(r->state, r->reason, v->tag, r->rows_shown));
    }
}

void room_gather(
    struct engines *g, struct room *r, uint32_t session, uint32_t scope)
{
    struct session *s = &g->sessions[session];

    r->session = session;
    list_push_tail(&s->rooms, &r->in_session);
    LIST_FOREACH_SAFE (n, &s->waiting) {
        struct view *v = LIST_ENTRY(n, struct view, in_waiting);

        if (v->room_id == r->id && v->scope == scope && !room_crowded(r))
            view_join(g, v, r);
    }
}

bool room_in_use(const struct room *r)
{
    LIST_FOREACH (n, &r->views) {
        const struct view *v = LIST_ENTRY(n, struct view, in_room);

        if (v->shown)
            return true;
    }
    return false;
}
