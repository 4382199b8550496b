/* shard_in.h - inside of a shard: what shard.c (thread, rings, notes),
 * shard_land.c (rows that come), shard_copy.c (rows that are fetched from
 * another daemon's memory), shard_send.c (rows that go) and shard_gpu.c (rows
 * of GPU pools, both ways) share.
 * Nobody else includes it. All of it belongs to whom `duty` names, except where
 * a member says otherwise; "the shard's thread" means that one. */
#ifndef MMX_NODE_SHARD_IN_H
#define MMX_NODE_SHARD_IN_H

#include "core/move/landing.h"
#include "core/move/sending.h"
#include "node/shard.h"
#include "node/shard/stage.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#define INBOUND_SPARE 64 /* data connections, beside one per peer */
#define STRAIGHT_EACH 4  /* messages of an endpoint from a GPU */
/* Messages that are fetched from one connection at once. */
#define FETCHES_EACH     (STRAIGHT_EACH + SEND_LARGE_EP)
#define NOTE_BYTES       (4u << 20) /* landed rows that one note piles up */
#define TRANSPORT_WORDS  4
#define ENDPOINTS(count) div_up(SEND_ADDRESSES_MAX, (count)) /* of a peer */

/* Notes that the ring out had no room for, in order. */
struct backlog {
    struct data_note *notes;
    uint32_t head, len, cap;
};

/* Orders that the ring in had no room for, in order; the loop's. */
struct waiting {
    struct order *orders;
    uint32_t head, len, cap;
};

/* NOTE_LANDED of a slot that is not told yet; rows 0: none. */
struct untold {
    struct data_note note;
    uint64_t bytes;
    uint32_t next; /* in the list of slots that may have one */
    bool listed;
};

/* One rendezvous message that is being fetched. */
struct fetch {
    uint32_t count, next;
    struct fetch_of {
        uint32_t token, bytes;
        enum fetch_way { BY_HOST, BY_GPU, BY_SLOT, BY_LATE } way;
        uint32_t slot, entry; /* BY_SLOT: of the stage */
        struct late *late;    /* BY_LATE */
        struct cuda *gpu;     /* BY_GPU */
    } of[SEGMENTS_MAX];
};

/* One segment that is copied out of a source, or waits for it. */
struct copy {
    struct source *source; /* held */
    uint32_t token, bytes, next;
    uint16_t pool, to_count, from_count;
    uint32_t field; /* of the layout, that is copied now */
    struct place {
        uint32_t i, at; /* in its pieces: number, row */
    } to_place, from_place;
    struct piece to[PIECES_MAX], from[PIECES_MAX];
};

struct copies {
    uint32_t head, tail; /* NONE: empty */
};

struct link {      /* a peer, as encoded sees it */
    uint8_t *blob; /* its data addresses, from shard_peer; ours */
    struct span addresses[SEND_ADDRESSES_MAX];
    uint32_t len, count, segment_max;
    uint64_t told;   /* turn in which NOTE_PEER_BROKEN was given */
    uint64_t serial; /* grows when the peer's addresses may mean another */
    _Atomic uint64_t transport[TRANSPORT_WORDS]; /* text; any thread reads */
};

enum ep_state { EP_NONE, EP_OPEN, EP_NAMED, EP_LOST };

/* A message handed to the carrier, by sending.c's token. */
struct posted {
    uint32_t ep;
    bool busy, straight; /* its rows are read from a GPU, to be fetched */
};

/* One whose rows come from a GPU, by sending.c's token. */
struct staged {
    uint32_t ep, peer, address, slot, header_len, segments;
    bool held; /* the slot's memory */
    uint64_t serial, len;
    uint8_t *bytes;
    uint8_t *own; /* NULL, or where bytes were brought from the slot */
    uint8_t header[DATA_HEADER_MAX];
};

struct address {
    struct address *older;
    uint32_t len;
    uint8_t bytes[];
};

/* Who runs the shard. Who has it may write it, and does so last. */
enum duty { DUTY_THREAD, DUTY_LOOP };

