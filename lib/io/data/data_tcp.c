/* data_tcp.c - the carrier for networks that are TCP: plain sockets, one
 * connection per endpoint, used in one direction. Rows go from the sender's
 * blocks into the kernel and from there into the receiver's blocks.
 *
 * A message is an operation of our table and on exactly one list: unused, its
 * endpoint's queue (not wholly taken by the kernel yet), or done (waiting to be
 * told). post() only queues; progress() sends, so that what is posted in one
 * turn shares system calls.
 *
 * One epoll set holds the listener, what came in (level-triggered), what goes
 * out (edge-triggered: `blocked` remembers a full socket) and a timer, for what
 * has to be looked at also when all is idle. It can be polled itself, needs no
 * arming, and loses no wake-up.
 *
 * Why not UCX here, too: UCX 1.13 (Debian 12) ends the process when a peer
 * dies while the two connect, or in the middle of a message of several pieces;
 * and it copies every byte once more at the receiver. See data_ucx.c for
 * everything that is not TCP. Rejected: MSG_ZEROCOPY, which on loopback copies
 * anyway and needs a second wake-up to free the source. */
#include "io/data.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/list.h"
#include "base/log.h"
#include "wire/segment.h"
#include "io/data/tcp_accept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS         32
#define SENDS_MAX      4    /* system calls of an endpoint's turn */
#define SEND_PLACES    1024 /* what the kernel takes at once: IOV_MAX */
#define SEND_BYTES_MAX ((size_t)1024 * 1024)

static struct log_rate gone =
    LOG_RATE("rows whose memory is gone", LOG_WARN, 5);

struct op {
    struct list link;
    void *cookie;
    uint32_t at, iovs; /* iov[at..iovs) is not with the kernel yet */
    uint8_t frame[TCP_FRAME + DATA_HEADER_MAX];
    struct iovec *iov; /* 1 + DATA_IOV_MAX; touched only as far as used */
};

struct endpoint {
    struct list queue;
    struct list ready;       /* in data.ready: has something to send, and may */
    int fd;                  /* -1: closed */
    uint64_t quiet_since_ns; /* has something, and the kernel took nothing */
    bool open, connected, blocked, broken, unreported;
    uint8_t hello[TCP_HELLO];
    uint32_t hello_left;
    char name[48];
};

struct data {
    struct data_conf conf;
    struct data_calls calls;
    int epoll;
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len, unreported;
    struct list unused, done, ready;
    struct op *ops; /* messages_max */
    struct iovec *iovs;
    struct endpoint *eps;  /* endpoints_max */
    struct tcp_door *door; /* NULL: nobody connects to us */
    struct data_calls in_calls;
    bool inside; /* arrived() is on the stack */
};

/* operations */

static void complete_all(struct data *d, struct list *queue)
{
    struct list *n;

    while ((n = list_pop(queue)) != NULL)
        list_push_tail(&d->done, n);
}

/* Fills out from the messages that wait, in their order. */
static int gather(struct endpoint *ep, struct iovec *out, size_t *bytes)
{
    int n = 0;

    *bytes = ep->hello_left;
    if (ep->hello_left > 0)
        out[n++] = (struct iovec){
            ep->hello + TCP_HELLO - ep->hello_left, ep->hello_left};
    LIST_FOREACH (at, &ep->queue) {
        struct op *op = LIST_ENTRY(at, struct op, link);

        for (uint32_t i = op->at; i < op->iovs && n < SEND_PLACES; i++) {
            out[n++] = op->iov[i];
            *bytes += op->iov[i].iov_len;
        }
        if (n == SEND_PLACES || *bytes >= SEND_BYTES_MAX)
            break;
    }
    return n;
}

/* The kernel has n bytes more. */
static void taken(struct data *d, struct endpoint *ep, size_t n)
{
    uint32_t hello = min_u32(ep->hello_left, (uint32_t)n);

    ep->hello_left -= hello;
    n -= hello;
    ep->quiet_since_ns = 0;
    while (n > 0) {
        struct op *op = LIST_FIRST(&ep->queue, struct op, link);
        struct iovec *v = &op->iov[op->at];
        size_t part = n < v->iov_len ? n : v->iov_len;

        v->iov_base = (uint8_t *)v->iov_base + part;
        v->iov_len -= part;
        n -= part;
        if (v->iov_len == 0 && ++op->at == op->iovs) {
            list_remove(&op->link);
            list_push_tail(&d->done, &op->link);
        }
    }
}

/* endpoints */

static void endpoint_close(struct data *d, struct endpoint *ep)
{
    if (ep->fd >= 0)
        close(ep->fd);
    ep->fd = -1;
    ep->quiet_since_ns = 0;
    list_remove(&ep->ready);
    complete_all(d, &ep->queue);
}

