/* local.c - messages of language engines, and the events for them. Owned by the
 * loop's thread. Every message gets exactly one answer. All other changes of a
 * room join into one event, which the engine's connection pulls when its socket
 * takes it. */
#include "core/lang/lang.h"

#include <stdio.h>

/* requests */

static enum err check_request(struct langd *l, uint32_t conn,
    const struct local_request *n, const char **text)
{
    enum err e = pools_usable(&l->b, conn, n->pool, text);

    if (e != OK)
        return e;
    *text = err_text(ERR_DRAINING);
    if (l->b.draining &&
        !group_begun(l, n->group, l->b.engines.conns[conn].session))
        return ERR_DRAINING;
    *text = "mode is 0 or 1, storage 0 to 3";
    if (n->mode > MODE_STREAM || n->storage > STORAGE_PROMPT)
        return ERR_MALFORMED;
    *text = "traceparent has not W3C's form";
    if (!trace_good(n->traceparent))
        return ERR_MALFORMED;
    *text = "a room is shown in 128 cells: its owner's and 127 of readers";
    if (n->readers >= ROOM_ATTACHMENTS_MAX)
        return ERR_MALFORMED;
    *text = "a stream room needs a pool of at least 3 blocks";
    if (n->mode == MODE_STREAM && l->pools[n->pool].cap_stream < STREAM_MIN)
        return ERR_TOO_LARGE;
    if (n->group)
        return group_check(l, n, l->b.engines.conns[conn].session, text);
    *text = "";
    return OK;
}

static uint64_t deadline(const struct langd *l, uint32_t ms, uint64_t otherwise)
{
    return l->b.now_ns + conf_wait_ns(ms, otherwise);
}

static void fill_request(
    struct langd *l, struct lroom *m, const struct local_request *n)
{
    CHECK(n->pool < l->b.pools_count, "room ..%08x of pool %u",
        (uint32_t)n->room, n->pool);
    m->pool = n->pool;
    m->age =
        share_turn(&l->b.engines.share, m->uid, admit_turn(&l->pools[m->pool]));
    m->mode = n->mode;
    m->storage = n->storage;
    m->flags = n->flags & (FLAG_KEEP | FLAG_ANNOUNCED);
    m->expected = n->rows;
    m->readers = n->readers;
    m->required = n->required_dst ? n->required_dst : 1;
    m->key = n->key;
    m->total_ns = deadline(l, n->deadline_ms, l->b.c.conf->timeout_total);
    m->bootstrap_ns = l->b.now_ns + l->b.c.conf->timeout_bootstrap;
    if (m->peer == NONE) { /* the null encoder: engines warm up with it */
        m->total = m->max_rows = 0;
        m->length_known = true;
        m->aux_state = LAUX_STORED;
    }
}

/* True if the room, found by its id and scope, has this peer and secret. */
static bool is_named(
    const struct lroom *m, uint32_t peer, const struct secret *secret)
{
    return m->peer == peer && secret_eq(&m->secret, secret);
}

static enum err open_room(struct langd *l, uint32_t conn,
    const struct local_request *n, uint32_t peer, struct lroom **out,
    const char **text)
{
    uint32_t scope = lroom_scope(l, peer, &n->secret);
    uint32_t slot = table_get(&l->keys, n->room, scope);
    struct attachment *att;
    enum err e;

    *text = "a room of another secret has its name by chance";
    if (slot != NONE && !is_named(&l->rooms[slot], peer, &n->secret))
        return ERR_BUSY;
    *text = "the room is already open";
    if (slot != NONE && lroom_alive(&l->rooms[slot]))
        return ERR_DUPLICATE_ROOM;
    e = attachment_add(
        &l->b.engines, conn, n->cell, n->tag, RIGHT_READ, &att, text);
    if (e != OK)
        return e;
    *out =
        lroom_new(l, n->room, peer, &n->secret, l->b.engines.conns[conn].uid);
    *text = l->share.why;
    if (!*out) {
        attachment_drop(&l->b.engines, att);
        return ERR_BUSY;
    }
    /* Readers that attach from now on belong to the new room. */
    memory_forget(&l->left, n->room, scope);
    if (slot != NONE)
        lroom_no_readers(l, &l->rooms[slot]);
    fill_request(l, *out, n);
    happened(&l->b, HAPPENED_REQUESTED, &(*out)->r, &(*out)->history, peer,
        n->rows, n->pool);
    if (n->traceparent.len)
        trace_context(
            &l->b, &(*out)->r, &(*out)->history, n->traceparent, false);
    if (n->group)
        group_join(l, *out, n, l->b.engines.conns[conn].session);
    att->owner = true;
    att->scope = peer;
    att->name = brain_name(&l->b, &n->secret);
    attachment_join(&l->b.engines, att, &(*out)->r);
    room_gather(&l->b.engines, &(*out)->r, conn, peer, att->name);
    if ((*out)->group && (*out)->group->lost)
        lroom_place_lost(l, (*out)->group);
    lroom_hope(l, *out, l->b.engines.conns[conn].session);
    if (!(*out)->hopes)
        lroom_despair(l, *out); /* nor does its group */
    *text = "";
    return OK;
}

