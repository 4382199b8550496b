/* guard.h - copies out of and into memory that another process may take away:
 * a hole punched into a file that is mapped has no page any more when the
 * system has none to give, huge pages above all, and the access ends in
 * SIGBUS. Any thread that does not block SIGBUS. */
#ifndef MMX_BASE_GUARD_H
#define MMX_BASE_GUARD_H

#include "base/base.h"

/* Catches SIGBUS for the process, as far as it comes from these copies; any
 * other ends the process as before. Any number of calls, any thread. */
void guard_install(void);

/* Copies as memcpy. false: a page of one of them is not there; what was
 * written of `to` is not said. */
MUST_CHECK bool guard_copy(void *to, const void *from, size_t n);
/* The same as copy_rows. */
MUST_CHECK bool guard_copy_rows(void *to, const void *from, size_t n);
/* As guard_copy; what is not there of `from` reads as zeros, as a hole in small
 * pages does. `to` is ours. Returns false if there was any. */
bool guard_copy_zeros(void *to, const void *from, size_t n);
/* True if every page of it can be read. */
bool guard_readable(const void *from, size_t n);

/* Returns n zero bytes to read instead, for as long as the process lives; NULL:
 * more than GUARD_ZEROS, or no memory. */
#define GUARD_ZEROS ((size_t)16 * 1024 * 1024)
void *guard_zeros(size_t n);

#endif
