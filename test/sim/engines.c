/* engines.c - connections of engines as their sockets see them: frames in order
 * both ways, engines that read late, processes that end.
 *
 * Every event has two moments: when it is in the socket (from then on the
 * engine may act on it, so fences count from there), and when it was read (from
 * then on the script knows of it). */
#include "test/sim/sim.h"

#include "base/check.h"

#define DOWN_FRAMES 6 /* frames that fit into a socket that is not read */
#define SENT_KEPT   1024

struct sent {
    uint32_t seq, type;
    struct handle *h;
};

struct engine_conn {
    struct econn c; /* first */
    struct sent sent[SENT_KEPT];
    bool pulling;
};

static struct econn **all;
static uint32_t all_count, all_cap;

uint32_t econns_count(void)
{
    return all_count;
}

struct econn *econn_at(uint32_t i)
{
    return all[i];
}

static bool lives(const struct econn *c)
{
    return c->d->alive && c->d->life == c->life;
}

uint32_t econns_open(void)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < all_count; i++)
        n += lives(all[i]) && !all[i]->dead_told;
    return n;
}

/* frames in order */

static void fifo_push(struct fifo *f, const void *bytes, uint32_t len)
{
    if (f->len == f->cap) {
        uint32_t cap = f->cap ? 2 * f->cap : 32;
        struct frame *more = must_alloc(cap, sizeof(*more));

        for (uint32_t i = 0; i < f->len; i++)
            more[i] = f->frames[(f->head + i) % f->cap];
        free(f->frames);
        f->frames = more;
        f->head = 0;
        f->cap = cap;
    }
    f->frames[(f->head + f->len++) % f->cap] =
        (struct frame){len, must_alloc(1, len)};
    if (len)
        memcpy(f->frames[(f->head + f->len - 1) % f->cap].bytes, bytes, len);
}

static struct frame fifo_pop(struct fifo *f)
{
    struct frame x = f->frames[f->head];

    f->head = (f->head + 1) % f->cap;
    f->len--;
    return x;
}

/* towards the daemon */

static void up_comes(void *p, uint64_t a, uint64_t b);

static void up_soon(struct econn *c)
{
    if (c->up.busy || c->up.len == 0)
        return;
    c->up.busy = true;
    at(W.now_ns + delay_us(W.is.local_us), up_comes, c, 0, 0);
}

static void process_reaped(void *p, uint64_t a, uint64_t b)
{
    struct econn *c = p;
    struct event ev = {.type = EV_CONN_DEAD, .conn = c->number};

    if (stands_still(c->d, LOOP, process_reaped, p, a, b))
        return;
    if (!lives(c) || c->dead_told)
        return;
    c->dead_told = true;
    c->d->conns[c->number] = NULL;
    trace("%s: process of connection %u is gone", c->d->conf->name, c->number);
    daemon_step(c->d, &ev);
}

static void end_of_file(struct econn *c)
{
    struct event ev = {.type = EV_CONN_END, .conn = c->number};

    c->state = EC_OVER;
    trace("%s: connection %u ends", c->d->conf->name, c->number);
    daemon_step(c->d, &ev);
    if (c->dead || canary("end-is-death"))
        at(W.now_ns + delay_us(W.is.local_us), process_reaped, c, 0, 0);
}

static void hand_over(struct econn *c, const struct frame *f)
{
    struct reader r = reader_of(f->bytes, f->len);
    struct local_msg m;
    enum err e = local_get(&r, &m);
    struct event ev = {.type = EV_LOCAL, .conn = c->number, .local = &m};

    CHECK(e == OK || c->ghost, "a frame of our own: %s", err_name(e));
    if (e != OK) {
        ev.type = EV_LOCAL_BAD;
        ev.err = e;
        ev.seq = m.seq;
    }
    if (c->waiting_len == c->waiting_cap) {
        c->waiting_cap = c->waiting_cap ? 2 * c->waiting_cap : 16;
        c->waiting =
            realloc(c->waiting, c->waiting_cap * sizeof(struct pending_answer));
    }
    c->waiting[c->waiting_len++] = (struct pending_answer){m.seq, m.type, NULL};
    trace("%s/%u > %s seq %u cell %u", c->d->conf->name, c->number,
        local_name(m.type), m.seq,
        m.type == LOCAL_ANNOUNCE  ? m.announce.cell
        : m.type == LOCAL_REQUEST ? m.request.cell
                                  : m.commit.cell);
    daemon_step(c->d, &ev);
    HOLDS(c->waiting_len == 0 || c->state == EC_OVER,
        "every message has one answer", "%s: %s of connection %u has none",
        c->d->conf->name, local_name(m.type), c->number);
}

