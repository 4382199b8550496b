/* node_impl.h - inside of a node: what node.c (life and turns), node_act.c
 * (actions), node_port.c (shards' work that is ours), node_pool.c (memory),
 * node_map.c (others' memory), node_brain.c (which brain) and admin.c (QUERY)
 * share. Nobody else includes it. All of it belongs to the loop's thread. */
#ifndef MMX_NODE_NODE_IMPL_H
#define MMX_NODE_NODE_IMPL_H

#include "base/list.h"
#include "core/brain.h"
#include "io/local.h"
#include "io/peer.h"
#include "node/node.h"
#include "node/shard.h"

#define SHARDS_MAX 64
/* One of the two brains, without its type. */
struct brain_kind {
    const struct brain_ops *ops;
    void *(*init)(struct slab *s, const struct brain_conf *c);
    const struct layout *(*layout)(const void *brain, uint32_t i);
    void (*pool_ready)(void *brain, uint32_t i, bool ok,
        const uint64_t *offsets, uint64_t bytes);
    void (*pool_share)(
        void *brain, uint32_t i, const char *share, struct span handle);
    const struct ended *(*ended)(const void *brain, uint64_t n);
    bool (*link_known)(const void *brain, uint32_t link);
};
const struct brain_kind *brain_kind(uint8_t role);

/* What the brain said to peers and is not with the links yet. */
#define OUTBOX_BYTES (16u * OUT_BYTES)
struct outbox {
    uint8_t *bytes; /* struct said, frame, and so on */
    size_t len, cap;
    uint64_t dropped; /* frames that did not fit */
};

struct node_conn {
    struct list notified; /* its events are to be pulled */
    bool greeted;         /* WELCOME went out */
    uint32_t uid;
    struct query *query; /* NULL: none is being answered */
};

/* How the loop hears of a shard whose work it has. */
struct port {
    uv_poll_t poll;
    bool watched; /* the poll runs: the work was ours when we looked last */
    bool ready;   /* there may be something to do */
};

struct node {
    const struct conf *conf;
    const struct brain_kind *kind;
    void *brain, *brain_memory;
    size_t brain_bytes;
    struct brain_conf brain_conf;
    uint64_t started_ns, now_ns;
    uint64_t turns, steps;

    uv_loop_t loop;
    bool loop_made;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle; /* runs while there is work that no descriptor shows */
    uv_timer_t timer, watchdog;
    uv_signal_t term, intr, hup;
    uv_poll_t wake_poll;
    struct wake wake;
    uint64_t watchdog_ns, timer_ns;

    struct local *local;
    struct share conn_share; /* of limits.connections */
    void *share_memory;
    struct links *links;
    struct node_conn *conns;
    struct list notified;
    struct list making; /* queries whose answers are not whole, in turns */
    uint32_t queries;   /* that are being answered */

    struct shard *shards[SHARDS_MAX];
    struct port ports[SHARDS_MAX];
    uint32_t shards_count;
    uint8_t *addresses; /* langd */
    uint64_t replaced;  /* workers, when the addresses were gathered */
    struct shard_pool *pools;
    struct mem *mems;
    struct pool_job *pool_jobs; /* by pool */
    struct mem_watch pool_watch;
    bool pools_seen; /* something happened to one */

    struct mapping **maps; /* langd, by peer; NULL: none */
    bool maps_seen;        /* something happened to one */

    struct out out;
    struct outbox outbox;
    bool draining, stopping;
    bool lines_lost;   /* log lines were left out and not told of yet */
    uint64_t drain_ns; /* when a drain is over in any case */
};

/* node.c */
/* Steps the brain and carries out what it wants. */
void node_happen(struct node *n, struct event *ev);

/* node_act.c */
void node_carry_out(struct node *n);
/* To every shard, in order. */
void node_order(struct node *n, const struct order *o);
/* True if orders wait for a place in a shard's ring. */
bool node_behind(const struct node *n);
/* Gives the links what was said, and sends it, once every shard has the
 * commands that were given before; else it stays. */
void node_say(struct node *n);
/* Forgets what was said to a link. */
void node_unsay(struct node *n, uint32_t link);
/* True if no step may be taken: a shard is far behind. */
bool node_clogged(const struct node *n);

/* node_port.c */
MUST_CHECK enum err node_ports_open(struct node *n);
/* Polls those that are ours now, and no others. */
void node_ports_watch(struct node *n);
/* Does what there is to do. */
void node_ports_serve(struct node *n);
/* Is there anything that nobody would wake us for? */
bool node_ports_busy(struct node *n);

/* node_pool.c */
MUST_CHECK enum err node_pools_new(struct node *n);
/* Gets the memory of every pool whose layout the config gives. ERR_ABORTED: a
 * signal wants us to end. */
MUST_CHECK enum err node_fix_pools(struct node *n);
/* Gets the memory of pool i, now or beside the loop, and tells brain and shards
 * how it went. */
void node_fix_pool(struct node *n, uint32_t i);
/* Carries out what the loop has seen since the last call. */
void node_pools_serve(struct node *n);
/* Stops what is under way; the loop has to run until it is over. */
void node_pools_stop(struct node *n);
void node_close_pools(struct node *n);

/* node_map.c: langd, pools of encoders on this host */
MUST_CHECK enum err node_maps_new(struct node *n);
void node_map(struct node *n, uint32_t peer, struct span path, uint64_t token);
void node_unmap(struct node *n, uint32_t peer);
/* Carries out what the loop has seen since the last call. */
void node_maps_serve(struct node *n);
/* Ends all; the loop has to run until its handles are closed. */
void node_maps_stop(struct node *n);

/* admin.c */
void admin_query(struct node *n, uint32_t conn, const struct local_msg *m);
/* Makes slices of reports for a bounded time; once per turn. */
void admin_serve(struct node *n);
/* Is there something for admin_serve? */
bool admin_busy(const struct node *n);
/* Sends on the report of a connection; done when it has none any more. */
void admin_write(struct node *n, uint32_t conn);
void admin_forget(struct node *n, uint32_t conn);

#endif
