/* orders.h - orders to a shard, one function for each kind. An order that names
 * no carrier uses data_mem. False: the ring has no place; nothing was done. */
#ifndef MMX_TEST_ORDERS_H
#define MMX_TEST_ORDERS_H

#include "node/shard/shard.h"
#include "test/data_mem.h"

static inline bool shard_push(struct shard *s, const struct data_cmd *cmd)
{
    if (shard_space(s) == 0)
        return false;
    shard_command(s, cmd);
    return true;
}

static inline bool order_push(struct shard *s, const struct order *o)
{
    if (shard_space(s) == 0)
        return false;
    shard_order(s, o);
    return true;
}

static inline bool shard_peer_by(struct shard *s, uint32_t peer,
    struct span blob, uint32_t segment_max, uint8_t carrier)
{
    return order_push(s, &(struct order){.type = ORDER_PEER,
                             .peer = {.blob = (uint8_t *)(uintptr_t)blob.p,
                                 .peer = peer,
                                 .len = blob.len,
                                 .segment_max = segment_max,
                                 .carrier = carrier}});
}

static inline bool shard_peer(
    struct shard *s, uint32_t peer, struct span blob, uint32_t segment_max)
{
    return shard_peer_by(s, peer, blob, segment_max, data_mem.number);
}

static inline bool shard_pool_ready(struct shard *s, uint32_t pool)
{
    return order_push(s, &(struct order){.type = ORDER_POOL, .pool = pool});
}

/* Gives the data_key that a peer's connections prove. */
static inline bool shard_key(struct shard *s, uint32_t peer, struct span key)
{
    struct order o = {.type = ORDER_KEY, .key = {.peer = peer, .len = key.len}};

    memcpy(o.key.bytes, key.p, key.len);
    return order_push(s, &o);
}

static inline bool shard_source(
    struct shard *s, uint32_t peer, uint32_t pool, struct source *source)
{
    return order_push(s,
        &(struct order){.type = ORDER_SOURCE, .source = {source, peer, pool}});
}

#endif
