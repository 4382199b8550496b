/* client_aux_test.c - aux, the data that engines send beside rows: the vector
 * of a picture, limits, and what a reader refuses. */
#include "client/mmx.h"
#include "client/mmx_aux.h"

#include "test/vectors.h"

static const uint32_t grid[] = {1, 16, 48};

static size_t bytes_of(const char *hex, uint8_t *out)
{
    size_t n = 0;

    for (; hex[2 * n]; n++) {
        unsigned v;

        T_EQ_I64(sscanf(hex + 2 * n, "%2x", &v), 1);
        out[n] = (uint8_t)v;
    }
    return n;
}

static size_t aux_of(const char *name, uint8_t *out, size_t size)
{
    struct vectors v = vectors_open();
    size_t n;

    T_TRUE(vectors_next(&v, "name", name));
    n = vector_bytes(&v, "aux", out, size);
    fclose(v.f);
    return n;
}

static size_t the_vector(uint8_t *out)
{
    return aux_of("picture", out, 512);
}

TEST(the_vector_is_written)
{
    static const uint32_t one = 1, two = 2, part[] = {0, 2},
                          sizes[] = {224, 672}, span = 24;
    static const int32_t delta = -168;
    static const double seconds = 0.5;
    uint8_t mem[512], wanted[512];
    struct mmx_aux a;

    mmx_aux_begin(&a, mem, sizeof mem);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_MODALITY, &one, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_FLAGS, &two, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_PART, part, 2), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_GRID, grid, 3), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_MERGE, &two, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_SIZES, sizes, 2), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_SPAN, &span, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_MROPE_DELTA, &delta, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_SECONDS, &seconds, 1), 0);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_CHUNK, "\1\2\3", 3), 0);
    T_EQ_U64(mmx_aux_end(&a), the_vector(wanted));
    T_EQ_MEM(mem, wanted, a.used);
}

TEST(the_vector_is_read)
{
    uint8_t mem[513], *aux = mem + 1; /* at any alignment */
    size_t n = the_vector(aux);
    uint32_t v[8];
    int32_t delta;
    double seconds;
    const void *chunk;

    T_EQ_I64(mmx_aux_check(aux, n), 0);
    T_EQ_I64(mmx_aux_get(aux, n, MMX_AUX_GRID, v, 3), 3);
    T_EQ_MEM(v, grid, sizeof grid);
    T_EQ_I64(mmx_aux_get(aux, n, MMX_AUX_GRID, v, 2), -MMX_E_TOO_LARGE);
    T_EQ_I64(mmx_aux_get(aux, n, MMX_AUX_MROPE_DELTA, &delta, 1), 1);
    T_EQ_I64(delta, -168);
    T_EQ_I64(mmx_aux_get(aux, n, MMX_AUX_SECONDS, &seconds, 1), 1);
    T_TRUE(seconds == 0.5);
    T_EQ_I64(mmx_aux_at(aux, n, MMX_AUX_CHUNK, &chunk), 3);
    T_EQ_MEM(chunk, "\1\2\3", 3);
    T_EQ_I64(mmx_aux_get(aux, n, MMX_AUX_TIMES, v, 1), 0);
    T_EQ_I64(mmx_aux_get(aux, n, 99, v, 1), -MMX_E_MALFORMED);
}

TEST(every_cut_and_every_longer_one_is_refused)
{
    uint8_t aux[512] = {0};
    size_t n = the_vector(aux);

    for (size_t i = 0; i < n + 16; i++)
        T_CHECK(i == n || mmx_aux_check(aux, i) == -MMX_E_MALFORMED,
            "%zu bytes of %zu", i, n);
}

static int refused(const char *body)
{
    uint8_t aux[512];
    size_t n = bytes_of("4d58410100000000", aux);

    n += bytes_of(body, aux + n);
    aux[4] = (uint8_t)n;
    return mmx_aux_check(aux, n);
}

