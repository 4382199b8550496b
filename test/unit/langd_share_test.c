/* langd_share_test.c - one user fills its share of langd's tables, and another
 * goes on: connection 0 is user 7's, connection 1 user 8's. */
#include "test/there.h"

static struct rig *two_users(const char *limit)
{
    struct rig *l = langd_up(limit, NULL);

    brain_user(l, 1, 8, "other");
    return l;
}

/* Says make(0), make(1) and so on until one is refused; returns how many were
 * not. */
static uint32_t take(struct rig *l, uint32_t conn,
    struct local_msg (*make)(uint32_t), enum err refusal, const char *key)
{
    uint32_t n = 0;
    enum err e;
    char text[256];

    while ((e = brain_say(l, conn, make(n))) == OK)
        n++;
    T_ERR(e, refusal);
    span_copy_str(brain_answer(l)->text, text, sizeof(text));
    T_TRUE(strstr(text, key) && strstr(text, "25% more"));
    return n;
}

static struct local_msg a_room(uint32_t i)
{
    struct local_msg m = request(i + 1, i, MODE_WHOLE);

    m.request.encoder = span_str("null");
    return m;
}

static struct local_msg another_room(uint32_t i)
{
    struct local_msg m = a_room(i);

    m.request.room += 100;
    return m;
}

static struct local_msg a_view(uint32_t i)
{
    return attach(i + 1, i, RIGHT_READ);
}

static char names[64][8];

static struct local_msg a_space(uint32_t i)
{
    struct local_msg m = {.type = LOCAL_SPACE};

    snprintf(names[i], sizeof(names[i]), "s%u", i);
    m.space.n_seq_max = 1;
    m.space.name = span_str(names[i]);
    return m;
}

static uint32_t space;

static struct local_msg a_ticket(uint32_t i)
{
    struct local_msg m = {.type = LOCAL_TICKET};

    snprintf(names[i], sizeof(names[i]), "r%u", i);
    m.ticket.space = space;
    m.ticket.cell = NONE;
    m.ticket.request = span_str(names[i]);
    return m;
}

/* RULES 7.6 */
TEST(rooms_are_left_for_others)
{
    struct rig *l = two_users("limits.rooms=16");

    T_EQ_U64(take(l, 0, a_room, ERR_BUSY, "limits.rooms"), 16);
    T_EQ_U64(take(l, 1, another_room, ERR_BUSY, "limits.rooms"), 2);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    /* 17 of 16 and the reserve are in use */
    T_ERR(brain_say(l, 0, a_room(0)), ERR_BUSY);
    brain_gone(l, 0);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 2);
}

/* A group without members, of which more may come, keeps its place beside
 * `idle` such groups of another user; its own user has `live` groups with
 * members. */
static void outlives(struct rig *l, uint32_t live, uint32_t idle)
{
    struct local_msg m = request_in(1, 0, 9, 2);
    struct there t;

    brain_user(l, 1, 8, "other");
    m.request.encoder = span_str("null");
    SAYS(l, 0, m, release(0, ROWS_UNKNOWN));
    for (uint32_t i = 0; i < live; i++)
        T_OK(brain_say(l, 0, request_in(10 + i, 2 + i, 20 + i, 2)));
    for (uint32_t i = 0; i < idle; i++) {
        m.request.room = m.request.group = 100 + i;
        SAYS(l, 1, m, release(0, ROWS_UNKNOWN));
    }
    t = member(l, 2, 2);
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_EQ_U64(brain_free(l), 15);
}

/* RULES 7.6 */
TEST_WITH(a_group_outlives_the_many_of_another_user, struct rig *l,
    langd_up("limits.rooms=8", DEFAULT_BLOCKS(0)))
{
    outlives(l, 0, 24);
}

/* Of two users the one with more groups without members loses one, whoever has
 * more groups that have some. */
/* RULES 7.6 */
TEST_WITH(a_group_outlives_the_idle_ones_of_a_user_with_fewer, struct rig *l,
    langd_up("limits.rooms=8", DEFAULT_BLOCKS(0)))
{
    outlives(l, 5, 5);
}

