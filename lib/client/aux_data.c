/* aux_data.c - writes and reads aux, the data that engines send beside rows.
 * Pure; any thread.
 *
 *   header   'M' 'X' 'A', version, u32 bytes of the whole
 *   record   u16 tag, u16 zero, u32 bytes of the values, the values, zeros up
 *            to the next multiple of 8
 *
 * An aux has at most 32 KiB. Records beyond that, always the last ones, lie in
 * rows of their own behind the item's rows. The record REST, with the highest
 * tag, has the number of their bytes.
 *
 * Numbers are little-endian. Tags ascend and padding is zero, so that equal
 * values have equal bytes. Every read checks the whole aux first, which takes
 * less time than a copy. */
#include "client/mmx_aux.h"

#include "base/bytes.h"
#include "base/check.h"
#include "client/mmx.h"
#include "wire/wire.h"

#define VERSION    1
#define HEADER     8
#define RECORD     8
#define MUST       0x8000u
#define REST_BYTES 16 /* of its record */

_Static_assert(MMX_AUX_MAX == AUX_MAX, "wire.h has the limit");
#define AUX(NAME, tag, type, per, entries, doc)                                \
    _Static_assert(                                                            \
        MMX_AUX_##NAME == (tag), "aux_data.def and mmx_aux.h differ");
#include "client/aux_data.def"

enum { ENTRIES_any, ENTRIES_one };
enum kind { KIND_u32, KIND_i32, KIND_f64, KIND_bytes };

static const struct row {
    uint16_t tag;
    uint8_t kind, per;
    bool one; /* a single entry */
} rows[] = {
#define AUX(NAME, tag, type, per, entries, doc)                                \
    {tag, KIND_##type, per, ENTRIES_##entries},
#include "client/aux_data.def"
};

/* Returns the tag's row, or NULL. */
static const struct row *row_of(uint32_t tag)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].tag == tag)
            return &rows[i];
    return NULL;
}

static uint32_t width_of(const struct row *row)
{
    return row->kind == KIND_f64 ? 8 : row->kind <= KIND_i32 ? 4 : 1;
}

/* True if the values can be of this row. */
static bool fits(const struct row *row, size_t bytes)
{
    size_t entry = width_of(row) * row->per;

    return bytes && bytes % entry == 0 && (!row->one || bytes == entry);
}

static size_t rounded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

void mmx_aux_begin(struct mmx_aux *a, void *mem, size_t size)
{
    *a = (struct mmx_aux){.mem = mem,
        .size = size < MMX_AUX_WHOLE ? size : MMX_AUX_WHOLE,
        .used = HEADER};
    if (a->size < HEADER)
        a->failed = -MMX_E_TOO_LARGE;
}

/* Copies values between the host's order of bytes and the wire's. */
static void move(void *to, const void *from, size_t bytes, uint32_t width)
{
    if (width == 1 || BYTE_ORDER == LITTLE_ENDIAN) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] =
            ((const uint8_t *)from)[i / width * width + width - 1 - i % width];
}

int mmx_aux_put(
    struct mmx_aux *a, enum mmx_aux_tag tag, const void *values, size_t n)
{
    const struct row *row = row_of(tag);
    struct writer w;
    size_t bytes;

    if (a->failed)
        return a->failed;
    if (!row || tag <= a->last || !n)
        return a->failed = -MMX_E_MALFORMED;
    if (n > MMX_AUX_WHOLE)
        return a->failed = -MMX_E_TOO_LARGE;
    bytes = n * width_of(row);
    if (!fits(row, bytes))
        return a->failed = -MMX_E_MALFORMED;
    CHECK(a->used <= a->size, "%zu of %zu", a->used, a->size);
    if (RECORD + rounded(bytes) > a->size - a->used)
        return a->failed = -MMX_E_TOO_LARGE;
    w = writer_of(a->mem + a->used, RECORD);
    put_u16(&w, (uint16_t)tag);
    put_u16(&w, 0);
    put_u32(&w, (uint32_t)bytes);
    move(w.p + RECORD, values, bytes, width_of(row));
    memset(w.p + RECORD + bytes, 0, rounded(bytes) - bytes);
    a->used += RECORD + rounded(bytes);
    a->last = tag;
    return 0;
}

/* Writes the header of an aux that has `bytes` bytes. Returns `bytes`. */
static int headed(void *mem, size_t bytes)
{
    struct writer w = writer_of(mem, HEADER);

    put_bytes(&w, "MXA", 3);
    put_u8(&w, VERSION);
    put_u32(&w, (uint32_t)bytes);
    CHECK(!w.failed && w.len == HEADER, "%zu bytes", w.len);
    return (int)bytes;
}

int mmx_aux_end(struct mmx_aux *a)
{
    return a->failed ? a->failed : headed(a->mem, a->used);
}

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* Reads one record; the values lie inside the buffer. */
static int record(struct reader *r, uint32_t *tag, struct span *values)
{
    const struct row *row;
    const uint8_t *fill;
    uint32_t zero;

    *tag = get_u16(r);
    zero = get_u16(r);
    *values = get_span(r, 4, MMX_AUX_WHOLE);
    fill = get_bytes(r, rounded(values->len) - values->len);
    if (r->failed || zero || !values->len ||
        !is_zero(fill, rounded(values->len) - values->len))
        return -MMX_E_MALFORMED;
    row = row_of(*tag);
    if (!row)
        return *tag & MUST ? -MMX_E_VERSION : 0;
    return fits(row, values->len) ? 0 : -MMX_E_MALFORMED;
}

