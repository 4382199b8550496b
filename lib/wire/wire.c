/* wire.c - see wire.h. One function per message and direction comes out of
 * the tables: linear code, no reflection at run time. A frame may end before
 * any of its LATER fields: programs are around that do not know them. Text
 * wires and struct overlays were rejected: the first guess at meaning, the
 * second trust a compiler's padding. Pure; any thread. */
#include "wire/wire.h"

#include "base/check.h"

#include <stdio.h>

_Static_assert(LOCAL_HEADER == 2 + 2 + 4 + 4, "header of a local frame");
_Static_assert(PEER_HEADER == 4 + 1 + 1 + 2 + 4 + 4 + 4 * 8, "of a peer frame");
_Static_assert(sizeof(struct key) == KEY_BYTES, "a key is its bytes");
_Static_assert(sizeof(struct secret) == SECRET_BYTES, "so is a secret");
#define LOCAL_ABILITY(NAME, bit, doc) _Static_assert((bit) < 64, #NAME);
#define PEER_ABILITY(NAME, bit, doc)  _Static_assert((bit) < 64, #NAME);
#include "wire/ability.def"
#undef LOCAL_ABILITY
#undef PEER_ABILITY

static void put_key(struct writer *w, struct key k)
{
    put_bytes(w, k.b, sizeof(k.b));
}

static struct key get_key(struct reader *r)
{
    struct key k = {{0}};
    const uint8_t *p = get_bytes(r, sizeof(k.b));

    if (p)
        memcpy(k.b, p, sizeof(k.b));
    return k;
}

static void put_secret(struct writer *w, struct secret s)
{
    put_bytes(w, s.b, sizeof(s.b));
}

static struct secret get_secret(struct reader *r)
{
    struct secret s = {{0}};
    const uint8_t *p = get_bytes(r, sizeof(s.b));

    if (p)
        memcpy(s.b, p, sizeof(s.b));
    return s;
}

/* The value of a LATER field when the frame ends before it. */
#define none_u8(v)     ((uint8_t)(v))
#define none_u16(v)    ((uint16_t)(v))
#define none_u32(v)    ((uint32_t)(v))
#define none_u64(v)    ((uint64_t)(v))
#define none_key(v)    ((struct key){{v}})
#define none_secret(v) ((struct secret){{v}})

/* True if the frame goes on; a cut inside of a field fails in that field. */
static bool goes_on(const struct reader *r)
{
    return r->failed || r->at < r->len;
}

/* Notes the first field of a frame with bits that are not known. */
static void check_bits(
    struct wire_fault *f, const char *field, uint64_t value, uint64_t known)
{
    if ((value & ~known) && !f->field)
        *f = (struct wire_fault){field, value, known, false};
}

/* Takes a span as get_span does, and notes a length over the limit. */
static struct span get_text(struct reader *r, struct wire_fault *f,
    const char *field, unsigned width, uint32_t max)
{
    struct reader peek = *r;
    uint64_t n = get_uint(&peek, width);

    if (!peek.failed && n > max)
        *f = (struct wire_fault){field, n, max, true};
    return get_span(r, width, max);
}

/* one put_ and one get_ function per message */