/* A user that comes beyond limits.connections has groups as any other. */
/* RULES 7.6 */
TEST_WITH(groups_are_left_for_others, struct rig *l,
    two_users("limits.connections=1"))
{
    struct local_msg m = request_in(1, 0, 9, 2);

    m.request.encoder = span_str("null");
    for (uint32_t i = 0; i < 2; i++) {
        T_OK(brain_say(l, 1 - i, m));
        brain_end(l, 1 - i);
        brain_dead(l, 1 - i);
    }
    brain_conn(l, 0, "s");
    T_OK(brain_say(l, 0, m));
}

TEST_LANGD(one_user_alone_has_all_rooms_again_and_again, "limits.rooms=16")
{
    for (uint32_t round = 0; round < 10; round++) {
        T_EQ_U64(take(l, 0, a_room, ERR_BUSY, "limits.rooms"), 16);
        for (uint32_t i = 0; i < 16; i++)
            T_OK(brain_say(l, 0, release(i, ROWS_UNKNOWN)));
    }
}

/* RULES 7.6 */
TEST(attachments_are_left_for_others)
{
    struct rig *l = two_users("limits.attachments=64");

    T_EQ_U64(take(l, 0, a_view, ERR_QUOTA, "limits.attachments"), 64);
    T_EQ_U64(take(l, 1, a_view, ERR_QUOTA, "limits.attachments"), 8);
    brain_gone(l, 0);
    T_EQ_U64(brain_shown(l, "status", "attachments", 0), 8);
}

/* RULES 7.6 */
TEST(spaces_are_left_for_others)
{
    struct rig *l = two_users("limits.connections=16");

    T_EQ_U64(take(l, 0, a_space, ERR_QUOTA, "limits.connections"), 16);
    T_EQ_U64(take(l, 1, a_space, ERR_QUOTA, "limits.connections"), 2);
    brain_gone(l, 0);
    brain_user(l, 0, 9, "s");
    T_EQ_U64(take(l, 0, a_space, ERR_QUOTA, "limits.connections"), 14);
}

/* RULES 7.6 */
TEST(sequence_requests_are_left_for_others)
{
    struct rig *l = two_users("limits.rooms=16");

    T_OK(brain_say(l, 0, a_space(60)));
    space = brain_answer(l)->a;
    T_EQ_U64(take(l, 0, a_ticket, ERR_QUOTA, "limits.rooms"), 16);
    T_OK(brain_say(l, 1, a_space(60)));
    space = brain_answer(l)->a;
    T_EQ_U64(take(l, 1, a_ticket, ERR_QUOTA, "limits.rooms"), 2);
}

/* what users see of each other */

struct seen {
    struct rows_out s; /* has to be first */
    uint32_t whole, cut;
};

static void seen_row(struct rows_out *s) {}

static void seen_text(struct rows_out *s, const char *name, const char *value)
{
    if (strcmp(name, "room") != 0)
        return;
    T_EQ_STR(value, "-");
    ((struct seen *)(void *)s)->cut++;
}

static void seen_number(struct rows_out *s, const char *name, uint64_t value)
{
    if (strcmp(name, "room") != 0)
        return;
    T_EQ_U64(value, UINT64_C(0x123456780b0b));
    ((struct seen *)(void *)s)->whole++;
}

/* Counts the rooms in the reports for this user: with their ids, and
 * without. */
static struct seen rooms_for(struct rig *l, uint32_t uid)
{
    struct seen seen = {.s = {seen_row, seen_text, seen_number, NONE}};
    struct show_at rooms = {.places = UINT32_MAX, .uid = uid}, slow = rooms;

    T_TRUE(brain_show(l->is, "rooms", l->now_ns, &rooms, &seen.s));
    T_TRUE(brain_show(l->is, "slow", l->now_ns, &slow, &seen.s));
    return seen;
}

/* RULES 10.4 */
TEST_WITH(room_ids_are_shown_to_their_users, struct rig *l, langd(NULL, NULL))
{
    struct local_msg m = request(UINT64_C(0x123456780b0b), 0, MODE_WHOLE);

    m.request.encoder = span_str("null");
    T_OK(brain_say(l, 0, m)); /* such a room is in the history, too */
    T_EQ_U64(rooms_for(l, 7).whole, 3);
    T_EQ_U64(rooms_for(l, 0).whole, 3);
    T_EQ_U64(rooms_for(l, 8).cut, 3);
    T_EQ_U64(rooms_for(l, 8).whole, 0);
}

