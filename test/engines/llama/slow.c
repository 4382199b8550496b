/* slow.c - preloaded by an encode host whose encoder is to take its time, as a
 * large one does on a GPU or a host of its own: before each chunk it sleeps
 * SLOW_MS, and so takes no processor from the language host. */
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
