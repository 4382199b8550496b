/* copy.c - memcpy with non-temporal stores.
 *
 * Invariants: exactly [to, to + n) is written, at any alignment of either end;
 * streamed stores write whole cache lines, so that no line is read before it is
 * written; a fence comes before the return, because nothing else orders such
 * stores. Stateless; any thread. Processors other than x86-64 copy by memcpy.
 *
 * Rejected: the C library's memcpy alone. It streams only beyond a size that
 * depends on the machine's caches, and segments are smaller. Rejected: a
 * function pointer set at start. To ask the processor costs less than to read a
 * cache line, and needs no initialisation. Rejected: AVX-512, which copies no
 * more a second than AVX2. Rejected: SSE2, for processors without AVX2 and
 * guests that hide it. There memcpy is used, which is two thirds as fast. */
#include "base/copy.h"

#include "base/check.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE 64

__attribute__((target("avx2"))) static void stream(
    uint8_t *to, const uint8_t *from, size_t n)
{
    size_t head = -(uintptr_t)to % LINE;

    CHECK(head < n, "%zu bytes before the first line of %zu", head, n);
    memcpy(to, from, head);
    for (; n - head >= LINE; head += LINE) {
        __m256i a = _mm256_loadu_si256((const void *)(from + head));
        __m256i b = _mm256_loadu_si256((const void *)(from + head + 32));

        _mm256_stream_si256((void *)(to + head), a);
        _mm256_stream_si256((void *)(to + head + 32), b);
    }
    _mm_sfence();
    memcpy(to + head, from + head, n - head);
}
#endif

void copy_rows(void *to, const void *from, size_t n)
{
#if defined(__x86_64__)
    if (n >= COPY_STREAM_MIN && __builtin_cpu_supports("avx2")) {
        stream(to, from, n);
        return;
    }
#endif
    memcpy(to, from, n);
}
