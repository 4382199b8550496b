/* guard.c - see guard.h. A handler for SIGBUS jumps back into the copy in
 * progress on its thread.
 *
 * Invariant: while `inside` is set only the copy or the call runs, and holds no
 * resources, so that jumping out of it leaks nothing.
 *
 * Rejected: process_vm_readv or pread for such memory, which return errors but
 * cost a system call and page look-ups per copy; and to check before the copy,
 * since the page can go away in between. */
#include "base/guard.h"

#include "base/check.h"
#include "base/copy.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define PAGE 4096u /* no page is smaller */

static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t inside;
static void (*_Atomic others)(int number, siginfo_t *info, void *context);

/* Keeps the compiler from moving the copy's accesses out of the two calls. */
static inline void enter(void)
{
    CHECK(!inside, "a guarded copy inside of one");
    inside = 1;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    inside = 0;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    void (*pass_on)(int, siginfo_t *, void *) = atomic_load(&others);

    if (inside) {
        inside = 0;
        /* The jump skips the handler's return: restore the mask here. */
        pthread_sigmask(
            SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL);
        siglongjmp(back, 1);
    }
    /* The signal is not from our copies: the access is repeated, and ends the
     * process. */
    signal(number, SIG_DFL);
    if (pass_on)
        pass_on(number, info, context);
}

static void install(void)
{
    struct sigaction a = {.sa_sigaction = on_bus};

    a.sa_flags = SA_SIGINFO;
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}

void guard_pass_on(void (*handler)(int number, siginfo_t *info, void *context))
{
    atomic_store(&others, handler);
}

void guard_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install);
}

bool guard_call(void (*f)(void *ud), void *ud)
{
    if (sigsetjmp(back, 0) != 0)
        return false;
    enter();
    f(ud);
    leave();
    return true;
}

bool guard_copy(void *to, const void *from, size_t n)
{
    if (sigsetjmp(back, 0) != 0)
        return false;
    enter();
    memcpy(to, from, n);
    leave();
    return true;
}

bool guard_scatter(const struct iovec *to, const void *from, size_t n)
{
    const uint8_t *f = from;

    for (size_t part; n > 0; to++, f += part, n -= part) {
        part = to->iov_len < n ? to->iov_len : n;
        if (!guard_copy(to->iov_base, f, part))
            return false;
    }
    return true;
}

bool guard_copy_rows(void *to, const void *from, size_t n)
{
    if (sigsetjmp(back, 0) != 0)
        return false;
    enter();
    copy_rows(to, from, n);
    leave();
    return true;
}

static void touch(void *p)
{
    (void)*(volatile uint8_t *)p;
}

/* Returns the bytes to the end of p's page, at most n. */
static size_t page_left(const uint8_t *p, size_t n)
{
    size_t left = PAGE - (uintptr_t)p % PAGE;

    return left < n ? left : n;
}

bool guard_copy_zeros(void *to, const void *from, size_t n)
{
    const uint8_t *f = from;
    uint8_t *t = to;
    bool whole = true;

    if (guard_copy(to, from, n))
        return true;
    while (n > 0) {
        size_t part = page_left(f, n);

        if (!guard_copy(t, f, part)) {
            memset(t, 0, part);
            whole = false;
        }
        t += part;
        f += part;
        n -= part;
    }
    return whole;
}

static void *zeros;

static void zeros_map(void)
{
    void *p = mmap(NULL, GUARD_ZEROS, PROT_READ,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    zeros = p == MAP_FAILED ? NULL : p;
}

void *guard_zeros(size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, zeros_map);
    return n <= GUARD_ZEROS ? zeros : NULL;
}

bool guard_readable(const void *from, size_t n)
{
    uint8_t *f = (uint8_t *)(uintptr_t)from;

    while (n > 0) {
        size_t part = page_left(f, n);

        if (!guard_call(touch, f))
            return false;
        f += part;
        n -= part;
    }
    return true;
}
