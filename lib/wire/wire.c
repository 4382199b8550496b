/* wire.c - see wire.h. The tables give one function per message and direction:
 * linear code, no reflection at run time, and one check of the space for all
 * fields of fixed size. Bytes behind the last field are skipped. Rejected:
 * text, whose meaning must be guessed, and struct overlays, which trust a
 * compiler's padding. Pure; any thread. */
#include "wire/wire.h"

#include "base/check.h"

#include <stdio.h>

_Static_assert(LOCAL_HEADER == 2 + 2 + 4 + 4, "header of a local frame");
_Static_assert(PEER_HEADER == 4 + 1 + 1 + 2 + 4 + 4 + 4 * 8, "of a peer frame");
_Static_assert(sizeof(struct key) == KEY_BYTES, "a key is its bytes");
_Static_assert(sizeof(struct secret) == SECRET_BYTES, "so is a secret");

/* How a field's kind is written at p and read at c. The space was checked
 * before: the least size of a frame is a sum of constants. */

struct cursor {
    const uint8_t *p; /* space for all fields of fixed size follows, */
    size_t spare;     /* and this many bytes for texts */
    bool failed;      /* a text needed more */
};

#define SET_AND_TAKE(kind, set, take)                                          \
    static inline uint8_t *set_##kind(uint8_t *p, wire_##kind v)               \
    {                                                                          \
        v = set(v);                                                            \
        memcpy(p, &v, sizeof(v));                                              \
        return p + sizeof(v);                                                  \
    }                                                                          \
    static inline wire_##kind take_##kind(struct cursor *c)                    \
    {                                                                          \
        wire_##kind v;                                                         \
                                                                               \
        memcpy(&v, c->p, sizeof(v));                                           \
        c->p += sizeof(v);                                                     \
        return take(v);                                                        \
    }
#define AS_IT_IS(v) (v)
SET_AND_TAKE(u8, AS_IT_IS, AS_IT_IS)
SET_AND_TAKE(u16, htole16, le16toh)
SET_AND_TAKE(u32, htole32, le32toh)
SET_AND_TAKE(u64, htole64, le64toh)
SET_AND_TAKE(key, AS_IT_IS, AS_IT_IS)
SET_AND_TAKE(secret, AS_IT_IS, AS_IT_IS)

static inline uint8_t *set_bytes(uint8_t *p, struct span s)
{
    if (s.len > 0)
        memcpy(p, s.p, s.len);
    return p + s.len;
}

/* Returns the space that a text needs; more than any frame has if it exceeds
 * its limit. */
static inline size_t text_bytes(struct span s, uint32_t max)
{
    return s.len <= max ? s.len : UINT32_MAX;
}

/* Reads the bytes of a text; marks the frame if the text exceeds its limit. */
static struct span take_text(struct cursor *c, uint32_t len, uint32_t max,
    struct wire_fault *f, const char *field)
{
    struct span s = {c->p, len};

    if (len > max && !c->failed)
        *f = (struct wire_fault){field, len, max, true};
    if (len > max || len > c->spare || c->failed) {
        c->failed = true;
        return span_of(NULL, 0);
    }
    c->p += len;
    c->spare -= len;
    return s;
}

/* Records the first field of a frame with unknown bits. */
static inline void check_bits(
    struct wire_fault *f, const char *field, uint64_t value, uint64_t known)
{
    if ((value & ~known) && !f->field)
        *f = (struct wire_fault){field, value, known, false};
}

/* Reserves space for a frame; NULL: it does not fit, nothing is reserved. */
static inline uint8_t *frame_take(struct writer *w, size_t bytes)
{
    bool fits = !w->failed && bytes <= w->cap - w->len;
    uint8_t *p = w->p + w->len;

    w->len += fits ? bytes : 0;
    return fits ? p : NULL;
}

_Static_assert(UINT32_MAX > PEER_PACKET_MAX && PEER_PACKET_MAX > AUX_MAX,
    "a text that is too long fits into nothing");
