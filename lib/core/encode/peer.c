/* peer.c - messages of langd daemons about rooms (RULES 1, 2). Owned by the
 * loop's thread. A message creates at most one record, in a bounded table. A
 * message about an unknown generation is answered but not remembered. */
#include "core/encode/encode.h"

#include "base/text.h"

#include <stdio.h>

/* answers */

static struct peer_msg reply(const struct peer_msg *in, enum peer_type type)
{
    return (struct peer_msg){
        .type = type, .room = in->room, .generation = in->generation};
}

/* Sends a message about a generation that has no record here. */
static void tell(struct encoded *e, struct out *out, const struct peer *p,
    struct peer_msg *msg)
{
    peer_send(&e->b.peers, out, p, msg);
    happened_message(&e->b, HAPPENED_SENT, msg, NONE,
        peer_index(&e->b.peers, p), ROWS_UNKNOWN);
}

/* Answers by STATE that L has all rows. */
static void say_success(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *in)
{
    struct peer_msg msg = reply(in, PEER_STATE);

    msg.state.answers = (uint8_t)in->type;
    msg.state.state = ROOM_SUCCESS;
    msg.state.total = ROWS_UNKNOWN;
    tell(e, out, p, &msg);
}

static void say_failed(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *in, enum err reason, uint32_t a, uint32_t b,
    const char *text)
{
    struct peer_msg msg = reply(in, PEER_FAILED);

    msg.failed.reason = (uint8_t)reason;
    msg.failed.a = a;
    msg.failed.b = b;
    msg.failed.text = span_str(text);
    tell(e, out, p, &msg);
}

/* Refuses a generation for good: later messages about it get this answer. */
static void refuse(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *in, enum err reason, uint32_t a, uint32_t b,
    const char *text)
{
    gens_end(e, p, in->generation, reason);
    say_failed(e, out, p, in, reason, a, b, text);
}

/* Answers a message about a generation that has no record here. */
static void answer_unknown(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *in)
{
    const struct tomb *t =
        memory_get(&e->ended_gens, e->b.now_ns, in->generation, p->e.run);
    struct peer_msg drained = reply(in, PEER_DRAINED);

    e->b.stats[STAT_stale_generation]++;
    if (in->type == PEER_ABORT) {
        if (!t) /* its INIT may still come */
            gens_end(e, p, in->generation, ERR_ABORTED);
        tell(e, out, p, &drained);
    } else if (t && t->state == ROOM_SUCCESS)
        say_success(e, out, p, in);
    else if (t)
        say_failed(e, out, p, in, (enum err)t->reason, 0, 0,
            err_text((enum err)t->reason));
    else
        peer_nack(&e->b.peers, out, p->link, in, ERR_STALE,
            "no such generation here");
}

/* grants */

static void take_firm(struct encoded *e, struct edst *d, uint8_t firm)
{
    d->firm = firm;
    edst_touch(e, d);
    eroom_touch(e, d->room); /* it may get its source blocks now */
    edsts_touch(e, d->room); /* another destination may be asked now */
}

/* Applies the grant of an INIT or RESUME; false: its numbers are invalid. */
static bool apply_grant(struct encoded *e, struct out *out, struct edst *d,
    uint32_t attempt, uint32_t granted, uint32_t from, uint8_t firm)
{
    CHECK(d->state == DST_NEW || d->state == DST_ACTIVE,
        "a grant for destination %u of state %u", edst_slot(e, d), d->state);
    if (granted == ROWS_UNKNOWN || from > granted)
        return false;
    if (attempt < d->attempt || (attempt == d->attempt && d->state != DST_NEW &&
                                    granted <= d->granted)) {
        if (attempt < d->attempt)
            e->b.stats[STAT_stale_attempt]++;
        else if (firm <= d->firm)
            e->b.stats[STAT_duplicates]++;
        else
            take_firm(e, d, firm);
        return true;
    }
    if (granted > 0) /* L does not take the rows that it was lent */
        edst_unlend(e, out, d);
    if (attempt > d->attempt || d->state == DST_NEW)
        d->from = from;
    if (d->state != DST_NEW) {
        d->room->history.resumes++;
        d->room->history.resumed_ns = e->b.now_ns;
        e->b.stats[STAT_resumes]++;
    }
    d->room->history.attempts = max_u32(d->room->history.attempts, attempt + 1);
    if (d->state == DST_NEW)
        edst_move(e, d, DST_ACTIVE);
    d->attempt = attempt;
    d->granted = granted;
    take_firm(e, d, firm);
    return true;
}

