/* source.c - see source.h.
 *
 * Invariants: an open source lies wholly in a file of constant size whose pages
 * were all present, so mapping it takes no memory but page tables. Every region
 * of its layout lies inside it; its map is read-only. Its engines may still
 * remove pages (punch a hole), so only the copies of guard.h read it. Its pages
 * stay while it has holders, even after the owner has exited.
 *
 * Rejected: mapping with MAP_POPULATE, which hides failures, and mapping in the
 * loop's thread: page tables of a large pool take seconds to fill. */
#include "io/source.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 512u /* of st_blocks, for any page size */

/* Reads where each field begins. True if every field lies inside the pool and
 * its rows have the size that the layout says. */
static bool regions(struct source *s, struct span fields)
{
    struct reader r = reader_of(fields.p, fields.len);
    uint64_t rows = (uint64_t)s->blocks * s->block_rows;

    for (uint32_t f = 0; f < s->layout.count; f++) {
        uint64_t at = get_u64(&r), bytes;
        uint32_t row_bytes = get_u32(&r);

        if (r.failed || row_bytes != s->layout.fields[f].row_bytes ||
            __builtin_mul_overflow(rows, row_bytes, &bytes) || at > s->bytes ||
            bytes > s->bytes - at)
            return false;
        s->offsets[f] = at;
    }
    return r.at == r.len;
}

static enum err check_file(
    const struct source *s, uint64_t room, const char **why)
{
    int seals = fcntl(s->fd, F_GET_SEALS);
    struct stat st;

    *why = "comes without its descriptor: no more may be open here";
    if (s->fd < 0)
        return ERR_MALFORMED;
    *why = "lies in a file of another size, or one that could shrink";
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW) ||
        fstat(s->fd, &st) != 0 || st.st_size <= 0 ||
        (uint64_t)st.st_size < s->bytes)
        return ERR_MALFORMED;
    *why = "lies in a file without all of its pages";
    if ((uint64_t)st.st_blocks < (s->bytes + BLOCK - 1) / BLOCK)
        return ERR_MALFORMED;
    *why = "is more than this host's memory, with what is mapped already";
    return s->bytes <= room ? OK : ERR_TOO_LARGE;
}

/* Stores the handle of GPU memory. The driver checks it when it is mapped;
 * there is no size to check before that. */
static enum err fill_gpu(
    struct source *s, const struct local_pool_info *m, const char **why)
{
    *why = "has a handle that cannot be read";
    if (m->handle.len > MEM_HANDLE_MAX || m->share.len >= sizeof(s->share))
        return ERR_MALFORMED;
    span_copy_str(m->share, s->share, sizeof(s->share));
    if (m->handle.len)
        memcpy(s->handle, m->handle.p, m->handle.len);
    s->handle_len = m->handle.len;
    return OK;
}

static enum err fill(struct source *s, const struct local_pool_info *m,
    uint64_t room, const char **why)
{
    uint32_t at;

    *why = "has a layout that cannot be read";
    if (layout_parse(m->layout, &s->layout, &at) != OK)
        return ERR_MALFORMED;
    *why = "has regions that do not fit";
    s->bytes = m->bytes;
    s->blocks = m->blocks;
    s->block_rows = m->block_rows;
    if (s->blocks == 0 || s->block_rows == 0 || !regions(s, m->fields))
        return ERR_MALFORMED;
    if (m->share.len > 0 && !span_eq(m->share, span_str("memfd")))
        return fill_gpu(s, m, why);
    return check_file(s, room, why);
}

enum err source_open(struct source **out, int fd,
    const struct local_pool_info *m, uint64_t room, const char **why)
{
    struct source *s = calloc(1, sizeof(*s));
    enum err e;

    *why = "finds no memory here";
    if (!s) {
        if (fd >= 0)
            close(fd);
        return ERR_NO_BLOCKS;
    }
    s->fd = fd;
    atomic_init(&s->holders, 1);
    e = fill(s, m, room, why);
    if (e != OK) {
        source_close(&s);
        return e;
    }
    *why = "";
    *out = s;
    return OK;
}

uint64_t source_room(const struct source *s)
{
    return s->share[0] ? 0 : s->bytes;
}

static enum err map_gpu(struct source *s, uint32_t readers)
{
    struct mem_import from = {.name = "of a peer",
        .share = s->share,
        .handle = span_of(s->handle, s->handle_len),
        .fd = s->fd,
        .bytes = s->bytes,
        .readers = readers};
    enum err e = mem_cuda_import(&s->gpu, &from);

    if (e != OK)
        return ERR_INTERNAL;
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    s->base = mem_start(&s->gpu);
    return OK;
}

enum err source_map(
    struct source *s, uint32_t readers, const struct mem_watch *watch)
{
    enum err e = OK;
    uint8_t *p;

    CHECK(!s->base, "a source is mapped twice");
    if (s->share[0])
        return map_gpu(s, readers);
    p = mmap(NULL, s->bytes, PROT_READ, MAP_SHARED, s->fd, 0);
    if (p == MAP_FAILED)
        return ERR_INTERNAL;
    madvise(p, s->bytes, MADV_DONTDUMP);
    for (uint64_t at = 0; e == OK && at < s->bytes; at += MEM_PIECE)
        if (atomic_load(&watch->stop))
            e = ERR_ABORTED;
        else if (madvise(p + at, min_u64(MEM_PIECE, s->bytes - at),
                     MADV_POPULATE_READ) != 0)
            e = ERR_INTERNAL;
    if (e != OK) {
        munmap(p, s->bytes);
        return e;
    }
    close(s->fd);
    s->fd = -1;
    s->base = p;
    return OK;
}

struct source *source_hold(struct source *s)
{
    uint32_t had =
        atomic_fetch_add_explicit(&s->holders, 1, memory_order_relaxed);

    CHECK(had > 0, "a source without holders");
    return s;
}

void source_drop(struct source *s)
{
    uint32_t had;

    if (!s)
        return;
    had = atomic_fetch_sub_explicit(&s->holders, 1, memory_order_acq_rel);
    CHECK(had > 1, "%u holders: the last one closes a source", had);
}

bool source_alone(const struct source *s)
{
    /* source_drop() has released it: no copy of that holder goes on. */
    return !s || atomic_load_explicit(&s->holders, memory_order_acquire) == 1;
}

void source_close(struct source **at)
{
    struct source *s = *at;

    if (!s)
        return;
    CHECK(source_alone(s), "a source is closed while it is read");
    *at = NULL;
    if (s->gpu.ops)
        s->gpu.ops->close(&s->gpu);
    else if (s->base)
        munmap((void *)(uintptr_t)s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}
