/* round.c - rounds f32 to the shorter floats of fields: to nearest, ties to
 * even. NaN stays NaN and keeps the upper bits of its payload; what is too
 * large becomes infinite. Pure; any thread. The other direction, which is
 * exact, is in window_run.c.
 *
 * Rejected: _Float16 and __bf16 of the compiler, which not every compiler
 * has. */
#include "client.h"

#include <assert.h>
#include <string.h>

static uint16_t bf16_of(uint32_t f)
{
    if ((f & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(f >> 16 | 0x40);
    return (uint16_t)((f + 0x7fff + (f >> 16 & 1)) >> 16);
}

static uint16_t f16_of(uint32_t f)
{
    uint32_t sign = f >> 16 & 0x8000, m, shift, half, rest, tie;

    f &= 0x7fffffff;
    if (f > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (f >> 13 & 0x1ff));
    if (f >= 0x47800000) /* 2^16 */
        return (uint16_t)(sign | 0x7c00);
    if (f >= 0x38800000) /* 2^-14: a normal number, or rounded up beyond */
        return (
            uint16_t)(sign | (f - 0x38000000 + 0xfff + (f >> 13 & 1)) >> 13);
    if (f <= 0x33000000) /* 2^-25, half of the least: to even */
        return (uint16_t)sign;
    shift = 126 - (f >> 23);
    assert(shift >= 14 && shift <= 24);
    m = (f & 0x7fffff) | 0x800000;
    half = m >> shift;
    rest = m & ((1u << shift) - 1);
    tie = 1u << (shift - 1);
    half += rest > tie || (rest == tie && (half & 1));
    return (uint16_t)(sign | half);
}

void client_round(bool to_bf16, uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t word;

        memcpy(&word, from + 4 * i, sizeof word);
        half = to_bf16 ? bf16_of(word) : f16_of(word);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}
