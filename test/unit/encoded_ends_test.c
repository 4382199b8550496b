/* encoded_ends_test.c - how rooms of the encode side end, what is remembered
 * of them, and when source blocks go back (RULES 1, 4, 6, 8, 9). Blocks are 8
 * rows, the pool has 16. */
#include "test/here.h"

/* A room that is announced and requested by `a` as generation g; all rows are
 * sent. */
static void under_way(struct rig *e, uint64_t room, uint32_t cell, uint64_t g)
{
    T_OK(brain_say(e, 0, announce(room, cell, 16, 16)));
    (void)brain_events(e, 0, cell);
    brain_hear(e, 0, init(e, room, g, 16));
    T_OK(brain_say(e, 0, commit(cell, 0, 16)));
    T_TRUE(brain_limit(e) > 0);
}

/* who decides */

/* RULES 4.6 */
TEST_ENCODED(a_failed_room_asks_langd_first)
{
    under_way(e, 1, 0, 70);
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), release(0));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ABORTED);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_TRANSFERRING);
    brain_pass(e, 1000);
    T_TRUE(brain_said_count(e, PEER_FAILED) >= 2); /* repeated until answered */
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_SUCCESS));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS); /* langd has all rows */
}

/* RULES 4.6 */
TEST_ENCODED(or_takes_its_failure)
{
    under_way(e, 1, 0, 70);
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), release(0));
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_FAILED);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.4 */
TEST_ENCODED(a_langd_that_does_not_answer_is_not_waited_for,
    "timeouts.bootstrap=10s", "timeouts.linger=0ms")
{
    under_way(e, 1, 0, 70);
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), release(0));
    brain_pass(e, 9000);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_TRANSFERRING);
    brain_pass(e, 3000);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_FAILED);
    T_EQ_U64(brain_stat(e, "failed_unanswered"), 1);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 4.6 */
TEST_ENCODED(langd_gone_means_outcome_unknown, "timeouts.linger=0ms")
{
    under_way(e, 1, 0, 70);
    brain_down(e, 0);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    brain_pass(e, 600);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_TRUE(brain_cmd(e, PEER_CLOSE) != NULL);
    frees(e, 0, 16);
}

/* RULES 4.6 */
TEST_ENCODED(a_short_absence_changes_nothing)
{
    under_way(e, 1, 0, 70);
    brain_down(e, 0);
    brain_pass(e, 300);
    brain_hello(e, 2, "a", L_EPOCH); /* the same run, on another link */
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, 70);
    brain_pass(e, 1000);
    brain_hear(e, 2, about(1, 70, PEER_ACK));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
}

/* epochs and names */

/* RULES 1.1 */
TEST_ENCODED(a_new_epoch_ends_the_rooms_of_the_old, "timeouts.linger=0ms")
{
    under_way(e, 1, 0, 70);
    brain_down(e, 0);
    brain_hello(e, 0, "a", 0x9999);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_EQ_U64(brain_said(e, PEER_HELLO, 0)->hello.answer, 1);
}

/* RULES 1.1 */
TEST_ENCODED(messages_for_another_epoch)
{
    struct peer_msg m = init(e, 1, 70, 8);

    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    m.to_epoch = 5;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_STALE);
    T_EQ_U64(brain_said_count(e, PEER_HELLO), 1);
    m.to_epoch = 0;
    m.from_epoch = 6;
    brain_hear(e, 0, m);
    brain_hear(e, 7, m); /* no HELLO came on that link */
    T_EQ_U64(brain_stat(e, "stale_epoch"), 3);
    T_EQ_U64(brain_events(e, 0, 0), EVENT_GRANTED);
}

