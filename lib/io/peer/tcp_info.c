/* tcp_info.c - the kernel's counters of a TCP connection. Stateless; any
 * thread. A file of its own: libc's struct tcp_info lacks the fields, and the
 * kernel's header conflicts with libc's, which libuv includes. */
#include "io/peer/tcp_info.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

bool tcp_counts(int fd, struct tcp_counts *out)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_bytes_received) +
                  sizeof(info.tcpi_bytes_received))
        return false;
    out->received = info.tcpi_bytes_received;
    out->acked = info.tcpi_bytes_acked;
    return true;
}
