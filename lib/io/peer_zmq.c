/* peer_zmq.c - links over ZMQ: one ROUTER for all that connect to us, one
 * DEALER for each that we connect to.
 *
 * Invariants: ZMQ_FD is edge-triggered and may stand for an event that a send
 * or receive has swallowed, so a socket that was received from stays on the
 * ready list until a receive finds nothing (which looks for news first), and
 * after a send ZMQ_EVENTS is read. A monitor is only received from. Every send
 * is DONTWAIT; what cannot go is dropped and counted, the brains repeat. A link
 * of the ROUTER is one routing id on one TCP connection: it is known by its
 * first message and ends with the connection, as the socket's monitor tells.
 * Messages of a connection that has ended are dropped: a later one may have its
 * descriptor number, but never its routing id. Owned by the loop's thread.
 *
 * Rejected: heartbeats of our own to notice a dead peer (seconds instead of
 * the milliseconds in which the kernel knows), ZMTP heartbeats of one side with
 * a TTL for the other (libzmq 4.3 forgets the TTL with the next message that
 * is no PING: a peer that stops right after one is never missed),
 * ZMQ_ROUTER_HANDOVER (lets anybody take over a name), and ZMQ_DISCONNECT_MSG
 * (not in stable builds). */
#include "io/peer.h"

#include "base/check.h"
#include "base/list.h"
#include "base/log.h"
#include "base/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <zmq.h>

/* Frames of one turn travel together; larger than any frame, far smaller than
 * what the other side takes. */
#define PACKET_BYTES 65536u
#define PACKETS_TURN 512u
#define LINGER_MS    100
#define PACKETS_SOCK 64u
#define RID_BYTES    5 /* routing ids that ZMQ itself gives out */
#define MONITORED                                                              \
    (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |                             \
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED)

/* A socket with its monitor. A DEALER has a link; the ROUTER has NONE. */
struct sock {
    struct links *owner;
    uint32_t link;
    struct list node;  /* on the owner's free or used list */
    struct list ready; /* may have messages or monitor events */
    bool news;         /* the monitor has events */
    void *zmq, *monitor;
    uv_poll_t poll, monitor_poll;
    uint8_t closing; /* uv handles whose close callback is to come */
};

struct link {
    struct sock *sock; /* NULL: the number is free */
    bool up;
    uint64_t rid;      /* ROUTER: whom it names */
    uint32_t fd;       /* ROUTER: its connection */
    struct list dirty; /* on one of the owner's: dirty, soon */
    uint8_t *out;
    uint32_t out_len, frames;
};

struct links {
    uv_loop_t *loop;
    struct links_calls calls;
    struct links_opt opt;
    struct links_stats stats;
    void *ctx;
    struct sock *socks, *router;
    uint32_t socks_count;
    struct link *links;
    struct list free, used, ready, dirty, soon;
    struct table by_rid; /* routing id -> link */
    struct table by_fd;  /* descriptor -> link, or opt.links: no link yet */
    uint8_t *memory, *buffers;
    size_t buffers_bytes;
    uint64_t monitors;           /* names given out */
    zmq_msg_t msg, event, scrap; /* received into; never kept */
    bool stopped;
    bool full; /* all links are in use, and the log knows */
};

/* sockets */

static void make_ready(struct sock *s)
{
    if (!list_linked(&s->ready))
        list_push_tail(&s->owner->ready, &s->ready);
}

static void on_readable(uv_poll_t *h, int status, int events)
{
    (void)status;
    (void)events;
    make_ready(h->data);
}

static void on_news(uv_poll_t *h, int status, int events)
{
    struct sock *s = h->data;

    s->news = true;
    on_readable(h, status, events);
}

static void on_closed(uv_handle_t *h)
{
    struct sock *s = h->data;

    if (--s->closing == 0 && !s->owner->stopped) {
        list_remove(&s->node);
        list_push_tail(&s->owner->free, &s->node);
    }
}

static bool set_int(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof(value)) == 0;
}

