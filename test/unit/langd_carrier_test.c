/* langd_carrier_test.c - how langd chooses the carrier of rows for an encoder
 * (lib/wire/carriers.h), and says so. It has UCX and TCP here. */
#include "test/there.h"

#define BOTH "transfer.tls=rc"

/* Has the encoder say which carriers it can use; ask: it is no answer. */
static void says(struct rig *l, const char *carriers, uint64_t epoch, bool ask)
{
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = epoch};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.answer = !ask;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("enc");
    m.hello.carriers = span_str(carriers);
    brain_hear(l, 0, m);
}

static void is_for(const struct peer_msg *m, uint8_t carrier)
{
    T_EQ_U64(m->hello.carrier, carrier);
    T_EQ_U64(m->hello.addresses.len, carrier == CARRIER_UCX ? 6 : 5);
}

TEST_LANGD(the_choice_is_said_before_any_request, BOTH)
{
    struct there t;

    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, false);
    is_for(brain_said(l, PEER_HELLO, 0), CARRIER_UCX);
    T_EQ_STR(brain_text(l, "peers", "carrier", 0), "ucx");
    T_EQ_STR(brain_text(l, "peers", "carriers", 0), "ucx 1.18 rc; tcp");
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, false);
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 0);
    t = ask_room(l, 1, 0);
    fill_succeeds(l, &t, 16, 0);
}

/* Three addresses of 5,000 bytes, as of hosts with many network cards. */
static struct span three_long(uint8_t *blob, size_t size)
{
    static uint8_t one[5000];
    struct writer w = writer_of(blob, size);

    for (uint32_t i = 0; i < 3; i++)
        put_span(&w, span_of(one, sizeof(one)), 2, ADDRESS_MAX);
    T_FALSE(w.failed);
    return span_of(w.p, w.len);
}

TEST_LANGD(three_addresses_of_5000_bytes_are_said, BOTH)
{
    const struct peer_hello *h;
    uint8_t blob[16000];

    brain_addresses(l, CARRIER_UCX, three_long(blob, sizeof(blob)));
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, true);
    h = &brain_said(l, PEER_HELLO, 0)->hello;
    T_EQ_U64(h->carrier, CARRIER_UCX);
    T_EQ_U64(h->addresses.len, 3 * 5002);
}

TEST_WITH(a_question_is_answered_once, struct rig *l, langd_up(BOTH, NULL))
{
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, true);
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 1);
    is_for(brain_said(l, PEER_HELLO, 0), CARRIER_UCX);
    T_TRUE(brain_said(l, PEER_HELLO, 0)->hello.answer);
}

TEST(plain_tcp_where_no_more_is_in_common)
{
    static const char *const lists[] = {"", "tcp", "quic 1; tcp"};

    struct rig *l = langd_up(BOTH, NULL);

    for (size_t i = 0; i < ARRAY_LEN(lists); i++) { /* each is another run */
        says(l, lists[i], PEER_EPOCH + 1 + i, true);
        T_EQ_U64(brain_said_count(l, PEER_HELLO), 1);
        is_for(brain_said(l, PEER_HELLO, 0), CARRIER_TCP);
    }
}

/* Lets after_ms pass, then breaks the room's attempt. */
static void breaks(
    struct rig *l, struct there *t, uint32_t attempt, uint32_t after_ms)
{
    struct peer_msg m = about(t, PEER_BROKEN);

    brain_pass(l, after_ms);
    m.broken.attempt = attempt;
    brain_hear(l, 0, m);
}

TEST_WITH(two_breaks_make_it_the_next_one, struct rig *l, langd_up(BOTH, NULL))
{
    struct there t;

    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, false);
    t = ask_room(l, 1, 0);
    brain_hear(l, 0, length(&t, 16, 16, true));
    breaks(l, &t, 0, 10);
    is_for(brain_said(l, PEER_HELLO, 0), CARRIER_UCX);
    brain_hear(l, 0, state(&t, PEER_RESUME, 1, 16));
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, false);
    breaks(l, &t, 1, 400);
    is_for(brain_said(l, PEER_HELLO, -1), CARRIER_TCP);
    T_EQ_U64(brain_stat(l, "carriers_given_up"), 1);
    T_EQ_STR(brain_text(l, "peers", "carrier", 0), "tcp");
    T_EQ_STR(brain_text(l, "peers", "not_by", 0),
        "copy: off there, ucx: broke twice");
    /* A HELLO of the same epoch does not bring UCX back. */
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH, true);
    is_for(brain_said(l, PEER_HELLO, -1), CARRIER_TCP);
    /* The encoder's next run does. */
    says(l, "ucx 1.18 rc; tcp", PEER_EPOCH + 1, true);
    is_for(brain_said(l, PEER_HELLO, -1), CARRIER_UCX);
}

TEST_WITH(a_restart_demotes_nothing, struct rig *l, langd_up(BOTH, NULL))
{
    for (uint32_t run = 0; run < 4; run++) {
        struct peer_msg m;
        struct there t;

        says(l, "ucx 1.18 rc; tcp", PEER_EPOCH + run, true);
        is_for(brain_said(l, PEER_HELLO, -1), CARRIER_UCX);
        /* A break in one run does not count in the next. */
        t = ask_room(l, 1 + run, run);
        m = length(&t, 16, 16, true);
        m.from_epoch = PEER_EPOCH + run;
        brain_hear(l, 0, m);
        brain_pass(l, 400);
        m = about(&t, PEER_BROKEN);
        m.from_epoch = PEER_EPOCH + run;
        brain_hear(l, 0, m);
        is_for(brain_said(l, PEER_HELLO, -1), CARRIER_UCX);
    }
    T_EQ_U64(brain_stat(l, "broken"), 4);
    T_EQ_U64(brain_stat(l, "carriers_given_up"), 0);
}
