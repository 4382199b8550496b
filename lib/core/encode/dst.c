/* dst.c - one destination of a room: what the shards may send to it, and which
 * messages to its langd (L) are pending (RULES 1, 4, 5). The loop's thread.
 *
 * A destination is ACTIVE until the room fails here (FAILING: L gets FAILED and
 * decides) or L has decided (ENDED). The record stays until the shards have
 * nothing of the destination in flight and its fence is lifted. The fence is up
 * while an L on this host may be copying rows; L's answer or the death of L's
 * process lifts it (RULES 6.2). After the destination ended, a tombstone keeps
 * its generation. */
#include "core/encode/encode.h"

#include "wire/segment.h"
#include "core/move/sending.h"

#include <stdio.h>

/* places in limits.rooms */

/* Returns how many of `required` destinations have not asked. A room with one
 * destination reserves no places: 0. */
static uint32_t places_ahead(const struct eroom *m, uint32_t required)
{
    return required > 1 && m->asked < required ? required - m->asked : 0;
}

void edst_reserve(struct encoded *e, struct eroom *m)
{
    bool waits = m->active > 0 && m->life < EROOM_FAILING;
    uint32_t n = waits ? places_ahead(m, m->required) : 0;

    if (n == m->reserved)
        return;
    if (n < m->reserved)
        share_give(&e->dst_share, SHARE_RESERVED, m->reserved - n);
    else if (!share_take(&e->dst_share, SHARE_RESERVED, n - m->reserved))
        return; /* none reserved: each destination takes its own */
    m->reserved = n;
}

/* Takes a place for one more destination. The first destination also reserves
 * the places of the others. False: nothing was taken. */
static bool take_place(
    struct encoded *e, struct eroom *m, uint32_t peer, uint32_t required)
{
    uint32_t ahead = places_ahead(m, required);

    if (m->reserved > 0) {
        share_move(&e->dst_share, SHARE_RESERVED, SHARE_PEER(peer), 1);
        m->reserved--;
        return true;
    }
    if (!share_take(&e->dst_share, SHARE_PEER(peer), 1))
        return false;
    if (ahead <= 1 || share_take(&e->dst_share, SHARE_RESERVED, ahead - 1)) {
        m->reserved = ahead > 1 ? ahead - 1 : 0;
        return true;
    }
    share_give(&e->dst_share, SHARE_PEER(peer), 1);
    return false;
}

/* generations */

/* Returns the langd whose generation it was; NULL: it has no entry. */
static struct peer *langd_of(const struct encoded *e, const struct tomb *old)
{
    struct peer *p = &e->b.peers.peers[old->owner];

    if (p->life == PEER_FREE || p->e.run != old->memo.scope)
        p = peers_next(&e->b.peers, NULL);
    while (p && p->e.run != old->memo.scope)
        p = peers_next(&e->b.peers, p);
    return p;
}

void gens_end(struct encoded *e, const struct peer *p, uint64_t generation,
    enum err reason)
{
    const struct tomb *old = memory_evicts(&e->ended_gens, e->b.now_ns);
    struct peer *of = old ? langd_of(e, old) : NULL;

    CHECK(p->life != PEER_FREE, "generation %llu of a peer that is gone ends",
        (unsigned long long)generation);
    if (of) /* generations of one run only grow */
        of->e.dead_to = max_u64(of->e.dead_to, old->memo.id);
    tomb_put(&e->ended_gens, e->b.now_ns, generation, p->e.run, p->who,
        reason == OK ? ROOM_SUCCESS : ROOM_FAILED, (uint8_t)reason)
        ->owner = peer_index(&e->b.peers, p);
}

bool gens_over(
    const struct encoded *e, const struct peer *p, uint64_t generation)
{
    return generation <= p->e.dead_to ||
           table_get(&e->ended_gens.index, generation, p->e.run) != NONE;
}

