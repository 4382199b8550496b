/* spans_test.c - which spans mmx-otel makes of a daemon's recorder. */
#include "cmd/otel/otel.h"
#include "test/t.h"

#define CONTEXT "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
#define OTHER   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

static struct lives lives;

/* Takes an event of room 1; a, b: ROWS_UNKNOWN: not given. */
static void at(int64_t ns, enum happening_kind kind, uint32_t a, uint32_t b)
{
    struct happening h = {.room = 1,
        .ns = ns,
        .of_room = true,
        .kind = (uint8_t)kind,
        .a = a,
        .b = b};

    spans_take(&lives, &h);
}

static void told(
    int64_t ns, enum happening_kind kind, enum peer_type message, uint32_t rows)
{
    struct happening h = {.room = 1,
        .ns = ns,
        .of_room = true,
        .kind = (uint8_t)kind,
        .message = (uint8_t)message,
        .a = ROWS_UNKNOWN,
        .b = rows,
        .peer = "enc0"};

    spans_take(&lives, &h);
}

static void said(int64_t ns, enum happening_kind kind, const char *text)
{
    struct happening h = {.room = 1,
        .ns = ns,
        .of_room = true,
        .kind = (uint8_t)kind,
        .a = ROWS_UNKNOWN,
        .b = kind == HAPPENED_ENDED ? 20 : ROWS_UNKNOWN};

    snprintf(h.text, sizeof(h.text), "%s", text);
    spans_take(&lives, &h);
}

static void anew(const char *name)
{
    memset(&lives, 0, sizeof(lives));
    snprintf(lives.name, sizeof(lives.name), "%s", name);
}

/* Returns the spans in order, as `name from-to`. */
static const char *spans(void)
{
    static const char *const names[] = {
        "request", "wait", "encode", "transfer", "ready"};
    static char text[1024];
    size_t n = 0;

    text[0] = 0;
    for (uint64_t i = lives.first; i < lives.count; i++) {
        const struct otel_span *s = &lives.spans[i];

        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s %lld-%lld%s%s",
            n ? ", " : "", names[s->name], (long long)s->from_ns,
            (long long)s->to_ns, s->reason[0] ? " " : "", s->reason);
        T_TRUE(n < sizeof(text));
    }
    return text;
}

/* A room at langd, requested at 10 and READY at 70. first: blocks that its
 * first INIT has; length: its length, told at 30. */
static void at_langd(const char *context, uint32_t first, uint32_t length)
{
    at(10, HAPPENED_REQUESTED, ROWS_UNKNOWN, 0);
    if (context)
        said(10, HAPPENED_CONTEXT, context);
    told(10, HAPPENED_SENT, PEER_INIT, first);
    told(30, HAPPENED_LENGTH, PEER_LENGTH, length);
}

static void ends_well(void)
{
    at(60, HAPPENED_LANDED, 10, 20);
    at(65, HAPPENED_LANDED, 20, 20);
    said(70, HAPPENED_ENDED, "ok");
    at(90, HAPPENED_FREED, 1, 0);
}

TEST(a_room_at_langd_has_a_request_a_transfer_and_rows_that_are_ready)
{
    anew("lang0");
    at_langd(CONTEXT, 20, 20);
    ends_well();
    T_EQ_STR(spans(), "request 10-70, transfer 60-70, ready 70-90");
    for (uint64_t i = 0; i < lives.count; i++) {
        const struct otel_span *s = &lives.spans[i];

        T_EQ_U64(s->of.trace[0], 0x4bf92f3577b34da6);
        T_EQ_U64(s->of.trace[1], 0xa3ce929d0e0e4736);
        T_EQ_U64(s->of.parent, 0x00f067aa0ba902b7);
        T_EQ_U64(s->rows, 20);
        T_EQ_STR(s->peer, "enc0");
    }
}

TEST(times_are_unix_time)
{
    anew("lang0");
    lives.unix_ns = 1000;
    at_langd(CONTEXT, 20, 20);
    ends_well();
    T_EQ_STR(spans(), "request 1010-1070, transfer 1060-1070, ready 1070-1090");
}

TEST(a_room_at_langd_waits_for_blocks_that_the_first_init_did_not_bring)
{
    anew("lang0");
    at_langd(CONTEXT, 0, 20);
    at(40, HAPPENED_GRANTED, 20, 1);
    ends_well();
    T_EQ_STR(spans(), "request 10-70, wait 10-40, transfer 60-70, ready 70-90");
}

TEST(a_room_at_langd_waits_for_the_blocks_of_its_length)
{
    anew("lang0");
    at_langd(CONTEXT, 8, 20);
    told(35, HAPPENED_LENGTH, PEER_LENGTH, 20); /* the same length again */
    at(40, HAPPENED_GRANTED, 20, 1);
    ends_well();
    T_EQ_STR(spans(), "request 10-70, wait 30-40, transfer 60-70, ready 70-90");
}

TEST(each_want_of_a_room_at_langd_is_a_wait)
{
    anew("lang0");
    at_langd(CONTEXT, 8, ROWS_UNKNOWN);
    told(40, HAPPENED_GOT, PEER_WANT, ROWS_UNKNOWN);
    told(41, HAPPENED_GOT, PEER_WANT, ROWS_UNKNOWN);
    at(45, HAPPENED_GRANTED, 16, 1);
    told(50, HAPPENED_GOT, PEER_WANT, ROWS_UNKNOWN);
    at(50, HAPPENED_GRANTED, 20, 1); /* granted at once: no wait */
    told(52, HAPPENED_GOT, PEER_WANT, ROWS_UNKNOWN);
    at(55, HAPPENED_GRANTED, 24, 1);
    ends_well();
    T_EQ_STR(spans(), "wait 40-45, request 10-70, wait 52-55, transfer 60-70, "
                      "ready 70-90");
}

