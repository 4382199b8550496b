/* grant.c - who gets blocks of a pool, and from whom they are taken back
 * (RULES 5.1 to 5.6). Owned by the loop's thread.
 *
 * One queue per pool holds the rooms that have rows waiting at encoded and a
 * used-up grant: oldest request first, no overtaking, the whole remainder at
 * once. Rooms without rows get blocks only while that queue is empty; such
 * grants are speculative. When the head does not fit, speculative grants into
 * which nothing has landed are taken back, youngest first; then landed rows of
 * waiting rooms younger than the head. A grant out of the queue is firm.
 *
 * A block leaves a room only through `closing`: shards have answered that
 * nothing lands there any more. The exceptions are blocks that have landed
 * entirely: no unit of them can be claimed again.
 *
 * Overtaking by whoever fits was rejected: large rooms would starve. */
#include "core/lang/lang.h"

/* Returns the rows that the room will ever need, as far as is known now. A
 * stream needs what it was promised from its base on, whatever else it was told
 * to expect. */
static uint64_t target_rows(const struct lpool *p, const struct lroom *m)
{
    uint64_t rows = p->block_rows, first = p->meta->conf->default_blocks * rows;

    if (m->total != ROWS_UNKNOWN)
        return m->total;
    if (m->expected)
        first = m->expected;
    if (m->mode == MODE_STREAM)
        first = max_u64(first, m->base + p->hold_stream * rows);
    if (m->length_known)
        first = min_u64(max_u64(first, m->committed), m->max_rows);
    if (m->group && m->length_known)
        return m->group->capped ? m->committed : m->max_rows;
    return m->want && m->length_known ? m->max_rows : first;
}

uint32_t grant_wanted(struct langd *l, const struct lroom *m)
{
    const struct lpool *p = lroom_pool(l, m);
    uint32_t cap = m->mode == MODE_STREAM ? p->cap_stream : p->cap_whole;
    uint64_t target = target_rows(p, m), blocks;

    if (!lroom_alive(m) || lroom_closing(m) || !p->meta->ready ||
        m->peer == NONE)
        return 0;
    blocks = target > m->base ? (target - m->base - 1) / p->block_rows + 1 : 0;
    blocks = min_u64(blocks, cap);
    return blocks > m->held.blocks ? (uint32_t)blocks - m->held.blocks : 0;
}

static void set_node(struct heap *h, struct heap_node *n, bool in, uint64_t key)
{
    if (!in)
        heap_remove(h, n);
    else if (!heap_linked(n) || n->key != key)
        heap_set(h, n, key);
}

void grant_leave(struct langd *l, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);

    heap_remove(&p->want, &m->want_node);
    heap_remove(&p->need, &m->need_node);
    heap_remove(&p->spec, &m->spec_node);
    heap_remove(&p->victim, &m->victim_node);
    laux_leave(l, m);
}

void grant_classify(struct langd *l, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    bool alive = lroom_alive(m) && !lroom_closing(m);
    uint32_t wanted = grant_wanted(l, m);
    /* What has enough and may lose it waits for its turn to keep it. */
    bool waits = alive && m->want && (m->length_known || m->required > 1) &&
                 (wanted > 0 || !lroom_firm(m));
    bool aux = alive && lroom_lacks_aux(m); /* it comes before blocks */
    bool queued = waits && !aux && !m->group;
    bool need = alive && !m->want && wanted > 0 && m->required <= 1 && !aux &&
                !m->group;
    bool loose = alive && m->held.blocks > 0 && m->exposed == 0;
    bool ready = m->r.state == ROOM_SUCCESS && m->held.blocks > 0;
    bool sure = m->grade > GRADE_SPECULATIVE;
    bool landing = alive && sure && m->from + m->landed < m->granted;

    if (!m->group)
        set_node(&p->want, &m->want_node, queued, m->age);
    set_node(&p->need, &m->need_node, need, m->age);
    set_node(
        &p->spec, &m->spec_node, loose && !sure && m->landed == 0, ~m->age);
    set_node(&p->victim, &m->victim_node,
        (waits || aux) && loose && !lroom_firm(m) && m->landed > 0, ~m->age);
    if (ready != m->ready_counted)
        p->ready_rooms += ready ? 1 : UINT32_MAX;
    if (landing != m->landing_counted)
        p->landing_rooms += landing ? 1 : UINT32_MAX;
    m->ready_counted = ready;
    m->landing_counted = landing;
    if (m->group)
        group_place(l, m->group);
    laux_classify(l, m);
    p->dirty |=
        queued || need || p->want.len || p->need.len || !list_empty(&p->capped);
}

