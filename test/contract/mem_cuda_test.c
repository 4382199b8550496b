/* mem_cuda_test.c - what engines and shards need of a pool on a GPU: its memory
 * is zero, exported by a descriptor and freed completely, and the driver's
 * refusals are reported. Runs over the driver's double, or over the real driver
 * with MMX_TEST_GPU=real. */
#include "io/mem/cuda_impl.h"

#include "gpu/driver.h"
#include "io/cuda.h"
#include "io/mem.h"
#include "test/gpu.h"
#include "test/t.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB (1u << 20)

static struct mem_opt some(uint64_t bytes)
{
    return (struct mem_opt){
        .name = "test", .kind = "cuda:0", .bytes = bytes, .numa_node = -1};
}

TEST(kinds_by_name)
{
    T_TRUE(mem_kind("cuda:0") == &mem_cuda);
    T_TRUE(mem_kind("cuda:15") == &mem_cuda);
    T_TRUE(mem_kind("cuda") == NULL);
    T_TRUE(mem_kind("cuda:") == NULL);
    T_TRUE(mem_kind("cuda:1x") == NULL);
    T_TRUE(mem_kind("cuda:9999") == NULL);
    T_EQ_U64(mem_gpu("cuda:12"), 12);
    T_EQ_U64(mem_gpu("host"), NONE);
}

TEST(no_driver_is_an_error)
{
    struct mem_opt opt = some(MIB);
    struct mem m = {.fd = -77};

    gpu_use_double();
    gpu_driver_file = "libcuda-of-no-host.so.1";
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
    T_EQ_I64(m.fd, -77); /* *m is unchanged */
}

TEST(no_such_gpu_is_an_error)
{
    struct mem_opt opt = some(MIB);
    struct mem m = {.fd = -77};

    gpu_use();
    opt.kind = "cuda:15";
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
    opt.kind = "cuda:200";
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
    T_EQ_I64(m.fd, -77);
}

static void check_zero_then_use(struct mem *m)
{
    uint8_t *got = malloc(m->bytes), *want = calloc(1, m->bytes);

    T_TRUE(got && want);
    gpu_read(m->gpu, got, m->device, m->bytes);
    T_EQ_MEM(got, want, m->bytes);
    for (uint64_t i = 0; i < m->bytes; i++)
        want[i] = (uint8_t)(i * 31 + (i >> 8));
    gpu_write(m->gpu, m->device, want, m->bytes);
    gpu_read(m->gpu, got, m->device, m->bytes);
    T_EQ_MEM(got, want, m->bytes);
    free(got);
    free(want);
}

TEST(shared_by_descriptor_zero_and_given_back)
{
    struct mem_opt opt = some(3 * MIB + 17);
    struct mem m;

    gpu_use();
    T_OK(mem_cuda.open(&m, &opt));
    T_TRUE(m.ops == &mem_cuda && m.base == NULL && m.gpu && m.device);
    T_EQ_U64(m.page, mem_cuda.page(&opt));
    T_EQ_U64(m.bytes % m.page, 0);
    T_TRUE(m.bytes >= opt.bytes);
    T_TRUE((uintptr_t)mem_start(&m) == m.device);
    T_EQ_STR(m.share, "cuda-vmm");
    T_TRUE(m.fd >= 0);
    T_EQ_U64(m.handle_bytes, 16);
    T_HAS(m.text, "cuda-vmm, cuda:0");
    check_zero_then_use(&m);
    mem_cuda.close(&m);
    T_TRUE(m.gpu == NULL && m.fd == -1 && m.device == 0);
    if (gpu_real())
        return;
    T_EQ_I64(gpu_get("created"), 0);
    T_EQ_I64(gpu_get("mapped"), 0);
    T_EQ_I64(gpu_get("streams"), 0);
    T_EQ_I64(gpu_get("events"), 0);
}

TEST(a_gpu_without_vmm_is_refused)
{
    struct mem_opt opt = some(2 * MIB);
    struct mem m;

    gpu_use_double();
    gpu_set("vmm", 0);
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
}

/* If any step of VMM fails, nothing leaks. */
TEST(a_vmm_that_fails_is_an_error)
{
    static const char *const steps[] = {"fail_cuMemGetAllocationGranularity",
        "fail_cuMemCreate", "fail_cuMemAddressReserve", "fail_cuMemMap",
        "fail_cuMemSetAccess", "fail_cuMemExportToShareableHandle"};
    struct mem_opt opt = some(MIB);

    gpu_use_double();
    gpu_set("error", 801); /* the driver does not support it */
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct mem m;

        gpu_set(steps[i], 1);
        T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
        T_EQ_I64(gpu_get("created"), 0);
        T_EQ_I64(gpu_get("mapped"), 0);
    }
}

