/* check_langd.c - what must hold of a language side after every step. Reads the
 * brain, changes nothing. */
#include "test/sim/sim.h"

#include "core/lang/lang.h"

#define OUTCOMES 65536 /* places at first */

struct watch {
    uint64_t *owner[CONF_POOLS_MAX]; /* by block: generation; 0: free */
    uint64_t *now[CONF_POOLS_MAX];
    uint64_t *generation; /* by slot: generation of its room */
    uint64_t *open;       /* by slot: generation that shards have; 0: none */
    uint8_t *state;
    uint64_t ended;
    /* By slot: how long rows have been ready without one landing, and how many
     * rows were shown. */
    struct still {
        uint64_t since_ns, generation;
        uint32_t landed, attempt, exposed;
        bool due;
    } * still;
    /* the longest so far: a room keeps the deadlines that it began with */
    uint64_t most_ns;
};

/* How a generation ended, at either side. */
struct outcome {
    uint64_t generation;
    uint8_t state;
};
static struct outcome *outcomes;
static uint64_t outcomes_used, outcomes_cap;

static void outcomes_grow(void);

static struct outcome *outcome_at(uint64_t generation)
{
    uint64_t i = generation * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    if (2 * outcomes_used >= outcomes_cap)
        outcomes_grow();
    for (i %= outcomes_cap;
         outcomes[i].generation && outcomes[i].generation != generation;)
        i = (i + 1) % outcomes_cap;
    return &outcomes[i];
}

static void outcomes_grow(void)
{
    struct outcome *old = outcomes;
    uint64_t cap = outcomes_cap;

    outcomes_cap = cap ? 4 * cap : OUTCOMES;
    outcomes = must_alloc(outcomes_cap, sizeof(*outcomes));
    for (uint64_t i = 0; i < cap; i++)
        if (old[i].generation)
            *outcome_at(old[i].generation) = old[i];
    free(old);
}

uint8_t langd_outcome(uint64_t generation)
{
    const struct outcome *o = outcome_at(generation);

    return o->generation ? o->state : UINT8_MAX;
}

void langd_outcome_set(uint64_t generation, uint8_t state)
{
    struct outcome *o = outcome_at(generation);

    HOLDS(!o->generation || o->state == state, "final states are final",
        "g%llx: %u after %u", (unsigned long long)generation & 0xffffff, state,
        o->state);
    outcomes_used += !o->generation;
    *o = (struct outcome){generation, state};
}

static struct watch *watch_of(struct daemon *d)
{
    const struct langd *l = d->brain;
    struct watch *w = d->watch;

    if (w)
        return w;
    d->watch = w = must_alloc(1, sizeof(*w));
    for (uint32_t i = 0; i < l->b.pools_count; i++) {
        w->owner[i] = must_alloc(l->pools[i].p.blocks, sizeof(uint64_t));
        w->now[i] = must_alloc(l->pools[i].p.blocks, sizeof(uint64_t));
    }
    w->generation = must_alloc(l->rooms_max, sizeof(uint64_t));
    w->open = must_alloc(l->rooms_max, sizeof(uint64_t));
    w->state = must_alloc(l->rooms_max, 1);
    w->still = must_alloc(l->rooms_max, sizeof(*w->still));
    return w;
}

void langd_unwatch(struct daemon *d)
{
    d->watch = NULL;
}

/* states */

/* RULES 4.7 */
static void see_ended(const struct langd *l, struct watch *w)
{
    for (; w->ended < l->b.ended_count; w->ended++) {
        const struct ended *h = &l->b.history[w->ended % HISTORY_ROOMS];

        langd_outcome_set(h->of.generation, h->state);
    }
}

/* Checks every row of a room that succeeded: its tags are read through the
 * brain's own extents, before an engine hears of the room. */
