/* local.c - what language engines say, and what they hear. Owned by the
 * loop's thread. Every message gets exactly one answer; what an engine hears
 * besides is folded into one event per room and pulled when its socket takes
 * it. */
#include "core/lang/lang.h"

#include "base/text.h"

#include <stdio.h>

/* requests */

/* Is it tcp://, and nothing that ZMQ reads as more than one address? */
static bool is_address(struct span a)
{
    static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "abcdefghijklmnopqrstuvwxyz0123456789.:-_[]%";

    if (a.len < 7 || a.len > 127 || memcmp(a.p, "tcp://", 6) != 0)
        return false;
    for (uint32_t i = 6; i < a.len; i++)
        if (!memchr(chars, a.p[i], sizeof(chars) - 1))
            return false;
    return true;
}

/* A place for one more encoder. When all are taken, one that was made for an
 * address, is not up, and has neither rooms nor engines that wait for one. */
static struct peer *place_for(struct langd *l, struct out *out)
{
    struct peer *p = peer_new(&l->b.peers);

    for (uint32_t i = 0; !p && i < l->b.peers.max; i++) {
        struct peer *old = &l->b.peers.peers[i];

        if (old->configured || old->up || !list_empty(&old->rooms) ||
            engines_wait_for(&l->b.engines, i))
            continue;
        if (old->epoch)
            langd_peer_lost(l, out, old, true);
        if (old->link != NONE) {
            out_action(out, ACT_DISCONNECT)->link = old->link;
            l->b.peers.link_peer[old->link] = NONE;
            old->link = NONE;
        }
        old->used = false;
        p = peer_new(&l->b.peers);
    }
    return p;
}

/* The peer that an engine means, made for an allowed address. NULL and why. */
static struct peer *find_encoder(
    struct langd *l, struct out *out, struct span name, const char **text)
{
    const struct conf_list *allow = &l->b.c.conf->control_allow;
    struct peer *p;

    for (uint32_t i = 0; i < l->b.peers.max; i++) {
        p = &l->b.peers.peers[i];
        if (p->used && (span_eq(span_str(p->label), name) ||
                           span_eq(span_str(p->address), name)))
            return p; /* by either name it is one daemon, and one link */
    }
    *text = "no peer of that name, and control.allow has no such address";
    for (uint32_t i = 0; i < allow->count; i++) {
        struct span a = span_str(allow->items[i]);
        bool star = a.len > 0 && a.p[a.len - 1] == '*';

        a.len -= star;
        if (!is_address(name) || name.len < a.len ||
            (!star && name.len != a.len))
            continue;
        if (a.len && memcmp(a.p, name.p, a.len) != 0)
            continue;
        *text = "limits.peers is reached";
        p = place_for(l, out);
        if (p) {
            span_copy_str(name, p->label, sizeof(p->label));
            span_copy_str(name, p->address, sizeof(p->address));
        }
        return p;
    }
    return NULL;
}

static enum err check_request(struct langd *l, uint32_t conn,
    const struct local_request *n, const char **text)
{
    enum err e = call_pool_check(&l->b, conn, n->pool, text);

    if (e != OK)
        return e;
    *text = "the daemon is shutting down";
    if (l->b.draining)
        return ERR_DRAINING;
    *text = "mode is 0 or 1, storage 0 to 3";
    if (n->mode > MODE_STREAM || n->storage > STORAGE_PROMPT)
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
    return l->b.now_ns + conf_wait_ns(l->b.c.conf, ms, otherwise);
}

static void fill_request(
    struct langd *l, struct lroom *m, const struct local_request *n)
{
    m->pool = n->pool;
    m->mode = n->mode;
    m->storage = n->storage;
    m->flags = n->flags & FLAG_KEEP;
    m->expected = n->rows;
    m->readers = n->readers;
    m->required = n->required_dst ? n->required_dst : 1;
    m->key = n->key;
    m->total_ns = deadline(l, n->deadline_ms, l->b.c.conf->timeout_total);
    m->bootstrap_ns = l->b.now_ns + l->b.c.conf->timeout_bootstrap;
    if (m->peer == NONE) { /* engines warm up with it */
        m->total = m->max_rows = 0;
        m->length_known = true;
        m->aux_state = LAUX_STORED;
    }
}

