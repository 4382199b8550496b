/* data_tcp.c - the carrier for networks that are TCP: plain sockets, one
 * connection per endpoint, used in one direction. Rows go from the sender's
 * blocks into the kernel and from there into the receiver's blocks.
 *
 * A message is an operation of carrier.h, complete when the kernel has taken
 * all of it. post() only queues; progress() sends, so that what is posted in
 * one turn shares system calls.
 *
 * One epoll set holds the listener, accepted connections (level-triggered), our
 * own (edge-triggered: `blocked` remembers a full socket) and a timer, for work
 * that is due also when all is idle. It can be polled itself, needs no arming,
 * and loses no wake-up.
 *
 * Why not UCX here, too: UCX 1.13 (Debian 12) ends the process when a peer
 * dies while the two connect, or in the middle of a message of several pieces;
 * and it copies every byte once more at the receiver. See data_ucx.c for
 * everything that is not TCP. Rejected: MSG_ZEROCOPY, which on loopback copies
 * anyway and needs a second wake-up to free the source. */
#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/carrier.h"
#include "io/data/tcp_accept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS         32
#define SENDS_MAX      4    /* system calls of an endpoint's turn */
#define SEND_PLACES    1024 /* pieces that the kernel takes at once: IOV_MAX */
#define SEND_BYTES_MAX ((size_t)1024 * 1024)

static struct log_rate gone =
    LOG_RATE("rows whose pages were removed", LOG_WARN, 5);

struct endpoint {
    struct carrier_end *end;
    struct list ready; /* in data.ready: has bytes, and the socket takes some */
    int fd;            /* -1: closed */
    bool connected, blocked;
    uint8_t hello[TCP_HELLO];
    uint32_t hello_left;
    char name[48];
};

struct data {
    struct carrier c; /* first: carrier.h finds it there */
    int epoll;
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
    struct list ready;
    struct endpoint *eps;  /* endpoints_max */
    struct tcp_door *door; /* NULL: no connections from others */
    struct data_calls in_calls;
};

/* operations */

/* Fills `out` from the messages that wait, in their order. Returns the number
 * of pieces. */
static int gather(struct endpoint *ep, struct iovec *out, size_t *bytes)
{
    int n = 0;

    *bytes = ep->hello_left;
    if (ep->hello_left > 0)
        out[n++] = (struct iovec){
            ep->hello + TCP_HELLO - ep->hello_left, ep->hello_left};
    LIST_FOREACH (at, &ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        for (uint32_t i = op->at; i < op->iovs && n < SEND_PLACES; i++) {
            out[n++] = op->iov[i];
            *bytes += op->iov[i].iov_len;
        }
        if (n == SEND_PLACES || *bytes >= SEND_BYTES_MAX)
            break;
    }
    return n;
}

/* Advances the endpoint by n bytes that the kernel has taken. */
static void taken(struct data *d, struct endpoint *ep, size_t n)
{
    uint32_t hello = min_u32(ep->hello_left, (uint32_t)n);

    ep->hello_left -= hello;
    n -= hello;
    ep->end->quiet_since_ns = 0;
    while (n > 0) {
        struct carrier_op *op =
            LIST_FIRST(&ep->end->ops, struct carrier_op, link);
        struct iovec *v = &op->iov[op->at];
        size_t part = n < v->iov_len ? n : v->iov_len;

        CHECK(op->at < op->iovs, "piece %u of %u", op->at, op->iovs);
        v->iov_base = (uint8_t *)v->iov_base + part;
        v->iov_len -= part;
        n -= part;
        if (v->iov_len == 0 && ++op->at == op->iovs)
            carrier_complete(&d->c, op, true);
    }
}

/* endpoints */

static void endpoint_close(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    if (ep->fd >= 0)
        close(ep->fd);
    ep->fd = -1;
    list_remove(&ep->ready);
    carrier_complete_all(&d->c, &ep->end->ops);
}

static void endpoint_ready(struct data *d, struct endpoint *ep)
{
    if (ep->connected && !ep->blocked && !list_linked(&ep->ready) &&
        (ep->hello_left > 0 || !list_empty(&ep->end->ops)))
        list_push_tail(&d->ready, &ep->ready);
}

/* Replaces rows whose pages engines have removed from their pool by zeros, as
 * from a hole in small pages; to break the endpoint would cost rooms of others.
 * Returns false if no page was missing. */
static bool mend(struct endpoint *ep)
{
    bool mended = false;

    LIST_FOREACH (at, &ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        for (uint32_t i = op->at; i < op->iovs; i++) {
            struct iovec *v = &op->iov[i];

            if (guard_readable(v->iov_base, v->iov_len))
                continue;
            v->iov_base = guard_zeros(v->iov_len);
            if (!v->iov_base)
                return false;
            mended = true;
        }
    }
    if (mended)
        log_rated(&gone, "tcp: pages of a pool were removed: zeros are sent");
    return mended;
}