#define END(NAME, name)        }
#define FIELD(name, kind, doc) put_##kind(w, m->name);
#define TEXT(name, max, doc)   put_span(w, m->name, 2, max);
#define BLOB(name, max, doc)   put_span(w, m->name, 4, max);
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_put_##name(                                              \
        struct writer *w, const struct local_##name *m)                        \
    {                                                                          \
        (void)w, (void)m;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_put_##name(struct writer *w, const struct peer_##name *m) \
    {                                                                          \
        (void)w, (void)m;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB

#undef FLAGS
#define FLAGS(name, kind, known, doc)                                          \
    m->name = get_##kind(r);                                                   \
    check_bits(f, #name, m->name, known);
#define FIELD(name, kind, doc) m->name = get_##kind(r);
#define TEXT(name, max, doc)   m->name = get_text(r, f, #name, 2, max);
#define BLOB(name, max, doc)   m->name = get_text(r, f, #name, 4, max);
#undef LATER
#undef LATER_TEXT
#undef LATER_BLOB
#define LATER(name, kind, none, doc)                                           \
    m->name = goes_on(r) ? get_##kind(r) : none_##kind(none);
#define LATER_TEXT(name, max, doc)                                             \
    m->name = goes_on(r) ? get_text(r, f, #name, 2, max) : span_of(NULL, 0);
#define LATER_BLOB(name, max, doc)                                             \
    m->name = goes_on(r) ? get_text(r, f, #name, 4, max) : span_of(NULL, 0);
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_get_##name(                                              \
        struct reader *r, struct local_##name *m, struct wire_fault *f)        \
    {                                                                          \
        (void)r, (void)m, (void)f;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_get_##name(                                               \
        struct reader *r, struct peer_##name *m, struct wire_fault *f)         \
    {                                                                          \
        (void)r, (void)m, (void)f;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB
#undef END

#undef LATER
#undef LATER_TEXT
#undef LATER_BLOB
#define FIELD(name, kind, doc)
#define TEXT(name, max, doc)
#define BLOB(name, max, doc)
#undef FLAGS
#define FLAGS(name, kind, known, doc)
#define LATER(name, kind, none, doc)
#define LATER_TEXT(name, max, doc)
#define LATER_BLOB(name, max, doc)
#define END(NAME, name)

/* bodies by type */

static void local_put_body(struct writer *w, const struct local_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        local_put_##name(w, &m->name);                                         \
        return;
#include "wire/local.def"
#undef MESSAGE
    }
    w->failed = true;
}

static void peer_put_body(struct writer *w, const struct peer_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        peer_put_##name(w, &m->name);                                          \
        return;
#include "wire/peer.def"
#undef MESSAGE
    }
    w->failed = true;
}

/* Reads the body; false: no such type. */
static bool local_get_body(struct reader *r, struct local_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        local_get_##name(r, &m->name, &m->fault);                              \
        return true;
#include "wire/local.def"
#undef MESSAGE
    }
    return false;
}

static bool peer_get_body(struct reader *r, struct peer_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        peer_get_##name(r, &m->name, &m->fault);                               \
        return true;
#include "wire/peer.def"
#undef MESSAGE
    }
    return false;
}

/* frames */

static void patch_u32(struct writer *w, size_t at, size_t v)
{
    struct writer patch = writer_of(w->p + at, 4);

    CHECK(at + 4 <= w->len, "%zu of %zu bytes", at, w->len);
    put_u32(&patch, (uint32_t)v);
}

/* Ends a frame; takes back one that did not fit, so that w can be sent. */
static bool finish(
    struct writer *w, size_t start, size_t length_at, size_t header)
{
    if (w->failed) {
        w->len = start;
        w->failed = false;
        return false;
    }
    patch_u32(w, length_at, w->len - start - header);
    return true;
}

/* Returns the result of a frame whose body was read. The bits of a cut one say
 * nothing. */
static enum err finished(const struct reader *body, struct wire_fault *f)
{
    if (body->failed && !f->length)
        f->field = NULL;
    return body->failed || f->field ? ERR_MALFORMED : OK;
}

bool local_put(struct writer *w, const struct local_msg *m)
{
    size_t start = w->len;

    put_u16(w, (uint16_t)m->type);
    put_u16(w, 0);
    put_u32(w, 0);
    put_u32(w, m->seq);
    local_put_body(w, m);
    return finish(w, start, start + 4, LOCAL_HEADER);
}

enum err local_get(struct reader *r, struct local_msg *m)
{
    struct reader body;
    uint16_t zero;
    uint32_t len;
    const uint8_t *p;

    m->fault = (struct wire_fault){0};
    if (!r->failed && r->at == r->len)
        return ERR_NOT_READY;
    m->type = get_u16(r);
    zero = get_u16(r);
    len = get_u32(r);
    m->seq = get_u32(r);
    p = get_bytes(r, len);
    if (r->failed) {
        r->at = r->len;
        r->failed = false;
        return ERR_MALFORMED;
    }
    body = reader_of(p, len);
    check_bits(&m->fault, "zero", zero, 0);
    if (!local_get_body(&body, m))
        return ERR_BUSY;
    return finished(&body, &m->fault);
}

bool peer_put(struct writer *w, const struct peer_msg *m)
{
    size_t start = w->len;

    put_u32(w, PEER_MAGIC);
    put_u8(w, WIRE_VERSION);
    put_u8(w, (uint8_t)m->type);
    put_u16(w, 0);
    put_u32(w, m->seq);
    put_u32(w, 0);
    put_u64(w, m->from_epoch);
    put_u64(w, m->to_epoch);
    put_u64(w, m->room);
    put_u64(w, m->generation);
    peer_put_body(w, m);
    return finish(w, start, start + 12, PEER_HEADER);
}

enum err peer_get(struct reader *r, struct peer_msg *m)
{
    struct reader body;
    uint32_t magic, len;
    uint8_t version;
    uint16_t zero;
    const uint8_t *p;

    m->fault = (struct wire_fault){0};
    if (!r->failed && r->at == r->len)
        return ERR_NOT_READY;
    magic = get_u32(r);
    version = get_u8(r);
    m->type = get_u8(r);
    zero = get_u16(r);
    m->seq = get_u32(r);
    len = get_u32(r);
    m->from_epoch = get_u64(r);
    m->to_epoch = get_u64(r);
    m->room = get_u64(r);
    m->generation = get_u64(r);
    p = get_bytes(r, len);
    if (r->failed || magic != PEER_MAGIC) {
        r->at = r->len;
        r->failed = false;
        return ERR_MALFORMED;
    }
    if (version != WIRE_VERSION)
        return ERR_VERSION;
    body = reader_of(p, len);
    check_bits(&m->fault, "zero", zero, 0);
    if (!peer_get_body(&body, m))
        return ERR_BUSY;
    return finished(&body, &m->fault);
}

const char *wire_fault_text(
    const struct wire_fault *f, char text[WIRE_FAULT_TEXT])
{
    CHECK(f->field, "no fault to show");
    snprintf(text, WIRE_FAULT_TEXT,
        f->length ? "%s has %llu bytes, at most %llu fit"
                  : "%s is 0x%llx, and only 0x%llx is known",
        f->field, (unsigned long long)f->value, (unsigned long long)f->known);
    return text;
}

const char *local_name(unsigned type)
{
    switch (type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        return #name;
#include "wire/local.def"
#undef MESSAGE
    }
    return "unknown";
}

const char *peer_name(unsigned type)
{
    switch (type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        return #name;
#include "wire/peer.def"
#undef MESSAGE
    }
    return "unknown";
}
