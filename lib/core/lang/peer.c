/* peer.c - messages of encoders (RULES 1, 2). Owned by the loop's thread.
 * Answers are believed only for the present generation and attempt. say.c has
 * the messages of langd. */
#include "core/lang/lang.h"

#include "base/text.h"

#include <stdio.h>

/* peers */

static void unmap_pools(struct langd *l, struct out *out, struct peer *p)
{
    if (p->l.map_asked)
        out_action(out, ACT_UNMAP)->index = peer_index(&l->b.peers, p);
    p->l.map_asked = false;
    p->mapped = 0;
    p->l.map_token = 0;
}

/* Maps the pools of a daemon on this host that offers them, so that rows are
 * copied instead of sent. Until they are mapped, or if that fails, rows are
 * sent. */
static void map_pools(struct langd *l, struct out *out, struct peer *p,
    const struct peer_hello *n)
{
    size_t at = out->bytes.len;
    struct action *a;

    if (!p->same_host || !n->token || n->socket.len == 0 ||
        l->b.c.conf->transfer_same_host == SAME_HOST_OFF ||
        (p->l.map_asked && p->l.map_token == n->token))
        return;
    unmap_pools(l, out, p);
    put_bytes(&out->bytes, n->socket.p, n->socket.len);
    a = out_action(out, ACT_MAP);
    a->index = peer_index(&l->b.peers, p);
    a->at = (uint32_t)at;
    a->len = n->socket.len;
    a->word = p->l.map_token = n->token;
    p->l.map_asked = true;
    p->l.map_why = NULL;
}

void langd_on_map(struct langd *l, struct out *out, const struct event *ev)
{
    struct peer *p = &l->b.peers.peers[ev->peer_at];

    CHECK(ev->peer_at < l->b.peers.max, "map of peer %u", ev->peer_at);
    if (!p->l.map_asked)
        return;
    p->l.map_asked = ev->err == OK;
    p->mapped = ev->mapped;
    lender_open(l, p);
    p->l.map_why = ev->static_why ? ev->static_why : p->l.map_why;
    peer_look(&l->b.peers, out, p, l->b.now_ns);
    if (peer_up(p))
        peer_hello(&l->b.peers, out, p->link, p->epoch, true);
}

static void lost(void *brain, struct out *out, struct peer *p, bool restarted)
{
    struct langd *l = brain;

    LIST_FOREACH (n, &p->rooms) {
        struct lroom *m = LIST_ENTRY(n, struct lroom, in_peer);

        CHECK(lroom_peer(l, m) == p, "room ..%08x is of peer %u",
            (uint32_t)m->r.id, m->peer);
        if (m->refused && m->init == INIT_SENT)
            m->init = INIT_DUE;
        m->refused = false;
        lroom_touch(l, m);
        if (m->init == INIT_DUE && lroom_alive(m))
            continue; /* the peer was sent no INIT of the room, or refused it */
        lroom_fail(l, m, ERR_PEER_LOST, 0, 0, "the encoder daemon is gone");
        if (restarted)
            m->debt.owe = 0;
        else if (m->debt.owe)
            m->forget_ns =
                l->b.now_ns + (m->init == INIT_DUE ? GIVE_UP_NS : FORGET_NS);
    }
    unmap_pools(l, out, p);
    if (restarted)
        lender_gone(p);
}

/* Rooms whose INIT was not sent end when they settle. The others ended when the
 * peer was lost. */
static void unreachable(void *brain, struct peer *p)
{
    LIST_FOREACH (n, &p->rooms)
        lroom_touch(brain, LIST_ENTRY(n, struct lroom, in_peer));
}

/* New rooms need another encoder, which is connected before they come. */
static void drains(void *brain, struct out *out)
{
    named_seek(brain, out);
}

static void greeted(void *brain, struct out *out, uint32_t link, struct peer *p,
    const struct peer_msg *m, bool was_up)
{
    struct langd *l = brain;

    CHECK(
        p->link == link, "HELLO on link %u, the peer is on %u", link, p->link);
    map_pools(l, out, p, &m->hello);
    lender_take(l, p, &m->hello);
    peer_look(&l->b.peers, out, p, l->b.now_ns);
    declines_serve(l, out, p);
    LIST_FOREACH (n, &p->rooms) {
        struct lroom *r = LIST_ENTRY(n, struct lroom, in_peer);

        CHECK_ROOM(r);
        /* The peer may have ended the room meanwhile. A repeated grant makes it
         * answer with STATE or FAILED. */
        if (!was_up && r->init != INIT_DUE && lroom_alive(r))
            r->debt.owe |= OWE_GRANT;
        r->stale = r->aborts = 0;
        debt_renew(&r->debt);
        r->forget_ns = TIME_NEVER;
        lroom_touch(l, r);
    }
}

