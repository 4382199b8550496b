/* mem_room.h - how much memory a pool may have. A larger pool is refused with a
 * log line, because otherwise the kernel would kill a process. Any thread. */
#ifndef MMX_IO_MEM_ROOM_H
#define MMX_IO_MEM_ROOM_H

#include "base/base.h"

/* Reads a value of /proc/meminfo, in KiB or a count. False: no such line. */
bool mem_room_info(const char *key, uint64_t *out);

/* Returns the bytes that the control groups of this process leave to it. The
 * page cache counts as free: the kernel reclaims it. now false: as if nothing
 * ran in the groups. UINT64_MAX: no known limit. self and root are
 * "/proc/self/cgroup" and "/sys/fs/cgroup" (version 2). */
uint64_t mem_room_cgroup(const char *self, const char *root, bool now);

#endif