TEST(what_a_reader_refuses)
{
    uint8_t aux[512];
    size_t n = the_vector(aux);

    T_EQ_I64(refused(""), 0);
    /* Tags of a later release: the first may be skipped, the second may not. */
    T_EQ_I64(refused("ff0f0000010000000900000000000000"), 0);
    T_EQ_I64(refused("ff8f0000010000000900000000000000"), -MMX_E_VERSION);
    aux[3] = 2;
    T_EQ_I64(mmx_aux_check(aux, n), -MMX_E_VERSION);
    /* Refused values: none; half a value; two where the tag has one; of tag
     * 0. */
    T_EQ_I64(refused("0500000000000000"), -MMX_E_MALFORMED);
    T_EQ_I64(
        refused("0500000008000000010000000200000000000000"), -MMX_E_MALFORMED);
    T_EQ_I64(refused("02000000080000000100000002000000"), -MMX_E_MALFORMED);
    T_EQ_I64(refused("00000000040000000100000000000000"), -MMX_E_MALFORMED);
    /* Reserved bytes and padding must be zero. */
    T_EQ_I64(refused("02000100040000000100000000000000"), -MMX_E_MALFORMED);
    T_EQ_I64(refused("02000000040000000100000000000001"), -MMX_E_MALFORMED);
    /* The same tag twice; tags out of order. */
    T_EQ_I64(refused("02000000040000000100000000000000"
                     "02000000040000000100000000000000"),
        -MMX_E_MALFORMED);
    T_EQ_I64(refused("06000000040000000100000000000000"
                     "02000000040000000100000000000000"),
        -MMX_E_MALFORMED);
    T_EQ_I64(refused("0c000000ffffffff0100000000000000"), -MMX_E_MALFORMED);
}

TEST(what_a_writer_refuses)
{
    static uint8_t mem[MMX_AUX_WHOLE + 64], chunk[MMX_AUX_WHOLE];
    struct mmx_aux a;

    mmx_aux_begin(&a, mem, sizeof mem);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_GRID, grid, 2), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_GRID, grid, 3), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_end(&a), -MMX_E_MALFORMED);
    mmx_aux_begin(&a, mem, sizeof mem);
    (void)mmx_aux_put(&a, MMX_AUX_GRID, grid, 3);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_ROWS, grid, 1), -MMX_E_MALFORMED);
    /* The most bytes that an aux may have, whatever the buffer's size. */
    mmx_aux_begin(&a, mem, sizeof mem);
    (void)mmx_aux_put(&a, MMX_AUX_CHUNK, chunk, MMX_AUX_WHOLE - 16);
    T_EQ_I64(mmx_aux_end(&a), MMX_AUX_WHOLE);
    T_EQ_I64(mmx_aux_check(mem, a.used), 0);
    mmx_aux_begin(&a, mem, sizeof mem);
    T_EQ_I64(mmx_aux_put(&a, MMX_AUX_CHUNK, chunk, MMX_AUX_WHOLE - 15),
        -MMX_E_TOO_LARGE);
    mmx_aux_begin(&a, mem, 20);
    (void)mmx_aux_put(&a, MMX_AUX_GRID, grid, 3);
    T_EQ_I64(mmx_aux_end(&a), -MMX_E_TOO_LARGE);
    mmx_aux_begin(&a, mem, 7);
    T_EQ_I64(mmx_aux_end(&a), -MMX_E_TOO_LARGE);
}

enum { ROW = 4096 };
static uint8_t whole[MMX_AUX_WHOLE + ROW], joined[MMX_AUX_WHOLE + ROW],
    aux[MMX_AUX_MAX];

/* Writes an aux of two records to `whole`; returns its bytes. */
static size_t large(size_t times, size_t chunk)
{
    static double t[MMX_AUX_WHOLE / 8];
    static uint8_t c[MMX_AUX_WHOLE];
    uint32_t video = MMX_VIDEO;
    struct mmx_aux a;
    int n;

    for (size_t i = 0; i < times; i++)
        t[i] = (double)i * 0.5;
    for (size_t i = 0; i < chunk; i++)
        c[i] = (uint8_t)(i + 1);
    memset(whole, 0, sizeof whole);
    mmx_aux_begin(&a, whole, sizeof whole);
    (void)mmx_aux_put(&a, MMX_AUX_MODALITY, &video, 1);
    (void)mmx_aux_put(&a, MMX_AUX_TIMES, t, times);
    (void)mmx_aux_put(&a, MMX_AUX_CHUNK, c, chunk);
    n = mmx_aux_end(&a);
    T_TRUE(n > 0);
    return (size_t)n;
}

static size_t rounded_up(size_t bytes)
{
    return (bytes + ROW - 1) / ROW * ROW;
}

TEST(a_large_one_is_that_of_the_vectors)
{
    uint8_t wanted[64];
    size_t cut, n = large(5000, 3);

    T_EQ_I64(mmx_aux_split(whole, n, aux, &cut), 40);
    T_EQ_U64(aux_of("large", wanted, sizeof wanted), 40);
    T_EQ_MEM(aux, wanted, 40);
    T_EQ_U64(n - cut, 40024);
    T_EQ_I64(mmx_aux_rest(aux, 40, 100, ROW), 10);
    T_EQ_I64(mmx_aux_rest(aux, 40, 10, ROW), 10);
}

