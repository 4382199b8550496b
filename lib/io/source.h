/* source.h - a pool of another daemon on this host, mapped for reading: what
 * rows are copied from without a network. Opened by the loop's thread, mapped
 * by a thread that may wait, read by shards; nothing changes in it once it is
 * mapped. Whoever keeps a pointer to it holds it; the last one to let go
 * unmaps it, in any thread. */
#ifndef MMX_IO_SOURCE_H
#define MMX_IO_SOURCE_H

#include "wire/layout.h"
#include "wire/wire.h"
#include "io/mem.h"

struct source {
    struct layout layout;
    const uint8_t *base; /* NULL: not mapped yet */
    struct mem gpu;      /* gpu.gpu: it is a GPU's, and so is base */
    uint64_t bytes, offsets[LAYOUT_FIELDS_MAX];
    uint32_t blocks, block_rows;
    int fd; /* -1 once it is mapped, and where there is none */
    char share[17];
    uint8_t handle[MEM_HANDLE_MAX];
    uint32_t handle_len;
    _Atomic uint32_t holders;
};

/* From a POOL_INFO and the descriptor that came with it (-1: none), which is
 * taken over in any case. Nothing in either is believed: size and seals are the
 * kernel's word. Held once. On error *why says what was wrong. */
MUST_CHECK enum err source_open(struct source **out, int fd,
    const struct local_pool_info *m, const char **why);
/* Maps and populates it, which takes a second per 8 GiB; a GPU's memory for all
 * of readers (bits: numbers of GPUs), or not at all. */
MUST_CHECK enum err source_map(struct source *s, uint32_t readers);

/* One holder more; s. */
struct source *source_hold(struct source *s);
/* One holder less. Accepts NULL. */
void source_drop(struct source *s);

#endif
