/* segment.c - codec of the header of a data message.
 *
 * Invariant: what segments_get lets through has a known version, 1 to
 * SEGMENTS_MAX segments and exactly the bytes that came; whether a segment
 * may land is landing.c's business. Pure; any thread.
 *
 * Rejected: a packed struct sent as it lies in memory. It would tie the wire
 * to one compiler's padding and one byte order, and save nothing: 64 segments
 * decode in less time than one of them takes to copy. */
#include "core/segment.h"

#include "base/check.h"

uint32_t segments_put(uint8_t *out, const struct segment *s, uint32_t count)
{
    struct writer w = writer_of(out, DATA_HEADER_MAX);

    CHECK(count > 0 && count <= SEGMENTS_MAX, "%u segments", count);
    put_u32(&w, SEGMENT_MAGIC);
    put_u8(&w, SEGMENT_VERSION);
    put_u8(&w, (uint8_t)count);
    put_u16(&w, 0);
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

enum err segments_get(
    struct span header, uint64_t payload, struct segment *s, uint32_t *count)
{
    struct reader r = reader_of(header.p, header.len);
    struct segment got[SEGMENTS_MAX];
    uint64_t bytes = 0;
    uint32_t magic = get_u32(&r), version = get_u8(&r), n = get_u8(&r);
    uint32_t zero = get_u16(&r);

    if (r.failed || magic != SEGMENT_MAGIC)
        return ERR_MALFORMED;
    if (version != SEGMENT_VERSION)
        return ERR_VERSION;
    if (n == 0 || n > SEGMENTS_MAX || zero != 0 ||
        header.len != SEGMENT_HEADER + n * SEGMENT_BYTES)
        return ERR_MALFORMED;
    for (uint32_t i = 0; i < n; i++) {
        segment_get(&r, &got[i]);
        bytes += got[i].bytes;
    }
    if (r.failed || bytes != payload)
        return ERR_MALFORMED;
    memcpy(s, got, n * sizeof(*s));
    *count = n;
    return OK;
}
