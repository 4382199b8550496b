/* wire_side.h - both wires as tables: what each message has, by local.def and
 * peer.def, and a second encoder without limits, which is PROTOCOL.md in
 * code. */
#ifndef MMX_TEST_WIRE_SIDE_H
#define MMX_TEST_WIRE_SIDE_H

#include "wire/wire.h"
#include "test/t.h"

struct field {
    const char *name;
    size_t at, bytes; /* offset in the struct of its message, and size */
    uint64_t known;   /* the bits of flags that exist */
    uint32_t max;     /* most bytes of a text or blob */
    /* bytes of a text's or blob's length; 0: any other field */
    unsigned width;
};

struct row {
    const char *name;
    unsigned type, count;
    struct field fields[32];
};

struct wire {
    struct row rows[48];
    unsigned count;
    bool (*put)(struct writer *w, const void *m);
    enum err (*get)(struct reader *r, void *m);
    /* bytes of a frame's header; where the length is in it */
    size_t header, length_at;
};

/* A message of either wire. */
struct msg {
    const struct wire *wire;
    const struct row *row;
    union {
        struct local_msg local;
        struct peer_msg peer;
    };
};

static inline void row_add(struct row *r, struct field f)
{
    T_TRUE(r->count < ARRAY_LEN(r->fields));
    r->fields[r->count++] = f;
}

#undef FLAGS
#define PLACE(id)                                                              \
    .name = #id, .at = offsetof(body, id), .bytes = sizeof(((body *)0)->id)
#define FLAGS(id, kind, bits, doc)                                             \
    row_add(r, (struct field){PLACE(id), .known = bits});
#define FIELD(id, kind, doc)                                                   \
    row_add(r, (struct field){PLACE(id), .known = UINT64_MAX});
#define TEXT(id, most, doc)                                                    \
    row_add(r, (struct field){PLACE(id), .max = most, .width = 2});
#define BLOB(id, most, doc)                                                    \
    row_add(r, (struct field){PLACE(id), .max = most, .width = 4});
#define END(NAME, id)                                                          \
    r++;                                                                       \
    }