static void endpoint_send(struct data *d, struct endpoint *ep)
{
    struct iovec iov[SEND_PLACES];
    struct msghdr m = {.msg_iov = iov};

    CHECK(ep->fd >= 0 && ep->connected, "endpoint %td is not connected",
        ep - d->eps);
    for (unsigned i = 0; i < SENDS_MAX; i++) {
        size_t bytes;
        ssize_t n;

        m.msg_iovlen = (size_t)gather(ep, iov, &bytes);
        if (m.msg_iovlen == 0)
            return;
        n = sendmsg(ep->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || (errno == EFAULT && mend(ep))))
            continue;
        if (n < 0 && errno != EAGAIN) {
            log_debug("tcp: endpoint %td: %s", ep - d->eps, strerror(errno));
            carrier_break(d, (uint32_t)(ep - d->eps));
            return;
        }
        if (n > 0)
            taken(d, ep, (size_t)n);
        ep->blocked = n < (ssize_t)bytes;
        if (ep->blocked)
            return; /* an event comes when the kernel takes more */
    }
    endpoint_ready(d, ep);
}

static unsigned send_ready(struct data *d)
{
    struct list now;
    struct list *n;
    unsigned count = 0;

    list_init(&now);
    while ((n = list_pop(&d->ready)) != NULL)
        list_push_tail(&now, n);
    for (; (n = list_pop(&now)) != NULL; count++)
        endpoint_send(d, LIST_ENTRY(n, struct endpoint, ready));
    return count;
}

static void endpoint_event(struct data *d, struct endpoint *ep, uint32_t events)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (ep->fd < 0)
        return; /* of a connection closed in this turn */
    /* The peer sends nothing here: readable is the end, too. */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        if (!ep->connected)
            getsockopt(ep->fd, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error)
            log_debug("tcp: endpoint %td: connecting: %s", ep - d->eps,
                strerror(error));
        carrier_break(d, (uint32_t)(ep - d->eps));
        return;
    }
    if (!ep->connected)
        tcp_name(ep->fd, ep->name, sizeof(ep->name));
    ep->connected = true;
    ep->blocked = false;
    endpoint_ready(d, ep);
}

static enum err data_tcp_connect(
    struct data *d, uint32_t i, struct span address)
{
    struct endpoint *ep = &d->eps[i];
    struct tcp_place place;
    enum err e = tcp_place_get(address, &place);

    if (e != OK)
        return e;
    carrier_connect(&d->c, i);
    *ep = (struct endpoint){
        .end = carrier_end(&d->c, i), .fd = -1, .blocked = true};
    list_init(&ep->ready);
    memcpy(ep->hello, TCP_MAGIC, 4);
    memcpy(ep->hello + 4, place.token, TCP_TOKEN);
    ep->hello_left = TCP_HELLO;
    e = tcp_connect(&place, &ep->fd);
    if (e == OK) {
        tcp_options(ep->fd, d->c.conf.keepalive_ms, d->c.conf.stall_ms);
        if (!tcp_watch(d->epoll, ep->fd,
                EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, TCP_OUT, i))
            e = ERR_INTERNAL;
    }
    if (e != OK) {
        endpoint_close(d, i);
        d->c.ends[i].open = false;
    }
    return e;
}

static const char *data_tcp_name(struct data *d, uint32_t i)
{
    CHECK(i < d->c.conf.endpoints_max, "endpoint %u", i);
    return d->eps[i].name;
}

/* messages */

static enum err data_tcp_post(struct data *d, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct endpoint *ep = &d->eps[i];
    struct carrier_op *op;
    struct writer w;
    enum err e = carrier_post(&d->c, i, header, iov, iovs, cookie, &op);

    if (e != OK)
        return e;
    CHECK(op->bytes <= UINT32_MAX, "a message of %" PRIu64 " bytes", op->bytes);
    w = writer_of(op->frame, TCP_FRAME);
    put_u32(&w, header.len);
    put_u32(&w, (uint32_t)op->bytes);
    op->iov[0] = (struct iovec){op->frame, TCP_FRAME + header.len};
    op->at = 0;
    endpoint_ready(d, ep);
    return OK;
}

static enum err data_tcp_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    CHECK(d->c.inside && in->handle, "nothing to fetch");
    return tcp_in_fetch(in->handle, iov, iovs, in->len, cookie);
}

static bool data_tcp_whole(struct data *d, const struct data_in *in)
{
    CHECK(d->c.inside && in->handle, "nothing to ask for");
    tcp_in_whole(in->handle);
    return true;
}

