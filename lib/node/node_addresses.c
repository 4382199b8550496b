/* node_addresses.c - the data addresses of langd's shards, as its HELLOs say
 * them. The loop's thread. */
#include "node/node_impl.h"

#include "base/log.h"

#include <stdatomic.h>
#include <stdlib.h>

#define ADDRESSES_MAX 8192u /* as in peer.def */

/* Gathers the shards' addresses, and places, for HELLO, in memory that stays.
 * Without a place of each there are none. */
static enum err gather(struct node *n)
{
    uint8_t blob[ADDRESSES_MAX], more[ADDRESSES_MAX];
    struct writer w = writer_of(blob, sizeof(blob));
    struct writer p = writer_of(more, sizeof(more));
    uint32_t had = n->brain_conf.addresses.len;

    for (uint32_t k = 0; k < n->shards_count; k++) {
        put_span(&w, shard_address(n->shards[k]), 2, 4096);
        put_span(&p, shard_place(n->shards[k]), 2, 4096);
        p.failed |= shard_place(n->shards[k]).len == 0;
    }
    if (w.failed || (had && had != w.len)) {
        log_error("%zu bytes of data addresses, a HELLO holds %u", w.len,
            had ? had : ADDRESSES_MAX);
        return ERR_TOO_LARGE;
    }
    memcpy(n->addresses, blob, w.len);
    n->brain_conf.addresses = span_of(n->addresses, w.len);
    if (p.failed)
        return OK;
    memcpy(n->addresses + ADDRESSES_MAX, more, p.len);
    n->brain_conf.places = span_of(n->addresses + ADDRESSES_MAX, p.len);
    return OK;
}

void node_addresses_watch(struct node *n)
{
    uint64_t replaced = 0;

    if (!n->addresses)
        return;
    for (uint32_t k = 0; k < n->shards_count; k++)
        replaced += atomic_load_explicit(
            &shard_stats(n->shards[k])->workers_replaced, memory_order_acquire);
    if (replaced == n->replaced)
        return;
    n->replaced = replaced;
    if (gather(n) == OK)
        log_warn("a shard has a new worker and a new data address");
}

enum err node_addresses_open(struct node *n)
{
    n->addresses = calloc(2, ADDRESSES_MAX);
    return n->addresses ? gather(n) : ERR_NO_BLOCKS;
}
