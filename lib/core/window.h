/* window.h - what a scheduler's window of a prompt needs of which rooms, and
 * the copy of those rows into the engine's tensor.
 *
 * A plan is one step's value: nothing changes it once it is made, and it lies
 * in memory of its own, so that the plan of one step stays right while the
 * next is planned and run. Prompt places are positions, places in a room are
 * rows. Pure; any thread; functions share nothing but their arguments. */
#ifndef MMX_CORE_WINDOW_H
#define MMX_CORE_WINDOW_H

#include "base/base.h"
#include "base/err.h"

/* The span of a prompt that one item fills. */
enum place_flags {
    PLACE_INDIVISIBLE = 1, /* never cut by a window (attention both ways) */
    PLACE_ABSENT = 2       /* the rows are not there */
};

struct placeholder {
    uint32_t offset, length; /* positions */
    const uint64_t *embed;   /* bit i of the words: position offset + i takes
                                a row; NULL: all do. See window_pack */
    uint32_t room;           /* whose rows: 0 .. window.rooms - 1 */
    uint32_t row_base;       /* the room's row for the span's first one; with
                                prompt storage, for position 0 */
    uint32_t elements;       /* of a row; 0: not checked */
    uint8_t storage;         /* STORAGE_PADDED, _PROMPT; else compact */
    uint8_t flags;
};

/* Positions [computed + shift, computed + shift + length). shift is 0, or 1
 * for a draft model, which reads one position ahead of its target. */
struct window {
    uint32_t computed, length, shift;
    uint32_t rooms;
    uint32_t elements; /* of the merged rows; 0: not checked */
};

/* Rows [row, row + rows) of a room go to positions [at, at + rows), counted
 * from the window's first. */
struct window_segment {
    uint32_t room, row, rows, at;
};

enum window_state {
    WINDOW_SKIP,  /* no place from computed on: do not fetch it */
    WINDOW_LATER, /* needed, but this window takes nothing of it */
    WINDOW_NOW
};

/* Of one room, all its placeholders together. */
struct window_need {
    uint32_t state;
    uint32_t first, end; /* rows that this window takes lie in [first, end) */
    uint32_t keep;       /* rows below are not used by later windows; NONE: no
                            row is */
};

struct window_plan {
    size_t bytes;             /* of the caller's memory that are used */
    uint32_t computed, shift; /* as asked */
    uint32_t positions;       /* length, or less: an indivisible span would
                                 have been cut */
    uint32_t rows;            /* of all segments = ones of the mask */
    uint32_t segments_count;
    uint32_t rooms;
    const struct window_segment *segments; /* ascending and disjoint by at */
    const uint64_t *mask; /* bit i: position i of the window takes a row;
                             bits past the last position are 0 */
    const struct window_need *needs; /* one for each room */
};

/* Bits from bytes that are 0 or not; (n + 63) / 64 words are written. */
void window_pack(const uint8_t *bytes, uint32_t n, uint64_t *words);
/* Ones among the first n bits. */
uint32_t window_ones(const uint64_t *words, uint32_t n);

/* Bytes that are enough for the plan. */
MUST_CHECK enum err window_bytes(const struct window *w,
    const struct placeholder *p, uint32_t n, size_t *out, uint32_t *at);

/* Makes the plan in mem, which is aligned to 8 and stays the plan's until the
 * caller is done with it. On failure mem's bytes are undefined and *at is the
 * placeholder that is wrong, or n:
 *   MALFORMED  a number makes no sense, two spans claim one position, or
 *              computed lies inside an indivisible span: begin at its offset
 *   INCOMPATIBLE_LAYOUT  rows of another width than the window's
 *   TOO_LARGE  the indivisible span at the window's start is longer than it
 *   NOT_READY  an absent item has rows in the window
 *   NO_BLOCKS  mem is too small
 * An absent item, or one that is indivisible and would be cut, is left out if
 * only the draft model's shift has brought it into the window. */
MUST_CHECK enum err window_plan(const struct window *w,
    const struct placeholder *p, uint32_t n, void *mem, size_t mem_bytes,
    const struct window_plan **out, uint32_t *at);

/* running a plan */

struct window_blocks {
    uint32_t block, blocks;
};

/* One field of a room as it lies in its pool. */
struct window_source {
    const uint8_t *base; /* row 0 of block 0 */
    uint32_t block_rows, row_bytes, elements;
    char dtype[8];
    uint32_t first; /* row that the first run begins with */
    const struct window_blocks *runs;
    uint32_t runs_count;
    uint32_t released; /* rows below were given back */
    uint32_t readable; /* rows below may be read */
    uint32_t total;    /* or ROWS_UNKNOWN */
};

/* Looks a room up; *out stays valid until the next call. */
struct window_sources {
    enum err (*find)(void *ud, uint32_t room, struct window_source *out);
    void *ud;
};

/* Row i of the window lies at data + i * stride. packed: the rows of the
 * segments follow each other instead, without the places between. */
struct window_tensor {
    void *data;
    uint64_t rows, stride; /* stride in bytes, 0: rows touch */
    uint32_t elements;
    char dtype[8];
    bool packed;
};

/* What keeps a plan from running. */
struct window_trouble {
    uint32_t room;        /* NONE: plan and tensor do not fit */
    uint32_t first, rows; /* the rows that are missing, gone or beyond */
};

/* Everything that can be wrong, before a byte is touched. to may be NULL: are
 * the rows there?
 *   GONE       rows of a released prefix     NOT_READY  rows not landed
 *   MALFORMED  rows beyond the item's end; a tensor too small; a plan whose
 *              ones are not its rows
 *   INCOMPATIBLE_LAYOUT  another width, or a dtype that is neither the same
 *              nor f32 from bf16 or f16 */
MUST_CHECK enum err window_check(const struct window_plan *plan,
    const struct window_sources *from, const struct window_tensor *to,
    struct window_trouble *trouble);

/* Checks, then copies. */
MUST_CHECK enum err window_run(const struct window_plan *plan,
    const struct window_sources *from, const struct window_tensor *to,
    struct window_trouble *trouble);

/* The same in parts, for a caller whose sources sit behind a lock: check and
 * pieces with it, copy without. A cursor begins as zero; count 0: the end. */
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
    const uint8_t *from; /* rows that touch, of row_bytes each */
    uint8_t *to;
    uint32_t rows, row_bytes, elements;
    uint64_t stride; /* of `to` */
    uint8_t how;     /* enum window_how */
};

MUST_CHECK enum err window_pieces(const struct window_plan *plan,
    const struct window_sources *from, const struct window_tensor *to,
    struct window_cursor *c, struct window_piece *out, uint32_t max,
    uint32_t *count);
void window_copy(const struct window_piece *pieces, uint32_t count);

#endif