/* Returns OK if the INIT can become a destination of the room, or why not. */
static enum err check_init(const struct encoded *e, const struct eroom *m,
    const struct peer_init *n, const char **text)
{
    *text = "more destinations than limits.rooms";
    if (n->required_dst > e->dst_share.limit)
        return ERR_QUOTA;
    *text = "the room was opened with another number of destinations";
    if (m->required && n->required_dst != m->required && !eroom_ended(m))
        return ERR_DESTINATIONS_DISAGREE;
    *text = "the room has all its destinations";
    if (m->required && m->asked >= m->required && !eroom_ended(m) &&
        (eroom_announced(m) || m->required > 1))
        return ERR_DESTINATIONS_DISAGREE;
    *text = "the room takes no more destinations";
    if (m->life == EROOM_FAILING || m->life == EROOM_CLOSED)
        return ERR_UNKNOWN_ROOM;
    *text = "the source is gone: encode again";
    if (m->life == EROOM_EXPIRED)
        return ERR_GONE;
    *text = "";
    return OK;
}

/* True if the room has a newer generation of this run of the langd. */
static bool newer_there(const struct encoded *e, const struct eroom *m,
    uint32_t peer, uint64_t generation)
{
    uint32_t run = e->b.peers.peers[peer].e.run;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->peer == peer && d->run == run && d->generation > generation)
            return true;
    }
    return false;
}

/* Ends older generations of the same langd. */
static void supersede(struct encoded *e, struct eroom *m, uint32_t peer)
{
    LIST_FOREACH (n, &m->dsts) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->peer == peer && !edst_ended(d)) {
            edst_refuse(d); /* the new generation takes its place */
            edst_end(e, d, ERR_STALE);
        }
    }
}

static bool init_is_sound(const struct peer_init *n)
{
    return n->unit_rows > 0 && n->part_rows >= n->unit_rows &&
           n->part_rows % n->unit_rows == 0 && n->required_dst > 0 &&
           n->storage <= STORAGE_PROMPT && n->granted != ROWS_UNKNOWN &&
           n->from <= n->granted;
}

/* Refuses a new room while the daemon drains. If the daemon is ending, L asks
 * its next run. */
static void refuse_new(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg)
{
    if (e->b.ending)
        peer_nack(&e->b.peers, out, p->link, msg, ERR_DRAINING,
            err_text(ERR_DRAINING));
    else
        refuse(e, out, p, msg, ERR_DRAINING, 0, 0, "the encoder is drained");
}

/* Returns the room of an INIT, or a new one if it is not announced and need not
 * be; NULL: the INIT was refused. */
static struct eroom *room_for(struct encoded *e, struct out *out,
    struct peer *p, const struct peer_msg *msg)
{
    const struct secret *secret = &msg->init.secret;
    struct eroom *m = eroom_find(e, msg->room, secret);
    bool expected = msg->init.flags & FLAG_ANNOUNCED;
    const struct tomb *tomb;

    if (m && (!expected || eroom_announced(m)))
        return m;
    tomb = memory_get(
        &e->ended_rooms, e->b.now_ns, msg->room, brain_name(&e->b, secret));
    if (expected && !tomb) {
        e->b.stats[STAT_unknown_rooms]++;
        refuse(e, out, p, msg, ERR_UNKNOWN_ROOM, 0, 0,
            "no such room is announced here: encode again");
        return NULL;
    }
    /* A room that ended with no-blocks is announced again. */
    if (tomb && (expected || tomb->reason != ERR_NO_BLOCKS)) {
        e->b.stats[STAT_unknown_rooms]++;
        refuse(e, out, p, msg, (enum err)tomb->reason, 0, 0,
            "the source is gone: encode again");
        return NULL;
    }
    if (e->b.draining) {
        refuse_new(e, out, p, msg);
        return NULL;
    }
    m = eroom_new(e, msg->room, secret, SHARE_PEER(peer_index(&e->b.peers, p)));
    if (!m)
        peer_nack(&e->b.peers, out, p->link, msg, ERR_BUSY, e->share.why);
    return m;
}

