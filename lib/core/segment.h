/* segment.h - the header of a data message: which rows of which rooms its
 * bytes are. No address, no key and no block number of the receiver is in it.
 *
 *   u32 magic "MMXD", u8 version, u8 count, u16 zero, then count times
 *   u64 room, u64 generation, u32 attempt, u32 first, u32 rows, u32 total,
 *   u32 bytes, u32 fields (0xffffffff: all)
 *
 * The payload holds the segments one after the other; a segment holds, for
 * each field in the layout's order, its rows. Pure; any thread. */
#ifndef MMX_CORE_SEGMENT_H
#define MMX_CORE_SEGMENT_H

#include "base/bytes.h"
#include "base/err.h"

#define SEGMENT_MAGIC     UINT32_C(0x44584d4d)
#define SEGMENT_VERSION   1
#define SEGMENT_HEADER    8
#define SEGMENT_BYTES     40
#define SEGMENTS_MAX      64
#define SEGMENT_ALL       UINT32_MAX
#define SEGMENT_UNITS_MAX 64 /* so that a segment lies in few blocks */
#define DATA_HEADER_MAX   (SEGMENT_HEADER + SEGMENTS_MAX * SEGMENT_BYTES)

struct segment {
    uint64_t room, generation;
    uint32_t attempt, first, rows, total, bytes, fields;
};

/* Data address, of so many, that part `part` of a generation goes to. The sum
 * wraps at 2^64, on both sides alike. */
static inline uint32_t part_address(
    uint64_t generation, uint32_t part, uint32_t addresses)
{
    return (uint32_t)((generation + part) % addresses);
}

/* Bytes written to out, which holds DATA_HEADER_MAX. */
uint32_t segments_put(uint8_t *out, const struct segment *s, uint32_t count);

/* Fills s (SEGMENTS_MAX of them) and *count, at least 1; the bytes of all add
 * up to payload. ERR_MALFORMED or ERR_VERSION otherwise. */
MUST_CHECK enum err segments_get(
    struct span header, uint64_t payload, struct segment *s, uint32_t *count);

#endif
