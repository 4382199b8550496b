/* size.c - sizes as people read them: three digits or so and a unit of 1,024,
 * or the exact number. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>

void size_text(uint64_t bytes, bool exact, char out[SIZE_TEXT])
{
    static const char units[][4] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t unit = 0;
    int n;

    /* 1023.95 would be printed as 1024.0. */
    for (; !exact && v >= 1023.95 && unit + 1 < ARRAY_LEN(units); unit++)
        v /= 1024;
    if (exact)
        n = snprintf(out, SIZE_TEXT, "%llu", (unsigned long long)bytes);
    else
        n = snprintf(out, SIZE_TEXT, unit && v < 99.95 ? "%.1f %s" : "%.0f %s",
            v, units[unit]);
    CHECK(n > 0 && n < SIZE_TEXT, "%d characters for %llu bytes", n,
        (unsigned long long)bytes);
}
