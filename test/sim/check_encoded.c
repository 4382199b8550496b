/* check_encoded.c - what must hold of an encode side after every step. Reads
 * the brain, changes nothing. */
#include "test/sim/sim.h"

#include "core/encode/encode.h"

struct watch {
    /* By block: 1 + the item that has it; 0: free. */
    uint32_t *owner[CONF_POOLS_MAX], *now[CONF_POOLS_MAX];
    uint64_t *opened_ns; /* by slot */
    uint8_t *state;
};

static struct watch *watch_of(struct daemon *d)
{
    const struct encoded *e = d->brain;
    struct watch *w = d->watch;

    if (w)
        return w;
    d->watch = w = must_alloc(1, sizeof(*w));
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        w->owner[i] = must_alloc(e->pools[i].p.blocks, sizeof(uint32_t));
        w->now[i] = must_alloc(e->pools[i].p.blocks, sizeof(uint32_t));
    }
    w->opened_ns = must_alloc(e->rooms_max, sizeof(uint64_t));
    w->state = must_alloc(e->rooms_max, 1);
    return w;
}

void encoded_unwatch(struct daemon *d)
{
    d->watch = NULL;
}

/* langd alone decides Success. A generation that encoded ends as failed did not
 * succeed at langd, unless the peer was lost. */
/* RULES 4.6 */
static void see_outcomes(struct daemon *d, const struct encoded *e)
{
    const struct memory *ended = &e->ended_gens;

    if (W.is.ghost_ms) /* ghosts may name any generation */
        return;
    for (uint32_t i = 0; i < ended->slots.max; i++) {
        const struct tomb *t = memory_at(ended, i);
        uint8_t at_l = langd_outcome(t->memo.id);

        if (!t->memo.used || t->memo.until_ns != d->now_ns + ended->keep_ns)
            continue; /* it ended in another step */
        trace("%s: g%llx ends %u reason %u", d->conf->name,
            (unsigned long long)t->memo.id & 0xffffff, t->state, t->reason);
        HOLDS(t->state != ROOM_SUCCESS || at_l == ROOM_SUCCESS,
            "langd decides success", "%s g%llx succeeds, at langd it is %u",
            d->conf->name, (unsigned long long)t->memo.id & 0xffffff, at_l);
        HOLDS(t->state != ROOM_FAILED || t->reason == ERR_PEER_LOST ||
                  t->reason == ERR_STALE || at_l != ROOM_SUCCESS,
            "langd decides success", "%s g%llx fails (%s), langd succeeded",
            d->conf->name, (unsigned long long)t->memo.id & 0xffffff,
            err_name((enum err)t->reason));
        if (t->state == ROOM_FAILED && t->reason != ERR_PEER_LOST &&
            t->reason != ERR_STALE)
            langd_outcome_set(t->memo.id, ROOM_FAILED);
    }
}

/* Checks that a room's state agrees with its fields. */
static void see_life(
    const struct daemon *d, const struct encoded *e, uint32_t i)
{
    const struct eroom *m = &e->rooms[i];
    bool item = m->item != &e->nothing;
    bool known =
        m->life != EROOM_FREE && eroom_find(e, m->r.id, &m->secret) == m;
    bool sends = m->life == EROOM_QUARANTINED || m->life == EROOM_GONE;
    bool last = m->r.state == ROOM_SUCCESS || m->r.state == ROOM_FAILED;
    const struct tomb *t;

    LIST_FOREACH (n, &m->dsts)
        sends &= edst_ended(LIST_ENTRY(n, struct edst, in_room));
    HOLDS(m->r.used && known == eroom_found(m) &&
              item == (eroom_announced(m) && m->life != EROOM_GONE) &&
              last == eroom_ended(m) &&
              (m->life == EROOM_KEPT) == list_linked(&m->in_kept) &&
              (m->life == EROOM_KEPT) == (m->kept_ns != TIME_NEVER) &&
              (m->life < EROOM_QUARANTINED || sends) &&
              (m->life != EROOM_CLOSED || m->flags & FLAG_OPEN),
        "a room's state says what it has",
        "%s room %llu: life %u, known %d item %d state %u kept %d active %u",
        d->conf->name, (unsigned long long)m->r.id, m->life, known, item,
        m->r.state, list_linked(&m->in_kept), m->active);
    t = m->life == EROOM_AWAITED
            ? memory_get(&e->ended_rooms, d->now_ns, m->r.id, m->name)
            : NULL;
    HOLDS(!t || t->reason == ERR_NO_BLOCKS || m->active == 0,
        "who asks after the end hears so", "%s room %llu ended as %s",
        d->conf->name, (unsigned long long)m->r.id,
        err_name((enum err)t->reason));
}