static inline void local_rows(struct wire *wire)
{
    struct row *r = wire->rows;

#define MESSAGE(NAME, id, number, doc)                                         \
    {                                                                          \
        typedef struct local_##id body;                                        \
        (void)sizeof(body);                                                    \
        r->name = #id;                                                         \
        r->type = number;
#include "wire/local.def"
#undef MESSAGE
    wire->count = (unsigned)(r - wire->rows);
}

static inline void peer_rows(struct wire *wire)
{
    struct row *r = wire->rows;

#define MESSAGE(NAME, id, number, doc)                                         \
    {                                                                          \
        typedef struct peer_##id body;                                         \
        (void)sizeof(body);                                                    \
        r->name = #id;                                                         \
        r->type = number;
#include "wire/peer.def"
#undef MESSAGE
    wire->count = (unsigned)(r - wire->rows);
}
#undef FLAGS
#undef FIELD
#undef TEXT
#undef BLOB
#undef END
#undef PLACE

static inline bool put_local(struct writer *w, const void *m)
{
    return local_put(w, m);
}

static inline bool put_peer(struct writer *w, const void *m)
{
    return peer_put(w, m);
}

static inline enum err get_local(struct reader *r, void *m)
{
    return local_get(r, m);
}

static inline enum err get_peer(struct reader *r, void *m)
{
    return peer_get(r, m);
}

enum { LOCAL_WIRE, PEER_WIRE, WIRES };

static inline const struct wire *wire_of(unsigned which)
{
    static struct wire wires[WIRES] = {{.put = put_local,
                                           .get = get_local,
                                           .header = LOCAL_HEADER,
                                           .length_at = 4},
        {.put = put_peer,
            .get = get_peer,
            .header = PEER_HEADER,
            .length_at = 12}};

    if (wires[0].count == 0) {
        local_rows(&wires[LOCAL_WIRE]);
        peer_rows(&wires[PEER_WIRE]);
    }
    return &wires[which];
}

/* Returns an empty message of the row. */
static inline struct msg msg_of(const struct wire *wire, const struct row *row)
{
    struct msg m;

    memset(&m, 0, sizeof(m));
    m.wire = wire;
    m.row = row;
    if (wire == wire_of(LOCAL_WIRE))
        m.local.type = (enum local_type)row->type;
    else
        m.peer.type = (enum peer_type)row->type;
    return m;
}

static inline struct msg msg_of_type(unsigned which, unsigned type)
{
    const struct wire *wire = wire_of(which);
    const struct row *row = wire->rows;

    while (row->type != type)
        T_TRUE(++row < wire->rows + wire->count);
    return msg_of(wire, row);
}

static inline bool msg_put(struct writer *w, const struct msg *m)
{
    return m->wire->put(w, &m->local);
}

/* Reads into m, whose wire and row are set; the rest is overwritten. */
static inline enum err msg_get(struct reader *r, struct msg *m)
{
    memset(&m->peer, 0xee, sizeof(m->peer));
    return m->wire->get(r, &m->local);
}

static inline bool is_local(const struct msg *m)
{
    return m->wire == wire_of(LOCAL_WIRE);
}

static inline unsigned msg_type(const struct msg *m)
{
    return is_local(m) ? (unsigned)m->local.type : (unsigned)m->peer.type;
}

static inline uint32_t *msg_seq(struct msg *m)
{
    return is_local(m) ? &m->local.seq : &m->peer.seq;
}

static inline const struct wire_fault *msg_fault(const struct msg *m)
{
    return is_local(m) ? &m->local.fault : &m->peer.fault;
}

static inline uint8_t *msg_at(struct msg *m, const struct field *f)
{
    return (is_local(m) ? (uint8_t *)&m->local.hello
                        : (uint8_t *)&m->peer.hello) +
           f->at;
}

static inline struct span *msg_span(struct msg *m, const struct field *f)
{
    T_TRUE(f->width > 0);
    return (struct span *)(void *)msg_at(m, f);
}

/* Writes the frame as PROTOCOL.md says. */
static inline void msg_raw(struct writer *w, struct msg *m)
{
    static uint8_t bytes[PEER_PACKET_MAX];
    struct writer body = writer_of(bytes, sizeof(bytes));

    for (unsigned i = 0; i < m->row->count; i++) {
        const struct field *f = &m->row->fields[i];

        if (f->width > 0) {
            put_uint(&body, msg_span(m, f)->len, f->width);
            put_bytes(&body, msg_span(m, f)->p, msg_span(m, f)->len);
        } else /* numbers are in memory as they are on the wire */
            put_bytes(&body, msg_at(m, f), f->bytes);
    }
    T_FALSE(body.failed);
    if (is_local(m)) {
        put_u32(w, (uint16_t)m->row->type);
        put_u32(w, (uint32_t)body.len);
        put_u32(w, m->local.seq);
    } else {
        put_bytes(w, "MMXP", 4);
        put_u8(w, WIRE_VERSION);
        put_u8(w, (uint8_t)m->row->type);
        put_u16(w, 0);
        put_u32(w, m->peer.seq);
        put_u32(w, (uint32_t)body.len);
        put_u64(w, m->peer.from_epoch);
        put_u64(w, m->peer.to_epoch);
        put_u64(w, m->peer.room);
        put_u64(w, m->peer.generation);
    }
    put_bytes(w, bytes, body.len);
    T_FALSE(w->failed);
}

/* Fails unless both messages are equal. */
static inline void msg_same(struct msg *a, struct msg *b)
{
    T_EQ_U64(msg_type(a), msg_type(b));
    T_EQ_U64(*msg_seq(a), *msg_seq(b));
    if (!is_local(a)) {
        T_EQ_U64(a->peer.from_epoch, b->peer.from_epoch);
        T_EQ_U64(a->peer.to_epoch, b->peer.to_epoch);
        T_EQ_U64(a->peer.room, b->peer.room);
        T_EQ_U64(a->peer.generation, b->peer.generation);
    }
    for (unsigned i = 0; i < a->row->count; i++) {
        const struct field *f = &a->row->fields[i];

        T_CHECK(f->width > 0
                    ? span_eq(*msg_span(a, f), *msg_span(b, f))
                    : memcmp(msg_at(a, f), msg_at(b, f), f->bytes) == 0,
            "%s of %s differs", f->name, a->row->name);
    }
}

/* Returns the first n bytes of a packet in memory of their own, so that a
 * sanitizer sees an access beyond them. */
static inline uint8_t *exact(const uint8_t *packet, size_t n)
{
    uint8_t *p = malloc(n ? n : 1);

    T_TRUE(p != NULL);
    memcpy(p, packet, n);
    return p;
}

static inline void patch_u32(uint8_t *at, size_t v)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

#endif
