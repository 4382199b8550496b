/* shard_gpu.c - rows of GPU pools on their way through a shard: out, from
 * blocks into pinned memory and then to the carrier; in, from the carrier into
 * pinned memory and then to blocks; straight, if the carrier reaches the GPU's
 * memory and a message's rows lie in one place. stage.c has the pinned memory;
 * shard_send.c and shard_land.c decide which rows are sent and which may land.
 *
 * Invariants: a message is posted, or a landing ended, once and only after its
 * copies have ended; pinned memory is held until the carrier has completed the
 * message, or its bytes were copied to `late`; a message that waited here for
 * its copy goes to the peer that it was made for, or is dropped. The shard's
 * thread.
 *
 * Rejected: rows of host pools in the same message straight from their blocks.
 * Such messages are small, and with one place per message all of them are
 * alike. Rejected: fewer places in `late` than messages. A fetch without a
 * place would fail its room. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "core/conf/conf.h"

#define COPIES 4096

/* The smallest message that is sent straight: for smaller ones pinned memory
 * costs less than a rendezvous. A guess, until it is measured on GPUs with a
 * network card beside them. */
#define STRAIGHT_BYTES (64u << 10)

_Static_assert(STAGE_SLOT_BYTES >= CONF_GPU_ROW, "a row fits into a slot");
_Static_assert(STAGE_SLOTS *IN_ENTRIES <= LANDINGS_MIN / 2 &&
                   COPIES >= SEND_IOV_MAX &&
                   COPIES >= PIECES_MAX * LAYOUT_FIELDS_MAX,
    "a message fits into a slot");

/* pools */

static bool on_gpu(const struct shard *s, uint32_t pool)
{
    return s->conf.pools[pool].mem->gpu != NULL;
}

static void report_lost(struct shard *s, uint32_t pool)
{
    CHECK(
        pool < s->conf.pools_count, "pool %u of %u", pool, s->conf.pools_count);
    if (s->pools_lost >> pool & 1)
        return;
    s->pools_lost |= UINT64_C(1) << pool;
    shard_notify(s, &(struct data_note){.type = NOTE_POOL_LOST, .first = pool});
}

/* Reports the pools whose GPU is lost. The loop may be giving memory to pools
 * that the shard was not told of. */
static void look_for_lost(struct shard *s)
{
    for (uint32_t i = 0; i < s->conf.pools_count; i++)
        if (s->pools_gpu >> i & 1 && cuda_lost(s->conf.pools[i].mem->gpu))
            report_lost(s, i);
}

static void over(void *ud, uint32_t slot, uint64_t cookie, bool ok)
{
    struct shard *s = ud;

    (void)slot;
    if (!ok)
        look_for_lost(s);
    s->role->staged(s, cookie, ok);
}

/* A segment that is fetched into `late` memory, because no slot may be held
 * while its bytes are on the way. Once all are here they go through a slot. */
struct bounce {
    uint32_t pool, n;
    struct piece pieces[PIECES_MAX];
    uint8_t bytes[];
};

static uint32_t slot_bytes(const struct shard *s)
{
    return max_u32(STAGE_SLOT_BYTES, s->conf.data.segment_bytes);
}

/* Returns how many bytes of `late` one message needs at most: for rows that are
 * sent, or for segments that are fetched. */
static size_t late_each(const struct shard *s)
{
    return slot_bytes(s) + SEGMENTS_MAX * sizeof(struct bounce);
}

void gpu_carve(struct shard *s, struct slab *slab, uint32_t messages)
{
    s->late = slab_take(slab, s->conf.gpu ? messages : 0, late_each(s));
}

bool gpu_known(struct shard *s, struct cuda *gpu)
{
    struct stage_conf c = {.slots = STAGE_SLOTS,
        .most = s->role->slots_most,
        .slot_bytes = slot_bytes(s),
        .entries = s->role->slot_entries,
        .copies = COPIES,
        .wake = &s->wake,
        .ud = s,
        .over = over};

    return (s->stage || stage_new(&s->stage, &c) == OK) &&
           stage_gpu(s->stage, gpu) == OK;
}

