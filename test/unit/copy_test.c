/* copy_test.c - copies that bypass the caches: at every alignment of both ends,
 * in every class of size, with canaries. */
#include "base/copy.h"
#include "test/t.h"

#define LINE   64
#define MARGIN 128
#define CANARY 0xa5

struct area {
    uint8_t *from, *to; /* each at a cache line, with a margin on both sides */
    size_t cap;
};

static struct area area_make(size_t cap)
{
    size_t bytes = (cap + 2 * MARGIN + LINE - 1) / LINE * LINE;
    struct area a = {.cap = bytes};

    a.from = aligned_alloc(LINE, bytes);
    a.to = aligned_alloc(LINE, bytes);
    T_TRUE(a.from && a.to);
    for (size_t i = 0; i < bytes; i++)
        a.from[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(a.to, CANARY, bytes);
    return a;
}

static void area_free(struct area *a)
{
    free(a->from);
    free(a->to);
}

/* Copies n bytes and checks all bytes around; then writes the canaries
 * again. */
static void one(struct area *a, size_t to_at, size_t from_at, size_t n)
{
    uint8_t *to = a->to + MARGIN + to_at;
    const uint8_t *from = a->from + MARGIN + from_at;
    uint8_t wrong = 0;

    copy_rows(to, from, n);
    T_CHECK(memcmp(to, from, n) == 0, "%zu bytes from +%zu to +%zu", n, from_at,
        to_at);
    for (size_t i = 1; i <= MARGIN; i++)
        wrong |=
            (uint8_t)((to[-(ptrdiff_t)i] ^ CANARY) | (to[n + i - 1] ^ CANARY));
    T_CHECK(
        wrong == 0, "bytes beside %zu from +%zu to +%zu", n, from_at, to_at);
    memset(to, CANARY, n);
}

TEST(every_alignment)
{
    static const size_t sizes[] = {300, COPY_STREAM_MIN, COPY_STREAM_MIN + 1,
        COPY_STREAM_MIN + 15, COPY_STREAM_MIN + 31, COPY_STREAM_MIN + 63,
        COPY_STREAM_MIN + 64, COPY_STREAM_MIN + 65};
    struct area a = area_make(COPY_STREAM_MIN + 4 * LINE);

    for (size_t to = 0; to < LINE; to++)
        for (size_t from = 0; from < LINE; from++)
            for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
                one(&a, to, from, sizes[i]);
    area_free(&a);
}

TEST(every_size_of_the_last_lines)
{
    struct area a = area_make(COPY_STREAM_MIN + 600 + 2 * LINE);

    for (size_t n = COPY_STREAM_MIN; n <= COPY_STREAM_MIN + 600; n++)
        for (size_t at = 0; at < LINE; at += 9)
            one(&a, at, LINE - 1 - at, n);
    area_free(&a);
}

/* Sizes around that at which copy_rows begins to stream, and real rows. */
TEST(larger_sizes)
{
    static const size_t sizes[] = {COPY_STREAM_MIN - 1, COPY_STREAM_MIN,
        COPY_STREAM_MIN + 1, 4704, 32768, 130000, (1u << 20) + 5};
    struct area a = area_make((1u << 20) + 5 + 2 * LINE);

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (size_t at = 0; at < LINE; at += 13)
            one(&a, at, (at * 7) % LINE, sizes[i]);
    area_free(&a);
}
