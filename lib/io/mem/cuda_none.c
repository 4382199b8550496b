/* cuda_none.c - in place of cuda.c and mem_cuda.c in a build without the CUDA
 * toolkit's headers. Opening a GPU or a GPU's pool logs that and fails; since
 * none can be opened, every other call is our own bug. Stateless, any thread.
 * Rejected: #ifdef in the callers. They need not know the build. */
#include "io/cuda.h"

#include "base/check.h"
#include "base/log.h"
#include "io/mem.h"

#define UNREACHED() check_failed(__FILE__, __LINE__, "cuda", "no GPU here")

enum err cuda_open(struct cuda **out, const char *user, uint32_t device)
{
    (void)out;
    log_error("%s: cuda:%u: %s", user, device, cuda_lacks(device));
    return ERR_INTERNAL;
}

const char *cuda_lacks(uint32_t device)
{
    (void)device;
    return "this mmx was built without CUDA";
}

struct cuda *cuda_hold(struct cuda *c)
{
    (void)c;
    UNREACHED();
}

void cuda_close(struct cuda **c)
{
    CHECK(*c == NULL, "no GPU here");
}

const char *cuda_lost(const struct cuda *c)
{
    (void)c;
    UNREACHED();
}

void cuda_stay(struct cuda *c)
{
    (void)c;
    UNREACHED();
}

bool cuda_settles(const struct cuda *c)
{
    (void)c;
    UNREACHED();
}

enum err cuda_settle(struct cuda *c)
{
    (void)c;
    UNREACHED();
}

void *cuda_pinned(struct cuda *c, size_t bytes)
{
    (void)c;
    (void)bytes;
    UNREACHED();
}

void cuda_unpin(struct cuda *c, void *p)
{
    (void)c;
    (void)p;
    UNREACHED();
}

enum err cuda_lane_open(struct cuda_lane **out, struct cuda *c, uint32_t marks,
    void (*woken)(void *ud), void *ud)
{
    (void)out;
    (void)c;
    (void)marks;
    (void)woken;
    (void)ud;
    UNREACHED();
}

void cuda_lane_close(struct cuda_lane **l)
{
    CHECK(*l == NULL, "no GPU here");
}

enum err cuda_lane_submit(
    struct cuda_lane *l, const struct cuda_batch *b, uint32_t mark)
{
    (void)l;
    (void)b;
    (void)mark;
    UNREACHED();
}

enum err cuda_lane_look(struct cuda_lane *l, uint32_t mark)
{
    (void)l;
    (void)mark;
    UNREACHED();
}

enum err cuda_lane_wait(struct cuda_lane *l, uint32_t mark)
{
    (void)l;
    (void)mark;
    UNREACHED();
}

/* mem.h */

static uint64_t none_page(const struct mem_opt *opt)
{
    (void)opt;
    return 4096;
}

static enum err none_open(struct mem *m, const struct mem_opt *opt)
{
    (void)m;
    log_error("pool %s: memory %s: this mmx was built without CUDA", opt->name,
        opt->kind);
    return ERR_INTERNAL;
}

static void none_close(struct mem *m)
{
    (void)m;
    UNREACHED();
}

const struct mem_ops mem_cuda = {
    .name = "cuda", .page = none_page, .open = none_open, .close = none_close};

enum err mem_cuda_import(struct mem *out, const struct mem_import *from)
{
    (void)out;
    log_error("pool %s: this mmx was built without CUDA", from->name);
    return ERR_INTERNAL;
}
