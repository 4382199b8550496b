/* rooms.c - the rooms of a handle: opening, committing, releasing, and the
 * daemon's events about them.
 *
 * Invariants. A cell is in exactly one state: free (on the free stack, tag 0),
 * in use (tag not 0), or retired (tag 0, its last event was handed out; freed
 * at the next step so that the event's text stays valid). Events accumulate as
 * bits in the room until they are handed out, so a handle that is not stepped
 * for a minute needs no memory for them. A word with the room's tag in the
 * daemon's page is the true state, unless m->own has such a word, too: for
 * states that the daemon cannot show, since it is lost, hangs or refused the
 * room. All runs under the handle's lock, except the reads of words.
 *
 * Free cells are a stack: few rooms at a time touch few pages. Rejected: a
 * queue, which would reuse cells later; stale handles are detected by tags. */
#include "client/client.h"

#include "wire/context.h"

#include <string.h>

void client_rooms_init(mmx *m)
{
    m->free_head = m->pending_head = m->pending_tail = m->retired_head = NONE;
    for (uint32_t i = m->cells; i-- > 0;) {
        m->rooms[i].next = m->free_head;
        m->free_head = i;
    }
}

struct client_room *client_room(mmx *m, mmx_room h)
{
    struct client_room *r;

    if (h.cell >= m->cells || h.tag == 0)
        return NULL;
    r = &m->rooms[h.cell];
    return r->tag == h.tag ? r : NULL;
}

/* True if the daemon shows this room in its cell. */
static bool bound(const mmx *m, const struct client_room *r)
{
    return r->serial == m->serial && !r->unbound;
}

static uint32_t cell_of(const mmx *m, const struct client_room *r)
{
    assert(r >= m->rooms && r < m->rooms + m->cells);
    return (uint32_t)(r - m->rooms);
}

static mmx_room handle_of(const mmx *m, const struct client_room *r)
{
    return (mmx_room){cell_of(m, r), r->tag};
}

static void push(mmx *m, uint32_t *head, struct client_room *r)
{
    assert(r->tag == 0 && (*head == NONE || *head < m->cells));
    r->next = *head;
    *head = cell_of(m, r);
}

/* Sets the bits of a room's next event. */
static void set_what(mmx *m, struct client_room *r, uint32_t what)
{
    m->rooms_news += (what != 0);
    m->rooms_news -= (r->what != 0);
    r->what = what;
}

/* Adds bits to a room's next event and queues the room. The pending list has
 * links of its own: a room that is released while queued stays queued, without
 * bits. */
static void notify(mmx *m, struct client_room *r, uint32_t what)
{
    uint32_t i = cell_of(m, r);

    assert(r->tag != 0);
    set_what(m, r, r->what | what);
    r->seen |= what;
    m->lend_due |= m->lend_waits;
    if (r->queued)
        return;
    r->queued = i + 1;
    if (m->pending_head == NONE)
        m->pending_head = i;
    else
        m->rooms[m->pending_tail].queued = i + 1;
    m->pending_tail = i;
}

static void pop_pending(mmx *m)
{
    struct client_room *r = &m->rooms[m->pending_head];
    uint32_t next = r->queued - 1;

    assert(m->pending_head < m->cells && r->queued && next < m->cells);
    m->pending_head = next == m->pending_head ? NONE : next;
    r->queued = 0;
}

void client_rooms_reap(mmx *m)
{
    while (m->retired_head != NONE) {
        struct client_room *r = &m->rooms[m->retired_head];

        assert(r->tag == 0 && r->what == 0);
        m->retired_head = r->next;
        push(m, &m->free_head, r);
    }
}

/* Takes a free cell that the daemon has granted, with a new tag; NULL: none. */
static struct client_room *room_take(mmx *m)
{
    uint32_t *at = &m->free_head;
    struct client_room *r;
    uint32_t queued;

    while (*at != NONE && *at >= m->granted)
        at = &m->rooms[*at].next;
    if (*at == NONE)
        return NULL;
    r = &m->rooms[*at];
    assert(r->tag == 0 && m->granted <= m->cells);
    *at = r->next;
    queued = r->queued;
    *r = (struct client_room){.queued = queued,
        .serial = m->serial,
        .total = MMX_UNKNOWN,
        .pool = -1,
        .state = MMX_BOOTSTRAPPING};
    m->tag = m->tag % TAG_MAX + 1;
    r->tag = m->tag;
    atomic_store_explicit(&m->own[cell_of(m, r)], 0, memory_order_relaxed);
    m->stores[cell_of(m, r)].text[0] = 0;
    return r;
}

