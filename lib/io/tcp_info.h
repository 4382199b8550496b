/* tcp_info.h - what the kernel counted on a TCP connection. */
#ifndef MMX_IO_TCP_INFO_H
#define MMX_IO_TCP_INFO_H

#include "base/base.h"

/* Bytes that came in order since the connection stands, read or not; false:
 * the descriptor is no TCP connection, or the kernel is too old to count. */
bool tcp_received(int fd, uint64_t *out);

#endif
