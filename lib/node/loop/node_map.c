/* node_map.c - pools of encoders on this host: asks for them over the encoder's
 * Unix socket, with a token that proves the right to them, has them mapped,
 * gives them to shards and reports them to the brain (RULES 3.4). langd only.
 * Owned by the loop's thread; a thread of libuv's maps a source and touches
 * nothing else.
 *
 * Invariants: a peer has one mapping, from ACT_MAP to ACT_UNMAP or to its own
 * end, whichever comes first. The brain gets EV_MAP for every pool and, when
 * the mapping ends by itself, once more with an error. A failure is logged
 * once, and rows are sent as to any other peer. Only a socket that root or our
 * own user serves is asked, and all that is mapped is no more than the host's
 * memory. A mapping that has ended leaves the list of mappings when its handles
 * are closed and no thread works for it. It is freed once shards have released
 * its sources, which its timer checks, and a thread of libuv's has unmapped
 * them.
 *
 * Rejected: a blocking thread for all of this. The loop would have to wait for
 * its end when the peer goes away. Rejected: unmapping by the last holder. A
 * shard or the loop would stand still for a second per 40 GiB. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"
#include "io/cuda.h"
#include "io/mem.h"
#include "base/fds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* pause between attempts, and between checks of what shards hold */
#define TRY_MS   50
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
    struct list link; /* of node.maps_left, once it has ended */
    struct node *node;
    uint32_t peer;
    uint64_t token, limit_ns;
    struct sockaddr_un address;
    int fd; /* -1: not connected yet */
    uv_poll_t poll;
    uv_timer_t timer;
    bool polled;     /* the poll handle is in use */
    uint8_t closing; /* handles whose close callback has not come */
    uint8_t working; /* imports in other threads */
    bool ended, answered;
    const char *why; /* static text: why a pool is not mapped, for the brain */
    uv_work_t unmapping;
    /* the socket or the timer had an event since the last node_maps_serve */
    bool seen, ticked;
    uint32_t mapped; /* bits of pools */
    uint64_t room;   /* its part of node.maps_room, in bytes */
    struct import imports[CONF_POOLS_MAX];
};

/* ends */

static void free_mapping(struct mapping *m)
{
    CHECK(m->ended && m->fd < 0 && m->closing + m->working == 0,
        "peer %u: freed in use", m->peer);
    list_remove(&m->link);
    free(m);
}

static void on_closed(uv_handle_t *h)
{
    struct mapping *m = h->data;

    CHECK(
        m->ended && m->closing > 0, "peer %u: a handle closed twice", m->peer);
    m->closing--;
}

static void on_left(uv_handle_t *h)
{
    free_mapping(h->data);
}

/* Closes the sources of a mapping that has ended. */
static void unmap(struct mapping *m)
{
    for (uint32_t i = 0; i < CONF_POOLS_MAX; i++)
        source_close(&m->imports[i].source);
}

/* Unmaps, in libuv's thread. */
static void on_unmapping(uv_work_t *w)
{
    unmap(w->data);
}

static void on_unmapped(uv_work_t *w, int status)
{
    struct mapping *m = w->data;

    CHECK(status == 0 && m->working == 1, "peer %u: unmapped twice", m->peer);
    m->working = 0;
    m->node->maps_room += m->room;
    /* otherwise the node is stopping */
    if (!uv_is_closing((uv_handle_t *)&m->timer))
        uv_close((uv_handle_t *)&m->timer, on_left);
}

/* Ends a mapping for good once no shard reads its sources. */
static void on_leaving(uv_timer_t *t)
{
    struct mapping *m = t->data;
    bool alone = m->closing + m->working == 0;

    for (uint32_t i = 0; alone && i < CONF_POOLS_MAX; i++)
        alone = source_alone(m->imports[i].source);
    if (!alone)
        return;
    uv_timer_stop(t);
    m->unmapping.data = m;
    m->working++;
    node_work(m->node, &m->unmapping, on_unmapping, on_unmapped);
}

void node_maps_free(struct node *n)
{
    struct mapping *m;

    while (n->maps_left.next &&
           (m = LIST_FIRST(&n->maps_left, struct mapping, link))) {
        unmap(m);
        free_mapping(m);
    }
    free(n->maps);
}

/* Gives the shards a source; NULL: takes all sources of the peer from them. */
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
    if (m->mapped)
        order_source(m, 0, NULL);
    m->node->maps[m->peer] = NULL;
    m->ended = true;
    list_push_tail(&m->node->maps_left, &m->link);
    m->closing = m->polled;
    if (m->polled)
        uv_close((uv_handle_t *)&m->poll, on_closed);
    uv_timer_start(&m->timer, on_leaving, TRY_MS, TRY_MS);
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}

/* Ends the mapping, which failed, and notifies the brain. */
static void fail(struct mapping *m, const char *why, const char *more)
{
    struct event ev = {.type = EV_MAP,
        .peer_at = m->peer,
        .err = ERR_PEER_LOST,
        .static_why = m->why};
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
    CHECK(peer < n->peers_count, "peer %u", peer);
    if (n->maps[peer])
        end(n->maps[peer]);
}

