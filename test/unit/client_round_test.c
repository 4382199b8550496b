/* client_round_test.c - rows of f32 that are written into fields of bf16 and
 * f16: to nearest, ties to even, checked at every number that such a field can
 * hold and at both sides of every border between two of them. */
#include "test/fake_daemon.h"

#include "client/client.h"

static uint16_t rounded(bool to_bf16, uint32_t bits)
{
    uint8_t to[2], from[4];
    uint16_t half;

    memcpy(from, &bits, sizeof bits);
    client_round(to_bf16, to, from, 1);
    memcpy(&half, to, sizeof half);
    return half;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Returns the f16 as f32, by its definition. */
static float value_of(uint16_t half)
{
    uint32_t exp = half >> 10 & 31, frac = half & 0x3ff;
    float f = exp ? (float)(frac | 0x400) : (float)frac;

    for (uint32_t i = exp ? exp : 1; i < 25; i++)
        f /= 2;
    for (uint32_t i = 25; i < exp; i++)
        f *= 2;
    return half & 0x8000 ? -f : f;
}

TEST(every_bf16_and_both_sides_of_every_border)
{
    for (uint32_t h = 0; h < 0x7f80; h++)
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            uint32_t bits = (sign | h) << 16, up = (sign | h) + 1;

            T_EQ_U64(rounded(true, bits), sign | h);
            T_EQ_U64(rounded(true, bits + 0x7fff), sign | h);
            T_EQ_U64(rounded(true, bits + 0x8000), h & 1 ? up : sign | h);
            T_EQ_U64(rounded(true, bits + 0x8001), up);
        }
}

TEST(every_f16_and_both_sides_of_every_border)
{
    for (uint32_t h = 0; h < 0x7c00; h++)
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            /* Behind the largest f16 the next step would be 2^16. */
            float here = value_of((uint16_t)h),
                  next = h == 0x7bff ? 65536 : value_of((uint16_t)(h + 1));
            uint32_t half = bits_of((here + next) / 2) | sign << 16;

            T_EQ_U64(rounded(false, bits_of(here) | sign << 16), sign | h);
            T_EQ_U64(rounded(false, half - 1), sign | h);
            T_EQ_U64(rounded(false, half), (sign | h) + (h & 1));
            T_EQ_U64(rounded(false, half + 1), (sign | h) + 1);
        }
}

TEST(what_is_too_large_or_no_number)
{
    static const uint32_t nans[] = {
        0x7f800001, 0x7fc00000, 0xff800001, 0xffffffff, 0x7fbfffff};

    for (int to = 0; to < 2; to++) {
        uint32_t inf = to ? 0x7f80 : 0x7c00;

        T_EQ_U64(rounded(to, 0x7f800000), inf);
        T_EQ_U64(rounded(to, 0xff800000), 0x8000 | inf);
        T_EQ_U64(rounded(to, 0x7f7fffff), inf);
        T_EQ_U64(rounded(to, 1), 0);
        T_EQ_U64(rounded(to, 0x80000001), 0x8000);
        for (size_t i = 0; i < ARRAY_LEN(nans); i++) {
            uint16_t half = rounded(to, nans[i]);

            T_TRUE((half & 0x7fff) > inf);
            T_EQ_U64(half >> 15, nans[i] >> 31);
        }
    }
}

/* Opens a handle, and a room in a pool of this layout. */
static mmx_room open_on(struct rig *g, const char *layout)
{
    static const uint32_t runs[] = {2, 1, 7, 2};
    mmx_room r;

    rig_open(g, ROLE_ENCODED);
    g->f.layout = layout;
    fake_pool(&g->f, ++g->seq, "h", g->f.pool_fd);
    g->pool = (struct mmx_pool){.size = sizeof g->pool};
    T_EQ_I64(mmx_pool(g->m, "h", NULL, T_WAIT_MS, &g->pool), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_POOL).seq, g->seq);
    r = rig_announce(g, 7, 10);
    fake_answer(&g->f, g->seq, OK, "");
    rig_event(g, r,
        (struct local_event){
            .what = EVENT_GRANTED, .state = 2, .rows = 10, .total = 10},
        runs, 2);
    T_EQ_U64(rig_one_event(g->m).what, MMX_GRANTED);
    return r;
}

TEST(rows_are_rounded_into_their_runs)
{
    struct rig g;
    float rows[10][5]; /* rows have four elements; the fifth must stay */
    uint16_t back[10][4];

    for (int to = 0; to < 2; to++) {
        mmx_room r = open_on(&g, to ? "a:bf16:4,b:i32:1" : "a:f16:4,b:i32:1");

        for (int i = 0; i < 50; i++)
            rows[i / 5][i % 5] = (float)(i * 1.001);
        T_EQ_I64(
            mmx_scatter_f32(g.m, r, "a", 0, 10, rows[0], sizeof rows[0]), 0);
        T_EQ_I64(mmx_gather(g.m, r, "a", 0, 10, back, 0), 0);
        for (int i = 0; i < 40; i++)
            T_EQ_U64(
                back[i / 4][i % 4], rounded(to, bits_of(rows[i / 4][i % 4])));
        T_EQ_I64(
            mmx_scatter_f32(g.m, r, "a", 0, 10, rows[0], 8), -MMX_E_MALFORMED);
        T_EQ_I64(mmx_scatter_f32(g.m, r, "b", 0, 10, rows[0], 0),
            -MMX_E_INCOMPATIBLE_LAYOUT);
        T_EQ_I64(
            mmx_scatter_f32(g.m, r, "a", 0, 11, rows[0], 0), -MMX_E_NOT_READY);
        rig_close(&g);
    }
}

TEST(rows_of_f32_are_copied)
{
    struct rig g;
    mmx_room r = open_on(&g, LAYOUT);
    float rows[20], back[20];

    for (int i = 0; i < 20; i++)
        rows[i] = (float)(i * 1.001);
    T_EQ_I64(mmx_scatter_f32(g.m, r, NULL, 0, 10, rows, 0), 0);
    T_EQ_I64(mmx_gather(g.m, r, NULL, 0, 10, back, 0), 0);
    T_EQ_MEM(back, rows, sizeof rows);
    rig_close(&g);
}
