/* window_random_test.c - random prompts against an oracle that looks at each
 * position by itself; over all windows of a prompt each row is used once. */
#include "test/t.h"
#include "test/unit/window_side.h"

#include "wire/wire.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROMPTS 200000
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PROMPTS 200000
#endif
#endif
#ifndef PROMPTS
#define PROMPTS 1000000
#endif

#define SPANS     6
#define ROOMS     4
#define PROMPT    400 /* positions, at most */
#define ROWS      1024
#define BLOCK     4
#define WORDS     (PROMPT / 64 + 1)
#define TAKEN(s)  ((s) >> 16)
#define NO_SOURCE 0

/* One random prompt. source[i]: room + 1 in the high half, row in the low half;
 * who[i]: the span. */
struct prompt {
    uint64_t seed;
    uint32_t length, count, computed, shift;
    struct mmx_placeholder p[SPANS];
    uint8_t embed[SPANS][PROMPT];
    uint64_t words[SPANS][WORDS];
    uint32_t source[PROMPT + 2];
    uint8_t who[PROMPT + 2];
    uint8_t used[PROMPT + 2]; /* how many windows have used it */
};

static uint32_t below(struct prompt *r, uint32_t n)
{
    return (uint32_t)t_rand_below(&r->seed, n);
}

/* Draws rows for the span: its own, or those of an item that is in the prompt
 * already. */
static void draw_rows(struct prompt *r, uint32_t i)
{
    static const uint8_t storages[] = {
        STORAGE_COMPACT, STORAGE_COMPACT, STORAGE_PADDED, STORAGE_PROMPT};
    struct mmx_placeholder *p = &r->p[i];

    p->room = below(r, ROOMS);
    p->storage = storages[below(r, 4)];
    p->row_base = below(r, 3) ? 0 : below(r, 100);
    if (i && below(r, 6) == 0) {
        const struct mmx_placeholder *q = &r->p[below(r, i)];

        p->room = q->room;
        p->storage = q->storage;
        p->row_base = q->row_base;
    }
}

static void draw_mask(struct prompt *r, uint32_t i)
{
    struct mmx_placeholder *p = &r->p[i];
    uint32_t kind = below(r, 4), gap = 2 + below(r, 70);

    for (uint32_t j = 0; j < p->length; j++) {
        bool one = kind == 0 || (kind == 1 ? j % gap : below(r, kind) > 0);

        /* Spans may overlap, but not in positions that take a row. */
        r->embed[i][j] = one && r->source[p->offset + j] == NO_SOURCE;
    }
    window_pack(r->embed[i], p->length, r->words[i]);
    p->embed = r->words[i];
}

/* Records what each position of a span takes: the oracle's only arithmetic. */
static void note(struct prompt *r, uint32_t i)
{
    const struct mmx_placeholder *p = &r->p[i];
    uint32_t row = p->row_base;

    for (uint32_t j = 0; j < p->length; j++) {
        uint32_t at = p->offset + j;
        uint32_t here = p->storage == STORAGE_PROMPT   ? p->row_base + at
                        : p->storage == STORAGE_PADDED ? p->row_base + j
                                                       : row;

        if (p->embed && !r->embed[i][j])
            continue;
        r->source[at] = (p->room + 1) << 16 | here;
        r->who[at] = (uint8_t)i;
        row++;
    }
}

static void draw(struct prompt *r)
{
    uint32_t at = 0, size = below(r, 8) ? 48 : PROMPT - 20;

    memset(r->source, 0, sizeof r->source);
    memset(r->used, 0, sizeof r->used);
    r->length = 1 + below(r, size);
    r->count = 0;
    while (r->count < SPANS && at < r->length) {
        struct mmx_placeholder *p = &r->p[r->count];
        uint32_t offset = min_u32(at + below(r, 5), r->length - 1);
        bool over = r->count && below(r, 5) == 0;

        *p = (struct mmx_placeholder){.offset = offset};
        if (over) /* at this position or before it */
            p->offset = below(r, offset + 1);
        p->length = below(r, min_u32(r->length - p->offset, size / 2) + 1);
        draw_rows(r, r->count);
        if (over || below(r, 2))
            draw_mask(r, r->count);
        else
            for (uint32_t j = 0; j < p->length; j++)
                if (r->source[p->offset + j] != NO_SOURCE)
                    p->length = j; /* ends before that position */
        note(r, r->count++);
        at = max_u32(at, p->offset + p->length);
    }
    r->computed = below(r, 3) ? 0 : below(r, r->length);
    r->shift = below(r, 5) == 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (below(r, 12) == 0 &&
            !(r->computed > r->p[i].offset &&
                r->computed < r->p[i].offset + r->p[i].length))
            r->p[i].flags = MMX_INDIVISIBLE;
}

