/* base.h - small definitions that every other file uses. Nothing here is about
 * mmx. */
#ifndef MMX_BASE_H
#define MMX_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define MUST_CHECK             __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define NORETURN               __attribute__((noreturn))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(p, type, member)                                          \
    ((type *)(void *)((char *)(p)-offsetof(type, member)))

/* An index that means "none", and a row count that is not known yet. */
#define NONE         UINT32_MAX
#define ROWS_UNKNOWN UINT32_MAX

#define NS_PER_MS  UINT64_C(1000000)
#define NS_PER_S   UINT64_C(1000000000)
#define TIME_NEVER UINT64_MAX

/* Returns the time of CLOCK_MONOTONIC. */
static inline uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns a / b rounded up, for b > 0, without overflow. */
static inline uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

#endif
