/* peer_impl.h - what the sources of links share: peer_zmq.c has the sockets
 * and what goes in and out, peer_conn.c the connections that others made to
 * us, peer_dial.c those that we make. The loop's thread. */
#ifndef MMX_IO_PEER_IMPL_H
#define MMX_IO_PEER_IMPL_H

#include "base/list.h"
#include "base/table.h"
#include "io/peer/lookup.h"
#include "io/peer.h"

#include <zmq.h>

/* How often connections are looked at: while something moves, and while they
 * only stand, so that a daemon without work sleeps. */
#define TICK_NS (100 * NS_PER_MS)
#define CALM_NS NS_PER_S

/* How much came on a connection and was received here, and how much was sent;
 * behind: what waits in either direction. */
struct meter {
    int fd; /* -1: not known */
    uint64_t taken, said, behind;
};

/* A socket with its monitor. A DEALER has a link; the ROUTER has NONE. */
struct sock {
    struct links *owner;
    uint32_t link;
    struct list node;  /* on the owner's free or used list */
    struct list ready; /* may have messages or monitor events */
    bool news;         /* the monitor has events */
    void *zmq, *monitor;
    uv_poll_t poll, monitor_poll;
    uint8_t closing;    /* uv handles whose close callback is to come */
    struct meter meter; /* DEALER */
};

/* A connection of the ROUTER. */
struct conn {
    struct list node; /* on the owner's free, silent or heard list */
    uint32_t link;    /* NONE: it has not said a HELLO */
    bool ended;       /* shut down by us, its end is not told yet */
    uint64_t since_ns;
    struct meter meter;
};

/* A connection that we make: where to, and how far that is. */
struct dial {
    bool used, named; /* named: a host that is not numbers */
    char host[128], port[8];
    struct lookup *lookup;
    uint64_t asked_ns; /* since when it is looked for */
    struct lookup_result found;
    uint32_t at; /* of found: connected to */
    uint64_t retry_ns, wait_ns;
    const char *said; /* the last thing logged of it */
};

struct link {
    struct sock *sock; /* NULL: the number is free, or dial.used */
    bool up;
    uint64_t rid;      /* ROUTER: its routing id */
    uint32_t conn;     /* ROUTER: its connection */
    struct dial dial;  /* DEALER */
    struct list dirty; /* on one of the owner's: dirty, soon */
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
    struct list free, used, ready, dirty, soon;
    struct list conns_free, silent, heard; /* oldest first */
    struct table by_rid;                   /* routing id -> link */
    struct table by_fd;                    /* descriptor -> conn */
    uint8_t *memory, *buffers;
    size_t buffers_bytes;
    uint64_t monitors;           /* names given out */
    zmq_msg_t msg, event, scrap; /* received into; never kept */
    bool stopped;
    uv_timer_t timer;
    bool tick, starved;
    /* Ticks: how often, 0: never; of the last: when, packets by then, bytes
     * that waited on all connections. */
    uint64_t every_ns, ticked_ns, ticked_packets, behind;
    int listen_fd, spare; /* ROUTER: its listener's; kept to refuse with */
};

/* peer_zmq.c */
/* A socket that is bound or connected to nothing yet. */
struct sock *sock_open(struct links *p, int type, uint32_t link, bool six);
void sock_close(struct sock *s);
bool sock_set(void *zmq, int option, int value);
/* Tells the owner that a link that was up is down; nothing waits for it. */
void link_down(struct links *p, uint32_t link);
/* Takes the link of a connection that is over, and tells. */
void link_lost(struct links *p, uint32_t link);
/* Lets the timer run while there is something to look at. */
void links_watch(struct links *p);

/* True if more waits than may: bytes that the kernel received on the
 * connection, less those that were looked at here, or bytes that were sent
 * here, less those that the peer's kernel acknowledged. Commands of ZMTP are
 * never looked at; a trickle of them is forgiven. */
bool meter_over(struct meter *m, uint64_t limit);
/* Counts a part of a message that was received, or sent. */
void meter_take(struct meter *m, size_t bytes);
void meter_say(struct meter *m, size_t bytes);

/* peer_conn.c: connections to the ROUTER */
/* This is the listener's descriptor. */
void conns_listen(struct links *p, int fd);
void conns_accepted(struct links *p, uint32_t fd);
void conns_ended(struct links *p, uint32_t fd);
/* Returns its number, or NONE: it has ended. */
uint32_t conns_find(const struct links *p, uint32_t fd);
/* Returns the link that the message p->msg, from this routing id on this
 * connection, belongs to; NONE: none, it is dropped. A HELLO makes one. */
uint32_t conns_link(struct links *p, uint64_t rid, uint32_t conn);
/* Ends a connection: its peer sees it, and so do we, by the monitor. */
void conns_shut(struct links *p, uint32_t conn);
/* Ends those that may not stay. */
void conns_tick(struct links *p, uint64_t now_ns);
/* No descriptor was left to accept a connection with: those that wait are
 * refused, so that ZMQ's thread does not try again and again. */
void conns_refuse(struct links *p);

/* peer_dial.c: connections that we make */
MUST_CHECK enum err dial_start(
    struct links *p, uint32_t link, struct span address);
void dial_stop(struct links *p, uint32_t link);
void dial_tick(struct links *p, uint64_t now_ns);
/* True if one has something to do before then. */
bool dial_due(const struct links *p, uint64_t at_ns);
void dial_changed(struct links *p, uint32_t link);

#endif
