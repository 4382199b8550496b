/* engines.c - see engines.h. Owned by the loop's thread.
 *
 * Invariants: from attachment_add to attachment_drop an attachment is in its
 * connection's list and under its cell; it is on a room's list, on a session's
 * waiting list, or on neither (its room has gone); a connection's number is not
 * reused while it has attachments. Rejected: disconnecting an engine that does
 * not read. Events join into one word per attachment, so its silence costs
 * nothing. */
#include "core/engines.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

_Static_assert(3 * ROOM_ATTACHMENTS_MAX < OUT_SLACK_ACTIONS,
    "a notification and a cell for each attachment, and the room's own");

#define TURN_NS NS_PER_MS /* to the next turn; a timer is this late at most */

enum { CELLS_MAX = 16384 }; /* of a connection */

void engines_init(
    struct engines *g, struct slab *s, const struct conf *c, uint64_t seed)
{
    g->conns_max = share_connections(c);
    share_init(
        &g->share, s, "limits.attachments", c->limit_attachments, 1, seed);
    g->attachments_max = g->share.total;
    g->conns = slab_take(s, g->conns_max, sizeof(*g->conns));
    g->sessions = slab_take(s, g->conns_max, sizeof(*g->sessions));
    g->attachments = slab_take(s, g->attachments_max, sizeof(*g->attachments));
    g->cells_max = min_u32(g->attachments_max, CELLS_MAX);
    g->cell_attachment = slab_take(
        s, (size_t)g->conns_max * g->cells_max, sizeof(*g->cell_attachment));
    slots_init(&g->slots, s, g->attachments_max);
    g->hello_ns = c->timeout_hello;
    list_init(&g->silent);
    heap_init(&g->timers, s, g->attachments_max);
}

void room_init(struct room *r, uint64_t id, struct why *why)
{
    memset(r, 0, sizeof(*r));
    r->id = id;
    r->used = true;
    r->state = ROOM_BOOTSTRAPPING;
    r->session = NONE;
    r->told_state = UINT8_MAX;
    r->text = why_clear(why);
    list_init(&r->attachments);
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
    if (ev->groups)
        c->groups = *ev->groups;
    c->opened_ns = ev->now_ns;
    c->session = NONE;
    list_init(&c->attachments);
    list_init(&c->dirty);
    c->hello_by_ns = ev->now_ns + g->hello_ns;
    list_init(&c->in_silent);
    list_push_tail(&g->silent, &c->in_silent);
}

void engine_known(struct engines *g, struct out *out, uint32_t conn)
{
    CHECK(conn < g->conns_max && g->conns[conn].state != CONN_FREE,
        "connection %u is known and not open", conn);
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
    s->serial = ++g->serials;
    s->conns = 1;
    span_copy_str(name, s->name, sizeof(s->name));
    list_init(&s->rooms);
    list_init(&s->waiting);
    return free;
}

static void session_leave(struct engines *g, uint32_t session)
{
    struct session *s = &g->sessions[session];

    CHECK(s->used && s->conns > 0, "session %u has no connection", session);
    if (--s->conns > 0)
        return;
    LIST_FOREACH_SAFE (n, &s->rooms) {
        struct room *r = LIST_ENTRY(n, struct room, in_session);

        room_orphan(r);
        g->ops->orphaned(g->brain, r);
    }
    CHECK(list_empty(&s->waiting), "session %u ends, and it waits", session);
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
    *text = g->ops->wrong_role;
    if (m->role != ROLE_ANY && m->role != role)
        return ERR_MALFORMED;
    c->cells = max_u32(min_u32(m->cells, g->cells_max), 1);
    text_copy(m->name, c->name, sizeof(c->name));
    c->session = session_join(g, c->uid, m->session);
    c->serial = g->sessions[c->session].serial;
    c->state = CONN_READY;
    c->lends = m->abilities & ABLE_LEND;
    *text = "";
    return OK;
}

void engine_end(struct engines *g, uint32_t conn)
{
    struct conn *c = &g->conns[conn];

    CHECK(conn < g->conns_max, "end of connection %u", conn);
    if (c->state == CONN_FREE || c->state == CONN_ENDED)
        return;
    c->state = CONN_ENDED;
    list_remove(&c->in_silent);
    g->ops->conn_over(g->brain, conn);
    LIST_FOREACH_SAFE (n, &c->attachments) {
        struct attachment *att = LIST_ENTRY(n, struct attachment, in_conn);

        att->pending = 0;
        list_remove(&att->in_dirty);
        /* If no rows were shown the process can use none, and none after
         * BYE. */
        if (c->bye || !att->shown)
            attachment_drop(g, att);
    }
    if (!c->bye && c->session != NONE)
        g->stats[STAT_engines_lost]++;
    if (c->session != NONE)
        session_leave(g, c->session);
    c->session = NONE;
}

