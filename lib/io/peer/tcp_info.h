/* tcp_info.h - what the kernel counted on a TCP connection. */
#ifndef MMX_IO_TCP_INFO_H
#define MMX_IO_TCP_INFO_H

#include "base/base.h"

/* Bytes of a connection since it was made: received in order, read or not; sent
 * and acknowledged. */
struct tcp_counts {
    uint64_t received, acked;
};

/* Reads the counts. False: not a TCP connection, or a kernel that is too old.
 */
bool tcp_counts(int fd, struct tcp_counts *out);

#endif
