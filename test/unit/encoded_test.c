/* encoded_test.c - the encode side's brain against the rules of a room, one
 * case per rule. Blocks and units are 8 rows, the pool has 16; engine 0 is of
 * session "s", langd `a` is link 0, `b` link 1. */
#include "test/here.h"

/* a room */

/* RULES 4.2 */
TEST_ENCODED(announce_then_init)
{
    struct local_msg a = announce(1, 0, 24, 20);
    const struct peer_msg *m;

    a.announce.aux = span_str("aux!");
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_free(e), 13);
    T_EQ_U64(brain_events(e, 0, 0), EVENT_GRANTED);
    T_EQ_U64(e->event.event.rows, 24);
    brain_hear(e, 0, init(e, 1, 77, 16));
    m = brain_said(e, PEER_LENGTH, 0); /* sent before any row is committed */
    T_EQ_U64(m->length.granted, 16);
    T_EQ_U64(m->length.total, 20);
    T_EQ_U64(m->length.flags, FLAG_AUX);
    T_EQ_MEM(m->length.aux.p, "aux!", 4);
    T_EQ_U64(brain_events(e, 0, 0), EVENT_WANTED);
    T_OK(brain_say(e, 0, commit(0, 8, 8)));
    T_EQ_U64(brain_limit(e), 0); /* rows 0 to 7 are missing */
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    T_EQ_U64(brain_limit(e), 16);
    T_OK(brain_say(e, 0, commit(0, 16, 4)));
    m = brain_said(e, PEER_WANT, 0); /* rows beyond its grant are committed */
    T_EQ_U64(m->want.granted, 16);
    T_EQ_U64(m->want.committed, 20);
    brain_hear(e, 0, resume(1, 77, 0, 24, 0));
    T_EQ_U64(brain_limit(e), 20);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    ack_succeeds(e, 0, 1, 77, 0);
    T_EQ_U64(brain_events(e, 0, 0), EVENT_DONE);
    T_EQ_U64(e->event.event.a, 1);
    /* the engine has not released: it may still write */
    T_EQ_U64(brain_free(e), 13);
    frees(e, 0, 16);
    T_EQ_U64(brain_stat(e, "rows_moved"), 20);
}

/* RULES 2.1 */
TEST_ENCODED(length_answers_init)
{
    const struct peer_msg *m;

    T_OK(brain_say(e, 0, announce(2, 1, 16, 16)));
    brain_hear(e, 0, init(e, 2, 78, 8));
    T_TRUE(brain_said(e, PEER_STATE, 0) == NULL);
    m = brain_said(e, PEER_LENGTH, 0);
    T_EQ_U64(m->generation, 78);
    T_EQ_U64(m->length.attempt, 0);
    T_EQ_U64(m->length.granted, 8);
    brain_hear(e, 0, init(e, 2, 78, 8)); /* langd did not get that LENGTH */
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.granted, 8);
    brain_hear(e, 0, init(e, 3, 79, 8));
    T_TRUE(brain_said(e, PEER_STATE, 0) == NULL);
    brain_pass(e, 200); /* no room 3 is announced in this time */
    T_EQ_U64(brain_said_count(e, PEER_STATE), 1);
    brain_hear(e, 0, init(e, 4, 80, 8));
    T_OK(brain_say(e, 0, announce(4, 2, 16, 16)));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.granted, 8);
    brain_hear(e, 0, state(4, 80, PEER_LENGTH, ROOM_WAITING));
    brain_pass(e, 200);
    T_EQ_U64(brain_said_count(e, PEER_STATE), 0);
}

TEST_ENCODED(a_new_length_goes_at_once)
{
    T_OK(brain_say(e, 0, announce(1, 0, 24, ROWS_UNKNOWN)));
    brain_hear(e, 0, init(e, 1, 77, 16));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_OK(brain_say(e, 0, final(0, 20)));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.total, 20);
}