bool engine_empty(const struct engines *g, uint32_t conn)
{
    const struct conn *c = &g->conns[conn];

    return c->state == CONN_ENDED && list_empty(&c->attachments);
}

void engine_dead(struct engines *g, uint32_t conn)
{
    struct conn *c = &g->conns[conn];

    CHECK(c->state != CONN_FREE, "connection %u died while free", conn);
    engine_end(g, conn);
    LIST_FOREACH_SAFE (n, &c->attachments)
        attachment_drop(g, LIST_ENTRY(n, struct attachment, in_conn));
    CHECK(list_empty(&c->attachments) && c->session == NONE,
        "connection %u is free and has attachments", conn);
    c->state = CONN_FREE;
}

/* True if the list has one of the n ids. */
static bool list_has(const struct conf_list *l, const uint32_t *ids, uint32_t n)
{
    uint64_t id;

    for (uint32_t i = 0; i < l->count; i++)
        if (text_number(span_str(l->items[i]), UINT32_MAX, &id))
            for (uint32_t k = 0; k < n; k++)
                if (ids[k] == id)
                    return true;
    return false;
}

bool user_may(
    const struct conf_pool *pool, uint32_t uid, const struct groups *groups)
{
    CHECK(groups->count <= GROUPS_MAX, "%u groups", groups->count);
    return !conf_for_users(pool) || list_has(&pool->uids, &uid, 1) ||
           list_has(&pool->gids, groups->ids, groups->count);
}

bool engine_may(
    const struct engines *g, uint32_t conn, const struct conf_pool *pool)
{
    const struct conn *c = &g->conns[conn];

    return user_may(pool, c->uid, &c->groups) ||
           list_has(&pool->gids, &c->gid, 1);
}

bool engines_wait_for(const struct engines *g, uint32_t scope)
{
    for (uint32_t i = 0; i < g->timers.len; i++)
        if (CONTAINER_OF(g->timers.nodes[i], struct attachment, timer)->scope ==
            scope)
            return true;
    return false;
}

void engines_give_up(struct engines *g, uint32_t scope, uint64_t now_ns)
{
    /* To give a timer an earlier key moves no timer that was not visited
     * yet. */
    for (uint32_t i = 0; i < g->timers.len; i++) {
        struct attachment *att =
            CONTAINER_OF(g->timers.nodes[i], struct attachment, timer);

        if (att->scope != scope)
            continue;
        att->scope = SCOPE_OF_NONE;
        attachment_end(g, att, ERR_TIMEOUT, now_ns);
    }
}

static void end_silent(struct engines *g, struct out *out, uint32_t conn)
{
    g->stats[STAT_hello_overdue]++;
    out_answer(out, conn, 0, ERR_TIMEOUT, 0, 0,
        "no hello within timeouts.hello, %llu ms",
        (unsigned long long)(g->hello_ns / NS_PER_MS));
    out_action(out, ACT_CONN_CLOSE)->conn = conn;
}

/* True if the loop itself is late, for the first time: the HELLO may already be
 * in the socket, which is read before this deadline applies. */
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
        (n = heap_first(&g->timers)) && n->key <= now_ns && out_has_room(out)) {
        struct attachment *att = CONTAINER_OF(n, struct attachment, timer);

        attachment_over(g, out, att, ROOM_FAILED, (enum err)att->reason);
    }
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

    return min_u64(at, heap_due(&g->timers));
}

/* attachments */

static uint32_t *cell_slot(
    const struct engines *g, uint32_t conn, uint32_t cell)
{
    return &g->cell_attachment[(size_t)conn * g->cells_max + cell];
}

