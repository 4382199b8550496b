/* sending.c - which rows of which destination go next.
 *
 * Invariants:
 *  - a job is on the list of at most one endpoint, the one for its cursor's
 *    part, and it is there iff rows of it may go now;
 *  - an endpoint is on the list of ready ones iff it has such jobs and its
 *    window has space for a whole message (or nothing is in flight), so that
 *    sending_next costs nothing when there is nothing to send;
 *  - every SEND_CLOSE is answered exactly once, when no message with rows of
 *    that slot and generation is in flight, even if the slot serves another
 *    generation by then;
 *  - half of the messages are divided among the open peers: a peer that has
 *    used its share takes none that others lack of theirs, so a slow peer does
 *    not stop the others;
 *  - after a break nothing is sent to the peer for a job until that job was
 *    rewound: a job remembers the peer's count of breaks.
 *
 * Runs of source extents are kept by block. Jobs over one extent write the same
 * values again, and no chain is read beyond its job's tail, so one array per
 * pool serves any number of destinations.
 *
 * Owned by the shard's thread, or by the simulator. Rejected: a queue of
 * segments made when a grant arrives. It needs memory per row granted, and
 * closing or rewinding a room would have to search it. */
#include "core/move/sending_impl.h"

#include "base/check.h"

#define UNIT_BYTES_MAX (1u << 30) /* a job with larger units is never sent */

_Static_assert(
    SEND_LARGE_EP < SEND_MESSAGES_EP && SEND_MESSAGES_EP < SEND_MESSAGES_MAX,
    "one endpoint cannot take the messages of all");

/* start */

struct sending *sending_init(struct slab *s, uint32_t slots, uint32_t peers,
    uint32_t shard, uint32_t shards, uint32_t window_bytes,
    uint32_t segment_bytes, const struct sending_pool *pools, uint32_t n)
{
    uint32_t per_peer = div_up(SEND_ADDRESSES_MAX, shards);
    struct sending *d = slab_take(s, 1, sizeof(*d));
    struct send_pool *own = slab_take(s, n, sizeof(*own));
    struct send_job *jobs = slab_take(s, slots, sizeof(*jobs));
    struct send_ep *eps = slab_take(s, (size_t)peers * per_peer, sizeof(*eps));
    struct send_peer *all = slab_take(s, peers, sizeof(*all));
    struct send_message *m = slab_take(s, SEND_MESSAGES_MAX, sizeof(*m));

    CHECK(slots > 0 && peers > 0 && shard < shards,
        "%u slots, %u peers, shard %u of %u", slots, peers, shard, shards);
    for (uint32_t i = 0; i < n; i++) {
        void *len = slab_take(s, pools[i].blocks, sizeof(uint32_t));
        void *next = slab_take(s, pools[i].blocks, sizeof(uint32_t));

        CHECK(!pools[i].row_bytes || pools[i].fields, "pool %u: no fields", i);
        if (own)
            own[i] =
                (struct send_pool){pools[i], {len, next, pools[i].block_rows}};
    }
    if (!s->p || s->failed)
        return NULL;
    *d = (struct sending){.pools = own, .jobs = jobs, .eps = eps};
    d->peers = all;
    d->messages = m;
    d->pools_count = n;
    d->slots = slots;
    d->peers_count = peers;
    d->shard = shard;
    d->shards = shards;
    d->window = d->widened = window_bytes;
    d->segment_bytes = segment_bytes;
    d->per_peer = per_peer;
    list_init(&d->ready);
    for (uint32_t i = 0; i < SEND_MESSAGES_MAX; i++)
        m[i].next = i + 1 < SEND_MESSAGES_MAX ? i + 1 : NONE;
    return d;
}

void sending_pool_set(
    struct sending *s, uint32_t i, const struct sending_pool *p)
{
    struct send_pool *own = &s->pools[i];

    CHECK(i < s->pools_count && p->blocks == own->is.blocks && p->row_bytes &&
              p->block_rows && p->fields,
        "pool %u of %u: %u blocks of %u rows", i, s->pools_count, p->blocks,
        p->block_rows);
    own->is = *p;
    own->runs.block_rows = p->block_rows;
}