static bool set_options(void *zmq, int type, uint32_t heartbeat_ms)
{
    int64_t max = PEER_PACKET_MAX;
    int beat = (int)heartbeat_ms;
    bool ok = zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max)) == 0;

    /* What was said last, an ACK that others wait for, still goes out. */
    ok = ok && set_int(zmq, ZMQ_LINGER, LINGER_MS);
    ok = ok && set_int(zmq, ZMQ_SNDHWM, 1000);
    ok = ok && set_int(zmq, ZMQ_RCVHWM, 1000);
    ok = ok && set_int(zmq, ZMQ_IPV6, 0);
    ok = ok && set_int(zmq, ZMQ_HANDSHAKE_IVL, 3000);
    ok = ok && set_int(zmq, ZMQ_HEARTBEAT_IVL, beat);
    ok = ok && set_int(zmq, ZMQ_HEARTBEAT_TIMEOUT, 3 * beat);
    ok = ok && set_int(zmq, ZMQ_HEARTBEAT_TTL, 3 * beat);
    ok = ok && set_int(zmq, ZMQ_TCP_KEEPALIVE, 1);
    if (type == ZMQ_ROUTER)
        return ok && set_int(zmq, ZMQ_ROUTER_MANDATORY, 1) &&
               set_int(zmq, ZMQ_ROUTER_HANDOVER, 0);
    return ok && set_int(zmq, ZMQ_IMMEDIATE, 1) &&
           set_int(zmq, ZMQ_RECONNECT_IVL, 50) &&
           set_int(zmq, ZMQ_RECONNECT_IVL_MAX, 1000) &&
           set_int(zmq, ZMQ_CONNECT_TIMEOUT, 2000);
}

static void *open_monitor(struct links *p, void *zmq)
{
    char name[64];
    void *m;

    snprintf(name, sizeof(name), "inproc://monitor-%llu",
        (unsigned long long)p->monitors++);
    if (zmq_socket_monitor(zmq, name, MONITORED) != 0)
        return NULL;
    m = zmq_socket(p->ctx, ZMQ_PAIR);
    /* Without a limit: a full monitor would stop ZMQ's thread. We empty it
     * every turn. */
    if (m && set_int(m, ZMQ_LINGER, 0) && set_int(m, ZMQ_RCVHWM, 0) &&
        zmq_connect(m, name) == 0)
        return m;
    if (m)
        zmq_close(m);
    zmq_socket_monitor(zmq, NULL, 0);
    return NULL;
}

static int zmq_fd(void *zmq)
{
    int fd = -1;
    size_t n = sizeof(fd);

    return zmq_getsockopt(zmq, ZMQ_FD, &fd, &n) == 0 ? fd : -1;
}

