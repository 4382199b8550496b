/* peer_zmq.c - links over ZMQ: one ROUTER for all accepted connections, one
 * DEALER for each that we make.
 *
 * Invariants: ZMQ_FD is edge-triggered, and a send or receive may have consumed
 * its event. So after a receive a socket stays on the ready list until a
 * receive finds nothing, and after a send ZMQ_EVENTS is read. A monitor is only
 * received from. Every send is DONTWAIT; a packet that cannot be sent is
 * dropped and counted, and the brains repeat it. A link of the ROUTER is one
 * routing id on one TCP connection. It begins with its first message, which
 * must be a readable HELLO, and ends with the connection, as the socket's
 * monitor reports. Messages of an ended connection are dropped: a later one may
 * have its descriptor number, but never its routing id. Owned by the loop's
 * thread.
 *
 * Rejected: ZMQ_ROUTER_HANDOVER (lets a stranger take over a name), and
 * ZMQ_DISCONNECT_MSG (not in stable builds). */
#include "io/peer/peer_impl.h"

#include "base/log.h"
#include "io/strangers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Frames of one turn share a packet: larger than any frame, far smaller than
 * the largest that a receiver accepts. */
#define PACKET_BYTES 65536u
#define FRAMES_TURN  2048u /* over all sockets */
#define FRAMES_SOCK  256u
/* If more bytes than this wait on a connection, the next tick comes soon. */
#define BEHIND_BYTES 65536
#define STRANGERS    2048u
#define RID_BYTES    5 /* of routing ids chosen by ZMQ */

/* the monitor */

static void router_event(struct links *p, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_ACCEPTED)
        conns_accepted(p, value);
    else if (event == ZMQ_EVENT_DISCONNECTED)
        conns_ended(p, value);
    else if (event & REFUSED_EVENTS)
        keys_router_event(p, event, value);
    else if (event == ZMQ_EVENT_LISTENING)
        conns_listen(p, (int)value);
    else if (event == ZMQ_EVENT_ACCEPT_FAILED)
        p->starved |= value == EMFILE || value == ENFILE;
}

static void dealer_event(
    struct links *p, struct sock *s, uint16_t event, uint32_t value)
{
    struct link *k = link_at(p, s->link);
    bool up = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;

    if (event & REFUSED_EVENTS) {
        if (k->sock == s)
            keys_dealer_event(p, s->link, event, value);
        return;
    }
    if (event == ZMQ_EVENT_CONNECTED)
        s->meter = (struct meter){
            .fd = (int)value, .around = p->opt.keys ? CURVE_AROUND : 0};
    if (event == ZMQ_EVENT_DISCONNECTED)
        s->meter.fd = -1;
    if (k->sock != s || (!up && event != ZMQ_EVENT_DISCONNECTED) || k->up == up)
        return;
    dial_changed(p, s->link);
    links_watch(p);
    if (!up) {
        link_down(p, s->link);
        return;
    }
    k->up = true;
    link_up(p, s->link);
}

/* Discards the rest of a message after its part `first`, and counts the bytes
 * in m unless that is NULL. True if there was a rest. */
static bool skip_parts(
    struct links *p, void *zmq, const zmq_msg_t *first, struct meter *m)
{
    bool more = zmq_msg_more(first);
    bool any = more;

    while (more && sock_receive(zmq, &p->scrap)) {
        if (m)
            meter_count(m, &m->read, zmq_msg_size(&p->scrap));
        more = zmq_msg_more(&p->scrap);
    }
    return any;
}

void sock_news(struct sock *s)
{
    struct links *p = s->owner;

    s->news = false;
    while (s->monitor && sock_receive(s->monitor, &p->event)) {
        uint16_t event = 0;
        uint32_t value = 0;

        if (zmq_msg_size(&p->event) == 6) {
            const char *d = zmq_msg_data(&p->event);

            memcpy(&event, d, sizeof(event));
            memcpy(&value, d + 2, sizeof(value));
        }
        skip_parts(p, s->monitor, &p->event, NULL);
        if (s->link == NONE)
            router_event(p, event, value);
        else
            dealer_event(p, s, event, value);
    }
    if (p->starved)
        conns_refuse(p);
    p->starved = false;
}

