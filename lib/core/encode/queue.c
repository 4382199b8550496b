/* queue.c - the order in which items get source blocks (RULES 5.11, 5.13,
 * 5.14). Owned by the loop's thread.
 *
 * Each pool has a queue of items that wait for blocks, ordered by turns; a user
 * draws a turn for each announce. An INIT says the room's turn at its langd.
 * The items of one langd have their turns here in the order that they have
 * there, so that both sides give blocks to the same rooms. An item gets all its
 * blocks at once; a batch waits as one. Full items come first: one of their
 * rooms has firm grants from all its destinations, and lacks only source
 * blocks. Items that hold blocks and lack grants may wait for langd blocks that
 * such a room holds; encode/revoke.c breaks this circular wait. A revoked item
 * is remembered, and gets blocks only when it is full. So it asks for its
 * grants ahead of its rows, and so does the oldest item that was overtaken.
 *
 * Rejected: to wait until all rooms of an item or a batch have their grants. A
 * langd may have blocks for one room only when another has gone.
 *
 * Rejected: to have all items ask for all their grants at their announce. The
 * blocks of langd would be idle while encoders work, and a fast encoder would
 * wait behind a slow one.
 *
 * Rejected: to sort an item into its langd's turns when it comes. All items
 * behind it would move. So only the first turn is given to the langd's first
 * item, when the head of a queue is looked for. */
#include "core/encode/encode.h"

/* grants of an item, and of a batch */

/* True if every destination of the room has a firm grant for all it needs. In
 * an open room one is enough: its destinations ask in no order, so one may wait
 * for blocks of a room that waits for another. */
static bool room_firm(const struct eroom *m)
{
    uint32_t firm = 0, lacking = 0;

    if (eroom_failing(m))
        return true;
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        firm += d->state == DST_ACTIVE && d->firm == FIRM_YES;
        lacking += d->state == DST_ACTIVE && d->firm != FIRM_YES;
    }
    if (m->flags & FLAG_OPEN && !eroom_ended(m))
        return firm > 0;
    if (lacking > 0)
        return false;
    return eroom_ended(m) || (m->required > 0 && m->asked >= m->required);
}

/* One room is enough: a langd may grant its rooms only one after another, so
 * waiting for all rooms could deadlock. */
bool item_firm(const struct item *it)
{
    bool all = !list_empty(&it->rooms);

    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        if (!room_firm(m))
            all = false;
        else if (!eroom_failing(m) && m->active > 0)
            return true;
    }
    return all;
}

/* Returns the item's destination that asked first; NULL: there is none. */
static const struct edst *asked_first(const struct item *it)
{
    LIST_FOREACH (n, &it->rooms)
        LIST_FOREACH (o, &LIST_ENTRY(n, struct eroom, in_item)->dsts) {
            const struct edst *d = LIST_ENTRY(o, struct edst, in_room);

            if (d->state == DST_ACTIVE)
                return d;
        }
    return NULL;
}

/* True if a langd holds blocks for the item when all its grants are given: its
 * total is not 0, and one of its rooms still serves destinations. */
static bool holds_there(const struct item *it)
{
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        if (it->total != 0 && eroom_serves(m))
            return true;
    }
    return false;
}

static struct item *next_in_batch(const struct item *it)
{
    return LIST_ENTRY(it->in_batch.next, struct item, in_batch);
}

/* Counts in its batch whether the item is full: blocks at a langd are idle
 * until it gets source blocks. */
static void count_full(struct item *it)
{
    it->batch->full -= it->full;
    it->full = holds_there(it) && item_firm(it);
    it->batch->full += it->full;
}

/* Adds the item to its batch's counts, or takes it out. */
static void count_item(struct encoded *e, struct item *it, bool in)
{
    uint32_t one = in ? 1 : UINT32_MAX;
    struct ebatch *b = it->batch;

    CHECK(b->items + one < e->rooms_max + 1, "a batch of %u items", b->items);
    b->items += one;
    b->blocks += one * div_up(it->max_rows, e->pools[it->pool].block_rows);
    b->victims += one * it->victim;
    b->full -= it->full;
    if (!in)
        it->batch = NULL;
    if (b->items == 0)
        slots_give(&e->batch_slots, (uint32_t)(b - e->batches));
}

/* the queue */

static struct item *first_of(const struct heap *h)
{
    struct heap_node *n = heap_first(h);

    return n ? CONTAINER_OF(n, struct item, in_queue) : NULL;
}

/* Gives the first turn of a queue to the item that is first at the same langd:
 * the two items swap turns. */
