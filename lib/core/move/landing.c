/* landing.c - which rows are granted, and whether a segment may land.
 *
 * Invariants:
 *  - a segment is admitted only for the present room, generation and attempt,
 *    only from the room's peer, inside [from, granted) and [base, granted), in
 *    a part of this shard, and in whole units that are all unclaimed;
 *  - a claimed unit stays claimed until its block is granted again;
 *  - exactly one NOTE_LAND_QUIET answers every command that asked for it: when
 *    the last landing of that slot and generation from before the command has
 *    ended, even if the slot serves another use by then.
 *
 * The landings of a slot form a chain, youngest first. A waiting command is
 * counted at the youngest landing of its use at that time. When that landing
 * ends, the count moves to the next older one of the same use; if there is
 * none, the note is due. So any number of commands may wait without memory of
 * their own.
 *
 * Runs (runs.h) are copies: the brain's arrays belong to another thread. Owned
 * by the shard's thread, or by the simulator.
 *
 * Rejected: a byte count per room instead of claimed units. Duplicates and late
 * segments of an older attempt would then look like progress. */
#include "core/move/landing.h"

#include "base/check.h"
#include "core/move/runs.h"

struct land_pool {
    struct landing_pool is;
    uint64_t *claimed; /* a bit per unit of the pool */
    uint64_t units_cap;
    struct runs runs;
};

/* A slot and its present use. */
struct use {
    uint64_t generation, room;
    uint64_t granted; /* rows [base, granted) have blocks */
    uint32_t attempt, pool, peer, from, base, total;
    uint32_t head, tail, blocks; /* chain of runs; head NONE: empty */
    struct run_at at;            /* run of the last segment */
    uint32_t landed;             /* rows, in this attempt */
    uint32_t newest; /* landing in this slot, of any use, from 1; 0: none */
    bool open, bad;  /* bad: its bad_slot was named */
};

struct landing_token {
    uint64_t generation;
    uint32_t slot, attempt, first, rows; /* rows 0: trimmed away */
    uint32_t older, younger;             /* neighbours in the slot's chain */
    uint32_t waiting;                    /* commands that wait: see the file
                                            header */
    bool busy;
};

struct landing {
    struct land_pool *pools;
    struct use *uses;
    struct landing_token *tokens;
    uint32_t pools_count, slots, shard, shards;
    struct slots places; /* of tokens */
    uint32_t active;
};

/* start */

static void pool_carve(
    struct slab *s, struct land_pool *p, const struct landing_pool *from)
{
    uint32_t unit = from->unit_rows ? from->unit_rows : 1;
    uint64_t units = (uint64_t)from->blocks * (from->block_rows / unit);
    void *claimed = slab_take(s, (size_t)(units / 64 + 1), sizeof(uint64_t));
    void *len = slab_take(s, from->blocks, sizeof(uint32_t));
    void *next = slab_take(s, from->blocks, sizeof(uint32_t));

    if (p)
        *p = (struct land_pool){
            *from, claimed, units, {len, next, from->block_rows}};
}

struct landing *landing_init(struct slab *s, uint32_t slots, uint32_t landings,
    uint32_t shard, uint32_t shards, const struct landing_pool *pools,
    uint32_t n)
{
    struct landing *l = slab_take(s, 1, sizeof(*l));
    struct land_pool *own = slab_take(s, n, sizeof(*own));
    struct use *uses = slab_take(s, slots, sizeof(*uses));
    struct landing_token *tokens = slab_take(s, landings, sizeof(*tokens));
    struct slots places;

    slots_init(&places, s, landings);
    CHECK(slots > 0 && landings > 0 && shard < shards,
        "%u slots, %u landings, shard %u of %u", slots, landings, shard,
        shards);
    for (uint32_t i = 0; i < n; i++)
        pool_carve(s, own ? &own[i] : NULL, &pools[i]);
    if (!s->p || s->failed)
        return NULL;
    *l = (struct landing){.pools = own,
        .uses = uses,
        .tokens = tokens,
        .pools_count = n,
        .slots = slots,
        .shard = shard,
        .shards = shards};
    l->places = places;
    for (uint32_t i = 0; i < n; i++)
        if (pools[i].row_bytes)
            landing_pool_set(l, i, &pools[i]);
    return l;
}

