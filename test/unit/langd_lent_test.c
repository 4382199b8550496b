/* langd_lent_test.c - the language side's lent rooms after LEND: what their
 * encoder is told of their end, whom they are shown to, and what changes
 * nothing (RULES 6.7). Blocks are 8 rows, the pool has 16. */
#include "test/unit/lender_side.h"

#define DAY_MS (24 * 3600 * UINT64_C(1000))

static uint32_t rooms(struct rig *l)
{
    return (uint32_t)brain_shown(l, "status", "rooms_held", 0);
}

static struct local_msg all(uint32_t cell)
{
    return release(cell, ROWS_UNKNOWN);
}

/* RETURN */

/* RULES 6.7 */
TEST(return_is_said_until_drained)
{
    struct there t;
    struct rig *l = lent(&t);

    T_EQ_U64(brain_said_count(l, PEER_ACK), 1);
    brain_hear(l, 0, acked(&t));
    brain_pass(l, 10000);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 0);
    T_OK(brain_say(l, 1, release(0, 64))); /* it may still read the last rows */
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    T_OK(brain_say(l, 1, all(0)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
    T_EQ_U64(brain_said(l, PEER_RETURN, 0)->generation, t.generation);
    brain_pass(l, 3000);
    T_TRUE(brain_said_count(l, PEER_RETURN) >= 2);
    T_EQ_U64(rooms(l), 1);
    brain_hear(l, 0, about(&t, PEER_DRAINED));
    brain_pass(l, DAY_MS);
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    T_EQ_U64(rooms(l), 0);
}

/* RULES 6.7 */
TEST(return_waits_for_the_owner_and_all_readers)
{
    /* which connection ends first, and how the last one ends */
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = 1 + i % 2, last = 2 - i % 2;
        struct rig *l = lending(NULL, NULL);
        struct there t;
        struct local_msg m = large(1, 0);

        able(l, 2, "able");
        maps(l, 1, 1, 1);
        maps(l, 2, 1, 1);
        m.request.readers = 1;
        T_TRUE(hopes(l, 1, m, &t));
        HEARS(l, 0, length(&t, 64, 64, true), lend(&t));
        T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
        if (first == 1)
            T_OK(brain_say(l, 1, all(0))); /* the reader has not attached yet */
        T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
        T_OK(brain_say(l, 2, attach(1, 0, RIGHT_READ)));
        T_EQ_U64(ready(l, 2)->pool, LENT_POOL);
        if (first == 2)
            T_OK(brain_say(l, 2, all(0)));
        T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
        brain_hear(l, 0, acked(&t));
        if (i < 2) {
            T_OK(brain_say(l, last, all(0)));
        } else {
            (void)ready(l, last);
            brain_end(l, last);
            brain_pass(l, 10000);
            T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
            brain_dead(l, last);
        }
        T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
    }
}

/* RULES 6.7 */
TEST(an_encoder_that_asks_is_told_whether_rows_are_shown)
{
    struct there t;
    struct rig *l = lent(&t);

    for (uint32_t i = 0; i < 2; i++) {
        struct peer_msg m = about(&t, PEER_FAILED);

        m.failed.reason = ERR_PEER_LOST;
        brain_hear(l, 0, m);
        T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_SUCCESS);
        T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.flags & FLAG_HELD,
            i ? 0 : FLAG_HELD);
        if (i == 0)
            T_OK(brain_say(l, 1, all(0)));
    }
}

/* RULES 6.7 */
TEST(a_deadline_changes_nothing_of_a_ready_room)
{
    struct rig *l = lending(NULL, NULL);
    struct there t;
    struct local_msg m = large(1, 0);

    maps(l, 1, 1, 1);
    m.request.deadline_ms = 1000;
    T_TRUE(hopes(l, 1, m, &t));
    HEARS(l, 0, length(&t, 64, 64, true), lend(&t), acked(&t));
    brain_pass(l, DAY_MS);
    T_EQ_U64(brain_acts(l, ACT_PEER), 0);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    brain_hear(l, 0, lend(&t));
    T_TRUE(held(l));
}

