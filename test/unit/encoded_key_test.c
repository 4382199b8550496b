/* encoded_key_test.c - rooms that share the rows of one key at encoded. */
#include "test/here.h"

static struct local_msg keyed(
    uint64_t room, uint32_t cell, uint32_t max_rows, uint32_t total)
{
    struct local_msg m = announce(room, cell, max_rows, total);

    m.announce.key.b[0] = 1;
    return m;
}

static struct peer_msg keyed_init(struct rig *e, uint64_t room, uint64_t gen)
{
    struct peer_msg m = init(e, room, gen, 16);

    m.init.key.b[0] = 1;
    return m;
}

/* The length of an item may be told after rooms were announced under its key:
 * they are held against it then. */
/* RULES 1.7 */
TEST_ENCODED(a_length_is_compared_when_it_is_known)
{
    struct local_msg m;

    SAYS(e, 0, keyed(1, 0, 16, ROWS_UNKNOWN), keyed(2, 1, 16, 12),
        keyed(3, 2, 16, 8), keyed(4, 3, 16, ROWS_UNKNOWN));
    T_TRUE(brain_events(e, 0, 1) & EVENT_HAVE);
    brain_hear(e, 0, keyed_init(e, 2, 72));
    m = commit(0, 0, 8);
    m.commit.flags = FLAG_FINAL;
    m.commit.total = 8;
    T_OK(brain_say(e, 0, m));
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 1);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ITEM_MISMATCH);
    T_TRUE(span_eq(brain_said(e, PEER_FAILED, 0)->failed.text,
        span_str("12 rows were announced under a key whose item has 8")));
    brain_hear(e, 0, state(2, 72, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_state(e, 0, 1), ROOM_FAILED);
    T_EQ_U64(brain_reason(e, 0, 1), ERR_ITEM_MISMATCH);
    T_TRUE(brain_state(e, 0, 0) != ROOM_FAILED);
    T_TRUE(brain_state(e, 0, 2) != ROOM_FAILED);
    T_TRUE(brain_state(e, 0, 3) != ROOM_FAILED);
    T_ERR(brain_say(e, 0, keyed(5, 4, 16, 12)), ERR_ITEM_MISMATCH);
    T_OK(brain_say(e, 0, keyed(5, 4, 16, 8)));
}

/* The room that writes the rows ends before all of them are there, by its
 * engine or as its langd declines it: the others of its key fail with it, and
 * the key is free for a new item. */
TEST(rooms_fail_with_the_room_that_writes_their_rows)
{
    for (int declined = 0; declined < 2; declined++) {
        struct rig *e = encoded(NULL, NULL);

        SAYS(e, 0, keyed(1, 0, 16, 16), keyed(2, 1, 16, 16), commit(0, 0, 8));
        if (declined) {
            struct peer_msg m = about(1, 0, PEER_DECLINE);

            m.decline.key.b[0] = 1;
            brain_hear(e, 0, m);
            T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
        } else
            T_OK(brain_say(e, 0, release(0)));
        T_EQ_U64(brain_state(e, 0, 1), ROOM_FAILED);
        T_EQ_U64(brain_reason(e, 0, 1), ERR_GONE);
        T_OK(brain_say(e, 0, keyed(3, 2, 16, 16)));
        T_TRUE(!(brain_events(e, 0, 2) & EVENT_HAVE));
    }
}