static void room_free(mmx *m, struct client_room *r)
{
    assert(r->tag != 0);
    r->tag = 0;
    m->lend_due |= m->lend_waits;
    set_what(m, r, 0);
    push(m, &m->free_head, r);
}

static void own_word(mmx *m, struct client_room *r, uint64_t word)
{
    atomic_store_explicit(&m->own[cell_of(m, r)], word, memory_order_release);
}

static void room_fail(mmx *m, struct client_room *r, uint8_t reason)
{
    uint64_t word =
        atomic_load_explicit(&m->page[cell_of(m, r)], memory_order_acquire);
    uint32_t rows = cell_tag(word) == r->tag ? cell_rows(word) : 0;

    r->state = MMX_FAILED_STATE;
    r->reason = reason;
    own_word(m, r, cell_word(MMX_FAILED_STATE, reason, r->tag, rows));
}

/* Takes the text of a failure in place of a refusal's: an event has one
 * reason. */
static void say_why(mmx *m, struct client_room *r, struct span text)
{
    set_what(m, r, r->what & ~(uint32_t)MMX_REFUSED);
    span_copy_str(text, m->stores[cell_of(m, r)].text, sizeof m->stores->text);
}

/* the daemon's events */

/* Sets the room's pool from its event: an attach does not name one. */
static void take_pool(mmx *m, struct client_room *r, uint16_t number)
{
    r->pool = number;
    if (r->map != MAP_NONE && m->maps[r->map].number == number)
        return;
    r->runs = 0;
    r->map = MAP_NONE;
    for (uint8_t i = 0; i < MAPS_MAX; i++) {
        const struct client_map *map = &m->maps[i];

        if (map->used && !map->going && map->serial == m->serial &&
            map->number == number)
            r->map = i;
    }
}

static void take_aux(mmx *m, struct client_room *r, struct span aux)
{
    struct client_store *s = &m->stores[cell_of(m, r)];

    assert(aux.len <= sizeof s->aux); /* the wire's limit */
    /* The same aux is not written again: the engine may be reading it. */
    if (aux.len == 0 ||
        (aux.len == r->aux_len && memcmp(s->aux, aux.p, aux.len) == 0))
        return;
    memcpy(s->aux, aux.p, aux.len);
    r->aux_len = aux.len;
}

void client_room_event(mmx *m, const struct local_event *e)
{
    struct client_room *r = client_room(m, (mmx_room){e->cell, e->tag});

    if (!r || !bound(m, r) || r->reason == MMX_E_DAEMON_SILENT)
        return;
    r->state = e->state;
    /* several events may be handed out as one */
    if (e->what & (EVENT_WANTED | EVENT_DONE | EVENT_FAILED)) {
        r->a = e->a;
        r->b = e->b;
    }
    if (e->storage)
        r->storage = e->storage;
    if (e->generation)
        r->generation = e->generation;
    if (e->total != MMX_UNKNOWN)
        r->total = e->total;
    if (e->what & (EVENT_GRANTED | EVENT_LANDED | EVENT_READY)) {
        r->rows = e->rows;
        take_pool(m, r, e->pool);
        if (r->pooled && (r->map != MAP_NONE || m->said))
            client_runs_take(m, r, e->first, e->runs);
    }
    if (e->what & (EVENT_LENGTH | EVENT_READY))
        take_aux(m, r, e->aux);
    if (e->what & EVENT_FAILED) {
        r->reason = e->reason;
        say_why(m, r, e->text);
    }
    notify(m, r, e->what & 0xffff);
}

static void note_refused(mmx *m, uint64_t id, const struct local_answer *a)
{
    struct client_note *n;

    if (m->notes_count == NOTES_MAX)
        return;
    n = &m->notes[(m->notes_head + m->notes_count++) % NOTES_MAX];
    n->id = id;
    n->reason = a->err;
    span_copy_str(a->text, n->text, sizeof n->text);
}

