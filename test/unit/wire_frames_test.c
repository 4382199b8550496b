/* wire_frames_test.c - the bytes of version 1, and frames that are cut. Those
 * of frames.def are what foreign programs write; a second rule for what each
 * byte means is held against them here, in words of its own. */
#include "wire/wire.h"
#include "test/t.h"

#include <stdio.h>
#include <stdlib.h>

/* The value of field number `at` of a message, from 1 on: flags that every
 * program knows, else its number in each byte; texts and blobs are s1, s2.. */
static uint64_t value_of(const char *message, const char *field, unsigned at)
{
    if (strcmp(field, "magic") == 0)
        return LOCAL_MAGIC;
    if (strcmp(field, "flags") == 0)
        return strcmp(message, "STATE") == 0 ? FLAG_AUX : 1;
    return UINT64_C(0x0101010101010101) * at;
}

static struct span span_at(unsigned at)
{
    static char texts[64][8];

    snprintf(texts[at], sizeof(texts[at]), "s%u", at);
    return span_str(texts[at]);
}

static struct key key_at(unsigned at)
{
    struct key k;

    memset(k.b, (int)at, sizeof(k.b));
    return k;
}

static struct secret secret_at(unsigned at)
{
    struct secret s;

    memset(s.b, (int)at, sizeof(s.b));
    return s;
}

#define value_u8(m, f, at)     (uint8_t) value_of(m, f, at)
#define value_u16(m, f, at)    (uint16_t) value_of(m, f, at)
#define value_u32(m, f, at)    (uint32_t) value_of(m, f, at)
#define value_u64(m, f, at)    value_of(m, f, at)
#define value_key(m, f, at)    key_at(at)
#define value_secret(m, f, at) secret_at(at)

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

/* Per message: one function fills every field, one holds m against that. */

#define END(NAME, name) }
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_fill_##name(struct local_##name *m)                      \
    {                                                                          \
        static const char msg[] = #NAME;                                       \
        unsigned at = 0;                                                       \
        (void)m, (void)msg, (void)at;
#define FIELD(name, kind, doc) at++, m->name = value_##kind(msg, #name, at);
#define TEXT(name, max, doc)   m->name = span_at(++at);
#define BLOB(name, max, doc)   m->name = span_at(++at);
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_fill_##name(struct peer_##name *m)                        \
    {                                                                          \
        static const char msg[] = #NAME;                                       \
        unsigned at = 0;                                                       \
        (void)m, (void)msg, (void)at;
#include "wire/peer.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB
#undef END

#define FIELD(name, kind, doc)                                                 \
    same_##kind(m->name, value_##kind(msg, #name, ++at));
#define TEXT(name, max, doc) T_TRUE(span_eq(m->name, span_at(++at)));
#define BLOB(name, max, doc) T_TRUE(span_eq(m->name, span_at(++at)));
#define END(NAME, name)      }
#define MESSAGE(NAME, name, number, doc)                                       \
    static void local_check_##name(const struct local_##name *m)               \
    {                                                                          \
        static const char msg[] = #NAME;                                       \
        unsigned at = 0;                                                       \
        (void)m, (void)msg, (void)at;
#include "wire/local.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void peer_check_##name(const struct peer_##name *m)                 \
    {                                                                          \
        static const char msg[] = #NAME;                                       \
        unsigned at = 0;                                                       \
        (void)m, (void)msg, (void)at;
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

static void fill_local(struct local_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        local_fill_##name(&m->name);                                           \
        break;
#include "wire/local.def"
#undef MESSAGE
    }
}

static void fill_peer(struct peer_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        peer_fill_##name(&m->name);                                            \
        break;
#include "wire/peer.def"
#undef MESSAGE
    }
}

static void check_local(const struct local_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        local_check_##name(&m->name);                                          \
        break;
#include "wire/local.def"
#undef MESSAGE
    }
}

static void check_peer(const struct peer_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case number:                                                               \
        peer_check_##name(&m->name);                                           \
        break;
#include "wire/peer.def"
#undef MESSAGE
    }
}

static uint8_t packet[4096];

/* the frames */

static size_t unhex(const char *digits)
{
    size_t n = strlen(digits) / 2;
    unsigned byte;

    T_TRUE(n <= sizeof(packet));
    for (size_t i = 0; i < n; i++) {
        T_EQ_U64(sscanf(digits + 2 * i, "%2x", &byte), 1);
        packet[i] = (uint8_t)byte;
    }
    return n;
}

