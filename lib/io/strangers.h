/* strangers.h - connections that have not proven who they are. A flood of them
 * evicts its own, oldest first, so the more there may be, the further away a
 * true peer may be that needs round trips to prove itself: some thousand are
 * 100 ms of 15,000 a second. Any thread. */
#ifndef MMX_IO_STRANGERS_H
#define MMX_IO_STRANGERS_H

#include "base/base.h"

#include <sys/resource.h>

/* Returns how many a port may hold: `most`, and of the process' descriptors an
 * eighth over all `ports`, so that engines find one; 64 at least. */
static inline uint32_t strangers_max(uint32_t most, uint32_t ports)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return 64;
    return max_u32(64, (uint32_t)min_u64(most, l.rlim_cur / 8 / ports));
}

#endif
