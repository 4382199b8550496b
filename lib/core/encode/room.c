/* room.c - one room of the encode side, from its announce or first INIT until
 * nothing of it is left (RULES 4, 6, 8, 9). Owned by the loop's thread.
 *
 * A room releases its item when every destination has ended, the shards read
 * none of its rows, no langd of this host may be copying them, and no engine
 * may write them. Until then the rows are quarantined: no timer frees them. */
#include "core/encode/encode.h"

#include <stdio.h>

struct eroom *eroom_new(
    struct encoded *e, uint64_t id, const struct secret *secret, uint64_t who)
{
    uint32_t name = brain_name(&e->b, secret), i;
    struct eroom *m;

    /* Another secret has the same hash: refused as if the table was full. */
    if (table_get(&e->ids, id, name) != NONE ||
        !share_take(&e->share, who, 1)) {
        eroom_give_place(e, STAT_table_full);
        return NULL;
    }
    i = slots_take(&e->room_slots);
    CHECK(i != NONE && table_put(&e->ids, id, name, i),
        "no slot for one of %u rooms", e->rooms_used);
    m = &e->rooms[i];
    memset(m, 0, sizeof(*m));
    room_init(&m->r, id, &e->room_whys[i]);
    m->name = name;
    m->secret = *secret;
    m->who = who;
    m->item = &e->nothing;
    m->bootstrap_ns = m->kept_ns = TIME_NEVER;
    eroom_move(e, m, EROOM_AWAITED);
    list_init(&m->dsts);
    list_init(&m->in_item);
    list_init(&m->in_kept);
    list_init(&m->in_unclaimed);
    m->history.who = who >> 32 ? NONE : who; /* until its announce */
    m->history.opened_ns = e->b.now_ns;
    if (!share_may(&e->share, who, 1))
        eroom_give_place(e, STAT_gave_place);
    return m;
}

/* source blocks */

/* True if no shard reads rows of the room. */
static bool sends_over(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (!edst_ended(d) || d->job != JOB_NONE)
            return false;
    }
    return true;
}

/* Releases the item of an ended room once its rows are neither read nor
 * written. */
static void settle_source(struct encoded *e, struct eroom *m)
{
    if (m->life < EROOM_RELEASING || m->life == EROOM_GONE || !sends_over(m))
        return;
    CHECK(m->item != &e->nothing, "room ..%08x of state %u has no item",
        (uint32_t)m->r.id, m->life);
    if ((m->item->life != ITEM_FINAL && room_in_use(&m->r)) ||
        eroom_read_elsewhere(m)) {
        if (m->life == EROOM_QUARANTINED)
            return;
        if (!eroom_lent(m))
            e->b.stats[STAT_blocks_quarantined] += m->item->src.blocks;
        eroom_move(e, m, EROOM_QUARANTINED);
        return;
    }
    happened(&e->b, HAPPENED_FREED, &m->r, &m->history, NONE,
        m->item->src.blocks, 0);
    item_leave(e, m);
    eroom_move(e, m, EROOM_GONE);
}

/* ends */

/* Fails the other rooms of the item if the room that writes its rows ends
 * before all rows are committed. */
static void spoil(
    struct encoded *e, const struct eroom *writer, enum err reason)
{
    struct item *it = writer->item;

    CHECK(it != &e->nothing, "room ..%08x ends without an item",
        (uint32_t)writer->r.id);
    if (writer->have || item_complete(it))
        return;
    /* The reason of the writer's room need not apply to the others. */
    if (reason != ERR_ENGINE_LOST && reason != ERR_INTERNAL)
        reason = ERR_GONE;
    item_hide(e, it);
    LIST_FOREACH (n, &it->rooms) {
        struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        if (m != writer)
            eroom_fail(e, m, reason, "the room that wrote the rows has ended");
    }
}

void eroom_fail(
    struct encoded *e, struct eroom *m, enum err reason, const char *text)
{
    CHECK(reason != OK && reason < ERR_COUNT, "room ..%08x fails as %u",
        (uint32_t)m->r.id, reason);
    if (eroom_failing(m) || eroom_ended(m))
        return;
    eroom_move(e, m, EROOM_FAILING);
    m->fail_reason = (uint8_t)reason;
    span_copy_str(span_str(text), m->r.text, sizeof(struct why));
    LIST_FOREACH (n, &m->dsts) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->state == DST_ACTIVE)
            edst_fail(e, d, reason, text);
    }
    spoil(e, m, reason);
    eroom_touch(e, m);
}

