/* node_impl.h - inside of a node: what node.c (life), node_turn.c (turns of the
 * loop), node_step.c (steps), node_inline.c (shards that the loop runs),
 * node_carriers.c (what rows go by), node_pool.c (memory), node_map.c (pools of
 * other daemons), node_health.c, node_reload.c and admin.c (QUERY)
 * share. Private to them. All of it belongs to the loop's thread. */
#ifndef MMX_NODE_NODE_IMPL_H
#define MMX_NODE_NODE_IMPL_H

#include "base/list.h"
#include "core/trace/recorder.h"
#include "core/brain.h"
#include "io/local.h"
#include "io/peer.h"
#include "node/crash.h"
#include "node/node.h"
#include "node/shard.h"

#define SHARDS_MAX 64

/* Frames of the brain to peers that the links do not have yet. */
#define OUTBOX_BYTES (16u * OUT_BYTES)
struct outbox {
    uint8_t *bytes; /* struct outbox_frame, its bytes, and so on */
    size_t len, cap;
    uint64_t dropped; /* frames that did not fit */
};

struct node_conn {
    struct list notified; /* linked: its events are to be pulled */
    bool greeted;         /* WELCOME went out */
    uint32_t uid;
    struct query *query; /* in progress; NULL: none */
};

/* The poll of a shard that the loop runs. */
struct inline_poll {
    uv_poll_t poll;
    bool watched; /* runs: the loop owned the shard when it looked last */
    bool ready;   /* the shard may have work */
};

/* How rows can go from and to this host. */
struct node_carriers {
    /* Best first; then NULL. */
    const struct data_ops *parts[DATA_CARRIERS_MAX + 1];
    uint32_t count;
    bool any_thread;                   /* the loop may call one of them */
    char tls[128], devices[260];       /* for UCX */
    char what[DATA_CARRIERS_MAX][224]; /* of each part: name and what it uses */
    char text[256];    /* of those that are open, as HELLO says it */
    char why_not[192]; /* the one that is not there; empty: all are */
    uint8_t barred;    /* bits of those that the config keeps from hosts */
    uint64_t replaced; /* workers replaced when addresses were gathered */
};

/* Reading the configuration anew, one at a time. */
struct reload {
    const struct conf_source *from;
    struct list asked, shown; /* queries that wait: for a reload, for its
                                 differences only */
    bool hup;                 /* SIGHUP came */
    struct reload_job *job;   /* under way; NULL: none */
    bool read;                /* it has ended in the other thread */
};

struct node {
    struct conf *conf; /* node_reload.c changes it, nothing else does */
    struct keys *keys; /* NULL: control connections are in the clear */
    struct brain *brain;
    void *brain_memory;
    size_t brain_bytes;
    struct brain_conf brain_conf;
    uint64_t started_ns, now_ns;
    uint64_t turns, steps;
    uint32_t commits;          /* of engines, since shards were flushed */
    struct recorder *recorder; /* of the brain */
    const struct event *event; /* that is taken in, for crashes; NULL: none */
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
    struct share conn_share; /* of limits.connections */
    void *share_memory;
    struct links *links;
    struct node_conn *conns;
    struct list notified;
    const struct command *commands;
    struct list making; /* queries whose reports are not whole, in turns */
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
    uint64_t maps_room;    /* bytes of pools that may be mapped on top */

    struct out out;
    struct outbox outbox;
    bool ending, stopping; /* after the drain; now */
    bool lines_lost;       /* omitted log lines are not reported yet */
    uint64_t drain_ns;     /* deadline of the drain */
    struct health health;  /* as the service manager heard it last */
    struct reload reload;
};

/* node_turn.c */
/* Return what the engine socket and the links call. */
struct local_calls node_local_calls(struct node *n);
struct links_calls node_links_calls(struct node *n);
/* Runs turns until the loop is stopped. */
void node_turns(struct node *n);

/* node_step.c */
/* Returns the time of CLOCK_MONOTONIC, which the brain's times are. */
uint64_t node_clock_ns(struct node *n);
/* Steps the brain with the event and carries out its actions. */
void node_event(struct node *n, struct event *ev);
/* Continues what a step left because a shard was far behind. */
void node_more(struct node *n);
/* Has a thread of libuv's pool do the work, which takes no signals but
 * guard.h's. */
void node_work(
    struct node *n, uv_work_t *w, uv_work_cb work, uv_after_work_cb after);
/* Gives the order to every shard. */
void node_order(struct node *n, const struct order *o);
/* True if orders wait for a place in a shard's ring. */
bool node_behind(const struct node *n);
/* Sends the outbox to the links, unless orders given before wait for a place in
 * a shard's ring. */
