/* local_impl.h - shared by local.c (the server) and local_conn.c (one
 * connection). Private to these two. */
#ifndef MMX_IO_LOCAL_IMPL_H
#define MMX_IO_LOCAL_IMPL_H

#include "base/check.h"
#include "base/list.h"
#include "io/local.h"

#define OUT_MAX     LOCAL_PACKET_MAX
#define MARKS_MAX   16
#define FRAMES_TURN 64 /* per connection, before the next one is served */
#define SERVE_NS    (2 * NS_PER_MS) /* for all, before peers are served */

/* Descriptors that a connection may leave unread. The kernel counts them as in
 * flight, for all processes of our user together, and has a limit. */
#define FDS_UNREAD  2
#define REST_MS_MAX 64

/* A frame in the out buffer that carries a descriptor. */
struct local_mark {
    uint32_t at, len;
    int fd;
    int open; /* flags to reopen it with at the send; -1: send as it is */
};

struct local_conn {
    struct local *owner;
    uint32_t index;
    struct list free;   /* on the owner's free list */
    struct list ready;  /* the loop saw an event for it */
    struct list dirty;  /* on the owner's `dirty` or `coalesced` */
    struct list silent; /* until local_known */
    uint32_t uid;
    bool extra;  /* counts beyond the share */
    bool orders; /* it connected to the socket for orders */
    uv_poll_t sock_poll, pid_poll;
    int fd, pidfd;       /* -1: closed */
    uint8_t closing;     /* uv handles whose close callback has not come */
    bool blocked;        /* the socket is full; `out` waits */
    struct list resting; /* blocked, and only a timer will end that */
    uint64_t rest_until_ns;
    uint32_t rests;    /* in a row, without a send between */
    uint32_t fds_sent; /* since the engine last had read all of them */
    bool deaf;         /* the engine reads no more: output is dropped */
    bool held;         /* its messages wait: local_hold */
    bool over;         /* the connection ends when `out` is empty */
    bool eof;          /* the connection ends now */
    /* the connection ends when its received input has been read */
    bool broken;
    bool dead;       /* its process has exited */
    bool more;       /* its turn ended before its input */
    uint32_t frames; /* left in this turn */
    uint8_t *out;    /* OUT_MAX bytes: frames from out_head to out_len */
    uint32_t out_head, out_len;
    struct local_mark marks[MARKS_MAX];
    uint32_t marks_count;
    uint8_t *parked; /* LOCAL_PACKET_MAX bytes: rest of a packet */
    uint32_t parked_at, parked_len;
    _Atomic uint64_t *cells;
    uint32_t cells_count;
    int cells_fd;
};

/* A socket that clients connect to. */
struct listener {
    struct local *owner;
    uv_poll_t poll;
    uv_timer_t backoff;
    int fd; /* -1: it does not listen */
    bool ready, polled;
    char path[108]; /* "": not ours to remove */
    uint64_t path_dev, path_ino;
};

enum { LISTEN_ENGINES, LISTEN_ORDERS, LISTENERS };

struct local {
    uv_loop_t *loop;
    struct local_calls calls;
    struct local_conn *conns;
    uint32_t conns_count;
    struct list free, ready;
    struct list dirty;     /* with output from this turn */
    struct list coalesced; /* with output that may wait: local_coalesce */
    struct list silent;    /* connections without a HELLO, oldest first */
    struct list resting;
    uv_timer_t rest;
    struct share *share;
    uint32_t own; /* places beyond the share, per listener */
    uint32_t own_used[LISTENERS];
    struct local_stats stats;
    uint8_t *buffers; /* `out` and `parked` of every connection, in one map */
    size_t buffers_bytes;
    uint8_t *packet; /* the only receive buffer */
    struct listener listeners[LISTENERS];
    int reserve_fd;
    bool stopped;
};

/* Returns connection number `conn`, which may have ended. */
static inline struct local_conn *conn_at(const struct local *l, uint32_t conn)
{
    CHECK(conn < l->conns_count, "connection %u of %u", conn, l->conns_count);
    return &l->conns[conn];
}

/* Sets the timer to the first rest that ends. */
void local_rest(struct local *l);
/* Starts a connection on accepted descriptors, which it owns from then on.
 * False: the system has no place to poll them, and they stay the caller's. */
MUST_CHECK bool conn_start(struct local_conn *c, int fd, int pidfd);
/* Gives back the place that the connection takes from its user's share. */
void conn_leave(struct local_conn *c);
/* Ends the connection now and reports it. */
void conn_end(struct local_conn *c);
/* Sends one ANSWER that belongs to no message, if the socket takes it. */
void conn_refuse(int fd, enum err err, const char *text);
/* Closes a socket in a way that lets the other end read our output. */
void conn_close(int fd);
/* Gives the connection a turn in the next local_serve. */
void conn_ready(struct local_conn *c);
/* Serves a connection for one turn. */
void conn_serve(struct local_conn *c);
/* Closes the connection and reports nothing. */
void conn_drop(struct local_conn *c);

#endif
