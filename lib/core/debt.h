/* debt.h - messages that a peer is owed: sent at once, then repeated with
 * growing pauses until answered. The role defines the bits. Pure; one thread.
 */
#ifndef MMX_CORE_DEBT_H
#define MMX_CORE_DEBT_H

#include "base/base.h"

#define RETRY_MAX_NS (2 * NS_PER_S)

struct debt {
    uint8_t owe;         /* OWE_ bits; 0: no debt */
    uint64_t retry_ns;   /* when it is sent next; 0: at once, the first time */
    uint64_t backoff_ns; /* the last pause */
};

/* Owes a message, to be sent at once. */
static inline void debt_owe(struct debt *d, unsigned what)
{
    d->owe |= (uint8_t)what;
    d->retry_ns = 0;
}

static inline void debt_paid(struct debt *d, unsigned what)
{
    d->owe &= (uint8_t)~what;
}

/* Makes all debts due as if for the first time, after a HELLO. */
static inline void debt_renew(struct debt *d)
{
    d->retry_ns = d->owe ? 0 : TIME_NEVER;
}

/* Returns when the debt is due; TIME_NEVER: only after an event. */
static inline uint64_t debt_deadline(const struct debt *d)
{
    return d->owe ? d->retry_ns : TIME_NEVER;
}

/* Returns how long an answer may wait for a message that says more. The other
 * end's debt is open meanwhile; it repeats its message after first_ns. */
static inline uint64_t debt_answer_ns(uint64_t first_ns)
{
    return min_u64(first_ns / 2, 50 * NS_PER_MS);
}

/* True if the debt is due now; sets the next time, first_ns after the first.
 * again: it was sent before. */
static inline bool debt_due(
    struct debt *d, uint64_t now_ns, uint64_t first_ns, bool *again)
{
    if (d->retry_ns > now_ns)
        return false;
    *again = d->retry_ns != 0;
    d->backoff_ns =
        *again ? min_u64(2 * d->backoff_ns, RETRY_MAX_NS) : first_ns;
    d->retry_ns = now_ns + d->backoff_ns;
    return true;
}

#endif
