/* client.h - the inside of a handle, shared by the files of lib/client.
 * Everything here is guarded by mmx.lock unless stated otherwise; functions are
 * called with the lock held and return negative mmx_error codes.
 *
 * assert() is for faults of this library only (owner, range, list) and stays on
 * in every build. Arguments of engines and messages of the daemon are never
 * asserted: they are refused. */
#ifndef MMX_CLIENT_CLIENT_H
#define MMX_CLIENT_CLIENT_H

#include "client/mmx_binding.h"
#include "base/list.h"
#include "wire/layout.h"
#include "client/window.h"
#include "wire/wire.h"

#undef NDEBUG
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#define PACKETS      64   /* packets queued while the daemon does not read */
#define ASKED_MAX    8192 /* messages without an answer; a power of two */
#define RUNS_MAX     2048 /* capacity of an event's blob */
#define MAPS_MAX     32
#define MAP_NONE     UINT8_MAX
#define LENDERS_MAX  16
#define SAID_BYTES   (8u << 20) /* answers for a binding */
#define LENDER_POOLS 16         /* pools that one lender can have */
#define NOTES_MAX    32
#define SPACES_MAX   64
#define TICKETS_MAX  4096
#define BUCKETS      1024 /* hash buckets of requests; a power of two */
#define WAIT_MS      20
#define SILENT_MS    750 /* a daemon that is alive has answered by then */
#define CELLS_USUAL  1024
#define CELLS_MAX    65536
#define CLIENT_ALIVE UINT64_C(0x6d6d782d616c6976)

enum client_link { LINK_DOWN, LINK_HELLO, LINK_UP };

/* The answer that a waiting thread expects; on its stack. */
struct client_reply {
    bool over;
    int err, fd;
    uint32_t a, b; /* numbers of an ANSWER */
    uint16_t number;
    struct mmx_pool pool; /* fields[].data: offset of the region */
    char share[17];       /* kind of map; empty or memfd: by descriptor */
    uint8_t handle[128];
    uint32_t handle_len;
};

/* A message that was sent and not answered yet. */
struct client_asked {
    uint8_t type; /* 0: answered */
    uint32_t cell, tag;
    uint64_t id;
    struct client_reply *reply;
};

/* One wait; on its stack. */
struct client_patience {
    int timeout_ms;
    uint64_t end;
    uint32_t doubt; /* seq of its question; 0: not asked yet */
};

struct client_packet {
    uint32_t len;
    uint8_t bytes[LOCAL_PACKET_MAX];
};

/* Variable-sized data of a room. Lies in memory whose pages are allocated when
 * they are touched: most rooms touch one or two. */
struct client_store {
    struct window_blocks runs[RUNS_MAX];
    uint8_t aux[AUX_MAX];
    char text[4096];
};

/* One use of one cell. tag 0: free or retired. */
struct client_room {
    uint64_t id, generation;
    struct secret secret;
    void *user;
    uint32_t tag;
    uint32_t serial;       /* number of the connection that opened the room */
    uint32_t what, seen;   /* bits not handed out yet; all bits so far */
    uint32_t next, queued; /* links: free stack or retired; pending */
    uint32_t first, runs, rows, total, base, a, b;
    uint32_t stream_rows, aux_len;
    uint64_t due;   /* time of the next look at it (wait.c); 0: none */
    uint32_t doubt; /* seq of the question about which the look waits */
    uint32_t asked; /* seq of the message that opened the room */
    uint8_t state, reason, storage;
    uint8_t refused_op, refused_reason;
    bool pooled;   /* may show rows */
    bool attached; /* opened by another handle of the session */
    bool unbound;  /* the daemon has refused to open it */
    uint8_t map;   /* index of the pool's map; MAP_NONE: not reported yet */
    int pool;      /* number of the pool in the last event; -1: none */
};

/* A refused decline: the only refusal without a room. */
struct client_note {
    uint64_t id;
    uint8_t reason;
    char text[128];
};

/* A space of sequence ids; `number` is the daemon's. */
struct client_space {
    bool used;
    uint32_t number, serial;
    uint32_t asked; /* messages without an answer */
    char name[64];
};

enum client_ticket_state {
    TICKET_ASKED,
    TICKET_WAITS,
    TICKET_HELD,
    TICKET_LOST
};

