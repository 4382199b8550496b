/* mem.c - the kinds of memory for pools, by the names in a pool's `memory` key.
 * Constant data, any thread. Rejected: a registry filled at run time. There are
 * few kinds, and a list is easy to read. */
#include "io/mem.h"

#include "io/mem/mem_room.h"

#include <string.h>

uint64_t mem_total(void)
{
    uint64_t kib;

    return mem_room_info("MemTotal", &kib) ? kib * 1024 : UINT64_MAX;
}

uint32_t mem_gpu(const char *name)
{
    uint32_t n = 0;
    const char *p = name + 5;

    if (strncmp(name, "cuda:", 5) != 0 || !*p || strlen(p) > 3)
        return NONE;
    for (; *p; p++) {
        if (*p < '0' || *p > '9')
            return NONE;
        n = n * 10 + (uint32_t)(*p - '0');
    }
    return n;
}

const struct mem_ops *mem_kind(const char *name)
{
    if (strcmp(name, mem_host.name) == 0)
        return &mem_host;
    return mem_gpu(name) != NONE ? &mem_cuda : NULL;
}
