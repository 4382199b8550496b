/* client_cuda_test.c - the client library and pools on a GPU, over the driver's
 * double: maps, pointers, copies, what is refused and why. */
#include "test/fake_daemon.h"
#include "test/gpu.h"

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
    err = mmx_pool(g->m, "g", NULL, T_WAIT_MS, out);
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
    T_EQ_I64(mmx_wait_room(g.m, r, MMX_GRANTED, T_WAIT_MS), 0);
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

/* A room of 12 rows in two runs of a pool on the GPU, ready, and a plan that
 * shows it from place 2 on. */
static struct prompt {
    struct mem mem;
    struct rig g;
    mmx_room r;
    const struct mmx_plan *plan;
    uint64_t at[64];
    uint8_t bytes[POOL_BYTES];
} prompt;

static struct prompt *prompt_open(void)
{
    static const uint32_t runs[] = {3, 2, 9, 1};
    struct mmx_placeholder p = {.offset = 2, .length = 12};
    struct mmx_window w = {
        .size = sizeof w, .computed = 0, .length = 14, .rooms = 1};
    struct prompt *t = &prompt;

    t->mem = memory_on_gpu();
    for (size_t i = 0; i < sizeof t->bytes; i++)
        t->bytes[i] = (uint8_t)(i * 13 + (i >> 8));
    gpu_write(t->mem.gpu, t->mem.device, t->bytes, sizeof t->bytes);
    rig_open(&t->g, ROLE_LANGD);
    t->g.pool = (struct mmx_pool){.size = sizeof t->g.pool};
    T_EQ_I64(ask(&t->g, &t->mem, &t->g.pool), 0);
    T_EQ_I64(t->g.pool.writable, 0);
    t->r = rig_request(&t->g, 7, MMX_WHOLE);
    fake_answer(&t->g.f, t->g.seq, OK, "");
    rig_event(&t->g, t->r,
        (struct local_event){.what = EVENT_READY,
            .state = 4,
            .generation = 77,
            .rows = 12,
            .total = 12},
        runs, 2);
    rig_word(&t->g, t->r, 4, 12);
    T_EQ_I64(mmx_wait_room(t->g.m, t->r, MMX_READY, T_WAIT_MS), 0);
    T_EQ_I64(mmx_plan(&w, &p, 1, t->at, sizeof t->at, &t->plan, NULL), 0);
    return t;
}

static void prompt_close(struct prompt *t)
{
    rig_close(&t->g);
    mem_cuda.close(&t->mem);
}

/* Rows from place 2 on are those of the room; the places before are 0xee. */
static void prompt_check(const struct prompt *t, const uint8_t *out)
{
    T_EQ_U64(out[2 * ROW - 1], 0xee);
    T_EQ_MEM(out + 2 * ROW, t->bytes + 3 * BLOCK_ROWS * ROW, 8 * ROW);
    T_EQ_MEM(out + 10 * ROW, t->bytes + 9 * BLOCK_ROWS * ROW, 4 * ROW);
}

/* Places for the whole window. */
static struct mmx_tensor tensor_at(void *data)
{
    return (struct mmx_tensor){.size = sizeof(struct mmx_tensor),
        .data = data,
        .rows = 14,
        .elements = 2,
        .dtype = "f32"};
}

TEST(plans_run_on_the_gpu)
{
    struct prompt *t = prompt_open();
    uint8_t out[14 * ROW];
    struct mmx_tensor to = tensor_at(out);

    memset(out, 0xee, sizeof out);
    T_EQ_I64(mmx_plan_check(t->g.m, t->plan, &t->r, "a", &to, NULL), 0);
    T_EQ_I64(mmx_plan_run(t->g.m, t->plan, &t->r, "a", &to, NULL), 0);
    prompt_check(t, out);
    to.dtype = "bf16";
    T_EQ_I64(mmx_plan_run(t->g.m, t->plan, &t->r, "a", &to, NULL),
        -MMX_E_INCOMPATIBLE_LAYOUT);
    prompt_close(t);
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
    T_HAS(text, "does not know how it is shared");
    mem.share = "cuda-vmm";
    gpu_set("fail_cuMemMap", 1);
    T_EQ_I64(ask(&g, &mem, &p), -MMX_E_NOT_READY);
    T_EQ_I64(gpu_get("mapped"), 1); /* the owner's map only */
    gpu_set("no_read_only", 1);
    T_EQ_I64(ask(&g, &mem, &p), 0);
    rig_close(&g);
    mem_cuda.close(&mem);
    T_EQ_I64(gpu_get("mapped"), 0);
}