void node_maps_stop(struct node *n)
{
    for (uint64_t i = 0; n->maps && i < n->peers_count; i++)
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

/* Returns the GPUs of our pools as bits. Only these GPUs copy rows out of
 * another GPU. */
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
    struct node *n = im->owner->node;

    im->result = source_map(im->source, our_gpus(n), &n->pool_watch);
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
}

/* connecting */

/* True if root or our own user serves the socket. Another user's pool could be
 * any memory, of any size. */
static bool served_by_us(int fd)
{
    struct ucred who;
    socklen_t len = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 &&
           (who.uid == 0 || who.uid == geteuid());
}

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
        if (e == EAGAIN) /* the backlog is full: the timer tries again */
            return;
        m->why = "its socket cannot be reached";
        fail(m, "connect", strerror(e));
        return;
    }
    m->fd = fd;
    if (!served_by_us(fd)) {
        m->why = "another user serves its socket";
        fail(m, m->why, "");
        return;
    }
    e = uv_poll_init(&m->node->loop, &m->poll, fd);
    if (e != 0) {
        m->why = "its socket cannot be polled";
        fail(m, "poll", uv_strerror(e));
        return;
    }
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

    CHECK(peer < n->peers_count && !n->maps[peer], "peer %u is mapped already",
        peer);
    if (!m || path.len >= sizeof(m->address.sun_path)) {
        log_rated(&lines,
            "peer %u: rows are sent, not copied: no memory, or a path of "
            "%u bytes",
            peer, path.len);
        free(m);
        return; /* the brain does not wait for pools */
    }
    list_init(&m->link);
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
    struct node *n = m->node;
    bool odd = info->pool >= CONF_POOLS_MAX || im->source;
    const char *why;
    char name[64];

    span_copy_str(info->name, name, sizeof(name));
    if (odd)
        log_rated(&lines, "peer %u: pool %s comes twice, or with a bad number",
            m->peer, name);
    /* Without a GPU of ours nothing can copy from a pool on a GPU. */
    if (odd || (info->handle.len > 0 && our_gpus(n) == 0)) {
        if (fd >= 0)
            close(fd);
        return;
    }
    if (source_open(&im->source, fd, info, n->maps_room, &why) != OK) {
        log_rated(&lines,
            "peer %u: rows of its pool %s are sent, not copied: it %s", m->peer,
            name, why);
        m->why = why;
        n->maps_seen = true;
        return;
    }
    CHECK(source_room(im->source) <= n->maps_room, "%llu bytes may be mapped",
        (unsigned long long)n->maps_room);
    n->maps_room -= source_room(im->source);
    m->room += source_room(im->source);
    im->owner = m;
    im->pool = info->pool;
    im->busy = true;
    im->work.data = im;
    m->working++;
    node_work(n, &im->work, on_work, on_worked);
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
        } else if (msg.type == LOCAL_POOL_INFO) {
            take_pool(m, &msg.pool_info, *fd);
            *fd = -1;
        }
    }
    return true;
}

static void receive_all(struct mapping *m)
{
    static const char gone[] = "the encoder has closed the connection";
    uint8_t *packet = m->node->out.bytes.p; /* unused between two steps */
    bool good = true, cut;

    CHECK(m->node->out.count == 0 && m->node->out.bytes.cap >= LOCAL_PACKET_MAX,
        "%u actions, %zu bytes", m->node->out.count, m->node->out.bytes.cap);
    while (good) {
        struct reader r;
        int fd;
        ssize_t n = fds_receive(m->fd, (struct iovec){packet, LOCAL_PACKET_MAX},
            MSG_DONTWAIT, &fd, 1, &cut);

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

/* Notifies the brain of what is mapped, and why a pool is not (NULL: nothing
 * new). false: the mapping has ended. */
static bool say(struct mapping *m, const char *why)
{
    struct event ev = {.type = EV_MAP,
        .peer_at = m->peer,
        .mapped = m->mapped,
        .static_why = why};
    struct node *n = m->node;

    node_event(n, &ev);
    return n->maps[ev.peer_at] == m;
}

/* Gives a mapped source to the shards. false: the mapping has ended. */
static bool finish_import(struct mapping *m, struct import *im)
{
    uint32_t peer = m->peer;

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
    return say(m, NULL);
}

static void serve(struct mapping *m)
{
    bool seen = m->seen, ticked = m->ticked;
    const char *why = m->why;

    m->seen = m->ticked = false;
    m->why = NULL;
    if (why && !say(m, why))
        return;
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
    for (uint64_t i = 0; n->maps && i < n->peers_count; i++)
        if (n->maps[i] && !node_congested(n))
            serve(n->maps[i]);
    n->maps_seen |= node_congested(n); /* some mappings were left out */
}