TEST(a_driver_that_fails_is_an_error)
{
    static const char *const steps[] = {"fail_cuInit", "fail_cuDeviceGet",
        "fail_cuDevicePrimaryCtxRetain", "fail_cuCtxPushCurrent",
        "fail_cuMemsetD8Async", "fail_cuStreamCreate",
        "fail_cuStreamSynchronize"};
    struct mem_opt opt = some(MIB);

    gpu_use_double();
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct mem m = {.fd = -77};

        gpu_set(steps[i], 1);
        T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
        T_EQ_I64(m.fd, -77);
        T_EQ_I64(gpu_get("created"), 0);
        T_EQ_I64(gpu_get("mapped"), 0);
    }
}

TEST(more_than_the_gpu_has_is_refused)
{
    struct mem_opt opt = some(UINT64_C(1) << 45);
    struct mem m = {.fd = -77};

    gpu_use();
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
    T_EQ_I64(m.fd, -77);
    opt.bytes = MIB;
    T_OK(mem_cuda.open(&m, &opt)); /* nothing was lost */
    T_TRUE(cuda_lost(m.gpu) == NULL);
    mem_cuda.close(&m);
}

TEST(options_of_host_memory_are_refused)
{
    struct mem_opt opt = some(MIB);
    struct mem m;

    gpu_use();
    opt.huge_pages = true;
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
    opt.huge_pages = false;
    opt.numa_node = 0;
    T_ERR(mem_cuda.open(&m, &opt), ERR_INTERNAL);
}

/* two processes */

struct offer {
    char share[16];
    uint8_t handle[MEM_HANDLE_MAX];
    uint32_t handle_bytes;
    uint64_t bytes;
};

static void send_offer(int sock, const struct mem *m)
{
    struct offer o = {.handle_bytes = m->handle_bytes, .bytes = m->bytes};
    struct iovec iov = {&o, sizeof(o)};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    snprintf(o.share, sizeof(o.share), "%s", m->share);
    memcpy(o.handle, m->handle, sizeof(o.handle));
    if (m->fd >= 0) {
        struct cmsghdr *c;

        msg.msg_control = control;
        msg.msg_controllen = sizeof(control);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &m->fd, sizeof(int));
    }
    T_EQ_I64(sendmsg(sock, &msg, 0), sizeof(o));
}

static void take_offer(int sock, struct offer *o, int *fd)
{
    struct iovec iov = {o, sizeof(*o)};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr msg = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof(control)};
    struct cmsghdr *c;

    *fd = -1;
    T_EQ_I64(recvmsg(sock, &msg, 0), sizeof(*o));
    c = CMSG_FIRSTHDR(&msg);
    if (c)
        memcpy(fd, CMSG_DATA(c), sizeof(int));
}

static void other_process(int sock)
{
    struct offer o;
    struct mem m, again;
    struct mem_import from;
    uint8_t got[64];
    char go;
    int fd;

    take_offer(sock, &o, &fd);
    from = (struct mem_import){.name = "peer",
        .share = o.share,
        .handle = span_of(o.handle, o.handle_bytes),
        .fd = fd,
        .bytes = o.bytes};
    T_OK(mem_cuda_import(&m, &from));
    gpu_read(m.gpu, got, m.device + 100, 5);
    T_EQ_MEM(got, "hello", 5);
    T_EQ_I64(write(sock, "r", 1), 1);
    T_EQ_I64(read(sock, &go, 1), 1);
    gpu_read(m.gpu, got, m.device + 200, 5);
    T_EQ_MEM(got, "world", 5);
    mem_cuda.close(&m);
    T_OK(mem_cuda_import(&again, &from));
    if (fd >= 0)
        close(fd);
    T_EQ_I64(write(sock, "w", 1), 1);
    T_EQ_I64(read(sock, &go, 1), 1);
    /* The owner has closed the pool; the importer's memory still exists. */
    gpu_read(again.gpu, got, again.device + 200, 5);
    T_EQ_MEM(got, "world", 5);
    mem_cuda.close(&again);
}

/* The other process is forked before either loads the driver: a GPU does not
 * survive fork. */
TEST(another_process_maps_a_descriptor)
{
    struct mem_opt opt = some(MIB);
    struct mem m;
    int socks[2], status = 0;
    pid_t pid;
    char go;

    gpu_use();
    T_EQ_I64(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks), 0);
    pid = fork();
    T_TRUE(pid >= 0);
    if (pid == 0) {
        close(socks[0]);
        other_process(socks[1]);
        exit(0);
    }
    close(socks[1]);
    T_OK(mem_cuda.open(&m, &opt));
    T_EQ_STR(m.share, "cuda-vmm");
    gpu_write(m.gpu, m.device + 100, "hello", 5);
    send_offer(socks[0], &m);
    T_EQ_I64(read(socks[0], &go, 1), 1);
    gpu_write(m.gpu, m.device + 200, "world", 5);
    T_EQ_I64(write(socks[0], "x", 1), 1);
    T_EQ_I64(read(socks[0], &go, 1), 1);
    mem_cuda.close(&m);
    T_EQ_I64(write(socks[0], "x", 1), 1);
    T_EQ_I64(waitpid(pid, &status, 0), pid);
    T_EQ_I64(status, 0);
}

