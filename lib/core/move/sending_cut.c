/* sending_cut.c - chooses which rows of an endpoint's jobs go into its next
 * message: whole units, in as many pieces as both ends accept, small segments
 * apart from large ones. Runs in the thread of sending.c. */
#include "core/move/sending_impl.h"

#include "base/check.h"

/* Cuts the pieces down to `rows` rows; returns how many pieces are left. */
static uint32_t pieces_cut(struct piece *pieces, uint32_t n, uint32_t rows)
{
    uint32_t i = 0;

    for (; i < n && rows > 0; i++) {
        pieces[i].rows = min_u32(pieces[i].rows, rows);
        rows -= pieces[i].rows;
    }
    return i;
}

/* Returns the most rows, up to `rows`, that end at a unit's end or at the end
 * of all rows. */
static uint32_t whole_units(
    const struct send_job *j, uint32_t all, uint64_t rows)
{
    uint64_t end = j->cursor + rows;

    if (rows >= all)
        return all;
    end -= end % j->unit_rows;
    return end > j->cursor ? (uint32_t)(end - j->cursor) : 0;
}

/* Returns how many rows of j fit into the rest of the message. */
static uint32_t rows_fit(const struct fill *f, const struct send_job *j,
    const struct sending_pool *p, uint32_t all)
{
    const struct send_batch *b = f->b;
    uint64_t used = SEGMENT_HEADER + (b->count + 1) * SEGMENT_BYTES + b->bytes;
    uint64_t rows = f->room > used ? (f->room - used) / p->row_bytes : 0;
    uint64_t units =
        min_u32(SEGMENT_UNITS_MAX, (SEND_IOV_MAX - f->units) / p->fields);
    uint32_t take = whole_units(j, all, min_u64(rows, units * j->unit_rows));

    if (take > 0 || b->count > 0)
        return take;
    /* No unit fits an empty message: one is sent alone, as a large message. */
    take = min_u32(all, j->unit_rows - j->cursor % j->unit_rows);
    return f->large && (uint64_t)take * p->row_bytes <= f->window ? take : 0;
}

/* Returns the same for a message that only says where the rows lie. Segments
 * are kept small, so that the peer can serve other rooms in between. */
static uint32_t rows_fit_copy(
    const struct send_job *j, const struct sending_pool *p, uint32_t all)
{
    uint64_t rows = min_u64(COPY_BYTES_MAX / p->row_bytes,
        (uint64_t)SEGMENT_UNITS_MAX * j->unit_rows);
    uint32_t take = whole_units(j, all, rows);

    return take > 0 ? take
                    : min_u32(all, j->unit_rows - j->cursor % j->unit_rows);
}

/* Returns how many pieces another segment of the job may have. */
static uint32_t pieces_fit(const struct fill *f, const struct send_job *j,
    const struct sending_pool *p)
{
    const struct send_batch *b = f->b;
    uint32_t n = min_u32(
        PIECES_MAX / 2, (uint32_t)ARRAY_LEN(b->pieces) - b->pieces_count);
    uint64_t used;

    if (!j->copy)
        return min_u32(n, (SEND_IOV_MAX - f->places) / p->fields);
    used = SEGMENT_HEADER + (b->count + 1) * SEGMENT_BYTES + b->bytes +
           SEGMENT_SOURCE;
    if (b->count == 0) /* even the smallest message has space for all pieces */
        return n;
    return (uint32_t)min_u64(
        n, f->room > used ? (f->room - used) / PIECE_BYTES : 0);
}

enum cut { CUT_DONE, CUT_FULL, CUT_NEVER };

/* True if the rows of the first piece must be a message of their own; the other
 * pieces are cut off then. */
static bool cut_alone(const struct sending_pool *p, const struct send_job *j,
    uint32_t all, uint32_t *take, struct piece *pieces, uint32_t *n)
{
    uint32_t rows =
        *n > 0 ? whole_units(j, all, min_u32(*take, pieces[0].rows)) : 0;

    if (p->alone == 0 || p->fields != 1 ||
        (uint64_t)rows * p->row_bytes < p->alone)
        return false;
    *take = min_u32(rows, pieces[0].rows);
    *n = pieces_cut(pieces, *n, *take);
    return true;
}

