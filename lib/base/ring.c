/* ring.c - see ring.h. Memory order matters: a record is written before tail is
 * (release) and read after tail was read (acquire); it is read before head is
 * written (release), and its place is written anew after head was read
 * (acquire). Full fences on both sides order the sleeper's flag and the ring's
 * tail, so that the producer sees the flag or the sleeper sees the record.
 * test/models/order.pml fails without any of these.
 *
 * A ring that is empty and has passed its first RING_WARM bytes starts again at
 * its beginning. So a large ring, made for the worst case, passes no more than
 * that through the cache. `first` changes only then, and is published by the
 * tail behind it.
 *
 * Rejected: a mutex and condition variable. They cannot be polled with
 * sockets. */
#include "base/ring.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_WARM (256u << 10)

enum err ring_init(struct ring *r, uint32_t cap, uint32_t size)
{
    uint32_t n = 2;

    CHECK(cap <= 1u << 30 && size > 0, "%u records of %u bytes", cap, size);
    while (n < cap)
        n *= 2;
    memset(r, 0, sizeof(*r));
    r->records = calloc(n, size);
    if (!r->records)
        return ERR_NO_BLOCKS;
    r->mask = n - 1;
    r->size = size;
    return OK;
}

void ring_fini(struct ring *r)
{
    free(r->records);
    r->records = NULL;
}

uint32_t ring_space(struct ring *r)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);

    /* ring_pop() releases it. */
    r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire);
    CHECK(tail - r->head_seen <= r->mask + 1, "%u records in a ring of %u",
        tail - r->head_seen, r->mask + 1);
    return r->mask + 1 - (tail - r->head_seen);
}

bool ring_fits(struct ring *r, uint32_t n)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);

    return r->mask + 1 - (tail - r->head_seen) >= n || ring_space(r) >= n;
}

/* Returns the place of the i-th record since `first`. */
static void *place(const struct ring *r, uint32_t i)
{
    return r->records + (size_t)(i & r->mask) * r->size;
}

bool ring_push(struct ring *r, const void *record)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint32_t first = atomic_load_explicit(&r->first, memory_order_relaxed);

    if (!ring_fits(r, 1))
        return false;
    if ((size_t)(tail - first) * r->size >= RING_WARM &&
        ring_space(r) == r->mask + 1) {
        first = tail;
        atomic_store_explicit(&r->first, first, memory_order_relaxed);
    }
    memcpy(place(r, tail - first), record, r->size);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return true;
}

bool ring_empty(struct ring *r)
{
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

    if (head == r->tail_seen) {
        /* ring_push() releases it, and first with it. */
        r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
        r->first_seen = atomic_load_explicit(&r->first, memory_order_relaxed);
    }
    return head == r->tail_seen;
}

bool ring_pop(struct ring *r, void *record)
{
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

    if (ring_empty(r))
        return false;
    memcpy(record, place(r, head - r->first_seen), r->size);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

enum err wake_init(struct wake *w)
{
    atomic_init(&w->asleep, false);
    w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (w->fd >= 0)
        return OK;
    log_error("eventfd: %s", strerror(errno));
    return ERR_INTERNAL;
}

void wake_fini(struct wake *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

void wake_up(struct wake *w)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&w->asleep, memory_order_relaxed) &&
        atomic_exchange_explicit(&w->asleep, false, memory_order_acq_rel)) {
        uint64_t one = 1;
        ssize_t n = write(w->fd, &one, sizeof(one));

        (void)n; /* EAGAIN: the counter is full, so fd is readable */
    }
}

void wake_sleep(struct wake *w)
{
    atomic_store_explicit(&w->asleep, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void wake_awake(struct wake *w)
{
    atomic_store_explicit(&w->asleep, false, memory_order_relaxed);
}

void wake_clear(struct wake *w)
{
    uint64_t n;
    ssize_t r;

    wake_awake(w);
    r = read(w->fd, &n, sizeof(n));
    (void)r; /* EAGAIN: no thread wrote */
}
