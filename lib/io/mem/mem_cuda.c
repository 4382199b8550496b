/* mem_cuda.c - a pool in GPU memory, owned by the daemon and mapped by engines.
 *
 * It is one CUDA VMM allocation, exported as a file descriptor like a memfd:
 * the importer chooses its own access (read only for language engines) and its
 * map outlives the daemon.
 *
 * Invariants: all bytes are zero before open returns; no CPU accesses the
 * memory; close frees what open made, in reverse order, half-built objects
 * included. The loop's thread opens and closes.
 *
 * Rejected: cuMemAlloc with CUDA IPC, even if there is no VMM: the memory ends
 * with the exporter and has no read-only map; memory pools of the driver, whose
 * exports bring an allocator into every importer. */
#include "io/mem/cuda_impl.h"

#include "io/mem.h"

#include "base/check.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB  (UINT64_C(1) << 20)
#define PAGE 4096

static uint64_t cuda_page(const struct mem_opt *opt)
{
    (void)opt;
    return PAGE;
}

static enum err failed(struct cuda *c, const char *pool, const char *what,
    uint64_t bytes, CUresult r)
{
    log_error("pool %s: cuda:%u: cannot %s (%lu bytes): %s", pool, c->device,
        what, (unsigned long)bytes, gpu_result(c->d, r));
    return ERR_INTERNAL;
}

/* Logs the bytes requested and the bytes free. */
static enum err too_little(struct cuda *c, const char *pool, uint64_t bytes)
{
    size_t have = 0, all = 0;

    (void)c->d->cuMemGetInfo(&have, &all);
    log_error("pool %s: %lu MiB of cuda:%u (%s) asked for, %lu of its %lu MiB "
              "are free",
        pool, (unsigned long)((bytes + MIB - 1) / MIB), c->device, c->name,
        (unsigned long)(have / MIB), (unsigned long)(all / MIB));
    return ERR_INTERNAL;
}

static CUmemAllocationProp props(struct cuda *c)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {
            .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)c->device}};

    /* Lets network cards access the memory; costs nothing without one. */
    if (cuda_attribute(
            c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        p.allocFlags.gpuDirectRDMACapable = 1;
    return p;
}

static CUresult vmm_open(struct mem *m, const struct mem_opt *opt)
{
    const struct gpu_driver *d = m->gpu->d;
    CUmemAllocationProp prop = props(m->gpu);
    size_t grain = 0;
    CUresult r = d->cuMemGetAllocationGranularity(
        &grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

    if (r == CUDA_SUCCESS && grain == 0)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r != CUDA_SUCCESS)
        return r;
    m->bytes = (opt->bytes + grain - 1) / grain * grain;
    CHECK(m->bytes >= opt->bytes, "%lu bytes in pages of %zu",
        (unsigned long)opt->bytes, grain);
    r = d->cuMemCreate(&m->own, m->bytes, &prop, 0);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpu_map(d, m->own, m->bytes, &m->device);
    if (r == CUDA_SUCCESS)
        r = gpu_allow(d, m->device, m->bytes, (int)m->gpu->device, true);
    if (r == CUDA_SUCCESS)
        r = d->cuMemExportToShareableHandle(
            &m->fd, m->own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return r;
}

static void cuda_mem_close(struct mem *m)
{
    if (!m->gpu)
        return;
    if (m->fd >= 0)
        close(m->fd);
    if (cuda_enter(m->gpu) == OK) {
        if (m->device)
            (void)gpu_unmap(m->gpu->d, m->device, m->bytes);
        if (m->own)
            (void)m->gpu->d->cuMemRelease(m->own);
        cuda_leave(m->gpu);
    }
    m->fd = -1;
    m->device = m->own = 0;
    for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++)
        cuda_close(&m->readers[i]);
    cuda_close(&m->gpu);
}

/* Zeroes the memory on our own stream: the default one would wait for all
 * others. */
static CUresult zero(const struct mem *m)
{
    const struct gpu_driver *d = m->gpu->d;
    CUstream s;
    CUresult r = d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);

    if (r != CUDA_SUCCESS)
        return r;
    r = d->cuMemsetD8Async(m->device, 0, m->bytes, s);
    if (r == CUDA_SUCCESS)
        r = d->cuStreamSynchronize(s);
    (void)d->cuStreamDestroy(s);
    return r;
}

static enum err allocate(struct mem *m, const struct mem_opt *opt)
{
    CUresult r = vmm_open(m, opt);

    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return too_little(m->gpu, opt->name, opt->bytes);
    if (r != CUDA_SUCCESS)
        return failed(m->gpu, opt->name,
            "get memory to share (CUDA VMM by descriptor)", opt->bytes, r);
    r = zero(m);
    if (r != CUDA_SUCCESS)
        return failed(m->gpu, opt->name, "zero the memory", m->bytes, r);
    return OK;
}

/* Moves the memory to *out, or closes it if there was an error, which it
 * returns. */
