/* shard.h - one transfer worker: a thread with its carriers, a ring in, a ring
 * out. The loop's thread calls everything here; the shard's thread runs
 * sending.c and landing.c over the carriers.
 *
 * At any time one of the two threads owns the shard. With `may_inline`, where
 * all carriers may be called by any thread, that is the loop's while traffic is
 * light, so that a small room needs no wakeup in
 * between; the shard's thread takes over when more moves, and passes it back
 * when little has moved for LINGER_MS. */
#ifndef MMX_NODE_SHARD_H
#define MMX_NODE_SHARD_H

#include "base/ring.h"
#include "core/flow.h"
#include "wire/layout.h"
#include "io/data.h"
#include "io/mem.h"
#include "io/source.h"

/* A pool as shards see it. Immutable once ready is set. */
struct shard_pool {
    struct layout layout; /* count 0: not known yet */
    struct mem *mem;
    uint64_t offsets[LAYOUT_FIELDS_MAX];
    uint32_t blocks, block_rows;
};

#define SHARD_POOLS_MAX 64

struct shard_conf {
    /* Best first, then NULL. Those that do not open are left out, but for the
     * last, which every pair of daemons may have to fall back to. */
    const struct data_ops *carriers[DATA_CARRIERS_MAX + 1];
    struct data_conf data;
    uint8_t role;
    uint32_t index, count; /* number of this shard, number of shards */
    uint32_t slots, peers, window_bytes;
    uint32_t orders;                /* places of their ring */
    int cpu;                        /* -1: anywhere */
    bool may_inline;                /* the loop may own it: any_thread of all */
    bool gpu;                       /* pools may be on GPUs */
    const struct shard_pool *pools; /* stays valid */
    uint32_t pools_count;
    struct wake *wake; /* of the loop: woken when notes wait */
};

struct shard;

/* Starts the thread; returns when its carriers are open or have failed. */
MUST_CHECK enum err shard_start(struct shard **out, const struct shard_conf *c);
/* Stops the thread, closes the carriers. Accepts NULL and half-built. */
void shard_stop(struct shard **s);

/* Returns this shard's data address of carrier `number`; valid until
 * shard_stop. It changes when workers_replaced grows. p NULL: the carrier is
 * not open. */
struct span shard_address(struct shard *s, uint8_t number);

/* What the loop asks of a shard, carried out in the order of shard_order. */
enum order_type { ORDER_CMD, ORDER_PEER, ORDER_KEY, ORDER_POOL, ORDER_SOURCE };
struct order {
    uint8_t type;
    union {
        struct data_cmd cmd;
        /* A peer's data addresses, as in HELLO, and behind them its data_key,
         * which carrier they are for, and segment_max; before the PEER_OPEN
         * command for it. */
        struct order_peer {
            uint8_t *blob;
            uint32_t peer, len, segment_max; /* len: of both */
            uint8_t carrier;                 /* enum carrier_number */
            uint8_t key_len;
        } peer;
        /* langd: the data_key that the peer's connections prove; len 0: none
         * do. */
        struct order_key {
            uint32_t peer, len;
            uint8_t bytes[DATA_KEY_BYTES];
        } key;
        /* The layout and memory of this pool are there now; before any command
         * on it. */
        uint32_t pool;
        /* langd: pool `pool` of that peer is mapped here; NULL: none of its
         * pools is any longer. The shard holds it until then, and while a copy
         * reads it. */
        struct {
            struct source *source;
            uint32_t peer, pool;
        } source;
    };
};

/* Passes an order on, for which there must be a place. Copies the blob, holds
 * the source. */
void shard_order(struct shard *s, const struct order *o);
/* The same for a command; carries it out if the loop owns the shard and the
 * ring is empty. Rows move with shard_flush. */
void shard_command(struct shard *s, const struct data_cmd *cmd);
/* Returns the number of orders for which there is a place now. */
uint32_t shard_space(struct shard *s);
/* Runs or wakes the shard if any order was passed on since the last call. At
 * least once per turn of the loop. */
void shard_flush(struct shard *s);

/* True while the loop owns the shard. It then polls shard_fd, and calls
 * shard_work when that is readable, and when shard_busy before it sleeps. It
 * changes to false in shard_work and shard_flush only, to true at any time;
 * then the loop is woken and has to call shard_work once. Work that has to wait
 * is always the thread's. */
bool shard_inline(const struct shard *s);
/* True if the loop owns it at times. */
bool shard_may_inline(const struct shard *s);
/* True if ownership went to the thread since the last call (it may have come
 * back). */
bool shard_handed(struct shard *s);
int shard_fd(const struct shard *s);
/* Runs one bounded turn if the loop owns the shard. */
void shard_work(struct shard *s);
bool shard_busy(struct shard *s);

/* Returns for how long the thread, if it owns the shard, has begun no turn.
 * Call from time to time; the first call starts the clock. It sleeps for
 * SHARD_SLEEP_NS at most; beyond SHARD_HANGS_NS it hangs. */
#define SHARD_SLEEP_NS NS_PER_S
#define SHARD_HANGS_NS (3 * SHARD_SLEEP_NS)
uint64_t shard_silent_ns(struct shard *s, uint64_t now_ns);

/* Takes the next note; false: none. */
bool shard_note(struct shard *s, struct data_note *n);

/* Counters of the shard, one a row of stats.def; readable at any time. */
struct shard_stats {
#define SHARD_STAT(name, text) _Atomic uint64_t name;
#include "node/stats.def"
    struct data_counts data; /* of its carriers */
    _Atomic uint64_t turns;
};
const struct shard_stats *shard_stats(const struct shard *s);
/* Copies the transport chosen for a peer, empty: none yet; or why the data
 * connection of NOTE_PEER_TRIED is not made. */
enum shard_words { SHARD_TRANSPORT, SHARD_WHY };
void shard_say(struct shard *s, uint32_t peer, enum shard_words what, char *out,
    size_t size);

#endif
