/* node_map.c - pools of encoders on this host: asked for over their Unix
 * socket, with a token that proves the right to them, mapped beside the loop,
 * given to shards and reported to the brain (RULES 3.4). langd only. The loop's
 * thread; a source is mapped by a thread of libuv's, which touches nothing
 * else.
 *
 * Invariants: a peer has one mapping, from ACT_MAP to ACT_UNMAP or to its own
 * end, whichever comes first. The brain gets EV_MAP for every pool and, when
 * the mapping ends by itself, once more with an error. A failure is logged
 * once, and rows are sent as to any other peer. A mapping that has ended is
 * freed when its handles are closed and no thread works for it; its sources
 * stay as long as shards hold them.
 *
 * Rejected: a blocking thread for all of it. The loop would have to wait for
 * its end when the peer goes. */
#include "node/node_impl.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"
#include "io/cuda.h"
#include "base/fds.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define TRY_MS   50   /* between attempts while the socket's backlog is full */
#define LIMIT_MS 5000 /* from the first attempt to the encoder's answer */

/* A pool of the encoder's, and the thread's job of mapping it. */
struct import {
    uv_work_t work;
    struct mapping *owner;
    struct source *source;
    uint16_t pool;
    bool busy, done;
    enum err result;
};

static struct log_rate lines =
    LOG_RATE("pools of encoders on this host", LOG_WARN, 5);

struct mapping {
    struct node *node;
    uint32_t peer;
    uint64_t token, limit_ns;
    struct sockaddr_un address;
    int fd; /* -1: not connected yet */
    uv_poll_t poll;
    uv_timer_t timer;
    bool polled;     /* poll is a handle */
    uint8_t closing; /* handles whose close callback is to come */
    uint8_t working; /* imports in other threads */
    bool ended, answered;
    bool seen, ticked; /* socket and timer, since the last node_maps_serve */
    uint32_t mapped;   /* bits of pools */
    struct import imports[CONF_POOLS_MAX];
};

enum err node_maps_new(struct node *n)
{
    n->maps = calloc(share_peers(n->conf), sizeof(struct mapping *));
    return n->maps ? OK : ERR_NO_BLOCKS;
}

/* ends */

/* Frees a mapping that has ended and that nothing uses any more. */
static void free_if_unused(struct mapping *m)
{
    if (!m->ended || m->closing > 0 || m->working > 0)
        return;
    CHECK(m->fd < 0 && m->node->maps[m->peer] != m, "peer %u: still mapped",
        m->peer);
    for (uint32_t i = 0; i < CONF_POOLS_MAX; i++)
        source_drop(m->imports[i].source);
    free(m);
}

static void on_closed(uv_handle_t *h)
{
    struct mapping *m = h->data;

    CHECK(m->closing > 0, "peer %u: a handle closed twice", m->peer);
    m->closing--;
    free_if_unused(m);
}

/* Gives the shards a source; NULL: takes it from them. */
static void order_source(
    struct mapping *m, uint32_t pool, struct source *source)
{
    node_order(m->node, &(struct order){.type = ORDER_SOURCE,
                            .source = {source, m->peer, pool}});
}

/* Ends the mapping: shards lose its sources, its handles close. */
static void end(struct mapping *m)
{
    CHECK(!m->ended && m->node->maps[m->peer] == m, "peer %u ends twice",
        m->peer);
    for (uint32_t i = 0; i < CONF_POOLS_MAX; i++)
        if (m->mapped >> i & 1)
            order_source(m, i, NULL);
    m->node->maps[m->peer] = NULL;
    m->ended = true;
    m->closing = m->polled ? 2 : 1;
    if (m->polled)
        uv_close((uv_handle_t *)&m->poll, on_closed);
    uv_close((uv_handle_t *)&m->timer, on_closed);
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}

/* Ends the mapping, which failed, and notifies the brain. */
static void fail(struct mapping *m, const char *why, const char *more)
{
    struct event ev = {
        .type = EV_MAP, .peer_at = m->peer, .err = ERR_PEER_LOST};
    struct node *n = m->node;

    if (log_may(&lines))
        log_line(m->mapped ? LOG_INFO : LOG_WARN, "peer %u: %s: %s: %s%s%s",
            m->peer,
            m->mapped ? "its pools are mapped no longer"
                      : "rows are sent, not copied",
            m->address.sun_path, why, more[0] ? ": " : "", more);
    end(m);
    node_event(n, &ev);
}

void node_unmap(struct node *n, uint32_t peer)
{
    CHECK(peer < share_peers(n->conf), "peer %u", peer);
    if (n->maps[peer])
        end(n->maps[peer]);
}

