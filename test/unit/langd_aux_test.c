/* langd_aux_test.c - who gets space for aux: the oldest first, groups as a
 * whole; a room that fails because it got no space says so. As in langd_test.c:
 * blocks of 8 rows, 16 of them; two aux of 32 KiB fit. */
#include "test/there.h"

#define ROOMS 40 /* limits.rooms and the reserve */

static uint8_t big[AUX_MAX];

static struct rig *small_arena(const char *more)
{
    return langd_up("limits.aux_total=64KiB", more);
}

static struct peer_msg big_length(const struct there *t)
{
    struct peer_msg m = length(t, 8, 8, true);

    m.length.aux = span_of(big, sizeof(big));
    return m;
}

static void says(struct rig *l, struct there *t)
{
    brain_hear(l, 0, big_length(t));
    told(l, t);
}

/* True if langd asks for the aux of t now; answers as the encoder does. */
static bool asks(struct rig *l, struct there *t)
{
    const struct peer_msg *m;

    for (int i = 0; (m = brain_said(l, PEER_STATE, i)); i++)
        if (m->generation == t->generation && m->state.answers == PEER_LENGTH &&
            m->state.reason == OK && !(m->state.flags & FLAG_AUX) &&
            m->state.total == 8)
            return true;
    return false;
}

static void done(struct rig *l, const struct there *t, uint32_t cell)
{
    struct data_cmd open = {
        .slot = (uint32_t)(t->generation % ROOMS), .generation = t->generation};

    brain_landed(l, &open, 0, 8);
    T_EQ_U64(brain_state(l, 0, cell), ROOM_SUCCESS);
}

/* RULES 2.2, 5.8 */
TEST_WITH(aux_waits_by_age_and_is_asked_for, struct rig *l, small_arena(NULL))
{
    struct there t[4];
    const struct peer_msg *m;

    ask_rooms(l, t, 4);
    says(l, &t[2]);
    says(l, &t[3]);
    brain_landed(l, &t[2].open, 0, 8);
    brain_landed(l, &t[3].open, 0, 8);
    says(l, &t[1]); /* no space; younger than t[0], but LENGTH came first */
    m = brain_said(l, PEER_STATE, -1);
    T_EQ_U64(m->state.reason, ERR_NO_BLOCKS);
    T_EQ_U64(m->state.flags & FLAG_AUX, 0);
    T_EQ_U64(brain_stat(l, "aux_full"), 1);
    says(l, &t[0]);
    /* no LENGTH before its aux is there */
    T_EQ_U64(brain_events(l, 0, 1) & EVENT_LENGTH, 0);
    T_OK(brain_say(l, 0, release(2, ROWS_UNKNOWN)));
    T_TRUE(asks(l, &t[0]) && !asks(l, &t[1]));
    says(l, &t[1]); /* repeated unasked: it is still not t[1]'s turn */
    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.reason, ERR_NO_BLOCKS);
    says(l, &t[0]);
    T_TRUE(brain_events(l, 0, 0) & EVENT_LENGTH);
    done(l, &t[0], 0);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_TRUE(asks(l, &t[1]));
    says(l, &t[1]);
    done(l, &t[1], 1);
}

/* RULES 2.2 */
TEST(aux_that_was_asked_for_is_asked_for_again)
{
    struct rig *l = small_arena(NULL);
    struct there t[3];

    ask_rooms(l, t, 3);
    for (uint32_t i = 0; i < 2; i++)
        fill(l, &t[i], 8);
    SAYS(l, 0, release(0, ROWS_UNKNOWN), release(1, ROWS_UNKNOWN));
    for (uint32_t i = 0; i < 2; i++)
        brain_hear(l, 0, acked(&t[i]));
    t[0] = ask_room(l, 4, 0);
    t[1] = ask_room(l, 5, 1);
    says(l, &t[0]);
    says(l, &t[1]);
    done(l, &t[0], 0);
    done(l, &t[1], 1);
    says(l, &t[2]);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_TRUE(asks(l, &t[2])); /* its answer is lost */
    brain_pass(l, 250);
    T_TRUE(asks(l, &t[2]));
    says(l, &t[2]);
    brain_pass(l, 5000);
    T_TRUE(!asks(l, &t[2]));
}

