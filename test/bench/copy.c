/* copy.c - measures the copy that rows on one host are compared with: one
 * thread copies from one memfd into another, both populated, with stores that
 * bypass the caches; then the same by memcpy. One process, one thread; memory
 * is taken once. Rejected: memcpy alone. It is slower, so easier to beat. */
#include "test/bench/bench.h"

#include "base/copy.h"

#include <sys/mman.h>

static uint8_t *populated(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    void *p = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)BULK_BYTES) == 0)
        p = mmap(NULL, BULK_BYTES, PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED)
        die("%zu bytes of shared memory", BULK_BYTES);
    close(fd);
    memset(p, 1, BULK_BYTES);
    return p;
}

void copy_bulk(struct side *x)
{
    static uint8_t *from, *to;
    uint64_t t, used;

    if (x->which == LANG && !from) {
        from = populated("from");
        to = populated("to");
    }
    meet(x);
    if (x->which == LANG) {
        used = cpu_ns(getpid());
        t = now_ns();
        copy_rows(to, from, BULK_BYTES);
        note(x, S_NT, now_ns() - t);
        note(x, S_NT_CPU, cpu_ns(getpid()) - used);
        t = now_ns();
        memcpy(to, from, BULK_BYTES);
        note(x, S_MEMCPY, now_ns() - t);
    }
    meet(x);
}
