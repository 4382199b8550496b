/* state.h - a node's state, which loop/ changes and admin/ shows. All of it
 * belongs to the loop's thread. */
#ifndef MMX_NODE_STATE_H
#define MMX_NODE_STATE_H

#include "base/list.h"
#include "core/trace/recorder.h"
#include "core/brain.h"
#include "io/local.h"
#include "io/peer.h"
#include "node/crash.h"
#include "node/load.h"
#include "node/shard/shard.h"

#define SHARDS_MAX 64

struct node_conn {
    struct list notified; /* linked: the connection has events to pull */
    bool greeted;         /* WELCOME went out */
    uint32_t uid;
    struct query *query; /* in progress; NULL: none */
};

/* The poll of a shard that the loop runs. */
struct inline_poll {
    uv_poll_t poll;
    bool watched; /* runs: the loop owned the shard at its last look */
    bool ready;   /* the shard may have work */
};

/* How rows can go from and to this host. */
struct node_carriers {
    /* Best first; then NULL. */
    const struct data_ops *parts[DATA_CARRIERS_MAX + 1];
    uint32_t count;
    /* the loop's thread may call all of them */
    bool any_thread;
    char tls[128];     /* for UCX */
    char devices[260]; /* lists of shards in turn, each with its NUL */
    uint32_t lists;    /* of devices */
    char what[DATA_CARRIERS_MAX][224]; /* of each part: name and what it uses */
    char text[256];    /* the open carriers, as HELLO names them */
    char why_not[192]; /* why a carrier is missing; empty: none is */
    uint8_t barred;    /* bits of carriers that the config bars between hosts */
    uint64_t replaced; /* workers replaced when addresses were gathered */
};

/* Reloads of the configuration, one at a time. */
struct reload {
    const struct conf_source *from;
    /* queries that wait: for a reload, for its differences only */
    struct list asked, shown;
    bool hup;               /* SIGHUP came, and waits */
    struct reload_job *job; /* the job in progress; NULL: none */
    bool read;              /* the other thread has finished the job */
};

struct node {
    struct conf *conf; /* only node_reload.c changes it */
    struct keys *keys; /* NULL: control connections are in the clear */
    struct brain *brain;
    void *brain_memory;
    size_t brain_bytes;
    struct brain_conf brain_conf;
    uint64_t started_ns, now_ns;
    uint64_t turns, steps;
    uint32_t commits;          /* of engines, since shards were flushed */
    struct recorder *recorder; /* the brain's */
    /* the event that the brain handles, for crashes; NULL: none */
    const struct event *event;
    struct crash_view crash;

    uv_loop_t loop;
    bool loop_made;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle; /* runs while work exists that no descriptor shows */
    uv_timer_t timer, watchdog, look;
    uv_signal_t term, intr, hup;
    uv_poll_t wake_poll;
    struct wake wake;
    uint64_t watchdog_ns, timer_ns;

    struct local *local;
    struct share conn_share; /* the shares of limits.connections */
    void *share_memory;
    struct links *links;
    struct node_conn *conns;
    uint32_t conns_count, peers_count; /* numbers are below these */
    struct list notified;
    const struct command *commands;
    struct list making; /* queries whose reports are not complete, in turns */
    uint32_t queries;   /* in progress */

    struct shard *shards[SHARDS_MAX];
    struct inline_poll polls[SHARDS_MAX];
    uint32_t shards_count;
    struct node_carriers carriers;
    struct shard_pool *pools;
    struct mem *mems;
    struct pool_job *pool_jobs; /* by pool */
    struct mem_watch pool_watch;
    bool pools_seen; /* a pool job has news */

    struct mapping **maps; /* langd, by peer; NULL: none */
    bool maps_seen;        /* a mapping has news */
    struct list maps_left; /* ended, with sources that shards may read */
    uint64_t maps_room;    /* bytes of pools that may still be mapped */

    struct out out;
    /* places: orders that every ring still takes. step_orders: places that a
     * step needs, for all its actions and for links that come and go before the
     * next look. */
    uint32_t places, step_orders;
    bool ending, stopping; /* ending: after the drain; stopping: now */
    bool lines_lost;       /* omitted log lines are not reported yet */
    uint64_t drain_ns;     /* deadline of the drain */
    struct health health;  /* as last sent to the service manager */
    struct reload reload;
};

#endif
