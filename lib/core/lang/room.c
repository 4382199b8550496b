/* room.c - one room of the language side, from REQUEST until nothing of it is
 * left (RULES 4, 6, 8). Owned by the loop's thread.
 *
 * Only lroom_settle applies what follows from changes, and only lroom_notify
 * sends it. Both may be called at any time and do nothing if nothing changed.
 * The queues are served between the two, so that the first message about the
 * room already has its grant.
 *
 * Rejected: an event table with a row per (state, event). Most events only
 * change a number, and what follows depends on all the other numbers. */
#include "core/lang/lang.h"

#include <stdio.h>

#define LATE_TEXT (TROUBLE_SAID + 80)

struct lroom *lroom_new(struct langd *l, uint64_t id, uint32_t peer,
    const struct secret *secret, uint32_t uid)
{
    uint32_t scope = lroom_scope(l, peer, secret), slot;
    struct lroom *m;

    if (!share_take(&l->share, uid, 1)) {
        l->b.stats[STAT_table_full]++;
        return NULL;
    }
    slot = slots_take(&l->slots);
    CHECK(slot != NONE && table_put(&l->keys, id, scope, slot),
        "no slot for one of %u rooms", l->rooms_used);
    m = &l->rooms[slot];
    CHECK(m->life == LIFE_FORGOTTEN, "slot %u has room ..%08x, life %u", slot,
        (uint32_t)m->r.id, m->life);
    memset(m, 0, sizeof(*m));
    room_init(&m->r, id, &l->whys[slot]);
    lroom_move(m, LIFE_REQUESTED);
    m->peer = peer;
    m->scope = scope;
    m->secret = *secret;
    m->uid = uid;
    list_init(&m->in_peer);
    list_init(&m->tickets);
    list_init(&m->in_group);
    list_init(&m->in_drawing);
    list_init(&m->in_settled);
    if (peer != NONE)
        list_push_tail(&l->b.peers.peers[peer].rooms, &m->in_peer);
    m->generation =
        l->generation_base + l->generation_count++ * l->rooms_max + slot;
    m->total = m->max_rows = ROWS_UNKNOWN;
    m->held = m->closing = extent_none();
    m->debt.retry_ns = m->stall_ns = m->consumer_ns = m->outage_ns = TIME_NEVER;
    m->bootstrap_ns = m->total_ns = m->forget_ns = m->answer_ns = TIME_NEVER;
    m->history.who = uid;
    m->history.generation = m->generation;
    m->history.opened_ns = l->b.now_ns;
    l->rooms_used++;
    l->open++;
    l->b.stats[STAT_rooms_opened]++;
    return m;
}

/* ends */

/* Adds the ended room to its pool's histograms. */
static void count(struct langd *l, struct lroom *m)
{
    struct histograms *h = &l->b.histograms[m->pool];

    grant_clock(l, m, false);
    histograms_time(h, HISTOGRAM_destination_wait, m->waited_ns);
    if (m->r.state != ROOM_SUCCESS)
        return;
    histograms_time(
        h, HISTOGRAM_request_to_ready, l->b.now_ns - m->history.opened_ns);
    histograms_bytes(h, HISTOGRAM_room_size, m->history.bytes);
}

/* Adds the room to the history of ended ones. */
static void record(struct langd *l, struct lroom *m)
{
    const struct peer *p = lroom_peer(l, m);
    struct history *h = &m->history;

    h->total = m->total;
    h->attempts = m->attempt + 1;
    h->blocks = m->held.blocks;
    h->bytes = (uint64_t)(m->from + m->landed) *
               l->pools[m->pool].meta->layout.row_bytes;
    room_counts(&l->b.engines, &m->r, h->bytes);
    head_record(&l->b, &m->r, h, p ? p->label : "null");
    if (m->peer != NONE)
        count(l, m);
}

/* Puts the room into a final state: its deadlines stop, and a new request may
 * use its key. */
