/* peer_sock.c - sockets of ZMQ with their options, keys, monitors and polls,
 * and links that go down.
 *
 * RCVHWM must be 0, no limit, on every socket: at its limit libzmq stops
 * reading a connection. If the connection then breaks, libzmq (4.3, and master
 * in 2026) aborts the process at our next heartbeat, or at a PING of the peer
 * that it had read before (`!_io_error`, `_input_stopped`). Without a limit
 * input never stops, and neither can happen. Instead each connection has a
 * limit in bytes (peer_conn.c).
 *
 * Heartbeats are ZMTP's, on both sides: ZMQ's thread answers them even while
 * the loop is busy, and the kernel reports a killed process in milliseconds.
 *
 * Rejected: heartbeats by frames of our own (a loop that is busy longer than
 * their limit would look dead; daemons without them would need another way; and
 * PINGs of others would still abort us at the limit), and ZMTP heartbeats of
 * one side with a TTL for the other (libzmq 4.3 forgets the TTL with the next
 * message that is not a PING: a peer that stops right after one is never
 * detected). The loop's thread. */
#include "io/peer/peer_impl.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>

#define LINGER_MS 100
#define ROUTER_EVENTS                                                          \
    (ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |      \
        ZMQ_EVENT_DISCONNECTED | REFUSED_EVENTS)
#define DEALER_EVENTS                                                          \
    (ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED |                            \
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | REFUSED_EVENTS)
/* libzmq's number, which its header has only in drafts. A libzmq that does not
 * know it continues if there is no handler, but ours exists. */
#define ENFORCE_DOMAIN 93

void sock_ready(struct sock *s)
{
    if (!list_linked(&s->ready))
        list_push_tail(&s->owner->ready, &s->ready);
}

static void on_readable(uv_poll_t *h, int status, int events)
{
    (void)status;
    (void)events;
    sock_ready(h->data);
}

static void on_news(uv_poll_t *h, int status, int events)
{
    struct sock *s = h->data;

    s->news = true;
    on_readable(h, status, events);
}

static void sock_free(struct sock *s)
{
    list_remove(&s->node);
    list_push_tail(&s->owner->free, &s->node);
}

static void on_closed(uv_handle_t *h)
{
    struct sock *s = h->data;

    CHECK(s->closing > 0, "no handle of the socket is closing");
    if (--s->closing == 0 && !s->owner->stopped)
        sock_free(s);
}

bool sock_receive(void *zmq, zmq_msg_t *part)
{
    while (zmq_msg_recv(part, zmq, ZMQ_DONTWAIT) < 0)
        if (zmq_errno() != EINTR)
            return false;
    return true;
}

bool sock_send(void *zmq, const void *part, size_t n, int more)
{
    while (zmq_send(zmq, part, n, more | ZMQ_DONTWAIT) < 0)
        if (zmq_errno() != EINTR)
            return false;
    return true;
}

bool sock_set(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof(value)) == 0;
}

const struct key_pair *keys_own(const struct keys *k, uint32_t there)
{
    CHECK(there < keys_count(k), "key %u of %u", there, keys_count(k));
    return &k->pairs[k->lines_count ? 0 : there];
}

static bool keys_set(const struct links *p, void *zmq, int type, uint32_t there)
{
    const struct keys *keys = p->opt.keys;
    const struct key_pair *k;

    if (!keys)
        return true;
    k = type == ZMQ_ROUTER ? &keys->pairs[0] : keys_own(keys, there);
    if (type == ZMQ_ROUTER) {
        (void)sock_set(zmq, ENFORCE_DOMAIN, 1);
        return sock_set(zmq, ZMQ_CURVE_SERVER, 1) &&
               zmq_setsockopt(
                   zmq, ZMQ_CURVE_SECRETKEY, k->secret, KEY_TEXT + 1) == 0 &&
               zmq_setsockopt(zmq, ZMQ_ZAP_DOMAIN, "mmx", 3) == 0;
    }
    return zmq_setsockopt(zmq, ZMQ_CURVE_SERVERKEY, keys_public(keys, there),
               KEY_TEXT + 1) == 0 &&
           zmq_setsockopt(zmq, ZMQ_CURVE_PUBLICKEY, k->public, KEY_TEXT + 1) ==
               0 &&
           zmq_setsockopt(zmq, ZMQ_CURVE_SECRETKEY, k->secret, KEY_TEXT + 1) ==
               0;
}

