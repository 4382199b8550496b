/* share_test.c - how much of a table one user may have, and what is kept for
 * others. */
#include "core/flow.h"
#include "core/share.h"
#include "test/slab.h"
#include "test/t.h"

static struct share *make(uint32_t limit)
{
    static struct share s;
    struct slab slab = {0};

    share_init(&s, &slab, "limits.rooms", limit, 1, 7);
    slab = slab_fresh(slab.used);
    share_init(&s, &slab, "limits.rooms", limit, 1, 7);
    T_TRUE(!slab.failed);
    return &s;
}

static uint32_t all(struct share *s, uint64_t who)
{
    uint32_t n = 0;

    while (share_take(s, who, 1))
        n++;
    return n;
}

/* RULES 7.6 */
TEST_WITH(one_user_gets_the_limit_and_no_more, struct share *s, make(100))
{
    T_EQ_U64(all(s, 1000), 100);
    T_TRUE(strstr(s->why, "limits.rooms: 1 asked, 100 of 100 in use, 100 of "
                          "them by user 1000 (25% more for others)"));
    share_give(s, 1000, 1);
    T_EQ_U64(all(s, 1000), 1);
}

/* RULES 5.1 */
TEST_WITH(users_take_turns, struct share *s, make(100))
{
    uint64_t a[8], b[2], c;
    uint32_t n = ARRAY_LEN(a);

    for (uint64_t who = 1; who <= 3; who++)
        T_TRUE(share_take(s, who, 1));
    for (uint32_t i = 0; i < n; i++)
        a[i] = share_turn(s, 1, i ? a[0] : TURN_NONE);
    for (uint32_t i = 1; i < n; i++)
        T_TRUE(a[i - 1] < a[i]);
    /* user 2 asks while user 1's first request waits */
    b[0] = share_turn(s, 2, a[0]);
    T_TRUE(a[1] < b[0] && b[0] < a[2]);
    share_served(s, a[0]);
    b[1] = share_turn(s, 2, a[1]);
    T_TRUE(a[2] < b[1] && b[1] < a[3]);
    /* a turn that waits at another langd does not count here */
    share_served(s, b[1]);
    share_served(s, b[0]);
    c = share_turn(s, 3, TURN_NONE);
    T_TRUE(b[1] < c && c < a[4]);
    T_TRUE(share_turn(s, 3, a[n - 1]) > a[n - 1]);
}

/* RULES 5.1 */
TEST(a_users_requests_stay_in_order_for_ever)
{
    struct share *s = make(100);
    uint64_t last;

    T_TRUE(share_take(s, 1, 1));
    s->turns = (1u << 20) - 3;
    last = share_turn(s, 1, TURN_NONE);
    for (int i = 0; i < 6; i++) {
        uint64_t next = share_turn(s, 1, TURN_NONE);

        T_TRUE(next > last);
        last = next;
    }
}

/* RULES 7.6 */
TEST(others_get_half_of_what_is_left)
{
    struct share *s = make(128); /* and 32 in reserve */

    T_EQ_U64(all(s, 1), 128);
    T_EQ_U64(all(s, 2), 16);
    T_EQ_U64(all(s, 3), 8);
    T_EQ_U64(all(s, 4), 4);
    T_EQ_U64(all(s, SHARE_PEER(4)), 2);
    T_EQ_U64(all(s, 1), 0);
    T_EQ_U64(s->used, 158);
    share_give(s, 2, 16); /* what is free below the limit any user may take */
    share_give(s, 1, 100);
    T_EQ_U64(all(s, 2), 86);
}

TEST(a_user_that_has_something_gets_more_beside_a_hog)
{
    struct share *s = make(128);

    T_TRUE(share_take(s, 2, 10));
    T_EQ_U64(all(s, 1), 118);
    T_EQ_U64(all(s, 2), 11); /* it has 21, as many as are left */
}

TEST_WITH(amounts_are_taken_whole, struct share *s, make(100))
{
    T_TRUE(!share_take(s, 1, 101));
    T_TRUE(share_take(s, 1, 100));
    T_TRUE(!share_take(s, 2, 13)); /* only 12 would be left */
    T_TRUE(share_take(s, 2, 12));
    T_TRUE(share_may(s, 3, 6) && !share_may(s, 3, 7));
    T_TRUE(!share_take(s, 3, UINT32_MAX));
}

TEST(records_of_users_are_used_again)
{
    struct share *s = make(4);

    for (uint64_t who = 0; who < 1000; who++) {
        T_EQ_U64(all(s, who), 4);
        share_give(s, who, 4);
    }
    T_EQ_U64(s->used, 0);
    T_EQ_U64(s->of.len, 0);
}
