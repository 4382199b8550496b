/* node.h - the body of both daemons: one loop around a brain, on one thread;
 * shards may have threads of their own. It brings events, carries out actions
 * and decides nothing.
 *
 * A node has no globals; several fit into one process. */
#ifndef MMX_NODE_LOOP_NODE_H
#define MMX_NODE_LOOP_NODE_H

#include "node/load.h"

struct node;

struct node_opt {
    struct conf *conf; /* finished; stays valid, and a reload changes it */
    struct keys *keys; /* of control.keys: the node's from now on; NULL: none */
    const struct conf_source *from; /* for reloads; NULL: there is no file */
    int listen_fd;                  /* socket of the engines; -1: socket.path */
    uint64_t watchdog_ns;           /* of the service manager; 0: none */
};

/* Starts shards, brain, pools, links and the engines' socket. Errors are logged
 * where they occur. */
MUST_CHECK enum err node_new(struct node **out, const struct node_opt *opt);
/* Serves until SIGTERM or SIGINT. The first waits for open rooms, up to
 * timeouts.drain; a second one ends the daemon at once. */
void node_run(struct node *n);
/* Accepts NULL. */
void node_free(struct node **n);

#endif