/* RULES 2.1 */
TEST_ENCODED(an_init_is_answered_soon, "timeouts.retry=10s")
{
    brain_hear(e, 0, init(e, 1, 77, 16));
    brain_pass(e, 40);
    T_EQ_U64(brain_said_count(e, PEER_STATE), 0);
    brain_pass(e, 20);
    T_EQ_U64(brain_said_count(e, PEER_STATE), 1);
}

/* RULES 4.12 */
TEST_ENCODED(a_room_that_should_be_announced_is_unknown_at_once)
{
    struct peer_msg m = init(e, 1, 70, 0);

    m.init.flags = FLAG_ANNOUNCED;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    T_EQ_U64(brain_shown(e, "status", "rooms_held", 0), 0);
    /* b has asked before, and waits for the announce */
    brain_hear(e, 1, init(e, 1, 80, 0));
    m.generation = 71;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_TRUE(brain_said(e, PEER_LENGTH, 0) != NULL);
    T_OK(brain_say(e, 0, announce(2, 1, 16, 16)));
    m = init(e, 2, 72, 0);
    m.init.flags = FLAG_ANNOUNCED;
    brain_hear(e, 0, m);
    T_TRUE(brain_said(e, PEER_LENGTH, 0) != NULL);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
}

/* RULES 4.2 */
TEST_ENCODED(init_then_announce)
{
    brain_hear(e, 0, init(e, 1, 77, 16));
    is_taken(e);
    T_TRUE(brain_said(e, PEER_LENGTH, 0) == NULL);
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, 77);
    T_TRUE(brain_events(e, 0, 0) == (EVENT_GRANTED | EVENT_WANTED));
    brain_pass(e, 1000); /* repeated until answered */
    T_TRUE(brain_said_count(e, PEER_LENGTH) >= 3);
}

/* Also if langd answers WANT after LENGTH. */
/* RULES 2.2 */
TEST_ENCODED(a_length_whose_aux_waits_is_seldom_said)
{
    struct peer_msg m = state(1, 77, PEER_LENGTH, ROOM_BOOTSTRAPPING);

    SAYS(e, 0, announce(1, 0, 16, 16), commit(0, 0, 16));
    brain_hear(e, 0, init(e, 1, 77, 0));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_EQ_U64(brain_said_count(e, PEER_WANT), 1);
    m.state.reason = ERR_NO_BLOCKS;
    m.state.total = 16;
    HEARS(e, 0, m, state(1, 77, PEER_WANT, ROOM_WAITING));
    brain_pass(e, 1900);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    brain_pass(e, 200);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_EQ_U64(brain_stat(e, "retries"), 0);
}

/* RULES 2.2 */
TEST_ENCODED(aux_that_finds_no_space_is_sent_when_it_is_asked_for)
{
    struct peer_msg m = about(1, 77, PEER_STATE);

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 77, 0));
    m.state.answers = PEER_LENGTH;
    m.state.state = ROOM_BOOTSTRAPPING;
    m.state.reason = ERR_NO_BLOCKS;
    m.state.total = 16;
    brain_hear(e, 0, m);
    brain_pass(e, 1900);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    brain_pass(e, 200); /* the question may have been lost */
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    m.state.reason = OK;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    m.state.flags = FLAG_AUX;
    brain_hear(e, 0, m);
    brain_pass(e, 5000);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    m.state.flags = 0; /* langd has taken the aux space back */
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
}

/* RULES 4.4 */
TEST_ENCODED(length_unknown_until_the_last_commit)
{
    struct local_msg m;

    T_OK(brain_say(e, 0, announce(1, 0, 64, ROWS_UNKNOWN)));
    brain_hear(e, 0, init(e, 1, 77, 16));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.total, ROWS_UNKNOWN);
    T_OK(brain_say(e, 0, commit(0, 0, 24)));
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.committed, 24);
    T_OK(brain_say(e, 0, commit(0, 24, 6)));
    /* WANT is sent again */
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.committed, 30);
    m = final(0, 30);
    m.commit.aux = span_str("late");
    T_OK(brain_say(e, 0, m));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.total, 30);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.aux.len, 4);
    ack(e, 0, 1, 77);
    T_EQ_U64(brain_free(e), 16); /* after a final commit no release is needed */
}

