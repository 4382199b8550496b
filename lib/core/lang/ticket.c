/* ticket.c - see ticket.h. Owned by the loop's thread. Rejected: batch indices
 * as sequence ids. Two requests could have the same id. */
#include "core/lang/ticket.h"

#include "base/check.h"
#include "core/show.h"

#include <stdio.h>

void tickets_init(
    struct tickets *t, struct slab *s, const struct conf *c, uint64_t seed)
{
    share_init(&t->space_share, s, "sequence spaces, limits.connections",
        c->limit_connections, 1, seed);
    share_init(&t->share, s, "sequence requests, limits.rooms", c->limit_rooms,
        1, seed);
    t->conf = c;
    t->spaces_max = t->space_share.total;
    t->tickets_max = t->share.total;
    t->spaces = slab_take(s, t->spaces_max, sizeof(*t->spaces));
    t->tickets = slab_take(s, t->tickets_max, sizeof(*t->tickets));
    t->conns = slab_take(s, share_connections(c), sizeof(*t->conns));
    slots_init(&t->slots, s, t->tickets_max);
    heap_init(&t->timers, s, t->tickets_max);
    table_init(&t->requests, s, t->tickets_max, seed);
    for (uint32_t i = 0; i < t->spaces_max; i++) {
        uint32_t *idle = slab_take(s, SPACE_IDS_MAX, sizeof(*idle));
        uint32_t *gens = slab_take(s, SPACE_IDS_MAX, sizeof(*gens));

        if (t->spaces) {
            t->spaces[i].idle = idle;
            t->spaces[i].generations = gens;
        }
    }
    list_init(&t->dirty);
    for (uint32_t i = 0; t->conns && i < share_connections(c); i++) {
        t->conns[i].conn = i;
        list_init(&t->conns[i].pending);
        list_init(&t->conns[i].dirty);
    }
}

static uint32_t index_of(const struct tickets *t, const struct ticket *k)
{
    return (uint32_t)(k - t->tickets);
}

/* spaces */

enum err space_open(struct tickets *t, uint32_t session, uint32_t uid,
    struct span name, uint32_t n_seq_max, uint32_t *number, const char **text)
{
    uint32_t free = NONE;
    struct space *p;

    *text = "n_seq_max is 1 to 1024";
    if (n_seq_max == 0 || n_seq_max > SPACE_IDS_MAX)
        return ERR_MALFORMED;
    for (uint32_t i = 0; i < t->spaces_max; i++) {
        p = &t->spaces[i];
        if (!p->used && free == NONE)
            free = i;
        if (!p->used || p->session != session ||
            !span_eq(span_str(p->name), name))
            continue;
        *text = "the space is open with another n_seq_max";
        if (p->size != n_seq_max)
            return ERR_MALFORMED;
        *number = i;
        return OK;
    }
    *text = t->space_share.why;
    if (!share_take(&t->space_share, uid, 1))
        return ERR_QUOTA;
    CHECK(free != NONE, "no place for one of %u spaces", t->space_share.used);
    p = &t->spaces[free];
    p->uid = uid;
    p->used = true;
    p->session = session;
    p->size = p->idle_count = n_seq_max;
    p->held = p->idle_first = p->waiting_count = 0;
    list_init(&p->waiting);
    span_copy_str(name, p->name, sizeof(p->name));
    /* Generations continue from the slot's earlier space, so that a late
     * release of an old request matches none here. */
    for (uint32_t i = 0; i < n_seq_max; i++)
        p->idle[i] = i;
    *number = free;
    return OK;
}

static struct space *space_of(
    const struct tickets *t, uint32_t session, uint32_t i)
{
    return i < t->spaces_max && t->spaces[i].used &&
                   t->spaces[i].session == session
               ? &t->spaces[i]
               : NULL;
}

static struct ticket *find(
    const struct tickets *t, uint32_t space, struct span request)
{
    uint32_t i = table_get(&t->requests, span_hash(request), space);

    return i != NONE && span_eq(span_str(t->tickets[i].request), request)
               ? &t->tickets[i]
               : NULL;
}

/* tickets */

