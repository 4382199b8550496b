/* window.c - plans a window of a prompt: which rows of which rooms go where.
 *
 * Invariants. A row's number is a count of ones, never arithmetic on positions,
 * so that separators inside a span cost nothing. Each position takes at most
 * one row: a second claim is refused, so the mask has as many ones as the
 * segments have rows. Segments ascend, so that packed rows are in the order in
 * which a masked scatter takes them.
 *
 * Any thread; works in the caller's memory. Rejected: a plan that refers to the
 * caller's masks (they may change while a copy still runs, which crashed
 * engines), and one segment per span whose holes only a mask shows (spans
 * overlap, so the window's mask does not say to which span a hole belongs). */
#include "client/window.h"

#include "wire/wire.h"

#include <string.h>

struct build {
    const struct mmx_window *w;
    uint64_t first, end; /* positions of the window */
    uint64_t real_end;   /* the same without the shift */
    struct mmx_segment *segments;
    uint64_t *mask;
    struct mmx_need *needs;
    uint32_t count, cap;
    uint32_t rows;
    bool unsorted;
};

void window_pack(const uint8_t *bytes, uint32_t n, uint64_t *words)
{
    for (uint32_t i = 0; i < n; i += 64) {
        uint32_t end = min_u32(64, n - i);
        uint64_t word = 0;

        for (uint32_t j = 0; j < end; j++)
            word |= (uint64_t)(bytes[i + j] != 0) << j;
        words[i / 64] = word;
    }
}

/* Counts ones. The compiler's builtin calls a library where the target CPU may
 * lack the instruction. */
