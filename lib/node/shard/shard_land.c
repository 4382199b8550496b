/* shard_land.c - rows that arrive: messages of the carrier, through landing.c,
 * into the blocks of our pools.
 *
 * Invariants: no byte moves before landing_begin has admitted its segment;
 * every landing that began ends exactly once; notes about a slot keep the order
 * of what they report. The shard's thread.
 *
 * Adjacent NOTE_LANDEDs are merged. A merged note is sent when the slot's grant
 * has landed, or after NOTE_BYTES and NOTIFY_EVERY_NS, or when neither the
 * carrier nor a copy has more rows, or after NOTIFY_AFTER_NS.
 *
 * Rejected: one note per segment. The loop would wake 4,000 times per GB for
 * nothing, on the core that copies. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"

#include <stdlib.h>

static struct log_rate gone =
    LOG_RATE("rows whose memory is gone", LOG_WARN, 5);

#define NOTE_BYTES      (4u << 20) /* landed rows that one note may collect */
#define NOTIFY_EVERY_NS (2 * NS_PER_MS)
#define NOTIFY_AFTER_NS (10 * NS_PER_MS)
#define INLINE_COPIES   (1u << 20) /* bytes that the loop copies in a turn */
/* from the accept of a data connection to its greeting */
#define GREETING_MS 5000

static struct landing_pool pool_of(const struct shard_pool *p)
{
    struct landing_pool out = {
        .blocks = p->blocks, .block_rows = p->block_rows};

    if (p->layout.count > 0 && p->mem) {
        out.row_bytes = p->layout.row_bytes;
        out.unit_rows = layout_unit_rows(&p->layout, p->block_rows);
        out.part_rows = layout_part_rows(&p->layout, out.unit_rows);
    }
    return out;
}

/* Returns the number of data connections that a peer may have here. */
static uint32_t inbound_each(const struct shard_conf *c)
{
    return div_up(data_streams(c->data.streams, c->count), c->count);
}

static uint32_t inbound_max(const struct shard_conf *c)
{
    return c->peers * inbound_each(c) + INBOUND_SPARE;
}

/* Returns the number of messages that may be fetched at once: as many as
 * senders that keep to STRAIGHT_EACH and SEND_LARGE_EP can cause, or one per
 * connection. */
static uint32_t fetches_max(const struct shard_conf *c)
{
    uint32_t each = max_u32(FETCHES_EACH, inbound_each(c));

    return (c->peers + INBOUND_SPARE) * each;
}

static void carve(struct shard *s, struct slab *slab)
{
    const struct shard_conf *c = &s->conf;
    uint32_t fetches = fetches_max(c);
    struct landing_pool pools[SHARD_POOLS_MAX];

    for (uint32_t i = 0; i < c->pools_count; i++)
        pools[i] = pool_of(&c->pools[i]);
    s->land.landing = landing_init(slab, c->slots, LANDINGS_MIN + fetches,
        c->index, c->count, pools, c->pools_count);
    s->land.pending = slab_take(slab, c->slots, sizeof(*s->land.pending));
    s->land.pending_head = NONE;
    s->land.fetches = slab_take(slab, fetches, sizeof(*s->land.fetches));
    slots_init(&s->land.fetch_slots, slab, fetches);
    s->land.sink_bytes = c->data.segment_bytes;
    s->land.sink = slab_take(slab, 1, s->land.sink_bytes);
    s->land.keys = slab_take(slab, c->peers, sizeof(*s->land.keys));
    s->land.keyed = slab_take(slab, c->peers, sizeof(*s->land.keyed));
    copy_carve(s, slab);
    gpu_carve(s, slab, fetches);
}

static void set_pool(struct shard *s, uint32_t i)
{
    struct landing_pool p = pool_of(&s->conf.pools[i]);

    landing_pool_set(s->land.landing, i, &p);
}

/* notes */

static void notify_slot(struct shard *s, struct pending *u)
{
    CHECK(u->note.rows == 0 || u->note.type == NOTE_LANDED, "note %u",
        u->note.type);
    if (u->note.rows == 0)
        return;
    shard_notify(s, &u->note);
    u->note.rows = 0;
    u->bytes = 0;
}

/* Sends all pending notes. */
static void notify_all(struct shard *s)
{
    while (s->land.pending_head != NONE) {
        struct pending *u = &s->land.pending[s->land.pending_head];

        s->land.pending_head = u->next;
        u->listed = false;
        notify_slot(s, u);
    }
}

