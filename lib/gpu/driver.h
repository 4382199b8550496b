/* driver.h - the CUDA driver's functions, found at run time: one binary serves
 * hosts with and without a GPU. Called by io/mem/cuda*.c, io/mem/mem_cuda.c and
 * client/cuda.c; everything else goes through their headers. */
#ifndef MMX_GPU_DRIVER_H
#define MMX_GPU_DRIVER_H

#include "base/base.h"

#define TYPE(name, bytes, ...)                                                 \
    typedef __typeof__(__VA_ARGS__) name;                                      \
    _Static_assert(sizeof(name) == (bytes), #name);
#define AT(type, member, offset)                                               \
    _Static_assert(offsetof(type, member) == (offset), #type "." #member);
#define VALUE(name, number) enum { name = number };
#include "gpu/cuda.def"

struct gpu_driver {
#define CALL(name, version, parameters) CUresult(*name) parameters;
#include "gpu/cuda.def"
    /* NULL: the driver is older */
#define BATCH(name, version, parameters) CUresult(*name##version) parameters;
#include "gpu/cuda.def"
    int version; /* 13000: 13.0 */
};

/* The driver's file, libcuda.so.1. Tests change it before the first call of
 * gpu_driver. */
extern const char *gpu_driver_file;

/* Returns the driver, which the first call loads; constant and valid until the
 * process ends. NULL: it is missing, too old, or does not start; *why (static)
 * says which, and a later call tries again. Any thread. */
const struct gpu_driver *gpu_driver(const char **why);

/* Returns the name of a result, "CUDA_ERROR_OUT_OF_MEMORY". Static. */
const char *gpu_result(const struct gpu_driver *d, CUresult r);

/* map.c */

/* Returns the number of the GPU with this UUID; -1: not visible here. The
 * number differs in a process that sees other GPUs. */
int gpu_find(const struct gpu_driver *d, const uint8_t *uuid);

/* The functions below need the GPU's context to be current. */

/* Maps memory; no GPU has access yet. */
CUresult gpu_map(const struct gpu_driver *d,
    CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr *out);
/* Maps another process's memory by its descriptor, and leaves that open. */
CUresult gpu_map_shared(
    const struct gpu_driver *d, int fd, size_t bytes, CUdeviceptr *out);
/* Lets a GPU read a map, and with `write` write it. Without read-only maps in
 * the driver it can always write. */
CUresult gpu_allow(const struct gpu_driver *d, CUdeviceptr at, size_t bytes,
    int gpu, bool write);
/* Unmaps a map of gpu_map or gpu_map_shared; fails for any other address. */
CUresult gpu_unmap(const struct gpu_driver *d, CUdeviceptr at, size_t bytes);

#endif