static void endpoint_break(struct data *d, struct endpoint *ep)
{
    if (!ep->open || ep->broken)
        return;
    ep->broken = ep->unreported = true;
    d->unreported++;
    endpoint_close(d, ep);
}

static void endpoint_ready(struct data *d, struct endpoint *ep)
{
    if (ep->connected && !ep->blocked && !list_linked(&ep->ready) &&
        (ep->hello_left > 0 || !list_empty(&ep->queue)))
        list_push_tail(&d->ready, &ep->ready);
}

/* The kernel finds no memory under rows that wait: engines have taken pages out
 * of their pool. They go as zeros, as from a hole in small pages; to break the
 * endpoint would cost rooms of others. Returns false when it was not that. */
static bool mend(struct endpoint *ep)
{
    bool mended = false;

    LIST_FOREACH (at, &ep->queue) {
        struct op *op = LIST_ENTRY(at, struct op, link);

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
        log_rated(
            &gone, "tcp: pages of a pool were taken away: zeros are sent");
    return mended;
}

static void endpoint_send(struct data *d, struct endpoint *ep)
{
    struct iovec iov[SEND_PLACES];
    struct msghdr m = {.msg_iov = iov};

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
            endpoint_break(d, ep);
            return;
        }
        if (n > 0)
            taken(d, ep, (size_t)n);
        ep->blocked = n < (ssize_t)bytes;
        if (ep->blocked)
            return; /* an event says when the kernel takes more */
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
    /* Nobody answers on this connection: readable is the end, too. */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        if (!ep->connected)
            getsockopt(ep->fd, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error)
            log_debug("tcp: endpoint %td: connecting: %s", ep - d->eps,
                strerror(error));
        endpoint_break(d, ep);
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

    CHECK(i < d->conf.endpoints_max && !ep->open, "endpoint %u", i);
    CHECK(!d->inside, "connect inside arrived()");
    if (e != OK)
        return e;
    *ep = (struct endpoint){.open = true, .blocked = true, .fd = -1};
    list_init(&ep->queue);
    list_init(&ep->ready);
    memcpy(ep->hello, TCP_MAGIC, 4);
    memcpy(ep->hello + 4, place.token, TCP_TOKEN);
    ep->hello_left = TCP_HELLO;
    e = tcp_connect(&place, &ep->fd);
    if (e == OK) {
        tcp_options(ep->fd, d->conf.keepalive_ms, d->conf.stall_ms);
        if (!tcp_watch(d->epoll, ep->fd,
                EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, TCP_OUT, i))
            e = ERR_INTERNAL;
    }
    if (e != OK) {
        endpoint_close(d, ep);
        ep->open = false;
    }
    return e;
}

static void data_tcp_disconnect(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    CHECK(i < d->conf.endpoints_max && ep->open, "endpoint %u", i);
    CHECK(!d->inside, "disconnect inside arrived()");
    endpoint_close(d, ep);
    d->unreported -= ep->unreported;
    ep->open = ep->unreported = false;
}

static const char *data_tcp_name(struct data *d, uint32_t i)
{
    CHECK(i < d->conf.endpoints_max, "endpoint %u", i);
    return d->eps[i].name;
}

/* messages */

static enum err data_tcp_post(struct data *d, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct endpoint *ep = &d->eps[i];
    struct writer w;
    uint64_t bytes = 0;
    struct op *op;

    CHECK(i < d->conf.endpoints_max && ep->open, "endpoint %u", i);
    CHECK(iovs <= DATA_IOV_MAX && header.len <= DATA_HEADER_MAX,
        "%u pieces, %u header bytes", iovs, header.len);
    if (ep->broken)
        return ERR_PEER_LOST;
    if (list_empty(&d->unused))
        return ERR_BUSY;
    op = LIST_ENTRY(list_pop(&d->unused), struct op, link);
    op->cookie = cookie;
    op->at = 0;
    op->iovs = 1;
    for (uint32_t k = 0; k < iovs; k++) {
        bytes += iov[k].iov_len;
        if (iov[k].iov_len > 0)
            op->iov[op->iovs++] = iov[k];
    }
    CHECK(bytes <= UINT32_MAX, "a message of %" PRIu64 " bytes", bytes);
    w = writer_of(op->frame, sizeof(op->frame));
    put_u32(&w, header.len);
    put_u32(&w, (uint32_t)bytes);
    put_bytes(&w, header.p, header.len);
    op->iov[0] = (struct iovec){op->frame, w.len};
    list_push_tail(&ep->queue, &op->link);
    endpoint_ready(d, ep);
    return OK;
}

static enum err data_tcp_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    CHECK(d->inside && in->handle, "nothing to fetch");
    return tcp_in_fetch(in->handle, iov, iovs, in->len, cookie);
}

static void data_tcp_whole(struct data *d, const struct data_in *in)
{
    CHECK(d->inside && in->handle, "nothing to bring");
    tcp_in_whole(in->handle);
}

/* what comes in */

