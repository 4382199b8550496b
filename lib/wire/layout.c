/* layout.c - see layout.h. Reads a layout's text into fields, and computes
 * where the fields' regions lie. The text is the identity, so it has only one
 * spelling: numbers without leading zeros, no spaces, fields in a fixed order.
 * Pure; any thread.
 *
 * Rejected: a struct layout on the wire and a hash of it (padding and order of
 * members would become protocol; a person could not read a mismatch). */
#include "wire/layout.h"

#include "base/check.h"
#include "base/text.h"

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
#define DTYPE(name, bytes, doc) {#name, bytes},
#include "wire/dtype.def"
};

#define DTYPE(name, bytes, doc)                                                \
    _Static_assert(sizeof(#name) <= sizeof((struct field){0}.dtype), #name);
#include "wire/dtype.def"

#define ELEMENTS_MAX (1u << 24)
_Static_assert(ROW_BYTES_MAX <= UINT32_MAX / 2, "rows add up in 32 bits");

uint32_t dtype_bytes(struct span dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
        if (span_eq(dtype, span_str(dtypes[i].name)))
            return dtypes[i].bytes;
    return 0;
}

/* reading */

static bool name_char(uint8_t c, bool first)
{
    return (c >= 'a' && c <= 'z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

/* Reads the bytes from *at to any of `stops` or the end. */
static struct span word(struct span text, uint32_t *at, const char *stops)
{
    uint32_t start = *at;

    while (*at < text.len &&
           (text.p[*at] == 0 || !strchr(stops, (char)text.p[*at])))
        ++*at;
    return span_of(text.p + start, *at - start);
}

static bool take(struct span text, uint32_t *at, char c)
{
    if (*at >= text.len || text.p[*at] != (uint8_t)c)
        return false;
    ++*at;
    return true;
}

static bool name_good(struct span name)
{
    if (name.len < 1 || name.len > LAYOUT_NAME_MAX)
        return false;
    for (uint32_t i = 0; i < name.len; i++)
        if (!name_char(name.p[i], i == 0))
            return false;
    return true;
}

/* Returns the number; 0: not a number from 1 to ELEMENTS_MAX in its only
 * spelling. */
static uint32_t elements_of(struct span s)
{
    uint64_t v;

    return text_number(s, ELEMENTS_MAX, &v) ? (uint32_t)v : 0;
}

static bool name_taken(const struct layout *l, struct span name)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (span_eq(name, span_str(l->fields[i].name)))
            return true;
    return false;
}

/* Reads one field at *at; on failure *at is where the bad word begins. */
static bool read_field(struct layout *l, struct span text, uint32_t *at)
{
    struct field *f = &l->fields[l->count];
    uint32_t start = *at, size;
    struct span name, dtype, number;
    uint64_t bytes;

    name = word(text, at, ":,");
    if (l->count == LAYOUT_FIELDS_MAX || !name_good(name) ||
        name_taken(l, name)) {
        *at = start;
        return false;
    }
    if (!take(text, at, ':'))
        return false;
    start = *at;
    dtype = word(text, at, ":,");
    size = dtype_bytes(dtype);
    if (!size) {
        *at = start;
        return false;
    }
    if (!take(text, at, ':'))
        return false;
    start = *at;
    number = word(text, at, ",");
    f->elements = elements_of(number);
    bytes = (uint64_t)f->elements * size;
    if (!f->elements || bytes + l->row_bytes > ROW_BYTES_MAX) {
        *at = start;
        return false;
    }
    span_copy_str(name, f->name, sizeof(f->name));
    span_copy_str(dtype, f->dtype, sizeof(f->dtype));
    f->row_bytes = (uint32_t)bytes;
    l->row_bytes += f->row_bytes;
    l->count++;
    return true;
}

/* Appends a field's bytes; a comma separates fields. */
static void append(struct writer *w, bool first, struct span field)
{
    if (!first)
        put_u8(w, ',');
    put_bytes(w, field.p, field.len);
}

enum err layout_parse(struct span text, struct layout *out, uint32_t *at)
{
    struct layout l = {.count = 0};
    struct writer w = writer_of(l.text, LAYOUT_TEXT_MAX);
    uint32_t i = 0;

    do {
        uint32_t start;

        while (l.count && take(text, &i, ' '))
            ;
        start = i;
        if (!read_field(&l, text, &i)) {
            *at = i;
            return ERR_MALFORMED;
        }
        append(&w, l.count == 1, span_of(text.p + start, i - start));
        if (w.failed) {
            *at = start;
            return ERR_MALFORMED;
        }
    } while (take(text, &i, ','));
    CHECK(l.count > 0 && l.count <= LAYOUT_FIELDS_MAX, "%u fields", l.count);
    l.hash = span_hash(span_of(l.text, w.len));
    *out = l;
    return OK;
}

/* placing */

#define POOL_BYTES_MAX (UINT64_C(1) << 62)

bool layout_place(const struct layout *l, uint64_t rows, uint64_t align,
    uint64_t offsets[LAYOUT_FIELDS_MAX], uint64_t *bytes)
{
    uint64_t at[LAYOUT_FIELDS_MAX], end = 0, n;

    CHECK(l->count <= LAYOUT_FIELDS_MAX, "%u fields", l->count);
    if (align == 0 || align > POOL_BYTES_MAX)
        return false;
    for (uint32_t i = 0; i < l->count; i++) {
        at[i] = end;
        if (__builtin_mul_overflow(rows, l->fields[i].row_bytes, &n) ||
            n > POOL_BYTES_MAX)
            return false;
        n = (n + align - 1) / align * align;
        if (n > POOL_BYTES_MAX - end)
            return false;
        end += n;
    }
    memcpy(offsets, at, l->count * sizeof(at[0]));
    *bytes = end;
    return true;
}

uint32_t layout_unit_rows(const struct layout *l, uint32_t block_rows)
{
    uint32_t unit = 1;

    while (block_rows && block_rows % (2 * unit) == 0 &&
           (uint64_t)2 * unit * l->row_bytes <= UNIT_BYTES)
        unit *= 2;
    return unit;
}

uint32_t layout_unit_most(const struct layout *l)
{
    return max_u32(UNIT_BYTES, l->row_bytes);
}

uint32_t layout_part_rows(const struct layout *l, uint32_t unit_rows)
{
    uint64_t unit_bytes = (uint64_t)unit_rows * l->row_bytes;
    uint64_t units = unit_bytes ? PART_BYTES / unit_bytes : 1;

    CHECK(unit_rows > 0, "a unit of no rows");
    return unit_rows * (uint32_t)(units ? units : 1);
}
