/* cuda_impl.h - inside of io's CUDA files (cuda*.c, mem_cuda.c): what belongs
 * to one GPU. Nothing else includes it. */
#ifndef MMX_IO_CUDA_IMPL_H
#define MMX_IO_CUDA_IMPL_H

#include "gpu/driver.h"
#include "io/cuda.h"

struct cuda {
    const struct gpu_driver *d;
    uint32_t device, users;
    CUdevice handle;
    CUcontext context;
    uint8_t uuid[16];
    char name[64];
    _Atomic bool no_batch; /* this GPU does not take copies as a batch */
    bool gather_asked;
    _Atomic bool gather_off; /* a launch failed */
    CUfunction gather;       /* of cuda_gather.c; NULL: none, or not asked */
    bool settled;    /* writes of network cards are visible without a flush */
    bool can_settle; /* else they can be flushed */
    _Atomic bool lost;
    char reason[CUDA_TEXT_MAX];
};

/* Makes the GPU current until cuda_leave, on any thread. ERR_INTERNAL: lost,
 * and then there is nothing to leave. */
MUST_CHECK enum err cuda_enter(struct cuda *c);
void cuda_leave(struct cuda *c);
/* Marks the GPU as lost; logs the first time. */
void cuda_lose(struct cuda *c, const char *what, CUresult r);
/* True if a kernel is better for the batch than one copy after the other. */
bool cuda_gathers(struct cuda *c, const struct cuda_batch *b);
/* Submits the batch as launches of that kernel. */
CUresult cuda_gather(
    struct cuda *c, const struct cuda_batch *b, CUstream stream);
/* Returns an attribute of the GPU; 0 if the driver does not know it. */
int cuda_attribute(struct cuda *c, CUdevice_attribute a);

#endif
