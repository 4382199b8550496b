/* data_tcp.c - the carrier for networks that are TCP: plain sockets, used in
 * one direction. Rows go from the sender's blocks into the kernel and from
 * there into the receiver's blocks.
 *
 * A message is an operation of carrier.h, complete when the kernel has taken
 * all of it. post() only queues; progress() sends, so that what is posted in
 * one turn shares system calls.
 *
 * An endpoint has one connection, or several (streams), where one is limited by
 * a network that shapes each, or by its window. Messages wait in the endpoint's
 * list, and one stream at a time has the turn to take them: it keeps what it
 * has begun, and passes the turn on after TURN_BYTES or when its socket is
 * full. So each stream carries what it can, and little traffic stays on one.
 * Invariant: of an endpoint's messages those that a stream has begun (`by`)
 * come before all others, at most one per stream. The first stream connects
 * with the endpoint, the others when it first passes the turn on. A stream that
 * breaks breaks the endpoint, except one that never connected.
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
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS         32
#define SENDS_MAX      4    /* system calls of an endpoint's turn */
#define SEND_PLACES    1024 /* pieces that the kernel takes at once: IOV_MAX */
#define SEND_BYTES_MAX ((size_t)1024 * 1024)
#define TURN_BYTES     ((size_t)256 * 1024) /* of a stream's turn */

static struct log_rate gone =
    LOG_RATE("rows whose pages were removed", LOG_WARN, 5);

struct stream {
    struct list ready; /* in data.ready: has bytes, and the socket takes some */
    struct endpoint *ep;
    struct carrier_op *op;   /* begun here and not complete; or NULL */
    uint64_t quiet_since_ns; /* as of carrier_end, of op */
    int fd;                  /* -1: closed, or not opened */
    bool connected, blocked;
    uint32_t hello_left;
};

struct endpoint {
    struct carrier_end *end;
    struct stream *streams; /* `most`; NULL: the endpoint is closed */
    uint32_t most, opened;
    uint32_t turn;  /* of streams: takes messages that none has begun */
    uint64_t taken; /* by that one in its turn */
    struct tcp_place place;
    uint8_t hello[TCP_HELLO];
    char name[48];
};

struct data {
    struct carrier c; /* first: carrier.h finds it there */
    int epoll;
    uint8_t address[TCP_ADDRESS_MAX], place[TCP_ADDRESS_MAX];
    uint32_t address_len, place_len;
    struct list ready;
    struct endpoint *eps;  /* endpoints_max */
    struct tcp_door *door; /* NULL: no connections from others */
};

static uint32_t number(const struct data *d, const struct stream *st)
{
    return (uint32_t)(st->ep - d->eps);
}

static bool has_turn(const struct stream *st)
{
    return st == &st->ep->streams[st->ep->turn];
}

/* operations */

/* True if the endpoint has a message that no stream has begun. */
static bool unbegun(const struct endpoint *ep)
{
    return !list_empty(&ep->end->ops) &&
           LIST_ENTRY(ep->end->ops.prev, struct carrier_op, link)->by == NONE;
}

static int pieces(
    const struct carrier_op *op, struct iovec *out, int n, size_t *bytes)
{
    for (uint32_t i = op->at; i < op->iovs && n < SEND_PLACES; i++) {
        out[n++] = op->iov[i];
        *bytes += op->iov[i].iov_len;
    }
    return n;
}

/* Fills `out` with what the stream sends next: what it has begun, then, if it
 * has the turn, messages in their order. Returns the number of pieces. */
static int gather(struct stream *st, struct iovec *out, size_t *bytes)
{
    size_t most = st->ep->most > 1 ? TURN_BYTES : SEND_BYTES_MAX;
    int n = 0;

    *bytes = st->hello_left;
    if (st->hello_left > 0)
        out[n++] = (struct iovec){
            st->ep->hello + TCP_HELLO - st->hello_left, st->hello_left};
    if (st->op)
        n = pieces(st->op, out, n, bytes);
    if (!has_turn(st))
        return n;
    LIST_FOREACH (at, &st->ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        if (n == SEND_PLACES || *bytes >= most)
            break;
        if (op->by == NONE)
            n = pieces(op, out, n, bytes);
    }
    return n;
}

/* Returns the message that the stream sends next, which it has begun then. */
static struct carrier_op *begin_next(struct stream *st)
{
    LIST_FOREACH (at, &st->ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        if (op->by != NONE)
            continue;
        op->by = (uint32_t)(st - st->ep->streams);
        st->op = op;
        return op;
    }
    CHECK(false, "more was sent than there is");
    return NULL;
}

