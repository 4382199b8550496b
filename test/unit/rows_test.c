/* Rows of a report: a reader gets what was written; rows that are cut or
 * unknown are refused. */
#include "wire/rows.h"

#include "test/t.h"

static const struct cell cells[] = {{.kind = CELL_ROW},
    {CELL_TEXT, {(const uint8_t *)"name", 4},
        {(const uint8_t *)"a\"\n\x1b\xff\xc3\xa4", 7}, 0},
    {CELL_NUMBER, {(const uint8_t *)"n", 1}, {NULL, 0}, UINT64_MAX},
    {.kind = CELL_ROW}, {CELL_NUMBER, {(const uint8_t *)"", 0}, {NULL, 0}, 7}};

static struct writer written(uint8_t *out, size_t size)
{
    struct writer w = writer_of(out, size);

    for (size_t i = 0; i < ARRAY_LEN(cells); i++) {
        size_t before = w.len;

        cell_put(&w, &cells[i]);
        T_TRUE(w.len - before <= cell_bytes(&cells[i]));
    }
    T_TRUE(!w.failed);
    return w;
}

TEST(what_is_written_is_read)
{
    uint8_t out[256];
    struct writer w = written(out, sizeof(out));
    struct reader r = reader_of(out, w.len);
    struct cell c;

    for (size_t i = 0; i < ARRAY_LEN(cells); i++) {
        T_TRUE(cell_get(&r, &c));
        T_EQ_U64(c.kind, cells[i].kind);
        T_TRUE(span_eq(c.name, cells[i].name));
        T_TRUE(span_eq(c.text, cells[i].text));
        T_EQ_U64(c.number, cells[i].number);
    }
    T_TRUE(!cell_get(&r, &c));
    T_TRUE(!r.failed);
}

TEST(a_cut_or_unknown_cell_ends_the_rows)
{
    uint8_t out[256];
    struct writer w = written(out, sizeof(out));
    struct cell c;

    for (size_t cut = 0; cut < w.len; cut++) {
        struct reader r = reader_of(out, cut);
        size_t n = 0;

        while (cell_get(&r, &c))
            n++;
        T_TRUE(n < ARRAY_LEN(cells));
        T_TRUE(!cell_get(&r, &c));
    }
    for (unsigned kind = 0; kind < 256; kind++) {
        const uint8_t one[16] = {(uint8_t)kind};
        struct reader r = reader_of(one, sizeof(one));

        T_EQ_U64(cell_get(&r, &c), kind >= CELL_ROW && kind <= CELL_NUMBER);
    }
}