/* RULES 5.8 */
TEST(two_groups_do_not_hold_aux_against_each_other)
{
    static const uint32_t order[] = {0, 2, 1, 3};
    struct rig *l = small_arena(NULL);
    struct there t[4];
    uint32_t ready = 0;

    for (uint32_t i = 0; i < 4; i++)
        t[i] = ask(l, 0, request_in(i + 1, i, 1 + i / 2, 2));
    for (uint32_t k = 0; k < 4; k++)
        says(l, &t[order[k]]);
    T_EQ_U64(brain_stat(l, "aux_taken_back"), 1);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 2 * round; i < 2 * round + 2; i++) {
            says(l, &t[i]);
            done(l, &t[i], i);
            ready++;
        }
        T_EQ_U64(brain_shown(l, "pools", "free", 0), 14);
        for (uint32_t i = 2 * round; i < 2 * round + 2; i++)
            T_OK(brain_say(l, 0, release(i, ROWS_UNKNOWN)));
    }
    T_EQ_U64(ready, 4);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 5.8 */
TEST(a_group_with_more_aux_than_there_is_is_too_large)
{
    struct rig *l = small_arena(NULL);
    struct there t[3];

    for (uint32_t i = 0; i < 3; i++)
        t[i] = ask(l, 0, request_in(i + 1, i, 9, 3));
    for (uint32_t i = 0; i < 3; i++)
        if (brain_state(l, 0, 0) != ROOM_FAILED)
            says(l, &t[i]);
    for (uint32_t i = 0; i < 3; i++)
        T_EQ_U64(brain_reason(l, 0, i), ERR_TOO_LARGE);
}

TEST(a_room_without_rows_gives_its_aux_to_one_with_rows)
{
    struct rig *l = small_arena("pools[0].default_blocks=0");
    struct there t[3];

    ask_rooms(l, t, 3);
    says(l, &t[0]);
    says(l, &t[1]);
    brain_hear(l, 0, want(&t[1], 0, 8, 8));
    says(l, &t[2]);
    /* no rows of t[2] are committed either */
    T_EQ_U64(brain_stat(l, "aux_taken_back"), 0);
    brain_hear(l, 0, want(&t[2], 0, 0, 8));
    /* taken from the youngest room without rows */
    T_EQ_U64(brain_stat(l, "aux_taken_back"), 1);
}

static uint8_t aux_flags(struct rig *l, const struct there *t)
{
    brain_hear(l, 0, big_length(t));
    if (!brain_said(l, PEER_STATE, -1)) /* answered late: LENGTH is repeated */
        brain_hear(l, 0, big_length(t));
    return brain_said(l, PEER_STATE, -1)->state.flags & FLAG_AUX;
}

/* RULES 5.8 */
TEST(the_youngest_without_rows_gives_way_first)
{
    struct rig *l = small_arena("pools[0].default_blocks=0");
    struct there t[3];

    ask_rooms(l, t, 3);
    for (uint32_t i = 0; i < 3; i++)
        says(l, &t[i]);
    brain_hear(l, 0, want(&t[2], 0, 0, 8));
    T_EQ_U64(brain_stat(l, "aux_taken_back"), 1);
    T_EQ_U64(aux_flags(l, &t[0]), FLAG_AUX);
    T_EQ_U64(aux_flags(l, &t[1]), 0);
    T_EQ_U64(aux_flags(l, &t[2]), FLAG_AUX);
}

