/* item.c - the rows behind rooms, and when their blocks go back
 * (RULES 1, 4, 6). Owned by the loop's thread.
 *
 * An item is there as long as a room refers to it. Rooms of one user that are
 * announced with one key share it: the rows are written once. Who gets blocks
 * is encode/queue.c. A room that ended may be kept (asked for, or for a langd
 * that restarts): it holds its item until the space is wanted or its time is
 * over; the one that was asked for longest ago goes first. */
#include "core/encode/encode.h"

#include <stdio.h>

void items_init(struct encoded *e)
{
    e->nothing.total = ROWS_UNKNOWN;
    e->nothing.src = extent_none();
    list_init(&e->nothing.rooms);
}

/* keys */

uint64_t item_key_hash(const struct key *key, uint32_t uid)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ uid;

    for (size_t i = 0; i < sizeof(key->b); i++)
        h = (h ^ key->b[i]) * UINT64_C(0x100000001b3);
    return h;
}

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

    if (i == NONE) {
        eroom_table_full(e);
        return NULL;
    }
    it = &e->items[i];
    memset(it, 0, sizeof(*it));
    it->used = true;
    it->source = SOURCE_QUEUED;
    it->pool = n->pool;
    it->storage = n->storage;
    it->uid = uid;
    it->key = n->key;
    it->src = extent_none();
    it->max_rows = n->max_rows;
    it->total = n->total;
    it->length_version = 1;
    list_init(&it->rooms);
    it->age = e->age_next++;
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

/* rooms on it */

void item_count_coming(struct encoded *e, struct item *it)
{
    bool coming = it->refs > 0 && it->leaving == it->refs;
    struct epool *p = &e->pools[it->pool];

    if (coming != it->coming)
        p->coming += coming ? it->src.blocks : -it->src.blocks;
    it->coming = coming;
}

void item_join(struct encoded *e, struct item *it, struct eroom *m)
{
    it->refs++;
    item_count_coming(e, it);
    m->item = it;
    list_push_tail(&it->rooms, &m->in_item);
    eroom_touch(e, m);
}

void item_discard(struct encoded *e, struct item *it)
{
    item_hide(e, it);
    queue_leave(e, it);
    aux_drop(&e->b.aux, &it->aux);
    list_remove(&it->in_held);
    pool_give(&e->pools[it->pool].p, &it->src);
    it->used = false;
    slots_give(&e->item_slots, (uint32_t)(it - e->items));
}

void item_leave(struct encoded *e, struct eroom *m)
{
    struct item *it = m->item;

    if (it == &e->nothing)
        return;
    list_remove(&m->in_item);
    m->item = &e->nothing;
    it->refs--;
    it->leaving -= m->leaving;
    item_count_coming(e, it);
    if (it->refs > 0)
        return;
    item_discard(e, it);
    epool_serve(e, &e->pools[it->pool]);
}

void item_measured(struct encoded *e, struct item *it)
{
    char text[128];

    it->length_version++;
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        if (m->said_total == ROWS_UNKNOWN || m->said_total == it->total)
            continue;
        snprintf(text, sizeof(text),
            "%u rows were announced under a key whose item has %u",
            m->said_total, it->total);
        eroom_fail(e, m, ERR_ITEM_MISMATCH, text);
    }
}

void item_touch(struct encoded *e, const struct item *it)
{
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        eroom_touch(e, m);
        LIST_FOREACH (d, &m->dsts)
            edst_touch(e, LIST_ENTRY(d, struct edst, in_room));
    }
}

void item_spoil(
    struct encoded *e, struct item *it, struct eroom *writer, enum err reason)
{
    /* What ended that room need not be true of these. */
    if (reason != ERR_ENGINE_LOST && reason != ERR_INTERNAL)
        reason = ERR_GONE;
    item_hide(e, it);
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        if (m != writer)
            eroom_fail(e, m, reason, "the room that wrote the rows has ended");
    }
}

uint32_t item_sendable(const struct item *it, uint32_t unit_rows)
{
    if (item_complete(it))
        return it->total;
    return it->committed - it->committed % unit_rows;
}