/* The encoder never comes back: no DRAINED comes. */
/* RULES 6.7 */
TEST(a_room_of_a_lost_encoder_is_forgotten_in_time)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct there t;
        struct rig *l = lent(&t);

        brain_hear(l, 0, acked(&t));
        if (i)
            T_OK(brain_say(l, 1, all(0)));
        brain_down(l, 0);
        brain_pass(l, 10000);
        if (!i) {
            /* its rows can still be read */
            T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
            T_OK(brain_say(l, 1, all(0)));
        }
        T_EQ_U64(rooms(l), 1);
        brain_pass(l, DAY_MS);
        T_CHECK(rooms(l) == 0, "case %u", i);
    }
}

/* RULES 6.7 */
TEST(an_encoder_that_is_back_is_told_of_the_return)
{
    struct there t;
    struct rig *l = lent(&t);

    brain_hear(l, 0, acked(&t));
    brain_down(l, 0);
    brain_pass(l, 10000);
    T_OK(brain_say(l, 1, all(0)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    brain_hear(l, 0, lender(LEND));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
    brain_hear(l, 0, about(&t, PEER_DRAINED));
    T_EQ_U64(rooms(l), 0);
}

/* aux */

static uint8_t big[AUX_MAX];

/* Has a lent room whose aux finds no space: 48 KiB of 64 are in use. */
static struct rig *aux_late(struct there *t)
{
    struct rig *l = lending("limits.aux_total=64KiB", NULL);
    struct there other;
    struct peer_msg m;

    maps(l, 1, 1, 1);
    for (uint32_t i = 0; i < 2; i++) {
        other = ask_room(l, 10 + i, i);
        m = length(&other, 8, 8, true);
        m.length.aux = span_of(big, i ? AUX_MAX / 2 : AUX_MAX);
        brain_hear(l, 0, m);
    }
    T_OK(brain_say(l, 1, large(1, 0)));
    *t = (struct there){
        .room = 1, .generation = brain_said(l, PEER_INIT, 0)->generation};
    T_TRUE(brain_said(l, PEER_INIT, 0)->init.flags & FLAG_LEND);
    brain_hear(l, 0, state(t, PEER_INIT, 0, 0));
    m = length(t, 64, 64, true);
    m.length.aux = span_of(big, AUX_MAX);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.reason, ERR_NO_BLOCKS);
    for (uint32_t i = 0; i < 2; i++) {
        brain_hear(l, 0, lend(t));
        T_TRUE(held(l));
    }
    brain_pass(l, 3000);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 0);
    /* a lent room needs no grant */
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
    T_TRUE(brain_state(l, 1, 0) != ROOM_SUCCESS);
    T_EQ_U64(brain_stat(l, "rooms_lent"), 0);
    return l;
}

