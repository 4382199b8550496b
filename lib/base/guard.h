/* guard.h - copies out of and into memory that another process may take away:
 * a hole punched into a file that is mapped has no page any more when the
 * system has none to give, huge pages above all, and the access ends in
 * SIGBUS. Any thread that does not block SIGBUS. */
#ifndef MMX_BASE_GUARD_H
#define MMX_BASE_GUARD_H

#include "base/base.h"

#include <signal.h>

/* Catches SIGBUS for the process, as far as it comes from these copies; any
 * other ends the process as before. Any number of calls, any thread. */
void guard_install(void);
/* Sets what is called for any other, in the handler, before the default action
 * ends the process; NULL: nothing. */
void guard_pass_on(void (*handler)(int number, siginfo_t *info, void *context));

/* Copies as memcpy. False: a page of either is missing; part of `to` may be
 * written. */
MUST_CHECK bool guard_copy(void *to, const void *from, size_t n);
/* Copies as copy_rows, with the same result. */
MUST_CHECK bool guard_copy_rows(void *to, const void *from, size_t n);
/* Copies; missing pages of `from` read as zeros, as a hole in small pages does.
 * `to` is our own memory. False: there were some. */
bool guard_copy_zeros(void *to, const void *from, size_t n);
/* True if every page of `from` can be read. */
bool guard_readable(const void *from, size_t n);

/* Returns n zero bytes to read instead, for as long as the process lives; NULL:
 * more than GUARD_ZEROS, or no memory. */
#define GUARD_ZEROS ((size_t)16 * 1024 * 1024)
void *guard_zeros(size_t n);

#endif
