/* look.c - reads of an engine's rooms: states, runs, rows.
 *
 * Invariants. States are read from cells without the lock. Addresses are given
 * only for rows that an event has reported and that are not released, in a map
 * of the same run of the daemon; every block number was checked against the
 * pool when the event arrived. While bytes are copied the lock is not held: the
 * caller must not release the rows that it copies.
 *
 * Rejected: returning a pointer per block. Engines need arrays, and the daemon
 * prefers to grant one run, so one array is the usual case. */
#include "client/client.h"

#include <string.h>

/* Returns the word of a room's cell: the daemon's, else the handle's own. */
static uint64_t word_of(const mmx *m, mmx_room h)
{
    uint64_t w;

    if (h.cell >= m->cells || h.tag == 0)
        return cell_word(MMX_FAILED_STATE, MMX_E_UNKNOWN_ROOM, 0, 0);
    w = atomic_load_explicit(&m->page[h.cell], memory_order_acquire);
    if (cell_tag(w) == h.tag)
        return w;
    w = atomic_load_explicit(&m->own[h.cell], memory_order_acquire);
    if (cell_tag(w) == h.tag)
        return w;
    return cell_word(MMX_BOOTSTRAPPING, 0, h.tag, 0);
}

int mmx_poll(const mmx *m, const mmx_room *rooms, int n, struct mmx_state *out)
{
    int least = MMX_SUCCESS;

    for (int i = 0; i < n; i++) {
        uint64_t w = word_of(m, rooms[i]);
        int state = (int)cell_state(w);

        if (out)
            out[i] =
                (struct mmx_state){state, (int)cell_reason(w), cell_rows(w)};
        if (state < least)
            least = state;
    }
    return least;
}

const volatile uint64_t *mmx_cell(const mmx *m, mmx_room h)
{
    return h.cell < m->cells ? (const volatile uint64_t *)&m->page[h.cell]
                             : NULL;
}

int mmx_look(mmx *m, mmx_room h, struct mmx_look *out)
{
    struct mmx_look l = {0};
    struct client_room *r;
    int err = client_lock(m);

    if (err)
        return err;
    r = client_room(m, h);
    if (r)
        l = (struct mmx_look){.id = r->id,
            .generation = r->generation,
            .user = r->user,
            .seen = r->seen,
            .state = (int)cell_state(word_of(m, h)),
            .reason = (int)cell_reason(word_of(m, h)),
            .storage = r->storage,
            .first = max_u32(r->first, r->base),
            .rows = r->rows,
            .total = r->total,
            .stream_rows = r->stream_rows,
            .aux = r->aux_len ? m->stores[h.cell].aux : NULL,
            .aux_len = r->aux_len};
    client_unlock(m);
    if (!r)
        return -MMX_E_STALE;
    return CLIENT_GIVE(out, l) ? 0 : -MMX_E_MALFORMED;
}

/* The visible rows [first, end) of one field. */
struct place {
    const struct client_room *room;
    const struct client_run *runs;
    const struct mmx_pool *pool;
    const struct mmx_field *field;
    uint32_t first, end;
};

static const struct mmx_field *find_field(
    const struct mmx_pool *p, const char *name)
{
    for (uint32_t i = 0; i < p->fields_count; i++)
        if (!name || strcmp(p->fields[i].name, name) == 0)
            return &p->fields[i];
    return NULL;
}

/* Finds a room, its pool and a field of it. */
static int find_room(mmx *m, mmx_room h, const char *field, struct place *out)
{
    struct client_room *r = client_room(m, h);
    const struct client_map *map;
    struct place p;

    if (!r)
        return -MMX_E_STALE;
    if (!r->pooled)
        return -MMX_E_NOT_OWNER;
    if (r->map == MAP_NONE)
        return -MMX_E_NOT_READY;
    assert(r->map < MAPS_MAX);
    map = &m->maps[r->map];
    assert(map->used);
    if (map->serial != r->serial)
        return -MMX_E_STALE;
    p = (struct place){r, m->stores[h.cell].runs, &map->pool, NULL, 0, 0};
    p.field = find_field(p.pool, field);
    if (!p.field)
        return -MMX_E_MALFORMED;
    *out = p;
    return 0;
}

/* Returns the number of rows reported by the last event or the cell, whichever
 * is more. */
static uint32_t rows_seen(const mmx *m, mmx_room h, const struct client_room *r)
{
    return max_u32(r->rows, cell_rows(word_of(m, h)));
}