/* True if a carrier reaches the GPU's memory. */
static bool reached(struct shard *s, struct mem *m)
{
    if (!carry_to_gpus(s) || !cuda_settles(m->gpu))
        return false;
    if (!s->pools_direct)
        cuda_stay(m->gpu);
    return carry_memory(s, m);
}

void gpu_pool(struct shard *s, uint32_t i)
{
    struct mem *m = s->conf.pools[i].mem;
    uint32_t unit = layout_unit_most(&s->conf.pools[i].layout);
    bool known = m && m->gpu && gpu_known(s, m->gpu);

    if (!m || !m->gpu)
        return;
    s->pools_gpu |= UINT64_C(1) << i;
    if (!known)
        log_error("shard %u: no pinned memory for %s", s->conf.index, m->text);
    else if (unit > slot_bytes(s))
        log_error("shard %u: rows of %u bytes for %s: pinned memory takes "
                  "rows of %u",
            s->conf.index, unit, m->text, slot_bytes(s));
    if (!known || unit > slot_bytes(s)) {
        report_lost(s, i);
        return;
    }
    s->gpu_bytes = max_u32(s->gpu_bytes, unit);
    if (reached(s, m)) {
        s->pools_direct |= UINT64_C(1) << i;
        log_info("shard %u: the carrier itself reads and writes %s",
            s->conf.index, m->text);
        if (s->carries_count == 1)
            return; /* there is no other one that needs slots */
    }
    if (s->role->by_slots)
        s->role->by_slots(s);
}

unsigned gpu_turn(struct shard *s)
{
    unsigned n;

    if (!s->stage)
        return 0;
    n = stage_progress(s->stage);
    stage_push_due(s->stage);
    if (stage_probe(s->stage, s->now_ns))
        look_for_lost(s);
    return n;
}

/* out */

/* Pinned memory is held until the carrier has completed the message. So that a
 * stalled peer does not starve others, the stage may grow, and when slots are
 * scarce a message is copied out instead of holding its slot (gpu_handed). */
bool gpu_send_room(struct shard *s)
{
    /* A message is a segment, or one unit if that is larger. */
    uint32_t bytes = max_u32(s->conf.data.segment_bytes, s->gpu_bytes);

    return !s->stage || stage_room(s->stage, bytes, SEND_IOV_MAX) ||
           (sending_ready(s->send.sending) && stage_copying(s->stage) == 0 &&
               stage_grow(s->stage) &&
               stage_room(s->stage, bytes, SEND_IOV_MAX));
}

/* True if the rows are adjacent in a pool that the carrier reaches. */
static bool one_place(struct shard *s, const struct carry *by, uint32_t pool,
    const struct piece *pieces, uint32_t n, struct iovec *iov)
{
    uint32_t used = 0;

    return s->pools_direct >> pool & 1 && by && by->ops->gpu &&
           rows_iov(&s->conf.pools[pool], pieces, n, iov, &used, 1);
}

enum send_way gpu_way(struct shard *s, uint32_t ep)
{
    const struct send_batch *b = &s->send.batch;
    struct iovec iov;

    if (!s->stage || b->copy)
        return SEND_PLAIN;
    if (b->count == 1 && b->bytes >= STRAIGHT_BYTES &&
        s->send.straight[ep] < STRAIGHT_EACH &&
        one_place(s, s->send.routes[b->peer].by, b->from[0].pool, b->pieces,
            b->from[0].pieces, &iov))
        return SEND_STRAIGHT;
    for (uint32_t i = 0; i < b->count; i++)
        if (on_gpu(s, b->from[i].pool))
            return SEND_STAGED;
    return SEND_PLAIN;
}

/* Copies one segment's rows to pinned memory; returns where the next may
 * begin. */
static uint8_t *gather(struct shard *s, uint8_t *to, const struct shard_pool *p,
    const struct piece *pieces, uint32_t n)
{
    uint32_t places = rows_find(s, p, pieces, n);

    for (uint32_t i = 0; i < places; i++) {
        const struct iovec *row = &s->rows[i];

        if (p->mem->gpu)
            stage_copy(s->stage, p->mem->gpu, to, row->iov_base, row->iov_len);
        else
            guard_copy_zeros(to, row->iov_base, row->iov_len);
        to += row->iov_len;
    }
    return to;
}

