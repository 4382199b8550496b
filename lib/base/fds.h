/* fds.h - descriptors that came with a message of a Unix socket. Any thread. */
#ifndef MMX_BASE_FDS_H
#define MMX_BASE_FDS_H

#include "base/check.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sets fds to the first `max` descriptors, now owned by the caller, and to -1
 * for missing ones. Closes all others: a buffer for one descriptor has space
 * for two. Returns the number that came. */
static inline uint32_t fds_take(struct msghdr *m, int *fds, uint32_t max)
{
    uint32_t count = 0;

    CHECK(max > 0, "no place for a descriptor");
    memset(fds, 0xff, max * sizeof(int));
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++, count++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
            if (count < max)
                fds[count] = fd;
            else
                close(fd);
        }
    }
    return count;
}

#endif
