/* guard.h - copies to and from memory whose pages another process may remove.
 * After a hole is punched into a mapped file, the system may have no new page
 * for it (above all huge pages), and the access raises SIGBUS. Any thread that
 * does not block SIGBUS. */
#ifndef MMX_BASE_GUARD_H
#define MMX_BASE_GUARD_H

#include "base/base.h"

#include <signal.h>
#include <sys/uio.h>

/* Catches SIGBUS that these copies cause; any other ends the process as before.
 * May be called several times, by any thread. */
void guard_install(void);
/* Sets a function that the handler calls for any other SIGBUS, before the
 * default action ends the process; NULL: none. */
void guard_pass_on(void (*handler)(int number, siginfo_t *info, void *context));

/* Calls f(ud), which must hold no resource while it touches such memory. False:
 * a page was missing, and f did not return. */
MUST_CHECK bool guard_call(void (*f)(void *ud), void *ud);
/* Copies as memcpy. False: a page of `to` or `from` is missing; part of `to`
 * may be written. */
MUST_CHECK bool guard_copy(void *to, const void *from, size_t n);
/* Copies n bytes to the places of `to`, which have as many at least. Returns as
 * guard_copy. */
MUST_CHECK bool guard_scatter(
    const struct iovec *to, const void *from, size_t n);
/* Copies as copy_rows does. Returns as guard_copy. */
MUST_CHECK bool guard_copy_rows(void *to, const void *from, size_t n);
/* Copies; missing pages of `from` read as zeros, as a hole in small pages does.
 * `to` is our own memory. False: pages were missing. */
bool guard_copy_zeros(void *to, const void *from, size_t n);
/* True if every page of `from` can be read. */
bool guard_readable(const void *from, size_t n);

/* Returns n zero bytes to read instead, valid until the process ends; NULL: n
 * exceeds GUARD_ZEROS, or no memory. */
#define GUARD_ZEROS ((size_t)16 * 1024 * 1024)
void *guard_zeros(size_t n);

#endif