static void see_dst(const struct daemon *d, const struct encoded *e, uint32_t i)
{
    const struct edst *o = &e->dsts[i];
    const struct decline *g;

    if (o->state == DST_FREE)
        return;
    g = o->state == DST_ACTIVE ? decline_find(e, o->room->r.id, o->room->name,
                                     e->b.peers.peers[o->peer].who)
                               : NULL;
    HOLDS(!g || g->served, "the last word of a langd counts",
        "%s room %llu: it has asked again", d->conf->name,
        (unsigned long long)o->room->r.id);
    HOLDS(!e->b.draining || o->state != DST_ACTIVE ||
              eroom_announced(o->room) || brain_open_rooms(&e->b) > 0,
        "a drain waits for what was asked for", "%s room %llu", d->conf->name,
        (unsigned long long)o->room->r.id);
    HOLDS(
        o->state != DST_NEW && o->room->r.used &&
            (!edst_ended(o) || (o->state == DST_FENCED) == (o->map != NONE)) &&
            (o->job == JOB_CLOSING) == (o->closing_left > 0) &&
            (o->job != JOB_CLOSING || o->state != DST_ACTIVE),
        "a destination's state says what it has",
        "%s slot %u g%llx: state %u job %u closing %u map %u", d->conf->name, i,
        (unsigned long long)o->generation & 0xffffff, o->state, o->job,
        o->closing_left, o->map);
}

/* Checks that a batch's sums are those of its items. */
static void see_batch(
    const struct daemon *d, const struct encoded *e, const struct item *first)
{
    const struct ebatch *b = first->batch;
    const struct item *it = first;
    struct ebatch is = {0};

    do {
        is.items++;
        is.blocks += div_up(it->max_rows, e->pools[it->pool].block_rows);
        is.victims += it->victim;
        is.full += it->full;
        HOLDS(it->batch == b && it->ahead == first->ahead,
            "a batch is one in all its items", "%s item %u", d->conf->name,
            (uint32_t)(it - e->items));
        it = LIST_ENTRY(it->in_batch.next, struct item, in_batch);
    } while (it != first);
    HOLDS(is.items == b->items && is.blocks == b->blocks &&
              is.victims == b->victims && is.full == b->full,
        "a batch counts its items",
        "%s: %u items of %u blocks, %u victims, %u full, counted %u %u %u %u",
        d->conf->name, is.items, is.blocks, is.victims, is.full, b->items,
        b->blocks, b->victims, b->full);
}

static void see_item(
    const struct daemon *d, const struct encoded *e, uint32_t i)
{
    const struct item *it = &e->items[i];
    const struct item *first = NULL;
    bool readers = false, writer = false;

    if (it->life == ITEM_FREE)
        return;
    if (it->batch && it->batch->first == it)
        see_batch(d, e, it);
    LIST_FOREACH (n, &it->in_batch)
        if (LIST_ENTRY(n, struct item, in_batch)->life == ITEM_QUEUED)
            first = LIST_ENTRY(n, struct item, in_batch);
    for (uint32_t c = 0; !first && c < e->b.engines.conns_max; c++)
        if (e->open_batch[c] && e->open_batch[c]->life == ITEM_BATCHED)
            first = e->open_batch[c];
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        readers |= m->have && eroom_serves(m);
        writer |= !m->have && !eroom_ended(m) && !eroom_failing(m);
    }
    HOLDS(!readers || writer || item_complete(it),
        "rows that none writes are not waited for", "%s item %u", d->conf->name,
        i);
    HOLDS((it->life != ITEM_BATCHED || first) &&
              (!item_held(it) || (!list_linked(&it->in_batch) && !it->batch &&
                                     (it->src.blocks > 0 || !it->max_rows))) &&
              (it->life != ITEM_FINAL || it->total != ROWS_UNKNOWN),
        "an item's state says what it has",
        "%s item %u: life %u blocks %u total %u in a batch %d", d->conf->name,
        i, it->life, it->src.blocks, it->total, list_linked(&it->in_batch));
}