/* Finds the visible rows of a field. */
static int find_place(mmx *m, mmx_room h, const char *field, struct place *out)
{
    struct place p;
    const struct client_room *r;
    uint64_t end;
    int err = find_room(m, h, field, &p);

    if (err)
        return err;
    r = p.room;
    /* A room without rows has no runs either. */
    if (r->runs == 0 && (r->rows || !(r->seen & (MMX_READY | MMX_GRANTED))))
        return -MMX_E_NOT_READY;
    end = r->first;
    for (uint32_t i = 0; i < r->runs; i++)
        end += (uint64_t)p.runs[i].blocks * p.pool->block_rows;
    p.first = max_u32(r->first, r->base);
    p.end = (uint32_t)min_u64(end, rows_seen(m, h, r));
    *out = p;
    return 0;
}

_Static_assert(sizeof(struct client_run) == sizeof(struct window_blocks) &&
                   offsetof(struct client_run, blocks) ==
                       offsetof(struct window_blocks, blocks),
    "window.h and client.h differ");

int client_source(
    mmx *m, mmx_room h, const char *field, struct window_source *out, int *gpu)
{
    struct place p;
    int err = find_room(m, h, field, &p);

    if (err)
        return err;
    *out = (struct window_source){.base = p.field->data,
        .block_rows = p.pool->block_rows,
        .row_bytes = p.field->row_bytes,
        .elements = p.field->elements,
        .first = p.room->first,
        .runs = (const struct window_blocks *)p.runs,
        .runs_count = p.room->runs,
        .released = p.room->base,
        .readable = rows_seen(m, h, p.room),
        .total = p.room->total};
    memcpy(out->dtype, p.field->dtype, sizeof out->dtype);
    *gpu = p.pool->gpu;
    return 0;
}

/* Returns the address of a row; *rows: visible rows from it on in its run. */
static uint8_t *piece(const struct place *p, uint32_t row, uint32_t *rows)
{
    uint64_t at = p->room->first;
    const struct client_run *run = p->runs;

    assert(row >= p->first && row < p->end);
    for (;; run++) {
        uint64_t end = at + (uint64_t)run->blocks * p->pool->block_rows;

        assert(run < p->runs + p->room->runs);
        if (row < end) {
            *rows = (uint32_t)(min_u64(end, p->end) - row);
            return (uint8_t *)p->field->data +
                   ((uint64_t)run->block * p->pool->block_rows + row - at) *
                       p->field->row_bytes;
        }
        at = end;
    }
}

static int runs_of(mmx *m, mmx_room h, struct mmx_run *out, int max)
{
    struct place p;
    uint64_t at;
    int err = find_place(m, h, NULL, &p), n = 0;

    if (err)
        return err;
    at = p.room->first;
    for (uint32_t i = 0; i < p.room->runs && at < p.end; i++, n++) {
        uint64_t end = at + (uint64_t)p.runs[i].blocks * p.pool->block_rows;

        if (n < max)
            out[n] = (struct mmx_run){(uint32_t)at,
                (uint32_t)(min_u64(end, p.end) - at), p.runs[i].block};
        at = end;
    }
    return n;
}

int mmx_runs(mmx *m, mmx_room h, struct mmx_run *out, int max)
{
    int n;

    if (max < 0 || (max && !out))
        return -MMX_E_MALFORMED;
    n = client_lock(m);
    if (n)
        return n;
    n = runs_of(m, h, out, max);
    client_unlock(m);
    return n;
}

/* Checks that rows [first, first + *rows) are visible; replaces MMX_ALL by the
 * number of visible rows. */
static int check_rows(const struct place *p, uint32_t first, uint32_t *rows)
{
    if (first < p->first)
        return first < p->room->base ? -MMX_E_GONE : -MMX_E_NOT_READY;
    if (first > p->end)
        return -MMX_E_NOT_READY;
    if (*rows == MMX_ALL)
        *rows = p->end - first;
    return *rows <= p->end - first ? 0 : -MMX_E_NOT_READY;
}

static int view_of(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out)
{
    struct place p;
    uint32_t have = 0;
    uint8_t *at = NULL;
    int err = find_place(m, h, field, &p);

    if (!err)
        err = check_rows(&p, first, &rows);
    if (err)
        return err;
    if (rows)
        at = piece(&p, first, &have);
    if (have < rows)
        return -MMX_E_SPLIT;
    *out = (struct mmx_view){at, first, rows, p.field->row_bytes};
    return 0;
}

