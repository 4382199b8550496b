/* text.c - see text.h. Rejected: refusing such texts. They are for people, and
 * a room's failure must be reported whatever its text is. Pure; any thread. */
#include "base/text.h"

#include "base/check.h"

/* Returns how many bytes a UTF-8 character with this first byte has, and the
 * character's bits in that byte; 0: no character starts with it. */
static size_t head_of(uint8_t b, uint32_t *c)
{
    if (b < 0x80) {
        *c = b;
        return 1;
    }
    if (b >= 0xc2 && b <= 0xdf) {
        *c = b & 0x1fu;
        return 2;
    }
    if (b >= 0xe0 && b <= 0xef) {
        *c = b & 0x0fu;
        return 3;
    }
    if (b >= 0xf0 && b <= 0xf4) {
        *c = b & 0x07u;
        return 4;
    }
    return 0;
}

size_t text_char(const char *p, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t c = 0;
    size_t len;

    CHECK(n > 0, "a character of no bytes");
    len = head_of((uint8_t)p[0], &c);
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if (((uint8_t)p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((uint8_t)p[i] & 0x3fu);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) ? 0 : len;
}

bool text_is_clean(struct span s)
{
    size_t at = 0, len;

    for (; at < s.len; at += len) {
        len = text_char((const char *)s.p + at, s.len - at);
        if (len == 0)
            return false;
    }
    return true;
}

void text_clean(char *p, size_t n)
{
    size_t at = 0, len;

    for (; at < n; at += len) {
        len = text_char(p + at, n - at);
        if (len == 0) {
            p[at] = '?';
            len = 1;
        }
    }
}

void text_copy(struct span s, char *out, size_t size)
{
    size_t at = 0, len;

    for (; at < s.len; at += len) {
        len = text_char((const char *)s.p + at, s.len - at);
        if (at + max_u64(len, 1) >= size)
            break;
        if (len)
            memcpy(out + at, s.p + at, len);
        else
            out[at] = '?';
        len = max_u64(len, 1);
    }
    out[at] = 0;
}

bool text_lists(const char *list, const char *word)
{
    size_t len = strlen(word);

    while (*list) {
        size_t n = strcspn(list, ",");

        if (n == len && memcmp(list, word, n) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

bool text_number(struct span s, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;

    if (s.len == 0 || (s.len > 1 && s.p[0] == '0'))
        return false;
    for (uint32_t i = 0; i < s.len; i++)
        if (s.p[i] < '0' || s.p[i] > '9' ||
            __builtin_mul_overflow(v, UINT64_C(10), &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
            return false;
    if (v > max)
        return false;
    *out = v;
    return true;
}

bool text_cut(struct span *s, char c, struct span *head)
{
    const uint8_t *at = s->len ? memchr(s->p, c, s->len) : NULL;

    if (!at)
        return false;
    *head = span_of(s->p, (size_t)(at - s->p));
    *s = span_of(at + 1, s->len - head->len - 1);
    return true;
}
