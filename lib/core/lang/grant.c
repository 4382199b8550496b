/* grant.c - the blocks of one room: what it needs, gets and gives back, and the
 * commands to the shards. admit.c chooses which room is next. Owned by the
 * loop's thread.
 *
 * A block leaves a room only through `closing`: the shards have answered that
 * nothing lands there any more. The exception is a block that has landed
 * entirely: no unit of it can be claimed again. */
#include "core/lang/lang.h"

uint64_t grant_rows(const struct lpool *p, const struct lroom *m)
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

/* Returns the blocks that the room needs beyond those it holds. */
static uint32_t lacking(struct langd *l, const struct lroom *m)
{
    const struct lpool *p = lroom_pool(l, m);
    uint32_t cap = m->mode == MODE_STREAM ? p->cap_stream : p->cap_whole;
    uint64_t target = grant_rows(p, m), blocks;

    if (!lroom_alive(m) || !p->meta->ready || m->peer == NONE || m->hopes)
        return 0;
    blocks = target > m->base ? (target - m->base - 1) / p->block_rows + 1 : 0;
    blocks = min_u64(blocks, cap);
    return blocks > m->held.blocks ? (uint32_t)blocks - m->held.blocks : 0;
}

uint32_t grant_wanted(struct langd *l, const struct lroom *m)
{
    return lroom_closing(m) ? 0 : lacking(l, m);
}

void grant_count(struct langd *l, struct lroom *m, bool in)
{
    uint32_t counts[GROUP_SUMS] = {0};

    if (!m->group)
        return;
    if (in) {
        uint32_t rows = lroom_pool(l, m)->block_rows;
        bool known = m->total != ROWS_UNKNOWN, lacks = lroom_lacks_aux(m);

        counts[OF_MOST] = div_up(known ? m->total : m->max_rows, rows);
        counts[OF_HELD] = m->held.blocks;
        counts[OF_ROWS] = known ? m->total : m->committed;
        counts[OF_LEAST] = div_up(counts[OF_ROWS], rows);
        if (m->aux_state != LAUX_UNKNOWN)
            counts[OF_AUX] = aux_chunks(m->aux_len);
        counts[OF_LACKS] = lacks ? counts[OF_AUX] : 0;
        counts[OF_UNKNOWN] = !m->length_known;
        counts[OF_UNREADY] = !m->length_known || lacks || lroom_closing(m);
        counts[OF_GROWS] = !known || lacking(l, m) > 0;
        counts[OF_UNLENT] =
            m->lent_runs.len == 0 || m->aux_state != LAUX_STORED;
    }
    for (int i = 0; i < GROUP_SUMS; i++) {
        m->group->sums[i] += (uint64_t)counts[i] - m->counts[i];
        m->counts[i] = counts[i];
    }
}

/* giving */

/* Sends the shards the runs of the room's extent from first_run on. */
static void send_runs(
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
    const struct pool *p = &l->pools[m->pool].p;
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

    CHECK(m->held.blocks > 0 && m->closing.blocks == 0,
        "room ..%08x opens with %u blocks, %u close", (uint32_t)m->r.id,
        m->held.blocks, m->closing.blocks);
    cmd.a = m->held.head;
    cmd.b = p->run_len[cmd.a];
    out_data(out, &cmd);
    send_runs(l, out, m, p->run_next[cmd.a]);
    lroom_move(m, LIFE_GRANTED);
}

bool grant_take_own(struct langd *l, struct out *out, struct lroom *m,
    uint32_t n, enum grade grade)
{
    struct lpool *p = lroom_pool(l, m);
    uint32_t first_run;

    CHECK(n > 0 && lroom_alive(m) && !lroom_closing(m),
        "room ..%08x of life %u takes %u blocks", (uint32_t)m->r.id, m->life,
        n);
    if (!pool_take(&p->p, &m->held, n, &first_run))
        return false;
    rowmap_clear(&p->landed, &p->p, first_run);
    p->gave_ns = l->b.now_ns;
    share_served(&l->b.engines.share, m->age);
    m->granted += n * p->block_rows;
    grant_count(l, m, true);
    m->grade = (uint8_t)max_u32(m->grade, grade);
    if (!m->history.first_ns)
        m->history.granted_ns = l->b.now_ns;
    if (m->history.opened_ns != l->b.now_ns) /* otherwise INIT records it */
        happened(&l->b, HAPPENED_GRANTED, &m->r, &m->history, m->peer,
            m->granted, n);
    if (lroom_open(m))
        send_runs(l, out, m, first_run);
    else
        grant_open(l, out, m);
    /* If no INIT was sent yet, INIT will carry the grant. */
    if (m->init != INIT_DUE || m->total != ROWS_UNKNOWN ||
        !list_linked(&m->in_settled))
        lroom_touch(l, m);
    return true;
}

