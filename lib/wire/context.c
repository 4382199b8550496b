/* context.c - see context.h. Rejected: accepting longer texts of later
 * versions. Text that is not understood is not passed on. */
#include "wire/context.h"

#include "base/check.h"

#include <stdio.h>

static const char hex[] = "0123456789abcdef";

static uint64_t number(const char *text, size_t n)
{
    uint64_t out = 0;

    for (size_t i = 0; i < n; i++)
        out = out << 4 | (uint64_t)(strchr(hex, text[i]) - hex);
    return out;
}

bool traceparent_read(struct span text, struct traceparent *out)
{
    char t[TRACEPARENT_LEN + 1] = "";

    if (text.len != TRACEPARENT_LEN)
        return false;
    memcpy(t, text.p, TRACEPARENT_LEN);
    if (strspn(t, hex) != 2 || t[2] != '-' || strspn(t + 3, hex) != 32 ||
        t[35] != '-' || strspn(t + 36, hex) != 16 || t[52] != '-' ||
        strspn(t + 53, hex) != 2)
        return false;
    *out = (struct traceparent){{number(t + 3, 16), number(t + 19, 16)},
        number(t + 36, 16), (uint8_t)number(t, 2), (uint8_t)number(t + 53, 2)};
    return out->version != 0xff && (out->trace[0] | out->trace[1]) != 0 &&
           out->parent != 0;
}

void traceparent_write(
    const struct traceparent *t, char out[TRACEPARENT_LEN + 1])
{
    int n = snprintf(out, TRACEPARENT_LEN + 1,
        "%02x-%016llx%016llx-%016llx-%02x", t->version,
        (unsigned long long)t->trace[0], (unsigned long long)t->trace[1],
        (unsigned long long)t->parent, t->flags);

    CHECK(n == TRACEPARENT_LEN, "%d bytes of text", n);
}
