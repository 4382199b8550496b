/* lang.c - the brain of the language side: its memory, carved from one slab at
 * start, its events, and the order of a step. lang.h says what each file does.
 * Owned by the loop's thread. */
#include "core/lang/lang.h"

#include <stdio.h>

/* making */

static void make_pool(struct langd *l, struct slab *s, uint32_t i)
{
    const struct conf_pool *c = &l->b.c.conf->pools[i];
    struct lpool *p = &l->pools[i];
    uint32_t blocks = (uint32_t)c->blocks;
    uint32_t max = (uint32_t)c->max_room_blocks;

    CHECK(c->block_rows > 0 && max <= blocks, "pool %u: %u of %u blocks a room",
        i, max, blocks);
    pool_init(&p->p, s, blocks);
    rowmap_init(&p->landed, s, blocks, (uint32_t)c->block_rows);
    heap_init(&p->want, s, l->rooms_max);
    heap_init(&p->need, s, l->rooms_max);
    heap_init(&p->spec, s, l->rooms_max);
    heap_init(&p->victim, s, l->rooms_max);
    p->block_rows = (uint32_t)c->block_rows;
    p->cap_whole = max ? max : blocks;
    p->cap_stream =
        min_u32(max ? max : max_u32(blocks / 2, STREAM_MIN), blocks);
    p->hold_stream = max_u32(
        STREAM_MIN, min_u32((uint32_t)c->default_blocks, p->cap_stream));
    list_init(&p->drawing);
    p->head_since_ns = p->revoke_ns = TIME_NEVER;
}

static void carve(struct langd *l, struct slab *s)
{
    const struct conf *c = l->b.c.conf;

    head_carve(&l->b, s, &langd_ops);
    share_init(&l->share, s, "limits.rooms", c->limit_rooms, 1, l->b.c.seed);
    l->rooms_max = l->share.total;
    l->rooms = slab_take(s, l->rooms_max, sizeof(*l->rooms));
    l->whys = slab_take(s, l->rooms_max, sizeof(*l->whys));
    slots_init(&l->slots, s, l->rooms_max);
    share_init(&l->idle_share, s, "groups", l->rooms_max, 1, l->b.c.seed);
    l->groups = slab_take(s, l->rooms_max, sizeof(*l->groups));
    l->groups_idle =
        slab_take(s, l->b.engines.conns_max, sizeof(*l->groups_idle));
    table_init(&l->group_ids, s, l->rooms_max, l->b.c.seed);
    table_init(&l->keys, s, l->rooms_max, l->b.c.seed);
    memory_init(&l->tombs, s, (uint32_t)c->limit_tombstones,
        sizeof(struct tomb), l->b.c.seed, TOMB_KEEP_NS);
    memory_init(&l->left, s, (uint32_t)c->limit_tombstones, sizeof(struct tomb),
        l->b.c.seed, TOMB_KEEP_NS);
    memory_init(&l->declines, s, WAITING_DECLINES, sizeof(struct ldecline),
        l->b.c.seed, FORGET_NS);
    tickets_init(&l->tickets, s, c, l->b.c.seed);
    heap_init(&l->timers, s, l->rooms_max);
    heap_init(&l->aux_queue, s, l->rooms_max);
    heap_init(&l->aux_held, s, l->rooms_max);
    for (uint32_t i = 0; i < c->pools_count; i++)
        make_pool(l, s, i);
}

static struct brain *init(struct slab *s, const struct brain_conf *c)
{
    struct langd *l = slab_take(s, 1, sizeof(*l));

    if (!l) {
        struct langd counting = {.b.c = *c};

        carve(&counting, s);
        return NULL;
    }
    CHECK(c->shards > 0, "no shard answers that a room is closed");
    l->b.c = *c;
    carve(l, s);
    if (s->failed)
        return NULL;
    head_init(&l->b, &langd_engines, &langd_peers);
    l->tickets.now_ns = &l->b.now_ns;
    groups_init(l);
    list_init(&l->todo);
    list_init(&l->settled);
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        l->pools[i].meta = &l->b.metas[i];
    l->lender_news = l->b.engines.conns_max;
    l->generation_base = (c->seed >> 24) * l->rooms_max;
    named_init(l);
    return &l->b;
}

