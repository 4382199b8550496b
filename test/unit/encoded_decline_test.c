/* encoded_decline_test.c - langds that give a room up, before and after its
 * announce: each is one destination less, once, and fills no table of rooms
 * (RULES 5, 7). */
#include "test/here.h"

#define ENGINE_UID 7 /* the user of brain_conn()'s connections */

static struct peer_msg abort_of(
    uint64_t room, uint64_t generation, enum err why)
{
    struct peer_msg m = about(room, generation, PEER_ABORT);

    m.abort.reason = (uint8_t)why;
    return m;
}

/* before the announce */

/* RULES 5.19 */
TEST_ENCODED(a_decline_is_one_destination_of_two)
{
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 1, two(init(e, 1, 71, 0)));
    T_TRUE(brain_said(e, PEER_WANT, 0) != NULL);
    brain_hear(e, 1, resume(1, 71, 0, 16, 0));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 1, 1, 71);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
    (void)brain_events(e, 0, 0);
    T_EQ_U64(e->event.event.a, 1); /* served */
    T_EQ_U64(e->event.event.b, 1); /* failed */
}

TEST_ENCODED(the_other_may_ask_before_the_announce)
{
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    brain_hear(e, 1, two(init(e, 1, 71, 0)));
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    T_TRUE(brain_said(e, PEER_WANT, 0) != NULL);
}

/* RULES 5.19 */
TEST_ENCODED(an_open_room_ignores_declines)
{
    struct local_msg a = announce_for(0, 1, 0, 16);

    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    T_TRUE(brain_state(e, 0, 0) != ROOM_FAILED);
    brain_hear(e, 1, init(e, 1, 71, 16));
    is_taken(e);
    T_EQ_U64(brain_shown(e, "status", "declines_held", 0), 0);
}

static void given_up(enum err why, uint16_t required)
{
    struct rig *e = encoded(NULL, NULL);

    HEARS(e, 0, init(e, 1, 70, 16), abort_of(1, 70, why));
    T_EQ_U64(brain_shown(e, "status", "rooms_held", 0), 0);
    T_OK(brain_say(e, 0, announce_for(required, 1, 0, 16)));
    T_EQ_U64(brain_reason(e, 0, 0), why);
    frees(e, 0, 16);
}

/* RULES 5.19 */
TEST_IS(a_room_that_was_given_up_ends_when_it_is_announced,
    given_up(ERR_ABORTED, 0));

/* RULES 5.21 */
TEST_ENCODED(a_room_that_was_given_up_takes_no_blocks_of_kept_ones)
{
    struct local_msg a = announce(1, 0, 128, 128);

    a.announce.flags = FLAG_KEEP;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, init(e, 1, 71, 128));
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    ack(e, 0, 1, 71);
    frees(e, 0, 0);
    brain_hear(e, 0, about(2, 0, PEER_DECLINE));
    T_OK(brain_say(e, 0, announce(2, 1, 16, 16)));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_DECLINED);
    T_EQ_U64(brain_free(e), 0);
}

TEST_IS(so_does_one_whose_time_was_over, given_up(ERR_TIMEOUT, 1));
TEST_IS(so_does_one_whose_engine_died, given_up(ERR_ENGINE_LOST, 0));

/* RULES 5.18 */
TEST_ENCODED(one_of_two_gave_up)
{
    HEARS(e, 0, two(init(e, 1, 70, 0)), abort_of(1, 70, ERR_ABORTED));
    /* it has given up already, and counts once */
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(
        /* for two destinations, as the INIT said */
        brain_say(e, 0, announce_for(0, 1, 0, 16)));
    T_EQ_U64(brain_shown(e, "rooms", "failed", 0), 1);
    brain_hear(e, 1, init(e, 1, 72, 0));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason,
        ERR_DESTINATIONS_DISAGREE);
    brain_hear(e, 1, two(init(e, 1, 71, 0)));
    T_TRUE(brain_said(e, PEER_WANT, 0) != NULL);
}

TEST_ENCODED(an_init_that_did_not_get_in_counts_too)
{
    brain_hear(e, 0, abort_of(1, 70, ERR_ABORTED));
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ABORTED);
}

/* RULES 5.19 */
TEST_ENCODED(to_ask_again_takes_it_back)
{
    HEARS(e, 0, init(e, 1, 70, 16), abort_of(1, 70, ERR_TIMEOUT),
        init(e, 1, 71, 16));
    SAYS(e, 0, announce_for(1, 1, 0, 16), commit(0, 0, 16));
    ack_succeeds(e, 0, 1, 71, 0);
}

