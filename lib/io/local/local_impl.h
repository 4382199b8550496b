/* local_impl.h - what local.c (the server) and local_conn.c (one connection)
 * share. Nobody else includes it. */
#ifndef MMX_IO_LOCAL_IMPL_H
#define MMX_IO_LOCAL_IMPL_H

#include "base/list.h"
#include "io/local.h"

#define OUT_MAX     LOCAL_PACKET_MAX
#define MARKS_MAX   16
#define FRAMES_TURN 64 /* of one connection before others have a go */
#define SERVE_NS    (2 * NS_PER_MS) /* of all connections before peers have */

/* Descriptors that a connection may leave unread. The kernel counts them as
 * in flight, all of our user's together, and lets no more pass at a limit. */
#define FDS_UNREAD  2
#define REST_MS_MAX 64

/* A frame in the out buffer that carries a descriptor. */
struct local_mark {
    uint32_t at, len;
    int fd;
    int open; /* flags to open it anew with, when it is sent; -1: as it is */
};

struct local_conn {
    struct local *owner;
    uint32_t index;
    struct list free;   /* on the owner's free list */
    struct list ready;  /* something was seen by the loop */
    struct list dirty;  /* on one of the owner's: dirty, soon */
    struct list silent; /* until local_known */
    uint32_t uid;
    bool extra; /* beyond the share */
    uv_poll_t sock_poll, pid_poll;
    int fd, pidfd;       /* -1: closed */
    uint8_t closing;     /* uv handles whose close callback is to come */
    bool blocked;        /* the socket takes no more; out waits */
    struct list resting; /* blocked, and no event will tell when it is over */
    uint64_t rest_until_ns;
    uint32_t rests, fds_sent; /* one after another; since it had read all */
    bool deaf;                /* nobody will read: what is sent is dropped */
    bool held;                /* no messages, see local_hold */
    bool over;                /* ends when out is empty */
    bool eof;                 /* ends now */
    bool broken;              /* ends when what was received has been read */
    bool dead;                /* its process is gone */
    bool more;                /* its turn was over before its input was */
    uint32_t frames;          /* that it may still have taken in this turn */
    uint8_t *out;             /* OUT_MAX: frames from out_head to out_len */
    uint32_t out_head, out_len;
    struct local_mark marks[MARKS_MAX];
    uint32_t marks_count;
    uint8_t *parked; /* LOCAL_PACKET_MAX: rest of a packet not yet taken */
    uint32_t parked_at, parked_len;
    _Atomic uint64_t *cells;
    uint32_t cells_count;
    int cells_fd;
};

struct local {
    uv_loop_t *loop;
    struct local_calls calls;
    struct local_conn *conns;
    uint32_t conns_count, open;
    struct list free, ready;
    struct list dirty;  /* written to in this turn */
    struct list soon;   /* written to, but nobody waits for it */
    struct list silent; /* connections that are not known yet, oldest first */
    struct list resting;
    uv_timer_t rest;
    struct share *share;
    uint32_t own, own_used; /* places beyond the share */
    struct local_stats stats;
    uint8_t *buffers; /* out and parked of every connection, in one map */
    size_t buffers_bytes;
    uint8_t *packet; /* the one receive buffer */
    uv_poll_t listen_poll;
    uv_timer_t backoff;
    int listen_fd, reserve_fd;
    bool listen_ready, stopped;
    char path[108]; /* "": not ours to remove */
    uint64_t path_dev, path_ino;
};

/* Sets the timer for the first that has rested long enough. */
void local_rest(struct local *l);
/* A connection starts on accepted descriptors, which it takes over. */
void conn_start(struct local_conn *c, int fd, int pidfd, uint32_t uid);
/* Ends it now, with its reports. */
void conn_end(struct local_conn *c);
/* Sends one ANSWER that answers no message. */
void conn_tell(int fd, enum err err, const char *text);
/* Closes a socket so that the other end can read what was sent to it. */
void conn_close(int fd);
/* Gives the connection a turn in the next local_serve. */
void conn_ready(struct local_conn *c);
/* One turn of one connection. */
void conn_serve(struct local_conn *c);
/* Closes what is open, without reports. */
void conn_drop(struct local_conn *c);

#endif