enum err attachment_add(struct engines *g, uint32_t conn, uint32_t cell,
    uint32_t tag, uint8_t rights, struct attachment **out, const char **text)
{
    struct conn *c = &g->conns[conn];
    struct attachment *att;
    uint32_t i;

    *text = "no cell of that number";
    if (cell >= c->cells)
        return ERR_MALFORMED;
    *text = "tags are 1 to 4194303";
    if (tag == 0 || tag > TAG_MAX) /* a cell that was never used is 0 */
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
    CHECK(i != NONE, "no place for one of %u attachments", g->attachments_used);
    att = &g->attachments[i];
    *cell_slot(g, conn, cell) = i + 1;
    g->attachments_used++;
    memset(att, 0, sizeof(*att));
    att->used = true;
    att->conn = conn;
    att->cell = cell;
    att->tag = tag;
    att->rights = rights;
    list_init(&att->in_room);
    list_init(&att->in_dirty);
    list_push_tail(&c->attachments, &att->in_conn);
    c->rooms++;
    c->rooms_total++;
    *text = "";
    *out = att;
    return OK;
}

struct attachment *attachment_get(
    const struct engines *g, uint32_t conn, uint32_t cell, uint32_t tag)
{
    const struct conn *c = &g->conns[conn];
    uint32_t i;

    if (c->state != CONN_READY || cell >= c->cells)
        return NULL;
    i = *cell_slot(g, conn, cell);
    return i && g->attachments[i - 1].tag == tag ? &g->attachments[i - 1]
                                                 : NULL;
}

void attachment_join(struct engines *g, struct attachment *att, struct room *r)
{
    CHECK(!att->room && !room_crowded(r), "room ..%08x with %u attachments",
        (uint32_t)r->id, r->attachments_count);
    list_remove(&att->in_room);
    heap_remove(&g->timers, &att->timer);
    att->room = r;
    att->room_id = r->id;
    att->fresh = r->joined = true;
    list_push_tail(&r->attachments, &att->in_room);
    r->attachments_count++;
    g->ops->touched(g->brain, r);
}

void attachment_wait(
    struct engines *g, struct attachment *att, uint64_t deadline_ns)
{
    struct session *s = &g->sessions[g->conns[att->conn].session];

    CHECK(!att->room && !list_linked(&att->in_room),
        "cell %u of connection %u waits twice", att->cell, att->conn);
    att->reason = ERR_TIMEOUT; /* the reason that it gets if the room never
                                  opens */
    list_push_tail(&s->waiting, &att->in_room);
    heap_set(&g->timers, &att->timer, deadline_ns);
}

void attachment_end(
    struct engines *g, struct attachment *att, enum err reason, uint64_t now_ns)
{
    CHECK(!att->room && heap_linked(&att->timer),
        "cell %u of connection %u does not wait", att->cell, att->conn);
    att->reason = (uint8_t)reason;
    heap_set(&g->timers, &att->timer, min_u64(att->timer.key, now_ns));
}

static void cell_put(
    struct out *out, const struct attachment *att, uint64_t word)
{
    struct action *a = out_action(out, ACT_CELL);

    a->conn = att->conn;
    a->index = att->cell;
    a->word = word;
}

void attachment_over(struct engines *g, struct out *out, struct attachment *att,
    uint8_t state, enum err reason)
{
    CHECK(!att->room, "cell %u of connection %u has a room", att->cell,
        att->conn);
    list_remove(&att->in_room);
    heap_remove(&g->timers, &att->timer);
    att->reason = (uint8_t)reason;
    cell_put(out, att, cell_word(state, reason, att->tag, 0));
    attachment_notify(
        g, out, att, state == ROOM_SUCCESS ? g->ops->succeeded : EVENT_FAILED);
}

void room_counts(struct engines *g, struct room *r, uint64_t bytes)
{
    LIST_FOREACH (n, &r->attachments)
        g->conns[LIST_ENTRY(n, struct attachment, in_room)->conn].bytes +=
            bytes;
}

void attachment_drop(struct engines *g, struct attachment *att)
{
    CHECK(att->used && *cell_slot(g, att->conn, att->cell) ==
                           (uint32_t)(att - g->attachments) + 1,
        "cell %u of connection %u has another attachment", att->cell,
        att->conn);
    if (att->room) {
        g->ops->leaving(g->brain, att);
        att->room->attachments_count--;
    }
    *cell_slot(g, att->conn, att->cell) = 0;
    list_remove(&att->in_room);
    list_remove(&att->in_conn);
    list_remove(&att->in_dirty);
    heap_remove(&g->timers, &att->timer);
    CHECK(g->conns[att->conn].rooms > 0, "connection %u has no attachment",
        att->conn);
    g->conns[att->conn].rooms--;
    att->used = false;
    slots_give(&g->slots, (uint32_t)(att - g->attachments));
    g->attachments_used--;
    share_give(&g->share, g->conns[att->conn].uid, 1);
}

