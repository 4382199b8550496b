/* slow.c - preloaded into an encode host to make its encoder slow, as a large
 * one is on a GPU or a host of its own: it sleeps SLOW_MS before each chunk,
 * and so takes no processor time from the language host. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mtmd.h>
#include <stdlib.h>
#include <unistd.h>

int32_t mtmd_encode_chunk(mtmd_context *ctx, const mtmd_input_chunk *chunk)
{
    __typeof__(&mtmd_encode_chunk) real = dlsym(RTLD_NEXT, "mtmd_encode_chunk");

    usleep((useconds_t)atoi(getenv("SLOW_MS")) * 1000);
    return real(ctx, chunk);
}
