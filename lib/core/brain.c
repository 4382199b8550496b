/* brain.c - see brain.h. The one place that tells the two roles apart. Owned by
 * the loop's thread.
 * Rejected: a switch on the role in every function; a table per role is
 * complete or does not link. */
#include "core/head.h"

struct brain *brain_init(struct slab *s, const struct brain_conf *c)
{
    bool langd = c->conf->role == ROLE_LANGD;

    return (langd ? &langd_ops : &encoded_ops)->init(s, c);
}

void brain_step(struct brain *b, const struct event *ev, struct out *out)
{
    b->ops->step(b, ev, out);
}

bool brain_pending(const struct brain *b)
{
    return b->ops->pending(b);
}

uint64_t brain_deadline(const struct brain *b)
{
    return b->ops->deadline(b);
}

bool brain_next_event(struct brain *b, uint32_t conn, struct writer *w)
{
    return b->ops->next_event(b, conn, w);
}

uint32_t brain_open_rooms(const struct brain *b)
{
    return b->ops->open_rooms(b);
}

bool brain_show(struct brain *b, const char *what, uint64_t now_ns,
    struct show_at *at, struct shower *s)
{
    return b->ops->show(b, what, now_ns, at, s);
}

/* pools */

const struct layout *brain_layout(const struct brain *b, uint32_t i)
{
    return &b->metas[i].layout;
}

void brain_pool_ready(struct brain *b, uint32_t i, bool ok,
    const uint64_t *offsets, uint64_t bytes)
{
    pool_meta_ready(&b->metas[i], ok, offsets, bytes);
    if (ok && b->ops->pool_ready)
        b->ops->pool_ready(b, i);
}

void brain_pool_share(
    struct brain *b, uint32_t i, const char *share, struct span handle)
{
    pool_meta_share(&b->metas[i], share, handle);
}

uint32_t brain_blocks_free(const struct brain *b, uint32_t i)
{
    return b->ops->blocks_free(b, i);
}

/* others */

bool brain_link_known(const struct brain *b, uint32_t link)
{
    return link < b->peers.links && peer_on(&b->peers, link);
}

const struct ended *brain_ended(const struct brain *b, uint64_t n)
{
    uint64_t limit = b->c.conf->limit_history;

    if (n >= b->ended_count || b->ended_count - n > limit)
        return NULL;
    return &b->history[n % limit];
}

void brain_check(const struct brain *b)
{
    b->ops->check(b);
}