void client_room_refused(
    mmx *m, const struct client_asked *q, const struct local_answer *a)
{
    struct client_room *r = client_room(m, (mmx_room){q->cell, q->tag});

    if (q->type == LOCAL_DECLINE)
        note_refused(m, q->id, a);
    /* Messages after a refused opening, or to a room that has ended, are
     * refused too; only the first reason is reported. */
    if (!r || r->unbound || r->seen & (MMX_DONE | MMX_FAILED))
        return;
    r->refused_op = q->type;
    r->refused_reason = a->err;
    r->a = a->a;
    r->b = a->b;
    span_copy_str(
        a->text, m->stores[cell_of(m, r)].text, sizeof m->stores->text);
    if (client_is_open_op(q->type)) {
        r->unbound = true;
        room_fail(m, r, a->err);
    }
    notify(m, r, MMX_REFUSED);
}

bool client_room_open(const mmx *m, const struct client_room *r)
{
    return r->tag && bound(m, r) &&
           !(r->seen & (MMX_READY | MMX_DONE | MMX_FAILED));
}

void client_room_fail(mmx *m, struct client_room *r, uint8_t reason)
{
    room_fail(m, r, reason);
    say_why(m, r, span_str(""));
    notify(m, r, MMX_FAILED);
}

void client_rooms_lost(mmx *m)
{
    for (uint32_t i = 0; i < m->cells; i++) {
        struct client_room *r = &m->rooms[i];
        /* The daemon's local_cell() has released it. */
        uint64_t word = atomic_load_explicit(&m->page[i], memory_order_acquire);

        if (client_room_open(m, r))
            client_room_fail(m, r, MMX_E_DAEMON_LOST);
        else if (r->tag && bound(m, r) && r->reason != MMX_E_DAEMON_SILENT)
            own_word(m, r,
                cell_tag(word) == r->tag
                    ? word
                    : cell_word(r->state, r->reason, r->tag, r->rows));
    }
}

/* handing out */

static void fill(mmx *m, const struct client_room *r, struct mmx_event *e)
{
    const struct client_store *s = &m->stores[cell_of(m, r)];
    bool refused = (r->what & MMX_REFUSED) != 0;
    int reason = refused ? r->refused_reason : r->reason;

    *e = (struct mmx_event){.what = r->what,
        .room = handle_of(m, r),
        .id = r->id,
        .user = r->user,
        .state = r->state,
        .reason = reason,
        .advice = (int)err_advice((enum err)reason),
        .storage = r->storage,
        .rows = r->rows,
        .total = r->total,
        .a = r->a,
        .b = r->b,
        .generation = r->generation,
        .op = refused ? local_name(r->refused_op) : NULL,
        .text = r->what & (MMX_FAILED | MMX_REFUSED) ? s->text : ""};
    if (r->what & (MMX_LENGTH | MMX_READY) && r->aux_len) {
        e->aux = s->aux;
        e->aux_len = r->aux_len;
    }
}

static int put_release(
    mmx *m, struct client_room *r, uint32_t rows, unsigned flags)
{
    mmx_room h = handle_of(m, r);
    struct local_msg msg = {.type = LOCAL_RELEASE,
        .release = {.cell = h.cell,
            .tag = h.tag,
            .rows = rows,
            .flags = (flags & MMX_KEEP) ? FLAG_KEEP : 0}};

    if (flags & MMX_NO_READERS)
        msg.release.flags |= FLAG_NO_READERS;
    return client_put(m, &msg, r->id, h.cell, h.tag, NULL);
}

int client_rooms_give(mmx *m, struct mmx_event *ev, int max)
{
    int n = 0;

    while (n < max && m->pending_head != NONE) {
        struct client_room *r = &m->rooms[m->pending_head];
        bool done = (r->what & MMX_DONE) != 0 && !m->said;

        if (done && bound(m, r) && put_release(m, r, MMX_ALL, 0) == -MMX_E_BUSY)
            break;
        pop_pending(m);
        if (!r->what)
            continue;
        fill(m, r, &ev[n++]);
        set_what(m, r, 0);
        if (done || r->unbound) {
            r->tag = 0;
            push(m, &m->retired_head, r);
        }
    }
    return n;
}

/* calls */

/* Sends the message that opens a room; frees the room if that fails. to: the
 * message's secret. */