struct edst *edst_new(struct encoded *e, struct eroom *m, uint32_t peer,
    uint64_t generation, uint32_t required)
{
    struct edst *d;
    uint32_t i;

    CHECK(eroom_found(m) && peer < e->b.peers.max,
        "room ..%08x of state %u gets a destination at peer %u",
        (uint32_t)m->r.id, m->life, peer);
    if (!take_place(e, m, peer, required)) {
        e->b.stats[STAT_table_full]++;
        return NULL;
    }
    i = slots_take(&e->dst_slots);
    CHECK(i != NONE && table_put(&e->gens, generation, peer, i),
        "no slot for one of %u destinations", e->dsts_used);
    d = &e->dsts[i];
    *d = (struct edst){.room = m,
        .peer = peer,
        .run = e->b.peers.peers[peer].e.run,
        .generation = generation,
        .text = why_clear(&e->dst_whys[i]),
        .asked_ns = e->b.now_ns,
        .broken_attempt = NONE,
        .map = NONE};
    edst_move(e, d, DST_NEW);
    d->debt.retry_ns = d->answer_ns = TIME_NEVER;
    list_init(&d->todo);
    list_init(&d->in_fence);
    list_push_tail(&m->dsts, &d->in_room);
    list_push_tail(&e->b.peers.peers[peer].rooms, &d->in_peer);
    m->asked++;
    m->due |= EVENT_WANTED;
    if (m->life == EROOM_KEPT) { /* now reclaimed last */
        list_remove(&m->in_kept);
        list_push_tail(&eroom_pool(e, m)->kept, &m->in_kept);
    }
    if (!m->history.init_ns)
        m->history.init_ns = e->b.now_ns;
    return d;
}

/* Makes a message to L pending; it is sent at once. */
static void owe(struct encoded *e, struct edst *d, enum eowe what)
{
    debt_owe(&d->debt, what);
    edst_touch(e, d);
}

void edst_fail(
    struct encoded *e, struct edst *d, enum err reason, const char *text)
{
    CHECK(reason != OK && reason < ERR_COUNT, "destination %u fails as %u",
        edst_slot(e, d), reason);
    if (d->state > DST_ACTIVE)
        return;
    edst_move(e, d, DST_FAILING);
    d->answer_ns = TIME_NEVER; /* by FAILED */
    d->reason = (uint8_t)reason;
    span_copy_str(span_str(text), d->text, sizeof(struct why));
    d->debt.owe = 0;
    d->silent_ns = e->b.now_ns + e->b.c.conf->timeout_bootstrap;
    owe(e, d, OWE_FAILED);
}

void edst_refuse(struct edst *d)
{
    CHECK(d->refused || d->room->asked > 0,
        "none of the destinations of room ..%08x has asked",
        (uint32_t)d->room->r.id);
    d->room->asked -= !d->refused;
    d->refused = true;
}

/* Remembers that the destination at a langd failed, or has all rows (OK), so
 * that a later decline from that langd is not counted twice. */
static void remember_end(
    struct encoded *e, const struct edst *d, enum err reason)
{
    const struct eroom *m = d->room;
    struct decline g = {.memo = {.id = m->r.id, .scope = m->name},
        .key = d->key,
        .langd = e->b.peers.peers[d->peer].who,
        .required = d->required,
        .pools = d->pools,
        .reason = (uint8_t)reason,
        .counted = eroom_announced(m),
        .served = reason == OK};

    if (eroom_announced(m) ? m->required > 1
                           : reason != OK && reason != ERR_PEER_LOST)
        decline_put(e, &g, g.langd);
}

/* Records the time to READY, counted from the last of: rows committed, room
 * announced, room requested. */
static void count_ready(struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;
    uint64_t from = max_u64(d->asked_ns, m->history.length_ns);

    CHECK(m->item != &e->nothing, "room ..%08x is READY without an item",
        (uint32_t)m->r.id);
    histograms_time(&e->b.histograms[m->item->pool], HISTOGRAM_commit_to_ready,
        e->b.now_ns - max_u64(from, m->item->moved_ns));
}