void gpu_send(struct shard *s, uint32_t ep, uint32_t token)
{
    const struct send_batch *b = &s->send.batch;
    const struct piece *at = b->pieces;
    struct staged *t = &s->send.staged[token];
    uint8_t *to;

    CHECK(token < SEND_MESSAGES_MAX && !t->held, "message %u is staged twice",
        token);
    t->header_len =
        segments_put(t->header, b->segments, b->count, SEGMENTS_BYTES);
    t->segments = b->count;
    t->ep = ep;
    t->peer = b->peer;
    t->address = b->address;
    t->serial = s->send.routes[b->peer].serial;
    t->bytes = stage_take(s->stage, (uint32_t)b->bytes);
    t->len = b->bytes;
    t->slot = stage_hold(s->stage);
    t->held = true;
    stat_add(&s->stats.segments_staged, b->count);
    to = t->bytes;
    for (uint32_t i = 0; i < b->count; i++) {
        to = gather(
            s, to, &s->conf.pools[b->from[i].pool], at, b->from[i].pieces);
        at += b->from[i].pieces;
    }
    CHECK(to == t->bytes + t->len, "%td bytes of a message of %llu",
        to - t->bytes, (unsigned long long)t->len);
    (void)stage_entry(s->stage, token);
}

static void let_go(struct shard *s, struct staged *t)
{
    CHECK(t->held, "slot %u is not held", t->slot);
    t->held = false;
    stage_drop(s->stage, t->slot);
}

/* Copies a message out of its slot when slots are scarce. A slot is free only
 * as a whole: a few small messages to stalled peers would hold them all. The
 * windows bound what is copied out. */
void gpu_handed(struct shard *s, uint32_t token)
{
    struct staged *t = &s->send.staged[token];

    CHECK(t->held && s->late, "message %u is not in slot %u", token, t->slot);
    if (!stage_scarce(s->stage))
        return;
    t->bytes = memcpy(s->late + token * late_each(s), t->bytes, t->len);
    stat_add(&s->stats.segments_late, t->segments);
    let_go(s, t);
}

void gpu_done(struct shard *s, uint32_t token)
{
    struct staged *t = &s->send.staged[token];

    CHECK(token < SEND_MESSAGES_MAX, "message %u", token);
    if (s->stage && t->held)
        let_go(s, t);
}

/* in */

/* Waits only for copies, never for the network, since this thread would have to
 * serve it. */
bool gpu_room(struct shard *s, uint32_t bytes, uint32_t copies)
{
    if (!s->stage || bytes > slot_bytes(s))
        return false;
    while (!stage_room(s->stage, bytes, copies))
        if (!stage_wait(s->stage))
            return false;
    return true;
}

static void scatter(struct shard *s, const struct shard_pool *p,
    const struct piece *pieces, uint32_t n, const uint8_t *from)
{
    uint32_t places = rows_find(s, p, pieces, n);

    for (uint32_t i = 0; i < places; i++) {
        stage_copy(s->stage, p->mem->gpu, s->rows[i].iov_base, from,
            s->rows[i].iov_len);
        from += s->rows[i].iov_len;
    }
}

bool gpu_land(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, uint32_t token, const uint8_t *from, uint32_t bytes)
{
    const struct shard_pool *p = &s->conf.pools[pool];
    uint8_t *at;

    if (!on_gpu(s, pool))
        return false;
    if (!gpu_room(s, bytes, n * p->layout.count)) {
        stat_add(&s->stats.segments_dropped, 1);
        s->role->staged(s, land_cookie(token, bytes), false);
        return true;
    }
    stat_add(&s->stats.segments_staged, 1);
    at = stage_take(s->stage, bytes);
    memcpy(at, from, bytes);
    scatter(s, p, pieces, n, at);
    (void)stage_entry(s->stage, land_cookie(token, bytes));
    return true;
}

/* Returns memory for the last segment of a fetch; NULL: the segments are longer
 * than a message. */