TEST_ENCODED(also_as_one_of_two)
{
    HEARS(e, 0, two(init(e, 1, 70, 0)), abort_of(1, 70, ERR_TIMEOUT),
        two(init(e, 1, 71, 0)));
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    T_EQ_U64(brain_shown(e, "rooms", "failed", 0), 0);
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 1);
    T_EQ_U64(brain_shown(e, "status", "declines_held", 0), 0);
}

/* RULES 5.19 */
TEST_ENCODED(a_langd_that_is_lost_has_given_nothing_up)
{
    brain_hear(e, 0, init(e, 1, 70, 16));
    brain_down(e, 0);
    brain_pass(e, 600);
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    brain_hello(e, 0, "a", 0x9999);
    brain_hear(e, 0, init(e, 1, 71, 16)); /* its engine requests it again */
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING);
}

/* RULES 5.19 */
TEST_ENCODED(declines_are_forgotten_in_time, "timeouts.bootstrap=1s")
{
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    brain_pass(e, 1100);
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
}

/* Once a room has ended, nothing counts against the next room of its id. */
/* RULES 5.19 */
TEST_ENCODED(what_a_room_counted_ends_with_it)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(brain_say(e, 0, release(0)));
    brain_hear(e, 1, about(1, 0, PEER_DECLINE)); /* late */
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
}

TEST_ENCODED(what_is_said_of_the_next_room_counts_there)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(brain_say(e, 0, release(0)));
    brain_pass(e, 31000);
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* after it */

/* RULES 5.19 */
TEST_ENCODED(a_langd_counts_once)
{
    struct local_msg a = announce_for(3, 1, 0, 16);
    struct peer_msg m = init(e, 1, 70, 0);

    T_OK(brain_say(e, 0, a));
    m.init.required_dst = 3;
    HEARS(e, 0, m, abort_of(1, 70, ERR_ABORTED));
    /* another engine of the same langd */
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    HEARS(e, 1, about(1, 0, PEER_DECLINE), about(1, 0, PEER_DECLINE));
    T_EQ_U64(brain_shown(e, "rooms", "failed", 0), 2);
    m.generation = 71; /* a langd that asks again is a destination again */
    brain_hear(e, 0, m);
    is_taken(e);
    T_EQ_U64(brain_shown(e, "rooms", "failed", 0), 1);
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 2);
}

/* RULES 5.19 */
TEST(a_langd_whose_place_was_anothers_gives_up_once)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "limits.peers=1");
    struct local_msg a = announce(1, 0, 8, 8);

    brain_conn(e, 0, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    brain_pass(e, 10000);
    brain_hello(e, 1, "b", L_EPOCH + 1); /* a is idle */
    brain_down(e, 1);
    brain_hello(e, 0, "a", L_EPOCH);
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    a.announce.required_dst = 2;
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_shown(e, "rooms", "failed", 0), 1);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING);
}

/* strangers */

/* RULES 5.19 */
TEST_ENCODED(
    declines_take_no_places_of_rooms, "limits.rooms=8", "limits.tombstones=16")
{
    for (uint64_t r = 1; r <= 40; r++)
        brain_hear(e, 0, about(100 + r, 0, PEER_DECLINE));
    T_EQ_U64(brain_shown(e, "status", "rooms_held", 0), 0);
    T_EQ_U64(brain_shown(e, "status", "declines_held", 0), 16);
    T_EQ_U64(brain_stat(e, "declines_forgotten"), 24);
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    /* the youngest decline is remembered */
    T_OK(brain_say(e, 0, announce(140, 1, 8, 8)));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_DECLINED);
    T_OK(brain_say(e, 0, announce(101, 2, 8, 8))); /* the oldest is forgotten */
    T_EQ_U64(brain_state(e, 0, 2), ROOM_BOOTSTRAPPING);
}

static struct local_msg withdraw(uint64_t room)
{
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = room;
    memset(&m.decline.secret, 5, sizeof(m.decline.secret));
    return m;
}

