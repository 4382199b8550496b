/* window_test.c - the window planner: the cases that broke engines, each by
 * name. The random test against an oracle is window_random_test.c. */
#include "test/t.h"
#include "test/unit/window_side.h"

#include "wire/layout.h"
#include "wire/wire.h"

#include <math.h>

#define ROOMS 4
#define BLOCK 4 /* rows of a block */

/* Zeroed memory that lives as long as the case. */
static void *take(size_t bytes)
{
    static void *kept[256];
    static uint32_t count;

    T_TRUE(count < ARRAY_LEN(kept));
    kept[count] = calloc(1, bytes);
    return kept[count++];
}

/* Rows of four rooms in one small pool, each room in runs of its own. Elements
 * of a row are room * 10000 + row, modulo 2^16. */
struct world {
    uint16_t *pool;
    uint32_t elements;
    struct window_source rooms[ROOMS];
    struct window_blocks runs[ROOMS][8];
    uint32_t asked; /* how often a room was looked up */
};

static enum err find(void *ud, uint32_t room, struct window_source *out)
{
    struct world *w = ud;

    w->asked++;
    if (w->rooms[room].block_rows == 0)
        return ERR_STALE;
    *out = w->rooms[room];
    return OK;
}

static struct window_sources from(struct world *w)
{
    return (struct window_sources){find, w};
}

static uint16_t value(uint32_t room, uint32_t row)
{
    return (uint16_t)(room * 10000 + row);
}

/* Fills room r with rows, in up to three runs whose order is mixed. */
static void fill(struct world *w, uint32_t r, uint32_t rows, uint32_t block)
{
    struct window_source *s = &w->rooms[r];
    uint32_t blocks = div_up(rows, BLOCK), runs = blocks >= 6 ? 3 : 1;
    uint32_t row = 0;

    *s = (struct window_source){.base = (const uint8_t *)w->pool,
        .block_rows = BLOCK,
        .row_bytes = w->elements * 2,
        .elements = w->elements,
        .dtype = "bf16",
        .runs = w->runs[r],
        .runs_count = runs,
        .readable = rows,
        .total = rows};
    for (uint32_t i = 0; i < runs; i++) {
        uint32_t n =
            i + 1 < runs ? blocks / 3 : blocks - blocks / 3 * (runs - 1);
        uint32_t at = block + (runs - 1 - i) * (blocks / 3 + 2) + (i == 0);

        w->runs[r][i] = (struct window_blocks){at, n};
        for (uint32_t j = 0; j < n * BLOCK && row < rows; j++, row++)
            for (uint32_t k = 0; k < w->elements; k++)
                w->pool[((size_t)at * BLOCK + j) * w->elements + k] =
                    value(r, row);
    }
}

static void world_init(struct world *w, uint32_t elements, uint32_t blocks)
{
    *w = (struct world){.elements = elements};
    w->pool = take((size_t)blocks * BLOCK * elements * sizeof *w->pool);
}

static struct mmx_placeholder place(
    uint32_t room, uint32_t offset, uint32_t length)
{
    return (struct mmx_placeholder){.offset = offset,
        .length = length,
        .room = room,
        .storage = STORAGE_COMPACT};
}

/* Returns a mask from text: '1' takes a row. */
static const uint64_t *mask_of(const char *text)
{
    uint32_t n = (uint32_t)strlen(text);
    uint8_t bytes[256];
    uint64_t *words = take((n / 64 + 1) * 8);

    for (uint32_t i = 0; i < n; i++)
        bytes[i] = text[i] == '1';
    window_pack(bytes, n, words);
    return words;
}

static struct mmx_placeholder masked(
    uint32_t room, uint32_t offset, const char *text, uint8_t storage)
{
    struct mmx_placeholder p = place(room, offset, (uint32_t)strlen(text));

    p.embed = mask_of(text);
    p.storage = storage;
    return p;
}

static const struct mmx_plan *plan(
    struct mmx_window w, const struct mmx_placeholder *p, uint32_t n)
{
    const struct mmx_plan *out;
    size_t bytes;
    uint32_t at;
    void *mem;