static void landed(struct shard *s, const struct data_note *n, uint32_t bytes)
{
    struct pending *u = &s->land.pending[n->slot];
    struct data_note *old = &u->note;

    CHECK(n->slot < s->conf.slots && n->rows > 0, "%u rows in slot %u", n->rows,
        n->slot);
    if (old->generation == n->generation && old->attempt == n->attempt &&
        old->rows > 0 && old->first + old->rows == n->first) {
        old->rows += n->rows;
    } else {
        notify_slot(s, u);
        *old = *n;
    }
    u->bytes += bytes;
    if (landing_full(s->land.landing, n->slot)) {
        notify_slot(s, u);
    } else if (u->bytes >= NOTE_BYTES &&
               s->now_ns - s->land.notified_ns > NOTIFY_EVERY_NS) {
        notify_slot(s, u);
        s->land.notified_ns = s->now_ns;
    } else if (!u->listed) {
        u->listed = true;
        u->next = s->land.pending_head;
        s->land.pending_head = n->slot;
    }
}

void land_end(struct shard *s, uint32_t token, bool ok, uint32_t bytes)
{
    struct data_note note, quiet;
    uint32_t quiets;

    if (landing_end(s->land.landing, token, ok, &note, &quiets, &quiet)) {
        stat_add(&s->stats.segments_landed, 1);
        stat_add(&s->stats.bytes_landed, bytes);
        landed(s, &note, bytes);
    }
    for (; quiets > 0; quiets--) {
        notify_slot(s, &s->land.pending[quiet.slot]);
        shard_notify(s, &quiet);
    }
}

static void command(struct shard *s, const struct data_cmd *cmd)
{
    bool quiet;

    if (cmd->type > LAND_CLOSE)
        return; /* about sending: encoded only */
    CHECK(cmd->slot < s->conf.slots, "command %u for slot %u of %u", cmd->type,
        cmd->slot, s->conf.slots);
    (void)landing_cmd(s->land.landing, cmd, &quiet);
    if (!quiet) {
        if (cmd->type == LAND_TRIM || (cmd->type == LAND_CLOSE && cmd->reply))
            copy_purge(s); /* the brain waits until unwanted copies end */
        return;
    }
    notify_slot(s, &s->land.pending[cmd->slot]);
    shard_notify(s, &(struct data_note){.type = NOTE_LAND_QUIET,
                        .slot = cmd->slot,
                        .attempt = cmd->attempt,
                        .generation = cmd->generation});
}

/* segments */

bool land_begin(struct shard *s, uint32_t who, const struct segment *seg,
    uint32_t *pool, struct piece *pieces, uint32_t *n, uint32_t *token)
{
    /* settle() will replace its key */
    bool old = who != NONE && s->land.keyed[who];
    uint32_t bad = NONE;
    enum err e = old ? ERR_STALE
                     : landing_begin(s->land.landing, who, seg, pool, pieces, n,
                           token, &bad);

    CHECK(e != OK || (*pool < s->conf.pools_count && *n <= PIECES_MAX),
        "%u pieces of pool %u", *n, *pool);
    if (e == OK)
        return true;
    stat_add(&s->stats.segments_dropped, 1);
    if (bad != NONE)
        shard_notify(s, &(struct data_note){.type = NOTE_LAND_BAD,
                            .slot = bad,
                            .attempt = seg->attempt,
                            .generation = seg->generation});
    return false;
}

/* Reports that the memory under a landing's rows is gone, here or in the
 * source. */
void land_gone(struct shard *s, uint32_t token)
{
    struct data_note n = {.type = NOTE_LAND_GONE};

    landing_whose(s->land.landing, token, &n.slot, &n.attempt, &n.generation);
    CHECK(n.slot < s->conf.slots, "landing %u is of slot %u", token, n.slot);
    log_rated(&gone,
        "rows of generation %llx: pages of their pool were taken away",
        (unsigned long long)n.generation);
    shard_notify(s, &n);
}

/* Copies one segment's bytes into its blocks. false: their memory is gone. */
static bool scatter(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, const uint8_t *from)
{
    uint32_t places = rows_find(s, &s->conf.pools[pool], pieces, n);

    for (uint32_t i = 0; i < places; i++) {
        if (!guard_copy(s->rows[i].iov_base, from, s->rows[i].iov_len))
            return false;
        from += s->rows[i].iov_len;
    }
    return true;
}

static void land_eager(struct shard *s, const struct data_in *in,
    const struct segment *segs, uint32_t count)
{
    const uint8_t *from = in->data;
    struct piece pieces[PIECES_MAX];
    uint32_t pool, n, token;
    bool good;

    s->moved += in->len;
    for (uint32_t i = 0; i < count; i++) {
        if (land_begin(s, in->who, &segs[i], &pool, pieces, &n, &token)) {
            if (gpu_land(s, pool, pieces, n, token, from, segs[i].bytes)) {
                from += segs[i].bytes;
                continue;
            }
            good = scatter(s, pool, pieces, n, from);
            if (!good)
                land_gone(s, token);
            land_end(s, token, good, segs[i].bytes);
        }
        from += segs[i].bytes;
    }
    CHECK(from <= in->data + in->len, "%u segments of %llu bytes", count,
        (unsigned long long)in->len);
}

