/* client_cuda_test.c - the client library and pools on a GPU, over the
 * driver's double: maps, pointers, copies, what is refused and why. */
#include "test/fake_daemon.h"
#include "test/gpu.h"
#include "test/t.h"

#include <string.h>

static struct mem memory_on_gpu(void)
{
    struct mem_opt opt = {.name = "test",
        .kind = "cuda:0",
        .bytes = POOL_BYTES,
        .numa_node = -1,
        .engines_write = true};
    struct mem mem;

    gpu_use();
    T_OK(mem_cuda.open(&mem, &opt));
    return mem;
}

static int ask(struct rig *g, const struct mem *mem, struct mmx_pool *out)
{
    int err;

    g->f.gpu = mem;
    fake_pool(&g->f, ++g->seq, "g", mem->fd);
    g->f.gpu = NULL;
    err = mmx_pool(g->m, "g", NULL, 5000, out);
    T_EQ_U64(fake_want(&g->f, LOCAL_POOL).seq, g->seq);
    return err;
}

struct told {
    int mapped, unmapped, gpu;
};

static void told(void *ud, const struct mmx_pool *pool, int mapped)
{
    struct told *t = ud;

    if (strcmp(pool->name, "g") != 0)
        return;
    t->gpu = pool->gpu;
    t->mapped += mapped;
    t->unmapped += !mapped;
}

TEST(rows_are_written_and_read_on_the_gpu)
{
    static const uint32_t runs[] = {2, 1, 7, 2};
    struct mem mem = memory_on_gpu();
    struct rig g;
    struct told t = {0, 0, -2};
    struct mmx_view v = {0};
    uint8_t rows[10 * ROW], wide[10 * 20], back[10 * ROW], got[POOL_BYTES];
    mmx_room r;

    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)(i * 7 + 1);
    rig_open(&g, ROLE_ENCODED);
    T_EQ_I64(g.pool.gpu, -1);
    T_EQ_I64(mmx_on_map(g.m, told, &t), 0);
    g.pool = (struct mmx_pool){.size = sizeof g.pool};
    T_EQ_I64(ask(&g, &mem, &g.pool), 0);
    T_EQ_I64(g.pool.gpu, 0);
    T_EQ_STR(g.pool.memory, "cuda:0");
    T_TRUE(g.pool.base && (uintptr_t)g.pool.base != mem.device);
    T_TRUE((uint8_t *)g.pool.fields[1].data ==
           (uint8_t *)g.pool.base + BLOCKS * BLOCK_ROWS * ROW);
    T_EQ_I64(t.mapped, 1);
    T_EQ_I64(t.gpu, 0);

    r = rig_announce(&g, 42, 10);
    fake_answer(&g.f, g.seq, OK, "");
    rig_event(&g, r,
        (struct local_event){
            .what = EVENT_GRANTED, .state = 2, .rows = 10, .total = 10},
        runs, 2);
    T_EQ_I64(mmx_wait_room(g.m, r, MMX_GRANTED, 5000), 0);
    T_EQ_I64(mmx_view(g.m, r, "a", 4, 6, &v), 0);
    T_TRUE((uint8_t *)v.data ==
           (uint8_t *)g.pool.fields[0].data + 7 * BLOCK_ROWS * ROW);
    T_EQ_I64(mmx_scatter(g.m, r, "a", 0, 10, rows, 0), 0);
    gpu_read(mem.gpu, got, mem.device, sizeof got);
    T_EQ_MEM(got + 2 * BLOCK_ROWS * ROW, rows, 4 * ROW);
    T_EQ_MEM(got + 7 * BLOCK_ROWS * ROW, rows + 4 * ROW, 6 * ROW);
    T_EQ_I64(mmx_gather(g.m, r, "a", 0, 10, back, 0), 0);
    T_EQ_MEM(back, rows, sizeof rows);
    memset(wide, 0, sizeof wide);
    T_EQ_I64(mmx_gather(g.m, r, "a", 0, 10, wide, 20), 0);
    for (uint32_t i = 0; i < 10; i++)
        T_EQ_MEM(wide + i * 20, rows + i * ROW, ROW);
    rig_close(&g);
    T_EQ_I64(t.unmapped, 1);
    mem_cuda.close(&mem);
    if (!gpu_real()) {
        T_EQ_I64(gpu_get("mapped"), 0);
        T_EQ_I64(gpu_get("created"), 0);
        T_EQ_I64(gpu_get("streams"), 0);
    }
}