static void finish(struct langd *l, struct lroom *m, enum room_state state)
{
    CHECK(lroom_alive(m) && l->open > 0,
        "room ..%08x ends twice, state %u of %u", (uint32_t)m->r.id, m->r.state,
        l->open);
    m->r.state = (uint8_t)state;
    if (m->life == LIFE_REQUESTED)
        lroom_move(m, LIFE_QUARANTINED);
    (void)tomb_put(&l->tombs, l->b.now_ns, m->generation, 0, m->uid, m->r.state,
        m->r.reason);
    m->bootstrap_ns = m->total_ns = m->stall_ns = m->outage_ns = TIME_NEVER;
    m->answer_ns = TIME_NEVER; /* an ACK or ABORT follows and says more */
    m->want = false;
    debt_paid(&m->debt, OWE_GRANT | OWE_AUX);
    laux_leave(l, m);
    group_leave(l, m);
    l->open--;
    record(l, m);
    lroom_touch(l, m);
}

/* Owes the encoder an ABORT, also for a room whose INIT was not sent: the item
 * has one destination less. An encoder that is not up and not in the
 * configuration gets no ABORT, so its entry is free at once. An unreachable
 * encoder gets none either: its engines ask again, and an ABORT that came first
 * would end the new room. */
static void owe_abort(struct langd *l, struct lroom *m)
{
    const struct peer *p = lroom_peer(l, m);

    if (!p || (m->init == INIT_DUE && !peer_up(p) &&
                  (!p->l.configured || p->life == PEER_UNREACHABLE)))
        return;
    m->debt.owe |= OWE_ABORT;
    if (m->init == INIT_DUE && !peer_up(p))
        m->forget_ns = l->b.now_ns + GIVE_UP_NS;
}

void lroom_fail(struct langd *l, struct lroom *m, enum err reason, uint32_t a,
    uint32_t b, const char *text)
{
    CHECK_ROOM(m);
    if (!lroom_alive(m))
        return;
    m->r.reason = (uint8_t)reason;
    m->r.a = a;
    m->r.b = b;
    span_copy_str(span_str(text), m->r.text, sizeof(struct why));
    l->b.stats[STAT_rooms_failed]++;
    m->debt.retry_ns = 0;
    owe_abort(l, m);
    tickets_room_failed(&l->tickets, &m->tickets, reason);
    finish(l, m, ROOM_FAILED);
    laux_drop(l, m);
}

/* Fails all members. The end of the last one may free the group. */
static void fail_group(struct langd *l, struct lgroup *g, enum err reason,
    uint32_t a, uint32_t b, const char *text)
{
    LIST_FOREACH_SAFE (n, &g->members)
        lroom_fail(
            l, LIST_ENTRY(n, struct lroom, in_group), reason, a, b, text);
}

void lroom_place_lost(struct langd *l, struct lgroup *g)
{
    g->lost = true;
    fail_group(l, g, ERR_NO_BLOCKS, 0, 0,
        "a room of the group lost its place at its encoder");
}

void lroom_check_group(struct langd *l, struct lroom *m)
{
    const struct lpool *p = lroom_pool(l, m);
    struct lgroup *g = m->group;

    grant_count(l, m, true);
    if (g && g->gone + g->sums[OF_LEAST] > p->cap_whole)
        fail_group(l, g, ERR_TOO_LARGE,
            (uint32_t)min_u64(
                (uint64_t)g->gone * p->block_rows + g->sums[OF_ROWS],
                UINT32_MAX - 1),
            p->cap_whole * p->block_rows,
            "the group is larger than the pool lets its rooms hold");
    if (g && m->group && g->sums[OF_AUX] > l->b.aux.share.limit)
        fail_group(l, g, ERR_TOO_LARGE,
            (uint32_t)min_u64(g->sums[OF_AUX] * AUX_CHUNK, UINT32_MAX),
            l->b.aux.share.limit * AUX_CHUNK,
            "the group has more aux than limits.aux_total");
}

