/* wire_frames_test.c - the bytes of version 1, and frames that are cut.
 * frames.def has what foreign programs write. It is compared with a second rule
 * for what each byte means. */
#include "test/unit/wire_side.h"

static uint8_t packet[4096];

/* The value of field number `at` of a message, from 1 on: flags that every
 * program knows, else its number in each byte; texts and blobs are s1, s2.. */
static void fill(struct msg *m)
{
    static char texts[64][8];

    for (unsigned at = 1; at <= m->row->count; at++) {
        const struct field *f = &m->row->fields[at - 1];
        uint64_t v = UINT64_C(0x0101010101010101) * at;

        if (strcmp(f->name, "magic") == 0)
            v = LOCAL_MAGIC;
        if (strcmp(f->name, "flags") == 0)
            v = strcmp(m->row->name, "state") == 0 ? FLAG_AUX : 1;
        if (f->width > 0) {
            snprintf(texts[at], sizeof(texts[at]), "s%u", at);
            *msg_span(m, f) = span_str(texts[at]);
        } else if (f->bytes > sizeof(v))
            memset(msg_at(m, f), (int)at, f->bytes);
        else
            memcpy(msg_at(m, f), &v, f->bytes);
    }
    *msg_seq(m) = 7;
    if (!is_local(m)) {
        m->peer.from_epoch = 11;
        m->peer.to_epoch = 12;
        m->peer.room = 13;
        m->peer.generation = 14;
    }
}

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

static const struct {
    unsigned wire, type;
    const char *digits;
} frames[] = {
#define wire_local(NAME)          LOCAL_WIRE, LOCAL_##NAME
#define wire_peer(NAME)           PEER_WIRE, PEER_##NAME
#define FRAME(wire, NAME, digits) {wire_##wire(NAME), digits},
#include "test/frames.def"
#undef FRAME
};

/* RULES 2.3 */
TEST(frames_of_version_1_are_read_and_written)
{
    static uint8_t again[sizeof(packet)];

    T_EQ_U64(ARRAY_LEN(frames), 24 + 16);
    for (size_t i = 0; i < ARRAY_LEN(frames); i++) {
        struct reader r = reader_of(packet, unhex(frames[i].digits));
        struct writer w = writer_of(again, sizeof(again));
        struct msg m = msg_of_type(frames[i].wire, frames[i].type);
        struct msg wanted = m;

        fill(&wanted);
        T_OK(msg_get(&r, &m));
        T_EQ_U64(r.at, r.len);
        msg_same(&m, &wanted);
        T_TRUE(msg_put(&w, &m));
        T_EQ_U64(w.len, r.len);
        T_EQ_MEM(again, packet, w.len);
    }
}

/* Cuts the frame at each byte; then does so with a frame length that fits the
 * cut. */
static void cut(struct msg *m)
{
    struct msg back = *m;
    struct writer w = writer_of(packet, sizeof(packet));

    T_TRUE(msg_put(&w, m));
    for (size_t n = 1; n < w.len; n++) {
        uint8_t *p = exact(packet, n);
        struct reader r = reader_of(p, n);

        T_ERR(msg_get(&r, &back), ERR_MALFORMED);
        T_EQ_U64(r.at, n);
        T_ERR(msg_get(&r, &back), ERR_NOT_READY);
        r = reader_of(p, n);
        if (n >= m->wire->header) {
            patch_u32(p + m->wire->length_at, n - m->wire->header);
            T_ERR(msg_get(&r, &back), ERR_MALFORMED);
            T_EQ_U64(msg_type(&back), m->row->type);
            T_EQ_U64(*msg_seq(&back), 7);
            T_EQ_U64(r.at, n);
        }
        free(p);
    }
}

TEST(cut_frames)
{
    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned k = 0; k < wire_of(i)->count; k++) {
            struct msg m = msg_of(wire_of(i), &wire_of(i)->rows[k]);

            fill(&m);
            cut(&m);
        }
}