    w.rooms = w.rooms ? w.rooms : ROOMS;
    T_OK(window_bytes(&w, p, n, &bytes, &at));
    mem = take(bytes);
    T_OK(window_plan(&w, p, n, mem, bytes, &out, &at));
    T_CHECK(out->bytes <= bytes, "%zu > %zu", out->bytes, bytes);
    return out;
}

#define PLAN(from_position, positions, ...)                                    \
    plan((struct mmx_window){.computed = (from_position),                      \
             .length = (positions)},                                           \
        (const struct mmx_placeholder[]){__VA_ARGS__},                         \
        (uint32_t)(sizeof((const struct mmx_placeholder[]){__VA_ARGS__}) /     \
                   sizeof(struct mmx_placeholder)))

static enum err refused(struct mmx_window w, const struct mmx_placeholder *p,
    uint32_t n, uint32_t *at)
{
    static uint64_t mem[4096];
    const struct mmx_plan *out = (const void *)mem;
    enum err e;

    w.rooms = w.rooms ? w.rooms : ROOMS;
    e = window_plan(&w, p, n, mem, sizeof mem, &out, at);
    T_TRUE(e == OK || out == (const void *)mem);
    return e;
}

/* Returns the segments as text: "room:row+rows@at ...". */
static const char *text(const struct mmx_plan *p)
{
    static char out[1024];
    size_t at = 0;

    out[0] = 0;
    for (uint32_t i = 0; i < p->segments_count; i++) {
        const struct mmx_segment *s = &p->segments[i];

        at += (size_t)snprintf(out + at, sizeof out - at, "%s%u:%u+%u@%u",
            i ? " " : "", s->room, s->row, s->rows, s->at);
    }
    return out;
}

static const char *mask_text(const struct mmx_plan *p)
{
    static char out[256];

    for (uint32_t i = 0; i < p->positions; i++)
        out[i] = p->mask[i / 64] >> i % 64 & 1 ? '1' : '.';
    out[p->positions] = 0;
    return out;
}

static void run_into(struct world *w, const struct mmx_plan *p, uint16_t *to)
{
    struct window_sources s = from(w);
    struct mmx_trouble trouble;
    struct mmx_tensor t = {.data = to,
        .rows = p->positions,
        .elements = w->elements,
        .dtype = "bf16"};

    T_OK(window_run(p, &s, &t, &trouble));
}

/* the seed */

/* What the second step of the seed's crash did: its mask in the memory of the
 * first. Here each plan is checked and run late, after the next was made. */
TEST(seed_004_two_requests_in_windows_of_2048)
{
    struct world w;
    const struct mmx_plan *plans[2][3];
    uint16_t *out = take(2048 * 8 * 2);
    static const uint32_t rows[] = {2046, 2048, 725};

    world_init(&w, 8, 3000);
    fill(&w, 0, 4819, 0);
    fill(&w, 1, 4819, 1400);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 3; k++)
            plans[r][k] = PLAN(k * 2048, 2048, place(r, 2, 4819));
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 3; k++) {
            const struct mmx_plan *p = plans[r][k];
            uint32_t at = k ? 0 : 2;

            T_EQ_U64(p->rows, rows[k]);
            T_EQ_U64(window_ones(p->mask, p->positions), rows[k]);
            memset(out, 0xff, 2048 * 8 * 2);
            run_into(&w, p, out);
            for (uint32_t i = 0; i < 2048; i++) {
                bool in = i >= at && i < at + rows[k];

                T_EQ_U64(
                    out[i * 8 + 7], in ? value(r, k * 2048 + i - 2) : 0xffff);
            }
        }
}

