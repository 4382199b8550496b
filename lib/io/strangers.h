/* strangers.h - connections that have not proven their identity. A flood of
 * them evicts its own, oldest first. So the limit decides how much time a true
 * peer has for the round trips of its proof: if 15,000 connections come in a
 * second, a limit of 1,500 gives it 100 ms. Any thread. */
#ifndef MMX_IO_STRANGERS_H
#define MMX_IO_STRANGERS_H

#include "base/base.h"

#include <sys/resource.h>

/* Returns how many such connections a port may hold: `most`, limited to an
 * eighth of the process's descriptors over all `ports`, so that some are left
 * for engines; at least 64. */
static inline uint32_t strangers_max(uint32_t most, uint32_t ports)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return 64;
    return max_u32(64, (uint32_t)min_u64(most, l.rlim_cur / 8 / ports));
}

#endif
