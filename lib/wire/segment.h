/* segment.h - the header of a data message: it says to which rows of which
 * rooms the bytes belong. No address, no key and no block number of the
 * receiver is in it.
 *
 *   u32 magic "MMXD", u8 version, u8 count, u16 kind, then count times
 *   u64 room, u64 generation, u32 attempt, u32 first, u32 rows, u32 total,
 *   u32 bytes, u32 fields (0xffffffff: all)
 *
 * The payload of kind 0 holds the segments one after the other; a segment
 * holds, for each field in the layout's order, its rows. The payload of kind 1
 * (between daemons of one host) is instead the rows' position at the sender:
 * SEGMENT_SOURCE bytes per segment, u16 pool, u16 pieces, then per piece u32
 * block, u32 at, u32 rows, all of the sender's own pool. Pure; any thread. */
#ifndef MMX_WIRE_SEGMENT_H
#define MMX_WIRE_SEGMENT_H

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"

#define SEGMENT_MAGIC   UINT32_C(0x44584d4d)
#define SEGMENT_VERSION 1
#define SEGMENT_HEADER  8
#define SEGMENT_BYTES   40
/* A header fits what UCX leaves for it on the smallest device: 956 bytes, over
 * UD with packets of 1,024, as on an Ethernet of 1,500. */
#define SEGMENTS_MAX      22
#define SEGMENT_ALL       UINT32_MAX
#define SEGMENT_UNITS_MAX 64 /* limits the blocks that a segment lies in */
#define DATA_HEADER_MAX   (SEGMENT_HEADER + SEGMENTS_MAX * SEGMENT_BYTES)

#define SEGMENT_SOURCE 4 /* bytes of a segment's position, and of a piece */
#define PIECE_BYTES    12
#define PIECES_MAX     64

enum segment_kind { SEGMENTS_BYTES, SEGMENTS_SOURCES };

/* `rows` rows of a segment, in `block` from row `at` on. Blocks of a run are
 * adjacent, so the rows may extend beyond the block. */
struct piece {
    uint32_t block, at, rows;
};

struct segment {
    uint64_t room, generation;
    uint32_t attempt, first, rows, total, bytes, fields;
};

/* Returns which of `addresses` data addresses gets a part of a generation. The
 * sum wraps at 2^64 on both sides. */
static inline uint32_t part_address(
    uint64_t generation, uint32_t part, uint32_t addresses)
{
    CHECK(addresses > 0, "part %u goes nowhere", part);
    return (uint32_t)((generation + part) % addresses);
}

/* Writes a header to out, which holds DATA_HEADER_MAX; returns its bytes. */
uint32_t segments_put(uint8_t *out, const struct segment *s, uint32_t count,
    enum segment_kind kind);

/* Fills *kind, s (SEGMENTS_MAX of them) and *count, at least 1. For
 * SEGMENTS_BYTES the bytes of all segments add up to payload; for
 * SEGMENTS_SOURCES source_get reads the payload. ERR_MALFORMED or ERR_VERSION
 * otherwise. */
MUST_CHECK enum err segments_get(struct span header, uint64_t payload,
    enum segment_kind *kind, struct segment *s, uint32_t *count);

/* Appends the position of one segment, n pieces of a pool: SEGMENT_SOURCE + n x
 * PIECE_BYTES. */
void source_put(
    struct writer *w, uint16_t pool, const struct piece *pieces, uint32_t n);
/* Reads the position of the next segment in a pool of the sender: *n pieces, up
 * to PIECES_MAX, none empty, together the segment's rows. pieces_inside checks
 * that the pool has these rows. */
MUST_CHECK enum err source_get(struct reader *r, const struct segment *s,
    uint16_t *pool, struct piece *pieces, uint32_t *n);
/* True if all pieces lie in a pool of `blocks` blocks. */
bool pieces_inside(const struct piece *pieces, uint32_t n, uint32_t blocks,
    uint32_t block_rows);

#endif
