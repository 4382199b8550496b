/* tcp_out.c - see tcp_out.h.
 *
 * An endpoint has several connections (streams) where a network limits each
 * connection, or its window does; otherwise one. Messages wait in the
 * endpoint's list, and one stream at a time has the turn to take them. It
 * finishes what it has begun, and passes the turn on after TURN_BYTES or when
 * its socket is full. So each stream carries what it can, and light traffic
 * stays on one. Invariant: messages that a stream has begun (`by`) come first
 * in the list, at most one per stream. The first stream connects with the
 * endpoint, the others when it first passes the turn on. A stream that breaks
 * breaks the endpoint, except one that never connected.
 *
 * The kernel may hold megabytes of a large room that wait for the network. So
 * from the first large message on, small messages have a stream of their own,
 * if the carrier chooses the number of streams. That stream has no turn; the
 * invariant holds for it too.
 *
 * If the pair has a key (tcp_safe.h), a stream counts as connected once both
 * ends have proven it. Bytes of an encrypted stream count as sent once they are
 * sealed (tcp_records.h). */
#include "io/data/tcp_out.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/tcp_accept.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SENDS_MAX      4    /* system calls in an endpoint's turn */
#define SEND_PLACES    1024 /* pieces that one system call takes: IOV_MAX */
#define SEND_BYTES_MAX ((size_t)1024 * 1024)
#define TURN_BYTES     ((size_t)256 * 1024) /* of one stream */

static struct log_rate gone =
    LOG_RATE("rows whose pages were removed", LOG_WARN, 5);
static struct log_rate unproven =
    LOG_RATE("data connections without a proof", LOG_WARN, 5);

static uint32_t number(const struct data *d, const struct stream *st)
{
    return (uint32_t)(st->ep - d->eps);
}

static bool has_turn(const struct stream *st)
{
    return st == &st->ep->streams[st->ep->turn];
}

/* Returns stream k of the endpoint; NULL: it was never opened. */
static struct stream *stream_at(const struct endpoint *ep, uint32_t k)
{
    bool there =
        ep->streams && (k < ep->opened || (ep->small && k == ep->most));

    return there ? &ep->streams[k] : NULL;
}

/* True if small messages of the endpoint have their own stream. */
static bool small_apart(const struct endpoint *ep)
{
    return ep->small && ep->small->connected;
}

/* operations */

/* True if the message goes on the stream for small messages. */
static bool goes_apart(const struct endpoint *ep, const struct carrier_op *op)
{
    return small_apart(ep) && op->bytes <= DATA_SMALL;
}

/* True if this stream may begin the message. */
static bool may_begin(const struct stream *st, const struct carrier_op *op)
{
    return op->by == NONE &&
           (goes_apart(st->ep, op) ? st->small : has_turn(st));
}

/* True if there is a message that this stream may begin. */
static bool unbegun(const struct stream *st)
{
    const struct list *ops = &st->ep->end->ops;

    if (!small_apart(st->ep)) /* begun messages come first in the list */
        return !list_empty(ops) &&
               may_begin(st, LIST_ENTRY(ops->prev, struct carrier_op, link));
    LIST_FOREACH (at, ops)
        if (may_begin(st, LIST_ENTRY(at, struct carrier_op, link)))
            return true;
    return false;
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

/* Fills `out` with the stream's next bytes: the message it has begun, then, if
 * it has the turn, further messages in order. Returns the number of pieces. */
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
    if (!has_turn(st) && !st->small)
        return n;
    LIST_FOREACH (at, &st->ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        if (n == SEND_PLACES || *bytes >= most)
            break;
        if (may_begin(st, op))
            n = pieces(op, out, n, bytes);
    }
    return n;
}

/* Returns the next message for the stream, and marks it as begun. */
static struct carrier_op *begin_next(struct stream *st)
{
    LIST_FOREACH (at, &st->ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        if (!may_begin(st, op))
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
            st->quiet_since_ns = st->moved = 0;
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
    tcp_safe_free(&st->safe);
    tcp_records_free(&st->records);
    list_remove(&st->ready);
}

void tcp_out_close(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    for (uint32_t k = 0; k < ep->places; k++)
        if (stream_at(ep, k))
            stream_close(&ep->streams[k]);
    free(ep->streams);
    ep->streams = ep->small = NULL;
    carrier_complete_all(&d->c, &ep->end->ops);
}

/* Returns the sealed bytes of the stream that are not sent yet. */
static size_t sealed_wait(const struct stream *st)
{
    return st->records ? tcp_records_wait(st->records) : 0;
}

static void stream_ready(struct data *d, struct stream *st)
{
    bool has = st->hello_left > 0 || st->op || sealed_wait(st) || unbegun(st);

    if (!has || !st->connected || st->blocked || list_linked(&st->ready))
        return;
    if (st->small)
        list_push_head(&d->ready, &st->ready);
    else
        list_push_tail(&d->ready, &st->ready);
}

/* Prepares a stream to prove the pair's key. */
static enum err stream_prepare(struct data *d, struct stream *st)
{
    struct endpoint *ep = st->ep;

