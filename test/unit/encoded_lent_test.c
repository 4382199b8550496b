/* encoded_lent_test.c - how long the blocks stay that language engines of this
 * host read: until their langd says RETURN, or is dead, as are its readers
 * (RULES 6.7). Blocks are 8 rows, the pool has 16, the lent room has two; langd
 * `a` maps over connection 1, its engines over 2 and up. */
#include "test/unit/lend_side.h"

/* words */

static struct peer_msg asked(uint8_t st, uint8_t flags)
{
    struct peer_msg m = state(1, 70, PEER_FAILED, st);

    m.state.flags = flags;
    return m;
}

/* the fence */

/* RULES 6.7 */
TEST_WITH(return_lifts_the_fence_and_ack_does_not, struct rig *e, lent())
{
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
    T_OK(brain_say(e, 0, release(0)));
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_free(e), 14);
    /* langd is not asked either */
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_free(e), 14);
    /* RETURN is repeated: DRAINED was lost */
    for (uint32_t i = 0; i < 2; i++) {
        brain_hear(e, 0, about(1, 70, PEER_RETURN));
        T_EQ_U64(brain_said_count(e, PEER_DRAINED), 1);
        T_EQ_U64(brain_said(e, PEER_DRAINED, 0)->generation, 70);
        T_EQ_U64(brain_free(e), 16);
    }
    brain_hear(e, 0, about(9, 999, PEER_RETURN));
    T_EQ_U64(brain_said(e, PEER_DRAINED, 0)->generation, 999);
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 0);
}

/* RULES 6.7 */
TEST_WITH(return_says_that_ready_was_published, struct rig *e, lent())
{
    brain_hear(e, 0, about(1, 70, PEER_RETURN)); /* its ACK was lost */
    T_EQ_U64(brain_said_count(e, PEER_DRAINED), 1);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.7 */
TEST(what_says_that_nothing_was_shown_lifts_the_fence)
{
    struct peer_msg grant = resume(1, 70, 0, 16, 0);
    const struct {
        struct peer_msg m;
        bool lifts, ends;
    } t[] = {{about(1, 70, PEER_ABORT), true, true},
        {about_lend(ROOM_FAILED, 0), true, true},
        {asked(ROOM_FAILED, 0), true, true},
        {asked(ROOM_SUCCESS, 0), true, true},
        {about_lend(ROOM_WAITING, 0), true, false}, {grant, true, false},
        {about_lend(ROOM_WAITING, FLAG_HELD), false, false},
        {state(1, 70, PEER_LENGTH, ROOM_WAITING), false, false},
        {about_lend(ROOM_SUCCESS, FLAG_HELD), false, true},
        {asked(ROOM_SUCCESS, FLAG_HELD), false, true}};

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        struct rig *e = lent();

        brain_hear(e, 0, t[i].m);
        T_CHECK(brain_shown(e, "pools", "lent", 0) == (t[i].lifts ? 0 : 2),
            "case %u", i);
        T_EQ_U64(brain_state(e, 0, 0) == ROOM_SUCCESS ||
                     brain_state(e, 0, 0) == ROOM_FAILED,
            t[i].ends);
        if (!t[i].ends)
            continue;
        T_OK(brain_say(e, 0, release(0)));
        T_CHECK(brain_free(e) == (t[i].lifts ? 16 : 14), "case %u", i);
    }
}

/* RULES 6.7 */
TEST(a_langd_that_does_not_take_them_gets_the_rows_by_a_grant)
{
    struct rig *e = lent();

    brain_hear(e, 0, about_lend(ROOM_WAITING, 0));
    T_EQ_U64(brain_said_count(e, PEER_WANT), 1);
    brain_pass(e, 3000);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_TRUE(brain_cmd(e, SEND_OPEN)->copy);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_free(e), 16);
    e = lent(); /* its grant may also come before any WANT */
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_TRUE(brain_cmd(e, SEND_OPEN)->copy);
    brain_pass(e, 3000);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_free(e), 16);
}