/* Returns a new destination of the room; NULL: it was refused. A langd that
 * declined the room earlier gets its place back. */
static struct edst *dst_for(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg, struct eroom *m)
{
    struct decline *before = decline_find(e, m->r.id, m->name, p->who);
    bool counted =
        before && before->counted && !before->served && eroom_serves(m);
    bool again; /* it had the rows before the room was revoked */
    struct edst *d = NULL;
    bool open = m->flags & FLAG_OPEN;
    uint32_t required = m->required ? m->required : msg->init.required_dst;
    const char *why;
    enum err err;

    CHECK(m->asked >= m->served + m->failed,
        "room ..%08x: %u served and %u failed of %u that asked",
        (uint32_t)m->r.id, m->served, m->failed, m->asked);
    again = m->before > 0 && m->asked - counted >= m->required;
    m->asked -= counted + again;
    err = check_init(e, m, &msg->init, &why);
    if (err != OK)
        refuse(e, out, p, msg, err,
            err == ERR_QUOTA ? e->dst_share.limit : m->required,
            msg->init.required_dst, why);
    else if (!(d = edst_new(e, m, peer_index(&e->b.peers, p), msg->generation,
                   open ? 1 : required))) {
        peer_nack(&e->b.peers, out, p->link, msg, ERR_BUSY, e->dst_share.why);
        if (m->bootstrap_ns <= e->b.now_ns) /* it comes again */
            m->bootstrap_ns = e->b.now_ns + e->b.c.conf->timeout_bootstrap;
    }
    eroom_touch(e, m);
    if (!d) {
        m->asked += counted + again;
        return NULL;
    }
    m->failed -= counted;
    m->before -= again;
    m->served -= again;
    if (before)
        memory_drop(&e->declines, before);
    return d;
}

/* Handles the first INIT of a generation. */
static void open_dst(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg)
{
    const struct peer_init *n = &msg->init;
    uint32_t pools =
        rights_of(e, p, &(struct claim){n->who, n->gids, &n->secret});
    struct eroom *m = room_for(e, out, p, msg);
    char text[512];
    struct edst *d;
    enum err err;

    happened_message(&e->b, HAPPENED_GOT, msg,
        m ? (uint32_t)m->history.who : NONE, peer_index(&e->b.peers, p),
        n->granted);
    if (!m)
        return;
    if (eroom_announced(m) && !(pools >> m->item->pool & 1)) {
        e->b.stats[STAT_rights_refused]++;
        refuse(e, out, p, msg, ERR_NOT_OWNER, 0, 0, eroom_not_for);
        return;
    }
    if (newer_there(e, m, peer_index(&e->b.peers, p), msg->generation)) {
        answer_unknown(e, out, p, msg);
        return;
    }
    supersede(e, m, peer_index(&e->b.peers, p));
    d = dst_for(e, out, p, msg, m);
    if (!d)
        return;
    if (n->traceparent.len)
        trace_context(&e->b, &m->r, &m->history, n->traceparent, true);
    p->asked_ns = e->b.now_ns;
    d->pools = pools;
    d->layout = n->layout;
    d->unit_rows = n->unit_rows;
    d->part_rows = n->part_rows;
    d->storage = n->storage;
    d->flags = n->flags;
    d->required = n->required_dst;
    d->key = n->key;
    d->turn = n->turn;
    if (eroom_announced(m) &&
        (err = edst_check(e, m, d, text, sizeof(text))) != OK) {
        edst_refuse(d);
        edst_fail(e, d, err, text);
        return;
    }
    if (!m->required && !(m->flags & FLAG_OPEN))
        m->required = n->required_dst;
    if (eroom_announced(m))
        queue_counts(e, m);
    edst_reserve(e, m);
    (void)apply_grant(e, out, d, n->attempt, n->granted, n->from, n->firm);
    /* LENGTH is an answer too, and goes at once if there is one */
    d->answer_ns = e->b.now_ns + debt_answer_ns(e->b.c.conf->timeout_retry);
    eroom_touch(e, m);
}

