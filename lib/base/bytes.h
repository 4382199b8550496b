/* bytes.h - bounds-checked little-endian writer and reader with a sticky error:
 * a series of calls is checked once, at its end. Nothing here allocates, aligns
 * or trusts a length. */
#ifndef MMX_BASE_BYTES_H
#define MMX_BASE_BYTES_H

#include "base/base.h"

#include <endian.h>
#include <string.h>

/* Bytes that another object owns, often a message buffer. */
struct span {
    const uint8_t *p;
    uint32_t len;
};

static inline struct span span_of(const void *p, size_t len)
{
    return (struct span){(const uint8_t *)p, (uint32_t)len};
}

static inline struct span span_str(const char *s)
{
    return span_of(s, strlen(s));
}

static inline bool span_eq(struct span a, struct span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

/* FNV-1a 64: its first value, and its value after more bytes. It has no key:
 * others can make collisions. */
#define FNV_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t fnv(uint64_t h, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

static inline uint64_t span_hash(struct span s)
{
    return fnv(FNV_BEGIN, s.p, s.len);
}

/* Copies at most size - 1 bytes and ends them with 0. */
static inline void span_copy_str(struct span s, char *out, size_t size)
{
    size_t n = s.len < size ? s.len : size - 1;

    if (n)
        memcpy(out, s.p, n);
    out[n] = 0;
}

struct writer {
    uint8_t *p;
    size_t len, cap;
    bool failed; /* something did not fit; p[0..len) is complete before it */
};

struct reader {
    const uint8_t *p;
    size_t len, at;
    bool failed; /* something was missing; every later value is 0 */
};

static inline struct writer writer_of(void *p, size_t cap)
{
    return (struct writer){(uint8_t *)p, 0, cap, false};
}

static inline struct reader reader_of(const void *p, size_t len)
{
    return (struct reader){(const uint8_t *)p, len, 0, false};
}

static inline void put_bytes(struct writer *w, const void *p, size_t n)
{
    if (w->failed || n > w->cap - w->len) {
        w->failed = true;
        return;
    }
    if (n)
        memcpy(w->p + w->len, p, n);
    w->len += n;
}

static inline void put_uint(struct writer *w, uint64_t v, unsigned n)
{
    v = htole64(v);
    put_bytes(w, &v, n);
}

/* Returns n bytes inside the reader's buffer, or NULL and fails. */
static inline const uint8_t *get_bytes(struct reader *r, size_t n)
{
    const uint8_t *p = r->p + r->at;

    if (r->failed || n > r->len - r->at) {
        r->failed = true;
        return NULL;
    }
    r->at += n;
    return p;
}

static inline uint64_t get_uint(struct reader *r, unsigned n)
{
    const uint8_t *p = get_bytes(r, n);
    uint64_t v = 0;

    if (p)
        memcpy(&v, p, n);
    return le64toh(v);
}

static inline void put_u8(struct writer *w, uint8_t v)
{
    put_uint(w, v, 1);
}
static inline void put_u16(struct writer *w, uint16_t v)
{
    put_uint(w, v, 2);
}
static inline void put_u32(struct writer *w, uint32_t v)
{
    put_uint(w, v, 4);
}
static inline void put_u64(struct writer *w, uint64_t v)
{
    put_uint(w, v, 8);
}
static inline uint8_t get_u8(struct reader *r)
{
    return (uint8_t)get_uint(r, 1);
}
static inline uint16_t get_u16(struct reader *r)
{
    return (uint16_t)get_uint(r, 2);
}
static inline uint32_t get_u32(struct reader *r)
{
    return (uint32_t)get_uint(r, 4);
}
static inline uint64_t get_u64(struct reader *r)
{
    return get_uint(r, 8);
}

/* Appends a length of `width` bytes, then the bytes; more than `max` fails. */
static inline void put_span(
    struct writer *w, struct span s, unsigned width, uint32_t max)
{
    if (s.len > max) {
        w->failed = true;
        return;
    }
    put_uint(w, s.len, width);
    put_bytes(w, s.p, s.len);
}

static inline struct span get_span(
    struct reader *r, unsigned width, uint32_t max)
{
    uint64_t n = get_uint(r, width);
    const uint8_t *p;

    if (n > max)
        r->failed = true;
    p = get_bytes(r, r->failed ? 0 : (size_t)n);
    return r->failed ? span_of(NULL, 0) : span_of(p, (size_t)n);
}

#endif