/* Appends places for the bytes of a refused segment, which have to be fetched
 * too; false: there are not enough places. */
static bool sink_iov(struct shard *s, uint32_t bytes, uint32_t *used)
{
    CHECK(s->land.sink_bytes > 0, "a sink of no bytes");
    while (bytes > 0 && *used < DATA_IOV_MAX) {
        uint32_t take = min_u32(bytes, s->land.sink_bytes);

        s->iov[(*used)++] = (struct iovec){s->land.sink, take};
        bytes -= take;
    }
    return bytes == 0;
}

/* Appends where to fetch one segment's bytes to; false: there are not enough
 * places. alone: the segment is the whole message, which is not fetched at all
 * if it is refused. */
static bool fetch_iov(struct shard *s, uint32_t who, const struct segment *seg,
    bool alone, struct fetch *f, uint32_t *used)
{
    struct piece pieces[PIECES_MAX];
    uint32_t pool, n, token;
    struct fetch_of *of;

    if (!land_begin(s, who, seg, &pool, pieces, &n, &token))
        return alone || sink_iov(s, seg->bytes, used);
    CHECK(f->count < SEGMENTS_MAX, "a message of %u segments", f->count);
    of = &f->of[f->count++];
    *of = (struct fetch_of){.token = token, .bytes = seg->bytes};
    if (s->conf.pools[pool].mem->gpu) {
        if (*used < DATA_IOV_MAX &&
            gpu_fetch(s, pool, pieces, n, alone, f, &s->iov[*used])) {
            (*used)++;
            return true;
        }
        f->count--;
        stat_add(&s->stats.segments_dropped, 1);
        land_end(s, token, false, seg->bytes);
        return alone || sink_iov(s, seg->bytes, used);
    }
    return rows_iov(
        &s->conf.pools[pool], pieces, n, s->iov, used, DATA_IOV_MAX);
}

/* Receives a message of many segments whole, to be copied. false: the carrier
 * cannot. */
static bool land_whole(struct shard *s, const struct data_in *in)
{
    const struct carry *from = s->land.from;

    return from->ops->fetch(from->d, in, NULL, 0, NULL) == OK;
}

/* Returns a free fetch, if possible one used before: fresh memory stays
 * untouched. NULL: none. */
static struct fetch *fetch_take(struct shard *s)
{
    uint32_t i = slots_take(&s->land.fetch_slots);
    struct fetch *f = i == NONE ? NULL : &s->land.fetches[i];

    if (f)
        f->count = f->late = 0;
    return f;
}

static void fetched(void *ud, void *cookie, bool ok)
{
    struct shard *s = ud;
    struct fetch *f = cookie;

    CHECK(f >= s->land.fetches &&
              f < s->land.fetches + s->land.fetch_slots.fresh &&
              f->count <= SEGMENTS_MAX,
        "a fetch of %u segments", f->count);
    for (uint32_t i = 0; i < f->count; i++) {
        s->moved += f->of[i].bytes;
        if (f->of[i].way != BY_HOST)
            gpu_fetched(s, &f->of[i], ok);
        else
            land_end(s, f->of[i].token, ok, f->of[i].bytes);
    }
    slots_give(&s->land.fetch_slots, (uint32_t)(f - s->land.fetches));
}

static bool land_rendezvous(struct shard *s, const struct data_in *in,
    const struct segment *segs, uint32_t count)
{
    uint32_t used = 0;
    struct fetch *f;
    bool good = true;

    if (count > 1 && land_whole(s, in))
        return true;
    f = fetch_take(s);
    if (!f) {
        stat_add(&s->stats.segments_dropped, count);
        return false;
    }
    for (uint32_t i = 0; good && i < count; i++)
        good = fetch_iov(s, in->who, &segs[i], count == 1, f, &used);
    if (good && f->count > 0 &&
        s->land.from->ops->fetch(s->land.from->d, in, s->iov, used, f) == OK)
        return true;
    fetched(s, f, false);
    return false;
}

