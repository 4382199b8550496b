/* say.c - the messages of langd to encoders about rooms (RULES 1, 2). Owned by
 * the loop's thread. Every request has the present state and is repeated until
 * it is answered. */
#include "core/lang/lang.h"

void say_connect(struct langd *l, struct out *out, struct peer *p)
{
    size_t at = out->bytes.len, len = strlen(p->address);
    const char *name = p->l.configured ? p->label : "";
    struct action *a;

    CHECK(len > 0, "peer %s has no address", p->label);
    peer_move(p, PEER_CONNECTING);
    put_bytes(&out->bytes, p->address, len);
    put_bytes(&out->bytes, name, strlen(name));
    p->link = peer_index(&l->b.peers, p);
    l->b.peers.link_peer[p->link] = p->link;
    a = out_action(out, ACT_CONNECT);
    a->link = p->link;
    a->at = (uint32_t)at;
    a->len = (uint32_t)len;
    a->word = strlen(name);
    peer_awaited(&l->b.peers, p, l->b.now_ns);
}

static struct peer_msg about(const struct lroom *m, enum peer_type type)
{
    return (struct peer_msg){
        .type = type, .room = m->r.id, .generation = m->generation};
}

/* Sends a message about the room. rows: the rows that it is about. */
static void tell(struct langd *l, struct out *out, const struct lroom *m,
    const struct peer *p, struct peer_msg *msg, uint32_t rows)
{
    peer_send(&l->b.peers, out, p, msg);
    happened_message(&l->b, HAPPENED_SENT, msg, m ? m->uid : NONE,
        m ? m->peer : peer_index(&l->b.peers, p), rows);
}

struct span say_groups(const struct conn *c, uint8_t bytes[GROUPS_BYTES])
{
    struct writer w = writer_of(bytes, GROUPS_BYTES);

    put_u32(&w, c->gid);
    for (uint32_t i = 0; i < c->groups.count && w.len < w.cap; i++)
        put_u32(&w, c->groups.ids[i]);
    return span_of(bytes, (uint32_t)w.len);
}

/* Returns the connection that requested the room, or if it has gone, another
 * one with the room attached, which has the same user. NULL: all have gone. */
static const struct conn *owner(const struct langd *l, const struct lroom *m)
{
    const struct attachment *any = NULL;

    LIST_FOREACH (n, &m->r.attachments) {
        const struct attachment *att =
            LIST_ENTRY(n, struct attachment, in_room);

        if (!any || att->owner)
            any = att;
    }
    return any ? &l->b.engines.conns[any->conn] : NULL;
}

/* The user that asks for a room, as sent to its encoder. */
struct asker {
    uint32_t who;     /* user id plus 1; 0: not given */
    struct span gids; /* in bytes; empty if all its connections have gone */
    struct secret secret;
    uint8_t bytes[GROUPS_BYTES];
};

static void take_asker(const struct langd *l, const struct lroom *m,
    const struct peer *p, struct asker *a)
{
    const struct conn *c = owner(l, m);

    CHECK(!c || c->uid == m->uid, "room ..%08x of user %u is shown to user %u",
        (uint32_t)m->r.id, m->uid, c->uid);
    a->who = 0;
    a->gids = span_of(NULL, 0);
    a->secret = m->secret;
    if (!p->same_host)
        return;
    a->who = m->uid + 1;
    if (c)
        a->gids = say_groups(c, a->bytes);
}

static void say_grant(struct langd *l, struct out *out, struct lroom *m,
    struct peer *p, bool again)
{
    const struct lpool *pool = lroom_pool(l, m);
    struct peer_msg msg =
        about(m, m->init == INIT_CONFIRMED ? PEER_RESUME : PEER_INIT);
    uint8_t firm = grant_firmness(l, m);
    struct asker a;