/* what comes in */

static bool on_arrived(void *ud, struct data *d, const struct data_in *in)
{
    (void)ud;
    return carrier_arrived(d, in);
}

/* turns */

static unsigned handle_events(struct data *d)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(d->epoll, ev, EVENTS, 0);
    unsigned count = 0;

    for (int k = 0; k < n; k++) {
        uint32_t index = (uint32_t)ev[k].data.u64;
        enum tcp_tag tag = (enum tcp_tag)(ev[k].data.u64 >> 32);

        if (tag == TCP_OUT) {
            endpoint_event(d, &d->eps[index], ev[k].events);
            count++;
        } else {
            count += tcp_door_event(d->door, tag, index);
        }
    }
    return count;
}

static unsigned data_tcp_progress(struct data *d)
{
    unsigned count;

    CHECK(!d->c.inside, "progress inside arrived()");
    count = send_ready(d); /* before the kernel is asked for events */
    count += handle_events(d);
    count += send_ready(d);
    return count + carrier_report(&d->c);
}

static int data_tcp_fd(struct data *d)
{
    return d->epoll;
}

static enum err data_tcp_arm(struct data *d)
{
    return list_empty(&d->ready) && !carrier_pending(&d->c) ? OK : ERR_BUSY;
}

static void data_tcp_tick(struct data *d, uint64_t now_ns)
{
    carrier_tick(d, now_ns);
    if (d->door)
        tcp_door_tick(d->door, now_ns);
}

static uint32_t data_tcp_replaced(struct data *d)
{
    (void)d;
    return 0;
}

static const struct data_counts *data_tcp_counts(struct data *d)
{
    static const struct data_counts none;

    return d->door ? tcp_door_counts(d->door) : &none;
}

/* open and close */

static struct span data_tcp_address(struct data *d)
{
    return span_of(d->address, d->address_len);
}

static void data_tcp_free(struct data *d)
{
    if (d->epoll >= 0)
        close(d->epoll);
    carrier_fini(&d->c);
    free(d->eps);
    free(d);
}

static enum err begin(struct data *d, const struct data_conf *conf,
    const struct data_calls *calls)
{
    struct writer w = writer_of(d->address, sizeof(d->address));
    struct tcp_door_conf c = {
        .data = &d->c.conf, .d = d, .calls = &d->in_calls};
    struct tcp_place place;
    struct data_conf own = *conf;
    enum err e;

    own.fetches_max = 0; /* tcp_in.c fetches, without an operation */
    e = carrier_init(
        &d->c, "tcp", &own, calls, sizeof(struct carrier_op), endpoint_close);
    if (e != OK)
        return e;
    d->eps = calloc(conf->endpoints_max, sizeof(*d->eps));
    d->epoll = c.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!d->eps || d->epoll < 0) {
        log_error("tcp: no memory or no epoll set: %s", strerror(errno));
        return ERR_INTERNAL;
    }
    if (conf->inbound_max == 0)
        return OK; /* without an address: no connection comes in */
    e = tcp_door_open(&d->door, &c, &place);
    if (e != OK)
        return e;
    tcp_place_put(&w, &place);
    d->address_len = (uint32_t)w.len;
    return OK;
}

static enum err data_tcp_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data *d = calloc(1, sizeof(*d));
    enum err e;

    if (!d) {
        log_error("tcp: out of memory");
        return ERR_INTERNAL;
    }
    guard_install();
    list_init(&d->ready);
    d->in_calls = *calls;
    d->in_calls.arrived = on_arrived;
    d->epoll = -1;
    e = begin(d, c, calls);
    if (e == OK)
        *out = d;
    else
        data_tcp_free(d);
    return e;
}

static void data_tcp_close(struct data **dp)
{
    struct data *d = *dp;

    if (!d)
        return;
    CHECK(!d->c.inside, "close inside arrived()");
    carrier_break_all(d);
    tcp_door_close(&d->door);
    carrier_report_done(&d->c);
    data_tcp_free(d);
    *dp = NULL;
}

const struct data_ops data_tcp = {.name = "tcp",
    .number = CARRIER_TCP,
    .any_thread = true,
    .open = data_tcp_open,
    .close = data_tcp_close,
    .address = data_tcp_address,
    .connect = data_tcp_connect,
    .disconnect = carrier_disconnect,
    .post = data_tcp_post,
    .fetch = data_tcp_fetch,
    .whole = data_tcp_whole,
    .progress = data_tcp_progress,
    .fd = data_tcp_fd,
    .arm = data_tcp_arm,
    .tick = data_tcp_tick,
    .transport = data_tcp_name,
    .replaced = data_tcp_replaced,
    .counts = data_tcp_counts};