/* giving */

static void tell_runs(
    struct langd *l, struct out *out, const struct lroom *m, uint32_t first_run)
{
    const struct pool *p = &l->pools[m->pool].p;
    struct data_cmd cmd = {.type = LAND_RUN,
        .slot = lroom_slot(l, m),
        .generation = m->generation};

    for (uint32_t b = first_run; b != NONE; b = p->run_next[b]) {
        cmd.a = b;
        cmd.b = p->run_len[b];
        out_data(out, &cmd);
    }
}

void grant_open(struct langd *l, struct out *out, struct lroom *m)
{
    struct data_cmd cmd = {.type = LAND_OPEN,
        .slot = lroom_slot(l, m),
        .generation = m->generation,
        .attempt = m->attempt,
        .room = m->r.id,
        .pool = m->pool,
        .peer = m->peer,
        .from = m->from,
        .base = m->base,
        .total = m->total};

    out_data(out, &cmd);
    tell_runs(l, out, m, m->held.head);
    lroom_move(m, LIFE_GRANTED);
}

static bool take(struct langd *l, struct out *out, struct lroom *m, uint32_t n,
    enum grade grade)
{
    struct lpool *p = lroom_pool(l, m);
    uint32_t first_run;

    if (!pool_take(&p->p, &m->held, n, &first_run))
        return false;
    rowmap_clear(&p->landed, &p->p, first_run);
    m->granted += n * p->block_rows;
    m->grade = (uint8_t)max_u32(m->grade, grade);
    if (lroom_open(m))
        tell_runs(l, out, m, first_run);
    else
        grant_open(l, out, m);
    lroom_touch(l, m);
    return true;
}

bool grant_take(struct langd *l, struct out *out, struct lroom *m, uint32_t n,
    enum grade grade)
{
    const struct lpool *p = lroom_pool(l, m);

    return (uint64_t)n + p->spare <= p->p.free && take(l, out, m, n, grade);
}

bool grant_take_own(
    struct langd *l, struct out *out, struct lroom *m, uint32_t n)
{
    return take(l, out, m, n, GRADE_FIRM);
}

uint8_t grant_firmness(struct langd *l, const struct lroom *m)
{
    bool all = m->group || grant_wanted(l, m) == 0;

    if (m->mode == MODE_STREAM) /* what it was promised is resident for good */
        return lroom_firm(m) || m->exposed > 0 ? FIRM_YES : FIRM_NO;
    return m->total == 0 || (lroom_firm(m) && all) ? FIRM_YES : FIRM_NO;
}

/* taking back */

void grant_close(struct langd *l, struct out *out, struct lroom *m, bool reply)
{
    struct data_cmd cmd = {.type = LAND_CLOSE,
        .slot = lroom_slot(l, m),
        .generation = m->generation,
        .reply = reply};

    out_data(out, &cmd);
    lroom_move(m, reply ? LIFE_CLOSING : LIFE_QUARANTINED);
    m->closing_left = reply ? l->b.c.shards : 0;
}

void grant_restart(
    struct langd *l, struct out *out, struct lroom *m, uint32_t keep)
{
    struct lpool *p = lroom_pool(l, m);
    struct extent rest = pool_split(&p->p, &m->held, keep);

    if (lroom_open(m)) {
        grant_close(l, out, m, true);
        m->closing = rest;
        p->closing_blocks += rest.blocks;
    } else { /* shards had not been told of them */
        pool_give(&p->p, &rest);
    }
    m->attempt++;
    m->granted = m->base + m->held.blocks * p->block_rows;
    m->from = m->prefix = m->highest = m->exposed;
    m->landed = 0;
    if (m->held.blocks == 0) /* what it keeps stays its own */
        m->grade = GRADE_SPECULATIVE;
    m->want = false;
    m->stall_ns = TIME_NEVER;
    if (m->held.blocks > 0)
        rowmap_clear(&p->landed, &p->p, m->held.head);
    lroom_touch(l, m);
}

void grant_trim(struct langd *l, struct out *out, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    uint32_t keep =
        m->total > m->base ? div_up(m->total - m->base, p->block_rows) : 0;
    struct data_cmd cmd = {.type = LAND_TRIM,
        .slot = lroom_slot(l, m),
        .generation = m->generation,
        .reply = true};

    if (m->life != LIFE_GRANTED || keep >= m->held.blocks)
        return;
    m->closing = pool_split(&p->p, &m->held, keep);
    p->closing_blocks += m->closing.blocks;
    m->granted = m->base + keep * p->block_rows;
    m->sent_granted = min_u32(m->sent_granted, m->granted);
    cmd.a = m->granted;
    out_data(out, &cmd);
    m->closing_left = l->b.c.shards;
    lroom_move(m, LIFE_TRIMMING);
    group_trimmed(l, m, m->closing.blocks);
}

