/* cuda_mem.c - devices, contexts and memory of the driver's double; double.h
 * says what it is. Any thread; one lock around the tables, as nothing here has
 * to be fast. Rejected: malloc as GPU memory, which another process could not
 * map and which code of ours could touch unnoticed. */
#include "test/double/double.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRAIN        (UINT64_C(2) << 20)
#define MAPS_MAX     256
#define SETTINGS_MAX 96
#define GPUS_MAX     4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* settings */

static struct {
    char name[48];
    long value;
} settings[SETTINGS_MAX] = {{"memory", 1l << 30}, {"gpus", 2}, {"vmm", 1}};

static long *setting(const char *name)
{
    for (size_t i = 0; i < SETTINGS_MAX; i++) {
        if (!settings[i].name[0])
            snprintf(settings[i].name, sizeof(settings[i].name), "%s", name);
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i].value;
    }
    abort();
}

int double_set(const char *name, long value)
{
    pthread_mutex_lock(&lock);
    *setting(name) = value;
    pthread_mutex_unlock(&lock);
    return 0;
}

long double_get(const char *name)
{
    long value;

    pthread_mutex_lock(&lock);
    value = *setting(name);
    pthread_mutex_unlock(&lock);
    return value;
}

void double_count(const char *name, long n)
{
    pthread_mutex_lock(&lock);
    *setting(name) += n;
    pthread_mutex_unlock(&lock);
}

static bool inited;
static CUresult stuck; /* the sticky error */