static void on_request(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_request *n = &msg->request;
    bool null = span_eq(n->encoder, span_str("null"));
    const char *text = "";
    struct peer *p = NULL;
    struct lroom *m = NULL;
    enum err e = check_request(l, conn, n, &text);

    if (e == OK && !null) {
        p = named_find(l, out, l->b.engines.conns[conn].uid, n->encoder, &text);
        if (!p)
            e = ERR_NOT_READY;
    }
    if (e == OK)
        e = open_room(
            l, conn, n, p ? peer_index(&l->b.peers, p) : NONE, &m, &text);
    if (e != OK) {
        head_refuse(&l->b, out, conn, msg, &(struct refusal){e, 0, 0, text});
        return;
    }
    if (p)
        declines_take_back(l, p, n);
    out_done(out, conn, msg->seq,
        (l->pools[n->pool].hold_stream - 1) * l->pools[n->pool].block_rows, 0);
}

static void on_decline(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const char *text = "";
    const struct conn *c = &l->b.engines.conns[conn];
    struct peer *p = named_find(l, out, c->uid, msg->decline.encoder, &text);

    if (!p) /* the room may be announced there and wait for this langd */
        p = named_leaving(l, msg->decline.encoder, NULL);
    if (!p) {
        head_refuse(&l->b, out, conn, msg,
            &(struct refusal){ERR_NOT_READY, 0, 0, text});
        return;
    }
    decline_room(l, out, p, c, &msg->decline);
    out_done(out, conn, msg->seq, 0, 0);
}

/* sequence ids */

static enum err call_ticket(struct langd *l, uint32_t conn,
    const struct local_msg *m, struct ticket_state *state, const char **text)
{
    uint32_t session = l->b.engines.conns[conn].session;
    struct attachment *att = NULL;

    if (m->type == LOCAL_TICKET_QUERY)
        return ticket_query(
            &l->tickets, session, &m->ticket_query, state, text);
    if (m->ticket.cell != NONE) {
        att =
            attachment_get(&l->b.engines, conn, m->ticket.cell, m->ticket.tag);
        *text = "no room has that cell and tag";
        if (!att || !att->room || att->room->state == ROOM_FAILED)
            return ERR_UNKNOWN_ROOM;
    }
    return ticket_acquire(&l->tickets, session, conn, &m->ticket,
        att ? &to_lroom(att->room)->tickets : NULL, state, text);
}

static void on_ticket(
    struct langd *l, struct out *out, uint32_t conn, const struct local_msg *m)
{
    uint32_t session = l->b.engines.conns[conn].session, a = 0, b = 0;
    struct ticket_state state = {0};
    const char *text = "";
    enum err e;

    if (m->type == LOCAL_SPACE) {
        b = m->space.n_seq_max;
        e = space_open(&l->tickets, session, l->b.engines.conns[conn].uid,
            m->space.name, b, &a, &text);
    } else if (m->type == LOCAL_TICKET_RELEASE) {
        e = ticket_release(
            &l->tickets, session, conn, &m->ticket_release, &text);
    } else {
        e = call_ticket(l, conn, m, &state, &text);
        a = state.held ? state.seq : NONE;
        b = state.held ? state.generation : 0;
    }
    if (e == OK) {
        out_done(out, conn, m->seq, a, b);
        return;
    }
    head_refuse(&l->b, out, conn, m, &(struct refusal){e, 0, 0, text});
}

bool langd_local(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m)
{
    switch (m->type) {
    case LOCAL_REQUEST:
        on_request(brain, out, conn, m);
        return true;
    case LOCAL_DECLINE:
        on_decline(brain, out, conn, m);
        return true;
    case LOCAL_MAPPED:
        lender_mapped(brain, conn, &m->mapped);
        out_ok(out, conn, m->seq);
        return true;
    case LOCAL_SPACE:
    case LOCAL_TICKET:
    case LOCAL_TICKET_QUERY:
    case LOCAL_TICKET_RELEASE:
        on_ticket(brain, out, conn, m);
        return true;
    default:
        return false;
    }
}

/* attachments */

/* True if the room had rows and all announced readers have released them. */
static bool read_out(const struct lroom *m)
{
    return m->r.state == ROOM_SUCCESS && m->total > 0 && !m->lent &&
           m->held.blocks == 0;
}

/* True if a reader attaches to a room that no longer waits for readers. Counts
 * the reader as come. */
static bool missed(struct langd *l, uint32_t session, uint64_t room,
    uint32_t scope, const struct attach_to *to)
{
    struct tomb *t = memory_get(&l->left, l->b.now_ns, room, scope);

    if (to->room && to->room->session != session)
        return false;
    if (to->room)
        return to_lroom(to->room)->no_readers || read_out(to_lroom(to->room));
    if (!t || t->owner != session)
        return false;
    if (--t->state == 0)
        memory_drop(&l->left, t);
    return true;
}