void sending_widen(struct sending *s, uint32_t window_bytes)
{
    s->widened = max_u32(s->widened, window_bytes);
}

void sending_reads(struct sending *s, uint32_t peer, enum send_reads reads)
{
    CHECK(peer < s->peers_count, "peer %u of %u", peer, s->peers_count);
    s->peers[peer].reads = (uint8_t)reads;
}

/* Returns the bytes that may be in flight per address of the peer. */
static uint32_t window_of(const struct sending *s, uint32_t peer)
{
    return s->peers[peer].reads == SEND_READS ? s->window : s->widened;
}

uint32_t sending_active(const struct sending *s)
{
    return s->active;
}

/* shares */

/* Recomputes the shares after a peer was opened or closed. */
static void shares_update(struct sending *s)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < s->peers_count; i++)
        open += s->peers[i].addresses > 0;
    s->share = max_u32(SEND_MESSAGES_MAX / 2 / max_u32(open, 1), 1);
    s->reserved = 0;
    for (uint32_t i = 0; i < s->peers_count; i++)
        if (s->peers[i].addresses && s->peers[i].messages < s->share)
            s->reserved += s->share - s->peers[i].messages;
}

/* Counts a message handed out for the peer. */
static void share_take(struct sending *s, struct send_peer *p)
{
    if (p->addresses && p->messages < s->share)
        s->reserved--;
    p->messages++;
}

/* Counts a message of the peer that is done. */
static void share_give(struct sending *s, struct send_peer *p)
{
    CHECK(p->messages > 0, "peer %td has no message", p - s->peers);
    p->messages--;
    if (p->addresses && p->messages < s->share)
        s->reserved++;
}

/* Returns the endpoint that sends next; NULL: none may send. */
static struct send_ep *next_ready(const struct sending *s)
{
    uint32_t spare = SEND_MESSAGES_MAX - s->active;

    if (spare == 0)
        return NULL;
    LIST_FOREACH (at, &s->ready) {
        struct send_ep *ep = LIST_ENTRY(at, struct send_ep, node);
        uint32_t peer = (uint32_t)(ep - s->eps) / s->per_peer;

        if (spare > min_u32(s->reserved, SEND_MESSAGES_MAX / 2) ||
            s->peers[peer].messages < s->share)
            return ep;
    }
    return NULL;
}

bool sending_ready(const struct sending *s)
{
    return next_ready(s) != NULL;
}

/* readiness */

/* Returns the most bytes of a message to the peer, headers included. */
static uint32_t message_room(const struct sending *s, uint32_t peer)
{
    uint32_t bytes = min_u32(s->segment_bytes, s->peers[peer].segment_bytes);

    return bytes > SEND_CARRIER_ROOM ? bytes - SEND_CARRIER_ROOM : 0;
}

/* Puts the endpoint on the ready list, or takes it off. */
static void ep_update(struct sending *s, uint32_t e)
{
    struct send_ep *ep = &s->eps[e];
    uint32_t room = message_room(s, e / s->per_peer);
    bool can = !list_empty(&ep->jobs) && ep->messages < SEND_MESSAGES_EP &&
               (ep->messages == 0 ||
                   ep->in_flight + room <= window_of(s, e / s->per_peer));

    if (!can)
        list_remove(&ep->node);
    else if (!list_linked(&ep->node))
        list_push_tail(&s->ready, &ep->node);
}

void send_job_seek(struct sending *s, struct send_job *j)
{
    const struct send_peer *p = &s->peers[j->peer];
    uint64_t row = j->cursor;

    j->endpoint = NONE;
    if (!p->addresses || j->part_rows == 0)
        return;
    /* The sum of part_address may wrap once: two rounds find every residue. */
    for (uint32_t i = 0; i < 2 * p->addresses && row < ROWS_UNKNOWN; i++) {
        uint32_t part = (uint32_t)(row / j->part_rows);
        uint32_t a = part_address(j->generation, part, p->addresses);

        if (a % s->shards == s->shard) {
            j->cursor = (uint32_t)row;
            j->endpoint = j->peer * s->per_peer + a / s->shards;
            return;
        }
        row = ((uint64_t)part + 1) * j->part_rows;
    }
}