/* Returns where a window that may not cut a span must end, by trying every end,
 * or NONE. */
static uint32_t whole_end(const struct prompt *r, uint32_t c, uint32_t n)
{
    for (uint32_t end = c + n; end > c || n == 0; end--) {
        bool cut = false;

        for (uint32_t i = 0; i < r->count; i++)
            cut |= (r->p[i].flags & MMX_INDIVISIBLE) && r->p[i].offset < end &&
                   r->p[i].offset + r->p[i].length > end &&
                   r->p[i].offset + r->p[i].length > c;
        if (!cut)
            return end;
        if (n == 0)
            break;
    }
    return NONE;
}

/* Returns what position `at` takes in a window with this real end. */
static uint32_t wanted(const struct prompt *r, uint32_t at, uint32_t real_end)
{
    const struct mmx_placeholder *p = &r->p[r->who[at]];

    if (at >= r->length || r->source[at] == NO_SOURCE)
        return NO_SOURCE;
    if (p->offset >= real_end && p->flags & MMX_INDIVISIBLE &&
        p->offset + p->length > real_end + r->shift)
        return NO_SOURCE;
    return r->source[at];
}

static void check_rows(struct prompt *r, const struct mmx_plan *p,
    uint32_t first, uint32_t real_end)
{
    uint32_t got[PROMPT + 2] = {0}, rows = 0, last = 0;

    for (uint32_t i = 0; i < p->segments_count; i++) {
        const struct mmx_segment *s = &p->segments[i];

        T_TRUE(s->rows > 0 && s->at >= last);
        last = s->at + s->rows;
        T_TRUE(last <= p->positions);
        for (uint32_t j = 0; j < s->rows; j++)
            got[s->at + j] = (s->room + 1) << 16 | (s->row + j);
        rows += s->rows;
    }
    T_EQ_U64(p->rows, rows);
    T_EQ_U64(window_ones(p->mask, p->positions), rows);
    for (uint32_t i = 0; i < p->positions; i++) {
        uint32_t want = wanted(r, first + i, real_end);

        if (got[i] != want || (p->mask[i / 64] >> i % 64 & 1) != (want != 0))
            T_FAIL("position %u: %x, wanted %x", first + i, got[i], want);
        if (want != NO_SOURCE)
            r->used[first + i]++;
    }
}

static void check_needs(const struct prompt *r, const struct mmx_plan *p,
    uint32_t c, uint32_t first, uint32_t real_end)
{
    for (uint32_t room = 0; room < ROOMS; room++) {
        const struct mmx_need *n = &p->needs[room];
        uint32_t state = MMX_SKIP, lo = NONE, hi = 0, keep = NONE;

        for (uint32_t i = 0; i < r->count; i++)
            if (r->p[i].room == room && r->p[i].offset + r->p[i].length > c)
                state = MMX_LATER;
        for (uint32_t at = first; at < first + p->positions; at++) {
            uint32_t s = wanted(r, at, real_end);

            if (TAKEN(s) != room + 1)
                continue;
            state = MMX_NOW;
            lo = min_u32(lo, s & 0xffff);
            hi = max_u32(hi, (s & 0xffff) + 1);
        }
        for (uint32_t at = real_end; at < r->length; at++)
            if (TAKEN(r->source[at]) == room + 1)
                keep = min_u32(keep, r->source[at] & 0xffff);
        T_EQ_U64(n->state, state);
        T_EQ_U64(n->first, hi ? lo : 0);
        T_EQ_U64(n->end, hi);
        /* If only separators follow, it may keep rows that no window needs, but
         * never give up rows that are needed. */
        T_CHECK(n->keep <= keep, "keep %u, wanted %u", n->keep, keep);
        T_CHECK(state != MMX_SKIP || n->keep == NONE, "keep %u", n->keep);
    }
}

