/* map.c - GPU memory at addresses of this process, by the driver's virtual
 * memory management: a daemon's own pools, and those of another process.
 * Invariant: a failed call keeps nothing. Stateless; any thread. Rejected: one
 * copy in io and one in client, which need the same calls and may not include
 * each other. */
#include "gpu/driver.h"

#include <string.h>

int gpu_find(const struct gpu_driver *d, const uint8_t *uuid)
{
    CUuuid got;
    int count = 0;

    if (d->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return -1;
    for (int i = 0; i < count; i++)
        if (d->cuDeviceGetUuid(&got, i) == CUDA_SUCCESS &&
            memcmp(got.bytes, uuid, sizeof(got.bytes)) == 0)
            return i;
    return -1;
}

CUresult gpu_map(const struct gpu_driver *d,
    CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr *out)
{
    CUdeviceptr at;
    CUresult r = d->cuMemAddressReserve(&at, bytes, 0, 0, 0);

    if (r != CUDA_SUCCESS)
        return r;
    r = d->cuMemMap(at, bytes, 0, memory, 0);
    if (r == CUDA_SUCCESS)
        *out = at;
    else
        (void)d->cuMemAddressFree(at, bytes);
    return r;
}

CUresult gpu_map_shared(
    const struct gpu_driver *d, int fd, size_t bytes, CUdeviceptr *out)
{
    CUmemGenericAllocationHandle memory;
    CUresult r = d->cuMemImportFromShareableHandle(&memory,
        (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (r != CUDA_SUCCESS)
        return r;
    r = gpu_map(d, memory, bytes, out);
    (void)d->cuMemRelease(memory); /* the map keeps the memory */
    return r;
}

CUresult gpu_allow(const struct gpu_driver *d, CUdeviceptr at, size_t bytes,
    int gpu, bool write)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu}};

    if (!write && d->cuMemSetAccess(at, bytes, &access, 1) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return d->cuMemSetAccess(at, bytes, &access, 1);
}

CUresult gpu_unmap(const struct gpu_driver *d, CUdeviceptr at, size_t bytes)
{
    CUresult r = d->cuMemUnmap(at, bytes);

    if (r == CUDA_SUCCESS)
        (void)d->cuMemAddressFree(at, bytes);
    return r;
}
