/* encoded_room.c - one item of the encode side: its source blocks, and when it
 * is over (RULES 4, 6, 8, 9). Owned by the loop's thread.
 *
 * Source blocks are given back when every destination has ended, no send of
 * ours reads them, and nobody may write them any more. Until then they are
 * quarantined: no timer frees them. */
#include "core/encoded.h"

#include <stdio.h>

struct eroom *eroom_new(struct encoded *e, uint64_t id)
{
    uint32_t i = e->rooms_free;
    struct eroom *m;

    if (i == NONE || !table_put(&e->ids, id, 0, i)) {
        e->stats[STAT_table_full]++;
        return NULL;
    }
    m = &e->rooms[i];
    e->rooms_free = m->free_next;
    e->rooms_used++;
    memset(m, 0, sizeof(*m));
    room_init(&m->r, id);
    m->linked = true;
    m->src = extent_none();
    m->total = ROWS_UNKNOWN;
    m->bootstrap_ns = m->linger_ns = TIME_NEVER;
    m->shown_state = UINT8_MAX;
    list_init(&m->dsts);
    list_init(&m->in_fifo);
    m->history.room = id;
    m->history.opened_ns = e->now_ns;
    return m;
}

struct eroom *eroom_find(const struct encoded *e, uint64_t id)
{
    uint32_t i = table_get(&e->ids, id, 0);

    return i == NONE ? NULL : &e->rooms[i];
}

void eroom_touch(struct encoded *e, struct eroom *m)
{
    if (!list_linked(&m->r.todo))
        list_push_tail(&e->room_todo, &m->r.todo);
}

static void stop_linger(struct encoded *e, struct eroom *m)
{
    e->lingering -= m->linger_ns != TIME_NEVER;
    m->linger_ns = TIME_NEVER;
}

void eroom_unlink(struct encoded *e, struct eroom *m)
{
    if (m->linked)
        table_remove(&e->ids, m->r.id, 0);
    m->linked = false;
    stop_linger(e, m);
    eroom_touch(e, m);
}

uint32_t eroom_sendable(const struct eroom *m, uint32_t unit_rows)
{
    if (m->total != ROWS_UNKNOWN && m->committed >= m->total)
        return m->total;
    return m->committed - m->committed % unit_rows;
}

/* --- source blocks
 * -------------------------------------------------------------- */
/* The oldest source that is only kept for a langd that may come back. */
static struct eroom *find_lingering(struct encoded *e, const struct epool *p)
{
    struct eroom *found = NULL;

    for (uint32_t i = 0; i < e->rooms_max; i++) {
        struct eroom *m = &e->rooms[i];

        if (m->r.used && eroom_pool(e, m) == p && m->linger_ns != TIME_NEVER &&
            m->active == 0 && (!found || m->linger_ns < found->linger_ns))
            found = m;
    }
    return found;
}

void epool_serve(struct encoded *e, struct epool *p)
{
    while (!list_empty(&p->fifo)) {
        struct eroom *m = LIST_FIRST(&p->fifo, struct eroom, in_fifo);
        uint32_t first_run, n = div_up(m->max_rows, p->block_rows);

        if (!pool_take(&p->p, &m->src, n, &first_run)) {
            struct eroom *kept = e->lingering ? find_lingering(e, p) : NULL;

            if (kept)
                eroom_unlink(e, kept); /* its blocks come when it settles */
            return;
        }
        rowmap_clear(&p->committed, &p->p, first_run);
        list_remove(&m->in_fifo);
        m->source = SOURCE_HELD;
        m->history.blocks = n;
        m->granted_due = true;
        eroom_touch(e, m);
        LIST_FOREACH (d, &m->dsts)
            edst_touch(e, LIST_ENTRY(d, struct edst, in_room));
    }
}

static bool sends_over(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->state != DST_ENDED || d->opened || d->closing_left)
            return false;
    }
    return true;
}

