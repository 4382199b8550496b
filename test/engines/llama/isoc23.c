/* isoc23.c - the C23 names of functions that glibc has since 2.38, for the
 * prebuilt llama.cpp on an older one. They differ from the old ones by binary
 * numbers, 0b101, which no model file has. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

long __isoc23_strtol(const char *s, char **end, int base);
unsigned long __isoc23_strtoul(const char *s, char **end, int base);
long long __isoc23_strtoll(const char *s, char **end, int base);
unsigned long long __isoc23_strtoull(const char *s, char **end, int base);
int __isoc23_sscanf(const char *s, const char *format, ...);

long __isoc23_strtol(const char *s, char **end, int base)
{
    return strtol(s, end, base);
}

unsigned long __isoc23_strtoul(const char *s, char **end, int base)
{
    return strtoul(s, end, base);
}

long long __isoc23_strtoll(const char *s, char **end, int base)
{
    return strtoll(s, end, base);
}

unsigned long long __isoc23_strtoull(const char *s, char **end, int base)
{
    return strtoull(s, end, base);
}

int __isoc23_sscanf(const char *s, const char *format, ...)
{
    va_list ap;
    int n;

    va_start(ap, format);
    n = vsscanf(s, format, ap);
    va_end(ap);
    return n;
}