/* RULES 1.9 */
TEST_ENCODED(a_name_is_one_daemons)
{
    under_way(e, 1, 0, 70);
    /* another run while the first one is connected */
    brain_hello(e, 2, "a", 0x9999);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 1);
    T_TRUE(brain_said(e, PEER_HELLO, 0) == NULL);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    T_EQ_U64(brain_acts(e, ACT_WARN), 1);
    brain_hello(e, 2, "a", 0x9999); /* a repetition */
    T_EQ_U64(brain_said_count(e, PEER_NACK), 1);
    T_EQ_U64(brain_acts(e, ACT_WARN), 0);
    brain_pass(e, 11000);
    brain_hello(e, 2, "a", 0x9999);
    T_EQ_U64(brain_acts(e, ACT_WARN), 1);
}

/* RULES 1.1 */
TEST_ENCODED(a_run_has_one_link_while_it_lives)
{
    under_way(e, 1, 0, 70);
    /* the same name and epoch on a second link */
    brain_hello(e, 2, "a", L_EPOCH);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    /* The first link gets a HELLO: if it is dead that will show. */
    T_EQ_U64(brain_said(e, PEER_HELLO, 0)->hello.answer, 1);
    T_EQ_U64(brain_said_count(e, PEER_HELLO), 1);
    /* refused as well: no HELLO was accepted on that link */
    brain_hear(e, 2, about(1, 70, PEER_ABORT));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_STALE);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    brain_down(e, 0);
    brain_hello(e, 2, "a", L_EPOCH);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
    brain_pass(e, 1000);
    brain_hear(e, 2, about(1, 70, PEER_ACK));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
}

/* RULES 1.1 */
TEST(a_run_is_shown_by_another_number)
{
    T_EQ_U64(epoch_shown(0), 0);
    T_TRUE(epoch_shown(L_EPOCH) != L_EPOCH);
    T_EQ_U64(epoch_shown(L_EPOCH), epoch_shown(L_EPOCH));
    T_TRUE(epoch_shown(L_EPOCH) != epoch_shown(L_EPOCH + 1));
}

/* RULES 1.9 */
TEST_ENCODED(a_link_has_one_name_at_a_time, "timeouts.linger=0ms")
{
    under_way(e, 1, 0, 70);
    brain_hello(e, 0, "other", 0x9999); /* link 0 is not a's any more */
    brain_pass(e, 600);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
}

/* RULES 2.4 */
TEST_ENCODED(hellos_that_are_none)
{
    brain_hello(e, 4, "", 0x77);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
    brain_hello(e, 4, "c", 0);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 1);
    /* places of the refused ones are free again */
    for (uint32_t i = 0; i < 20; i++) {
        char name[2] = {(char)('c' + (char)i), 0};

        brain_hello(e, 4, name, 0x100 + i);
        T_EQ_U64(brain_said_count(e, PEER_HELLO), 1);
        brain_down(e, 4);
        brain_pass(e, 600);
    }
}

/* what is remembered */

/* RULES 4.10 */
TEST_ENCODED(init_after_the_source_is_gone)
{
    under_way(e, 1, 0, 70);
    ack(e, 0, 1, 70);
    T_OK(brain_say(e, 0, release(0)));
    brain_hear(e, 1, init(e, 1, 71, 8));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    T_EQ_U64(brain_stat(e, "unknown_rooms"), 1);
    brain_hear(e, 1, resume(1, 71, 0, 16, 0)); /* refused for ever */
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    brain_hear(e, 0, init(e, 1, 70, 8)); /* the generation that was served */
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.state, ROOM_SUCCESS);
    brain_pass(e, 31000);
    brain_hear(e, 1, resume(1, 71, 0, 16, 0));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_STALE);
    brain_hear(e, 1, init(e, 1, 72, 8)); /* the room may be announced again */
    is_taken(e);
}

/* RULES 1.6 */
TEST_ENCODED(a_new_announce_serves_no_old_generation)
{
    under_way(e, 1, 0, 70);
    T_OK(brain_say(e, 0, release(0)));
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_OK(brain_say(e, 0, announce(1, 1, 16, 16)));
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_TRUE(brain_said(e, PEER_FAILED, 0) != NULL);
    brain_hear(e, 0, init(e, 1, 70, 16));
    T_TRUE(brain_said(e, PEER_FAILED, 0) != NULL);
    T_EQ_U64(brain_events(e, 0, 1), EVENT_GRANTED);
    brain_hear(e, 0, init(e, 1, 71, 16));
    T_EQ_U64(brain_events(e, 0, 1), EVENT_WANTED);
}