TEST(a_driver_without_read_only_maps_still_maps)
{
    struct mem_opt opt = some(MIB);
    struct mem m, n;
    uint8_t got[5];

    gpu_use_double();
    T_OK(mem_cuda.open(&m, &opt));
    gpu_write(m.gpu, m.device, "hello", 5);
    gpu_set("no_read_only", 1);
    T_OK(mem_cuda_import(&n, &(struct mem_import){.name = "peer",
                                 .share = m.share,
                                 .handle = span_of(m.handle, m.handle_bytes),
                                 .fd = m.fd,
                                 .bytes = m.bytes}));
    gpu_read(n.gpu, got, n.device, 5);
    T_EQ_MEM(got, "hello", 5);
    mem_cuda.close(&n);
    mem_cuda.close(&m);
}

/* Imports a pool on cuda:0 so that cuda:1 can copy from it, too. */
static enum err import_for_another(const struct mem *m, struct mem *out)
{
    struct mem_import from = {.name = "peer",
        .share = m->share,
        .handle = span_of(m->handle, m->handle_bytes),
        .fd = m->fd,
        .bytes = m->bytes,
        .readers = 3};

    return mem_cuda_import(out, &from);
}

TEST(another_gpu_reads_it_where_it_reaches_it)
{
    struct mem_opt opt = some(MIB);
    struct mem m, n;
    struct cuda *other;
    uint8_t got[5];
    long mapped;

    gpu_use();
    gpu_double_only(); /* few hosts have two GPUs */
    T_OK(mem_cuda.open(&m, &opt));
    T_OK(cuda_open(&other, "test", 1));
    gpu_write(m.gpu, m.device, "hello", 5);
    T_OK(import_for_another(&m, &n));
    gpu_read(n.gpu, got, n.device, 5);
    T_EQ_MEM(got, "hello", 5);
    memset(got, 0, sizeof(got));
    gpu_read(other, got, n.device, 5);
    T_EQ_MEM(got, "hello", 5);
    mem_cuda.close(&n);
    mapped = gpu_get("mapped");
    gpu_set("no_peers", 1);
    T_ERR(import_for_another(&m, &n), ERR_INTERNAL);
    T_EQ_I64(gpu_get("mapped"), mapped);
    T_EQ_I64(gpu_get("created"), 1);
    cuda_close(&other);
    mem_cuda.close(&m);
}

TEST(handles_that_are_none_are_refused)
{
    struct mem_opt opt = some(MIB);
    struct mem m, n = {.fd = -77};
    struct mem_import from = {.name = "peer", .share = "memfd", .fd = -1};

    gpu_use();
    T_OK(mem_cuda.open(&m, &opt));
    T_ERR(mem_cuda_import(&n, &from), ERR_MALFORMED);
    from.share = m.share;
    from.handle = span_of(m.handle, m.handle_bytes);
    T_ERR(mem_cuda_import(&n, &from), ERR_MALFORMED); /* no descriptor */
    from.fd = 0; /* a descriptor, but not of GPU memory */
    from.bytes = m.bytes;
    from.handle.len--;
    T_ERR(mem_cuda_import(&n, &from), ERR_MALFORMED);
    from.handle.len++;
    m.handle[3] ^= 1;
    T_ERR(mem_cuda_import(&n, &from), ERR_INTERNAL); /* no GPU has this UUID */
    m.handle[3] ^= 1;
    T_EQ_I64(n.fd, -77);
    mem_cuda.close(&m);
}

/* lanes */

static void told(void *ud)
{
    atomic_uint *n = ud;

    atomic_fetch_add(n, 1);
}

static bool was_told(void *ud)
{
    return atomic_load((atomic_uint *)ud) > 0;
}

