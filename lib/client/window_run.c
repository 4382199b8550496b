/* window_run.c - copies the rows of a plan into an engine's tensor.
 *
 * Invariants. Everything is checked before the first byte: the plan against
 * itself and the tensor, each segment against the rows of its room. A refused
 * run leaves the tensor unchanged. Only bytes of rows are written, none between
 * them and none at positions without a row.
 *
 * Any thread. Rejected: copying the landed rows and reporting the rest. A model
 * that gets half an image answers as if it had all of it. */
#include "client/window.h"

#include "base/bytes.h"
#include "wire/layout.h"

#include <string.h>

static enum err how_to(
    const struct window_source *s, const struct mmx_tensor *t, uint8_t *out)
{
    bool to_f32 = strcmp(t->dtype, "f32") == 0;

    if (s->elements == t->elements && strcmp(s->dtype, t->dtype) == 0)
        *out = WINDOW_SAME;
    else if (s->elements == t->elements && to_f32 &&
             strcmp(s->dtype, "bf16") == 0)
        *out = WINDOW_FROM_BF16;
    else if (s->elements == t->elements && to_f32 &&
             strcmp(s->dtype, "f16") == 0)
        *out = WINDOW_FROM_F16;
    else
        return ERR_INCOMPATIBLE_LAYOUT;
    return OK;
}

static uint32_t type_bytes(const char *dtype)
{
    return dtype_bytes(span_str(dtype));
}

static uint64_t stride_of(const struct mmx_tensor *t)
{
    return t->stride ? t->stride : (uint64_t)t->elements * type_bytes(t->dtype);
}

/* True if the plan is consistent: it lies in the caller's memory. */
static bool plan_holds(const struct mmx_plan *p)
{
    uint64_t rows = 0, end = 0;

    for (uint32_t i = 0; i < p->segments_count; i++) {
        const struct mmx_segment *s = &p->segments[i];

        if (s->at < end || s->rows == 0 || s->room >= p->rooms)
            return false;
        end = (uint64_t)s->at + s->rows;
        rows += s->rows;
    }
    return end <= p->positions && rows == p->rows &&
           window_ones(p->mask, p->positions) == p->rows;
}

static bool tensor_holds(const struct mmx_plan *p, const struct mmx_tensor *t)
{
    uint64_t bytes = (uint64_t)t->elements * type_bytes(t->dtype);

    return bytes && stride_of(t) >= bytes &&
           t->rows >= (t->packed ? p->rows : p->positions) &&
           (t->data || p->rows == 0);
}

uint64_t window_end(const struct window_source *s)
{
    uint64_t end = s->first;

    for (uint32_t i = 0; i < s->runs_count; i++)
        end += (uint64_t)s->runs[i].blocks * s->block_rows;
    return end;
}

static enum err check_segment(const struct mmx_segment *g,
    const struct window_source *s, struct mmx_trouble *trouble)
{
    uint64_t end = (uint64_t)g->row + g->rows;
    uint32_t from, to = (uint32_t)min_u64(window_end(s), s->readable);

    if (s->total != ROWS_UNKNOWN && end > s->total) {
        from = max_u32(g->row, s->total);
        *trouble = (struct mmx_trouble){g->room, from, (uint32_t)(end - from)};
        return ERR_MALFORMED;
    }
    if (g->row < s->released) {
        end = min_u64(end, s->released);
        *trouble =
            (struct mmx_trouble){g->room, g->row, (uint32_t)(end - g->row)};
        return ERR_GONE;
    }
    if (end > to || g->row < s->first) {
        from = g->row < s->first ? g->row : max_u32(g->row, to);
        *trouble = (struct mmx_trouble){g->room, from, (uint32_t)(end - from)};
        return ERR_NOT_READY;
    }
    return OK;
}

/* The room of the last look-up: segments of one room follow each other. */
struct last {
    bool known;
    uint32_t room;
    struct window_source source;
};

static enum err look(
    const struct window_sources *from, uint32_t room, struct last *l)
{
    enum err e = OK;

    if (!l->known || l->room != room)
        e = from->find(from->ud, room, &l->source);
    l->known = e == OK;
    l->room = room;
    return e;
}

enum err window_check(const struct mmx_plan *plan,
    const struct window_sources *from, const struct mmx_tensor *to,
    struct mmx_trouble *trouble)
{
    struct last l = {0};
    uint8_t how;

    *trouble = (struct mmx_trouble){NONE, 0, 0};
    if (!plan_holds(plan) || (to && !tensor_holds(plan, to)))
        return ERR_MALFORMED;
    for (uint32_t i = 0; i < plan->segments_count; i++) {
        const struct mmx_segment *g = &plan->segments[i];
        struct mmx_trouble t = {g->room, g->row, g->rows};
        enum err e = look(from, g->room, &l);

        if (e == OK && to)
            e = how_to(&l.source, to, &how);
        if (e == OK)
            e = check_segment(g, &l.source, &t);
        if (e != OK) {
            *trouble = t;
            return e;
        }
    }
    return OK;
}

const uint8_t *window_row(
    const struct window_source *s, uint32_t row, uint32_t *rows)
{
    uint64_t at = s->first;
    uint32_t i = 0;

    assert(row >= s->first && s->runs_count > 0);
    while (row >= at + (uint64_t)s->runs[i].blocks * s->block_rows) {
        at += (uint64_t)s->runs[i++].blocks * s->block_rows;
        assert(i < s->runs_count);
    }
    *rows = (uint32_t)(at + (uint64_t)s->runs[i].blocks * s->block_rows - row);
    return s->base + ((uint64_t)s->runs[i].block * s->block_rows + row - at) *
                         s->row_bytes;
}

