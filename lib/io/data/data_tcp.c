/* data_tcp.c - the carrier for TCP networks: plain sockets, each used in one
 * direction. Rows go from the sender's blocks into the kernel and from there
 * into the receiver's blocks.
 *
 * A message is an operation of carrier.h, complete when the kernel has taken
 * all of it. post() only queues; progress() sends, so that messages posted in
 * one turn share system calls.
 *
 * tcp_out.c has the connections that send, tcp_accept.c and tcp_in.c those that
 * receive; tcp_safe.h secures both.
 *
 * One epoll set holds the listener, accepted connections (level-triggered), our
 * own (edge-triggered: `blocked` remembers a full socket) and a timer, for work
 * that is due even when all is idle. The set can itself be polled, needs no
 * arming, and loses no wake-up.
 *
 * Rejected: UCX for TCP too. UCX 1.13 (Debian 12) ends the process when a peer
 * dies during the connect, or in the middle of a message of several pieces; and
 * it copies every byte once more at the receiver. data_ucx.c has all other
 * networks. Rejected: MSG_ZEROCOPY: on loopback the kernel copies anyway, and a
 * second wake-up is needed to free the source. */
#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/tcp_accept.h"
#include "io/data/tcp_out.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS  32
#define LOOK_NS (2 * NS_PER_S)

static struct log_rate unproven =
    LOG_RATE("data ports that cannot be used", LOG_WARN, 5);

static void read_key(struct span key, struct tcp_key *out)
{
    if (!tcp_key_get(key, out) && key.len > 0)
        log_rated(&unproven, "tcp: a key of %u bytes is none", key.len);
}

/* True if the key is as strong as this daemon requires. */
static bool key_suffices(const struct data *d, const struct tcp_key *k)
{
    enum data_safe least = d->c.conf.safe;
    bool suffices = (least == SAFE_OFF || k->there) &&
                    (least != SAFE_ENCRYPTED || k->bits) &&
                    (least != SAFE_AES_256 || (k->bits & DATA_KEY_AES_256));

    if (!suffices)
        log_rated(&unproven,
            k->there ? "tcp: the peer does not encrypt as transfer.encrypt "
                       "asks for here"
                     : "tcp: the peer gave no key for its data port");
    return suffices;
}

static enum err data_tcp_connect(
    struct data *d, uint32_t i, struct span address, struct span key)
{
    struct endpoint *ep = &d->eps[i];
    struct tcp_place place;
    enum err e = tcp_place_get(address, &place);

    if (e != OK)
        return e;
    carrier_connect(&d->c, i);
    *ep = (struct endpoint){.place = place, .end = carrier_end(&d->c, i)};
    read_key(key, &ep->key);
    ep->end->loopback = tcp_place_loopback(&place);
    tcp_place_text(&place, ep->end->why, sizeof(ep->end->why));
    if (!key_suffices(d, &ep->key)) {
        carrier_blame(
            &d->c, i, TROUBLE_DATA_PROOF, "its key asks for too little");
        ep->end->open = false;
        return ERR_PEER_LOST;
    }
    ep->most = d->c.conf.streams ? d->c.conf.streams : STREAMS_CHOSEN;
    ep->most = div_up(min_u32(ep->most, place.streams), place.of);
    ep->places = d->c.conf.streams ? ep->most : div_up(place.streams, place.of);
    ep->streams = calloc(ep->places, sizeof(*ep->streams));
    memcpy(ep->hello, TCP_MAGIC, 4);
    memcpy(ep->hello + 4, place.token, TCP_TOKEN);
    errno = ENOMEM;
    e = ep->streams ? tcp_out_open(d, ep) : ERR_INTERNAL;
    if (e != OK) {
        tcp_out_blame(d, i, errno);
        tcp_out_close(d, i);
        ep->end->open = false;
    }
    return e;
}

