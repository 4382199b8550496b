/* layout_test.c - layouts: what is read, what is refused and where, regions,
 * units and parts. */
#include "wire/layout.h"
#include "test/t.h"

static struct layout parse(const char *text)
{
    struct layout l;
    uint32_t at = 12345;

    T_OK(layout_parse(span_str(text), &l, &at));
    T_EQ_U64(at, 12345);
    return l;
}

static void refused(const char *text, uint32_t where)
{
    struct layout l, before;
    uint32_t at = NONE;

    memset(&l, 0x5a, sizeof(l));
    before = l;
    T_CHECK(layout_parse(span_str(text), &l, &at) == ERR_MALFORMED,
        "`%s` was accepted", text);
    T_CHECK(at == where, "`%s` refused at %u, not %u", text, at, where);
    T_EQ_MEM(&l, &before, sizeof(l));
}

TEST(one_field)
{
    struct layout l = parse("embedding:bf16:8192");

    T_EQ_U64(l.count, 1);
    T_EQ_STR(l.fields[0].name, "embedding");
    T_EQ_STR(l.fields[0].dtype, "bf16");
    T_EQ_U64(l.fields[0].elements, 8192);
    T_EQ_U64(l.fields[0].row_bytes, 16384);
    T_EQ_U64(l.row_bytes, 16384);
}

TEST(spaces_are_not_part_of_the_text)
{
    struct layout a = parse("embedding:bf16:8192,  fill_ids:i32:1, m:bool:3");
    struct layout b = parse("embedding:bf16:8192,fill_ids:i32:1,m:bool:3");

    T_EQ_STR(a.text, "embedding:bf16:8192,fill_ids:i32:1,m:bool:3");
    T_EQ_U64(a.hash, b.hash);
    T_EQ_U64(a.row_bytes, 16384 + 4 + 3);
}

TEST(every_dtype)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } rows[] = {{"bf16", 2}, {"f16", 2}, {"f32", 4}, {"f8e4m3", 1},
        {"f8e5m2", 1}, {"i8", 1}, {"u8", 1}, {"i16", 2}, {"i32", 4}, {"i64", 8},
        {"bool", 1}};
    char text[64];

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        T_EQ_U64(dtype_bytes(span_str(rows[i].name)), rows[i].bytes);
        snprintf(text, sizeof(text), "x:%s:3", rows[i].name);
        T_EQ_U64(parse(text).row_bytes, 3 * rows[i].bytes);
    }
    T_EQ_U64(dtype_bytes(span_str("f64")), 0);
    T_EQ_U64(dtype_bytes(span_str("")), 0);
    T_EQ_U64(dtype_bytes(span_of("bf16\0", 5)), 0);
}

TEST(refused_with_the_place)
{
    refused("", 0);
    refused("engine", 6);
    refused(" a:u8:1", 0);
    refused("A:u8:1", 0);
    refused("1a:u8:1", 0);
    refused("a-b:u8:1", 0);
    refused("a{:u8:1", 0);
    refused("a.:u8:1", 0);
    refused(":u8:1", 0);
    refused("a", 1);
    refused("a:", 2);
    refused("a:u9:1", 2);
    refused("a:u8", 4);
    refused("a:u8:", 5);
    refused("a:u8:0", 5);
    refused("a:u8:01", 5);
    refused("a:u8:-1", 5);
    refused("a:u8:1x", 5);
    refused("a:u8:1 ", 5);
    refused("a:u8:1 ,b:u8:1", 5);
    refused("a:u8:16777217", 5);
    refused("a:u8:99999999999999999999", 5);
    refused("a:u8:1,", 7);
    refused("a:u8:1,,b:u8:1", 7);
    refused("a:u8:1, ", 8);
    refused("a:u8:1,a:u8:1", 7);
    refused("a:u8:1, b:i64:8388608", 14);
    refused("abcdefghijabcdefghijabcdefghijab:u8:1", 0);
}

TEST(nul_bytes_are_refused)
{
    struct layout l;
    uint32_t at;

    T_ERR(layout_parse(span_of("a\0:u8:1", 7), &l, &at), ERR_MALFORMED);
    T_ERR(layout_parse(span_of("a:u8\0:1", 7), &l, &at), ERR_MALFORMED);
    T_ERR(layout_parse(span_of("a:u8:1\0", 7), &l, &at), ERR_MALFORMED);
}

