/* cuda_impl.h - inside of io's CUDA files (cuda.c, mem_cuda.c): the driver's
 * functions and what belongs to one GPU. Nobody else includes it. */
#ifndef MMX_IO_CUDA_IMPL_H
#define MMX_IO_CUDA_IMPL_H

#include "io/cuda.h"

#include <cuda.h>

/* Every function that is called; a driver without one of them is too old.
 * The names are macros of cuda.h that stand for the version wanted. */
#define CUDA_CALLS(CALL)                                                       \
    CALL(cuInit)                                                               \
    CALL(cuDriverGetVersion)                                                   \
    CALL(cuGetErrorName)                                                       \
    CALL(cuDeviceGet)                                                          \
    CALL(cuDeviceGetCount)                                                     \
    CALL(cuDeviceGetName)                                                      \
    CALL(cuDeviceGetUuid)                                                      \
    CALL(cuDeviceGetAttribute)                                                 \
    CALL(cuDeviceCanAccessPeer)                                                \
    CALL(cuDevicePrimaryCtxRetain)                                             \
    CALL(cuDevicePrimaryCtxRelease)                                            \
    CALL(cuCtxPushCurrent)                                                     \
    CALL(cuCtxPopCurrent)                                                      \
    CALL(cuCtxEnablePeerAccess)                                                \
    CALL(cuFlushGPUDirectRDMAWrites)                                           \
    CALL(cuMemGetInfo)                                                         \
    CALL(cuMemAlloc)                                                           \
    CALL(cuMemFree)                                                            \
    CALL(cuMemHostAlloc)                                                       \
    CALL(cuMemFreeHost)                                                        \
    CALL(cuMemsetD8Async)                                                      \
    CALL(cuMemcpyAsync)                                                        \
    CALL(cuStreamCreate)                                                       \
    CALL(cuStreamDestroy)                                                      \
    CALL(cuStreamSynchronize)                                                  \
    CALL(cuStreamWaitEvent)                                                    \
    CALL(cuEventCreate)                                                        \
    CALL(cuEventDestroy)                                                       \
    CALL(cuEventRecord)                                                        \
    CALL(cuEventQuery)                                                         \
    CALL(cuEventSynchronize)                                                   \
    CALL(cuModuleLoadData)                                                     \
    CALL(cuModuleGetFunction)                                                  \
    CALL(cuLaunchKernel)                                                       \
    CALL(cuLaunchHostFunc)                                                     \
    CALL(cuIpcGetMemHandle)                                                    \
    CALL(cuIpcOpenMemHandle)                                                   \
    CALL(cuIpcCloseMemHandle)                                                  \
    CALL(cuMemGetAllocationGranularity)                                        \
    CALL(cuMemCreate)                                                          \
    CALL(cuMemRelease)                                                         \
    CALL(cuMemAddressReserve)                                                  \
    CALL(cuMemAddressFree)                                                     \
    CALL(cuMemMap)                                                             \
    CALL(cuMemUnmap)                                                           \
    CALL(cuMemSetAccess)                                                       \
    CALL(cuMemExportToShareableHandle)                                         \
    CALL(cuMemImportFromShareableHandle)

struct cuda_driver {
#define CALL(name) __typeof__(&name) name;
    CUDA_CALLS(CALL)
#undef CALL
    /* cuMemcpyBatchAsync as of CUDA 13.0 or 12.8; NULL: older driver. */
    void *batch, *batch_old;
    int version; /* 13000 is 13.0 */
};

struct cuda {
    const struct cuda_driver *d;
    uint32_t device, users;
    CUdevice handle;
    CUcontext context;
    uint8_t uuid[16];
    char name[64];
    _Atomic bool no_batch; /* this GPU does not take copies as a batch */
    bool gather_asked;
    _Atomic bool gather_off; /* a launch failed */
    CUfunction gather;       /* of cuda_gather.c; NULL: none, or not asked */
    bool settled;    /* writes of network cards are seen without a flush */
    bool can_settle; /* else they can be flushed */
    _Atomic bool lost;
    char reason[CUDA_TEXT_MAX];
};

/* Work on this GPU stands between the two, on any thread. ERR_INTERNAL: lost,
 * and there is nothing to leave. */
MUST_CHECK enum err cuda_enter(struct cuda *c);
void cuda_leave(struct cuda *c);
/* The name of a result: "CUDA_ERROR_OUT_OF_MEMORY". */
const char *cuda_result(const struct cuda_driver *d, CUresult r);
/* Notes that the GPU is lost; logs the first time. */
void cuda_lose(struct cuda *c, const char *what, CUresult r);
/* Would a kernel be better than one copy after the other? Then it does them. */
bool cuda_gathers(struct cuda *c, const struct cuda_batch *b);
CUresult cuda_gather(
    struct cuda *c, const struct cuda_batch *b, CUstream stream);
/* An attribute of the GPU; 0 when the driver does not know it. */
int cuda_attribute(struct cuda *c, CUdevice_attribute a);

#endif
