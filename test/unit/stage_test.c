/* stage_test.c - pinned slots over the driver's double: what is reported, when,
 * and in which order; slow copies, failing copies, bytes that come late. */
#include "node/shard/stage.h"
#include "test/gpu.h"
#include "test/t.h"

#include <poll.h>

#define SLOT 4096u

static struct world {
    struct cuda *gpu[2];
    struct mem mem[2];
    struct stage *s;
    struct wake wake;
    uint64_t told[64];
    bool ok[64];
    uint32_t slot[64], count;
} w;

static void over(void *ud, uint32_t slot, uint64_t cookie, bool ok)
{
    T_TRUE(ud == &w);
    w.told[w.count] = cookie;
    w.slot[w.count] = slot;
    w.ok[w.count++] = ok;
}

static void start(uint32_t slots)
{
    struct stage_conf c = {.slots = slots,
        .most = slots + 1,
        .slot_bytes = SLOT,
        .entries = 8,
        .copies = 16,
        .wake = &w.wake,
        .ud = &w,
        .over = over};
    struct mem_opt opt = {
        .name = "test", .kind = "cuda:0", .bytes = 65536, .numa_node = -1};

    gpu_use_double();
    T_OK(wake_init(&w.wake));
    T_OK(stage_new(&w.s, &c));
    T_OK(mem_cuda.open(&w.mem[0], &opt));
    opt.kind = "cuda:1";
    T_OK(mem_cuda.open(&w.mem[1], &opt));
    T_OK(stage_gpu(w.s, w.mem[0].gpu));
    T_OK(stage_gpu(w.s, w.mem[1].gpu));
    T_OK(stage_gpu(w.s, w.mem[0].gpu));
}

static void stop(void)
{
    stage_free(&w.s);
    T_TRUE(w.s == NULL);
    mem_cuda.close(&w.mem[0]);
    mem_cuda.close(&w.mem[1]);
    wake_fini(&w.wake);
    T_EQ_I64(gpu_get("streams"), 0);
    T_EQ_I64(gpu_get("events"), 0);
}

/* As a shard does: sleeps until the driver's callback wakes it. */
static void wait_for(uint32_t count)
{
    uint64_t end = t_end_ns(T_WAIT_MS);

    while (w.count < count) {
        struct pollfd fd = {.fd = w.wake.fd, .events = POLLIN};

        T_CHECK(t_now_ns() < end, "%u of %u told", w.count, count);
        wake_sleep(&w.wake);
        if (stage_progress(w.s) == 0)
            poll(&fd, 1, 1000);
        wake_clear(&w.wake);
    }
}

static void *device(uint32_t gpu, uint32_t at)
{
    return (void *)(uintptr_t)(w.mem[gpu].device + at);
}

/* Copies n bytes of a value to a place on a GPU. */
static void in(
    uint64_t cookie, uint32_t gpu, uint32_t at, uint8_t value, uint32_t n)
{
    uint8_t *p;

    while (!stage_room(w.s, n, 1))
        T_TRUE(stage_wait(w.s));
    p = stage_take(w.s, n);
    memset(p, value, n);
    stage_copy(w.s, w.mem[gpu].gpu, device(gpu, at), p, n);
    (void)stage_entry(w.s, cookie);
}

static void check(uint32_t gpu, uint32_t at, uint8_t value, uint32_t n)
{
    uint8_t got[SLOT], want[SLOT];

    memset(want, value, n);
    gpu_read(w.mem[gpu].gpu, got, w.mem[gpu].device + at, n);
    T_EQ_MEM(got, want, n);
}