/* RULES 4.4 */
TEST_ENCODED(commits_that_change_nothing)
{
    struct local_msg m;

    T_OK(brain_say(e, 0, announce(1, 0, 16, ROWS_UNKNOWN)));
    T_ERR(brain_say(e, 0, commit(0, 0, 17)), ERR_MALFORMED);
    T_ERR(brain_say(e, 0, commit(0, 0xfffffff8, 16)), ERR_MALFORMED);
    T_EQ_U64(brain_answer(e)->a, UINT32_MAX); /* the sum must not wrap */
    T_ERR(brain_say(e, 0, final(0, 17)), ERR_MALFORMED);
    T_ERR(brain_say(e, 0, final(0, ROWS_UNKNOWN)), ERR_MALFORMED);
    T_OK(brain_say(e, 0, commit(0, 0, 12)));
    /* 12 rows are committed */
    T_ERR(brain_say(e, 0, final(0, 11)), ERR_MALFORMED);
    m = commit(0, 0, 0);
    m.commit.total = 14;
    T_OK(brain_say(e, 0, m));
    m.commit.total = 15;
    T_ERR(brain_say(e, 0, m), ERR_MALFORMED);
    T_ERR(brain_say(e, 0, commit(1, 0, 1)), ERR_UNKNOWN_ROOM);
    T_OK(brain_say(e, 0, attach(1, 1, RIGHT_WATCH)));
    T_ERR(brain_say(e, 0, commit(1, 0, 1)), ERR_NOT_OWNER);
    T_EQ_U64(cell_rows(e->cells[0][0]), 12);
    T_EQ_U64(brain_stat(e, "refused"), 8);
}

/* RULES 1.6, 4.2; F29 */
TEST_ENCODED(too_large_and_duplicate_announces)
{
    struct local_msg none = announce(1, 0, 8, 8), done = commit(0, 0, 8);

    none.announce.storage = STORAGE_ANY;
    T_ERR(brain_say(e, 0, none), ERR_MALFORMED);
    none.announce.storage = STORAGE_PROMPT + 1;
    T_ERR(brain_say(e, 0, none), ERR_MALFORMED);
    none = announce(1, 0, 8, 8);
    none.announce.traceparent = span_str("00-1");
    T_ERR(brain_say(e, 0, none), ERR_MALFORMED);
    T_ERR(brain_say(e, 0, announce(1, 0, 1000, 1000)), ERR_TOO_LARGE);
    T_EQ_U64(brain_answer(e)->a, 1000);
    T_EQ_U64(brain_answer(e)->b, 128);
    T_ERR(brain_say(e, 0, announce(1, 0, 8, 9)), ERR_MALFORMED);
    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    T_ERR(brain_say(e, 0, announce(1, 1, 8, 8)), ERR_DUPLICATE_ROOM);
    done.commit.aux = span_str("late");
    T_ERR(brain_say(e, 0, done), ERR_MALFORMED);
    none = release(0);
    none.release.flags = FLAG_NO_READERS; /* a flag of rooms at langd only */
    T_ERR(brain_say(e, 0, none), ERR_MALFORMED);
    brain_conn(e, 1, "other");
    T_ERR(brain_say(e, 1, attach(1, 0, RIGHT_WATCH)), ERR_NOT_OWNER);
}

/* RULES 4.8 */
TEST_ENCODED(total_zero)
{
    T_OK(brain_say(e, 0, announce(1, 0, 0, 0)));
    brain_hear(e, 0, init(e, 1, 77, 16));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.total, 0);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.flags, FLAG_AUX);
    ack_succeeds(e, 0, 1, 77, 0);
}

