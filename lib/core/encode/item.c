/* item.c - the rows behind rooms, and when their blocks are freed (RULES 1, 4,
 * 6). Owned by the loop's thread.
 *
 * An item exists as long as a room refers to it. Rooms of one user that are
 * announced with the same key share it: the rows are written once.
 * encode/queue.c has the order in which items get blocks. A KEPT room (kept on
 * demand, or for a langd that restarts) holds its item until kept_ns or until
 * another item needs the space; the room asked for longest ago is reclaimed
 * first. */
#include "core/encode/encode.h"

void items_init(struct encoded *e)
{
    e->weights = e->b.c.seed;
    e->nothing.total = ROWS_UNKNOWN;
    e->nothing.src = extent_none();
    list_init(&e->nothing.rooms);
}

/* keys */

struct item *item_find(
    const struct encoded *e, const struct key *key, uint32_t pool, uint32_t uid)
{
    static const struct key none;
    uint32_t i = key_eq(key, &none)
                     ? NONE
                     : table_get(&e->keys, item_key_hash(key, uid), pool);
    struct item *it = i == NONE ? NULL : &e->items[i];

    return it && it->uid == uid && key_eq(&it->key, key) ? it : NULL;
}

struct item *item_new(
    struct encoded *e, const struct local_announce *n, uint32_t uid)
{
    uint32_t i = slots_take(&e->item_slots);
    struct item *it;

    CHECK(n->pool < e->b.pools_count, "an item of pool %u of %u", n->pool,
        e->b.pools_count);
    if (i == NONE) {
        eroom_give_place(e, STAT_table_full);
        return NULL;
    }
    it = &e->items[i];
    CHECK(
        it->life == ITEM_FREE, "slot %u has an item of state %u", i, it->life);
    memset(it, 0, sizeof(*it));
    it->pool = n->pool;
    item_move(e, it, ITEM_BATCHED);
    it->storage = n->storage;
    it->uid = uid;
    it->key = n->key;
    it->src = extent_none();
    it->max_rows = n->max_rows;
    it->total = n->total;
    it->length_version = 1;
    list_init(&it->rooms);
    it->turn =
        share_turn(&e->b.engines.share, uid, queue_turn(&e->pools[it->pool]));
    it->in_line = (struct in_line){.here = it->turn, .weight = e->weights};
    e->weights = e->weights * UINT64_C(6364136223846793005) + 1;
    it->moved_ns = e->b.now_ns;
    it->victim = queue_remembers(e, n, uid);
    list_init(&it->in_held);
    list_init(&it->in_batch);
    if (item_has_key(it) &&
        table_get(&e->keys, item_key_hash(&it->key, uid), it->pool) == NONE)
        it->keyed =
            table_put(&e->keys, item_key_hash(&it->key, uid), it->pool, i);
    return it;
}

void item_hide(struct encoded *e, struct item *it)
{
    if (it->keyed)
        table_remove(&e->keys, item_key_hash(&it->key, it->uid), it->pool);
    it->keyed = false;
}

/* its rooms */

void item_join(struct encoded *e, struct item *it, struct eroom *m)
{
    CHECK(m->item == &e->nothing && it->life != ITEM_FREE,
        "room ..%08x joins an item of state %u, has one of %u rooms",
        (uint32_t)m->r.id, it->life, m->item->refs);
    queue_refer(e, it, 1, 0);
    m->item = it;
    list_push_tail(&it->rooms, &m->in_item);
    eroom_touch(e, m);
}

void item_discard(struct encoded *e, struct item *it)
{
    CHECK(it->refs == 0 && list_empty(&it->rooms),
        "an item of state %u goes with %u rooms", it->life, it->refs);
    item_hide(e, it);
    queue_leave(e, it, ITEM_FREE);
    aux_drop(&e->b.aux, &it->aux);
    list_remove(&it->in_held);
    pool_give(&e->pools[it->pool].p, &it->src);
    slots_give(&e->item_slots, (uint32_t)(it - e->items));
    epool_serve(e, &e->pools[it->pool]); /* and the rest of its batch */
}

void item_leave(struct encoded *e, struct eroom *m)
{
    struct item *it = m->item;

    CHECK(it != &e->nothing, "room ..%08x leaves an item and has none",
        (uint32_t)m->r.id);
    list_remove(&m->in_item);
    m->item = &e->nothing;
    queue_refer(e, it, -1, -m->leaving);
    if (it->refs == 0)
        item_discard(e, it);
}

uint32_t item_sendable(const struct item *it, uint32_t unit_rows)
{
    CHECK(unit_rows > 0 && it->committed <= it->max_rows,
        "%u of %u rows are committed, in units of %u", it->committed,
        it->max_rows, unit_rows);
    if (item_complete(it))
        return it->total;
    return it->committed - it->committed % unit_rows;
}