static enum trouble data_tcp_state(
    struct data *d, uint32_t i, const char **text)
{
    CHECK(i < d->c.conf.endpoints_max, "endpoint %u", i);
    return carrier_state(&d->c, i, d->eps[i].name, text);
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
    tcp_out_posted(d, ep, op);
    return OK;
}

static enum err data_tcp_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    CHECK(d->c.inside && in->handle, "nothing to fetch");
    if (iovs > 0)
        return tcp_in_fetch(in->handle, iov, iovs, in->len, cookie);
    tcp_in_whole(in->handle);
    return OK;
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
            tcp_out_event(d, index, ev[k].events);
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
    count = tcp_out_send(d); /* send before asking the kernel for events */
    count += handle_events(d);
    count += tcp_out_send(d);
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

static void say_place(struct data *d, const struct tcp_place *place)
{
    struct writer w = writer_of(d->address, sizeof(d->address));

    tcp_place_put(&w, place);
    d->address_len = (uint32_t)w.len;
    CHECK(!w.failed, "an address of %u rails", place->rails);
}

/* A host's address may change: DHCP, or a machine that moves. */
static bool look_again(struct data *d, uint64_t now_ns)
{
    struct tcp_place place;

    if (now_ns - d->looked_ns < LOOK_NS)
        return false;
    d->looked_ns = now_ns;
    if (!tcp_door_moved(d->door, &place))
        return false;
    say_place(d, &place);
    return true;
}

static bool data_tcp_tick(struct data *d, uint64_t now_ns)
{
    for (uint32_t i = 0; i < d->c.conf.endpoints_max; i++)
        if (d->c.ends[i].open)
            tcp_out_tick(d, &d->eps[i], now_ns);
    carrier_tick(d, now_ns);
    if (!d->door)
        return false;
    tcp_door_tick(d->door, now_ns);
    return look_again(d, now_ns);
}

static void data_tcp_admit(struct data *d, uint32_t who, struct span key)
{
    struct tcp_key k;

    CHECK(d->door && !d->c.inside, "a key where there is no listener");
    read_key(key, &k);
    tcp_door_admit(d->door, who, &k);
    tcp_key_wipe(&k);
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
    for (uint32_t i = 0; d->eps && i < d->c.conf.endpoints_max; i++)
        tcp_key_wipe(&d->eps[i].key);
    carrier_fini(&d->c);
    free(d->eps);
    free(d);
}

static enum err begin(struct data *d, const struct data_conf *conf,
    const struct data_calls *calls)
{
    struct tcp_door_conf c = {.data = &d->c.conf, .d = d, .calls = &d->c.calls};
    struct tcp_place place;
    struct data_conf own = *conf;
    enum err e;

    own.fetches_max = 0; /* fetches are in tcp_in.c, without operations */
    e = carrier_init(
        &d->c, "tcp", &own, calls, sizeof(struct carrier_op), tcp_out_close);
    if (e != OK)
        return e;
    d->eps = calloc(conf->endpoints_max, sizeof(*d->eps));
    d->epoll = c.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!d->eps || d->epoll < 0) {
        log_error("tcp: no memory or no epoll set: %s", strerror(errno));
        return ERR_INTERNAL;
    }
    if (conf->inbound_max == 0) { /* without an address nothing can come in */
        bool may = conf->safe >= SAFE_ENCRYPTED;

        return may && !tcp_safe_ready() ? ERR_INTERNAL : OK;
    }
    e = tcp_door_open(&d->door, &c, &place);
    if (e != OK)
        return e;
    say_place(d, &place);
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
    .admit = data_tcp_admit,
    .connect = data_tcp_connect,
    .disconnect = carrier_disconnect,
    .post = data_tcp_post,
    .fetch = data_tcp_fetch,
    .progress = data_tcp_progress,
    .fd = data_tcp_fd,
    .arm = data_tcp_arm,
    .tick = data_tcp_tick,
    .state = data_tcp_state};
