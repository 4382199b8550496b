/* recorder.h - the last happenings of a program, in memory of fixed size. The
 * caller's table says what a kind and its numbers mean. One thread writes and
 * reads it; in a crash dump.h reads it, whatever that thread was doing. */
#ifndef MMX_CORE_TRACE_RECORDER_H
#define MMX_CORE_TRACE_RECORDER_H

#include "base/check.h"

#define RECORDER_SIZE 65536u /* happenings that are kept */

struct happening {
    uint64_t ns, room; /* on the writer's clock */
    uint32_t a, b;     /* their meaning depends on the kind */
    uint32_t who;      /* user that may see the room's id; NONE: none */
    uint32_t tag;      /* happening_tag() */
};

/* Peers have numbers below this; this number means no peer. */
#define HAPPENING_PEERS 0xffffu

/* Returns kind, detail of the kind (such as a message's type) and peer (NONE:
 * none) in one word. */
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
    uint64_t count; /* happenings written since the start */
    struct happening at[RECORDER_SIZE];
};

_Static_assert(sizeof(struct happening) == 32, "two in a line of cache");

/* Returns the slot of the next happening, which must be filled at once. */
static inline struct happening *recorder_next(struct recorder *r)
{
    return &r->at[r->count++ % RECORDER_SIZE];
}

/* Returns the number of the oldest happening that is kept. */
static inline uint64_t recorder_oldest(const struct recorder *r)
{
    return r->count > RECORDER_SIZE ? r->count - RECORDER_SIZE : 0;
}

/* Returns happening number n, which must still be kept. */
static inline const struct happening *recorder_get(
    const struct recorder *r, uint64_t n)
{
    CHECK(n < r->count && n >= recorder_oldest(r),
        "happening %llu of %llu is not here", (unsigned long long)n,
        (unsigned long long)r->count);
    return &r->at[n % RECORDER_SIZE];
}

#endif
