/* node_addresses.c - the data addresses of langd's shards, as its HELLOs say
 * them. The loop's thread. */
#include "node/node_impl.h"

#include "base/log.h"

#include <stdatomic.h>

/* Gathers the shards' addresses, and places, for HELLO. Without a place of each
 * there are none. */
static enum err gather(struct node *n)
{
    uint8_t blob[ADDRESSES_MAX], more[ADDRESSES_MAX];
    struct writer w = writer_of(blob, sizeof(blob));
    struct writer p = writer_of(more, sizeof(more));
    struct own_addresses a;
    struct event ev = {.type = EV_ADDRESSES, .addresses = &a};

    for (uint32_t k = 0; k < n->shards_count; k++) {
        put_span(&w, shard_address(n->shards[k]), 2, 4096);
        put_span(&p, shard_place(n->shards[k]), 2, 4096);
        p.failed |= shard_place(n->shards[k]).len == 0;
    }
    if (w.failed) {
        log_error("%zu bytes of data addresses, a HELLO holds %u", w.len,
            ADDRESSES_MAX);
        return ERR_TOO_LARGE;
    }
    a.data = span_of(blob, w.len);
    a.places = span_of(more, p.failed ? 0 : p.len);
    node_event(n, &ev);
    return OK;
}

void node_addresses_watch(struct node *n)
{
    uint64_t replaced = 0;

    if (!conf_lands(n->conf) || node_congested(n))
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
    return conf_lands(n->conf) ? gather(n) : OK;
}