static enum err give(struct mem *out, struct mem *m, enum err e)
{
    if (e != OK) {
        cuda_mem_close(m);
        return e;
    }
    CHECK(m->device, "memory of cuda:%u without an address", m->gpu->device);
    snprintf(m->text, sizeof(m->text), "%s, cuda:%u, %.36s", m->share,
        m->gpu->device, m->gpu->name);
    *out = *m;
    return OK;
}

static enum err cuda_mem_open(struct mem *out, const struct mem_opt *opt)
{
    struct mem m = {
        .ops = &mem_cuda, .page = PAGE, .fd = -1, .share = "cuda-vmm"};
    char user[80];
    enum err e;

    CHECK(opt->bytes > 0 && opt->bytes <= INT64_MAX / 2, "%lu bytes",
        (unsigned long)opt->bytes);
    snprintf(user, sizeof(user), "pool %s", opt->name);
    if (opt->huge_pages || opt->numa_node >= 0) {
        log_error("%s: huge_pages and numa are for host memory", user);
        return ERR_INTERNAL;
    }
    e = cuda_open(&m.gpu, user, mem_gpu(opt->kind));
    if (e != OK)
        return e;
    memcpy(m.handle, m.gpu->uuid, MEM_HANDLE_MAX);
    m.handle_bytes = MEM_HANDLE_MAX;
    e = cuda_enter(m.gpu);
    if (e == OK) {
        e = allocate(&m, opt);
        cuda_leave(m.gpu);
    }
    return give(out, &m, e);
}

/* import */

static enum err gpu_of(struct cuda **out, const char *user, const uint8_t *uuid)
{
    const char *why = "the GPU that it lies in is not visible here";
    const struct gpu_driver *d = gpu_driver(&why);
    int number = d ? gpu_find(d, uuid) : -1;

    if (number >= 0)
        return cuda_open(out, user, (uint32_t)number);
    log_error("%s: %s", user, why);
    return ERR_INTERNAL;
}

static CUresult allow_read(const struct mem *m, const struct cuda *reader)
{
    return gpu_allow(
        m->gpu->d, m->device, m->bytes, (int)reader->device, false);
}

static CUresult import_map(struct mem *m, const struct mem_import *from)
{
    CUresult r;

    CHECK(from->fd >= 0, "memory without a descriptor");
    r = gpu_map_shared(m->gpu->d, from->fd, m->bytes, &m->device);
    return r == CUDA_SUCCESS ? allow_read(m, m->gpu) : r;
}

/* Lets another of our GPUs copy from the memory. */
static CUresult reach(struct mem *m, struct cuda *reader)
{
    const struct gpu_driver *d = m->gpu->d;
    int can = 0;
    CUresult r = d->cuDeviceCanAccessPeer(&can, reader->handle, m->gpu->handle);

    if (r == CUDA_SUCCESS && !can)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return r == CUDA_SUCCESS ? allow_read(m, reader) : r;
}

static enum err reach_all(struct mem *m, const char *user, uint32_t readers)
{
    enum err e = OK;

    for (uint32_t i = 0; e == OK && i < CUDA_GPUS_MAX; i++) {
        CUresult r;

        if (!(readers >> i & 1) || i == m->gpu->device)
            continue;
        /* Stays open: access ends with the GPU's context. */
        e = cuda_open(&m->readers[i], user, i);
        if (e != OK)
            return e;
        r = reach(m, m->readers[i]);
        if (r == CUDA_SUCCESS)
            continue;
        log_info("%s: cuda:%u does not reach memory of cuda:%u: %s", user, i,
            m->gpu->device, gpu_result(m->gpu->d, r));
        e = ERR_INTERNAL;
    }
    return e;
}

enum err mem_cuda_import(struct mem *out, const struct mem_import *from)
{
    struct mem m = {.ops = &mem_cuda,
        .page = PAGE,
        .fd = -1,
        .bytes = from->bytes,
        .share = "cuda-vmm"};
    char user[80];
    CUresult r;
    enum err e;

    snprintf(user, sizeof(user), "pool %s", from->name);
    if (strcmp(from->share, "cuda-vmm") != 0 ||
        from->handle.len != MEM_HANDLE_MAX || from->fd < 0) {
        log_error("%s: not a handle of GPU memory", user);
        return ERR_MALFORMED;
    }
    e = gpu_of(&m.gpu, user, from->handle.p);
    if (e == OK)
        e = cuda_enter(m.gpu);
    if (e != OK)
        return give(out, &m, e);
    r = import_map(&m, from);
    if (r != CUDA_SUCCESS)
        e = failed(m.gpu, from->name, "map the peer's memory", m.bytes, r);
    else
        e = reach_all(&m, user, from->readers);
    cuda_leave(m.gpu);
    return give(out, &m, e);
}

const struct mem_ops mem_cuda = {.name = "cuda",
    .page = cuda_page,
    .open = cuda_mem_open,
    .close = cuda_mem_close};
