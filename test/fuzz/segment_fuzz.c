/* segment_fuzz.c - headers of data messages that another daemon could send.
 *
 * The first four bytes are the length of a payload that is not there, the rest
 * is the header. Holds: what is accepted adds up to the payload, and comes
 * through its own encoding the same. One thread. */
#include "base/check.h"
#include "core/segment.h"

static struct segment first[SEGMENTS_MAX], second[SEGMENTS_MAX];
static uint8_t header[DATA_HEADER_MAX];

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

    if (r.failed || size > UINT32_MAX)
        return 0;
    if (segments_get(
            span_of(data + r.at, size - r.at), payload, first, &count) != OK)
        return 0;
    CHECK(count >= 1 && count <= SEGMENTS_MAX, "%u", count);
    for (uint32_t i = 0; i < count; i++)
        sum += first[i].bytes;
    CHECK(sum == payload, "%llu and %llu", (unsigned long long)sum,
        (unsigned long long)payload);
    bytes = segments_put(header, first, count);
    CHECK(bytes <= sizeof(header), "%u", bytes);
    CHECK(segments_get(span_of(header, bytes), payload, second, &again) == OK,
        "%u segments", count);
    CHECK(again == count, "%u and %u", again, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK(segment_eq(&first[i], &second[i]), "segment %u", i);
    return 0;
}