/* RULES 5.11 */
TEST_ENCODED(blocks_are_first_come_first_served)
{
    SAYS(e, 0, announce(1, 0, 80, 80), announce(2, 1, 80, 80));
    T_OK(brain_say(e, 0, announce(3, 2, 8, 8))); /* would fit, but must wait */
    T_EQ_U64(brain_free(e), 6);
    T_ERR(brain_say(e, 0, commit(2, 0, 8)), ERR_NOT_READY);
    T_OK(brain_say(e, 0, release(1))); /* ends the head of the queue */
    T_EQ_U64(brain_free(e), 5);
    T_TRUE(brain_events(e, 0, 2) & EVENT_GRANTED);
}

/* RULES 4.2 */
TEST_ENCODED(a_batch_gets_all_or_nothing)
{
    struct local_msg m = announce(2, 1, 40, 40);

    T_OK(brain_say(e, 0, announce(1, 0, 80, 80)));
    m.announce.batch = 1;
    T_OK(brain_say(e, 0, m));
    T_EQ_U64(brain_free(e), 6);
    T_OK(brain_say(e, 0, announce(3, 2, 40, 40)));
    T_EQ_U64(brain_free(e), 6);
    frees(e, 0, 6);
    T_TRUE(brain_events(e, 0, 2) & EVENT_GRANTED);
    m = announce(4, 3, 8, 8);
    m.announce.batch = 1;
    T_OK(brain_say(e, 0, m));
    T_ERR(brain_say(e, 0, announce(5, 4, 1000, 8)), ERR_TOO_LARGE);
    /* the last of the batch is refused, the other ones are served */
    T_EQ_U64(brain_free(e), 5);
}

/* grants */

/* RULES 2.1; F19, F20 */
TEST_ENCODED(grants_that_say_nothing_new)
{
    T_OK(brain_say(e, 0, announce(1, 0, 64, 64)));
    HEARS(e, 0, init(e, 1, 77, 16), init(e, 1, 77, 16));
    T_EQ_U64(brain_stat(e, "duplicates"), 1);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.granted, 16);
    brain_hear(e, 0, resume(1, 77, 0, 32, 0));
    brain_hear(e, 0, resume(1, 77, 0, 8, 0)); /* smaller than the grant */
    T_EQ_U64(brain_stat(e, "duplicates"), 2);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.granted, 32);
    brain_hear(e, 0, resume(1, 77, 1, 16, 8));
    brain_hear(e, 0, resume(1, 77, 0, 64, 0)); /* of an older attempt */
    T_EQ_U64(brain_stat(e, "stale_attempt"), 1);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.attempt, 1);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.granted, 16);
    brain_hear(e, 0, resume(1, 77, 1, 20, 21));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
    /* of a generation that does not exist */
    brain_hear(e, 0, resume(1, 12345, 0, 8, 0));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_STALE);
    T_EQ_U64(brain_stat(e, "stale_generation"), 1);
}

/* RULES 1.4 */
TEST_ENCODED(a_new_attempt_starts_again)
{
    T_OK(brain_say(e, 0, announce(1, 0, 32, 32)));
    brain_hear(e, 0, init(e, 1, 77, 32));
    T_OK(brain_say(e, 0, commit(0, 0, 32)));
    T_EQ_U64(brain_limit(e), 32);
    brain_hear(e, 0, resume(1, 77, 1, 0, 0)); /* langd takes the grant back */
    T_EQ_U64(brain_cmd(e, SEND_REWIND)->attempt, 1);
    T_EQ_U64(brain_cmd(e, SEND_REWIND)->a, 0);
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.attempt, 1);
    brain_hear(e, 0, resume(1, 77, 1, 32, 0));
    T_EQ_U64(brain_limit(e), 32);
}