TEST(limits_are_reached)
{
    char text[4096];
    size_t n = 0;

    T_EQ_U64(parse("a:u8:16777216").row_bytes, ROW_BYTES_MAX);
    T_EQ_U64(parse("abcdefghijabcdefghijabcdefghij0:u8:1").count, 1);
    for (unsigned i = 0; i < 32; i++)
        n += (size_t)snprintf(
            text + n, sizeof(text) - n, "%sf%u:u8:1", i ? "," : "", i);
    T_EQ_U64(parse(text).count, LAYOUT_FIELDS_MAX);
    snprintf(text + n, sizeof(text) - n, ",g:u8:1");
    refused(text, (uint32_t)n + 1);
}

TEST(text_that_is_too_long)
{
    char text[4096];
    size_t n = 0, last = 0;

    for (unsigned i = 0; i < 26; i++) {
        last = n + (i != 0);
        n += (size_t)snprintf(text + n, sizeof(text) - n,
            "%sabcdefghijabcdefghijabcdefghij%c:bf16:123", i ? "," : "",
            'a' + (char)i);
    }
    /* 25 fields of 41 bytes with their commas are 1024 less one. */
    T_TRUE(last > LAYOUT_TEXT_MAX - 42);
    text[last - 1] = 0;
    if (last - 1 <= LAYOUT_TEXT_MAX)
        (void)parse(text);
    text[last - 1] = ',';
    refused(text, (uint32_t)last);
}

TEST(regions)
{
    struct layout l = parse("a:bf16:3,b:i64:1,c:bool:1");
    uint64_t at[LAYOUT_FIELDS_MAX], bytes;

    T_TRUE(layout_place(&l, 1000, 4096, at, &bytes));
    T_EQ_U64(at[0], 0);
    T_EQ_U64(at[1], 8192);  /* 6000 up */
    T_EQ_U64(at[2], 16384); /* 8000 up */
    T_EQ_U64(bytes, 16384 + 4096);
    T_TRUE(layout_place(&l, 0, 4096, at, &bytes));
    T_EQ_U64(bytes, 0);
    T_TRUE(layout_place(&l, 1, 1, at, &bytes));
    T_EQ_U64(bytes, 15);
}

TEST(regions_that_are_too_large)
{
    struct layout l = parse("a:u8:1,b:u8:1");
    uint64_t at[LAYOUT_FIELDS_MAX] = {7}, bytes = 7;

    T_FALSE(layout_place(&l, UINT64_MAX, 4096, at, &bytes));
    T_FALSE(layout_place(&l, UINT64_C(1) << 62, 4096, at, &bytes));
    T_FALSE(layout_place(&l, 1, 0, at, &bytes));
    T_FALSE(layout_place(&l, 1, UINT64_MAX, at, &bytes));
    T_EQ_U64(bytes, 7);
    T_EQ_U64(at[0], 7);
    l = parse("a:u8:2");
    T_FALSE(layout_place(&l, UINT64_MAX, 4096, at, &bytes));
    l = parse("a:u8:1,b:u8:1");
    T_TRUE(layout_place(&l, UINT64_C(1) << 61, 4096, at, &bytes));
    T_EQ_U64(bytes, UINT64_C(1) << 62);
}

TEST(units)
{
    struct layout wide = parse("a:bf16:16384"), thin = parse("a:u8:4704");

    T_EQ_U64(layout_unit_rows(&wide, 128), 1);
    T_EQ_U64(layout_unit_rows(&thin, 128), 4); /* 8 rows are 37,632 bytes */
    T_EQ_U64(layout_unit_rows(&thin, 6), 2);
    T_EQ_U64(layout_unit_rows(&thin, 7), 1);
    thin = parse("a:u8:1");
    T_EQ_U64(layout_unit_rows(&thin, 128), 128);
    T_EQ_U64(layout_unit_rows(&thin, 1 << 20), 32768);
    wide = parse("a:u8:16777216");
    T_EQ_U64(layout_unit_rows(&wide, 128), 1);
    T_EQ_U64(layout_part_rows(&wide, 1), 1);
}

TEST(parts_are_whole_units)
{
    struct layout l = parse("a:u8:4704");
    uint32_t unit = layout_unit_rows(&l, 128);
    uint32_t part = layout_part_rows(&l, unit);

    T_EQ_U64(part % unit, 0);
    T_TRUE(part * 4704u <= PART_BYTES);
    T_TRUE((part + unit) * 4704u > PART_BYTES);
}