TEST(a_plan_lives_while_the_next_is_planned_and_run)
{
    struct world w;
    uint16_t first[8 * 2], next[8 * 2], again[8 * 2];
    const struct mmx_plan *k, *k1;
    void *copy;

    world_init(&w, 2, 40);
    fill(&w, 0, 40, 0);
    k = PLAN(0, 8, place(0, 2, 40));
    copy = take(k->bytes);
    memcpy(copy, k, k->bytes);
    memset(first, 0, sizeof first);
    memset(again, 0, sizeof again);
    run_into(&w, k, first);
    k1 = PLAN(8, 8, place(0, 2, 40));
    run_into(&w, k1, next);
    T_EQ_MEM(k, copy, k->bytes);
    run_into(&w, k, again);
    T_EQ_MEM(first, again, sizeof first);
    T_EQ_U64(next[0], value(0, 6));
    T_EQ_STR(mask_text(k), "..111111");
}

/* places of windows and items */

TEST(several_items)
{
    const struct mmx_plan *p =
        PLAN(4, 20, place(0, 2, 6), place(1, 10, 3), place(2, 20, 9));

    T_EQ_STR(text(p), "0:2+4@0 1:0+3@6 2:0+4@16");
    T_EQ_STR(mask_text(p), "1111..111.......1111");
    T_EQ_U64(p->needs[2].keep, 4);
    T_EQ_U64(p->needs[0].keep, NONE);
    T_EQ_U64(p->needs[2].first, 0);
    T_EQ_U64(p->needs[2].end, 4);
}

TEST(window_only_on_separators_needs_nothing)
{
    struct mmx_placeholder sep = masked(0, 2, "1100011", STORAGE_COMPACT);
    const struct mmx_plan *p;
    struct world w;
    struct window_sources s = from(&w);
    struct mmx_trouble trouble;

    world_init(&w, 2, 1); /* no room exists */
    p = PLAN(4, 3, sep);
    T_EQ_U64(p->rows, 0);
    T_EQ_U64(p->needs[0].state, MMX_LATER);
    T_OK(window_check(p, &s, NULL, &trouble));
    T_EQ_U64(w.asked, 0);
    sep.flags = MMX_ABSENT;
    T_EQ_U64(PLAN(4, 3, sep)->rows, 0);
}

TEST(two_spans_cannot_claim_one_position)
{
    struct mmx_placeholder items[] = {
        place(0, 0, 4), masked(1, 2, "011", STORAGE_COMPACT)};
    uint32_t at;

    T_ERR(refused((struct mmx_window){.length = 10}, items, 2, &at),
        ERR_MALFORMED);
    T_EQ_U64(at, 1);
    /* Outside of the window it does no harm. */
    T_OK(refused((struct mmx_window){.length = 3}, items, 2, &at));
}

/* draft models, whole spans */

TEST(a_draft_model_does_not_forgive_what_the_target_needs)
{
    struct mmx_placeholder items[] = {place(0, 2, 4)};
    uint32_t at;

    items[0].flags = MMX_ABSENT;
    T_ERR(refused((struct mmx_window){.length = 8, .shift = 1}, items, 1, &at),
        ERR_NOT_READY);
    T_EQ_U64(at, 0);
}

TEST(an_absent_item_in_the_window)
{
    struct mmx_placeholder items[] = {place(0, 2, 4), place(1, 8, 4)};
    uint32_t at;

    items[1].flags = MMX_ABSENT;
    T_OK(refused((struct mmx_window){.length = 8}, items, 2, &at));
    T_ERR(refused((struct mmx_window){.length = 9}, items, 2, &at),
        ERR_NOT_READY);
    T_EQ_U64(at, 1);
}

TEST(an_indivisible_span_is_not_cut)
{
    struct mmx_placeholder items[] = {place(0, 4, 10), place(1, 20, 4)};
    const struct mmx_plan *p;
    uint32_t at;

    items[0].flags = MMX_INDIVISIBLE;
    p = plan((struct mmx_window){.length = 8}, items, 2);
    T_EQ_U64(p->positions, 4);
    T_EQ_U64(p->rows, 0);
    T_EQ_STR(
        text(plan((struct mmx_window){.computed = 4, .length = 10}, items, 2)),
        "0:0+10@0");
    T_ERR(
        refused((struct mmx_window){.computed = 4, .length = 9}, items, 2, &at),
        ERR_TOO_LARGE);
    T_EQ_U64(at, 0);
    T_ERR(refused(
              (struct mmx_window){.computed = 5, .length = 20}, items, 2, &at),
        ERR_MALFORMED);
    T_EQ_STR(
        text(plan((struct mmx_window){.computed = 14, .length = 8}, items, 2)),
        "1:0+2@6");
}

