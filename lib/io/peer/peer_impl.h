/* peer_impl.h - shared by the sources of links: peer_sock.c has the sockets,
 * peer_zmq.c the messages, peer_conn.c accepted connections, peer_dial.c our
 * own connections. The loop's thread. */
#ifndef MMX_IO_PEER_IMPL_H
#define MMX_IO_PEER_IMPL_H

#include "base/check.h"
#include "base/list.h"
#include "base/table.h"
#include "io/peer/lookup.h"
#include "io/peer.h"

#include <netinet/in.h>
#include <zmq.h>

/* Interval of checks of connections: while data moves, and while they are idle,
 * so that an idle daemon sleeps. */
#define TICK_NS (100 * NS_PER_MS)
#define CALM_NS NS_PER_S

/* Bytes of a connection that were read from ZMQ, and written to it. behind:
 * bytes that wait, in the direction with more of them. */
struct meter {
    int fd;          /* -1: unknown */
    uint32_t around; /* bytes that CURVE adds to a message */
    uint64_t read, written, behind;
};

/* A socket with its monitor. A DEALER has a link; the ROUTER has NONE. */
struct sock {
    struct links *owner;
    uint32_t link;
    struct list node;  /* on the owner's free or used list */
    struct list ready; /* may have messages or events of the monitor */
    bool news;         /* the monitor has events */
    void *zmq, *monitor;
    uv_poll_t polls[2];       /* of both */
    uint8_t watched, closing; /* of those: in use; closed, without the callback
                                 yet */
    struct meter meter;       /* DEALER */
};

/* A connection of the ROUTER. */
struct conn {
    struct list node; /* on the owner's free, silent, heard or greeted list */
    uint32_t link;    /* NONE: it sent no HELLO */
    bool ended;       /* shut down by us; the monitor has not reported it yet */
    bool heard;       /* on the list `heard` */
    uint64_t since_ns;
    struct meter meter;
    struct sockaddr_in6 from; /* or a shorter address */
    uint8_t key[32];          /* with a link and keys: the peer's public key */
};

/* A connection that we make: its address and progress. */
struct dial {
    bool used, named; /* named: the host is not numeric */
    char host[128], port[8];
    struct lookup *lookup;
    uint64_t asked_ns; /* start of the lookup */
    struct lookup_result found;
    uint32_t at;             /* index of the present address in `found` */
    char tried[LOOKUP_TEXT]; /* the last address that was connected to */
    uint64_t retry_ns, wait_ns;
    char name[64];       /* encoder that must be at the other end; empty: any */
    uint32_t key;        /* key to try at the other end; NONE: none left */
    uint32_t refused;    /* failed handshakes since the link was up */
    uint64_t refused_ns; /* time of the first failure */
    const char *why;     /* of the last failure with a reason beyond "ended" */
    bool sure;           /* the reason of one failure was certain */
    const char *logged;  /* reason in the last log line */
    int probe;           /* our own connect, to find out why ZMQ fails; -1 */
    /* when that began; if probe is -1: when it may begin */
    uint64_t probe_ns;
};

struct link {
    struct sock *sock; /* NULL: the number is free, or dial.used */
    bool up;
    bool taking;       /* `msg` has frames of it that were not passed on */
    uint64_t rid;      /* ROUTER: its routing id */
    uint32_t conn;     /* ROUTER: the link's connection */
    struct dial dial;  /* DEALER */
    struct list dirty; /* on the owner's `dirty` or `coalesced` */
    uint8_t *out;
    uint32_t out_len, frames;
};

struct links {
    uv_loop_t *loop;
    struct links_calls calls;
    struct links_opt opt;
    struct links_stats stats;
    void *ctx;
    struct sock *socks, *router;
    uint32_t socks_count, conns_count;
    struct link *links;
    struct conn *conns;
    struct list free, used, ready, dirty, coalesced;
    /* Oldest first. heard: without HELLO, but the other end knows our key. */
    struct list silent, heard, greeted;
    struct slots conn_slots;
    uint32_t heard_count;
    struct table by_rid; /* routing id -> link */
    struct table by_fd;  /* descriptor -> conn */
    uint8_t *memory, *buffers;
    size_t buffers_bytes;
    uint64_t monitors;           /* created so far, for their names */
    zmq_msg_t msg, event, scrap; /* receive buffers */
    uint32_t msg_link;           /* of the frames of msg from msg_at on */
    size_t msg_at;
    bool stopped;
    uv_timer_t timer;
    bool tick, starved;
    /* Ticks: their interval (0: none); of the last one the time, the count of
     * packets, and the bytes that waited on all connections. */
    uint64_t every_ns, ticked_ns, ticked_packets, behind;
    int listen_fd, spare; /* ROUTER: its listener; a reserve to refuse with */
    void *zap;            /* answers which keys are admitted; NULL: no keys */
    uv_poll_t zap_poll;
    bool zap_news;
    const char *failed; /* cause of the failed handshake whose end comes next */
    bool failed_sure;   /* the cause is certain, not a guess */
    struct links_refusal refusal;
};

/* Returns link number `link`. */
static inline struct link *link_at(const struct links *p, uint32_t link)
{
    CHECK(link < p->opt.links, "link %u of %u", link, p->opt.links);
    return &p->links[link];
}

