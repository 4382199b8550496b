/* double.h - libcuda.so.1 for machines without a GPU: the entry points that
 * mmx calls, with the driver's meaning, over host memory. A double of the
 * driver, never of our code; built into the tests' folder, never installed.
 *
 * An address of "GPU" memory has a bit that no CPU can follow (TAG), so that
 * whoever touches it by CPU crashes as with a real one. Streams are threads
 * with a queue; VMM exports are memfds. It checks that a context is current,
 * and that addresses lie in a mapping that may be read or written. It does not
 * have real speed, order against kernels, or the driver's own bugs.
 *
 * Faults and limits are set by double_set(name, value), or by the environment
 * at cuInit as CUDA_DOUBLE="name=value,...":
 *   fail_<call>   the n-th call from now on fails, and only that one;
 *                 fail_copy: the n-th copy that a stream carries out
 *   error         the result it fails with (default 700)
 *   sticky        1: after the failure every call gives that result
 *   delay_us      each copy of a stream takes so long
 *   hold          1: streams stand still
 *   no_bytes      1: copies take no time, and copy nothing
 *   memory, gpus  bytes of each GPU; how many there are
 *   vmm, no_read_only   0: no VMM; 1: no read-only maps
 *   no_batch      1: copies are not taken as a batch
 *   no_flush      1: what network cards write cannot be flushed
 *   no_peers      1: no GPU reaches another one's memory
 * double_get(name) also reads counters: copies, bytes, batches,
 * created, mapped, streams, events, flushes. */
#ifndef MMX_TEST_DOUBLE_H
#define MMX_TEST_DOUBLE_H

#include "gpu/driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define TAG (UINT64_C(1) << 62)

#define SHOWN __attribute__((visibility("default")))

/* Results that our code does not name. */
enum {
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
};

#define CALL(name, version, parameters)  CUresult name##version parameters;
#define BATCH(name, version, parameters) CUresult name##version parameters;
#include "gpu/cuda.def"
/* Functions that only the Python package calls. */
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr a);
CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags);
CUresult cuMemHostUnregister(void *p);

SHOWN int double_set(const char *name, long value);
SHOWN long double_get(const char *name);

/* cuda_mem.c */
void double_count(const char *name, long n);
/* Returns the result for this call: CUDA_SUCCESS unless it is to fail. */
CUresult double_fault(const char *call);
bool double_current(void);
/* Returns the device of the current context. */
int double_device(void);
/* Returns the byte's address for a CPU: for carriers that reach into GPUs. */
SHOWN uint8_t *double_host(CUdeviceptr a);
/* True if that GPU reaches the bytes. */
bool double_reachable(CUdeviceptr a, size_t bytes, bool write, int device);

#define FAULT()                                                                \
    do {                                                                       \
        CUresult fault_ = double_fault(__func__);                              \
                                                                               \
        if (fault_ != CUDA_SUCCESS)                                            \
            return fault_;                                                     \
    } while (0)

/* For calls that need a current context. */
#define CURRENT()                                                              \
    do {                                                                       \
        if (!double_current())                                                 \
            return CUDA_ERROR_INVALID_CONTEXT;                                 \
    } while (0)

#endif
