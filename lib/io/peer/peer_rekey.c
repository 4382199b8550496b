/* peer_rekey.c - changes keys while the daemon runs.
 *
 * Invariants: libzmq reads a socket's key at its bind or connect, so another
 * key needs another socket. The listening descriptor outlives them: the new
 * ROUTER is bound to a copy of it before the old one is closed, so that no
 * connection is refused in between. langd makes a link that goes down this way
 * again at once; rooms go on if that takes less than control.lost_after. A
 * change of other daemons' keys needs no new socket: connections whose key is
 * no longer admitted, or belongs to another daemon now, are shut. The loop's
 * thread, not inside a callback of links.
 *
 * Rejected: zmq_unbind, which also ends the connections and frees the port for
 * others; and leaving connections with a removed key until they end by
 * themselves, since a key is removed to shut its owner out. */
#include "io/peer/peer_impl.h"

#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

static bool same_pair(const struct key_pair *a, const struct key_pair *b)
{
    return memcmp(a->public_bytes, b->public_bytes, 32) == 0;
}

/* the listener */

/* Opens a ROUTER on a copy of the listening descriptor. NULL: none. */
static struct sock *open_again(struct links *p)
{
    bool six = p->opt.listen && strchr(p->opt.listen, '[');
    int fd = fcntl(p->listen_fd, F_DUPFD_CLOEXEC, 0);
    struct sock *s = fd < 0 ? NULL : sock_open(p, ZMQ_ROUTER, NONE, six);
    char at[256];

    links_endpoint(p, at, sizeof(at));
    if (s && sock_set(s->zmq, ZMQ_USE_FD, fd) && zmq_bind(s->zmq, at) == 0) {
        p->listen_fd = fd; /* libzmq owns it from now on */
        return s;
    }
    log_error("zmq: %s: bind with other keys: %s", at,
        s ? zmq_strerror(zmq_errno()) : "no socket");
    if (s)
        sock_close(s);
    if (fd >= 0) /* after a successful bind libzmq owns it */
        close(fd);
    return NULL;
}

/* Ends all connections: their links are down, their entries free. */
static void drop_all(struct links *p)
{
    struct list *lists[] = {&p->silent, &p->heard, &p->greeted};

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        while (!list_empty(lists[i])) {
            struct conn *c = LIST_FIRST(lists[i], struct conn, node);
            uint32_t link = c->link;

            c->link = NONE;
            conn_free(p, c);
            if (link != NONE)
                link_down(p, link);
        }
}

/* Ends the connections whose keys are no longer admitted, or not for the same
 * daemon. Connections without a HELLO are checked at their HELLO
 * (keys_admit). */
static void drop_others(struct links *p, const struct keys *old)
{
    LIST_FOREACH_SAFE (n, &p->greeted) {
        struct conn *c = LIST_ENTRY(n, struct conn, node);

        CHECK(c->link != NONE, "a connection that has greeted has no link");
        if (!keys_both(old, p->opt.keys, c->key))
            conns_shut(p, (uint32_t)(c - p->conns));
    }
}

static enum err rekey_listener(struct links *p, const struct keys *keys)
{
    const struct keys *old = p->opt.keys;
    struct sock *was = p->router, *now;

    p->opt.keys = keys;
    if (same_pair(&old->pairs[0], &keys->pairs[0])) {
        drop_others(p, old);
        return OK;
    }
    sock_news(was); /* connections that it accepted and we have not seen yet */
    now = open_again(p);
    if (!now) {
        p->opt.keys = old;
        return ERR_NO_BLOCKS;
    }
    while (links_flush(p))
        ; /* also what may wait */
    drop_all(p);
    p->router = now;
    sock_close(was);
    links_watch(p);
    log_info("control connections are made again: other keys");
    return OK;
}

/* our connections */

/* Returns the index of the dial's key now; NONE: the connection would be made
 * differently now. */
static uint32_t place_of(
    const struct keys *old, const struct dial *d, const struct keys *now)
{
    const struct key_pair *own = d->key == NONE ? NULL : keys_own(old, d->key);
    uint32_t i;

    if (!own || !keys_both(old, now, keys_bytes(old, d->key)))
        return NONE;
    i = keys_find(now, keys_bytes(old, d->key));
    return keys_next(now, i, d->name) == i && same_pair(own, keys_own(now, i))
               ? i
               : NONE;
}

static void rekey_dials(struct links *p, const struct keys *keys)
{
    const struct keys *old = p->opt.keys;

    p->opt.keys = keys;
    for (uint32_t i = 0; i < p->opt.links; i++) {
        struct dial *d = &p->links[i].dial;
        uint32_t key = d->used ? place_of(old, d, keys) : NONE;

        if (!d->used)
            continue;
        if (key == NONE)
            dial_again(p, i);
        else
            d->key = key;
    }
    links_watch(p);
}

enum err links_rekey(struct links *p, const struct keys *keys)
{
    CHECK(p->opt.keys && keys, "links with keys stay so, others too");
    if (p->router)
        return rekey_listener(p, keys);
    rekey_dials(p, keys);
    return OK;
}

void links_limits(struct links *p, uint64_t hello_ns, uint64_t inbox)
{
    p->opt.hello_ns = hello_ns;
    p->opt.inbox = inbox;
}