uint32_t send_job_rows(const struct sending *s, const struct send_job *j)
{
    const struct send_peer *p = &s->peers[j->peer];
    uint64_t part_end, end;

    if (!j->open || j->stuck || !p->addresses || j->breaks != p->breaks ||
        j->endpoint == NONE)
        return 0;
    part_end = ((uint64_t)j->cursor / j->part_rows + 1) * j->part_rows;
    end = min_u64(min_u64(j->limit, j->total), min_u64(j->held, part_end));
    /* Only the end of all rows may lie inside a unit. */
    if (end != j->total)
        end -= end % j->unit_rows;
    return end > j->cursor ? (uint32_t)(end - j->cursor) : 0;
}

static void job_stop(struct sending *s, struct send_job *j)
{
    /* A job that was never opened is all zero: its memory is not touched. */
    if (!j->node.next || !list_linked(&j->node))
        return;
    list_remove(&j->node);
    ep_update(s, j->endpoint);
}

void send_job_update(struct sending *s, struct send_job *j)
{
    if (send_job_rows(s, j) == 0) {
        job_stop(s, j);
        return;
    }
    CHECK(
        j->endpoint < s->peers_count * s->per_peer, "endpoint %u", j->endpoint);
    if (!list_linked(&j->node))
        list_push_tail(&s->eps[j->endpoint].jobs, &j->node);
    ep_update(s, j->endpoint);
}

/* Begins an attempt at row `from`. */
static void job_start(struct sending *s, struct send_job *j, uint32_t from)
{
    job_stop(s, j);
    j->cursor = from;
    j->at = (struct run_at){j->head, 0};
    j->breaks = s->peers[j->peer].breaks;
    send_job_seek(s, j);
}

/* commands */

/* Adds `add` SEND_CLOSEs to every reference to this use in messages in flight;
 * false: no such reference. For a slot that already serves another use: walks
 * all messages. */
static bool refs_find(
    struct sending *s, uint32_t slot, uint64_t generation, uint32_t add)
{
    bool found = false;

    for (uint32_t i = 0; i < SEND_MESSAGES_MAX; i++) {
        struct send_message *m = &s->messages[i];

        for (uint32_t k = 0; m->busy && k < m->count; k++) {
            struct send_ref *r = &m->refs[k];

            if (r->slot != slot || r->generation != generation)
                continue;
            r->closes += add;
            found = true;
        }
    }
    return found;
}

static void job_run(
    struct sending *s, struct send_job *j, uint32_t block, uint32_t blocks)
{
    struct send_pool *p = &s->pools[j->pool];

    CHECK(blocks > 0 && block < p->is.blocks && blocks <= p->is.blocks - block,
        "run of %u blocks at %u in a pool of %u", blocks, block, p->is.blocks);
    p->runs.len[block] = blocks;
    if (j->head == NONE) {
        j->head = block;
        j->at = (struct run_at){block, 0};
    } else {
        p->runs.next[j->tail] = block;
    }
    j->tail = block;
    j->held += (uint64_t)blocks * p->is.block_rows;
    send_job_update(s, j);
}

