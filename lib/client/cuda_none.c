/* cuda_none.c - replaces cuda.c in a build without the CUDA toolkit's headers:
 * refuses pools on a GPU, so that the other calls are never made. Any thread.
 * Rejected: #ifdef in the callers. */
#include "client/client.h"

int client_gpu_map(mmx *m, struct client_reply *r)
{
    client_error(
        m, "pool %s: this libmmx was built without CUDA", r->pool.name);
    return -MMX_E_NOT_READY;
}

void client_gpu_unmap(const struct mmx_pool *p)
{
    (void)p;
}

int client_gpu_launch(int gpu, const struct window_piece *pieces,
    uint32_t count, void *stream, const char **why)
{
    (void)gpu;
    (void)pieces;
    (void)count;
    (void)stream;
    *why = "built without CUDA";
    return -MMX_E_INTERNAL;
}

int client_gpu_copy(int gpu, struct client_rows to, struct client_rows from,
    uint32_t rows, size_t row_bytes)
{
    (void)gpu;
    (void)to;
    (void)from;
    (void)rows;
    (void)row_bytes;
    return -MMX_E_INTERNAL;
}