static int open_room(mmx *m, struct client_room *r, struct local_msg *msg,
    struct secret *to, const struct mmx_reference *ref, uint32_t deadline_ms,
    mmx_room *out)
{
    mmx_room h = handle_of(m, r);
    int err;

    memcpy(to->b, ref->secret, sizeof to->b);
    r->secret = *to;
    assert(client_is_open_op(msg->type) && r->tag != 0);
    err = client_ask(m, msg, r->id, h.cell, h.tag, NULL);
    if (err) {
        room_free(m, r);
        return err;
    }
    r->asked = m->seq;
    client_due(m, r, deadline_ms);
    *out = h;
    return 0;
}

/* Makes the reference of a room that is to be opened. */
static int name_room(
    uint64_t id, const struct mmx_reference *from, struct mmx_reference *to)
{
    if (from && (id || !from->id))
        return -MMX_E_MALFORMED;
    if (!from && !id)
        return mmx_reference_draw(to);
    *to = from ? *from : (struct mmx_reference){.id = id};
    assert(to->id != 0);
    return 0;
}

int mmx_reference(mmx *m, mmx_room h, struct mmx_reference *out)
{
    struct client_room *r;
    int err = out ? client_lock(m) : -MMX_E_MALFORMED;

    if (err)
        return err;
    r = client_room(m, h);
    if (r) {
        assert(r->id != 0);
        out->id = r->id;
        memcpy(out->secret, r->secret.b, sizeof out->secret);
    }
    client_unlock(m);
    return r ? 0 : -MMX_E_STALE;
}

static struct span text_of(const char *s)
{
    return s ? span_str(s) : span_of(NULL, 0);
}

/* True if there is no trace context, or a well-formed one. */
static bool context_good(const char *traceparent)
{
    struct traceparent t;

    return !traceparent || traceparent_read(span_str(traceparent), &t);
}

static void copy_key(struct key *to, const uint8_t *from)
{
    if (from)
        memcpy(to->b, from, sizeof to->b);
}

/* Takes a room on a pool of this run of the daemon; the lock is held. */
static int room_begin(mmx *m, uint64_t id, void *user, int pool, bool pooled,
    struct client_room **out)
{
    const struct client_map *map = NULL;

    if (m->link != LINK_UP)
        return -MMX_E_NOT_READY;
    if (pooled) {
        if (pool < 0 || pool >= MAPS_MAX || !m->maps[pool].used ||
            m->maps[pool].lender)
            return -MMX_E_MALFORMED;
        map = &m->maps[pool];
        if (map->serial != m->serial)
            return -MMX_E_STALE;
    }
    *out = room_take(m);
    if (!*out)
        return -MMX_E_QUOTA;
    (*out)->id = id;
    (*out)->user = user;
    (*out)->pooled = pooled;
    (*out)->map = (uint8_t)(pooled ? pool : MAP_NONE);
    return 0;
}

static int announce(mmx *m, const struct mmx_announce *a,
    const struct mmx_reference *ref, mmx_room *out)
{
    struct local_msg msg = {.type = LOCAL_ANNOUNCE};
    bool known = a->rows || !a->max_rows;
    struct client_room *r;
    int err = room_begin(m, ref->id, a->user, a->pool, true, &r);

    if (err)
        return err;
    r->storage = (uint8_t)(a->storage ? a->storage : MMX_COMPACT);
    r->total = known ? a->rows : MMX_UNKNOWN;
    msg.announce = (struct local_announce){.room = ref->id,
        .cell = cell_of(m, r),
        .tag = r->tag,
        .pool = m->maps[r->map].number,
        .storage = r->storage,
        .flags = (uint8_t)a->flags,
        .max_rows = a->max_rows ? a->max_rows : a->rows,
        .total = r->total,
        .required_dst = a->required_dst,
        .batch = a->batch,
        .deadline_ms = a->deadline_ms,
        .aux = span_of(a->aux, a->aux_len),
        .traceparent = text_of(a->traceparent)};
    copy_key(&msg.announce.key, a->key);
    return open_room(
        m, r, &msg, &msg.announce.secret, ref, a->deadline_ms, out);
}