/* Advances the stream by n bytes that the kernel has taken. */
static void taken(struct data *d, struct stream *st, size_t n)
{
    uint32_t hello = min_u32(st->hello_left, (uint32_t)n);

    st->hello_left -= hello;
    n -= hello;
    st->ep->end->quiet_since_ns = st->quiet_since_ns = 0;
    while (n > 0) {
        struct carrier_op *op = st->op ? st->op : begin_next(st);
        struct iovec *v = &op->iov[op->at];
        size_t part = n < v->iov_len ? n : v->iov_len;

        CHECK(op->at < op->iovs, "piece %u of %u", op->at, op->iovs);
        v->iov_base = (uint8_t *)v->iov_base + part;
        v->iov_len -= part;
        n -= part;
        if (v->iov_len == 0 && ++op->at == op->iovs) {
            st->op = NULL;
            carrier_complete(&d->c, op, true);
        }
    }
}

/* endpoints */

static void stream_close(struct stream *st)
{
    if (st->fd >= 0)
        close(st->fd);
    st->fd = -1;
    st->connected = false;
    list_remove(&st->ready);
}

static void endpoint_close(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    for (uint32_t k = 0; ep->streams && k < ep->opened; k++)
        stream_close(&ep->streams[k]);
    free(ep->streams);
    ep->streams = NULL;
    carrier_complete_all(&d->c, &ep->end->ops);
}

static void stream_ready(struct data *d, struct stream *st)
{
    if (st->connected && !st->blocked && !list_linked(&st->ready) &&
        (st->hello_left > 0 || st->op || (has_turn(st) && unbegun(st->ep))))
        list_push_tail(&d->ready, &st->ready);
}

/* Begins to connect one more stream, by the rails in turn. */
static enum err stream_open(struct data *d, struct endpoint *ep)
{
    uint32_t k = ep->opened++, index = (uint32_t)(ep - d->eps);
    struct stream *st = &ep->streams[k];
    enum err e;

    *st = (struct stream){
        .ep = ep, .fd = -1, .blocked = true, .hello_left = TCP_HELLO};
    list_init(&st->ready);
    e = tcp_connect(
        &ep->place, k % ep->place.rails, d->c.conf.buffer_bytes, &st->fd);
    if (e != OK)
        return e;
    tcp_options(st->fd, d->c.conf.keepalive_ms, d->c.conf.stall_ms);
    tcp_pace(st->fd, d->c.conf.pace_bytes);
    if (tcp_watch(d->epoll, st->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
            TCP_OUT, index * TCP_STREAMS + k))
        return OK;
    stream_close(st);
    return ERR_INTERNAL;
}

/* Passes the turn on to the next stream whose socket takes bytes, if there is
 * one, and opens one more if there may be. */
static void pass_turn(struct data *d, struct endpoint *ep)
{
    ep->taken = 0;
    if (ep->opened < ep->most)
        (void)stream_open(d, ep); /* without it the others go on */
    for (uint32_t k = 1; k < ep->opened; k++) {
        struct stream *st = &ep->streams[(ep->turn + k) % ep->opened];

        if (!st->connected || st->blocked)
            continue;
        ep->turn = (uint32_t)(st - ep->streams);
        stream_ready(d, st);
        return;
    }
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

/* Accounts for a send of n of `bytes` bytes. Returns true if the stream may go
 * on. */
static bool stream_sent(
    struct data *d, struct stream *st, size_t n, size_t bytes)
{
    struct endpoint *ep = st->ep;

    taken(d, st, n);
    st->blocked = n < bytes; /* an event comes when the kernel takes more */
    if (ep->most == 1 || !has_turn(st))
        return !st->blocked;
    ep->taken += n;
    if (st->blocked || ep->taken >= TURN_BYTES)
        pass_turn(d, ep);
    return !st->blocked && has_turn(st);
}

static void stream_send(struct data *d, struct stream *st)
{
    struct iovec iov[SEND_PLACES];
    struct msghdr m = {.msg_iov = iov};

    CHECK(st->fd >= 0 && st->connected, "endpoint %u is not connected",
        number(d, st));
    for (unsigned i = 0; i < SENDS_MAX; i++) {
        size_t bytes;
        ssize_t n;

        m.msg_iovlen = (size_t)gather(st, iov, &bytes);
        if (m.msg_iovlen == 0)
            return;
        n = sendmsg(st->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || (errno == EFAULT && mend(st->ep))))
            continue;
        if (n < 0 && errno != EAGAIN) {
            log_debug("tcp: endpoint %u: %s", number(d, st), strerror(errno));
            carrier_break(d, number(d, st));
            return;
        }
        if (!stream_sent(d, st, n > 0 ? (size_t)n : 0, bytes))
            return;
    }
    stream_ready(d, st);
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
        stream_send(d, LIST_ENTRY(n, struct stream, ready));
    return count;
}