TEST(an_indivisible_span_moves_the_end_into_another)
{
    struct mmx_placeholder items[] = {masked(0, 4, "111000", STORAGE_COMPACT),
        masked(1, 7, "000111", STORAGE_COMPACT)};

    items[0].flags = items[1].flags = MMX_INDIVISIBLE;
    T_EQ_U64(plan((struct mmx_window){.length = 11}, items, 2)->positions, 4);
    T_EQ_U64(plan((struct mmx_window){.length = 13}, items, 2)->rows, 6);
}

/* numbers that make no sense */

TEST(planning_refuses)
{
    struct mmx_placeholder p = place(0, 2, 4);
    struct mmx_window w = {.length = 8};
    uint32_t at;

    p.room = ROOMS;
    T_ERR(refused(w, &p, 1, &at), ERR_MALFORMED);
    p = place(0, UINT32_MAX - 3, 4);
    T_ERR(refused(w, &p, 1, &at), ERR_MALFORMED);
    p = place(0, 2, 4);
    p.row_base = UINT32_MAX - 3;
    T_ERR(refused(w, &p, 1, &at), ERR_MALFORMED);
    p = place(0, 2, 4);
    p.storage = STORAGE_PROMPT + 1;
    T_ERR(refused(w, &p, 1, &at), ERR_MALFORMED);
    p = place(0, 2, 4);
    p.elements = 3;
    T_OK(refused(w, &p, 1, &at));
    w.elements = 4;
    T_ERR(refused(w, &p, 1, &at), ERR_INCOMPATIBLE_LAYOUT);
    T_EQ_U64(at, 0);
    w = (struct mmx_window){.computed = UINT32_MAX - 8, .length = 8};
    T_ERR(refused(w, &p, 1, &at), ERR_MALFORMED);
    T_EQ_U64(at, 1);
}

TEST(memory_too_small)
{
    struct mmx_placeholder p = masked(0, 0, "10101", STORAGE_COMPACT);
    struct mmx_window w = {.length = 5, .rooms = 1};
    const struct mmx_plan *out = NULL;
    uint64_t mem[64];
    size_t bytes;
    uint32_t at;

    T_OK(window_bytes(&w, &p, 1, &bytes, &at));
    for (size_t n = 0; n < bytes; n += 8)
        T_ERR(window_plan(&w, &p, 1, mem, n, &out, &at), ERR_NO_BLOCKS);
    T_TRUE(out == NULL);
    T_OK(window_plan(&w, &p, 1, mem, bytes, &out, &at));
    T_EQ_U64(out->bytes, bytes);
}

TEST(nothing_at_all)
{
    struct mmx_window w = {.computed = 5, .rooms = 0};
    const struct mmx_plan *out;
    uint64_t mem[16];
    uint32_t at;

    T_OK(window_plan(&w, NULL, 0, mem, sizeof mem, &out, &at));
    T_EQ_U64(out->positions, 0);
    T_EQ_U64(out->rows, 0);
}

/* running */

