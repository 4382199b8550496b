/* shard_in.h - inside of a shard: what shard.c (thread and turns),
 * shard_order.c and shard_note.c (orders to it, notes from it), shard_carry.c
 * (its carriers), shard_land.c (rows that come), shard_copy.c (rows that are
 * fetched from another daemon's memory), shard_send.c (rows that go) and
 * shard_gpu.c (rows of GPU pools, both ways) share. Private to them. Everything
 * here belongs to the shard's owner, which "the shard's thread" means, except
 * where a member says otherwise. */
#ifndef MMX_NODE_SHARD_IN_H
#define MMX_NODE_SHARD_IN_H

#include "node/shard/shard.h"
#include "node/shard/shard_land.h"
#include "node/shard/shard_send.h"
#include "node/shard/stage.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#define ROWS_IOV_MAX (PIECES_MAX * LAYOUT_FIELDS_MAX)

/* An open carrier. Only the owner uses it, except `address`. */
struct carry {
    const struct data_ops *ops;
    struct data *d;
    /* Newest first; all are kept until the end. Any thread may read it. */
    _Atomic(struct published_address *) address;
};

struct published_address {
    struct published_address *older;
    uint32_t len;
    uint8_t bytes[];
};

/* Which thread owns the shard. Only the owner changes this, as its last access
 * to the shard. */
enum owner { OWNER_THREAD, OWNER_LOOP };

/* What a role adds to a shard. The shard's owner calls everything except
 * limits, say and fini. */
struct shard_role {
    /* Completes c->data with what the role needs from its carriers. */
    void (*limits)(struct shard_conf *c);
    void (*carve)(struct shard *s, struct slab *slab);
    void (*fini)(struct shard *s);
    void (*command)(struct shard *s, const struct data_cmd *cmd);
    /* Carries out any other order, and then owns what the order points to. */
    void (*order)(struct shard *s, const struct order *o);
    /* Does the part of orders that is forbidden inside the carrier's callbacks,
     * where shard_orders() may run, too. NULL: nothing. */
    void (*settle)(struct shard *s);
    bool orders_move_rows; /* an order may cause rows to be sent at once */
    /* Parts of a turn: before the carriers' progress, after each call of
     * progress (idle: it had nothing more to do), and at the end. The first and
     * the last return the number of things done. */
    unsigned (*before)(struct shard *s);
    void (*progressed)(struct shard *s, bool idle);
    unsigned (*after)(struct shard *s, bool in_loop);
    /* True if a turn would do something that no descriptor shows. */
    bool (*due)(struct shard *s);
    /* Returns the number of messages or landings under way. */
    uint32_t (*active)(const struct shard *s);
    /* The carrier's callbacks, see data.h; ud: the shard. NULL: the carrier
     * does not call this one in this role. */
    struct data_calls calls;
    /* Copies from or to pinned memory have ended. */
    void (*staged)(struct shard *s, uint64_t cookie, bool ok);
    uint32_t slots_most, slot_entries; /* of the stage */
    /* A bit of pools_alone was set. NULL: nothing to do. */
    void (*alone)(struct shard *s, uint32_t pool);
    /* Rows of some GPU pool go through pinned memory. NULL: nothing to do. */
    void (*by_slots)(struct shard *s);
    /* Called on the loop's thread: see shard_say. NULL: the role makes no
     * connections. */
    void (*say)(const struct shard *s, uint32_t peer, enum shard_words what,
        char *out, size_t size);
};
extern const struct shard_role shard_sends, shard_lands;

#define SPARE_BYTES (ADDRESSES_MAX + DATA_KEY_BYTES + 1)

struct shard {
    struct shard_conf conf; /* constant */
    const struct shard_role *role;
    void *memory; /* fresh pages, for a slab */
    size_t memory_bytes;
    pthread_t thread;
    _Atomic uint8_t owner;          /* enum owner */
    bool running;                   /* loop: there is a thread to join */
    bool pushed;                    /* loop: since the last shard_flush */
    bool handed;                    /* loop: see shard_handed */
    uint64_t turns_seen, turned_ns; /* loop: see shard_silent_ns */
    sem_t started;                  /* result and addresses are there */
    enum err result;                /* of opening the carriers */
    struct ring in, out;
    struct wake wake;  /* the thread's */
    _Atomic bool stop; /* set by the loop */
    struct shard_stats stats;

