/* client.h - the inside of a handle, shared by the files of lib/client.
 * Everything here is guarded by mmx.lock unless it says otherwise; functions
 * are called with the lock held and give negative mmx_error codes. */
#ifndef MMX_CLIENT_CLIENT_H
#define MMX_CLIENT_CLIENT_H

#include "client/mmx.h"
#include "base/list.h"
#include "wire/layout.h"
#include "client/window.h"
#include "wire/wire.h"

#include <pthread.h>
#include <stdatomic.h>

#define PACKETS      4 /* packets that wait for a daemon that does not read */
#define ASKED_MAX    8192 /* messages without an answer; a power of two */
#define RUNS_MAX     2048 /* as many as an event's blob holds */
#define MAPS_MAX     32
#define MAP_NONE     UINT8_MAX
#define NOTES_MAX    32
#define SPACES_MAX   64
#define TICKETS_MAX  4096
#define BUCKETS      1024 /* of requests by hash; a power of two */
#define NAP_MS       20
#define CELLS_USUAL  1024
#define CELLS_MAX    65536
#define CLIENT_ALIVE UINT64_C(0x6d6d782d616c6976)

enum client_link { LINK_DOWN, LINK_HELLO, LINK_UP };

/* What a thread that waits for an answer waits for; on its stack. */
struct client_reply {
    bool over;
    int err, fd;
    uint32_t a, b; /* of an ANSWER */
    uint16_t number;
    struct mmx_pool pool; /* fields[].data: offset of the region */
    char share[17];       /* how it is mapped; empty, memfd: the descriptor */
    uint8_t handle[128];
    uint32_t handle_len;
};

/* A message on its way, until its answer has come. */
struct client_asked {
    uint8_t type; /* 0: answered */
    uint32_t cell, tag;
    uint64_t id;
    struct client_reply *reply;
};

struct client_packet {
    uint32_t len;
    uint8_t bytes[LOCAL_PACKET_MAX];
};

struct client_run {
    uint32_t block, blocks;
};

/* What a room carries beside its numbers. Lies in memory that takes pages
 * when they are touched: most rooms touch one or two. */
struct client_store {
    struct client_run runs[RUNS_MAX];
    uint8_t aux[AUX_MAX];
    char text[4096];
};

/* One use of one cell. tag 0: free or waiting to be. */
struct client_room {
    uint64_t id, generation;
    void *user;
    uint32_t tag, serial;  /* of the connection that it lives on */
    uint32_t what, seen;   /* happenings not handed out; all so far */
    uint32_t next, queued; /* in one of: free stack, pending, retired */
    uint32_t first, runs, rows, total, base, a, b;
    uint32_t stream_rows, aux_len;
    uint8_t state, reason, storage;
    uint8_t refused_op, refused_reason;
    bool pooled, unbound; /* may show rows; the daemon does not know it */
    uint8_t map;          /* of the pool; MAP_NONE: no event has told it */
};

/* A refused decline: the one refusal that has no room. */
struct client_note {
    uint64_t id;
    uint8_t reason;
    char text[128];
};

/* A space of sequence ids, at the daemon under another number. */
struct client_space {
    bool used;
    uint32_t number, serial;
    char name[64];
};

enum client_ticket_state {
    TICKET_ASKED,
    TICKET_WAITS,
    TICKET_HELD,
    TICKET_LOST
};

/* One request of a space, until it is released or its loss was told. */
struct client_ticket {
    void *user;
    struct list in_bucket; /* while it can be found */
    struct list in_line;   /* events to tell, told losses, or free ones */
    uint32_t tag;          /* 0: free */
    uint32_t asks;         /* on their way; what comes before is old */
    uint32_t seq, generation;
    uint8_t state, reason, space;
    char request[64];
};

struct client_map {
    bool used;
    uint16_t number;
    uint32_t serial;
    struct mmx_pool pool;
};

struct mmx {
    pthread_mutex_t lock;
    uint64_t *alive; /* a page that reads as 0 in a forked child */

    int ep, sock, timer, bell; /* bell: readable while events wait */
    enum client_link link;
    bool rung, polls_out, told_up, say_up, say_down;
    int hello_err;
    uint32_t serial, backoff_ms, corks;

    uint32_t seq, answered; /* last number used; all up to it are answered */
    struct client_asked asked[ASKED_MAX];
    struct client_packet out[PACKETS];
    uint32_t out_head, out_count;
    uint8_t in[LOCAL_PACKET_MAX];

    /* Read without the lock: page is the daemon's words (of nobody's while
     * the link is down), own is what the daemon cannot say any more. */
    _Atomic uint64_t *page, *own;
    size_t page_bytes;
    uint32_t cells, granted, tag;
    uint64_t abilities; /* of the daemon, as its WELCOME said */

