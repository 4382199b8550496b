/* text_test.c - texts of other programs, against a second decoder that follows
 * the table of the Unicode standard (3-7). */
#include "base/text.h"
#include "test/t.h"

/* Rows of that table: the bounds of each byte of a well-formed character. */
static const struct {
    unsigned len;
    uint8_t from[4], to[4];
} forms[] = {
    {1, {0x00}, {0x7f}},
    {2, {0xc2, 0x80}, {0xdf, 0xbf}},
    {3, {0xe0, 0xa0, 0x80}, {0xe0, 0xbf, 0xbf}},
    {3, {0xe1, 0x80, 0x80}, {0xec, 0xbf, 0xbf}},
    {3, {0xed, 0x80, 0x80}, {0xed, 0x9f, 0xbf}},
    {3, {0xee, 0x80, 0x80}, {0xef, 0xbf, 0xbf}},
    {4, {0xf0, 0x90, 0x80, 0x80}, {0xf0, 0xbf, 0xbf, 0xbf}},
    {4, {0xf1, 0x80, 0x80, 0x80}, {0xf3, 0xbf, 0xbf, 0xbf}},
    {4, {0xf4, 0x80, 0x80, 0x80}, {0xf4, 0x8f, 0xbf, 0xbf}},
};

static size_t expected(const uint8_t *p, size_t n)
{
    if (p[0] < 0x20 || p[0] == 0x7f || (n > 1 && p[0] == 0xc2 && p[1] < 0xa0))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        unsigned k = 0;

        while (k < forms[i].len && k < n && p[k] >= forms[i].from[k] &&
               p[k] <= forms[i].to[k])
            k++;
        if (k == forms[i].len)
            return k;
    }
    return 0;
}

TEST(characters)
{
    uint64_t seed = 3;
    uint8_t p[4];

    for (unsigned i = 0; i < 1u << 16; i++) { /* all pairs of first bytes */
        p[0] = (uint8_t)(i >> 8);
        p[1] = (uint8_t)i;
        for (unsigned k = 0; k < 16; k++) {
            p[2] = (uint8_t)t_rand_below(&seed, 256);
            p[3] = (uint8_t)(0x70 + t_rand_below(&seed, 96));
            if (k & 1)
                p[2] = (uint8_t)(0x80 | (p[2] & 0x3f));
            for (size_t n = 1; n <= 4; n++)
                T_EQ_U64(text_char((char *)p, n), expected(p, n));
        }
    }
}

static void copies(const char *in, size_t n, size_t size, const char *want)
{
    char out[64];

    memset(out, '#', sizeof(out));
    text_copy(span_of(in, n), out, size);
    T_EQ_STR(out, want);
    T_TRUE(strlen(out) < size);
    T_EQ_U64(out[size], '#');
}

TEST(copies_are_clean_and_cut_before_a_character)
{
    copies("plain", 5, 60, "plain");
    copies("", 0, 1, "");
    copies("abc", 3, 1, "");
    copies("abc", 3, 3, "ab");
    copies("gr\xc3\xbc\xc3\x9f", 6, 60, "gr\xc3\xbc\xc3\x9f");
    copies("gr\xc3\xbc\xc3\x9f", 6, 6, "gr\xc3\xbc");
    copies("gr\xc3\xbc\xc3\x9f", 6, 4, "gr");
    copies("\x1b[31m", 5, 60, "?[31m");
    copies("a\xff\xc3(\xe2\x82z\n\0\x7f", 10, 60,
        "a?"
        "?(?"
        "?z?"
        "??");
    copies("\xc2\x9bx", 3, 60, "??x"); /* the control character CSI */
    copies("\xed\xa0\x80\xc0\x80", 5, 60, "?????");
    copies("\xe2\x82", 2, 60, "??"); /* the text ends inside of a character */
}

TEST(noise_becomes_clean_in_place)
{
    uint64_t seed = 5;
    char p[40], q[41];

    for (unsigned i = 0; i < 100000; i++) {
        size_t n = t_rand_below(&seed, sizeof(p) + 1);

        t_rand_bytes(&seed, (uint8_t *)p, n);
        text_copy(span_of(p, n), q, sizeof(q));
        T_EQ_U64(text_is_clean(span_of(p, n)), memcmp(p, q, n) == 0);
        text_clean(p, n);
        T_TRUE(text_is_clean(span_of(p, n)));
        T_EQ_MEM(p, q, n);
    }
}

TEST(a_number_has_one_spelling)
{
    static const char *const bad[] = {"", "01", "00", " 1", "1 ", "+1", "-1",
        "0x1", "1a", "18446744073709551616", "99999999999999999999"};
    uint64_t v = 7;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        T_CHECK(!text_number(span_str(bad[i]), UINT64_MAX, &v), "%s", bad[i]);
    T_FALSE(text_number(span_str("256"), 255, &v));
    T_EQ_U64(v, 7);
    T_TRUE(text_number(span_str("0"), 0, &v));
    T_EQ_U64(v, 0);
    T_TRUE(text_number(span_str("18446744073709551615"), UINT64_MAX, &v));
    T_EQ_U64(v, UINT64_MAX);
}
