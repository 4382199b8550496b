/* local.h - the Unix sockets, one for engines and one for orders:
 * SOCK_SEQPACKET, peer credentials, a pidfd per connection, status cells. Cuts
 * packets into frames and hands them to its owner; knows nothing of rooms. By
 * which socket a connection came is all that tells the two apart. Owned by the
 * loop's thread; sockets are looked at in local_serve only, so that the owner
 * decides the order.
 *
 * Reports of one connection come as: opened, then messages, then ended, then
 * dead; the number is used again only after dead. Back-pressure: while bytes
 * wait for a connection that does not read, its messages are not read. */
#ifndef MMX_IO_LOCAL_H
#define MMX_IO_LOCAL_H

#include "core/flow.h"
#include "core/share.h"
#include "wire/wire.h"

#include <uv.h>

/* Free space that there is before a message is passed on: its answer always
 * fits. */
#define LOCAL_ANSWER_ROOM 4096

struct local_opt {
    const char *path;
    uint32_t mode;        /* access mode of the socket */
    const char *group;    /* "": leave it */
    int fd;               /* from socket activation; -1: bind path */
    const char *orders;   /* path of the socket for orders, mode 0600, whose
                             folder is made, mode 0700; NULL: there is none */
    uint32_t connections; /* numbers are lower than this: share->total, twice
                             `own`, and some for those that are being closed */
    struct share *share;  /* of limits.connections, by user; ours until stop */
    uint32_t own;         /* more than the share, for root and our own user,
                             and as many for those who give orders */
};

struct local_stats {
    uint64_t refused;  /* connections above limits.connections */
    uint64_t gave_way; /* connections without a HELLO, evicted by newer ones */
    uint64_t rested;   /* descriptors that had to wait for the kernel's limit */
};

/* Called from local_serve only. All of local_* but serve, stop and free may be
 * called inside. */
struct local_calls {
    void *ud;
    void (*opened)(void *ud, uint32_t conn, uint32_t uid, uint32_t gid,
        int32_t pid, const struct groups *groups);
    void (*ended)(void *ud, uint32_t conn);
    void (*dead)(void *ud, uint32_t conn);
    void (*message)(void *ud, uint32_t conn, const struct local_msg *m);
    /* A frame that local_get refused, or a packet that ends the connection; m
     * has its seq and fault. */
    void (*bad)(
        void *ud, uint32_t conn, enum err err, const struct local_msg *m);
    /* All queued output was sent. */
    void (*writable)(void *ud, uint32_t conn);
    /* Returns true to get no messages for now; a later local_serve asks
     * again. */
    bool (*full)(void *ud);
};

struct local;

/* Listens on the paths, or for engines on a socket that is passed. Errors are
 * logged. ERR_BUSY: another daemon serves a path. */
MUST_CHECK enum err local_new(struct local **out, uv_loop_t *loop,
    const struct local_opt *opt, const struct local_calls *calls);
/* Closes everything and removes the paths that local_new made; reports nothing
 * more. The loop has to run until its handles are closed, then local_free. */
void local_stop(struct local *l);
void local_free(struct local **l);

/* Handles what the loop has seen since the last call; call it once per turn of
 * the loop. Takes at most FRAMES_TURN frames of each connection and SERVE_NS of
 * time; the rest is left to the next call (local_busy). */
void local_serve(struct local *l);
/* True if local_serve has work without waiting for the loop. */
bool local_busy(const struct local *l);

/* Queues one frame, with fd unless that is -1 (it is not closed here and must
 * stay open until the connection ends). Ends a connection whose unread answers
 * leave no space for the frame. */
void local_send(struct local *l, uint32_t conn, struct span frame, int fd);
/* Queues one frame with a new open file description of the file that fd names,
 * for reading or also for writing: flags that an engine sets on it do not reach
 * others. The file is opened when the frame is sent. */
void local_send_opened(
    struct local *l, uint32_t conn, struct span frame, int fd, bool write);
/* Queues a frame that may wait: it goes with the next one, or after
 * local_flush_coalesced, which is due within LOCAL_COALESCE_MS while
 * local_coalescing. */
#define LOCAL_COALESCE_MS 1
void local_coalesce(struct local *l, uint32_t conn, struct span frame);
void local_flush_coalesced(struct local *l);
bool local_coalescing(const struct local *l);
/* Returns a writer into the space behind what is queued, for events and
 * reports; local_wrote queues the `bytes` written. No capacity: the connection
 * cannot take any. */
struct writer local_writer(struct local *l, uint32_t conn);
void local_wrote(struct local *l, uint32_t conn, size_t bytes);
/* Sends what is queued. Returns false if a rest waits until writable(). */
bool local_push(struct local *l, uint32_t conn);
/* True if output is queued. */
bool local_queued(const struct local *l, uint32_t conn);
/* True if output to the connection is dropped, because the engine will not read
 * it: prepare none. Messages that it sent before are still passed on. */
bool local_gone(const struct local *l, uint32_t conn);
/* True if output waits for the engine to read. */
bool local_blocked(const struct local *l, uint32_t conn);
/* Calls local_push for every connection that was written to; once per turn. */
void local_flush(struct local *l);
/* Takes no messages while `held`: an answer in pieces is under way. */
void local_hold(struct local *l, uint32_t conn, bool held);
/* Marks a connection that has sent its HELLO. When the table is full, those
 * without one are evicted, the oldest first, by newer ones of the same user or
 * of a user with fewer. */
void local_known(struct local *l, uint32_t conn);
const struct local_stats *local_stats(const struct local *l);
/* Ends the connection after what is queued. If it has ended already, its number
 * is released although its process lives: dead() follows. */
void local_end(struct local *l, uint32_t conn);

/* Creates the status cells; *fd is what WELCOME carries, and stays ours. Once
 * per connection. */
MUST_CHECK enum err local_cells(
    struct local *l, uint32_t conn, uint32_t cells, int *fd);
/* Stores one word, with release order; nothing if the connection has ended. */
void local_cell(struct local *l, uint32_t conn, uint32_t index, uint64_t word);

/* True if the connection came by the socket for orders. */
bool local_orders(const struct local *l, uint32_t conn);

/* Returns the number of connections whose socket is open. */
uint32_t local_count(const struct local *l);

#endif