/* RULES 4.10 */
TEST_ENCODED(a_newer_generation_of_one_langd_takes_its_place)
{
    under_way(e, 1, 0, 70);
    brain_hear(e, 0, init(e, 1, 71, 16));
    T_TRUE(brain_cmd(e, SEND_CLOSE) != NULL);
    T_EQ_U64(brain_cmd(e, SEND_OPEN)->generation, 71);
    T_EQ_U64(brain_limit(e), 16); /* all rows, from row 0 on */
    brain_hear(e, 0, init(e, 1, 70, 16));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_STALE);
    ack_succeeds(e, 0, 1, 71, 0);
}

/* RULES 1.2; F18, F20 */
TEST_ENCODED(a_late_init_of_an_older_generation_changes_nothing)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 80, 16));
    brain_hear(e, 0, init(e, 1, 70, 16)); /* an older one that was delayed */
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_STALE);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    brain_hear(e, 0, resume(1, 80, 0, 16, 0));
    T_TRUE(brain_said(e, PEER_FAILED, 0) == NULL);
    ack_succeeds(e, 0, 1, 80, 0);
}

/* Ends a room of which rows have gone: a new room must not send other rows
 * under its number. */
static void dies(struct rig *e, uint64_t generation)
{
    struct peer_msg m = about(1, generation, PEER_ABORT);

    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    brain_hear(e, 0, init(e, 1, generation, 8));
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    brain_hear(e, 0, m);
    T_OK(brain_say(e, 0, release(0)));
}

static void comes_late(struct rig *e, uint64_t generation)
{
    SAYS(e, 0, announce(1, 2, 8, 8), commit(2, 0, 8));
    brain_hear(e, 0, init(e, 1, generation, 8));
    T_EQ_U64(brain_said_count(e, PEER_STATE), 0);
    T_EQ_U64(
        brain_said_count(e, PEER_NACK) + brain_said_count(e, PEER_FAILED), 1);
    T_TRUE(brain_cmd(e, SEND_OPEN) == NULL);
}

/* Serves a room of 8 rows, up to its ACK. */
static void serve(struct rig *e, uint64_t room, uint32_t cell)
{
    T_OK(brain_say(e, 0, announce(room, cell, 8, 8)));
    brain_hear(e, 0, init(e, room, 100 + room, 8));
    T_OK(brain_say(e, 0, commit(cell, 0, 8)));
    brain_hear(e, 0, about(room, 100 + room, PEER_ACK));
    T_EQ_U64(brain_state(e, 0, cell), ROOM_SUCCESS);
}

/* RULES 2.1 */
TEST_ENCODED(acks_are_answered_together)
{
    const struct peer_msg *m;

    serve(e, 1, 0);
    T_TRUE(brain_said(e, PEER_STATE, 0) == NULL);
    serve(e, 2, 1);
    T_TRUE(brain_said(e, PEER_ACKED, 0) == NULL);
    /* unknown here: whether it is over is langd's decision */
    brain_hear(e, 0, about(9, 109, PEER_ACK));
    brain_pass(e, 50);
    T_EQ_U64(brain_said_count(e, PEER_ACKED), 1);
    m = brain_said(e, PEER_ACKED, 0);
    T_EQ_U64(m->acked.generations.len, 24);
    T_EQ_U64(m->acked.generations.p[0], 101);
    T_EQ_U64(m->acked.generations.p[8], 102);
    T_EQ_U64(m->acked.generations.p[16], 109);
    serve(e, 3, 2);
    /* another run, which has no such rooms */
    brain_hello(e, 0, "a", L_EPOCH + 7);
    brain_pass(e, 50);
    T_EQ_U64(brain_said_count(e, PEER_ACKED), 0);
}

