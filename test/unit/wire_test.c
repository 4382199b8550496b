/* wire_test.c - both wires, every message of both tables: random messages, and
 * the encoder of wire_side.h against the real one. */
#include "test/unit/wire_side.h"

static uint8_t packet[PEER_PACKET_MAX], other[PEER_PACKET_MAX];

/* random messages */

/* How to fill a message: spans of at most `cap` bytes, but span number `over`
 * one byte longer than its limit. */
struct fill {
    uint64_t seed;
    uint32_t cap;
    unsigned over, spans;
};
#define NOWHERE UINT32_MAX

static struct span any_span(struct fill *f, uint32_t max)
{
    static uint8_t noise[70000];
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
    return span_of(
        noise + t_rand_below(&f->seed, sizeof(noise) - len + 1), len);
}

static struct msg any_msg(
    const struct wire *wire, const struct row *row, struct fill *f)
{
    struct msg m = msg_of(wire, row);

    *msg_seq(&m) = (uint32_t)t_rand(&f->seed);
    if (!is_local(&m)) {
        m.peer.from_epoch = t_rand(&f->seed);
        m.peer.to_epoch = t_rand(&f->seed);
        m.peer.room = t_rand(&f->seed);
        m.peer.generation = t_rand(&f->seed);
    }
    f->spans = 0;
    for (unsigned i = 0; i < row->count; i++) {
        const struct field *x = &row->fields[i];

        if (x->width > 0)
            *msg_span(&m, x) = any_span(f, x->max);
        else
            t_rand_bytes(&f->seed, msg_at(&m, x), x->bytes);
        if (x->width == 0 && x->known != UINT64_MAX)
            *msg_at(&m, x) &= (uint8_t)x->known;
    }
    return m;
}

/* Returns a message of the wire with any content; types come in turn. */
static struct msg next_msg(unsigned which, unsigned turn, struct fill *f)
{
    const struct wire *wire = wire_of(which);

    return any_msg(wire, &wire->rows[turn % wire->count], f);
}

static struct msg random_of(unsigned which, unsigned type, struct fill *f)
{
    return any_msg(wire_of(which), msg_of_type(which, type).row, f);
}

/* what is written is read */

TEST(round_trip)
{
    struct fill f = {5, NOWHERE, NOWHERE, 0};

    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned turn = 0; turn < 100 * wire_of(i)->count; turn++) {
            struct msg m = next_msg(i, turn, &f), back = m;
            struct writer w = writer_of(packet, sizeof(packet));
            struct writer raw = writer_of(other, sizeof(other));
            struct reader r;

            T_TRUE(msg_put(&w, &m));
            msg_raw(&raw, &m);
            T_EQ_U64(w.len, raw.len);
            T_EQ_MEM(packet, other, w.len);
            r = reader_of(packet, w.len);
            T_OK(msg_get(&r, &back));
            msg_same(&m, &back);
            T_ERR(msg_get(&r, &back), ERR_NOT_READY);
        }
}

TEST(many_frames_in_one_packet)
{
    struct fill f = {7, 50, NOWHERE, 0};
    struct msg sent[64], back;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    for (unsigned i = 0; i < ARRAY_LEN(sent); i++) {
        sent[i] = next_msg(LOCAL_WIRE, i, &f);
        T_TRUE(msg_put(&w, &sent[i]));
    }
    r = reader_of(packet, w.len);
    for (unsigned i = 0; i < ARRAY_LEN(sent); i++) {
        back = sent[i];
        T_OK(msg_get(&r, &back));
        msg_same(&sent[i], &back);
    }
    T_ERR(msg_get(&r, &back), ERR_NOT_READY);
}

/* limits */

/* Makes each span in turn one byte too long: it is neither written nor read. */
static void limits(const struct wire *wire, const struct row *row)
{
    struct fill f = {8, 20, 0, 0};

    for (;; f.over++) {
        struct msg m = any_msg(wire, row, &f), back = m;
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        if (f.spans <= f.over)
            break;
        put_u8(&w, 0x77);
        T_FALSE(msg_put(&w, &m));
        T_EQ_U64(w.len, 1);
        T_FALSE(w.failed);
        w.len = 0;
        msg_raw(&w, &m);
        put_u8(&w, 0x77);
        r = reader_of(packet, w.len);
        T_ERR(msg_get(&r, &back), ERR_MALFORMED);
        T_EQ_U64(msg_type(&back), row->type);
        T_EQ_U64(*msg_seq(&back), *msg_seq(&m));
        T_EQ_U64(r.at, w.len - 1);
        T_TRUE(msg_fault(&back)->field && msg_fault(&back)->length);
        T_EQ_U64(msg_fault(&back)->value, msg_fault(&back)->known + 1);
    }
}

