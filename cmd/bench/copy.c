/* copy.c - the yardstick of one host: a copy past the caches from one memfd
 * into another, both populated, by one thread. One process, one thread;
 * memory is taken once. Rejected: memcpy. It is slower, and a yardstick
 * should be hard to reach. */
#include "bench.h"

#include "base/copy.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES ((size_t)BULK_ROWS * ROW_BYTES)

static uint8_t *populated(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    void *p = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0)
        p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
            fd, 0);
    if (p == MAP_FAILED)
        die("%zu bytes of shared memory", BYTES);
    close(fd);
    memset(p, 1, BYTES);
    return p;
}

void copy_bulk(struct side *x, unsigned round)
{
    static uint8_t *from, *to;
    uint64_t t;

    if (x->which == LANG && !from) {
        from = populated("from");
        to = populated("to");
    }
    meet(x);
    if (x->which == LANG) {
        t = now_ns();
        copy_rows(to, from, BYTES);
        x->s->copy[round] = now_ns() - t;
    }
    meet(x);
}