static void on_grant(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg, struct edst *d)
{
    bool init = msg->type == PEER_INIT;
    uint32_t attempt = init ? msg->init.attempt : msg->resume.attempt;
    uint32_t granted = init ? msg->init.granted : msg->resume.granted;
    uint32_t from = init ? msg->init.from : msg->resume.from;
    uint8_t firm = init ? msg->init.firm : msg->resume.firm;

    if (init && !init_is_sound(&msg->init)) {
        e->b.stats[STAT_malformed_peer]++;
        peer_nack(&e->b.peers, out, p->link, msg, ERR_MALFORMED,
            "units, parts, grant or destinations out of range");
    } else if (!d && init && !gens_over(e, p, msg->generation)) {
        if (e->for_users &&
            rights_wait(e, p, eroom_find(e, msg->room, &msg->init.secret)))
            peer_nack(&e->b.peers, out, p->link, msg, ERR_BUSY,
                "the langd has not shown its user at the socket yet");
        else
            open_dst(e, out, p, msg);
    } else if (!d || edst_ended(d)) {
        answer_unknown(e, out, p, msg);
    } else if (d->state == DST_FAILING) {
        say_failed(e, out, p, msg, (enum err)d->reason, 0, 0, d->text);
    } else if (!apply_grant(e, out, d, attempt, granted, from, firm)) {
        e->b.stats[STAT_malformed_peer]++;
        peer_nack(&e->b.peers, out, p->link, msg, ERR_MALFORMED,
            "from is beyond granted");
    } else {
        edst_say_state(e, out, d, msg->type);
    }
}

/* ends */

static void say_acked(struct encoded *e, struct out *out, struct acked *a)
{
    const struct peer *p = &e->b.peers.peers[a - e->acked];
    struct peer_msg msg = {.type = PEER_ACKED};
    uint8_t bytes[ACKED_MAX * sizeof(uint64_t)];
    struct writer w = writer_of(bytes, sizeof(bytes));

    CHECK(a->count <= ACKED_MAX, "%u ACKs of peer %td", a->count, a - e->acked);
    for (uint32_t i = 0; i < a->count; i++)
        put_u64(&w, a->generations[i]);
    msg.acked.generations = span_of(bytes, w.len);
    if (peer_up(p) && p->epoch == a->epoch) /* otherwise L repeats the ACKs */
        tell(e, out, p, &msg);
    a->count = 0;
    list_remove(&a->pending);
}

void encoded_say_acked(struct encoded *e, struct out *out)
{
    while (!list_empty(&e->acked_pending) && out_has_room(out))
        say_acked(e, out, LIST_FIRST(&e->acked_pending, struct acked, pending));
    if (list_empty(&e->acked_pending))
        e->acked_ns = TIME_NEVER;
}

/* Answers an ACK, together with others that come soon. A draining daemon may
 * end after this room, so it answers at once. */
static void answer_ack(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg)
{
    struct acked *a = &e->acked[peer_index(&e->b.peers, p)];

    if (a->epoch != p->epoch)
        a->count = 0;
    a->epoch = p->epoch;
    CHECK(a->count < ACKED_MAX, "%u ACKs of %s wait", a->count, p->name);
    a->generations[a->count++] = msg->generation;
    if (!list_linked(&a->pending))
        list_push_tail(&e->acked_pending, &a->pending);
    e->acked_ns = min_u64(e->acked_ns, e->b.now_ns + ACKED_NS);
    if (a->count == ACKED_MAX || e->b.draining)
        say_acked(e, out, a);
}

static void on_ack(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg, struct edst *d)
{
    bool told;

    if (d) {
        edst_answered(e, out, d, true);
        /* L cannot have all rows of a length that it was not sent. */
        told =
            !eroom_announced(d->room) || d->room->item->total != ROWS_UNKNOWN;
        edst_end(e, d, told ? OK : ERR_MALFORMED);
    } else {
        e->b.stats[STAT_stale_generation]++; /* L decides */
    }
    answer_ack(e, out, p, msg);
}

/* Ends a destination as its L says. An open room ignores one that L gives up.
 */
