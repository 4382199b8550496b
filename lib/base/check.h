/* check.h - asserts for our own bugs. Always on. Input from outside is never
 * CHECKed: it is validated and refused with a reason. */
#ifndef MMX_BASE_CHECK_H
#define MMX_BASE_CHECK_H

#include "base/base.h"

/* Prints file, line, expression and the formatted values to stderr, calls the
 * printer of check_set_printer (once), and aborts. */
NORETURN void check_failed(const char *file, int line, const char *expr,
    const char *fmt, ...) PRINTF_LIKE(4, 5);

/* Sets a printer of the process's state for crash reports; NULL for none. It
 * must not allocate. Called at most once, on the failing thread. */
void check_set_printer(void (*printer)(void));

#define CHECK(expr, ...)                                                       \
    ((expr) ? (void)0 : check_failed(__FILE__, __LINE__, #expr, __VA_ARGS__))

#endif
