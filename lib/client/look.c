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

int mmx_poll(const mmx *m, const mmx_room *rooms, int n, struct mmx_state *out)
{
    int least = MMX_SUCCESS;

    for (int i = 0; i < n; i++) {
        uint64_t w = client_word(m, rooms[i]);
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
            .state = (int)cell_state(client_word(m, h)),
            .reason = (int)cell_reason(client_word(m, h)),
            .storage = r->storage,
            .first = max_u32(r->first, r->base),
            .rows = r->rows,
            .total = r->total,
            .stream_rows = r->stream_rows,
            .aux = r->aux_len ? m->stores[h.cell].aux : NULL,
            .aux_len = r->aux_len,
            .pool = r->map == MAP_NONE ? -1 : r->map};
    client_unlock(m);
    if (!r)
        return -MMX_E_STALE;
    return CLIENT_GIVE(out, l) ? 0 : -MMX_E_MALFORMED;
}

int mmx_blocks(mmx *m, mmx_room room, int *pool, uint32_t *first,
    struct mmx_blocks *out, int max)
{
    int err = client_lock(m);
    const struct client_room *r;
    uint32_t n = 0;

    if (err)
        return err;
    r = client_room(m, room);
    if (r) {
        assert(r->runs <= RUNS_MAX);
        n = min_u32(r->runs, max < 0 ? 0 : (uint32_t)max);
        *pool = r->pool;
        *first = r->first;
        for (uint32_t i = 0; i < n; i++)
            out[i] = (struct mmx_blocks){m->stores[room.cell].runs[i].block,
                m->stores[room.cell].runs[i].blocks};
    }
    client_unlock(m);
    return r ? (int)n : -MMX_E_STALE;
}

