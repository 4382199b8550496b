/* peer_rekey.c - goes on with other keys while the daemon runs.
 *
 * Invariants: libzmq reads a socket's key when it is bound or connected, so
 * that another key takes another socket. The listening descriptor outlives
 * them: the new ROUTER is bound to a copy of it before the old one is closed,
 * so that no connection is refused in between. A link that goes down so is
 * made again by its langd, at once; rooms go on if that takes less than
 * control.lost_after. The loop's thread, not within a callback of links.
 *
 * Rejected: zmq_unbind, which ends the connections as well and leaves the port
 * to others; and to let connections under a key that is gone stay until they
 * end by themselves, since what is to be shut out is shut out then. */
#include "io/peer/peer_impl.h"

#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

/* True if connections under the old keys are all good with the new ones, for a
 * listener. */
static bool only_more(const struct keys *old, const struct keys *now)
{
    CHECK(old->count > 0 && now->count > 0, "%u keys, then %u", old->count,
        now->count);
    for (uint32_t i = 0; i < old->count; i++)
        if (!keys_have(now, old->pairs[i].public_bytes))
            return false;
    return memcmp(old->pairs[0].public_bytes, now->pairs[0].public_bytes, 32) ==
           0;
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
        p->listen_fd = fd; /* libzmq's from now on */
        return s;
    }
    log_error("zmq: %s: bind with other keys: %s", at,
        s ? zmq_strerror(zmq_errno()) : "no socket");
    if (s)
        sock_close(s);
    if (fd >= 0) /* libzmq has it from a bind that went well on */
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
                link_lost(p, link);
        }
}

static enum err rekey_listener(struct links *p, const struct keys *keys)
{
    const struct keys *old = p->opt.keys;
    struct sock *was = p->router, *now;

    p->opt.keys = keys;
    if (only_more(old, keys))
        return OK;
    sock_news(was); /* connections that it has and we do not know yet */
    now = open_again(p);
    if (!now) {
        p->opt.keys = old;
        return ERR_NO_BLOCKS;
    }
    links_flush_coalesced(p);
    links_flush(p);
    drop_all(p);
    p->router = now;
    sock_close(was);
    links_watch(p);
    log_info("control connections are made again: other keys");
    return OK;
}

/* connections of ours */

/* Returns the number of a key of the old list in the new one; NONE: it is
 * gone. */
static uint32_t place_of(
    const struct keys *old, uint32_t i, const struct keys *now)
{
    CHECK(i < old->count, "key %u of %u", i, old->count);
    for (uint32_t k = 0; k < now->count; k++)
        if (memcmp(old->pairs[i].public_bytes, now->pairs[k].public_bytes,
                32) == 0)
            return k;
    return NONE;
}

static void rekey_dials(struct links *p, const struct keys *keys)
{
    const struct keys *old = p->opt.keys;

    p->opt.keys = keys;
    for (uint32_t i = 0; i < p->opt.links; i++) {
        struct dial *d = &p->links[i].dial;
        uint32_t key = d->used ? place_of(old, d->key, keys) : NONE;

        if (!d->used)
            continue;
        d->key = key == NONE ? 0 : key;
        if (key == NONE)
            dial_again(p, i);
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