/* RULES 3.1 */
static void see_rows(
    const struct daemon *d, const struct langd *l, const struct lroom *m)
{
    const struct lpool *p = &l->pools[m->pool];
    uint32_t row = m->base, instance = 0;

    if (m->r.id >= GHOST_ROOMS && m->r.id < 1000000)
        return;
    for (uint32_t b = m->held.head; b != NONE; b = p->p.run_next[b])
        for (uint64_t at_row = (uint64_t)b * p->block_rows;
             at_row < (uint64_t)(b + p->p.run_len[b]) * p->block_rows &&
             row < m->total;
             at_row++, row++) {
            uint64_t tag = d->tags[m->pool][at_row];
            const struct prod *of = prod_of(tag_instance(tag), m->r.id);

            HOLDS(of && tag_row(tag) == row &&
                      (instance == 0 || instance == tag_instance(tag)),
                "success has every row",
                "%s room %llu g%llx row %u: instance %u row %u (before: %u)",
                d->conf->name, (unsigned long long)m->r.id,
                (unsigned long long)m->generation & 0xffffff, row,
                tag_instance(tag), tag_row(tag), instance);
            instance = tag_instance(tag);
        }
    HOLDS(row >= m->total || m->total == ROWS_UNKNOWN, "success has every row",
        "%s room %llu: blocks for %u of %u rows", d->conf->name,
        (unsigned long long)m->r.id, row, m->total);
}

void see_forward(const struct daemon *d, const struct room *r, uint8_t before)
{
    bool final = before == ROOM_SUCCESS || before == ROOM_FAILED;

    HOLDS(before == r->state ||
              (!final && (r->state == ROOM_FAILED || r->state > before)),
        "states go forward", "%s room %llu: %u after %u", d->conf->name,
        (unsigned long long)r->id, r->state, before);
}

/* RULES 4.7 */
static void see_state(
    struct daemon *d, const struct langd *l, struct watch *w, uint32_t i)
{
    const struct lroom *m = &l->rooms[i];
    bool same = m->r.used && w->generation[i] == m->generation;

    if (!m->r.used)
        return;
    if (same)
        see_forward(d, &m->r, w->state[i]);
    if (m->r.state == ROOM_SUCCESS && m->peer != NONE &&
        (!same || w->state[i] != ROOM_SUCCESS) && m->held.blocks > 0)
        see_rows(d, l, m);
    w->generation[i] = m->generation;
    w->state[i] = m->r.state;
}

/* lives */

void langd_watch_cmd(struct daemon *d, const struct data_cmd *c)
{
    struct watch *w = watch_of(d);

    if (c->type == LAND_OPEN)
        w->open[c->slot] = c->generation;
    else if (c->type == LAND_CLOSE)
        w->open[c->slot] = 0;
}

/* True if the room's life agrees with its fields. */
static bool life_fits(const struct lroom *m)
{
    bool asked = m->closing_left > 0;
    bool holds = m->held.blocks > 0 || m->closing.blocks > 0;

    switch ((enum life)m->life) {
    case LIFE_REQUESTED:
        return lroom_alive(m) && !asked && m->closing.blocks == 0;
    case LIFE_GRANTED:
        return !asked && m->closing.blocks == 0;
    case LIFE_TRIMMING:
        return asked && m->total != ROWS_UNKNOWN && m->closing.blocks > 0;
    case LIFE_CLOSING:
        return asked;
    case LIFE_QUARANTINED: /* or a READY room without rows, for its readers */
        return !lroom_alive(m) && !asked && m->closing.blocks == 0 &&
               (room_in_use(&m->r) || m->r.state == ROOM_SUCCESS);
    case LIFE_OWED:
        return !lroom_alive(m) && !asked && !holds &&
               (m->debt.owe || !list_empty(&m->r.attachments));
    case LIFE_FORGOTTEN:
    case LIFE_COUNT:
        break;
    }
    return false;
}