static enum err open_room(struct langd *l, uint32_t conn,
    const struct local_request *n, uint32_t peer, struct lroom **out,
    const char **text)
{
    uint32_t slot = table_get(&l->keys, n->room, peer);
    struct attachment *att;
    enum err e;

    *text = "the room is already open";
    if (slot != NONE && lroom_alive(&l->rooms[slot]))
        return ERR_DUPLICATE_ROOM;
    e = attachment_add(
        &l->b.engines, conn, n->cell, n->tag, RIGHT_READ, &att, text);
    if (e != OK)
        return e;
    *out = lroom_new(l, n->room, peer, l->b.engines.conns[conn].uid);
    *text = l->share.why;
    if (!*out) {
        attachment_drop(&l->b.engines, att);
        return ERR_BUSY;
    }
    /* Readers that attach from now on are of the new room. */
    tombs_forget(&l->left, n->room, peer);
    if (slot != NONE)
        lroom_no_readers(l, &l->rooms[slot]);
    fill_request(l, *out, n);
    if (n->group)
        group_join(l, *out, n, l->b.engines.conns[conn].session);
    att->owner = true;
    att->scope = peer;
    attachment_join(&l->b.engines, att, &(*out)->r);
    room_gather(
        &l->b.engines, &(*out)->r, l->b.engines.conns[conn].session, peer);
    group_joined(l, *out);
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
        p = find_encoder(l, out, n->encoder, &text);
        if (!p)
            e = ERR_NOT_READY;
    }
    if (e == OK)
        e = open_room(
            l, conn, n, p ? peer_index(&l->b.peers, p) : NONE, &m, &text);
    if (e != OK) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, e, 0, 0, "request of room %llu: %s",
            (unsigned long long)n->room, text);
        return;
    }
    out_answer(out, conn, msg->seq, OK,
        (l->pools[n->pool].hold_stream - 1) * l->pools[n->pool].block_rows, 0,
        "%s", "");
    grant_classify(l, m);
}

/* True if its rows were there, and went with the last that was to read them. */
static bool read_out(const struct lroom *m)
{
    return m->r.state == ROOM_SUCCESS && m->total > 0 && m->held.blocks == 0;
}

/* True if a reader comes for a room that waits for none any more. */
static bool too_late(struct langd *l, uint32_t session, uint32_t slot,
    uint64_t room, uint32_t scope)
{
    const struct tomb *t = tombs_get(&l->left, l->b.now_ns, room, scope);
    uint8_t missing;

    if (slot != NONE)
        return l->rooms[slot].no_readers || read_out(&l->rooms[slot]);
    if (!t || t->owner != session)
        return false;
    missing = t->state;
    tombs_forget(&l->left, room, scope);
    if (missing > 1) {
        tombs_put(&l->left, l->b.now_ns, room, scope, missing - 1, ERR_GONE);
        tombs_own(&l->left, room, scope, session, ERR_GONE);
    }
    return true;
}

static void on_attach(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_attach *n = &msg->attach;
    uint32_t session = l->b.engines.conns[conn].session, scope = NONE, slot;
    bool null = span_eq(n->encoder, span_str("null"));
    const char *text = "rights are 1 read, 4 watch";
    struct peer *p = null ? NULL : find_encoder(l, out, n->encoder, &text);
    struct attachment *att = NULL;
    enum err e = null || p ? OK : ERR_NOT_READY;

    if (e == OK && (n->rights & ~(RIGHT_READ | RIGHT_WATCH)))
        e = ERR_MALFORMED;
    if (p)
        scope = peer_index(&l->b.peers, p);
    slot = table_get(&l->keys, n->room, scope);
    if (e == OK && slot != NONE && l->rooms[slot].r.session != session) {
        text = "the room belongs to another engine";
        e = ERR_NOT_OWNER;
    } else if (e == OK && slot != NONE && room_crowded(&l->rooms[slot].r)) {
        text = "the room is in the maximum number of cells";
        e = ERR_QUOTA;
    } else if (e == OK && (n->rights & RIGHT_READ) &&
               too_late(l, session, slot, n->room, scope)) {
        text = "the room waits for no more readers: those of its request came, "
               "timeouts.consumer has passed since READY, or its owner ended "
               "the wait";
        e = ERR_GONE;
    }
    if (e == OK)
        e = attachment_add(
            &l->b.engines, conn, n->cell, n->tag, n->rights, &att, &text);
    if (e != OK) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, e, 0, 0, "attach to room %llu: %s",
            (unsigned long long)n->room, text);
        return;
    }
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
    att->scope = scope;
    if (slot != NONE)
        attachment_join(&l->b.engines, att, &l->rooms[slot].r);
    else
        attachment_wait(&l->b.engines, att, n->room, scope,
            deadline(l, n->deadline_ms, l->b.c.conf->timeout_bootstrap));
}

/* releases */

static void on_release(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_release *n = &msg->release;
    struct attachment *att =
        attachment_get(&l->b.engines, conn, n->cell, n->tag);
    struct lroom *m = att && att->room ? to_lroom(att->room) : NULL;

    if (!att) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, ERR_UNKNOWN_ROOM, 0, 0,
            "release: no room has cell %u and tag %u", n->cell, n->tag);
        return;
    }
    if ((n->flags & FLAG_NO_READERS) && (!m || !att->owner)) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, ERR_NOT_OWNER, 0, 0,
            "release: only the connection that requested the room ends the "
            "wait");
        return;
    }
    if (n->rows == ROWS_UNKNOWN) {
        if (m && att->owner && lroom_alive(m))
            lroom_fail(l, m, ERR_ABORTED, 0, 0, "released before it was ready");
        attachment_release(&l->b.engines, out, att);
    } else if (!m || !(att->rights & RIGHT_READ) || n->rows > m->exposed ||
               n->rows < att->released || m->r.state == ROOM_FAILED) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, ERR_MALFORMED, n->rows,
            m ? m->exposed : 0,
            "release of rows up to %u: %u are shown, %u were released", n->rows,
            m ? m->exposed : 0, att->released);
        return;
    } else {
        att->released = n->rows;
    }
    if (n->flags & FLAG_NO_READERS)
        lroom_no_readers(l, m);
    if (m)
        lroom_readers(l, out, m);
    out_ok(out, conn, msg->seq);
}