static enum err find(void *ud, uint32_t room, struct window_source *out)
{
    *out = ((struct window_source *)ud)[room];
    return OK;
}

/* Copies the rows: each row has its room and number in it. */
static void check_bytes(struct prompt *r, const struct mmx_plan *p)
{
    static uint32_t pool[ROOMS][ROWS], out[PROMPT + 2];
    static struct window_blocks runs[ROOMS][2];
    struct window_source rooms[ROOMS];
    struct window_sources from = {find, rooms};
    struct mmx_tensor to = {
        .data = out, .rows = p->positions, .elements = 1, .dtype = "i32"};
    struct mmx_trouble t;
    uint32_t missing = below(r, 2) ? NONE : below(r, ROOMS);
    uint32_t there = below(r, ROWS);
    bool all = missing == NONE || p->needs[missing].end <= there;

    for (uint32_t room = 0; room < ROOMS; room++) {
        uint32_t half = 1 + below(r, ROWS / BLOCK - 1);

        runs[room][0] = (struct window_blocks){ROWS / BLOCK - half, half};
        runs[room][1] = (struct window_blocks){0, ROWS / BLOCK - half};
        for (uint32_t row = 0; row < ROWS; row++)
            pool[room][(row + ROWS - half * BLOCK) % ROWS] =
                (room + 1) << 16 | row;
        rooms[room] =
            (struct window_source){.base = (const uint8_t *)pool[room],
                .block_rows = BLOCK,
                .row_bytes = 4,
                .elements = 1,
                .dtype = "i32",
                .runs = runs[room],
                .runs_count = 2,
                .readable = room == missing ? there : ROWS,
                .total = ROWS};
    }
    memset(out, 0, sizeof out);
    if (window_run(p, &from, &to, &t) != (all ? OK : ERR_NOT_READY))
        T_FAIL("room %u rows %u+%u", t.room, t.first, t.rows);
    for (uint32_t i = 0; i < p->positions; i++)
        if (out[i] != (all ? wanted(r, p->computed + p->shift + i,
                                 p->computed + p->positions)
                           : 0))
            T_FAIL("position %u: %x", i, out[i]);
}

/* Plans one window from c; returns where the next one begins, or c if none is
 * possible. */
static uint32_t step(struct prompt *r, uint32_t c, uint32_t n)
{
    uint64_t mem[2048];
    struct mmx_window w = {
        .computed = c, .length = n, .shift = r->shift, .rooms = ROOMS};
    const struct mmx_plan *p;
    uint32_t end = whole_end(r, c, n), at;
    size_t bytes;

    if (end == NONE) {
        T_ERR(window_plan(&w, r->p, r->count, mem, sizeof mem, &p, &at),
            ERR_TOO_LARGE);
        return c;
    }
    T_OK(window_bytes(&w, r->p, r->count, &bytes, &at));
    T_TRUE(bytes <= sizeof mem);
    T_OK(window_plan(&w, r->p, r->count, mem, bytes, &p, &at));
    T_TRUE(p->bytes <= bytes);
    T_EQ_U64(p->positions, end - c);
    check_rows(r, p, c + r->shift, end);
    check_needs(r, p, c, c + r->shift, end);
    if (below(r, 64) == 0)
        check_bytes(r, p);
    return end;
}

static void walk(uint64_t seed)
{
    static struct prompt r;
    uint32_t c, budget;

    r.seed = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    draw(&r);
    budget = 1 + below(&r, r.length);
    for (c = r.computed; c < r.length;) {
        uint32_t n = below(&r, 4) ? budget : below(&r, budget + 1);
        uint32_t next = step(&r, c, min_u32(n, r.length - c));

        if (next == c && n == budget) /* a span is larger than a window */
            budget *= 2;
        c = next;
    }
    for (uint32_t at = 0; at < r.length; at++) {
        bool in = at >= r.computed && r.source[at] != NO_SOURCE;

        if (r.shift == 0)
            T_CHECK(
                r.used[at] == in, "position %u used %u times", at, r.used[at]);
        else /* a draft model leaves out what the target has not seen yet */
            T_CHECK(
                r.used[at] <= 1, "position %u used %u times", at, r.used[at]);
    }
}

TEST_LIMIT(a_million_prompts_against_the_oracle, 400)
{
    for (uint64_t seed = 1; seed <= PROMPTS; seed++)
        walk(seed);
}
