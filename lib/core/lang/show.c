/* show.c - what the language side shows of itself, and what must always
 * hold of it. Owned by the loop's thread; changes nothing. */
#include "core/lang/lang.h"

#include "core/show.h"

static void show_status(const struct langd *l, struct rows_out *s)
{
    uint32_t up = 0;

    for (uint32_t i = 0; i < l->b.peers.max; i++)
        up += l->b.peers.peers[i].used && l->b.peers.peers[i].up;
    s->row(s);
    s->number(s, "rooms_open", l->open);
    s->number(s, "rooms_held", l->rooms_used);
    s->number(s, "rooms_ended", l->b.ended_count);
    s->number(s, "groups", l->group_ids.len);
    s->number(s, "peers_up", up);
    s->number(s, "attachments", l->b.engines.attachments_used);
    s->number(s, "aux_free_bytes", (uint64_t)l->b.aux.free * AUX_CHUNK);
    s->number(s, "draining", l->b.draining);
}

static void show_room(const struct langd *l, const struct lroom *m,
    uint64_t now_ns, const struct show_at *at, struct rows_out *s)
{
    const struct peer *p = lroom_peer(l, m);

    s->row(s);
    show_room_id(s, at, m->r.id, m->history.who);
    s->text(s, "peer", p ? p->label : "null");
    s->text(s, "state", state_name(m->r.state));
    s->text(s, "reason", err_name((enum err)m->r.reason));
    s->number(s, "age_ms", (now_ns - m->history.opened_ns) / NS_PER_MS);
    show_rows(s, "total", m->total);
    s->number(s, "landed", m->from + m->landed);
    s->number(s, "granted", m->granted);
    s->number(s, "released", m->released);
    s->number(s, "blocks", m->held.blocks + m->closing.blocks);
    s->number(s, "attempt", m->attempt);
    s->number(s, "resumes", m->history.resumes);
    s->number(s, "waiting", heap_linked(&m->want_node));
    s->number(s, "owes", m->debt.owe);
}

static void show_rooms(const struct langd *l, uint64_t now_ns,
    struct show_at *at, struct rows_out *s)
{
    for (; at->at < l->rooms_max && show_place(at); at->at++)
        if (l->rooms[at->at].r.used)
            show_room(l, &l->rooms[at->at], now_ns, at, s);
    at->over = at->at >= l->rooms_max;
    if (at->over)
        show_history(s, at, l->rooms_max, l->b.history, l->b.ended_count,
            l->b.c.conf->limit_history);
}

enum { SUM_READY, SUM_QUARANTINED };

static void count_room(const struct lroom *m, uint32_t sums[][3])
{
    if (!m->r.used)
        return;
    if (m->r.state == ROOM_FAILED || m->owner_done)
        sums[m->pool][SUM_QUARANTINED] += lroom_alive(m) ? 0 : m->held.blocks;
    else if (m->r.state == ROOM_SUCCESS)
        sums[m->pool][SUM_READY] += m->held.blocks;
}

/* The rooms are counted first, then come the pools' rows. */
static void show_pools(
    const struct langd *l, struct show_at *at, struct rows_out *s)
{
    uint64_t end = (uint64_t)l->rooms_max + l->b.pools_count;

    for (; at->at < l->rooms_max && show_place(at); at->at++)
        count_room(&l->rooms[at->at], at->sums);
    for (; at->at >= l->rooms_max && at->at < end && show_place(at); at->at++) {
        const uint32_t i = (uint32_t)at->at - l->rooms_max;
        const struct lpool *p = &l->pools[i];

        show_pool(s, i, p->meta, &p->p);
        s->number(s, "ready", at->sums[i][SUM_READY]);
        s->number(
            s, "quarantined", p->closing_blocks + at->sums[i][SUM_QUARANTINED]);
        s->number(s, "waiting_rooms", p->want.len);
        s->number(s, "head_wait_max_us", p->head_wait_ns / 1000);
    }
    at->over = at->at >= end;
}

bool langd_show(void *brain, const char *what, uint64_t now_ns,
    struct show_at *at, struct rows_out *s)
{
    struct langd *l = brain;

    at->over = true;
    if (!strcmp(what, "status"))
        show_status(l, s);
    else if (!strcmp(what, "rooms"))
        show_rooms(l, now_ns, at, s);
    else if (!strcmp(what, "pools"))
        show_pools(l, at, s);
    else if (!strcmp(what, "peers"))
        show_peers(s, at, &l->b.peers);
    else if (!strcmp(what, "sequences"))
        tickets_show(&l->tickets, at, s);
    else if (!strcmp(what, "stats"))
        show_stats(s, l->b.stats);
    else
        return false;
    return true;
}

void langd_check(const void *brain)
{
    const struct langd *l = brain;
    uint32_t used = 0, alive = 0, aux = 0;
    uint32_t blocks[CONF_POOLS_MAX] = {0}, closing[CONF_POOLS_MAX] = {0};

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (!m->r.used)
            continue;
        used++;
        alive += lroom_alive(m);
        aux += aux_chunks(m->aux.len) + m->aux.reserved;
        blocks[m->pool] += m->held.blocks + m->closing.blocks;
        closing[m->pool] += m->closing.blocks;
        CHECK(m->granted ==
                      m->base + m->held.blocks * l->pools[m->pool].block_rows ||
                  !lroom_alive(m),
            "room %llu: granted %u, base %u, %u blocks",
            (unsigned long long)m->r.id, m->granted, m->base, m->held.blocks);
        CHECK(m->closing.blocks == 0 || lroom_closing(m),
            "room %llu: %u blocks close, nobody is asked",
            (unsigned long long)m->r.id, m->closing.blocks);
    }
    CHECK(aux == l->b.aux.share.used, "%u chunks of aux, counted %u", aux,
        l->b.aux.share.used);
    tickets_check(&l->tickets);
    CHECK(used == l->rooms_used && alive == l->open,
        "%u rooms, %u alive; counted %u and %u", used, alive, l->rooms_used,
        l->open);
    for (uint32_t i = 0; i < l->b.pools_count; i++) {
        const struct lpool *p = &l->pools[i];
        uint32_t spare = 0;

        pool_check(&p->p);
        CHECK(p->p.free + blocks[i] == p->p.blocks,
            "pool %u: %u free, %u held, %u in all", i, p->p.free, blocks[i],
            p->p.blocks);
        LIST_FOREACH (n, &p->capped)
            spare += LIST_ENTRY(n, struct lgroup, in_capped)->spare;
        CHECK(spare == p->spare, "pool %u: %u spare, counted %u", i, spare,
            p->spare);
        CHECK(closing[i] == p->closing_blocks, "pool %u: %u close, counted %u",
            i, closing[i], p->closing_blocks);
    }
}
