/* source.h - a pool of another daemon on this host, mapped for reading: rows
 * are copied from it without a network. The loop's thread opens it, a thread
 * that may wait maps it, shards read it; constant once it is mapped. Every
 * holder is counted. The opener holds it longest: unmapping takes as long as
 * mapping, and no thread that moves rows may wait for it. */
#ifndef MMX_IO_SOURCE_H
#define MMX_IO_SOURCE_H

#include "wire/layout.h"
#include "wire/wire.h"
#include "io/mem.h"

struct source {
    struct layout layout;
    const uint8_t *base; /* NULL: not mapped yet */
    struct mem gpu;      /* gpu.gpu: it is GPU memory, and so is base */
    uint64_t bytes, offsets[LAYOUT_FIELDS_MAX];
    uint32_t blocks, block_rows;
    int fd; /* -1 once it is mapped, or if there is none */
    char share[17];
    uint8_t handle[MEM_HANDLE_MAX];
    uint32_t handle_len;
    _Atomic uint32_t holders;
};

/* Opens a source from a POOL_INFO and its descriptor (-1: none), which it owns
 * from then on. Neither is trusted: size, seals and pages are read from the
 * kernel. room: bytes of host memory that may still be mapped. The caller
 * becomes a holder. On error *why says what was wrong. */
MUST_CHECK enum err source_open(struct source **out, int fd,
    const struct local_pool_info *m, uint64_t room, const char **why);
/* Returns the bytes of `room` that the source uses. */
uint64_t source_room(const struct source *s);
/* Maps and populates the source: a second per 8 GiB, or until watch->stop is
 * true (aborted). GPU memory is mapped for all `readers` (bits: numbers of
 * GPUs), or the call fails. */
MUST_CHECK enum err source_map(
    struct source *s, uint32_t readers, const struct mem_watch *watch);

/* Adds a holder; returns s. */
struct source *source_hold(struct source *s);
/* Removes a holder other than the last one. Accepts NULL. */
void source_drop(struct source *s);
/* True if only the opener holds it. Accepts NULL. */
bool source_alone(const struct source *s);
/* Unmaps and frees a source that only the opener holds; may wait. */
void source_close(struct source **s);

#endif