void edst_end(struct encoded *e, struct edst *d, enum err outcome)
{
    struct eroom *m = d->room;

    if (edst_ended(d))
        return;
    edst_move(e, d, d->map == NONE ? DST_ENDED : DST_FENCED);
    d->answer_ns = TIME_NEVER;
    d->debt.owe = 0;
    d->reason = (uint8_t)outcome;
    if (d->state == DST_FENCED && !d->lent) { /* FAILED until L answers */
        owe(e, d, OWE_FAILED);
    }
    if (!d->refused)
        remember_end(e, d, outcome);
    if (!eroom_announced(m))
        edst_refuse(d);
    if (!d->refused && outcome == OK) {
        m->served++;
        count_ready(e, d);
        peer_moved(&e->b.peers.peers[d->peer], m->item->total,
            &eroom_pool(e, m)->meta->layout);
    } else if (!d->refused) {
        m->failed++;
        if (m->fail_reason == OK)
            m->fail_reason = (uint8_t)outcome;
    }
    gens_end(e, &e->b.peers.peers[d->peer], d->generation, outcome);
    edst_touch(e, d);
    eroom_touch(e, m);
    edsts_touch(e, m); /* the next one may be asked now */
}

/* Ends a destination whose L neither answers FAILED nor is lost. Its outcome
 * stays unknown. */
static void give_up_on(struct encoded *e, struct edst *d)
{
    if (d->state != DST_FAILING || d->silent_ns > e->b.now_ns)
        return;
    e->b.stats[STAT_failed_unanswered]++;
    edst_end(e, d, ERR_PEER_LOST);
}

bool edst_goes_by(const struct encoded *e, const struct edst *d, uint32_t shard)
{
    const struct item *it = d->room->item;
    uint32_t end = it->total != ROWS_UNKNOWN ? it->total : it->max_rows;
    uint32_t n = e->b.peers.peers[d->peer].addresses, part;

    CHECK(d->part_rows > 0, "destination %u has parts of no rows",
        edst_slot(e, d));
    part = d->from / d->part_rows;
    /* The sum of part_address may wrap once: two rounds reach every address. */
    for (uint32_t i = 0; i < 2 * n; i++, part++) {
        if ((uint64_t)part * d->part_rows >= end)
            return false;
        if (part_address(d->generation, part, n) % e->b.c.shards == shard)
            return true;
    }
    return false;
}

void edst_broken(struct encoded *e, struct edst *d)
{
    if (d->state != DST_ACTIVE || d->job != JOB_OPEN ||
        d->broken_attempt == d->attempt)
        return;
    e->b.stats[STAT_broken]++;
    d->broken_attempt = d->attempt;
    d->back = false;
    owe(e, d, OWE_BROKEN);
}

const char eroom_not_for[] =
    "the pool is for some users: the engine is none of them, or on another "
    "host, from where the room needs a secret";

enum err edst_check(struct encoded *e, const struct eroom *m,
    const struct edst *d, char *text, size_t size)
{
    const struct epool *p = eroom_pool(e, m);
    const struct peer *l = &e->b.peers.peers[d->peer];

    CHECK(m->item != &e->nothing, "room ..%08x of state %u has no item",
        (uint32_t)m->r.id, m->life);
    text[0] = 0;
    if (!(d->pools >> m->item->pool & 1)) {
        e->b.stats[STAT_rights_refused]++;
        snprintf(text, size, "%s", eroom_not_for);
        return ERR_NOT_OWNER;
    }
    if (d->layout != p->meta->layout.hash) {
        snprintf(text, size, "encoded's pool %s has %.180s, langd's has %.180s",
            p->meta->conf->name, p->meta->layout.text,
            peer_layout(l, d->layout));
        return ERR_INCOMPATIBLE_LAYOUT;
    }
    if (!(e->b.c.carriers & l->pair.there)) {
        snprintf(text, size, "encoded moves rows by %.180s, langd by %.180s",
            e->b.c.carriers_text, l->carriers);
        return ERR_INCOMPATIBLE_LAYOUT;
    }
    if (!sending_unit_ok(d->unit_rows, p->block_rows)) {
        snprintf(text, size, "units of %u rows over source blocks of %u",
            d->unit_rows, p->block_rows);
        return ERR_INCOMPATIBLE_LAYOUT;
    }
    if (conf_on_gpu(p->meta->conf) &&
        (uint64_t)d->unit_rows * p->meta->layout.row_bytes >
            layout_unit_most(&p->meta->layout)) {
        snprintf(text, size, "units of %u rows of %u bytes, out of a GPU",
            d->unit_rows, p->meta->layout.row_bytes);
        return ERR_INCOMPATIBLE_LAYOUT;
    }
    if (d->storage && d->storage != m->item->storage) {
        snprintf(text, size, "announced with storage %u, asked for with %u",
            m->item->storage, d->storage);
        return ERR_ITEM_MISMATCH;
    }
    if (!key_eq(&d->key, &m->item->key)) {
        snprintf(text, size, "announced and asked for with different keys");
        return ERR_ITEM_MISMATCH;
    }
    return OK;
}