const struct peers_ops langd_peers = {
    .greets = true,
    .greeted = greeted,
    .drains = drains,
    .lost = lost,
    .unreachable = unreachable,
    .spare = named_spare,
    .gives_way = named_gives_way,
};

/* hearing */

/* Records the grant that an answer of its encoder shows. */
static void confirmed(
    struct lroom *m, uint32_t attempt, uint32_t granted, uint8_t firm)
{
    if (attempt != m->sent_attempt || granted < m->sent_granted ||
        m->init == INIT_DUE)
        return;
    m->init = INIT_CONFIRMED;
    m->stale = 0;
    if (m->sent_attempt == m->attempt && m->sent_granted == m->granted &&
        firm >= m->sent_firm)
        debt_paid(&m->debt, OWE_GRANT);
}

/* Stores the numbers of a LENGTH. Returns OK, or why the room must fail. */
static enum err take_length(struct langd *l, struct lroom *m,
    const struct peer_length *n, const char **text)
{
    const struct lpool *p = lroom_pool(l, m);

    *text = "storage or key differ from the announced ones";
    if (m->storage && n->storage != m->storage)
        return ERR_ITEM_MISMATCH;
    if (!key_eq(&m->key, &n->key))
        return ERR_ITEM_MISMATCH;
    *text = "the total changed after it was set";
    if (m->total != ROWS_UNKNOWN && n->total != ROWS_UNKNOWN &&
        n->total != m->total)
        return ERR_MALFORMED;
    *text = "the total is above max_rows";
    if (n->total != ROWS_UNKNOWN && n->total > n->max_rows)
        return ERR_MALFORMED;
    *text = "the total is below rows that were sent, or too large to count";
    if ((n->total != ROWS_UNKNOWN && n->total < m->highest) ||
        n->max_rows > ROWS_UNKNOWN - p->block_rows)
        return ERR_MALFORMED;
    *text = "max_rows shrank below the rows that have blocks";
    if (m->length_known && m->total == ROWS_UNKNOWN &&
        n->total == ROWS_UNKNOWN && n->max_rows < m->max_rows &&
        n->max_rows < m->granted)
        return ERR_MALFORMED;
    if (!m->length_known)
        m->history.length_ns = l->b.now_ns;
    m->length_known = true;
    m->bootstrap_ns = TIME_NEVER;
    m->item_storage = n->storage;
    m->max_rows = n->max_rows;
    m->committed = max_u32(m->committed, min_u32(n->committed, n->max_rows));
    if (n->total != ROWS_UNKNOWN)
        m->total = n->total;
    return OK;
}

/* Fails the room, or its group, if the pool cannot hold this number of rows for
 * one room. True if the room is still alive. */
static bool fits(struct langd *l, struct lroom *m, uint32_t rows)
{
    const struct lpool *p = lroom_pool(l, m);

    if (m->mode == MODE_WHOLE && div_up(rows, p->block_rows) > p->cap_whole)
        lroom_fail(l, m, ERR_TOO_LARGE, rows, p->cap_whole * p->block_rows,
            "the item is larger than the pool lets one room hold");
    lroom_check_group(l, m);
    return lroom_alive(m);
}

static void on_length(struct langd *l, struct out *out, struct lroom *m,
    const struct peer_msg *msg)
{
    const struct peer_length *n = &msg->length;
    bool first = !m->length_known;
    const char *text;
    enum err e;

    confirmed(m, n->attempt, n->granted, n->firm);
    if (n->traceparent.len)
        trace_context(&l->b, &m->r, &m->history, n->traceparent, true);
    if (m->aux_state != LAUX_STORED && (n->flags & FLAG_AUX)) {
        laux_take(l, m, n->aux);
        first = m->aux_state == LAUX_STORED;
    }
    e = take_length(l, m, n, &text);
    if (e != OK)
        lroom_fail(l, m, e, n->total, m->total, text);
    if (fits(l, m, m->total == ROWS_UNKNOWN ? m->committed : m->total) && first)
        room_notify(&l->b.engines, out, &m->r, EVENT_LENGTH);
    lroom_measure(l, m);
    lroom_touch(l, m);
}