CUresult double_fault(const char *call)
{
    char name[48], *version;
    CUresult r;
    long *n;

    snprintf(name, sizeof(name), "fail_%s", call);
    version = strstr(name, "_v");
    if (version)
        *version = 0;
    pthread_mutex_lock(&lock);
    n = setting(name);
    r = inited ? stuck : CUDA_ERROR_NOT_INITIALIZED;
    if (r == CUDA_SUCCESS && *n > 0 && --*n == 0) {
        r = (CUresult)(*setting("error") ? *setting("error") : 700);
        if (*setting("sticky"))
            stuck = r;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static void from_environment(void)
{
    const char *env = getenv("CUDA_DOUBLE");
    char *copy = strdup(env ? env : ""), *rest = copy, *one;

    while ((one = strsep(&rest, ","))) {
        char *eq = strchr(one, '=');

        if (!eq)
            continue;
        *eq = 0;
        double_set(one, atol(eq + 1));
    }
    free(copy);
}

SHOWN CUresult cuInit(unsigned int flags)
{
    if (!inited)
        from_environment();
    inited = true;
    FAULT();
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuGetErrorName(CUresult error, const char **name)
{
    switch ((int)error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
        return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_SUPPORTED:
        *name = "CUDA_ERROR_NOT_SUPPORTED";
        return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
        *name = "CUDA_ERROR_INVALID_VALUE";
        return CUDA_SUCCESS;
    default:
        *name = "CUDA_ERROR_UNKNOWN";
        return CUDA_SUCCESS;
    }
}

/* devices and contexts */

static struct CUctx_st {
    int device;
    atomic_int retained;
} contexts[GPUS_MAX];

static _Thread_local CUcontext current[16];
static _Thread_local int depth;

bool double_current(void)
{
    return depth > 0;
}

int double_device(void)
{
    return depth > 0 ? current[depth - 1]->device : 0;
}

SHOWN CUresult cuDeviceGetCount(int *n)
{
    FAULT();
    *n = (int)double_get("gpus");
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    FAULT();
    if (ordinal < 0 || ordinal >= double_get("gpus"))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    FAULT();
    snprintf(name, (size_t)len, "Double %d", dev);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    FAULT();
    memset(uuid->bytes, 0x40 + dev, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetAttribute(
    int *out, CUdevice_attribute a, CUdevice dev)
{
    FAULT();
    switch ((int)a) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *out = (int)double_get("vmm");
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
        *out = double_get("no_flush") ? 0 : 1;
        return CUDA_SUCCESS;
    default:
        *out = 0;
        return CUDA_SUCCESS;
    }
}

SHOWN CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    FAULT();
    if (dev == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = double_get("no_peers") == 0;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuFlushGPUDirectRDMAWrites(
    CUflushGPUDirectRDMAWritesTarget target,
    CUflushGPUDirectRDMAWritesScope scope)
{
    CURRENT();
    FAULT();
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX)
        return CUDA_ERROR_INVALID_VALUE;
    double_count("flushes", 1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
    FAULT();
    contexts[dev].device = dev;
    contexts[dev].retained++;
    *out = &contexts[dev];
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    if (contexts[dev].retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    contexts[dev].retained--;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    FAULT();
    if (!c || c->retained == 0 || depth == 16)
        return CUDA_ERROR_INVALID_CONTEXT;
    current[depth++] = c;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
    CURRENT();
    *c = current[--depth];
    return CUDA_SUCCESS;
}

/* memory */

/* Address space with memory behind it, or without (fd -1). */
struct map {
    uint8_t *p;
    size_t bytes;
    int fd;
    bool ours, host, mapped;
    unsigned readers, writers; /* GPUs, a bit each */
    int owner; /* GPU whose context it belongs to; -1: VMM, or the host's */
};

static struct map maps[MAPS_MAX];
static size_t taken;

uint8_t *double_host(CUdeviceptr a)
{
    return (uint8_t *)(uintptr_t)(a & ~TAG);
}

static CUdeviceptr device_of(void *p)
{
    return (CUdeviceptr)(uintptr_t)p | TAG;
}

static struct map *map_new(size_t bytes)
{
    for (size_t i = 0; i < MAPS_MAX; i++)
        if (!maps[i].p) {
            maps[i] = (struct map){.bytes = bytes, .fd = -1, .owner = -1};
            return &maps[i];
        }
    return NULL;
}

static struct map *map_at(CUdeviceptr a)
{
    for (size_t i = 0; i < MAPS_MAX; i++)
        if (maps[i].p && maps[i].p == double_host(a))
            return &maps[i];
    return NULL;
}

/* Memory of a context can be used by its GPU, and by GPUs whose contexts were
 * admitted. This is stricter than the driver, which stages copies that it may
 * not make directly. */
static bool lets_in(const struct map *m, bool write, int device)
{
    if (m->owner >= 0)
        return m->owner == device;
    return (write ? m->writers : m->readers) >> device & 1;
}

/* Host addresses that were not pinned are allowed, as the driver allows them;
 * device addresses have to be mapped. */
bool double_reachable(CUdeviceptr a, size_t bytes, bool write, int device)
{
    bool ok = !(a & TAG);

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAPS_MAX && !ok; i++) {
        struct map *m = &maps[i];

        ok = m->p && !m->host && lets_in(m, write, device) &&
             double_host(a) >= m->p && bytes <= m->bytes &&
             (size_t)(double_host(a) - m->p) <= m->bytes - bytes;
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

static bool take(size_t bytes)
{
    bool ok;

    pthread_mutex_lock(&lock);
    ok = taken + bytes <= (size_t)*setting("memory");
    if (ok)
        taken += bytes;
    pthread_mutex_unlock(&lock);
    return ok;
}

static void give(size_t bytes)
{
    pthread_mutex_lock(&lock);
    taken -= bytes;
    pthread_mutex_unlock(&lock);
}

SHOWN CUresult cuMemGetInfo_v2(size_t *have, size_t *all)
{
    CURRENT();
    FAULT();
    *all = (size_t)double_get("memory");
    *have = *all - taken;
    return CUDA_SUCCESS;
}

/* New memory must not look zeroed by chance, as the driver's memory may. */
static int filled_file(size_t bytes)
{
    int fd = memfd_create("cuda-double", MFD_CLOEXEC);
    uint8_t *p;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return -1;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -1;
    memset(p, 0xa5, bytes);
    munmap(p, bytes);
    return fd;
}

SHOWN CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    struct map *m;

    CURRENT();
    FAULT();
    if (!take(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    m = map_new(bytes);
    m->fd = filled_file(bytes);
    m->p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    m->owner = double_device();
    m->ours = true;
    pthread_mutex_unlock(&lock);
    *out = device_of(m->p);
    return CUDA_SUCCESS;
}

static CUresult drop(CUdeviceptr a, bool ours)
{
    struct map *m;

    pthread_mutex_lock(&lock);
    m = map_at(a);
    if (!m || m->ours != ours) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(m->p, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    m->p = NULL;
    if (ours && !m->host)
        taken -= m->bytes;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemFree_v2(CUdeviceptr a)
{
    CURRENT();
    return drop(a, true);
}

SHOWN CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    struct map *m;

    CURRENT();
    FAULT();
    pthread_mutex_lock(&lock);
    m = map_new(bytes);
    m->p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->ours = m->host = true;
    pthread_mutex_unlock(&lock);
    *out = m->p;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemFreeHost(void *p)
{
    CURRENT();
    return drop((CUdeviceptr)(uintptr_t)p, true);
}

SHOWN CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
    CURRENT();
    FAULT();
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemHostUnregister(void *p)
{
    CURRENT();
    FAULT();
    return CUDA_SUCCESS;
}

/* VMM: a handle is a descriptor + 1, its size the file's */

SHOWN CUresult cuMemGetAllocationGranularity(size_t *out,
    const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    FAULT();
    *out = GRAIN;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
    const CUmemAllocationProp *prop, unsigned long long flags)
{
    int fd;

    CURRENT();
    FAULT();
    if (bytes % GRAIN || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!take(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    fd = filled_file(bytes);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    double_count("created", 1);
    *out = (CUmemGenericAllocationHandle)fd + 1;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
    off_t bytes = lseek((int)h - 1, 0, SEEK_END);

    CURRENT();
    if (h == 0 || bytes < 0)
        return CUDA_ERROR_INVALID_VALUE;
    close((int)h - 1);
    give((size_t)bytes);
    double_count("created", -1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes,
    size_t alignment, CUdeviceptr address, unsigned long long flags)
{
    struct map *m;

    CURRENT();
    FAULT();
    if (bytes % GRAIN)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    m = map_new(bytes);
    m->p = mmap(NULL, bytes, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_unlock(&lock);
    *out = device_of(m->p);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemAddressFree(CUdeviceptr a, size_t bytes)
{
    struct map *m = map_at(a);

    CURRENT();
    if (!m || m->bytes != bytes || m->mapped)
        return CUDA_ERROR_INVALID_VALUE;
    return drop(a, false);
}

SHOWN CUresult cuMemMap(CUdeviceptr a, size_t bytes, size_t offset,
    CUmemGenericAllocationHandle h, unsigned long long flags)
{
    struct map *m = map_at(a);

    CURRENT();
    FAULT();
    if (!m || m->bytes != bytes || offset || m->mapped)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(m->p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1, 0) ==
        MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    m->mapped = true;
    double_count("mapped", 1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemUnmap(CUdeviceptr a, size_t bytes)
{
    struct map *m = map_at(a);

    CURRENT();
    if (!m || m->bytes != bytes || !m->mapped)
        return CUDA_ERROR_INVALID_VALUE;
    mmap(
        m->p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    m->mapped = false;
    m->readers = m->writers = 0;
    double_count("mapped", -1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemSetAccess(
    CUdeviceptr a, size_t bytes, const CUmemAccessDesc *d, size_t n)
{
    struct map *m = map_at(a);
    bool write = n && d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    unsigned bit = n ? 1u << d->location.id : 0;

    CURRENT();
    FAULT();
    if (!m || m->bytes != bytes || !m->mapped || n != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!write && double_get("no_read_only"))
        return CUDA_ERROR_NOT_SUPPORTED;
    m->readers |= bit;
    m->writers = write ? m->writers | bit : m->writers & ~bit;
    mprotect(m->p, bytes, PROT_READ | (m->writers ? PROT_WRITE : 0));
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemExportToShareableHandle(void *out,
    CUmemGenericAllocationHandle h, CUmemAllocationHandleType type,
    unsigned long long flags)
{
    int fd;

    CURRENT();
    FAULT();
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl((int)h - 1, F_DUPFD_CLOEXEC, 3);
    memcpy(out, &fd, sizeof(fd));
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle *out, void *os, CUmemAllocationHandleType type)
{
    int fd;

    CURRENT();
    FAULT();
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUmemGenericAllocationHandle)fd + 1;
    double_count("created", 1);
    take((size_t)lseek(fd, 0, SEEK_END));
    return CUDA_SUCCESS;
}