/* RULES 6.5 */
static void see_life(const struct daemon *d, const struct langd *l,
    const struct watch *w, uint32_t i)
{
    const struct lroom *m = &l->rooms[i];

    HOLDS(m->r.used ? life_fits(m) : m->life == LIFE_FORGOTTEN,
        "a room's life is what is there",
        "%s room %llu g%llx: life %u, state %u, %u shards left, %u blocks, "
        "%u closing, owes %u",
        d->conf->name, (unsigned long long)m->r.id,
        (unsigned long long)m->generation & 0xffffff, m->life, m->r.state,
        m->closing_left, m->held.blocks, m->closing.blocks, m->debt.owe);
    HOLDS((m->r.used && lroom_open(m)) == (w->open[i] != 0) &&
              (!w->open[i] || w->open[i] == m->generation),
        "shards have what is open", "%s room %llu g%llx: life %u",
        d->conf->name, (unsigned long long)m->r.id,
        (unsigned long long)m->generation & 0xffffff, m->life);
    HOLDS(!m->hopes || (m->held.blocks == 0 && !m->want),
        "what is lent needs no blocks", "%s room %llu has %u, wants %d",
        d->conf->name, (unsigned long long)m->r.id, m->held.blocks, m->want);
    HOLDS(!m->r.used || m->no_readers ||
              table_get(&l->keys, m->r.id, m->scope) == i,
        "readers are not waited for without a name", "%s room %llu",
        d->conf->name, (unsigned long long)m->r.id);
}

/* blocks */

static void own(const struct pool *p, const struct extent *e, uint64_t *owner,
    uint64_t generation)
{
    for (uint32_t b = e->head; b != NONE; b = p->run_next[b])
        for (uint32_t i = b; i < b + p->run_len[b]; i++) {
            HOLDS(owner[i] == 0, "a block has one owner", "block %u", i);
            owner[i] = generation;
        }
}

static void see_handle(const struct econn *c, const struct handle *h,
    const struct watch *w, uint32_t pool)
{
    if (pool >= CONF_POOLS_MAX)
        return; /* the encoder's pool: see encoded_watch */
    for (uint32_t r = h->given; r < h->shown; r += handle_block_rows(h)) {
        uint64_t block = handle_row(h, r) / handle_block_rows(h);

        HOLDS(w->now[pool][block] == h->generation, "shown blocks stay",
            "%s/%u cell %u room %llu row %u: block %llu went to g%llx",
            c->d->conf->name, c->number, h->cell,
            (unsigned long long)h->cons->room, r, (unsigned long long)block,
            (unsigned long long)w->now[pool][block] & 0xffffff);
    }
}

/* Blocks that a living process was shown, and has not released, stay the
 * room's. */
/* RULES 6.1 */
static void see_shown(const struct daemon *d, const struct watch *w)
{
    for (uint32_t i = 0; i < econns_count(); i++) {
        const struct econn *c = econn_at(i);

        if (c->d != d || c->life != d->life || c->dead || c->bye)
            continue;
        for (uint32_t k = 0; k < c->cells; k++)
            if (c->handles[k] && c->handles[k]->cons)
                see_handle(c, c->handles[k], w, c->handles[k]->pool);
    }
}

/* Reports of a pool add up: blocks that are not free belong to living rooms,
 * are READY, or are quarantined. */
static void see_shown_numbers(struct daemon *d, const struct langd *l)
{
    uint64_t ready, kept, alive = 0;

    /* with several pools the report's numbers are the last one's */
    if (l->b.pools_count != 1)
        return;
    for (uint32_t i = 0; i < l->rooms_max; i++)
        if (l->rooms[i].r.used && lroom_alive(&l->rooms[i]))
            alive += l->rooms[i].held.blocks;
    ready = daemon_number(d, "pools", "ready");
    kept = daemon_number(d, "pools", "quarantined");
    HOLDS(l->pools[0].p.free + alive + ready + kept == l->pools[0].p.blocks,
        "quarantined blocks are those that are held",
        "%s: %u free, %llu of living rooms, %llu ready, %llu quarantined",
        d->conf->name, l->pools[0].p.free, (unsigned long long)alive,
        (unsigned long long)ready, (unsigned long long)kept);
}