enum err window_pieces(const struct mmx_plan *plan,
    const struct window_sources *from, const struct mmx_tensor *to,
    struct window_cursor *c, struct window_piece *out, uint32_t max,
    uint32_t *count)
{
    struct last l = {0};
    struct window_cursor at = *c;
    uint32_t n = 0;

    while (n < max && at.segment < plan->segments_count) {
        const struct mmx_segment *g = &plan->segments[at.segment];
        struct mmx_trouble t;
        struct window_piece *p = &out[n];
        enum err e = look(from, g->room, &l);

        if (e == OK)
            e = how_to(&l.source, to, &p->how);
        if (e == OK)
            e = check_segment(g, &l.source, &t);
        if (e != OK)
            return e;
        p->from = window_row(&l.source, g->row + at.row, &p->rows);
        p->rows = min_u32(p->rows, g->rows - at.row);
        p->row_bytes = l.source.row_bytes;
        p->elements = l.source.elements;
        p->stride = stride_of(to);
        p->to = (uint8_t *)to->data +
                (to->packed ? at.done : (uint64_t)g->at + at.row) * p->stride;
        assert(p->rows > 0 && at.row + p->rows <= g->rows);
        at.done += p->rows;
        at.row += p->rows;
        if (at.row == g->rows) {
            at.segment++;
            at.row = 0;
        }
        n++;
    }
    *c = at;
    *count = n;
    return OK;
}

/* Converts a row; neither side need be aligned. */
static void row_from_bf16(uint8_t *to, const uint8_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t word;

        memcpy(&half, from + 2 * (size_t)i, sizeof half);
        word = (uint32_t)half << 16;
        memcpy(to + 4 * (size_t)i, &word, sizeof word);
    }
}

/* Converts exactly: every f16 is an f32. NaNs keep their payload. */
static uint32_t f32_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exp = half >> 10 & 31,
             frac = half & 0x3ff;

    if (exp == 31)
        return sign | 0x7f800000 | frac << 13;
    if (exp)
        return sign | (exp + 112) << 23 | frac << 13;
    if (frac == 0)
        return sign;
    /* A subnormal number: its leading one becomes the implicit one. */
    exp = (uint32_t)__builtin_clz(frac) - 21;
    return sign | (113 - exp) << 23 | (frac << exp & 0x3ff) << 13;
}

static void row_from_f16(uint8_t *to, const uint8_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t word;

        memcpy(&half, from + 2 * (size_t)i, sizeof half);
        word = f32_of_f16(half);
        memcpy(to + 4 * (size_t)i, &word, sizeof word);
    }
}

static void copy_piece(const struct window_piece *p)
{
    const uint8_t *from = p->from;
    uint8_t *to = p->to;

    assert(p->how < WINDOW_HOWS);
    if (p->how == WINDOW_SAME && p->stride == p->row_bytes) {
        memcpy(to, from, (size_t)p->rows * p->row_bytes);
        return;
    }
    for (uint32_t i = 0; i < p->rows; i++) {
        if (p->how == WINDOW_SAME)
            memcpy(to, from, p->row_bytes);
        else if (p->how == WINDOW_FROM_BF16)
            row_from_bf16(to, from, p->elements);
        else
            row_from_f16(to, from, p->elements);
        from += p->row_bytes;
        to += p->stride;
    }
}

void window_copy(const struct window_piece *pieces, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        copy_piece(&pieces[i]);
}

/* f32 to the shorter floats of fields: to nearest, ties to even. NaN stays NaN
 * and keeps the upper bits of its payload; what is too large becomes infinite.
 * Rejected: _Float16 and __bf16 of the compiler, which not every compiler has.
 */

static uint16_t bf16_of(uint32_t f)
{
    if ((f & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(f >> 16 | 0x40);
    return (uint16_t)((f + 0x7fff + (f >> 16 & 1)) >> 16);
}

static uint16_t f16_of(uint32_t f)
{
    uint32_t sign = f >> 16 & 0x8000, m, shift, half, rest, tie;

    f &= 0x7fffffff;
    if (f > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (f >> 13 & 0x1ff));
    if (f >= 0x47800000) /* 2^16 */
        return (uint16_t)(sign | 0x7c00);
    if (f >= 0x38800000) /* 2^-14: a normal number, or rounded up beyond */
        return (
            uint16_t)(sign | (f - 0x38000000 + 0xfff + (f >> 13 & 1)) >> 13);
    if (f <= 0x33000000) /* 2^-25, half of the least: to even */
        return (uint16_t)sign;
    shift = 126 - (f >> 23);
    assert(shift >= 14 && shift <= 24);
    m = (f & 0x7fffff) | 0x800000;
    half = m >> shift;
    rest = m & ((1u << shift) - 1);
    tie = 1u << (shift - 1);
    half += rest > tie || (rest == tie && (half & 1));
    return (uint16_t)(sign | half);
}

void client_round(bool to_bf16, uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t word;

        memcpy(&word, from + 4 * i, sizeof word);
        half = to_bf16 ? bf16_of(word) : f16_of(word);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}