/* in */

/* True if no message may be received: the owner is full, or was in the middle
 * of one. */
static bool full(const struct links *p)
{
    return p->links[p->msg_link].taking || p->calls.full(p->calls.ud);
}

/* Passes on the frames of p->msg that are left, until the owner is full.
 * Returns their number. A callback may disconnect the link, but the message
 * stays ours.
 */
static uint32_t pass_frames(struct links *p)
{
    struct reader r = reader_of(zmq_msg_data(&p->msg), zmq_msg_size(&p->msg));
    struct link *k = link_at(p, p->msg_link);
    uint32_t count = 0;

    r.at = p->msg_at;
    for (; k->taking && !p->calls.full(p->calls.ud); count++) {
        struct peer_msg m;
        struct event ev = {.link = p->msg_link, .peer = &m};

        ev.err = peer_get(&r, &m);
        if (ev.err == ERR_NOT_READY) {
            k->taking = false;
            break;
        }
        ev.type = ev.err == OK ? EV_PEER : EV_PEER_BAD;
        ev.fault = m.fault;
        if (m.type == PEER_HELLO)
            ev.owner = links_owner(p, p->msg_link);
        p->calls.event(p->calls.ud, &ev);
    }
    p->msg_at = r.at;
    return count;
}

/* Passes on the frames of p->msg, which came on a link. */
static uint32_t take_frames(struct links *p, uint32_t link)
{
    p->stats.packets_in++;
    p->links[link].taking = true;
    p->msg_link = link;
    p->msg_at = 0;
    return max_u32(1, pass_frames(p));
}

/* Returns the connection of p->msg. NONE: it has ended. */
static uint32_t router_conn(struct links *p)
{
    int fd = zmq_msg_get(&p->msg, ZMQ_SRCFD);
    uint32_t conn = fd < 0 ? NONE : table_get(&p->by_fd, (uint32_t)fd, 0);

    if (conn == NONE && fd >= 0) {
        /* The connection may be new, and its event still in the monitor. */
        sock_news(p->router);
        conn = table_get(&p->by_fd, (uint32_t)fd, 0);
    }
    return conn;
}

/* Receives one message. Returns the number of its frames, at least 1; 0: there
 * is no message. */
static uint32_t router_receive(struct links *p)
{
    void *zmq = p->router->zmq;
    uint64_t rid = 0;
    uint32_t link = NONE, conn;
    struct meter *m;
    bool ours;

    if (!sock_receive(zmq, &p->msg))
        return 0;
    ours = zmq_msg_size(&p->msg) == RID_BYTES; /* then a single part: frames */
    if (ours)
        memcpy(&rid, zmq_msg_data(&p->msg), RID_BYTES);
    if (!zmq_msg_more(&p->msg) || !sock_receive(zmq, &p->msg))
        return 1;
    conn = router_conn(p);
    m = conn == NONE ? NULL : &p->conns[conn].meter;
    if (m)
        meter_count(m, &m->read, zmq_msg_size(&p->msg));
    ours = !skip_parts(p, zmq, &p->msg, m) && ours;
    if (conn != NONE && ours)
        link = conns_link(p, rid, conn);
    if (link != NONE)
        return take_frames(p, link);
    p->stats.dropped_packets++;
    if (conn != NONE && !ours && p->conns[conn].link == NONE) {
        p->stats.strangers++;
        conns_shut(p, conn);
    }
    return 1;
}