struct shard {
    struct shard_conf conf; /* constant */
    void *memory;           /* fresh pages, for a slab */
    size_t memory_bytes;
    pthread_t thread;
    _Atomic uint8_t duty;              /* enum duty */
    bool running;                      /* loop: there is a thread to join */
    bool pushed;                       /* loop: since the last shard_flush */
    struct waiting waiting;            /* loop */
    bool lent;                         /* loop: see shard_lent */
    uint64_t turns_seen, turned_ns;    /* loop: see shard_hangs */
    sem_t started;                     /* result and address are there */
    enum err result;                   /* of opening the carrier */
    _Atomic(struct address *) address; /* newest first; kept until the end */
    uint32_t replaced;                 /* carrier's count, as last seen */
    struct ring in, out;
    struct wake wake;     /* ours */
    _Atomic bool stop;    /* loop asks */
    _Atomic bool starved; /* notes wait for room in out */
    struct shard_stats stats;

    struct data *data;
    uint64_t turn, now_ns, ticked_ns, told_ns, idle_ns;
    uint64_t heavy_ns; /* last turn with more than the loop has time for */
    uint64_t moved;    /* bytes from and to the carrier in this turn */
    uint64_t lately_ns, lately; /* and since then */
    struct backlog backlog;
    bool noted; /* something was put in out this turn */

    struct landing *landing; /* langd */
    struct untold *untold;   /* by slot */
    uint32_t untold_head;
    struct fetch *fetches;
    uint32_t fetch_free, fetch_fresh; /* NONE; never used from there on */
    uint8_t *sink; /* where bytes of refused segments are fetched to */
    uint32_t sink_bytes;

    struct source **sources; /* by peer and pool; NULL: none */
    struct copy *copies;
    uint32_t copy_free;
    struct copies small, large; /* in turn: whole ones, then a slice */

    struct sending *sending; /* encoded */
    struct link *links;      /* by peer */
    uint8_t *eps;            /* enum ep_state, by endpoint */
    uint8_t *straight;       /* posted straight and not done, by endpoint */
    uint32_t *lost;          /* endpoints to be told about */
    uint32_t lost_count;
    struct posted posted[SEND_MESSAGES_MAX];
    uint8_t *said; /* payloads of SOURCES_BYTES_MAX, by token */

    struct stage *stage;   /* NULL: no GPU pool */
    uint32_t gpu_bytes;    /* of the largest unit of a GPU pool */
    struct staged *staged; /* encoded: SEND_MESSAGES_MAX */
    uint64_t pools_lost;   /* a bit for each that was told */
    uint64_t pools_direct; /* for each GPU pool that the carrier reaches */

    struct send_batch batch;
    struct iovec iov[DATA_IOV_MAX];
};

/* Data connections that peers may have to us. */
static inline uint32_t inbound_max(const struct shard_conf *c)
{
    return c->peers + INBOUND_SPARE;
}

/* A sender keeps to STRAIGHT_EACH and SEND_LARGE_EP: there is always a place.
 */
static inline uint32_t fetches_max(const struct shard_conf *c)
{
    return inbound_max(c) * FETCHES_EACH;
}

/* shard.c */
static inline void stat_add(_Atomic uint64_t *stat, uint64_t n)
{
    atomic_fetch_add_explicit(stat, n, memory_order_relaxed);
}
static inline void stat_set(_Atomic uint64_t *stat, uint64_t n)
{
    atomic_store_explicit(stat, n, memory_order_relaxed);
}
/* Queues a note for the loop. Waits only when a whole backlog is full. */
void shard_tell(struct shard *s, const struct data_note *n);
/* Appends where the pieces of field f lie to iov; neighbours become one.
 * false: more than max entries, *used is as before. */
bool field_iov(const struct shard_pool *p, uint32_t f,
    const struct piece *pieces, uint32_t n, struct iovec *iov, uint32_t *used,
    uint32_t max);

/* shard_order.c: the loop's thread */
/* Moves waiting orders into the ring; true if any was pushed since the last
 * call. */
bool orders_flush(struct shard *s);
void orders_free(struct shard *s);

/* shard_land.c */
void land_carve(struct shard *s, struct slab *slab);
void land_cmd(struct shard *s, const struct data_cmd *cmd);
void land_pool(struct shard *s, uint32_t i);
bool land_arrived(struct shard *s, const struct data_in *in);
void land_fetched(struct shard *s, void *cookie, bool ok);
/* May the segment land? Then as landing_begin says, else it is counted. */
bool land_begin(struct shard *s, const struct segment *seg, uint32_t *pool,
    struct piece *pieces, uint32_t *n, uint32_t *token);