static void hand(struct epool *p, uint32_t queue)
{
    struct heap *h = &p->queues[queue];
    struct item *it = first_of(h), *first;
    uint64_t turn;

    if (h->len < 2 || it->in_line.langd == NONE)
        return;
    first = line_first(p->lines[queue], it->in_line.langd);
    turn = it->turn;
    it->turn = first->turn;
    first->turn = turn;
    heap_set(h, &it->in_queue, it->turn);
    heap_set(h, &first->in_queue, turn);
}

static void unplace(struct epool *p, struct item *it)
{
    if (!heap_linked(&it->in_queue))
        return;
    heap_take(&p->queues[it->queue], &it->in_queue);
    if (it->in_line.langd != NONE)
        line_take(&p->lines[it->queue], it);
    hand(p, it->queue);
}

/* Puts the first of a batch into the batch's queue. A batch with a victim is in
 * no queue until it is full. */
static void place(struct epool *p, struct item *first)
{
    const struct edst *d = asked_first(first);
    uint32_t langd = d ? d->peer : NONE;
    uint64_t there = d ? d->turn : 0;
    uint8_t queue = first->batch->full > 0 ? QUEUE_FIRM
                    : first->ahead         ? QUEUE_AHEAD
                                           : QUEUE_PLAIN;

    CHECK(first->life == ITEM_QUEUED && first->batch->first == first,
        "an item of state %u is placed", first->life);
    if (heap_linked(&first->in_queue) && first->queue == queue &&
        first->in_line.langd == langd && first->in_line.there == there)
        return;
    unplace(p, first);
    if (queue != QUEUE_FIRM && first->batch->victims > 0)
        return;
    first->queue = queue;
    first->in_line.langd = langd;
    first->in_line.there = there;
    heap_set(&p->queues[queue], &first->in_queue, first->turn);
    if (langd != NONE)
        line_put(&p->lines[queue], first);
    hand(p, queue);
}

static void enqueue(struct encoded *e, struct item *first)
{
    item_move(e, first, ITEM_QUEUED);
    place(&e->pools[first->pool], first);
}

enum err item_queue(
    struct encoded *e, struct item *it, uint32_t conn, bool more)
{
    struct epool *p = &e->pools[it->pool];
    struct item *first = e->open_batch[conn];

    CHECK(it->life == ITEM_BATCHED && conn < e->b.engines.conns_max,
        "an item of state %u is queued for connection %u", it->life, conn);
    if (first && first->pool != it->pool)
        return ERR_MALFORMED;
    if (div_up(it->max_rows, p->block_rows) +
            (first ? first->batch->blocks : 0) >
        p->p.blocks)
        return ERR_TOO_LARGE;
    it->conn = conn;
    if (first) {
        list_insert_before(&first->in_batch, &it->in_batch);
        it->batch = first->batch;
    } else {
        first = it;
        it->batch = &e->batches[slots_take(&e->batch_slots)];
        *it->batch = (struct ebatch){.first = it};
    }
    count_item(e, it, true);
    e->open_batch[conn] = more ? first : NULL;
    if (!more)
        enqueue(e, first);
    return OK;
}

void item_close_batch(struct encoded *e, uint32_t conn)
{
    struct item *first = e->open_batch[conn];

    e->open_batch[conn] = NULL;
    if (!first)
        return;
    enqueue(e, first);
    epool_serve(e, &e->pools[first->pool]);
}

/* Records how long the item has waited for blocks. */
static void count_wait(struct encoded *e, const struct item *it)
{
    CHECK(!item_held(it), "an item of state %u waits for blocks", it->life);
    histograms_time(&e->b.histograms[it->pool], HISTOGRAM_source_wait,
        e->b.now_ns - it->moved_ns);
}

/* The next item of the batch takes over its place in the queue. */
void queue_leave(struct encoded *e, struct item *it, enum item_life to)
{
    bool queued = it->life == ITEM_QUEUED;
    struct item *next = list_linked(&it->in_batch) ? next_in_batch(it) : NULL;

    CHECK(it->conn < e->b.engines.conns_max, "an item of connection %u",
        it->conn);
    if (e->open_batch[it->conn] == it)
        e->open_batch[it->conn] = next;
    list_remove(&it->in_batch);
    if (it->batch && it->batch->first == it)
        it->batch->first = next;
    if (it->batch)
        count_item(e, it, false);
    unplace(&e->pools[it->pool], it);
    if (queued && to == ITEM_FREE)
        count_wait(e, it);
    item_move(e, it, to);
    if (queued && next) {
        next->turn = it->turn;
        enqueue(e, next);
    }
}

