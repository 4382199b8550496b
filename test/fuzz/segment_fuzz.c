/* segment_fuzz.c - headers of data messages that another daemon could send.
 *
 * The first four bytes are the length of a payload that is not there, the rest
 * is the header, or a header and where its segments lie. Holds: the segments
 * that are accepted add up to the payload, and are the same after they are
 * encoded and decoded. One thread. */
#include "base/check.h"
#include "wire/segment.h"

static struct segment first[SEGMENTS_MAX], second[SEGMENTS_MAX];
static uint8_t header[DATA_HEADER_MAX];

/* Reads the places of segments: an accepted one is inside the input, and reads
 * the same again. */
static void sources(struct span in, struct span head)
{
    struct reader r = reader_of(in.p, in.len);
    struct piece pieces[PIECES_MAX];
    uint32_t count, n;
    enum segment_kind kind;
    uint16_t pool;

    if (segments_get(head, 0, &kind, first, &count) != OK ||
        kind != SEGMENTS_SOURCES)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t rows = 0;

        if (source_get(&r, &first[i], &pool, pieces, &n) != OK)
            return;
        CHECK(n > 0 && n <= PIECES_MAX, "%u pieces", n);
        for (uint32_t k = 0; k < n; k++) {
            rows += pieces[k].rows;
            if (pieces_inside(&pieces[k], 1, 7, 5))
                CHECK((uint64_t)pieces[k].block * 5 + pieces[k].at +
                              pieces[k].rows <=
                          35,
                    "piece %u + %u, %u rows", pieces[k].block, pieces[k].at,
                    pieces[k].rows);
        }
        CHECK(rows == first[i].rows, "%llu rows of %u",
            (unsigned long long)rows, first[i].rows);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool segment_eq(const struct segment *a, const struct segment *b)
{
    return a->room == b->room && a->generation == b->generation &&
           a->attempt == b->attempt && a->first == b->first &&
           a->rows == b->rows && a->total == b->total && a->bytes == b->bytes &&
           a->fields == b->fields;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = reader_of(data, size);
    uint64_t payload = get_u32(&r), sum = 0;
    uint32_t count, again, bytes;
    enum segment_kind kind;

    if (r.failed || size > UINT32_MAX)
        return 0;
    /* a header of one segment or more, then their places */
    if (size > 64 + r.at)
        for (uint32_t i = 1; i <= 2 && size >= 8 + 40 * i + r.at; i++)
            sources(span_of(data + r.at + 8 + 40 * i, size - r.at - 8 - 40 * i),
                span_of(data + r.at, 8 + 40 * i));
    if (segments_get(span_of(data + r.at, size - r.at), payload, &kind, first,
            &count) != OK)
        return 0;
    CHECK(count >= 1 && count <= SEGMENTS_MAX, "%u", count);
    for (uint32_t i = 0; i < count; i++)
        sum += first[i].bytes;
    CHECK(sum == payload || kind == SEGMENTS_SOURCES, "%llu and %llu",
        (unsigned long long)sum, (unsigned long long)payload);
    bytes = segments_put(header, first, count, kind);
    CHECK(bytes <= sizeof(header), "%u", bytes);
    CHECK(segments_get(
              span_of(header, bytes), payload, &kind, second, &again) == OK,
        "%u segments", count);
    CHECK(again == count, "%u and %u", again, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK(segment_eq(&first[i], &second[i]), "segment %u", i);
    return 0;
}
