// rows.cu - rows of a room's blocks to where a window's plan wants them, on
// the GPU that has both: the engine's inputs_embeds at mask positions, or the
// other way round. The same pieces that client/window_run.c copies on a CPU
// (struct window_piece), so that one can be held against the other.
//
// Pieces are parameters, by value: nothing in memory that a later step could
// write while an earlier one still runs. A block of threads takes rows of one
// piece in turn; a row goes as 16-byte words where both ends allow it.
//
// mmx_copies is for the daemons: many small copies as one launch, where the
// driver has no call for it (struct copies of io/mem/cuda_gather.c).
//
// It lies outside of the C layers: it includes none of them and none links it.
// It is loaded as data (driver.c, mmx/kernels.py).
// Rejected: one thread per element with a search for its piece, which does
// more arithmetic than copying; copy engines, whose cost per piece is that of
// 10 to 40 KB.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define PIECES_MAX 64

struct piece {
    const char *from;
    char *to;
    uint64_t from_stride, to_stride; // bytes from row to row
    uint32_t rows, elements;
};

struct pieces {
    uint32_t count, row_bytes; // of `from`
    struct piece of[PIECES_MAX];
};

static_assert(sizeof(struct pieces) <= 4096, "more than parameters may be");

template <typename word>
__device__ void copy_row(char *to, const char *from, uint32_t bytes)
{
    const word *a = reinterpret_cast<const word *>(from);
    word *b = reinterpret_cast<word *>(to);

    for (uint32_t i = threadIdx.x; i < bytes / sizeof(word); i += blockDim.x)
        b[i] = a[i];
}

extern "C" __global__ void mmx_rows(const __grid_constant__ struct pieces p)
{
    const struct piece &me = p.of[blockIdx.y];
    uint64_t any = reinterpret_cast<uint64_t>(me.from) |
                   reinterpret_cast<uint64_t>(me.to) | me.from_stride |
                   me.to_stride | p.row_bytes;

    for (uint32_t row = blockIdx.x; row < me.rows; row += gridDim.x) {
        const char *from = me.from + row * me.from_stride;
        char *to = me.to + row * me.to_stride;

        if (any % 16 == 0)
            copy_row<uint4>(to, from, p.row_bytes);
        else if (any % 4 == 0)
            copy_row<uint32_t>(to, from, p.row_bytes);
        else
            copy_row<char>(to, from, p.row_bytes);
    }
}

template <typename half, float (*widen)(half)>
__device__ void widen_rows(const struct pieces &p)
{
    const struct piece &me = p.of[blockIdx.y];

    for (uint32_t row = blockIdx.x; row < me.rows; row += gridDim.x) {
        const half *a =
            reinterpret_cast<const half *>(me.from + row * me.from_stride);
        float *b = reinterpret_cast<float *>(me.to + row * me.to_stride);

        for (uint32_t i = threadIdx.x; i < me.elements; i += blockDim.x)
            b[i] = widen(a[i]);
    }
}

__device__ float from_bf16(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ float from_f16(__half x)
{
    return __half2float(x);
}

// Rows of bf16 or f16 to rows of f32.
extern "C" __global__ void mmx_rows_bf16_f32(
    const __grid_constant__ struct pieces p)
{
    widen_rows<__nv_bfloat16, from_bf16>(p);
}

extern "C" __global__ void mmx_rows_f16_f32(
    const __grid_constant__ struct pieces p)
{
    widen_rows<__half, from_f16>(p);
}

#define COPIES_MAX 128

struct copies {
    uint32_t count, unused;
    struct {
        const char *from;
        char *to;
        uint64_t bytes;
    } of[COPIES_MAX];
};

static_assert(sizeof(struct copies) <= 4096, "more than parameters may be");

// All blocks of one y take their part of one copy.
template <typename word>
__device__ void copy_part(char *to, const char *from, uint64_t bytes)
{
    const word *a = reinterpret_cast<const word *>(from);
    word *b = reinterpret_cast<word *>(to);
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;

    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
         i < bytes / sizeof(word); i += step)
        b[i] = a[i];
}

extern "C" __global__ void mmx_copies(const __grid_constant__ struct copies p)
{
    const auto &me = p.of[blockIdx.y];
    uint64_t any = reinterpret_cast<uint64_t>(me.from) |
                   reinterpret_cast<uint64_t>(me.to) | me.bytes;

    if (any % 16 == 0)
        copy_part<uint4>(me.to, me.from, me.bytes);
    else if (any % 4 == 0)
        copy_part<uint32_t>(me.to, me.from, me.bytes);
    else
        copy_part<char>(me.to, me.from, me.bytes);
}