static void pool_ready(void *brain, uint32_t i)
{
    struct langd *l = brain;
    struct lpool *p = &l->pools[i];

    p->unit_rows = layout_unit_rows(&p->meta->layout, p->block_rows);
    CHECK(p->unit_rows > 0 && p->block_rows % p->unit_rows == 0,
        "pool %u: blocks of %u rows, units of %u", i, p->block_rows,
        p->unit_rows);
    p->part_rows = layout_part_rows(&p->meta->layout, p->unit_rows);
    p->landed.unit = p->unit_rows;
}

static uint32_t blocks_free(const void *brain, uint32_t i)
{
    return ((const struct langd *)brain)->pools[i].p.free;
}

/* events */

/* Fails the rooms of a pool whose memory is lost: each shard reports that once
 * for a pool, so the table is walked as many times. READY rooms stay: their
 * readers' own calls fail. */
static void on_pool_lost(struct langd *l, uint32_t i)
{
    for (uint32_t k = 0; k < l->rooms_max; k++) {
        struct lroom *m = &l->rooms[k];

        if (m->r.used && m->pool == i && lroom_alive(m))
            lroom_fail(l, m, ERR_INTERNAL, 0, 0, "the pool's GPU is lost");
    }
}

static void on_note(struct langd *l, const struct data_note *n)
{
    struct lroom *m;

    CHECK(n->type != NOTE_PEER_BROKEN, "langd sends no rows");
    if (n->type == NOTE_POOL_LOST) {
        on_pool_lost(l, n->first);
        return;
    }
    CHECK(n->slot < l->rooms_max, "note of slot %u", n->slot);
    m = &l->rooms[n->slot];
    if (!m->r.used || m->generation != n->generation)
        return;
    if (n->type == NOTE_LAND_QUIET)
        lroom_quiet(l, m);
    else if (n->type == NOTE_LAND_BAD)
        lroom_fail(
            l, m, ERR_MALFORMED, 0, 0, "a segment contradicts the total");
    else if (n->type == NOTE_LAND_GONE)
        lroom_fail(l, m, ERR_CORRUPT, 0, 0,
            "an engine removed pages from the rows' pool");
    else if (n->type == NOTE_LANDED && lroom_alive(m) &&
             n->attempt == m->attempt && lroom_open(m))
        lroom_landed(l, m, n->first, n->rows);
}

static void expire(struct langd *l)
{
    struct heap_node *n;

    tickets_expire(&l->tickets, l->b.now_ns);
    while ((n = heap_first(&l->timers)) && n->key <= l->b.now_ns) {
        heap_remove(&l->timers, n);
        lroom_expired(l, CONTAINER_OF(n, struct lroom, timer));
    }
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        l->pools[i].dirty |= l->pools[i].revoke_ns <= l->b.now_ns;
}

/* Serves the queues; all rooms are sorted into them. True if rooms must be
 * settled again, or the queues served again. */
static bool serve(struct langd *l, struct out *out)
{
    bool more = false;

    CHECK(list_empty(&l->todo), "queues are served before rooms are settled");
    laux_serve(l);
    if (!list_empty(&l->todo))
        return true; /* first sort the rooms whose space changed */
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        if (l->pools[i].dirty && out_has_room(out)) {
            bool again;

            admit_serve(l, out, &l->pools[i], &again);
            more |= again;
        }
    return more || !list_empty(&l->todo);
}