TEST(a_mark_is_reached_after_its_copies)
{
    struct cuda *c;
    struct cuda_lane *l;
    atomic_uint calls = 0;
    uint8_t *p;
    cuda_address to[3], from[3];
    size_t bytes[3] = {1000, 1000, 1000};
    struct cuda_batch b = {to, from, bytes, 3};

    gpu_use();
    T_OK(cuda_open(&c, "test", 0));
    p = cuda_pinned(c, 8192);
    T_TRUE(p != NULL);
    for (uint32_t i = 0; i < 3; i++) {
        memset(p + i * 1000, (int)i + 1, 1000);
        from[i] = (cuda_address)(uintptr_t)(p + i * 1000);
        to[i] = (cuda_address)(uintptr_t)(p + 4000 + i * 1000);
    }
    T_OK(cuda_lane_open(&l, c, 2, told, &calls));
    if (!gpu_real())
        gpu_set("hold", 1);
    T_OK(cuda_lane_submit(l, &b, 1));
    if (!gpu_real()) {
        T_ERR(cuda_lane_look(l, 1), ERR_BUSY);
        T_EQ_U64(calls, 0);
        gpu_set("hold", 0);
    }
    T_OK(cuda_lane_wait(l, 1));
    T_OK(cuda_lane_look(l, 1));
    T_EQ_MEM(p + 4000, p, 3000);
    T_WAIT(was_told, &calls);
    cuda_lane_close(&l);
    cuda_unpin(c, p);
    cuda_close(&c);
}

TEST(a_failed_copy_loses_the_gpu)
{
    struct cuda *c, *same;
    struct cuda_lane *l;
    atomic_uint calls = 0;
    uint8_t *p;
    cuda_address to, from;
    size_t bytes = 100;
    struct cuda_batch b = {&to, &from, &bytes, 1};

    gpu_use_double();
    T_OK(cuda_open(&c, "test", 1));
    T_OK(cuda_open(&same, "test", 1));
    T_TRUE(c == same);
    p = cuda_pinned(c, 200);
    from = (cuda_address)(uintptr_t)p;
    to = from + 100;
    T_OK(cuda_lane_open(&l, c, 1, told, &calls));
    T_OK(cuda_lane_submit(l, &b, 0));
    T_OK(cuda_lane_wait(l, 0));
    T_TRUE(cuda_lost(c) == NULL);
    gpu_set("fail_copy", 1);
    gpu_set("hold", 1);
    T_OK(cuda_lane_submit(l, &b, 0)); /* a later call reports it */
    gpu_set("hold", 0);
    T_ERR(cuda_lane_wait(l, 0), ERR_INTERNAL);
    T_ERR(cuda_lane_look(l, 0), ERR_INTERNAL);
    T_ERR(cuda_lane_submit(l, &b, 0), ERR_INTERNAL);
    T_HAS(cuda_lost(same), "cuda:1 is lost");
    T_HAS(cuda_lost(same), "ILLEGAL_ADDRESS");
    cuda_lane_close(&l); /* this must not hang */
    cuda_unpin(c, p);
    cuda_close(&c);
    cuda_close(&same);
}

#define SMALL 300

static void ignore(void *ud) {}

/* Copies of 1 to 600 bytes, at every alignment, from pinned memory. */
static void small_copies(bool old, long batches)
{
    static cuda_address to[SMALL], from[SMALL];
    static size_t bytes[SMALL];
    static uint8_t got[MIB];
    struct cuda_batch b = {to, from, bytes, SMALL};
    struct mem_opt opt = some(MIB);
    struct cuda_lane *lane;
    uint8_t *pinned;
    struct mem m;

    T_OK(mem_cuda.open(&m, &opt));
    m.gpu->no_batch = old; /* as with an older driver */
    pinned = cuda_pinned(m.gpu, MIB);
    T_TRUE(pinned != NULL);
    for (uint32_t i = 0; i < MIB; i++)
        pinned[i] = (uint8_t)(i * 31 + (i >> 8) + 1);
    for (uint32_t i = 0; i < SMALL; i++) {
        to[i] = m.device + i * 1000 + i % 7 * (i % 3);
        from[i] = (uintptr_t)pinned + i * 2000 + i % 5 * (i % 3);
        bytes[i] = i % 3 ? 2 * i + 1 : 16 * (i % 37 + 1);
    }
    T_OK(cuda_lane_open(&lane, m.gpu, 1, ignore, NULL));
    T_OK(cuda_lane_submit(lane, &b, 0));
    T_OK(cuda_lane_wait(lane, 0));
    gpu_read(m.gpu, got, m.device, MIB);
    for (uint32_t i = 0; i < SMALL; i++) {
        uint64_t at = to[i] - m.device;

        T_EQ_MEM(got + at, pinned + (from[i] - (uintptr_t)pinned), bytes[i]);
        T_EQ_U64(got[at + bytes[i]], 0); /* no byte behind it was written */
    }
    if (!gpu_real())
        T_EQ_I64(gpu_get("batches"), batches);
    cuda_lane_close(&lane);
    cuda_unpin(m.gpu, pinned);
    mem_cuda.close(&m);
}

TEST(small_copies_as_one_batch)
{
    gpu_use();
    small_copies(false, 1);
}

TEST(small_copies_one_by_one)
{
    gpu_use();
    small_copies(true, 0);
}

TEST(a_driver_that_takes_no_batches)
{
    gpu_use_double();
    gpu_set("no_batch", 1);
    small_copies(false, 0);
}
