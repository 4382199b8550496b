/* encoded_unclaimed_test.c - rows that no langd asks for give way to items that
 * wait for blocks, and a pool that gives no blocks is named (RULES 5.21, 9.6).
 * As in encoded_queue_test.c: blocks are 8 rows, the pool has 16. */
#include "test/here.h"

/* Announces a room of 64 rows, half of the pool, and writes all of them. */
static void unclaimed(struct rig *e, uint64_t room, uint32_t cell)
{
    T_OK(brain_say(e, 0, announce(room, cell, 64, 64)));
    all_rows(e, cell, 64);
}

static void hears_unknown_room(
    struct rig *e, uint64_t room, uint64_t generation)
{
    const struct peer_msg *m;

    brain_hear(e, 0, asks(e, room, generation));
    m = brain_said(e, PEER_FAILED, 0);
    T_EQ_U64(m->generation, generation);
    T_EQ_U64(m->failed.reason, ERR_UNKNOWN_ROOM);
}

/* RULES 5.21 */
TEST_ENCODED(
    rows_that_no_langd_asks_for_give_way_oldest_first, "timeouts.unclaimed=5s")
{
    unclaimed(e, 1, 0);
    brain_pass(e, 3000);
    unclaimed(e, 2, 1);
    T_OK(brain_say(e, 0, announce(3, 2, 64, 64)));
    brain_pass(e, 1900);
    T_TRUE(!is_granted(e, 2));
    brain_pass(e, 200);
    T_TRUE(is_granted(e, 2));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_GONE);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(e, "unclaimed"), 1);
    hears_unknown_room(e, 1, 71);
    brain_pass(e, 60000); /* no item waits for blocks */
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    T_OK(brain_say(e, 0, announce(4, 3, 8, 8)));
    brain_pass(e, 1);
    T_TRUE(is_granted(e, 3));
    hears_unknown_room(e, 2, 72);
    T_EQ_U64(brain_stat(e, "unclaimed"), 2);
}

/* RULES 5.21 */
TEST_ENCODED(as_many_give_way_as_are_needed, "timeouts.unclaimed=1s")
{
    for (uint32_t i = 0; i < 4; i++) {
        T_OK(brain_say(e, 0, announce(1 + i, i, 32, 32)));
        all_rows(e, i, 32);
    }
    brain_pass(e, 5000);
    T_OK(brain_say(e, 0, announce(5, 4, 64, 64)));
    brain_pass(e, 1);
    T_TRUE(is_granted(e, 4));
    T_EQ_U64(brain_stat(e, "unclaimed"), 2);
    T_EQ_U64(brain_state(e, 0, 2), ROOM_BOOTSTRAPPING);
}

/* RULES 5.21 */
TEST_ENCODED(rows_that_are_asked_for_or_being_written_do_not_give_way,
    "timeouts.unclaimed=1s")
{
    unclaimed(e, 1, 0);
    T_OK(brain_say(e, 0, announce(2, 1, 64, 64)));
    T_OK(brain_say(e, 0, commit(1, 0, 64))); /* all rows, but not finally */
    T_OK(brain_say(e, 0, announce(3, 2, 64, 64)));
    brain_pass(e, 900);
    brain_hear(e, 0, asks(e, 1, 71));
    brain_pass(e, 20000);
    T_EQ_U64(brain_stat(e, "unclaimed"), 0);
    T_TRUE(!is_granted(e, 2));
    T_OK(brain_say(e, 0, final(1, 64))); /* its rows are complete from now on */
    brain_pass(e, 900);
    T_TRUE(!is_granted(e, 2));
    brain_pass(e, 200);
    T_TRUE(is_granted(e, 2));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_GONE);
}

/* The other room of the key holds the blocks, which would not come back. */
/* RULES 5.21 */
TEST(rows_of_a_key_do_not_give_way_while_one_room_of_it_is_asked_for)
{
    struct rig *e = encoded("timeouts.unclaimed=1s", NULL);
    struct peer_msg m = asks(e, 1, 71);

    for (uint32_t i = 0; i < 2; i++) {
        struct local_msg a = announce(1 + i, i, 128, 128);

        a.announce.key.b[0] = m.init.key.b[0] = 9;
        T_OK(brain_say(e, 0, a));
    }
    brain_hear(e, 0, m);
    all_rows(e, 0, 128);
    T_OK(brain_say(e, 0, announce(3, 2, 64, 64)));
    brain_pass(e, 20000);
    T_EQ_U64(brain_stat(e, "unclaimed"), 0);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    brain_hear(e, 0, grants(1, 71, 128, FIRM_YES));
    ack(e, 0, 1, 71);
    brain_pass(e, 1100);
    T_TRUE(is_granted(e, 2));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_GONE);
}

/* An open room that was served stays until its engine releases it. */
/* RULES 5.21 */
TEST(an_open_room_gives_way_until_it_was_served)
{
    struct rig *e = encoded("timeouts.unclaimed=1s", NULL);
    struct local_msg a = announce(1, 0, 64, 64);

    for (uint32_t i = 0; i < 2; i++) {
        a.announce.room = 1 + i;
        a.announce.cell = i;
        a.announce.tag = 100 + i;
        a.announce.flags = FLAG_OPEN;
        a.announce.required_dst = 0;
        T_OK(brain_say(e, 0, a));
        all_rows(e, i, 64);
    }
    HEARS(e, 0, asks(e, 1, 71), grants(1, 71, 64, FIRM_YES));
    ack(e, 0, 1, 71);
    T_OK(brain_say(e, 0, announce(3, 2, 128, 128)));
    brain_pass(e, 5000);
    T_EQ_U64(brain_reason(e, 0, 1), ERR_GONE);
    T_TRUE(brain_state(e, 0, 0) != ROOM_FAILED);
    T_TRUE(!is_granted(e, 2));
}

/* A queue may never be empty, as long as it moves. */
/* RULES 9.6 */
TEST_ENCODED(a_pool_that_gives_no_blocks_is_named)
{
    struct health h;

    for (uint32_t i = 0; i < 5; i++)
        T_OK(brain_say(e, 0, announce(1 + i, i, 128, 128)));
    for (uint32_t i = 0; i < 3; i++) {
        brain_pass(e, 2900);
        brain_is(e, EV_SEEK);
        brain_health(e->is, &h);
        T_EQ_STR(h.text, "ready");
        T_OK(brain_say(e, 0, release(i)));
    }
    brain_pass(e, 7000);
    brain_is(e, EV_SEEK);
    brain_health(e->is, &h);
    T_EQ_STR(h.text, "ready, but rooms wait for blocks of pool main and none "
                     "got any for 7 s");
    T_EQ_U64(brain_shown(e, "pools", "stands_ms", 0), 7000);
    T_OK(brain_say(e, 0, release(3)));
    T_EQ_U64(brain_shown(e, "pools", "stands_ms", 0), 0);
}