/* RULES 3.1, 10.6; F27 */
TEST_ENCODED(numbers_of_a_hostile_langd)
{
    struct peer_msg m = init(e, 1, 77, 16);

    SAYS(e, 0, announce(1, 0, 32, 32), commit(0, 0, 32));
    m.init.unit_rows = 0;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
    m.init.unit_rows = 0x80000000;
    m.init.part_rows = 0x80000000;
    brain_hear(e, 0, m);
    T_EQ_U64(
        brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_INCOMPATIBLE_LAYOUT);
    m = init(e, 1, 78, 0xfffffffe);
    m.init.from = 0xfffffff0;
    m.init.attempt = 0xffffffff;
    HEARS(e, 0, m, resume(1, 78, 0xffffffff, 0xffffffff, 0),
        resume(1, 78, 0, 0xfffffffe, 0));
    /* a message that only langd may get */
    brain_hear(e, 0, about(1, 78, PEER_BROKEN));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
    T_EQ_U64(brain_free(e), 12);
}

/* A unit may not be larger than what pinned memory always has a place for. */
TEST_ENCODED(units_out_of_a_gpu_are_bounded, "pools[0].memory=cuda:0")
{
    struct peer_msg m = init(e, 1, 77, 32);

    T_OK(brain_say(e, 0, announce(1, 0, 32, 32)));
    m.init.unit_rows = 16;
    m.init.part_rows = 1024;
    brain_hear(e, 0, m);
    T_EQ_U64(
        brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_INCOMPATIBLE_LAYOUT);
    m = init(e, 1, 78, 32);
    m.init.unit_rows = 8;
    m.init.part_rows = 1024;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.granted, 32);
}

TEST_ENCODED(broken_is_said_until_the_attempt_is_raised)
{
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_PEER_BROKEN}};

    T_OK(brain_say(e, 0, announce(1, 0, 32, 32)));
    brain_hear(e, 0, init(e, 1, 77, 32));
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    ev.note.peer = brain_cmd(e, SEND_OPEN)->peer;
    rig_step(e, &ev);
    T_EQ_U64(brain_said(e, PEER_BROKEN, 0)->broken.attempt, 0);
    T_OK(brain_say(e, 0, commit(0, 8, 8)));
    T_EQ_U64(brain_limit(e), 0);
    brain_pass(e, 500);
    T_TRUE(brain_said_count(e, PEER_BROKEN) >= 2);
    brain_hear(e, 0, resume(1, 77, 1, 32, 0));
    T_EQ_U64(brain_cmd(e, SEND_REWIND)->a, 16);
    brain_pass(e, 5000);
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 0);
    T_EQ_U64(brain_stat(e, "broken"), 1);
}

/* RULES 1.5 */
TEST_ENCODED(a_break_is_of_rooms_that_go_by_that_shard)
{
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_PEER_BROKEN}};

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ev.note.first = 1; /* of a shard that does not exist */
    rig_step(e, &ev);
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 0);
    ev.note.first = 0;
    rig_step(e, &ev);
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 1);
    rig_step(e, &ev); /* once for each attempt */
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 0);
    T_EQ_U64(brain_stat(e, "broken"), 1);
}

/* what does not fit */

/* RULES 1.7, 1.8 */
TEST_ENCODED(layouts_keys_and_storage_must_agree)
{
    struct local_msg a = announce(1, 0, 8, 8);
    struct peer_msg m;

    a.announce.key.b[0] = 1;
    m = init(e, 1, 70, 8);
    m.init.key.b[0] = 2;
    brain_hear(e, 0, m); /* before the announce */
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ITEM_MISMATCH);
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    m = init(e, 1, 74, 8); /* no key differs from any key */
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ITEM_MISMATCH);
    brain_hear(e, 0, state(1, 74, PEER_FAILED, ROOM_FAILED));
    m = init(e, 1, 71, 8);
    m.init.key.b[0] = 1;
    m.init.storage = STORAGE_PROMPT;
    brain_hear(e, 0, m); /* after the announce */
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ITEM_MISMATCH);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    m = init(e, 1, 72, 8);
    m.init.layout++;
    brain_hear(e, 0, m);
    T_EQ_U64(
        brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_INCOMPATIBLE_LAYOUT);
    brain_hear(e, 0, state(1, 72, PEER_FAILED, ROOM_FAILED));
    m = init(e, 1, 73, 8); /* the refused destination's place is free */
    m.init.key.b[0] = 1;
    brain_hear(e, 0, m);
    is_taken(e);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING);
}