void node_maps_stop(struct node *n)
{
    for (uint64_t i = 0; n->maps && i < share_peers(n->conf); i++)
        node_unmap(n, (uint32_t)i);
}

/* callbacks of the loop: they only mark what node_maps_serve does */

static void on_socket(uv_poll_t *h, int status, int events)
{
    struct mapping *m = h->data;

    (void)status;
    (void)events;
    m->seen = m->node->maps_seen = true;
}

static void on_timer(uv_timer_t *t)
{
    struct mapping *m = t->data;

    m->ticked = m->node->maps_seen = true;
}

/* Returns the GPUs of our pools, a bit each. Only they copy rows out of another
 * GPU. */
static uint32_t our_gpus(const struct node *n)
{
    uint32_t gpus = 0;

    for (uint32_t i = 0; i < n->conf->pools_count; i++) {
        uint32_t gpu = mem_gpu(n->conf->pools[i].memory);

        if (gpu < CUDA_GPUS_MAX)
            gpus |= UINT32_C(1) << gpu;
    }
    return gpus;
}

/* Maps a source, in libuv's thread. */
static void on_work(uv_work_t *w)
{
    struct import *im = w->data;

    im->result = source_map(im->source, our_gpus(im->owner->node));
}

static void on_worked(uv_work_t *w, int status)
{
    struct import *im = w->data;
    struct mapping *m = im->owner;

    if (status != 0)
        im->result = ERR_INTERNAL;
    CHECK(im->busy && m->working > 0, "peer %u: an import ends twice", m->peer);
    im->busy = false;
    im->done = true;
    m->working--;
    m->node->maps_seen = true;
    free_if_unused(m);
}

/* connecting */

/* Asks for the encoder's pools. */
static bool send_map(struct mapping *m)
{
    const struct node *n = m->node;
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct local_msg msg = {.type = LOCAL_MAP};

    msg.map.token = m->token;
    msg.map.epoch = n->brain_conf.epoch;
    msg.map.name = span_str(n->conf->name);
    return local_put(&w, &msg) &&
           send(m->fd, w.p, w.len, MSG_NOSIGNAL | MSG_DONTWAIT) ==
               (ssize_t)w.len;
}

static void try_connect(struct mapping *m)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int e;

    CHECK(m->fd < 0 && !m->ended, "peer %u is connected already", m->peer);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&m->address,
                      sizeof(m->address)) != 0) {
        e = errno;
        if (fd >= 0)
            close(fd);
        if (e != EAGAIN) /* a full backlog: the timer tries again */
            fail(m, "connect", strerror(e));
        return;
    }
    m->fd = fd;
    e = uv_poll_init(&m->node->loop, &m->poll, fd);
    CHECK(e == 0, "poll of a mapping: %s", uv_strerror(e));
    m->polled = true;
    m->poll.data = m;
    e = uv_poll_start(&m->poll, UV_READABLE, on_socket);
    CHECK(e == 0, "poll of a mapping: %s", uv_strerror(e));
    if (!send_map(m))
        fail(m, "send", strerror(errno));
}

void node_map(struct node *n, uint32_t peer, struct span path, uint64_t token)
{
    struct mapping *m = calloc(1, sizeof(*m));

    CHECK(peer < share_peers(n->conf) && !n->maps[peer],
        "peer %u is mapped already", peer);
    if (!m || path.len >= sizeof(m->address.sun_path)) {
        log_rated(&lines,
            "peer %u: rows are sent, not copied: no memory, or a path of "
            "%u bytes",
            peer, path.len);
        free(m);
        return; /* the brain does not wait for pools */
    }
    m->node = n;
    m->peer = peer;
    m->token = token;
    m->limit_ns = uv_hrtime() + LIMIT_MS * NS_PER_MS;
    m->fd = -1;
    m->address.sun_family = AF_UNIX;
    span_copy_str(path, m->address.sun_path, sizeof(m->address.sun_path));
    uv_timer_init(&n->loop, &m->timer);
    m->timer.data = m;
    n->maps[peer] = m;
    /* The brain is in a step: it is notified of the result later. */
    uv_timer_start(&m->timer, on_timer, 0, TRY_MS);
}

/* what the encoder answers */

/* Begins to map one pool; closes fd unless the source keeps it. */
static void take_pool(
    struct mapping *m, const struct local_pool_info *info, int fd)
{
    struct import *im = &m->imports[info->pool % CONF_POOLS_MAX];
    sigset_t all, old;
    const char *why;
    char name[64];