/* Handles the end of a connection. */
static void stream_over(struct data *d, struct stream *st)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (!st->connected)
        getsockopt(st->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error)
        log_debug(
            "tcp: endpoint %u: connecting: %s", number(d, st), strerror(error));
    if (!st->connected && st != st->ep->streams)
        stream_close(st); /* nothing went by it: the others go on */
    else
        carrier_break(d, number(d, st));
}

/* Names the endpoint after the device of its first stream, which may suit fewer
 * streams than both sides allow. */
static void first_connected(struct data *d, struct endpoint *ep)
{
    size_t n;

    tcp_name(ep->streams->fd, ep->name, sizeof(ep->name));
    if (d->c.conf.streams == 0)
        ep->most = min_u32(
            ep->most, max_u32(div_up(tcp_streams_of(ep->name), ep->place.of),
                          ep->place.rails));
    n = strlen(ep->name);
    if (ep->most > 1)
        snprintf(ep->name + n, sizeof(ep->name) - n, " x%u", ep->most);
}

static void stream_event(struct data *d, uint32_t index, uint32_t events)
{
    struct endpoint *ep = &d->eps[index / TCP_STREAMS];
    struct stream *st;

    if (!ep->streams || index % TCP_STREAMS >= ep->opened)
        return; /* of a connection closed in this turn */
    st = &ep->streams[index % TCP_STREAMS];
    if (st->fd < 0)
        return;
    /* The peer sends nothing here: readable is the end, too. */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        stream_over(d, st);
        return;
    }
    if (!st->connected && st == ep->streams)
        first_connected(d, ep);
    st->connected = true;
    st->blocked = false;
    if (!has_turn(st) &&
        (!ep->streams[ep->turn].connected || ep->streams[ep->turn].blocked)) {
        ep->turn = (uint32_t)(st - ep->streams);
        ep->taken = 0;
    }
    stream_ready(d, st);
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
    *ep = (struct endpoint){.end = carrier_end(&d->c, i), .place = place};
    ep->most = d->c.conf.streams ? d->c.conf.streams : STREAMS_CHOSEN;
    ep->most = div_up(min_u32(ep->most, place.streams), place.of);
    ep->streams = calloc(ep->most, sizeof(*ep->streams));
    memcpy(ep->hello, TCP_MAGIC, 4);
    memcpy(ep->hello + 4, place.token, TCP_TOKEN);
    e = ep->streams ? stream_open(d, ep) : ERR_INTERNAL;
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
    op->by = NONE;
    stream_ready(d, &ep->streams[ep->turn]);
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
            stream_event(d, index, ev[k].events);
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

/* Breaks endpoints of which one stream stalls while others go on. */
static void streams_tick(struct data *d, struct endpoint *ep, uint64_t now_ns)
{
    for (uint32_t k = 0; ep->streams && k < ep->opened; k++) {
        struct stream *st = &ep->streams[k];

        if (!st->op)
            continue;
        if (st->quiet_since_ns == 0)
            st->quiet_since_ns = now_ns;
        if (now_ns - st->quiet_since_ns < d->c.conf.stall_ms * NS_PER_MS)
            continue;
        log_warn("tcp: endpoint %u: connection %u of %u without progress for "
                 "%u ms",
            number(d, st), k + 1, ep->opened, d->c.conf.stall_ms);
        carrier_break(d, number(d, st));
    }
}

static void data_tcp_tick(struct data *d, uint64_t now_ns)
{
    carrier_tick(d, now_ns);
    for (uint32_t i = 0; i < d->c.conf.endpoints_max; i++)
        if (d->c.ends[i].open && d->eps[i].opened > 1)
            streams_tick(d, &d->eps[i], now_ns);
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

static struct span data_tcp_place(struct data *d)
{
    return span_of(d->place, d->place_len);
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
    struct writer all = writer_of(d->place, sizeof(d->place));
    struct tcp_door_conf c = {.data = &d->c.conf, .d = d, .calls = &d->c.calls};
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
    tcp_place_put_all(&all, &place);
    d->address_len = (uint32_t)w.len;
    d->place_len = (uint32_t)all.len;
    CHECK(!w.failed && !all.failed, "an address of %u rails", place.rails);
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
    .place = data_tcp_place,
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