_Static_assert(sizeof(wire_u16) == 2 && sizeof(wire_u32) == 4, "lengths");

/* Begins to read a frame's body, which must have at least `least` bytes. */
static inline struct cursor cursor_of(struct span body, size_t least)
{
    bool cut = body.len < least;

    return (struct cursor){body.p, cut ? 0 : body.len - least, cut};
}

/* Returns the result of reading a frame. Unknown bits of a cut frame are
 * ignored. */
static inline enum err finished(const struct cursor *c, struct wire_fault *f)
{
    if (c->failed && !f->length)
        f->field = NULL;
    return c->failed || f->field ? ERR_MALFORMED : OK;
}

/* per message: its least bytes, its bytes, one put_ and one get_ function */

#define FIELD(name, kind, doc) +sizeof(wire_##kind)
#define TEXT(name, max, doc)   +2
#define BLOB(name, max, doc)   +4
#define END(NAME, name)                                                        \
    }                                                                          \
    ;
#define FRAME(WIRE, wire, NAME, name, number, doc)                             \
    enum { WIRE##_LEAST_##NAME = 0
#include "wire/messages.def"

#define FIELD(name, kind, doc) +sizeof(wire_##kind)
#define TEXT(name, max, doc)   +2 + text_bytes(m->name, max)
#define BLOB(name, max, doc)   +4 + text_bytes(m->name, max)
#define END(NAME, name)                                                        \
    ;                                                                          \
    }
#define FRAME(WIRE, wire, NAME, name, number, doc)                             \
    static inline size_t wire##_bytes_##name(const struct wire##_##name *m)    \
    {                                                                          \
        (void)m;                                                               \
        return 0
#include "wire/messages.def"

#define FIELD(name, kind, doc) p = set_##kind(p, m->name);
#define TEXT(name, max, doc)                                                   \
    p = set_bytes(set_u16(p, (uint16_t)m->name.len), m->name);
#define BLOB(name, max, doc) p = set_bytes(set_u32(p, m->name.len), m->name);
#define END(NAME, name)                                                        \
    return p;                                                                  \
    }