static enum err find(void *brain, struct out *out, uint32_t conn,
    const struct local_attach *n, struct attach_to *to, const char **text)
{
    struct langd *l = brain;
    uint32_t session = l->b.engines.conns[conn].serial;
    struct peer *p = NULL;
    uint32_t scope, slot;

    if (!span_eq(n->encoder, span_str("null"))) {
        p = named_leaving(l, n->encoder, n);
        if (!p)
            p = named_find(
                l, out, l->b.engines.conns[conn].uid, n->encoder, text);
        if (!p)
            return ERR_NOT_READY;
    }
    to->scope = p ? peer_index(&l->b.peers, p) : NONE;
    to->name = brain_name(&l->b, &n->secret);
    scope = lroom_scope(l, to->scope, &n->secret);
    slot = table_get(&l->keys, n->room, scope);
    if (slot != NONE && is_named(&l->rooms[slot], to->scope, &n->secret))
        to->room = &l->rooms[slot].r;
    *text = "the room waits for no more readers: those of its request came, "
            "timeouts.consumer has passed since READY, or its owner ended "
            "the wait";
    if ((n->rights & RIGHT_READ) && missed(l, session, n->room, scope, to))
        return ERR_GONE;
    *text =
        "the room is read in its encoder's pool, and this connection cannot";
    if (to->room && to->room->session == session &&
        !lroom_shows(l, to_lroom(to->room), conn)) {
        if (lender_refused(l, conn, to_lroom(to->room)))
            return ERR_NOT_READY;
        to_lroom(to->room)->late = true;
        to->room = NULL; /* until it maps that */
    }
    *text = "";
    return OK;
}

static void withdraw(void *brain, struct room *r)
{
    lroom_fail(
        brain, to_lroom(r), ERR_ABORTED, 0, 0, "released before it was ready");
}

static void fail(void *brain, struct room *r, enum err reason, const char *text)
{
    lroom_fail(brain, to_lroom(r), reason, 0, 0, text);
}

static void no_readers(void *brain, struct room *r)
{
    lroom_no_readers(brain, to_lroom(r));
}

static void released(void *brain, struct out *out, struct room *r)
{
    lroom_readers(brain, out, to_lroom(r));
}

static void on_touched(void *brain, struct room *r)
{
    lroom_touch(brain, to_lroom(r));
}

static void on_leaving(void *brain, struct attachment *att)
{
    struct lroom *m = to_lroom(att->room);
    struct langd *l = brain;

    if (att->owner && l->b.engines.conns[att->conn].bye)
        lroom_fail(l, m, ERR_ABORTED, 0, 0, "released before it was ready");
    if (att->owner)
        m->owner_done = true;
    else if (att->rights & RIGHT_READ)
        m->readers_done++;
    lroom_touch(l, m);
}

static void on_orphaned(void *brain, struct room *r)
{
    struct lroom *m = to_lroom(r);

    m->owner_done = true;
    m->readers = 0;
    lroom_fail(
        brain, m, ERR_ENGINE_LOST, 0, 0, "the requesting engine is gone");
    lroom_touch(brain, m);
}

static void on_conn_over(void *brain, uint32_t conn)
{
    tickets_conn_end(&((struct langd *)brain)->tickets, conn);
}

static void on_session_over(void *brain, uint32_t session)
{
    groups_session_over(brain, session);
    tickets_session_end(&((struct langd *)brain)->tickets, session);
}

const struct engines_ops langd_engines = {
    .succeeded = EVENT_READY,
    .wrong_role = "this is mmx-langd, not mmx-encoded",
    .rights = RIGHT_READ | RIGHT_WATCH,
    .rights_text = "rights are 1 read, 4 watch",
    .find = find,
    .withdraw = withdraw,
    .fail = fail,
    .no_readers = no_readers,
    .released = released,
    .touched = on_touched,
    .leaving = on_leaving,
    .orphaned = on_orphaned,
    .conn_over = on_conn_over,
    .session_over = on_session_over,
};

/* events */

bool langd_fill_event(void *brain, const struct attachment *att,
    struct local_event *n, struct writer *w)
{
    struct langd *l = brain;
    const struct lroom *m;

    if (!att->room)
        return false;
    m = to_lroom(att->room);
    CHECK(m->base <= m->released,
        "room ..%08x: rows from %u on, %u are released", (uint32_t)m->r.id,
        m->base, m->released);
    n->storage = m->item_storage;
    n->generation = m->generation;
    n->first = m->base;
    n->rows = m->exposed;
    n->total = m->total;
    n->pool = m->lent ? m->lent_pool : m->pool;
    if (att->pending & (EVENT_LENGTH | EVENT_READY))
        n->aux = aux_get(&l->b.aux, &m->aux, l->scratch);
    if (att->pending & (EVENT_LANDED | EVENT_READY))
        pool_put_runs(&l->pools[m->pool].p, &m->held, w);
    if (m->lent && (att->pending & EVENT_READY))
        w->len += aux_get(&l->b.aux, &m->lent_runs, w->p).len;
    return att->rights & RIGHT_READ;
}

bool langd_next_event(void *brain, uint32_t conn, struct writer *out)
{
    struct langd *l = brain;

    return tickets_next_event(&l->tickets, conn, out) ||
           (l->b.engines.conns[conn].lends && lender_next(l, conn, out));
}