void landing_pool_set(
    struct landing *l, uint32_t i, const struct landing_pool *p)
{
    struct land_pool *own = &l->pools[i];

    CHECK(i < l->pools_count, "pool %u of %u", i, l->pools_count);
    CHECK(p->blocks == own->is.blocks && p->block_rows == own->is.block_rows,
        "pool %u: %u x %u rows were %u x %u", i, p->blocks, p->block_rows,
        own->is.blocks, own->is.block_rows);
    CHECK(p->row_bytes && p->unit_rows && p->block_rows % p->unit_rows == 0 &&
              p->part_rows && p->part_rows % p->unit_rows == 0,
        "pool %u: units of %u rows in blocks of %u and parts of %u", i,
        p->unit_rows, p->block_rows, p->part_rows);
    CHECK(
        (uint64_t)p->blocks * (p->block_rows / p->unit_rows) <= own->units_cap,
        "pool %u: units of %u rows are smaller than at start", i, p->unit_rows);
    own->is = *p;
}

uint32_t landing_active(const struct landing *l)
{
    return l->active;
}

/* commands */

static void cursor_reset(struct use *u)
{
    u->at = (struct run_at){u->head, u->base};
}

static void bits_clear(uint64_t *bits, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n;) {
        if (i % 64 == 0 && first + n - i >= 64) {
            bits[i / 64] = 0;
            i += 64;
        } else {
            bits[i / 64] &= ~(UINT64_C(1) << (i % 64));
            i++;
        }
    }
}

static void use_run(
    struct landing *l, struct use *u, uint32_t block, uint32_t blocks)
{
    struct land_pool *p = &l->pools[u->pool];
    uint32_t units = p->is.block_rows / p->is.unit_rows;

    CHECK(blocks > 0 && block < p->is.blocks && blocks <= p->is.blocks - block,
        "run of %u blocks at %u in a pool of %u", blocks, block, p->is.blocks);
    bits_clear(p->claimed, (uint64_t)block * units, (uint64_t)blocks * units);
    p->runs.len[block] = blocks;
    if (u->head == NONE) {
        u->head = block;
        cursor_reset(u);
    } else {
        p->runs.next[u->tail] = block;
    }
    u->tail = block;
    u->blocks += blocks;
    u->granted = u->base + (uint64_t)u->blocks * p->is.block_rows;
}

static void use_open(struct landing *l, const struct data_cmd *c)
{
    struct use *u = &l->uses[c->slot];

    CHECK(c->pool < l->pools_count && l->pools[c->pool].is.row_bytes,
        "slot %u: pool %u of %u has no layout", c->slot, c->pool,
        l->pools_count);
    CHECK(c->base % l->pools[c->pool].is.block_rows == 0,
        "slot %u: base %u is not a block's first row", c->slot, c->base);
    *u = (struct use){.generation = c->generation,
        .room = c->room,
        .granted = c->base,
        .attempt = c->attempt,
        .pool = c->pool,
        .peer = c->peer,
        .from = c->from,
        .base = c->base,
        .total = c->total,
        .head = NONE,
        .tail = NONE,
        .newest = u->newest,
        .open = true};
    if (c->b > 0)
        use_run(l, u, c->a, c->b);
    else
        cursor_reset(u);
}

/* Drops all but the first n blocks of the chain. */
static void chain_keep(struct landing *l, struct use *u, uint32_t n)
{
    struct land_pool *p = &l->pools[u->pool];
    uint32_t left = n;

    if (n >= u->blocks)
        return;
    u->blocks = n;
    if (n == 0) {
        u->head = u->tail = NONE;
    } else {
        u->tail = u->head;
        while (p->runs.len[u->tail] < left) {
            left -= p->runs.len[u->tail];
            u->tail = p->runs.next[u->tail];
        }
        p->runs.len[u->tail] = left;
    }
    cursor_reset(u);
}