/* Puts the ticket on the list of those that its connection must be told of. */
static void notify(struct tickets *t, struct ticket *k)
{
    struct ticket_conn *c;

    if (k->conn == NONE)
        return;
    CHECK(k->used && k->conn < share_connections(t->conf),
        "request %s is of connection %u", k->request, k->conn);
    c = &t->conns[k->conn];
    if (!list_linked(&k->in_conn))
        list_push_tail(&c->pending, &k->in_conn);
    if (!list_linked(&c->dirty))
        list_push_tail(&t->dirty, &c->dirty);
}

/* Gives the ticket the id that has been idle longest. */
static void hold(struct tickets *t, struct space *p, struct ticket *k)
{
    CHECK(p->idle_count > 0 && !k->held && !list_linked(&k->in_space),
        "request %s gets one of %u ids", k->request, p->idle_count);
    k->seq = p->idle[p->idle_first];
    p->idle_first = (p->idle_first + 1) % p->size;
    p->idle_count--;
    p->held++;
    k->held = true;
    if (++p->generations[k->seq] == NONE)
        p->generations[k->seq] = 1;
    k->generation = p->generations[k->seq];
    heap_remove(&t->timers, &k->timer);
    if (k->hold_ns)
        heap_set(&t->timers, &k->timer, *t->now_ns + k->hold_ns);
    t->granted++;
}

static void forget(struct tickets *t, struct ticket *k)
{
    CHECK(k->used && !k->held && !heap_linked(&k->timer),
        "request %s is forgotten, and has id %u", k->request, k->seq);
    list_remove(&k->in_conn);
    k->used = false;
    slots_give(&t->slots, index_of(t, k));
    share_give(&t->share, k->uid, 1);
}

/* Frees the ticket's id or place in the queue, and gives an idle id to the
 * ticket that waits longest. */
static void end(struct tickets *t, struct ticket *k)
{
    struct space *p = &t->spaces[k->space];
    struct list *next;

    table_remove(&t->requests, span_hash(span_str(k->request)), k->space);
    heap_remove(&t->timers, &k->timer);
    list_remove(&k->in_room);
    if (k->held) {
        CHECK(p->held > 0 && p->held + p->idle_count == p->size,
            "space %s: %u ids held, %u idle, of %u", p->name, p->held,
            p->idle_count, p->size);
        p->idle[(p->idle_first + p->idle_count++) % p->size] = k->seq;
        p->held--;
        k->held = false;
    } else {
        list_remove(&k->in_space);
        p->waiting_count--;
    }
    if (p->idle_count == 0 || !(next = list_pop(&p->waiting)))
        return;
    p->waiting_count--;
    hold(t, p, LIST_ENTRY(next, struct ticket, in_space));
    notify(t, LIST_ENTRY(next, struct ticket, in_space));
}

/* Ends a ticket that its holder did not release, and notifies the holder. */
static void lose(struct tickets *t, struct ticket *k, enum err reason)
{
    k->reason = (uint8_t)reason;
    notify(t, k); /* before the id's next holder is notified */
    end(t, k);
    if (k->conn == NONE)
        forget(t, k);
}

/* Drops an earlier loss of this request that conn was not told of. It would
 * look like a loss of the new ticket. */
static void supersede(
    struct tickets *t, uint32_t conn, const struct local_ticket *m)
{
    LIST_FOREACH_SAFE (n, &t->conns[conn].pending) {
        struct ticket *k = LIST_ENTRY(n, struct ticket, in_conn);

        if (k->reason && k->space == m->space &&
            span_eq(span_str(k->request), m->request))
            forget(t, k);
    }
}

static enum err make(struct tickets *t, uint32_t conn,
    const struct local_ticket *m, struct ticket **out, const char **text)
{
    uint64_t h = span_hash(m->request);
    uint32_t i;
    struct ticket *k;

    *text = "another request id of the space has the same hash";
    if (table_get(&t->requests, h, m->space) != NONE)
        return ERR_BUSY;
    supersede(t, conn, m);
    *text = t->share.why;
    if (!share_take(&t->share, t->spaces[m->space].uid, 1))
        return ERR_QUOTA;
    i = slots_take(&t->slots);
    CHECK(i != NONE && table_put(&t->requests, h, m->space, i),
        "no place for one of %u requests", t->share.used);
    k = &t->tickets[i];
    memset(k, 0, sizeof(*k));
    k->used = true;
    k->uid = t->spaces[m->space].uid;
    k->space = m->space;
    k->conn = conn;
    list_init(&k->in_space);
    list_init(&k->in_conn);
    list_init(&k->in_room);
    span_copy_str(m->request, k->request, sizeof(k->request));
    *out = k;
    return OK;
}

