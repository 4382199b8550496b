/* driver.c - see driver.h. Made under one lock, constant afterwards, never
 * unloaded: the driver has threads of its own. Rejected: linking libcuda,
 * which hosts without a GPU do not have; the runtime library libcudart, one
 * more version to match for calls that it only passes on. */
#include "gpu/driver.h"

#include "base/base.h"
#include "gpu/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS_MAX 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_driver driver;
static bool made;
static char trouble[192]; /* under the lock; the first one stays */

const char *gpu_result(const struct gpu_driver *d, CUresult r)
{
    const char *name = NULL;

    if (d->cuGetErrorName(r, &name) != CUDA_SUCCESS || !name)
        return "unknown CUDA error";
    return name;
}

static bool failed(const char *what, const char *which)
{
    snprintf(trouble, sizeof(trouble), "%s%s", what, which);
    return false;
}

static bool find(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);

    if (!p)
        return failed("the NVIDIA driver is too old: it has no ", name);
    memcpy(out, &p, sizeof(p));
    return true;
}

#define TEXT_OF(name)  TEXT_OF_(name)
#define TEXT_OF_(name) #name

static bool load(void)
{
    void *lib = dlopen(gpu_driver_file, RTLD_NOW | RTLD_LOCAL);
    CUresult r;

    if (!lib)
        return failed("no NVIDIA driver on this host: ", dlerror());
#define CALL(name)                                                             \
    if (!find(lib, TEXT_OF(name), &driver.name))                               \
        return false;
    GPU_CALLS(CALL)
#undef CALL
    driver.batch = dlsym(lib, "cuMemcpyBatchAsync_v2");
    driver.batch_old = dlsym(lib, "cuMemcpyBatchAsync");
    r = driver.cuInit(0);
    if (r == CUDA_SUCCESS)
        r = driver.cuDriverGetVersion(&driver.version);
    if (r != CUDA_SUCCESS)
        return failed(
            "the NVIDIA driver does not start: ", gpu_result(&driver, r));
    return true;
}

const struct gpu_driver *gpu_driver(const char **why)
{
    const struct gpu_driver *d = NULL;

    pthread_mutex_lock(&lock);
    made = made || load();
    if (made)
        d = &driver;
    else
        *why = trouble;
    pthread_mutex_unlock(&lock);
    return d;
}

const char *gpu_kernels_load(const struct gpu_driver *d,
    const char *const *names, unsigned count, CUfunction *out)
{
    CUfunction got[KERNELS_MAX];
    void *image = kernels_read();
    CUmodule module = NULL;
    CUresult r;

    if (!image)
        return KERNELS_MISSING;
    r = d->cuModuleLoadData(&module, image);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count && i < KERNELS_MAX; i++)
        r = d->cuModuleGetFunction(&got[i], module, names[i]);
    free(image);
    if (r == CUDA_SUCCESS) {
        memcpy(out, got, count * sizeof(*out));
        return NULL;
    }
    if (module)
        (void)d->cuModuleUnload(module);
    return gpu_result(d, r);
}