/* ends */

/* RULES 6.7 */
TEST_WITH(without_readers_langd_s_death_frees, struct rig *e, lent())
{
    loses_langd(e);
    T_FALSE(orphaned(e));
    T_EQ_U64(brain_free(e), 16);
}

/* The langd's process is seen to end before its link does. */
/* RULES 6.7 */
TEST(nothing_is_lent_to_a_langd_whose_process_is_dead)
{
    struct rig *e = lent();

    brain_gone(e, 1);
    T_FALSE(orphaned(e));
    brain_pass(e, 3000);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    link_down(e, 0);
    T_OK(brain_say(e, 0, release(0)));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.7 */
TEST_WITH(a_reader_keeps_what_a_dead_langd_was_lent, struct rig *e, lent())
{
    reads(e, 2, 50);
    loses_langd(e);
    T_TRUE(orphaned(e));
    brain_pass(e, DAY_MS);
    T_TRUE(orphaned(e));
    says_bye(e, 2);
    T_FALSE(orphaned(e));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.7 */
TEST(the_last_reader_s_death_frees_and_its_connection_s_end_does_not)
{
    struct rig *e = lent();

    reads(e, 2, 50);
    reads(e, 3, 51);
    loses_langd(e);
    T_TRUE(orphaned(e));
    says_bye(e, 2);
    T_TRUE(orphaned(e));
    T_TRUE(stays(e, 3));
    brain_pass(e, DAY_MS);
    T_TRUE(orphaned(e));
    brain_dead(e, 3);
    T_FALSE(orphaned(e));
}

/* A reader's BYE ends one connection of its process: others may belong to other
 * handles. */
/* RULES 6.7 */
TEST_WITH(who_parts_takes_the_place_of_one_connection, struct rig *e, lent())
{
    reads(e, 2, 50);
    reads(e, 3, 50);
    T_TRUE(stays(e, 2));
    T_TRUE(stays(e, 3));
    reads(e, 4, 50); /* another handle */
    T_FALSE(closed(e, 2) || closed(e, 3));
    parts(e, 5, 51); /* another process */
    T_FALSE(closed(e, 2) || closed(e, 3));
    parts(e, 6, 50);
    T_TRUE(closed(e, 2) && !closed(e, 3));
    brain_dead(e, 2);
    says_bye(e, 4);
    says_bye(e, 5);
    says_bye(e, 6);
    loses_langd(e);
    T_TRUE(orphaned(e));
    brain_dead(e, 3);
    T_FALSE(orphaned(e));
}

/* RULES 6.7 */
TEST_WITH(connections_that_are_open_are_both_readers, struct rig *e, lent())
{
    reads(e, 2, 50);
    reads(e, 3, 50);
    says_bye(e, 3);
    loses_langd(e);
    T_TRUE(orphaned(e));
    says_bye(e, 2);
    T_FALSE(orphaned(e));
}

/* A process may read rooms of two langds. */
/* RULES 6.7 */
TEST_WITH(readers_hold_what_their_own_langd_was_lent, struct rig *e, lent())
{
    struct peer_msg m = hopes(e, 2, 90);
    uint64_t lend, token = token_of(e, 1, hello("b", L_EPOCH + 1, 0));

    lend = brain_said(e, PEER_HELLO, -1)->hello.lend;
    connect_as(e, 4, BRAIN_UID);
    T_OK(say_map(e, 4, "b", L_EPOCH + 1, token));
    brain_hear(e, 1, hello("b", L_EPOCH + 1, 1));
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    all_rows(e, 1, 8);
    brain_hear(e, 1, m);
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 3);
    reads(e, 2, 50);
    T_TRUE(stays(e, 2));
    open_as(e, 3, 7, 50); /* the same process, for langd `b` */
    T_OK(say_map(e, 3, "b", L_EPOCH + 1, lend));
    T_FALSE(closed(e, 2));
    brain_gone(e, 4);
    brain_gone(e, 1);
    T_EQ_U64(brain_shown(e, "pools", "orphaned", 0), 3);
    says_bye(e, 3);
    T_EQ_U64(brain_shown(e, "pools", "orphaned", 0), 2);
    brain_pass(e, 3000);
    brain_dead(e, 2);
    T_EQ_U64(brain_shown(e, "pools", "orphaned", 0), 0);
}

/* RULES 6.7 */
TEST(a_reader_s_end_lifts_nothing_while_its_langd_lives)
{
    struct rig *e = lent();

    reads(e, 2, 50);
    reads(e, 3, 51);
    says_bye(e, 2);
    brain_gone(e, 3);
    T_EQ_U64(brain_free(e), 14);
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 2);
}

