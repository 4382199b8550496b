/* cuda.c - copies on a GPU, by the CUDA driver, which the first GPU loads.
 *
 * Invariants: nothing here waits for a whole device, and nothing uses the
 * default stream: only own streams and single events, so that engines' kernels
 * and our copies never wait for each other. A failed call on a lane loses the
 * GPU for good: copies and events have no transient errors, and the driver
 * repeats a sticky one on every later call.
 *
 * A GPU's object is made and dropped under one lock, because two pools, or two
 * daemons of one test, may have the same GPU; a lane belongs to one thread.
 * Rejected: linking libcuda, which hosts without a GPU do not have; the runtime
 * library libcudart, one more version to match for calls that it only forwards;
 * a busy thread that polls events, since a callback of the driver can wake the
 * shard. */
#include "io/mem/cuda_impl.h"

#include "base/check.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda *gpus[CUDA_GPUS_MAX];

/* a GPU */

int cuda_attribute(struct cuda *c, CUdevice_attribute a)
{
    int value = 0;

    if (c->d->cuDeviceGetAttribute(&value, a, c->handle) != CUDA_SUCCESS)
        return 0;
    return value;
}

static CUresult gpu_retain(struct cuda *c)
{
    CUuuid uuid;
    CUresult r = c->d->cuDeviceGet(&c->handle, (int)c->device);

    if (r == CUDA_SUCCESS)
        r = c->d->cuDeviceGetName(c->name, sizeof(c->name), c->handle);
    if (r == CUDA_SUCCESS)
        r = c->d->cuDeviceGetUuid(&uuid, c->handle);
    if (r == CUDA_SUCCESS)
        memcpy(c->uuid, uuid.bytes, sizeof(c->uuid));
    if (r == CUDA_SUCCESS)
        r = c->d->cuDevicePrimaryCtxRetain(&c->context, c->handle);
    return r;
}