    struct carry carries[DATA_CARRIERS_MAX]; /* best first */
    uint32_t carries_count;
    int fd; /* readable when a carrier may have work */

    uint64_t turn, now_ns, ticked_ns;
    uint64_t busy_ns; /* last turn with more than the loop has time for */
    uint64_t moved;   /* bytes from and to the carrier in this turn */
    uint64_t recent_ns, recent; /* bytes moved since recent_ns */
    bool noted;                 /* a note was queued in this turn */

    union { /* by role */
        struct sender send;
        struct lander land;
    };

    uint8_t *spare; /* encoded: SPARE_BYTES for the addresses of one peer */
    _Atomic bool spare_used;

    struct stage *stage; /* NULL: no GPU pool */
    /* memory, by message or fetch, for bytes that have no slot */
    uint8_t *late;
    uint32_t gpu_bytes; /* of the largest unit of a GPU pool */
    /* bit i: pool i has GPU memory; it was reported as lost */
    uint64_t pools_gpu, pools_lost;
    /* bit i: the carrier reaches the memory of GPU pool i */
    uint64_t pools_direct;
    /* bit i: rows of pool i move better from one place than from several */
    uint64_t pools_alone;

    struct iovec iov[DATA_IOV_MAX];  /* for a message */
    struct iovec rows[ROWS_IOV_MAX]; /* for one segment, see rows_find */
};

/* shard.c */
static inline void stat_add(_Atomic uint64_t *stat, uint64_t n)
{
    atomic_fetch_add_explicit(stat, n, memory_order_relaxed);
}

/* shard_note.c */
/* Queues a note for the loop. Waits only while the ring is full. */
void shard_notify(struct shard *s, const struct data_note *n);
/* Wakes the loop if there are new notes. */
void notes_tell(struct shard *s);
/* True if the loop should read notes before there are more. */
bool notes_high(struct shard *s);

/* shard_carry.c */
/* Opens conf.carriers; fails if the last one fails. */
MUST_CHECK enum err carry_open(struct shard *s);
void carry_close(struct shard *s);
/* Frees the addresses, which the loop may read until then. */
void carry_free(struct shard *s);
/* Returns the open carrier of that number; NULL: there is none. */
struct carry *carry_by(struct shard *s, uint8_t number);
/* Returns the carrier whose data object is d. */
struct carry *carry_of(struct shard *s, const struct data *d);
/* Makes progress on all carriers; returns the number of things done. */
unsigned carry_progress(struct shard *s);
/* True if a carrier has work that no descriptor shows. */
bool carry_due(struct shard *s);
void carry_tick(struct shard *s);
/* True if a carrier may reach GPU memory. */
bool carry_to_gpus(const struct shard *s);
/* Tells the carriers about a pool's memory. True, for host memory: a message of
 * one piece is better than one of many; for GPU memory: the carrier reaches
 * it. */
bool carry_memory(struct shard *s, const struct mem *m);

/* shard_rows.c */
/* Appends the places of a segment's rows, in the order of its bytes, to iov;
 * adjacent ones are merged. false: more than `max` entries are needed. */
bool rows_iov(const struct shard_pool *p, const struct piece *pieces,
    uint32_t n, struct iovec *iov, uint32_t *used, uint32_t max);
/* Writes those places to s->rows; returns their number. */
uint32_t rows_find(struct shard *s, const struct shard_pool *p,
    const struct piece *pieces, uint32_t n);

/* shard_order.c */
/* Carries out the orders in the ring; returns their number. */
unsigned shard_orders(struct shard *s);
/* Frees the addresses of a peer, which an ORDER_PEER brought; NULL: none. */
void orders_blob_free(struct shard *s, uint8_t *p);
/* Tells carriers and stage of pool i, once it has memory. */
void orders_pool(struct shard *s, uint32_t i);
/* On the loop's thread: */
void orders_free(struct shard *s);

/* shard_gpu.c */
/* Prepares for pool i, whose memory exists. No effect for host memory. */
void gpu_pool(struct shard *s, uint32_t i);
/* Takes memory for the bytes of each message or fetch that may not wait in
 * slots. Only as much memory is touched as was in use at once, since the piece
 * that was freed last is used next. */
void gpu_carve(struct shard *s, struct slab *slab, uint32_t messages);
/* Reports copies that have ended and submits what waits; returns their number.
 */
unsigned gpu_turn(struct shard *s);
#endif
