/* mem_room.h - how much memory a pool may have: what the kernel would refuse by
 * killing a process is to be refused in words. Any thread. */
#ifndef MMX_IO_MEM_ROOM_H
#define MMX_IO_MEM_ROOM_H

#include "base/base.h"

/* A number of /proc/meminfo: KiB, or a count. false: no such line. */
bool mem_room_info(const char *key, uint64_t *out);

/* Bytes that the control groups of this process leave to it, those of their
 * page cache included, which they give back; UINT64_MAX: no limit is known.
 * self and root are "/proc/self/cgroup" and "/sys/fs/cgroup" (version 2). */
uint64_t mem_room_cgroup(const char *self, const char *root);

#endif
