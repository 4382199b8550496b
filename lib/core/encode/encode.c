/* encode.c - the brain of the encode side: its memory, its events, the order in
 * which records are settled, and its deadlines. Owned by the loop's thread; all
 * memory is carved from one slab at start. */
#include "core/encode/encode.h"

/* making */

static void carve(struct encoded *e, struct slab *s)
{
    const struct conf *c = e->b.c.conf;
    uint32_t tombs = (uint32_t)c->limit_tombstones;

    head_carve(&e->b, s, &encoded_ops);
    share_init(&e->share, s, "limits.rooms", c->limit_rooms, 1, e->b.c.seed);
    share_init(
        &e->dst_share, s, "limits.rooms", c->limit_rooms, 1, e->b.c.seed);
    e->rooms_max = e->share.total;
    e->rooms = slab_take(s, e->rooms_max, sizeof(*e->rooms));
    e->dsts = slab_take(s, e->rooms_max, sizeof(*e->dsts));
    e->room_whys = slab_take(s, e->rooms_max, sizeof(struct why));
    e->dst_whys = slab_take(s, e->rooms_max, sizeof(struct why));
    slots_init(&e->room_slots, s, e->rooms_max);
    slots_init(&e->dst_slots, s, e->rooms_max);
    slots_init(&e->item_slots, s, e->rooms_max);
    slots_init(&e->batch_slots, s, e->rooms_max);
    e->batches = slab_take(s, e->rooms_max, sizeof(*e->batches));
    e->items = slab_take(s, e->rooms_max, sizeof(*e->items));
    e->readers = slab_take(s, share_connections(c), sizeof(*e->readers));
    e->fences = slab_take(s, share_connections(c) + 1, sizeof(*e->fences));
    e->open_batch = slab_take(s, share_connections(c), sizeof(struct item *));
    e->acked = slab_take(s, e->b.peers.max, sizeof(*e->acked));
    table_init(&e->keys, s, e->rooms_max, e->b.c.seed + 2);
    table_init(&e->ids, s, e->rooms_max, e->b.c.seed);
    table_init(&e->gens, s, e->rooms_max, e->b.c.seed + 1);
    memory_init(&e->ended_rooms, s, tombs, sizeof(struct tomb), e->b.c.seed,
        TOMB_KEEP_NS);
    memory_init(&e->ended_gens, s, tombs, sizeof(struct tomb), e->b.c.seed,
        TOMB_KEEP_NS);
    memory_init(&e->victims, s, tombs, sizeof(struct tomb), e->b.c.seed,
        c->timeout_total);
    memory_init(&e->declines, s, tombs, sizeof(struct decline), e->b.c.seed + 3,
        c->timeout_bootstrap);
    heap_init(&e->room_timers, s, e->rooms_max);
    heap_init(&e->dst_timers, s, e->rooms_max);
    for (uint32_t i = 0; i < c->pools_count; i++) {
        struct epool *p = &e->pools[i];

        p->block_rows = (uint32_t)c->pools[i].block_rows;
        pool_init(&p->p, s, (uint32_t)c->pools[i].blocks);
        rowmap_init(&p->committed, s, p->p.blocks, p->block_rows);
        for (uint32_t q = 0; q < QUEUES; q++)
            heap_init(&p->queues[q], s, e->rooms_max);
    }
}

/* Records which pools are restricted to certain users or groups. */
static void note_users(struct encoded *e)
{
    e->for_users = 0;
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        if (conf_for_users(e->b.metas[i].conf))
            e->for_users |= UINT32_C(1) << i;
}

static struct brain *init(struct slab *s, const struct brain_conf *c)
{
    struct encoded *e = slab_take(s, 1, sizeof(*e));

