/* sending_impl.h - shared by sending.c and sending_cut.c: the state, and a
 * job's position in it. */
#ifndef MMX_CORE_MOVE_SENDING_IMPL_H
#define MMX_CORE_MOVE_SENDING_IMPL_H

#include "core/move/sending.h"

#include "base/list.h"
#include "core/move/runs.h"

struct send_pool {
    struct sending_pool is;
    struct runs runs;
};

struct send_job {
    struct list node; /* on its endpoint's jobs */
    uint64_t generation, room;
    uint64_t held; /* rows in the chain of runs */
    uint32_t attempt, peer, pool, unit_rows, part_rows, total;
    uint32_t cursor, limit; /* this shard's rows in [cursor, limit) may go */
    uint32_t endpoint;      /* of the cursor's part; NONE: none left */
    uint32_t head, tail;    /* chain of runs; head NONE: empty */
    struct run_at at;       /* run where the cursor was last */
    uint32_t breaks;        /* the peer's breaks when this attempt began */
    uint32_t in_flight;     /* segments in messages not done */
    uint32_t closes;        /* SEND_CLOSEs not answered */
    bool open;
    bool stuck; /* never sent: sending_unit_ok, or a unit in too many pieces */
    bool copy;  /* the peer copies the rows itself */
};

struct send_ep {
    struct list node; /* on ready */
    struct list jobs;
    uint64_t in_flight; /* bytes */
    uint32_t messages, large;
};

struct send_peer {
    uint32_t addresses; /* 0: it is not open */
    uint32_t segment_bytes, breaks;
    uint32_t messages; /* in flight */
    uint8_t reads;     /* enum send_reads */
};

struct send_message {
    uint64_t bytes;
    uint32_t endpoint, count;
    uint32_t next; /* free */
    bool busy, large;
    struct send_ref {
        uint64_t generation;
        uint32_t slot;   /* NONE: done */
        uint32_t closes; /* waiting SEND_CLOSEs of an older use */
    } refs[SEGMENTS_MAX];
};

struct sending {
    struct list ready;
    struct send_pool *pools;
    struct send_job *jobs;
    struct send_ep *eps;
    struct send_peer *peers;
    struct send_message *messages;
    uint32_t pools_count, slots, peers_count, shard, shards;
    uint32_t window, widened, segment_bytes;
    uint32_t per_peer; /* endpoints of one peer */
    uint32_t free, active;
    uint32_t share;    /* messages guaranteed to each open peer */
    uint32_t reserved; /* free messages kept for peers below their share */
};

/* Returns how many rows may go now in the cursor's part, from the cursor on. */
uint32_t send_job_rows(const struct sending *s, const struct send_job *j);
/* Moves the cursor to the next row that is in a part of this shard. */
void send_job_seek(struct sending *s, struct send_job *j);
/* Queues the job at its endpoint iff rows of it may go. */
void send_job_update(struct sending *s, struct send_job *j);

/* A message being filled, and its limits. */
struct fill {
    struct send_batch *b;
    uint64_t room;          /* bytes of the message, headers included */
    uint64_t window;        /* free bytes of the endpoint's window; never less
                               than room */
    bool large;             /* the message may be one unit larger than `room` */
    bool small;             /* it has only small segments */
    uint32_t units, places; /* iovec entries: at the peer, here */
    bool alone; /* the segment just cut needs a message of its own */
};

/* Fills the message with segments of endpoint e's jobs, in turns. */
void send_fill(struct sending *s, uint32_t e, struct fill *f);

#endif