TEST(plans_run_on_the_gpu)
{
    static const uint32_t runs[] = {3, 2, 9, 1};
    struct mem mem = memory_on_gpu();
    struct rig g;
    struct mmx_placeholder p = {.offset = 2, .length = 12};
    struct mmx_window w = {
        .size = sizeof w, .computed = 0, .length = 14, .rooms = 1};
    struct mmx_tensor to = {
        .size = sizeof to, .rows = 14, .elements = 2, .dtype = "f32"};
    const struct mmx_plan *plan;
    uint64_t at[64];
    uint8_t bytes[POOL_BYTES], out[14 * ROW];
    mmx_room r;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 13 + (i >> 8));
    gpu_write(mem.gpu, mem.device, bytes, sizeof bytes);
    rig_open(&g, ROLE_LANGD);
    g.pool = (struct mmx_pool){.size = sizeof g.pool};
    T_EQ_I64(ask(&g, &mem, &g.pool), 0);
    T_EQ_I64(g.pool.writable, 0);
    r = rig_request(&g, 7, MMX_WHOLE);
    fake_answer(&g.f, g.seq, OK, "");
    rig_event(&g, r,
        (struct local_event){.what = EVENT_READY,
            .state = 4,
            .generation = 77,
            .rows = 12,
            .total = 12},
        runs, 2);
    rig_word(&g, r, 4, 12);
    T_EQ_I64(mmx_wait_room(g.m, r, MMX_READY, 5000), 0);
    T_EQ_I64(mmx_plan(&w, &p, 1, at, sizeof at, &plan, NULL), 0);
    memset(out, 0xee, sizeof out);
    to.data = out;
    T_EQ_I64(mmx_plan_check(g.m, plan, &r, "a", &to, NULL), 0);
    T_EQ_I64(mmx_plan_run(g.m, plan, &r, "a", &to, NULL), 0);
    T_EQ_U64(out[2 * ROW - 1], 0xee);
    T_EQ_MEM(out + 2 * ROW, bytes + 3 * BLOCK_ROWS * ROW, 8 * ROW);
    T_EQ_MEM(out + 10 * ROW, bytes + 9 * BLOCK_ROWS * ROW, 4 * ROW);
    to.dtype = "bf16";
    T_EQ_I64(mmx_plan_run(g.m, plan, &r, "a", &to, NULL),
        -MMX_E_INCOMPATIBLE_LAYOUT);
    rig_close(&g);
    mem_cuda.close(&mem);
}

TEST(what_cannot_be_mapped_is_refused_with_a_reason)
{
    struct mem mem = memory_on_gpu();
    struct rig g;
    struct mmx_pool p = {.size = sizeof p};
    char text[256];

    gpu_double_only();
    rig_open(&g, ROLE_ENCODED);
    mem.handle[0] ^= 1;
    T_EQ_I64(ask(&g, &mem, &p), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_error_text(g.m, text, sizeof text), 0);
    T_HAS(text, "its GPU is not visible in this process");
    mem.handle[0] ^= 1;
    mem.share = "cuda-fabric";
    T_EQ_I64(ask(&g, &mem, &p), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_error_text(g.m, text, sizeof text), 0);
    T_HAS(text, "shared in an unknown way");
    mem.share = "cuda-vmm";
    gpu_set("fail_cuMemMap", 1);
    T_EQ_I64(ask(&g, &mem, &p), -MMX_E_NOT_READY);
    T_EQ_I64(gpu_get("mapped"), 1); /* the owner's */
    gpu_set("no_read_only", 1);
    T_EQ_I64(ask(&g, &mem, &p), 0);
    rig_close(&g);
    mem_cuda.close(&mem);
    T_EQ_I64(gpu_get("mapped"), 0);
}