/* One field of a room, and its visible rows [first, end). */
struct visible {
    struct window_source source;
    const struct client_room *room;
    const struct mmx_pool *pool;
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

/* Finds a room, its pool and a field of it. The number of readable rows is that
 * of the last event or of the cell, whichever is more. */
static int find_room(mmx *m, mmx_room h, const char *field, struct visible *out)
{
    struct client_room *r = client_room(m, h);
    const struct client_map *map;
    const struct mmx_field *f;

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
    f = find_field(&map->pool, field);
    if (!f)
        return -MMX_E_MALFORMED;
    *out = (struct visible){.room = r,
        .pool = &map->pool,
        .source = {.base = f->data,
            .block_rows = map->pool.block_rows,
            .row_bytes = f->row_bytes,
            .elements = f->elements,
            .first = r->first,
            .runs = m->stores[h.cell].runs,
            .runs_count = r->runs,
            .released = max_u32(r->first, r->base),
            .readable = max_u32(r->rows, cell_rows(client_word(m, h))),
            .total = r->total}};
    memcpy(out->source.dtype, f->dtype, sizeof out->source.dtype);
    return 0;
}

/* Finds the visible rows of a field. */
static int find_rows(mmx *m, mmx_room h, const char *field, struct visible *out)
{
    const struct client_room *r;
    int err = find_room(m, h, field, out);

    if (err)
        return err;
    r = out->room;
    /* A room without rows has no runs either. */
    if (r->runs == 0 && (r->rows || !(r->seen & (MMX_READY | MMX_GRANTED))))
        return -MMX_E_NOT_READY;
    out->first = max_u32(r->first, r->base);
    out->end =
        (uint32_t)min_u64(window_end(&out->source), out->source.readable);
    return 0;
}

int client_source(
    mmx *m, mmx_room h, const char *field, struct window_source *out, int *gpu)
{
    struct visible v;
    int err = find_room(m, h, field, &v);

    if (err)
        return err;
    *out = v.source;
    *gpu = v.pool->gpu;
    return 0;
}

/* Returns the address of a visible row, which an engine with the right may
 * write; *rows: visible rows from it on in its run. */
static uint8_t *piece(const struct visible *v, uint32_t row, uint32_t *rows)
{
    assert(row >= v->first && row < v->end);
    uint8_t *at = (uint8_t *)window_row(&v->source, row, rows);

    *rows = min_u32(*rows, v->end - row);
    return at;
}

static int runs_of(mmx *m, mmx_room h, struct mmx_run *out, int max)
{
    struct visible v;
    uint64_t at;
    int err = find_rows(m, h, NULL, &v), n = 0;

    if (err)
        return err;
    at = v.source.first;
    for (uint32_t i = 0; i < v.source.runs_count && at < v.end; i++, n++) {
        const struct window_blocks *b = &v.source.runs[i];
        uint64_t end = at + (uint64_t)b->blocks * v.source.block_rows;

        if (n < max)
            out[n] = (struct mmx_run){
                (uint32_t)at, (uint32_t)(min_u64(end, v.end) - at), b->block};
        at = end;
    }
    return n;
}

int mmx_runs(mmx *m, mmx_room h, struct mmx_run *out, int max)
{
    if (max < 0 || (max && !out))
        return -MMX_E_MALFORMED;
    return CLIENT_LOCKED(m, runs_of(m, h, out, max));
}

/* Checks that rows [first, first + *rows) are visible; replaces MMX_ALL by the
 * number of visible rows. */
static int check_rows(const struct visible *v, uint32_t first, uint32_t *rows)
{
    if (first < v->first)
        /* these may be rows that others released before this handle came */
        return -MMX_E_GONE;
    if (first > v->end)
        return -MMX_E_NOT_READY;
    if (*rows == MMX_ALL)
        *rows = v->end - first;
    return *rows <= v->end - first ? 0 : -MMX_E_NOT_READY;
}

static int view_of(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out)
{
    struct visible v;
    uint32_t have = 0;
    uint8_t *at = NULL;
    int err = find_rows(m, h, field, &v);

    if (!err)
        err = check_rows(&v, first, &rows);
    if (err)
        return err;
    if (rows)
        at = piece(&v, first, &have);
    if (have < rows)
        return -MMX_E_SPLIT;
    *out = (struct mmx_view){at, first, rows, v.source.row_bytes};
    return 0;
}

int mmx_view(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out)
{
    return out ? CLIENT_LOCKED(m, view_of(m, h, field, first, rows, out))
               : -MMX_E_MALFORMED;
}

/* Rows of a copy that lie in one run. */
struct next {
    uint8_t *at;
    uint32_t rows, elements;
    size_t row_bytes;
    int gpu;
    char dtype[sizeof((struct mmx_field *)0)->dtype];
};

/* Finds the next piece of a copy; checks all rows before the first byte. */
static int next_piece(mmx *m, mmx_room h, const char *field, bool write,
    uint32_t first, uint32_t *rows, struct next *out)
{
    struct visible v;
    uint32_t have = 0;
    int err = client_lock(m);

    if (err)
        return err;
    err = find_rows(m, h, field, &v);
    if (!err && write && !v.pool->writable)
        err = -MMX_E_NOT_OWNER;
    if (!err)
        err = check_rows(&v, first, rows);
    if (!err) {
        *out = (struct next){.elements = v.source.elements,
            .row_bytes = v.source.row_bytes,
            .gpu = v.pool->gpu};
        memcpy(out->dtype, v.source.dtype, sizeof out->dtype);
        if (*rows)
            out->at = piece(&v, first, &have);
        out->rows = min_u32(have, *rows);
        assert(have > 0 || *rows == 0); /* the caller's loop ends */
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

/* Rounds rows of f32 in host memory into rows of bf16 or f16, which may lie on
 * a GPU. */
static int round_rows(const struct next *p, const uint8_t *from, size_t step)
{
    bool to_bf16 = strcmp(p->dtype, "bf16") == 0;
    uint8_t some[2048];

    for (uint32_t i = 0; i < p->rows; i++, from += step) {
        uint8_t *to = p->at + i * p->row_bytes;

        for (size_t at = 0; at < p->row_bytes; at += sizeof some) {
            size_t n = min_u64(p->row_bytes - at, sizeof some);
            int err;

            client_round(
                to_bf16, p->gpu < 0 ? to + at : some, from + 2 * at, n / 2);
            err = p->gpu < 0 ? 0 : copy_rows(p->gpu, to + at, n, some, n, 1, n);
            if (err)
                return err;
        }
    }
    return 0;
}

/* Returns the bytes of a row of f32 for a field of bf16, f16 or f32; 0: for any
 * other field. */
static size_t f32_bytes(const struct next *p)
{
    bool half = strcmp(p->dtype, "bf16") == 0 || strcmp(p->dtype, "f16") == 0;

    return half || strcmp(p->dtype, "f32") == 0 ? 4 * (size_t)p->elements : 0;
}

/* Copies rows of a field to the host's memory, or (write) from there. f32: the
 * rows there are of f32, whatever the field. */
static int move(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, uint8_t *host, size_t stride, bool write, bool f32)
{
    struct next p;

    do {
        int err = next_piece(m, h, field, write, first, &rows, &p);
        size_t bytes, step;

        if (err)
            return err;
        bytes = f32 ? f32_bytes(&p) : p.row_bytes;
        step = stride ? stride : bytes;
        if (!bytes)
            return -MMX_E_INCOMPATIBLE_LAYOUT;
        if (step < bytes || (rows && !host))
            return -MMX_E_MALFORMED;
        if (!write)
            err = copy_rows(
                p.gpu, host, step, p.at, p.row_bytes, p.rows, p.row_bytes);
        else if (bytes == p.row_bytes)
            err = copy_rows(
                p.gpu, p.at, p.row_bytes, host, step, p.rows, p.row_bytes);
        else
            err = round_rows(&p, host, step);
        if (err)
            return err;
        host += p.rows * step;
        first += p.rows;
        rows -= p.rows;
    } while (rows);
    return 0;
}

int mmx_gather(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, void *dst, size_t stride)
{
    return move(m, h, field, first, rows, dst, stride, false, false);
}

int mmx_scatter(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, const void *src, size_t stride)
{
    return move(m, h, field, first, rows, (uint8_t *)(uintptr_t)src, stride,
        true, false);
}

int mmx_scatter_f32(mmx *m, mmx_room h, const char *field, uint32_t first,
    uint32_t rows, const float *src, size_t stride)
{
    return move(m, h, field, first, rows, (uint8_t *)(uintptr_t)src, stride,
        true, true);
}
