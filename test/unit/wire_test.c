/* wire_test.c - both wires, every message of both tables. The tables give
 * random messages, and a second encoder without limits that is held against
 * the real one: what PROTOCOL.md says in words, said again here in code. */
#include "wire/wire.h"
#include "test/t.h"

#include <stdio.h>
#include <stdlib.h>

/* random messages */

/* How to fill a message: spans of at most `cap` bytes, but span number `over`
 * one byte longer than its limit. */
struct fill {
    uint64_t seed;
    uint32_t cap;
    unsigned over, spans;
};
#define NOWHERE UINT32_MAX

static uint8_t noise[70000];

static void fill_u8(struct fill *f, uint8_t *v)
{
    *v = (uint8_t)(t_rand(&f->seed) >> 32);
}
static void fill_u16(struct fill *f, uint16_t *v)
{
    *v = (uint16_t)(t_rand(&f->seed) >> 32);
}
static void fill_u32(struct fill *f, uint32_t *v)
{
    *v = (uint32_t)(t_rand(&f->seed) >> 32);
}
static void fill_u64(struct fill *f, uint64_t *v)
{
    *v = t_rand(&f->seed);
}
static void fill_key(struct fill *f, struct key *v)
{
    t_rand_bytes(&f->seed, v->b, sizeof(v->b));
}

static void fill_secret(struct fill *f, struct secret *v)
{
    t_rand_bytes(&f->seed, v->b, sizeof(v->b));
}

static void fill_span(struct fill *f, struct span *s, uint32_t max)
{
    uint32_t limit = min_u32(max, f->cap), len = 0;

    if (noise[0] == 0) {
        t_rand_bytes(&f->seed, noise, sizeof(noise));
        noise[0] = 1;
    }
    if (f->spans++ == f->over)
        len = max + 1;
    else if (t_rand_below(&f->seed, 4))
        len = (uint32_t)t_rand_below(&f->seed, (uint64_t)limit + 1);
    else if (t_rand_below(&f->seed, 2))
        len = limit;
    T_TRUE(len <= sizeof(noise));
    *s = span_of(noise + t_rand_below(&f->seed, sizeof(noise) - len + 1), len);
}

#define same_u8(a, b)  T_EQ_U64(a, b)
#define same_u16(a, b) T_EQ_U64(a, b)
#define same_u32(a, b) T_EQ_U64(a, b)
#define same_u64(a, b) T_EQ_U64(a, b)

static void same_key(struct key x, struct key y)
{
    T_EQ_MEM(x.b, y.b, KEY_BYTES);
}

static void same_secret(struct secret x, struct secret y)
{
    T_EQ_MEM(x.b, y.b, SECRET_BYTES);
}

static void put_secret(struct writer *w, struct secret s)
{
    put_bytes(w, s.b, SECRET_BYTES);
}

static void put_key(struct writer *w, struct key k)
{
    put_bytes(w, k.b, KEY_BYTES);
}

static void put_raw(struct writer *w, struct span s, unsigned width)
{
    put_uint(w, s.len, width);
    put_bytes(w, s.p, s.len);
}

/* one function per message and use */

#define END(NAME, name) }

#undef FLAGS
#define FLAGS(name, kind, known, doc)                                          \
    fill_##kind(f, &m->name);                                                  \
    m->name &= known;
