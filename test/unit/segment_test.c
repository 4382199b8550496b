/* segment_test.c - the header of a data message, and what is refused. */
#include "wire/segment.h"
#include "test/t.h"

static struct segment sample(uint32_t i)
{
    return (struct segment){UINT64_C(0x1122334455667788) + i, UINT64_MAX - i, i,
        i * 16, 16, ROWS_UNKNOWN, 100 + i, SEGMENT_ALL};
}

static uint32_t put(uint8_t *out, uint32_t count, uint64_t *payload)
{
    struct segment s[SEGMENTS_MAX];

    *payload = 0;
    for (uint32_t i = 0; i < count; i++) {
        s[i] = sample(i);
        *payload += s[i].bytes;
    }
    return segments_put(out, s, count, SEGMENTS_BYTES);
}

TEST(round_trip)
{
    uint8_t bytes[DATA_HEADER_MAX];
    struct segment got[SEGMENTS_MAX];
    enum segment_kind kind;

    for (uint32_t count = 1; count <= SEGMENTS_MAX; count++) {
        uint64_t payload;
        uint32_t len = put(bytes, count, &payload), n = 0;

        T_EQ_U64(len, SEGMENT_HEADER + count * SEGMENT_BYTES);
        T_OK(segments_get(span_of(bytes, len), payload, &kind, got, &n));
        T_EQ_U64(kind, SEGMENTS_BYTES);
        T_EQ_U64(n, count);
        for (uint32_t i = 0; i < n; i++) {
            struct segment s = sample(i);

            T_EQ_U64(got[i].room, s.room);
            T_EQ_U64(got[i].generation, s.generation);
            T_EQ_U64(got[i].attempt, s.attempt);
            T_EQ_U64(got[i].first, s.first);
            T_EQ_U64(got[i].rows, s.rows);
            T_EQ_U64(got[i].total, s.total);
            T_EQ_U64(got[i].bytes, s.bytes);
            T_EQ_U64(got[i].fields, s.fields);
        }
    }
}

TEST(bytes_on_the_wire)
{
    static const uint8_t head[] = {'M', 'M', 'X', 'D', 1, 1, 0, 0, 0x88, 0x77};
    uint8_t bytes[DATA_HEADER_MAX];
    uint64_t payload;

    put(bytes, 1, &payload);
    T_EQ_MEM(bytes, head, sizeof(head));
}

static void refused(uint8_t *b, uint32_t len, uint64_t payload, enum err e)
{
    struct segment got[SEGMENTS_MAX] = {{.room = 7}};
    enum segment_kind kind = 5;
    uint32_t n = 77;

    T_ERR(segments_get(span_of(b, len), payload, &kind, got, &n), e);
    T_EQ_U64(n, 77);
    T_EQ_U64(kind, 5);
    T_EQ_U64(got[0].room, 7);
}

/* RULES 3.1 */
TEST(refusals)
{
    uint8_t b[DATA_HEADER_MAX + 1] = {0};
    uint64_t payload;
    uint32_t len = put(b, 2, &payload);

    refused(b, len, payload + 1, ERR_MALFORMED);
    refused(b, len, payload - 1, ERR_MALFORMED);
    refused(b, len + 1, payload, ERR_MALFORMED);
    for (uint32_t cut = 0; cut < len; cut++)
        refused(b, cut, payload, ERR_MALFORMED);
    b[0] ^= 1;
    refused(b, len, payload, ERR_MALFORMED);
    b[0] ^= 1;
    b[4] = 2;
    refused(b, len, payload, ERR_VERSION);
    b[4] = 1;
    b[6] = 2;
    refused(b, len, payload, ERR_MALFORMED);
    b[6] = 0;
    b[7] = 1;
    refused(b, len, payload, ERR_MALFORMED);
    b[7] = 0;
    b[5] = 0;
    refused(b, SEGMENT_HEADER, 0, ERR_MALFORMED);
    b[5] = SEGMENTS_MAX + 1;
    refused(b, sizeof(b), payload, ERR_MALFORMED);
}

/* Sizes whose sum is right only modulo 2^32 are refused. */
TEST(sizes_do_not_wrap)
{
    uint8_t b[DATA_HEADER_MAX];
    struct segment s[2] = {{.bytes = UINT32_MAX}, {.bytes = 2}};
    uint32_t len = segments_put(b, s, 2, SEGMENTS_BYTES), n;
    enum segment_kind kind;

    refused(b, len, 1, ERR_MALFORMED);
    T_OK(segments_get(span_of(b, len), UINT64_C(0x100000001), &kind, s, &n));
}

