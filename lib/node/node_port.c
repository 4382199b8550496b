/* node_port.c - shards whose work the loop has for as long as little moves (see
 * shard.h): when there is some, and doing it.
 *
 * Invariant: a port is watched exactly while its shard's work is ours, as far
 * as node_ports_watch has looked; what came back since then has one call of
 * shard_work due, whatever its descriptor says. The loop's thread. */
#include "node/node_impl.h"

#include "base/log.h"

static void on_port(uv_poll_t *h, int status, int events)
{
    struct port *p = h->data;

    (void)status;
    (void)events;
    p->ready = true; /* the check that follows does it */
}

enum err node_ports_open(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        uv_poll_t *poll = &n->ports[k].poll;

        if (!shard_mine(n->shards[k]))
            continue; /* then it never will be */
        if (uv_poll_init(&n->loop, poll, shard_fd(n->shards[k]))) {
            log_error("the loop cannot poll shard %u", k);
            return ERR_INTERNAL;
        }
        poll->data = &n->ports[k];
    }
    return OK;
}

void node_ports_watch(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct port *p = &n->ports[k];

        if (shard_lent(n->shards[k])) {
            p->watched = false;
            uv_poll_stop(&p->poll);
        }
        if (p->watched || !shard_mine(n->shards[k]))
            continue;
        p->watched = p->ready = true;
        uv_poll_start(&p->poll, UV_READABLE, on_port);
    }
}

void node_ports_serve(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct port *p = &n->ports[k];

        if (!p->watched || (!p->ready && !shard_busy(n->shards[k])))
            continue;
        p->ready = false;
        shard_work(n->shards[k]);
    }
}

bool node_ports_busy(struct node *n)
{
    bool busy = false;

    for (uint32_t k = 0; k < n->shards_count; k++)
        busy |= shard_busy(n->shards[k]) ||
                (shard_mine(n->shards[k]) &&
                    (n->ports[k].ready || !n->ports[k].watched));
    return busy;
}