static void settle_source(struct encoded *e, struct eroom *m)
{
    struct epool *p = eroom_pool(e, m);

    if (!m->ended || m->linked)
        return;
    if (m->source == SOURCE_QUEUED) {
        list_remove(&m->in_fifo);
        m->source = SOURCE_GIVEN;
    }
    if (m->source != SOURCE_HELD || !sends_over(m))
        return;
    if (!m->final && room_in_use(&m->r)) {
        if (!m->quarantined)
            e->stats[STAT_blocks_quarantined] += m->src.blocks;
        m->quarantined = true;
        return;
    }
    m->quarantined = false;
    m->source = SOURCE_GIVEN;
    pool_give(&p->p, &m->src);
    epool_serve(e, p);
}

/* --- ends
 * ------------------------------------------------------------------------- */
void eroom_fail(
    struct encoded *e, struct eroom *m, enum err reason, const char *text)
{
    if (m->ended || m->failing)
        return;
    m->failing = true;
    m->fail_reason = (uint8_t)reason;
    snprintf(m->r.text, sizeof(m->r.text), "%s", text);
    LIST_FOREACH (n, &m->dsts) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->state == DST_ACTIVE)
            edst_fail(e, d, reason, text);
    }
    eroom_touch(e, m);
}

static void record(struct encoded *e, struct eroom *m)
{
    struct ended *h = &e->history[e->ended_count++ % e->c.conf->limit_history];

    m->history.state = m->r.state;
    m->history.reason = m->r.reason;
    m->history.total = m->total;
    m->history.served = m->served;
    m->history.failed = m->failed;
    m->history.done_ns = e->now_ns;
    if (m->r.state == ROOM_SUCCESS)
        m->history.bytes =
            (uint64_t)m->total * eroom_pool(e, m)->meta.layout.row_bytes;
    memcpy(m->history.text, m->r.text, sizeof(m->history.text));
    *h = m->history;
}

/* A destination that restarts may ask again for rows that are all there. */
static bool may_linger(const struct encoded *e, const struct eroom *m)
{
    return m->r.reason == ERR_PEER_LOST && m->source == SOURCE_HELD &&
           m->total != ROWS_UNKNOWN && m->committed >= m->total &&
           e->c.conf->timeout_linger > 0 &&
           list_empty(&e->pools[m->pool].fifo) && !m->failing;
}

static void end(struct encoded *e, struct eroom *m)
{
    bool ok = m->failed == 0 &&
              (m->required ? m->served >= m->required : m->withdrawn);

    m->ended = true;
    m->bootstrap_ns = TIME_NEVER;
    m->r.state = ok ? ROOM_SUCCESS : ROOM_FAILED;
    m->r.reason = ok ? OK : m->fail_reason;
    m->r.a = m->served;
    m->r.b = m->failed;
    aux_drop(&e->aux, &m->aux);
    e->open--;
    e->stats[ok ? STAT_rooms_succeeded : STAT_rooms_failed]++;
    if (ok) {
        uint32_t row_bytes = eroom_pool(e, m)->meta.layout.row_bytes;

        e->stats[STAT_rows_moved] += m->total;
        e->stats[STAT_bytes_moved] += (uint64_t)m->total * row_bytes;
    }
    record(e, m);
    if (may_linger(e, m)) {
        m->linger_ns = e->now_ns + e->c.conf->timeout_linger;
        e->lingering++;
    } else {
        tombs_put(
            &e->ended_rooms, e->now_ns, m->r.id, 0, m->r.state, m->r.reason);
        eroom_unlink(e, m);
    }
}

/* Has every destination that the room waits for ended? */
static bool complete(const struct eroom *m)
{
    if (!m->announced || m->ended || m->active > 0)
        return false;
    if (m->failing)
        return true;
    if (m->flags & FLAG_OPEN)
        return m->withdrawn;
    return m->required > 0 && m->served + m->failed >= m->required;
}

/* --- settling
 * ------------------------------------------------------------------------ */