    CHECK(lroom_alive(m) && m->life != LIFE_CLOSING,
        "a grant of room ..%08x, life %u, is said", (uint32_t)m->r.id, m->life);
    if (m->init == INIT_CONFIRMED) {
        msg.resume.attempt = m->attempt;
        msg.resume.granted = m->granted;
        msg.resume.from = m->from;
        msg.resume.firm = firm;
        if (!again) {
            l->b.stats[STAT_resumes]++;
            m->history.resumes++;
            m->history.resumed_ns = l->b.now_ns;
        }
    } else {
        msg.init.layout = pool->meta->layout.hash;
        msg.init.attempt = m->attempt;
        msg.init.granted = m->granted;
        msg.init.from = m->from;
        msg.init.unit_rows = pool->unit_rows;
        msg.init.part_rows = pool->part_rows;
        msg.init.required_dst = m->required;
        msg.init.storage = m->storage;
        msg.init.flags =
            (uint8_t)(m->flags | (m->mode == MODE_STREAM ? FLAG_STREAM : 0) |
                      (m->hopes ? FLAG_LEND : 0));
        msg.init.key = m->key;
        msg.init.firm = firm;
        take_asker(l, m, p, &a);
        msg.init.who = a.who;
        msg.init.gids = a.gids;
        msg.init.secret = a.secret;
        msg.init.traceparent = span_str(m->history.traceparent);
        msg.init.turn = m->age;
        if (!m->history.init_ns)
            m->history.init_ns = l->b.now_ns;
    }
    tell(l, out, m, p, &msg, m->granted);
    m->init = (uint8_t)max_u32(m->init, INIT_SENT);
    m->sent_attempt = m->attempt;
    m->sent_granted = m->granted;
    m->sent_firm = firm;
}

static void say_ack(
    struct langd *l, struct out *out, struct lroom *m, struct peer *p)
{
    struct peer_msg msg = about(m, PEER_ACK);

    CHECK(m->r.state == ROOM_SUCCESS, "room ..%08x of state %u has all rows",
        (uint32_t)m->r.id, m->r.state);
    tell(l, out, m, p, &msg, m->total);
    /* May wait for the engine's READY: on a single core, the packet's receiver
     * would run before the engine. */
    out_coalesce(out);
}

static void say_abort(
    struct langd *l, struct out *out, struct lroom *m, struct peer *p)
{
    struct peer_msg msg = about(m, PEER_ABORT);
    struct asker a;

    CHECK(m->r.state == ROOM_FAILED && lroom_still(m),
        "room ..%08x of state %u, life %u, is aborted", (uint32_t)m->r.id,
        m->r.state, m->life);
    take_asker(l, m, p, &a);
    msg.abort.reason = m->r.reason;
    msg.abort.text = span_str(m->r.text);
    msg.abort.who = a.who;
    msg.abort.gids = a.gids;
    msg.abort.secret = a.secret;
    tell(l, out, m, p, &msg, ROWS_UNKNOWN);
}

/* Asks for the aux again, now that there is space. */
static void say_aux(
    struct langd *l, struct out *out, struct lroom *m, struct peer *p)
{
    struct peer_msg msg = about(m, PEER_STATE);

    CHECK(lroom_alive(m) && m->aux_state == LAUX_LACKING,
        "room ..%08x of state %u asks for aux", (uint32_t)m->r.id, m->r.state);
    msg.state.answers = PEER_LENGTH;
    msg.state.state = m->r.state;
    msg.state.attempt = m->attempt;
    msg.state.granted = m->granted;
    msg.state.total = m->total;
    tell(l, out, m, p, &msg, ROWS_UNKNOWN);
}

/* Answers the FAILED (or similar) that waited until no row of the room could
 * land. */
static void say_outcome(
    struct langd *l, struct out *out, struct lroom *m, struct peer *p)
{
    struct peer_msg msg = about(m, PEER_STATE);

    CHECK(m->r.state == ROOM_FAILED && lroom_still(m),
        "the end of room ..%08x, state %u, life %u, is said", (uint32_t)m->r.id,
        m->r.state, m->life);
    m->answer_due = false;
    msg.state.answers = PEER_FAILED;
    msg.state.state = m->r.state;
    msg.state.reason = m->r.reason;
    msg.state.total = ROWS_UNKNOWN;
    tell(l, out, m, p, &msg, ROWS_UNKNOWN);
}

