/* shard_copy.c - rows that are fetched from another daemon's memory: messages
 * that say where rows lie, through landing.c, then copies from the mapped
 * source into our blocks.
 *
 * Invariants: nothing of a source is read before its pieces were found inside
 * it and landing_begin has admitted the segment; every landing that began ends
 * exactly once, with its bytes in place, or without them when they are no
 * longer wanted (the source is not read for it after that). A copy holds its
 * source. Engines may take pages of a source away at any time: that fails the
 * room. The shard's thread.
 *
 * Messages are small and come faster than rows can be copied, so copies wait
 * here: small ones first, and a slice of the large ones in between, so that one
 * huge room does not delay small ones. When no entry is free, copies are made
 * before the next message is read.
 *
 * Rejected: copying at once in the carrier's callback. A few messages describe
 * all of a huge room; small rooms would wait behind all of it. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/guard.h"

/* below LANDINGS_MIN, since fetches are landings, too */
#define COPIES_MAX  768
#define SMALL_BYTES (256u << 10)
#define SLICE_BYTES (2u << 20)
#define STEP_BYTES  (256u << 10) /* through pinned memory */

_Static_assert(COPIES_MAX < LANDINGS_MIN, "a copy is a landing");

void copy_carve(struct shard *s, struct slab *slab)
{
    s->land.sources = slab_take(
        slab, (size_t)s->conf.peers * SHARD_POOLS_MAX, sizeof(struct source *));
    s->land.copies = slab_take(slab, COPIES_MAX, sizeof(*s->land.copies));
    slots_init(&s->land.copy_slots, slab, COPIES_MAX);
    s->land.small = s->land.large = (struct copies){NONE, NONE};
}

void copy_free(struct shard *s)
{
    for (uint32_t i = 0; i < s->land.copy_slots.fresh; i++)
        source_drop(s->land.copies[i].source);
    for (uint32_t i = 0; s->land.sources && i < s->conf.peers * SHARD_POOLS_MAX;
         i++)
        source_drop(s->land.sources[i]);
}

void copy_source(
    struct shard *s, uint32_t peer, uint32_t pool, struct source *source)
{
    struct source **at = &s->land.sources[peer * SHARD_POOLS_MAX + pool];

    source_drop(*at);
    if (source->gpu.gpu && !gpu_known(s, source->gpu.gpu)) {
        source_drop(source);
        source = NULL;
    }
    *at = source;
}

void copy_sources_drop(struct shard *s, uint32_t peer)
{
    struct source **at = &s->land.sources[peer * SHARD_POOLS_MAX];

    for (uint32_t i = 0; i < SHARD_POOLS_MAX; i++) {
        source_drop(at[i]);
        at[i] = NULL;
    }
}

/* queues */

static void push(struct shard *s, struct copies *q, uint32_t i)
{
    CHECK(i < COPIES_MAX && s->land.copies[i].source, "copy %u", i);
    s->land.copies[i].next = NONE;
    if (q->tail == NONE)
        q->head = i;
    else
        s->land.copies[q->tail].next = i;
    q->tail = i;
}

static uint32_t pop(struct shard *s, struct copies *q)
{
    uint32_t i = q->head;

    CHECK(i < COPIES_MAX, "copy %u is queued", i);
    q->head = s->land.copies[i].next;
    if (q->head == NONE)
        q->tail = NONE;
    return i;
}

/* Ends a copy that is on no queue. */
static void finish(struct shard *s, uint32_t i, bool ok)
{
    struct copy *c = &s->land.copies[i];

    CHECK(i < COPIES_MAX && c->source, "copy %u ends twice", i);
    source_drop(c->source);
    c->source = NULL;
    slots_give(&s->land.copy_slots, i);
    if (ok)
        stat_add(&s->stats.segments_copied, 1);
    land_end(s, c->token, ok, c->bytes);
}

static void purge(struct shard *s, struct copies *q)
{
    struct copies old = *q;

    *q = (struct copies){NONE, NONE};
    while (old.head != NONE) {
        uint32_t i = pop(s, &old);

        if (landing_counts(s->land.landing, s->land.copies[i].token))
            push(s, q, i);
        else
            finish(s, i, false);
    }
}