/* the shards' job */

static struct data_cmd job(
    const struct encoded *e, const struct edst *d, enum data_cmd_type type)
{
    return (struct data_cmd){.type = (uint8_t)type,
        .slot = edst_slot(e, d),
        .generation = d->generation,
        .attempt = d->attempt,
        .room = d->room->r.id,
        .pool = d->room->item->pool,
        .peer = d->peer,
        .from = d->from,
        .total = d->room->item->total,
        .unit_rows = d->unit_rows,
        .part_rows = d->part_rows,
        .copy = d->copy};
}

/* Returns the end of the granted rows that can be sent: rounded down to whole
 * units, or the total. */
static uint32_t grantable(const struct edst *d)
{
    const struct eroom *m = d->room;

    if (m->item->total != ROWS_UNKNOWN && d->granted >= m->item->total)
        return m->item->total;
    return d->granted - d->granted % d->unit_rows;
}

/* Chooses how L gets the rows of this attempt. If L copies them itself, the
 * fence is up from here on: L may read our pool. */
static void choose_path(struct encoded *e, struct edst *d)
{
    const struct peer *p = &e->b.peers.peers[d->peer];

    d->copy = peer_copies(p, d->room->item->pool);
    if (!d->copy || d->map != NONE)
        return;
    d->copy = edst_fence(e, d, false);
    if (!d->copy)
        e->b.stats[STAT_copies_refused]++;
}

/* Opens the present attempt at the shards, which may send [from, limit). */
static void open_job(
    struct encoded *e, struct out *out, struct edst *d, uint32_t limit)
{
    const struct pool *p = &eroom_pool(e, d->room)->p;
    struct data_cmd cmd;

    CHECK(d->room->item->src.head != NONE, "destination %u sends no blocks",
        edst_slot(e, d));
    choose_path(e, d);
    cmd = job(e, d, SEND_OPEN);
    cmd.limit = d->limit = limit;
    for (uint32_t b = d->room->item->src.head; b != NONE; b = p->run_next[b]) {
        cmd.a = b;
        cmd.b = p->run_len[b];
        out_data(out, &cmd);
        cmd.type = SEND_RUN;
    }
    d->job_attempt = d->attempt;
    edst_move_job(e, d, JOB_OPEN);
}