/* The loop ends with the last room: answers that wait are sent before. */
/* RULES 2.1 */
TEST_ENCODED(a_drain_leaves_no_ack_without_answer)
{
    serve(e, 1, 0);
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    brain_hear(e, 0, init(e, 2, 102, 8));
    T_OK(brain_say(e, 0, commit(1, 0, 8)));
    T_EQ_U64(brain_said_count(e, PEER_ACKED), 0);
    brain_is(e, EV_ENDING);
    T_EQ_U64(brain_said_count(e, PEER_ACKED), 1);
    T_EQ_U64(brain_said(e, PEER_ACKED, 0)->acked.generations.p[0], 101);
    brain_hear(e, 0, about(2, 102, PEER_ACK));
    T_EQ_U64(brain_said(e, PEER_ACKED, 0)->acked.generations.p[0], 102);
    brain_pass(e, 50);
    T_EQ_U64(brain_said_count(e, PEER_ACKED), 0);
}

/* RULES 1.2; F21 */
TEST_ENCODED(
    a_dead_generation_stays_dead_when_it_is_forgotten, "limits.tombstones=16")
{
    dies(e, 70);
    for (uint64_t g = 100; g < 117; g++) { /* 17 others end */
        T_OK(brain_say(e, 0, announce(g, 1, 8, 8)));
        brain_hear(e, 0, init(e, g, g, 8));
        ack(e, 0, g, g);
        T_OK(brain_say(e, 0, release(1)));
    }
    comes_late(e, 70);
    /* the same number of another langd is another generation */
    brain_hear(e, 1, init(e, 1, 70, 8));
    is_taken(e);
}

/* RULES 1.2 */
TEST_ENCODED(or_when_its_time_is_over)
{
    dies(e, 70);
    brain_pass(e, 31000);
    comes_late(e, 70);
    brain_hear(e, 0, init(e, 1, 71, 8));
    is_taken(e);
}

/* RULES 1.2 */
TEST_ENCODED(generations_of_another_run_are_others, "limits.tombstones=16")
{
    dies(e, 70);
    brain_down(e, 0);
    brain_pass(e, 600);
    brain_hello(e, 0, "a", L_EPOCH); /* the same run is back */
    comes_late(e, 70);
    brain_down(e, 0);
    brain_hello(e, 0, "a", 0x9999);
    brain_hear(e, 0, init(e, 1, 70, 8));
    is_taken(e);
}

TEST_ENCODED(abort_is_answered_drained_and_outruns_init)
{
    brain_hear(e, 0, about(1, 70, PEER_ABORT));
    T_EQ_U64(brain_said(e, PEER_DRAINED, 0)->generation, 70);
    brain_hear(e, 0, init(e, 1, 70, 8));
    T_TRUE(brain_said(e, PEER_FAILED, 0) != NULL);
    T_EQ_U64(brain_shown(e, "status", "rooms_held", 0), 0);
    e->noisy = true;
    under_way(e, 2, 0, 71);
    brain_hear(e, 0, about(2, 71, PEER_ABORT));
    /* messages are still with the carrier */
    T_TRUE(brain_said(e, PEER_DRAINED, 0) == NULL);
    while (brain_quiet(e))
        ;
    T_EQ_U64(brain_said(e, PEER_DRAINED, 0)->generation, 71);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ABORTED);
    brain_hear(e, 0, about(2, 71, PEER_ABORT));
    T_TRUE(brain_said(e, PEER_DRAINED, 0) != NULL);
}

/* source blocks */

/* RULES 6.2 */
TEST_ENCODED(source_waits_for_sends)
{
    e->noisy = true;
    under_way(e, 1, 0, 70);
    T_OK(brain_say(e, 0, final(0, 16)));
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_free(e), 14);
    T_TRUE(brain_quiet(e));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.2 */