void copy_purge(struct shard *s)
{
    purge(s, &s->land.small);
    purge(s, &s->land.large);
}

/* copying */

static void advance(
    struct piece_at *p, const struct piece *pieces, uint32_t rows)
{
    p->at += rows;
    CHECK(p->at <= pieces[p->i].rows, "row %u of a piece of %u", p->at,
        pieces[p->i].rows);
    if (p->at == pieces[p->i].rows) {
        p->i++;
        p->at = 0;
    }
}

static uint64_t row_of(
    const struct piece *pieces, struct piece_at p, uint32_t block_rows)
{
    return (uint64_t)pieces[p.i].block * block_rows + pieces[p.i].at + p.at;
}

/* Copies the rows that both pieces have in common: up to `max` bytes, but at
 * least one row. At the end of a field advances to the next. Returns the bytes;
 * 0: the memory at one end is gone. */
static uint64_t step(
    struct shard *s, struct copy *c, const struct shard_pool *to, uint64_t max)
{
    const struct source *from = c->source;
    uint64_t row_bytes = to->layout.fields[c->field].row_bytes;
    uint32_t rows = min_u32(c->to[c->to_at.i].rows - c->to_at.at,
        c->from[c->from_at.i].rows - c->from_at.at);
    uint64_t at = row_of(c->to, c->to_at, to->block_rows);
    uint64_t of = row_of(c->from, c->from_at, from->block_rows);
    uint8_t *dst = mem_start(to->mem) + to->offsets[c->field] + at * row_bytes;
    const uint8_t *src = from->base + from->offsets[c->field] + of * row_bytes;

    CHECK(c->to_at.i < c->to_count && c->from_at.i < c->from_count,
        "pieces %u of %u, %u of %u", c->to_at.i, c->to_count, c->from_at.i,
        c->from_count);
    rows = (uint32_t)min_u64(rows, max < row_bytes ? 1 : max / row_bytes);
    if (to->mem->gpu || from->gpu.gpu)
        gpu_move(s, to->mem->gpu, dst, from->gpu.gpu, src, rows * row_bytes);
    else if (!guard_copy_rows(dst, src, rows * row_bytes))
        return 0;
    advance(&c->to_at, c->to, rows);
    advance(&c->from_at, c->from, rows);
    if (c->to_at.i == c->to_count) {
        c->to_at = c->from_at = (struct piece_at){0, 0};
        c->field++;
    }
    return rows * row_bytes;
}

enum course { COURSE_MORE, COURSE_DONE, COURSE_GONE };

/* Continues a copy, for about `bytes` bytes. */
static enum course go_on(struct shard *s, struct copy *c, uint64_t bytes)
{
    const struct shard_pool *to = &s->conf.pools[c->pool];
    uint64_t done = 0;

    while (c->field < to->layout.count) {
        uint64_t n;

        if (done >= bytes)
            return COURSE_MORE;
        n = step(s, c, to, bytes - done);
        if (n == 0)
            return COURSE_GONE;
        done += n;
    }
    return COURSE_DONE;
}

/* Submits a whole copy that has a GPU at one end; copy_over ends it later. */
static void by_gpu(struct shard *s, uint32_t i)
{
    struct copy *c = &s->land.copies[i];
    const struct shard_pool *to = &s->conf.pools[c->pool];
    uint64_t max = c->source->gpu.gpu ? UINT64_MAX : STEP_BYTES;
    bool ok = true;

    while (ok && c->field < to->layout.count) {
        uint32_t row_bytes = to->layout.fields[c->field].row_bytes;
        uint32_t bytes = max == STEP_BYTES ? max_u32(STEP_BYTES, row_bytes) : 0;

        ok = gpu_room(s, bytes, 1);
        if (ok)
            step(s, c, to, max);
    }
    if (!gpu_moved(s, i, ok))
        finish(s, i, false);
}

/* True if no GPU of copy i is lost. An earlier slot of the copy may have failed
 * although the last one did not. */
static bool copied(const struct shard *s, uint32_t i)
{
    const struct copy *c = &s->land.copies[i];
    const struct cuda *to = s->conf.pools[c->pool].mem->gpu;
    const struct cuda *from = c->source->gpu.gpu;

    return !(to && cuda_lost(to)) && !(from && cuda_lost(from));
}