/* Takes back the granted rows from `rows` on. Landings in progress there do not
 * count, even if the rows are granted again in other blocks. */
static void use_trim(struct landing *l, struct use *u, uint32_t rows)
{
    uint32_t held = rows > u->base ? rows - u->base : 0;

    if (rows >= u->granted)
        return;
    chain_keep(l, u, div_up(held, l->pools[u->pool].is.block_rows));
    u->granted = max_u32(rows, u->base);
    for (uint32_t t = u->newest - 1; t != NONE; t = l->tokens[t].older) {
        struct landing_token *k = &l->tokens[t];

        if (k->generation == u->generation && k->attempt == u->attempt)
            k->rows = rows > k->first ? min_u32(k->rows, rows - k->first) : 0;
    }
}

/* Drops the blocks wholly below `row`. A run is cut if needed: its first blocks
 * may go to another chain at once. */
static void use_base(struct landing *l, struct use *u, uint32_t row)
{
    struct land_pool *p = &l->pools[u->pool];
    uint32_t drop = row > u->base ? (row - u->base) / p->is.block_rows : 0;

    drop = min_u32(drop, u->blocks);
    u->base += drop * p->is.block_rows;
    u->blocks -= drop;
    while (drop > 0) {
        uint32_t run = u->head, len = p->runs.len[run];

        if (len > drop) {
            u->head = run + drop;
            p->runs.len[u->head] = len - drop;
            if (u->tail == run)
                u->tail = u->head;
            else
                p->runs.next[u->head] = p->runs.next[run];
            break;
        }
        drop -= len;
        u->head = run == u->tail ? NONE : p->runs.next[run];
    }
    if (u->head == NONE)
        u->tail = NONE;
    cursor_reset(u);
}

/* Returns the youngest landing of the generation in the chain from t; NONE:
 * none. */
static uint32_t chain_find(
    const struct landing *l, uint32_t t, uint64_t generation)
{
    while (t != NONE && l->tokens[t].generation != generation)
        t = l->tokens[t].older;
    return t;
}

/* True if no landing of the command's use is in progress; otherwise counts the
 * command as waiting. */
static bool fence(struct landing *l, const struct data_cmd *c)
{
    uint32_t t = chain_find(l, l->uses[c->slot].newest - 1, c->generation);

    if (t == NONE)
        return true;
    l->tokens[t].waiting++;
    return false;
}

static void use_cmd(struct landing *l, struct use *u, const struct data_cmd *c)
{
    switch (c->type) {
    case LAND_RUN:
        use_run(l, u, c->a, c->b);
        break;
    case LAND_TOTAL:
        u->total = c->total;
        break;
    case LAND_TRIM:
        use_trim(l, u, c->a);
        break;
    case LAND_BASE:
        use_base(l, u, c->a);
        break;
    case LAND_CLOSE:
        u->open = false;
        break;
    default:
        CHECK(false, "command %u is not for landing", c->type);
    }
}

bool landing_cmd(struct landing *l, const struct data_cmd *cmd, bool *quiet)
{
    struct use *u = &l->uses[cmd->slot];
    bool known;

    CHECK(cmd->slot < l->slots && cmd->generation % l->slots == cmd->slot,
        "slot %u of %u for another generation", cmd->slot, l->slots);
    if (cmd->type == LAND_OPEN) {
        use_open(l, cmd);
        *quiet = false;
        return true;
    }
    known = u->open && u->generation == cmd->generation;
    if (known)
        use_cmd(l, u, cmd);
    *quiet =
        (cmd->type == LAND_TRIM || (cmd->type == LAND_CLOSE && cmd->reply)) &&
        fence(l, cmd);
    return known;
}

/* segments */

/* True if the segment has whole units, in one part of this shard, and the bytes
 * of its rows. */