TEST_AROUND(bytes_arrive_and_entries_are_told_in_order, start(3), stop())
{
    in(10, 0, 0, 1, 1000);
    in(11, 1, 500, 2, 1000);
    in(12, 0, 1000, 3, 1000);
    T_EQ_U64(w.count, 0);
    stage_push(w.s);
    T_EQ_U64(stage_copying(w.s), 1);
    wait_for(3);
    T_EQ_U64(w.told[0], 10);
    T_EQ_U64(w.told[1], 11);
    T_EQ_U64(w.told[2], 12);
    T_TRUE(w.ok[0] && w.ok[1] && w.ok[2]);
    T_EQ_U64(stage_copying(w.s), 0);
    check(0, 0, 1, 1000);
    check(1, 500, 2, 1000);
    check(0, 1000, 3, 1000);
}

TEST(neighbours_become_one_copy)
{
    long before;

    start(2);
    before = gpu_get("copies");
    in(1, 0, 0, 5, 100);
    in(2, 0, 100, 5, 100);
    in(3, 0, 200, 5, 100);
    stage_push(w.s);
    wait_for(3);
    T_EQ_I64(gpu_get("copies") - before, 1);
    check(0, 0, 5, 300);
    before = gpu_get("batches");
    in(1, 0, 0, 5, 100);
    in(2, 0, 200, 5, 100);
    stage_push(w.s);
    wait_for(5);
    T_EQ_I64(gpu_get("batches") - before, 1);
    stop();
}

/* Slots are used in turn: while one is copied the next is filled. When all are
 * under way there is no space until the oldest has been copied. */
TEST_AROUND(a_ring_of_slow_copies, start(3), stop())
{
    gpu_set("delay_us", 2000);
    for (uint64_t i = 0; i < 12; i++) {
        while (!stage_room(w.s, SLOT, 1))
            T_TRUE(stage_wait(w.s));
        in(i, (uint32_t)i % 2, (uint32_t)i * SLOT % 61440, (uint8_t)i, SLOT);
        stage_push(w.s);
        T_TRUE(stage_copying(w.s) <= 3);
    }
    wait_for(12);
    for (uint32_t i = 0; i < 12; i++)
        T_EQ_U64(w.told[i], i);
    T_FALSE(stage_wait(w.s));
    for (uint32_t i = 0; i < 12; i++)
        check(i % 2, i * SLOT % 61440, (uint8_t)i, SLOT);
}

TEST_AROUND(no_room_while_all_slots_are_held, start(2), stop())
{
    uint32_t a, b;

    in(1, 0, 0, 1, 10);
    a = stage_hold(w.s);
    stage_push(w.s);
    in(2, 0, 0, 1, 10);
    b = stage_hold(w.s);
    T_TRUE(a != b);
    stage_push(w.s);
    wait_for(2);
    T_FALSE(stage_room(w.s, 10, 1));
    T_FALSE(stage_wait(w.s));
    T_TRUE(stage_grow(w.s));
    in(3, 0, 100, 7, SLOT);
    stage_push(w.s);
    wait_for(3);
    check(0, 100, 7, SLOT);
    T_FALSE(stage_grow(w.s)); /* one more slot is the limit */
    stage_drop(w.s, a);
    T_TRUE(stage_room(w.s, 10, 1));
    stage_drop(w.s, b);
}

TEST_AROUND(a_full_slot_is_pushed_by_itself, start(2), stop())
{
    in(1, 0, 0, 1, 3000);
    T_EQ_U64(stage_copying(w.s), 0);
    T_TRUE(stage_room(w.s, 3000, 1));
    T_EQ_U64(stage_copying(w.s), 1);
    for (uint64_t i = 0; i < 9; i++) /* more entries than a slot has */
        in(2 + i, 0, (uint32_t)i * 20, 2, 10);
    stage_push(w.s);
    wait_for(10);
}

