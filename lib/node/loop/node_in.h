/* node_in.h - inside of the loop: what node.c (life), node_turn.c (turns),
 * node_step.c (steps), node_inline.c (shards that the loop runs),
 * node_carriers.c (carriers of rows), node_pool.c (memory), node_map.c (pools
 * of other daemons), node_order.c, node_health.c and node_reload.c share.
 * Private to them. */
#ifndef MMX_NODE_LOOP_NODE_IN_H
#define MMX_NODE_LOOP_NODE_IN_H

#include "node/admin/admin.h"
#include "node/loop/node.h"

/* node_turn.c */
/* Return the callbacks of the engines' socket and of the links. */
struct local_calls node_local_calls(struct node *n);
struct links_calls node_links_calls(struct node *n);
/* Runs turns until the loop is stopped. */
void node_turns(struct node *n);

/* node_step.c */
/* Returns the time of CLOCK_MONOTONIC, the brain's clock. */
uint64_t node_clock_ns(struct node *n);
/* Steps the brain with the event and carries out its actions. */
void node_event(struct node *n, struct event *ev);
/* Continues the work that a step left because a shard was far behind. */
void node_more(struct node *n);
/* Runs the work in libuv's thread pool. Its threads block all signals except
 * guard.h's. */
void node_work(
    struct node *n, uv_work_t *w, uv_work_cb work, uv_after_work_cb after);
/* Gives the order to every shard. */
void node_order(struct node *n, const struct order *o);
/* True if the brain may get only urgent events: a shard is far behind, and its
 * ring might not hold all orders of a step. */
bool node_congested(struct node *n);

/* node_inline.c */
MUST_CHECK enum err node_inline_open(struct node *n);
/* Polls the shards that the loop owns, and no others. */
void node_inline_watch(struct node *n);
/* Runs the shards that the loop owns and that have work. */
void node_inline_serve(struct node *n);
/* True if a shard of the loop has work that no descriptor shows. */
bool node_inline_busy(struct node *n);

/* node_carriers.c */
/* Returns what TCP data connections require of the other end. */
enum data_safe node_carriers_safe(const struct conf *conf);
/* Returns the devices of a shard, once carriers are chosen. */
const char *node_carriers_devices(
    const struct node_carriers *c, uint32_t shard);
/* Chooses the carriers, before the shards start. */
void node_carriers_choose(struct node *n);
/* Reads which carriers the shards have opened, before the brain starts. */
MUST_CHECK enum err node_carriers_opened(struct node *n);
/* Draws the DATA_KEY_FRESH bytes of a data connection's key. NULL: data
 * connections have no keys. */
const uint8_t *node_carriers_draw(const struct node *n, uint8_t *fresh);
/* langd: gathers the shards' data addresses for HELLO. */
MUST_CHECK enum err node_carriers_say(struct node *n);
/* Gathers the addresses again if a shard has replaced its worker. Call once per
 * turn. */
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
void node_map(struct node *n, uint32_t peer, struct span path, uint64_t token);
void node_unmap(struct node *n, uint32_t peer);
/* Serves mappings with news since the last call. */
void node_maps_serve(struct node *n);
/* Ends all mappings; the loop has to run until their handles are closed. */
void node_maps_stop(struct node *n);
/* Frees what is left of mappings, after loop and shards. */
void node_maps_free(struct node *n);

/* node_health.c */
/* Checks the health now, and each second from then on; tells the service
 * manager and the log what has changed. */
void node_health_look(uv_timer_t *t);

/* node_reload.c */
void node_reload_init(struct node *n, const struct conf_source *from);
/* Reads the configuration again, for SIGHUP. */
void node_reload(struct node *n);
/* Applies the configuration that was read; call it when n->reload.read is
 * set. */
void node_reload_serve(struct node *n);
/* Frees the reload in progress, once the loop has ended. */
void node_reload_fini(struct node *n);

#endif