static void show(struct encoded *e, struct out *out, struct eroom *m)
{
    uint16_t end_bit = m->r.state == ROOM_SUCCESS ? EVENT_DONE : EVENT_FAILED;
    bool fresh = false;

    LIST_FOREACH (n, &m->r.views) {
        struct view *v = LIST_ENTRY(n, struct view, in_room);
        uint16_t what = m->ended ? end_bit : 0;

        if (m->source == SOURCE_HELD && !m->ended)
            what |= EVENT_GRANTED;
        if (m->asked > 0)
            what |= EVENT_WANTED;
        if (v->fresh && what)
            view_tell(&e->engines, out, v, what);
        fresh |= v->fresh;
        v->fresh = false;
    }
    if (m->granted_due)
        room_tell(&e->engines, out, &m->r, EVENT_GRANTED);
    if (m->wanted_due)
        room_tell(&e->engines, out, &m->r, EVENT_WANTED);
    if (m->ended && m->shown_state != m->r.state) {
        room_tell(&e->engines, out, &m->r, end_bit);
        out_action(out, ACT_ENDED);
    }
    if (fresh || m->shown_state != m->r.state ||
        m->shown_rows != m->committed) {
        m->r.rows_shown = m->committed;
        room_cells(&e->engines, out, &m->r);
    }
    m->granted_due = m->wanted_due = false;
    m->shown_state = m->r.state;
    m->shown_rows = m->committed;
}

static void forget(struct encoded *e, struct eroom *m)
{
    if (m->linked)
        table_remove(&e->ids, m->r.id, 0);
    aux_drop(&e->aux, &m->aux);
    heap_remove(&e->room_timers, &m->timer);
    list_remove(&m->r.todo);
    list_remove(&m->in_fifo);
    room_orphan(&m->r);
    m->r.used = false;
    m->free_next = e->rooms_free;
    e->rooms_free = (uint32_t)(m - e->rooms);
    e->rooms_used--;
}

static void arm(struct encoded *e, struct eroom *m)
{
    uint64_t at = min_u64(m->bootstrap_ns, m->linger_ns);

    if (at == TIME_NEVER)
        heap_remove(&e->room_timers, &m->timer);
    else if (!heap_linked(&m->timer) || m->timer.key != at)
        heap_set(&e->room_timers, &m->timer, at);
}

void eroom_settle(struct encoded *e, struct out *out, struct eroom *m)
{
    uint8_t state = ROOM_BOOTSTRAPPING;

    list_remove(&m->r.todo);
    if (complete(m))
        end(e, m);
    if (m->ended && m->linked && m->linger_ns == TIME_NEVER && m->active == 0)
        eroom_unlink(e, m); /* nobody else can come for it */
    if (m->announced && !m->ended) {
        bool asked = m->asked >= (m->required ? m->required : 1);

        if (asked)
            m->bootstrap_ns = TIME_NEVER;
        if (m->source == SOURCE_HELD && m->asked > 0)
            state = m->history.first_ns ? ROOM_TRANSFERRING : ROOM_WAITING;
        if (state > m->r.state)
            m->r.state = state;
    }
    settle_source(e, m);
    show(e, out, m);
    list_remove(&m->r.todo);
    if (list_empty(&m->dsts) && list_empty(&m->r.views) &&
        ((!m->announced && !m->declined) ||
            (m->ended && m->source == SOURCE_GIVEN)))
        forget(e, m);
    else
        arm(e, m);
}

void eroom_expired(struct encoded *e, struct eroom *m)
{
    if (m->bootstrap_ns <= e->now_ns) {
        m->bootstrap_ns = TIME_NEVER;
        e->stats[STAT_deadlines]++;
        m->declined = false;
        if (m->flags & FLAG_OPEN)
            m->withdrawn = true;
        else if (m->announced)
            eroom_fail(e, m, ERR_TIMEOUT, "no destination asked in time");
    }
    if (m->linger_ns <= e->now_ns) {
        stop_linger(e, m);
        if (m->active == 0)
            eroom_unlink(e, m);
    }
    eroom_touch(e, m);
}