static bool set_options(void *zmq, int type, uint32_t heartbeat_ms, bool six)
{
    int64_t max = PEER_PACKET_MAX;
    int beat = (int)heartbeat_ms;
    bool ok = zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max)) == 0;

    /* The last packet is still sent: a peer may wait for an ACK in it. */
    ok = ok && sock_set(zmq, ZMQ_LINGER, LINGER_MS);
    ok = ok && sock_set(zmq, ZMQ_SNDHWM, 1000);
    ok = ok && sock_set(zmq, ZMQ_RCVHWM, 0);
    ok = ok && sock_set(zmq, ZMQ_IPV6, six);
    ok = ok && sock_set(zmq, ZMQ_HANDSHAKE_IVL, 3000);
    ok = ok && sock_set(zmq, ZMQ_HEARTBEAT_IVL, beat);
    ok = ok && sock_set(zmq, ZMQ_HEARTBEAT_TIMEOUT, 3 * beat);
    ok = ok && sock_set(zmq, ZMQ_HEARTBEAT_TTL, 3 * beat);
    ok = ok && sock_set(zmq, ZMQ_TCP_KEEPALIVE, 1);
    if (type == ZMQ_ROUTER)
        return ok && sock_set(zmq, ZMQ_ROUTER_MANDATORY, 1) &&
               sock_set(zmq, ZMQ_ROUTER_HANDOVER, 0);
    /* With this option libzmq 4.3.4 drops, when a connection ends, what it has
     * received of it and we have not read: 6 of 100 messages that a peer sent
     * right before its end, whatever its LINGER, and none without the option or
     * if the peer waits 5 ms. So nothing may depend on a peer's last messages.
     * Rejected: going without it. Frames sent between the end of a connection
     * and its event would go by the next one, before HELLO. */
    return ok && sock_set(zmq, ZMQ_IMMEDIATE, 1) &&
           sock_set(zmq, ZMQ_RECONNECT_IVL, 50) &&
           sock_set(zmq, ZMQ_RECONNECT_IVL_MAX, 1000) &&
           sock_set(zmq, ZMQ_CONNECT_TIMEOUT, 2000);
}

static void *open_monitor(struct links *p, void *zmq, int events)
{
    char name[64];
    void *m;

    snprintf(name, sizeof(name), "inproc://monitor-%llu",
        (unsigned long long)p->monitors++);
    if (zmq_socket_monitor(zmq, name, events) != 0)
        return NULL;
    m = zmq_socket(p->ctx, ZMQ_PAIR);
    /* No limit: a full monitor would block ZMQ's thread. It is emptied every
     * turn. */
    if (m && sock_set(m, ZMQ_LINGER, 0) && sock_set(m, ZMQ_RCVHWM, 0) &&
        zmq_connect(m, name) == 0)
        return m;
    if (m)
        zmq_close(m);
    zmq_socket_monitor(zmq, NULL, 0);
    return NULL;
}

bool sock_watch(
    uv_loop_t *loop, uv_poll_t *h, void *zmq, uv_poll_cb f, void *data)
{
    size_t n = sizeof(int);
    int fd, e;

    if (zmq_getsockopt(zmq, ZMQ_FD, &fd, &n) != 0 ||
        uv_poll_init(loop, h, fd) != 0)
        return false;
    h->data = data;
    e = uv_poll_start(h, UV_READABLE, f);
    CHECK(e == 0, "poll of a ZMQ descriptor: %s", uv_strerror(e));
    return true;
}

/* Opens both sockets and polls them; false: one is missing. */
static bool open_both(struct links *p, struct sock *s, int type, bool six)
{
    uint32_t key = s->link == NONE ? 0 : p->links[s->link].dial.key;

    s->zmq = zmq_socket(p->ctx, type);
    if (!s->zmq || !set_options(s->zmq, type, p->opt.heartbeat_ms, six) ||
        !keys_set(p, s->zmq, type, key))
        return false;
    s->monitor = open_monitor(
        p, s->zmq, type == ZMQ_ROUTER ? ROUTER_EVENTS : DEALER_EVENTS);
    if (!s->monitor ||
        !sock_watch(p->loop, &s->polls[0], s->zmq, on_readable, s))
        return false;
    s->watched = 1;
    if (!sock_watch(p->loop, &s->polls[1], s->monitor, on_news, s))
        return false;
    s->watched = 2;
    return true;
}

struct sock *sock_open(struct links *p, int type, uint32_t link, bool six)
{
    struct list *n = list_pop(&p->free);
    struct sock *s = n ? LIST_ENTRY(n, struct sock, node) : NULL;

    if (!s)
        return NULL;
    CHECK(s->closing == 0, "a socket is used before its handles are closed");
    list_push_tail(&p->used, &s->node);
    s->zmq = s->monitor = NULL;
    s->meter.fd = -1;
    s->link = link;
    s->watched = 0;
    if (!open_both(p, s, type, six)) {
        int error = errno;

        log_debug("zmq: socket: %s", zmq_strerror(error));
        sock_close(s);
        errno = error;
        return NULL;
    }
    s->news = true;
    sock_ready(s);
    return s;
}

void sock_close(struct sock *s)
{
    CHECK(s->closing == 0 && list_linked(&s->node), "a socket is closed twice");
    list_remove(&s->ready);
    s->closing = s->watched;
    for (uint32_t i = 0; i < s->watched; i++)
        uv_close((uv_handle_t *)&s->polls[i], on_closed);
    if (s->monitor) {
        zmq_socket_monitor(s->zmq, NULL, 0);
        zmq_close(s->monitor);
    }
    if (s->zmq)
        zmq_close(s->zmq);
    s->zmq = s->monitor = NULL;
    if (s->closing == 0)
        sock_free(s);
}

void link_clear(struct link *k)
{
    k->up = k->taking = false;
    k->out_len = k->frames = 0;
    list_remove(&k->dirty);
}

void link_down(struct links *p, uint32_t link)
{
    struct link *k = link_at(p, link);
    struct event ev = {.type = EV_LINK_DOWN, .link = link};

    if (!k->up)
        return;
    CHECK(k->sock, "link %u is up and has no socket", link);
    link_clear(k);
    if (k->sock == p->router) {
        table_remove(&p->by_rid, k->rid, 0);
        k->sock = NULL;
    }
    p->calls.event(p->calls.ud, &ev);
}