int mmx_announce(mmx *m, const struct mmx_announce *opt, mmx_room *out)
{
    struct mmx_reference ref;
    struct mmx_announce a;
    int err;

    if (!out || !CLIENT_TAKE(a, opt) || a.storage < 0 ||
        a.storage > MMX_PROMPT || a.aux_len > AUX_MAX ||
        (a.aux_len && !a.aux) || a.flags > (MMX_KEEP | MMX_OPEN) ||
        !context_good(a.traceparent))
        return -MMX_E_MALFORMED;
    err = name_room(a.id, a.reference, &ref);
    return err ? err : CLIENT_LOCKED(m, announce(m, &a, &ref, out));
}

static int request(mmx *m, const struct mmx_request *q,
    const struct mmx_reference *ref, mmx_room *out)
{
    struct local_msg msg = {.type = LOCAL_REQUEST};
    struct client_room *r;
    int err = room_begin(m, ref->id, q->user, q->pool, true, &r);

    if (err)
        return err;
    msg.request = (struct local_request){.room = ref->id,
        .cell = cell_of(m, r),
        .tag = r->tag,
        .pool = m->maps[r->map].number,
        .mode = (uint8_t)q->mode,
        .storage = (uint8_t)q->storage,
        .flags = (q->flags & MMX_KEEP) ? FLAG_KEEP : 0,
        .rows = q->rows,
        .readers = q->readers,
        .required_dst = q->required_dst,
        .group = q->group,
        .group_size = q->group_size,
        .deadline_ms = q->deadline_ms,
        .encoder = text_of(q->encoder),
        .traceparent = text_of(q->traceparent)};
    if (q->flags & MMX_ANNOUNCED)
        msg.request.flags |= FLAG_ANNOUNCED;
    copy_key(&msg.request.key, q->key);
    return open_room(m, r, &msg, &msg.request.secret, ref, q->deadline_ms, out);
}

int mmx_request(mmx *m, const struct mmx_request *opt, mmx_room *out)
{
    struct mmx_reference ref;
    struct mmx_request q;
    int err;

    if (!out || !CLIENT_TAKE(q, opt) || !q.encoder ||
        !context_good(q.traceparent) || q.mode < MMX_WHOLE ||
        q.mode > MMX_STREAM || q.storage < 0 || q.storage > MMX_PROMPT ||
        (q.flags & ~(unsigned)(MMX_KEEP | MMX_ANNOUNCED)))
        return -MMX_E_MALFORMED;
    err = name_room(q.id, q.reference, &ref);
    return err ? err : CLIENT_LOCKED(m, request(m, &q, &ref, out));
}

static int attach(mmx *m, const struct mmx_attach *a,
    const struct mmx_reference *ref, mmx_room *out)
{
    bool pooled = (a->rights & (MMX_READ | MMX_WRITE)) != 0;
    struct local_msg msg = {.type = LOCAL_ATTACH};
    struct client_room *r;
    int err = room_begin(m, ref->id, a->user, 0, false, &r);

    if (err)
        return err;
    r->pooled = pooled;
    r->attached = true;
    msg.attach = (struct local_attach){.room = ref->id,
        .cell = cell_of(m, r),
        .tag = r->tag,
        .rights = (uint8_t)a->rights,
        .deadline_ms = a->deadline_ms,
        .encoder = text_of(a->encoder)};
    return open_room(m, r, &msg, &msg.attach.secret, ref, a->deadline_ms, out);
}

int mmx_attach(mmx *m, const struct mmx_attach *opt, mmx_room *out)
{
    struct mmx_reference ref;
    struct mmx_attach a;
    int err;

    if (!out || !CLIENT_TAKE(a, opt) || a.rights < 1 ||
        a.rights > (MMX_READ | MMX_WRITE | MMX_WATCH))
        return -MMX_E_MALFORMED;
    err = a.id || a.reference ? name_room(a.id, a.reference, &ref)
                              : -MMX_E_MALFORMED;
    return err ? err : CLIENT_LOCKED(m, attach(m, &a, &ref, out));
}

/* Takes the lock and finds a room that has not ended. */
static int enter(mmx *m, mmx_room h, struct client_room **out)
{
    int err = client_lock(m);
    struct client_room *r;

    if (err)
        return err;
    r = client_room(m, h);
    if (!r || r->seen & MMX_DONE)
        err = -MMX_E_STALE;
    else if (r->state == MMX_FAILED_STATE)
        err = r->reason ? -(int)r->reason : -MMX_E_ABORTED;
    else if (!bound(m, r))
        err = -MMX_E_DAEMON_LOST;
    if (err)
        client_unlock(m);
    else
        *out = r;
    return err;
}