TEST(deepstack_fields_side_by_side)
{
    struct world a, b;
    const struct mmx_plan *p = PLAN(1, 6, place(0, 2, 8));
    struct window_sources sa = from(&a), sb = from(&b);
    struct mmx_trouble trouble;
    uint16_t out[6][7];
    struct mmx_tensor t = {.rows = 6, .stride = sizeof out[0], .dtype = "bf16"};

    world_init(&a, 3, 8);
    fill(&a, 0, 8, 0);
    world_init(&b, 4, 8);
    fill(&b, 0, 8, 2);
    for (uint32_t i = 0; i < 32 * 4; i++)
        b.pool[i] |= 0x4000;
    memset(out, 0xff, sizeof out);
    t.data = out[0];
    t.elements = 3;
    T_OK(window_run(p, &sa, &t, &trouble));
    t.data = &out[0][3];
    t.elements = 4;
    T_OK(window_run(p, &sb, &t, &trouble));
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < 7; k++)
            T_EQ_U64(out[i][k],
                i < 1 ? 0xffff : value(0, i - 1) | (k < 3 ? 0 : 0x4000));
}

TEST(f32_from_bf16_and_f16)
{
    struct world w;
    const struct mmx_plan *p;
    struct window_sources s = from(&w);
    struct mmx_trouble trouble;
    static float out[65536];
    struct mmx_tensor t = {
        .data = out, .rows = 4, .elements = 16384, .dtype = "f32"};

    world_init(&w, 16384, 2);
    fill(&w, 0, 4, 0); /* the rows are in block 1 */
    for (uint32_t i = 0; i < 65536; i++)
        w.pool[65536 + i] = (uint16_t)i;
    p = PLAN(0, 4, place(0, 0, 4));
    T_OK(window_run(p, &s, &t, &trouble));
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t got;

        memcpy(&got, &out[i], 4);
        T_EQ_U64(got, i << 16);
    }
    memcpy(w.rooms[0].dtype, "f16", 4);
    T_OK(window_run(p, &s, &t, &trouble));
    for (uint32_t i = 0; i < 65536; i++) {
        int exp = i >> 10 & 31;
        float want = exp == 31 ? INFINITY
                     : exp     ? ldexpf((float)(1024 + i % 1024), exp - 25)
                               : ldexpf((float)(i % 1024), -24);

        if (exp == 31 && i % 1024) {
            T_TRUE(isnan(out[i]));
            continue;
        }
        want = i & 0x8000 ? -want : want;
        T_EQ_MEM(&out[i], &want, 4);
    }
}

TEST(strided_rows_leave_what_is_between)
{
    struct world w;
    const struct mmx_plan *p = PLAN(0, 5, place(0, 1, 30));
    struct window_sources s = from(&w);
    struct mmx_trouble trouble;
    uint8_t out[5 * 13 + 1];
    struct mmx_tensor t = {.data = out + 1,
        .rows = 5,
        .stride = 13, /* not aligned at all */
        .elements = 4,
        .dtype = "bf16"};

    world_init(&w, 4, 24);
    fill(&w, 0, 30, 0);
    memset(out, 0xee, sizeof out);
    T_OK(window_run(p, &s, &t, &trouble));
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t k = 0; k < 13; k++) {
            uint16_t v = value(0, i - 1);

            T_EQ_U64(out[1 + i * 13 + k],
                i && k < 8 ? ((const uint8_t *)&v)[k % 2] : 0xee);
        }
}

TEST(packed_rows_touch)
{
    struct world w;
    const struct mmx_plan *p =
        PLAN(0, 12, place(0, 1, 3), masked(1, 6, "1011", STORAGE_COMPACT));
    struct window_sources s = from(&w);
    struct mmx_trouble trouble;
    uint16_t out[6];
    struct mmx_tensor t = {
        .data = out, .rows = 6, .elements = 1, .dtype = "bf16", .packed = true};

    world_init(&w, 1, 24);
    fill(&w, 0, 3, 0);
    fill(&w, 1, 3, 8);
    T_OK(window_run(p, &s, &t, &trouble));
    for (uint32_t i = 0; i < 6; i++)
        T_EQ_U64(out[i], value(i / 3, i % 3));
    t.rows = 5;
    T_ERR(window_run(p, &s, &t, &trouble), ERR_MALFORMED);
}

/* Each reason for a refusal; no byte is written. */
struct bad {
    struct world w;
    const struct mmx_plan *plan;
    uint16_t out[24];
    struct mmx_tensor t;
    struct mmx_trouble trouble;
};