/* RULES 4.11 */
TEST(a_refused_destination_does_not_stop_the_clock)
{
    struct rig *e = encoded("timeouts.bootstrap=1s", NULL);
    struct peer_msg m = init(e, 1, 70, 8);

    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    m.init.layout++;
    HEARS(e, 0, m, state(1, 70, PEER_FAILED, ROOM_FAILED));
    brain_pass(e, 1100);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_TIMEOUT);
}

/* RULES 4.11 */
TEST_ENCODED(destinations_disagree)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 8)));
    brain_hear(e, 0, init(e, 1, 70, 0)); /* this INIT says one destination */
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason,
        ERR_DESTINATIONS_DISAGREE);
    /* the first INIT fixes the number, too */
    brain_hear(e, 0, two(init(e, 2, 71, 0)));
    T_ERR(brain_say(e, 0, announce_for(3, 2, 1, 8)), ERR_DESTINATIONS_DISAGREE);
    brain_hear(e, 1, init(e, 2, 72, 0));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason,
        ERR_DESTINATIONS_DISAGREE);
    T_OK(brain_say(e, 0, announce(3, 2, 8, 8)));
    brain_hear(e, 0, init(e, 3, 73, 8));
    brain_hear(e, 1, init(e, 3, 74, 8)); /* a second destination of one */
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason,
        ERR_DESTINATIONS_DISAGREE);
}

/* RULES 5.16 */
TEST_ENCODED(several_destinations_are_asked_in_order_of_name)
{
    struct peer_msg m = about(1, 71, PEER_ABORT);

    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 1, two(init(e, 1, 71, 0))); /* b asks first */
    T_TRUE(brain_said(e, PEER_WANT, 0) == NULL);
    brain_hear(e, 0, two(init(e, 1, 70, 0)));
    T_EQ_U64(brain_said_count(e, PEER_WANT), 1);
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->generation, 70);
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.committed, 16); /* all rows */
    brain_hear(e, 0, resume(1, 70, 0, 8, 0)); /* not all rows */
    T_TRUE(brain_said(e, PEER_WANT, 0) == NULL ||
           brain_said(e, PEER_WANT, 0)->generation == 70);
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_EQ_U64(brain_said(e, PEER_WANT, -1)->generation, 71);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    m.abort.reason = ERR_ENGINE_LOST;
    brain_hear(e, 1, m);
    T_TRUE(brain_said(e, PEER_DRAINED, 0) != NULL);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ENGINE_LOST);
    T_TRUE(brain_events(e, 0, 0) & EVENT_FAILED);
    T_EQ_U64(e->event.event.a, 1); /* served */
    T_EQ_U64(e->event.event.b, 1); /* failed */
}

/* Destinations take blocks in one order: one that asks anew is asked for its
 * grant again, and until it has that no later one keeps its grant. */
