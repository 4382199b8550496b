/* brain.c - see brain.h: how both roles handle an event, and the table of the
 * roles. Owned by the loop's thread. Rejected: a switch on the role in every
 * function. A table per role is complete or does not link. */
#include "core/move/pool.h"
#include "core/trace/trace.h"

struct brain *brain_init(struct slab *s, const struct brain_conf *c)
{
    static const struct brain_ops *const roles[] = {
        [ROLE_ENCODED] = &encoded_ops, [ROLE_LANGD] = &langd_ops};

    CHECK(c->conf->role < ARRAY_LEN(roles) && roles[c->conf->role],
        "a brain of role %u", c->conf->role);
    CHECK(c->recorder, "a brain without a recorder");
    return roles[c->conf->role]->init(s, c);
}

static void on_peer(struct brain *b, struct out *out, const struct event *ev)
{
    const struct peer_msg *m = ev->peer;
    struct peer *p;

    if (ev->link >= b->peers.links)
        return;
    p = peers_hear(&b->peers, out, ev);
    if (m->type == PEER_HELLO)
        happened_here(b, HAPPENED_PEER_UP, peer_on(&b->peers, ev->link));
    if (!p || b->ops->peer(b, out, p, m))
        return;
    b->stats[STAT_malformed_peer]++;
    peer_nack(&b->peers, out, ev->link, m, ERR_MALFORMED,
        "not a message for a daemon of this role");
}

static void drain(struct brain *b, bool draining)
{
    CHECK(draining || !b->ending, "it takes new rooms, and its end comes");
    if (draining && !b->draining)
        happened_here(b, HAPPENED_DRAINING, NULL);
    b->draining = draining;
    if (draining == b->peers.self.draining)
        return;
    b->peers.self.draining = draining;
    peers_news(&b->peers, b->now_ns);
}

/* Handles the parts of an event that both roles share. True if the role has a
 * part too. */
static bool head_event(struct brain *b, struct out *out, const struct event *ev)
{
    switch (ev->type) {
    case EV_CONN_OPEN:
        engine_open(&b->engines, ev);
        return false;
    case EV_CONN_END:
        engine_end(&b->engines, ev->conn);
        return true;
    case EV_CONN_DEAD:
        engine_dead(&b->engines, ev->conn);
        return true;
    case EV_LOCAL:
        head_local(b, out, ev->conn, ev->local);
        return false;
    case EV_LOCAL_BAD:
        head_local_bad(b, out, ev);
        return false;
    case EV_LINK_DOWN:
        if (ev->link < b->peers.links)
            happened_here(b, HAPPENED_PEER_DOWN, peer_on(&b->peers, ev->link));
        peers_link(&b->peers, out, ev);
        return false;
    case EV_LINK_UP:
    case EV_LINK_REFUSED:
        peers_link(&b->peers, out, ev);
        return false;
    case EV_PEER:
        on_peer(b, out, ev);
        return false;
    case EV_PEER_BAD:
        peer_bad(&b->peers, out, ev);
        return false;
    case EV_NOTE:
        if (path_note(&b->peers, out, ev))
            return false;
        if (ev->note.type != NOTE_POOL_LOST)
            return true;
        CHECK(
            ev->note.first < b->pools_count, "note of pool %u", ev->note.first);
        return pool_meta_lost(&b->metas[ev->note.first]);
    case EV_TIME:
        peers_expire(&b->peers, out, b->now_ns);
        engines_expire(&b->engines, out, b->now_ns);
        return true;
    case EV_CONF:
        b->engines.hello_ns = b->c.conf->timeout_hello;
        return true;
    case EV_ENDING:
    case EV_DRAIN:
        b->ending |= ev->type == EV_ENDING;
        drain(b, true);
        return true;
    case EV_UNDRAIN:
        drain(b, b->ending);
        return true;
    case EV_POOL:
        pools_take(b, ev->pool, ev->memory);
        pools_serve(b, out);
        return true;
    case EV_ADDRESSES:
        peers_addresses(&b->peers, out, ev);
        return false;
    case EV_MORE:
        if (!pools_pending(b))
            return false;
        pools_serve(b, out);
        return true;
    case EV_MAP:
    case EV_SEEK:
    case EV_KILL:
    case EV_DROP:
        return true;
    }
    CHECK(false, "event %u", ev->type);
    return false;
}

void brain_step(struct brain *b, const struct event *ev, struct out *out)
{
    CHECK(ev->now_ns >= b->now_ns, "time went back");
    b->now_ns = ev->now_ns;
    if (head_event(b, out, ev))
        b->ops->event(b, out, ev);
    b->ops->work(b, out);
}

bool brain_pending(const struct brain *b)
{
    return b->ops->pending(b) || pools_pending(b);
}

uint64_t brain_deadline(const struct brain *b)
{
    uint64_t at =
        min_u64(engines_deadline(&b->engines), heap_due(&b->peers.timers));

    return min_u64(at, b->ops->deadline(b));
}

bool brain_next_event(struct brain *b, uint32_t conn, struct writer *w)
{
    struct attachment *att = engine_next_dirty(&b->engines, conn);
    struct local_msg m = {.type = LOCAL_EVENT};
    uint8_t bytes[POOL_RUNS_MAX * 8];
    struct writer runs = writer_of(bytes, sizeof(bytes));
    bool used;

    if (!att)
        return b->ops->next_event && b->ops->next_event(b, conn, w);
    m.event.cell = att->cell;
    m.event.tag = att->tag;
    m.event.room = att->room_id;
    m.event.what = att->pending;
    m.event.total = ROWS_UNKNOWN;
    m.event.reason = att->room ? att->room->reason : att->reason;
    m.event.text =
        span_str(att->room ? att->room->text : err_text((enum err)att->reason));
    if (att->room) {
        m.event.state = att->room->state;
        m.event.a = att->room->a;
        m.event.b = att->room->b;
    }
    used = b->ops->fill_event(b, att, &m.event, &runs);
    m.event.runs = span_of(bytes, runs.len);
    if (!local_put(w, &m))
        return false;
    att->shown |= used && runs.len > 0;
    att->pending = 0;
    list_remove(&att->in_dirty);
    return true;
}