TEST_ENCODED(source_waits_for_writers_or_their_death, "timeouts.bootstrap=1s")
{
    brain_conn(e, 1, "s");
    T_OK(brain_say(e, 1, attach(1, 5, RIGHT_WRITE)));
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    (void)brain_events(e, 0, 0);
    (void)brain_events(e, 1, 5); /* both writers know the blocks */
    /* one of them may be stopped, and write later */
    brain_pass(e, 1100);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_TIMEOUT);
    T_ERR(brain_say(e, 1, commit(5, 0, 8)), ERR_TIMEOUT);
    frees(e, 0, 14);
    T_EQ_U64(brain_stat(e, "blocks_quarantined"), 2);
    T_EQ_U64(brain_shown(e, "pools", "quarantined", 0), 2);
    brain_end(e, 1); /* end of file comes before the process's death */
    brain_pass(e, 3600000);
    T_EQ_U64(brain_free(e), 14);
    brain_dead(e, 1);
    T_EQ_U64(brain_free(e), 16);
}

TEST_ENCODED(session_end_fails_the_room)
{
    under_way(e, 1, 0, 70);
    brain_end(e, 0);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ENGINE_LOST);
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_free(e), 14); /* the engine knew the blocks */
    brain_dead(e, 0);
    T_EQ_U64(brain_free(e), 16);
}

/* Announces a room and commits all rows, finally; no langd asks for it yet. */
static void written(struct rig *e, uint64_t room, uint32_t cell)
{
    T_OK(brain_say(e, 0, announce(room, cell, 16, 16)));
    (void)brain_events(e, 0, cell);
    SAYS(e, 0, commit(cell, 0, 16), final(cell, 16));
}

static void serves(struct rig *e, uint64_t room, uint64_t generation)
{
    brain_hear(e, 0, init(e, room, generation, 16));
    T_EQ_U64(brain_limit(e), 16);
    ack(e, 0, room, generation);
    T_EQ_U64(brain_shown(e, "rooms", "served", 0), 1);
}

/* RULES 6.3 */
TEST_ENCODED(rows_of_a_final_commit_outlive_their_engine)
{
    written(e, 1, 0);
    brain_end(e, 0);
    /* no writer is left after a final commit */
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
    brain_dead(e, 0);
    T_EQ_U64(brain_free(e), 14);
    serves(e, 1, 70);
    T_EQ_U64(brain_free(e), 16);
    T_EQ_U64(brain_stat(e, "rooms_succeeded"), 1);
}

/* RULES 6.3 */
TEST_ENCODED(or_its_bye)
{
    written(e, 1, 0);
    T_OK(brain_say(e, 0, (struct local_msg){.type = LOCAL_BYE}));
    brain_dead(e, 0);
    serves(e, 1, 70);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.3 */
TEST_ENCODED(and_end_by_their_deadline, "timeouts.bootstrap=1s")
{
    written(e, 1, 0);
    brain_dead(e, 0);
    brain_pass(e, 1100);
    T_EQ_U64(brain_stat(e, "rooms_failed"), 1);
    T_EQ_U64(brain_free(e), 16);
    T_EQ_U64(brain_shown(e, "status", "rooms_held", 0), 0);
}

/* RULES 6.3 */
TEST_ENCODED(rows_that_are_not_final_or_not_all_there_die)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_OK(brain_say(e, 0, commit(0, 0, 16))); /* might be written again */
    SAYS(e, 0, announce(2, 1, 16, 16), commit(1, 8, 8), final(1, 16));
    brain_dead(e, 0);
    T_EQ_U64(brain_stat(e, "rooms_failed"), 2);
    T_EQ_U64(brain_free(e), 16);
}

/* The process of the closed connection lives, but the other connection's final
 * commit says that no writer writes any more. */
