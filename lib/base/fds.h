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

/* Receives a packet, with the flags and MSG_CMSG_CLOEXEC, and its descriptors
 * as fds_take does. Returns what recvmsg does; *cut: the packet did not fit. */
static inline ssize_t fds_receive(int socket, struct iovec packet, int flags,
    int *fds, uint32_t max, bool *cut)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &packet,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);

    if (n < 0)
        m.msg_controllen = 0;
    (void)fds_take(&m, fds, max);
    *cut = n >= 0 && (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    return n;
}

#endif
