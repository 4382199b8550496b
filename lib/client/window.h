/* window.h - plans a scheduler's window of a prompt, and copies the rows of a
 * plan into the engine's tensor: mmx_plan, mmx_plan_run and mmx_plan_check
 * without a handle. The structs are those of mmx.h.
 *
 * A plan describes one step, is never changed once it is made, and lies in the
 * caller's memory, so that it stays valid while the next step is planned and
 * run. Positions count in the prompt, rows in a room. Pure; any thread;
 * functions share nothing but their arguments. */
#ifndef MMX_CLIENT_WINDOW_H
#define MMX_CLIENT_WINDOW_H

#include "base/base.h"
#include "base/err.h"
#include "client/mmx.h"

#undef NDEBUG
#include <assert.h>

/* Packs n bytes, zero or not, into bits; writes (n + 63) / 64 words. */
void window_pack(const uint8_t *bytes, uint32_t n, uint64_t *words);
/* Counts the ones among the first n bits. */
uint32_t window_ones(const uint64_t *words, uint32_t n);

/* Computes a size of mem that suffices for the plan. */
MUST_CHECK enum err window_bytes(const struct mmx_window *w,
    const struct mmx_placeholder *p, uint32_t n, size_t *out, uint32_t *at);

/* Makes the plan in mem, which is aligned to 8 and belongs to the plan. On
 * failure mem's bytes are undefined and *at is the index of the wrong
 * placeholder, or n:
 *   MALFORMED  a number is out of range, two spans claim one position, or
 *              computed lies inside an indivisible span: begin at its offset
 *   INCOMPATIBLE_LAYOUT  rows of another width than the window's
 *   TOO_LARGE  the indivisible span at the window's start is longer than it
 *   NOT_READY  an absent item has rows in the window
 *   NO_BLOCKS  mem is too small
 * An absent item, or one that is indivisible and would be cut, is left out if
 * only the draft model's shift has brought it into the window. */
MUST_CHECK enum err window_plan(const struct mmx_window *w,
    const struct mmx_placeholder *p, uint32_t n, void *mem, size_t mem_bytes,
    const struct mmx_plan **out, uint32_t *at);

/* running a plan */

/* Blocks that are adjacent in memory. */
struct window_blocks {
    uint32_t block, blocks;
};

/* One field of a room, and where it lies in its pool. */
struct window_source {
    const uint8_t *base; /* row 0 of block 0 */
    uint32_t block_rows, row_bytes, elements;
    char dtype[8];
    uint32_t first; /* first row of the first run */
    const struct window_blocks *runs;
    uint32_t runs_count;
    uint32_t released; /* rows below were released */
    uint32_t readable; /* rows below may be read */
    uint32_t total;    /* or ROWS_UNKNOWN */
};

/* Returns the row behind the last one that has a block. */
uint64_t window_end(const struct window_source *s);
/* Returns the address of a row with a block; *rows: rows from it on in its run
 * of blocks. */
const uint8_t *window_row(
    const struct window_source *s, uint32_t row, uint32_t *rows);

/* `find` describes a room's field; *out stays valid until the next call. */
struct window_sources {
    enum err (*find)(void *ud, uint32_t room, struct window_source *out);
    void *ud;
};

/* Checks everything that can be wrong, before a byte is touched. to NULL: only
 * that the rows have landed.
 *   GONE       rows of a released prefix     NOT_READY  rows not landed
 *   MALFORMED  rows beyond the item's end; a tensor too small; a plan whose
 *              ones are not its rows
 *   INCOMPATIBLE_LAYOUT  another width, or a dtype that is neither the same
 *              nor f32 from bf16 or f16 */
MUST_CHECK enum err window_check(const struct mmx_plan *plan,
    const struct window_sources *from, const struct mmx_tensor *to,
    struct mmx_trouble *trouble);

/* A copy in parts, for a caller whose sources are guarded by a lock: check and
 * pieces run under the lock, the copy runs without it. A cursor begins as
 * zero. */
struct window_cursor {
    uint32_t segment, row;
    uint64_t done;
};

enum window_how {
    WINDOW_SAME,
    WINDOW_FROM_BF16, /* to f32 */
    WINDOW_FROM_F16,
    WINDOW_HOWS
};

struct window_piece {
    const uint8_t *from; /* contiguous rows of row_bytes each */
    uint8_t *to;
    uint32_t rows, row_bytes, elements;
    uint64_t stride; /* of `to` */
    uint8_t how;     /* enum window_how */
};

/* Fills at most `max` pieces and moves the cursor; *count 0: the end. */
MUST_CHECK enum err window_pieces(const struct mmx_plan *plan,
    const struct window_sources *from, const struct mmx_tensor *to,
    struct window_cursor *c, struct window_piece *out, uint32_t max,
    uint32_t *count);
/* Copies pieces in host memory. */
void window_copy(const struct window_piece *pieces, uint32_t count);

/* Rounds n values of f32 to bf16 or f16. Neither array need be aligned. */
void client_round(bool to_bf16, uint8_t *to, const uint8_t *from, size_t n);

#endif