static void let_go(struct encoded *e, struct edst *d, enum err why)
{
    if (why != OK && d->room->flags & FLAG_OPEN && d->state == DST_ACTIVE)
        edst_refuse(d);
    edst_end(e, d, why);
}

static void on_abort(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg, struct edst *d)
{
    uint8_t reason = msg->abort.reason;

    if (!d) {
        /* Its INIT may still come. */
        if (!gens_over(e, p, msg->generation))
            encoded_never_asked(e, p, msg);
        answer_unknown(e, out, p, msg);
        return;
    }
    if (d->state == DST_ACTIVE && d->room->r.text[0] == 0)
        text_copy(msg->abort.text, d->room->r.text, sizeof(struct why));
    edst_answered(e, out, d, false);
    let_go(e, d, reason && reason < ERR_COUNT ? (enum err)reason : ERR_ABORTED);
    d->drained_due = true;
    edst_touch(e, d);
}

/* Handles RETURN: READY was published, and no engine reads the rows now. */
static void on_return(struct encoded *e, struct out *out, struct peer *p,
    const struct peer_msg *msg, struct edst *d)
{
    struct peer_msg drained = reply(msg, PEER_DRAINED);

    if (!d || !d->lent) {
        tell(e, out, p, &drained);
        return;
    }
    edst_end(e, d, OK); /* its ACK may be lost */
    edst_answered(e, out, d, false);
    d->drained_due = true;
    edst_touch(e, d);
}

/* Handles the answer to LENGTH of an L that knows the total. L has the aux
 * (FLAG_AUX), will ask for it later (ERR_NO_BLOCKS), or asks for it now. */
static void length_answered(const struct peer_state *n, struct edst *d)
{
    if (n->total == ROWS_UNKNOWN || (n->flags & FLAG_AUX)) {
        d->length_acked = d->room->item->length_version;
        debt_paid(&d->debt, OWE_LENGTH);
    } else if (n->reason != ERR_NO_BLOCKS) {
        d->length_acked = d->length_sent = 0;
    } else {
        d->aux_waits = true;
    }
}

/* True if a STATE answers the newest WANT, and not an earlier one. */
static bool want_answered(struct edst *d)
{
    bool newest = !d->want_older;

    d->want_older = false;
    if (newest)
        d->want_open = false;
    return newest;
}

/* Handles STATE: what L knows about one generation. */
static void on_state(struct encoded *e, struct out *out,
    const struct peer_state *n, struct edst *d)
{
    const struct eroom *m = d->room;
    bool newest;

    if (n->state == ROOM_SUCCESS || n->state == ROOM_FAILED) {
        enum err why = n->reason && n->reason < ERR_COUNT ? (enum err)n->reason
                                                          : ERR_ABORTED;

        edst_answered(
            e, out, d, n->state == ROOM_SUCCESS && (n->flags & FLAG_HELD));
        let_go(e, d, n->state == ROOM_SUCCESS ? OK : why);
        return;
    }
    if (edst_ended(d))
        return;
    if (n->answers == PEER_LEND && !(n->flags & FLAG_HELD))
        edst_unlend(e, out, d); /* not taken: L gets the rows by a grant */
    d->aux_waits |= n->answers == PEER_LEND && d->lent;
    newest = n->answers == PEER_WANT && want_answered(d);
    if (n->answers == PEER_LENGTH && n->total == m->item->total) {
        length_answered(n, d);
    } else if (n->answers == PEER_WANT && n->attempt == d->attempt &&
               n->firm > d->firm) {
        take_firm(e, d, n->firm); /* the grant comes in another message */
    } else if (newest && n->attempt == d->want_attempt &&
               n->granted <= d->want_granted) {
        d->want_known = true;
        debt_paid(&d->debt, OWE_WANT);
    }
    edst_touch(e, d);
}

/* peers */

static void lost(void *brain, struct out *out, struct peer *p, bool restarted)
{
    (void)out;
    (void)restarted; /* its rooms end in both cases */
    LIST_FOREACH (n, &p->rooms)
        edst_end(brain, LIST_ENTRY(n, struct edst, in_peer), ERR_PEER_LOST);
    p->epoch = 0;
}

