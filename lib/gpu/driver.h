/* driver.h - the CUDA driver's functions, found at run time: one binary serves
 * hosts with and without a GPU. Called by io/mem/cuda*.c, io/mem/mem_cuda.c and
 * client/cuda.c; everything else goes through their headers. */
#ifndef MMX_GPU_DRIVER_H
#define MMX_GPU_DRIVER_H

#include <cuda.h>

/* Every function that is called; a driver without one of them is too old. The
 * names are macros of cuda.h, which choose the version. */
#define GPU_CALLS(CALL)                                                        \
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
    CALL(cuModuleUnload)                                                       \
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

struct gpu_driver {
#define CALL(name) __typeof__(&name) name;
    GPU_CALLS(CALL)
#undef CALL
    /* cuMemcpyBatchAsync of CUDA 13.0 and of 12.8; NULL: the driver is older.
     */
    void *batch, *batch_old;
    int version; /* 13000 is 13.0 */
};

/* Returns the driver, which the first call loads; constant and valid until the
 * process ends. NULL: there is none, or it is too old, or it does not start;
 * *why (static) says which, and a later call tries again. Any thread. */
const struct gpu_driver *gpu_driver(const char **why);

/* Returns the name of a result, "CUDA_ERROR_OUT_OF_MEMORY". Static. */
const char *gpu_result(const struct gpu_driver *d, CUresult r);

/* Loads `count` kernels of rows.cu by their names into the current context.
 * NULL: out[0..count) are valid until the context is destroyed. Otherwise
 * returns the reason (static), and nothing is loaded. */
const char *gpu_kernels_load(const struct gpu_driver *d,
    const char *const *names, unsigned count, CUfunction *out);

#endif
