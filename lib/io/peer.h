/* peer.h - control connections between daemons: numbered links that carry
 * frames (a brain turns each into a peer). encoded binds (links appear when a
 * HELLO comes), langd connects (the caller chooses the numbers). Frames for a
 * link that is down are dropped, and delivery is never promised: a sender that
 * needs an answer repeats.
 *
 * Owned by the loop's thread. Sockets are looked at in links_serve and
 * links_flush only. */
#ifndef MMX_IO_PEER_H
#define MMX_IO_PEER_H

#include "io/keys.h"
#include "core/peers/trouble.h"
#include "wire/wire.h"

#include <uv.h>

struct links_opt {
    const char *listen; /* NULL: connect only */
    uint32_t links;     /* their numbers are lower than this */
    uint32_t heartbeat_ms;
    uint64_t seed;     /* random: hash seed */
    uint64_t hello_ns; /* from an accepted connection to its HELLO, at most */
    uint64_t inbox;    /* bytes of a connection that may wait to be read */
    const struct keys
        *keys; /* stay valid; NULL: connections are in the clear */
};

/* Called from links_serve only. */
struct links_calls {
    void *ud;
    void (*up)(void *ud, uint32_t link);
    /* An accepted link's number may be reused from now on; a connected link is
     * tried again until links_disconnect. */
    void (*down)(void *ud, uint32_t link);
    void (*message)(void *ud, uint32_t link, const struct peer_msg *m);
    /* A frame that peer_get refused. */
    void (*bad)(
        void *ud, uint32_t link, enum err err, const struct peer_msg *m);
    /* Returns true to get no messages for now; a later links_serve asks
     * again. */
    bool (*full)(void *ud);
    /* True if the peer on an accepted link is known: the others are evicted
     * when numbers are short. NULL: all are known. */
    bool (*known)(void *ud, uint32_t link);
    /* The other side refuses a link of ours for its key, again and again; why
     * is static text. NULL: not of interest. */
    void (*refused)(void *ud, uint32_t link, const char *why);
    /* A link of ours cannot be connected; why is static text, or strerror's.
     * NULL: not of interest. */
    void (*unreached)(
        void *ud, uint32_t link, enum trouble trouble, const char *why);
};

/* Counted since the start. */
struct links_stats {
    uint64_t packets_in, packets_out, frames_out;
    uint64_t dropped_frames;  /* the link was down or its queue full */
    uint64_t dropped_packets; /* from a connection that has no link */
    /* Accepted connections that were ended, by reason. */
    uint64_t strangers;    /* what they sent is not our protocol */
    uint64_t silent_ended; /* no HELLO in time */
    uint64_t crowded_out;  /* evicted by newer ones, no peer being known */
    uint64_t flooded;      /* more bytes waited than may */
    uint64_t refused;      /* no descriptor was left */
    uint64_t
        keys_refused; /* handshakes, accepted and ours: a wrong key, none */
    /* Connections of ours: no socket, or a name without address. */
    uint64_t dials_failed;
};

struct links;

/* Binds opt->listen, if there is one. ERR_INTERNAL with a log line: it cannot
 * be bound. */
MUST_CHECK enum err links_new(struct links **out, uv_loop_t *loop,
    const struct links_opt *opt, const struct links_calls *calls);
/* Closes everything; the loop has to run until its handles are closed, then
 * links_free. */
void links_stop(struct links *p);
void links_free(struct links **p);

/* Writes the address that was bound, with its real port. Empty: none. */
void links_endpoint(struct links *p, char *out, size_t size);

/* Starts to connect to tcp://host:port; up() reports success. A failure, of the
 * lookup as of the socket, is tried again until links_disconnect. Where keys
 * have owners it has to be the encoder of that name (empty: any of them).
 * ERR_MALFORMED: not such an address. */
MUST_CHECK enum err links_connect(
    struct links *p, uint32_t link, struct span address, struct span name);
/* Ends the link's connection and releases its number, without down(). */
void links_disconnect(struct links *p, uint32_t link);

/* Returns the daemon whose key a link that is up is under; NULL: that of any.
 * Valid until links_rekey. */
const struct identity *links_owner(const struct links *p, uint32_t link);

/* Returns a number for the host that an accepted link comes from, as far as its
 * address says: of IPv6 the network counts, in which a host has any number of
 * them. 0: not known. */
uint64_t links_host(const struct links *p, uint32_t link);

/* True if the other end of a link that we made is known to be none of this
 * host's addresses, in our network namespace. */
bool links_far(const struct links *p, uint32_t link);

/* True if the link's packet takes a frame of `len` bytes, so that it does not
 * leave for that. */
bool links_fits(const struct links *p, uint32_t link, uint32_t len);

/* Appends one frame to the link's packet of this turn. */
void links_send(struct links *p, uint32_t link, struct span frame);
/* Appends a frame that may wait: it goes with the next one, or after
 * links_flush_coalesced, which is due within LINKS_COALESCE_MS while
 * links_coalescing. */
#define LINKS_COALESCE_MS 1
void links_coalesce(struct links *p, uint32_t link, struct span frame);
void links_flush_coalesced(struct links *p);
bool links_coalescing(const struct links *p);
/* Sends the packets of this turn. */
void links_flush(struct links *p);

/* Handles what has come, at most a turn's share of it. */
void links_serve(struct links *p);
/* True if links_serve has work without waiting for the loop. */
bool links_busy(const struct links *p);

/* Goes on with other keys, which stay valid; the old ones are not used any
 * more. There were keys, and there are. A connection of ours whose key is among
 * them stays, any other is made again. A listener ends the links whose keys are
 * let in no more, or as another daemon's. One whose first key is another begins
 * anew on its port: all its links go down, and come back with a key that both
 * sides have. ERR_NO_BLOCKS: no socket is left for that, nothing has changed.
 * Not from within a callback. */
MUST_CHECK enum err links_rekey(struct links *p, const struct keys *keys);
/* Changes limits of links_opt. */
void links_limits(struct links *p, uint64_t hello_ns, uint64_t inbox);

const struct links_stats *links_stats(const struct links *p);

/* The last accepted connection whose key was refused. */
struct links_refusal {
    char why[96];
    uint64_t at_ns; /* uv_hrtime(); 0: there was none */
    char from[64];  /* its address */
};
/* NULL: there was none. */
const struct links_refusal *links_refusal(const struct links *p);

#endif