/* RULES 6.7 */
TEST(a_process_without_a_number_takes_nobody_s_place)
{
    struct rig *e = lent();

    reads(e, 2, 0);
    T_TRUE(stays(e, 2));
    reads(e, 3, 0);
    T_FALSE(closed(e, 2));
}

/* RULES 6.7 */
TEST_WITH(a_reader_of_another_run_holds_nothing, struct rig *e, lent())
{
    uint64_t lend;

    lend = lend_of(e, NEXT_EPOCH);
    T_OK(brain_say(e, 0, release(0)));
    open_as(e, 2, 7, 50);
    T_OK(say_map(e, 2, "a", NEXT_EPOCH, lend));
    T_EQ_U64(pools_given(e, 2), 1);
    T_TRUE(stays(e, 1)); /* connection of the old run */
    T_EQ_U64(brain_free(e), 14);
    brain_dead(e, 1);
    T_FALSE(orphaned(e));
    T_TRUE(stays(e, 2));
}

/* RULES 6.7 */
TEST_WITH(a_langd_that_is_back_is_asked_what_it_reads, struct rig *e, lent())
{
    link_down(e, 0);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_OK(brain_say(e, 0, release(0)));
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_free(e), 14);
    for (uint32_t i = 0; i < 2; i++) {
        brain_hear(e, 0, hello("a", L_EPOCH, 1));
        T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_PEER_LOST);
        T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 70);
        brain_pass(e, 3000);
        T_TRUE(brain_said_count(e, PEER_FAILED) >= 2);
        brain_hear(e, 0, asked(ROOM_SUCCESS, i ? 0 : FLAG_HELD));
        T_EQ_U64(brain_free(e), i ? 16 : 14);
        brain_pass(e, DAY_MS);
        T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    }
}

/* The langd's process was seen to end before its last messages were read. */
/* RULES 6.7 */
TEST(what_a_dead_langd_had_said_counts)
{
    struct peer_msg last[] = {about(1, 70, PEER_RETURN),
        about(1, 70, PEER_ABORT), asked(ROOM_FAILED, 0),
        about_lend(ROOM_WAITING, 0), resume(1, 70, 0, 16, 0)};

    for (uint32_t i = 0; i < ARRAY_LEN(last); i++) {
        struct rig *e = lent();

        reads(e, 2, 50);
        brain_gone(e, 1);
        T_TRUE(orphaned(e));
        if (i < 2)
            ack(e, 0, 1, 70);
        T_TRUE(orphaned(e));
        brain_hear(e, 0, last[i]);
        T_FALSE(orphaned(e));
        link_down(e, 0);
        T_OK(brain_say(e, 0, release(0)));
        T_EQ_U64(brain_free(e), 16);
    }
}

/* Its last fence is gone, so its process need not be watched. */
TEST(a_langd_that_takes_nothing_loses_its_old_connection)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct rig *e = lent();

        T_TRUE(stays(e, 1));
        brain_hear(
            e, 0, i ? resume(1, 70, 0, 16, 0) : about_lend(ROOM_WAITING, 0));
        T_TRUE(closed(e, 1));
    }
}
