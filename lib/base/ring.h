/* ring.h - bounded ring of fixed records with one producer and one consumer,
 * and a wake for the consumer: the only way from one thread to another. */
#ifndef MMX_BASE_RING_H
#define MMX_BASE_RING_H

#include "base/base.h"
#include "base/err.h"

struct ring {
    uint8_t *records;
    uint32_t mask, size;
    _Alignas(64) _Atomic uint32_t head; /* next to read; consumer writes */
    uint32_t tail_seen, first_seen;     /* consumer's copies */
    _Alignas(64) _Atomic uint32_t tail; /* next to write; producer writes */
    uint32_t head_seen;                 /* producer's copy of head */
    _Atomic uint32_t first; /* which lies at records[0]; producer writes */
};

/* Makes a ring of at least cap records of size bytes. NO_BLOCKS: no memory. */
MUST_CHECK enum err ring_init(struct ring *r, uint32_t cap, uint32_t size);
void ring_fini(struct ring *r);

/* Producer: copies one record in. False: full, nothing changed. */
bool ring_push(struct ring *r, const void *record);
/* Producer: returns how many records can be pushed now. */
uint32_t ring_space(struct ring *r);
/* Producer: true if n records can be pushed now. Cheaper than ring_space while
 * there is much room. */
bool ring_fits(struct ring *r, uint32_t n);
/* Consumer: copies one record out. False: empty. */
bool ring_pop(struct ring *r, void *record);
/* Consumer: true if there is nothing to read. */
bool ring_empty(struct ring *r);

/* Wakes a thread that sleeps in poll on fd. The sleeper calls wake_sleep,
 * checks its rings once more, and polls. wake_up makes a system call only while
 * it sleeps. */
struct wake {
    int fd; /* eventfd, non-blocking */
    _Atomic bool asleep;
};

MUST_CHECK enum err wake_init(struct wake *w);
void wake_fini(struct wake *w);
/* Any thread, after a push: wakes the sleeper. */
void wake_up(struct wake *w);
/* Sleeper: makes wake_up write to fd from now on. */
void wake_sleep(struct wake *w);
/* Sleeper: ends wake_sleep after another event than fd woke it. */
void wake_awake(struct wake *w);
/* Sleeper: ends wake_sleep and empties fd. */
void wake_clear(struct wake *w);

#endif
