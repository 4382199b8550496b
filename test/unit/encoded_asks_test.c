/* encoded_asks_test.c - who becomes a destination of a room of encoded, and who
 * is refused without harm to the others. Blocks of 8 rows, 16 of them. */
#include "test/here.h"

/* RULES 4.11 */
TEST_ENCODED(one_of_three_that_wait_for_a_room_of_one_is_served)
{
    brain_hello(e, 2, "c", L_EPOCH + 2);
    brain_hear(e, 0, init(e, 1, 70, 16));
    brain_hear(e, 1, init(e, 1, 71, 16));
    brain_hear(e, 2, init(e, 1, 72, 16));
    T_OK(brain_say(e, 0, announce_for(1, 1, 0, 16)));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 2);
}

/* A send of the old run is in flight. Generations begin anew with a run. */
/* RULES 9.1 */
TEST_ENCODED(a_new_run_with_lower_generations_is_served, "timeouts.linger=5s")
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    SAYS(e, 0, commit(0, 0, 16), final(0, 16));
    e->noisy = true;
    brain_down(e, 0);
    brain_hello(e, 0, "a", 0x9999);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    brain_hear(e, 0, init(e, 1, 60, 16));
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
}

/* Rows of room 1 that langd 0 has, encoded keeps, and langd 1 is being sent. */
static void kept_and_asked(struct rig *e)
{
    struct local_msg a = announce(1, 0, 16, 16);

    a.announce.flags = FLAG_KEEP;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, init(e, 1, 70, 16));
    SAYS(e, 0, commit(0, 0, 16), final(0, 16));
    ack(e, 0, 1, 70);
    brain_hear(e, 1, init(e, 1, 80, 16));
}

/* RULES 6.6 */
TEST_ENCODED(kept_rows_of_a_lost_pool_are_gone, "timeouts.keep=1h")
{
    kept_and_asked(e);
    rig_step(
        e, &(struct event){.type = EV_NOTE, .note = {.type = NOTE_POOL_LOST}});
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 1);
    brain_hear(e, 1, state(1, 80, PEER_FAILED, ROOM_FAILED));
    brain_hear(e, 1, init(e, 1, 81, 16));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 1);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 9.8 */
TEST_ENCODED(
    dropped_rows_serve_who_has_asked_and_nobody_else, "timeouts.keep=1h")
{
    kept_and_asked(e);
    rig_step(e, &(struct event){.type = EV_DROP, .pool = NONE});
    T_EQ_U64(brain_stat(e, "dropped"), 1);
    brain_hear(e, 0, init(e, 1, 81, 16));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 1);
    ack(e, 1, 1, 80);
    T_EQ_U64(brain_free(e), 16);
}

/* langd 0 was served before the room was revoked; langd 1 asks again; a third
 * one, for a room of one destination, is refused and takes no place of them. */
/* RULES 4.11 */
TEST_ENCODED(a_refused_langd_takes_no_place_of_one_that_was_served)
{
    brain_hello(e, 2, "c", L_EPOCH + 2);
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 128)));
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    brain_hear(e, 0, two(init(e, 1, 70, 0)));
    brain_hear(e, 1, two(init(e, 1, 71, 0)));
    brain_hear(e, 0, grants(1, 70, 128, FIRM_YES));
    ack(e, 0, 1, 70);
    brain_hear(e, 1, state(1, 71, PEER_WANT, ROOM_WAITING));
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    brain_hear(e, 2, init(e, 2, 90, 0));
    brain_hear(e, 2, grants(2, 90, 8, FIRM_YES));
    brain_pass(e, 200);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    brain_hear(e, 1, state(1, 71, PEER_FAILED, ROOM_FAILED));
    SAYS(e, 0, release(0));
    T_OK(brain_say(e, 0, commit(1, 0, 8)));
    ack(e, 2, 2, 90);
    SAYS(e, 0, release(1), announce_for(2, 1, 2, 128));
    brain_hear(e, 1, two(init(e, 1, 73, 0)));
    brain_hear(e, 1, grants(1, 73, 128, FIRM_YES));
    brain_hear(e, 2, init(e, 1, 91, 0));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 1);
    T_OK(brain_say(e, 0, commit(2, 0, 128)));
    ack(e, 1, 1, 73);
    T_EQ_U64(brain_state(e, 0, 2), ROOM_SUCCESS);
}

/* Its own older one has the last place while its send goes on. */
/* RULES 4.10 */
TEST_ENCODED(a_newer_generation_waits_for_a_place, "limits.rooms=4",
    "timeouts.bootstrap=1s")
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    for (uint32_t i = 0; i < 3; i++) {
        T_OK(brain_say(e, 0, announce(2 + i, 1 + i, 8, 8)));
        brain_hear(e, 0, init(e, 2 + i, 71 + i, 8));
    }
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    brain_pass(e, 1500);
    e->noisy = true;
    brain_hear(e, 0, init(e, 1, 90, 16));
    T_EQ_U64(brain_said_count(e, PEER_NACK), 1);
    brain_pass(e, 10);
    T_EQ_U64(brain_reason(e, 0, 0), OK);
    brain_pass(e, 1000);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_TIMEOUT);
}

/* RULES 5.19 */
TEST_ENCODED(an_open_room_ignores_an_abort)
{
    struct local_msg a = announce(1, 0, 16, 16);
    struct peer_msg m = about(1, 70, PEER_ABORT);

    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, init(e, 1, 70, 16));
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), commit(0, 0, 16), final(0, 16));
    m.abort.reason = ERR_ENGINE_LOST;
    brain_hear(e, 0, m);
    brain_hear(e, 1, init(e, 1, 80, 16));
    ack(e, 1, 1, 80);
    T_OK(brain_say(e, 0, release(0)));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS);
}