#define FIELD(name, kind, doc) fill_##kind(f, &m->name);
#define TEXT(name, max, doc)   fill_span(f, &m->name, max);
#define BLOB(name, max, doc)   fill_span(f, &m->name, max);
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_fill_##name(struct fill *f, struct local_##name *m)      \
    {                                                                          \
        (void)f, (void)m;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_fill_##name(struct fill *f, struct peer_##name *m)        \
    {                                                                          \
        (void)f, (void)m;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB
#undef FLAGS

#define FLAGS(name, kind, known, doc) FIELD(name, kind, doc)
#define FIELD(name, kind, doc)        put_##kind(w, m->name);
#define TEXT(name, max, doc)          put_raw(w, m->name, 2);
#define BLOB(name, max, doc)          put_raw(w, m->name, 4);
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_raw_##name(                                              \
        struct writer *w, const struct local_##name *m)                        \
    {                                                                          \
        (void)w, (void)m;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_raw_##name(struct writer *w, const struct peer_##name *m) \
    {                                                                          \
        (void)w, (void)m;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB

#define FIELD(name, kind, doc) same_##kind(a->name, b->name);
#define TEXT(name, max, doc)   T_TRUE(span_eq(a->name, b->name));
#define BLOB(name, max, doc)   T_TRUE(span_eq(a->name, b->name));
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_same_##name(                                             \
        const struct local_##name *a, const struct local_##name *b)            \
    {                                                                          \
        (void)a, (void)b;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_same_##name(                                              \
        const struct peer_##name *a, const struct peer_##name *b)              \
    {                                                                          \
        (void)a, (void)b;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB
#undef END

#define FIELD(name, kind, doc)
#define TEXT(name, max, doc)
#define BLOB(name, max, doc)
#define END(NAME, name)

static const struct {
    unsigned type;
    const char *name;
} local_rows[] = {
#define MESSAGE(NAME, name, number, doc) {number, #name},
#include "wire/local.def"
#undef MESSAGE
};

static const struct {
    unsigned type;
    const char *name;
} peer_rows[] = {
#define MESSAGE(NAME, name, number, doc) {number, #name},
#include "wire/peer.def"
#undef MESSAGE
};

static struct local_msg local_random(unsigned type, struct fill *f)
{
    struct local_msg m;

    memset(&m, 0, sizeof(m));
    m.type = (enum local_type)type;
    fill_u32(f, &m.seq);
    f->spans = 0;
    switch (m.type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        local_fill_##name(f, &m.name);                                         \
        break;
#include "wire/local.def"
#undef MESSAGE
    }
    return m;
}

static struct peer_msg peer_random(unsigned type, struct fill *f)
{
    struct peer_msg m;

    memset(&m, 0, sizeof(m));
    m.type = (enum peer_type)type;
    fill_u32(f, &m.seq);
    fill_u64(f, &m.from_epoch);
    fill_u64(f, &m.to_epoch);
    fill_u64(f, &m.room);
    fill_u64(f, &m.generation);
    f->spans = 0;
    switch (m.type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        peer_fill_##name(f, &m.name);                                          \
        break;
#include "wire/peer.def"
#undef MESSAGE
    }
    return m;
}

static void local_raw(struct writer *w, const struct local_msg *m)
{
    static uint8_t bytes[262144];
    struct writer body = writer_of(bytes, sizeof(bytes));

    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        local_raw_##name(&body, &m->name);                                     \
        break;
#include "wire/local.def"
#undef MESSAGE
    }
    T_FALSE(body.failed);
    put_u16(w, (uint16_t)m->type);
    put_u16(w, 0);
    put_u32(w, (uint32_t)body.len);
    put_u32(w, m->seq);
    put_bytes(w, bytes, body.len);
    T_FALSE(w->failed);
}

static void peer_raw(struct writer *w, const struct peer_msg *m)
{
    static uint8_t bytes[262144];
    struct writer body = writer_of(bytes, sizeof(bytes));

    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        peer_raw_##name(&body, &m->name);                                      \
        break;
#include "wire/peer.def"
#undef MESSAGE
    }
    T_FALSE(body.failed);
    put_bytes(w, "MMXP", 4);
    put_u8(w, WIRE_VERSION);
    put_u8(w, (uint8_t)m->type);
    put_u16(w, 0);
    put_u32(w, m->seq);
    put_u32(w, (uint32_t)body.len);
    put_u64(w, m->from_epoch);
    put_u64(w, m->to_epoch);
    put_u64(w, m->room);
    put_u64(w, m->generation);
    put_bytes(w, bytes, body.len);
    T_FALSE(w->failed);
}

static void local_same(const struct local_msg *a, const struct local_msg *b)
{
    T_EQ_U64(a->type, b->type);
    T_EQ_U64(a->seq, b->seq);
    switch (a->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        local_same_##name(&a->name, &b->name);                                 \
        break;
#include "wire/local.def"
#undef MESSAGE
    }
}

static void peer_same(const struct peer_msg *a, const struct peer_msg *b)
{
    T_EQ_U64(a->type, b->type);
    T_EQ_U64(a->seq, b->seq);
    T_EQ_U64(a->from_epoch, b->from_epoch);
    T_EQ_U64(a->to_epoch, b->to_epoch);
    T_EQ_U64(a->room, b->room);
    T_EQ_U64(a->generation, b->generation);
    switch (a->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        peer_same_##name(&a->name, &b->name);                                  \
        break;
#include "wire/peer.def"
#undef MESSAGE
    }
}

/* what is written is read */

static uint8_t packet[PEER_PACKET_MAX], other[PEER_PACKET_MAX];

TEST(local_round_trip)
{
    struct fill f = {5, NOWHERE, NOWHERE, 0};

    for (size_t i = 0; i < ARRAY_LEN(local_rows); i++)
        for (unsigned turn = 0; turn < 100; turn++) {
            struct local_msg m = local_random(local_rows[i].type, &f), back;
            struct writer w = writer_of(packet, sizeof(packet));
            struct writer raw = writer_of(other, sizeof(other));
            struct reader r;

            T_TRUE(local_put(&w, &m));
            local_raw(&raw, &m);
            T_EQ_U64(w.len, raw.len);
            T_EQ_MEM(packet, other, w.len);
            r = reader_of(packet, w.len);
            T_OK(local_get(&r, &back));
            local_same(&m, &back);
            T_ERR(local_get(&r, &back), ERR_NOT_READY);
        }
}

TEST(peer_round_trip)
{
    struct fill f = {6, NOWHERE, NOWHERE, 0};

    for (size_t i = 0; i < ARRAY_LEN(peer_rows); i++)
        for (unsigned turn = 0; turn < 100; turn++) {
            struct peer_msg m = peer_random(peer_rows[i].type, &f), back;
            struct writer w = writer_of(packet, sizeof(packet));
            struct writer raw = writer_of(other, sizeof(other));
            struct reader r;

            T_TRUE(peer_put(&w, &m));
            peer_raw(&raw, &m);
            T_EQ_U64(w.len, raw.len);
            T_EQ_MEM(packet, other, w.len);
            r = reader_of(packet, w.len);
            T_OK(peer_get(&r, &back));
            peer_same(&m, &back);
            T_ERR(peer_get(&r, &back), ERR_NOT_READY);
        }
}

TEST(many_frames_in_one_packet)
{
    struct fill f = {7, 50, NOWHERE, 0};
    struct local_msg sent[64], back;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    for (size_t i = 0; i < ARRAY_LEN(sent); i++) {
        sent[i] = local_random(local_rows[i % ARRAY_LEN(local_rows)].type, &f);
        T_TRUE(local_put(&w, &sent[i]));
    }
    r = reader_of(packet, w.len);
    for (size_t i = 0; i < ARRAY_LEN(sent); i++) {
        T_OK(local_get(&r, &back));
        local_same(&sent[i], &back);
    }
    T_ERR(local_get(&r, &back), ERR_NOT_READY);
}

/* limits */

/* Every span in turn one byte too long: neither written nor read. */
TEST(local_limits)
{
    for (size_t i = 0; i < ARRAY_LEN(local_rows); i++) {
        struct fill f = {8, 20, 0, 0};

        for (;; f.over++) {
            struct local_msg m = local_random(local_rows[i].type, &f), back;
            struct writer w = writer_of(packet, sizeof(packet));
            struct reader r;

            if (f.spans <= f.over)
                break;
            put_u8(&w, 0x77);
            T_FALSE(local_put(&w, &m));
            T_EQ_U64(w.len, 1);
            T_FALSE(w.failed);
            w.len = 0;
            local_raw(&w, &m);
            put_u8(&w, 0x77);
            r = reader_of(packet, w.len);
            T_ERR(local_get(&r, &back), ERR_MALFORMED);
            T_EQ_U64(back.type, m.type);
            T_EQ_U64(back.seq, m.seq);
            T_EQ_U64(r.at, w.len - 1);
            T_TRUE(back.fault.field && back.fault.length);
            T_EQ_U64(back.fault.value, back.fault.known + 1);
        }
    }
}

TEST(peer_limits)
{
    for (size_t i = 0; i < ARRAY_LEN(peer_rows); i++) {
        struct fill f = {9, 20, 0, 0};

        for (;; f.over++) {
            struct peer_msg m = peer_random(peer_rows[i].type, &f), back;
            struct writer w = writer_of(packet, sizeof(packet));
            struct reader r;

            if (f.spans <= f.over)
                break;
            T_FALSE(peer_put(&w, &m));
            T_EQ_U64(w.len, 0);
            peer_raw(&w, &m);
            r = reader_of(packet, w.len);
            T_ERR(peer_get(&r, &back), ERR_MALFORMED);
            T_EQ_U64(back.type, m.type);
            T_EQ_U64(r.at, w.len);
            T_TRUE(back.fault.field && back.fault.length);
        }
    }
}

TEST(a_full_packet_keeps_what_is_in_it)
{
    struct fill f = {10, 100, NOWHERE, 0};
    struct local_msg m = local_random(LOCAL_HELLO, &f);
    struct peer_msg p = peer_random(PEER_HELLO, &f);
    struct writer w = writer_of(packet, sizeof(packet));
    size_t len;

    T_TRUE(local_put(&w, &m));
    len = w.len;
    for (size_t cap = 0; cap < len; cap++) {
        w = writer_of(packet, cap);
        T_FALSE(local_put(&w, &m));
        T_EQ_U64(w.len, 0);
        T_FALSE(w.failed);
    }
    w = writer_of(packet, sizeof(packet));
    T_TRUE(peer_put(&w, &p));
    len = w.len;
    for (size_t cap = 0; cap < len; cap++) {
        w = writer_of(packet, cap);
        T_FALSE(peer_put(&w, &p));
        T_EQ_U64(w.len, 0);
    }
}

/* A type without a row is not written. */
TEST(unknown_types_are_not_written)
{
    struct local_msg m = {.type = (enum local_type)999};
    struct peer_msg p = {.type = (enum peer_type)250};
    struct writer w = writer_of(packet, sizeof(packet));

    T_FALSE(local_put(&w, &m));
    T_FALSE(peer_put(&w, &p));
    T_EQ_U64(w.len, 0);
}

/* what is broken is refused */

/* The first n bytes of packet in memory of their own, so that a sanitizer
 * sees a step beyond them. */
static uint8_t *exact(size_t n)
{
    uint8_t *p = malloc(n ? n : 1);

    T_TRUE(p != NULL);
    memcpy(p, packet, n);
    return p;
}

static void patch_u32(uint8_t *at, size_t v)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

/* A newer version's fields at the end of a message do not disturb us. */
/* RULES 2.3 */
TEST(trailing_fields_are_ignored)
{
    struct fill f = {13, 30, NOWHERE, 0};

    for (size_t i = 0; i < ARRAY_LEN(local_rows); i++) {
        struct local_msg m = local_random(local_rows[i].type, &f), back;
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        T_TRUE(local_put(&w, &m));
        put_u64(&w, UINT64_MAX);
        patch_u32(packet + 4, w.len - LOCAL_HEADER);
        T_TRUE(local_put(&w, &m));
        r = reader_of(packet, w.len);
        for (unsigned turn = 0; turn < 2; turn++) {
            T_OK(local_get(&r, &back));
            local_same(&m, &back);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(peer_rows); i++) {
        struct peer_msg m = peer_random(peer_rows[i].type, &f), back;
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        T_TRUE(peer_put(&w, &m));
        put_u64(&w, UINT64_MAX);
        patch_u32(packet + 12, w.len - PEER_HEADER);
        T_TRUE(peer_put(&w, &m));
        r = reader_of(packet, w.len);
        for (unsigned turn = 0; turn < 2; turn++) {
            T_OK(peer_get(&r, &back));
            peer_same(&m, &back);
        }
    }
}

TEST(unknown_types_are_skipped)
{
    struct fill f = {14, 30, NOWHERE, 0};
    struct local_msg m = local_random(LOCAL_HELLO, &f), back;
    struct peer_msg p = peer_random(PEER_HELLO, &f), peer_back;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    T_TRUE(local_put(&w, &m));
    T_TRUE(local_put(&w, &m));
    packet[0] = 0xe7;
    packet[1] = 0x03;
    r = reader_of(packet, w.len);
    T_ERR(local_get(&r, &back), ERR_BUSY);
    T_EQ_U64(back.type, 999);
    T_EQ_U64(back.seq, m.seq);
    T_OK(local_get(&r, &back));
    local_same(&m, &back);

    w = writer_of(packet, sizeof(packet));
    T_TRUE(peer_put(&w, &p));
    T_TRUE(peer_put(&w, &p));
    packet[5] = 250;
    r = reader_of(packet, w.len);
    T_ERR(peer_get(&r, &peer_back), ERR_BUSY);
    T_EQ_U64(peer_back.type, 250);
    T_EQ_U64(peer_back.seq, p.seq);
    T_EQ_U64(peer_back.from_epoch, p.from_epoch);
    T_OK(peer_get(&r, &peer_back));
    peer_same(&p, &peer_back);
}

/* Every bit of every flags field alone, and the header's zero. */
static void one_local(struct local_msg *m, uint8_t *flags, unsigned known)
{
    struct local_msg back;
    char text[WIRE_FAULT_TEXT];

    for (unsigned bit = 0; bit < 8; bit++) {
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        *flags = (uint8_t)(1u << bit);
        T_TRUE(local_put(&w, m));
        r = reader_of(packet, w.len);
        T_ERR(
            local_get(&r, &back), (known >> bit & 1) != 0 ? OK : ERR_MALFORMED);
        T_EQ_U64(r.at, w.len);
        T_EQ_U64(back.fault.field != NULL, (known >> bit & 1) == 0);
        if (!back.fault.field)
            continue;
        T_EQ_STR(back.fault.field, "flags");
        T_EQ_U64(back.fault.value, 1u << bit);
        T_EQ_U64(back.fault.known, known);
        /* A cut frame is just that. */
        packet[4]--;
        r = reader_of(packet, w.len - 1);
        T_ERR(local_get(&r, &back), ERR_MALFORMED);
        T_TRUE(back.fault.field == NULL);
    }
    T_EQ_STR(wire_fault_text(&(struct wire_fault){"flags", 128, 3, 0}, text),
        "flags is 0x80, and only 0x3 is known");
    T_EQ_STR(wire_fault_text(&(struct wire_fault){"name", 64, 63, 1}, text),
        "name has 64 bytes, at most 63 fit");
}

static void one_peer(struct peer_msg *m, uint8_t *flags, unsigned known)
{
    struct peer_msg back;

    for (unsigned bit = 0; bit < 8; bit++) {
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        *flags = (uint8_t)(1u << bit);
        T_TRUE(peer_put(&w, m));
        r = reader_of(packet, w.len);
        T_ERR(
            peer_get(&r, &back), (known >> bit & 1) != 0 ? OK : ERR_MALFORMED);
        T_EQ_U64(r.at, w.len);
        T_EQ_U64(back.fault.field != NULL, (known >> bit & 1) == 0);
    }
}

/* RULES 2.3 */
TEST(unknown_bits_are_refused)
{
    struct local_msg m = {.type = LOCAL_BYE}, back;
    struct peer_msg p = {.type = PEER_DRAINED}, peer_back;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    T_TRUE(local_put(&w, &m));
    packet[3] = 1;
    r = reader_of(packet, w.len);
    T_ERR(local_get(&r, &back), ERR_MALFORMED);
    T_EQ_STR(back.fault.field, "zero");
    T_EQ_U64(back.fault.value, 256);
    w = writer_of(packet, sizeof(packet));
    T_TRUE(peer_put(&w, &p));
    packet[6] = 1;
    r = reader_of(packet, w.len);
    T_ERR(peer_get(&r, &peer_back), ERR_MALFORMED);
    T_EQ_STR(peer_back.fault.field, "zero");
    m.type = LOCAL_ANNOUNCE;
    one_local(&m, &m.announce.flags, FLAG_KEEP | FLAG_OPEN);
    m.type = LOCAL_COMMIT;
    one_local(&m, &m.commit.flags, FLAG_FINAL);
    m.type = LOCAL_REQUEST;
    one_local(&m, &m.request.flags, FLAG_KEEP | FLAG_ANNOUNCED);
    m = (struct local_msg){.type = LOCAL_RELEASE};
    one_local(&m, &m.release.flags, FLAG_KEEP | FLAG_NO_READERS);
    p.type = PEER_INIT;
    one_peer(&p, &p.init.flags, FLAG_KEEP | FLAG_STREAM | FLAG_ANNOUNCED);
    p = (struct peer_msg){.type = PEER_LENGTH};
    one_peer(&p, &p.length.flags, FLAG_KEEP | FLAG_AUX);
    p = (struct peer_msg){.type = PEER_STATE};
    one_peer(&p, &p.state.flags, FLAG_AUX);
}

TEST(wrong_magic_and_version)
{
    struct fill f = {15, 30, NOWHERE, 0};
    struct peer_msg p = peer_random(PEER_STATE, &f), back;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    T_TRUE(peer_put(&w, &p));
    T_TRUE(peer_put(&w, &p));
    packet[4] = WIRE_VERSION + 1;
    r = reader_of(packet, w.len);
    T_ERR(peer_get(&r, &back), ERR_VERSION);
    T_OK(peer_get(&r, &back));
    peer_same(&p, &back);
    for (unsigned i = 0; i < 4; i++) {
        packet[i] ^= 1;
        r = reader_of(packet, w.len);
        T_ERR(peer_get(&r, &back), ERR_MALFORMED);
        T_ERR(peer_get(&r, &back), ERR_NOT_READY);
        packet[i] ^= 1;
    }
}

/* Bytes of a stranger: every call moves on or is at the end, spans stay
 * inside the buffer. */
TEST(noise_is_survived)
{
    struct fill f = {16, 40, NOWHERE, 0};

    for (unsigned turn = 0; turn < 20000; turn++) {
        struct local_msg m =
            local_random(local_rows[turn % ARRAY_LEN(local_rows)].type, &f);
        struct peer_msg q =
            peer_random(peer_rows[turn % ARRAY_LEN(peer_rows)].type, &f);
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;
        uint8_t *p;
        unsigned calls = 0;

        T_TRUE(turn % 2 ? local_put(&w, &m) : peer_put(&w, &q));
        for (unsigned i = 0; i < 3; i++)
            packet[t_rand_below(&f.seed, w.len)] =
                (uint8_t)(t_rand(&f.seed) >> 40);
        p = exact(w.len);
        r = reader_of(p, w.len);
        while (
            (turn % 2 ? local_get(&r, &m) : peer_get(&r, &q)) != ERR_NOT_READY)
            T_TRUE(++calls <= w.len);
        free(p);
    }
}

/* small things */

TEST(names)
{
    for (size_t i = 0; i < ARRAY_LEN(local_rows); i++)
        T_EQ_STR(local_name(local_rows[i].type), local_rows[i].name);
    for (size_t i = 0; i < ARRAY_LEN(peer_rows); i++)
        T_EQ_STR(peer_name(peer_rows[i].type), peer_rows[i].name);
    T_EQ_STR(local_name(999), "unknown");
    T_EQ_STR(peer_name(0), "unknown");
}

TEST(every_message_fits_into_its_packet)
{
    struct fill f = {17, NOWHERE, NOWHERE, 0};

    /* REPORT is the largest: 60,000 bytes of text and its head. */
    for (size_t i = 0; i < ARRAY_LEN(local_rows); i++)
        for (unsigned turn = 0; turn < 200; turn++) {
            struct local_msg m = local_random(local_rows[i].type, &f);
            struct writer w = writer_of(packet, LOCAL_PACKET_MAX);

            T_TRUE(local_put(&w, &m));
        }
}

TEST(cells)
{
    uint64_t seed = 4;

    for (unsigned i = 0; i < 1000; i++) {
        unsigned state = (unsigned)t_rand_below(&seed, 16);
        unsigned reason = (unsigned)t_rand_below(&seed, 64);
        uint32_t tag = (uint32_t)t_rand_below(&seed, TAG_MAX + 1);
        uint32_t rows = (uint32_t)t_rand(&seed);
        uint64_t w = cell_word(state, reason, tag, rows);

        T_EQ_U64(cell_state(w), state);
        T_EQ_U64(cell_reason(w), reason);
        T_EQ_U64(cell_tag(w), tag);
        T_EQ_U64(cell_rows(w), rows);
    }
    T_EQ_U64(cell_word(4, 0, 1, 2), UINT64_C(0x0000000200000404));
}
