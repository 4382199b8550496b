/* tcp_info.h - the kernel's counters of a TCP connection. */
#ifndef MMX_IO_TCP_INFO_H
#define MMX_IO_TCP_INFO_H

#include "base/base.h"

/* Bytes of a connection since its start: received in order, read or not; sent
 * and acknowledged. */
struct tcp_counts {
    uint64_t received, acked;
};

/* Reads the counters. False: not a TCP connection, or the kernel is too old. */
bool tcp_counts(int fd, struct tcp_counts *out);

#endif
