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
        show_rows(s, "total", m->total);
        s->number(s, "committed", m->committed);
        s->number(s, "granted", granted);
        s->number(s, "asked", m->asked);
        s->number(s, "required", m->required);
        s->number(s, "served", m->served);
        s->number(s, "failed", m->failed);
        s->number(s, "blocks", m->src.blocks);
        s->number(s, "lingers", m->linger_ns != TIME_NEVER);
    }
    show_history(s, e->history, e->ended_count, e->c.conf->limit_history);
}

static void show_pools(const struct encoded *e, struct shower *s)
{
    for (uint32_t i = 0; i < e->pools_count; i++) {
        const struct epool *p = &e->pools[i];
        uint32_t quarantined = 0, lingering = 0, waiting = 0;

        for (uint32_t r = 0; r < e->rooms_max; r++) {
            const struct eroom *m = &e->rooms[r];

            if (!m->r.used || !m->announced || m->pool != i)
                continue;
            waiting += m->source == SOURCE_QUEUED;
            if (m->ended && m->linger_ns != TIME_NEVER)
                lingering += m->src.blocks;
            else if (m->ended)
                quarantined += m->src.blocks;
        }
        show_pool(s, &p->meta, &p->p);
        s->number(s, "lingering", lingering);
        s->number(s, "quarantined", quarantined);
        s->number(s, "waiting_rooms", waiting);
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
    CHECK(m->src.blocks == 0 || m->source == SOURCE_HELD,
        "room %llu: %u blocks in source state %u", (unsigned long long)m->r.id,
        m->src.blocks, m->source);
    CHECK(m->committed <= m->highest, "room %llu: prefix %u, highest %u",
        (unsigned long long)m->r.id, m->committed, m->highest);
}

void encoded_check(const struct encoded *e)
{
    uint32_t used = 0, open = 0, dsts = 0;
    uint32_t blocks[CONF_POOLS_MAX] = {0};

    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct eroom *m = &e->rooms[i];

        dsts += e->dsts[i].used;
        if (!m->r.used)
            continue;
        used++;
        open += m->announced && !m->ended;
        blocks[m->pool] += m->src.blocks;
        check_room(m);
    }
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