static void look_at_order(struct cuda *c)
{
    int order =
        cuda_attribute(c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    int flush = cuda_attribute(
        c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);

    c->settled = order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
    c->can_settle = (flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
}

static bool vmm_there(struct cuda *c)
{
    return cuda_attribute(
               c, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
           cuda_attribute(c,
               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

const char *cuda_lacks(uint32_t device)
{
    const char *why = "";
    struct cuda c = {.d = gpu_driver(&why)};

    if (!c.d)
        return why;
    if (c.d->cuDeviceGet(&c.handle, (int)device) != CUDA_SUCCESS)
        return "the driver sees no GPU of this number";
    return vmm_there(&c) ? NULL : "it has no CUDA VMM by descriptors";
}

static enum err gpu_make(struct cuda **out, const char *user, uint32_t device)
{
    const char *why = cuda_lacks(device);
    const struct gpu_driver *d = gpu_driver(&why);
    struct cuda *c;
    CUresult r;

    if (why || !d) {
        log_error("%s: cuda:%u: %s", user, device, why);
        return ERR_INTERNAL;
    }
    c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_NO_BLOCKS;
    c->d = d;
    c->device = device;
    r = gpu_retain(c);
    if (r != CUDA_SUCCESS) {
        log_error(
            "%s: cuda:%u cannot be used: %s", user, device, gpu_result(d, r));
        free(c);
        return ERR_INTERNAL;
    }
    look_at_order(c);
    log_info("cuda:%u is %s, driver for CUDA %d.%d", device, c->name,
        d->version / 1000, d->version % 1000 / 10);
    *out = c;
    return OK;
}

enum err cuda_open(struct cuda **out, const char *user, uint32_t device)
{
    enum err e = OK;

    if (device >= CUDA_GPUS_MAX) {
        log_error("%s: cuda:%u: at most %u GPUs", user, device, CUDA_GPUS_MAX);
        return ERR_INTERNAL;
    }
    pthread_mutex_lock(&lock);
    if (!gpus[device])
        e = gpu_make(&gpus[device], user, device);
    if (e == OK) {
        gpus[device]->users++;
        *out = gpus[device];
    }
    pthread_mutex_unlock(&lock);
    return e;
}

struct cuda *cuda_hold(struct cuda *c)
{
    pthread_mutex_lock(&lock);
    CHECK(c->users > 0, "cuda:%u has no users", c->device);
    c->users++;
    pthread_mutex_unlock(&lock);
    return c;
}

void cuda_close(struct cuda **cp)
{
    struct cuda *c = *cp;

    *cp = NULL;
    if (!c)
        return;
    pthread_mutex_lock(&lock);
    CHECK(c->users > 0 && gpus[c->device] == c, "cuda:%u is closed twice",
        c->device);
    if (--c->users == 0) {
        gpus[c->device] = NULL;
        (void)c->d->cuDevicePrimaryCtxRelease(c->handle);
        free(c);
    }
    pthread_mutex_unlock(&lock);
}

const char *cuda_lost(const struct cuda *c)
{
    /* lose() releases it, and the reason with it. */
    return atomic_load_explicit(&c->lost, memory_order_acquire) ? c->reason
                                                                : NULL;
}

/* Marks the GPU as lost; logs the first time. */
static void lose(struct cuda *c, const char *what, CUresult r)
{
    pthread_mutex_lock(&lock);
    if (!c->lost) {
        snprintf(c->reason, sizeof(c->reason), "cuda:%u is lost: %s: %s",
            c->device, what, gpu_result(c->d, r));
        log_error("%s", c->reason);
        atomic_store_explicit(&c->lost, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

enum err cuda_enter(struct cuda *c)
{
    CUresult r = c->d->cuCtxPushCurrent(c->context);

    if (r == CUDA_SUCCESS)
        return OK;
    lose(c, "no context", r);
    return ERR_INTERNAL;
}

void cuda_leave(struct cuda *c)
{
    CUcontext popped;

    (void)c->d->cuCtxPopCurrent(&popped);
}

void cuda_stay(struct cuda *c)
{
    if (cuda_enter(c) != OK)
        log_warn("cuda:%u: not current on this thread", c->device);
}

bool cuda_settles(const struct cuda *c)
{
    return c->settled || c->can_settle;
}

enum err cuda_settle(struct cuda *c)
{
    CUresult r;

    if (c->settled)
        return OK;
    if (cuda_enter(c) != OK)
        return ERR_INTERNAL;
    r = c->d->cuFlushGPUDirectRDMAWrites(
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
    cuda_leave(c);
    if (r == CUDA_SUCCESS)
        return OK;
    lose(c, "flush", r);
    return ERR_INTERNAL;
}

void *cuda_pinned(struct cuda *c, size_t bytes)
{
    void *p = NULL;
    CUresult r;

    if (cuda_enter(c) != OK)
        return NULL;
    r = c->d->cuMemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_PORTABLE);
    cuda_leave(c);
    if (r == CUDA_SUCCESS)
        return p;
    log_error("cuda:%u: cannot pin %zu bytes of host memory: %s", c->device,
        bytes, gpu_result(c->d, r));
    return NULL;
}

void cuda_unpin(struct cuda *c, void *p)
{
    if (!p || cuda_enter(c) != OK)
        return;
    (void)c->d->cuMemFreeHost(p);
    cuda_leave(c);
}

/* lanes */

/* Copies run on one stream. A second stream waits for the marks and calls back,
 * so that no copy waits for a callback. */
struct cuda_lane {
    struct cuda *gpu;
    CUstream copies, calls;
    uint32_t marks;
    void (*woken)(void *ud);
    void *ud;
    CUevent event[];
};

static void on_mark(void *ud)
{
    struct cuda_lane *l = ud;

    l->woken(l->ud);
}

static CUresult lane_make(struct cuda_lane *l, const struct gpu_driver *d)
{
    CUresult r = d->cuStreamCreate(&l->copies, CU_STREAM_NON_BLOCKING);

    if (r == CUDA_SUCCESS)
        r = d->cuStreamCreate(&l->calls, CU_STREAM_NON_BLOCKING);
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < l->marks; i++)
        r = d->cuEventCreate(&l->event[i], CU_EVENT_DISABLE_TIMING);
    return r;
}

enum err cuda_lane_open(struct cuda_lane **out, struct cuda *c, uint32_t marks,
    void (*woken)(void *ud), void *ud)
{
    struct cuda_lane *l = calloc(1, sizeof(*l) + marks * sizeof(l->event[0]));
    CUresult r;

    if (!l)
        return ERR_NO_BLOCKS;
    l->gpu = c;
    l->marks = marks;
    l->woken = woken;
    l->ud = ud;
    if (cuda_enter(c) != OK) {
        free(l);
        return ERR_INTERNAL;
    }
    r = lane_make(l, c->d);
    cuda_leave(c);
    if (r != CUDA_SUCCESS) {
        log_error("cuda:%u: no stream for copies: %s", c->device,
            gpu_result(c->d, r));
        cuda_lane_close(&l);
        return ERR_INTERNAL;
    }
    *out = l;
    return OK;
}

void cuda_lane_close(struct cuda_lane **lp)
{
    struct cuda_lane *l = *lp;
    const struct gpu_driver *d;

    *lp = NULL;
    if (!l)
        return;
    d = l->gpu->d;
    if (cuda_enter(l->gpu) == OK) {
        /* Results are ignored: a lost GPU repeats its error. */
        if (l->copies)
            (void)d->cuStreamSynchronize(l->copies);
        if (l->calls)
            (void)d->cuStreamSynchronize(l->calls);
        for (uint32_t i = 0; i < l->marks; i++)
            if (l->event[i])
                (void)d->cuEventDestroy(l->event[i]);
        if (l->calls)
            (void)d->cuStreamDestroy(l->calls);
        if (l->copies)
            (void)d->cuStreamDestroy(l->copies);
        cuda_leave(l->gpu);
    }
    free(l);
}

static CUresult copy_batch(struct cuda_lane *l, const struct cuda_batch *b)
{
    const struct gpu_driver *d = l->gpu->d;
    CUmemcpyAttributes attrs = {
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t at = 0, failed;

    if (d->cuMemcpyBatchAsync_v2)
        return d->cuMemcpyBatchAsync_v2(
            b->to, b->from, b->bytes, b->count, &attrs, &at, 1, l->copies);
    if (!d->cuMemcpyBatchAsync)
        return CUDA_ERROR_NOT_SUPPORTED;
    return d->cuMemcpyBatchAsync(
        b->to, b->from, b->bytes, b->count, &attrs, &at, 1, &failed, l->copies);
}

static CUresult copy_each(struct cuda_lane *l, const struct cuda_batch *b)
{
    CUresult r = CUDA_SUCCESS;

    for (uint32_t i = 0; r == CUDA_SUCCESS && i < b->count; i++)
        r = l->gpu->d->cuMemcpyAsync(
            b->to[i], b->from[i], b->bytes[i], l->copies);
    return r;
}

/* Submits a batch: by the driver's call for many copies, else one by one. */
static CUresult copy_all(struct cuda_lane *l, const struct cuda_batch *b)
{
    struct cuda *c = l->gpu;

    if (b->count > 1 && !c->no_batch) {
        CUresult r = copy_batch(l, b);

        if (r != CUDA_ERROR_NOT_SUPPORTED)
            return r;
        c->no_batch = true;
    }
    return copy_each(l, b);
}

static CUresult submit(
    struct cuda_lane *l, const struct cuda_batch *b, uint32_t mark)
{
    const struct gpu_driver *d = l->gpu->d;
    CUresult r = copy_all(l, b);

    if (r == CUDA_SUCCESS)
        r = d->cuEventRecord(l->event[mark], l->copies);
    if (r == CUDA_SUCCESS)
        r = d->cuStreamWaitEvent(l->calls, l->event[mark], 0);
    if (r == CUDA_SUCCESS)
        r = d->cuLaunchHostFunc(l->calls, on_mark, l);
    return r;
}

enum err cuda_lane_submit(
    struct cuda_lane *l, const struct cuda_batch *b, uint32_t mark)
{
    CUresult r;

    CHECK(mark < l->marks, "mark %u of %u", mark, l->marks);
    if (cuda_enter(l->gpu) != OK)
        return ERR_INTERNAL;
    if (cuda_lost(l->gpu)) {
        cuda_leave(l->gpu);
        return ERR_INTERNAL;
    }
    r = submit(l, b, mark);
    if (r != CUDA_SUCCESS) /* let earlier copies end before the error is
                              reported */
        (void)l->gpu->d->cuStreamSynchronize(l->copies);
    cuda_leave(l->gpu);
    if (r == CUDA_SUCCESS)
        return OK;
    lose(l->gpu, "copy", r);
    return ERR_INTERNAL;
}

/* Converts the state of a mark. On a lost GPU no mark counts as reached, but a
 * copy that still runs is busy, since its memory is in use. */
static enum err answer(struct cuda_lane *l, CUresult r)
{
    if (r == CUDA_ERROR_NOT_READY)
        return ERR_BUSY;
    if (r != CUDA_SUCCESS)
        lose(l->gpu, "copy", r);
    return cuda_lost(l->gpu) ? ERR_INTERNAL : OK;
}

/* Asks the driver whether the mark was reached. */
static enum err mark_state(
    struct cuda_lane *l, uint32_t mark, CUresult (*ask)(CUevent event))
{
    CUresult r;

    if (cuda_enter(l->gpu) != OK)
        return ERR_INTERNAL;
    CHECK(mark < l->marks, "mark %u of %u", mark, l->marks);
    r = ask(l->event[mark]);
    cuda_leave(l->gpu);
    return answer(l, r);
}

enum err cuda_lane_look(struct cuda_lane *l, uint32_t mark)
{
    return mark_state(l, mark, l->gpu->d->cuEventQuery);
}

enum err cuda_lane_wait(struct cuda_lane *l, uint32_t mark)
{
    return mark_state(l, mark, l->gpu->d->cuEventSynchronize);
}
