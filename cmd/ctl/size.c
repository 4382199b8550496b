/* size.c - sizes and times for people: about three digits and a unit (sizes in
 * units of 1,024); moments of the daemons' clock as time of day. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <time.h>

void size_text(uint64_t bytes, char out[SIZE_TEXT])
{
    static const char units[][4] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t unit = 0;
    int n;

    /* 1023.95 would print as 1024.0. */
    for (; v >= 1023.95 && unit + 1 < ARRAY_LEN(units); unit++)
        v /= 1024;
    n = snprintf(out, SIZE_TEXT, unit && v < 99.95 ? "%.1f %s" : "%.0f %s", v,
        units[unit]);
    CHECK(n > 0 && n < SIZE_TEXT, "%d characters for %llu bytes", n,
        (unsigned long long)bytes);
}

void age_text(uint64_t ns, char out[AGE_TEXT])
{
    static const struct {
        uint64_t ns;
        char name[4];
    } units[] = {{1000, "us"}, {NS_PER_MS, "ms"}, {NS_PER_S, "s"}};
    unsigned long long s = ns / NS_PER_S;
    size_t unit = 0;
    double v;

    while (unit + 1 < ARRAY_LEN(units) && ns >= units[unit + 1].ns)
        unit++;
    v = (double)ns / (double)units[unit].ns;
    if (ns == 0)
        snprintf(out, AGE_TEXT, "0");
    else if (s < 60)
        snprintf(out, AGE_TEXT, unit > 0 && v < 99.95 ? "%.1f %s" : "%.0f %s",
            v, units[unit].name);
    else if (s < 3600)
        snprintf(out, AGE_TEXT, "%llum %02llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, AGE_TEXT, "%lluh %02llum", s / 3600, s / 60 % 60);
    else
        snprintf(out, AGE_TEXT, "%llud %02lluh", s / 86400, s / 3600 % 24);
}

void clock_text(uint64_t ns, bool whole, char out[CLOCK_TEXT])
{
    uint64_t now_ns = clock_ns();
    struct timespec t;
    struct tm day;
    char text[CLOCK_TEXT];

    clock_gettime(CLOCK_REALTIME, &t);
    ns = (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec + ns - now_ns;
    t.tv_sec = (time_t)(ns / NS_PER_S);
    if (whole)
        gmtime_r(&t.tv_sec, &day);
    else
        localtime_r(&t.tv_sec, &day);
    CHECK(strftime(text, sizeof(text), whole ? "%FT%T" : "%T", &day) > 0,
        "no text for %llu s", (unsigned long long)t.tv_sec);
    snprintf(out, CLOCK_TEXT, whole ? "%.19s.%03uZ" : "%.8s.%03u", text,
        (unsigned)(ns % NS_PER_S / NS_PER_MS));
}
