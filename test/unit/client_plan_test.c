/* client_plan_test.c - plans through the client library: mmx_plan and its run
 * on a room's blocks, against a double of a daemon's socket. window_test.c
 * tests what a plan must be. */
#include "test/fake_daemon.h"

static const struct mmx_plan *plan_of(uint32_t computed, uint32_t length)
{
    static uint64_t mem[64];
    static const struct mmx_placeholder place = {.offset = 2, .length = 10};
    struct mmx_window w = {
        .size = sizeof w, .computed = computed, .length = length, .rooms = 1};
    const struct mmx_plan *plan;
    int at;

    T_EQ_I64(mmx_plan(&w, &place, 1, mem, sizeof mem, &plan, &at), 0);
    return plan;
}

static struct mmx_tensor tensor_of(float *data, uint64_t rows)
{
    return (struct mmx_tensor){.size = sizeof(struct mmx_tensor),
        .data = data,
        .rows = rows,
        .elements = 2,
        .dtype = "f32"};
}

/* Ten rows in blocks 5, 2, 3; element k of row r is r * 2 + k. */
static void landed(struct rig *g, mmx_room r, uint32_t rows)
{
    static const uint32_t runs[] = {5, 1, 2, 2};
    static const uint32_t places[] = {20, 21, 22, 23, 8, 9, 10, 11, 12, 13};
    struct local_event e = {.what = EVENT_LENGTH | EVENT_LANDED,
        .state = 3,
        .rows = rows,
        .total = 10};

    for (uint32_t i = 0; i < 10; i++) {
        float v[2] = {(float)(i * 2), (float)(i * 2 + 1)};

        memcpy(g->f.pool + places[i] * ROW, v, ROW);
    }
    rig_event(g, r, e, runs, 2);
    (void)rig_one_event(g->m);
}

TEST_RIG(run_over_several_runs, ROLE_LANGD)
{
    float out[12 * 2];
    struct mmx_tensor t = tensor_of(out, 12);
    mmx_room r = rig_request(g, 7, MMX_STREAM);

    fake_answer(&g->f, g->seq, OK, "");
    landed(g, r, 10);
    memset(out, 0, sizeof out);
    T_EQ_I64(mmx_plan_run(g->m, plan_of(0, 12), &r, "a", &t, NULL), 0);
    for (uint32_t i = 0; i < 24; i++)
        T_CHECK(out[i] == (i < 4 ? 0 : (float)(i - 4)), "%u: %f", i,
            (double)out[i]);
    t.packed = 1;
    t.rows = 10;
    T_EQ_I64(mmx_plan_run(g->m, plan_of(0, 12), &r, NULL, &t, NULL), 0);
    T_CHECK(out[19] == 19, "%f", (double)out[19]);
}

static void refused(struct rig *g, mmx_room r, uint32_t computed,
    uint32_t length, int want, uint32_t first, uint32_t rows)
{
    float out[12 * 2], before[12 * 2];
    struct mmx_tensor t = tensor_of(out, 12);
    struct mmx_trouble trouble;
    const struct mmx_plan *plan = plan_of(computed, length);

    memset(out, 0xee, sizeof out);
    memcpy(before, out, sizeof out);
    T_EQ_I64(mmx_plan_run(g->m, plan, &r, "a", &t, &trouble), want);
    T_EQ_MEM(out, before, sizeof out);
    T_EQ_U64(trouble.room, 0);
    T_EQ_U64(trouble.first, first);
    T_EQ_U64(trouble.rows, rows);
    T_EQ_I64(mmx_plan_check(g->m, plan, &r, "a", NULL, NULL), want);
}

TEST_RIG(not_landed_gone_and_stale, ROLE_LANGD)
{
    mmx_room r, none = {0, 0};

    refused(g, none, 0, 12, -MMX_E_STALE, 0, 10);
    r = rig_request(g, 7, MMX_STREAM);
    refused(g, r, 0, 12, -MMX_E_NOT_READY, 0, 10);
    fake_answer(&g->f, g->seq, OK, "");
    landed(g, r, 6);
    refused(g, r, 0, 12, -MMX_E_NOT_READY, 6, 4);
    T_EQ_I64(mmx_plan_check(g->m, plan_of(0, 8), &r, "a", NULL, NULL), 0);
    T_EQ_I64(mmx_release(g->m, r, 5, 0), 0);
    refused(g, r, 0, 8, -MMX_E_GONE, 0, 5);
    T_EQ_I64(mmx_plan_check(g->m, plan_of(7, 1), &r, "a", NULL, NULL), 0);
    /* All rows that had landed are released: `gone`, not `not-ready`. */
    T_EQ_I64(mmx_release(g->m, r, 6, 0), 0);
    refused(g, r, 4, 4, -MMX_E_GONE, 2, 4);
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), 0);
    refused(g, r, 0, 12, -MMX_E_STALE, 0, 10);
}

TEST_RIG(windows_that_need_nothing_need_no_room, ROLE_LANGD)
{
    mmx_room none = {0, 0};
    struct mmx_tensor t = tensor_of(NULL, 2);

    T_EQ_I64(mmx_plan_run(g->m, plan_of(0, 2), &none, "a", &t, NULL), 0);
    T_EQ_U64(plan_of(0, 2)->needs[0].state, MMX_LATER);
    T_EQ_U64(plan_of(12, 2)->needs[0].state, MMX_SKIP);
}

TEST(arguments)
{
    struct mmx_placeholder p = {.offset = 2, .length = 10};
    struct mmx_window w = {.size = sizeof w, .length = 12, .rooms = 1};
    const struct mmx_plan *plan = NULL;
    _Alignas(8) uint8_t mem[512];
    int64_t bytes;
    int at = -1;

    bytes = mmx_plan_bytes(&w, &p, 1, &at);
    T_TRUE(bytes > 0 && bytes <= (int64_t)sizeof mem);
    T_EQ_I64(at, -1);
    T_EQ_I64(mmx_plan(&w, &p, 1, mem + 4, sizeof mem - 4, &plan, &at),
        -MMX_E_MALFORMED);
    T_EQ_I64(mmx_plan(&w, &p, 1, mem, (size_t)bytes - 1, &plan, NULL),
        -MMX_E_NO_BLOCKS);
    T_EQ_I64(
        mmx_plan(&w, &p, -1, mem, sizeof mem, &plan, NULL), -MMX_E_MALFORMED);
    T_EQ_I64(
        mmx_plan(NULL, &p, 1, mem, sizeof mem, &plan, NULL), -MMX_E_MALFORMED);
    p.room = 1;
    T_EQ_I64(mmx_plan_bytes(&w, &p, 1, &at), -MMX_E_MALFORMED);
    T_EQ_I64(at, 0);
    T_TRUE(plan == NULL);
}