enum err ticket_acquire(struct tickets *t, uint32_t session, uint32_t conn,
    const struct local_ticket *m, struct list *room, struct ticket_state *out,
    const char **text)
{
    struct space *p = space_of(t, session, m->space);
    struct ticket *k;
    enum err e;

    *text = "no space of that number in this session";
    if (!p)
        return ERR_NOT_OWNER;
    *text = "a request id has 1 to 63 bytes and no zero";
    if (m->request.len == 0 || m->request.len > 63 ||
        memchr(m->request.p, 0, m->request.len))
        return ERR_MALFORMED;
    k = find(t, m->space, m->request);
    if (!k) {
        e = make(t, conn, m, &k, text);
        if (e != OK)
            return e;
        k->hold_ns = m->hold_ms * NS_PER_MS;
        if (room)
            list_push_tail(room, &k->in_room);
        if (p->idle_count > 0) {
            hold(t, p, k);
        } else {
            list_push_tail(&p->waiting, &k->in_space);
            p->waiting_count++;
            t->waited++;
            heap_set(&t->timers, &k->timer,
                *t->now_ns + conf_wait_ns(m->wait_ms, t->conf->timeout_total));
        }
    }
    list_remove(&k->in_conn); /* the answer has it */
    k->conn = conn;           /* the last connection to ask is notified */
    *out = (struct ticket_state){k->held, k->seq, k->generation};
    *text = "";
    return OK;
}

enum err ticket_release(struct tickets *t, uint32_t session, uint32_t conn,
    const struct local_ticket_release *m, const char **text)
{
    struct ticket *k;

    *text = "no space of that number in this session";
    if (!space_of(t, session, m->space))
        return ERR_NOT_OWNER;
    k = find(t, m->space, m->request);
    *text = "the request holds no id and does not wait for one";
    if (!k)
        return ERR_UNKNOWN_ROOM;
    *text = "another holder has the id now";
    /* A request that gives up may hold an id without knowing it yet. */
    if (m->generation == NONE ? k->conn != conn
                              : !k->held || k->generation != m->generation)
        return ERR_STALE;
    end(t, k);
    forget(t, k);
    *text = "";
    return OK;
}

enum err ticket_query(const struct tickets *t, uint32_t session,
    const struct local_ticket_query *m, struct ticket_state *out,
    const char **text)
{
    const struct ticket *k;

    *text = "no space of that number in this session";
    if (!space_of(t, session, m->space))
        return ERR_NOT_OWNER;
    k = find(t, m->space, m->request);
    *text = "the request holds no id and does not wait for one";
    if (!k)
        return ERR_UNKNOWN_ROOM;
    *out = (struct ticket_state){k->held, k->seq, k->generation};
    *text = "";
    return OK;
}

/* tickets that end without a release */

void tickets_room_failed(struct tickets *t, struct list *room, enum err reason)
{
    LIST_FOREACH_SAFE (n, room)
        lose(t, LIST_ENTRY(n, struct ticket, in_room), reason);
}

void tickets_conn_end(struct tickets *t, uint32_t conn)
{
    for (uint32_t i = 0; i < t->slots.fresh; i++) {
        struct ticket *k = &t->tickets[i];

        if (!k->used || k->conn != conn)
            continue;
        if (!k->reason && k->held && !list_linked(&k->in_conn)) {
            k->conn = NONE; /* the session holds it and may release it */
            continue;
        }
        /* No connection will learn that it holds the id. The next ticket must
         * not wait for a holder that does not know of its turn. */
        if (!k->reason)
            end(t, k);
        forget(t, k);
    }
    list_remove(&t->conns[conn].dirty);
}

