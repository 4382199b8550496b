/* digest.h - how a picture names its room if two programs share nothing but the
 * picture: by the id that libmtmd gives it (the SHA-256 of the file in hex) and
 * a tag for the model, since another model makes other rows. */
#ifndef MMX_LLAMA_DIGEST_H
#define MMX_LLAMA_DIGEST_H

#include <mmx.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Returns the id of the picture's room. 0: the picture has no id, or tag and id
 * are too long. */
static inline uint64_t digest_room(const char *tag, const char *id)
{
    char name[327];
    int n;

    if (!id || !*id)
        return 0;
    n = snprintf(name, sizeof name, "mtmd/%s/%s", tag, id);
    return n < (int)sizeof name ? mmx_room_id(name, (size_t)n) : 0;
}

/* Reads n bytes of hex up to the end of the text. */
static inline bool digest_hex(const char *text, uint8_t *out, int n)
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 2 * (size_t)n)
        return false;
    for (int i = 0; i < n; i++) {
        const char *high = memchr(digits, text[2 * i], 16),
                   *low = memchr(digits, text[2 * i + 1], 16);

        if (!high || !low)
            return false;
        out[i] = (uint8_t)((high - digits) << 4 | (low - digits));
    }
    return true;
}

/* Makes the key of the picture's rows, which must be equal only for equal rows:
 * the SHA-256, mixed with the tag. False: the id is no SHA-256. */
static inline bool digest_key(const char *tag, const char *id, uint8_t key[32])
{
    if (!id || !digest_hex(id, key, 32))
        return false;
    for (int i = 0; i < 4; i++) {
        char part[300]; /* longer than any tag that digest_room() accepts */
        int n = snprintf(part, sizeof part, "%d/%.256s", i, tag);
        uint64_t turn = mmx_room_id(part, (size_t)n);

        for (int k = 0; k < 8; k++)
            key[8 * i + k] ^= (uint8_t)(turn >> 8 * k);
    }
    return true;
}

#endif