static void read_local(const char *digits, struct local_msg *m)
{
    struct reader r = reader_of(packet, unhex(digits));

    T_OK(local_get(&r, m));
    T_EQ_U64(r.at, r.len);
    T_EQ_U64(m->seq, 7);
}

static void read_peer(const char *digits, struct peer_msg *m)
{
    struct reader r = reader_of(packet, unhex(digits));

    T_OK(peer_get(&r, m));
    T_EQ_U64(r.at, r.len);
    T_EQ_U64(m->seq, 7);
    T_EQ_U64(m->from_epoch, 11);
    T_EQ_U64(m->to_epoch, 12);
    T_EQ_U64(m->room, 13);
    T_EQ_U64(m->generation, 14);
}

#define type_local(NAME) LOCAL_##NAME
#define type_peer(NAME)  PEER_##NAME

/* RULES 2.3 */
TEST(frames_of_version_1_are_read_and_written)
{
    static uint8_t again[sizeof(packet)];
    unsigned frames = 0;

#define FRAME(wire, NAME, digits)                                              \
    {                                                                          \
        struct writer w = writer_of(again, sizeof(again));                     \
        struct wire##_msg m;                                                   \
        memset(&m, 0xee, sizeof(m));                                           \
        read_##wire(digits, &m);                                               \
        T_EQ_U64(m.type, type_##wire(NAME));                                   \
        check_##wire(&m);                                                      \
        T_TRUE(wire##_put(&w, &m));                                            \
        T_EQ_U64(w.len, strlen(digits) / 2);                                   \
        T_EQ_MEM(again, packet, w.len);                                        \
        frames++;                                                              \
    }
#include "test/frames.def"
#undef FRAME
    T_EQ_U64(frames, 22 + 14);
}

/* cut frames */

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

/* Cut off anywhere; and the same with a frame length that fits the cut. */
static void cut_local(unsigned type)
{
    struct local_msg m = {.type = (enum local_type)type, .seq = 7}, back;
    struct writer w = writer_of(packet, sizeof(packet));

    fill_local(&m);
    T_TRUE(local_put(&w, &m));
    for (size_t n = 1; n < w.len; n++) {
        uint8_t *p = exact(n);
        struct reader r = reader_of(p, n);

        T_ERR(local_get(&r, &back), ERR_MALFORMED);
        T_EQ_U64(r.at, n);
        T_ERR(local_get(&r, &back), ERR_NOT_READY);
        r = reader_of(p, n);
        if (n >= LOCAL_HEADER) {
            patch_u32(p + 4, n - LOCAL_HEADER);
            T_ERR(local_get(&r, &back), ERR_MALFORMED);
            T_EQ_U64(back.type, m.type);
            T_EQ_U64(back.seq, m.seq);
            T_EQ_U64(r.at, n);
        }
        free(p);
    }
}

static void cut_peer(unsigned type)
{
    struct peer_msg m = {.type = (enum peer_type)type, .seq = 7}, back;
    struct writer w = writer_of(packet, sizeof(packet));

    fill_peer(&m);
    T_TRUE(peer_put(&w, &m));
    for (size_t n = 1; n < w.len; n++) {
        uint8_t *p = exact(n);
        struct reader r = reader_of(p, n);

        T_ERR(peer_get(&r, &back), ERR_MALFORMED);
        T_EQ_U64(r.at, n);
        T_ERR(peer_get(&r, &back), ERR_NOT_READY);
        r = reader_of(p, n);
        if (n >= PEER_HEADER) {
            patch_u32(p + 12, n - PEER_HEADER);
            T_ERR(peer_get(&r, &back), ERR_MALFORMED);
            T_EQ_U64(back.type, m.type);
            T_EQ_U64(back.seq, m.seq);
            T_EQ_U64(r.at, n);
        }
        free(p);
    }
}

TEST(cut_local_frames)
{
#define MESSAGE(NAME, name, number, doc) cut_local(number);
#include "wire/local.def"
#undef MESSAGE
}

TEST(cut_peer_frames)
{
#define MESSAGE(NAME, name, number, doc) cut_peer(number);
#include "wire/peer.def"
#undef MESSAGE
}
