/* peer_conn.c - the connections that the ROUTER accepted: which have sent no
 * HELLO yet, which flood, and how to end one.
 *
 * Invariants: every connection that ZMQ accepted has an entry here until ZMQ
 * reports its end. When no entry is free the weakest is evicted, so that a new
 * one is always served: first the oldest that has proven nothing, then the
 * oldest that knows our key and has sent no HELLO. Connections with a HELLO
 * never fill the entries, since each has a link. ZMQ reports the end of a
 * connection before its descriptor's number can be reused.
 *
 * ZMQ has no call that ends one connection of a ROUTER, and its only limit for
 * unread input is RCVHWM, which must not be reached (peer_sock.c). The kernel
 * has both: shutdown() of the descriptor, which ZMQ sees as an end, and the
 * count of received bytes. So memory is limited from outside, once a tick:
 * between two ticks a stranger may send as much as the network carries.
 *
 * Handshakes are limited here, since libzmq does not limit them. Their number:
 * libzmq reports each connection that it accepts before it reads from it, and
 * the connection takes an entry then. Time: HANDSHAKE_IVL, and the time to the
 * HELLO. Bytes: libzmq ends a connection whose first command is not CURVE's,
 * one frame is at most ZMQ_MAXMSGSIZE, and the tick ends what is longer than a
 * handshake. A flood evicts its own connections: libzmq answers the first
 * command only if the other end knows our key. The kernel shows this as
 * acknowledged bytes beyond the greeting. A peer needs a few round trips for
 * that, so there are many more entries than links (io/strangers.h). A first
 * command can be recorded and replayed, and is answered again. So answered
 * connections have at most half of the entries beyond links, and beyond that
 * their oldest is evicted. The newest half always has time to prove itself.
 *
 * Rejected: entries for every possible connection (a flood has no limit), and
 * zmq_unbind to pause (it ends the open connections). */
#include "io/peer/peer_impl.h"

#include "base/log.h"
#include "io/peer/tcp_info.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* Limit for a connection without a HELLO: more than any HELLO. */
#define SILENT_BYTES 131072u
/* Limit for a connection without our key: more than a handshake. */
#define SHAKE_BYTES 4096
/* ZMTP's greeting; the mechanism sends the bytes after it. */
#define GREETING_BYTES 64
/* All connections together may have INBOXES times limits.inbox unread. */
#define INBOXES 4
/* If a tick is later than this number of ticks, the daemon was stopped. */
#define LATE_TICKS 20
/* connections refused per turn */
#define REFUSED_TURN 256

static struct log_rate ends =
    LOG_RATE("ended control connections", LOG_WARN, 5);
static struct log_rate unheard =
    LOG_RATE("daemons without a link", LOG_WARN, 1);

/* Takes the connection off its list. */
static void leave(struct links *p, struct conn *c)
{
    CHECK(p->heard_count >= c->heard, "a connection is heard and not counted");
    list_remove(&c->node);
    p->heard_count -= c->heard;
    c->heard = false;
}

void conn_free(struct links *p, struct conn *c)
{
    CHECK(c->meter.fd >= 0, "a connection is freed twice");
    leave(p, c);
    table_remove(&p->by_fd, (uint64_t)c->meter.fd, 0);
    c->meter.fd = -1;
    slots_give(&p->conn_slots, (uint32_t)(c - p->conns));
}

/* ZMTP's commands per tick, most of them heartbeats. */
#define TRICKLE_BYTES 256

void meter_count(const struct meter *m, uint64_t *sum, size_t bytes)
{
    bytes += m->around;
    *sum += bytes + (bytes < 256 ? 2 : 9);
}

bool meter_over(struct meter *m, uint64_t limit)
{
    struct tcp_counts now;
    uint64_t in, out;

    if (m->fd < 0 || !tcp_counts(m->fd, &now))
        return false;
    in = now.received > m->read ? now.received - m->read : 0;
    out = m->written > now.acked ? m->written - now.acked : 0;
    m->behind = max_u64(in, out);
    m->read += min_u64(in, TRICKLE_BYTES);
    m->written = max_u64(m->written, now.acked);
    return m->behind > limit;
}

