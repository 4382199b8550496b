/* mem.h - a kind of memory that pools can lie in. mem_host: sealed memfds.
 * One object per pool; used by the loop's thread (open, close) and read by
 * shards (base, offsets), which is safe because nothing changes in between. */
#ifndef MMX_IO_MEM_H
#define MMX_IO_MEM_H

#include "base/err.h"
#include "core/layout.h"

struct mem_opt {
    const char *name;      /* of the pool, for messages and memfd */
    uint64_t bytes;
    bool engines_write;    /* false: sealed against future writable maps */
    bool huge_pages;       /* asked for: an error when there are none */
    int numa_node;         /* -1: wherever */
};

struct mem {
    const struct mem_ops *ops;
    uint8_t *base;   /* host kinds: our own map; else NULL */
    uint64_t bytes;  /* size of the mapping, >= opt.bytes */
    uint64_t page;   /* alignment that regions should have */
    int fd;          /* what engines get; stays ours */
    char text[64];   /* for mmxctl: kind, page size, node */
};

struct mem_ops {
    const char *name;
    /* Page size that this kind would use, before the size is known. */
    uint64_t (*page)(const struct mem_opt *opt);
    MUST_CHECK enum err (*open)(struct mem *m, const struct mem_opt *opt);
    void (*close)(struct mem *m);
};

extern const struct mem_ops mem_host;

/* By the name in a pool's `memory` key; NULL: no such kind in this build. */
const struct mem_ops *mem_kind(const char *name);

#endif
