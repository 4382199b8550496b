/* node.h - the body of both daemons: one loop, one thread (and the shards'),
 * around a brain. It brings events, carries out actions and decides nothing.
 *
 * A node has no globals; several fit into one process. */
#ifndef MMX_NODE_NODE_H
#define MMX_NODE_NODE_H

#include "core/conf/conf.h"

struct node;

struct node_opt {
    const struct conf *conf; /* finished; stays valid and unchanged */
    int listen_fd;           /* socket of the engines; -1: socket.path */
    uint64_t watchdog_ns;    /* of the service manager; 0: none */
};

/* Starts everything: shards, brain, pools, peers, engines' socket. Errors are
 * logged where they were met. */
MUST_CHECK enum err node_new(struct node **out, const struct node_opt *opt);
/* Serves until a signal ends it: SIGTERM or SIGINT waits for open rooms, a
 * second one does not. */
void node_run(struct node *n);
/* Accepts NULL. */
void node_free(struct node **n);

/* The brain's status and rooms on stderr, without allocating. For crashes. */
void node_print(struct node *n);

#endif
