/* head.c - see head.h. Owned by the loop's thread. */
#include "core/head.h"

#include "base/check.h"

void head_carve(struct brain *b, struct slab *s, const struct brain_ops *ops)
{
    const struct conf *c = b->c.conf;

    b->ops = ops;
    b->history = slab_take(s, c->limit_history, sizeof(*b->history));
    aux_init(&b->aux, s, c, b->c.seed);
    engines_init(&b->engines, s, c, b->c.seed);
    peers_init(&b->peers, s, &b->c, ops->role);
}

static void pool_meta_init(struct pool_meta *m, const struct conf_pool *c)
{
    uint32_t at;

    m->conf = c;
    if (strcmp(c->layout, "engine") != 0) {
        enum err e = layout_parse(span_str(c->layout), &m->layout, &at);

        CHECK(e == OK, "layout of pool %s was not checked", c->name);
    }
}

void head_init(struct brain *b, const struct engines_ops *ops)
{
    const struct conf *c = b->c.conf;

    b->engines.ops = ops;
    b->engines.brain = b;
    b->engines.stats = b->peers.stats = b->stats;
    b->pools_count = b->peers.self.pools_count = c->pools_count;
    for (uint32_t i = 0; i < c->pools_count; i++) {
        pool_meta_init(&b->metas[i], &c->pools[i]);
        b->peers.self.layouts[i] = &b->metas[i].layout;
    }
}

/* pools, as others see them */

void pool_meta_ready(
    struct pool_meta *m, bool ok, const uint64_t *offsets, uint64_t bytes)
{
    m->ready = ok;
    m->broken = !ok;
    m->news = m->fixing;
    m->fixing = false;
    m->bytes = bytes;
    if (ok)
        memcpy(m->offsets, offsets, sizeof(m->offsets));
    else
        m->layout.count = 0;
}

void pool_meta_share(struct pool_meta *m, const char *share, struct span handle)
{
    CHECK(handle.len <= POOL_HANDLE_MAX, "handle of %u bytes", handle.len);
    span_copy_str(span_str(share), m->share, sizeof(m->share));
    if (handle.len)
        memcpy(m->handle, handle.p, handle.len);
    m->handle_len = handle.len;
}

bool pool_meta_lost(struct pool_meta *m)
{
    bool news = !m->lost;

    m->lost = true;
    m->ready = false;
    return news;
}
