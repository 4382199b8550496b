/* sip.h - SipHash-2-4 of two words: a number that cannot be computed
 * without the key. For tokens, not for tables. */
#ifndef MMX_BASE_SIP_H
#define MMX_BASE_SIP_H

#include "base/base.h"

static inline uint64_t sip_rotl(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static inline void sip_rounds(uint64_t v[4], unsigned n)
{
    for (; n > 0; n--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = sip_rotl(v[1], 13) ^ v[0];
        v[3] = sip_rotl(v[3], 16) ^ v[2];
        v[0] = sip_rotl(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = sip_rotl(v[1], 17) ^ v[2];
        v[3] = sip_rotl(v[3], 21) ^ v[0];
        v[2] = sip_rotl(v[2], 32);
    }
}

static inline uint64_t sip_words(const uint64_t key[2], uint64_t a, uint64_t b)
{
    /* The last word holds the length in bytes, 16, in its top byte. */
    const uint64_t words[3] = {a, b, UINT64_C(16) << 56};
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575),
        key[1] ^ UINT64_C(0x646f72616e646f6d),
        key[0] ^ UINT64_C(0x6c7967656e657261),
        key[1] ^ UINT64_C(0x7465646279746573)};

    for (unsigned i = 0; i < 3; i++) {
        v[3] ^= words[i];
        sip_rounds(v, 2);
        v[0] ^= words[i];
    }
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