    if (!e) {
        struct encoded counting = {.b.c = *c};

        carve(&counting, s);
        return NULL;
    }
    e->b.c = *c;
    carve(e, s);
    if (s->failed)
        return NULL;
    head_init(&e->b, &encoded_engines, &encoded_peers);
    items_init(e);
    list_init(&e->room_todo);
    list_init(&e->dst_todo);
    list_init(&e->acked_pending);
    for (uint32_t i = 0; i < e->b.peers.max; i++)
        list_init(&e->acked[i].pending);
    for (uint32_t i = 0; i <= e->b.engines.conns_max; i++)
        list_init(&e->fences[i]);
    e->acked_ns = TIME_NEVER;
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        e->pools[i].meta = &e->b.metas[i];
        list_init(&e->pools[i].held);
        list_init(&e->pools[i].kept);
        list_init(&e->pools[i].unclaimed);
        e->pools[i].head_since_ns = e->pools[i].revoke_ns = TIME_NEVER;
        e->pools[i].stands_ns = TIME_NEVER;
    }
    note_users(e);
    return &e->b;
}

/* events */

/* Fails the rooms of pool i, whose GPU is lost: its rows can no longer be read
 * or sent. Kept rows are dropped. */
static void on_pool_lost(struct encoded *e, uint32_t i)
{
    static const char text[] = "the pool's GPU is lost";

    CHECK(i < e->b.pools_count, "pool %u of %u is lost", i, e->b.pools_count);
    for (uint32_t k = 0; k < e->room_slots.fresh; k++) {
        struct eroom *m = &e->rooms[k];

        if (!m->r.used || m->item == &e->nothing || m->item->pool != i)
            continue;
        eroom_fail(e, m, ERR_INTERNAL, text);
        if (m->life == EROOM_KEPT)
            eroom_let_go(e, m);
        LIST_FOREACH (n, &m->dsts)
            edst_fail(
                e, LIST_ENTRY(n, struct edst, in_room), ERR_INTERNAL, text);
    }
}

static void on_note(struct encoded *e, const struct data_note *n)
{
    struct edst *d;

    if (n->type == NOTE_PEER_BROKEN) {
        CHECK(n->peer < e->b.peers.max, "note of peer %u", n->peer);
        LIST_FOREACH (i, &e->b.peers.peers[n->peer].rooms) {
            d = LIST_ENTRY(i, struct edst, in_peer);
            if (edst_goes_by(e, d, n->first))
                edst_broken(e, d);
        }
        return;
    }
    if (n->type == NOTE_POOL_LOST) {
        on_pool_lost(e, n->first);
        return;
    }
    CHECK(n->slot < e->rooms_max, "note of slot %u", n->slot);
    d = &e->dsts[n->slot];
    if (n->type != NOTE_SEND_QUIET || d->job != JOB_CLOSING ||
        d->generation != n->generation)
        return;
    CHECK(d->closing_left > 0, "destination %u waits for no shard", n->slot);
    if (--d->closing_left == 0)
        edst_move_job(e, d, JOB_NONE);
    edst_touch(e, d);
    eroom_touch(e, d->room);
}

static void expire(struct encoded *e)
{
    struct heap_node *n;

    while ((n = heap_first(&e->room_timers)) && n->key <= e->b.now_ns) {
        heap_remove(&e->room_timers, n);
        eroom_expired(e, CONTAINER_OF(n, struct eroom, timer));
    }
    while ((n = heap_first(&e->dst_timers)) && n->key <= e->b.now_ns) {
        heap_remove(&e->dst_timers, n);
        edst_touch(e, CONTAINER_OF(n, struct edst, timer));
    }
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        epool_yield(e, &e->pools[i]);
        if (e->pools[i].revoke_ns <= e->b.now_ns)
            epool_revoke(e, &e->pools[i]);
    }
}

/* Settles the touched records. Destinations come first, because their end may
 * end a room. */
static void work(void *brain, struct out *out)
{
    struct encoded *e = brain;
    struct list *n;

    while (out_has_room(out)) {
        if ((n = list_pop(&e->dst_todo)))
            edst_settle(e, out, LIST_ENTRY(n, struct edst, todo));
        else if ((n = list_pop(&e->room_todo)))
            eroom_settle(e, out, LIST_ENTRY(n, struct eroom, r.todo));
        else
            break;
    }
    if (e->offers_due && out_has_room(out))
        encoded_map_offer(e, out);
}

static void on_conf(struct encoded *e)
{
    const struct conf *c = e->b.c.conf;

    e->victims.keep_ns = c->timeout_total;
    e->declines.keep_ns = c->timeout_bootstrap;
    note_users(e);
}