static bool arrived(void *ud, struct data *d, const struct data_in *in)
{
    struct segment segs[SEGMENTS_MAX];
    struct shard *s = ud;
    enum segment_kind kind;
    uint32_t count;

    s->land.from = carry_of(s, d);
    /* The message may be granted by an order that came after this turn's look
     * at the ring. */
    (void)shard_orders(s);
    if (segments_get(in->header, in->len, &kind, segs, &count) != OK) {
        stat_add(&s->stats.segments_dropped, 1);
        return false;
    }
    if (kind == SEGMENTS_SOURCES)
        return copy_arrived(s, in, segs, count);
    if (!in->data)
        return land_rendezvous(s, in, segs, count);
    land_eager(s, in, segs, count);
    return true;
}

/* the role */

/* Returns the bytes of the longest message: a segment, or one unit if that is
 * more. A pool whose layout is not known yet may get rows of any size. */
static uint32_t message_max(const struct shard_conf *c)
{
    uint32_t most = c->data.segment_bytes;

    for (uint32_t i = 0; i < c->pools_count; i++) {
        const struct layout *l = &c->pools[i].layout;

        most = max_u32(most, l->count ? layout_unit_most(l) : ROW_BYTES_MAX);
    }
    return most;
}

static void limits(struct shard_conf *c)
{
    c->data.endpoints_max = 1;
    c->data.keys_max = c->peers;
    c->data.inbound_max = inbound_max(c);
    c->data.fetches_max = fetches_max(c);
    c->data.message_max = message_max(c);
    c->data.greeting_ms = GREETING_MS;
}

static void order(struct shard *s, const struct order *o)
{
    switch ((enum order_type)o->type) {
    case ORDER_CMD: /* goes to command() */
        break;
    case ORDER_KEY:
        s->land.keys[o->key.peer] = o->key;
        s->land.keyed[o->key.peer] = s->land.keys_due = true;
        return;
    case ORDER_PEER: /* encoded only */
        orders_blob_free(s, o->peer.blob);
        return;
    case ORDER_POOL: /* rows for the pool may come at once */
        set_pool(s, o->pool);
        if (s->conf.pools[o->pool].mem->gpu)
            (void)gpu_known(s, s->conf.pools[o->pool].mem->gpu);
        s->land.pools_due |= UINT64_C(1) << o->pool;
        return;
    case ORDER_SOURCE:
        if (o->source.source)
            copy_source(s, o->source.peer, o->source.pool, o->source.source);
        else
            copy_sources_drop(s, o->source.peer);
        return;
    }
    CHECK(false, "order %u", o->type);
}

/* Tells the carriers about pools and new keys. That may end connections, so it
 * is not done while a message of a connection is delivered; until it is done no
 * row lands under an old key. */
static void settle(struct shard *s)
{
    for (; s->land.pools_due; s->land.pools_due &= s->land.pools_due - 1)
        orders_pool(s, (uint32_t)__builtin_ctzll(s->land.pools_due));
    if (!s->land.keys_due)
        return;
    s->land.keys_due = false;
    for (uint32_t i = 0; i < s->conf.peers; i++) {
        struct order_key *k = &s->land.keys[i];

        for (uint32_t j = 0; s->land.keyed[i] && j < s->carries_count; j++)
            s->carries[j].ops->admit(
                s->carries[j].d, i, span_of(k->bytes, k->len));
        s->land.keyed[i] = false;
        *k = (struct order_key){0};
    }
}

/* Sends pending notes when no more rows are about to land, or after
 * NOTIFY_AFTER_NS. While copies wait, notes can still grow. */
static void progressed(struct shard *s, bool idle)
{
    if ((idle && !copy_waiting(s)) ||
        s->now_ns - s->land.notified_ns > NOTIFY_AFTER_NS) {
        notify_all(s);
        s->land.notified_ns = s->now_ns;
    }
}

static unsigned after(struct shard *s, bool in_loop)
{
    unsigned n = copy_turn(s, in_loop ? INLINE_COPIES : UINT64_MAX);

    if (in_loop)
        notify_all(s);
    return n;
}

static uint32_t active(const struct shard *s)
{
    return landing_active(s->land.landing);
}

/* Ends the landing or the copy whose bytes have reached the GPU. */
static void staged(struct shard *s, uint64_t cookie, bool ok)
{
    if (cookie & COPY_COOKIE)
        copy_over(s, (uint32_t)cookie, ok);
    else
        land_end(s, (uint32_t)cookie, ok, (uint32_t)(cookie >> 32));
}

const struct shard_role shard_lands = {.limits = limits,
    .carve = carve,
    .fini = copy_free,
    .command = command,
    .order = order,
    .settle = settle,
    .progressed = progressed,
    .after = after,
    .due = copy_waiting,
    .active = active,
    .calls = {.arrived = arrived, .fetched = fetched},
    .staged = staged,
    .slots_most = STAGE_SLOTS,
    .slot_entries = IN_ENTRIES};
