/* tickets.c - sequence ids: spaces, requests that hold or wait, and the
 * daemon's events about them.
 *
 * Invariants. A request of a space has at most one entry, which is found by its
 * bucket until it is released or its loss is handed out. Frames of one
 * connection arrive in order and the answer to an ask carries the present
 * state, so an event that arrives while asks are unanswered is older than their
 * answer and is ignored: events never go back in time. An entry has at most one
 * pending event: the newest. Answers find their entry by index and tag, events
 * by space and request. A lost entry stays until the step after its event, for
 * the event's text. Under the handle's lock.
 *
 * Rejected: asking the daemon in mmx_ticket_wait (the thread that steps would
 * miss the event), and reporting late releases (generations make them
 * harmless). */
#include "client/client.h"

#include <string.h>

void client_tickets_init(mmx *m)
{
    list_init(&m->tickets_news);
    list_init(&m->tickets_given);
    list_init(&m->tickets_free);
    for (uint32_t i = 0; i < BUCKETS; i++)
        list_init(&m->buckets[i]);
}

/* entries */

static struct list *bucket(mmx *m, uint32_t space, const char *request)
{
    uint64_t h = mmx_room_id(request, strlen(request)) + space;

    return &m->buckets[h % BUCKETS];
}

static struct client_ticket *find(mmx *m, uint32_t space, const char *request)
{
    assert(space < SPACES_MAX);
    LIST_FOREACH (n, bucket(m, space, request)) {
        struct client_ticket *k =
            LIST_ENTRY(n, struct client_ticket, in_bucket);

        if (k->space == space && strcmp(k->request, request) == 0)
            return k;
    }
    return NULL;
}

/* Takes a new entry; the caller has checked the request's length. NULL: none is
 * free. */
static struct client_ticket *take(mmx *m, uint32_t space, const char *request)
{
    struct list *n = list_pop(&m->tickets_free);
    struct client_ticket *k;

    if (n)
        k = LIST_ENTRY(n, struct client_ticket, in_line);
    else if (m->tickets_used < TICKETS_MAX)
        k = &m->tickets[m->tickets_used++];
    else
        return NULL;
    assert(k->tag == 0 && strlen(request) < sizeof k->request);
    *k = (struct client_ticket){.space = (uint8_t)space};
    memcpy(k->request, request, strlen(request));
    if (++m->ticket_tag == 0)
        m->ticket_tag = 1;
    k->tag = m->ticket_tag;
    list_init(&k->in_line);
    list_init(&k->in_bucket);
    list_push_tail(bucket(m, space, request), &k->in_bucket);
    return k;
}

static void drop(mmx *m, struct client_ticket *k)
{
    assert(k->tag != 0);
    k->tag = 0;
    list_remove(&k->in_bucket);
    list_remove(&k->in_line);
    list_push_head(&m->tickets_free, &k->in_line);
}

/* Makes the entry's state its pending event. */
static void notify(mmx *m, struct client_ticket *k)
{
    assert(k->tag != 0 && list_linked(&k->in_bucket));
    if (!list_linked(&k->in_line))
        list_push_tail(&m->tickets_news, &k->in_line);
}

static void lose(mmx *m, struct client_ticket *k, uint8_t reason)
{
    k->state = TICKET_LOST;
    k->reason = reason;
    notify(m, k);
}

/* the daemon's events */

void client_ticket_answer(
    mmx *m, const struct client_asked *q, const struct local_answer *a)
{
    struct client_ticket *k =
        q->cell < TICKETS_MAX ? &m->tickets[q->cell] : NULL;

    if (!k || q->tag == 0 || k->tag != q->tag)
        return; /* released before its answer */
    if (k->asks)
        k->asks--;
    if (a->err) {
        /* If an ask is refused, the request still holds its id. */
        if (k->state == TICKET_HELD)
            notify(m, k);
        else if (k->state == TICKET_ASKED && !k->asks)
            lose(m, k, a->err);
    } else if (a->a == NONE) {
        k->state = TICKET_WAITS;
        list_remove(&k->in_line);
    } else {
        k->state = TICKET_HELD;
        k->seq = a->a;
        k->generation = a->b;
        notify(m, k);
    }
}

void client_ticket_event(mmx *m, const struct local_ticket_event *e)
{
    char request[sizeof m->tickets->request];
    struct client_ticket *k = NULL;

    if (e->request.len >= sizeof request)
        return;
    span_copy_str(e->request, request, sizeof request);
    for (uint32_t i = 0; i < SPACES_MAX && !k; i++)
        if (m->spaces[i].used && m->spaces[i].serial == m->serial &&
            m->spaces[i].number == e->space)
            k = find(m, i, request);
    if (!k || k->asks || k->state == TICKET_LOST)
        return;
    if (!e->state) {
        lose(m, k, e->reason);
    } else if (e->seq != NONE) {
        k->state = TICKET_HELD;
        k->seq = e->seq;
        k->generation = e->generation;
        notify(m, k);
    }
}