static void up_comes(void *p, uint64_t a, uint64_t b)
{
    struct econn *c = p;
    struct frame f;

    if (stands_still(c->d, LOOP, up_comes, p, a, b))
        return;
    c->up.busy = false;
    if (!lives(c) || c->dead_told || c->state == EC_OVER || c->up.len == 0)
        return;
    if (c->down.len > DOWN_FRAMES && !c->dead && !c->ended) {
        /* a daemon does not read from an engine that does not read */
        c->up.busy = true;
        at(W.now_ns + between(1, 5) * MS, up_comes, c, 0, 0);
        return;
    }
    f = fifo_pop(&c->up);
    if (f.len == 0)
        end_of_file(c);
    else
        hand_over(c, &f);
    free(f.bytes);
    up_soon(c);
}

void econn_send(struct econn *c, struct local_msg *m, struct handle *h)
{
    struct engine_conn *ec = (struct engine_conn *)c;
    uint8_t bytes[LOCAL_PACKET_MAX];
    struct writer w = writer_of(bytes, sizeof(bytes));
    bool ok;

    if (c->ended || c->dead)
        return;
    m->seq = ++c->seq;
    ok = local_put(&w, m);
    CHECK(ok, "%s does not fit", local_name(m->type));
    ec->sent[m->seq % SENT_KEPT] = (struct sent){m->seq, m->type, h};
    fifo_push(&c->up, bytes, (uint32_t)w.len);
    up_soon(c);
}

void econn_close(struct econn *c)
{
    if (c->ended)
        return;
    c->ended = true;
    fifo_push(&c->up, NULL, 0);
    up_soon(c);
}

void econn_die(struct econn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    map_reader_gone(c, GONE_DIES);
    econn_close(c);
    if (c->state == EC_OVER)
        at(W.now_ns + delay_us(W.is.local_us), process_reaped, c, 0, 0);
}

void econn_bye(struct econn *c)
{
    struct local_msg m = {.type = LOCAL_BYE};

    if (c->bye)
        return;
    c->bye = true;
    econn_send(c, &m, NULL);
    map_reader_gone(c, GONE_BYE);
}

/* towards the engine */

static struct handle *handle_of(struct econn *c, uint32_t cell, uint32_t tag)
{
    struct handle *h = cell < c->cells ? c->handles[cell] : NULL;

    return h && h->tag == tag ? h : NULL;
}

static void runs_take(struct handle *h, const struct local_event *e)
{
    struct reader r = reader_of(e->runs.p, e->runs.len);

    h->runs = 0;
    while (r.at < r.len) {
        CHECK(h->runs < ARRAY_LEN(h->run), "more runs than the test keeps");
        h->run[h->runs].block = get_u32(&r);
        h->run[h->runs++].blocks = get_u32(&r);
    }
    HOLDS(!r.failed, "runs can be read", "%u bytes", e->runs.len);
}

uint32_t handle_block_rows(const struct handle *h)
{
    return h->pool < CONF_POOLS_MAX ? h->c->block_rows[h->pool]
                                    : map_pool(h->c, h->pool)->block_rows;
}

uint64_t handle_row(const struct handle *h, uint32_t row)
{
    uint64_t left = row - h->first;

    for (uint32_t i = 0; i < h->runs; i++) {
        uint64_t rows = (uint64_t)h->run[i].blocks * handle_block_rows(h);

        if (left < rows)
            return (uint64_t)h->run[i].block * handle_block_rows(h) + left;
        left -= rows;
    }
    broken("runs cover what they show",
        "%s/%u cell %u room %llu row %u: %u runs from row %u",
        h->c->d->conf->name, h->c->number, h->cell,
        (unsigned long long)(h->prod ? h->prod->room : h->cons->room), row,
        h->runs, h->first);
}

