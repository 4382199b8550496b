/* slow_unmap.c - preloaded into a daemon by a test: where the fifo MMX_GATE is,
 * munmap() of a pool's size waits until a writer has opened and closed it, as
 * for the pages of a pool of hundreds of GiB. Any thread; it keeps nothing.
 * Rejected: such a pool, which no machine for tests has. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL_BYTES (16u << 20)

int munmap(void *p, size_t bytes)
{
    const char *gate = getenv("MMX_GATE");
    int fd =
        gate && bytes >= POOL_BYTES ? open(gate, O_RDONLY | O_CLOEXEC) : -1;
    char c;

    while (fd >= 0 && read(fd, &c, 1) > 0)
        ;
    if (fd >= 0)
        close(fd);
    return (int)syscall(SYS_munmap, p, bytes);
}