void tickets_session_end(struct tickets *t, uint32_t session)
{
    for (uint32_t i = 0; i < t->slots.fresh; i++) {
        struct ticket *k = &t->tickets[i];

        if (!k->used || t->spaces[k->space].session != session ||
            !t->spaces[k->space].used)
            continue;
        if (!k->reason)
            end(t, k);
        forget(t, k);
    }
    for (uint32_t i = 0; i < t->spaces_max; i++)
        if (t->spaces[i].used && t->spaces[i].session == session) {
            t->spaces[i].used = false;
            share_give(&t->space_share, t->spaces[i].uid, 1);
        }
}

void tickets_expire(struct tickets *t, uint64_t now_ns)
{
    struct heap_node *n;

    while ((n = heap_first(&t->timers)) && n->key <= now_ns) {
        t->expired++;
        lose(t, CONTAINER_OF(n, struct ticket, timer), ERR_TIMEOUT);
    }
}

/* notifying */

uint32_t tickets_next_conn(struct tickets *t)
{
    struct list *n = list_pop(&t->dirty);

    return n ? LIST_ENTRY(n, struct ticket_conn, dirty)->conn : NONE;
}

bool tickets_next_event(struct tickets *t, uint32_t conn, struct writer *w)
{
    struct ticket *k =
        LIST_FIRST(&t->conns[conn].pending, struct ticket, in_conn);
    struct local_msg m = {.type = LOCAL_TICKET_EVENT};

    if (!k)
        return false;
    m.ticket_event.space = k->space;
    m.ticket_event.state = k->held;
    m.ticket_event.reason = k->reason;
    m.ticket_event.seq = k->seq;
    m.ticket_event.generation = k->generation;
    m.ticket_event.request = span_str(k->request);
    if (!local_put(w, &m))
        return false;
    list_remove(&k->in_conn);
    if (k->reason)
        forget(t, k);
    return true;
}

/* showing */

static void show_space(struct rows_out *s, const struct show_at *at, uint32_t i,
    const struct space *p)
{
    if (!p->used)
        return;
    s->row(s);
    s->number(s, "space", i);
    s->text(s, "name", shown_to(at, p->uid) ? p->name : OTHERS);
    s->number(s, "session", p->session);
    s->number(s, "n_seq_max", p->size);
    s->number(s, "held", p->held);
    s->number(s, "idle", p->idle_count);
    s->number(s, "waiting", p->waiting_count);
}

static void show_ticket(struct rows_out *s, const struct show_at *at,
    const struct ticket *k, uint32_t uid)
{
    if (!k->used || k->reason)
        return;
    s->row(s);
    s->number(s, "space", k->space);
    s->text(s, "request", shown_to(at, uid) ? k->request : OTHERS);
    s->text(s, "state", k->held ? "held" : "waiting");
    if (k->held) {
        s->number(s, "seq", k->seq);
        s->number(s, "generation", k->generation);
    }
}

void tickets_show(
    const struct tickets *t, struct show_at *at, struct rows_out *s)
{
    uint64_t end = (uint64_t)t->spaces_max + t->slots.fresh;

    for (; at->at < end && show_place(at); at->at++)
        if (at->at < t->spaces_max)
            show_space(s, at, (uint32_t)at->at, &t->spaces[at->at]);
        else {
            const struct ticket *k = &t->tickets[at->at - t->spaces_max];

            show_ticket(s, at, k, t->spaces[k->space].uid);
        }
    at->over = at->at >= end;
}

void tickets_check(const struct tickets *t)
{
    for (uint32_t i = 0; i < t->spaces_max; i++) {
        const struct space *p = &t->spaces[i];
        uint32_t held = 0, waiting = 0;

        for (uint32_t k = 0; p->used && k < t->slots.fresh; k++) {
            const struct ticket *a = &t->tickets[k];

            if (!a->used || a->reason || a->space != i)
                continue;
            held += a->held;
            waiting += !a->held;
            CHECK(!a->held || a->generation == p->generations[a->seq],
                "id %u has generation %u, its holder %u", a->seq,
                p->generations[a->seq], a->generation);
        }
        CHECK(!p->used || (held == p->held && waiting == p->waiting_count &&
                              held + p->idle_count == p->size),
            "space %u: %u held, %u idle of %u, %u wait", i, held, p->idle_count,
            p->size, waiting);
        CHECK(!p->used || p->idle_count == 0 || p->waiting_count == 0,
            "space %u: %u ids idle, %u requests wait", i, p->idle_count,
            p->waiting_count);
    }
}