/* RULES 5.16 */
TEST_ENCODED(later_grants_go_back_when_an_earlier_one_is_lost)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 0, two(init(e, 1, 70, 0)));
    brain_hear(e, 1, two(init(e, 1, 71, 0)));
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    brain_hear(e, 1, resume(1, 71, 0, 16, 0));
    /* The engine of the first langd asks anew. */
    brain_hear(e, 0, two(init(e, 1, 72, 0)));
    T_EQ_U64(brain_said(e, PEER_BROKEN, 0)->generation, 71);
    T_EQ_U64(brain_said(e, PEER_BROKEN, 0)->broken.back, 1);
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->generation, 72);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    T_EQ_U64(brain_limit(e), 0);
    brain_hear(e, 1, resume(1, 71, 1, 0, 0));
    brain_pass(e, 5000);
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 0);
    brain_hear(e, 0, resume(1, 72, 0, 16, 0));
    T_EQ_U64(brain_said(e, PEER_WANT, -1)->generation, 71);
    brain_hear(e, 1, resume(1, 71, 1, 16, 0));
    ack(e, 0, 1, 72);
    ack_succeeds(e, 1, 1, 71, 0);
}

TEST_ENCODED(the_last_word_may_be_a_decline)
{
    T_OK(brain_say(e, 0, announce_for(2, 1, 0, 16)));
    brain_hear(e, 0, two(init(e, 1, 70, 0)));
    T_TRUE(brain_said(e, PEER_WANT, 0) == NULL);
    brain_hear(e, 1, about(1, 0, PEER_DECLINE));
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->generation, 70);
}

/* RULES 4.11 */
TEST(open_room_takes_any_number_until_released_or_late)
{
    struct rig *e = encoded("timeouts.bootstrap=10s", NULL);
    struct local_msg a = announce(1, 0, 8, 8);

    a.announce.flags = FLAG_OPEN;
    /* FLAG_OPEN allows any number of destinations: naming one contradicts it */
    a.announce.required_dst = 1;
    T_ERR(brain_say(e, 0, a), ERR_MALFORMED);
    a.announce.required_dst = 0;
    SAYS(e, 0, a, commit(0, 0, 8));
    for (uint64_t g = 1; g <= 3; g++) {
        brain_hear(e, g % 2, init(e, 1, g, 8));
        ack(e, g % 2, 1, g);
    }
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    SAYS(e, 0, attach(1, 1, RIGHT_WATCH), release(0));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS);
    T_EQ_U64(brain_stat(e, "rows_moved"), 24);
    brain_hear(e, 0, init(e, 1, 9, 8));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    a.announce.room = 2;
    SAYS(e, 0, a, commit(0, 0, 8));
    brain_hear(e, 0, init(e, 2, 10, 8));
    ack(e, 0, 2, 10);
    brain_pass(e, 11000);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
    T_OK(brain_say(e, 0, release(0)));
    a.announce.room = 3; /* no langd asks for this one */
    a.announce.total = ROWS_UNKNOWN;
    T_OK(brain_say(e, 0, a));
    brain_pass(e, 11000);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_TIMEOUT);
    T_EQ_U64(brain_stat(e, "rows_moved"), 32);
}

/* RULES 4.8 */
TEST_ENCODED(a_commit_that_says_what_is_known_comes_late)
{
    struct local_msg last = commit(0, 0, 0);

    T_OK(brain_say(e, 0, announce(1, 0, 16, 0)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    ack_succeeds(e, 0, 1, 70, 0);
    last.commit.flags = FLAG_FINAL;
    T_OK(brain_say(e, 0, last));
    last.commit.total = 0;
    T_OK(brain_say(e, 0, last));
    last.commit.aux = span_str("late");
    T_ERR(brain_say(e, 0, last), ERR_GONE);
    last = commit(0, 0, 0);
    last.commit.total = 3;
    T_ERR(brain_say(e, 0, last), ERR_GONE);
    T_ERR(brain_say(e, 0, commit(0, 0, 1)), ERR_GONE);
}

TEST_ENCODED(rows_are_counted_once_for_the_engine_that_commits_them)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_OK(brain_say(e, 0, commit(0, 8, 8))); /* rows 0 to 7 are missing */
    T_EQ_U64(brain_shown(e, "engines", "bytes", 0), 0);
    SAYS(e, 0, commit(0, 0, 8), commit(0, 0, 8));
    T_EQ_U64(brain_shown(e, "engines", "bytes", 0), 16 * 4096);
}
