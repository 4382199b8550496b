/* encoded_item.c - the rows behind rooms: who holds source blocks, in which
 * order they are given, and when they go back (RULES 1, 4, 6). Owned by the
 * loop's thread.
 *
 * An item is there as long as a room refers to it. Rooms of one user that are
 * announced with one key share it: the rows are written once. Items wait for
 * blocks in one queue per pool, first come first served, all blocks at once; a
 * batch waits as one. A room that ended may be kept (asked for, or for a langd
 * that restarts): it holds its item until the space is wanted or its time is
 * over; the one that was asked for longest ago goes first. */
#include "core/encoded.h"

#include <stdio.h>

void items_init(struct encoded *e)
{
    e->nothing.total = ROWS_UNKNOWN;
    e->nothing.src = extent_none();
    list_init(&e->nothing.rooms);
    e->items_free = NONE;
}

/* keys */

static uint64_t key_hash(const struct key *key, uint32_t uid)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ uid;

    for (size_t i = 0; i < sizeof(key->b); i++)
        h = (h ^ key->b[i]) * UINT64_C(0x100000001b3);
    return h;
}

static bool has_key(const struct item *it)
{
    static const struct key none;

    return !key_eq(&it->key, &none);
}

struct item *item_find(
    const struct encoded *e, const struct key *key, uint32_t pool, uint32_t uid)
{
    static const struct key none;
    uint32_t i = key_eq(key, &none)
                     ? NONE
                     : table_get(&e->keys, key_hash(key, uid), pool);
    struct item *it = i == NONE ? NULL : &e->items[i];

    return it && it->uid == uid && key_eq(&it->key, key) ? it : NULL;
}

struct item *item_new(
    struct encoded *e, const struct local_announce *n, uint32_t uid)
{
    uint32_t i = slab_next(e->items_free, e->items_fresh, e->rooms_max);
    struct item *it;

    if (i == NONE) {
        eroom_table_full(e);
        return NULL;
    }
    it = &e->items[i];
    if (i == e->items_fresh)
        e->items_fresh++;
    else
        e->items_free = it->free_next;
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
    list_init(&it->in_fifo);
    list_init(&it->in_batch);
    if (has_key(it) &&
        table_get(&e->keys, key_hash(&it->key, uid), it->pool) == NONE)
        it->keyed = table_put(&e->keys, key_hash(&it->key, uid), it->pool, i);
    return it;
}

/* No announce finds it by its key any more. */
static void hide(struct encoded *e, struct item *it)
{
    if (it->keyed)
        table_remove(&e->keys, key_hash(&it->key, it->uid), it->pool);
    it->keyed = false;
}

/* rooms on it */

/* Blocks on which nobody's hand is any more need not be asked for twice. */
static void count_coming(struct encoded *e, struct item *it)
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
    count_coming(e, it);
    m->item = it;
    list_push_tail(&it->rooms, &m->in_item);
    eroom_touch(e, m);
}

/* Takes it out of its batch and queue; the next of the batch takes its place.
 */
static void unqueue(struct encoded *e, struct item *it)
{
    if (e->open_batch[it->conn] == it)
        e->open_batch[it->conn] =
            list_linked(&it->in_batch)
                ? LIST_ENTRY(it->in_batch.next, struct item, in_batch)
                : NULL;
    if (list_linked(&it->in_fifo) && list_linked(&it->in_batch)) {
        struct item *next =
            LIST_ENTRY(it->in_batch.next, struct item, in_batch);

        list_insert_before(&it->in_fifo, &next->in_fifo);
    }
    list_remove(&it->in_fifo);
    list_remove(&it->in_batch);
}

void item_discard(struct encoded *e, struct item *it)
{
    hide(e, it);
    unqueue(e, it);
    aux_drop(&e->aux, &it->aux);
    pool_give(&e->pools[it->pool].p, &it->src);
    it->used = false;
    it->free_next = e->items_free;
    e->items_free = (uint32_t)(it - e->items);
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
    count_coming(e, it);
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
    hide(e, it);
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

/* blocks */

enum err item_queue(
    struct encoded *e, struct item *it, uint32_t conn, bool more)
{
    struct epool *p = &e->pools[it->pool];
    struct item *first = e->open_batch[conn];
    uint64_t blocks = div_up(it->max_rows, p->block_rows);

    if (first && first->pool != it->pool)
        return ERR_MALFORMED;
    if (first) {
        LIST_FOREACH (n, &first->in_batch)
            blocks += div_up(
                LIST_ENTRY(n, struct item, in_batch)->max_rows, p->block_rows);
        blocks += div_up(first->max_rows, p->block_rows);
    }
    if (blocks > p->p.blocks)
        return ERR_TOO_LARGE;
    it->conn = conn;
    if (first)
        list_insert_before(&first->in_batch, &it->in_batch);
    else
        first = it;
    e->open_batch[conn] = more ? first : NULL;
    if (!more)
        list_push_tail(&p->fifo, &first->in_fifo);
    return OK;
}

void item_close_batch(struct encoded *e, uint32_t conn)
{
    struct item *first = e->open_batch[conn];

    e->open_batch[conn] = NULL;
    if (!first)
        return;
    list_push_tail(&e->pools[first->pool].fifo, &first->in_fifo);
    epool_serve(e, &e->pools[first->pool]);
}

/* Blocks that the head of the queue and its batch want. */
static uint32_t head_blocks(const struct epool *p, const struct item *head)
{
    uint32_t n = div_up(head->max_rows, p->block_rows);

    LIST_FOREACH (i, &head->in_batch)
        n += div_up(
            LIST_ENTRY(i, struct item, in_batch)->max_rows, p->block_rows);
    return n;
}

static bool take(struct encoded *e, struct epool *p, struct item *it)
{
    uint32_t first_run, n = div_up(it->max_rows, p->block_rows);

    if (!pool_take(&p->p, &it->src, n, &first_run))
        return false;
    rowmap_clear(&p->committed, &p->p, first_run);
    it->source = SOURCE_HELD;
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        m->history.blocks = n;
        m->granted_due = !m->have;
    }
    item_touch(e, it);
    return true;
}

/* Lets go of kept rooms, longest not asked for first, until so many blocks
 * come back. Those that a writer may still hold or a langd of this host read
 * are not counted on. */
static void reclaim(struct encoded *e, struct epool *p, uint32_t blocks)
{
    LIST_FOREACH_SAFE (n, &p->kept) {
        struct eroom *m = LIST_ENTRY(n, struct eroom, in_kept);

        if (p->coming >= blocks)
            return;
        if (m->active > 0)
            continue;
        m->leaving =
            (m->item->final || !room_in_use(&m->r)) && !eroom_read_elsewhere(m);
        m->item->leaving += m->leaving;
        count_coming(e, m->item);
        eroom_unlink(e, m, ERR_GONE);
    }
}

void epool_serve(struct encoded *e, struct epool *p)
{
    while (!list_empty(&p->fifo)) {
        struct item *head = LIST_FIRST(&p->fifo, struct item, in_fifo);
        uint32_t n = head_blocks(p, head);

        if (n > p->p.free) {
            reclaim(e, p, n - p->p.free);
            return;
        }
        if (!take(e, p, head)) { /* too scattered for now */
            reclaim(e, p, p->coming + 1);
            return;
        }
        unqueue(e, head);
    }
}
