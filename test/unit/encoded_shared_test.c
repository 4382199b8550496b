/* encoded_shared_test.c - rooms of one key: the first writes, the others wait
 * for its rows, until their deadline (RULES 1.7, 8.3), and who sees the key. */
#include "test/here.h"

/* Announces a room of 16 rows under the key, with a deadline of 3 s, and has
 * langd ask for it. True if it waits for another room's rows. */
static bool waits(struct rig *e, uint64_t room, uint32_t cell)
{
    struct local_msg a = announce(room, cell, 16, 16);
    struct peer_msg ask = init(e, room, 70 + room, 16);

    a.announce.key.b[0] = ask.init.key.b[0] = 9;
    a.announce.deadline_ms = 3000;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, ask);
    return brain_events(e, 0, cell) & EVENT_HAVE;
}

/* The first room's deadline is only its langd's matter (RULES 8.3). */
/* RULES 1.7 */
TEST_ENCODED(
    a_room_waits_for_anothers_rows_until_its_deadline_and_the_next_one_writes)
{
    T_FALSE(waits(e, 1, 0));
    brain_pass(e, 1000);
    T_TRUE(waits(e, 2, 1));
    brain_pass(e, 2900);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    brain_pass(e, 200);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_GONE);
    brain_hear(e, 0, state(2, 72, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 1), ERR_GONE);
    T_EQ_U64(brain_stat(e, "deadlines"), 1);
    T_EQ_U64(brain_reason(e, 0, 0), OK);
    T_FALSE(waits(e, 3, 2));
    T_TRUE(is_granted(e, 2));
    T_TRUE(waits(e, 4, 3));
    all_rows(e, 2, 16); /* the fourth room has these rows, too */
    all_rows(e, 0, 16); /* the first room commits late, and for itself only */
    ack(e, 0, 1, 71);
    ack(e, 0, 3, 73);
    ack(e, 0, 4, 74);
    for (uint32_t cell = 0; cell < 4; cell++)
        T_EQ_U64(
            brain_state(e, 0, cell), cell == 1 ? ROOM_FAILED : ROOM_SUCCESS);
}

/* RULES 1.7 */
TEST_ENCODED(the_deadline_of_a_room_ends_with_the_last_row)
{
    T_FALSE(waits(e, 1, 0));
    T_TRUE(waits(e, 2, 1));
    brain_pass(e, 2900);
    all_rows(e, 0, 16);
    brain_pass(e, 3600000);
    T_EQ_U64(brain_reason(e, 0, 1), OK);
    T_TRUE(waits(e, 3, 2));
    for (uint32_t room = 1; room <= 3; room++)
        ack(e, 0, room, 70 + room);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS);
    T_EQ_U64(brain_stat(e, "deadlines"), 0);
}

/* The room that writes is not blamed. */
/* RULES 8.3 */
TEST(a_room_that_waits_and_is_not_asked_for_leaves_the_rows_alone)
{
    struct rig *e = encoded("timeouts.bootstrap=1s", NULL);
    struct local_msg a = announce(2, 1, 16, 16);

    T_FALSE(waits(e, 1, 0));
    a.announce.key.b[0] = 9;
    T_OK(brain_say(e, 0, a));
    brain_pass(e, 1100);
    T_EQ_U64(brain_reason(e, 0, 1), ERR_TIMEOUT);
    T_TRUE(waits(e, 3, 2));
}

/* Twenty rooms of one key are kept, in a table of four: they give way to the
 * next announce. */
/* RULES 7.6 */
TEST_ENCODED(kept_rooms_leave_a_place_for_the_next_announce, "limits.rooms=4")
{
    for (uint32_t i = 0; i < 20; i++) {
        struct local_msg a = announce(1 + i, i, 16, 16);
        struct peer_msg ask = init(e, 1 + i, 71 + i, 16);

        a.announce.key.b[0] = ask.init.key.b[0] = 9;
        a.announce.flags = FLAG_KEEP;
        T_OK(brain_say(e, 0, a));
        T_EQ_U64(!!(brain_events(e, 0, i) & EVENT_HAVE), i > 0);
        if (i == 0)
            all_rows(e, 0, 16);
        brain_hear(e, 0, ask);
        ack(e, 0, 1 + i, 71 + i);
        T_EQ_U64(brain_state(e, 0, i), ROOM_SUCCESS);
        T_OK(brain_say(e, 0, release(i)));
    }
    T_EQ_U64(brain_stat(e, "table_full"), 0);
}

/* the inventory */

struct counted {
    struct rows_out s;
    uint32_t rows;
};

static void count_row(struct rows_out *s)
{
    ((struct counted *)(void *)s)->rows++;
}

static void skip_text(struct rows_out *s, const char *name, const char *value)
{
    (void)s, (void)name, (void)value;
}

static void skip_number(struct rows_out *s, const char *name, uint64_t value)
{
    (void)s, (void)name, (void)value;
}

static uint32_t keys_seen_by(struct rig *e, uint32_t uid)
{
    struct counted k = {.s = {count_row, skip_text, skip_number, NONE}};
    struct show_at at = {.places = UINT32_MAX, .uid = uid};

    T_TRUE(brain_show(e->is, "inventory", e->now_ns, &at, &k.s));
    return k.rows;
}

/* Engine 0 is of user 7. */
/* RULES 10.4 */
TEST_ENCODED(a_key_is_shown_to_its_own_user)
{
    T_OK(brain_say(e, 0, announce(5, 4, 8, 8))); /* without a key */
    T_FALSE(waits(e, 1, 0));
    T_TRUE(waits(e, 2, 1)); /* waits for room 1, of the same key */
    T_EQ_U64(keys_seen_by(e, 7), 1);
    T_EQ_U64(keys_seen_by(e, 0), 1);
    T_EQ_U64(keys_seen_by(e, 8), 0);
}