/* One request of a space, until it is released or its loss is handed out. */
struct client_ticket {
    void *user;
    struct list in_bucket; /* linked while find() returns it */
    struct list in_line;   /* pending events, handed-out losses, or free */
    uint32_t tag;          /* 0: free */
    uint32_t asks;         /* asks not answered yet; events are older */
    uint32_t seq, generation;
    uint8_t state, reason, space;
    char request[64];
};

struct client_map {
    bool used, told; /* told: the callback was run for it */
    uint16_t number;
    uint32_t serial;
    struct mmx_pool pool;
    /* The map shows a pool of lenders[lender - 1]; 0: of the daemon itself. */
    uint8_t lender;
    /* a thread works on it without the lock; to be unmapped */
    bool busy, going;
    bool gone;       /* of a binding: it is not mapped any more */
    uint64_t filled; /* bytes whose pages are mapped */
};

/* An encoder on this host that the daemon has named in LENDER (lend.c). */
struct client_lender {
    uint16_t number; /* 0: a free entry */
    uint32_t serial; /* number of the connection whose LENDER named it */
    int sock;        /* connection to the encoder; -1: none */
    bool mapped;     /* the encoder has answered MAP */
    bool cut;        /* that connection has ended */
    bool bye, done;  /* BYE was sent; nothing more to send */
    /* no room can have rows in its maps: the handle leaves it */
    bool parts;
    bool heard;    /* a MAPPED was sent, perhaps with no pool */
    uint16_t said; /* the pools in the last MAPPED */
    uint32_t last; /* seq of that MAPPED: rooms asked for later know it */
    uint64_t due;  /* no try to connect before this time */
    uint64_t token, epoch;
    char name[65], path[108];
};

struct mmx {
    pthread_mutex_t lock;
    uint64_t *alive; /* a page that reads as 0 in a forked child */

    int ep, sock, timer, wakeup; /* wakeup: readable while events are pending */
    int bell; /* readable after mmx_wake; -1: the handle is of no binding */
    /* Answers for a binding, from said_head to said_tail; those up to said_seen
     * are known to it. NULL: the handle is of no binding. */
    uint8_t *said;
    uint32_t said_head, said_tail, said_seen;
    bool no_lend, ended; /* ended: it does not connect again */
    enum client_link link;
    bool woken, polls_out, up_reported, say_up, say_down;
    int hello_err;
    uint32_t serial, backoff_ms, corks;

    uint32_t seq;      /* of the last message */
    uint32_t answered; /* messages up to this one are answered */
    uint32_t doubt;    /* the last one that asks whether the daemon lives */
    /* no room is due before this time; TIME_NEVER: none is due */
    uint64_t due;
    struct client_asked asked[ASKED_MAX];
    struct client_packet out[PACKETS];
    uint32_t out_head, out_count;
    uint8_t in[LOCAL_PACKET_MAX];

    /* Read without the lock: page has the daemon's cells (zero while the link
     * is down), own the last words of rooms that the daemon no longer shows. */
    _Atomic uint64_t *page, *own;
    size_t page_bytes;
    uint32_t cells, granted, tag;

    struct client_room *rooms;
    struct client_store *stores;
    uint32_t free_head, pending_head, pending_tail, retired_head;
    uint32_t rooms_news; /* rooms with an event */

    struct client_note notes[NOTES_MAX];
    uint32_t notes_head, notes_count;

    struct client_space spaces[SPACES_MAX];
    struct client_ticket *tickets;
    struct list buckets[BUCKETS];
    struct list tickets_news, tickets_given, tickets_free; /* by in_line */
    uint32_t tickets_used, ticket_tag;

    struct client_map maps[MAPS_MAX];
    struct client_lender lenders[LENDERS_MAX];
    bool lend_due; /* client_lend() has work now */
    /* client_lend() has work when a room ends or is released */
    bool lend_waits;
    mmx_map_fn on_map;
    void *on_map_ud;

    struct mmx_info info;
    uint8_t role;
    char path[108], engine[65], session[65];
    char error[512];
};

/* handle.c: what all calls share */

/* True in a child of the process that opened the handle, and for NULL: a
 * binding's finalizers run in any order. */
bool client_forked(const mmx *m);
/* Takes the lock and returns 0; -MMX_E_FORKED: in a forked child, not taken. */
int client_lock(mmx *m);
/* Makes the wakeup fd readable while events are pending, then unlocks. */
void client_unlock(mmx *m);
/* Runs a call with the lock held; returns its result, or -MMX_E_FORKED. */
#define CLIENT_LOCKED(m, call)                                                 \
    (client_lock(m) ? -MMX_E_FORKED : client_unlocked((m), (call)))