/* Makes the room READY: all rows and the aux are there. */
static void succeed(struct langd *l, struct lroom *m)
{
    uint64_t bytes =
        (uint64_t)m->total * l->pools[m->pool].meta->layout.row_bytes;

    CHECK(m->total <= m->granted || m->lent,
        "room ..%08x has blocks for %u of %u rows", (uint32_t)m->r.id,
        m->granted, m->total);
    m->r.rows_shown = m->exposed = m->prefix = m->total;
    l->b.stats[STAT_rooms_succeeded]++;
    l->b.stats[STAT_rows_moved] += m->total;
    l->b.stats[STAT_bytes_moved] += bytes;
    if (m->peer != NONE) {
        debt_owe(&m->debt, OWE_ACK);
        peer_moved(&l->b.peers.peers[m->peer], m->total,
            &l->pools[m->pool].meta->layout);
    }
    m->consumer_ns = l->b.now_ns + l->b.c.conf->timeout_consumer;
    finish(l, m, ROOM_SUCCESS);
}

/* rows that land, and blocks that are freed */

void lroom_landed(
    struct langd *l, struct lroom *m, uint32_t first, uint32_t rows)
{
    struct lpool *p = lroom_pool(l, m);

    if (first < m->from || first > m->granted || rows > m->granted - first ||
        (m->total != ROWS_UNKNOWN && first + rows > m->total)) {
        lroom_fail(l, m, ERR_MALFORMED, first, rows,
            "rows beyond the total were sent");
        return;
    }
    CHECK(lroom_open(m) && lroom_alive(m), "rows land in room ..%08x, life %u",
        (uint32_t)m->r.id, m->life);
    m->init = INIT_CONFIRMED; /* its encoder has sent rows of it */
    if (!m->history.first_ns)
        m->history.first_ns = l->b.now_ns;
    if (happening_due(m->landed, m->landed + rows) ||
        m->landed + rows == m->total)
        happened(&l->b, HAPPENED_LANDED, &m->r, &m->history, m->peer,
            m->landed + rows, m->total);
    m->landed += rows;
    /* A segment that ends inside a unit ends the item; LENGTH may be late. */
    if (m->total == ROWS_UNKNOWN && (first + rows) % p->unit_rows != 0)
        m->total = first + rows;
    m->prefix = rowmap_add(
        &p->landed, &p->p, &m->held, m->base, m->prefix, first, rows);
    /* The landed map counts a short last unit as whole. */
    m->highest = max_u32(m->highest, first + rows);
    if (m->peer != NONE)
        l->b.peers.peers[m->peer].pair.worked = true;
    m->prefix = min_u32(m->prefix, m->highest);
    if (m->stall_ns != TIME_NEVER)
        m->stall_ns = l->b.now_ns + l->b.c.conf->timeout_progress;
    m->outage_ns = TIME_NEVER;
    lroom_touch(l, m);
}

void lroom_quiet(struct langd *l, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);

    CHECK(lroom_closing(m) && m->closing_left > 0,
        "room ..%08x is not closing: life %u, %u shards left",
        (uint32_t)m->r.id, m->life, m->closing_left);
    if (--m->closing_left > 0)
        return;
    lroom_move(m, m->life == LIFE_TRIMMING ? LIFE_GRANTED
                  : lroom_alive(m)         ? LIFE_REQUESTED
                                           : LIFE_QUARANTINED);
    CHECK(p->closing_blocks >= m->closing.blocks, "%u of %u blocks are closed",
        m->closing.blocks, p->closing_blocks);
    p->closing_blocks -= m->closing.blocks;
    pool_give(&p->p, &m->closing);
    p->dirty = true;
    if (m->debt.owe & OWE_ABORT)
        m->debt.retry_ns = 0;
    lroom_touch(l, m);
}

/* Frees the blocks below the released prefix. A stream takes new ones, up to
 * its promise; while shards close it can take none, and keeps all. */