/* Settles the changed rooms, serves the queues, sends the results. */
static void work(void *brain, struct out *out)
{
    struct langd *l = brain;
    struct list *n;
    bool more = true;
    uint32_t conn;

    while (more && out_has_room(out)) {
        while (out_has_room(out) && (n = list_pop(&l->todo)))
            lroom_settle(l, out, LIST_ENTRY(n, struct lroom, r.todo));
        more = out_has_room(out) && serve(l, out);
        while (!more && out_has_room(out) && (n = list_pop(&l->settled)))
            lroom_notify(l, out, LIST_ENTRY(n, struct lroom, in_settled));
        more |= l->aux_dirty;
    }
    if (l->lender_news < l->b.engines.conns_max)
        lenders_serve(l, out);
    if (l->leave_due && out_has_room(out))
        named_serve(l, out);
    while (out_has_room(out) && (conn = tickets_next_conn(&l->tickets)) != NONE)
        engine_notify(&l->b.engines, out, conn);
}

static void kill_rooms(struct langd *l, const struct event *ev)
{
    for (uint32_t i = 0; i < l->slots.fresh; i++) {
        struct lroom *m = &l->rooms[i];

        if (!m->r.used || !room_killed(&l->b.engines, &m->r, ev) ||
            !lroom_alive(m))
            continue;
        l->b.stats[STAT_killed]++;
        lroom_fail(l, m, ERR_ABORTED, 0, 0, room_killed_text);
    }
}

static void on_event(void *brain, struct out *out, const struct event *ev)
{
    struct langd *l = brain;

    switch (ev->type) {
    case EV_CONN_END:
        if (engine_empty(&l->b.engines, ev->conn))
            out_action(out, ACT_CONN_CLOSE)->conn = ev->conn;
        break;
    case EV_NOTE:
        on_note(l, &ev->note);
        break;
    case EV_MAP:
        langd_on_map(l, out, ev);
        break;
    case EV_TIME:
        expire(l);
        break;
    case EV_SEEK:
        named_seek(l, out);
        named_serve(l, out);
        break;
    case EV_KILL:
        kill_rooms(l, ev);
        break;
    case EV_CONF:
        named_conf(l, out);
        break;
    default:
        break; /* brain.c has handled it */
    }
}

static bool pending(const void *brain)
{
    const struct langd *l = brain;

    for (uint32_t i = 0; i < l->b.pools_count; i++)
        if (l->pools[i].dirty)
            return true;
    return !list_empty(&l->todo) || !list_empty(&l->settled) || l->aux_dirty ||
           l->leave_due || !list_empty(&l->tickets.dirty) ||
           l->lender_news < l->b.engines.conns_max;
}

static uint64_t deadline(const void *brain)
{
    const struct langd *l = brain;
    uint64_t at = min_u64(heap_due(&l->timers), heap_due(&l->tickets.timers));

    for (uint32_t i = 0; i < l->b.pools_count; i++)
        at = min_u64(at, l->pools[i].revoke_ns);
    return at;
}

/* Returns the number of rooms that have not ended. A drain also counts ended
 * rooms whose encoder has not answered. */
static uint32_t open_rooms(const void *brain)
{
    const struct langd *l = brain;
    uint32_t n = l->open;

    for (uint32_t i = 0; l->b.draining && i < l->slots.fresh; i++) {
        const struct lroom *m = &l->rooms[i];
        const struct peer *p = m->r.used ? lroom_peer(l, m) : NULL;

        n += p && peer_up(p) && (m->debt.owe & OWE_ACK);
    }
    return n;
}

const struct brain_ops langd_ops = {
    .role = ROLE_LANGD,
    .init = init,
    .local = langd_local,
    .event = on_event,
    .peer = langd_peer,
    .work = work,
    .pending = pending,
    .deadline = deadline,
    .fill_event = langd_fill_event,
    .next_event = langd_next_event,
    .open_rooms = open_rooms,
    .show = &langd_shows,
    .pool_ready = pool_ready,
    .blocks_free = blocks_free,
    .check = langd_check,
};
