/* peer.h - control connections between daemons: numbered links that frames go
 * over (a peer is what a brain makes of one). encoded binds (links appear when
 * a HELLO comes), langd connects (links are named by the caller). Nothing is
 * queued for a link that does not stand, nothing waits, nothing is promised:
 * who needs an answer repeats.
 *
 * Owned by the loop's thread. Sockets are looked at in links_serve and
 * links_flush only. */
#ifndef MMX_IO_PEER_H
#define MMX_IO_PEER_H

#include "wire/wire.h"

#include <uv.h>

struct links_opt {
    const char *listen; /* NULL: connect only */
    uint32_t links;     /* numbers below this */
    uint32_t heartbeat_ms;
    uint64_t seed;     /* random: hash seed */
    uint64_t hello_ns; /* until the first HELLO of one that connected */
    uint64_t inbox;    /* bytes of a connection that may wait to be read */
};

/* Called from links_serve only. */
struct links_calls {
    void *ud;
    void (*up)(void *ud, uint32_t link);
    /* The number of an accepted link may be used again; a connected one keeps
     * trying until links_disconnect. */
    void (*down)(void *ud, uint32_t link);
    void (*message)(void *ud, uint32_t link, const struct peer_msg *m);
    /* A frame that peer_get refused. */
    void (*bad)(
        void *ud, uint32_t link, enum err err, const struct peer_msg *m);
    /* true: no messages for now. They come at a later links_serve. */
    bool (*full)(void *ud);
    /* True if the peer on an accepted link is known: the others are ended when
     * numbers are short. NULL: all are. */
    bool (*known)(void *ud, uint32_t link);
};

/* Since the start; for stats. */
struct links_stats {
    uint64_t packets_in, packets_out, frames_out;
    uint64_t dropped_frames;  /* the link was down or its queue full */
    uint64_t dropped_packets; /* from a connection that has no link */
    /* Connections of others that were ended, by why. */
    uint64_t strangers;    /* what they sent is not ours */
    uint64_t silent_ended; /* no HELLO in time */
    uint64_t crowded_out;  /* too many of them, this one was unknown */
    uint64_t flooded;      /* more than may wait */
    uint64_t refused;      /* no descriptor was left */
    uint64_t dials_failed; /* our own: no socket, or a name without address */
};

struct links;

/* ERR_INTERNAL with a log line when the address cannot be bound. */
MUST_CHECK enum err links_new(struct links **out, uv_loop_t *loop,
    const struct links_opt *opt, const struct links_calls *calls);
/* Closes everything; the loop has to run until its handles are closed, then
 * links_free. */
void links_stop(struct links *p);
void links_free(struct links **p);

/* The address that was bound, with its real port. Empty: none. */
void links_endpoint(struct links *p, char *out, size_t size);

/* Starts to connect to tcp://host:port; up() says when it stands. Whatever
 * fails, a name or a socket that cannot be had, is tried again until
 * links_disconnect; ERR_MALFORMED: it is no such address. */
MUST_CHECK enum err links_connect(
    struct links *p, uint32_t link, struct span address);
/* Forgets the link, without down(), and ends its connection. */
void links_disconnect(struct links *p, uint32_t link);

/* Puts one frame into the link's packet of this turn. */
void links_send(struct links *p, uint32_t link, struct span frame);
/* The same for a frame that nobody waits for: it goes with the next one, or
 * after links_hurry, which is due within LINKS_SOON_MS when links_wait. */
#define LINKS_SOON_MS 1
void links_send_soon(struct links *p, uint32_t link, struct span frame);
void links_hurry(struct links *p);
bool links_wait(const struct links *p);
/* Sends the packets of this turn. */
void links_flush(struct links *p);

/* Carries out what has come, a bounded amount of it. */
void links_serve(struct links *p);
/* Is there more for links_serve without waiting for the loop? */
bool links_busy(const struct links *p);

const struct links_stats *links_stats(const struct links *p);

#endif