/* Checks what is at place i of the tables. */
/* RULES 4.7 */
static void see_place(
    struct daemon *d, const struct encoded *e, struct watch *w, uint32_t i)
{
    const struct eroom *m = &e->rooms[i];
    bool same = m->r.used && w->opened_ns[i] == m->history.opened_ns;

    see_dst(d, e, i);
    see_item(d, e, i);
    if (m->life != EROOM_FREE)
        see_life(d, e, i);
    HOLDS(m->r.used == (m->life != EROOM_FREE), "a room is used or free",
        "%s slot %u: used %d, life %u", d->conf->name, i, m->r.used, m->life);
    if (!eroom_announced(m)) {
        w->opened_ns[i] = 0;
        return;
    }
    if (same)
        see_forward(d, &m->r, w->state[i]);
    w->opened_ns[i] = m->history.opened_ns;
    w->state[i] = m->r.state;
}

/* A source block goes to another item only when no process reads it or may
 * write it. */
static void see_change(
    struct daemon *d, uint32_t pool, uint32_t block, uint32_t was, uint32_t now)
{
    const struct handle *h;

    if (was == 0 || was == now)
        return;
    HOLDS(d->reads[pool][block] == 0, "sources stay while they are sent",
        "%s block %u: %u messages read it", d->conf->name, block,
        d->reads[pool][block]);
    h = map_reader(d, pool, block);
    HOLDS(!h, "sources stay while engines read them",
        "%s block %u: room %llu of connection %u of %s", d->conf->name, block,
        (unsigned long long)h->cons->room, h->c->number, h->c->d->conf->name);
    h = prod_writer(d, pool, block);
    HOLDS(!h, "sources stay while they may be written",
        "%s block %u of room %llu: connection %u cell %u", d->conf->name, block,
        (unsigned long long)h->prod->room, h->c->number, h->cell);
}

static void own(struct watch *w, const struct encoded *e, uint32_t i)
{
    const struct item *it = &e->items[i];
    const struct pool *p = &e->pools[it->pool].p;

    for (uint32_t b = it->src.head; b != NONE; b = p->run_next[b])
        for (uint32_t k = b; k < b + p->run_len[b]; k++) {
            HOLDS(w->now[it->pool][k] == 0, "a block has one owner",
                "source block %u", k);
            w->now[it->pool][k] = i + 1;
        }
}

/* RULES 6.2 */
static void see_blocks(
    struct daemon *d, const struct encoded *e, struct watch *w)
{
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        memset(w->now[i], 0, e->pools[i].p.blocks * sizeof(uint32_t));
    for (uint32_t i = 0; i < e->rooms_max; i++)
        if (e->items[i].life != ITEM_FREE)
            own(w, e, i);
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        for (uint32_t b = 0; b < e->pools[i].p.blocks; b++) {
            if (!W.sparse)
                see_change(d, i, b, w->owner[i][b], w->now[i][b]);
            w->owner[i][b] = w->now[i][b];
        }
}

/* RULES 7.3 */
static void see_cells(struct daemon *d, const struct encoded *e)
{
    for (uint32_t i = 0; i < e->b.engines.attachments_max; i++) {
        const struct attachment *att = &e->b.engines.attachments[i];
        const struct room *r = att->room;

        if (!att->used || !r || !d->conns[att->conn] ||
            e->b.engines.conns[att->conn].state != CONN_READY)
            continue;
        HOLDS(d->conns[att->conn]->words[att->cell] ==
                  cell_word(r->state, r->reason, att->tag, r->rows_shown),
            "cells tell the truth", "%s/%u cell %u room %llu", d->conf->name,
            att->conn, att->cell, (unsigned long long)r->id);
    }
}

static bool holds(const struct pool *p, const struct extent *x, uint32_t block)
{
    for (uint32_t b = x->head; b != NONE; b = p->run_next[b])
        if (block >= b && block - b < p->run_len[b])
            return true;
    return false;
}

void encoded_watch_copy(
    struct daemon *d, uint32_t pool, uint32_t block, const struct segment *s)
{
    const struct encoded *e = d->brain;
    const struct edst *of = NULL;