static void job_open(struct sending *s, const struct data_cmd *c)
{
    struct send_job *j = &s->jobs[c->slot];
    uint32_t in_flight = j->in_flight, closes = j->closes;
    uint64_t unit_bytes, unit_most;

    CHECK(c->pool < s->pools_count && c->peer < s->peers_count,
        "slot %u: pool %u, peer %u", c->slot, c->pool, c->peer);
    unit_bytes = (uint64_t)c->unit_rows * s->pools[c->pool].is.row_bytes;
    unit_most = s->pools[c->pool].is.unit_most;
    if (unit_most == 0)
        unit_most = UNIT_BYTES_MAX;
    job_stop(s, j);
    /* The last use's segments in flight are found by their references now. */
    if (in_flight && j->generation != c->generation) {
        refs_find(s, c->slot, j->generation, closes);
        in_flight = closes = 0;
    }
    *j = (struct send_job){.generation = c->generation,
        .room = c->room,
        .attempt = c->attempt,
        .peer = c->peer,
        .pool = c->pool,
        .unit_rows = c->unit_rows,
        .part_rows = c->part_rows,
        .total = c->total,
        .limit = max_u32(c->from, c->limit),
        .head = NONE,
        .tail = NONE,
        .in_flight = in_flight,
        .closes = closes,
        .open = true,
        .copy = c->copy};
    list_init(&j->node);
    j->stuck =
        !sending_unit_ok(c->unit_rows, s->pools[c->pool].is.block_rows) ||
        c->part_rows == 0 || c->part_rows % c->unit_rows != 0 ||
        unit_bytes == 0 || unit_bytes > unit_most;
    job_start(s, j, c->from);
    if (c->b > 0)
        job_run(s, j, c->a, c->b);
}

static void job_limit(
    struct sending *s, struct send_job *j, const struct data_cmd *c)
{
    if (c->attempt != j->attempt)
        return;
    j->limit = max_u32(j->limit, c->a);
    if (c->total != ROWS_UNKNOWN)
        j->total = c->total;
    send_job_update(s, j);
}

/* Returns true if nothing of the use is in flight. */
static bool job_close(struct sending *s, const struct data_cmd *c)
{
    struct send_job *j = &s->jobs[c->slot];

    if (j->generation != c->generation)
        return !refs_find(s, c->slot, c->generation, 1);
    job_stop(s, j);
    j->open = false;
    if (j->in_flight == 0)
        return true;
    j->closes++;
    return false;
}

void sending_cmd(struct sending *s, const struct data_cmd *cmd, bool *quiet)
{
    struct send_job *j;

    *quiet = false;
    if (cmd->type == PEER_CLOSE) {
        CHECK(cmd->peer < s->peers_count, "peer %u", cmd->peer);
        sending_broken(s, cmd->peer);
        s->peers[cmd->peer].addresses = 0;
        shares_update(s);
        return;
    }
    CHECK(cmd->slot < s->slots, "slot %u of %u", cmd->slot, s->slots);
    j = &s->jobs[cmd->slot];
    if (cmd->type == SEND_OPEN) {
        job_open(s, cmd);
    } else if (cmd->type == SEND_CLOSE) {
        *quiet = job_close(s, cmd);
    } else if (j->open && j->generation == cmd->generation) {
        switch (cmd->type) {
        case SEND_RUN:
            job_run(s, j, cmd->a, cmd->b);
            break;
        case SEND_LIMIT:
            job_limit(s, j, cmd);
            break;
        case SEND_REWIND:
            j->attempt = cmd->attempt;
            j->limit = cmd->a;
            j->copy = cmd->copy;
            if (cmd->total != ROWS_UNKNOWN)
                j->total = cmd->total;
            job_start(s, j, cmd->from);
            send_job_update(s, j);
            break;
        default:
            CHECK(false, "command %u is not for sending", cmd->type);
        }
    }
}

void sending_peer(struct sending *s, uint32_t peer, uint32_t addresses,
    uint32_t segment_bytes)
{
    struct send_peer *p = &s->peers[peer];

    CHECK(peer < s->peers_count && addresses > 0 &&
              addresses <= SEND_ADDRESSES_MAX,
        "peer %u with %u addresses", peer, addresses);
    for (uint32_t i = 0; !p->addresses && i < s->per_peer; i++) {
        list_init(&s->eps[peer * s->per_peer + i].node);
        list_init(&s->eps[peer * s->per_peer + i].jobs);
    }
    if (p->addresses &&
        (p->addresses != addresses || p->segment_bytes != segment_bytes))
        sending_broken(s, peer);
    p->addresses = addresses;
    p->segment_bytes = segment_bytes;
    shares_update(s);
}