void attachment_release(
    struct engines *g, struct out *out, struct attachment *att)
{
    if (g->conns[att->conn].state == CONN_READY)
        cell_put(out, att, 0);
    attachment_drop(g, att);
}

void engine_notify(struct engines *g, struct out *out, uint32_t conn)
{
    struct conn *c = &g->conns[conn];

    if (c->state != CONN_READY || c->notified)
        return;
    c->notified = true;
    out_action(out, ACT_NOTIFY)->conn = conn;
}

void attachment_notify(
    struct engines *g, struct out *out, struct attachment *att, uint16_t what)
{
    struct conn *c = &g->conns[att->conn];

    if (c->state != CONN_READY)
        return;
    att->pending |= what;
    if (!list_linked(&att->in_dirty))
        list_push_tail(&c->dirty, &att->in_dirty);
    engine_notify(g, out, att->conn);
}

struct attachment *engine_next_dirty(struct engines *g, uint32_t conn)
{
    struct conn *c = &g->conns[conn];
    struct attachment *att = LIST_FIRST(&c->dirty, struct attachment, in_dirty);

    if (!att)
        c->notified = false;
    return att;
}

void room_notify(
    struct engines *g, struct out *out, struct room *r, uint16_t what)
{
    LIST_FOREACH (n, &r->attachments)
        attachment_notify(
            g, out, LIST_ENTRY(n, struct attachment, in_room), what);
}

/* Writes the room's state, reason and rows into its attachments' cells. */
static void put_cells(struct engines *g, struct out *out, const struct room *r)
{
    LIST_FOREACH (n, &r->attachments) {
        struct attachment *att = LIST_ENTRY(n, struct attachment, in_room);

        if (g->conns[att->conn].state == CONN_READY)
            cell_put(out, att,
                cell_word(r->state, r->reason, att->tag, r->rows_shown));
    }
}

void room_show(struct engines *g, struct out *out, struct room *r,
    uint16_t known, uint16_t news)
{
    uint16_t end = r->state == ROOM_SUCCESS  ? g->ops->succeeded
                   : r->state == ROOM_FAILED ? EVENT_FAILED
                                             : 0;
    bool ended = end && r->told_state != r->state;

    if (!r->joined && !news && r->told_state == r->state &&
        r->told_rows == r->rows_shown)
        return;
    CHECK(
        end || (r->told_state != ROOM_SUCCESS && r->told_state != ROOM_FAILED),
        "room ..%08x goes on after its end", (uint32_t)r->id);
    known |= end;
    LIST_FOREACH (n, &r->attachments) {
        struct attachment *att = LIST_ENTRY(n, struct attachment, in_room);

        if (att->fresh && known)
            attachment_notify(g, out, att, known);
        att->fresh = false;
    }
    if (ended)
        news |= end;
    if (news)
        room_notify(g, out, r, news);
    if (ended)
        out_action(out, ACT_ENDED)->word = r->ended_row;
    if (r->joined || r->told_state != r->state || r->told_rows != r->rows_shown)
        put_cells(g, out, r);
    r->told_state = r->state;
    r->told_rows = r->rows_shown;
    r->joined = false;
}

void room_gather(struct engines *g, struct room *r, uint32_t conn,
    uint32_t scope, uint32_t name)
{
    struct session *s = &g->sessions[g->conns[conn].session];

    CHECK(s->used, "room ..%08x of no session", (uint32_t)r->id);
    r->session = s->serial;
    list_push_tail(&s->rooms, &r->in_session);
    LIST_FOREACH_SAFE (n, &s->waiting) {
        struct attachment *att = LIST_ENTRY(n, struct attachment, in_room);

        if (att->room_id == r->id && att->scope == scope && att->name == name &&
            !room_crowded(r))
            attachment_join(g, att, r);
    }
}

const char room_killed_text[] = "ended by an order on this host: mmxctl kill";

bool room_killed(
    const struct engines *g, const struct room *r, const struct event *ev)
{
    CHECK(ev->type == EV_KILL, "event %u kills a room", ev->type);
    if (!ev->pid)
        return r->id == ev->room;
    LIST_FOREACH (n, &r->attachments) {
        const struct attachment *att =
            LIST_ENTRY(n, struct attachment, in_room);

        if (att->owner && g->conns[att->conn].pid == ev->pid)
            return true;
    }
    return false;
}

bool room_in_use(const struct room *r)
{
    LIST_FOREACH (n, &r->attachments) {
        const struct attachment *att =
            LIST_ENTRY(n, struct attachment, in_room);

        if (att->shown)
            return true;
    }
    return false;
}