    for (uint32_t i = 0; !of && i < e->rooms_max; i++)
        if (e->dsts[i].state != DST_FREE &&
            e->dsts[i].generation == s->generation)
            of = &e->dsts[i];
    HOLDS(of && of->map != NONE && of->room->item->pool == pool &&
              holds(&e->pools[pool].p, &of->room->item->src, block),
        "copies read what is kept for them",
        "%s block %u: room %llu g%llx a%u row %u is read; the source %s",
        d->conf->name, block, (unsigned long long)s->room,
        (unsigned long long)s->generation & 0xffffff, s->attempt, s->first,
        !of               ? "has forgotten it"
        : of->map == NONE ? "thinks that nobody does"
                          : "gave the block away");
}

/* Only connections of langds that still map are left. */
static void see_conns(const struct daemon *d, const struct encoded *e)
{
    const uint32_t conns = e->b.engines.conns_max;

    for (uint32_t i = 0; i < conns; i++)
        HOLDS(e->b.engines.conns[i].state == CONN_FREE ||
                  (d->mappers[i] && map_stands(d->mappers[i])),
            "nothing is left", "%s: connection %u is in state %u",
            d->conf->name, i, e->b.engines.conns[i].state);
    for (uint32_t i = 0; i <= conns; i++)
        HOLDS(list_empty(&e->fences[i]), "nothing is left",
            "%s: sources are fenced for connection %u of %u", d->conf->name, i,
            conns);
}

void encoded_watch(struct daemon *d)
{
    const struct encoded *e = d->brain;
    struct watch *w = watch_of(d);

    e->b.ops->check(&e->b);
    see_outcomes(d, e);
    for (uint32_t i = 0; i < e->rooms_max; i++)
        see_place(d, e, w, i);
    see_blocks(d, e, w);
    if (!W.sparse) { /* these compare with the step before */
        order_encoded(d);
        news_watch(d, &e->b);
    }
    see_cells(d, e);
    for (uint32_t i = 0; i < e->rooms_max; i++)
        debts_watch(d, i);
}

void encoded_watch_step(struct daemon *d)
{
    const struct encoded *e = d->brain;
    struct watch *w = watch_of(d);

    see_outcomes(d, e);
    for (uint32_t i = 0; i < d->touched_count; i++) {
        const struct edst *o = &e->dsts[d->touched[i] % e->rooms_max];

        see_dst(d, e, d->touched[i] % e->rooms_max);
        debts_watch(d, d->touched[i] % e->rooms_max);
        if (o->state == DST_FREE)
            continue;
        see_place(d, e, w, (uint32_t)(o->room - e->rooms));
        if (o->room->item != &e->nothing)
            see_item(d, e, (uint32_t)(o->room->item - e->items));
    }
}

void encoded_watch_end(struct daemon *d)
{
    const struct encoded *e = d->brain;
    uint64_t due = brain_deadline(&e->b);
    const struct share *shares[] = {
        &e->share, &e->dst_share, &e->b.engines.share, &e->b.aux.share};

    encoded_watch(d);
    see_conns(d, e);
    shares_watch_end(d, shares, ARRAY_LEN(shares));
    for (uint32_t i = 0; i < e->rooms_max; i++) {
        const struct eroom *m = &e->rooms[i];

        HOLDS(!m->r.used, "nothing is left",
            "%s room %llu: life %u item %u active %u attachments %d dsts %d",
            d->conf->name, (unsigned long long)m->r.id, m->life, m->item->life,
            m->active, !list_empty(&m->r.attachments), !list_empty(&m->dsts));
    }
    HOLDS(e->dsts_used == 0 && e->b.engines.attachments_used == 0,
        "nothing is left", "%s: %u destinations, %u attachments", d->conf->name,
        e->dsts_used, e->b.engines.attachments_used);
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        HOLDS(e->pools[i].p.free == e->pools[i].p.blocks, "nothing is left",
            "%s: %u of %u blocks free", d->conf->name, e->pools[i].p.free,
            e->pools[i].p.blocks);
    HOLDS(!brain_pending(&e->b), "nothing is left", "%s is pending",
        d->conf->name);
    PEERS_FOREACH (p, &e->b.peers) /* a shut path is tried again for ever */
        if (p->path == PATH_SHUT && p->e.try_ns == due)
            due = TIME_NEVER;
    HOLDS(due == TIME_NEVER, "nothing is left",
        "%s waits for something at %llu ns", d->conf->name,
        (unsigned long long)due);
}
