/* clock.h - the time of CLOCK_MONOTONIC. Any thread. */
#ifndef MMX_BASE_CLOCK_H
#define MMX_BASE_CLOCK_H

#include "base/base.h"

#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

#endif