/* Ends the rooms that the order selects. A room without an announce has only
 * destinations to end. */
static void kill_rooms(struct encoded *e, const struct event *ev)
{
    for (uint32_t i = 0; i < e->room_slots.fresh; i++) {
        struct eroom *m = &e->rooms[i];

        if (!m->r.used || !room_killed(&e->b.engines, &m->r, ev))
            continue;
        e->b.stats[STAT_killed] += eroom_serves(m) || eroom_awaited(m);
        if (eroom_announced(m))
            eroom_fail(e, m, ERR_ABORTED, room_killed_text);
        LIST_FOREACH (n, &m->dsts)
            if (!eroom_announced(m))
                edst_fail(e, LIST_ENTRY(n, struct edst, in_room), ERR_ABORTED,
                    room_killed_text);
    }
}

/* Stops keeping rows under the key, and hides the key. Destinations that
 * already asked complete; a new announce does not find the rows. */
static void drop(struct encoded *e, const struct event *ev)
{
    for (uint32_t i = 0; i < e->item_slots.fresh; i++) {
        struct item *it = &e->items[i];

        if (it->life == ITEM_FREE ||
            (ev->pool != NONE && ev->pool != it->pool) ||
            (ev->key && !key_eq(ev->key, &it->key)))
            continue;
        item_hide(e, it);
        LIST_FOREACH_SAFE (n, &it->rooms) {
            struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

            if (m->life != EROOM_KEPT)
                continue;
            e->b.stats[STAT_dropped]++;
            eroom_let_go(e, m);
        }
    }
}

static void on_event(void *brain, struct out *out, const struct event *ev)
{
    struct encoded *e = brain;

    switch (ev->type) {
    case EV_CONN_END:
        encoded_map_end(e, ev->conn);
        edst_conn_quiet(e, out, ev->conn);
        break;
    case EV_CONN_DEAD:
        encoded_map_dead(e, ev->conn);
        break;
    case EV_NOTE:
        on_note(e, &ev->note);
        break;
    case EV_TIME:
        expire(e);
        if (e->acked_ns <= e->b.now_ns)
            encoded_say_acked(e, out);
        break;
    case EV_CONF:
        on_conf(e);
        break;
    case EV_DRAIN:
    case EV_ENDING:
        encoded_say_acked(e, out);
        break;
    case EV_POOL:
        e->offers_due = true;
        break;
    case EV_KILL:
        kill_rooms(e, ev);
        break;
    case EV_DROP:
        drop(e, ev);
        break;
    default:
        break;
    }
}

static bool pending(const void *brain)
{
    const struct encoded *e = brain;

    return e->offers_due || !list_empty(&e->dst_todo) ||
           !list_empty(&e->room_todo);
}

static uint64_t deadline(const void *brain)
{
    const struct encoded *e = brain;
    uint64_t at = min_u64(heap_due(&e->room_timers), heap_due(&e->dst_timers));

    at = min_u64(at, e->acked_ns);
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        at = min_u64(at,
            min_u64(e->pools[i].revoke_ns, queue_yield_ns(e, &e->pools[i])));
    return at;
}

/* Returns the number of rooms that have not ended. A drain also counts rooms
 * that were requested and may still be announced. */
static uint32_t open_rooms(const void *brain)
{
    const struct encoded *e = brain;
    uint32_t n = e->open;

    for (uint32_t i = 0; e->b.draining && i < e->room_slots.fresh; i++)
        n += eroom_awaited(&e->rooms[i]);
    return n;
}

static uint32_t blocks_free(const void *brain, uint32_t i)
{
    return ((const struct encoded *)brain)->pools[i].p.free;
}

const struct brain_ops encoded_ops = {
    .role = ROLE_ENCODED,
    .engines_write = true,
    .init = init,
    .local = encoded_local,
    .map = encoded_map,
    .event = on_event,
    .peer = encoded_peer,
    .work = work,
    .pending = pending,
    .deadline = deadline,
    .fill_event = encoded_fill_event,
    .open_rooms = open_rooms,
    .show = &encoded_shows,
    .blocks_free = blocks_free,
    .check = encoded_check,
};
