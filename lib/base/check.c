/* check.c - ends a process that found its own bug. Any thread. */
#include "base/check.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void (*state_printer)(void);

void check_set_printer(void (*printer)(void))
{
    state_printer = printer;
}

void check_failed(
    const char *file, int line, const char *expr, const char *fmt, ...)
{
    static __thread bool inside;
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_text("<2>%s:%d: check failed: %s: %s\n", file, line, expr, text);
    if (!inside && state_printer) {
        inside = true;
        state_printer();
    }
    abort();
}