void eroom_measured(struct encoded *e, struct item *it)
{
    char text[128];

    CHECK(it->total <= it->max_rows, "an item of %u rows has a total of %u",
        it->max_rows, it->total);
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

/* Stops an open room from taking more destinations. */
static void close_room(struct encoded *e, struct eroom *m)
{
    if (m->life == EROOM_LIVE)
        eroom_move(e, m, EROOM_CLOSED);
}

void eroom_withdraw(struct encoded *e, struct eroom *m)
{
    if (eroom_ended(m))
        return;
    if (m->flags & FLAG_OPEN)
        close_room(e, m);
    else
        eroom_fail(e, m, ERR_ABORTED, "released before it was done");
    eroom_touch(e, m);
}

/* Returns for how long the rows stay after the room's end: as the announce
 * asked, or for a langd that restarts and asks again. 0 while items wait for
 * blocks, and after no-blocks: the room is announced again then, and langds
 * that ask again wait for that announce. */
static uint64_t keep_ns(const struct encoded *e, const struct eroom *m)
{
    if (eroom_failing(m) || !item_complete(m->item) || !item_held(m->item) ||
        e->pools[m->item->pool].waiting > 0 || m->r.reason == ERR_NO_BLOCKS)
        return 0;
    if (m->flags & FLAG_KEEP)
        return e->b.c.conf->timeout_keep;
    return m->r.reason == ERR_PEER_LOST ? e->b.c.conf->timeout_linger : 0;
}

static void end(struct encoded *e, struct eroom *m)
{
    bool ok = m->failed == 0 && (m->required ? m->served >= m->required
                                             : m->life == EROOM_CLOSED);
    uint64_t rows = m->served ? (uint64_t)m->served * m->item->total : 0;
    uint64_t keep;

    CHECK(m->active == 0, "room ..%08x ends with %u active destinations",
        (uint32_t)m->r.id, m->active);
    m->bootstrap_ns = TIME_NEVER;
    m->r.state = ok ? ROOM_SUCCESS : ROOM_FAILED;
    m->r.reason = ok ? OK : m->fail_reason;
    m->r.a = m->served;
    m->r.b = m->failed;
    e->b.stats[ok ? STAT_rooms_succeeded : STAT_rooms_failed]++;
    e->b.stats[STAT_rows_moved] += rows;
    m->history.bytes = rows * eroom_pool(e, m)->meta->layout.row_bytes;
    e->b.stats[STAT_bytes_moved] += m->history.bytes;
    m->history.total = m->item->total;
    if (m->item->committed > 0)
        m->history.committed_ns =
            max_u64(m->item->moved_ns, m->history.opened_ns);
    m->history.served = m->served;
    m->history.failed = m->failed;
    head_record(&e->b, &m->r, &m->history, "");
    if (ok && m->served)
        histograms_bytes(&e->b.histograms[m->item->pool], HISTOGRAM_room_size,
            (uint64_t)m->item->total *
                eroom_pool(e, m)->meta->layout.row_bytes);
    if (ok)
        queue_forgets(e, m->r.id, m->item);
    else /* a victim: count the destinations served since then, too */
        queue_served(e, m);
    spoil(e, m, m->fail_reason ? m->fail_reason : ERR_GONE);
    keep = keep_ns(e, m);
    if (keep > 0) {
        m->kept_ns = e->b.now_ns + keep;
        eroom_move(e, m, EROOM_KEPT);
    } else {
        /* After no-blocks the room is announced again; an INIT may come
         * first. */
        eroom_unlink(e, m,
            m->r.reason == ERR_NO_BLOCKS ? ERR_NO_BLOCKS : ERR_UNKNOWN_ROOM);
    }
}

bool eroom_complete(const struct eroom *m)
{
    if (!eroom_running(m) || m->active > 0)
        return false;
    if (eroom_failing(m))
        return true;
    if (m->flags & FLAG_OPEN)
        return m->life == EROOM_CLOSED;
    return m->required > 0 && m->served + m->failed >= m->required;
}

/* settling */

static void show(struct encoded *e, struct out *out, struct eroom *m)
{
    uint16_t known = m->asked > 0 ? EVENT_WANTED : 0, news = m->due;
    bool ended = eroom_ended(m);

    if (!ended && m->have)
        known |= EVENT_HAVE;
    else if (!ended && item_held(m->item))
        known |= EVENT_GRANTED;
    m->due = 0;
    if (m->item != &e->nothing)
        m->r.rows_shown = m->item->committed;
    room_show(&e->b.engines, out, &m->r, known, news);
}

static void forget(struct encoded *e, struct eroom *m)
{
    CHECK(list_empty(&m->dsts) && m->reserved == 0 && m->item == &e->nothing,
        "room ..%08x is forgotten with %u destinations, %u places and %u "
        "blocks",
        (uint32_t)m->r.id, m->active, m->reserved, m->item->src.blocks);
    eroom_move(e, m, EROOM_FREE);
    heap_remove(&e->room_timers, &m->timer);
    room_orphan(&m->r);
    m->r.used = false;
    slots_give(&e->room_slots, (uint32_t)(m - e->rooms));
    share_give(&e->share, m->who, 1);
}

/* True if destinations wait for rows that another room has still to write. */
static bool waits_for_rows(const struct eroom *m)
{
    return m->have && m->asked > 0 && !item_complete(m->item);
}

/* True once all required destinations have asked. Refused ones do not count. An
 * open room waits for more destinations until its deadline. */
static bool asked_by_all(const struct eroom *m)
{
    if (!eroom_announced(m) || (m->flags & FLAG_OPEN) || waits_for_rows(m))
        return false;
    return m->asked >= (m->required ? m->required : 1);
}

static void arm(struct encoded *e, struct eroom *m)
{
    uint64_t at =
        min_u64(asked_by_all(m) ? TIME_NEVER : m->bootstrap_ns, m->kept_ns);

    if (at == TIME_NEVER)
        heap_remove(&e->room_timers, &m->timer);
    else if (!heap_linked(&m->timer) || m->timer.key != at)
        heap_set(&e->room_timers, &m->timer, at);
}

/* True if the room has ended and its engine was told everything. Its blocks and
 * its record may still be there. */
static bool told_all(const struct encoded *e, const struct eroom *m)
{
    return m->life >= EROOM_RELEASING && m->r.told_state == m->r.state &&
           !m->r.joined && !m->due && m->reserved == 0 &&
           (m->item == &e->nothing || m->r.rows_shown == m->item->committed);
}

static void settle_life(struct encoded *e, struct eroom *m)
{
    uint8_t state = ROOM_BOOTSTRAPPING;

    if (eroom_complete(m))
        end(e, m);
    edst_reserve(e, m);
    if (m->life == EROOM_KEPT && m->active == 0)
        epool_serve(e, eroom_pool(e, m)); /* its blocks may be reclaimed now */
    if (m->life == EROOM_EXPIRED && m->active == 0)
        eroom_unlink(e, m, ERR_UNKNOWN_ROOM);
    if (eroom_running(m)) {
        if (item_held(m->item) && m->asked > 0)
            state = m->history.first_ns ? ROOM_TRANSFERRING : ROOM_WAITING;
        if (state > m->r.state)
            m->r.state = state;
    }
    queue_unclaimed(e, m);
}

void eroom_settle(struct encoded *e, struct out *out, struct eroom *m)
{
    bool told = told_all(e, m);
    struct item *it = m->item;

    CHECK(m->life != EROOM_FREE && !list_linked(&m->r.todo),
        "room ..%08x of state %u is settled", (uint32_t)m->r.id, m->life);
    if (!told)
        settle_life(e, m);
    settle_source(e, m);
    /* After it has left: an item that no room has takes no blocks. */
    if (!told && it->life != ITEM_FREE)
        queue_place(e, it);
    if (!told)
        show(e, out, m);
    list_remove(&m->r.todo); /* its own moves touched it */
    if (list_empty(&m->dsts) && list_empty(&m->r.attachments) &&
        (m->life == EROOM_AWAITED || m->life == EROOM_GONE))
        forget(e, m);
    else if (!told)
        arm(e, m);
}

void eroom_let_go(struct encoded *e, struct eroom *m)
{
    CHECK(m->life == EROOM_KEPT, "room ..%08x of state %u is kept no longer",
        (uint32_t)m->r.id, m->life);
    if (m->active == 0)
        eroom_unlink(e, m, ERR_GONE);
    else
        eroom_move(e, m, EROOM_EXPIRED);
    eroom_touch(e, m);
}

void eroom_expired(struct encoded *e, struct eroom *m)
{
    CHECK(!heap_linked(&m->timer), "room ..%08x has expired and waits for %llu",
        (uint32_t)m->r.id, (unsigned long long)m->timer.key);
    if (m->bootstrap_ns <= e->b.now_ns && !asked_by_all(m)) {
        m->bootstrap_ns = TIME_NEVER;
        e->b.stats[STAT_deadlines]++;
        if (waits_for_rows(m)) { /* the next room with the key writes the
                                    rows */
            item_hide(e, m->item);
            eroom_fail(e, m, ERR_GONE, "another room has not written the rows");
        } else if (m->flags & FLAG_OPEN && m->asked > 0)
            close_room(e, m);
        else
            eroom_fail(e, m, ERR_TIMEOUT,
                !item_held(m->item)
                    ? "no source blocks came in time, and no destination asked"
                    : "no destination asked in time");
    }
    if (m->kept_ns <= e->b.now_ns)
        eroom_let_go(e, m);
    eroom_touch(e, m);
}