int mmx_view(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out)
{
    int err;

    if (!out)
        return -MMX_E_MALFORMED;
    err = client_lock(m);
    if (err)
        return err;
    err = view_of(m, h, field, first, rows, out);
    client_unlock(m);
    return err;
}

/* Finds the next piece of a copy; checks all rows before the first byte. */
static int next_piece(mmx *m, mmx_room h, const char *field, bool write,
    uint32_t first, uint32_t *rows, uint8_t **at, struct mmx_view *out,
    int *gpu)
{
    struct place p;
    uint32_t have = 0;
    int err = client_lock(m);

    if (err)
        return err;
    err = find_place(m, h, field, &p);
    if (!err && write && !p.pool->writable)
        err = -MMX_E_NOT_OWNER;
    if (!err)
        err = check_rows(&p, first, rows);
    if (!err) {
        if (*rows)
            *at = piece(&p, first, &have);
        assert(have > 0 || *rows == 0); /* the caller's loop ends */
        *out = (struct mmx_view){
            NULL, first, min_u32(have, *rows), p.field->row_bytes};
        *gpu = p.pool->gpu;
    }
    client_unlock(m);
    return err;
}

static int copy_rows(int gpu, uint8_t *to, size_t to_stride,
    const uint8_t *from, size_t from_stride, uint32_t rows, size_t row_bytes)
{
    if (gpu >= 0)
        return client_gpu_copy(gpu, (struct client_rows){to, to_stride},
            (struct client_rows){from, from_stride}, rows, row_bytes);
    if (rows > 0 && to_stride == row_bytes && from_stride == row_bytes) {
        memcpy(to, from, rows * row_bytes);
        return 0;
    }
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * to_stride, from + i * from_stride, row_bytes);
    return 0;
}

int mmx_gather(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, void *dst, size_t stride)
{
    uint8_t *to = dst, *from = NULL;
    struct mmx_view v;
    int gpu;

    do {
        int err = next_piece(m, h, field, false, first, &rows, &from, &v, &gpu);
        size_t step = stride ? stride : v.stride;

        if (err)
            return err;
        if (step < v.stride || (rows && !dst))
            return -MMX_E_MALFORMED;
        err = copy_rows(gpu, to, step, from, v.stride, v.rows, v.stride);
        if (err)
            return err;
        to += v.rows * step;
        first += v.rows;
        rows -= v.rows;
    } while (rows);
    return 0;
}

int mmx_scatter(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, const void *src, size_t stride)
{
    const uint8_t *from = src;
    struct mmx_view v;
    uint8_t *to = NULL;
    int gpu;

    do {
        int err = next_piece(m, h, field, true, first, &rows, &to, &v, &gpu);
        size_t step = stride ? stride : v.stride;

        if (err)
            return err;
        if (step < v.stride || (rows && !src))
            return -MMX_E_MALFORMED;
        err = copy_rows(gpu, to, v.stride, from, step, v.rows, v.stride);
        if (err)
            return err;
        from += v.rows * step;
        first += v.rows;
        rows -= v.rows;
    } while (rows);
    return 0;
}

/* Returns 1 if the room has reported a bit of `what`, 0 if not yet, the
 * negative reason if it never will. */
static int has_happened(mmx *m, mmx_room h, uint32_t what)
{
    struct client_room *r = client_room(m, h);

    if (!r)
        return -MMX_E_STALE;
    if (r->seen & what)
        return 1;
    if (r->state == MMX_FAILED_STATE)
        return r->reason ? -(int)r->reason : -MMX_E_ABORTED;
    if (r->seen & MMX_DONE)
        return -MMX_E_STALE;
    return 0;
}

int mmx_wait_room(mmx *m, mmx_room h, uint32_t what, int timeout_ms)
{
    uint64_t end = client_end(timeout_ms);
    /* The first round checks without receiving: a poll costs no more than a
     * receive that finds nothing. */
    bool receive = timeout_ms == 0;

    for (;;) {
        int64_t left = client_left(end);
        int sock, did, err = client_lock(m);

        if (err)
            return err;
        client_flush(m);
        if (receive)
            client_receive(m);
        receive = true;
        did = has_happened(m, h, what);
        sock = m->sock;
        client_unlock(m);
        if (did)
            return did < 0 ? did : 0;
        if (left == 0)
            return -MMX_E_TIMEOUT;
        if (!client_nap(sock, left))
            return -MMX_E_SYSTEM;
    }
}