/* Lets the shards send what is committed and granted. */
static void send_more(struct encoded *e, struct out *out, struct edst *d)
{
    struct eroom *m = d->room;
    uint32_t limit = item_sendable(m->item, d->unit_rows), before;
    struct data_cmd cmd;

    limit = min_u32(limit, grantable(d));
    CHECK(d->job != JOB_CLOSING && d->unit_rows > 0,
        "destination %u sends units of %u rows in job state %u",
        edst_slot(e, d), d->unit_rows, d->job);
    if (!item_held(m->item) || d->broken_attempt == d->attempt)
        return;
    if (d->job == JOB_OPEN && d->job_attempt != d->attempt) {
        choose_path(e, d);
        cmd = job(e, d, SEND_REWIND);
        cmd.a = d->limit = max_u32(limit, d->from);
        d->job_attempt = d->attempt;
        out_data(out, &cmd);
    }
    before = d->job == JOB_OPEN ? d->limit : d->from;
    if (limit <= before)
        return;
    if (happening_due(before, limit) || limit == m->item->total)
        happened(&e->b, HAPPENED_SENDING, &m->r, &m->history, d->peer, before,
            limit);
    if (d->job == JOB_NONE) {
        open_job(e, out, d, limit);
    } else {
        cmd = job(e, d, SEND_LIMIT);
        cmd.a = d->limit = limit;
        out_data(out, &cmd);
    }
    if (!m->history.first_ns) {
        m->history.first_ns = e->b.now_ns;
        histograms_time(&e->b.histograms[m->item->pool],
            HISTOGRAM_announce_to_first_row,
            e->b.now_ns - m->history.length_ns);
        eroom_touch(e, m);
    }
}

static void close_job(struct encoded *e, struct out *out, struct edst *d)
{
    struct data_cmd cmd = job(e, d, SEND_CLOSE);

    if (d->job != JOB_OPEN)
        return;
    out_data(out, &cmd);
    edst_move_job(e, d, JOB_CLOSING);
}

/* which messages to L are pending */

/* True if all destinations with a lower name have their grants. */
static bool earlier_have(const struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;
    const char *name = e->b.peers.peers[d->peer].name;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);
        bool enough = o->firm == FIRM_YES || o->granted >= m->item->total ||
                      ((o->flags & FLAG_STREAM) && o->granted > 0);

        if (o->state == DST_ACTIVE && !enough &&
            strcmp(e->b.peers.peers[o->peer].name, name) < 0)
            return false;
    }
    return true;
}

/* True if L is asked to grant all rows ahead of their commit. */
static bool asks_ahead(const struct edst *d)
{
    return item_asks(d->room->item) && d->firm == FIRM_NO;
}

bool edst_rows_wait(const struct edst *d)
{
    const struct item *it = d->room->item;

    return item_held(it) && item_sendable(it, d->unit_rows) > grantable(d);
}

/* True if L may be asked for this destination. Several destinations are asked
 * in ascending name: each when those before it have granted all rows. */
static bool my_turn(const struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;
    bool source = item_held(m->item) && m->item->total != ROWS_UNKNOWN;

    return (source || asks_ahead(d)) && m->asked >= m->required &&
           earlier_have(e, d);
}

/* Asks L to take its grant back while an earlier destination that began anew is
 * asked again. So all rooms take blocks in one order. */
static void keep_order(struct encoded *e, struct edst *d)
{
    if (d->room->required < 2 || d->granted == 0 || (d->flags & FLAG_STREAM) ||
        d->broken_attempt == d->attempt || earlier_have(e, d))
        return;
    d->broken_attempt = d->attempt;
    d->back = true;
    owe(e, d, OWE_BROKEN);
}

/* True if only a larger grant lets the room go on. */
static bool wants(struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;

    if (!eroom_announced(m) || m->item->total == 0 || d->flags & FLAG_LEND)
        return false;
    if (m->required > 1 && (d->granted == 0 || asks_ahead(d)))
        return my_turn(e, d);
    return asks_ahead(d) || edst_rows_wait(d);
}

static void look_for_debts(struct encoded *e, struct edst *d)
{
    const struct eroom *m = d->room;
    bool grown = m->item->total == ROWS_UNKNOWN &&
                 m->item->committed > d->want_committed;
    bool changed =
        d->want_attempt != d->attempt || d->want_granted != d->granted || grown;

    if (eroom_announced(m) && d->length_acked != m->item->length_version &&
        d->length_sent != m->item->length_version) {
        d->length_sent = m->item->length_version;
        owe(e, d, OWE_LENGTH);
    }
    if (!wants(e, d)) {
        debt_paid(&d->debt, OWE_WANT);
    } else if (changed || !(d->want_known || d->debt.owe & OWE_WANT)) {
        d->want_older = d->want_open;
        d->want_open = true;
        d->want_known = false;
        d->want_attempt = d->attempt;
        d->want_granted = d->granted;
        d->want_committed = m->item->committed;
        owe(e, d, OWE_WANT);
    }
    if (d->broken_attempt != d->attempt)
        debt_paid(&d->debt, OWE_BROKEN);
}