void outbox_flush(struct node *n);
/* Drops the frames for `link` from the outbox. */
void outbox_drop(struct node *n, uint32_t link);
/* True if no step may be taken: a shard is far behind. */
bool node_congested(const struct node *n);

/* node_inline.c */
MUST_CHECK enum err node_inline_open(struct node *n);
/* Polls the shards that the loop owns, and no others. */
void node_inline_watch(struct node *n);
/* Runs the shards that the loop owns and that have work. */
void node_inline_serve(struct node *n);
/* True if a shard of the loop has work that no descriptor shows. */
bool node_inline_busy(struct node *n);

/* node_carriers.c */
/* Returns what data connections of TCP ask of the other end. */
enum data_safe node_carriers_safe(const struct conf *conf);
/* Chooses the carriers, before the shards start. */
void node_carriers_choose(struct node *n);
/* Takes in what the shards have opened, before the brain starts. */
MUST_CHECK enum err node_carriers_opened(struct node *n);
/* Draws the DATA_KEY_FRESH bytes of a key for data connections; NULL: they have
 * none. */
const uint8_t *node_carriers_draw(const struct node *n, uint8_t *fresh);
/* langd: gathers the shards' data addresses for HELLO. */
MUST_CHECK enum err node_carriers_say(struct node *n);
/* Gathers them again if a shard has replaced its worker. Call once per turn. */
void node_carriers_watch(struct node *n);

/* node_pool.c */
MUST_CHECK enum err node_pools_new(struct node *n);
/* Gets the memory of every pool whose layout the config gives. ERR_ABORTED: a
 * signal asked the daemon to end. */
MUST_CHECK enum err node_fix_pools(struct node *n);
/* Gets the memory of pool i, at once or in another thread, and notifies brain
 * and shards of the result. */
void node_fix_pool(struct node *n, uint32_t i);
/* Finishes pools whose memory is there since the last call. */
void node_pools_serve(struct node *n);
/* Cancels pending pools; the loop has to run until they have ended. */
void node_pools_stop(struct node *n);
void node_close_pools(struct node *n);

/* node_map.c: langd, pools of encoders on this host */
MUST_CHECK enum err node_maps_new(struct node *n);
void node_map(struct node *n, uint32_t peer, struct span path, uint64_t token);
void node_unmap(struct node *n, uint32_t peer);
/* Serves mappings with news since the last call. */
void node_maps_serve(struct node *n);
/* Ends all mappings; the loop has to run until their handles are closed. */
void node_maps_stop(struct node *n);
/* Frees what is left of mappings, after loop and shards. */
void node_maps_free(struct node *n);

/* node_health.c */
/* Looks at once, then each second: the service manager and the log hear what
 * has changed. */
void node_health_start(struct node *n);
/* What the brain says, and the shards. */
void node_health(struct node *n, struct health *h);
/* Appends it as a row. */
void node_health_row(struct node *n, struct rows_out *to);

/* admin.c */
void admin_query(struct node *n, uint32_t conn, const struct local_msg *m);
/* Makes slices of reports for a bounded time. Call once per turn. */
void admin_serve(struct node *n);
/* True if a report is not whole yet. */
bool admin_busy(const struct node *n);
/* Continues to send the report of a connection, if it has one. */
void admin_write(struct node *n, uint32_t conn);
void admin_forget(struct node *n, uint32_t conn);

/* node_reload.c */
void node_reload_init(struct node *n, const struct conf_source *from);
/* Reads the configuration again, for SIGHUP. */
void node_reload(struct node *n);
/* Takes over what was read; n->reload.read. */
void node_reload_serve(struct node *n);
/* Frees what is under way, once the loop has ended. */
void node_reload_fini(struct node *n);

/* commands: each has a function command_<name>, called for those that came by
 * the socket for orders. It is answered once, now or later, by
 * admin_answer or admin_refuse; until then the query may be on a list of the
 * command's, which it leaves by itself when its connection ends. */
struct query;
struct command {
    const char *word; /* NULL: behind the last */
    void (*run)(struct node *n, struct query *q, const char *args);
};
#define COMMAND(name, word, usage, meaning)                                    \
    void command_##name(struct node *n, struct query *q, const char *args);
#include "wire/command.def"
#undef COMMAND
/* Returns where the answer's rows go. */
struct rows_out *admin_rows(struct query *q);
void admin_answer(struct node *n, struct query *q);
void admin_refuse(
    struct node *n, struct query *q, enum err err, const char *text);
/* Puts the query on the list, at its end. */
void admin_wait(struct query *q, struct list *list);
/* Returns the first query of the list, which it leaves; NULL: none. */
struct query *admin_next(struct list *list);

#endif
