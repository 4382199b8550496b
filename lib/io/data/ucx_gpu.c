/* ucx_gpu.c - memory of GPUs that UCX reads and writes itself, where the UCX
 * found at run time can.
 *
 * Belongs to a data_ucx and its thread. Invariants: the context reports whether
 * UCX supports GPUs, and each memory is registered as a test, never assumed to
 * work; whether a network card then reaches it, or UCX copies it through the
 * host, depends on UCX's transports. Every buffer is passed with its kind of
 * memory, so that nothing depends on UCX's detection. After a worker was
 * replaced everything is registered again; a region that is refused then is
 * left to UCX to register by itself.
 *
 * Rejected: asking by the version of UCX, or by its transports' names. */
#include "io/data/ucx.h"

#include "base/log.h"

static bool known(const struct ucx *u)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};

    return !u->host_only && ucp_context_query(u->context, &attr) == UCS_OK &&
           (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

static bool enrol(const struct ucx *u, struct ucx_memory *m)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)(uintptr_t)m->base,
        .length = m->bytes,
        .memory_type = UCS_MEMORY_TYPE_CUDA};
    ucs_status_t s = ucp_mem_map(u->context, &params, &m->handle);

    if (s == UCS_OK)
        return true;
    log_info(
        "ucx: does not register memory of a GPU: %s", ucs_status_string(s));
    m->handle = NULL;
    return false;
}

bool ucx_memory_add(struct ucx *u, const void *base, uint64_t bytes)
{
    struct ucx_memory m = {.base = base, .bytes = bytes};

    if (!u->context || !known(u) || u->memory_count == UCX_MEMORY_MAX ||
        !enrol(u, &m))
        return false;
    u->memory[u->memory_count++] = m;
    return true;
}

void ucx_memory_open(struct ucx *u)
{
    for (uint32_t i = 0; i < u->memory_count; i++)
        (void)enrol(u, &u->memory[i]);
}

void ucx_memory_close(struct ucx *u)
{
    for (uint32_t i = 0; i < u->memory_count; i++) {
        if (u->memory[i].handle)
            (void)ucp_mem_unmap(u->context, u->memory[i].handle);
        u->memory[i].handle = NULL;
    }
}

void ucx_memory_param(
    const struct ucx *u, const void *buffer, ucp_request_param_t *param)
{
    if (u->memory_count == 0)
        return;
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param->memory_type = UCS_MEMORY_TYPE_HOST;
    for (uint32_t i = 0; i < u->memory_count; i++) {
        const struct ucx_memory *m = &u->memory[i];

        if ((uintptr_t)buffer - (uintptr_t)m->base >= m->bytes)
            continue;
        param->memory_type = UCS_MEMORY_TYPE_CUDA;
        if (m->handle) {
            param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
            param->memh = m->handle;
        }
        return;
    }
}

bool ucx_memory_gpu(const ucp_request_param_t *param)
{
    return (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) &&
           param->memory_type == UCS_MEMORY_TYPE_CUDA;
}