static void on_abort(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_abort *n = &msg->abort;
    struct attachment *att =
        attachment_get(&l->b.engines, conn, n->cell, n->tag);
    char text[128];

    if (!att) {
        l->b.stats[STAT_refused]++;
        out_answer(out, conn, msg->seq, ERR_UNKNOWN_ROOM, 0, 0,
            "abort: no room has cell %u and tag %u", n->cell, n->tag);
        return;
    }
    text_copy(n->text, text, sizeof(text));
    if (att->room)
        lroom_fail(l, to_lroom(att->room),
            n->reason && n->reason < ERR_COUNT ? (enum err)n->reason
                                               : ERR_ABORTED,
            0, 0, text);
    else
        attachment_fail(&l->b.engines, out, att, ERR_ABORTED);
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
}

static void on_decline(struct langd *l, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const char *text = "the encoder is not connected";
    struct peer *p = find_encoder(l, out, msg->decline.encoder, &text);
    struct peer_msg d = {.type = PEER_DECLINE, .room = msg->decline.room};

    if (p)
        text = "the encoder is not connected";
    if (p && !p->up && p->link == NONE)
        langd_connect(l, out, p);
    if (!p || !p->up) {
        out_answer(
            out, conn, msg->seq, ERR_NOT_READY, 0, 0, "decline: %s", text);
        return;
    }
    d.decline.key = msg->decline.key;
    d.decline.who = l->b.engines.conns[conn].uid + 1;
    peer_send(&l->b.peers, out, p, &d);
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
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
        out_answer(out, conn, m->seq, OK, a, b, "%s", "");
        return;
    }
    l->b.stats[STAT_refused]++;
    out_answer(out, conn, m->seq, e, 0, 0, "%s: %s", local_name(m->type), text);
}

void langd_on_local(
    struct langd *l, struct out *out, uint32_t conn, const struct local_msg *m)
{
    struct conn *c = &l->b.engines.conns[conn];

    if (m->type == LOCAL_HELLO) {
        call_hello(&l->b, out, conn, m);
        return;
    }
    if (c->state != CONN_READY) {
        out_answer(out, conn, m->seq, ERR_NOT_READY, 0, 0, "%s before hello",
            local_name(m->type));
        return;
    }
    switch (m->type) {
    case LOCAL_POOL:
        call_pool(&l->b, out, conn, m);
        break;
    case LOCAL_REQUEST:
        on_request(l, out, conn, m);
        break;
    case LOCAL_ATTACH:
        on_attach(l, out, conn, m);
        break;
    case LOCAL_RELEASE:
        on_release(l, out, conn, m);
        break;
    case LOCAL_ABORT:
        on_abort(l, out, conn, m);
        break;
    case LOCAL_DECLINE:
        on_decline(l, out, conn, m);
        break;
    case LOCAL_SPACE:
    case LOCAL_TICKET:
    case LOCAL_TICKET_QUERY:
    case LOCAL_TICKET_RELEASE:
        on_ticket(l, out, conn, m);
        break;
    case LOCAL_BYE:
        c->bye = true;
        out_answer(out, conn, m->seq, OK, 0, 0, "%s", "");
        out_action(out, ACT_CONN_CLOSE)->conn = conn;
        engine_end(&l->b.engines, conn, l->b.now_ns);
        break;
    default:
        l->b.stats[STAT_malformed_local]++;
        out_answer(out, conn, m->seq, ERR_MALFORMED, 0, 0,
            "%s is not for mmx-langd", local_name(m->type));
    }
}

/* events */

bool langd_fill_event(void *brain, const struct attachment *att,
    struct local_event *n, struct writer *w)
{
    struct langd *l = brain;
    const struct lroom *m;

    if (!att->room)
        return false;
    m = to_lroom(att->room);
    n->storage = m->item_storage;
    n->generation = m->generation;
    n->first = m->base;
    n->rows = m->exposed;
    n->total = m->total;
    n->pool = m->pool;
    if (att->pending & (EVENT_LENGTH | EVENT_READY))
        n->aux = aux_get(&l->b.aux, &m->aux, l->scratch);
    if (att->pending & (EVENT_LANDED | EVENT_READY))
        pool_put_runs(&l->pools[m->pool].p, &m->held, w);
    return att->rights & RIGHT_READ;
}

bool langd_next_event(void *brain, uint32_t conn, struct writer *out)
{
    return tickets_next_event(&((struct langd *)brain)->tickets, conn, out);
}