void copy_over(struct shard *s, uint32_t i, bool ok)
{
    finish(s, i, ok && copied(s, i));
}

/* Continues the head of a queue for about `bytes`; returns the bytes done. */
static uint64_t serve(struct shard *s, struct copies *q, uint64_t bytes)
{
    struct copy *c = &s->land.copies[q->head];
    bool wanted = landing_counts(s->land.landing, c->token);
    uint64_t of = min_u64(bytes, c->bytes);
    enum course how;

    if (wanted && (s->conf.pools[c->pool].mem->gpu || c->source->gpu.gpu)) {
        by_gpu(s, pop(s, q));
        return of;
    }
    if (!wanted) {
        finish(s, pop(s, q), false);
        return 0;
    }
    how = go_on(s, c, bytes);
    if (how == COURSE_GONE)
        land_gone(s, c->token);
    if (how != COURSE_MORE)
        finish(s, pop(s, q), how == COURSE_DONE);
    return of;
}

bool copy_waiting(struct shard *s)
{
    return s->land.small.head != NONE || s->land.large.head != NONE;
}

unsigned copy_turn(struct shard *s, uint64_t max)
{
    uint64_t bytes = 0;
    unsigned n = 0;

    for (; s->land.small.head != NONE && bytes < min_u64(max, SLICE_BYTES); n++)
        bytes += serve(s, &s->land.small, SMALL_BYTES);
    if (s->land.large.head != NONE && bytes < max) {
        serve(s, &s->land.large, min_u64(max - bytes, SLICE_BYTES));
        n++;
    }
    return n;
}

/* messages */

/* Returns the source of a segment, held, if all its rows can be copied from it;
 * else NULL. */
static struct source *source_of(struct shard *s, const struct segment *seg,
    uint32_t from, const struct piece *pieces, uint32_t n)
{
    uint32_t peer, pool;
    struct source *found;
    const struct shard_pool *to;

    if (!landing_peer(s->land.landing, seg->generation, &peer, &pool) ||
        peer >= s->conf.peers || from >= SHARD_POOLS_MAX)
        return NULL;
    found = s->land.sources[peer * SHARD_POOLS_MAX + from];
    to = &s->conf.pools[pool];
    if (!found || !to->mem ||
        strcmp(found->layout.text, to->layout.text) != 0 ||
        !pieces_inside(pieces, n, found->blocks, found->block_rows))
        return NULL;
    return source_hold(found);
}

static void take(struct shard *s, uint32_t who, const struct segment *seg,
    uint32_t from, const struct piece *pieces, uint32_t n)
{
    struct source *source = source_of(s, seg, from, pieces, n);
    uint32_t pool, count, i;
    struct copy *c;

    if (!source) {
        stat_add(&s->stats.segments_dropped, 1);
        return;
    }
    while ((i = slots_take(&s->land.copy_slots)) == NONE)
        copy_turn(s, UINT64_MAX);
    c = &s->land.copies[i];
    if (!land_begin(s, who, seg, &pool, c->to, &count, &c->token)) {
        source_drop(source);
        slots_give(&s->land.copy_slots, i);
        return;
    }
    c->source = source;
    c->bytes = seg->bytes;
    c->pool = (uint16_t)pool;
    c->to_count = (uint16_t)count;
    c->from_count = (uint16_t)n;
    c->field = 0;
    c->to_at = c->from_at = (struct piece_at){0, 0};
    CHECK(n <= PIECES_MAX, "%u pieces", n);
    memcpy(c->from, pieces, n * sizeof(*pieces));
    push(s, seg->bytes <= SMALL_BYTES ? &s->land.small : &s->land.large, i);
}

bool copy_arrived(struct shard *s, const struct data_in *in,
    const struct segment *segs, uint32_t count)
{
    struct piece pieces[PIECES_MAX];
    uint32_t i = 0, n;
    struct reader r = reader_of(in->data, in->data ? in->len : 0);
    uint16_t pool;

    while (i < count && source_get(&r, &segs[i], &pool, pieces, &n) == OK)
        take(s, in->who, &segs[i++], pool, pieces, n);
    stat_add(&s->stats.segments_dropped, count - i);
    return in->data != NULL;
}