/* Appends one segment of j to the message and moves the cursor. CUT_FULL: no
 * space for it in the message. CUT_NEVER: every unit of it has too many pieces.
 */
static enum cut job_cut(struct sending *s, struct send_job *j, struct fill *f)
{
    const struct send_pool *p = &s->pools[j->pool];
    struct send_batch *b = f->b;
    struct segment *seg = &b->segments[b->count];
    struct piece *at = &b->pieces[b->pieces_count];
    uint32_t all = send_job_rows(s, j), max = pieces_fit(f, j, &p->is), n, got;
    uint32_t take =
        j->copy ? rows_fit_copy(j, &p->is, all) : rows_fit(f, j, &p->is, all);

    if (take == 0 || max == 0)
        return CUT_FULL;
    got = runs_pieces(&p->runs, &j->at, (struct run_at){j->head, 0}, j->cursor,
        take, at, max, &n);
    if (got < take) { /* too many pieces: fewer rows, in whole units */
        take = whole_units(j, all, got);
        n = pieces_cut(at, n, take);
    }
    f->alone = !j->copy && s->peers[j->peer].reads != SEND_READS_NOT &&
               cut_alone(&p->is, j, all, &take, at, &n);
    if (take == 0 || (f->alone && b->count > 0))
        return b->count > 0 ? CUT_FULL : CUT_NEVER;
    CHECK(take <= all && n <= max, "%u of %u rows in %u of %u pieces", take,
        all, n, max);
    *seg = (struct segment){j->room, j->generation, j->attempt, j->cursor, take,
        j->total, take * p->is.row_bytes, SEGMENT_ALL};
    b->from[b->count].pool = (uint16_t)j->pool;
    b->from[b->count].pieces = (uint16_t)n;
    b->from[b->count].slot = (uint32_t)(j - s->jobs);
    b->from[b->count].generation = j->generation;
    b->count++;
    b->pieces_count += n;
    if (j->copy) {
        b->bytes += SEGMENT_SOURCE + n * PIECE_BYTES;
    } else {
        b->bytes += seg->bytes;
        f->units += div_up(take, j->unit_rows) * p->is.fields;
        f->places += n * p->is.fields;
    }
    j->in_flight++;
    j->cursor += take;
    return CUT_DONE;
}

/* True if the job's segment may join the message. The first segment decides its
 * kind: small segments, of jobs whose rows that may go fit one, or large. */
static bool of_kind(
    const struct sending *s, const struct send_job *j, struct fill *f)
{
    uint64_t bytes =
        (uint64_t)send_job_rows(s, j) * s->pools[j->pool].is.row_bytes;
    bool small =
        !j->copy && bytes + SEGMENT_HEADER + SEGMENT_BYTES <= SEND_SMALL_BYTES;

    if (f->b->count > 0)
        return f->b->copy == j->copy && f->small == small;
    f->b->copy = j->copy;
    f->small = small;
    if (small)
        f->room = min_u64(f->room, SEND_SMALL_BYTES);
    return true;
}

void send_fill(struct sending *s, uint32_t e, struct fill *f)
{
    struct send_ep *ep = &s->eps[e];
    struct send_job *j;

    while (f->b->count < SEGMENTS_MAX &&
           (j = LIST_FIRST(&ep->jobs, struct send_job, node))) {
        enum cut cut;

        if (!of_kind(s, j, f))
            return; /* the next message begins with this job */
        cut = job_cut(s, j, f);
        if (cut == CUT_FULL)
            return;
        list_remove(&j->node); /* its next turn comes after all others' */
        j->stuck = cut == CUT_NEVER;
        send_job_seek(s, j);
        send_job_update(s, j);
        if (f->alone)
            return;
    }
}
