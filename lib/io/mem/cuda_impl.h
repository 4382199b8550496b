/* cuda_impl.h - the state of one GPU, shared by io's CUDA files (cuda*.c,
 * mem_cuda.c). No other file includes it. */
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
    _Atomic bool no_batch; /* this GPU does not support batches */
    bool settled;    /* writes of network cards are visible without a flush */
    bool can_settle; /* otherwise they can be flushed */
    _Atomic bool lost;
    char reason[CUDA_TEXT_MAX];
};

/* Makes the GPU current until cuda_leave, on any thread. ERR_INTERNAL: the GPU
 * is lost; do not call cuda_leave. */
MUST_CHECK enum err cuda_enter(struct cuda *c);
void cuda_leave(struct cuda *c);
/* Returns an attribute of the GPU; 0 if the driver does not know it. */
int cuda_attribute(struct cuda *c, CUdevice_attribute a);

#endif