/* RULES 6.3 */
TEST_ENCODED(a_closed_connection_holds_no_final_rows)
{
    brain_conn(e, 1, "s");
    T_OK(brain_say(e, 1, attach(1, 5, RIGHT_WRITE)));
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    (void)brain_events(e, 0, 0);
    (void)brain_events(e, 1, 5);
    brain_end(e, 1);
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 0);
    SAYS(e, 0, commit(0, 0, 16), final(0, 16));
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
    T_EQ_U64(brain_shown(e, "status", "attachments", 0), 1);
    serves(e, 1, 70);
    T_EQ_U64(brain_free(e), 16);
}

TEST_ENCODED(bye_withdraws_what_the_connection_announced)
{
    brain_conn(e, 1, "s"); /* the session goes on */
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    (void)brain_events(e, 0, 0);
    T_OK(brain_say(e, 0, (struct local_msg){.type = LOCAL_BYE}));
    T_EQ_U64(brain_free(e), 16);
    T_EQ_U64(brain_open_rooms(e->is), 0);
}

/* RULES 9.1 */
TEST_ENCODED(source_is_kept_for_a_langd_that_restarts, "timeouts.linger=5s")
{
    struct local_msg a = announce(1, 0, 16, 16);

    a.announce.aux = span_str("aux!");
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, init(e, 1, 70, 16));
    SAYS(e, 0, commit(0, 0, 16), final(0, 16));
    brain_down(e, 0);
    brain_hello(e, 0, "a", 0x9999);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_EQ_U64(brain_free(e), 14);
    brain_hear(e, 0, init(e, 1, 71, 16));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.aux.len, 4);
    T_EQ_U64(brain_limit(e), 16);
    brain_pass(e, 6000); /* timeouts.linger is over, but a transfer goes on */
    T_EQ_U64(brain_free(e), 14);
    ack(e, 0, 1, 71);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 5.15, 9.1 */
TEST_ENCODED(what_is_kept_gives_way, "timeouts.linger=60s")
{
    under_way(e, 1, 0, 70);
    T_OK(brain_say(e, 0, final(0, 16)));
    brain_down(e, 0);
    brain_pass(e, 600);
    T_EQ_U64(brain_free(e), 14);
    T_OK(brain_say(e, 0, announce(2, 1, 128, 128)));
    T_EQ_U64(brain_free(e), 0);
    T_TRUE(brain_events(e, 0, 1) & EVENT_GRANTED);
}

/* deadlines, and what fills up */

/* RULES 8.3 */
TEST_ENCODED(bootstrap_is_the_only_deadline, "timeouts.bootstrap=1s")
{
    struct local_msg a = announce(2, 1, 8, 8);

    under_way(e, 1, 0, 70);
    brain_hear(e, 0, state(1, 70, PEER_LENGTH, ROOM_WAITING));
    a.announce.deadline_ms = 3000;
    T_OK(brain_say(e, 0, a));
    brain_pass(e, 2900);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    brain_pass(e, 200);
    T_EQ_U64(brain_reason(e, 0, 1), ERR_TIMEOUT);
    brain_pass(e, 3600000);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    T_EQ_U64(brain_stat(e, "deadlines"), 1);
}

TEST_ENCODED(full_tables, "limits.rooms=4", "limits.aux_total=64KiB")
{
    static uint8_t big[AUX_MAX];
    struct local_msg a = announce(1, 0, 8, 8);

    a.announce.aux = span_of(big, sizeof(big));
    T_OK(brain_say(e, 0, a));
    a.announce.room = 2;
    a.announce.cell = 1;
    T_OK(brain_say(e, 0, a));
    a.announce.room = 3;
    a.announce.cell = 2;
    T_ERR(brain_say(e, 0, a), ERR_NO_BLOCKS);
    T_EQ_U64(brain_stat(e, "aux_full"), 1);
    HEARS(e, 0, init(e, 50, 500, 8), init(e, 51, 501, 8));
    brain_hear(e, 0, init(e, 52, 502, 8)); /* refused: langd will ask again */
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    T_ERR(brain_say(e, 0, announce(4, 3, 8, 8)), ERR_BUSY);
    brain_hear(e, 0, about(50, 500, PEER_ABORT));
    T_OK(brain_say(e, 0, announce(4, 3, 8, 8)));
}

