/* local.h - the Unix socket for engines: SOCK_SEQPACKET, peer credentials, a
 * pidfd per connection, status cells. Cuts packets into frames and hands them
 * to its owner; knows nothing of rooms. Owned by the loop's thread; sockets
 * are looked at in local_serve only, so that the owner decides the order.
 *
 * Reports of one connection come as: opened, then messages, then ended, then
 * dead; the number is used again only after dead. Back-pressure: while bytes
 * wait for a connection that does not read, its messages are not read. */
#ifndef MMX_IO_LOCAL_H
#define MMX_IO_LOCAL_H

#include "core/share.h"
#include "wire/wire.h"

#include <uv.h>

/* Free space that there is before a message is handed over: its answer always
 * fits. */
#define LOCAL_ANSWER_ROOM 4096

struct local_opt {
    const char *path;
    uint32_t mode;        /* access mode of the socket */
    const char *group;    /* "": leave it */
    int fd;               /* from socket activation; -1: bind path */
    uint32_t connections; /* their numbers are lower: share->total, `own`, and
                             some that are being closed */
    struct share *share;  /* of limits.connections, by user; ours until stop */
    uint32_t own;         /* beyond it for root and our own user */
};

struct local_stats {
    uint64_t refused;  /* connections: limits.connections */
    uint64_t gave_way; /* silent ones, for a newer one */
    uint64_t rested;   /* descriptors that had to wait */
};

/* Called from local_serve only. Calls of local_* other than serve, stop and
 * free are allowed inside. */
struct local_calls {
    void *ud;
    void (*opened)(
        void *ud, uint32_t conn, uint32_t uid, uint32_t gid, int32_t pid);
    void (*ended)(void *ud, uint32_t conn);
    void (*dead)(void *ud, uint32_t conn);
    void (*message)(void *ud, uint32_t conn, const struct local_msg *m);
    /* A frame that local_get refused, or a packet that ends the connection:
     * m has its seq and fault. */
    void (*bad)(
        void *ud, uint32_t conn, enum err err, const struct local_msg *m);
    /* What waited has gone. */
    void (*writable)(void *ud, uint32_t conn);
    /* true: no messages for now. They come at a later local_serve. */
    bool (*full)(void *ud);
};

struct local;

/* Listens. Errors are logged: ERR_BUSY when another daemon serves the path. */
MUST_CHECK enum err local_new(struct local **out, uv_loop_t *loop,
    const struct local_opt *opt, const struct local_calls *calls);
/* Closes everything and removes the path if we made it. No more reports. The
 * loop has to run until its handles are closed, then local_free. */
void local_stop(struct local *l);
void local_free(struct local **l);

/* Carries out what the loop has seen since the last call: once per turn. Takes
 * some frames of each connection and some time at most; what is left has its
 * turn with the next call (local_busy). */
void local_serve(struct local *l);
/* Is there something for local_serve without waiting for the loop? */
bool local_busy(const struct local *l);

/* Queues one frame, with fd unless it is -1 (not closed here; must stay open
 * until the connection ends). A connection that leaves so many answers unread
 * that one does not fit is ended. */
void local_send(struct local *l, uint32_t conn, struct span frame, int fd);
/* The same with an open file description of its own, for reading or also for
 * writing: what an engine sets in it does not reach others. It is made when
 * the frame is sent; fd names a file that may be opened again. */
void local_send_opened(
    struct local *l, uint32_t conn, struct span frame, int fd, bool write);
/* The same for a frame that nobody waits for: it goes with the next one, or
 * after local_hurry, which is due within LOCAL_SOON_MS when local_waits. */
#define LOCAL_SOON_MS 1
void local_send_soon(struct local *l, uint32_t conn, struct span frame);
void local_hurry(struct local *l);
bool local_waits(const struct local *l);
/* Space for events and reports behind what is queued; local_wrote says how
 * many bytes were used. Empty capacity: the connection cannot take any. */
struct writer local_writer(struct local *l, uint32_t conn);
void local_wrote(struct local *l, uint32_t conn, size_t bytes);
/* Sends what is queued. false: the rest waits until writable(). */
bool local_push(struct local *l, uint32_t conn);
/* Is anything queued? */
bool local_queued(const struct local *l, uint32_t conn);
/* True if nobody will read what is sent: build nothing for it. What it sent
 * before it went is still handed over, in its turns. */
bool local_gone(const struct local *l, uint32_t conn);
/* Waits for the engine to read. */
bool local_blocked(const struct local *l, uint32_t conn);
/* local_push for all that were written to; once per turn. */
void local_flush(struct local *l);
/* While held, no messages are taken: an answer in pieces is under way. */
void local_hold(struct local *l, uint32_t conn, bool held);
/* It has said who it is. Until then it gives way to a newer one of the same
 * user, or of one that has fewer, when the table is full: the oldest first. */
void local_known(struct local *l, uint32_t conn);
const struct local_stats *local_stats(const struct local *l);
/* Ends the connection after what is queued. One that has ended already is
 * forgotten although its process lives: dead() follows. */
void local_end(struct local *l, uint32_t conn);

/* Makes the status cells; *fd is what WELCOME carries. Once a connection. */
MUST_CHECK enum err local_cells(
    struct local *l, uint32_t conn, uint32_t cells, int *fd);
/* Release store of one word; nothing when the connection has ended. */
void local_cell(struct local *l, uint32_t conn, uint32_t index, uint64_t word);

/* Connections whose socket stands. */
uint32_t local_count(const struct local *l);

#endif