void queue_place(struct encoded *e, struct item *it)
{
    struct epool *p = &e->pools[it->pool];

    if (item_held(it))
        return;
    count_full(it);
    if (it->batch->first->life != ITEM_QUEUED)
        return; /* its batch is still open and not queued */
    place(p, it->batch->first);
    epool_serve(e, p);
}

/* serving */

uint64_t queue_turn(const struct epool *p)
{
    uint64_t turn = TURN_NONE;

    for (int q = 0; q < QUEUES; q++)
        turn = min_u64(turn, heap_due(&p->queues[q]));
    return turn;
}

static struct item *queue_head(const struct epool *p)
{
    struct item *plain = first_of(&p->queues[QUEUE_PLAIN]);
    struct item *ahead = first_of(&p->queues[QUEUE_AHEAD]);
    struct item *firm = queue_firm(p);

    if (firm || !plain || !ahead)
        return firm ? firm : plain ? plain : ahead;
    return plain->in_queue.key < ahead->in_queue.key ? plain : ahead;
}

struct item *queue_firm(const struct epool *p)
{
    return first_of(&p->queues[QUEUE_FIRM]);
}

/* Makes the oldest plain item, which `by` overtakes, ask for its grants ahead
 * of its rows: langd's queue goes by age and will not pass it over. One item
 * asks ahead for each item, or batch, that overtakes: so only as many ask ahead
 * as are served early. */
static void overtake(struct encoded *e, struct epool *p, const struct item *by)
{
    struct item *it = first_of(&p->queues[QUEUE_PLAIN]);

    if (queue_firm(p) != by || !it || it->turn > by->turn)
        return;
    do {
        it->ahead = true;
        item_touch(e, it);
        it = next_in_batch(it);
    } while (it != it->batch->first);
    place(p, it);
}

/* Gives an item its blocks; false: the free blocks are too scattered. */
static bool take(struct encoded *e, struct epool *p, struct item *it)
{
    uint32_t first_run, n = div_up(it->max_rows, p->block_rows);

    CHECK(it->life == ITEM_QUEUED || it->life == ITEM_BATCHED,
        "an item of state %u takes blocks", it->life);
    if (!pool_take(&p->p, &it->src, n, &first_run))
        return false;
    rowmap_clear(&p->committed, &p->p, first_run);
    share_served(&e->b.engines.share, it->turn);
    count_wait(e, it);
    it->moved_ns = e->b.now_ns;
    list_push_tail(&p->held, &it->in_held);
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        m->history.blocks = n;
        m->history.granted_ns = e->b.now_ns;
        if (m != e->announced) /* ANNOUNCED records it */
            happened(&e->b, HAPPENED_SOURCE, &m->r, &m->history, NONE, n, 0);
        if (!m->have)
            m->due |= EVENT_GRANTED;
    }
    item_touch(e, it);
    return true;
}

/* Gives all items of a batch their blocks, as far as the free blocks are not
 * too scattered for one of them. With blocks for the first item alone, the
 * others might no longer be full, and would wait behind other batches. Returns
 * false if none got blocks. */
static bool serve(struct encoded *e, struct epool *p, struct item *first)
{
    uint32_t all = first->batch->items, taken = 0;

    for (struct item *it = first; taken < all && take(e, p, it); taken++) {
        it = next_in_batch(it);
        it->turn = first->turn;
    }
    if (taken == 0)
        return false;
    overtake(e, p, first);
    for (uint32_t i = 1; i < taken; i++)
        queue_leave(e, next_in_batch(first), ITEM_HELD);
    queue_leave(e, first, ITEM_HELD);
    return true;
}

static bool comes_back(const struct item *it)
{
    return it->refs > 0 && it->leaving == it->refs;
}

void queue_refer(
    struct encoded *e, struct item *it, int32_t rooms, int32_t leaving)
{
    struct epool *p = &e->pools[it->pool];

    p->coming -= comes_back(it) ? it->src.blocks : 0;
    it->refs += (uint32_t)rooms;
    it->leaving += (uint32_t)leaving;
    CHECK(it->leaving <= it->refs, "%u of an item's %u rooms are leaving",
        it->leaving, it->refs);
    p->coming += comes_back(it) ? it->src.blocks : 0;
}

/* Ends kept rooms, the one asked for longest ago first, until `blocks` blocks
 * will come back. Blocks that a writer or a copying langd of this host may use
 * do not count: when they come back is not known. */
