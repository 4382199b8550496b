/* link.c - mmxctl's side of the socket: connect, one packet out, packets in.
 * Blocking, with a limit; one thread. Rejected: the client library. It is made
 * for engines (cells, rooms, many requests at once, reconnects) and hides what
 * a doctor has to see. */
#include "ctl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { WAIT_S = 10 };

int ctl_connect(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = WAIT_S};
    int s, error;

    if (strlen(path) >= sizeof(a.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -1;
    memcpy(a.sun_path, path, strlen(path) + 1);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(s, (struct sockaddr *)&a, sizeof(a)) == 0)
        return s;
    error = errno;
    close(s);
    errno = error;
    return -1;
}

void ctl_hello(struct local_msg *m)
{
    static char session[32];

    snprintf(session, sizeof(session), "mmxctl-%d", (int)getpid());
    *m = (struct local_msg){.type = LOCAL_HELLO};
    m->hello.magic = LOCAL_MAGIC;
    m->hello.version_min = m->hello.version_max = WIRE_VERSION;
    m->hello.cells = 1;
    m->hello.name = span_str("mmxctl");
    m->hello.session = span_str(session);
}

bool ctl_send(int s, struct local_msg *msgs, uint32_t count)
{
    uint8_t packet[2048];
    struct writer w = writer_of(packet, sizeof(packet));

    for (uint32_t i = 0; i < count; i++) {
        msgs[i].seq = i + 1;
        if (!local_put(&w, &msgs[i])) {
            errno = EMSGSIZE;
            return false;
        }
    }
    return send(s, packet, w.len, MSG_NOSIGNAL) == (ssize_t)w.len;
}

ssize_t ctl_recv(int s, uint8_t packet[LOCAL_PACKET_MAX], int *fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = LOCAL_PACKET_MAX};
    struct msghdr m = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control)};
    ssize_t n;

    do
        n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    *fd = -1;
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m); c;
         c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(c), sizeof(*fd));
    return n;
}