void client_tickets_lost(mmx *m)
{
    for (uint32_t i = 0; i < m->tickets_used; i++) {
        struct client_ticket *k = &m->tickets[i];

        if (!k->tag || !list_linked(&k->in_bucket))
            continue;
        k->asks = 0;
        if (k->state != TICKET_LOST)
            lose(m, k, MMX_E_DAEMON_LOST);
    }
}

/* handing out */

void client_tickets_reap(mmx *m)
{
    struct list *n;

    while ((n = list_pop(&m->tickets_given)))
        drop(m, LIST_ENTRY(n, struct client_ticket, in_line));
}

int client_tickets_give(mmx *m, struct mmx_event *ev, int max)
{
    struct list *n;
    int count = 0;

    while (count < max && (n = list_pop(&m->tickets_news))) {
        struct client_ticket *k = LIST_ENTRY(n, struct client_ticket, in_line);
        bool held = k->state == TICKET_HELD;

        assert(held || k->state == TICKET_LOST);
        ev[count++] =
            (struct mmx_event){.what = held ? MMX_TICKET : MMX_TICKET_LOST,
                .user = k->user,
                .reason = held ? 0 : k->reason,
                .advice = held ? 0 : (int)err_advice((enum err)k->reason),
                .a = held ? k->seq : 0,
                .generation = held ? k->generation : 0,
                .op = held ? NULL : local_name(LOCAL_TICKET),
                .text = held ? "" : err_text((enum err)k->reason),
                .request = k->request,
                .space = k->space};
        if (!held) {
            list_remove(&k->in_bucket);
            list_push_tail(&m->tickets_given, &k->in_line);
        }
    }
    return count;
}

/* calls */

/* Returns the index of the space of this name, or of a new one. */
static int space_of(mmx *m, const char *name)
{
    int free = -MMX_E_QUOTA;

    for (int i = SPACES_MAX; i-- > 0;) {
        if (m->spaces[i].used && strcmp(m->spaces[i].name, name) == 0)
            return i;
        if (!m->spaces[i].used)
            free = i;
    }
    if (free >= 0) {
        assert(strlen(name) < sizeof m->spaces->name);
        m->spaces[free] = (struct client_space){.used = true};
        memcpy(m->spaces[free].name, name, strlen(name));
    }
    return free;
}

void client_space_answer(mmx *m, uint64_t id, const struct local_answer *a)
{
    struct client_space *p = &m->spaces[id - 1];

    assert(id >= 1 && id <= SPACES_MAX && p->asked > 0);
    p->asked--;
    if (!a->err) {
        p->number = a->a;
        p->serial = m->serial;
    } else if (!p->serial && !p->asked) {
        p->used = false;
    }
}

/* Asks for a space; r: NULL, or waits for the answer. */
static int ask_space(mmx *m, const char *name, uint32_t n_seq_max,
    struct client_reply *r, int timeout_ms)
{
    struct local_msg msg = {.type = LOCAL_SPACE,
        .space = {.n_seq_max = n_seq_max, .name = span_str(name)}};
    int space = space_of(m, name), err;
    uint64_t id = (uint64_t)space + 1;
    uint32_t before = m->seq;

    assert(space < SPACES_MAX);
    if (space < 0)
        return space;
    m->spaces[space].asked++;
    err = r ? client_call(m, &msg, id, r, timeout_ms)
            : client_ask(m, &msg, id, NONE, 0, NULL);
    if (m->seq == before) /* no answer will come */
        client_space_answer(m, id, &(struct local_answer){.err = ERR_INTERNAL});
    return err ? err : space;
}

int mmx_space(mmx *m, const char *name, uint32_t n_seq_max, int timeout_ms)
{
    struct client_reply r = {.fd = -1};

    if (!name || strlen(name) >= sizeof m->spaces->name)
        return -MMX_E_MALFORMED;
    return CLIENT_LOCKED(m, ask_space(m, name, n_seq_max, &r, timeout_ms));
}

int mmx_ask_space(mmx *m, const char *name, uint32_t n_seq_max)
{
    if (!name || strlen(name) >= sizeof m->spaces->name)
        return -MMX_E_MALFORMED;
    return CLIENT_LOCKED(m, ask_space(m, name, n_seq_max, NULL, 0));
}

static bool good_request(const char *request)
{
    size_t n = request ? strnlen(request, 64) : 0;

    return n > 0 && n < 64;
}

