/* segment.c - codec of the header of a data message.
 *
 * Invariant: a header that segments_get accepts has a known version and kind, 1
 * to SEGMENTS_MAX segments and exactly the bytes that came; landing.c decides
 * whether a segment may land. Pure; any thread.
 *
 * Rejected: a packed struct sent as it lies in memory. It would tie the wire to
 * one compiler's padding and one byte order, and save nothing: the largest
 * number of segments is decoded in less time than it takes to copy one of
 * them. */
#include "wire/segment.h"

#include "base/check.h"

/* The functions below write and read these fields one by one. */
_Static_assert(SEGMENT_HEADER == 4 + 1 + 1 + 2, "header of a data message");
_Static_assert(SEGMENT_BYTES == 2 * 8 + 6 * 4, "one segment of it");
_Static_assert(SEGMENT_SOURCE == 2 + 2 && PIECE_BYTES == 3 * 4, "its pieces");
_Static_assert(SEGMENTS_MAX <= UINT8_MAX && PIECES_MAX <= UINT16_MAX, "counts");

uint32_t segments_put(uint8_t *out, const struct segment *s, uint32_t count,
    enum segment_kind kind)
{
    struct writer w = writer_of(out, DATA_HEADER_MAX);

    CHECK(count > 0 && count <= SEGMENTS_MAX, "%u segments", count);
    put_u32(&w, SEGMENT_MAGIC);
    put_u8(&w, SEGMENT_VERSION);
    put_u8(&w, (uint8_t)count);
    put_u16(&w, (uint16_t)kind);
    for (uint32_t i = 0; i < count; i++) {
        put_u64(&w, s[i].room);
        put_u64(&w, s[i].generation);
        put_u32(&w, s[i].attempt);
        put_u32(&w, s[i].first);
        put_u32(&w, s[i].rows);
        put_u32(&w, s[i].total);
        put_u32(&w, s[i].bytes);
        put_u32(&w, s[i].fields);
    }
    CHECK(!w.failed, "%u segments in %zu bytes", count, w.cap);
    return (uint32_t)w.len;
}

static void segment_get(struct reader *r, struct segment *s)
{
    s->room = get_u64(r);
    s->generation = get_u64(r);
    s->attempt = get_u32(r);
    s->first = get_u32(r);
    s->rows = get_u32(r);
    s->total = get_u32(r);
    s->bytes = get_u32(r);
    s->fields = get_u32(r);
}

enum err segments_get(struct span header, uint64_t payload,
    enum segment_kind *kind, struct segment *s, uint32_t *count)
{
    struct reader r = reader_of(header.p, header.len);
    uint32_t magic = get_u32(&r), version = get_u8(&r), n = get_u8(&r);
    uint32_t said = get_u16(&r);
    struct segment got[SEGMENTS_MAX];
    uint64_t bytes = 0;

    if (r.failed || magic != SEGMENT_MAGIC)
        return ERR_MALFORMED;
    if (version != SEGMENT_VERSION)
        return ERR_VERSION;
    if (n == 0 || n > SEGMENTS_MAX || said > SEGMENTS_SOURCES ||
        header.len != SEGMENT_HEADER + n * SEGMENT_BYTES)
        return ERR_MALFORMED;
    for (uint32_t i = 0; i < n; i++) {
        segment_get(&r, &got[i]);
        bytes += got[i].bytes;
    }
    if (said == SEGMENTS_BYTES && bytes != payload)
        return ERR_MALFORMED;
    memcpy(s, got, n * sizeof(*s));
    *kind = (enum segment_kind)said;
    *count = n;
    return OK;
}

/* where the rows are at the sender */

void source_put(
    struct writer *w, uint16_t pool, const struct piece *pieces, uint32_t n)
{
    CHECK(n <= UINT16_MAX, "%u pieces", n);
    put_u16(w, pool);
    put_u16(w, (uint16_t)n);
    for (uint32_t i = 0; i < n; i++) {
        put_u32(w, pieces[i].block);
        put_u32(w, pieces[i].at);
        put_u32(w, pieces[i].rows);
    }
}

enum err source_get(struct reader *r, const struct segment *s, uint16_t *pool,
    struct piece *pieces, uint32_t *n)
{
    uint16_t in = get_u16(r);
    uint32_t count = get_u16(r);
    uint64_t rows = 0;
    struct piece got[PIECES_MAX];

    if (r->failed || count == 0 || count > PIECES_MAX)
        return ERR_MALFORMED;
    for (uint32_t i = 0; i < count; i++) {
        got[i].block = get_u32(r);
        got[i].at = get_u32(r);
        got[i].rows = get_u32(r);
        rows += got[i].rows;
        if (r->failed || got[i].rows == 0)
            return ERR_MALFORMED;
    }
    if (rows != s->rows)
        return ERR_MALFORMED;
    memcpy(pieces, got, count * sizeof(*got));
    *pool = in;
    *n = count;
    return OK;
}

bool pieces_inside(const struct piece *pieces, uint32_t n, uint32_t blocks,
    uint32_t block_rows)
{
    uint64_t all = (uint64_t)blocks * block_rows;

    for (uint32_t i = 0; i < n; i++) {
        const struct piece *p = &pieces[i];

        if (p->block >= blocks || p->at >= block_rows ||
            (uint64_t)p->block * block_rows + p->at + p->rows > all)
            return false;
    }
    return true;
}