static bool on_arrived(void *ud, struct data *d, const struct data_in *in)
{
    bool kept;

    (void)ud;
    d->inside = true;
    kept = d->calls.arrived(d->calls.ud, d, in);
    d->inside = false;
    return kept;
}

static void on_fetched(void *ud, void *cookie, bool ok)
{
    struct data *d = ud;

    d->calls.fetched(d->calls.ud, cookie, ok);
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

static unsigned report_done(struct data *d)
{
    unsigned count = 0;

    /* Bounded: a callback may post what completes at once. */
    for (; count < 2 * d->conf.messages_max; count++) {
        struct list *n = list_pop(&d->done);
        void *cookie;

        if (!n)
            break;
        cookie = LIST_ENTRY(n, struct op, link)->cookie;
        list_push_head(&d->unused, n);
        d->calls.done(d->calls.ud, cookie);
    }
    return count;
}

static unsigned report_broken(struct data *d)
{
    unsigned count = 0;

    for (uint32_t i = 0; d->unreported && i < d->conf.endpoints_max; i++) {
        if (!d->eps[i].unreported)
            continue;
        d->eps[i].unreported = false;
        d->unreported--;
        count++;
        d->calls.broken(d->calls.ud, i);
    }
    return count;
}

static unsigned data_tcp_progress(struct data *d)
{
    unsigned count;

    CHECK(!d->inside, "progress inside arrived()");
    count = send_ready(d); /* before the kernel is asked for news */
    count += handle_events(d);
    count += send_ready(d);
    count += report_done(d);
    return count + report_broken(d);
}

static int data_tcp_fd(struct data *d)
{
    return d->epoll;
}

static enum err data_tcp_arm(struct data *d)
{
    return list_empty(&d->ready) && list_empty(&d->done) && !d->unreported
               ? OK
               : ERR_BUSY;
}

static void endpoint_tick(struct data *d, struct endpoint *ep, uint64_t now_ns)
{
    if (!ep->open || ep->broken || list_empty(&ep->queue))
        return;
    if (ep->quiet_since_ns == 0)
        ep->quiet_since_ns = now_ns;
    if (now_ns - ep->quiet_since_ns < d->conf.stall_ms * NS_PER_MS)
        return;
    log_warn("tcp: endpoint %td: messages without progress for %u ms",
        ep - d->eps, d->conf.stall_ms);
    endpoint_break(d, ep);
}

static void data_tcp_tick(struct data *d, uint64_t now_ns)
{
    CHECK(!d->inside, "tick inside arrived()");
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        endpoint_tick(d, &d->eps[i], now_ns);
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
    free(d->ops);
    free(d->iovs);
    free(d->eps);
    free(d);
}

static bool take_memory(struct data *d)
{
    uint32_t n = d->conf.messages_max;

    list_init(&d->unused);
    list_init(&d->done);
    list_init(&d->ready);
    d->ops = calloc(n, sizeof(*d->ops));
    d->iovs = calloc((size_t)n * (DATA_IOV_MAX + 1), sizeof(*d->iovs));
    d->eps = calloc(d->conf.endpoints_max, sizeof(*d->eps));
    if (!d->ops || !d->iovs || !d->eps) {
        log_error("tcp: no memory for %u messages", n);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        d->ops[i].iov = d->iovs + (size_t)i * (DATA_IOV_MAX + 1);
        list_push_tail(&d->unused, &d->ops[i].link);
    }
    return true;
}

static enum err begin(struct data *d)
{
    struct writer w = writer_of(d->address, sizeof(d->address));
    struct tcp_door_conf c = {.data = &d->conf, .d = d, .calls = &d->in_calls};
    struct tcp_place place;
    enum err e;

    d->epoll = c.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!take_memory(d) || d->epoll < 0)
        return ERR_INTERNAL;
    if (d->conf.inbound_max == 0)
        return OK; /* no address: nobody connects */
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

    CHECK(c->messages_max > 0 && c->endpoints_max > 0,
        "messages_max and endpoints_max are needed");
    if (!d) {
        log_error("tcp: out of memory");
        return ERR_INTERNAL;
    }
    guard_install();
    d->conf = *c;
    d->calls = *calls;
    d->in_calls = (struct data_calls){
        .ud = d, .arrived = on_arrived, .fetched = on_fetched};
    d->epoll = -1;
    e = begin(d);
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
    CHECK(!d->inside, "close inside arrived()");
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        if (d->eps[i].open)
            endpoint_break(d, &d->eps[i]);
    tcp_door_close(&d->door);
    report_done(d);
    data_tcp_free(d);
    *dp = NULL;
}

const struct data_ops data_tcp = {.name = "tcp",
    .any_thread = true,
    .open = data_tcp_open,
    .close = data_tcp_close,
    .address = data_tcp_address,
    .connect = data_tcp_connect,
    .disconnect = data_tcp_disconnect,
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