/* Sends a message about a room that has not ended. */
static int tell(mmx *m, mmx_room h, struct local_msg *msg)
{
    struct client_room *r;
    int err = enter(m, h, &r);

    if (err)
        return err;
    err = client_ask(m, msg, r->id, h.cell, h.tag, NULL);
    client_unlock(m);
    return err;
}

int mmx_commit(mmx *m, mmx_room h, uint32_t first, uint32_t rows)
{
    struct local_msg msg = {.type = LOCAL_COMMIT,
        .commit = {.cell = h.cell,
            .tag = h.tag,
            .first = first,
            .rows = rows,
            .total = MMX_UNKNOWN}};

    return tell(m, h, &msg);
}

int mmx_commit_final(mmx *m, mmx_room h, uint32_t first, uint32_t rows,
    uint32_t total, const void *aux, uint32_t aux_len)
{
    struct local_msg msg = {.type = LOCAL_COMMIT,
        .commit = {.cell = h.cell,
            .tag = h.tag,
            .first = first,
            .rows = rows,
            .flags = FLAG_FINAL,
            .total = total,
            .aux = span_of(aux, aux_len)}};

    if (total == MMX_UNKNOWN || aux_len > AUX_MAX || (aux_len && !aux))
        return -MMX_E_MALFORMED;
    return tell(m, h, &msg);
}

int mmx_decline(mmx *m, const char *encoder, const struct mmx_reference *r,
    const uint8_t key[32])
{
    static const struct mmx_reference none;
    struct local_msg msg = {.type = LOCAL_DECLINE};

    if (!r ||
        (!encoder && memcmp(r->secret, none.secret, sizeof none.secret) == 0))
        return -MMX_E_MALFORMED;
    msg.decline.room = r->id;
    msg.decline.encoder = text_of(encoder);
    memcpy(msg.decline.secret.b, r->secret, sizeof r->secret);
    copy_key(&msg.decline.key, key);
    return CLIENT_LOCKED(m, client_ask(m, &msg, r->id, NONE, 0, NULL));
}

int mmx_abort(mmx *m, mmx_room h, int reason, const char *text)
{
    struct local_msg msg = {.type = LOCAL_ABORT,
        .abort = {.cell = h.cell,
            .tag = h.tag,
            .reason = (uint8_t)reason,
            .text = text_of(text)}};

    if (reason < 0 || reason >= ERR_COUNT)
        return -MMX_E_MALFORMED;
    return tell(m, h, &msg);
}

static int release(mmx *m, mmx_room h, uint32_t rows, unsigned flags)
{
    struct client_room *r = client_room(m, h);
    int err = 0;

    if (!r)
        return -MMX_E_STALE;
    if (rows != MMX_ALL && rows < r->base)
        return 0; /* nothing new */
    /* The daemon would refuse these flags, and continue to show the room. A
     * room that has failed here shows no rows any more, but its reader may
     * still have some. */
    if (flags & ~(unsigned)(MMX_KEEP | MMX_NO_READERS) ||
        (m->info.role == ROLE_ENCODED &&
            (rows != MMX_ALL || flags & MMX_NO_READERS)) ||
        (rows != MMX_ALL && r->state != MMX_FAILED_STATE &&
            rows > max_u32(r->rows, cell_rows(client_word(m, h)))))
        return -MMX_E_MALFORMED;
    if (flags & MMX_NO_READERS && r->attached)
        return -MMX_E_NOT_OWNER;
    if (bound(m, r))
        err = put_release(m, r, rows, flags);
    if (err == -MMX_E_BUSY || err == -MMX_E_MALFORMED)
        return err; /* nothing was sent: try again */
    if (!m->corks)
        client_flush(m);
    if (rows == MMX_ALL) {
        room_free(m, r);
        return 0;
    }
    r->base = rows;
    if (r->runs && !m->said)
        client_runs_trim(m, r);
    return 0;
}

int mmx_release(mmx *m, mmx_room h, uint32_t rows, unsigned flags)
{
    return CLIENT_LOCKED(m, release(m, h, rows, flags));
}