/* An event is in the socket now. */
static void in_socket(struct econn *c, const struct local_event *e)
{
    struct handle *h = handle_of(c, e->cell, e->tag);

    trace("%s/%u < event %x room %llu state %u reason %u rows %u total %d",
        c->d->conf->name, c->number, e->what, (unsigned long long)e->room,
        e->state, e->reason, e->rows, (int)e->total);
    if (!h || h->released)
        return;
    if (h->prod && (e->what & EVENT_GRANTED) && e->runs.len) {
        h->first = 0;
        h->pool = e->pool;
        runs_take(h, e);
        h->may_write = !h->prod->final_sent && (h->rights & RIGHT_WRITE);
        prod_granted(h->prod, h);
    }
    if (h->cons && (e->what & (EVENT_LANDED | EVENT_READY)) && e->runs.len &&
        (h->rights & RIGHT_READ)) {
        HOLDS(h->generation == 0 || h->generation == e->generation,
            "a handle is one generation", "cell %u", h->cell);
        HOLDS(e->rows >= h->shown, "shown rows stay shown", "%u after %u",
            e->rows, h->shown);
        HOLDS(h->shown == 0 || e->first <= h->given,
            "runs begin where rows may be read", "first %u, %u released",
            e->first, h->given);
        if (h->shown == 0) /* a late connection sees only what is left */
            h->given = max_u32(h->given, e->first);
        h->generation = e->generation;
        h->first = e->first;
        h->pool = e->pool;
        runs_take(h, e);
        h->shown = e->rows;
        W.lent += h->pool >= CONF_POOLS_MAX;
        cons_read(h, h->given, h->shown, "when it was shown");
    }
}

static void down_reads(void *p, uint64_t a, uint64_t b);

static void down_soon(struct econn *c)
{
    uint64_t when = W.now_ns + delay_us(W.is.local_us);

    if (c->down.busy || c->down.len == 0)
        return;
    c->down.busy = true;
    at(when < c->stalled_ns && !W.healing ? c->stalled_ns : when, down_reads, c,
        0, 0);
}

static void pull(void *p, uint64_t a, uint64_t b)
{
    struct econn *c = p;
    struct engine_conn *ec = p;
    uint8_t bytes[LOCAL_PACKET_MAX];

    if (stands_still(c->d, LOOP, pull, p, a, b))
        return;
    ec->pulling = false;
    if (!lives(c) || c->dead_told || c->state == EC_OVER)
        return;
    while (c->down.len < DOWN_FRAMES) {
        struct writer w = writer_of(bytes, chance(50) ? 60 : sizeof(bytes));
        struct reader r;
        struct local_msg m;
        enum err e;

        if (!brain_next_event(c->d->brain, c->number, &w)) {
            if (w.cap < sizeof(bytes))
                continue; /* there may be more: the event did not fit */
            c->notified = false;
            return;
        }
        r = reader_of(bytes, w.len);
        e = local_get(&r, &m);
        HOLDS(
            e == OK && (m.type == LOCAL_EVENT || m.type == LOCAL_TICKET_EVENT ||
                           m.type == LOCAL_LENDER),
            "events can be read", "%s", err_name(e));
        if (m.type == LOCAL_EVENT)
            in_socket(c, &m.event);
        fifo_push(&c->down, bytes, (uint32_t)w.len);
        down_soon(c);
    }
}

void econn_pull(struct econn *c)
{
    struct engine_conn *ec = (struct engine_conn *)c;

    c->notified = true;
    if (ec->pulling)
        return;
    ec->pulling = true;
    at(W.now_ns + delay_us(W.is.local_us), pull, c, 0, 0);
}

void econn_deliver(struct econn *c, struct span frame)
{
    struct reader r = reader_of(frame.p, frame.len);
    struct local_msg m;
    enum err e = local_get(&r, &m);

    HOLDS(e == OK, "answers can be read", "%s", err_name(e));
    if (m.type == LOCAL_ANSWER && m.seq == 0 && m.answer.err == ERR_TIMEOUT &&
        c->state == EC_HELLO)
        return; /* its HELLO came too late: the connection is closed */
    HOLDS(c->waiting_len > 0 && c->waiting[0].seq == m.seq,
        "answers come in order, one each", "%s with seq %u, %u expected",
        local_name(m.type), m.seq, c->waiting_len ? c->waiting[0].seq : 0);
    memmove(
        c->waiting, c->waiting + 1, --c->waiting_len * sizeof(c->waiting[0]));
    fifo_push(&c->down, frame.p, frame.len);
    down_soon(c);
}