TEST(longer_texts_and_blobs_are_refused)
{
    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned k = 0; k < wire_of(i)->count; k++)
            limits(wire_of(i), &wire_of(i)->rows[k]);
}

TEST(a_full_packet_keeps_what_is_in_it)
{
    struct fill f = {10, 100, NOWHERE, 0};

    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned turn = 0; turn < wire_of(i)->count; turn++) {
            struct msg m = next_msg(i, turn, &f);
            struct writer w = writer_of(packet, sizeof(packet));
            size_t len;

            T_TRUE(msg_put(&w, &m));
            len = w.len;
            for (size_t cap = 0; cap <= len; cap++) {
                w = writer_of(packet, cap);
                w.failed = cap == len;
                T_FALSE(msg_put(&w, &m));
                T_EQ_U64(w.len, 0);
                T_FALSE(w.failed);
            }
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

/* Fields of a newer version at the end of a message are ignored. */
/* RULES 2.3 */
TEST(trailing_fields_are_ignored)
{
    struct fill f = {13, 30, NOWHERE, 0};

    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned k = 0; k < wire_of(i)->count; k++) {
            struct msg m = next_msg(i, k, &f), back = m;
            struct writer w = writer_of(packet, sizeof(packet));
            struct reader r;

            T_TRUE(msg_put(&w, &m));
            put_u64(&w, UINT64_MAX);
            patch_u32(packet + m.wire->length_at, w.len - m.wire->header);
            T_TRUE(msg_put(&w, &m));
            r = reader_of(packet, w.len);
            for (unsigned turn = 0; turn < 2; turn++) {
                T_OK(msg_get(&r, &back));
                msg_same(&m, &back);
            }
        }
}

TEST(unknown_types_are_skipped)
{
    struct fill f = {14, 30, NOWHERE, 0};
    struct msg hellos[] = {random_of(LOCAL_WIRE, LOCAL_HELLO, &f),
        random_of(PEER_WIRE, PEER_HELLO, &f)};

    for (unsigned i = 0; i < WIRES; i++) {
        struct msg *m = &hellos[i], back = *m;
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;

        T_TRUE(msg_put(&w, m));
        T_TRUE(msg_put(&w, m));
        if (is_local(m)) {
            packet[0] = 0xe7;
            packet[1] = 0x03;
        } else
            packet[5] = 250;
        r = reader_of(packet, w.len);
        T_ERR(msg_get(&r, &back), ERR_BUSY);
        T_EQ_U64(msg_type(&back), is_local(m) ? 999 : 250);
        T_EQ_U64(*msg_seq(&back), *msg_seq(m));
        if (!is_local(m))
            T_EQ_U64(back.peer.from_epoch, m->peer.from_epoch);
        T_OK(msg_get(&r, &back));
        msg_same(m, &back);
    }
}

static enum err read_back(const struct writer *w, struct msg *back)
{
    struct reader r = reader_of(packet, w->len);
    enum err e = msg_get(&r, back);

    T_EQ_U64(r.at, w->len);
    return e;
}

/* Tries every bit of a message's flags by itself. */
static void one_bit(unsigned which, unsigned type, unsigned known)
{
    struct msg m = msg_of_type(which, type), back = m;
    const struct field *flags = m.row->fields;

    while (strcmp(flags->name, "flags") != 0)
        T_TRUE(++flags < m.row->fields + m.row->count);
    for (unsigned bit = 0; bit < 8; bit++) {
        struct writer w = writer_of(packet, sizeof(packet));
        const struct wire_fault *fault = msg_fault(&back);
        bool good = (known >> bit & 1) != 0;

        *msg_at(&m, flags) = (uint8_t)(1u << bit);
        T_TRUE(msg_put(&w, &m));
        T_ERR(read_back(&w, &back), good ? OK : ERR_MALFORMED);
        T_EQ_U64(fault->field != NULL, !good);
        if (good)
            continue;
        T_EQ_STR(fault->field, "flags");
        T_EQ_U64(fault->value, 1u << bit);
        T_EQ_U64(fault->known, known);
        /* A frame that is cut is refused as cut. */
        packet[m.wire->length_at]--;
        w.len--;
        T_ERR(read_back(&w, &back), ERR_MALFORMED);
        T_TRUE(fault->field == NULL);
    }
}

