/* fds.h - descriptors that came with a message of a Unix socket. Any thread. */
#ifndef MMX_IO_FDS_H
#define MMX_IO_FDS_H

#include "base/base.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sets *first to the first descriptor, which the caller owns then (-1: there is
 * none), and closes all others: a buffer for one has space for two. Returns the
 * number that came. */
static inline uint32_t fds_take(struct msghdr *m, int *first)
{
    uint32_t count = 0;

    *first = -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
            if (count++ == 0)
                *first = fd;
            else
                close(fd);
        }
    }
    return count;
}

#endif
