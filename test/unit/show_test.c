/* show_test.c - what a brain shows in slices equals what it shows at once:
 * every place is looked at once, and a slice has its limit. */
#include "test/here.h"

struct shown {
    struct rows_out s;
    uint32_t rows;
    struct writer text;
};

static void put_text(struct shown *k, const char *text)
{
    put_bytes(&k->text, text, strlen(text));
}

static void one_row(struct rows_out *s)
{
    struct shown *k = (struct shown *)(void *)s;

    k->rows++;
    put_text(k, "\n");
}

static void one_text(struct rows_out *s, const char *name, const char *value)
{
    struct shown *k = (struct shown *)(void *)s;

    put_text(k, name);
    put_text(k, "=");
    put_text(k, value);
    put_text(k, " ");
}

static void one_number(struct rows_out *s, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    one_text(s, name, text);
}

static uint8_t whole_bytes[1 << 20], slices_bytes[1 << 20];

static void same(struct rig *b, const char *what, uint32_t places)
{
    struct shown whole = {.s = {one_row, one_text, one_number, NONE},
        .text = writer_of(whole_bytes, sizeof(whole_bytes))};
    struct shown slices = {
        .s = whole.s, .text = writer_of(slices_bytes, sizeof(slices_bytes))};
    struct show_at at = {0};
    uint32_t before;

    T_TRUE(brain_show(b->is, what, b->now_ns, SHOW_ALL, &whole.s));
    for (uint32_t i = 0; !at.over; i++) {
        T_CHECK(i < 200000, "%s has no end", what);
        at.places = places;
        before = slices.rows;
        T_TRUE(brain_show(b->is, what, b->now_ns, &at, &slices.s));
        T_CHECK(strcmp(what, "stats") == 0 || slices.rows - before <= places,
            "%s: %u rows of %u places", what, slices.rows - before, places);
    }
    T_FALSE(whole.text.failed);
    T_EQ_U64(slices.rows, whole.rows);
    T_EQ_U64(slices.text.len, whole.text.len);
    T_EQ_MEM(slices_bytes, whole_bytes, whole.text.len);
}

static void all_the_same(struct rig *b)
{
    static const char *const whats[] = {"status", "rooms", "slow", "pools",
        "peers", "engines", "stats", "histograms", "buckets", "trace"};

    for (size_t i = 0; i < ARRAY_LEN(whats); i++)
        for (uint32_t places = 1; places < 4; places++)
            same(b, whats[i], places);
}

/* Announces and releases n rooms from `room` on. */
static void come_and_go(struct rig *e, uint64_t room, uint32_t n)
{
    for (uint64_t end = room + n; room < end; room++)
        SAYS(e, 0, announce(room, 63, 8, 8), release(63));
}

TEST_ENCODED(encoded_shows_the_same_in_slices, "limits.rooms=64")
{
    come_and_go(e, 1000, HISTORY_ROOMS - 4);
    for (uint32_t i = 0; i < 12; i++) {
        struct local_msg a = announce(i + 1, i, 8, 8);

        a.announce.key.b[0] = (uint8_t)(i / 2);
        T_OK(brain_say(e, 0, a));
        (void)brain_events(e, 0, i);
    }
    for (uint32_t i = 0; i < 7; i++) /* more than the history holds */
        T_OK(brain_say(e, 0, release(i)));
    all_the_same(e);
    for (uint32_t places = 1; places < 4; places++)
        same(e, "inventory", places);
    T_HAS((char *)whole_bytes, "key=0500");
}

TEST(langd_shows_the_same_in_slices)
{
    struct rig *l = BRAIN(ROLE_LANGD, "limits.rooms=64", "peers[0].name=e",
        "peers[0].address=tcp://127.0.0.1:7601");
    struct local_msg m = {.type = LOCAL_REQUEST};
    struct local_msg space = {.type = LOCAL_SPACE};
    struct local_msg ticket = {.type = LOCAL_TICKET};

    brain_conn(l, 0, "s");
    for (uint32_t i = 0; i < 12; i++) {
        m.request.room = i + 1;
        m.request.cell = i;
        m.request.tag = i + 100;
        m.request.encoder = span_str(i < 6 ? "null" : "e");
        T_OK(brain_say(l, 0, m));
    }
    space.space.n_seq_max = 3;
    space.space.name = span_str("decode");
    T_OK(brain_say(l, 0, space));
    ticket.ticket.cell = NONE;
    ticket.ticket.request = span_str("one");
    T_OK(brain_say(l, 0, ticket));
    ticket.ticket.request = span_str("two");
    T_OK(brain_say(l, 0, ticket));
    all_the_same(l);
    same(l, "sequences", 1);
    same(l, "sequences", 2);
}

/* Rows that were overwritten between two slices are left out, and none comes
 * twice. */
TEST(a_history_that_goes_on_is_shown_from_what_is_left)
{
    struct rig *e = encoded("limits.rooms=64", NULL);
    struct shown k = {.s = {one_row, one_text, one_number, NONE},
        .text = writer_of(slices_bytes, sizeof(slices_bytes))};
    struct show_at at = {.places = 64 + 16 + 2};

    come_and_go(e, 1, HISTORY_ROOMS);
    T_TRUE(brain_show(e->is, "rooms", e->now_ns, &at, &k.s));
    T_EQ_U64(k.rows, 2);
    come_and_go(e, 1 + HISTORY_ROOMS, 3);
    at.places = 100 + HISTORY_ROOMS;
    T_TRUE(brain_show(e->is, "rooms", e->now_ns, &at, &k.s));
    T_TRUE(at.over);
    T_EQ_U64(k.rows, 2 + HISTORY_ROOMS); /* rooms 1 and 2, then 4 to 259 */
}