static void ask_pool(struct econn *c)
{
    struct local_msg m = {.type = LOCAL_POOL};

    m.pool.name = span_str(c->d->conf->pools[c->pools].name);
    econn_send(c, &m, NULL);
}

static void next_pool(struct econn *c)
{
    if (++c->pools < c->d->conf->pools_count)
        ask_pool(c);
    else
        c->state = EC_READY;
}

static void answered(struct econn *c, const struct local_msg *m)
{
    struct engine_conn *ec = (struct engine_conn *)c;
    struct sent *s = &ec->sent[m->seq % SENT_KEPT];

    CHECK(s->seq == m->seq, "answer %u comes too late for the test", m->seq);
    if (c->ghost && c->state == EC_READY)
        return;
    if (m->type == LOCAL_WELCOME) {
        c->cells = m->welcome.cells;
        c->state = EC_POOL;
        ask_pool(c);
    } else if (m->type == LOCAL_POOL_INFO) {
        HOLDS(m->pool_info.pool == c->pools, "pools have one number",
            "pool %u instead of %u", m->pool_info.pool, c->pools);
        c->block_rows[c->pools] = m->pool_info.block_rows;
        next_pool(c);
    } else if (m->type == LOCAL_ANSWER && s->type == LOCAL_POOL) {
        next_pool(c); /* the pool is for other users, or has no memory */
    } else if (m->type == LOCAL_ANSWER && s->h) {
        if (m->answer.err)
            trace("%s/%u: %s refused, %s: %.*s", c->d->conf->name, c->number,
                local_name(s->type), err_name((enum err)m->answer.err),
                (int)min_u32(m->answer.text.len, 80),
                (const char *)m->answer.text.p);
        if (s->h->ask)
            ask_answer(s->h, s->type, &m->answer);
        else if (s->h->prod)
            prod_answer(s->h, s->type, &m->answer);
        else
            cons_answer(s->h, s->type, &m->answer);
    }
}

static void read_event(struct econn *c, const struct local_event *e)
{
    struct handle *h = handle_of(c, e->cell, e->tag);

    if (!h || h->released)
        return;
    h->seen_rows = max_u32(h->seen_rows, e->rows);
    if (e->total != ROWS_UNKNOWN)
        h->total = e->total;
    if (e->what & EVENT_GRANTED)
        h->seen_granted = true;
    if (e->what & EVENT_READY)
        h->seen_ready = true;
    if (e->what & EVENT_DONE)
        h->seen_done = true;
    if (e->what & EVENT_FAILED) {
        h->seen_failed = true;
        h->reason = e->reason;
    }
    h->ended = h->seen_ready || h->seen_done || h->seen_failed;
    if (h->prod)
        prod_event(h, e);
    else
        cons_event(h, e);
}

static void down_reads(void *p, uint64_t a, uint64_t b)
{
    struct econn *c = p;
    struct local_msg m;
    struct reader r;
    struct frame f;
    enum err e;

    c->down.busy = false;
    if (c->dead || c->ended || c->down.len == 0)
        return;
    if (!W.healing && W.now_ns < c->stalled_ns) {
        down_soon(c);
        return;
    }
    f = fifo_pop(&c->down);
    r = reader_of(f.bytes, f.len);
    e = local_get(&r, &m);
    CHECK(e == OK, "it could be read before");
    if (m.type == LOCAL_EVENT)
        read_event(c, &m.event);
    else if (m.type == LOCAL_TICKET_EVENT)
        ask_event(c, &m.ticket_event);
    else if (m.type == LOCAL_LENDER)
        map_lender(c, &m.lender);
    else
        answered(c, &m);
    free(f.bytes);
    if (!W.healing && chance(W.is.stall))
        c->stalled_ns = W.now_ns + between(1, 4000) * MS;
    down_soon(c);
    if (c->notified)
        econn_pull(c);
}

