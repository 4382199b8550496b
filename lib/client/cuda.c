/* cuda.c - pools in the memory of a GPU, mapped through the CUDA driver, which
 * is loaded with the first such pool: the library itself links libc only.
 *
 * Invariants: every call restores the thread's current context; a failed map
 * releases all that it has taken; copies wait for a stream of their own and for
 * nothing else. Called without the handle's lock, except the map.
 *
 * Rejected: the runtime library, which engines link in many versions; the
 * context of the calling thread, which the engine may destroy. The primary
 * context is the one that the runtime and torch use, too. */
#include "client/client.h"

#include "gpu/driver.h"

#include <stdatomic.h>
#include <string.h>

#define UUID_BYTES 16

/* Set by the first map, then constant. */
static const struct gpu_driver *_Atomic cu;

/* a GPU */

/* Retains the GPU's primary context and makes it current. */
static CUresult enter(int gpu)
{
    CUcontext c;
    CUresult r = cu->cuDevicePrimaryCtxRetain(&c, gpu);

    if (r != CUDA_SUCCESS)
        return r;
    r = cu->cuCtxPushCurrent(c);
    if (r != CUDA_SUCCESS)
        (void)cu->cuDevicePrimaryCtxRelease(gpu);
    return r;
}

/* Restores the thread's context. Releases the GPU's primary context unless
 * `keep`: a map that stays needs it. */
static void leave(int gpu, bool keep)
{
    CUcontext c;

    (void)cu->cuCtxPopCurrent(&c);
    if (!keep)
        (void)cu->cuDevicePrimaryCtxRelease(gpu);
}

/* maps */

static CUresult map(int fd, size_t bytes, int gpu, bool write, CUdeviceptr *out)
{
    CUresult r = gpu_map_shared(cu, fd, bytes, out);

    if (r != CUDA_SUCCESS)
        return r;
    r = gpu_allow(cu, *out, bytes, gpu, write);
    if (r != CUDA_SUCCESS)
        (void)gpu_unmap(cu, *out, bytes);
    return r;
}

const char *mmx_gpu_map(const char *share, int fd, const uint8_t *handle,
    size_t handle_len, uint64_t bytes, int writable, int *gpu, void **base)
{
    const struct gpu_driver *d;
    const char *why;
    CUdeviceptr at = 0;
    CUresult e;
    int number;

    if (strcmp(share, "cuda-vmm") != 0 || handle_len < UUID_BYTES || fd < 0)
        return "this client does not know how it is shared";
    d = gpu_driver(&why);
    if (!d)
        return why;
    cu = d;
    number = gpu_find(cu, handle);
    if (number < 0)
        return "its GPU is not visible in this process";
    e = enter(number);
    if (e != CUDA_SUCCESS)
        return gpu_result(cu, e);
    e = map(fd, bytes, number, writable, &at);
    leave(number, e == CUDA_SUCCESS);
    if (e != CUDA_SUCCESS)
        return gpu_result(cu, e);
    *gpu = number;
    *base = (void *)(uintptr_t)at;
    return NULL;
}

int client_gpu_map(mmx *m, struct client_reply *r)
{
    struct mmx_pool *p = &r->pool;
    const char *why = mmx_gpu_map(r->share, r->fd, r->handle, r->handle_len,
        p->bytes, p->writable, &p->gpu, &p->base);

    if (!why)
        return 0;
    client_error(m, "pool %s: %s", p->name, why);
    return -MMX_E_NOT_READY;
}

void mmx_gpu_unmap(int gpu, void *base, uint64_t bytes)
{
    CUdeviceptr at = (uintptr_t)base;

    assert(cu && gpu >= 0);
    if (enter(gpu) != CUDA_SUCCESS)
        return;
    (void)gpu_unmap(cu, at, bytes);
    leave(gpu, false);
    /* the reference that the map held */
    (void)cu->cuDevicePrimaryCtxRelease(gpu);
}

/* copies */

static CUresult copy_rows(struct client_rows to, struct client_rows from,
    uint32_t rows, size_t row_bytes, CUstream s)
{
    CUresult r = CUDA_SUCCESS;

    assert(to.stride >= row_bytes && from.stride >= row_bytes);
    if (to.stride == row_bytes && from.stride == row_bytes)
        return cu->cuMemcpyAsync(
            (uintptr_t)to.p, (uintptr_t)from.p, rows * row_bytes, s);
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < rows; i++)
        r = cu->cuMemcpyAsync((uintptr_t)to.p + i * to.stride,
            (uintptr_t)from.p + i * from.stride, row_bytes, s);
    return r;
}

int client_gpu_copy(int gpu, struct client_rows to, struct client_rows from,
    uint32_t rows, size_t row_bytes)
{
    CUstream s;
    CUresult r, done;

    if (rows == 0)
        return 0;
    assert(cu && gpu >= 0);
    if (enter(gpu) != CUDA_SUCCESS)
        return -MMX_E_INTERNAL;
    r = cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS) {
        r = copy_rows(to, from, rows, row_bytes, s);
        done = cu->cuStreamSynchronize(s);
        (void)cu->cuStreamDestroy(s);
        r = r == CUDA_SUCCESS ? done : r;
    }
    leave(gpu, false);
    return r == CUDA_SUCCESS ? 0 : -MMX_E_INTERNAL;
}