/* RULES 5.8 */
TEST(small_aux_does_not_pass_large_aux_of_its_user)
{
    struct rig *l = small_arena(NULL);
    struct there t[4];
    struct peer_msg m;

    ask_rooms(l, t, 4);
    says(l, &t[0]);
    m = big_length(&t[1]);
    m.length.aux.len = 16384;
    brain_hear(l, 0, m);
    says(l, &t[2]); /* 16 KiB are free, this aux has 32 */
    m = length(&t[3], 8, 8, true);
    brain_hear(l, 0, m); /* an aux of 4 bytes waits, too */
    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.reason, ERR_NO_BLOCKS);
}

/* RULES 5.8 */
TEST(a_room_that_lacks_space_for_aux_gets_no_blocks)
{
    struct rig *l = small_arena("pools[0].default_blocks=0");
    struct there t[3];

    ask_rooms(l, t, 3);
    for (uint32_t i = 0; i < 2; i++) {
        says(l, &t[i]);
        done(l, &t[i], i);
    }
    says(l, &t[2]);
    brain_hear(l, 0, want(&t[2], 0, 0, 8));
    T_EQ_U64(brain_free(l), 14);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    /* the space is reserved for it: it gets blocks and aux */
    T_TRUE(asks(l, &t[2]));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 8);
}

/* One room has the only block, the other the only aux. */
/* RULES 5.8 */
TEST(aux_and_blocks_are_not_held_against_each_other)
{
    struct rig *l = langd_up("limits.aux_total=64KiB", "pools[0].blocks=2");
    struct there old, young, other;

    old = ask_room(l, 1, 0); /* takes both blocks as its default grant */
    other = ask_room(l, 2, 1);
    young = ask_room(l, 3, 2);
    brain_landed(l, &old.open, 0, 8);
    says(l, &other);
    says(l, &young);
    brain_hear(l, 0, want(&young, 0, 0, 8));
    says(l, &old); /* one block goes back, and the aux is full */
    T_TRUE(brain_stat(l, "aux_taken_back") > 0 || asks(l, &old));
    says(l, &old);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 5.8 */
TEST(the_queue_of_one_user_is_not_that_of_another)
{
    struct rig *l = small_arena(NULL);
    struct there t[4], other;
    struct peer_msg m;

    ask_rooms(l, t, 3);
    brain_user(l, 1, 8, "other");
    other = ask(l, 1, request(9, 9, MODE_WHOLE));
    for (uint32_t i = 0; i < 3; i++)
        says(l, &t[i]); /* the third waits */
    m = length(&other, 8, 8, true);
    m.length.aux = span_of(big, 8000);
    brain_hear(l, 0, m);
    brain_pass(l, 50);
    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.flags, FLAG_AUX);
    other = ask(l, 1, request(10, 10, MODE_WHOLE));
    m = length(&other, 8, 8, true);
    m.length.aux = span_of(big, 8000); /* this user's part of the reserve */
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.reason, ERR_NO_BLOCKS);
}

/* RULES 5.8, 8.2 */
TEST(a_room_that_ends_for_lack_of_aux_says_so)
{
    struct rig *l = small_arena("timeouts.total=2s");
    struct there t[3];

    ask_rooms(l, t, 3);
    for (uint32_t i = 0; i < 2; i++) {
        says(l, &t[i]);
        done(l, &t[i], i);
    }
    says(l, &t[2]);
    (void)brain_events(l, 0, 2);
    brain_pass(l, 2100);
    T_EQ_U64(brain_reason(l, 0, 2), ERR_NO_BLOCKS);
    (void)brain_event(l, 0);
    T_TRUE(strstr((const char *)l->event.event.text.p, "limits.aux_total"));
}

/* RULES 8.2 */
TEST(a_room_that_ends_for_lack_of_blocks_says_so)
{
    struct rig *l = langd_up("pools[0].blocks=2", "timeouts.total=2s");
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    fill(l, &a, 16);
    HEARS(l, 0, length(&b, 16, 16, true), want(&b, 0, 0, 16));
    (void)brain_events(l, 0, 0);
    (void)brain_events(l, 0, 1);
    brain_pass(l, 2100);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TIMEOUT);
    (void)brain_event(l, 0);
    T_TRUE(strstr((const char *)l->event.event.text.p, "pool main"));
}