/* RULES 6.1 */
static void see_blocks(struct daemon *d, const struct langd *l, struct watch *w)
{
    bool changed = false;

    for (uint32_t i = 0; i < l->b.pools_count; i++)
        memset(w->now[i], 0, l->pools[i].p.blocks * sizeof(uint64_t));
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (!m->r.used)
            continue;
        own(&l->pools[m->pool].p, &m->held, w->now[m->pool], m->generation);
        own(&l->pools[m->pool].p, &m->closing, w->now[m->pool], m->generation);
    }
    for (uint32_t i = 0; i < l->b.pools_count; i++) {
        uint64_t *was = w->owner[i];
        size_t bytes = l->pools[i].p.blocks * sizeof(uint64_t);

        changed |= memcmp(was, w->now[i], bytes) != 0;
    }
    if (!changed)
        return;
    see_shown_numbers(d, l);
    see_shown(d, w);
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        memcpy(w->owner[i], w->now[i], l->pools[i].p.blocks * sizeof(uint64_t));
}

static bool holds(const struct pool *p, const struct extent *e, uint32_t block)
{
    for (uint32_t b = e->head; b != NONE; b = p->run_next[b])
        if (block >= b && block - b < p->run_len[b])
            return true;
    return false;
}

void langd_watch_landing(
    struct daemon *d, uint32_t pool, uint32_t block, const struct segment *s)
{
    const struct langd *l = d->brain;
    const struct lroom *m = &l->rooms[s->generation % l->rooms_max];
    const struct pool *p = &l->pools[pool].p;
    bool known = m->r.used && m->generation == s->generation &&
                 m->r.id == s->room && m->pool == pool;
    bool held = known && holds(p, &m->held, block) &&
                (m->attempt == s->attempt || lroom_closing(m));

    HOLDS(held || (known && holds(p, &m->closing, block)),
        "rows land in their room's blocks",
        "%s block %u: room %llu g%llx a%u row %u lands; the room %s", //
        d->conf->name, block, (unsigned long long)s->room,
        (unsigned long long)s->generation & 0xffffff, s->attempt, s->first,
        known ? "does not hold it" : "is gone");
    HOLDS(!known || !lroom_alive(m) || s->first >= m->exposed,
        "shown rows are not written again",
        "%s room %llu g%llx a%u rows from %u land, %u are shown", d->conf->name,
        (unsigned long long)s->room,
        (unsigned long long)s->generation & 0xffffff, s->attempt, s->first,
        m->exposed);
}

bool langd_room_lives(const struct daemon *d, const struct segment *s)
{
    const struct langd *l = d->brain;
    const struct lroom *m = &l->rooms[s->generation % l->rooms_max];

    return m->r.used && m->generation == s->generation && lroom_alive(m);
}

void langd_any_attempt(struct daemon *d, struct segment *s)
{
    const struct langd *l = d->brain;
    const struct lroom *m = &l->rooms[s->generation % l->rooms_max];

    if (m->r.used && m->generation == s->generation)
        s->attempt = m->attempt;
}

/* cells */

/* RULES 7.3 */
static void see_cells(struct daemon *d, const struct langd *l)
{
    for (uint32_t i = 0; i < l->b.engines.attachments_max; i++) {
        const struct attachment *att = &l->b.engines.attachments[i];
        const struct room *r = att->room;

        if (!att->used || !r || !d->conns[att->conn] ||
            l->b.engines.conns[att->conn].state != CONN_READY)
            continue;
        HOLDS(d->conns[att->conn]->words[att->cell] ==
                  cell_word(r->state, r->reason, att->tag, r->rows_shown),
            "cells tell the truth", "%s/%u cell %u room %llu", d->conf->name,
            att->conn, att->cell, (unsigned long long)r->id);
    }
}

/* clocks and streams */

/* No room outlives a deadline of its own. */
/* RULES 8.3 */
static void see_deadlines(const struct daemon *d, const struct lroom *m)
{
    HOLDS(m->total_ns > d->now_ns && m->bootstrap_ns > d->now_ns &&
              m->stall_ns > d->now_ns,
        "a deadline ends its room", "%s room %llu lives", d->conf->name,
        (unsigned long long)m->r.id);
}

/* Rows that are ready and have a place land, or the room ends. */
/* RULES 8.3 */
static void see_progress(const struct daemon *d, const struct langd *l,
    struct watch *w, const struct lroom *m)
{
    struct still *s = &w->still[lroom_slot(l, m)];
    uint32_t ready = min_u32(m->granted, m->committed);
    const struct conf *c = l->b.c.conf;
    bool due;

