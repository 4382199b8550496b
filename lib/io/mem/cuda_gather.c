/* cuda_gather.c - many small copies in one launch of a kernel, for drivers
 * without a call for that (before CUDA 12.8) and GPUs that do not support it.
 *
 * Invariants: the first lane that needs the kernel loads it, once per GPU,
 * under a lock; without it copies are submitted one by one. Every address is a
 * GPU's, or in pinned host memory. Rejected: loading it together with the GPU.
 * Most drivers have the call. */
#include "io/mem/cuda_impl.h"

#include "base/check.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>

#define COPIES_MAX 128 /* per launch */
#define THREADS    256
#define BLOCKS     1024        /* per launch, about */
#define SMALL      (64u << 10) /* from this size copy engines are as fast */

/* Parameters of mmx_copies, as declared in gpu/rows.cu. */
struct copies {
    uint32_t count, unused;
    struct {
        uint64_t from, to, bytes;
    } of[COPIES_MAX];
};

_Static_assert(
    sizeof(struct copies) == 8 + COPIES_MAX * 24, "parameters of a kernel");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Loads the kernel; the GPU must be current. */
static void look_for_kernel(struct cuda *c)
{
    static const char *const name[] = {"mmx_copies"};
    const char *why = gpu_kernels_load(c->d, name, 1, &c->gather);

    if (why)
        log_info("cuda:%u: many small copies are submitted one by one: %s",
            c->device, why);
}

static CUfunction kernel_of(struct cuda *c)
{
    pthread_mutex_lock(&lock);
    if (!c->gather_asked)
        look_for_kernel(c);
    c->gather_asked = true;
    pthread_mutex_unlock(&lock);
    return c->gather;
}

static CUresult launch(
    struct cuda *c, CUfunction f, struct copies *of, CUstream stream)
{
    void *params[] = {of};

    CHECK(
        f && of->count > 0 && of->count <= COPIES_MAX, "%u copies", of->count);
    return c->d->cuLaunchKernel(f, BLOCKS / of->count, of->count, 1, THREADS, 1,
        1, 0, stream, params, NULL);
}

bool cuda_gathers(struct cuda *c, const struct cuda_batch *b)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < b->count; i++)
        bytes += b->bytes[i];
    return b->count > 1 && !b->pageable && !c->gather_off &&
           bytes / b->count < SMALL && kernel_of(c) != NULL;
}

CUresult cuda_gather(
    struct cuda *c, const struct cuda_batch *b, CUstream stream)
{
    CUresult r = CUDA_SUCCESS;
    struct copies some = {0};

    for (uint32_t i = 0; r == CUDA_SUCCESS && i < b->count; i++) {
        some.of[some.count].from = b->from[i];
        some.of[some.count].to = b->to[i];
        some.of[some.count++].bytes = b->bytes[i];
        if (some.count < COPIES_MAX && i + 1 < b->count)
            continue;
        r = launch(c, c->gather, &some, stream);
        some.count = 0;
    }
    if (r != CUDA_SUCCESS && !atomic_exchange(&c->gather_off, true))
        log_warn("cuda:%u: copies are submitted one by one, a launch failed: "
                 "%s",
            c->device, gpu_result(c->d, r));
    return r;
}