static void released(struct langd *l, struct out *out, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    uint32_t blocks = (m->released - m->base) / p->block_rows;
    struct data_cmd cmd = {.type = LAND_BASE,
        .slot = lroom_slot(l, m),
        .generation = m->generation};
    struct extent rest;
    uint32_t short_of;

    CHECK(m->released <= m->exposed, "room ..%08x: %u rows released, %u shown",
        (uint32_t)m->r.id, m->released, m->exposed);
    if (m->released < m->base || blocks == 0 || blocks > m->held.blocks ||
        lroom_closing(m))
        return;
    rest = pool_split(&p->p, &m->held, blocks);
    m->base += blocks * p->block_rows;
    cmd.a = m->base;
    if (lroom_open(m))
        out_data(out, &cmd);
    pool_give(&p->p, &m->held);
    m->held = rest;
    p->dirty = true;
    /* This is before the queues are served, so the free blocks are those that
     * were just freed. */
    short_of = m->mode == MODE_STREAM ? p->hold_stream : 0;
    short_of -= min_u32(short_of, m->held.blocks);
    short_of = min_u32(short_of, grant_wanted(l, m));
    if (short_of > 0 && !grant_take_own(l, out, m, short_of, GRADE_FIRM))
        l->b.stats[STAT_table_full]++;
    lroom_touch(l, m);
}

void lroom_readers(struct langd *l, struct out *out, struct lroom *m)
{
    uint32_t readers = m->readers_done, least = NONE;

    LIST_FOREACH (n, &m->r.attachments) {
        const struct attachment *att =
            LIST_ENTRY(n, struct attachment, in_room);

        if (!(att->rights & RIGHT_READ))
            continue;
        readers += !att->owner;
        least = min_u32(least, att->released);
    }
    if (least == NONE || readers < m->readers || least <= m->released)
        return;
    m->released = least;
    released(l, out, m);
}

/* Takes back what a stream's readers have released, and shows what has landed
 * in order once the stream holds its promised blocks. */
static void expose(struct langd *l, struct out *out, struct lroom *m)
{
    const struct lpool *p = lroom_pool(l, m);
    uint32_t rest;

    if (m->mode != MODE_STREAM)
        return;
    released(l, out, m); /* while the shards closed */
    if (m->prefix <= m->exposed)
        return;
    rest = div_up(min_u32(m->total, m->max_rows) - m->base, p->block_rows);
    if (m->held.blocks < min_u32(rest, p->hold_stream))
        return;
    CHECK(m->prefix <= m->granted, "room ..%08x shows %u rows of %u",
        (uint32_t)m->r.id, m->prefix, m->granted);
    m->exposed = m->r.rows_shown = m->prefix;
    room_notify(&l->b.engines, out, &m->r, EVENT_LANDED);
}

/* settling */

/* Runs the progress clock while rows are due; stops it otherwise and while
 * shards are closing. */
static void run_stall_clock(struct langd *l, struct lroom *m)
{
    uint32_t ready = min_u32(m->granted, m->committed);
    bool due;

    if (ready < m->total)
        ready -= ready % lroom_pool(l, m)->unit_rows;
    due = lroom_alive(m) && m->held.blocks > 0 && m->from + m->landed < ready;
    if (!due)
        m->outage_ns = TIME_NEVER;
    if (!due || lroom_closing(m))
        m->stall_ns = TIME_NEVER;
    else if (m->stall_ns == TIME_NEVER)
        m->stall_ns = l->b.now_ns + l->b.c.conf->timeout_progress;
}

/* Fails a stream that has neither owner nor readers: nothing would ever be
 * released. */
static void end_unread(struct langd *l, struct lroom *m)
{
    if (m->mode != MODE_STREAM || !m->owner_done ||
        m->readers_done < m->readers)
        return;
    LIST_FOREACH (n, &m->r.attachments)
        if (LIST_ENTRY(n, struct attachment, in_room)->rights & RIGHT_READ)
            return;
    lroom_fail(l, m, ERR_ENGINE_LOST, 0, 0,
        "the requesting engine is gone, and no other reads");
}

/* Appends to text the cause of an encoder's silence: its daemon is not
 * connected, or drains and has not taken the room. */
static const char *late(const struct langd *l, const struct lroom *m,
    const char *text, char out[LATE_TEXT])
{
    const struct peer *p = lroom_peer(l, m);
    char why[TROUBLE_SAID];

    if (!p || p->life == PEER_UP ||
        (p->life == PEER_DRAINING && m->init == INIT_CONFIRMED))
        return text;
    snprintf(out, LATE_TEXT, "%s; the encoder %s", text,
        peer_up(p)        ? "drains"
        : p->trouble.kind ? peer_trouble_text(p, why)
        : p->epoch        ? "is away"
                          : "was never reached");
    return out;
}