void conn_from(const struct conn *c, char *out, size_t size)
{
    if (getnameinfo((const struct sockaddr *)&c->from, sizeof(c->from), out,
            (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(out, size, "an unknown address");
}

/* Returns a number for the host of an accepted connection, from its address.
 * For IPv6 it stands for the network, since a host can have any number of
 * addresses there. 0: unknown. */
static uint64_t host_of(const struct conn *c)
{
    const struct sockaddr_in6 *six = &c->from;
    struct in_addr four;
    uint64_t half[2];

    memcpy(half, &six->sin6_addr, sizeof(half));
    memcpy(&four, &six->sin6_addr.s6_addr[12], sizeof(four));
    if (six->sin6_family == AF_INET)
        four = ((const struct sockaddr_in *)(const void *)six)->sin_addr;
    else if (six->sin6_family != AF_INET6)
        return 0;
    else if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
        return half[1];
    else if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return half[0];
    return UINT64_C(1) << 32 | four.s_addr;
}

/* Returns the address's bytes; *len: their number. */
static const void *address_bytes(const struct sockaddr *a, size_t *len)
{
    const struct sockaddr_in6 *six = (const void *)a;

    *len = a->sa_family == AF_INET ? 4 : 16;
    if (a->sa_family == AF_INET)
        return &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        *len = 4;
    return &six->sin6_addr.s6_addr[16 - *len];
}

static bool is_ours(const struct sockaddr *a, const struct ifaddrs *list)
{
    size_t len, len_at;
    const uint8_t *bytes = address_bytes(a, &len);
    bool ours = len == 4 && bytes[0] == 127;

    for (const struct ifaddrs *i = list; i && !ours; i = i->ifa_next) {
        const struct sockaddr *at = i->ifa_addr;
        bool ip = at && (at->sa_family == AF_INET || at->sa_family == AF_INET6);

        if (ip)
            ours = memcmp(bytes, address_bytes(at, &len_at), len) == 0 &&
                   len_at == len;
    }
    return ours;
}

/* True if the other end is known to have none of this host's addresses, in our
 * network namespace. fd: of our connection; -1: unknown. */
static bool is_far(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    struct ifaddrs *list;
    bool far;

    if (fd < 0 || getpeername(fd, (struct sockaddr *)&a, &len) != 0 ||
        (a.ss_family != AF_INET && a.ss_family != AF_INET6) ||
        getifaddrs(&list) != 0)
        return false;
    far = !is_ours((const struct sockaddr *)&a, list);
    freeifaddrs(list);
    return far;
}

void link_up(struct links *p, uint32_t link)
{
    const struct link *k = link_at(p, link);
    struct event ev = {.type = EV_LINK_UP, .link = link};

    CHECK(k->up && k->sock, "link %u is reported up and is down", link);
    if (k->sock == p->router)
        ev.host = host_of(&p->conns[k->conn]);
    else
        ev.far = is_far(k->sock->meter.fd);
    keys_let_in(p, link);
    p->calls.event(p->calls.ud, &ev);
}

static uint16_t local_port(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    if (a.ss_family == AF_INET)
        return ((struct sockaddr_in *)&a)->sin_port;
    return a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : 0;
}

/* Shuts a connection down by its descriptor's number. The number may belong to
 * another file now, which its port shows; a copy of the descriptor cannot
 * change meanwhile. */
static void end_fd(const struct links *p, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    uint16_t port = local_port(p->listen_fd);

    /* If no descriptor is left for the copy, check the number itself. */
    if (port && local_port(copy >= 0 ? copy : fd) == port)
        shutdown(copy >= 0 ? copy : fd, SHUT_RDWR);
    if (copy >= 0)
        close(copy);
}

void conns_shut(struct links *p, uint32_t conn)
{
    struct conn *c = &p->conns[conn];
    uint32_t link = c->link;

    CHECK(conn < p->conns_count && c->meter.fd >= 0, "connection %u of %u",
        conn, p->conns_count);
    if (c->ended)
        return;
    c->ended = true;
    c->link = NONE;
    /* Kept until its end is reported; first to be evicted. */
    leave(p, c);
    list_push_head(&p->silent, &c->node);
    end_fd(p, c->meter.fd);
    if (link != NONE)
        link_down(p, link);
}

/* True if the other end has acknowledged more than our greeting: libzmq answers
 * a handshake's first message only if that proves our key. */
static bool heard(const struct links *p, const struct conn *c)
{
    struct tcp_counts now;

    return p->opt.keys && tcp_counts(c->meter.fd, &now) &&
           now.acked > GREETING_BYTES;
}

/* Returns half of the number of entries beyond links; the other half is for
 * newer connections. */
static uint32_t heard_max(const struct links *p)
{
    return (p->conns_count - p->opt.links) / 2;
}

/* Returns the connection to evict for a new one. */
static struct conn *weakest(struct links *p)
{
    struct conn *c;

    while (p->heard_count <= heard_max(p) &&
           (c = LIST_FIRST(&p->silent, struct conn, node))) {
        if (c->ended || !heard(p, c))
            return c;
        leave(p, c);
        list_push_tail(&p->heard, &c->node);
        c->heard = true;
        p->heard_count++;
    }
    return LIST_FIRST(&p->heard, struct conn, node);
}

/* Returns a free entry; evicts the weakest connection if needed. */
static struct conn *entry_take(struct links *p)
{
    uint32_t i = slots_take(&p->conn_slots);
    struct conn *c;

    if (i != NONE)
        return &p->conns[i];
    c = weakest(p);
    CHECK(c, "%u connections, all of them greeted", p->conns_count);
    if (!c->ended)
        p->stats.crowded_out++;
    conns_shut(p, (uint32_t)(c - p->conns));
    conn_free(p, c);
    return &p->conns[slots_take(&p->conn_slots)];
}

void conns_accepted(struct links *p, uint32_t fd)
{
    socklen_t len = sizeof(struct sockaddr_in6);
    struct conn *c;

    conns_ended(p, fd);
    c = entry_take(p);
    *c = (struct conn){.link = NONE,
        .since_ns = uv_hrtime(),
        .meter = {.fd = (int)fd, .around = p->opt.keys ? CURVE_AROUND : 0}};
    (void)getpeername((int)fd, (struct sockaddr *)&c->from, &len);
    list_init(&c->node);
    list_push_tail(&p->silent, &c->node);
    CHECK(table_put(&p->by_fd, fd, 0, (uint32_t)(c - p->conns)),
        "%u connections and no place for one", p->conns_count);
    links_watch(p);
}

void conns_ended(struct links *p, uint32_t fd)
{
    uint32_t conn = table_get(&p->by_fd, fd, 0);
    struct conn *c = &p->conns[conn == NONE ? 0 : conn];

    keys_ended(p, conn == NONE ? NULL : c);
    if (conn == NONE)
        return;
    if (c->link != NONE)
        link_down(p, c->link);
    conn_free(p, c);
}

/* the first message */

/* Returns a number for a new link, or NONE. If none is free, evicts the oldest
 * connection whose peer is not known. */
static uint32_t link_number(struct links *p)
{
    for (uint32_t i = 0; i < p->opt.links; i++)
        if (!p->links[i].sock)
            return i;
    LIST_FOREACH (n, &p->greeted) {
        struct conn *c = LIST_ENTRY(n, struct conn, node);
        uint32_t link = c->link;

        if (!p->calls.known || p->calls.known(p->calls.ud, link))
            continue;
        p->stats.crowded_out++;
        conns_shut(p, (uint32_t)(c - p->conns));
        return link;
    }
    return NONE;
}

static uint32_t link_new(struct links *p, uint64_t rid, uint32_t conn)
{
    uint32_t i = link_number(p);
    struct link *k = &p->links[i == NONE ? 0 : i];
    struct conn *c = &p->conns[conn];

    if (i == NONE || !table_put(&p->by_rid, rid, 0, i)) {
        log_rated(&unheard,
            "a daemon gets no link: all %u of limits.peers are in use",
            p->opt.links);
        return NONE;
    }
    CHECK(!k->sock && !k->dial.used && c->link == NONE, "link %u is in use", i);
    k->sock = p->router;
    k->up = true;
    k->rid = rid;
    k->conn = conn;
    c->link = i;
    leave(p, c);
    list_push_tail(&p->greeted, &c->node);
    link_up(p, i);
    return k->sock ? i : NONE;
}

/* True if the message begins with a HELLO. Bytes that are not our protocol end
 * the connection. Any other frame may have overtaken the report of a new
 * connection, whose HELLO follows. */
static bool greets(struct links *p, uint32_t conn)
{
    struct reader r = reader_of(zmq_msg_data(&p->msg), zmq_msg_size(&p->msg));
    struct peer_msg m = {0};
    enum err e = peer_get(&r, &m);
    struct event ev = {.type = EV_PEER_BAD,
        .link = NONE,
        .err = e,
        .fault = m.fault,
        .peer = &m};

    /* A HELLO with unknown flags is answered too. */
    if (m.type == PEER_HELLO && (e == OK || m.fault.field))
        return true;
    if (e != OK && e != ERR_NOT_READY)
        p->calls.event(p->calls.ud, &ev);
    if (m.fault.field)
        return false;
    if (e == ERR_MALFORMED || e == ERR_NOT_READY) {
        p->stats.strangers++;
        log_rated(
            &ends, "a control connection is ended: what it sent is not ours");
        conns_shut(p, conn);
    }
    return false;
}

uint32_t conns_link(struct links *p, uint64_t rid, uint32_t conn)
{
    uint32_t link = table_get(&p->by_rid, rid, 0);
    struct conn *c = &p->conns[conn];

    if (link != NONE)
        return p->links[link].conn == conn ? link : NONE;
    if (c->ended || !greets(p, conn) || !keys_admit(p, conn))
        return NONE;
    /* The connection has a link under another routing id: it belonged to an
     * older connection with this number. */
    if (c->link != NONE) {
        link = c->link;
        c->link = NONE;
        leave(p, c);
        list_push_tail(&p->silent, &c->node);
        link_down(p, link);
    }
    return link_new(p, rid, conn);
}

/* time */

/* Ends a connection; counts and logs the reason. */
static void end_for(
    struct links *p, struct conn *c, uint64_t *count, const char *why)
{
    char from[INET6_ADDRSTRLEN + 16];

    *count += 1;
    conn_from(c, from, sizeof(from));
    log_rated(&ends, "a control connection from %s is ended: %s", from, why);
    conns_shut(p, (uint32_t)(c - p->conns));
}

/* True if it sent more than allowed without a HELLO, or without our key. */
static bool too_loud(const struct links *p, struct conn *c)
{
    if (meter_over(&c->meter, SILENT_BYTES))
        return true;
    return p->opt.keys && c->meter.behind > SHAKE_BYTES && !heard(p, c);
}

/* Checks the connections on one of the two lists without a HELLO. late: the
 * daemon was stopped, and their input is not read yet. */
static void tick_silent(
    struct links *p, struct list *list, uint64_t now_ns, bool late)
{
    char why[96];

    LIST_FOREACH_SAFE (n, list) {
        struct conn *c = LIST_ENTRY(n, struct conn, node);

        if (late)
            c->since_ns = now_ns;
        if (c->ended)
            continue;
        if (too_loud(p, c)) {
            snprintf(why, sizeof(why), "%llu bytes and no hello",
                (unsigned long long)c->meter.behind);
            end_for(p, c, &p->stats.flooded, why);
        } else if (now_ns - c->since_ns >= p->opt.hello_ns) {
            snprintf(why, sizeof(why),
                "no hello came, timeouts.hello is %llu ms",
                (unsigned long long)(p->opt.hello_ns / NS_PER_MS));
            end_for(p, c, &p->stats.silent_ended, why);
        }
    }
}

static void end_flood(struct links *p, struct conn *c)
{
    char why[96];

    snprintf(why, sizeof(why),
        "%llu bytes wait to be read or sent, limits.inbox is %llu",
        (unsigned long long)c->meter.behind, (unsigned long long)p->opt.inbox);
    end_for(p, c, &p->stats.flooded, why);
}

static void tick_greeted(struct links *p)
{
    struct conn *most = NULL;
    uint64_t all = 0;

    LIST_FOREACH_SAFE (n, &p->greeted) {
        struct conn *c = LIST_ENTRY(n, struct conn, node);

        if (meter_over(&c->meter, p->opt.inbox)) {
            end_flood(p, c);
            continue;
        }
        all += c->meter.behind;
        p->behind += c->meter.behind;
        if (!most || c->meter.behind > most->meter.behind)
            most = c;
    }
    if (all > INBOXES * p->opt.inbox)
        end_flood(p, most);
}

void conns_tick(struct links *p, uint64_t now_ns)
{
    bool late = p->ticked_ns && now_ns - p->ticked_ns > LATE_TICKS * TICK_NS;

    p->ticked_ns = now_ns;
    tick_silent(p, &p->silent, now_ns, late);
    tick_silent(p, &p->heard, now_ns, late);
    tick_greeted(p);
    if (p->spare < 0 && p->listen_fd >= 0)
        p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void conns_listen(struct links *p, int fd)
{
    int flags = fcntl(fd, F_GETFL);

    /* ZMQ leaves the listener blocking: of two threads that accept, one waits.
     */
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return;
    p->listen_fd = fd;
    if (p->spare < 0)
        p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Accepts one waiting connection and closes it. False: there is none, or no
 * descriptor. */
static bool refuse_one(struct links *p)
{
    int fd;

    if (p->spare >= 0)
        close(p->spare);
    /* ZMQ's thread may be faster, and accept the connection itself. */
    fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

void conns_refuse(struct links *p)
{
    struct conn *c = LIST_FIRST(&p->silent, struct conn, node);
    uint32_t refused = 0;

    while (p->listen_fd >= 0 && refused < REFUSED_TURN && refuse_one(p))
        refused++;
    if (refused == 0 && c && !c->ended && p->spare < 0) {
        conns_shut(p, (uint32_t)(c - p->conns)); /* frees a descriptor */
        refused = 1;
    }
    p->stats.refused += refused;
    if (refused)
        log_rated(&ends,
            "%u control connections are refused: no descriptor "
            "is left, raise RLIMIT_NOFILE",
            refused);
}