    w->most_ns = max_u64(w->most_ns, c->timeout_progress);
    if (ready < m->total)
        ready -= ready % l->pools[m->pool].unit_rows;
    due =
        !lroom_closing(m) && m->held.blocks > 0 && m->from + m->landed < ready;
    if (!due || !s->due || s->landed != m->landed ||
        s->generation != m->generation || s->attempt != m->attempt)
        s->since_ns = d->now_ns;
    s->due = due;
    HOLDS(d->now_ns - s->since_ns <= w->most_ns || d->last != EV_TIME,
        "rows that are ready come",
        "%s room %llu: %u of %u landed, for %llu ms", d->conf->name,
        (unsigned long long)m->r.id, m->from + m->landed, ready,
        (unsigned long long)((d->now_ns - s->since_ns) / MS));
}

/* Rows that landed in order are shown at once if the stream has the blocks that
 * it was promised; without these no more rows are shown. */
/* RULES 5.20 */
static void see_stream(const struct daemon *d, const struct langd *l,
    const struct lroom *m, const struct still *s)
{
    const struct lpool *p = &l->pools[m->pool];
    uint32_t end = m->exposed + (p->hold_stream - 1) * p->block_rows;
    uint32_t rest =
        div_up(min_u32(m->total, m->max_rows) - m->base, p->block_rows);

    HOLDS(m->mode != MODE_STREAM || m->prefix <= m->exposed ||
              lroom_closing(m) ||
              (m->granted < end &&
                  (m->total == ROWS_UNKNOWN || m->granted < m->total)),
        "a stream shows what landed",
        "%s room %llu: %u landed, %u shown, %u released, granted %u",
        d->conf->name, (unsigned long long)m->r.id, m->prefix, m->exposed,
        m->released, m->granted);
    HOLDS(s->generation != m->generation || m->exposed == s->exposed ||
              m->held.blocks >= min_u32(rest, p->hold_stream),
        "a stream has its window", "%s room %llu shows rows, with %u blocks",
        d->conf->name, (unsigned long long)m->r.id, m->held.blocks);
}

static void see_times(struct daemon *d, const struct langd *l, struct watch *w)
{
    HOLDS(d->last != EV_TIME || d->full || brain_deadline(&l->b) > d->now_ns,
        "what is due is done", "%s has a deadline that has passed",
        d->conf->name);
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];
        struct still *s = &w->still[i];

        if (!m->r.used || !lroom_alive(m))
            continue;
        if (d->last == EV_TIME) /* a loop that is late notices deadlines then */
            see_deadlines(d, m);
        see_progress(d, l, w, m);
        see_stream(d, l, m, s);
        s->generation = m->generation;
        s->attempt = m->attempt;
        s->landed = m->landed;
        s->exposed = m->exposed;
    }
}

/* Checks that a group's sums are those of its members, once none of them has
 * work left. */
static void see_group(
    const struct daemon *d, struct langd *l, const struct lgroup *g)
{
    uint64_t sums[GROUP_SUMS] = {0};
    uint32_t rows = l->pools[g->pool].block_rows;

    LIST_FOREACH (n, &g->members) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_group);
        bool unknown = m->total == ROWS_UNKNOWN, lacks = lroom_lacks_aux(m);
        uint64_t chunks = aux_chunks(m->aux_len);

        if (list_linked(&m->r.todo))
            return;
        sums[OF_MOST] += div_up(unknown ? m->max_rows : m->total, rows);
        sums[OF_LEAST] += div_up(unknown ? m->committed : m->total, rows);
        sums[OF_ROWS] += unknown ? m->committed : m->total;
        sums[OF_HELD] += m->held.blocks;
        sums[OF_AUX] += m->aux_state == LAUX_UNKNOWN ? 0 : chunks;
        sums[OF_LACKS] += lacks ? chunks : 0;
        sums[OF_UNKNOWN] += !m->length_known;
        sums[OF_UNREADY] += lroom_closing(m) || lacks || !m->length_known;
        sums[OF_GROWS] +=
            unknown || (!m->hopes && div_up(m->total, rows) > m->held.blocks);
        sums[OF_UNLENT] += m->lent_runs.len == 0 || m->aux_state != LAUX_STORED;
        HOLDS(m->hopes == !g->copied, "a group hopes as one",
            "%s group %llx: member %016llx", d->conf->name,
            (unsigned long long)g->id, (unsigned long long)m->r.id);
    }
    for (uint32_t i = 0; i < GROUP_SUMS; i++)
        HOLDS(sums[i] == g->sums[i], "a group counts its members",
            "%s group %llx: sum %u is %llu, counted %llu", d->conf->name,
            (unsigned long long)g->id, i, (unsigned long long)sums[i],
            (unsigned long long)g->sums[i]);
}

