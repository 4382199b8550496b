/* shard_order.c - orders, from the loop to a shard, through the ring.
 *
 * Invariants: orders keep their order and none is lost: the loop gives none for
 * which there is no place. An order owns what it points to from shard_order on,
 * until the shard has carried it out. A command to a shard that the loop owns
 * does not go through the ring if the ring is empty. Called by the loop's
 * thread, except the end of this file: the shard's owner carries orders out.
 *
 * Rejected: waiting for a shard that is behind. It may be waiting for us to
 * read its notes. Rejected: a queue for orders that the ring does not take. The
 * loop would go on to give more of them, and its messages to peers would have
 * to wait as well. */
#include "node/shard/shard_in.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define ORDER_NOTES 3 /* room for the notes of an order, and one more */

/* Returns memory for the addresses of a peer. If the system has none, one peer
 * gets the spare, until its addresses change. */
static uint8_t *blob_take(struct shard *s, uint32_t n)
{
    uint8_t *p = malloc(n);

    if (!p && n <= SPARE_BYTES && !atomic_exchange(&s->spare_used, true))
        p = s->spare;
    CHECK(p, "no memory for %u bytes", n);
    return p;
}

void orders_blob_free(struct shard *s, uint8_t *p)
{
    if (p && p == s->spare)
        atomic_store(&s->spare_used, false);
    else
        free(p);
}

/* Gives an order its own copy of the data it points to. */
static void own(struct shard *s, struct order *o)
{
    uint8_t *blob;

    switch ((enum order_type)o->type) {
    case ORDER_PEER:
        CHECK(o->peer.peer < s->conf.peers, "peer %u of %u", o->peer.peer,
            s->conf.peers);
        /* Memory is taken per peer here, not per room. */
        blob = blob_take(s, o->peer.len + 1);
        if (o->peer.len)
            memcpy(blob, o->peer.blob, o->peer.len);
        o->peer.blob = blob;
        return;
    case ORDER_SOURCE:
        CHECK(o->source.peer < s->conf.peers &&
                  (o->source.pool < SHARD_POOLS_MAX || !o->source.source),
            "pool %u of peer %u", o->source.pool, o->source.peer);
        if (o->source.source)
            source_hold(o->source.source);
        return;
    case ORDER_KEY:
        CHECK(o->key.peer < s->conf.peers && o->key.len <= DATA_KEY_BYTES,
            "a key of peer %u of %u", o->key.peer, s->conf.peers);
        return;
    case ORDER_POOL:
        CHECK(o->pool < s->conf.pools_count, "pool %u of %u", o->pool,
            s->conf.pools_count);
        return;
    case ORDER_CMD:
        return;
    }
    CHECK(false, "order %u", o->type);
}

static void disown(struct shard *s, struct order *o)
{
    if (o->type == ORDER_PEER)
        orders_blob_free(s, o->peer.blob);
    else if (o->type == ORDER_SOURCE)
        source_drop(o->source.source);
}

void shard_order(struct shard *s, const struct order *o)
{
    struct order mine = *o;
    bool pushed;

    if (o->type != ORDER_CMD) /* a command points to nothing */
        own(s, &mine);
    pushed = ring_push(&s->in, &mine);
    CHECK(pushed, "shard %u has no place for an order", s->conf.index);
    s->pushed = true;
}

void shard_command(struct shard *s, const struct data_cmd *cmd)
{
    if (!shard_inline(s) || notes_high(s) || !ring_empty(&s->in)) {
        shard_order(s, &(struct order){.type = ORDER_CMD, .cmd = *cmd});
        return;
    }
    CHECK(s->fd >= 0, "shard %u has no carrier", s->conf.index);
    s->role->command(s, cmd);
    s->pushed = true; /* the command may cause rows to be sent */
}

uint32_t shard_space(struct shard *s)
{
    return ring_space(&s->in);
}

void orders_free(struct shard *s)
{
    struct order o;

    while (s->in.records && ring_pop(&s->in, &o))
        disown(s, &o);
}

/* at the shard, by its owner */

/* Tells carriers and stage of pool i, once it has memory. */
void orders_pool(struct shard *s, uint32_t i)
{
    struct mem *m = s->conf.pools[i].mem;

    if (m && !m->gpu && carry_memory(s, m)) {
        s->pools_alone |= UINT64_C(1) << i;
        if (s->role->alone)
            s->role->alone(s, i);
    }
    gpu_pool(s, i);
}

unsigned shard_orders(struct shard *s)
{
    struct order o;
    unsigned n = 0;

    while (ring_fits(&s->out, ORDER_NOTES) && ring_pop(&s->in, &o)) {
        n++;
        if (o.type == ORDER_CMD) {
            s->role->command(s, &o.cmd);
            continue;
        }
        s->role->order(s, &o);
    }
    return n;
}
