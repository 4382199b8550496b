/* gpu.c - see gpu.h. The test's thread. Rejected: linking the double. Code
 * under test has to find the driver in the usual way. */
#include "test/gpu.h"

#include "test/t.h"

#include "gpu/driver.h"

#include <dlfcn.h>

static char path[600];

bool gpu_real(void)
{
    const char *what = getenv("MMX_TEST_GPU");

    return what && strcmp(what, "real") == 0;
}

void gpu_use(void)
{
    char exe[512] = "";
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (gpu_real())
        return;
    T_TRUE(n > 0);
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    snprintf(path, sizeof(path), "%s/../double/libcuda.so.1", exe);
    T_CHECK(access(path, R_OK) == 0, "%s is not built", path);
    gpu_driver_file = path;
}

void gpu_double_only(void)
{
    if (gpu_real())
        t_skip("with the driver's double only");
}

void gpu_use_double(void)
{
    gpu_use();
    gpu_double_only();
}

static void *call_of(const char *name)
{
    void *lib = dlopen(gpu_real() ? "libcuda.so.1" : path, RTLD_NOW), *p;

    T_CHECK(lib, "%s", dlerror());
    p = dlsym(lib, name);
    T_CHECK(p, "the driver has no %s", name);
    return p;
}

void *gpu_host(const void *at)
{
    void *p = call_of("double_host"), *(*host)(cuda_address a);

    memcpy(&host, &p, sizeof(host));
    return host((uintptr_t)at);
}

void gpu_set(const char *name, long value)
{
    void *p = call_of("double_set");
    int (*set)(const char *name, long value);

    memcpy(&set, &p, sizeof(set));
    set(name, value);
}

long gpu_get(const char *name)
{
    void *p = call_of("double_get");
    long (*get)(const char *name);

    memcpy(&get, &p, sizeof(get));
    return get(name);
}

static void nothing(void *ud) {}

static void copy(struct cuda *c, cuda_address to, cuda_address from, size_t n)
{
    struct cuda_batch b = {&to, &from, &n, 1};
    struct cuda_lane *l;

    T_OK(cuda_lane_open(&l, c, 1, nothing, NULL));
    T_OK(cuda_lane_submit(l, &b, 0));
    T_OK(cuda_lane_wait(l, 0));
    cuda_lane_close(&l);
}

void gpu_write(struct cuda *c, cuda_address to, const void *from, size_t n)
{
    uint8_t *pinned = cuda_pinned(c, n);

    T_TRUE(pinned != NULL);
    memcpy(pinned, from, n);
    copy(c, to, (cuda_address)(uintptr_t)pinned, n);
    cuda_unpin(c, pinned);
}

void gpu_read(struct cuda *c, void *to, cuda_address from, size_t n)
{
    uint8_t *pinned = cuda_pinned(c, n);

    T_TRUE(pinned != NULL);
    copy(c, (cuda_address)(uintptr_t)pinned, from, n);
    memcpy(to, pinned, n);
    cuda_unpin(c, pinned);
}