/* Takes the lock and finds a space of this connection. */
static int enter(mmx *m, int space, const char *request, uint32_t *number)
{
    int err;

    if (space < 0 || space >= SPACES_MAX || !good_request(request))
        return -MMX_E_MALFORMED;
    err = client_lock(m);
    if (err)
        return err;
    if (!m->spaces[space].used)
        err = -MMX_E_MALFORMED;
    else if (m->link != LINK_UP)
        err = -MMX_E_NOT_READY;
    else if (m->spaces[space].serial != m->serial)
        err = -MMX_E_STALE;
    if (err)
        client_unlock(m);
    else
        *number = m->spaces[space].number;
    return err;
}

static int ask(mmx *m, const struct mmx_ticket *t, uint32_t number)
{
    struct local_msg msg = {.type = LOCAL_TICKET,
        .ticket = {.space = number,
            .wait_ms = t->wait_ms,
            .hold_ms = t->hold_ms,
            .cell = t->room.tag ? t->room.cell : NONE,
            .tag = t->room.tag,
            .request = span_str(t->request)}};
    uint32_t space = (uint32_t)t->space;
    struct client_ticket *k = find(m, space, t->request);
    bool fresh = !k;
    int err;

    if (t->room.tag && !client_room(m, t->room))
        return -MMX_E_STALE;
    if (fresh)
        k = take(m, space, t->request);
    if (!k)
        return -MMX_E_QUOTA;
    err = client_ask(m, &msg, 0, (uint32_t)(k - m->tickets), k->tag, NULL);
    if (err) {
        if (fresh)
            drop(m, k);
        return err;
    }
    k->user = t->user;
    k->asks++;
    if (k->state == TICKET_LOST) {
        k->state = TICKET_ASKED;
        list_remove(&k->in_line);
    }
    return 0;
}

int mmx_ticket(mmx *m, const struct mmx_ticket *opt)
{
    struct mmx_ticket t;
    uint32_t number;
    int err;

    if (!CLIENT_TAKE(t, opt))
        return -MMX_E_MALFORMED;
    err = enter(m, t.space, t.request, &number);
    if (err)
        return err;
    err = ask(m, &t, number);
    client_unlock(m);
    return err;
}

int client_ticket_outcome(
    mmx *m, int space, const char *request, struct mmx_seq *out)
{
    struct client_ticket *k;
    int reason;

    if (space < 0 || space >= SPACES_MAX || !good_request(request))
        return -MMX_E_MALFORMED;
    k = find(m, (uint32_t)space, request);
    if (!k)
        return -MMX_E_STALE;
    if (k->state == TICKET_HELD) {
        list_remove(&k->in_line);
        *out = (struct mmx_seq){1, k->seq, k->generation};
        return 1;
    }
    if (k->state != TICKET_LOST)
        return 0;
    reason = k->reason ? -(int)k->reason : -MMX_E_ABORTED;
    drop(m, k);
    return reason;
}

int mmx_ticket_release(
    mmx *m, int space, const char *request, uint32_t generation)
{
    struct local_msg msg = {.type = LOCAL_TICKET_RELEASE};
    struct client_ticket *k;
    int err = enter(m, space, request, &msg.ticket_release.space);

    if (err)
        return err;
    msg.ticket_release.generation = generation;
    msg.ticket_release.request = span_str(request);
    err = client_ask(m, &msg, 0, NONE, 0, NULL);
    k = find(m, (uint32_t)space, request);
    if (!err && k &&
        (generation == MMX_UNKNOWN ||
            (k->state == TICKET_HELD && k->generation == generation)))
        drop(m, k);
    client_unlock(m);
    return err;
}

int mmx_ask_ticket(mmx *m, int space, const char *request)
{
    struct local_msg msg = {.type = LOCAL_TICKET_QUERY};
    int err = enter(m, space, request, &msg.ticket_query.space);

    if (err)
        return err;
    msg.ticket_query.request = span_str(request);
    err = client_ask(m, &msg, 0, NONE, 0, NULL);
    client_unlock(m);
    return err;
}

int mmx_ticket_query(
    mmx *m, int space, const char *request, int timeout_ms, struct mmx_seq *out)
{
    struct local_msg msg = {.type = LOCAL_TICKET_QUERY};
    struct client_reply r = {.fd = -1};
    int err;

    if (!out)
        return -MMX_E_MALFORMED;
    err = enter(m, space, request, &msg.ticket_query.space);
    if (err)
        return err;
    msg.ticket_query.request = span_str(request);
    err = client_call(m, &msg, 0, &r, timeout_ms);
    client_unlock(m);
    if (!err)
        *out = r.a == NONE ? (struct mmx_seq){0, 0, 0}
                           : (struct mmx_seq){1, r.a, r.b};
    return err;
}