static uint32_t dealer_receive(struct links *p, struct sock *s)
{
    uint32_t link = s->link;
    bool whole;

    if (!s->zmq || !sock_receive(s->zmq, &p->msg))
        return 0;
    meter_count(&s->meter, &s->meter.read, zmq_msg_size(&p->msg));
    whole = !skip_parts(p, s->zmq, &p->msg, &s->meter);
    /* The first message may overtake the event of the connect. */
    if (!link_at(p, link)->up)
        sock_news(s);
    if (whole && link_at(p, link)->up)
        return take_frames(p, link);
    p->stats.dropped_packets++;
    return 1;
}

static bool anything(const struct links *p)
{
    bool any = !list_empty(&p->silent) || !list_empty(&p->heard) ||
               !list_empty(&p->greeted);

    for (uint32_t i = 0; i < p->opt.links && !any; i++)
        any = p->links[i].dial.used;
    return any;
}

/* True if a tick is needed sooner than when all are idle. */
static bool ticks_fast(struct links *p, uint64_t now_ns)
{
    uint64_t packets = p->stats.packets_in + p->stats.dropped_packets;
    bool moved = packets != p->ticked_packets;

    p->ticked_packets = packets;
    return moved || p->behind > BEHIND_BYTES || !list_empty(&p->silent) ||
           !list_empty(&p->heard) || dial_due(p, now_ns + CALM_NS);
}

static void look(struct links *p)
{
    uint64_t now;

    p->tick = false;
    p->behind = 0;
    /* First handle ended connections, so that they are not checked. */
    if (p->router)
        sock_news(p->router);
    now = uv_hrtime(); /* not before the time of the last accept */
    conns_tick(p, now);
    dial_tick(p, now);
    if (!anything(p))
        tick_every(p, 0);
    else
        tick_every(p, ticks_fast(p, now) ? TICK_NS : CALM_NS);
}

void links_serve(struct links *p)
{
    struct list now;
    uint32_t left = FRAMES_TURN;

    if (p->tick)
        look(p);
    if (p->zap_news)
        zap_serve(p);
    (void)pass_frames(p);
    list_init(&now);
    while (!list_empty(&p->ready))
        list_push_tail(&now, list_pop(&p->ready));
    while (!list_empty(&now)) {
        struct list *n = list_pop(&now);
        struct sock *s = LIST_ENTRY(n, struct sock, ready);
        uint32_t turns = min_u32(left, FRAMES_SOCK), i = 0, one = 1;

        if (s->news)
            sock_news(s);
        while (one && i < turns && s->zmq && !full(p)) {
            one = s->link == NONE ? router_receive(p) : dealer_receive(p, s);
            i += one;
        }
        left -= min_u32(left, i);
        if (i > 0 && p->every_ns == CALM_NS)
            links_watch(p);
        if (s->zmq && one)
            sock_ready(s);
    }
}

bool links_busy(const struct links *p)
{
    return p->tick || p->zap_news || p->links[p->msg_link].taking ||
           !list_empty(&p->ready);
}

/* out */

static bool readable(void *zmq)
{
    int events = 0;
    size_t n = sizeof(events);

    /* A signal may interrupt the call: then a receive finds out. */
    return zmq_getsockopt(zmq, ZMQ_EVENTS, &events, &n) != 0 ||
           (events & ZMQ_POLLIN) != 0;
}

static bool send_to(struct links *p, const struct link *k)
{
    void *zmq = k->sock->zmq;
    struct meter *m =
        k->sock == p->router ? &p->conns[k->conn].meter : &k->sock->meter;

    CHECK(k->up && k->out_len <= PACKET_BYTES, "%u bytes for a link that is %s",
        k->out_len, k->up ? "up" : "down");
    if (k->sock == p->router &&
        !sock_send(zmq, &k->rid, RID_BYTES, ZMQ_SNDMORE))
        return false;
    if (!sock_send(zmq, k->out, k->out_len, 0))
        return false;
    meter_count(m, &m->written, k->out_len);
    return true;
}