static uint32_t ones_of(uint64_t w)
{
    w -= w >> 1 & UINT64_C(0x5555555555555555);
    w = (w & UINT64_C(0x3333333333333333)) +
        (w >> 2 & UINT64_C(0x3333333333333333));
    w = (w + (w >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(w * UINT64_C(0x0101010101010101) >> 56);
}

uint32_t window_ones(const uint64_t *words, uint32_t n)
{
    uint32_t ones = 0;

    for (uint32_t i = 0; i < n / 64; i++)
        ones += ones_of(words[i]);
    if (n % 64)
        ones += ones_of(words[n / 64] & ((UINT64_C(1) << n % 64) - 1));
    return ones;
}

/* Returns bits [at, at + n), n in 1..64; reads no word beyond them. */
static uint64_t bits(const uint64_t *words, uint32_t at, uint32_t n)
{
    uint32_t by = at % 64;
    uint64_t w = words[at / 64] >> by;

    assert(n >= 1 && n <= 64);
    if (by + n > 64)
        w |= words[at / 64 + 1] << (64 - by);
    return n == 64 ? w : w & ((UINT64_C(1) << n) - 1);
}

/* Sets the bits of w from bit `at` on; false if one was set already. */
static bool claim(uint64_t *words, uint32_t at, uint64_t w)
{
    uint32_t by = at % 64;
    uint64_t high = by ? w >> (64 - by) : 0, taken;

    taken = words[at / 64] & w << by;
    words[at / 64] |= w << by;
    if (high) {
        taken |= words[at / 64 + 1] & high;
        words[at / 64 + 1] |= high;
    }
    return taken == 0;
}

static uint64_t place_end(const struct mmx_placeholder *p)
{
    return (uint64_t)p->offset + p->length;
}

/* Returns the room's row for position i of the span, or for the next position
 * that takes a row. */
static uint32_t row_at(const struct mmx_placeholder *p, uint32_t i)
{
    if (p->storage == STORAGE_PROMPT)
        return p->row_base + p->offset + i;
    if (p->storage <= STORAGE_COMPACT && p->embed)
        return p->row_base + window_ones(p->embed, i);
    return p->row_base + i;
}

static enum err check_place(
    const struct mmx_window *w, const struct mmx_placeholder *p)
{
    uint64_t rows = (uint64_t)p->row_base + p->length;

    if (p->storage == STORAGE_PROMPT)
        rows += p->offset;
    if (p->storage > STORAGE_PROMPT ||
        p->flags > (MMX_INDIVISIBLE | MMX_ABSENT) || p->room >= w->rooms ||
        place_end(p) >= UINT32_MAX || rows >= UINT32_MAX)
        return ERR_MALFORMED;
    if ((p->flags & MMX_INDIVISIBLE) && p->offset < w->computed &&
        w->computed < place_end(p))
        return ERR_MALFORMED;
    if (w->elements && p->elements && w->elements != p->elements)
        return ERR_INCOMPATIBLE_LAYOUT;
    return OK;
}

/* Computes the window's end without the shift, moved back until it cuts no
 * indivisible span. Spans overlap, so each move can cut another span. */
static enum err fit(const struct mmx_window *w, const struct mmx_placeholder *p,
    uint32_t n, uint64_t *out, uint32_t *at)
{
    uint64_t end = (uint64_t)w->computed + w->length;
    bool moved;

    do {
        moved = false;
        for (uint32_t i = 0; i < n; i++) {
            if (!(p[i].flags & MMX_INDIVISIBLE) || p[i].offset >= end ||
                place_end(&p[i]) <= end || place_end(&p[i]) <= w->computed)
                continue;
            if (p[i].offset <= w->computed) {
                *at = i;
                return ERR_TOO_LARGE;
            }
            end = p[i].offset;
            moved = true;
        }
    } while (moved);
    *out = end;
    return OK;
}

static enum err begin(const struct mmx_window *w,
    const struct mmx_placeholder *p, uint32_t n, struct build *out,
    uint32_t *at)
{
    struct build b = {.w = w};
    enum err e;

    if ((uint64_t)w->computed + w->shift + w->length >= UINT32_MAX) {
        *at = n;
        return ERR_MALFORMED;
    }
    for (uint32_t i = 0; i < n; i++) {
        e = check_place(w, &p[i]);
        if (e != OK) {
            *at = i;
            return e;
        }
    }
    e = fit(w, p, n, &b.real_end, at);
    if (e != OK)
        return e;
    b.first = (uint64_t)w->computed + w->shift;
    b.end = b.real_end + w->shift;
    *out = b;
    return OK;
}

/* Computes the positions [*s, *e) of the span that lie in the window and may
 * take rows. */
static void overlap(const struct build *b, const struct mmx_placeholder *p,
    uint32_t *s, uint32_t *e)
{
    uint64_t from = b->first > p->offset ? b->first - p->offset : 0;
    uint64_t to = b->end > p->offset ? b->end - p->offset : 0;

    *s = (uint32_t)min_u64(from, p->length);
    *e = (uint32_t)min_u64(to, p->length);
    /* Only the draft model's shift reaches the span. */
    if (p->offset >= b->real_end &&
        (p->flags & MMX_ABSENT ||
            (p->flags & MMX_INDIVISIBLE && *e < p->length)))
        *e = *s;
}

/* Returns an upper bound of a span's segments. */
static uint64_t parts(const struct mmx_placeholder *p, uint32_t s, uint32_t e)
{
    uint64_t count = 0;

    if (!p->embed)
        return s < e;
    for (uint32_t i = s; i < e; i += min_u32(64, e - i)) {
        uint64_t w = bits(p->embed, i, min_u32(64, e - i));

        count += ones_of(w & ~(w << 1));
    }
    return count;
}

static size_t fixed_bytes(const struct build *b)
{
    return sizeof(struct mmx_plan) + (size_t)(b->end - b->first + 63) / 64 * 8 +
           b->w->rooms * sizeof(struct mmx_need);
}

enum err window_bytes(const struct mmx_window *w,
    const struct mmx_placeholder *p, uint32_t n, size_t *out, uint32_t *at)
{
    struct build b;
    uint64_t count = 0;
    enum err err = begin(w, p, n, &b, at);

    if (err != OK)
        return err;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s, e;

        overlap(&b, &p[i], &s, &e);
        count += parts(&p[i], s, e);
    }
    *out = fixed_bytes(&b) + (size_t)count * sizeof(struct mmx_segment);
    return OK;
}

/* Claims positions [s, e) of a span without a mask, as one segment. */
static enum err lay_all(
    struct build *b, const struct mmx_placeholder *p, uint32_t s, uint32_t e)
{
    uint32_t at = (uint32_t)(p->offset + s - b->first), n;

    for (uint32_t i = 0; i < e - s; i += n) {
        n = min_u32(64, e - s - i);
        if (!claim(b->mask, at + i, UINT64_MAX >> (64 - n)))
            return ERR_MALFORMED;
    }
    assert(b->count <= b->cap);
    if (b->count == b->cap)
        return ERR_NO_BLOCKS;
    b->segments[b->count++] =
        (struct mmx_segment){p->room, row_at(p, s), e - s, at};
    return OK;
}

/* Claims positions [s, e) of a span with a mask: one segment per run of ones.
 */
static enum err lay_mask(
    struct build *b, const struct mmx_placeholder *p, uint32_t s, uint32_t e)
{
    struct mmx_segment *g = b->segments + b->count;
    const struct mmx_segment *full = b->segments + b->cap;
    uint32_t at = (uint32_t)(p->offset + s - b->first);
    uint32_t row = row_at(p, s), run_end = NONE, n;
    /* True if the storage also has rows for positions without a one. */
    bool gaps = p->storage > STORAGE_COMPACT;

    assert(b->count <= b->cap);
    for (uint32_t i = s; i < e; i += n, at += n) {
        uint64_t w;

        n = min_u32(64, e - i);
        w = bits(p->embed, i, n);
        if (!claim(b->mask, at, w))
            return ERR_MALFORMED;
        for (uint32_t done = 0; w;) {
            uint32_t from = (uint32_t)__builtin_ctzll(w);
            uint64_t rest = ~(w >> from);
            uint32_t ones = rest ? (uint32_t)__builtin_ctzll(rest) : 64;

            if (at + from == run_end) {
                g[-1].rows += ones;
            } else if (g == full) {
                return ERR_NO_BLOCKS;
            } else {
                *g++ = (struct mmx_segment){
                    p->room, row + (gaps ? from : done), ones, at + from};
            }
            done += ones;
            run_end = at + from + ones;
            /* Adding at the run's first bit clears the run by the carry. */
            w &= w + (UINT64_C(1) << from);
            if (!w && !gaps)
                row += done;
        }
        row += gaps ? n : 0;
    }
    b->count = (uint32_t)(g - b->segments);
    return OK;
}

/* Adds the segments of positions [s, e) of a span, s < e. */
static enum err lay(
    struct build *b, const struct mmx_placeholder *p, uint32_t s, uint32_t e)
{
    struct mmx_need *need = &b->needs[p->room];
    const struct mmx_segment *first = b->segments + b->count, *last;
    bool before = need->state == MMX_NOW;
    enum err err = p->embed ? lay_mask(b, p, s, e) : lay_all(b, p, s, e);

    assert(s < e && e <= p->length && b->count <= b->cap);
    last = b->segments + b->count - 1;
    if (err != OK || last < first)
        return err;
    if (p->flags & MMX_ABSENT)
        return ERR_NOT_READY;
    for (const struct mmx_segment *g = first; g <= last; g++)
        b->rows += g->rows;
    if (first > b->segments && first[-1].at > first->at)
        b->unsorted = true;
    need->first = before ? min_u32(need->first, first->row) : first->row;
    need->end = max_u32(need->end, last->row + last->rows);
    need->state = MMX_NOW;
    return OK;
}

static enum err add(struct build *b, const struct mmx_placeholder *p)
{
    struct mmx_need *need = &b->needs[p->room];
    uint32_t s, e;

    assert(p->room < b->w->rooms);
    if (place_end(p) <= b->w->computed)
        return OK;
    if (need->state == MMX_SKIP)
        need->state = MMX_LATER;
    overlap(b, p, &s, &e);
    if (b->real_end < place_end(p)) {
        uint32_t done =
            b->real_end > p->offset ? (uint32_t)(b->real_end - p->offset) : 0;

        need->keep = min_u32(need->keep, row_at(p, done));
    }
    return s < e ? lay(b, p, s, e) : OK;
}

/* Sorts segments by position, in place: needed only for unordered or
 * overlapping spans. */
static void sort(struct mmx_segment *s, uint32_t n)
{
    for (uint32_t gap = n / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            struct mmx_segment x = s[i];
            uint32_t j = i;

            for (; j >= gap && s[j - gap].at > x.at; j -= gap)
                s[j] = s[j - gap];
            s[j] = x;
        }
}

/* Lays header, mask, needs and segments out in mem, in this order. */
static enum err place_arrays(struct build *b, void *mem, size_t mem_bytes)
{
    size_t words = (size_t)(b->end - b->first + 63) / 64;
    uint8_t *at = mem;

    assert((uintptr_t)mem % 8 == 0 && b->end >= b->first);
    if (!mem || mem_bytes < fixed_bytes(b))
        return ERR_NO_BLOCKS;
    at += sizeof(struct mmx_plan);
    b->mask = (uint64_t *)(void *)at;
    memset(b->mask, 0, words * 8);
    at += words * 8;
    b->needs = (struct mmx_need *)(void *)at;
    for (uint32_t i = 0; i < b->w->rooms; i++)
        b->needs[i] = (struct mmx_need){MMX_SKIP, 0, 0, NONE};
    at += b->w->rooms * sizeof *b->needs;
    b->segments = (struct mmx_segment *)(void *)at;
    b->cap = (uint32_t)min_u64(
        (mem_bytes - fixed_bytes(b)) / sizeof *b->segments, UINT32_MAX);
    return OK;
}

enum err window_plan(const struct mmx_window *w,
    const struct mmx_placeholder *p, uint32_t n, void *mem, size_t mem_bytes,
    const struct mmx_plan **out, uint32_t *at)
{
    struct mmx_plan *plan = mem;
    struct build b;
    enum err e = begin(w, p, n, &b, at);

    if (e != OK)
        return e;
    *at = n;
    e = place_arrays(&b, mem, mem_bytes);
    for (uint32_t i = 0; e == OK && i < n; i++) {
        e = add(&b, &p[i]);
        if (e != OK)
            *at = i;
    }
    if (e != OK)
        return e;
    assert(window_ones(b.mask, (uint32_t)(b.end - b.first)) == b.rows);
    if (b.unsorted)
        sort(b.segments, b.count);
    *plan = (struct mmx_plan){fixed_bytes(&b) + b.count * sizeof *b.segments,
        w->computed, w->shift, (uint32_t)(b.end - b.first), b.rows, b.count,
        w->rooms, b.segments, b.mask, b.needs};
    *out = plan;
    return OK;
}
