/* driver.c - see driver.h.
 *
 * Invariants: one call fills the table of functions under the lock, and it is
 * constant afterwards; the driver is never unloaded, since it has threads of
 * its own. Any thread.
 *
 * Rejected: linking libcuda, which hosts without a GPU do not have; the runtime
 * library libcudart, one more version to match for calls that it only forwards;
 * GPU code inside our libraries, which would make nvcc part of every build. */
#include "gpu/driver.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(void *) == sizeof(CUresult(*)(void)),
    "dlsym's pointer is a function's");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_driver driver;
static bool made;
static char trouble[192]; /* of the last attempt; under the lock */

const char *gpu_driver_file = "libcuda.so.1";

const char *gpu_result(const struct gpu_driver *d, CUresult r)
{
    const char *name = NULL;

    if (d->cuGetErrorName(r, &name) != CUDA_SUCCESS || !name)
        return "unknown CUDA error";
    return name;
}

/* Stores the reason why there is no driver; returns false. */
static bool failed(const char *what, const char *which)
{
    snprintf(trouble, sizeof(trouble), "%s%s", what, which);
    return false;
}

/* Stores the function `name` at out; NULL and false: it is missing. */
static bool find(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);

    memcpy(out, &p, sizeof(p));
    return p != NULL;
}

static bool load(void)
{
    void *lib = dlopen(gpu_driver_file, RTLD_NOW | RTLD_LOCAL);
    CUresult r;

    if (!lib)
        return failed("no NVIDIA driver on this host: ", dlerror());
#define CALL(name, version, parameters)                                        \
    if (!find(lib, #name #version, &driver.name))                              \
        return failed("the NVIDIA driver is too old: it has no ", #name);
#define BATCH(name, version, parameters)                                       \
    (void)find(lib, #name #version, &driver.name##version);
#include "gpu/cuda.def"
    CHECK(!made && driver.cuInit, "the driver is loaded twice");
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