static void reclaim(struct encoded *e, struct epool *p, uint32_t blocks)
{
    p->lacking = blocks;
    p->stands_ns = min_u64(p->stands_ns, e->b.now_ns);
    LIST_FOREACH_SAFE (n, &p->kept) {
        struct eroom *m = LIST_ENTRY(n, struct eroom, in_kept);

        if (p->coming >= blocks)
            return;
        CHECK(m->life == EROOM_KEPT && !m->leaving,
            "room ..%08x of state %u is on the list of kept rooms",
            (uint32_t)m->r.id, m->life);
        if (m->active > 0)
            continue;
        m->leaving = (m->item->life == ITEM_FINAL || !room_in_use(&m->r)) &&
                     !eroom_read_elsewhere(m);
        queue_refer(e, m->item, 0, m->leaving);
        eroom_unlink(e, m, ERR_GONE);
    }
}

/* Starts the clock when a full item at the head does not fit, once per item. */
static void start_clock(
    const struct encoded *e, struct epool *p, const struct item *head)
{
    if (queue_firm(p) != head) {
        p->head_since_ns = p->revoke_ns = TIME_NEVER;
        return;
    }
    if (p->head_since_ns != TIME_NEVER && p->head_age == head->in_queue.key)
        return;
    p->head_age = head->in_queue.key;
    p->head_since_ns = e->b.now_ns;
    p->revoke_ns = e->b.now_ns + e->b.c.conf->timeout_revoke_after;
}

void epool_serve(struct encoded *e, struct epool *p)
{
    struct item *head;

    while ((head = queue_head(p))) {
        uint32_t n = head->batch->blocks;

        if (n > p->p.free) {
            start_clock(e, p, head);
            reclaim(e, p, n - p->p.free);
            return;
        }
        if (!serve(e, p, head)) { /* freed blocks may join into larger runs */
            reclaim(e, p, p->coming + 1);
            return;
        }
        p->stands_ns = TIME_NEVER;
    }
    p->head_since_ns = p->revoke_ns = p->stands_ns = TIME_NEVER;
    p->lacking = 0;
}

/* rows that no langd has asked for */

void queue_unclaimed(struct encoded *e, struct eroom *m)
{
    struct item *it = m->item;
    bool so = m->life == EROOM_LIVE && item_done(it) && it->src.blocks > 0 &&
              m->served == 0 && list_empty(&m->dsts);

    if (so == list_linked(&m->in_unclaimed))
        return;
    CHECK(so || it->unclaimed > 0, "room ..%08x of state %u is not counted",
        (uint32_t)m->r.id, m->life);
    list_remove(&m->in_unclaimed);
    if (so)
        list_push_tail(&e->pools[it->pool].unclaimed, &m->in_unclaimed);
    m->unclaimed_ns = e->b.now_ns;
    it->unclaimed += so - (uint32_t)!so;
}

uint64_t queue_yield_ns(const struct encoded *e, const struct epool *p)
{
    if (p->coming >= p->lacking || list_empty(&p->unclaimed))
        return TIME_NEVER;
    return LIST_ENTRY(p->unclaimed.next, struct eroom, in_unclaimed)
               ->unclaimed_ns +
           e->b.c.conf->timeout_unclaimed;
}

/* victims */

bool queue_remembers(
    const struct encoded *e, const struct local_announce *n, uint32_t uid)
{
    static const struct key none;

    return memory_get(&e->victims, e->b.now_ns, n->room, uid) ||
           (!key_eq(&n->key, &none) && memory_get(&e->victims, e->b.now_ns,
                                           item_key_hash(&n->key, uid), uid));
}

/* peer.c gives the place back to a destination that has the rows and asks
 * again. */
void queue_counts(const struct encoded *e, struct eroom *m)
{
    const struct tomb *t =
        memory_get(&e->victims, e->b.now_ns, m->r.id, m->item->uid);

    if (!t || !m->item->victim || m->before > 0 || m->required <= m->asked)
        return;
    m->before = min_u32(t->owner, m->required - max_u32(m->asked, 1));
    m->served += m->before;
    m->asked += m->before;
}

void queue_served(struct encoded *e, const struct eroom *m)
{
    struct tomb *t =
        memory_get(&e->victims, e->b.now_ns, m->r.id, m->item->uid);

    if (t)
        t->owner = m->served;
}

void queue_forgets(struct encoded *e, uint64_t room, const struct item *it)
{
    if (!it->victim)
        return;
    memory_forget(&e->victims, room, it->uid);
    if (item_has_key(it))
        memory_forget(&e->victims, item_key_hash(&it->key, it->uid), it->uid);
}