static void bad_init(struct bad *b)
{
    world_init(&b->w, 2, 40);
    fill(&b->w, 0, 6, 0);
    fill(&b->w, 1, 30, 10);
    b->plan = PLAN(0, 12, place(0, 0, 6), place(1, 6, 30));
    memset(b->out, 0xee, sizeof b->out);
    b->t = (struct mmx_tensor){
        .data = b->out, .rows = 12, .elements = 2, .dtype = "bf16"};
}

static void bad_run(
    struct bad *b, enum err want, uint32_t room, uint32_t first, uint32_t rows)
{
    struct window_sources s = from(&b->w);

    T_ERR(window_run(b->plan, &s, &b->t, &b->trouble), want);
    T_EQ_U64(b->trouble.room, room);
    T_EQ_U64(b->trouble.first, first);
    T_EQ_U64(b->trouble.rows, rows);
    for (uint32_t i = 0; i < ARRAY_LEN(b->out); i++)
        T_EQ_U64(b->out[i], 0xeeee);
}

TEST(rows_of_a_released_prefix_are_gone)
{
    struct bad b;

    bad_init(&b);
    b.w.rooms[1].released = 2;
    bad_run(&b, ERR_GONE, 1, 0, 2);
    b.w.rooms[1].released = 20;
    bad_run(&b, ERR_GONE, 1, 0, 6);
}

TEST(rows_that_have_not_landed_are_named)
{
    struct bad b;

    bad_init(&b);
    b.w.rooms[1].readable = 4;
    bad_run(&b, ERR_NOT_READY, 1, 4, 2);
    b.w.rooms[1].readable = 0;
    bad_run(&b, ERR_NOT_READY, 1, 0, 6);
    /* The cell says more rows than the last event told places of. */
    b.w.rooms[1].readable = 30;
    b.w.rooms[1].runs_count = 0;
    bad_run(&b, ERR_NOT_READY, 1, 0, 6);
    b.w.rooms[1].runs_count = 3;
    b.w.rooms[1].first = 3;
    bad_run(&b, ERR_NOT_READY, 1, 0, 6);
    b.w.rooms[1].block_rows = 0;
    bad_run(&b, ERR_STALE, 1, 0, 6);
}

TEST(rows_beyond_the_item)
{
    struct bad b;

    bad_init(&b);
    b.w.rooms[1].total = 5;
    bad_run(&b, ERR_MALFORMED, 1, 5, 1);
    b.w.rooms[1].total = ROWS_UNKNOWN;
    b.w.rooms[1].readable = 5;
    bad_run(&b, ERR_NOT_READY, 1, 5, 1);
}

TEST(tensors_that_do_not_fit)
{
    struct bad b;

    bad_init(&b);
    b.t.rows = 11;
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
    b.t.rows = 12;
    b.t.stride = 3;
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
    b.t.stride = 0;
    b.t.data = NULL;
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
    b.t.data = b.out;
    b.t.dtype = "f64";
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
    b.t.dtype = "f16";
    bad_run(&b, ERR_INCOMPATIBLE_LAYOUT, 0, 0, 6);
    b.t.dtype = "bf16";
    b.t.elements = 1;
    bad_run(&b, ERR_INCOMPATIBLE_LAYOUT, 0, 0, 6);
    b.t.elements = 2;
    b.w.rooms[1].elements = 3;
    bad_run(&b, ERR_INCOMPATIBLE_LAYOUT, 1, 0, 6);
}

TEST(a_plan_that_was_written_to)
{
    struct bad b;
    struct mmx_plan *p;

    bad_init(&b);
    p = (struct mmx_plan *)(uintptr_t)b.plan;
    ((uint64_t *)(uintptr_t)p->mask)[0] &= ~UINT64_C(4);
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
    ((uint64_t *)(uintptr_t)p->mask)[0] |= 4;
    ((struct mmx_segment *)(uintptr_t)p->segments)[1].room = ROOMS;
    bad_run(&b, ERR_MALFORMED, NONE, 0, 0);
}