TEST_AROUND(bytes_that_come_late_hold_their_slot_only, start(3), stop())
{
    uint8_t *p;
    uint32_t slot, entry;

    T_TRUE(stage_room_fill(w.s, 100, 1));
    p = stage_take(w.s, 100);
    stage_copy(w.s, w.mem[0].gpu, device(0, 0), p, 100);
    (void)stage_entry(w.s, 1);
    slot = stage_fill(w.s);
    (void)stage_take(w.s, 100);
    entry = stage_entry(w.s, 2);
    T_EQ_U64(stage_fill(w.s), slot);
    stage_push(w.s);
    T_EQ_U64(stage_copying(w.s), 0);
    in(3, 0, 200, 7, 100); /* overtakes the bytes that are late */
    stage_push(w.s);
    wait_for(1);
    T_EQ_U64(w.told[0], 3);
    memset(p, 9, 100);
    stage_filled(w.s, slot);
    T_EQ_U64(stage_copying(w.s), 0);
    stage_bad(w.s, slot, entry);
    stage_filled(w.s, slot);
    wait_for(3);
    T_EQ_U64(w.told[1], 1);
    T_EQ_U64(w.told[2], 2);
    T_TRUE(w.ok[1] && !w.ok[2]);
    check(0, 0, 9, 100);
}

/* Opens a slot for bytes of 4 KiB that are still to come; returns it. */
static uint32_t awaited(uint64_t cookie)
{
    uint8_t *p;

    T_TRUE(stage_room_fill(w.s, SLOT, 1));
    p = stage_take(w.s, SLOT);
    stage_copy(w.s, w.mem[0].gpu, device(0, 0), p, SLOT);
    (void)stage_entry(w.s, cookie);
    return stage_fill(w.s);
}

TEST_AROUND(one_slot_never_waits_for_bytes, start(3), stop())
{
    uint32_t a, b;

    a = awaited(1);
    b = awaited(2);
    T_TRUE(a != b);
    T_FALSE(stage_room_fill(w.s, 10, 1));
    in(3, 0, 0, 5, 100); /* goes to another slot */
    T_TRUE(stage_filling(w.s) != a && stage_filling(w.s) != b);
    T_FALSE(stage_room_fill(w.s, 10, 1));
    in(4, 0, 200, 5, SLOT); /* waits at most for a copy */
    stage_push(w.s);
    wait_for(2);
    T_EQ_U64(w.told[0], 3);
    T_EQ_U64(w.told[1], 4);
    stage_filled(w.s, a);
    wait_for(3);
    T_EQ_U64(w.told[2], 1);
    a = awaited(5);
    stage_filled(w.s, a);
    stage_filled(w.s, b);
    stage_push(w.s);
    wait_for(5);
}

TEST(a_failed_copy_fails_its_slot_and_what_follows)
{
    start(3);
    gpu_set("hold", 1);
    in(1, 0, 0, 1, 100);
    in(2, 0, 4000, 1, 100);
    stage_push(w.s);
    gpu_set("fail_copy", 1);
    gpu_set("hold", 0);
    wait_for(2);
    T_TRUE(!w.ok[0] && !w.ok[1]);
    T_HAS(cuda_lost(w.mem[0].gpu), "cuda:0 is lost");
    for (uint64_t i = 0; i < 20; i++) { /* each fails quickly */
        in(3 + i, 0, 0, 1, 100);
        stage_push(w.s);
        wait_for(3 + (uint32_t)i);
        T_FALSE(w.ok[2 + i]);
    }
    stage_free(&w.s);
    mem_cuda.close(&w.mem[0]);
    mem_cuda.close(&w.mem[1]);
    wake_fini(&w.wake);
}

TEST_AROUND(a_lost_gpu_takes_only_its_own_entries_along, start(3), stop())
{
    in(1, 0, 0, 1, 100);
    in(2, 1, 0, 2, 100);
    in(3, 1, 200, 3, 100);
    gpu_set("fail_cuEventRecord", 1); /* on the first GPU */
    stage_push(w.s);
    wait_for(3);
    T_TRUE(!w.ok[0] && w.ok[1] && w.ok[2]);
    T_TRUE(cuda_lost(w.mem[0].gpu) && !cuda_lost(w.mem[1].gpu));
    check(1, 0, 2, 100);
    check(1, 200, 3, 100);
    in(4, 0, 0, 1, 100); /* the lost GPU stays lost */
    in(5, 1, 0, 4, 100);
    stage_push(w.s);
    wait_for(5);
    T_TRUE(!w.ok[3] && w.ok[4]);
    check(1, 0, 4, 100);
}

