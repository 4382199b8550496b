/* ucx_memory.c - memory that UCX reads and writes in place: registered once per
 * context, for all its workers, and passed with every operation.
 *
 * A worker has a reference to each region that it was given, so it needs no
 * mutex to read the region. Invariants: the context reports whether UCX
 * supports GPUs, and each GPU memory is registered as a test, never assumed to
 * work. UCX's transports decide whether a network card then reaches it or UCX
 * copies it through the host. Every buffer is passed with its kind of memory,
 * so that nothing depends on UCX's detection.
 *
 * Rejected: deciding by UCX's version, or by its transports' names. */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/log.h"

_Static_assert(UCX_MEMORY_MAX <= 64, "a worker has a bit for each");

static bool gpus(const struct ucx_context *x)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};

    return !x->copies && ucp_context_query(x->h, &attr) == UCS_OK &&
           (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

static bool enrol(const struct ucx_context *x, struct ucx_memory *m)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)(uintptr_t)m->base,
        .length = m->bytes,
        .memory_type = m->gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST};
    ucs_status_t s = ucp_mem_map(x->h, &params, &m->handle);

    if (s == UCS_OK)
        return true;
    log_info("ucx: does not register %llu bytes%s: %s",
        (unsigned long long)m->bytes, m->gpu ? " of a GPU" : "",
        ucs_status_string(s));
    m->handle = NULL;
    return false;
}

/* Returns the entry of this memory, or a free one; NULL: none is free. */
static struct ucx_memory *place_of(
    struct ucx_context *x, const struct ucx_memory *m)
{
    struct ucx_memory *unused = NULL;

    for (uint32_t i = 0; i < UCX_MEMORY_MAX; i++) {
        struct ucx_memory *at = &x->memory[i];

        if (at->users == 0)
            unused = unused ? unused : at;
        else if (at->base == m->base && at->bytes == m->bytes &&
                 at->gpu == m->gpu)
            return at;
    }
    return unused;
}

bool ucx_memory_add(struct ucx *u, const void *base, uint64_t bytes, bool gpu)
{
    struct ucx_memory m = {.base = base, .bytes = bytes, .gpu = gpu};
    struct ucx_context *x = u->context;
    struct ucx_memory *at;
    bool known;

    if (!x || (gpu ? !gpus(x) : x->copies))
        return false;
    ucx_lock();
    at = place_of(x, &m);
    known = at && (at->users > 0 || enrol(x, &m));
    if (known && at->users == 0)
        *at = m;
    if (known && !(u->memory >> (at - x->memory) & 1)) {
        at->users++;
        u->memory |= UINT64_C(1) << (at - x->memory);
    }
    ucx_unlock();
    return known;
}

void ucx_memory_drop(struct ucx *u)
{
    if (u->memory == 0)
        return;
    ucx_lock();
    for (uint32_t i = 0; i < UCX_MEMORY_MAX; i++) {
        struct ucx_memory *m = &u->context->memory[i];

        if (!(u->memory >> i & 1))
            continue;
        CHECK(m->users > 0, "memory %u has no users", i);
        if (--m->users == 0)
            (void)ucp_mem_unmap(u->context->h, m->handle);
    }
    u->memory = 0;
    ucx_unlock();
}

void ucx_memory_param(const struct ucx *u, const void *buffer, uint64_t bytes,
    ucp_request_param_t *param)
{
    if (u->memory == 0)
        return;
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param->memory_type = UCS_MEMORY_TYPE_HOST;
    for (uint64_t left = u->memory; left; left &= left - 1) {
        const struct ucx_memory *m = &u->context->memory[__builtin_ctzll(left)];
        uint64_t at = (uintptr_t)buffer - (uintptr_t)m->base;

        if (at >= m->bytes || bytes > m->bytes - at)
            continue;
        if (m->gpu)
            param->memory_type = UCS_MEMORY_TYPE_CUDA;
        param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param->memh = m->handle;
        return;
    }
}

bool ucx_memory_gpu(const ucp_request_param_t *param)
{
    return (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) &&
           param->memory_type == UCS_MEMORY_TYPE_CUDA;
}