static struct peer_msg about(const struct edst *d, enum peer_type type)
{
    return (struct peer_msg){
        .type = type, .room = d->room->r.id, .generation = d->generation};
}

void edst_say_state(
    struct encoded *e, struct out *out, struct edst *d, enum peer_type answers)
{
    const struct eroom *m = d->room;
    struct peer_msg msg = about(d, PEER_STATE);

    CHECK(d->state == DST_ACTIVE, "destination %u of state %u says how it is",
        edst_slot(e, d), d->state);
    msg.state.answers = (uint8_t)answers;
    msg.state.state = m->r.state;
    msg.state.attempt = d->attempt;
    msg.state.granted = d->granted;
    msg.state.firm = d->firm;
    msg.state.total = m->item->total;
    msg.state.flags = m->item->total != ROWS_UNKNOWN ? FLAG_AUX : 0;
    d->answer_ns = TIME_NEVER;
    if (peer_up(&e->b.peers.peers[d->peer])) /* otherwise L asks again */
        edst_tell(e, out, d, &msg, d->granted);
}

static void say_length(struct encoded *e, struct out *out, struct edst *d)
{
    const struct eroom *m = d->room;
    struct peer_msg msg = about(d, PEER_LENGTH);

    msg.length.total = m->item->total;
    msg.length.max_rows = m->item->max_rows;
    msg.length.committed = m->item->committed;
    msg.length.storage = m->item->storage;
    msg.length.flags =
        (uint8_t)((m->flags & FLAG_KEEP) |
                  (m->item->total != ROWS_UNKNOWN ? FLAG_AUX : 0));
    msg.length.key = m->item->key;
    msg.length.aux = aux_get(&e->b.aux, &m->item->aux, e->scratch);
    msg.length.attempt = d->attempt;
    msg.length.granted = d->granted;
    msg.length.firm = d->firm;
    msg.length.traceparent = span_str(m->history.traceparent);
    d->answer_ns = TIME_NEVER;
    edst_tell(e, out, d, &msg, m->item->total);
}

static void say_want(struct encoded *e, struct out *out, const struct edst *d)
{
    const struct eroom *m = d->room;
    struct peer_msg msg = about(d, PEER_WANT);

    msg.want.attempt = d->attempt;
    msg.want.granted = d->granted;
    msg.want.ahead = !edst_rows_wait(d) && asks_ahead(d);
    msg.want.committed = m->item->committed;
    if (msg.want.ahead || m->required > 1)
        msg.want.committed = min_u32(m->item->total, m->item->max_rows);
    edst_tell(e, out, d, &msg, msg.want.committed);
}

static void say_failed(struct encoded *e, struct out *out, const struct edst *d)
{
    struct peer_msg msg = about(d, PEER_FAILED);

    msg.failed.reason = d->reason;
    msg.failed.text = span_str(d->text);
    edst_tell(e, out, d, &msg, ROWS_UNKNOWN);
}

static void say_lend(struct encoded *e, struct out *out, const struct edst *d)
{
    uint8_t bytes[POOL_RUNS_MAX * 8];
    struct peer_msg msg = about(d, PEER_LEND);

    edst_fill_lend(e, d, &msg.lend, bytes);
    edst_tell(e, out, d, &msg, msg.lend.total);
}

