/* node_pool.c - memory of pools: placed by layout, opened by kind, told to
 * brain and shards. Done at start where the config gives a layout, later when
 * an engine gives it. A pool's memory stays until the daemon ends. The loop's
 * thread. Rejected: opening memory in a thread of its own. Nothing can be
 * done with the pool before it stands, and it happens once. */
#include "node/node_impl.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static struct mem_opt options(const struct node *n, const struct conf_pool *c)
{
    struct mem_opt o = {.name = c->name,
        .kind = c->memory,
        .engines_write = n->conf->role == ROLE_ENCODED || c->engine_access == 1,
        .huge_pages = c->huge_pages,
        .numa_node = strcmp(c->numa, "any") == 0 ? -1 : atoi(c->numa)};

    return o;
}

static enum err open_memory(struct node *n, uint32_t i, const struct layout *l,
    uint64_t offsets[LAYOUT_FIELDS_MAX])
{
    const struct conf_pool *c = &n->conf->pools[i];
    const struct mem_ops *kind = mem_kind(c->memory);
    struct mem_opt opt = options(n, c);
    uint64_t rows = c->blocks * c->block_rows;

    if (!kind) {
        log_error(
            "pool %s: no memory of kind %s in this build", c->name, c->memory);
        return ERR_INTERNAL;
    }
    if (!layout_place(l, rows, kind->page(&opt), offsets, &opt.bytes)) {
        log_error("pool %s: too large", c->name);
        return ERR_TOO_LARGE;
    }
    return kind->open(&n->mems[i], &opt);
}

enum err node_fix_pool(struct node *n, uint32_t i)
{
    const struct layout *l = n->kind->layout(n->brain, i);
    const struct conf_pool *c = &n->conf->pools[i];
    struct shard_pool *p = &n->pools[i];
    uint64_t offsets[LAYOUT_FIELDS_MAX] = {0};
    enum err e = open_memory(n, i, l, offsets);

    if (e != OK) {
        n->kind->pool_ready(n->brain, i, false, NULL, 0);
        return e;
    }
    p->layout = *l;
    p->mem = &n->mems[i];
    memcpy(p->offsets, offsets, sizeof(p->offsets));
    node_order(n, &(struct order){.what = ORDER_POOL, .index = i});
    n->kind->pool_share(n->brain, i, p->mem->share,
        span_of(p->mem->handle, p->mem->handle_bytes));
    n->kind->pool_ready(n->brain, i, true, offsets, n->mems[i].bytes);
    log_info("pool %s: %llu blocks of %llu rows, %llu bytes, %s, %s", c->name,
        (unsigned long long)c->blocks, (unsigned long long)c->block_rows,
        (unsigned long long)n->mems[i].bytes, n->mems[i].text, l->text);
    return OK;
}

enum err node_fix_pools(struct node *n)
{
    for (uint32_t i = 0; i < n->conf->pools_count; i++) {
        const struct layout *l = n->kind->layout(n->brain, i);
        enum err e = l->count ? node_fix_pool(n, i) : OK;

        if (e != OK)
            return e;
    }
    return OK;
}

void node_close_pools(struct node *n)
{
    for (uint32_t i = 0; n->mems && i < n->conf->pools_count; i++)
        if (n->mems[i].ops)
            n->mems[i].ops->close(&n->mems[i]);
}
