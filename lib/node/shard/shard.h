/* shard.h - one transfer worker: a thread with its carriers, a ring for orders
 * and a ring for notes. The loop's thread calls everything here; the shard's
 * thread runs sending.c and landing.c over the carriers.
 *
 * At any time one of the two threads owns the shard. With `may_inline` (all
 * carriers may be called by any thread) the loop's thread owns it while traffic
 * is light, so that a small room needs no wakeup. The shard's thread takes over
 * when more rows move, and passes the shard back when few have moved for
 * LINGER_MS. */
#ifndef MMX_NODE_SHARD_H
#define MMX_NODE_SHARD_H

#include "base/ring.h"
#include "core/flow.h"
#include "wire/layout.h"
#include "io/data.h"
#include "io/mem.h"
#include "io/source.h"

/* A pool as shards see it. Constant once its ORDER_POOL is given. */
struct shard_pool {
    struct layout layout; /* count 0: not known yet */
    struct mem *mem;
    uint64_t offsets[LAYOUT_FIELDS_MAX];
    uint32_t blocks, block_rows;
};

#define SHARD_POOLS_MAX 64

struct shard_conf {
    /* Best first, then NULL. A carrier that does not open is left out. If the
     * last one does not open the start fails: every pair of daemons may have to
     * fall back on it. */
    const struct data_ops *carriers[DATA_CARRIERS_MAX + 1];
    struct data_conf data;
    uint8_t role;
    uint32_t index, count; /* number of this shard, number of shards */
    uint32_t slots, peers, window_bytes;
    uint32_t orders; /* places of the ring of orders */
    int cpu;         /* -1: anywhere */
    /* the loop may own the shard: any_thread of all carriers */
    bool may_inline;
    bool gpu;                       /* pools may be on GPUs */
    const struct shard_pool *pools; /* stays valid */
    uint32_t pools_count;
    struct wake *wake; /* the loop's: woken when notes wait */
};

struct shard;

/* Starts the thread; returns when its carriers are open or have failed. */
MUST_CHECK enum err shard_start(struct shard **out, const struct shard_conf *c);
/* Stops the thread, closes the carriers. Accepts NULL and half-built. */
void shard_stop(struct shard **s);

/* Returns this shard's data address of carrier `number`; valid until
 * shard_stop. The address changes when workers_replaced grows. p NULL: the
 * carrier is not open. */
struct span shard_address(struct shard *s, uint8_t number);

/* What the loop orders a shard to do, in the order of the calls. */
enum order_type { ORDER_CMD, ORDER_PEER, ORDER_KEY, ORDER_POOL, ORDER_SOURCE };
struct order {
    uint8_t type;
    union {
        struct data_cmd cmd;
        /* A peer's data addresses, as in HELLO, with its data_key behind them,
         * the carrier that they are for, and segment_max. Comes before the
         * PEER_OPEN command. */
        struct order_peer {
            uint8_t *blob;
            uint32_t peer, len, segment_max; /* len: of addresses and key */
            uint8_t carrier;                 /* enum carrier_number */
            uint8_t key_len;
        } peer;
        /* langd: the data_key that the peer's connections prove; len 0: no
         * key. */
        struct order_key {
            uint32_t peer, len;
            uint8_t bytes[DATA_KEY_BYTES];
        } key;
        /* The layout and memory of this pool are ready. Comes before any
         * command on the pool. */
        uint32_t pool;
        /* langd: pool `pool` of that peer is mapped here. NULL: none of its
         * pools is mapped any more. The shard holds the source until then, and
         * while a copy reads it. */
        struct {
            struct source *source;
            uint32_t peer, pool;
        } source;
    };
};

/* Gives an order, for which the ring must have a place. Copies the blob, holds
 * the source. */
void shard_order(struct shard *s, const struct order *o);
/* Gives a command in the same way, or carries it out if the loop owns the shard
 * and the ring is empty. Its rows move in shard_flush. */
void shard_command(struct shard *s, const struct data_cmd *cmd);
/* Returns the number of free places for orders. */
uint32_t shard_space(struct shard *s);
/* Runs or wakes the shard if any order was given since the last call. Call it
 * at least once per turn of the loop. */
void shard_flush(struct shard *s);

/* True while the loop owns the shard. The loop then polls shard_fd, and calls
 * shard_work when that is readable, and when shard_busy is true before it
 * sleeps. The value becomes false only in shard_work and shard_flush, but true
 * at any time; the loop is woken then and must call shard_work once. The thread
 * does all work that has to wait. */
bool shard_inline(const struct shard *s);
/* True if the loop may own the shard at times. */
bool shard_may_inline(const struct shard *s);
/* True if the thread became the owner since the last call (the loop may own the
 * shard again). */
bool shard_handed(struct shard *s);
int shard_fd(const struct shard *s);
/* Runs one bounded turn if the loop owns the shard. */
void shard_work(struct shard *s);
bool shard_busy(struct shard *s);

/* Returns for how long the thread, while it owns the shard, has begun no turn.
 * Call it from time to time; the first call starts the clock. The thread sleeps
 * for SHARD_SLEEP_NS at most; beyond SHARD_HANGS_NS it hangs. */
#define SHARD_SLEEP_NS NS_PER_S
#define SHARD_HANGS_NS (3 * SHARD_SLEEP_NS)
uint64_t shard_silent_ns(struct shard *s, uint64_t now_ns);

/* Takes the next note; false: none. */
bool shard_note(struct shard *s, struct data_note *n);

/* Counters of the shard, one a row of stats.def; readable at any time. */
struct shard_stats {
#define SHARD_STAT(name, text) _Atomic uint64_t name;
#include "node/stats.def"
    struct data_counts data; /* counters of its carriers */
    _Atomic uint64_t turns;
};
const struct shard_stats *shard_stats(const struct shard *s);
/* Copies the transport chosen for a peer (empty: none yet), or why
 * NOTE_PEER_TRIED reported no data connection. */
enum shard_words { SHARD_TRANSPORT, SHARD_WHY };
void shard_say(struct shard *s, uint32_t peer, enum shard_words what, char *out,
    size_t size);

#endif
