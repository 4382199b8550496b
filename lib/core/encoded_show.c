/* encoded_show.c - what the encode side shows of itself, and what must always
 * hold of it. Owned by the loop's thread; changes nothing. */
#include "core/encoded.h"

#include "core/show.h"

static void show_status(const struct encoded *e, struct shower *s)
{
    uint32_t up = 0;

    for (uint32_t i = 0; i < e->peers.max; i++)
        up += e->peers.peers[i].used && e->peers.peers[i].up;
    s->row(s);
    s->number(s, "rooms_open", e->open);
    s->number(s, "rooms_held", e->rooms_used);
    s->number(s, "destinations_held", e->dsts_used);
    s->number(s, "declines_held", e->declines.used);
    s->number(s, "rooms_ended", e->ended_count);
    s->number(s, "peers_up", up);
    s->number(s, "attachments", e->engines.views_used);
    s->number(s, "aux_free_bytes", (uint64_t)e->aux.free * AUX_CHUNK);
    s->number(s, "draining", e->draining);
}

static void show_rooms(
    const struct encoded *e, uint64_t now_ns, struct shower *s)
{
    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct eroom *m = &e->rooms[i];
        uint32_t granted = 0;

        if (!m->r.used)
            continue;
        LIST_FOREACH (n, &m->dsts)
            granted =
                max_u32(granted, LIST_ENTRY(n, struct edst, in_room)->granted);
        s->row(s);
        s->number(s, "room", m->r.id);
        s->text(s, "state",
            m->announced ? state_name(m->r.state) : "not-announced");
        s->text(s, "reason", err_name((enum err)m->r.reason));
        s->number(s, "age_ms", (now_ns - m->history.opened_ns) / NS_PER_MS);
        show_rows(s, "total", m->item->total);
        s->number(s, "committed", m->item->committed);
        s->number(s, "granted", granted);
        s->number(s, "asked", m->asked);
        s->number(s, "required", m->required);
        s->number(s, "served", m->served);
        s->number(s, "failed", m->failed);
        s->number(s, "blocks", m->item->src.blocks);
        s->number(s, "kept", m->kept_ns != TIME_NEVER);
        s->number(s, "shares", m->item->refs);
    }
    show_history(s, e->history, e->ended_count, e->c.conf->limit_history);
}

static void show_pools(const struct encoded *e, struct shower *s)
{
    for (uint32_t i = 0; i < e->pools_count; i++) {
        const struct epool *p = &e->pools[i];
        uint32_t quarantined = 0, kept = 0, waiting = 0;

        for (uint32_t k = 0; k < e->rooms_max; k++)
            if (e->items[k].used && e->items[k].pool == i)
                waiting += e->items[k].source == SOURCE_QUEUED;
        for (uint32_t r = 0; r < e->rooms_max; r++) {
            const struct eroom *m = &e->rooms[r];

            if (!m->r.used || !m->ended || m->item->pool != i)
                continue;
            if (m->kept_ns != TIME_NEVER)
                kept += m->item->src.blocks;
            else if (m->item->refs == 1)
                quarantined += m->item->src.blocks;
        }
        show_pool(s, &p->meta, &p->p);
        s->number(s, "kept", kept);
        s->number(s, "quarantined", quarantined);
        s->number(s, "waiting_items", waiting);
    }
}

bool encoded_show(
    void *brain, const char *what, uint64_t now_ns, struct shower *s)
{
    struct encoded *e = brain;

    if (!strcmp(what, "status"))
        show_status(e, s);
    else if (!strcmp(what, "rooms"))
        show_rooms(e, now_ns, s);
    else if (!strcmp(what, "pools"))
        show_pools(e, s);
    else if (!strcmp(what, "peers"))
        show_peers(s, &e->peers);
    else if (!strcmp(what, "stats"))
        show_stats(s, e->stats);
    else
        return false;
    return true;
}

static void check_room(const struct eroom *m)
{
    uint32_t active = 0;

    LIST_FOREACH (n, &m->dsts)
        active += LIST_ENTRY(n, struct edst, in_room)->state != DST_ENDED;
    CHECK(active == m->active, "room %llu: %u destinations, counted %u",
        (unsigned long long)m->r.id, active, m->active);
    CHECK(m->linked || m->kept_ns == TIME_NEVER,
        "room %llu is kept and cannot be found", (unsigned long long)m->r.id);
}

static void check_item(const struct item *it)
{
    uint32_t refs = 0;

    LIST_FOREACH (n, &it->rooms)
        refs += LIST_ENTRY(n, struct eroom, in_item)->item == it;
    CHECK(refs == it->refs && refs > 0, "an item has %u rooms, counted %u",
        refs, it->refs);
    CHECK(it->src.blocks == 0 || it->source == SOURCE_HELD,
        "%u blocks in source state %u", it->src.blocks, it->source);
    CHECK(it->committed <= it->highest, "prefix %u, highest %u", it->committed,
        it->highest);
}

void encoded_check(const struct encoded *e)
{
    uint32_t used = 0, open = 0, dsts = 0, fenced = 0;
    uint32_t blocks[CONF_POOLS_MAX] = {0};

    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct eroom *m = &e->rooms[i];

        dsts += e->dsts[i].used;
        fenced += e->dsts[i].used && e->dsts[i].map != NONE;
        if (!m->r.used)
            continue;
        used++;
        open += m->announced && !m->ended;
        check_room(m);
    }
    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct item *it = &e->items[i];

        if (!it->used)
            continue;
        blocks[it->pool] += it->src.blocks;
        check_item(it);
    }
    CHECK(fenced == e->fenced, "%u destinations may be read, counted %u",
        fenced, e->fenced);
    CHECK(used == e->rooms_used && open == e->open && dsts == e->dsts_used,
        "%u rooms %u open %u destinations; counted %u %u %u", used, open, dsts,
        e->rooms_used, e->open, e->dsts_used);
    for (uint32_t i = 0; i < e->pools_count; i++) {
        const struct epool *p = &e->pools[i];

        pool_check(&p->p);
        CHECK(p->p.free + blocks[i] == p->p.blocks,
            "pool %u: %u free, %u held, %u in all", i, p->p.free, blocks[i],
            p->p.blocks);
    }
}
