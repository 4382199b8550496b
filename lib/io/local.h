/* local.h - the Unix sockets, one for engines and one for orders:
 * SOCK_SEQPACKET, peer credentials, a pidfd per connection, status cells. Cuts
 * packets into frames and passes them to its owner; knows nothing of rooms.
 * Connections of the two sockets differ only in local_orders(). Owned by the
 * loop's thread; sockets are read only in local_serve, so that the owner
 * decides the order.
 *
 * Reports of a connection come in this order: opened, messages, ended, dead.
 * Its number is used again only after dead. Back-pressure: while output waits
 * for an engine that does not read, its messages are not read. */
#ifndef MMX_IO_LOCAL_H
#define MMX_IO_LOCAL_H

#include "core/flow.h"
#include "core/share.h"
#include "wire/wire.h"

#include <uv.h>

/* Space required before a message is passed on, so that its answer fits. */
#define LOCAL_ANSWER_ROOM 4096

struct local_opt {
    const char *path;
    uint32_t mode;        /* access mode of the socket */
    const char *group;    /* "": unchanged */
    int fd;               /* from socket activation; -1: bind path */
    const char *orders;   /* path of the socket for orders, mode 0600, in a
                             folder that is made with mode 0700; NULL: no such
                             socket */
    uint32_t connections; /* numbers are below this: share->total, twice `own`,
                             and some for connections that are being closed */
    struct share *share;  /* of limits.connections, by user; used until stop */
    uint32_t own;         /* connections beyond the share, for root and our own
                             user, and as many for orders */
};

struct local_stats {
    uint64_t refused;  /* connections above limits.connections */
    uint64_t gave_way; /* evicted before their HELLO by newer ones */
    uint64_t rested;   /* sends that waited for the kernel's limit on
                          descriptors */
    uint32_t open;     /* connections whose socket is open now */
};

/* Called from local_serve only. All of local_* except serve, stop and free may
 * be called inside. */
struct local_calls {
    void *ud;
    /* Takes an event of a connection, whose time is not set: EV_CONN_OPEN,
     * EV_CONN_END, EV_CONN_DEAD, EV_LOCAL; EV_LOCAL_BAD also for a packet that
     * ends the connection. */
    void (*event)(void *ud, struct event *ev);
    /* All queued output was sent. */
    void (*writable)(void *ud, uint32_t conn);
    /* Returns true to stop messages for now; a later local_serve asks again. */
    bool (*full)(void *ud);
};

struct local;

/* Listens on the paths; for engines also on a passed socket. Errors are logged.
 * ERR_BUSY: another daemon serves a path. */
MUST_CHECK enum err local_new(struct local **out, uv_loop_t *loop,
    const struct local_opt *opt, const struct local_calls *calls);
/* Closes everything and removes the paths that local_new made; reports nothing
 * more. Run the loop until its handles are closed, then call local_free. */
void local_stop(struct local *l);
void local_free(struct local **l);

/* Handles the loop's events since the last call; call it once per turn of the
 * loop. Takes at most FRAMES_TURN frames of each connection, for at most
 * SERVE_NS; the rest waits for the next call (local_busy). */
void local_serve(struct local *l);
/* True if local_serve can do work now, without new events. */
bool local_busy(const struct local *l);

/* Queues one frame, with fd unless that is -1. The caller keeps fd open at
 * least until the connection ends. Ends a connection whose unread answers leave
 * no space for the frame. */
void local_send(struct local *l, uint32_t conn, struct span frame, int fd);
/* Queues one frame with a new open file description of fd's file, for reading
 * or also for writing. Flags that one engine sets then do not affect others.
 * The file is opened when the frame is sent. */
void local_send_opened(
    struct local *l, uint32_t conn, struct span frame, int fd, bool write);
/* Queues a frame that may wait for the connection's next one: see local_flush.
 */
void local_coalesce(struct local *l, uint32_t conn, struct span frame);
/* Returns a writer for the space behind the queued output, for events and
 * reports. Capacity 0: the connection takes none now, since it ends or its
 * engine does not read. */
struct writer local_writer(struct local *l, uint32_t conn);
/* Queues the bytes written there. True if output is queued. */
bool local_wrote(struct local *l, uint32_t conn, size_t bytes);
/* Sends queued output. False: part of it waits until writable(). */
bool local_push(struct local *l, uint32_t conn);
/* True if the connection's output is dropped, because the engine will not read
 * it: prepare none. Its earlier messages are still passed on. */
bool local_gone(const struct local *l, uint32_t conn);
/* Calls local_push for each connection with new output; once per turn. True if
 * frames that may wait are left: they go with the next call, which is due in
 * 1 ms. */
bool local_flush(struct local *l);
/* Stops reading the connection's messages while `held`: its answer is sent in
 * pieces. */
void local_hold(struct local *l, uint32_t conn, bool held);
/* Records that the connection has sent HELLO. When the table is full, newer
 * connections of the same user, or of a user with fewer, evict those without
 * HELLO, oldest first. */
void local_known(struct local *l, uint32_t conn);
const struct local_stats *local_stats(const struct local *l);
/* Ends the connection after its queued output. If it has ended already, its
 * number is released although its process lives: dead() follows. */
void local_end(struct local *l, uint32_t conn);

/* Creates the status cells; WELCOME carries *fd, which we keep. Once per
 * connection. */
MUST_CHECK enum err local_cells(
    struct local *l, uint32_t conn, uint32_t cells, int *fd);
/* Stores one word, with release order; no effect on an ended connection. */
void local_cell(struct local *l, uint32_t conn, uint32_t index, uint64_t word);

/* True if the client connected to the socket for orders. */
bool local_orders(const struct local *l, uint32_t conn);

#endif