/* Answers a LENGTH that no ACK has answered meanwhile. */
static void say_known(
    struct langd *l, struct out *out, struct lroom *m, struct peer *p)
{
    struct peer_msg in = {
        .type = PEER_LENGTH, .room = m->r.id, .generation = m->generation};

    CHECK(p && lroom_alive(m), "room ..%08x of state %u answers a LENGTH",
        (uint32_t)m->r.id, m->r.state);
    m->answer_ns = TIME_NEVER;
    if (peer_up(p)) /* otherwise LENGTH comes again */
        say_state(l, out, p, &in, m, NULL);
}

void say_room(struct langd *l, struct out *out, struct lroom *m)
{
    struct peer *p = lroom_peer(l, m);
    bool again;

    if (p && peer_up(p) && m->answer_due && lroom_still(m))
        say_outcome(l, out, m, p);
    if (m->answer_ns <= l->b.now_ns)
        say_known(l, out, m, p);
    if (!m->debt.owe || !p)
        return;
    if (!peer_up(p)) {
        m->debt.retry_ns = TIME_NEVER; /* until HELLO */
        if (p->life == PEER_NAMED)
            say_connect(l, out, p);
        return;
    }
    if (m->debt.owe & OWE_ABORT && !lroom_still(m)) {
        m->debt.retry_ns = TIME_NEVER; /* until lroom_quiet */
        return;
    }
    if (!debt_due(&m->debt, l->b.now_ns, l->b.c.conf->timeout_retry, &again))
        return;
    l->b.stats[STAT_retries] += again;
    if (m->debt.owe & OWE_GRANT && m->life != LIFE_CLOSING)
        say_grant(l, out, m, p, again);
    if (m->debt.owe & OWE_AUX)
        say_aux(l, out, m, p);
    if (m->debt.owe & OWE_ACK)
        say_ack(l, out, m, p);
    if (m->debt.owe & OWE_RETURN) {
        struct peer_msg msg = about(m, PEER_RETURN);

        tell(l, out, m, p, &msg, ROWS_UNKNOWN);
    }
    if (m->debt.owe & OWE_ABORT) {
        say_abort(l, out, m, p);
        if (++m->aborts == ABORTS_MAX) { /* DRAINED would change nothing here */
            l->b.stats[STAT_aborts_unanswered]++;
            debt_paid(&m->debt, OWE_ABORT);
        }
    }
}

void say_state(struct langd *l, struct out *out, struct peer *p,
    const struct peer_msg *in, const struct lroom *m, const struct tomb *tomb)
{
    struct peer_msg msg = {
        .type = PEER_STATE, .room = in->room, .generation = in->generation};

    msg.state.answers = (uint8_t)in->type;
    msg.state.total = ROWS_UNKNOWN;
    if (m) {
        msg.state.state = m->r.state;
        msg.state.reason = m->r.reason;
        msg.state.attempt = m->attempt;
        msg.state.granted = m->granted;
        msg.state.total = m->total;
        msg.state.flags =
            (m->aux_state == LAUX_STORED ? FLAG_AUX : 0) |
            (m->lent_runs.len > 0 && m->r.state != ROOM_FAILED ? FLAG_HELD : 0);
        if (in->type == PEER_LENGTH && lroom_alive(m) && lroom_lacks_aux(m))
            msg.state.reason = ERR_NO_BLOCKS;
        msg.state.firm = grant_firmness(l, m);
    } else if (tomb) {
        msg.state.state = tomb->state;
        msg.state.reason = tomb->reason;
    } else {
        /* A generation unknown to this epoch was never READY: a READY room is
         * kept until its ACK is answered. */
        msg.state.state = ROOM_FAILED;
        msg.state.reason = ERR_STALE;
    }
    tell(l, out, m, p, &msg, m ? m->granted : ROWS_UNKNOWN);
}
