/* cuda.h - GPUs through the CUDA driver, which is looked for at run time: one
 * binary serves hosts with and without a GPU. Knows addresses, copies and
 * marks; nothing of pools or rooms. In a build without the toolkit's headers
 * (make CUDA=0) every cuda_open fails with a line that says so. */
#ifndef MMX_IO_CUDA_H
#define MMX_IO_CUDA_H

#include "base/err.h"

#define CUDA_GPUS_MAX 16
#define CUDA_TEXT_MAX 128

/* An address of GPU memory, or of host memory that the driver pinned: copies
 * take either, in any direction. */
typedef unsigned long long cuda_address;

struct cuda;      /* one GPU of this process */
struct cuda_lane; /* copies in order on one GPU; owned by one thread */

/* GPU number `device` as the driver counts them. Counted: one object per GPU
 * and process. Any thread; ERR_INTERNAL after a line that begins with who. */
MUST_CHECK enum err cuda_open(
    struct cuda **out, const char *who, uint32_t device);
/* One user more, who closes it too; c. */
struct cuda *cuda_hold(struct cuda *c);
/* Accepts NULL. All memory and lanes of it are closed before the last one. */
void cuda_close(struct cuda **c);

/* Makes it this thread's current GPU, for good: for libraries that look at what
 * is current. */
void cuda_stay(struct cuda *c);
/* NULL, or why nothing works on this GPU any more: an error that the driver
 * keeps giving once it was given. Any thread; valid until cuda_close. */
const char *cuda_lost(const struct cuda *c);

/* Can this GPU's memory be written by others than its driver, a network card?
 * Then cuda_settle, before anybody is told: what was written is seen by what
 * GPUs do from then on. ERR_INTERNAL: lost. */
bool cuda_settles(const struct cuda *c);
MUST_CHECK enum err cuda_settle(struct cuda *c);

/* Host memory that this and every other GPU reaches without the driver's own
 * staging. NULL: none was to be had; logged. */
void *cuda_pinned(struct cuda *c, size_t bytes);
void cuda_unpin(struct cuda *c, void *p);

/* woken(ud) is called on a thread of the driver when a mark was reached; it
 * must not call cuda_*. */
MUST_CHECK enum err cuda_lane_open(struct cuda_lane **out, struct cuda *c,
    uint32_t marks, void (*woken)(void *ud), void *ud);
/* Waits for what was submitted. Accepts NULL. */
void cuda_lane_close(struct cuda_lane **l);

struct cuda_batch {
    cuda_address *to, *from;
    size_t *bytes;
    uint32_t count;
    bool pageable; /* some of it is host memory that nobody pinned */
};
/* Submits n copies, which may run side by side, and then mark number `mark`,
 * which is reached when all of the lane so far is done. Nothing is waited
 * for. An error is an error of the GPU: see cuda_lost. */
MUST_CHECK enum err cuda_lane_submit(
    struct cuda_lane *l, const struct cuda_batch *b, uint32_t mark);
/* OK: reached; ERR_BUSY: not yet; ERR_INTERNAL: it never will be. */
MUST_CHECK enum err cuda_lane_look(struct cuda_lane *l, uint32_t mark);
/* The same, after waiting for this one mark. */
MUST_CHECK enum err cuda_lane_wait(struct cuda_lane *l, uint32_t mark);

#endif
