/* cuda_api_test.c - lib/gpu/cuda.def against the cuda.h of an installed CUDA
 * toolkit: sizes, offsets, values, and the parameters of each symbol. Here the
 * names of its rows are those of cuda.h alone. */
#include "test/t.h"

/* Declares every symbol under its own name. */
#define __CUDA_API_VERSION_INTERNAL
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

/* The first toolkit with all rows. */
#if defined(CUDA_VERSION) && CUDA_VERSION >= 13000
#include <stddef.h>

static void same(const char *what, long long ours, long long theirs)
{
    T_CHECK(ours == theirs, "%s: %lld in cuda.def, %lld in cuda.h", what, ours,
        theirs);
}

TEST(types)
{
#define TYPE(name, bytes, ...) same(#name, bytes, sizeof(name));
#define AT(type, member, offset)                                               \
    same(#type "." #member, offset, offsetof(type, member));
#include "gpu/cuda.def"
}

TEST(values)
{
#define VALUE(name, number) same(#name, number, name);
#include "gpu/cuda.def"
}

TEST(calls)
{
#define IS(symbol, parameters)                                                 \
    T_CHECK(__builtin_types_compatible_p(                                      \
                __typeof__(&(symbol)), CUresult(*) parameters),                \
        "%s has other parameters in cuda.h", #symbol);
#define CALL(name, version, parameters)  IS(name##version, parameters)
#define BATCH(name, version, parameters) IS(name##version, parameters)
#include "gpu/cuda.def"
}
#else
TEST(types_values_and_calls)
{
    t_skip("no cuda.h of CUDA 13.0 or later");
}
#endif
