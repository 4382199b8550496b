/* any.h - for tests in which anything may happen: random numbers, and random
 * values most of which are likely ones. */
#ifndef MMX_TEST_ANY_H
#define MMX_TEST_ANY_H

#include "test/brain.h"

static uint64_t any_dice;

static inline uint32_t below(uint32_t n)
{
    any_dice = any_dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(any_dice >> 33) % n;
}

static inline bool one_in(uint32_t n)
{
    return below(n) == 0;
}

static inline void any_begin(uint64_t seed)
{
    any_dice = seed * UINT64_C(0x9e3779b97f4a7c15);
}

/* Returns a number of rows, mostly of whole blocks of 8. */
static inline uint32_t any_rows(void)
{
    static const uint32_t likely[] = {0, 1, 7, 8, 9, 16, 24, 32, 128, 129};

    if (one_in(40))
        return one_in(2) ? ROWS_UNKNOWN : ROWS_UNKNOWN - below(300);
    return likely[below(ARRAY_LEN(likely))];
}

static inline uint8_t any_reason(void)
{
    return (uint8_t)below(ERR_COUNT + 3);
}

static inline struct secret any_secret(void)
{
    return one_in(4) ? (struct secret){"two"} : (struct secret){""};
}

static inline struct key any_key(void)
{
    return (struct key){.b = {one_in(4) ? (uint8_t)(1 + below(2)) : 0}};
}

/* A HELLO of the daemon of this name, in one of few runs; *epoch is its run on
 * the link, 0: any. */
static inline struct peer_msg any_hello(
    const char *name, uint64_t first, uint64_t *epoch)
{
    static uint32_t seq;
    struct peer_msg m = {.type = PEER_HELLO, .seq = ++seq - 2 * one_in(9)};

    if (!*epoch || one_in(16))
        *epoch = one_in(30) ? 0 : first + 100 * below(3);
    m.from_epoch = *epoch;
    m.to_epoch = one_in(2) ? 0 : BRAIN_EPOCH;
    m.hello.version_min = m.hello.version_max =
        (uint8_t)(WIRE_VERSION + one_in(9));
    m.hello.answer = one_in(2);
    m.hello.segment_max = one_in(20) ? 1023 : 1 << 18;
    m.hello.name = span_str(one_in(20) ? "" : name);
    m.hello.carriers = span_str(one_in(9) ? "ucx 1.18 rc" : "tcp");
    m.hello.draining = one_in(5);
    m.hello.boot.b[0] = one_in(4);
    return m;
}

#endif
