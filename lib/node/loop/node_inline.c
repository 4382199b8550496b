/* node_inline.c - runs shards on the loop's thread while traffic is light (see
 * shard.h).
 *
 * Invariant: a shard's descriptor is polled exactly while the loop owned the
 * shard at the last node_inline_watch; a shard that came back since then has
 * one call of shard_work due, whatever its descriptor says. The loop's thread.
 *
 * Rejected: a thread for every shard at all times. A small room would pay for
 * two wakeups. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"

static void on_poll(uv_poll_t *h, int status, int events)
{
    struct inline_poll *p = h->data;

    (void)status;
    (void)events;
    p->ready = true; /* the loop's next check serves the shard */
}

enum err node_inline_open(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        uv_poll_t *poll = &n->polls[k].poll;

        if (!shard_may_inline(n->shards[k]))
            continue; /* the shard stays with its thread */
        if (uv_poll_init(&n->loop, poll, shard_fd(n->shards[k]))) {
            log_error("the loop cannot poll shard %u", k);
            return ERR_INTERNAL;
        }
        poll->data = &n->polls[k];
    }
    return OK;
}

void node_inline_watch(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct inline_poll *p = &n->polls[k];

        if (shard_handed(n->shards[k])) {
            p->watched = false;
            uv_poll_stop(&p->poll);
        }
        if (p->watched || !shard_inline(n->shards[k]))
            continue;
        p->watched = p->ready = true;
        uv_poll_start(&p->poll, UV_READABLE, on_poll);
    }
}

void node_inline_serve(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct inline_poll *p = &n->polls[k];

        if (!p->watched || (!p->ready && !shard_busy(n->shards[k])))
            continue;
        CHECK(p->poll.data == p, "shard %u has no poll", k);
        p->ready = false;
        shard_work(n->shards[k]);
    }
}

bool node_inline_busy(struct node *n)
{
    bool busy = false;

    for (uint32_t k = 0; k < n->shards_count; k++)
        busy |= shard_busy(n->shards[k]) ||
                (shard_inline(n->shards[k]) &&
                    (n->polls[k].ready || !n->polls[k].watched));
    return busy;
}