/* RULES 6.7 */
TEST(a_lent_room_waits_for_its_aux)
{
    struct there t;
    struct rig *l = aux_late(&t);
    struct peer_msg m = length(&t, 64, 64, true);

    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.answers, PEER_LENGTH);
    m.length.aux = span_of(big, AUX_MAX);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 1);
    T_EQ_U64(ready(l, 1)->pool, LENT_POOL);
    T_OK(brain_say(l, 1, all(0)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
}

/* RULES 6.7 */
TEST(a_lent_room_that_failed_was_shown_to_nobody)
{
    struct there t;
    struct rig *l = aux_late(&t);

    T_OK(brain_say(l, 1, abort_of(0)));
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 1);
    brain_hear(l, 0, lend(&t));
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_FAILED);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.flags & FLAG_HELD, 0);
    T_OK(brain_say(l, 1, all(0)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    brain_pass(l, 3000);
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    T_TRUE(brain_said_count(l, PEER_ABORT) > 0);
}

/* connections that come late */

/* RULES 6.7 */
TEST(who_comes_late_and_can_map_gets_the_room_then)
{
    struct there t;
    struct rig *l = lent(&t);

    able(l, 2, "able");
    T_TRUE(told_of(l, 2) != NULL);
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    T_TRUE(ready(l, 2) == NULL);
    maps(l, 2, 1, 2); /* of another pool */
    T_TRUE(ready(l, 2) == NULL);
    maps(l, 2, 2, 1); /* of another lender */
    T_TRUE(ready(l, 2) == NULL);
    maps(l, 2, 1, 3);
    T_EQ_U64(ready(l, 2)->pool, LENT_POOL);
    T_EQ_U64(brain_state(l, 2, 5), ROOM_SUCCESS);
}

/* RULES 6.7 */
TEST(who_maps_when_all_have_read_gets_nothing)
{
    struct there t;
    struct rig *l = lent(&t);

    able(l, 2, "able");
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    T_OK(brain_say(l, 1, all(0)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
    maps(l, 2, 1, 1);
    brain_pass(l, 1);
    T_TRUE(ready(l, 2) == NULL);
    T_EQ_U64(brain_reason(l, 2, 5), ERR_GONE);
}

/* The room ends while a reader waits to map the pool. */
/* RULES 7.2 */
TEST(who_has_not_mapped_when_all_have_read_hears_gone)
{
    struct there t;
    struct rig *l = lent(&t);

    able(l, 2, "able");
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    T_OK(brain_say(l, 2, attach(2, 6, RIGHT_READ)));
    T_OK(brain_say(l, 1, all(0)));
    HEARS(l, 0, acked(&t), about(&t, PEER_DRAINED));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
    brain_pass(l, 1);
    T_EQ_U64(brain_reason(l, 2, 5), ERR_GONE);
    T_EQ_U64(brain_reason(l, 2, 6), OK); /* of a room that may come */
}

/* RULES 6.7 */
TEST(who_comes_late_and_cannot_is_refused)
{
    struct there t;
    struct rig *l = lent(&t);

    brain_conn(l, 2, "able");
    T_ERR(brain_say(l, 2, attach(1, 5, RIGHT_READ)), ERR_NOT_READY);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 6.7 */
TEST(who_says_that_it_cannot_map_waits_no_more)
{
    struct there t;
    struct rig *l = lent(&t);

    able(l, 2, "able");
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    maps(l, 2, 1, 0);
    brain_pass(l, 1);
    T_EQ_U64(brain_reason(l, 2, 5), ERR_NOT_READY);
    T_ERR(brain_say(l, 2, attach(1, 6, RIGHT_READ)), ERR_NOT_READY);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
}

/* RULES 6.7 */
TEST(a_room_that_only_hopes_takes_blocks_then)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct there t;
        struct rig *l = hoping(&t);

        if (i)
            able(l, 2, "able");
        else
            brain_conn(l, 2, "able");
        T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
        is_granted(l);
        told(l, &t);
        brain_hear(l, 0, lend(&t));
        T_FALSE(held(l));
        brain_landed(l, &t.open, 0, 64);
        T_EQ_U64(brain_state(l, 2, 5), ROOM_SUCCESS);
    }
}

/* RULES 6.7 */
TEST(another_engine_changes_nothing_of_a_room)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct there t;
        struct rig *l = i ? hoping(&t) : lent(&t);

        able(l, 2, "another");
        T_ERR(brain_say(l, 2, attach(1, 5, RIGHT_READ)), ERR_NOT_OWNER);
        T_EQ_U64(brain_free(l), 16);
        brain_hear(l, 0, lend(&t));
        T_TRUE(held(l));
    }
}

/* RULES 6.7 */
TEST(who_waits_for_a_room_of_its_own_is_shown_no_other)
{
    struct rig *l = lending(NULL, NULL);
    struct there t;

    able(l, 2, "another");
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    maps(l, 1, 1, 1);
    T_TRUE(hopes(l, 1, large(1, 0), &t));
    HEARS(l, 0, length(&t, 64, 64, true), lend(&t));
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    maps(l, 2, 1, 1);
    T_TRUE(ready(l, 2) == NULL);
}

/* RULES 6.7 */
TEST(who_maps_when_the_owner_waits_for_no_more_gets_nothing)
{
    struct there t;
    struct rig *l = lent(&t);
    struct local_msg m = release(0, 0);

    able(l, 2, "able");
    T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
    m.release.flags = FLAG_NO_READERS;
    T_OK(brain_say(l, 1, m));
    maps(l, 2, 1, 1);
    T_TRUE(ready(l, 2) == NULL);
}