static void seen_ticket(struct rows_out *s, const char *name, const char *value)
{
    struct seen *seen = (struct seen *)(void *)s;

    if (strcmp(name, "request") != 0 && strcmp(name, "name") != 0)
        return;
    seen->whole += strcmp(value, "mine") == 0;
    seen->cut += strcmp(value, "-") == 0;
}

static void no_number(struct rows_out *s, const char *name, uint64_t value)
{
    (void)s, (void)name, (void)value;
}

/* RULES 10.4 */
TEST(request_ids_are_shown_to_their_users)
{
    struct rig *l = langd(NULL, NULL);
    struct local_msg m = {.type = LOCAL_SPACE};

    m.space.n_seq_max = 4;
    m.space.name = span_str("mine");
    T_OK(brain_say(l, 0, m));
    m = (struct local_msg){.type = LOCAL_TICKET};
    m.ticket.cell = NONE;
    m.ticket.request = span_str("mine");
    T_OK(brain_say(l, 0, m));
    m.ticket.request = span_str("of a room");
    m.ticket.cell = 1;
    m.ticket.tag = 101;
    T_ERR(brain_say(l, 0, m), ERR_UNKNOWN_ROOM);
    T_OK(brain_say(l, 0, attach(9, 1, RIGHT_READ))); /* waits for room 9 */
    T_ERR(brain_say(l, 0, m), ERR_UNKNOWN_ROOM);
    SAYS(l, 0, request(9, 0, MODE_WHOLE), abort_of(0));
    T_ERR(brain_say(l, 0, m), ERR_UNKNOWN_ROOM);
    for (uint32_t uid = 7; uid < 9; uid++) {
        struct seen seen = {.s = {seen_row, seen_ticket, no_number, NONE}};
        struct show_at at = {.places = UINT32_MAX, .uid = uid};

        T_TRUE(brain_show(l->is, "sequences", l->now_ns, &at, &seen.s));
        T_EQ_U64(seen.whole, uid == 7 ? 2 : 0);
        T_EQ_U64(seen.cut, uid == 7 ? 0 : 2);
    }
}

/* RULES 8.1 */
TEST(no_engine_waits_longer_than_an_hour)
{
    struct rig *l = langd_up("timeouts.bootstrap=2h", "timeouts.total=2h");
    struct local_msg m = request(1, 0, MODE_WHOLE);

    m.request.deadline_ms = UINT32_MAX;
    T_OK(brain_say(l, 0, m));
    m = attach(2, 1, RIGHT_READ);
    m.attach.deadline_ms = UINT32_MAX;
    SAYS(l, 0, m, attach(3, 2, RIGHT_READ));
    brain_pass(l, 3599900);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    brain_pass(l, 200);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TIMEOUT);
    T_EQ_U64(brain_reason(l, 0, 2), OK); /* the configured deadline is longer */
}

/* User 7 asks for the whole pool forty times; user 8's one room waits for the
 * first of these rooms and one more, not for all. */
/* RULES 5.1 */
TEST_LANGD(users_take_turns_for_blocks, "limits.rooms=48", DEFAULT_BLOCKS(0))
{
    struct there t[41];

    brain_user(l, 1, 8, "other");
    for (uint32_t i = 0; i < 41; i++) {
        t[i] = ask(l, i == 40, request(i + 1, i, MODE_WHOLE));
        brain_hear(l, 0, length(&t[i], 128, 128, true));
        told(l, &t[i]);
        if (i == 0)
            brain_landed(l, &t[0].open, 0, 128);
        else
            brain_hear(l, 0, want(&t[i], 0, 0, 128));
    }
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    for (uint32_t i = 1; i < 41; i++) {
        uint32_t next = i < 3 ? i : i == 3 ? 40 : i - 1;

        told(l, &t[next]);
        T_EQ_U64(t[next].open.generation, t[next].generation);
        brain_landed(l, &t[next].open, 0, 128);
        T_OK(brain_say(l, next == 40, release(next, ROWS_UNKNOWN)));
    }
}