void sending_broken(struct sending *s, uint32_t peer)
{
    CHECK(peer < s->peers_count, "peer %u of %u", peer, s->peers_count);
    s->peers[peer].breaks++;
    for (uint32_t i = 0; s->peers[peer].addresses && i < s->per_peer; i++) {
        struct send_ep *ep = &s->eps[peer * s->per_peer + i];

        while (list_pop(&ep->jobs)) {
        }
        list_remove(&ep->node);
    }
}

/* messages */

static uint32_t message_take(
    struct sending *s, const struct send_batch *b, uint32_t e)
{
    uint32_t t = s->free;
    struct send_message *m = &s->messages[t];

    CHECK(!m->busy && b->count > 0, "message %u of %u segments", t, b->count);
    s->free = m->next;
    s->active++;
    m->busy = true;
    m->large = b->bytes > message_room(s, b->peer);
    s->eps[e].large += m->large;
    m->endpoint = e;
    m->bytes = b->bytes;
    m->count = b->count;
    for (uint32_t i = 0; i < b->count; i++)
        m->refs[i] =
            (struct send_ref){b->from[i].generation, b->from[i].slot, 0};
    share_take(s, &s->peers[b->peer]);
    s->eps[e].in_flight += b->bytes;
    s->eps[e].messages++;
    return t;
}

bool sending_next(struct sending *s, struct send_batch *b, uint32_t *token)
{
    struct send_ep *ep;

    while ((ep = next_ready(s)) != NULL) {
        uint32_t e = (uint32_t)(ep - s->eps), peer = e / s->per_peer;
        struct fill f = {.b = b, .room = message_room(s, peer)};

        f.large = ep->large < SEND_LARGE_EP;
        f.window = window_of(s, peer);
        f.window -= min_u64(f.window, ep->in_flight);
        if (ep->messages == 0)
            f.window = UINT64_MAX;
        b->peer = peer;
        b->address = e % s->per_peer * s->shards + s->shard;
        b->count = 0;
        b->bytes = 0;
        b->pieces_count = 0;
        send_fill(s, e, &f);
        list_remove(&ep->node);
        if (b->count == 0)
            continue; /* becomes ready again when one of its messages is done */
        *token = message_take(s, b, e);
        ep_update(s, e);
        return true;
    }
    return false;
}

/* Ends one segment of a message. Returns the number of SEND_CLOSEs of its use
 * with nothing left to wait for. */
static uint32_t ref_done(struct sending *s, struct send_ref *r)
{
    struct send_job *j = &s->jobs[r->slot];
    uint32_t slot = r->slot, due = 0;

    r->slot = NONE;
    if (j->generation != r->generation)
        return refs_find(s, slot, r->generation, 0) ? 0 : r->closes;
    CHECK(j->in_flight > 0, "slot %u has nothing in flight", slot);
    if (--j->in_flight == 0) {
        due = j->closes;
        j->closes = 0;
    }
    return due;
}

void sending_done(struct sending *s, uint32_t token,
    void (*quiet)(void *ud, const struct data_note *note), void *ud)
{
    struct send_message *m = &s->messages[token];
    struct send_ep *ep;

    CHECK(token < SEND_MESSAGES_MAX && m->busy, "message %u is not out", token);
    ep = &s->eps[m->endpoint];
    for (uint32_t i = 0; i < m->count; i++) {
        struct send_ref *r = &m->refs[i];
        struct data_note note = {.type = NOTE_SEND_QUIET,
            .slot = r->slot,
            .generation = r->generation};

        for (uint32_t due = ref_done(s, r); due > 0; due--)
            quiet(ud, &note);
    }
    CHECK(
        ep->in_flight >= m->bytes && ep->messages > 0 && ep->large >= m->large,
        "endpoint %u has %u messages", m->endpoint, ep->messages);
    ep->in_flight -= m->bytes;
    ep->messages--;
    share_give(s, &s->peers[m->endpoint / s->per_peer]);
    ep->large -= m->large;
    m->busy = false;
    m->next = s->free;
    s->free = token;
    s->active--;
    ep_update(s, m->endpoint);
}
