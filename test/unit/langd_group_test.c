/* langd_group_test.c - groups, and rooms whose encoders contradict themselves,
 * or for which the pool is too scattered (RULES 5.5, 5.6). As in
 * langd_queue_test.c. */
#include "test/there.h"

/* RULES 5.6 */
TEST(group_that_grows_as_its_endpoints_break_is_too_large)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=0", "pools[0].max_room_blocks=6");
    struct there x[2], t[2];
    struct peer_msg m;

    for (uint32_t i = 0; i < 2; i++) {
        x[i] = ask_room(l, 10 + i, 4 + i);
        wants(l, &x[i], 0, 48);
        brain_landed(l, &x[i].open, 0, 48);
    }
    for (uint32_t i = 0; i < 2; i++)
        t[i] = member(l, i + 1, 2);
    for (uint32_t i = 0; i < 2; i++)
        brain_hear(l, 0, length(&t[i], ROWS_UNKNOWN, 64, false));
    for (uint32_t i = 0; i < 2; i++) {
        m = about(&t[i], PEER_BROKEN);
        m.broken.committed = 40;
        brain_hear(l, 0, m); /* 10 blocks of 6 */
    }
    for (uint32_t i = 0; i < 2; i++)
        T_EQ_U64(brain_reason(l, 0, i), ERR_TOO_LARGE);
    for (uint32_t i = 0; i < 2; i++)
        T_OK(brain_say(l, 0, release(4 + i, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 5.5, 5.11 */
TEST_LANGD(encoders_hear_the_age_of_a_room_or_of_its_group)
{
    struct local_msg m[] = {request_in(1, 0, 9, 2), request(2, 1, MODE_WHOLE),
        request_in(3, 2, 9, 2)};
    uint64_t turn[3];

    for (uint32_t i = 0; i < 3; i++) {
        T_OK(brain_say(l, 0, m[i]));
        turn[i] = brain_said(l, PEER_INIT, 0)->init.turn;
    }
    T_EQ_U64(turn[2], turn[0]);
    T_TRUE(turn[1] > turn[0]);
}

/* RULES 9.5 */
TEST_LANGD(a_group_that_is_begun_is_completed_in_a_drain)
{
    struct there t = member(l, 1, 2);

    brain_is(l, EV_DRAIN);
    T_ERR(brain_say(l, 0, request(3, 2, MODE_WHOLE)), ERR_DRAINING);
    T_ERR(brain_say(l, 0, request_in(3, 2, 8, 2)), ERR_DRAINING);
    (void)member(l, 2, 2);
    T_EQ_U64(brain_open_rooms(l->is), 2);
    brain_hear(l, 0, length(&t, 8, 8, true));
    brain_is(l, EV_UNDRAIN);
    T_OK(brain_say(l, 0, request(3, 2, MODE_WHOLE)));
}

TEST(a_room_that_grows_as_its_endpoint_breaks_is_too_large)
{
    struct rig *l = langd_up(NULL, "pools[0].max_room_blocks=6");
    struct there a = ask_room(l, 1, 0);
    struct peer_msg m = about(&a, PEER_BROKEN);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 64, false));
    m.broken.committed = 56;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TOO_LARGE);
}

/* Returns a rig in which every second block is free: a room of 8 rows gives
 * back one of its two blocks, which later rooms get. */
static struct rig *scattered(void)
{
    struct rig *l = langd_up("limits.rooms=8192", "pools[0].blocks=4096");
    struct there t;

    for (uint32_t i = 0; i < 4096; i++) {
        if (i % 500 == 0)
            brain_conn(l, 1 + i / 500, "s");
        t = ask(l, 1 + i / 500, request(100 + i, i % 500, MODE_WHOLE));
        wants(l, &t, 8, 8); /* firm */
    }
    for (uint32_t i = 2048; i < 4096; i++)
        T_OK(brain_say(l, 1 + i / 500, release(i % 500, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 2048);
    return l;
}

/* RULES 5.6 */
TEST(group_waits_in_a_pool_too_scattered_for_one_of_it)
{
    struct rig *l = scattered();
    struct there a = member(l, 1, 2), b = member(l, 2, 2);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 320, true));
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 2008 * 8, true));
    T_EQ_U64(brain_free(l), 2008); /* room a has its blocks */
    brain_hear(l, 0, length(&b, 800, 2008 * 8, true));
    T_EQ_U64(brain_free(l), 1908);
}

/* RULES 5.6 */
TEST_WITH(max_rows_do_not_shrink_below_what_is_held, struct rig *l, scattered())
{
    struct there a = member(l, 1, 2), b = member(l, 2, 2);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 320, true));
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 2008 * 8, true));
    /* room b has no blocks */
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 2007 * 8, true));
    T_EQ_U64(brain_state(l, 0, 1), ROOM_WAITING);
    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 8, true));
    T_EQ_U64(brain_reason(l, 0, 0), ERR_MALFORMED);
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 8, true));
    T_EQ_U64(brain_free(l), 2047);
}

/* The last total becomes known while the shards close the attempt, and is more
 * than the member holds. */
/* RULES 5.6 */
TEST(a_member_grows_that_closed_when_the_last_total_came)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct there a = member(l, 1, 2), b = member(l, 2, 2);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 128, false));
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 128, false));
    brain_hear(l, 0, want(&a, 0, 0, 64));
    brain_hear(l, 0, length(&b, 8, 128, true));
    T_EQ_U64(brain_free(l), 7);
    l->noisy = true;
    HEARS(l, 0, about(&a, PEER_BROKEN), length(&a, 96, 128, true));
    T_EQ_U64(brain_free(l), 7);
    while (brain_quiet(l))
        ;
    T_EQ_U64(brain_free(l), 3);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 96);
}

/* A total becomes known while the shards close the attempt. */
TEST(what_a_total_does_not_need_goes_back_after_a_break)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct there a = ask_room(l, 1, 0);

    HEARS(l, 0, length(&a, ROWS_UNKNOWN, 96, false), want(&a, 0, 0, 96));
    T_EQ_U64(brain_free(l), 4);
    l->noisy = true;
    HEARS(l, 0, about(&a, PEER_BROKEN), length(&a, 8, 96, true));
    T_EQ_U64(brain_free(l), 4);
    while (brain_quiet(l))
        ;
    T_EQ_U64(brain_free(l), 15);
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.granted, 8);
}
