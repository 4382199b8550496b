/* mem.h - a kind of memory for pools. mem_host: sealed memfds; mem_cuda: GPU
 * memory. One object per pool. The loop's thread opens it (with any_thread
 * another may) and closes it; shards read base and device, which do not change
 * in between. */
#ifndef MMX_IO_MEM_H
#define MMX_IO_MEM_H

#include "base/err.h"
#include "wire/layout.h"
#include "io/cuda.h"

#define MEM_HANDLE_MAX 16 /* bytes of a GPU's UUID */

/* Bytes of host memory that one call populates, in about 0.1 s: a thread that
 * has to stop does so within that time. */
#define MEM_PIECE (UINT64_C(256) << 20)

/* The progress of an open in bytes, and the request to stop it; any thread. */
struct mem_watch {
    _Atomic uint64_t bytes;
    _Atomic bool stop;
};

struct mem_opt {
    const char *name; /* of the pool, for log lines and the memfd */
    const char *kind; /* as in the config: "host" or "cuda:N" */
    uint64_t bytes;
    bool engines_write;      /* false: sealed against future writable maps */
    bool huge_pages;         /* required: without them open fails */
    int numa_node;           /* -1: any */
    struct mem_watch *watch; /* NULL: none */
};

struct mem {
    const struct mem_ops *ops;
    uint8_t *base;  /* host kinds: our own map; else NULL */
    uint64_t bytes; /* size of the mapping, >= opt.bytes */
    uint64_t page;  /* preferred alignment of regions */
    int fd;         /* passed to engines; owned by us; -1: none */
    char text[64];  /* for mmxctl: kind, page size, node */

    /* How an engine maps it: "memfd", or "cuda-vmm", where the handle is the
     * GPU's UUID. */
    const char *share;
    uint8_t handle[MEM_HANDLE_MAX];
    uint32_t handle_bytes;

    /* GPU kinds. Only cuda.h can use the address: a CPU must not access the
     * memory. */
    struct cuda *gpu;
    unsigned long long device, own;
    struct cuda *readers[CUDA_GPUS_MAX]; /* kept open: GPUs that copy from it */
};

struct mem_ops {
    const char *name;
    bool any_thread; /* another thread than the loop's may open it */
    /* Returns the page size that this kind will use. */
    uint64_t (*page)(const struct mem_opt *opt);
    MUST_CHECK enum err (*open)(struct mem *m, const struct mem_opt *opt);
    void (*close)(struct mem *m);
};

extern const struct mem_ops mem_host;
extern const struct mem_ops mem_cuda;

/* Returns the kind for a pool's `memory` key ("host", "cuda:3"), or NULL. */
const struct mem_ops *mem_kind(const char *name);

/* Returns how many bytes pools of host memory may have now, or (now false)
 * could have if nothing else used memory; UINT64_MAX: unknown. *where (static)
 * names the limit. */
uint64_t mem_host_room(bool huge_pages, bool now, const char **where);

/* Returns the bytes of this host's memory; UINT64_MAX: unknown. */
uint64_t mem_total(void);

/* Returns the number of the GPU in "cuda:N"; NONE: another name. */
uint32_t mem_gpu(const char *name);

/* Returns the address of byte 0, for CPUs or for cuda.h. */
static inline uint8_t *mem_start(const struct mem *m)
{
    return m->gpu ? (uint8_t *)(uintptr_t)m->device : m->base;
}

/* A GPU pool of another process, by its mem's fd (not closed here; -1: none),
 * share and handle. */
struct mem_import {
    const char *name, *share;
    struct span handle;
    int fd;
    uint64_t bytes;
    uint32_t readers; /* bits: other GPUs that copy from it */
};
/* Maps it for reading on the GPU with the handle's UUID, and on the readers;
 * mem_cuda.close unmaps it. ERR_INTERNAL, ERR_MALFORMED: logged. */
MUST_CHECK enum err mem_cuda_import(
    struct mem *out, const struct mem_import *from);

#endif