/* A room takes places for all its destinations with the first, or waits. */
/* RULES 5.17 */
TEST(rooms_of_two_do_not_hold_each_others_places)
{
    struct rig *e = encoded("limits.rooms=8", NULL);
    uint32_t asked = 0, rounds = 0;

    for (uint32_t r = 1; r <= 8; r++)
        T_OK(brain_say(e, 0, announce_for(2, r, r, 8)));
    while (rounds++ < 2)
        for (uint32_t link = 0; link < 2; link++)
            for (uint64_t r = 1; r <= 8; r++) {
                brain_hear(e, link, two(init(e, r, r + 100 * (link + 1), 0)));
                if (brain_said(e, PEER_WANT, 0)) {
                    asked++;
                    brain_hear(e, 0, about(r, 100 + r, PEER_ACK));
                    brain_hear(e, 1, about(r, 200 + r, PEER_ACK));
                }
            }
    T_EQ_U64(asked, 8);
}

/* RULES 5.17 */
TEST_ENCODED(more_destinations_than_places_are_refused, "limits.rooms=8")
{
    struct peer_msg m = init(e, 2, 70, 0);

    T_ERR(brain_say(e, 0, announce_for(9, 1, 0, 8)), ERR_QUOTA);
    T_EQ_U64(brain_answer(e)->a, 8);
    T_EQ_U64(brain_answer(e)->b, 9);
    m.init.required_dst = 9;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_QUOTA);
}

/* RULES 9.5 */
TEST_ENCODED(drain_takes_no_new_rooms)
{
    under_way(e, 1, 0, 70);
    brain_is(e, EV_ENDING);
    T_ERR(brain_say(e, 0, announce(2, 1, 8, 8)), ERR_DRAINING);
    brain_hear(e, 0, init(e, 9, 90, 8));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_DRAINING);
    T_EQ_U64(brain_open_rooms(e->is), 1);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_open_rooms(e->is), 0);
}

TEST_ENCODED(many_writers_of_one_room_are_refused_not_fatal)
{
    uint32_t ok = 0;

    for (uint32_t conn = 1; conn < 8; conn++) {
        brain_conn(e, conn, "s");
        for (uint32_t i = 0; i < 60; i++)
            ok += brain_say(e, conn, attach(1, i, RIGHT_WRITE)) == OK;
    }
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_ERR(brain_say(e, 0, attach(1, 1, RIGHT_WRITE)), ERR_QUOTA);
    T_EQ_U64(ok, 420);
}

/* names */

static void names(struct rig *e, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        char name[16];

        snprintf(name, sizeof(name), "l%u", i);
        brain_pass(e, 1);
        brain_hello(e, i, name, 100 + i);
    }
}

/* RULES 1.9 */
TEST_ENCODED(a_full_table_of_idle_names_lets_a_new_one_in)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 16)); /* link 0 has a room */
    names(e, 2, 2);                       /* limits.peers is 4 */
    names(e, 4, 1);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    brain_pass(e, 5000);
    names(e, 4, 1);
    T_EQ_U64(brain_stat(e, "peers_given_up"), 1);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
    /* One name a second is evicted, and never the one with a room. */
    names(e, 5, 1);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    brain_pass(e, 1000);
    names(e, 5, 1);
    brain_pass(e, 1000);
    names(e, 6, 1);
    T_EQ_U64(brain_stat(e, "peers_given_up"), 3);
    brain_pass(e, 1000);
    names(e, 7, 1); /* the other names are too young */
    T_EQ_U64(brain_stat(e, "peers_given_up"), 3);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING);
}

/* RULES 1.9 */
TEST_ENCODED(a_name_that_is_not_up_gives_way_at_once, "control.lost_after=1m")
{
    names(e, 2, 2);
    brain_down(e, 2);
    names(e, 4, 1);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
    T_EQ_U64(brain_stat(e, "peers_given_up"), 1);
}