static struct peer *find(void *brain, struct out *out, uint32_t link,
    const struct peer_msg *m, const char **text)
{
    struct encoded *e = brain;
    struct peers *all = &e->b.peers;
    struct peer *p = peer_named(all, m->hello.name);
    uint64_t host = all->link_host[link];

    /* A HELLO does not replace a link that is up. A message on that link lets
     * the kernel notice if its other end is gone. */
    if (p && p->link != NONE && p->link != link && peer_up(p)) {
        *text = "another daemon of this name is connected";
        if (p->epoch == m->from_epoch) {
            *text = "a link of this run is up already";
            peer_hello(all, out, p->link, p->epoch, true);
        }
        return NULL;
    }
    *text = "a daemon of this name was here just now, from another address";
    if (p && p->epoch && p->epoch != m->from_epoch && p->holder != host)
        return NULL;
    *text = all->why;
    if (!p)
        return peer_place(all, out, m->hello.name, host, link, e->b.now_ns);
    return peer_returns(all, out, p, host, link, e->b.now_ns) ? p : NULL;
}

static void greeted(void *brain, struct out *out, uint32_t link, struct peer *p,
    const struct peer_msg *m, bool was_up)
{
    struct encoded *e = brain;
    struct peers *peers = &e->b.peers;
    struct peer *before = peer_on(peers, link);
    uint32_t run = peers_run(peers, p->who, p->epoch);

    (void)was_up;
    if (before && before != p) { /* the daemon on this link changed its name */
        before->link = NONE;
        peer_down(peers, before, e->b.now_ns);
    }
    if (p->link != NONE && p->link != link)
        peers->link_peer[p->link] = NONE;
    p->link = link;
    p->holder = peers->link_host[link];
    peers->link_peer[link] = peer_index(peers, p);
    if (p->e.run != run) { /* its generations begin anew */
        p->e.run = run;
        p->e.dead_to = 0;
        p->e.map_by_ns = e->b.now_ns + e->b.c.conf->timeout_hello;
    }
    if (m->hello.mapped & MAPS_NONE)
        p->e.map_by_ns = 0;
    p->mapped = p->e.map_conn != NONE && p->e.map_epoch == p->epoch
                    ? m->hello.mapped & p->e.offered
                    : 0;
    peer_tell_shards(peers, out, p, &m->hello);
    LIST_FOREACH (n, &p->rooms) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_peer);

        if (d->state == DST_FENCED && d->lent && d->map != MAP_ORPHAN)
            d->debt.owe |= OWE_FAILED; /* L may have forgotten to say RETURN */
        debt_renew(&d->debt);
        edst_touch(e, d);
    }
}

const struct peers_ops encoded_peers = {
    .find = find, .greeted = greeted, .lost = lost};

bool encoded_peer(
    void *brain, struct out *out, struct peer *p, const struct peer_msg *msg)
{
    struct encoded *e = brain;
    struct edst *d;
    uint32_t i;

    i = table_get(&e->gens, msg->generation, peer_index(&e->b.peers, p));
    d = i == NONE ? NULL : &e->dsts[i];
    CHECK(!d || (d->state != DST_FREE && d->generation == msg->generation),
        "destination %u of state %u has generation %llu, not %llu", i, d->state,
        (unsigned long long)d->generation, (unsigned long long)msg->generation);
    if (d || msg->type != PEER_INIT)
        happened_message(&e->b, HAPPENED_GOT, msg,
            d ? (uint32_t)d->room->history.who : NONE,
            peer_index(&e->b.peers, p), ROWS_UNKNOWN);
    switch (msg->type) {
    case PEER_INIT:
    case PEER_RESUME:
        on_grant(e, out, p, msg, d);
        break;
    case PEER_ACK:
        on_ack(e, out, p, msg, d);
        break;
    case PEER_ABORT:
        on_abort(e, out, p, msg, d);
        break;
    case PEER_RETURN:
        on_return(e, out, p, msg, d);
        break;
    case PEER_STATE:
        if (d)
            on_state(e, out, &msg->state, d);
        break;
    case PEER_DECLINE:
        encoded_on_decline(e, p, msg);
        break;
    case PEER_NACK:
        break; /* the refused message comes again, or its room ends */
    default:
        return false;
    }
    return true;
}
