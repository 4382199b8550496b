/* recorder.h - the last happenings of a program, in memory of fixed size. What
 * a kind means, and its numbers, is the caller's table. Written by one thread,
 * which also reads it; dump.h reads it in a crash, as it is by then. */
#ifndef MMX_CORE_TRACE_RECORDER_H
#define MMX_CORE_TRACE_RECORDER_H

#include "base/check.h"

#define RECORDER_SIZE 65536u /* happenings that are remembered */

struct happening {
    uint64_t ns, room; /* on the writer's clock */
    uint32_t a, b;     /* numbers that belong to the kind */
    uint32_t who;      /* user that may know the room's id; NONE: none */
    uint32_t tag;      /* happening_tag() */
};

/* Peers are numbered below this; none has the number itself. */
#define HAPPENING_PEERS 0xffffu

/* Returns kind, what of the kind (as a message's type) and peer (NONE: none) as
 * one word. */
static inline uint32_t happening_tag(unsigned kind, unsigned of, uint32_t peer)
{
    return (uint32_t)kind << 24 | (uint32_t)of << 16 | (peer & HAPPENING_PEERS);
}

static inline unsigned happening_kind(const struct happening *h)
{
    return h->tag >> 24;
}

static inline unsigned happening_of(const struct happening *h)
{
    return h->tag >> 16 & 0xff;
}

static inline uint32_t happening_peer(const struct happening *h)
{
    return h->tag & HAPPENING_PEERS;
}

struct recorder {
    uint64_t count; /* happenings that were ever written */
    struct happening at[RECORDER_SIZE];
};

_Static_assert(sizeof(struct happening) == 32, "two in a line of cache");

/* Returns the place of the next happening, to be filled at once. */
static inline struct happening *recorder_next(struct recorder *r)
{
    return &r->at[r->count++ % RECORDER_SIZE];
}

/* Returns the number of the oldest happening that is remembered. */
static inline uint64_t recorder_oldest(const struct recorder *r)
{
    return r->count > RECORDER_SIZE ? r->count - RECORDER_SIZE : 0;
}

/* Returns happening number n, which is remembered. */
static inline const struct happening *recorder_get(
    const struct recorder *r, uint64_t n)
{
    CHECK(n < r->count && n >= recorder_oldest(r),
        "happening %llu of %llu is not here", (unsigned long long)n,
        (unsigned long long)r->count);
    return &r->at[n % RECORDER_SIZE];
}

#endif