static void on_want(struct langd *l, struct lroom *m, const struct peer_want *n)
{
    if (n->attempt != m->attempt) {
        l->b.stats[STAT_stale_attempt]++;
        return;
    }
    if (m->hopes)
        lroom_despair(l, m);
    /* With several destinations, or ahead of the rows, `committed` is the
     * number of rows to grant. LENGTH may come later. */
    if (m->required <= 1 && !n->ahead)
        m->committed = max_u32(m->committed, n->committed);
    else
        m->expected = max_u32(m->expected, n->committed);
    if (m->max_rows != ROWS_UNKNOWN)
        m->committed = min_u32(m->committed, m->max_rows);
    if (!fits(l, m, m->committed))
        return;
    if (n->granted >= m->granted && !m->want) {
        m->want = true;
        l->b.stats[STAT_wants]++;
    }
    lroom_touch(l, m);
}

/* Returns for how long breaks at a peer count as one outage. */
static uint64_t outage_of(const struct conf *c)
{
    return max_u64(c->transfer_stall, RETRY_MAX_NS);
}

/* Counts a break; returns the number of outages so far. Each shard of an
 * encoder notices an outage at its own time, and a refused endpoint breaks at
 * every try. So a break within outage_of() after the last counted one belongs
 * to the same outage, and every try after the first waits. */
static uint32_t outage(struct langd *l, struct lroom *m)
{
    const struct conf *c = l->b.c.conf;
    uint64_t patience = outage_of(c);

    if (m->broken == 0 || l->b.now_ns - m->broken_ns >= patience)
        m->pause_for = 0;
    m->pause_ns = l->b.now_ns + m->pause_for;
    m->pause_for = m->pause_for ? min_u64(2 * m->pause_for, RETRY_MAX_NS)
                                : c->timeout_retry;
    m->broken_ns = l->b.now_ns;
    if (m->outage_ns == TIME_NEVER)
        m->outage_ns = l->b.now_ns + c->timeout_progress;
    if (m->broken > 0 && l->b.now_ns - m->counted_ns < patience)
        return m->broken;
    m->counted_ns = l->b.now_ns;
    return ++m->broken;
}

static void on_broken(struct langd *l, struct out *out, struct lroom *m,
    const struct peer_broken *n)
{
    struct peer *p = lroom_peer(l, m);

    if (n->attempt != m->attempt || lroom_closing(m)) {
        l->b.stats[STAT_stale_attempt]++;
        return;
    }
    if (n->back && m->required > 1 && m->exposed == 0) {
        grant_restart(l, out, m, 0);
        return;
    }
    l->b.stats[STAT_broken]++;
    /* No WANT covered the rows of the first grant. */
    m->committed = max_u32(m->committed, min_u32(n->committed, m->max_rows));
    if (!fits(l, m, m->committed))
        return;
    debt_paid(&m->debt, OWE_GRANT);
    /* Sends our data addresses again: a shard may have a new one. */
    if (peer_carrier_broke(
            &l->b.peers, out, p, l->b.now_ns, outage_of(l->b.c.conf)) ||
        p->hello_ns == TIME_NEVER)
        peer_hello_until_up(&l->b.peers, out, p, l->b.now_ns);
    if (outage(l, m) > ATTEMPTS_MAX) {
        lroom_lost(l, m, "the data endpoint broke too often");
        return;
    }
    /* Rows in flight are lost. The room keeps its blocks, so that it need not
     * queue again. */
    grant_restart(l, out, m, m->held.blocks);
}

/* True if a message answers a grant. */
static bool of_grant(uint8_t answers)
{
    return answers == PEER_INIT || answers == PEER_RESUME;
}

static void on_state(struct lroom *m, const struct peer_state *n)
{
    if (of_grant(n->answers) && n->state != ROOM_FAILED)
        confirmed(m, n->attempt, n->granted, n->firm);
}

static void on_nack(struct langd *l, struct lroom *m, const struct peer_nack *n)
{
    if (!of_grant(n->answers))
        return;
    m->refused |= n->reason == ERR_DRAINING;
    /* An encoder does not restart a generation that it may have known: rows of
     * a later announce would mix with those here. So the room ends. */
    if (n->reason == ERR_STALE && ++m->stale < STALE_MAX)
        return;
    if (n->reason == ERR_STALE)
        lroom_fail(
            l, m, ERR_STALE, 0, 0, "the encoder no longer knows the room");
    else if (n->reason != ERR_NO_BLOCKS && n->reason != ERR_BUSY &&
             n->reason != ERR_DRAINING)
        lroom_fail(l, m,
            n->reason && n->reason < ERR_COUNT ? (enum err)n->reason
                                               : ERR_INTERNAL,
            0, 0, "the encoder refused the request");
}