/* While two slots are copied, small pieces gather in the third. */
TEST_AROUND(small_things_gather_behind_large_ones, start(4), stop())
{
    gpu_set("hold", 1);
    in(1, 0, 0, 1, 100);
    stage_push_due(w.s);
    T_EQ_U64(stage_copying(w.s), 1);
    in(2, 0, 200, 1, 100);
    stage_push_due(w.s);
    T_EQ_U64(stage_copying(w.s), 2);
    for (uint64_t i = 0; i < 5; i++) {
        in(3 + i, 0, 400 + (uint32_t)i * 200, 1, 100);
        stage_push_due(w.s);
    }
    T_EQ_U64(stage_copying(w.s), 2);
    T_TRUE(stage_due(w.s));
    in(8, 0, 4000, 1, 1000); /* a quarter of a slot */
    stage_push_due(w.s);
    T_EQ_U64(stage_copying(w.s), 3);
    in(9, 0, 6000, 1, 100);
    stage_push_due(w.s);
    T_EQ_U64(stage_copying(w.s), 3);
    /* but they do not wait for ever */
    for (uint32_t i = 0; stage_copying(w.s) < 4; i++) {
        T_TRUE(i < 100);
        stage_push_due(w.s);
    }
    T_FALSE(stage_due(w.s));
    gpu_set("hold", 0);
    wait_for(9);
    T_FALSE(stage_due(w.s));
}

static bool one_is_lost(void *ud)
{
    uint64_t *now = ud;

    *now += NS_PER_S;
    return stage_probe(w.s, *now);
}

TEST(a_gpu_that_goes_while_nothing_is_copied_is_noticed)
{
    uint64_t now = 100 * NS_PER_S;

    start(2);
    for (uint32_t i = 0; i < 20; i++, now += NS_PER_S) {
        T_FALSE(stage_probe(w.s, now));
        if (i % 4 == 0)
            in(i, 0, 0, 1, 100);
        stage_push(w.s);
        wait_for(i / 4 + 1);
    }
    T_TRUE(!cuda_lost(w.mem[0].gpu) && !cuda_lost(w.mem[1].gpu));
    gpu_set("fail_cuEventRecord", 1);
    T_WAIT(one_is_lost, &now); /* the last answer may still be due */
    /* The failing call was for one of the two GPUs. */
    T_TRUE(!cuda_lost(w.mem[0].gpu) != !cuda_lost(w.mem[1].gpu));
    T_TRUE(stage_probe(w.s, now));
    stop();
}

TEST(no_pinned_memory_is_an_error)
{
    struct stage_conf c = {
        .slots = 2, .most = 2, .slot_bytes = SLOT, .entries = 8, .copies = 16};
    struct stage *s;
    struct cuda *gpu;

    gpu_use_double();
    T_OK(cuda_open(&gpu, "test", 0));
    T_OK(stage_new(&s, &c));
    gpu_set("error", 2);
    gpu_set("fail_cuMemHostAlloc", 1);
    T_ERR(stage_gpu(s, gpu), ERR_NO_BLOCKS);
    gpu_set("fail_cuEventCreate", 2);
    T_ERR(stage_gpu(s, gpu), ERR_INTERNAL);
    T_OK(stage_gpu(s, gpu)); /* works: the failed calls left nothing behind */
    stage_free(&s);
    cuda_close(&gpu);
    T_EQ_I64(gpu_get("streams"), 0);
    T_EQ_I64(gpu_get("events"), 0);
}