    struct client_room *rooms;
    struct client_store *stores;
    uint32_t free_head, pending_head, pending_tail, retired_head;

    struct client_note notes[NOTES_MAX];
    uint32_t notes_head, notes_count;

    struct client_space spaces[SPACES_MAX];
    struct client_ticket *tickets;
    struct list buckets[BUCKETS];
    struct list tickets_news, tickets_told, tickets_free;
    uint32_t tickets_used, ticket_tag;

    struct client_map maps[MAPS_MAX];
    mmx_map_fn on_map;
    void *on_map_ud;

    struct mmx_info info;
    uint8_t role;
    char path[108], engine[65], session[65];
    char error[512];
};

/* client.c: the handle */

/* 0 with the lock held, or -MMX_E_FORKED without. */
int client_lock(mmx *m);
/* Rings or silences the bell, then unlocks. */
void client_unlock(mmx *m);
/* Waits, the lock not held, until the socket has something: at most ms (-1:
 * for ever) and at most NAP_MS, since another thread may have taken what this
 * one waits for. false: a signal came. */
bool client_nap(int sock, int64_t ms);
/* Milliseconds left until end; -1 for ever, 0 over. */
uint64_t client_end(int timeout_ms);
int64_t client_left(uint64_t end);
void client_error(mmx *m, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* link.c: the connection */

void client_connect(mmx *m);
void client_flush(mmx *m);
/* Takes what has come, up to a bound. */
void client_receive(mmx *m);
/* Queues one message and, unless corked, sends it. The message's seq is set.
 * room and reply may be NULL. */
int client_ask(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply);
/* The same without sending. */
int client_put(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply);
bool client_is_open_op(unsigned type);
/* Sends, whatever is corked, and waits for the answer; the lock is held before
 * and after, not meanwhile. */
int client_call(
    mmx *m, struct local_msg *msg, struct client_reply *r, int timeout_ms);

/* rooms.c */

void client_rooms_init(mmx *m);
struct client_room *client_room(mmx *m, mmx_room r);
void client_room_event(mmx *m, const struct local_event *e);
void client_room_refused(
    mmx *m, const struct client_asked *q, const struct local_answer *a);
/* daemon-lost for every room of this connection that has not ended. */
void client_rooms_lost(mmx *m);
/* Fills events; answers DONE. Returns how many. */
int client_rooms_give(mmx *m, struct mmx_event *ev, int max);
bool client_rooms_pending(mmx *m);
void client_rooms_reap(mmx *m);

/* look.c */

/* One field of a room as a plan reads it; valid while the lock is held. What
 * of it is there is for the plan to check. */
int client_source(
    mmx *m, mmx_room h, const char *field, struct window_source *out, int *gpu);

/* tickets.c */

void client_tickets_init(mmx *m);
void client_ticket_answer(
    mmx *m, const struct client_asked *q, const struct local_answer *a);
void client_ticket_event(mmx *m, const struct local_ticket_event *e);
/* daemon-lost for all of them. */
void client_tickets_lost(mmx *m);
int client_tickets_give(mmx *m, struct mmx_event *ev, int max);
bool client_tickets_pending(const mmx *m);
void client_tickets_reap(mmx *m);

/* pools.c */

void client_pool_info(struct client_reply *r, const struct local_pool_info *i);
void client_unmap_all(mmx *m);

/* cuda.c, or cuda_none.c in a build without CUDA */

/* Maps a pool on a GPU: its base and gpu. */
int client_gpu_map(mmx *m, struct client_reply *r);
void client_gpu_unmap(const struct mmx_pool *p);
/* Rows between host memory and a GPU's, or on it; waits for them. */
struct client_rows {
    const void *p;
    size_t stride;
};
int client_gpu_copy(int gpu, struct client_rows to, struct client_rows from,
    uint32_t rows, size_t row_bytes);

/* The same by lib/gpu/rows.cu, behind what the stream was given; waits for
 * nothing. The first one on a GPU loads the kernels. *why: NULL, or what is
 * missing. */
int client_gpu_launch(int gpu, const struct window_piece *pieces,
    uint32_t count, void *stream, const char **why);

/* Takes a caller's struct that begins with its size. */
#define CLIENT_TAKE(to, from) client_take(&(to), sizeof(to), (from))
#define CLIENT_GIVE(to, from) client_give((to), &(from), sizeof(from))
bool client_take(void *to, size_t size, const void *from);
bool client_give(void *to, void *from, size_t size);

#endif