static bool shape_ok(const struct landing *l, const struct landing_pool *p,
    const struct segment *s)
{
    uint64_t end = (uint64_t)s->first + s->rows;

    if (s->rows == 0 || s->fields != SEGMENT_ALL || s->first % p->unit_rows)
        return false;
    if (s->total != ROWS_UNKNOWN && end > s->total)
        return false;
    if (end % p->unit_rows != 0 &&
        (s->total == ROWS_UNKNOWN || end != s->total))
        return false;
    if (s->first / p->part_rows != (end - 1) / p->part_rows)
        return false;
    if (part_address(s->generation, s->first / p->part_rows, l->shards) !=
        l->shard)
        return false;
    return s->bytes == (uint64_t)s->rows * p->row_bytes;
}

/* True if the segment does not contradict the total; either may be unknown. */
static bool total_ok(const struct use *u, const struct segment *s)
{
    if (u->total == ROWS_UNKNOWN)
        return true;
    if (s->total != ROWS_UNKNOWN)
        return s->total == u->total;
    return (uint64_t)s->first + s->rows <= u->total;
}

/* True if a unit of the pieces is claimed. With `set`, claims all instead. */
static bool claim(
    struct land_pool *p, const struct piece *pieces, uint32_t n, bool set)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct piece *c = &pieces[i];
        uint64_t row = (uint64_t)c->block * p->is.block_rows + c->at;
        uint64_t end = (row + c->rows - 1) / p->is.unit_rows;

        CHECK(end < p->units_cap, "unit %llu of %llu", (unsigned long long)end,
            (unsigned long long)p->units_cap);
        for (uint64_t u = row / p->is.unit_rows; u <= end; u++) {
            if (set)
                p->claimed[u / 64] |= UINT64_C(1) << (u % 64);
            else if (p->claimed[u / 64] >> (u % 64) & 1)
                return true;
        }
    }
    return false;
}

static uint32_t token_take(
    struct landing *l, uint32_t slot, const struct segment *s)
{
    struct use *u = &l->uses[slot];
    uint32_t t = slots_take(&l->places), newest = u->newest - 1;

    CHECK(t < l->places.max && !l->tokens[t].busy, "landing %u of %u", t,
        l->places.max);
    l->tokens[t] = (struct landing_token){s->generation, slot, s->attempt,
        s->first, s->rows, newest, NONE, 0, true};
    if (newest != NONE)
        l->tokens[newest].younger = t;
    u->newest = t + 1;
    l->active++;
    return t;
}

enum err landing_begin(struct landing *l, uint32_t who, const struct segment *s,
    uint32_t *pool, struct piece *pieces, uint32_t *n, uint32_t *token,
    uint32_t *bad_slot)
{
    uint32_t slot = (uint32_t)(s->generation % l->slots), count;
    struct use *u = &l->uses[slot];
    struct land_pool *p = &l->pools[u->pool];
    struct piece at[PIECES_MAX];

    *bad_slot = NONE;
    if (!u->open || u->generation != s->generation ||
        u->attempt != s->attempt || u->room != s->room)
        return ERR_STALE;
    if (who != NONE && who != u->peer)
        return ERR_STALE;
    if (!shape_ok(l, &p->is, s))
        return ERR_MALFORMED;
    if (!total_ok(u, s)) {
        *bad_slot = u->bad ? NONE : slot;
        u->bad = true;
        return ERR_MALFORMED;
    }
    if (s->first < u->from || s->first < u->base ||
        (uint64_t)s->first + s->rows > u->granted)
        return ERR_STALE;
    if (runs_pieces(&p->runs, &u->at, (struct run_at){u->head, u->base},
            s->first, s->rows, at, PIECES_MAX, &count) < s->rows)
        return ERR_MALFORMED;
    if (claim(p, at, count, false))
        return ERR_STALE;
    if (l->active == l->places.max)
        return ERR_BUSY;
    claim(p, at, count, true);
    memcpy(pieces, at, count * sizeof(*at));
    *pool = u->pool;
    *n = count;
    *token = token_take(l, slot, s);
    return OK;
}

