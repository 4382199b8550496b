/* shard_land.h - a shard of langd: rows that arrive (shard_land.c), and rows
 * that are fetched from another daemon's memory (shard_copy.c). All of it
 * belongs to the shard's owner. */
#ifndef MMX_NODE_SHARD_LAND_H
#define MMX_NODE_SHARD_LAND_H

#include "core/move/landing.h"
#include "node/shard/shard.h"
#include "node/shard/shard_send.h"

#define INBOUND_SPARE 64 /* data connections beyond those of each peer */
/* Messages that are fetched from one connection at once. */
#define FETCHES_EACH (STRAIGHT_EACH + SEND_LARGE_EP)
#define IN_ENTRIES   128 /* of one GPU slot; all together below LANDINGS_MIN */

/* The pending NOTE_LANDED of a slot; rows 0: none. */
struct pending {
    struct data_note note;
    uint64_t bytes;
    uint32_t next; /* in the list of slots that may have a pending note */
    bool listed;
};

/* One rendezvous message that is being fetched. */
struct fetch {
    uint32_t count;
    uint32_t late; /* used bytes of the fetch's `late` memory */
    struct fetch_of {
        uint32_t token, bytes;
        enum fetch_way { BY_HOST, BY_GPU, BY_SLOT, BY_BOUNCE } way;
        uint32_t slot, entry;  /* BY_SLOT: slot and entry of the stage */
        struct bounce *bounce; /* BY_BOUNCE */
        struct cuda *gpu;      /* BY_GPU */
    } of[SEGMENTS_MAX];
};

/* One segment that is copied out of a source, or waits for it. */
struct copy {
    struct source *source; /* held */
    uint32_t token, bytes, next;
    uint16_t pool, to_count, from_count;
    uint32_t field; /* the layout's field that is copied now */
    struct piece_at {
        uint32_t i, at; /* next: the piece, and the row in that */
    } to_at, from_at;
    struct piece to[PIECES_MAX], from[PIECES_MAX];
};

struct copies {
    uint32_t head, tail; /* NONE: empty */
};

/* Cookies for the role's `staged`: of a landing, or with this bit the number of
 * a copy. */
#define COPY_COOKIE (UINT64_C(1) << 63)
static inline uint64_t land_cookie(uint32_t token, uint32_t bytes)
{
    return (uint64_t)bytes << 32 | token;
}

struct carry;

struct lander {
    const struct carry *from; /* carrier of the message that arrives */
    struct landing *landing;
    struct pending *pending; /* by slot */
    uint32_t pending_head;
    uint64_t notified_ns;
    struct fetch *fetches;
    struct slots fetch_slots;
    uint8_t *sink; /* takes the bytes of refused segments */
    uint32_t sink_bytes;

    struct order_key *keys; /* by peer: the newest key that was ordered */
    bool *keyed;            /* by peer: carriers do not have that key yet */
    bool keys_due;          /* some peer is `keyed` */
    uint64_t pools_due;     /* bit i: carriers do not know pool i yet */

    struct source **sources; /* by peer and pool; NULL: none */
    struct copy *copies;
    struct slots copy_slots;
    /* served in turn: whole small ones, then a slice of a large one */
    struct copies small, large;
};

/* shard_land.c */
/* True if the segment from `who` may land: in and out as of landing_begin.
 * Otherwise the segment is counted as dropped. */
bool land_begin(struct shard *s, uint32_t who, const struct segment *seg,
    uint32_t *pool, struct piece *pieces, uint32_t *n, uint32_t *token);
void land_gone(struct shard *s, uint32_t token);
void land_end(struct shard *s, uint32_t token, bool ok, uint32_t bytes);

/* shard_copy.c */
void copy_carve(struct shard *s, struct slab *slab);
void copy_source(
    struct shard *s, uint32_t peer, uint32_t pool, struct source *source);
/* Drops all sources of a peer. */
void copy_sources_drop(struct shard *s, uint32_t peer);
bool copy_arrived(struct shard *s, const struct data_in *in,
    const struct segment *segs, uint32_t count);
/* Copies about `max` bytes; returns the number of copies served. */
unsigned copy_turn(struct shard *s, uint64_t max);
bool copy_waiting(struct shard *s);
/* Ends copy i, which the GPU has completed. */
void copy_over(struct shard *s, uint32_t i, bool ok);
/* Ends copies whose landing is no longer wanted. */
void copy_purge(struct shard *s);
void copy_free(struct shard *s);

/* shard_gpu.c */
/* Takes over a landing in a GPU pool. False: the pool is in host memory. */
bool gpu_land(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, uint32_t token, const uint8_t *from, uint32_t bytes);
/* Finds the places to fetch f's last segment to, for a GPU pool;
 * gpu_fetched ends it. alone: the segment is the whole message. False: no
 * memory. */
bool gpu_fetch(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, bool alone, struct fetch *f, struct iovec *iov);
void gpu_fetched(struct shard *s, struct fetch_of *f, bool ok);
/* Copies rows out of a source, with a GPU at one end or both (NULL: host
 * memory). gpu_known prepares for a GPU; gpu_room waits for pinned memory;
 * gpu_move submits; after gpu_moved copy_over ends copy i, unless it returned
 * false. */
bool gpu_known(struct shard *s, struct cuda *gpu);
/* Waits until a slot has room. false: the pool has no pinned memory, which is
 * reported as lost. */
bool gpu_room(struct shard *s, uint32_t bytes, uint32_t copies);
void gpu_move(struct shard *s, struct cuda *to_gpu, uint8_t *to,
    struct cuda *from_gpu, const uint8_t *from, uint64_t bytes);
bool gpu_moved(struct shard *s, uint32_t i, bool ok);

#endif