/* peer_sock.c */
/* Monitor events that mean a failed handshake. */
#define REFUSED_EVENTS                                                         \
    (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |                                    \
        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
/* Opens a socket that is neither bound nor connected. NULL: logged. */
struct sock *sock_open(struct links *p, int type, uint32_t link, bool six);
void sock_close(struct sock *s);
bool sock_set(void *zmq, int option, int value);
/* Receives or sends a part without waiting; false: not now. A signal, for which
 * libzmq stops before it has done so, ends neither: the rest of a message would
 * be taken for the next one. more: ZMQ_SNDMORE or 0. */
MUST_CHECK bool sock_receive(void *zmq, zmq_msg_t *part);
bool sock_send(void *zmq, const void *part, size_t n, int more);
/* Polls a ZMQ socket's descriptor. False: the system has no place for that. */
MUST_CHECK bool sock_watch(
    uv_loop_t *loop, uv_poll_t *h, void *zmq, uv_poll_cb f, void *data);
/* Makes the next turn check the socket. */
void sock_ready(struct sock *s);
/* Returns our own pair for a connection to the key with this index. */
const struct key_pair *keys_own(const struct keys *k, uint32_t there);
/* Drops a link's output; the link is not up any more. */
void link_clear(struct link *k);
/* Reports a link up, and where its other end is. */
void link_up(struct links *p, uint32_t link);
/* Drops a link's output and reports it down; no effect if it is not up. The
 * number of an accepted link is free then. */
void link_down(struct links *p, uint32_t link);

/* peer_zmq.c: handles all pending monitor events of the socket. Callbacks may
 * close it. */
void sock_news(struct sock *s);

/* peer_tick.c */
/* Makes p->tick due every ns from now on; 0: never. */
void tick_every(struct links *p, uint64_t ns);
/* Starts the ticks; they stop when there are no connections. */
void links_watch(struct links *p);

/* True if more than `limit` bytes wait: received by the kernel and not read by
 * us, or sent by us and not acknowledged by the peer's kernel. ZMTP's commands
 * never reach us; a small number of their bytes is allowed for. */
bool meter_over(struct meter *m, uint64_t limit);
/* Adds one part of a message to m->read or m->written, with ZMTP's header and
 * CURVE's overhead. */
void meter_count(const struct meter *m, uint64_t *sum, size_t bytes);

/* peer_conn.c: connections to the ROUTER, as reported by its monitor */
/* Keeps the listener's descriptor, to refuse connections. */
void conns_listen(struct links *p, int fd);
void conns_accepted(struct links *p, uint32_t fd);
void conns_ended(struct links *p, uint32_t fd);
/* Returns the link of the message p->msg, from this routing id on this
 * connection; a HELLO creates it. NONE: drop the message. */
uint32_t conns_link(struct links *p, uint64_t rid, uint32_t conn);
/* Shuts a connection down and reports its link down. The monitor reports its
 * end later. */
void conns_shut(struct links *p, uint32_t conn);
/* Ends connections that flood, or sent no HELLO in time. */
void conns_tick(struct links *p, uint64_t now_ns);
/* Refuses waiting connections while no descriptor is left, so that ZMQ's thread
 * does not try to accept them in a busy loop. */
void conns_refuse(struct links *p);

/* Frees the entry of a connection that has no link. */
void conn_free(struct links *p, struct conn *c);
/* Writes the address of the connection's other end. */
void conn_from(const struct conn *c, char *out, size_t size);

/* peer_keys.c: which keys are admitted */
/* Bytes that CURVE adds to a message: a command's name, its nonce, its
 * authentication code, its flags. */
#define CURVE_AROUND 33
/* True if the connection, whose HELLO is p->msg, uses an admitted key;
 * otherwise shuts it down. True without keys. */
bool keys_admit(struct links *p, uint32_t conn);
/* Logs which daemon's key the link uses, now that it is up. */
void keys_let_in(const struct links *p, uint32_t link);
/* Opens the handler that libzmq asks about each key; before any socket is
 * bound. */
MUST_CHECK enum err zap_open(struct links *p);
void zap_close(struct links *p);
void zap_serve(struct links *p);
/* Handles a monitor event about a failed handshake. */
void keys_router_event(struct links *p, uint16_t event, uint32_t value);
void keys_dealer_event(
    struct links *p, uint32_t link, uint16_t event, uint32_t value);
/* Records that an accepted connection ended whose handshake may have failed
 * just before. c: NULL if it is not known. */
void keys_ended(struct links *p, const struct conn *c);

/* peer_dial.c: connections that we make */
/* Closes the socket after its handshake failed, and continues with the next
 * key. sure: the other end said why; otherwise why is a guess from its silence.
 */
void dial_refused(struct links *p, uint32_t link, const char *why, bool sure);
void dial_stop(struct links *p, uint32_t link);
/* Makes the connection again, with a key from the present set. */
void dial_again(struct links *p, uint32_t link);
void dial_tick(struct links *p, uint64_t now_ns);
/* True if a dial has work before at_ns. */
bool dial_due(const struct links *p, uint64_t at_ns);
void dial_changed(struct links *p, uint32_t link);

#endif