/* Checks the whole aux; *found: the values of tag `wanted`, if it is there. */
static int walk(
    const void *aux, size_t len, uint32_t wanted, struct span *found)
{
    struct reader r = reader_of(aux, len);
    const uint8_t *magic = get_bytes(&r, 3);
    uint32_t version = get_u8(&r), all = get_u32(&r), last = 0, tag;
    struct span values;

    if (r.failed || memcmp(magic, "MXA", 3) != 0)
        return -MMX_E_MALFORMED;
    if (version != VERSION)
        return -MMX_E_VERSION;
    if (all != len || len > MMX_AUX_WHOLE)
        return -MMX_E_MALFORMED;
    for (; r.at < len; last = tag) {
        int e = record(&r, &tag, &values);

        if (e)
            return e;
        if (tag <= last)
            return -MMX_E_MALFORMED;
        if (tag == wanted)
            *found = values;
    }
    return 0;
}

int mmx_aux_check(const void *aux, size_t len)
{
    return walk(aux, len, 0, NULL);
}

int mmx_aux_at(
    const void *aux, size_t len, enum mmx_aux_tag tag, const void **out)
{
    struct span found = {NULL, 0};
    const struct row *row = row_of(tag);
    int e = row ? walk(aux, len, tag, &found) : -MMX_E_MALFORMED;

    if (e)
        return e;
    if (found.len)
        *out = found.p;
    return (int)(found.len / width_of(row));
}

int mmx_aux_get(
    const void *aux, size_t len, enum mmx_aux_tag tag, void *out, size_t max)
{
    const void *values;
    int n = mmx_aux_at(aux, len, tag, &values);

    if (n <= 0)
        return n;
    if ((size_t)n > max)
        return -MMX_E_TOO_LARGE;
    move(out, values, (size_t)n * width_of(row_of(tag)), width_of(row_of(tag)));
    return n;
}

int mmx_aux_split(const void *whole, size_t len, void *aux, size_t *rest)
{
    struct reader r = reader_of(whole, len);
    struct mmx_aux a = {.mem = aux, .size = MMX_AUX_MAX};
    struct span values;
    const void *nested;
    uint32_t tag, bytes;
    int e = mmx_aux_at(whole, len, MMX_AUX_REST, &nested);

    if (e)
        return e < 0 ? e : -MMX_E_MALFORMED;
    for (a.used = r.at = HEADER; r.at < len; a.used = r.at) {
        e = record(&r, &tag, &values);
        CHECK(e == 0, "a record of a checked aux: %d", e);
        if (len > MMX_AUX_MAX && r.at > MMX_AUX_MAX - REST_BYTES)
            break;
    }
    *rest = a.used;
    bytes = (uint32_t)(len - a.used);
    memcpy(aux, whole, a.used);
    if (bytes)
        (void)mmx_aux_put(&a, MMX_AUX_REST, &bytes, 1);
    return mmx_aux_end(&a);
}

int mmx_aux_rest(
    const void *aux, size_t len, uint32_t total, uint32_t row_bytes)
{
    uint32_t bytes = 0;
    int n = len ? mmx_aux_get(aux, len, MMX_AUX_REST, &bytes, 1) : 0;

    if (n <= 0)
        return n;
    if (!bytes || !row_bytes)
        return -MMX_E_MALFORMED;
    if (len > MMX_AUX_MAX || bytes > MMX_AUX_WHOLE - len + REST_BYTES ||
        (bytes - 1) / row_bytes >= total)
        return -MMX_E_TOO_LARGE;
    return (int)((bytes - 1) / row_bytes + 1);
}

/* True if records begin at `rest` for which the aux had no space. */
static bool is_cut(size_t aux, const void *rest, size_t bytes)
{
    struct reader r = reader_of(rest, bytes);
    struct span values;
    uint32_t tag;

    return record(&r, &tag, &values) != -MMX_E_MALFORMED &&
           aux + r.at > MMX_AUX_MAX && aux + bytes > MMX_AUX_MAX + REST_BYTES;
}

int mmx_aux_join(const void *aux, size_t len, const void *rest, size_t rest_len,
    void *whole, size_t size)
{
    const void *nested;
    int n =
        len ? mmx_aux_rest(aux, len, (uint32_t)rest_len, 1) : -MMX_E_MALFORMED;
    size_t bytes = n > 0 ? (size_t)n : 0;
    /* the last tag of an aux that has a rest */
    size_t cut = bytes ? len - REST_BYTES : len;

    if (n < 0)
        return n;
    if (cut + bytes > size)
        return -MMX_E_TOO_LARGE;
    if (bytes && (!is_cut(len, rest, bytes) ||
                     !is_zero((const uint8_t *)rest + bytes, rest_len - bytes)))
        return -MMX_E_MALFORMED;
    memcpy(whole, aux, cut);
    if (bytes)
        memcpy((uint8_t *)whole + cut, rest, bytes);
    (void)headed(whole, cut + bytes);
    n = mmx_aux_at(whole, cut + bytes, MMX_AUX_REST, &nested);
    return n == 0 ? (int)(cut + bytes) : n < 0 ? n : -MMX_E_MALFORMED;
}