TEST(a_room_that_fails_says_why_and_what_it_waited_for)
{
    anew("lang0");
    at_langd(CONTEXT, 0, 20);
    said(70, HAPPENED_ENDED, "no-blocks");
    at(90, HAPPENED_FREED, 0, 0);
    T_EQ_STR(spans(), "request 10-70 no-blocks, wait 10-70");
}

TEST(a_room_whose_encoder_is_away_does_not_wait_for_blocks)
{
    anew("lang0");
    at(10, HAPPENED_REQUESTED, ROWS_UNKNOWN, 0);
    said(10, HAPPENED_CONTEXT, CONTEXT);
    said(70, HAPPENED_ENDED, "peer-lost");
    T_EQ_STR(spans(), "request 10-70 peer-lost");
}

static void at_encoded(uint32_t blocks)
{
    at(10, HAPPENED_ANNOUNCED, 20, blocks);
    if (!blocks)
        at(15, HAPPENED_SOURCE, 1, 0);
    at(20, HAPPENED_COMMITTED, 10, 20);
    at(25, HAPPENED_SENDING, 0, 10);
    at(30, HAPPENED_COMMITTED, 20, 20);
    at(35, HAPPENED_SENDING, 10, 20);
}

TEST(a_room_at_encoded_is_encoded_and_sent)
{
    anew("enc0");
    at_encoded(1);
    said(38, HAPPENED_CONTEXT, CONTEXT); /* the peer's context comes late */
    said(40, HAPPENED_ENDED, "ok");
    at(50, HAPPENED_FREED, 1, 0);
    T_EQ_STR(spans(), "request 10-40, encode 10-30, transfer 25-40");
}

TEST(a_room_at_encoded_waits_for_its_source_blocks)
{
    anew("enc0");
    /* comes with an INIT, before the announce */
    said(5, HAPPENED_CONTEXT, CONTEXT);
    at_encoded(0);
    said(40, HAPPENED_ENDED, "ok");
    T_EQ_STR(
        spans(), "request 10-40, wait 10-15, encode 15-30, transfer 25-40");
}

TEST(a_room_without_a_context_or_one_that_is_not_sampled_has_no_span)
{
    anew("lang0");
    at_langd(NULL, 20, 20);
    ends_well();
    at_langd(OTHER, 20, 20);
    ends_well();
    at_langd("-", 20, 20);
    ends_well();
    T_EQ_STR(spans(), "");
}

TEST(a_life_begins_anew_with_its_request)
{
    anew("lang0");
    at_langd(CONTEXT, 20, 20);
    at_langd(NULL, 20, 20);
    ends_well();
    T_EQ_STR(spans(), "");
    at(10, HAPPENED_FREED, 1, 0); /* of a room whose begin was not seen */
    said(70, HAPPENED_ENDED, "ok");
    T_EQ_STR(spans(), "");
}

TEST(ids_are_equal_when_a_recorder_is_read_again_and_differ_else)
{
    uint64_t ids[3];

    anew("lang0");
    at_langd(CONTEXT, 20, 20);
    ends_well();
    for (uint32_t i = 0; i < 3; i++)
        ids[i] = lives.spans[i].id;
    T_TRUE(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    memset(lives.at, 0, sizeof(lives.at));
    lives.unix_ns = 7;
    at_langd(CONTEXT, 20, 20);
    ends_well();
    for (uint32_t i = 0; i < 3; i++)
        T_EQ_U64(lives.spans[3 + i].id, ids[i]);
    anew("lang1");
    at_langd(CONTEXT, 20, 20);
    ends_well();
    T_TRUE(lives.spans[0].id != ids[0]);
}

TEST(what_finds_no_place_is_counted)
{
    struct happening asks = {.of_room = true, .kind = HAPPENED_REQUESTED};
    struct happening traced = {.of_room = true, .kind = HAPPENED_CONTEXT};
    struct happening hidden = {.kind = HAPPENED_CONTEXT, .text = "-"};
    uint64_t places = LIVES_SETS * LIVES_WAYS;

    anew("lang0");
    snprintf(traced.text, sizeof(traced.text), "%s", CONTEXT);
    for (asks.room = 0; asks.room < 2 * places; asks.room++) {
        asks.ns = (int64_t)asks.room + 1;
        traced.room = asks.room;
        spans_take(&lives, &asks);
        spans_take(&lives, &traced);
    }
    T_TRUE(lives.forgotten >= places);
    /* the newest rooms are remembered */
    for (uint64_t i = 0; i < 2 * places; i++) {
        struct happening ends = {.of_room = true,
            .room = 2 * places - 1 - i,
            .kind = HAPPENED_ENDED,
            .ns = 1 << 30,
            .b = ROWS_UNKNOWN,
            .text = "aborted"};

        spans_take(&lives, &ends);
    }
    T_EQ_U64(lives.count, SPANS_MAX);
    T_TRUE(lives.dropped > 0);
    T_EQ_U64(lives.count + lives.dropped + lives.forgotten, 2 * places);
    T_EQ_U64(lives.spans[0].room, 2 * places - 1);
    spans_take(&lives, &hidden);
    T_EQ_U64(lives.hidden, 1);
}
