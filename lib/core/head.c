/* head.c - see head.h; also the functions of brain.h that need only the head.
 * Owned by the loop's thread. */
#include "core/trace/trace.h"

void head_carve(struct brain *b, struct slab *s, const struct brain_ops *ops)
{
    const struct conf *c = b->c.conf;

    CHECK(ops->role == c->role, "role %u, configured %u", ops->role, c->role);
    b->ops = ops;
    b->history = slab_take(s, HISTORY_ROOMS, sizeof(*b->history));
    aux_init(&b->aux, s, c, b->c.seed);
    engines_init(&b->engines, s, c, b->c.seed);
    peers_init(&b->peers, s, &b->c, ops->role);
}

void head_init(struct brain *b, const struct engines_ops *engines,
    const struct peers_ops *peers)
{
    const struct conf *c = b->c.conf;

    CHECK(c->pools_count <= CONF_POOLS_MAX, "%u pools", c->pools_count);
    b->engines.ops = engines;
    b->peers.ops = peers;
    b->engines.brain = b->peers.brain = b;
    b->engines.stats = b->peers.stats = b->stats;
    b->pools_count = b->peers.self.pools_count = c->pools_count;
    for (uint32_t i = 0; i < c->pools_count; i++) {
        pool_meta_init(&b->metas[i], &c->pools[i]);
        b->peers.self.layouts[i] = &b->metas[i].layout;
    }
}

void head_record(
    struct brain *b, struct room *r, struct history *h, const char *peer)
{
    struct ended *e = &b->history[b->ended_count % HISTORY_ROOMS];

    CHECK(r->state == ROOM_SUCCESS || r->state == ROOM_FAILED,
        "room ..%08x ends in state %u", (uint32_t)r->id, r->state);
    h->done_ns = b->now_ns;
    e->room = r->id;
    e->of = *h;
    e->state = r->state;
    e->reason = r->reason;
    span_copy_str(span_str(peer), e->peer, sizeof(e->peer));
    span_copy_str(span_str(r->text), e->text, sizeof(e->text));
    r->ended_row = b->ended_count++;
    slow_take(&b->slow, e);
    CHECK(r->reason < ERR_COUNT, "reason %u", r->reason);
    b->ends[r->reason]++;
    happened(b, HAPPENED_ENDED, r, h, NONE, r->reason, h->total);
}

uint64_t brain_counter(const struct brain *b, enum counter s)
{
    CHECK(s < STAT_COUNT, "counter %u", s);
    return b->stats[s];
}

uint32_t brain_open_rooms(const struct brain *b)
{
    return b->ops->open_rooms(b);
}

const struct layout *brain_layout(const struct brain *b, uint32_t i)
{
    CHECK(i < b->pools_count, "layout of pool %u", i);
    return &b->metas[i].layout;
}

bool brain_engines_write(const struct brain *b, uint32_t i)
{
    CHECK(i < b->pools_count, "access to pool %u", i);
    return b->ops->engines_write || b->metas[i].conf->engine_access;
}

bool brain_link_known(const struct brain *b, uint32_t link)
{
    return link < b->peers.links && peer_on(&b->peers, link);
}

const struct ended *brain_ended(const struct brain *b, uint64_t n)
{
    if (n >= b->ended_count || b->ended_count - n > HISTORY_ROOMS)
        return NULL;
    return &b->history[n % HISTORY_ROOMS];
}
