/* encoded_drain_test.c - an encode side that takes no new rooms, by order or
 * because it ends (RULES 9.5). */
#include "test/here.h"

/* RULES 9.5 */
TEST_ENCODED(by_order_it_refuses_new_rooms_and_may_be_taken_back)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    T_OK(brain_say(e, 0, final(0, 16)));
    brain_is(e, EV_DRAIN);
    T_ERR(brain_say(e, 0, announce(2, 1, 8, 8)), ERR_DRAINING);
    brain_hear(e, 0, init(e, 9, 90, 8));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_DRAINING);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_open_rooms(e->is), 0);
    brain_is(e, EV_UNDRAIN);
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    brain_hear(e, 0, init(e, 9, 91, 8));
    T_TRUE(brain_said(e, PEER_FAILED, 0) == NULL);
}

/* RULES 9.5 */
TEST_ENCODED(a_room_that_was_asked_for_is_announced_in_a_drain)
{
    brain_hear(e, 0, init(e, 1, 70, 8));
    T_EQ_U64(brain_open_rooms(e->is), 0);
    brain_is(e, EV_DRAIN);
    T_EQ_U64(brain_open_rooms(e->is), 1);
    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    T_EQ_U64(brain_open_rooms(e->is), 1);
    T_OK(brain_say(e, 0, final(0, 8)));
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_open_rooms(e->is), 0);
}

/* RULES 9.5 */
TEST_ENCODED(one_that_is_given_up_is_not_waited_for)
{
    brain_hear(e, 0, init(e, 1, 70, 8));
    brain_is(e, EV_DRAIN);
    brain_hear(e, 0, about(1, 70, PEER_ABORT));
    T_EQ_U64(brain_open_rooms(e->is), 0);
    T_ERR(brain_say(e, 0, announce(1, 0, 8, 8)), ERR_DRAINING);
}

/* RULES 9.5 */
TEST_ENCODED(an_end_is_not_taken_back)
{
    brain_is(e, EV_ENDING);
    brain_is(e, EV_UNDRAIN);
    T_ERR(brain_say(e, 0, announce(1, 0, 8, 8)), ERR_DRAINING);
}

/* Checks that all HELLOs say `draining`; returns their number. */
static uint32_t says(struct rig *e, bool draining)
{
    uint32_t n = brain_said_count(e, PEER_HELLO);

    for (uint32_t i = 0; i < n; i++)
        T_EQ_U64(brain_said(e, PEER_HELLO, (int)i)->hello.draining, draining);
    return n;
}

static void answers(struct rig *e, uint32_t link, const char *name)
{
    struct peer_msg m = {.type = PEER_HELLO};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_LANGD;
    m.hello.answer = true;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str(name);
    brain_hear(e, link, m);
}

/* RULES 9.5 */
TEST_ENCODED(langds_are_told_until_they_have_answered)
{
    T_EQ_U64(says(e, false), 1);
    brain_is(e, EV_DRAIN);
    brain_pass(e, 0);
    T_EQ_U64(says(e, true), 2);
    answers(e, 0, "a");
    T_EQ_U64(says(e, true), 0);
    brain_pass(e, 500);
    T_EQ_U64(says(e, true), 1);
    answers(e, 1, "b");
    brain_is(e, EV_DRAIN); /* all langds know it already */
    brain_pass(e, 5000);
    T_EQ_U64(says(e, true), 0);
    brain_hello(e, 2, "c", L_EPOCH + 2);
    T_EQ_U64(says(e, true), 1);
    brain_is(e, EV_UNDRAIN);
    brain_pass(e, 0);
    T_EQ_U64(says(e, false), 3);
}

/* RULES 9.5 */
TEST_ENCODED(an_answer_to_what_was_said_before_ends_no_news)
{
    brain_is(e, EV_DRAIN);
    brain_pass(e, 0);
    T_EQ_U64(says(e, true), 2);
    brain_is(e, EV_UNDRAIN);
    answers(e, 0, "a"); /* answers the first HELLO, of the drain */
    brain_pass(e, 0);
    T_EQ_U64(says(e, false), 1);
    /* its first answer: it has not heard the second HELLO */
    answers(e, 1, "b");
    brain_pass(e, 0);
    T_EQ_U64(says(e, false), 1);
    answers(e, 1, "b");
    brain_pass(e, 500); /* the second HELLO to a was lost */
    T_EQ_U64(says(e, false), 1);
    answers(e, 0, "a");
    brain_pass(e, 5000);
    T_EQ_U64(says(e, false), 0);
}

/* RULES 9.5 */
TEST_ENCODED(one_that_ends_says_so)
{
    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    brain_is(e, EV_ENDING);
    brain_pass(e, 0);
    T_EQ_U64(says(e, true), 2);
}