TEST(parts_spread_over_addresses)
{
    uint64_t seed = 5;

    for (int i = 0; i < 1000; i++) {
        uint64_t g = t_rand(&seed);
        uint32_t n = 1 + (uint32_t)t_rand_below(&seed, 64), p = (uint32_t)i;

        T_CHECK(part_address(g, p, n) < n, "address %u of %u",
            part_address(g, p, n), n);
        if (g < UINT64_MAX - 2000)
            T_EQ_U64(
                part_address(g, p + 1, n), (part_address(g, p, n) + 1) % n);
    }
}

/* where the rows lie */

/* The payload of sources is not as long as the rows. */
TEST(kinds_do_not_mix)
{
    uint8_t b[DATA_HEADER_MAX];
    struct segment s[2] = {sample(1), sample(2)}, got[SEGMENTS_MAX];
    uint32_t len = segments_put(b, s, 2, SEGMENTS_SOURCES), n = 0;
    enum segment_kind kind = SEGMENTS_BYTES;

    T_OK(segments_get(span_of(b, len), 3, &kind, got, &n));
    T_EQ_U64(kind, SEGMENTS_SOURCES);
    T_EQ_U64(n, 2);
    T_EQ_U64(got[1].generation, s[1].generation);
    for (uint32_t cut = 0; cut < len; cut++)
        refused(b, cut, 3, ERR_MALFORMED);
    b[6] = 2;
    refused(b, len, 3, ERR_MALFORMED);
    b[6] = 0;
    refused(b, len, 3, ERR_MALFORMED);
}

static enum err source_round(
    const struct piece *in, uint32_t n, uint32_t rows, struct piece *out)
{
    uint8_t b[SEGMENT_SOURCE + (PIECES_MAX + 1) * PIECE_BYTES];
    struct writer w = writer_of(b, sizeof(b));
    struct segment s = {.rows = rows};
    uint16_t pool = 0;
    uint32_t got = 0;
    struct reader r;
    enum err e;

    source_put(&w, 9, in, n);
    T_FALSE(w.failed);
    for (size_t cut = 0; cut < w.len; cut++) {
        r = reader_of(b, cut);
        T_ERR(source_get(&r, &s, &pool, out, &got), ERR_MALFORMED);
    }
    r = reader_of(b, w.len);
    e = source_get(&r, &s, &pool, out, &got);
    if (e == OK) {
        T_EQ_U64(pool, 9);
        T_EQ_U64(got, n);
        T_EQ_U64(r.at, w.len);
        T_EQ_MEM(out, in, n * sizeof(*in));
    }
    return e;
}

TEST(sources)
{
    struct piece in[PIECES_MAX + 1], out[PIECES_MAX];

    for (uint32_t i = 0; i <= PIECES_MAX; i++)
        in[i] = (struct piece){i * 3, i, 4};
    T_OK(source_round(in, 1, 4, out));
    T_OK(source_round(in, PIECES_MAX, 4 * PIECES_MAX, out));
    T_ERR(source_round(in, PIECES_MAX + 1, 4 * (PIECES_MAX + 1), out),
        ERR_MALFORMED);
    T_ERR(source_round(in, 2, 7, out), ERR_MALFORMED);
    T_ERR(source_round(in, 2, 9, out), ERR_MALFORMED);
    T_ERR(source_round(in, 0, 0, out), ERR_MALFORMED);
    in[1].rows = 0;
    T_ERR(source_round(in, 2, 4, out), ERR_MALFORMED);
    in[0].rows = in[1].rows = UINT32_MAX; /* sums must not wrap */
    T_ERR(source_round(in, 2, UINT32_MAX - 1, out), ERR_MALFORMED);
}

/* RULES 3.4 */
TEST(pieces_stay_inside)
{
    static const struct {
        struct piece p;
        bool inside;
    } cases[] = {
        {{0, 0, 1}, true},
        {{9, 15, 1}, true},
        {{9, 15, 2}, false},
        {{0, 0, 160}, true},
        {{0, 0, 161}, false},
        {{0, 1, 160}, false},
        {{10, 0, 1}, false},
        {{0, 16, 1}, false},
        {{UINT32_MAX, 0, 1}, false},
        {{0, UINT32_MAX, 1}, false},
        {{1, 0, UINT32_MAX}, false},
        {{UINT32_MAX, UINT32_MAX, UINT32_MAX}, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct piece two[2] = {{3, 3, 3}, cases[i].p};

        T_CHECK(pieces_inside(two, 2, 10, 16) == cases[i].inside,
            "piece %u + %u, %u rows", cases[i].p.block, cases[i].p.at,
            cases[i].p.rows);
    }
}
