/* peer.h - control connections between daemons: numbered links that carry
 * frames (a brain turns each into a peer). encoded binds (a HELLO makes a
 * link), langd connects (the caller chooses the numbers). Frames for a link
 * that is down are dropped, and delivery is not guaranteed: a sender that needs
 * an answer repeats.
 *
 * Owned by the loop's thread. Sockets are read and written only in links_serve
 * and links_flush. */
#ifndef MMX_IO_PEER_H
#define MMX_IO_PEER_H

#include "core/flow.h"
#include "io/keys.h"
#include "wire/wire.h"

#include <uv.h>

struct links_opt {
    const char *listen; /* NULL: only connects */
    uint32_t links;     /* numbers are below this */
    uint32_t heartbeat_ms;
    uint64_t seed;     /* random: hash seed */
    uint64_t hello_ns; /* limit from accept to HELLO */
    uint64_t inbox;    /* limit of a connection's unread bytes */
    const struct keys
        *keys; /* must stay valid; NULL: connections are in the clear */
};

/* Called from links_serve only. */
struct links_calls {
    void *ud;
    /* Takes an event of a link, whose time is not set. EV_LINK_DOWN: no message
     * of the link is passed on until it is up again, not even one that was
     * received before. An accepted link's number may be reused from now on; for
     * our own link connecting is repeated until links_disconnect.
     * EV_LINK_REFUSED: the other end keeps refusing our link for its key, or it
     * cannot be connected; text is static, or strerror's. EV_PEER_BAD: a frame
     * that peer_get refused; link NONE: of no link. */
    void (*event)(void *ud, struct event *ev);
    /* Returns true to stop messages for now, also within a packet; a later
     * links_serve asks again. */
    bool (*full)(void *ud);
    /* True if the peer of an accepted link is known: other links are evicted
     * when numbers run out. NULL: all are known. */
    bool (*known)(void *ud, uint32_t link);
};

/* Counted since the start. */
struct links_stats {
    uint64_t packets_in, packets_out, frames_out;
    uint64_t dropped_frames;  /* the link was down or its queue full */
    uint64_t dropped_packets; /* not whole, or not of a link that is up */
    /* Accepted connections that we ended, by reason. */
    uint64_t strangers;    /* bytes that are not our protocol */
    uint64_t silent_ended; /* no HELLO in time */
    uint64_t crowded_out;  /* evicted by newer ones, without a known peer */
    uint64_t flooded;      /* too many unread bytes */
    uint64_t refused;      /* no descriptor was left */
    uint64_t keys_refused; /* handshakes, both ways, with a wrong key or none */
    /* Our connections: no socket, or a name without address. */
    uint64_t dials_failed;
};

struct links;

/* Binds opt->listen, if not NULL. ERR_INTERNAL with a log line: it cannot be
 * bound. */
MUST_CHECK enum err links_new(struct links **out, uv_loop_t *loop,
    const struct links_opt *opt, const struct links_calls *calls);
/* Closes everything. Run the loop until its handles are closed, then call
 * links_free. */
void links_stop(struct links *p);
void links_free(struct links **p);

/* Writes the bound address with its real port; empty: none. */
void links_endpoint(struct links *p, char *out, size_t size);

/* Starts to connect to tcp://host:port; up() reports success. A failed lookup
 * or connect is repeated until links_disconnect. If keys have owners, the other
 * end must be the encoder of that name (empty: any encoder). ERR_MALFORMED: not
 * such an address. */
MUST_CHECK enum err links_connect(
    struct links *p, uint32_t link, struct span address, struct span name);
/* Ends the link's connection and releases its number, without down(). */
void links_disconnect(struct links *p, uint32_t link);

/* Returns the daemon that owns the key of a link that is up; NULL: the key is
 * for any daemon. Valid until links_rekey. */
const struct identity *links_owner(const struct links *p, uint32_t link);

/* Appends one frame to the link's packet of this turn. coalesce: it may wait
 * for the link's next one, see links_flush. */
void links_send(
    struct links *p, uint32_t link, struct span frame, bool coalesce);
/* Sends the packets of this turn. True if frames that may wait are left: they
 * go with the next call, which is due in 1 ms. */
bool links_flush(struct links *p);

/* Handles received packets, at most a turn's share of them. */
void links_serve(struct links *p);
/* True if links_serve can do work now, without new events. */
bool links_busy(const struct links *p);

/* Changes to other keys, which must stay valid; the old ones are not used any
 * more. Both sets must have keys. Our connection stays if its key is in the new
 * set; otherwise it is made again. The listener ends links whose key is no
 * longer admitted, or belongs to another daemon now. If its first key changed,
 * it restarts on its port: all its links go down, and come back with a key that
 * both sides have. ERR_NO_BLOCKS: no socket for that; nothing has changed. Not
 * inside a callback. */
MUST_CHECK enum err links_rekey(struct links *p, const struct keys *keys);
/* Changes limits of links_opt. */
void links_limits(struct links *p, uint64_t hello_ns, uint64_t inbox);

const struct links_stats *links_stats(const struct links *p);

/* The last accepted connection whose key was refused. */
struct links_refusal {
    char why[96];
    uint64_t at_ns; /* uv_hrtime(); 0: none yet */
    char from[64];  /* its address */
};
/* NULL: none yet. */
const struct links_refusal *links_refusal(const struct links *p);

#endif