/* Takes the landing out of its slot's chain; commands that wait for it now wait
 * for the next older one of the use. Returns the number of commands that have
 * no landing left to wait for. */
static uint32_t token_give(struct landing *l, uint32_t t)
{
    struct landing_token *k = &l->tokens[t];
    uint32_t next = chain_find(l, k->older, k->generation);
    uint32_t due = next == NONE ? k->waiting : 0;

    CHECK(l->active > 0, "landing %u ends, and none is active", t);
    CHECK((k->younger == NONE) == (l->uses[k->slot].newest == t + 1),
        "landing %u is not in the chain of slot %u", t, k->slot);
    if (next != NONE)
        l->tokens[next].waiting += k->waiting;
    if (k->older != NONE)
        l->tokens[k->older].younger = k->younger;
    if (k->younger != NONE)
        l->tokens[k->younger].older = k->older;
    else
        l->uses[k->slot].newest = k->older + 1;
    k->busy = false;
    slots_give(&l->places, t);
    l->active--;
    return due;
}

bool landing_peer(const struct landing *l, uint64_t generation, uint32_t *peer,
    uint32_t *pool)
{
    const struct use *u = &l->uses[generation % l->slots];

    if (!u->open || u->generation != generation)
        return false;
    *peer = u->peer;
    *pool = u->pool;
    return true;
}

void landing_whose(const struct landing *l, uint32_t token, uint32_t *slot,
    uint32_t *attempt, uint64_t *generation)
{
    const struct landing_token *k = &l->tokens[token];

    CHECK(token < l->places.max && k->busy, "landing %u is not active", token);
    *slot = k->slot;
    *attempt = k->attempt;
    *generation = k->generation;
}

bool landing_counts(const struct landing *l, uint32_t token)
{
    const struct landing_token *k = &l->tokens[token];
    const struct use *u;

    CHECK(token < l->places.max && k->busy, "landing %u is not active", token);
    u = &l->uses[k->slot];
    return k->rows > 0 && u->open && u->generation == k->generation &&
           u->attempt == k->attempt;
}

bool landing_end(struct landing *l, uint32_t token, bool ok,
    struct data_note *note, uint32_t *quiets, struct data_note *quiet_note)
{
    bool counts = landing_counts(l, token) && ok;
    struct landing_token *k = &l->tokens[token];
    struct use *u = &l->uses[k->slot];

    if (counts) {
        u->landed += k->rows;
        *note = (struct data_note){.type = NOTE_LANDED,
            .slot = k->slot,
            .attempt = k->attempt,
            .first = k->first,
            .rows = k->rows,
            .generation = k->generation};
    }
    *quiets = token_give(l, token);
    if (*quiets)
        *quiet_note = (struct data_note){.type = NOTE_LAND_QUIET,
            .slot = k->slot,
            .attempt = k->attempt,
            .generation = k->generation};
    return counts;
}

/* Returns the number of rows below `row` in parts of this shard. */
static uint64_t rows_ours(
    const struct landing *l, const struct use *u, uint64_t row)
{
    uint32_t part_rows = l->pools[u->pool].is.part_rows;
    uint64_t part = row / part_rows;
    uint64_t ours = (l->shard + l->shards - u->generation % l->shards) %
                    l->shards; /* the first part of this shard */
    uint64_t whole = part > ours ? (part - 1 - ours) / l->shards + 1 : 0;

    return whole * part_rows + (part % l->shards == ours ? row % part_rows : 0);
}

bool landing_full(const struct landing *l, uint32_t slot)
{
    const struct use *u = &l->uses[slot];
    uint64_t end = min_u64(u->granted, u->total);

    CHECK(slot < l->slots, "slot %u of %u", slot, l->slots);
    return end <= u->from ||
           u->landed >= rows_ours(l, u, end) - rows_ours(l, u, u->from);
}