    st->safe = tcp_safe_client(st->fd, &ep->key, ep->place.token,
        (uint32_t)(st - ep->streams), d->c.conf.rekey_bytes);
    if (!st->safe)
        return ERR_INTERNAL;
    st->hello_left = 0;
    return OK;
}

/* Opens streams[k]. */
static enum err stream_open(struct data *d, struct endpoint *ep, uint32_t k)
{
    uint32_t index = (uint32_t)(ep - d->eps);
    struct stream *st = &ep->streams[k];
    enum err e;

    *st = (struct stream){.ep = ep,
        .fd = -1,
        .blocked = true,
        .small = k == ep->most,
        .hello_left = TCP_HELLO};
    list_init(&st->ready);
    e = tcp_connect(&ep->place, k % ep->place.rails, &st->fd);
    if (e != OK)
        return e;
    tcp_options(st->fd, d->c.conf.keepalive_ms, d->c.conf.stall_ms);
    tcp_pace(st->fd, d->c.conf.pace_bytes);
    if (ep->key.there)
        e = stream_prepare(d, st);
    if (e == OK &&
        tcp_watch(d->epoll, st->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
            TCP_OUT, index * TCP_STREAMS + k))
        return OK;
    stream_close(st);
    return ERR_INTERNAL;
}

enum err tcp_out_open(struct data *d, struct endpoint *ep)
{
    return stream_open(d, ep, ep->opened++);
}

/* Opens the stream that small messages use from then on. Called when the first
 * large message is posted, behind which they would wait. */
static void open_small(struct data *d, struct endpoint *ep)
{
    ep->small = &ep->streams[ep->most];
    if (stream_open(d, ep, ep->most) != OK)
        log_debug("tcp: small messages go with the others");
}

/* Passes the turn to the next stream whose socket takes bytes, if any, and
 * opens another stream if allowed. */
static void pass_turn(struct data *d, struct endpoint *ep)
{
    ep->taken = 0;
    if (ep->opened < ep->most && tcp_out_open(d, ep) != OK)
        log_debug("tcp: one stream less"); /* the other streams continue */
    for (uint32_t k = 1; k < ep->opened; k++) {
        struct stream *st = &ep->streams[(ep->turn + k) % ep->opened];

        if (!st->connected || st->blocked)
            continue;
        ep->turn = (uint32_t)(st - ep->streams);
        stream_ready(d, st);
        return;
    }
}

/* Sends zeros for rows whose pages engines have removed from their pool, as a
 * hole in small pages reads. Breaking the endpoint would fail rooms of others.
 * The pages may have come back meanwhile. False: there are no zeros. */
static bool mend(struct endpoint *ep)
{
    LIST_FOREACH (at, &ep->end->ops) {
        struct carrier_op *op = LIST_ENTRY(at, struct carrier_op, link);

        for (uint32_t i = op->at; i < op->iovs; i++) {
            struct iovec *v = &op->iov[i];

            if (guard_readable(v->iov_base, v->iov_len))
                continue;
            v->iov_base = guard_zeros(v->iov_len);
            if (!v->iov_base)
                return false;
            log_rated(
                &gone, "tcp: pages of a pool were removed: zeros are sent");
        }
    }
    return true;
}

/* Passes the turn on when it is used up, after n more bytes. True if the stream
 * may continue. */
static bool stream_may_go_on(struct data *d, struct stream *st, size_t n)
{
    struct endpoint *ep = st->ep;

    /* If the kernel took nothing, an event comes when it takes more. If it took
     * a part, the next pages may have been removed. */
    st->blocked = st->records ? sealed_wait(st) : n == 0;
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
        size_t bytes, sealed = sealed_wait(st);
        ssize_t n;

        m.msg_iovlen = (size_t)gather(st, iov, &bytes);
        if (m.msg_iovlen == 0 && sealed == 0)
            return;
        n = st->records ? tcp_records_send(
                              st->records, st->fd, iov, (unsigned)m.msg_iovlen)
                        : sendmsg(st->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || (errno == EFAULT && mend(st->ep))))
            continue;
        if (n < 0 && errno != EAGAIN) {
            log_debug("tcp: endpoint %u: %s", number(d, st), strerror(errno));
            carrier_break(d, number(d, st));
            return;
        }
        n = n > 0 ? n : 0;
        sealed += (size_t)n;
        st->moved += sealed - min_u64(sealed, sealed_wait(st));
        if (st->moved >= TCP_LEAST(d->c.conf.stall_ms * NS_PER_MS))
            st->ep->end->quiet_since_ns = st->quiet_since_ns = st->moved = 0;
        taken(d, st, (size_t)n);
        if (!stream_may_go_on(d, st, (size_t)n))
            break;
    }
    stream_ready(d, st); /* it still has the rest of its message */
}

void tcp_out_posted(
    struct data *d, struct endpoint *ep, const struct carrier_op *op)
{
    if (op->bytes > DATA_SMALL && !ep->small && ep->streams->connected &&
        ep->most < ep->places)
        open_small(d, ep);
    stream_ready(d, goes_apart(ep, op) ? ep->small : &ep->streams[ep->turn]);
}

