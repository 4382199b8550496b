/* madvise.c - preloaded into emulated programs: three pieces of advice of
 * madvise() that mmx depends on. qemu 7.2 says that it took them and does
 * nothing. MADV_POPULATE_READ and _WRITE: each page is touched here.
 * MADV_WIPEONFORK: a child writes zeros. One thread at a time maps such memory.
 *
 * Rejected: to list the tests that notice. A daemon has no rows copied from a
 * pool without its pages, so neither they nor the demo would show copies. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define POPULATE_READ  22
#define POPULATE_WRITE 23
#define WIPED_MAX      64

static struct {
    void *at;
    size_t bytes;
} wiped[WIPED_MAX];
static unsigned wiped_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void wipe(void)
{
    for (unsigned i = 0; i < wiped_count; i++)
        memset(wiped[i].at, 0, wiped[i].bytes);
}

static void on_fork(void)
{
    (void)pthread_atfork(NULL, NULL, wipe);
}

static int keep(void *at, size_t bytes)
{
    pthread_once(&once, on_fork);
    if (wiped_count == WIPED_MAX)
        return -1;
    wiped[wiped_count].at = at;
    wiped[wiped_count++].bytes = bytes;
    return 0;
}

/* Touches each page and changes no byte, also while other threads write. */
static void populate(uint8_t *p, size_t bytes, int write)
{
    size_t page = 4096; /* no kernel has a smaller one */

    for (size_t at = 0; at < bytes; at += page)
        if (write)
            __atomic_fetch_or(p + at, 0, __ATOMIC_RELAXED);
        else
            (void)*(volatile uint8_t *)(p + at);
}

int munmap(void *p, size_t bytes)
{
    static int (*system)(void *, size_t);

    for (unsigned i = 0; i < wiped_count; i++)
        if (wiped[i].at == p)
            wiped[i] = wiped[--wiped_count];
    if (!system)
        system = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    return system(p, bytes);
}

int madvise(void *p, size_t bytes, int advice)
{
    static int (*system)(void *, size_t, int);

    if (advice == MADV_WIPEONFORK)
        return keep(p, bytes);
    if (advice == POPULATE_READ || advice == POPULATE_WRITE) {
        populate(p, bytes, advice == POPULATE_WRITE);
        return 0;
    }
    if (!system)
        system = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
    return system(p, bytes, advice);
}