/* RULES 2.3 */
TEST(unknown_bits_are_refused)
{
    static const struct {
        unsigned wire, type, known;
    } flags[] = {{LOCAL_WIRE, LOCAL_ANNOUNCE, FLAG_KEEP | FLAG_OPEN},
        {LOCAL_WIRE, LOCAL_COMMIT, FLAG_FINAL},
        {LOCAL_WIRE, LOCAL_REQUEST, FLAG_KEEP | FLAG_ANNOUNCED},
        {LOCAL_WIRE, LOCAL_RELEASE, FLAG_KEEP | FLAG_NO_READERS},
        {PEER_WIRE, PEER_INIT,
            FLAG_KEEP | FLAG_STREAM | FLAG_ANNOUNCED | FLAG_LEND},
        {PEER_WIRE, PEER_LENGTH, FLAG_KEEP | FLAG_AUX},
        {PEER_WIRE, PEER_STATE, FLAG_AUX | FLAG_HELD}};

    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        one_bit(flags[i].wire, flags[i].type, flags[i].known);
}

/* Neither wire's header may have bits where it must be zero. */
/* RULES 2.3 */
TEST(the_headers_zero_is_zero)
{
    struct msg byes[] = {msg_of_type(LOCAL_WIRE, LOCAL_BYE),
        msg_of_type(PEER_WIRE, PEER_DRAINED)};

    for (unsigned i = 0; i < WIRES; i++) {
        struct writer w = writer_of(packet, sizeof(packet));

        T_TRUE(msg_put(&w, &byes[i]));
        packet[i == LOCAL_WIRE ? 3 : 6] = 1;
        T_ERR(read_back(&w, &byes[i]), ERR_MALFORMED);
        T_EQ_STR(msg_fault(&byes[i])->field, "zero");
        T_EQ_U64(msg_fault(&byes[i])->value, i == LOCAL_WIRE ? 256 : 1);
    }
}

TEST(faults_in_words)
{
    char text[WIRE_FAULT_TEXT];

    T_EQ_STR(wire_fault_text(&(struct wire_fault){"flags", 128, 3, 0}, text),
        "flags is 0x80, and only 0x3 is known");
    T_EQ_STR(wire_fault_text(&(struct wire_fault){"name", 64, 63, 1}, text),
        "name has 64 bytes, at most 63 fit");
}

TEST(wrong_magic_and_version)
{
    struct fill f = {15, 30, NOWHERE, 0};
    struct msg p = random_of(PEER_WIRE, PEER_STATE, &f), back = p;
    struct writer w = writer_of(packet, sizeof(packet));
    struct reader r;

    T_TRUE(msg_put(&w, &p));
    T_TRUE(msg_put(&w, &p));
    packet[4] = WIRE_VERSION + 1;
    r = reader_of(packet, w.len);
    T_ERR(msg_get(&r, &back), ERR_VERSION);
    T_OK(msg_get(&r, &back));
    msg_same(&p, &back);
    for (unsigned i = 0; i < 4; i++) {
        packet[i] ^= 1;
        r = reader_of(packet, w.len);
        T_ERR(msg_get(&r, &back), ERR_MALFORMED);
        T_ERR(msg_get(&r, &back), ERR_NOT_READY);
        packet[i] ^= 1;
    }
}

/* Bytes of a stranger: every call makes progress or is at the end; spans stay
 * inside the buffer. */
TEST(noise_is_survived)
{
    struct fill f = {16, 40, NOWHERE, 0};

    for (unsigned turn = 0; turn < 20000; turn++) {
        struct msg m = next_msg(turn % WIRES, turn / WIRES, &f);
        struct writer w = writer_of(packet, sizeof(packet));
        struct reader r;
        uint8_t *p;
        unsigned calls = 0;

        T_TRUE(msg_put(&w, &m));
        for (unsigned i = 0; i < 3; i++)
            packet[t_rand_below(&f.seed, w.len)] =
                (uint8_t)(t_rand(&f.seed) >> 40);
        p = exact(packet, w.len);
        r = reader_of(p, w.len);
        while (msg_get(&r, &m) != ERR_NOT_READY)
            T_TRUE(++calls <= w.len);
        free(p);
    }
}

/* small things */

TEST(names)
{
    for (unsigned i = 0; i < WIRES; i++)
        for (unsigned k = 0; k < wire_of(i)->count; k++) {
            const struct row *row = &wire_of(i)->rows[k];

            T_EQ_STR(
                i == LOCAL_WIRE ? local_name(row->type) : peer_name(row->type),
                row->name);
        }
    T_EQ_STR(local_name(999), "unknown");
    T_EQ_STR(peer_name(0), "unknown");
}

TEST(every_message_fits_into_its_packet)
{
    struct fill f = {17, NOWHERE, NOWHERE, 0};

    /* REPORT is the largest: 60,000 bytes of text and its head. */
    for (unsigned turn = 0; turn < 200 * wire_of(LOCAL_WIRE)->count; turn++) {
        struct msg m = next_msg(LOCAL_WIRE, turn, &f);
        struct writer w = writer_of(packet, LOCAL_PACKET_MAX);

        T_TRUE(msg_put(&w, &m));
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