void langd_watch(struct daemon *d)
{
    struct langd *l = d->brain;
    struct watch *w = watch_of(d);

    l->b.ops->check(&l->b);
    see_ended(l, w);
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        see_state(d, l, w, i);
        see_life(d, l, w, i);
    }
    for (uint32_t i = 0; i < l->groups_fresh; i++)
        if (l->groups[i].used)
            see_group(d, l, &l->groups[i]);
    see_blocks(d, l, w);
    see_cells(d, l);
    if (!W.sparse) { /* these compare with the step before */
        see_times(d, l, w);
        order_langd(d);
        tickets_watch(d, &l->tickets);
        news_watch(d, &l->b);
        carriers_watch(d);
    }
}

void langd_watch_step(struct daemon *d)
{
    const struct langd *l = d->brain;
    struct watch *w = watch_of(d);

    see_ended(l, w);
    for (uint32_t i = 0; i < d->touched_count; i++)
        if (d->touched[i] < l->rooms_max) {
            see_state(d, l, w, d->touched[i]);
            see_life(d, l, w, d->touched[i]);
        }
}

void langd_watch_end(struct daemon *d)
{
    const struct langd *l = d->brain;
    const struct share *shares[] = {&l->share, &l->b.engines.share,
        &l->b.aux.share, &l->tickets.share, &l->tickets.space_share};

    langd_watch(d);
    shares_watch_end(d, shares, ARRAY_LEN(shares));
    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        HOLDS(!m->r.used, "nothing is left",
            "%s room %llu g%llx: state %u owes %u blocks %u closing %u/%u "
            "life %u owner_done %d readers %u/%u attachments %d",
            d->conf->name, (unsigned long long)m->r.id,
            (unsigned long long)m->generation & 0xffffff, m->r.state,
            m->debt.owe, m->held.blocks, m->closing.blocks, m->closing_left,
            m->life, m->owner_done, m->readers_done, m->readers,
            !list_empty(&m->r.attachments));
    }
    HOLDS(l->b.engines.attachments_used == 0, "nothing is left",
        "%s: %u attachments", d->conf->name, l->b.engines.attachments_used);
    for (uint32_t i = 0; i < l->b.pools_count; i++)
        HOLDS(l->pools[i].p.free == l->pools[i].p.blocks, "nothing is left",
            "%s: %u of %u blocks free", d->conf->name, l->pools[i].p.free,
            l->pools[i].p.blocks);
    HOLDS(!brain_pending(&l->b), "nothing is left", "%s is pending",
        d->conf->name);
    HOLDS(brain_deadline(&l->b) == TIME_NEVER, "nothing is left",
        "%s waits for something at %llu ns", d->conf->name,
        (unsigned long long)brain_deadline(&l->b));
}

void langd_knows_drain(const struct daemon *d, const struct daemon *encoder)
{
    const struct peers *all = &((const struct langd *)d->brain)->b.peers;
    const struct brain *e = encoder->brain;

    PEERS_FOREACH (p, all)
        HOLDS(!peer_up(p) || p->epoch != encoder->bc.epoch ||
                  (p->life == PEER_DRAINING) == e->draining,
            "a drain is known soon", "%s: %s %s", d->conf->name, p->name,
            e->draining ? "drains" : "drains no longer");
}