static bool readable(void *zmq)
{
    int events = 0;
    size_t n = sizeof(events);

    return zmq_getsockopt(zmq, ZMQ_EVENTS, &events, &n) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

static void watch(struct sock *s, uv_poll_t *h, void *zmq, uv_poll_cb f)
{
    int e = uv_poll_init(s->owner->loop, h, zmq_fd(zmq));

    if (e == 0) {
        h->data = s;
        e = uv_poll_start(h, UV_READABLE, f);
    }
    CHECK(e == 0, "poll of a ZMQ descriptor: %s", uv_strerror(e));
}

/* A socket that is bound or connected to nothing yet. */
static struct sock *sock_open(struct links *p, int type, uint32_t link)
{
    struct list *n = list_pop(&p->free);
    struct sock *s = n ? LIST_ENTRY(n, struct sock, node) : NULL;

    if (!s)
        return NULL;
    s->zmq = zmq_socket(p->ctx, type);
    s->monitor = NULL;
    if (s->zmq && set_options(s->zmq, type, p->opt.heartbeat_ms))
        s->monitor = open_monitor(p, s->zmq);
    if (!s->monitor) {
        log_error("zmq: socket: %s", zmq_strerror(zmq_errno()));
        if (s->zmq)
            zmq_close(s->zmq);
        list_push_tail(&p->free, &s->node);
        return NULL;
    }
    s->link = link;
    list_push_tail(&p->used, &s->node);
    watch(s, &s->poll, s->zmq, on_readable);
    watch(s, &s->monitor_poll, s->monitor, on_news);
    s->news = true;
    make_ready(s);
    return s;
}

static void sock_close(struct sock *s)
{
    list_remove(&s->ready);
    s->closing = 2;
    uv_close((uv_handle_t *)&s->poll, on_closed);
    uv_close((uv_handle_t *)&s->monitor_poll, on_closed);
    zmq_socket_monitor(s->zmq, NULL, 0);
    zmq_close(s->monitor);
    zmq_close(s->zmq);
    s->zmq = s->monitor = NULL;
}

/* links */

static void link_clear(struct link *k)
{
    k->sock = NULL;
    k->up = false;
    k->out_len = k->frames = 0;
    list_remove(&k->dirty);
}

/* ROUTER: forgets who the link was; tells if it was told to be up. */
static void link_lost(struct links *p, uint32_t link)
{
    struct link *k = &p->links[link];

    table_remove(&p->by_rid, k->rid, 0);
    link_clear(k);
    p->full = false;
    p->calls.down(p->calls.ud, link);
}

static uint32_t link_new(struct links *p, uint64_t rid, uint32_t fd)
{
    for (uint32_t i = 0; i < p->opt.links; i++) {
        struct link *k = &p->links[i];

        if (k->sock)
            continue;
        if (!table_put(&p->by_rid, rid, 0, i) ||
            !table_put(&p->by_fd, fd, 0, i))
            break;
        k->sock = p->router;
        k->up = true;
        k->rid = rid;
        k->fd = fd;
        p->calls.up(p->calls.ud, i);
        return i;
    }
    if (!p->full)
        log_warn("a daemon is not heard: limits.peers is %u", p->opt.links / 2);
    p->full = true;
    return NONE;
}

/* the monitor */

static void router_event(struct links *p, uint16_t event, uint32_t fd)
{
    uint32_t link = table_get(&p->by_fd, fd, 0);

    if (event == ZMQ_EVENT_ACCEPTED) {
        if (link != NONE && link < p->opt.links)
            link_lost(p, link);
        /* Too many: this one is not heard (router_link drops it). */
        (void)table_put(&p->by_fd, fd, 0, p->opt.links);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        table_remove(&p->by_fd, fd, 0);
        if (link != NONE && link < p->opt.links)
            link_lost(p, link);
    }
}

static void dealer_event(struct links *p, struct sock *s, uint16_t event)
{
    struct link *k = &p->links[s->link];
    bool up = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;

    if (k->sock != s || (!up && event != ZMQ_EVENT_DISCONNECTED) || k->up == up)
        return;
    k->up = up;
    if (up) {
        p->calls.up(p->calls.ud, s->link);
        return;
    }
    k->out_len = k->frames = 0;
    list_remove(&k->dirty);
    p->calls.down(p->calls.ud, s->link);
}

/* Reads the rest of a message of which `first` was read. */
static bool skip_parts(struct links *p, void *zmq, const zmq_msg_t *first)
{
    bool more = zmq_msg_more(first);
    bool any = more;

    while (more && zmq_msg_recv(&p->scrap, zmq, ZMQ_DONTWAIT) >= 0)
        more = zmq_msg_more(&p->scrap);
    return any;
}

/* All that the monitor has to tell. The calls may close s. */
static void serve_monitor(struct sock *s)
{
    struct links *p = s->owner;

    s->news = false;
    while (
        s->monitor && zmq_msg_recv(&p->event, s->monitor, ZMQ_DONTWAIT) >= 0) {
        uint16_t event = 0;
        uint32_t value = 0;

        if (zmq_msg_size(&p->event) == 6) {
            const char *d = zmq_msg_data(&p->event);

            memcpy(&event, d, sizeof(event));
            memcpy(&value, d + 2, sizeof(value));
        }
        skip_parts(p, s->monitor, &p->event);
        if (s->link == NONE)
            router_event(p, event, value);
        else
            dealer_event(p, s, event);
    }
}

/* in */

static void take_frames(struct links *p, uint32_t link, struct sock *s)
{
    struct reader r = reader_of(zmq_msg_data(&p->msg), zmq_msg_size(&p->msg));

    p->stats.packets_in++;
    /* A step may disconnect the link, but the message stays ours. */
    while (p->links[link].sock == s) {
        struct peer_msg m;
        enum err e = peer_get(&r, &m);

        if (e == ERR_NOT_READY)
            return;
        if (e == OK)
            p->calls.message(p->calls.ud, link, &m);
        else
            p->calls.bad(p->calls.ud, link, e, &m);
    }
}

/* Which link a message from this routing id and connection belongs to. */
static uint32_t router_link(struct links *p, uint64_t rid, uint32_t fd)
{
    uint32_t link = table_get(&p->by_rid, rid, 0);
    uint32_t by_fd = table_get(&p->by_fd, fd, 0);

    if (by_fd == NONE) {
        /* Perhaps newer than what we know: the monitor is told first. */
        serve_monitor(p->router);
        by_fd = table_get(&p->by_fd, fd, 0);
        link = table_get(&p->by_rid, rid, 0);
    }
    if (by_fd == NONE)
        return NONE;
    if (link != NONE)
        return p->links[link].fd == fd ? link : NONE;
    /* The connection spoke under another id before: that one was the last of
     * an older connection with this number. */
    if (by_fd < p->opt.links)
        link_lost(p, by_fd);
    return link_new(p, rid, fd);
}

/* One message; false: there is none. */
static bool router_receive(struct links *p)
{
    void *zmq = p->router->zmq;
    uint64_t rid = 0;
    uint32_t link = NONE;
    bool ours;
    int fd;

    if (zmq_msg_recv(&p->msg, zmq, ZMQ_DONTWAIT) < 0)
        return false;
    ours = zmq_msg_size(&p->msg) == RID_BYTES;
    if (ours)
        memcpy(&rid, zmq_msg_data(&p->msg), RID_BYTES);
    if (!zmq_msg_more(&p->msg) || zmq_msg_recv(&p->msg, zmq, ZMQ_DONTWAIT) < 0)
        return true;
    fd = zmq_msg_get(&p->msg, ZMQ_SRCFD);
    ours = !skip_parts(p, zmq, &p->msg) && ours && fd >= 0;
    if (ours)
        link = router_link(p, rid, (uint32_t)fd);
    if (link == NONE)
        p->stats.dropped_packets++;
    else
        take_frames(p, link, p->router);
    return true;
}

static bool dealer_receive(struct links *p, struct sock *s)
{
    if (!s->zmq || zmq_msg_recv(&p->msg, s->zmq, ZMQ_DONTWAIT) < 0)
        return false;
    if (skip_parts(p, s->zmq, &p->msg)) {
        p->stats.dropped_packets++;
        return true;
    }
    /* The first message may be faster than the news that we are connected. */
    if (!p->links[s->link].up)
        serve_monitor(s);
    if (s->zmq)
        take_frames(p, s->link, s);
    return true;
}

void links_serve(struct links *p)
{
    struct list now;
    uint32_t left = PACKETS_TURN;

    list_init(&now);
    while (!list_empty(&p->ready))
        list_push_tail(&now, list_pop(&p->ready));
    while (!list_empty(&now)) {
        struct list *n = list_pop(&now);
        struct sock *s = LIST_ENTRY(n, struct sock, ready);
        uint32_t turns = min_u32(left, PACKETS_SOCK), i = 0;
        bool more = true;

        if (s->news)
            serve_monitor(s);
        while (more && i < turns && s->zmq && !p->calls.full(p->calls.ud)) {
            more = s->link == NONE ? router_receive(p) : dealer_receive(p, s);
            i += more;
        }
        left -= i;
        if (s->zmq && more)
            make_ready(s);
    }
}

bool links_busy(const struct links *p)
{
    return !list_empty(&p->ready);
}

/* out */

static bool send_to(struct links *p, const struct link *k)
{
    void *zmq = k->sock->zmq;

    if (k->sock == p->router &&
        zmq_send(zmq, &k->rid, RID_BYTES, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return false;
    return zmq_send(zmq, k->out, k->out_len, ZMQ_DONTWAIT) >= 0;
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
        make_ready(k->sock);
}

static bool append(struct links *p, struct link *k, struct span frame)
{
    CHECK(frame.len <= PACKET_BYTES, "frame of %u bytes", frame.len);
    if (!k->up) {
        p->stats.dropped_frames++;
        return false;
    }
    if (frame.len > PACKET_BYTES - k->out_len)
        link_flush(p, k);
    memcpy(k->out + k->out_len, frame.p, frame.len);
    k->out_len += frame.len;
    k->frames++;
    return true;
}

void links_send(struct links *p, uint32_t link, struct span frame)
{
    struct link *k = &p->links[link];

    if (!append(p, k, frame))
        return;
    list_remove(&k->dirty);
    list_push_tail(&p->dirty, &k->dirty);
}

void links_send_soon(struct links *p, uint32_t link, struct span frame)
{
    struct link *k = &p->links[link];

    if (append(p, k, frame) && !list_linked(&k->dirty))
        list_push_tail(&p->soon, &k->dirty);
}

void links_hurry(struct links *p)
{
    while (!list_empty(&p->soon))
        list_push_tail(&p->dirty, list_pop(&p->soon));
}

bool links_wait(const struct links *p)
{
    return !list_empty(&p->soon);
}

void links_flush(struct links *p)
{
    while (!list_empty(&p->dirty))
        link_flush(p, LIST_FIRST(&p->dirty, struct link, dirty));
}

/* life */

enum err links_connect(struct links *p, uint32_t link, struct span address)
{
    struct link *k = &p->links[link];
    char text[256];
    struct sock *s;

    CHECK(link < p->opt.links && !k->sock, "link %u is in use", link);
    span_copy_str(address, text, sizeof(text));
    s = sock_open(p, ZMQ_DEALER, link);
    if (!s)
        return ERR_INTERNAL;
    if (zmq_connect(s->zmq, text) != 0) {
        log_error("%s: connect: %s", text, zmq_strerror(zmq_errno()));
        sock_close(s);
        return ERR_MALFORMED;
    }
    k->sock = s;
    return OK;
}

void links_disconnect(struct links *p, uint32_t link)
{
    struct link *k = &p->links[link];

    if (!k->sock)
        return;
    if (k->sock == p->router) {
        /* ZMQ cannot close one connection of a ROUTER. Whoever it is comes
         * back as a new link if it speaks again. */
        table_remove(&p->by_rid, k->rid, 0);
        (void)table_put(&p->by_fd, k->fd, 0, p->opt.links);
    } else {
        sock_close(k->sock);
    }
    link_clear(k);
}

static enum err take_memory(struct links *p)
{
    struct slab s = {0};
    void *m;

    for (int pass = 0; pass < 2; pass++) {
        uint32_t fds = 4 * p->opt.links + 64;

        if (pass == 1) {
            p->memory = calloc(1, s.used + SLAB_ALIGN);
            if (!p->memory)
                return ERR_NO_BLOCKS;
            s = (struct slab){p->memory, 0, s.used, false, true};
        }
        p->links = slab_take(&s, p->opt.links, sizeof(*p->links));
        p->socks = slab_take(&s, p->socks_count, sizeof(*p->socks));
        table_init(&p->by_rid, &s, p->opt.links, p->opt.seed);
        table_init(&p->by_fd, &s, fds, ~p->opt.seed);
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

static enum err bind_router(struct links *p)
{
    if (!p->opt.listen)
        return OK;
    p->router = sock_open(p, ZMQ_ROUTER, NONE);
    if (!p->router)
        return ERR_INTERNAL;
    if (zmq_bind(p->router->zmq, p->opt.listen) != 0) {
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
    /* A link may be connected again while its last socket is closing. */
    p->socks_count = opt->listen ? 1 : 2 * opt->links;
    list_init(&p->free);
    list_init(&p->used);
    list_init(&p->ready);
    list_init(&p->dirty);
    list_init(&p->soon);
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
    LIST_FOREACH (n, &p->used) {
        struct sock *s = LIST_ENTRY(n, struct sock, node);

        if (s->zmq)
            sock_close(s);
    }
}

void links_free(struct links **out)
{
    struct links *p = *out;

    if (!p)
        return;
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
