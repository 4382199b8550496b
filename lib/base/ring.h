/* ring.h - bounded single-producer single-consumer ring of fixed records and
 * the wake that goes with it: the only way from one thread to another. */
#ifndef MMX_BASE_RING_H
#define MMX_BASE_RING_H

#include "base/base.h"
#include "base/err.h"

struct ring {
    uint8_t *records;
    uint32_t mask, size;
    _Alignas(64) _Atomic uint32_t head; /* next to read; consumer writes */
    uint32_t tail_seen;                 /* consumer's copy of tail */
    _Alignas(64) _Atomic uint32_t tail; /* next to write; producer writes */
    uint32_t head_seen;                 /* producer's copy of head */
};

/* At least cap records of size bytes. NO_BLOCKS when out of memory. */
MUST_CHECK enum err ring_init(struct ring *r, uint32_t cap, uint32_t size);
void ring_fini(struct ring *r);

/* Producer: copies one record in. false: full, nothing changed. */
bool ring_push(struct ring *r, const void *record);
/* Producer: records that can be pushed now. */
uint32_t ring_space(struct ring *r);
/* Consumer: copies one record out. false: empty. */
bool ring_pop(struct ring *r, void *record);
/* Consumer: is there nothing to read? */
bool ring_empty(struct ring *r);

/* A thread that sleeps in poll on fd, and those who wake it. The sleeper says
 * wake_sleep before it polls and looks at its rings once more; wake_up costs
 * a system call only while somebody sleeps. */
struct wake {
    int fd; /* eventfd, non-blocking */
    _Atomic bool asleep;
};

MUST_CHECK enum err wake_init(struct wake *w);
void wake_fini(struct wake *w);
/* Any thread: after pushing. */
void wake_up(struct wake *w);
/* Sleeper: from now on wake_up writes; look at the rings again after it. */
void wake_sleep(struct wake *w);
/* Sleeper: awake again, by something else than fd. */
void wake_awake(struct wake *w);
/* Sleeper: awake again; empties fd. */
void wake_clear(struct wake *w);

#endif