/* A user that withdraws many rooms that never come evicts only its own. */
/* RULES 5.19 */
TEST_ENCODED(a_user_that_withdraws_much_evicts_its_own, "limits.tombstones=32")
{
    struct local_msg a = announce(2, 1, 8, 8);

    brain_user(e, 1, 4001, "router");
    brain_user(e, 2, 4002, "flood");
    brain_hear(e, 0, about(1, 0, PEER_DECLINE));
    T_OK(brain_say(e, 1, withdraw(2)));
    for (uint64_t room = 100; room < 200; room++)
        T_OK(brain_say(e, 2, withdraw(room)));
    T_EQ_U64(brain_shown(e, "status", "declines_held", 0), 32);
    T_EQ_U64(brain_stat(e, "declines_forgotten"), 70);
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
    a.announce.secret = withdraw(2).decline.secret;
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_DECLINED);
}

/* RULES 5.19 */
TEST_ENCODED(another_user_of_this_host_declines_nothing)
{
    struct peer_msg m = about(1, 0, PEER_DECLINE);

    m.decline.who = ENGINE_UID + 2;
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    brain_hear(e, 0, m);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(e, "declines_ignored"), 1);
    m.room = 2; /* the decline does not count before the announce either */
    brain_hear(e, 0, m);
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(e, "declines_ignored"), 2);
    m.room = 1;
    m.decline.who = ENGINE_UID + 1;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* open rooms */

/* RULES 4.11 */
TEST_ENCODED(an_open_room_may_be_asked_for_before_it_is_announced)
{
    struct local_msg a = announce_for(0, 1, 0, 16);

    brain_hear(e, 0, init(e, 1, 70, 16));
    brain_hear(e, 1, init(e, 1, 71, 16));
    is_taken(e);
    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 2);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 70);
    ack(e, 1, 1, 71);
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), release(0));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS);
}

/* RULES 4.11 */
TEST_ENCODED(the_first_that_fits_has_a_room_of_one)
{
    struct peer_msg m = init(e, 1, 70, 16);

    m.init.layout++;
    brain_hear(e, 0, m);
    brain_hear(e, 1, init(e, 1, 71, 16));
    brain_hello(e, 2, "c", L_EPOCH + 2);
    brain_hear(e, 2, init(e, 1, 72, 16));
    T_OK(brain_say(e, 0, announce_for(0, 1, 0, 16)));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 2);
    T_EQ_U64(
        brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_INCOMPATIBLE_LAYOUT);
    T_EQ_U64(brain_said(e, PEER_FAILED, 1)->failed.reason,
        ERR_DESTINATIONS_DISAGREE);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, 71);
}

/* What counts as giving up if the INIT was lost or comes late. */

/* RULES 5.19 */
TEST_ENCODED(to_give_up_an_announced_room_is_heard_without_its_init)
{
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    brain_hear(e, 0, abort_of(1, 71, ERR_ENGINE_LOST));
    T_TRUE(brain_said(e, PEER_DRAINED, 0) != NULL);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ENGINE_LOST);
}

/* RULES 5.19 */
TEST_ENCODED(each_langd_gives_up_once_and_may_ask_again)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    HEARS(e, 0, abort_of(1, 71, ERR_ABORTED), abort_of(1, 72, ERR_ABORTED));
    T_TRUE(brain_state(e, 0, 0) != ROOM_FAILED);
    brain_hear(e, 0, two(init(e, 1, 73, 0)));
    brain_hear(e, 0, abort_of(1, 70, ERR_ABORTED)); /* late */
    brain_hear(e, 1, two(init(e, 1, 81, 0)));
    brain_hear(e, 0, resume(1, 73, 0, 16, 0));
    brain_hear(e, 1, resume(1, 81, 0, 16, 0));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 73);
    ack_succeeds(e, 1, 1, 81, 0);
}

/* RULES 5.19 */
TEST_ENCODED(what_a_langd_that_has_the_rows_gave_up_before_is_not_heard)
{
    struct event quiet = {
        .type = EV_NOTE, .note = {.type = NOTE_SEND_QUIET, .generation = 73}};

    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 0, two(init(e, 1, 73, 16)));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 73);
    quiet.note.slot = brain_cmd(e, SEND_CLOSE)->slot;
    rig_step(e, &quiet);
    T_EQ_U64(brain_shown(e, "status", "destinations_held", 0), 0);
    brain_hear(e, 0, abort_of(1, 71, ERR_ABORTED));
    T_TRUE(brain_state(e, 0, 0) != ROOM_FAILED);
    brain_hear(e, 1, two(init(e, 1, 81, 16)));
    ack_succeeds(e, 1, 1, 81, 0);
}
