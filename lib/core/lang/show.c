/* show.c - reports of the language side, and the facts that must always hold.
 * Owned by the loop's thread; changes nothing. */
#include "core/lang/lang.h"

#include "core/show.h"

#include <stdio.h>

static void status(const void *brain, struct rows_out *s)
{
    const struct langd *l = brain;

    s->number(s, "rooms_open", l->open);
    s->number(s, "rooms_held", l->rooms_used);
    s->number(s, "groups", l->group_ids.len);
}

/* True if the encoder has a pool with the layout of one that is usable here, as
 * far as both layouts are known. */
static bool serves(const struct langd *l, const struct peer *p, uint32_t usable)
{
    bool may = p->pools_count == 0;

    for (uint32_t i = 0; i < l->b.pools_count && !may; i++) {
        const struct layout *layout = &l->b.metas[i].layout;

        may = usable >> i & 1 && layout->count == 0;
        for (uint32_t k = 0; k < p->pools_count && usable >> i & 1; k++)
            may |= p->pools[k].hash == layout->hash;
    }
    return may;
}

/* What an encoder can do for new rooms, worst to best. */
enum { NOT_THERE, AWAY, SHUT, TRIED, OF_OTHER_LAYOUTS, DRAINS, TAKES };

static int what_is(const struct langd *l, const struct peer *p, uint32_t usable)
{
    if (p->l.leaving)
        return NOT_THERE;
    if (!peer_up(p))
        return AWAY;
    if (!peer_open(p))
        return SHUT;
    if (p->path == PATH_TRIED && !p->mapped)
        return TRIED;
    if (!serves(l, p, usable))
        return OF_OTHER_LAYOUTS;
    return named_takes(p) ? TAKES : DRAINS;
}

/* Reports why the encoder, in state `is`, takes no rooms of this daemon. ready:
 * the daemon is ready nevertheless. */
static void blame(const struct langd *l, const struct peer *p, int is,
    bool ready, struct health *h)
{
    char text[TROUBLE_SAID];

    CHECK(is != TAKES, "an encoder takes rooms, and is blamed");
    if (is == SHUT)
        health_say(h, ready, "%s: %s", p->label, peer_trouble_text(p, text));
    else if (is == TRIED)
        health_say(
            h, ready, "the data path from encoder %s is being tried", p->label);
    else if (is == DRAINS)
        health_say(h, false, "encoder %s drains", p->label);
    else if (is == OF_OTHER_LAYOUTS)
        health_say(h, ready, "encoder %s has no pool of a layout that is here",
            p->label);
    else if (p && p->trouble.kind)
        health_say(h, false, "no encoder is connected; %s: %s, for %llu s",
            p->label, peer_trouble_text(p, text),
            (unsigned long long)((l->b.now_ns - p->trouble.since_ns) /
                                 NS_PER_S));
    else if (p)
        health_say(
            h, false, "no encoder is connected; %s has not answered", p->label);
    else
        health_say(h, false, "no encoder: peers and control.allow are empty");
}

/* One connected encoder that does not drain is enough. If requests may name
 * addresses, encoders that are not connected prove nothing. */
static void health(const void *brain, uint32_t usable, struct health *h)
{
    const struct langd *l = brain;
    const struct peer *best = NULL;
    int best_is = NOT_THERE;

    PEERS_FOREACH (p, &l->b.peers) {
        int is = what_is(l, p, usable);

        best = is > best_is ? p : best;
        best_is = is > best_is ? is : best_is;
    }
    if (best_is == TAKES)
        return;
    if (l->b.c.conf->control_allow.count == 0)
        blame(l, best, best_is, false, h);
    else if (best_is == DRAINS)
        health_say(h, true, "encoder %s drains; requests may name others",
            best->label);
    else if (best_is > AWAY)
        blame(l, best, best_is, true, h);
    else
        health_say(h, true, "no encoder is connected; requests may name some");
}

static void room(const void *brain, uint32_t place, uint64_t now_ns,
    const struct show_at *at, struct rows_out *s)
{
    const struct langd *l = brain;
    const struct lroom *m = &l->rooms[place];
    const struct peer *p;

    if (!m->r.used)
        return;
    p = lroom_peer(l, m);
    show_room(s, at, now_ns, &m->r, &m->history, p ? p->label : "null", NULL);
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

enum { SUM_READY, SUM_QUARANTINED, OLDEST_MS };

static void count(const void *brain, uint32_t place, uint32_t sums[][3])
{
    const struct langd *l = brain;
    const struct lroom *m = &l->rooms[place];
    uint64_t ms;

    if (!m->r.used)
        return;
    if (m->r.state == ROOM_SUCCESS && m->held.blocks > 0) {
        ms = (l->b.now_ns - m->history.done_ns) / NS_PER_MS;
        sums[m->pool][OLDEST_MS] =
            max_u32(sums[m->pool][OLDEST_MS], (uint32_t)min_u64(ms, NONE));
    }
    if (m->r.state == ROOM_FAILED || m->owner_done)
        sums[m->pool][SUM_QUARANTINED] += lroom_alive(m) ? 0 : m->held.blocks;
    else if (m->r.state == ROOM_SUCCESS)
        sums[m->pool][SUM_READY] += m->held.blocks;
}

static void pool(
    const void *brain, uint32_t i, const uint32_t sums[3], struct rows_out *s)
{
    const struct lpool *p = &((const struct langd *)brain)->pools[i];

    s->number(s, "ready", sums[SUM_READY]);
    s->number(s, "oldest_ready_ms", sums[OLDEST_MS]);
    s->number(s, "quarantined", p->closing_blocks + sums[SUM_QUARANTINED]);
    s->number(s, "waiting_rooms", p->want.len);
    s->number(s, "head_wait_max_us", p->head_wait_ns / 1000);
}

static bool more(
    const void *brain, const char *what, struct show_at *at, struct rows_out *s)
{
    if (strcmp(what, "sequences") != 0)
        return false;
    tickets_show(&((const struct langd *)brain)->tickets, at, s);
    return true;
}

static uint64_t stands_ns(const void *brain, uint32_t i)
{
    const struct lpool *p = &((const struct langd *)brain)->pools[i];

    return p->want.len ? max_u64(p->head_since_ns, p->gave_ns) : TIME_NEVER;
}

const struct show_ops langd_shows = {
    .status = status,
    .health = health,
    .room = room,
    .count = count,
    .pool = pool,
    .stands_ns = stands_ns,
    .more = more,
};

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
        aux += aux_chunks(m->aux.len) + m->aux.reserved +
               aux_chunks(m->lent_runs.len);
        blocks[m->pool] += m->held.blocks + m->closing.blocks;
        closing[m->pool] += m->closing.blocks;
        CHECK(m->granted ==
                      m->base + m->held.blocks * l->pools[m->pool].block_rows ||
                  !lroom_alive(m),
            "room ..%08x: granted %u, base %u, %u blocks", (uint32_t)m->r.id,
            m->granted, m->base, m->held.blocks);
        CHECK(m->closing.blocks == 0 || lroom_closing(m),
            "room ..%08x: %u blocks close, no shard is asked",
            (uint32_t)m->r.id, m->closing.blocks);
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
        for (uint32_t k = 0; k < l->groups_fresh; k++)
            spare += l->groups[k].pool == i ? l->groups[k].spare : 0;
        CHECK(spare == p->spare, "pool %u: %u spare, counted %u", i, spare,
            p->spare);
        CHECK(closing[i] == p->closing_blocks, "pool %u: %u close, counted %u",
            i, closing[i], p->closing_blocks);
    }
}
