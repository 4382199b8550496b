/* cuda.h - GPUs through the CUDA driver, which is loaded at run time: one
 * binary serves hosts with and without a GPU. Knows addresses, copies and
 * marks; nothing of pools or rooms. */
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

/* Opens GPU number `device`, as the driver counts them; one counted object per
 * GPU and process. Any thread. ERR_INTERNAL with a log line that begins with
 * `user`. */
MUST_CHECK enum err cuda_open(
    struct cuda **out, const char *user, uint32_t device);
/* Returns why there is no such GPU (static), without opening it; NULL: there
 * is. */
const char *cuda_lacks(uint32_t device);
/* Adds a user, who must call cuda_close once; returns c. */
struct cuda *cuda_hold(struct cuda *c);
/* Removes a user; the last one closes the GPU, after all its memory and lanes.
 * Accepts NULL. */
void cuda_close(struct cuda **c);

/* Makes the GPU current on this thread, for libraries that rely on that. */
void cuda_stay(struct cuda *c);
/* Returns why the GPU is lost, an error that the driver repeats for every later
 * call; NULL: it works. Any thread; valid until cuda_close. */
const char *cuda_lost(const struct cuda *c);

/* True if network cards may write this GPU's memory without the driver:
 * cuda_settle makes their writes visible. */
bool cuda_settles(const struct cuda *c);
/* Makes earlier writes of network cards visible to later work of GPUs.
 * ERR_INTERNAL: lost. */
MUST_CHECK enum err cuda_settle(struct cuda *c);

/* Returns host memory that all GPUs access without the driver's own staging.
 * NULL: none could be pinned; logged. */
void *cuda_pinned(struct cuda *c, size_t bytes);
/* Frees memory of cuda_pinned(). */
void cuda_unpin(struct cuda *c, void *p);

/* Opens a lane with `marks` marks. woken(ud) is called on a thread of the
 * driver after a mark was reached; it must not call cuda_*. */
MUST_CHECK enum err cuda_lane_open(struct cuda_lane **out, struct cuda *c,
    uint32_t marks, void (*woken)(void *ud), void *ud);
/* Waits for all submitted copies. Accepts NULL. */
void cuda_lane_close(struct cuda_lane **l);

struct cuda_batch {
    cuda_address *to, *from;
    size_t *bytes;
    uint32_t count;
};
/* Submits the batch's copies, which may run in parallel, and then mark number
 * `mark`, which is reached when everything submitted to the lane is done. Never
 * waits. An error is an error of the GPU: see cuda_lost. */
MUST_CHECK enum err cuda_lane_submit(
    struct cuda_lane *l, const struct cuda_batch *b, uint32_t mark);
/* Returns OK: the mark was reached; ERR_BUSY: not yet; ERR_INTERNAL: it never
 * will be. */
MUST_CHECK enum err cuda_lane_look(struct cuda_lane *l, uint32_t mark);
/* Waits for the mark, then returns as cuda_lane_look. */
MUST_CHECK enum err cuda_lane_wait(struct cuda_lane *l, uint32_t mark);

#endif