static uint8_t *bounce_new(struct shard *s, struct fetch *f, uint32_t pool,
    const struct piece *pieces, uint32_t n)
{
    size_t each = late_each(s), at = f->late;
    struct fetch_of *of = &f->of[f->count - 1];

    if (each - at < sizeof(*of->bounce) + of->bytes)
        return NULL;
    of->bounce = (void *)(s->late + (size_t)(f - s->land.fetches) * each + at);
    *of->bounce = (struct bounce){.pool = pool, .n = n};
    memcpy(of->bounce->pieces, pieces, n * sizeof(*pieces));
    f->late += (uint32_t)(sizeof(*of->bounce) + of->bytes + 3) & ~3u;
    return of->bounce->bytes;
}

bool gpu_fetch(struct shard *s, uint32_t pool, const struct piece *pieces,
    uint32_t n, bool alone, struct fetch *all, struct iovec *iov)
{
    const struct shard_pool *p = &s->conf.pools[pool];
    struct fetch_of *f = &all->of[all->count - 1];
    uint8_t *at;

    if (alone && one_place(s, s->land.from, pool, pieces, n, iov)) {
        f->way = BY_GPU;
        f->gpu = p->mem->gpu;
        return true;
    }
    if (!s->stage || f->bytes > slot_bytes(s))
        return false;
    if (stage_room_fill(s->stage, f->bytes, n * p->layout.count)) {
        f->way = BY_SLOT;
        stat_add(&s->stats.segments_staged, 1);
        at = stage_take(s->stage, f->bytes);
        scatter(s, p, pieces, n, at);
        f->entry = stage_entry(s->stage, land_cookie(f->token, f->bytes));
        f->slot = stage_fill(s->stage);
    } else {
        f->way = BY_BOUNCE;
        stat_add(&s->stats.segments_late, 1);
        at = bounce_new(s, all, pool, pieces, n);
    }
    *iov = (struct iovec){at, f->bytes};
    return at != NULL;
}

static void bounce_fetched(struct shard *s, struct fetch_of *f, bool ok)
{
    const struct bounce *b = f->bounce;

    CHECK(b->n <= PIECES_MAX, "%u pieces", b->n);
    if (!ok ||
        !gpu_land(s, b->pool, b->pieces, b->n, f->token, b->bytes, f->bytes))
        s->role->staged(s, land_cookie(f->token, f->bytes), false);
}

void gpu_fetched(struct shard *s, struct fetch_of *f, bool ok)
{
    switch (f->way) {
    case BY_BOUNCE:
        bounce_fetched(s, f, ok);
        break;
    case BY_SLOT:
        if (!ok)
            stage_bad(s->stage, f->slot, f->entry);
        stage_filled(s->stage, f->slot);
        break;
    default:
        if (ok && cuda_settle(f->gpu) != OK) {
            look_for_lost(s);
            ok = false;
        }
        s->role->staged(s, land_cookie(f->token, f->bytes), ok);
    }
}

/* out of a source */

void gpu_move(struct shard *s, struct cuda *to_gpu, uint8_t *to,
    struct cuda *from_gpu, const uint8_t *from, uint64_t bytes)
{
    uint8_t *at;

    CHECK(to_gpu || from_gpu, "%llu bytes without a GPU",
        (unsigned long long)bytes);
    if (from_gpu) { /* on one GPU, between two, or to host memory */
        stage_copy(s->stage, to_gpu ? to_gpu : from_gpu, to, from, bytes);
        return;
    }
    at = stage_take(s->stage, (uint32_t)bytes);
    guard_copy_zeros(at, from, bytes);
    stage_copy(s->stage, to_gpu, to, at, bytes);
}

/* Ends a move's last entry. A move that failed half-way is reported only after
 * its submitted copies have finished. */
bool gpu_moved(struct shard *s, uint32_t i, bool ok)
{
    uint32_t entry;

    if (!gpu_room(s, 0, 0)) {
        while (s->stage && stage_wait(s->stage))
            ;
        return false;
    }
    entry = stage_entry(s->stage, COPY_COOKIE | i);
    if (!ok)
        stage_bad(s->stage, stage_filling(s->stage), entry);
    return true;
}
