/* context.c - see context.h. Rejected: accepting longer texts of later
 * versions. Text that is not understood is not passed on. */
#include "wire/context.h"

#include "base/check.h"

#include <stdio.h>

/* True if the text has dashes and digits where they belong. */
static bool is_shaped(const char text[TRACEPARENT_LEN + 1])
{
    for (int i = 0; i < TRACEPARENT_LEN; i++)
        if (i == 2 || i == 35 || i == 52
                ? text[i] != '-'
                : strspn(text + i, "0123456789abcdef") == 0)
            return false;
    return true;
}

bool traceparent_read(struct span text, struct traceparent *out)
{
    unsigned long long high, low, parent;
    unsigned version, flags;
    char copy[TRACEPARENT_LEN + 1];

    if (text.len != TRACEPARENT_LEN)
        return false;
    span_copy_str(text, copy, sizeof(copy));
    if (!is_shaped(copy) || sscanf(copy, "%2x-%16llx%16llx-%16llx-%2x",
                                &version, &high, &low, &parent, &flags) != 5)
        return false;
    *out = (struct traceparent){
        {high, low}, parent, (uint8_t)version, (uint8_t)flags};
    return version != 0xff && (high | low) != 0 && parent != 0;
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