void lroom_lost(struct langd *l, struct lroom *m, const char *text)
{
    const struct peer *p = lroom_peer(l, m);
    bool known = p && trouble_of_data((enum trouble)p->trouble.kind);
    char why[TROUBLE_SAID];

    lroom_fail(l, m, ERR_PEER_LOST, m->broken, 0,
        known ? peer_trouble_text(p, why) : text);
}

/* Fails a room whose encoder cannot reach our data addresses, which are of
 * loopback only, or is unreachable and got no INIT (RULES 8.4). */
static void end_apart(struct langd *l, struct lroom *m)
{
    const struct peer *p = lroom_peer(l, m);
    char text[TROUBLE_SAID], why[LATE_TEXT];

    if (p && peer_up(p) && p->trouble.kind == TROUBLE_DATA_LOOPBACK)
        lroom_fail(l, m, ERR_PEER_LOST, 0, 0, peer_trouble_text(p, text));
    else if (p && p->life == PEER_UNREACHABLE && m->init == INIT_DUE)
        lroom_fail(l, m, ERR_PEER_LOST, 0, 0,
            late(l, m, "the encoder daemon cannot be reached", why));
}

static void settle_alive(struct langd *l, struct out *out, struct lroom *m)
{
    uint8_t state = ROOM_BOOTSTRAPPING;

    lroom_take_lent(l, m);
    if (m->life == LIFE_REQUESTED && m->held.blocks > 0)
        grant_open(l, out, m);
    if (m->total != ROWS_UNKNOWN) {
        if (!m->total_sent && lroom_open(m)) {
            struct data_cmd cmd = {.type = LAND_TOTAL,
                .slot = lroom_slot(l, m),
                .generation = m->generation,
                .total = m->total};

            out_data(out, &cmd);
            m->total_sent = true;
        }
        group_trimmed(l, m, grant_trim(l, out, m));
    }
    expose(l, out, m);
    if (m->length_known)
        state = m->from + m->landed > 0 ? ROOM_TRANSFERRING : ROOM_WAITING;
    if (state > m->r.state)
        m->r.state = state;
    /* Rows of the next attempt cannot land before the last one is closed. */
    if (m->life != LIFE_CLOSING && m->pause_ns <= l->b.now_ns &&
        (m->init == INIT_DUE || m->sent_attempt != m->attempt ||
            m->sent_granted != m->granted ||
            m->sent_firm != grant_firmness(l, m))) {
        debt_owe(&m->debt, OWE_GRANT);
    }
}

/* True if the owner and all announced readers have released the room. */
static bool read_by_all(const struct lroom *m)
{
    return m->owner_done && m->readers_done >= m->readers;
}

/* Closes an ended room at the shards, and frees its blocks when no row of it
 * lands and no engine reads it. */
static void settle_ended(struct langd *l, struct out *out, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    bool failed = m->r.state == ROOM_FAILED;

    if (failed && m->r.told_state != ROOM_FAILED && room_in_use(&m->r))
        l->b.stats[STAT_blocks_quarantined] += m->held.blocks;
    if (failed && m->life == LIFE_GRANTED)
        grant_close(l, out, m, true);
    if (lroom_closing(m) || room_in_use(&m->r) || (!failed && !read_by_all(m)))
        return;
    if (m->life == LIFE_GRANTED) {
        /* All rows have landed. A single shard executes commands in order, so
         * it need not answer before another room gets the blocks. */
        grant_close(l, out, m, l->b.c.shards > 1);
        if (m->life == LIFE_CLOSING)
            return;
    }
    if (m->held.blocks > 0) {
        pool_give(&p->p, &m->held);
        p->dirty = true;
    }
    m->consumer_ns = TIME_NEVER;
    laux_drop(l, m);
    if (m->lent_runs.len > 0)
        lroom_lent_over(l, m);
    if (m->life != LIFE_QUARANTINED)
        return;
    happened(
        &l->b, HAPPENED_FREED, &m->r, &m->history, NONE, m->history.blocks, 0);
    lroom_move(m, LIFE_OWED);
}

