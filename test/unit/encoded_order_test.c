/* encoded_order_test.c - orders that end rooms, or rows that are kept, at the
 * encode side (RULES 9.8). The process of connection n has the number 1000 + n.
 */
#include "core/head.h"
#include "test/here.h"

static void kill_room(struct rig *e, uint64_t room)
{
    rig_step(e, &(struct event){.type = EV_KILL, .room = room});
}

/* RULES 9.8 */
TEST_ENCODED(a_room_is_killed_by_its_id)
{
    const struct peer_msg *m;

    SAYS(e, 0, announce(1, 0, 16, 16), announce(2, 1, 16, 16));
    brain_hear(e, 0, init(e, 1, 70, 16));
    kill_room(e, 1);
    m = brain_said(e, PEER_FAILED, 0);
    T_EQ_U64(m->generation, 70);
    T_EQ_U64(m->failed.reason, ERR_ABORTED);
    T_TRUE(span_eq(m->failed.text,
        span_str("ended by an order on this host: mmxctl kill")));
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ABORTED);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_BOOTSTRAPPING);
    kill_room(e, 1); /* the room has ended already */
    T_EQ_U64(brain_stat(e, "killed"), 1);
}

/* RULES 9.8 */
TEST_ENCODED(so_is_one_that_no_engine_has_announced)
{
    brain_hear(e, 0, init(e, 1, 70, 16));
    kill_room(e, 1);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_ABORTED);
    T_EQ_U64(brain_stat(e, "killed"), 1);
}

/* RULES 9.8 */
TEST_ENCODED(all_rooms_of_a_process_are_killed)
{
    brain_conn(e, 1, "other");
    SAYS(e, 0, announce(1, 0, 16, 16), announce(2, 1, 16, 16));
    T_OK(brain_say(e, 1, announce(3, 0, 16, 16)));
    rig_step(e, &(struct event){.type = EV_KILL, .pid = 1000});
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ABORTED);
    T_EQ_U64(brain_reason(e, 0, 1), ERR_ABORTED);
    T_EQ_U64(brain_state(e, 1, 0), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(e, "killed"), 2);
}

/* Announces a room under key `b`, moves its rows, and has them kept. */
static void kept(struct rig *e, uint64_t room, uint32_t cell, uint8_t b)
{
    struct local_msg m = announce(room, cell, 16, 16);
    struct peer_msg ask = init(e, room, 70 + room, 16);

    m.announce.key.b[0] = ask.init.key.b[0] = b;
    m.announce.flags = FLAG_KEEP;
    T_OK(brain_say(e, 0, m));
    all_rows(e, cell, 16);
    brain_hear(e, 0, ask);
    ack(e, 0, room, 70 + room);
    T_EQ_U64(brain_state(e, 0, cell), ROOM_SUCCESS);
}

/* True if an announce finds rows under the key. */
static bool found(struct rig *e, uint64_t room, uint32_t cell, uint8_t b)
{
    struct local_msg m = announce(room, cell, 16, 16);

    m.announce.key.b[0] = b;
    T_OK(brain_say(e, 0, m));
    return brain_events(e, 0, cell) & EVENT_HAVE;
}

/* RULES 9.8 */
TEST_ENCODED(rows_are_dropped_by_their_key)
{
    struct key key = {.b = {1}};

    kept(e, 1, 0, 1);
    kept(e, 2, 1, 2);
    SAYS(e, 0, release(0), release(1));
    rig_step(e, &(struct event){.type = EV_DROP, .pool = NONE, .key = &key});
    T_EQ_U64(brain_stat(e, "dropped"), 1);
    T_FALSE(found(e, 3, 2, 1));
    T_EQ_U64(brain_stat(e, "have"), 0);
    T_TRUE(found(e, 4, 3, 2));
    T_EQ_U64(brain_stat(e, "have"), 1);
}

/* RULES 9.8 */
TEST_ENCODED(all_that_is_kept_is_dropped_and_its_blocks_are_free)
{
    uint32_t all = e->is->ops->blocks_free(e->is, 0);

    kept(e, 1, 0, 1);
    kept(e, 2, 1, 0);
    SAYS(e, 0, release(0), release(1));
    rig_step(e, &(struct event){.type = EV_DROP, .pool = 1});
    T_EQ_U64(brain_stat(e, "dropped"), 0);
    T_EQ_U64(e->is->ops->blocks_free(e->is, 0), all - 4);
    rig_step(e, &(struct event){.type = EV_DROP, .pool = NONE});
    T_EQ_U64(brain_stat(e, "dropped"), 2);
    T_EQ_U64(e->is->ops->blocks_free(e->is, 0), all);
    brain_hear(e, 1, init(e, 2, 90, 16));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_GONE);
}

/* A room that has the rows already completes. A later room of the key encodes
 * anew. */
/* RULES 9.8 */
TEST_ENCODED(rows_that_are_asked_for_are_not_dropped_but_their_key_is)
{
    struct peer_msg ask = init(e, 1, 70, 16);

    T_FALSE(found(e, 1, 0, 1));
    all_rows(e, 0, 16);
    ask.init.key.b[0] = 1;
    brain_hear(e, 0, ask);
    rig_step(e, &(struct event){.type = EV_DROP, .pool = NONE});
    T_FALSE(found(e, 2, 1, 1));
    ack_succeeds(e, 0, 1, 70, 0);
    T_EQ_U64(brain_stat(e, "dropped"), 0);
}