#define FRAME(WIRE, wire, NAME, name, number, doc)                             \
    static uint8_t *wire##_put_##name(                                         \
        struct writer *w, const struct wire##_##name *m)                       \
    {                                                                          \
        uint8_t *p = frame_take(w, WIRE##_HEADER + wire##_bytes_##name(m));    \
                                                                               \
        if (!p)                                                                \
            return NULL;                                                       \
        p += WIRE##_HEADER;
#include "wire/messages.def"

#undef FLAGS
#define FLAGS(name, kind, known, doc)                                          \
    m->name = take_##kind(&c);                                                 \
    check_bits(f, #name, m->name, known);
#define FIELD(name, kind, doc) m->name = take_##kind(&c);
#define TEXT(name, max, doc)                                                   \
    m->name = take_text(&c, take_u16(&c), max, f, #name);
#define BLOB(name, max, doc)                                                   \
    m->name = take_text(&c, take_u32(&c), max, f, #name);
#define END(NAME, name)                                                        \
    return finished(&c, f);                                                    \
    }
#define FRAME(WIRE, wire, NAME, name, number, doc)                             \
    static enum err wire##_get_##name(                                         \
        struct span body, struct wire##_##name *m, struct wire_fault *f)       \
    {                                                                          \
        struct cursor c = cursor_of(body, WIRE##_LEAST_##NAME);                \
                                                                               \
        if (c.failed) {                                                        \
            memset(m, 0, sizeof(*m));                                          \
            return finished(&c, f);                                            \
        }
#include "wire/messages.def"

#define FIELD(name, kind, doc)
#define TEXT(name, max, doc)
#define BLOB(name, max, doc)
#undef FLAGS
#define FLAGS(name, kind, known, doc)
#define END(NAME, name)

/* frames */

bool local_put(struct writer *w, const struct local_msg *m)
{
    size_t start = w->len;
    uint8_t *p = NULL;

    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        p = local_put_##name(w, &m->name);                                     \
        break;
#include "wire/local.def"
    }
    w->failed = false;
    if (!p)
        return false;
    CHECK(p == w->p + w->len, "%s ends elsewhere", local_name(m->type));
    p = set_u16(w->p + start, (uint16_t)m->type);
    p = set_u16(p, 0);
    p = set_u32(p, (uint32_t)(w->len - start - LOCAL_HEADER));
    (void)set_u32(p, m->seq);
    return true;
}

/* Skips the rest, which cannot be split into frames. */
static enum err no_frame(struct reader *r)
{
    r->at = r->len;
    r->failed = false;
    return ERR_MALFORMED;
}

enum err local_get(struct reader *r, struct local_msg *m)
{
    struct cursor c = {.p = r->p + r->at};
    uint16_t zero;
    uint32_t len;

    m->fault = (struct wire_fault){0};
    if (r->at == r->len)
        return ERR_NOT_READY;
    m->type = 0;
    m->seq = 0;
    if (r->len - r->at < LOCAL_HEADER)
        return no_frame(r);
    m->type = take_u16(&c);
    zero = take_u16(&c);
    len = take_u32(&c);
    m->seq = take_u32(&c);
    if (len > r->len - r->at - LOCAL_HEADER)
        return no_frame(r);
    r->at += LOCAL_HEADER + len;
    check_bits(&m->fault, "zero", zero, 0);
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        return local_get_##name(span_of(c.p, len), &m->name, &m->fault);
#include "wire/local.def"
    }
    return ERR_BUSY;
}

bool peer_put(struct writer *w, const struct peer_msg *m)
{
    size_t start = w->len;
    uint8_t *p = NULL;

    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        p = peer_put_##name(w, &m->name);                                      \
        break;
#include "wire/peer.def"
    }
    w->failed = false;
    if (!p)
        return false;
    CHECK(p == w->p + w->len, "%s ends elsewhere", peer_name(m->type));
    p = set_u32(w->p + start, PEER_MAGIC);
    p = set_u8(p, WIRE_VERSION);
    p = set_u8(p, (uint8_t)m->type);
    p = set_u16(p, 0);
    p = set_u32(p, m->seq);
    p = set_u32(p, (uint32_t)(w->len - start - PEER_HEADER));
    p = set_u64(p, m->from_epoch);
    p = set_u64(p, m->to_epoch);
    p = set_u64(p, m->room);
    (void)set_u64(p, m->generation);
    return true;
}

enum err peer_get(struct reader *r, struct peer_msg *m)
{
    struct cursor c = {.p = r->p + r->at};
    uint32_t magic, len;
    uint8_t version;
    uint16_t zero;

    m->fault = (struct wire_fault){0};
    if (r->at == r->len)
        return ERR_NOT_READY;
    m->type = 0;
    if (r->len - r->at < PEER_HEADER)
        return no_frame(r);
    magic = take_u32(&c);
    version = take_u8(&c);
    m->type = take_u8(&c);
    zero = take_u16(&c);
    m->seq = take_u32(&c);
    len = take_u32(&c);
    m->from_epoch = take_u64(&c);
    m->to_epoch = take_u64(&c);
    m->room = take_u64(&c);
    m->generation = take_u64(&c);
    if (magic != PEER_MAGIC || len > r->len - r->at - PEER_HEADER)
        return no_frame(r);
    r->at += PEER_HEADER + len;
    if (version != WIRE_VERSION)
        return ERR_VERSION;
    check_bits(&m->fault, "zero", zero, 0);
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        return peer_get_##name(span_of(c.p, len), &m->name, &m->fault);
#include "wire/peer.def"
    }
    return ERR_BUSY;
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
    }
    return "unknown";
}

bool orders_path(const char *path, char out[SOCKET_PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) : 0;

    return folder > 0 && snprintf(out, SOCKET_PATH_MAX, "%.*s-admin%s", folder,
                             path, slash) < SOCKET_PATH_MAX;
}
