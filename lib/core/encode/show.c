/* show.c - reports about the encode side, and the facts that must always hold
 * of it. Owned by the loop's thread; changes nothing. */
#include "core/encode/encode.h"

#include "core/show.h"

#include <stdio.h>

static void status(const void *brain, struct rows_out *s)
{
    const struct encoded *e = brain;

    s->number(s, "rooms_open", e->open);
    s->number(s, "rooms_held", e->rooms_used);
    s->number(s, "destinations_held", e->dsts_used);
    s->number(s, "declines_held", e->declines.used);
}

/* A langd connects by itself when one of its engines asks for a room. A langd
 * that rows cannot reach does not count. */
static void health(const void *brain, uint32_t usable, struct health *h)
{
    const struct peers *p = &((const struct encoded *)brain)->b.peers;
    const struct peer *shut = NULL;
    uint32_t open = 0;
    char text[TROUBLE_SAID];

    (void)usable;
    PEERS_FOREACH (at, p) {
        open += peer_open(at);
        shut = peer_up(at) && !peer_open(at) ? at : shut;
    }
    if (shut)
        health_say(h, open > 0, "langd %s: %s", shut->name,
            peer_trouble_text(shut, text));
    else if (!open)
        health_say(h, true, "no langd is connected");
}

static void room(const void *brain, uint32_t place, uint64_t now_ns,
    const struct show_at *at, struct rows_out *s)
{
    const struct encoded *e = brain;
    const struct eroom *m = &e->rooms[place];
    uint32_t granted = 0;

    if (!m->r.used)
        return;
    LIST_FOREACH (n, &m->dsts)
        granted =
            max_u32(granted, LIST_ENTRY(n, struct edst, in_room)->granted);
    show_room(s, at, now_ns, &m->r, &m->history, NULL,
        eroom_announced(m) ? NULL : "not-announced");
    show_rows(s, "total", m->item->total);
    s->number(s, "committed", m->item->committed);
    s->number(s, "granted", granted);
    s->number(s, "asked", m->asked);
    s->number(s, "required", m->required);
    s->number(s, "served", m->served);
    s->number(s, "failed", m->failed);
    s->number(s, "blocks", m->item->src.blocks);
    s->number(s, "kept", m->life == EROOM_KEPT);
    s->number(s, "shares", m->item->refs);
    s->number(s, "secret", secret_given(&m->secret));
}

enum { SUM_KEPT, SUM_QUARANTINED, SUM_WAITING };

static void count(const void *brain, uint32_t place, uint32_t sums[][3])
{
    const struct encoded *e = brain;
    const struct item *it = &e->items[place];
    const struct eroom *m = &e->rooms[place];

    if (it->life != ITEM_FREE)
        sums[it->pool][SUM_WAITING] += !item_held(it);
    if (!eroom_ended(m))
        return;
    if (m->life == EROOM_KEPT)
        sums[m->item->pool][SUM_KEPT] += m->item->src.blocks;
    else if (m->item->refs == 1 && !eroom_lent(m))
        sums[m->item->pool][SUM_QUARANTINED] += m->item->src.blocks;
}

static void pool(
    const void *brain, uint32_t i, const uint32_t sums[3], struct rows_out *s)
{
    const struct epool *p = &((const struct encoded *)brain)->pools[i];

    s->number(s, "lent", p->lent);
    s->number(s, "orphaned", p->orphaned);
    s->number(s, "kept", sums[SUM_KEPT]);
    s->number(s, "quarantined", sums[SUM_QUARANTINED]);
    s->number(s, "waiting_items", sums[SUM_WAITING]);
}

/* Shows an item that announces find by its key. A key opens nothing, but says
 * what a user has: others' are left out. */
static void key(const struct encoded *e, const struct item *it,
    const struct show_at *at, struct rows_out *s)
{
    char hex[2 * sizeof(it->key.b) + 1];
    uint32_t kept = 0;

    if (it->life == ITEM_FREE || !it->keyed || !shown_to(at, it->uid))
        return;
    for (size_t i = 0; i < sizeof(it->key.b); i++)
        snprintf(hex + 2 * i, 3, "%02x", it->key.b[i]);
    LIST_FOREACH (n, &it->rooms)
        kept += LIST_ENTRY(n, struct eroom, in_item)->life == EROOM_KEPT;
    CHECK(kept <= it->refs, "%u of %u rooms are kept", kept, it->refs);
    s->row(s);
    s->text(s, "key", hex);
    s->text(s, "pool", e->pools[it->pool].meta->conf->name);
    s->text(s, "state",
        item_complete(it) ? "held"
        : item_held(it)   ? "written"
                          : "waits");
    show_rows(s, "rows", it->total);
    s->number(s, "blocks", it->src.blocks);
    s->number(s, "in_use", it->refs - kept);
    s->number(s, "age_ms", (e->b.now_ns - it->moved_ns) / NS_PER_MS);
}

