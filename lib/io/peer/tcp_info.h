/* tcp_info.h - what the kernel counted on a TCP connection. */
#ifndef MMX_IO_TCP_INFO_H
#define MMX_IO_TCP_INFO_H

#include "base/base.h"

/* Bytes since the connection stands: that came in order, read or not, and that
 * went and were acknowledged. */
struct tcp_counts {
    uint64_t received, acked;
};

/* False: it is no TCP connection, or the kernel is too old to count. */
bool tcp_counts(int fd, struct tcp_counts *out);

#endif