static void on_alive(struct langd *l, struct out *out, struct lroom *m,
    const struct peer_msg *msg)
{
    struct lgroup *g = NULL;
    char text[128];

    switch (msg->type) {
    case PEER_LENGTH:
        on_length(l, out, m, msg);
        break;
    case PEER_WANT:
        on_want(l, m, &msg->want);
        break;
    case PEER_LEND:
        lroom_on_lend(l, m, &msg->lend);
        break;
    case PEER_BROKEN:
        on_broken(l, out, m, &msg->broken);
        break;
    case PEER_FAILED:
        text_copy(msg->failed.text, text, sizeof(text));
        debt_paid(&m->debt, OWE_GRANT);
        if (msg->failed.reason == ERR_NO_BLOCKS)
            g = m->group;
        lroom_fail(l, m,
            msg->failed.reason && msg->failed.reason < ERR_COUNT
                ? (enum err)msg->failed.reason
                : ERR_INTERNAL,
            msg->failed.a, msg->failed.b, text);
        debt_paid(&m->debt, OWE_ABORT);
        if (g) /* the other members hold the blocks that it waited for */
            lroom_place_lost(l, g);
        break;
    default:
        break;
    }
}

static bool wants_state(enum peer_type type)
{
    return type == PEER_LENGTH || type == PEER_WANT || type == PEER_BROKEN ||
           type == PEER_FAILED || type == PEER_LEND;
}

/* True if the answer may wait because an ACK may follow soon and say more. Only
 * for the first LENGTH, and only if it needs nothing else. */
static bool answers_late(
    const struct langd *l, struct lroom *m, const struct peer_msg *msg)
{
    bool late = msg->type == PEER_LENGTH && m->answer_ns == TIME_NEVER &&
                lroom_alive(m) && m->total != ROWS_UNKNOWN &&
                m->aux_state == LAUX_STORED;

    if (late)
        m->answer_ns = l->b.now_ns + debt_answer_ns(l->b.c.conf->timeout_retry);
    else if (msg->type == PEER_LENGTH)
        m->answer_ns = TIME_NEVER;
    return late;
}

/* Handles ACKED. A room that has not ended settles later. */
static void on_acked(struct langd *l, const struct peer *p, struct span of)
{
    struct reader r = reader_of(of.p, of.len);

    while (r.at < r.len) {
        uint64_t generation = get_u64(&r);
        struct lroom *m = &l->rooms[generation % l->rooms_max];

        if (!m->r.used || m->generation != generation || lroom_peer(l, m) != p)
            continue;
        debt_paid(&m->debt, OWE_ACK);
        if (m->life == LIFE_OWED)
            lroom_paid(l, m);
    }
}

bool langd_peer(
    void *brain, struct out *out, struct peer *p, const struct peer_msg *msg)
{
    struct langd *l = brain;
    struct lroom *m = &l->rooms[msg->generation % l->rooms_max];

    if (msg->type == PEER_ACKED && msg->acked.generations.len % 8 == 0) {
        happened_message(&l->b, HAPPENED_GOT, msg, NONE,
            peer_index(&l->b.peers, p), ROWS_UNKNOWN);
        on_acked(l, p, msg->acked.generations);
        return true;
    }
    if (!wants_state(msg->type) && msg->type != PEER_STATE &&
        msg->type != PEER_NACK && msg->type != PEER_DRAINED)
        return false;
    if (!m->r.used || m->generation != msg->generation ||
        lroom_peer(l, m) != p) {
        if (wants_state(msg->type)) {
            l->b.stats[STAT_stale_generation]++;
            say_state(l, out, p, msg, NULL,
                memory_get(&l->tombs, l->b.now_ns, msg->generation, 0));
        }
        return true;
    }
    if (msg->type == PEER_LENGTH && !m->length_known)
        happened_message(
            &l->b, HAPPENED_LENGTH, msg, m->uid, m->peer, msg->length.total);
    else
        happened_message(
            &l->b, HAPPENED_GOT, msg, m->uid, m->peer, ROWS_UNKNOWN);
    if (msg->type == PEER_STATE)
        on_state(m, &msg->state);
    else if (msg->type == PEER_NACK)
        on_nack(l, m, &msg->nack);
    else if (msg->type == PEER_DRAINED)
        debt_paid(&m->debt, OWE_ABORT | OWE_RETURN);
    else if (lroom_alive(m))
        on_alive(l, out, m, msg);
    /* A FAILED is answered only when no copy reads the encoder's rows. */
    if (wants_state(msg->type) && m->r.state == ROOM_FAILED && !lroom_still(m))
        m->answer_due = true;
    else if (wants_state(msg->type) && !answers_late(l, m, msg))
        say_state(l, out, p, msg, m, NULL);
    lroom_touch(l, m);
    return true;
}