int client_unlocked(mmx *m, int result);
/* Waits, the lock not held, until the socket is readable: at most `ms` (-1: no
 * limit) and at most WAIT_MS, because another thread may have received the
 * answer; or until a signal. */
void client_poll(int sock, int64_t ms);
/* Returns the time in milliseconds. */
uint64_t client_now(void);
/* Returns the time at which a timeout (-1: none) ends. */
uint64_t client_end(int timeout_ms);
/* Returns the milliseconds left until `end`; -1: no limit. */
int64_t client_left(uint64_t end);
/* Returns the word of a room's cell: the handle's own, else the daemon's. The
 * daemon's is read first: at the end of a link it is erased only after the
 * handle's own was written. */
uint64_t client_word(const mmx *m, mmx_room h);
/* True if the file has that many bytes and cannot change its size, so that no
 * read of them is a SIGBUS. */
bool client_sealed(int fd, uint64_t bytes);
/* Sets the text that mmx_error_text returns. */
void client_error(mmx *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Returns the reason for a wait of timeout_ms that has ended, and sets the
 * error text. silent: the daemon has answered nothing else either. */
int client_expired(mmx *m, int timeout_ms, bool silent);
/* Sets a time soon after the room's deadline, if any, for client_due_look(). */
void client_due(mmx *m, struct client_room *r, uint32_t deadline_ms);
/* Sets the timer to m->due, while the link is up. */
void client_arm(mmx *m);
/* Copy a caller's struct that begins with its size in, or one out to it: the
 * part that both sides know. False if the pointer or its size is bad. */
#define CLIENT_TAKE(to, from) client_take(&(to), sizeof(to), (from))
#define CLIENT_GIVE(to, from) client_give((to), &(from), sizeof(from))
bool client_take(void *to, size_t size, const void *from);
bool client_give(void *to, void *from, size_t size);

/* for a binding */

/* Keeps an answer for a binding, if the handle is of one, and owns its fd. */
void client_tell(mmx *m, struct mmx_answer a);
/* Keeps a pool and its descriptor for a binding. */
void client_offer(mmx *m, uint32_t seq, struct client_reply *r, int id);
/* Closes the descriptors that a binding has not taken. */
void client_untold(mmx *m);
/* Notes the pool of an answer to mmx_ask_pool and offers it. */
void client_pool_answer(mmx *m, uint32_t seq, struct client_reply *r);
/* True if the pool lies in host memory. */
bool client_is_host(const struct client_reply *r);
/* Returns the map of the daemon's pool of this name, else a free entry; NULL:
 * none is free. */
struct client_map *client_map_of(mmx *m, const char *name);

/* link.c: the connection */

/* Connects to a socket, for mmx_fd too. Returns -1, with the error text and
 * errno, if that fails. */
int client_dial(mmx *m, const char *path);
/* Closes a socket of client_dial. */
void client_hang(mmx *m, int *sock);
/* Takes the pool of a POOL_INFO; err: it is malformed. */
void client_take_pool(struct client_reply *r, const struct local_pool_info *i);
/* Connects the socket and sends HELLO, or arms the timer for another try. */
void client_connect(mmx *m);
/* Ends the connection; every room on it that had not ended fails. */
void client_hang_up(mmx *m);
/* Sends queued packets until the socket is full. */
void client_flush(mmx *m);
/* Receives and handles at most RECEIVE_PACKETS packets. False: there may be
 * more. */
bool client_receive(mmx *m);
/* True if the message with this seq was answered, or its connection ended. */
bool client_is_answered(const mmx *m, uint32_t seq);
/* Queues one message and, unless corked, sends it. Sets the message's seq.
 * reply may be NULL. */
int client_ask(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply);
/* Queues one message without sending it. */
int client_put(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply);
/* True if messages of this type open a room. */
bool client_is_open_op(unsigned type);
/* Asks the daemon whether it lives, unless such a question is unanswered: asks
 * for a pool of an impossible name, which any daemon answers and no counter
 * counts. If the message has no room, the one before it serves as the question.
 * Returns the question's seq; once it is SILENT_MS old, see
 * client_is_answered. */
uint32_t client_doubt(mmx *m);
/* Returns 0, or the reason for a wait that ends because no time is left. Near
 * the end of a wait of SILENT_MS or more it calls client_doubt(), so that the
 * reason says whether the daemon lives. */
int client_late(mmx *m, struct client_patience *p, int64_t left);
/* Sends even while corked and waits for the answer; the lock is held before and
 * after, not during the wait. -MMX_E_STALE: the answer came, but the handle has
 * been connected again since. */
int client_call(mmx *m, struct local_msg *msg, uint64_t id,
    struct client_reply *r, int timeout_ms);

/* wait.c: ends rooms and waits if the daemon hangs */

/* Fails the rooms whose deadline has passed if the daemon answers nothing.
 * Called after a receive that left nothing. */
void client_due_look(mmx *m);

/* rooms.c */

void client_rooms_init(mmx *m);
/* Fails a room by this handle's own judgement. */
void client_room_fail(mmx *m, struct client_room *r, uint8_t reason);
/* True if the room is open on this connection and has not ended. */
bool client_room_open(const mmx *m, const struct client_room *r);
/* Returns the room of a handle; NULL: it was released. */
struct client_room *client_room(mmx *m, mmx_room r);
/* Takes an EVENT of the daemon. */
void client_room_event(mmx *m, const struct local_event *e);
/* Takes a refusal of a message about a room, or of a decline. */
void client_room_refused(
    mmx *m, const struct client_asked *q, const struct local_answer *a);
/* Fails every room of this connection that has not ended with daemon-lost. */
void client_rooms_lost(mmx *m);
/* Fills events, releases rooms that are done. Returns the number of events. */
int client_rooms_give(mmx *m, struct mmx_event *ev, int max);
/* Frees the cells whose last event was handed out in the step before. */
void client_rooms_reap(mmx *m);

/* runs.c */

/* Drops the blocks whose rows are all released. */
void client_runs_trim(mmx *m, struct client_room *r);
/* Replaces the runs by an event's, which are all from row `first` on. Ignores
 * blocks that the pool does not have. */
void client_runs_take(
    mmx *m, struct client_room *r, uint32_t first, struct span s);

/* look.c */

/* Describes one field of a room for a plan; valid while the lock is held. The
 * plan checks which of its rows have landed. */
int client_source(
    mmx *m, mmx_room h, const char *field, struct window_source *out, int *gpu);

/* tickets.c */

void client_tickets_init(mmx *m);
/* Takes the answer to a SPACE; id: 1 + its index. */
void client_space_answer(mmx *m, uint64_t id, const struct local_answer *a);
/* Takes the answer to a TICKET. */
void client_ticket_answer(
    mmx *m, const struct client_asked *q, const struct local_answer *a);
/* Returns 1 if the request holds an id, 0 if it waits, the negative reason if
 * it is lost; then this also frees its entry. */
int client_ticket_outcome(
    mmx *m, int space, const char *request, struct mmx_seq *out);
/* Takes a TICKET_EVENT of the daemon. */
void client_ticket_event(mmx *m, const struct local_ticket_event *e);
/* Fails every request with daemon-lost. */
void client_tickets_lost(mmx *m);
/* Fills events. Returns the number of events. */
int client_tickets_give(mmx *m, struct mmx_event *ev, int max);
/* Frees the requests whose loss was handed out in the step before. */
void client_tickets_reap(mmx *m);

/* pools.c */

/* Maps a pool; fields[].data are addresses then. */
int client_map_pool(mmx *m, struct client_reply *r);
/* Unmaps every pool; runs the callback before each pool that the callback knows
 * of. */
void client_unmap_all(mmx *m);

/* lend.c: pools of encoders on this host */

/* Does what is due for the lenders, and one slice of the work that takes long.
 * The lock is held before and after, not during that slice. */
void client_lend(mmx *m, bool idle);
/* Sends BYE to all lenders after every pool is unmapped; waits for their
 * answers until `end`. */
void client_lend_end(mmx *m, uint64_t end);

/* cuda.c */

/* Maps a pool on a GPU; sets its base and gpu. */
int client_gpu_map(mmx *m, struct client_reply *r);
/* Rows in host memory or on a GPU. */
struct client_rows {
    const void *p;
    size_t stride;
};
/* Copies rows between host memory and a GPU, or on it; waits for the copy. */
int client_gpu_copy(int gpu, struct client_rows to, struct client_rows from,
    uint32_t rows, size_t row_bytes);

#endif