TEST(what_was_split_is_joined)
{
    static const size_t sizes[][2] = {{1, 1}, {4079, 24}, {4080, 1}, {4081, 1},
        {4000, 700}, {5000, 40000}, {130000, 8}, {1, 1 << 20},
        {1, MMX_AUX_WHOLE - 56}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = large(sizes[i][0], sizes[i][1]), cut;
        int len = mmx_aux_split(whole, n, aux, &cut);
        size_t bytes = rounded_up(n - cut);

        T_TRUE(len > 0 && len <= MMX_AUX_MAX);
        T_TRUE((cut == n) == (n <= MMX_AUX_MAX));
        T_EQ_I64(mmx_aux_check(aux, (size_t)len), 0);
        T_EQ_I64(mmx_aux_rest(aux, (size_t)len, 1 << 20, ROW), bytes / ROW);
        T_EQ_I64(mmx_aux_join(aux, (size_t)len, whole + cut, bytes, joined,
                     sizeof joined),
            n);
        T_EQ_MEM(joined, whole, n);
        T_EQ_I64(
            mmx_aux_join(aux, (size_t)len, whole + cut, bytes, joined, n - 1),
            -MMX_E_TOO_LARGE);
    }
}

/* Makes an aux whose record `rest` announces `bytes`. Returns the aux's
 * length. */
static size_t claims(uint32_t bytes)
{
    struct mmx_aux a;

    mmx_aux_begin(&a, aux, sizeof aux);
    (void)mmx_aux_put(&a, MMX_AUX_REST, &bytes, 1);
    return (size_t)mmx_aux_end(&a);
}

TEST(a_rest_of_a_hostile_size_is_refused)
{
    static const uint32_t sizes[] = {40961, MMX_AUX_WHOLE, 1u << 31, ~0u};
    size_t n = claims(40960);

    T_EQ_I64(mmx_aux_rest(aux, n, 10, ROW), 10);
    T_EQ_I64(mmx_aux_rest(aux, n, 9, ROW), -MMX_E_TOO_LARGE);
    T_EQ_I64(mmx_aux_rest(aux, n, 0, ROW), -MMX_E_TOO_LARGE);
    T_EQ_I64(mmx_aux_rest(aux, n, 10, 0), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_rest(aux, n - 1, 10, ROW), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_rest(NULL, 0, 10, ROW), 0);
    for (size_t i = 0; i < 4; i++) {
        n = claims(sizes[i]);
        T_EQ_I64(mmx_aux_rest(aux, n, 10, ROW), -MMX_E_TOO_LARGE);
        T_EQ_I64(mmx_aux_join(aux, n, whole, 40960, joined, sizeof joined),
            -MMX_E_TOO_LARGE);
    }
    n = claims(MMX_AUX_WHOLE - 7);
    T_EQ_I64(mmx_aux_rest(aux, n, ~0u, ROW), -MMX_E_TOO_LARGE);
    n = claims(0);
    T_EQ_I64(mmx_aux_rest(aux, n, 10, ROW), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_join(aux, n, whole, 0, joined, sizeof joined),
        -MMX_E_MALFORMED);
}

static int joins(size_t len, const uint8_t *rest, size_t bytes)
{
    return mmx_aux_join(
        aux, len, rest, rounded_up(bytes), joined, sizeof joined);
}

TEST(a_rest_that_is_none_is_refused)
{
    size_t cut, n = large(5000, 3), bytes;
    size_t len = (size_t)mmx_aux_split(whole, n, aux, &cut);
    uint8_t *rest = whole + cut, nested[] = {255, 255, 0, 0, 4};

    bytes = n - cut;
    T_EQ_I64(joins(len, rest, bytes), n);
    rest[bytes] = 1; /* padding of the last row */
    T_EQ_I64(joins(len, rest, bytes), -MMX_E_MALFORMED);
    rest[bytes] = 0;
    rest[4]++; /* the first record's length */
    T_EQ_I64(joins(len, rest, bytes), -MMX_E_MALFORMED);
    rest[4]--;
    rest[0] = 1; /* this tag is in the aux already */
    T_EQ_I64(joins(len, rest, bytes), -MMX_E_MALFORMED);
    rest[0] = 10;
    memcpy(
        rest + bytes - 16, nested, sizeof nested); /* in place of the chunk */
    T_EQ_I64(joins(len, rest, bytes), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_aux_split(whole, n, aux, &cut), -MMX_E_MALFORMED);
    /* A rest is refused if it would have fit into the aux. */
    n = large(10, 3);
    len = claims((uint32_t)n - 8);
    T_EQ_I64(joins(len, whole + 8, n - 8), -MMX_E_MALFORMED);
    n = large(10, 40000);
    len = claims((uint32_t)n - 8);
    T_EQ_I64(joins(len, whole + 8, n - 8), -MMX_E_MALFORMED);
}