static void link_flush(struct links *p, struct link *k)
{
    if (send_to(p, k)) {
        p->stats.packets_out++;
        p->stats.frames_out += k->frames;
    } else {
        p->stats.dropped_frames += k->frames;
    }
    k->out_len = k->frames = 0;
    list_remove(&k->dirty);
    if (readable(k->sock->zmq))
        sock_ready(k->sock);
}

void links_send(
    struct links *p, uint32_t link, struct span frame, bool coalesce)
{
    struct link *k = link_at(p, link);

    CHECK(frame.len <= PACKET_BYTES, "frame of %u bytes", frame.len);
    if (!k->up) {
        p->stats.dropped_frames++;
        return;
    }
    if (frame.len > PACKET_BYTES - k->out_len)
        link_flush(p, k);
    memcpy(k->out + k->out_len, frame.p, frame.len);
    k->out_len += frame.len;
    k->frames++;
    if (coalesce && list_linked(&k->dirty))
        return;
    list_remove(&k->dirty);
    list_push_tail(coalesce ? &p->coalesced : &p->dirty, &k->dirty);
}

bool links_flush(struct links *p)
{
    while (!list_empty(&p->dirty))
        link_flush(p, LIST_FIRST(&p->dirty, struct link, dirty));
    while (!list_empty(&p->coalesced))
        list_push_tail(&p->dirty, list_pop(&p->coalesced));
    return !list_empty(&p->dirty);
}

/* life */

void links_disconnect(struct links *p, uint32_t link)
{
    struct link *k = link_at(p, link);

    dial_stop(p, link);
    if (!k->sock)
        return;
    if (k->sock == p->router) {
        p->conns[k->conn].link = NONE; /* no down() */
        table_remove(&p->by_rid, k->rid, 0);
        conns_shut(p, k->conn);
    } else {
        sock_close(k->sock);
    }
    link_clear(k);
    k->sock = NULL;
}

static enum err take_memory(struct links *p)
{
    struct list *lists[] = {&p->silent, &p->heard, &p->greeted, &p->free,
        &p->used, &p->ready, &p->dirty, &p->coalesced};
    struct slab s = {0};
    void *m;

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            p->memory = calloc(1, s.used + SLAB_ALIGN);
            if (!p->memory)
                return ERR_NO_BLOCKS;
            s = (struct slab){.p = p->memory, .cap = s.used};
        }
        p->links = slab_take(&s, p->opt.links, sizeof(*p->links));
        p->socks = slab_take(&s, p->socks_count, sizeof(*p->socks));
        p->conns = slab_take(&s, p->conns_count, sizeof(*p->conns));
        slots_init(&p->conn_slots, &s, p->conns_count);
        table_init(&p->by_rid, &s, p->opt.links, p->opt.seed);
        table_init(&p->by_fd, &s, p->conns_count, ~p->opt.seed);
    }
    p->buffers_bytes = (size_t)p->opt.links * PACKET_BYTES;
    m = mmap(NULL, p->buffers_bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        return ERR_NO_BLOCKS;
    p->buffers = m;
    return OK;
}

static void number_all(struct links *p)
{
    for (uint32_t i = 0; i < p->socks_count; i++) {
        p->socks[i].owner = p;
        list_init(&p->socks[i].ready);
        list_push_tail(&p->free, &p->socks[i].node);
    }
    for (uint32_t i = 0; i < p->opt.links; i++) {
        p->links[i].out = p->buffers + (size_t)i * PACKET_BYTES;
        list_init(&p->links[i].dirty);
    }
}

static enum err open_context(struct links *p)
{
    p->ctx = zmq_ctx_new();
    if (!p->ctx || zmq_ctx_set(p->ctx, ZMQ_IO_THREADS, 1) != 0 ||
        zmq_ctx_set(p->ctx, ZMQ_BLOCKY, 0) != 0 ||
        zmq_ctx_set(p->ctx, ZMQ_MAX_SOCKETS, (int)(2 * p->socks_count + 16)) !=
            0) {
        log_error("zmq: context: %s", zmq_strerror(zmq_errno()));
        return ERR_INTERNAL;
    }
    return OK;
}