/* Sends the pending messages to L that are due. */
static void say(struct encoded *e, struct out *out, struct edst *d)
{
    struct peer *p = &e->b.peers.peers[d->peer];
    bool held =
        d->aux_waits && (d->debt.owe == OWE_LENGTH || d->debt.owe == OWE_LEND);
    bool again;

    if (!d->debt.owe || !peer_up(p) ||
        (d->state == DST_FENCED && p->epoch != d->map_epoch)) {
        d->debt.retry_ns = TIME_NEVER; /* the next HELLO renews it */
        return;
    }
    if (held && d->debt.retry_ns && d->debt.backoff_ns < RETRY_MAX_NS) {
        /* L asks for the aux when it has space, and shows what it was lent when
         * all of its group is. They are repeated in case that is lost. */
        d->debt.backoff_ns = RETRY_MAX_NS;
        d->debt.retry_ns = e->b.now_ns + RETRY_MAX_NS;
    }
    if (!debt_due(&d->debt, e->b.now_ns, e->b.c.conf->timeout_retry, &again))
        return;
    e->b.stats[STAT_retries] += again && !held;
    d->aux_waits = false;
    if (d->debt.owe & OWE_LENGTH)
        say_length(e, out, d);
    if (d->debt.owe & OWE_WANT) {
        say_want(e, out, d);
        e->b.stats[STAT_wants] += !again;
    }
    if (d->debt.owe & OWE_FAILED)
        say_failed(e, out, d);
    if (d->debt.owe & OWE_LEND) { /* L may wait for others of a group */
        if (eroom_pool(e, d->room)->waiting > 0)
            say_want(e, out, d);
        else
            say_lend(e, out, d);
    }
    if (d->debt.owe & OWE_BROKEN) {
        struct peer_msg msg = about(d, PEER_BROKEN);

        msg.broken.attempt = d->attempt;
        msg.broken.back = d->back;
        msg.broken.committed = d->room->item->committed;
        edst_tell(e, out, d, &msg, msg.broken.committed);
    }
}

/* settling */

static void forget(struct encoded *e, struct edst *d)
{
    CHECK(d->map == NONE && d->debt.owe == 0,
        "destination %u is forgotten, fence %u, pending %u", edst_slot(e, d),
        d->map, d->debt.owe);
    table_remove(&e->gens, d->generation, d->peer);
    heap_remove(&e->dst_timers, &d->timer);
    list_remove(&d->in_room);
    list_remove(&d->in_peer);
    eroom_touch(e, d->room);
    edst_move(e, d, DST_FREE);
    slots_give(&e->dst_slots, edst_slot(e, d));
    share_give(&e->dst_share, SHARE_PEER(d->peer), 1);
}

/* Answers L's ABORT: nothing of the generation is sent any more. */
static void say_drained(struct encoded *e, struct out *out, struct edst *d)
{
    struct peer_msg msg = about(d, PEER_DRAINED);

    if (d->drained_due && peer_up(&e->b.peers.peers[d->peer]))
        edst_tell(e, out, d, &msg, ROWS_UNKNOWN);
    d->drained_due = false;
}

void edst_settle(struct encoded *e, struct out *out, struct edst *d)
{
    uint64_t at;

    CHECK(d->state > DST_NEW && !list_linked(&d->todo),
        "destination %u of state %u is settled", edst_slot(e, d), d->state);
    give_up_on(e, d);
    if (d->state == DST_ACTIVE) {
        keep_order(e, d);
        if (d->flags & FLAG_LEND)
            edst_lend(e, d);
        send_more(e, out, d);
        look_for_debts(e, d);
    } else {
        close_job(e, out, d);
    }
    if (d->debt.owe)
        say(e, out, d);
    if (d->answer_ns <= e->b.now_ns)
        edst_say_state(e, out, d, PEER_INIT);
    list_remove(&d->todo); /* its own moves touched it */
    if (d->state == DST_ENDED && d->job == JOB_NONE) {
        say_drained(e, out, d);
        forget(e, d);
        return;
    }
    at = min_u64(debt_deadline(&d->debt), d->answer_ns);
    if (at == TIME_NEVER)
        heap_remove(&e->dst_timers, &d->timer);
    else if (!heap_linked(&d->timer) || d->timer.key != at)
        heap_set(&e->dst_timers, &d->timer, at);
}