static bool more(
    const void *brain, const char *what, struct show_at *at, struct rows_out *s)
{
    const struct encoded *e = brain;

    if (strcmp(what, "inventory") != 0)
        return false;
    for (; at->at < e->rooms_max && show_place(at); at->at++)
        key(e, &e->items[at->at], at, s);
    at->over = at->at >= e->rooms_max;
    return true;
}

static uint64_t stands_ns(const void *brain, uint32_t i)
{
    return ((const struct encoded *)brain)->pools[i].stands_ns;
}

const struct show_ops encoded_shows = {
    .status = status,
    .health = health,
    .room = room,
    .count = count,
    .pool = pool,
    .stands_ns = stands_ns,
    .more = more,
};

static void check_room(const struct eroom *m)
{
    uint32_t active = 0, open = 0;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        active += !edst_ended(d);
        open += !edst_ended(d) && !d->refused;
    }
    CHECK(m->asked == m->served + m->failed + open,
        "room ..%08x: %u asked, %u served, %u failed, %u have not ended",
        (uint32_t)m->r.id, m->asked, m->served, m->failed, open);
    CHECK(active == m->active, "room ..%08x: %u destinations, counted %u",
        (uint32_t)m->r.id, active, m->active);
}

static void check_item(const struct item *it)
{
    uint32_t refs = 0, leaving = 0, unclaimed = 0;

    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        refs += m->item == it;
        leaving += m->leaving;
        unclaimed += list_linked(&m->in_unclaimed);
    }
    CHECK(unclaimed == it->unclaimed, "%u rooms are unclaimed, counted %u",
        unclaimed, it->unclaimed);
    CHECK(refs == it->refs && refs > 0 && leaving == it->leaving,
        "an item has %u rooms, counted %u; %u leave, counted %u", refs,
        it->refs, leaving, it->leaving);
    CHECK(list_linked(&it->in_held) == item_held(it),
        "an item of state %u is on the wrong list", it->life);
    CHECK(it->life == ITEM_QUEUED || !heap_linked(&it->in_queue),
        "an item of state %u is in a queue", it->life);
    CHECK(it->src.blocks == 0 || item_held(it), "%u blocks in state %u",
        it->src.blocks, it->life);
    CHECK(it->committed <= it->highest, "prefix %u, highest %u", it->committed,
        it->highest);
}

void encoded_check(const void *brain)
{
    const struct encoded *e = brain;
    uint32_t used = 0, open = 0, dsts = 0, fenced = 0, reserved = 0, aux = 0;
    uint32_t fences = 0;
    uint32_t blocks[CONF_POOLS_MAX] = {0}, waiting[CONF_POOLS_MAX] = {0};

    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct eroom *m = &e->rooms[i];

        dsts += e->dsts[i].state != DST_FREE;
        fenced += e->dsts[i].state != DST_FREE && e->dsts[i].map != NONE &&
                  list_linked(&e->dsts[i].in_fence);
        fences += e->dsts[i].state != DST_FREE && e->dsts[i].lent;
        fences += e->items[i].life != ITEM_FREE ? e->items[i].fences : 0;
        if (!m->r.used)
            continue;
        used++;
        open += eroom_running(m);
        reserved += m->reserved;
        check_room(m);
    }
    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct item *it = &e->items[i];

        if (it->life == ITEM_FREE)
            continue;
        aux += aux_chunks(it->aux.len) + it->aux.reserved;
        blocks[it->pool] += it->src.blocks;
        waiting[it->pool] += it->life == ITEM_QUEUED;
        check_item(it);
    }
    CHECK(aux == e->b.aux.share.used, "%u chunks of aux, counted %u", aux,
        e->b.aux.share.used);
    CHECK(fences == fenced, "%u destinations may be read, their items count %u",
        fenced, fences);
    CHECK(reserved + dsts == e->dst_share.used,
        "%u places reserved, %u taken, counted %u", reserved, dsts,
        e->dst_share.used);
    CHECK(used == e->rooms_used && open == e->open && dsts == e->dsts_used,
        "%u rooms %u open %u destinations; counted %u %u %u", used, open, dsts,
        e->rooms_used, e->open, e->dsts_used);
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        const struct epool *p = &e->pools[i];

        pool_check(&p->p);
        CHECK(waiting[i] == p->waiting, "pool %u: %u wait, counted %u", i,
            waiting[i], p->waiting);
        CHECK(p->p.free + blocks[i] == p->p.blocks,
            "pool %u: %u free, %u held, %u in all", i, p->p.free, blocks[i],
            p->p.blocks);
    }
}
