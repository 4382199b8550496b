/* langd_drain_test.c - encoders that say that they drain, and what the language
 * side makes of it (RULES 9.5, 9.6). `enc` is peer 0, `other` peer 1. */
#include "test/there.h"

#define OTHER "peers[1].name=other", "peers[1].address=tcp://127.0.0.1:7602"
#define THIRD "peers[2].name=third", "peers[2].address=tcp://127.0.0.1:7603"

static uint32_t said; /* seq of the last HELLO that says() sent */

/* Says HELLO as an encoder that is connected already. */
static void says(struct rig *l, uint32_t link, const char *name, bool draining)
{
    struct peer_msg m = {.type = PEER_HELLO, .seq = ++said};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.segment_max = 65536;
    m.hello.name = span_str(name);
    m.hello.draining = draining;
    brain_hear(l, link, m);
}

static void seek(struct rig *l)
{
    brain_is(l, EV_SEEK);
}

static void is(const struct rig *l, bool ready, const char *text)
{
    struct health h;

    brain_health(l->is, &h);
    T_CHECK(h.ready == ready && strcmp(h.text, text) == 0, "%s", h.text);
}

/* RULES 9.6 */
TEST(without_an_encoder_that_takes_rooms_it_is_not_ready)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "up");
    says(l, 0, "enc", true);
    T_TRUE(brain_said(l, PEER_HELLO, 0)->hello.answer);
    is(l, false, "not ready: encoder enc drains");
    T_EQ_STR(brain_text(l, "peers", "state", 0), "draining");
    says(l, 0, "enc", false);
    is(l, true, "ready");
    T_EQ_STR(brain_text(l, "peers", "state", 0), "up");
}

/* RULES 9.6 */
TEST(a_word_that_was_overtaken_changes_nothing)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    said++;
    says(l, 0, "enc", true);
    said -= 2;
    says(l, 0, "enc", false);
    is(l, false, "not ready: encoder enc drains");
}

/* HELLOs that are 2^31 messages apart, and one across 2^32. */
/* RULES 9.6 */
TEST(a_number_that_wraps_is_not_an_overtaken_one)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    said += 0x80000001;
    says(l, 0, "enc", true);
    is(l, false, "not ready: encoder enc drains");
    said = UINT32_MAX;
    says(l, 0, "enc", false);
    is(l, true, "ready");
}

/* RULES 9.6 */
TEST(its_next_run_takes_rooms)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    says(l, 0, "enc", true);
    brain_down(l, 0);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "away");
    is(l, false,
        "not ready: no encoder is connected; enc: the connection is lost, for "
        "0 s");
    brain_hello(l, 0, "enc", PEER_EPOCH + 1);
    is(l, true, "ready");
}

/* RULES 9.6 */
TEST(another_is_connected_when_the_only_one_drains)
{
    struct rig *l = BRAIN(ROLE_LANGD, OTHER);

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    says(l, 0, "enc", true);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    is(l, false, "not ready: encoder enc drains");
    brain_hello(l, 1, "other", PEER_EPOCH + 1);
    is(l, true, "ready");
    says(l, 1, "other", true);
    is(l, false, "not ready: encoder enc drains");
    says(l, 0, "enc", false);
    is(l, true, "ready");
}

/* Each drain that begins connects one more encoder; repeated HELLOs do not. */
/* RULES 9.6 */
TEST(a_drain_that_is_repeated_connects_no_more)
{
    struct rig *l = BRAIN(ROLE_LANGD, OTHER, THIRD);

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    says(l, 0, "enc", true);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    says(l, 0, "enc", true);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
}

/* RULES 9.6 */
TEST(where_requests_may_name_others_it_is_said_beside)
{
    struct rig *l = BRAIN(ROLE_LANGD, "control.allow=tcp://127.0.0.1:*");

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    says(l, 0, "enc", true);
    is(l, true, "ready, but encoder enc drains; requests may name others");
}

/* An encoder that has left the configuration takes no rooms either. */
/* RULES 9.6 */
TEST_LANGD(an_encoder_that_leaves_makes_none_ready)
{
    (void)ask_room(l, 1, 0);
    is(l, true, "ready");
    l->conf.peers_count = 0;
    brain_is(l, EV_CONF);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "leaving");
    is(l, false, "not ready: no encoder: peers and control.allow are empty");
}

/* Only the encoder knows whether the room was announced before. */
/* RULES 9.5 */
TEST_LANGD(a_room_is_asked_for_all_the_same)
{
    struct there t;

    says(l, 0, "enc", true);
    t = ask_room(l, 1, 0);
    fill_succeeds(l, &t, 8, 0);
}

/* An encoder that ends leaves rooms to its next run, which may come too
 * late. */
/* RULES 9.5 */
TEST_LANGD(a_room_that_is_left_says_so, "timeouts.bootstrap=2s")
{
    struct peer_msg nack = {.type = PEER_NACK, .room = 1};

    says(l, 0, "enc", true);
    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    nack.generation = brain_said(l, PEER_INIT, 0)->generation;
    nack.nack.answers = PEER_INIT;
    nack.nack.reason = ERR_DRAINING;
    brain_hear(l, 0, nack);
    T_EQ_U64(brain_reason(l, 0, 0), OK);
    brain_pass(l, 2500);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_HAS((const char *)l->event.event.text.p,
        "no announce came in time; the encoder drains");
}

/* RULES 9.5 */
TEST_LANGD(a_room_that_is_left_is_asked_of_the_next_run)
{
    struct peer_msg nack = {.type = PEER_NACK, .room = 1};
    struct there t;

    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    nack.generation = brain_said(l, PEER_INIT, 0)->generation;
    nack.nack.answers = PEER_INIT;
    nack.nack.reason = ERR_DRAINING;
    brain_hear(l, 0, nack);
    T_EQ_U64(brain_said_count(l, PEER_INIT), 0);
    brain_down(l, 0);
    brain_hello(l, 0, "enc", PEER_EPOCH + 1);
    T_EQ_U64(brain_said_count(l, PEER_INIT), 1);
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->generation, nack.generation);
    t = (struct there){.room = 1, .generation = nack.generation};
    told(l, &t);
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_WAITING);
}
