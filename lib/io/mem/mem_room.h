/* mem_room.h - the memory that a pool may have: more would have the kernel kill
 * a process, so it is refused with a log line. Any thread. */
#ifndef MMX_IO_MEM_ROOM_H
#define MMX_IO_MEM_ROOM_H

#include "base/base.h"

/* Reads a number of /proc/meminfo, KiB or a count. False: no such line. */
bool mem_room_info(const char *key, uint64_t *out);

/* Returns the bytes that the control groups of this process leave to it now,
 * with their page cache, which the kernel reclaims, or would leave if nothing
 * ran in them; UINT64_MAX: no limit is known. self and root are
 * "/proc/self/cgroup" and "/sys/fs/cgroup" (version 2). */
uint64_t mem_room_cgroup(const char *self, const char *root, bool now);

#endif