unsigned tcp_out_send(struct data *d)
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

void tcp_out_blame(struct data *d, uint32_t i, int error)
{
    carrier_blame(&d->c, i,
        error == ECONNREFUSED                   ? TROUBLE_DATA_REFUSED
        : error == ETIMEDOUT                    ? TROUBLE_DATA_TIMEOUT
        : error == ECONNRESET || error == EPIPE ? TROUBLE_DATA_LOST
                                                : TROUBLE_DATA_ROUTE,
        error == ETIMEDOUT ? "no answer" : strerror(error));
}

/* Handles the end of a connection; why: its proof has failed, empty: it has
 * not. */
static void stream_over(struct data *d, struct stream *st, const char *why)
{
    int error = 0;
    socklen_t len = sizeof(error);

    getsockopt(st->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error)
        log_debug("tcp: endpoint %u: %s", number(d, st), strerror(error));
    if (!st->connected && st != st->ep->streams) {
        /* it never carried a message: the other streams go on */
        stream_close(st);
        return;
    }
    if (error && !why[0])
        tcp_out_blame(d, number(d, st), error);
    else
        carrier_blame(&d->c, number(d, st),
            st->connected ? TROUBLE_DATA_LOST : TROUBLE_DATA_PROOF,
            why[0] ? why : "closed by the other end");
    carrier_break(d, number(d, st));
}

/* Names the endpoint after the device of its first stream. The device may call
 * for fewer streams than both sides allow. */
static void first_connected(struct data *d, struct endpoint *ep)
{
    size_t n;

    tcp_name(ep->streams->fd, ep->name, sizeof(ep->name));
    /* Small messages get a stream that no rail needs, if there is one. */
    if (d->c.conf.streams == 0)
        ep->most = min_u32(
            min_u32(ep->most, ep->places - (ep->places > ep->place.rails)),
            max_u32(div_up(tcp_streams_of(ep->name), ep->place.of),
                ep->place.rails));
    n = strlen(ep->name);
    if (ep->most > 1)
        n += (size_t)snprintf(
            ep->name + n, sizeof(ep->name) - n, " x%u", ep->most);
    if (ep->key.there)
        snprintf(ep->name + n, sizeof(ep->name) - n, "%s",
            ep->key.bits & DATA_KEY_AES_256 ? " encrypted (AES-256)"
            : ep->key.bits                  ? " encrypted"
                                            : " proved");
}

/* Continues the proof of a stream. True when it is complete. */
static bool stream_prove(struct data *d, struct stream *st, uint32_t events)
{
    const char *why;
    enum tcp_proof p = events & (EPOLLHUP | EPOLLERR)
                           ? PROOF_FAILED
                           : tcp_safe_prove(st->safe);

    if (p == PROOF_WAITS)
        return false;
    if (p == PROOF_DONE) {
        st->records = tcp_safe_end(&st->safe);
        return true;
    }
    why = tcp_safe_why(st->safe);
    d->c.conf.counts->unproven += why[0] != 0;
    if (why[0])
        log_rated(
            &unproven, "tcp: endpoint %u: no proof: %s", number(d, st), why);
    stream_over(d, st, why);
    return false;
}

void tcp_out_event(struct data *d, uint32_t index, uint32_t events)
{
    struct endpoint *ep = &d->eps[index / TCP_STREAMS];
    struct stream *st;

    CHECK(index / TCP_STREAMS < d->c.conf.endpoints_max, "stream %u", index);
    st = stream_at(ep, index % TCP_STREAMS);
    if (!st || st->fd < 0)
        return; /* the connection was closed earlier in this turn */
    if (st->safe) {
        if (!stream_prove(d, st, events))
            return;
        events &= ~(uint32_t)EPOLLIN; /* the readable input was part of the
                                         proof */
    }
    /* The peer sends nothing here: readable means closed, too. */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        stream_over(d, st, "");
        return;
    }
    if (!st->connected && st == ep->streams) {
        first_connected(d, ep);
        carrier_made(&d->c, number(d, st));
    }
    st->connected = true;
    st->blocked = false;
    if (!has_turn(st) && !st->small &&
        (!ep->streams[ep->turn].connected || ep->streams[ep->turn].blocked)) {
        ep->turn = (uint32_t)(st - ep->streams);
        ep->taken = 0;
    }
    stream_ready(d, st);
}

void tcp_out_tick(struct data *d, struct endpoint *ep, uint64_t now_ns)
{
    if (ep->opened <= 1 && !ep->small)
        return;
    for (uint32_t k = 0; k < ep->places; k++) {
        struct stream *st = stream_at(ep, k);

        if (!st)
            continue;
        if (st->quiet_since_ns == 0 || (!st->op && !sealed_wait(st)))
            st->quiet_since_ns = now_ns;
        if (now_ns - st->quiet_since_ns < d->c.conf.stall_ms * NS_PER_MS)
            continue;
        log_warn("tcp: endpoint %u: connection %u of %u without progress for "
                 "%u ms",
            number(d, st), k + 1, ep->opened, d->c.conf.stall_ms);
        carrier_break(d, number(d, st));
    }
}
