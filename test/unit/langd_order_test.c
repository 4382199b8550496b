/* langd_order_test.c - an order that ends rooms of the language side (RULES
 * 9.8). The process of connection n has the number 1000 + n. */
#include "test/there.h"

/* RULES 9.8 */
TEST_LANGD(a_room_is_killed_by_its_id_and_its_encoder_is_told)
{
    SAYS(l, 0, request(1, 0, MODE_WHOLE), request(2, 1, MODE_WHOLE));
    rig_step(l, &(struct event){.type = EV_KILL, .room = 1});
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_ABORTED);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(l, "killed"), 1);
}

/* RULES 9.8 */
TEST_LANGD(all_rooms_of_a_process_are_killed)
{
    brain_conn(l, 1, "other");
    SAYS(l, 0, request(1, 0, MODE_WHOLE), request(2, 1, MODE_WHOLE));
    T_OK(brain_say(l, 1, request(3, 0, MODE_WHOLE)));
    rig_step(l, &(struct event){.type = EV_KILL, .pid = 1000});
    T_EQ_U64(brain_reason(l, 0, 0), ERR_ABORTED);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_ABORTED);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_stat(l, "killed"), 2);
}