/* True if nothing of the room is left. */
static bool over(const struct lroom *m)
{
    return m->life == LIFE_OWED && !m->debt.owe &&
           list_empty(&m->r.attachments);
}

void lroom_no_readers(struct langd *l, struct lroom *m)
{
    uint32_t readers = m->readers_done;

    LIST_FOREACH (n, &m->r.attachments) {
        const struct attachment *att =
            LIST_ENTRY(n, struct attachment, in_room);

        readers += !att->owner && (att->rights & RIGHT_READ);
    }
    m->no_readers = true;
    if (m->readers > readers) {
        CHECK(m->readers - readers < ROOM_ATTACHMENTS_MAX,
            "room ..%08x waits for %u of %u readers", (uint32_t)m->r.id,
            m->readers - readers, m->readers);
        m->missing = (uint8_t)(m->readers - readers);
        m->readers = (uint16_t)readers;
    }
    lroom_touch(l, m);
}

/* Frees the room's key. Announced readers that attach later get gone. */
static void unlink_room(struct langd *l, struct lroom *m)
{
    if (table_get(&l->keys, m->r.id, m->scope) != lroom_slot(l, m))
        return;
    table_remove(&l->keys, m->r.id, m->scope);
    if (m->missing == 0 || m->r.state != ROOM_SUCCESS)
        return;
    tomb_put(
        &l->left, l->b.now_ns, m->r.id, m->scope, m->uid, m->missing, ERR_GONE)
        ->owner = m->r.session;
}

/* Frees the slot of a room that is over. */
static void forget(struct langd *l, struct lroom *m)
{
    CHECK(list_empty(&m->r.attachments) && !list_linked(&m->in_settled),
        "room ..%08x is forgotten with %u attachments", (uint32_t)m->r.id,
        m->r.attachments_count);
    unlink_room(l, m);
    admit_leave(l, m);
    laux_drop(l, m);
    heap_remove(&l->timers, &m->timer);
    while (list_pop(&m->tickets)) /* the tickets go on without the room */
        ;
    list_remove(&m->in_peer);
    l->leave_due |= l->leaving > 0;
    list_remove(&m->r.todo);
    room_orphan(&m->r);
    m->r.used = false;
    lroom_move(m, LIFE_FORGOTTEN);
    slots_give(&l->slots, lroom_slot(l, m));
    l->rooms_used--;
    share_give(&l->share, m->uid, 1);
}

void lroom_unplaced(struct langd *l, struct lroom *m)
{
    CHECK(m->init == INIT_DUE,
        "room ..%08x is taken from an encoder that has it", (uint32_t)m->r.id);
    lroom_fail(l, m, ERR_PEER_LOST, 0, 0,
        "the encoder has not answered, and others were asked for");
    unlink_room(l, m);
    list_remove(&m->in_peer);
    m->peer = NONE;
    m->debt.owe = 0;
    lroom_touch(l, m);
}

void lroom_paid(struct langd *l, struct lroom *m)
{
    CHECK_ROOM(m);
    if (list_linked(&m->r.todo) || list_linked(&m->in_settled) || !over(m))
        lroom_touch(l, m);
    else
        forget(l, m);
}

/* Sets the room's timer to the earliest of its deadlines. */
static void arm(struct langd *l, struct lroom *m)
{
    uint64_t at = debt_deadline(&m->debt);

    at = min_u64(at, min_u64(m->bootstrap_ns, m->total_ns));
    at = min_u64(at, min_u64(m->stall_ns, m->consumer_ns));
    at = min_u64(at, min_u64(m->forget_ns, m->outage_ns));
    at = min_u64(at, m->answer_ns);
    if (lroom_alive(m) && m->pause_ns > l->b.now_ns)
        at = min_u64(at, m->pause_ns);
    if (at == TIME_NEVER)
        heap_remove(&l->timers, &m->timer);
    else if (!heap_linked(&m->timer) || m->timer.key != at)
        heap_set(&l->timers, &m->timer, at);
}

/* Returns the events that are true of the room, except its end. */
static uint16_t known(const struct lroom *m)
{
    uint16_t what = m->exposed > 0 ? EVENT_LANDED : 0;

    if (m->length_known && m->aux_state != LAUX_LACKING)
        what |= EVENT_LENGTH;
    return what;
}

