/* slow_test.c - the slowest rooms and the last that failed: which are kept, in
 * what order, and which phase took the longest. */
#include "core/slow.h"
#include "test/here.h"

static struct ended ended_of(uint64_t room, uint8_t state, uint64_t ms)
{
    return (struct ended){.room = room,
        .state = state,
        .of.opened_ns = NS_PER_S,
        .of.done_ns = NS_PER_S + ms * NS_PER_MS};
}

TEST(the_slowest_are_kept_in_order)
{
    static struct slow s;
    struct ended e;

    /* 7 and 40 share no factor: so all numbers from 0 to 39 come, mixed. */
    for (uint32_t i = 0; i < 40; i++) {
        e = ended_of(i, ROOM_SUCCESS, i * 7 % 40);
        slow_take(&s, &e);
    }
    for (uint32_t i = 0; i < SLOW_MAX; i++)
        T_EQ_U64(slow_row(&s, i)->of.done_ns - NS_PER_S, (39 - i) * NS_PER_MS);
    T_TRUE(!slow_row(&s, SLOW_MAX));
}

TEST(the_last_that_failed_are_kept_newest_first)
{
    static struct slow s;
    struct ended e = ended_of(1, ROOM_SUCCESS, 5);

    slow_take(&s, &e);
    for (uint32_t i = 0; i < SLOW_MAX + 3; i++) {
        e = ended_of(100 + i, ROOM_FAILED, 1);
        slow_take(&s, &e);
    }
    T_EQ_U64(slow_row(&s, 0)->room, 1);
    for (uint32_t i = 0; i < SLOW_MAX; i++)
        T_EQ_U64(slow_row(&s, 1 + i)->room, 100 + SLOW_MAX + 2 - i);
    T_TRUE(!slow_row(&s, 1 + SLOW_MAX));
}

TEST(the_longest_part_is_named)
{
    struct ended e = ended_of(1, ROOM_SUCCESS, 10);
    uint64_t us;

    e.of.length_ns = e.of.opened_ns;
    e.of.granted_ns = e.of.opened_ns + 1 * NS_PER_MS;
    e.of.committed_ns = e.of.opened_ns + 8 * NS_PER_MS;
    e.of.init_ns =
        e.of.opened_ns + 3 * NS_PER_MS; /* phases are ordered by their times */
    e.of.first_ns = e.of.opened_ns + 9 * NS_PER_MS;
    T_EQ_STR(
        slow_longest(ROLE_ENCODED, &e, &us), "until all rows were written");
    T_EQ_U64(us, 5000);
    T_EQ_STR(slow_longest(ROLE_LANGD, &e, &us), "until the first row landed");
    T_EQ_U64(us, 6000);
    e = ended_of(1, ROOM_FAILED, 10);
    e.of.init_ns = e.of.opened_ns + 2 * NS_PER_MS;
    T_EQ_STR(slow_longest(ROLE_LANGD, &e, &us), "until it failed");
    T_EQ_U64(us, 8000);
}

/* As in `rooms`, a reader sees the ids of its own rooms only. */
TEST(a_brain_shows_them)
{
    struct rig *e = BRAIN(ROLE_ENCODED, NULL);

    brain_conn(e, 0, "s");
    for (uint32_t i = 0; i < 3; i++) {
        T_OK(brain_say(e, 0, announce(i + 1, i, 8, 8)));
        brain_pass(e, 20);
        T_OK(brain_say(e, 0, release(i)));
    }
    T_EQ_U64(brain_shown(e, "slow", "room", 0), 3);
    T_EQ_U64(brain_shown(e, "slow", "room", 2), 1);
    T_EQ_STR(brain_text(e, "slow", "reason", 0), "aborted");
    T_EQ_STR(brain_text(e, "slow", "longest", 0), "until it failed");
    T_EQ_U64(brain_shown(e, "slow", "longest_us", 0), 20000);
    T_EQ_U64(brain_shown(e, "slow", "done_us", 0), 20000);
}
