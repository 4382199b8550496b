/* langd_map_test.c - the language side with an encoder of its own host: when it
 * maps the encoder's pools, what it says of that, and that it does not say that
 * a room has ended while rows may still be copied for it (RULES 3, 6). Blocks
 * are 8 rows, the pool has 16; the encoder is link 0. */
#include "test/there.h"

#define TOKEN UINT64_C(0x70ce)

static const struct action *act_of(const struct rig *l, uint8_t type)
{
    for (uint32_t i = 0; i < l->acts_count; i++)
        if (l->acts[i].type == type)
            return &l->acts[i];
    return NULL;
}

static void heard_map(struct rig *l, uint32_t bits, enum err err)
{
    struct event ev = {
        .type = EV_MAP, .peer_at = 0, .mapped = bits, .err = err};

    rig_step(l, &ev);
}

static struct rig *mapping(void)
{
    struct rig *l = langd_up(NULL, NULL);

    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_acts(l, ACT_MAP), 1);
    return l;
}

/* mapping */

TEST_LANGD(pools_of_an_encoder_of_this_host_are_mapped)
{
    const struct action *a;

    brain_hear(l, 0, near_hello(TOKEN));
    a = act_of(l, ACT_MAP);
    T_TRUE(a != NULL);
    T_EQ_U64(a->word, TOKEN);
    T_EQ_U64(a->index, 0);
    T_EQ_U64(a->len, 13);
    T_EQ_MEM(l->bytes + a->at, "/run/enc.sock", 13);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 0);
    heard_map(l, 1, OK);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 1);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.answer, 1);
    heard_map(l, 3, OK);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 3);
}

TEST_LANGD(others_are_not)
{
    struct peer_msg m = near_hello(0);

    brain_hear(l, 0, m);
    T_EQ_U64(brain_acts(l, ACT_MAP), 0);
    m = near_hello(TOKEN);
    m.hello.socket = span_str("");
    brain_hear(l, 0, m);
    T_EQ_U64(brain_acts(l, ACT_MAP), 0);
    m = near_hello(TOKEN);
    m.hello.boot.b[0] = 1;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_acts(l, ACT_MAP), 0);
    l = langd_up("transfer.same_host=off", NULL);
    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_acts(l, ACT_MAP), 0);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, MAPS_NONE);
}

TEST_WITH(the_report_says_why_rows_are_not_copied, struct rig *l, mapping())
{
    struct event ev = {.type = EV_MAP, .static_why = "lies elsewhere"};

    T_EQ_STR(
        brain_text(l, "peers", "not_by", 0), "copy: not mapped, ucx: not here");
    rig_step(l, &ev);
    T_EQ_STR(brain_text(l, "peers", "not_by", 0),
        "copy: lies elsewhere, ucx: not here");
    heard_map(l, 0, ERR_PEER_LOST);
    T_EQ_STR(brain_text(l, "peers", "not_by", 0),
        "copy: lies elsewhere, ucx: not here");
    brain_hear(l, 0, near_hello(TOKEN + 1));
    T_EQ_STR(
        brain_text(l, "peers", "not_by", 0), "copy: not mapped, ucx: not here");
}

TEST_WITH(a_hello_that_is_said_again_changes_nothing, struct rig *l, mapping())
{
    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_acts(l, ACT_MAP) + brain_acts(l, ACT_UNMAP), 0);
    heard_map(l, 1, OK);
    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_acts(l, ACT_MAP) + brain_acts(l, ACT_UNMAP), 0);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 1);
    brain_hear(l, 0, near_hello(TOKEN + 1));
    T_EQ_U64(act_of(l, ACT_UNMAP) < act_of(l, ACT_MAP), true);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 0);
}

TEST(what_cannot_be_mapped_is_tried_with_the_next_hello)
{
    struct rig *l = mapping();

    heard_map(l, 1, OK);
    heard_map(l, 0, ERR_PEER_LOST);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 0);
    brain_pass(l, 60000);
    T_EQ_U64(brain_acts(l, ACT_MAP), 0);
    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_acts(l, ACT_MAP), 1);
    T_EQ_U64(brain_acts(l, ACT_UNMAP), 0); /* no map exists */
}

