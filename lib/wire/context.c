/* context.c - see context.h. Rejected: accepting longer texts of later
 * versions. Text that is not understood is not passed on. */
#include "wire/context.h"

#include "base/check.h"

static int digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads n digits at *at, and the dash or the end of text behind them. */
static bool take(struct span text, size_t *at, unsigned n, uint64_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < n; i++) {
        int d = digit(text.p[(*at)++]);

        if (d < 0)
            return false;
        *out = *out << 4 | (unsigned)d;
    }
    CHECK(*at <= text.len, "%zu of %u bytes", *at, text.len);
    return *at == text.len || text.p[(*at)++] == '-';
}

bool traceparent_read(struct span text, struct traceparent *out)
{
    uint64_t version, high, low, flags;
    struct span half = {text.p, text.len};
    size_t at = 0;

    if (text.len != TRACEPARENT_LEN || !take(text, &at, 2, &version) ||
        version == 0xff)
        return false;
    /* The 32 digits of the trace have no dash, so the first half is cut by
     * length. */
    half.len = (uint32_t)at + 16;
    if (!take(half, &at, 16, &high) || !take(text, &at, 16, &low) ||
        !take(text, &at, 16, &out->parent) || !take(text, &at, 2, &flags))
        return false;
    out->trace[0] = high;
    out->trace[1] = low;
    out->version = (uint8_t)version;
    out->flags = (uint8_t)flags;
    return (high | low) != 0 && out->parent != 0 && text.p[2] == '-' &&
           text.p[35] == '-' && text.p[52] == '-';
}

static char *put(char *to, uint64_t value, unsigned n, char end)
{
    for (unsigned i = n; i > 0; i--, value >>= 4)
        to[i - 1] = "0123456789abcdef"[value & 15];
    to[n] = end;
    return to + n + 1;
}

void traceparent_write(
    const struct traceparent *t, char out[TRACEPARENT_LEN + 1])
{
    char *at = put(out, t->version, 2, '-');

    at = put(at, t->trace[0], 16, 0) - 1;
    at = put(at, t->trace[1], 16, '-');
    at = put(at, t->parent, 16, '-');
    at = put(at, t->flags, 2, 0);
    CHECK(at == out + TRACEPARENT_LEN + 1, "%td bytes of text", at - out);
}