/* the queue */

/* The oldest that waits keeps what it has. */
static void keep_head(struct lpool *p, struct lroom *m)
{
    m->grade = (uint8_t)max_u32(m->grade, GRADE_KEPT);
    heap_remove(&p->spec, &m->spec_node);
}

static void revoke(struct langd *l, struct out *out, struct lroom *m)
{
    if (lroom_closing(m) || m->held.blocks == 0 || m->exposed > 0)
        return;
    l->b.stats[STAT_revokes]++;
    grant_restart(l, out, m, 0);
    grant_classify(l, m);
}

/* Rows of `head` do not fit: takes one grant back. false: nobody gives way. */
static bool take_back(
    struct langd *l, struct out *out, struct lpool *p, struct lroom *head)
{
    struct heap_node *n;
    struct lroom *v; /* nothing of it is exposed */

    keep_head(p, head);
    n = heap_first(&p->spec);
    if (n) {
        v = CONTAINER_OF(n, struct lroom, spec_node);
    } else {
        bool calm = p->ready_rooms == 0 && p->landing_rooms == 0;
        uint64_t after = l->b.c.conf->timeout_revoke_after;

        n = heap_first(&p->victim);
        if (!n || ~n->key <= head->age)
            return false;
        if (!calm && l->b.now_ns - p->head_since_ns < after) {
            p->revoke_ns = p->head_since_ns + after;
            return false;
        }
        v = CONTAINER_OF(n, struct lroom, victim_node);
    }
    revoke(l, out, v);
    return true;
}

/* Serves the head; false: it has to wait, or there is none. */
static bool serve_head(struct langd *l, struct out *out, struct lpool *p)
{
    struct heap_node *n = heap_first(&p->want);
    struct lroom *m;
    uint32_t wanted;

    if (!n) {
        p->head_since_ns = TIME_NEVER;
        return false;
    }
    m = CONTAINER_OF(n, struct lroom, want_node);
    wanted = m->group ? group_wanted(l, m->group) : grant_wanted(l, m);
    if (wanted == 0 && !m->group) {
        m->grade = GRADE_FIRM;
        m->want &= m->mode == MODE_STREAM; /* it will want more */
        grant_classify(l, m);
        lroom_touch(l, m);
        return true;
    }
    if (m->group ? group_take(l, out, m->group)
                 : grant_take(l, out, m, wanted, GRADE_FIRM)) {
        if (p->head_since_ns != TIME_NEVER && p->head_age == m->age &&
            l->b.now_ns - p->head_since_ns > p->head_wait_ns)
            p->head_wait_ns = l->b.now_ns - p->head_since_ns;
        p->head_since_ns = TIME_NEVER;
        m->want &= m->group != NULL;
        grant_classify(l, m);
        return true;
    }
    if (p->head_since_ns == TIME_NEVER || p->head_age != m->age) {
        p->head_since_ns = l->b.now_ns;
        p->head_age = m->age;
    }
    if (p->closing_blocks > 0 &&
        p->p.free + p->closing_blocks >= (uint64_t)wanted + p->spare)
        return false; /* what was taken back is on its way */
    return take_back(l, out, p, m);
}

/* Serves the oldest room without rows; false: it has to wait. */
static bool serve_need(struct langd *l, struct out *out, struct lpool *p)
{
    struct heap_node *n = heap_first(&p->need);
    struct lroom *m;
    uint32_t wanted;

    if (!n || p->want.len > 0)
        return false;
    m = CONTAINER_OF(n, struct lroom, need_node);
    wanted = grant_wanted(l, m);
    if (wanted > 0 && !grant_take(l, out, m, wanted, GRADE_SPECULATIVE))
        return false;
    if (m->length_known && wanted > 0)
        l->b.stats[STAT_widened]++;
    grant_classify(l, m);
    return true;
}

void grant_serve(struct langd *l, struct out *out, struct lpool *p, bool *again)
{
    *again = false;
    p->revoke_ns = TIME_NEVER;
    groups_draw(l, out, p);
    while (serve_head(l, out, p) || serve_need(l, out, p)) {
        if (!out_has_room(out)) {
            *again = p->dirty = true;
            return;
        }
    }
    p->dirty = false;
}