void econn_cell(struct econn *c, uint32_t cell, uint64_t word)
{
    uint64_t old;

    HOLDS(
        cell < c->cells, "cells are in range", "cell %u of %u", cell, c->cells);
    old = c->words[cell];
    c->words[cell] = word;
    if (cell_tag(old) != cell_tag(word) || old == 0)
        return;
    HOLDS(cell_state(old) == ROOM_FAILED || cell_state(old) == ROOM_SUCCESS
              ? cell_state(old) == cell_state(word)
              : cell_state(word) == ROOM_FAILED ||
                    cell_state(word) >= cell_state(old),
        "states go forward", "%s/%u cell %u: %u after %u", c->d->conf->name,
        c->number, cell, cell_state(word), cell_state(old));
    HOLDS(cell_rows(word) >= cell_rows(old), "rows go forward",
        "%s/%u cell %u: %u after %u", c->d->conf->name, c->number, cell,
        cell_rows(word), cell_rows(old));
}

/* opening and handles */

struct econn *econn_open(struct daemon *d, const char *session, uint32_t uid)
{
    struct event ev = {
        .type = EV_CONN_OPEN, .uid = uid, .gid = uid, .pid = 1000};
    struct local_msg m = {.type = LOCAL_HELLO};
    struct engine_conn *ec;
    struct econn *c;

    while (ev.conn < CONNS_MAX && (d->conns[ev.conn] || d->mappers[ev.conn]))
        ev.conn++;
    if (!d->alive || ev.conn == CONNS_MAX)
        return NULL;
    ec = must_alloc(1, sizeof(*ec));
    c = &ec->c;
    c->d = d;
    c->life = d->life;
    c->number = ev.conn;
    c->process = all_count;
    c->uid = uid;
    c->words = must_alloc(W.cells, sizeof(*c->words));
    c->handles = must_alloc(W.cells, sizeof(*c->handles));
    c->state = EC_HELLO;
    snprintf(c->session, sizeof(c->session), "%s", session);
    d->conns[ev.conn] = c;
    if (all_count == all_cap) {
        all_cap = all_cap ? 2 * all_cap : 64;
        all = realloc(all, all_cap * sizeof(struct econn *));
    }
    all[all_count++] = c;
    daemon_step(d, &ev);
    m.hello.magic = LOCAL_MAGIC;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.cells = W.cells;
    m.hello.name = span_str("sim");
    m.hello.session = span_str(c->session);
    m.hello.abilities = W.is.lend ? ABLE_LEND : 0;
    econn_send(c, &m, NULL);
    return c;
}

bool econn_usable(const struct econn *c)
{
    return c && lives(c) && c->state == EC_READY && !c->ended && !c->dead &&
           !c->bye;
}

void econn_daemon_gone(struct daemon *d)
{
    for (uint32_t i = 0; i < all_count; i++)
        if (all[i]->d == d && all[i]->life == d->life) {
            if (!all[i]->dead)
                map_reader_gone(all[i], GONE_LANGD);
            all[i]->ended = all[i]->dead = all[i]->dead_told = true;
            all[i]->state = EC_OVER;
        }
}

struct handle *handle_new(struct econn *c)
{
    for (uint32_t i = 0; i < c->cells; i++) {
        struct handle *h;

        if (c->handles[i])
            continue;
        h = must_alloc(1, sizeof(*h));
        h->c = c;
        h->cell = i;
        h->tag = ++c->tags_used;
        h->total = ROWS_UNKNOWN;
        c->handles[i] = h;
        return h;
    }
    return NULL;
}

void handle_release(struct handle *h, uint32_t rows)
{
    struct local_msg m = {.type = LOCAL_RELEASE};

    if (h->released || h->refused)
        return;
    m.release.cell = h->cell;
    m.release.tag = h->tag;
    m.release.rows = rows;
    if (rows == ROWS_UNKNOWN) {
        h->released = true;
        h->may_write = false;
        h->given = h->shown;
        if (h->c->handles[h->cell] == h)
            h->c->handles[h->cell] = NULL;
    } else {
        h->given = rows;
    }
    econn_send(h->c, &m, h);
}
