/* copy.c - memcpy with non-temporal stores, as wide as the processor can.
 *
 * Invariants: exactly [to, to + n) is written, at any alignment of either end;
 * streamed stores write whole cache lines, so that no line is read before it is
 * written; a fence comes before the return, because nothing else orders such
 * stores. Stateless; any thread.
 *
 * Rejected: the C library's memcpy alone. It streams only beyond a size that
 * depends on the machine's caches, and segments are smaller. Rejected: a
 * function pointer set at start. Asking the processor costs less than a cache
 * line, and needs no initialisation. */
#include "base/copy.h"

#include "base/check.h"

#include <string.h>

#define LINE 64

const char *copy_name(enum copy_kind k)
{
    static const char *const names[] = {"plain", "sse2", "avx2", "avx512"};

    return k < COPY_KINDS ? names[k] : "unknown";
}

#if defined(__x86_64__)
#include <immintrin.h>

bool copy_can(enum copy_kind k)
{
    switch (k) {
    case COPY_PLAIN:
    case COPY_SSE2: /* every x86-64 */
        return true;
    case COPY_AVX2:
        return __builtin_cpu_supports("avx2");
    case COPY_AVX512:
        return __builtin_cpu_supports("avx512f");
    default:
        return false;
    }
}

/* Copies whole lines; `to` is aligned to a line, `from` need not be. */
static void lines_sse2(uint8_t *to, const uint8_t *from, size_t lines)
{
    for (; lines > 0; lines--, to += LINE, from += LINE) {
        __m128i a = _mm_loadu_si128((const void *)(from + 0));
        __m128i b = _mm_loadu_si128((const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const void *)(from + 48));

        _mm_stream_si128((void *)(to + 0), a);
        _mm_stream_si128((void *)(to + 16), b);
        _mm_stream_si128((void *)(to + 32), c);
        _mm_stream_si128((void *)(to + 48), d);
    }
}

__attribute__((target("avx2"))) static void lines_avx2(
    uint8_t *to, const uint8_t *from, size_t lines)
{
    for (; lines > 0; lines--, to += LINE, from += LINE) {
        __m256i a = _mm256_loadu_si256((const void *)(from + 0));
        __m256i b = _mm256_loadu_si256((const void *)(from + 32));

        _mm256_stream_si256((void *)(to + 0), a);
        _mm256_stream_si256((void *)(to + 32), b);
    }
}

__attribute__((target("avx512f"))) static void lines_avx512(
    uint8_t *to, const uint8_t *from, size_t lines)
{
    for (; lines > 0; lines--, to += LINE, from += LINE)
        _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
}

static void lines(
    enum copy_kind k, uint8_t *to, const uint8_t *from, size_t count)
{
    if (k == COPY_AVX512)
        lines_avx512(to, from, count);
    else if (k == COPY_AVX2)
        lines_avx2(to, from, count);
    else
        lines_sse2(to, from, count);
    _mm_sfence();
}
#else
bool copy_can(enum copy_kind k)
{
    return k == COPY_PLAIN;
}

static void lines(
    enum copy_kind k, uint8_t *to, const uint8_t *from, size_t count)
{
    (void)k;
    memcpy(to, from, count * LINE);
}
#endif

enum copy_kind copy_best(void)
{
    enum copy_kind k = COPY_AVX512;

    while (!copy_can(k))
        k--;
    return k;
}

void copy_by(enum copy_kind k, void *to, const void *from, size_t n)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    size_t head = -(uintptr_t)t % LINE, whole;

    CHECK(copy_can(k), "no copies by %s here", copy_name(k));
    if (k == COPY_PLAIN || n < head + LINE) {
        memcpy(t, f, n);
        return;
    }
    memcpy(t, f, head);
    whole = (n - head) / LINE;
    lines(k, t + head, f + head, whole);
    head += whole * LINE;
    memcpy(t + head, f + head, n - head);
}

void copy_rows(void *to, const void *from, size_t n)
{
    if (n < COPY_STREAM_MIN)
        memcpy(to, from, n);
    else
        copy_by(copy_best(), to, from, n);
}