bool grant_take(struct langd *l, struct out *out, struct lroom *m, uint32_t n,
    enum grade grade)
{
    const struct lpool *p = lroom_pool(l, m);

    return (uint64_t)n + p->spare <= p->p.free &&
           grant_take_own(l, out, m, n, grade);
}

uint8_t grant_firmness(struct langd *l, const struct lroom *m)
{
    bool all = m->group || grant_wanted(l, m) == 0;

    if (m->mode == MODE_STREAM) /* promised blocks are never taken back */
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

    CHECK(m->closing_left == 0 && m->closing.blocks == 0,
        "room ..%08x closes twice: %u shards left, %u blocks",
        (uint32_t)m->r.id, m->closing_left, m->closing.blocks);
    CHECK(reply || !lroom_alive(m), "room ..%08x closes without an answer",
        (uint32_t)m->r.id);
    out_data(out, &cmd);
    lroom_move(m, reply ? LIFE_CLOSING : LIFE_QUARANTINED);
    m->closing_left = reply ? l->b.c.shards : 0;
}

void grant_restart(
    struct langd *l, struct out *out, struct lroom *m, uint32_t keep)
{
    struct lpool *p = lroom_pool(l, m);
    struct extent rest;

    CHECK(lroom_alive(m) && !lroom_closing(m) && keep <= m->held.blocks,
        "room ..%08x of life %u keeps %u of %u blocks", (uint32_t)m->r.id,
        m->life, keep, m->held.blocks);
    CHECK(m->exposed == 0 || keep == m->held.blocks,
        "room ..%08x loses blocks, %u rows are shown", (uint32_t)m->r.id,
        m->exposed);
    rest = pool_split(&p->p, &m->held, keep);
    if (lroom_open(m)) {
        grant_close(l, out, m, true);
        m->closing = rest;
        p->closing_blocks += rest.blocks;
    } else { /* the shards do not know of them */
        pool_give(&p->p, &rest);
    }
    m->attempt++;
    happened(&l->b, HAPPENED_RESTARTED, &m->r, &m->history, m->peer, m->attempt,
        keep);
    m->granted = m->base + m->held.blocks * p->block_rows;
    m->from = m->prefix = m->highest = m->exposed;
    m->landed = 0;
    if (m->held.blocks == 0) /* blocks that it keeps stay firm */
        m->grade = GRADE_SPECULATIVE;
    m->want = false;
    m->stall_ns = TIME_NEVER;
    if (m->held.blocks > 0)
        rowmap_clear(&p->landed, &p->p, m->held.head);
    lroom_touch(l, m);
}

uint32_t grant_trim(struct langd *l, struct out *out, struct lroom *m)
{
    struct lpool *p = lroom_pool(l, m);
    uint32_t keep =
        m->total > m->base ? div_up(m->total - m->base, p->block_rows) : 0;
    struct data_cmd cmd = {.type = LAND_TRIM,
        .slot = lroom_slot(l, m),
        .generation = m->generation,
        .reply = true};

    CHECK(m->total != ROWS_UNKNOWN, "room ..%08x is trimmed to no total",
        (uint32_t)m->r.id);
    if (m->life != LIFE_GRANTED || keep >= m->held.blocks)
        return 0;
    m->closing = pool_split(&p->p, &m->held, keep);
    p->closing_blocks += m->closing.blocks;
    m->granted = m->base + keep * p->block_rows;
    m->sent_granted = min_u32(m->sent_granted, m->granted);
    cmd.a = m->granted;
    out_data(out, &cmd);
    m->closing_left = l->b.c.shards;
    lroom_move(m, LIFE_TRIMMING);
    return m->closing.blocks;
}