void land_gone(struct shard *s, uint32_t token);
void land_end(struct shard *s, uint32_t token, bool ok, uint32_t bytes);
/* Tells all landed rows that were not told yet. */
void land_tell(struct shard *s);

/* shard_copy.c */
void copy_carve(struct shard *s, struct slab *slab);
void copy_source(
    struct shard *s, uint32_t peer, uint32_t pool, struct source *source);
bool copy_arrived(struct shard *s, const struct data_in *in);
/* Copies for a short while; how many pieces of work it was. */
unsigned copy_turn(struct shard *s, uint64_t max);
bool copy_waiting(const struct shard *s);
/* The GPU is done with copy i. */
void copy_over(struct shard *s, uint32_t i, bool ok);
/* Ends what does not count any more. */
void copy_purge(struct shard *s);
void copy_free(struct shard *s);

/* shard_send.c */
void send_carve(struct shard *s, struct slab *slab);
void send_cmd(struct shard *s, const struct data_cmd *cmd);
void send_pool(struct shard *s, uint32_t i);
/* Takes over blob. */
void send_peer(struct shard *s, uint32_t peer, uint8_t *blob, uint32_t len,
    uint32_t segment_max);
/* Posts what may go; returns the number of messages. */
uint32_t send_post(struct shard *s);
void send_done(struct shard *s, void *cookie);
/* The rows of a message are in pinned memory, or cannot be had. */
void send_staged(struct shard *s, uint32_t token, bool ok);
void send_broken(struct shard *s, uint32_t ep);
/* Tells about endpoints that were lost and closes them. */
void send_lost(struct shard *s);
void send_free(struct shard *s);

/* shard_gpu.c */
/* The memory of pool i stands; nothing unless it is a GPU's. */
void gpu_pool(struct shard *s, uint32_t i);
void gpu_free(struct shard *s);
/* Tells what is over and submits what waits; how much happened. */
unsigned gpu_turn(struct shard *s);
/* Has gpu_turn something to tell, or soon to submit? */
bool gpu_due(struct shard *s);
/* May a message be taken from sending.c, whatever its rows lie in? */
bool gpu_send_room(struct shard *s);
/* Does the carrier read the batch's rows from a GPU itself? The receiver has
 * to fetch them then, so there are STRAIGHT_EACH at most. */
bool gpu_straight(struct shard *s, uint32_t ep);
/* Has the batch rows of a GPU? Then, unless they go straight, gpu_send, and
 * send_staged when they are there; gpu_done when the carrier is done with it,
 * or never had it. */
bool gpu_batch(const struct shard *s);
/* The rows of a message are about to be handed to the carrier: not from the
 * slot, when there are few that nobody holds. */
void gpu_handed(struct shard *s, uint32_t token);
void gpu_send(struct shard *s, uint32_t ep, uint32_t token);
void gpu_done(struct shard *s, uint32_t token);
/* Takes over a landing whose pool is a GPU's; else false. */
bool gpu_land(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, uint32_t token, const uint8_t *from, uint32_t bytes);
/* Where to fetch f's bytes to, for a GPU's pool; gpu_fetched ends it. alone:
 * they are all of the message. false: there is no memory for them. */
bool gpu_fetch(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, bool alone, struct fetch_of *f, struct iovec *iov);
void gpu_fetched(struct shard *s, struct fetch_of *f, bool ok);
/* Rows out of a source, with a GPU at one end or both (NULL: host memory).
 * Known, room for so many bytes of pinned memory, moves, moved: then copy_over
 * comes for copy i, unless it gives false. */
bool gpu_known(struct shard *s, struct cuda *gpu);
bool gpu_move_room(struct shard *s, uint32_t bytes);
void gpu_move(struct shard *s, struct cuda *to_gpu, uint8_t *to,
    struct cuda *from_gpu, const uint8_t *from, uint64_t bytes);
bool gpu_moved(struct shard *s, uint32_t i, bool ok);

#endif