void lroom_settle(struct langd *l, struct out *out, struct lroom *m)
{
    CHECK_ROOM(m);
    list_remove(&m->r.todo);
    lroom_readers(l, out, m); /* the slowest reader may have detached */
    if (lroom_alive(m))
        end_unread(l, m);
    if (lroom_alive(m))
        end_apart(l, m);
    if (lroom_alive(m))
        settle_alive(l, out, m);
    if (lroom_alive(m) && m->aux_state == LAUX_STORED &&
        m->total != ROWS_UNKNOWN && m->from + m->landed >= m->total)
        succeed(l, m);
    if (!lroom_alive(m))
        settle_ended(l, out, m);
    admit_sort(l, m);
    list_remove(&m->r.todo); /* the calls above put it there again */
    if (!list_linked(&m->in_settled))
        list_push_tail(&l->settled, &m->in_settled);
}

void lroom_notify(struct langd *l, struct out *out, struct lroom *m)
{
    CHECK_ROOM(m);
    CHECK(!list_linked(&m->r.todo),
        "room ..%08x is notified of before it settles", (uint32_t)m->r.id);
    room_show(&l->b.engines, out, &m->r, known(m), 0);
    run_stall_clock(l, m);
    say_room(l, out, m);
    if (over(m))
        forget(l, m);
    else
        arm(l, m);
}

/* Fails a room whose total time has passed, with what it lacked (RULES 8.2). */
static void fail_late(struct langd *l, struct lroom *m)
{
    uint32_t wanted = grant_wanted(l, m), rows = m->from + m->landed;
    char text[LATE_TEXT], now[LATE_TEXT];

    if (lroom_lacks_aux(m)) {
        snprintf(text, sizeof(text),
            "its aux of %u bytes found no space in time: limits.aux_total is "
            "%llu",
            m->aux_len, (unsigned long long)l->b.c.conf->limit_aux_total);
        lroom_fail(l, m, ERR_NO_BLOCKS, m->aux_len,
            (uint32_t)l->b.c.conf->limit_aux_total, text);
        return;
    }
    snprintf(text, sizeof(text), "the room's total time expired");
    if (m->length_known && m->group && !lgroup_known(m->group))
        snprintf(text, sizeof(text),
            "another room of its group was not announced in time");
    else if (wanted > 0 && (m->group || m->want))
        snprintf(text, sizeof(text),
            "it got none of the %u blocks that it waited for in pool %.63s",
            wanted, lroom_pool(l, m)->meta->conf->name);
    lroom_fail(l, m, ERR_TIMEOUT, rows, m->total, late(l, m, text, now));
}

void lroom_expired(struct langd *l, struct lroom *m)
{
    char text[LATE_TEXT];
    uint64_t now = l->b.now_ns;

    CHECK_ROOM(m);
    if (lroom_alive(m)) {
        enum err e = ERR_TIMEOUT;

        if (m->total_ns <= now || m->bootstrap_ns <= now ||
            m->stall_ns <= now || m->outage_ns <= now)
            l->b.stats[STAT_deadlines]++;
        if (m->bootstrap_ns <= now)
            lroom_fail(
                l, m, e, 0, 0, late(l, m, "no announce came in time", text));
        else if (m->total_ns <= now)
            fail_late(l, m);
        else if (m->outage_ns <= now)
            lroom_lost(l, m, "the data endpoint is lost, and rows cannot come");
        else if (m->stall_ns <= now)
            lroom_fail(l, m, e, m->from + m->landed, m->granted,
                "rows are ready, but none arrived");
    }
    if (m->forget_ns <= now) {
        m->forget_ns = TIME_NEVER;
        m->debt.owe = 0;
    }
    if (m->consumer_ns <= now) {
        /* Attached readers keep the rows. The deadline is counted, and ends the
         * wait for readers that have not attached (RULES 7.2). */
        l->b.stats[STAT_consumer_overdue]++;
        m->consumer_ns = TIME_NEVER;
        lroom_no_readers(l, m);
    }
    lroom_touch(l, m);
}