/* RULES 9.2 */
TEST_WITH(a_lost_encoder_is_unmapped, struct rig *l, mapping())
{
    heard_map(l, 1, OK);
    brain_down(l, 0);
    T_EQ_U64(brain_acts(l, ACT_UNMAP), 0); /* not before it is lost */
    brain_pass(l, 600);
    T_EQ_U64(brain_acts(l, ACT_UNMAP), 1);
    heard_map(l, 1, OK); /* the answer to a map that was under way */
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 0);
    brain_hear(l, 0, near_hello(TOKEN));
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.mapped, 0);
    T_EQ_U64(brain_acts(l, ACT_MAP), 1);
}

/* RULES 9.2 */
TEST_WITH(another_run_of_it_is_another_mapping, struct rig *l, mapping())
{
    struct peer_msg m = near_hello(TOKEN + 5);

    heard_map(l, 1, OK);
    m.from_epoch = PEER_EPOCH + 1;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_acts(l, ACT_UNMAP), 1);
    T_EQ_U64(act_of(l, ACT_MAP)->word, TOKEN + 5);
    T_TRUE(act_of(l, ACT_UNMAP) < act_of(l, ACT_MAP));
}

/* ends of rooms */

TEST_WITH(abort_waits_until_nothing_can_land, struct rig *l, mapping())
{
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 16, 16, true));
    l->noisy = true;
    T_OK(brain_say(l, 0, abort_of(0)));
    T_TRUE(brain_cmd(l, LAND_CLOSE)->reply);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    brain_pass(l, 10000);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 1);
    brain_hear(l, 0, about(&t, PEER_DRAINED));
    brain_pass(l, 10000);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
}

/* RULES 6.2 */
TEST_WITH(failed_is_answered_when_nothing_can_land, struct rig *l, mapping())
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_FAILED);
    struct event ev = {.type = EV_NOTE};

    brain_hear(l, 0, length(&t, 16, 16, true));
    l->noisy = true;
    m.failed.reason = ERR_ABORTED;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED); /* the engine need not wait */
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
    brain_hear(l, 0, m); /* FAILED is repeated */
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
    brain_hear(l, 0, want(&t, 0, 16, 16)); /* WANT is not answered either */
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
    ev.note = l->waiting[0];
    l->waiting_count = 0;
    rig_step(l, &ev);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 1);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_FAILED);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_FAILED);
}

TEST_WITH(a_trim_under_way_is_waited_for, struct rig *l, mapping())
{
    struct there t = ask_room(l, 1, 0); /* two blocks */

    l->noisy = true;
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_TRUE(brain_cmd(l, LAND_TRIM) != NULL);
    T_OK(brain_say(l, 0, abort_of(0)));
    T_TRUE(brain_cmd(l, LAND_CLOSE) == NULL);
    /* the shards have done the trim: now the attempt is closed */
    T_TRUE(brain_quiet(l));
    T_TRUE(brain_cmd(l, LAND_CLOSE) != NULL);
    brain_pass(l, 10000);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 1);
}

TEST(a_new_attempt_is_told_when_the_old_one_is_quiet)
{
    struct rig *l = mapping();
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_BROKEN);

    HEARS(l, 0, length(&t, 16, 16, true), state(&t, PEER_INIT, 0, 16));
    l->noisy = true;
    brain_hear(l, 0, m);
    T_TRUE(brain_cmd(l, LAND_CLOSE)->reply);
    brain_pass(l, 5000);
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.attempt, 1);
}

TEST_WITH(silence_of_the_encoder_closes_too, struct rig *l, mapping())
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_FAILED);

    brain_hear(l, 0, length(&t, 16, 16, true));
    l->noisy = true;
    brain_down(l, 0);
    brain_pass(l, 600);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    brain_hear(l, 0, near_hello(TOKEN)); /* the encoder is back, and asks */
    m.failed.reason = ERR_PEER_LOST;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_said_count(l, PEER_STATE), 1);
    T_EQ_U64(brain_free(l), 16);
}

TEST_WITH(ready_is_told_at_once_all_has_been_copied, struct rig *l, mapping())
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_FAILED);

    brain_hear(l, 0, length(&t, 16, 16, true));
    l->noisy = true;
    brain_landed(l, &t.open, 0, 8);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 0);
    brain_landed(l, &t.open, 8, 8);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 1);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_SUCCESS);
}