    span_copy_str(info->name, name, sizeof(name));
    if (info->pool >= CONF_POOLS_MAX || im->source) {
        log_rated(&lines, "peer %u: pool %s comes twice, or with a bad number",
            m->peer, name);
        if (fd >= 0)
            close(fd);
        return;
    }
    if (info->handle.len > 0 && our_gpus(m->node) == 0) {
        if (fd >= 0)
            close(fd);
        return; /* no GPU of ours would copy from it */
    }
    if (source_open(&im->source, fd, info, &why) != OK) {
        log_rated(&lines,
            "peer %u: rows of its pool %s are sent, not copied: it %s", m->peer,
            name, why);
        return;
    }
    im->owner = m;
    im->pool = info->pool;
    im->busy = true;
    im->work.data = im;
    m->working++;
    /* libuv's threads are made here, and must take no signals but guard.h's. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    uv_queue_work(&m->node->loop, &im->work, on_work, on_worked);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Handles the frames of one packet and takes *fd. false: the mapping has
 * failed. */
static bool take_frames(struct mapping *m, struct reader *r, int *fd)
{
    struct local_msg msg;
    char text[128];

    while (r->at < r->len) {
        if (local_get(r, &msg) != OK) {
            fail(m, "a frame that cannot be read", "");
            return false;
        }
        if (msg.type == LOCAL_ANSWER && msg.answer.err != OK) {
            span_copy_str(msg.answer.text, text, sizeof(text));
            fail(m, err_name(msg.answer.err), text);
            return false;
        }
        if (msg.type == LOCAL_ANSWER) {
            m->answered = true;
            uv_timer_stop(&m->timer);
        } else if (msg.type == LOCAL_POOL_INFO &&
                   (*fd >= 0 || msg.pool_info.handle.len > 0)) {
            take_pool(m, &msg.pool_info, *fd);
            *fd = -1;
        }
    }
    return true;
}

/* Receives one packet and its descriptor; -1: none, errno says why. */
static ssize_t receive(struct mapping *m, uint8_t *packet, int *fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {packet, LOCAL_PACKET_MAX};
    struct msghdr h = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(m->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *fd = -1;
    if (n >= 0)
        (void)fds_take(&h, fd, 1);
    return n;
}

static void receive_all(struct mapping *m)
{
    static const char gone[] = "the encoder has closed the connection";
    uint8_t *packet = m->node->out.bytes.p; /* unused between two steps */
    bool good = true;

    CHECK(m->node->out.count == 0 && m->node->out.bytes.cap >= LOCAL_PACKET_MAX,
        "%u actions, %zu bytes", m->node->out.count, m->node->out.bytes.cap);
    while (good) {
        struct reader r;
        int fd;
        ssize_t n = receive(m, packet, &fd);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            fail(m, gone, "");
            return;
        }
        r = reader_of(packet, (size_t)n);
        good = take_frames(m, &r, &fd);
        if (fd >= 0)
            close(fd);
    }
}

/* serving */

/* Gives a mapped source to the shards. false: the mapping has ended. */
static bool finish_import(struct mapping *m, struct import *im)
{
    struct event ev = {.type = EV_MAP, .peer_at = m->peer};
    uint32_t peer = m->peer;
    struct node *n = m->node;

    CHECK(im->source && !im->busy && !(m->mapped >> im->pool & 1),
        "peer %u: an import without source", peer);
    im->done = false;
    if (im->result != OK && im->source->share[0]) {
        log_info("peer %u: rows of its pool number %u are sent, not copied: "
                 "our GPUs do not all reach the one that it lies on",
            peer, im->pool);
        return true;
    }
    if (im->result != OK) {
        fail(m, "a pool cannot be mapped", "");
        return false;
    }
    log_info("peer %u: its pool number %u is mapped, %llu bytes: rows are "
             "copied",
        peer, im->pool, (unsigned long long)im->source->bytes);
    m->mapped |= UINT32_C(1) << im->pool;
    order_source(m, im->pool, im->source);
    ev.mapped = m->mapped;
    node_event(n, &ev);
    return n->maps[peer] == m;
}

static void serve(struct mapping *m)
{
    bool seen = m->seen, ticked = m->ticked;

    m->seen = m->ticked = false;
    for (uint32_t i = 0; i < CONF_POOLS_MAX; i++)
        if (m->imports[i].done && !finish_import(m, &m->imports[i]))
            return;
    if (ticked && !m->answered && uv_hrtime() > m->limit_ns)
        fail(m, "no answer in time", "");
    else if (ticked && m->fd < 0)
        try_connect(m);
    else if (seen)
        receive_all(m);
}

void node_maps_serve(struct node *n)
{
    n->maps_seen = false;
    for (uint64_t i = 0; n->maps && i < share_peers(n->conf); i++)
        if (n->maps[i])
            serve(n->maps[i]);
}