/* Binds the ROUTER. A host in brackets is IPv6; a name is IPv6 if it has no
 * IPv4 address. */
static enum err bind_router(struct links *p)
{
    bool six = p->opt.listen && strchr(p->opt.listen, '[');
    int e;

    if (!p->opt.listen)
        return OK;
    if (p->opt.keys && zap_open(p) != OK)
        return ERR_INTERNAL;
    /* libzmq numbers connections with rand() and does not seed it. It aborts if
     * a connection claims a routing id that a later one is given. */
    srand((unsigned)(p->opt.seed ^ p->opt.seed >> 32));
    p->router = sock_open(p, ZMQ_ROUTER, NONE, six);
    if (!p->router) {
        log_error("zmq: socket: %s", zmq_strerror(zmq_errno()));
        return ERR_INTERNAL;
    }
    e = zmq_bind(p->router->zmq, p->opt.listen);
    if (e != 0 && !six && zmq_errno() == ENODEV) {
        (void)sock_set(p->router->zmq, ZMQ_IPV6, 1);
        e = zmq_bind(p->router->zmq, p->opt.listen);
    }
    if (e != 0) {
        log_error("%s: bind: %s", p->opt.listen, zmq_strerror(zmq_errno()));
        return ERR_INTERNAL;
    }
    return OK;
}

enum err links_new(struct links **out, uv_loop_t *loop,
    const struct links_opt *opt, const struct links_calls *calls)
{
    struct links *p = calloc(1, sizeof(*p));
    enum err e;

    if (!p)
        return ERR_NO_BLOCKS;
    p->loop = loop;
    p->calls = *calls;
    p->opt = *opt;
    /* A link may be connected again while its last socket is closing, and a
     * listener may restart. */
    p->socks_count = opt->listen ? 3 : 2 * opt->links;
    p->conns_count =
        opt->listen ? opt->links + opt->links / 2 + strangers_max(STRANGERS, 1)
                    : 0;
    p->listen_fd = p->spare = -1;
    uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    zmq_msg_init(&p->msg);
    zmq_msg_init(&p->event);
    zmq_msg_init(&p->scrap);
    e = take_memory(p);
    if (e == OK) {
        number_all(p);
        e = open_context(p);
    }
    if (e == OK)
        e = bind_router(p);
    if (e != OK) {
        links_stop(p);
        uv_run(loop, UV_RUN_NOWAIT);
        links_free(&p);
        return e;
    }
    *out = p;
    return OK;
}

void links_stop(struct links *p)
{
    p->stopped = true;
    if (!uv_is_closing((uv_handle_t *)&p->timer))
        uv_close((uv_handle_t *)&p->timer, NULL);
    for (uint32_t i = 0; p->links && i < p->opt.links; i++)
        dial_stop(p, i);
    LIST_FOREACH (n, &p->used) {
        struct sock *s = LIST_ENTRY(n, struct sock, node);

        if (s->zmq)
            sock_close(s);
    }
    zap_close(p);
}

void links_free(struct links **out)
{
    struct links *p = *out;

    if (!p)
        return;
    CHECK(p->stopped, "freed before it was stopped");
    if (p->spare >= 0)
        close(p->spare);
    zmq_msg_close(&p->msg);
    zmq_msg_close(&p->event);
    zmq_msg_close(&p->scrap);
    if (p->ctx)
        zmq_ctx_term(p->ctx);
    if (p->buffers)
        munmap(p->buffers, p->buffers_bytes);
    free(p->memory);
    free(p);
    *out = NULL;
}

void links_endpoint(struct links *p, char *out, size_t size)
{
    size_t n = size;

    if (!p->router ||
        zmq_getsockopt(p->router->zmq, ZMQ_LAST_ENDPOINT, out, &n) != 0)
        out[0] = 0;
}

const struct links_stats *links_stats(const struct links *p)
{
    return &p->stats;
}
