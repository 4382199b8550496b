/* encoded_map_test.c - langd daemons that map the encode side's pools: who may,
 * what is copied, and how long rows stay that they may be reading (RULES 3,
 * 6). Blocks are 8 rows, the pool has 16; langd `a` is link 0, its connection
 * is number 1. */
#include "test/unit/map_side.h"

/* words */

static const struct secret secret = {"for any user"};

/* True if sixteen rows, all committed and granted, are copied. */
static bool goes(struct rig *e, uint64_t room, uint32_t cell, uint64_t g)
{
    struct local_msg a = announce(room, cell, 16, 16);
    struct peer_msg m = init(e, room, g, 16);

    a.announce.secret = m.init.secret = secret;
    T_OK(brain_say(e, 0, a));
    (void)brain_events(e, 0, cell);
    SAYS(e, 0, commit(cell, 0, 16), final(cell, 16));
    brain_hear(e, 0, m);
    T_TRUE(brain_cmd(e, SEND_OPEN) != NULL);
    return brain_cmd(e, SEND_OPEN)->copy;
}

static struct rig *mapped(const char *a)
{
    struct rig *e = encoded("timeouts.linger=0ms", a);

    maps(e, 1);
    T_TRUE(goes(e, 1, 0, 70));
    T_EQ_U64(brain_free(e), 14);
    return e;
}

/* who may map */

/* RULES 3.4 */
TEST_ENCODED(each_langd_of_the_host_has_its_token)
{
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));
    uint64_t b = token_of(e, 1, hello("b", L_EPOCH + 1, 0));

    T_TRUE(a != 0 && b != 0 && a != b);
    T_EQ_U64(token_of(e, 0, hello("a", L_EPOCH, 0)), a);
    T_TRUE(token_of(e, 0, hello("a", L_EPOCH + 7, 0)) != a);
}

TEST_ENCODED(another_host_has_none)
{
    struct peer_msg m = hello("a", L_EPOCH, 0);

    m.hello.boot.b[31] = 1;
    T_EQ_U64(token_of(e, 0, m), 0);
    e = encoded("transfer.same_host=off", NULL);
    T_EQ_U64(token_of(e, 0, hello("a", L_EPOCH, 0)), 0);
}

/* RULES 3.4 */
TEST_ENCODED(token_name_and_epoch_must_be_one_daemons)
{
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));
    uint64_t b = token_of(e, 1, hello("b", L_EPOCH + 1, 0));
    const struct {
        const char *name;
        uint64_t epoch, token;
    } bad[] = {{"a", L_EPOCH, a ^ 2}, {"a", L_EPOCH, 0}, {"a", L_EPOCH, b},
        {"b", L_EPOCH + 1, a}, {"a", L_EPOCH + 1, a}, {"c", L_EPOCH, a},
        {"", L_EPOCH, a}};

    for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
        connect_as(e, 1, BRAIN_UID);
        T_ERR(say_map(e, 1, bad[i].name, bad[i].epoch, bad[i].token),
            ERR_NOT_OWNER);
        T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
        T_EQ_U64(pools_given(e, 1), 0);
        brain_end(e, 1);
        T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
        brain_dead(e, 1);
    }
    T_EQ_U64(brain_stat(e, "refused"), ARRAY_LEN(bad));
}

TEST_ENCODED(a_peer_that_is_lost_has_no_token)
{
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));

    link_down(e, 0);
    connect_as(e, 1, BRAIN_UID);
    T_ERR(say_map(e, 1, "a", L_EPOCH, a), ERR_NOT_OWNER);
}

/* It maps the pools again only when it gets another token. */
/* RULES 3.4 */
TEST(one_whose_place_was_anothers_gets_another_token)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "limits.peers=1");
    uint64_t token;

    brain_hello(e, 0, "a", L_EPOCH);
    token = token_of(e, 0, hello("a", L_EPOCH, 0));
    maps(e, 1);
    brain_pass(e, 10000);
    brain_hello(e, 1, "b", L_EPOCH + 1);
    T_EQ_U64(brain_acts(e, ACT_DISCONNECT), 1);
    brain_down(e, 1);
    brain_hello(e, 0, "a", L_EPOCH);
    T_TRUE(token_of(e, 0, hello("a", L_EPOCH, 1)) != token);
}

TEST_ENCODED(an_engine_is_no_daemon_and_the_reverse)
{
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));
    struct local_msg m = {.type = LOCAL_HELLO};

    T_ERR(say_map(e, 0, "a", L_EPOCH, a), ERR_MALFORMED);
    T_EQ_U64(pools_given(e, 0), 0);
    connect_as(e, 1, BRAIN_UID);
    T_OK(say_map(e, 1, "a", L_EPOCH, a));
    T_ERR(brain_say(e, 1, announce(1, 0, 8, 8)), ERR_NOT_READY);
    T_ERR(brain_say(e, 1, release(0)), ERR_NOT_READY);
    T_ERR(say_map(e, 1, "a", L_EPOCH, a), ERR_NOT_READY);
    m.hello.magic = LOCAL_MAGIC;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    T_TRUE(brain_say(e, 1, m) != OK);
}

/* RULES 6.4 */
TEST(pools_are_for_their_users)
{
    static const struct {
        uint32_t uid, pools;
    } who[] = {{BRAIN_UID, 1}, {0, 1}, {1000, 1}, {1001, 0}};
    struct rig *e = encoded("pools[0].uids[0]=1000", "pools[0].uids[1]=7");
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));

    for (uint32_t i = 0; i < ARRAY_LEN(who); i++) {
        connect_as(e, 1, who[i].uid);
        T_OK(say_map(e, 1, "a", L_EPOCH, a));
        T_EQ_U64(pools_given(e, 1), who[i].pools);
        brain_gone(e, 1);
    }
    /* it counts as mapping only pools that it was given */
    connect_as(e, 1, 1001);
    T_OK(say_map(e, 1, "a", L_EPOCH, a));
    brain_hear(e, 0, hello("a", L_EPOCH, 1));
    T_FALSE(goes(e, 1, 0, 70));
}

/* A langd that maps a pool can read other users' rows; a pool for all names no
 * users. */
/* RULES 6.4 */
TEST_ENCODED(a_pool_for_all_is_mapped_by_its_own_user_and_root)
{
    static const struct {
        uint32_t uid, pools;
    } who[] = {{BRAIN_UID, 1}, {0, 1}, {1000, 0}};
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));

    for (uint32_t i = 0; i < ARRAY_LEN(who); i++) {
        connect_as(e, 1, who[i].uid);
        T_OK(say_map(e, 1, "a", L_EPOCH, a));
        T_EQ_U64(pools_given(e, 1), who[i].pools);
        brain_gone(e, 1);
    }
}

TEST_ENCODED(a_pool_without_a_layout_comes_later, "pools[0].layout=engine")
{
    uint64_t a = token_of(e, 0, hello("a", L_EPOCH, 0));
    struct local_msg m = {.type = LOCAL_POOL, .seq = 3};
    struct event ev = {.type = EV_LOCAL, .conn = 0, .local = &m};

    connect_as(e, 1, BRAIN_UID);
    T_OK(say_map(e, 1, "a", L_EPOCH, a));
    T_EQ_U64(pools_given(e, 1), 0);
    m.pool.layout = span_str("x:u8:4096");
    rig_step(e, &ev);
    T_EQ_U64(pools_given(e, 0), 1);
    T_EQ_U64(pools_given(e, 1), 1);
}

/* what is copied */

/* RULES 3.4 */
TEST_ENCODED(rows_are_copied_when_langd_has_mapped)
{
    uint64_t a;

    /* without having asked for a pool */
    brain_hear(e, 0, hello("a", L_EPOCH, 1));
    T_FALSE(goes(e, 1, 0, 70));
    a = token_of(e, 0, hello("a", L_EPOCH, 0));
    connect_as(e, 1, BRAIN_UID);
    T_OK(say_map(e, 1, "a", L_EPOCH, a));
    /* it was given the pool, and has not said that it maps it */
    T_FALSE(goes(e, 2, 1, 71));
    brain_hear(e, 0, hello("a", L_EPOCH, 2));
    T_FALSE(goes(e, 3, 2, 72)); /* it says a pool that does not exist */
    brain_hear(e, 0, hello("a", L_EPOCH, 3));
    T_TRUE(goes(e, 4, 3, 73));
    brain_hear(e, 0, hello("a", L_EPOCH, 0));
    T_FALSE(goes(e, 5, 4, 74)); /* it maps no pool any more */
}

TEST_WITH(the_connection_s_end_breaks_the_attempt, struct rig *e, mapped(NULL))
{
    brain_end(e, 1);
    T_EQ_U64(brain_said(e, PEER_BROKEN, 0)->broken.attempt, 0);
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 0); /* its process may still read */
    brain_hear(e, 0, resume(1, 70, 1, 16, 0));
    T_TRUE(brain_cmd(e, SEND_REWIND) != NULL);
    T_FALSE(brain_cmd(e, SEND_REWIND)->copy);
    ack(e, 0, 1, 70);
    /* its last room has ended: it reads no more */
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
    T_EQ_U64(brain_free(e), 16);
}

TEST_WITH(another_connection_takes_its_place, struct rig *e, mapped(NULL))
{
    maps(e, 2);
    brain_hear(e, 0, resume(1, 70, 1, 16, 0));
    T_TRUE(brain_cmd(e, SEND_REWIND)->copy);
    T_TRUE(goes(e, 2, 1, 71));
    brain_end(e, 1); /* the older connection, which does not count any more */
    T_EQ_U64(brain_said_count(e, PEER_BROKEN), 0);
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 0);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 1);
    T_TRUE(goes(e, 3, 2, 72));
}

/* until when rows stay */

/* RULES 6.2 */
TEST_WITH(an_answer_frees_them, struct rig *e, mapped(NULL))
{
    brain_hear(e, 0, state(1, 70, PEER_LENGTH, ROOM_TRANSFERRING));
    T_EQ_U64(brain_free(e), 14);
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_free(e), 16);
    T_TRUE(goes(e, 2, 1, 71));
    brain_hear(e, 0, about(2, 71, PEER_ABORT));
    T_EQ_U64(brain_said_count(e, PEER_DRAINED), 1);
    T_EQ_U64(brain_free(e), 16);
    T_TRUE(goes(e, 3, 2, 72));
    brain_hear(e, 0, state(3, 72, PEER_WANT, ROOM_FAILED));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 6.2 */
TEST_WITH(silence_does_not, struct rig *e, mapped(NULL))
{
    link_down(e, 0);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_OK(brain_say(e, 0, release(0)));
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_free(e), 14);
    T_EQ_U64(brain_shown(e, "pools", "quarantined", 0), 2);
    /* langd is back: it is asked at once */
    brain_hear(e, 0, hello("a", L_EPOCH, 1));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_PEER_LOST);
    brain_pass(e, 3000);
    T_TRUE(brain_said_count(e, PEER_FAILED) >= 2);
    T_EQ_U64(brain_free(e), 14);
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_SUCCESS));
    T_EQ_U64(brain_free(e), 16);
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
}

/* RULES 6.2 */
TEST_WITH(its_death_does, struct rig *e, mapped(NULL))
{
    link_down(e, 0);
    T_OK(brain_say(e, 0, release(0)));
    brain_end(e, 1);
    T_EQ_U64(brain_acts(e, ACT_CONN_CLOSE), 0);
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_free(e), 14);
    brain_dead(e, 1);
    T_EQ_U64(brain_free(e), 16);
}

TEST_WITH(another_run_s_word_does_not_count, struct rig *e, mapped(NULL))
{
    brain_hear(e, 0, hello("a", L_EPOCH + 9, 0)); /* restarted */
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_OK(brain_say(e, 0, release(0)));
    brain_pass(e, 3000);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0); /* a new run cannot know */
    struct peer_msg m = state(1, 70, PEER_FAILED, ROOM_FAILED);
    m.from_epoch = L_EPOCH + 9;
    brain_hear(e, 0, m);
    m = about(1, 70, PEER_ABORT);
    m.from_epoch = L_EPOCH + 9;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_free(e), 14);
    /* the old connection does not belong to the new run */
    m = hello("a", L_EPOCH + 9, 1);
    brain_hear(e, 0, m);
    T_OK(brain_say(e, 0, announce(2, 1, 8, 8)));
    (void)brain_events(e, 0, 1);
    T_OK(brain_say(e, 0, commit(1, 0, 8)));
    m = init(e, 2, 71, 8);
    m.from_epoch = L_EPOCH + 9;
    brain_hear(e, 0, m);
    T_FALSE(brain_cmd(e, SEND_OPEN)->copy);
    brain_gone(e, 1);
    T_EQ_U64(brain_free(e), 15);
}

TEST(a_newer_generation_frees_nothing_of_the_older)
{
    struct rig *e = mapped(NULL);
    struct peer_msg m = init(e, 1, 71, 16);

    m.init.secret = secret;
    brain_hear(e, 0, m);
    T_TRUE(brain_cmd(e, SEND_OPEN)->copy);
    ack(e, 0, 1, 71);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_free(e), 14);
    brain_pass(e, 3000);
    T_EQ_U64(brain_said(e, PEER_FAILED, -1)->generation, 70);
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_free(e), 16);
}

TEST_WITH(sends_are_waited_for_too, struct rig *e, mapped(NULL))
{
    e->noisy = true;
    brain_hear(e, 0, about(1, 70, PEER_ABORT));
    T_EQ_U64(brain_free(e), 14);
    T_EQ_U64(brain_said_count(e, PEER_DRAINED), 0);
    T_TRUE(brain_quiet(e));
    T_EQ_U64(brain_free(e), 16);
}

TEST_ENCODED(what_is_not_copied_waits_for_nobody, "timeouts.linger=0ms")
{
    T_FALSE(goes(e, 1, 0, 70));
    link_down(e, 0);
    T_OK(brain_say(e, 0, release(0)));
    T_EQ_U64(brain_free(e), 16);
}

TEST_ENCODED(kept_rows_that_are_read_are_not_counted_on, "timeouts.keep=1h")
{
    struct local_msg m;

    maps(e, 1);
    for (uint32_t i = 0; i < 2; i++) { /* eight blocks each */
        m = announce(1 + i, i, 64, 64);
        m.announce.flags = FLAG_KEEP;
        T_OK(brain_say(e, 0, m));
        (void)brain_events(e, 0, i);
        SAYS(e, 0, commit(i, 0, 64), final(i, 64));
        brain_hear(e, i, init(e, 1 + i, 70 + i, 64));
    }
    link_down(e, 0); /* langd may still read room 1 */
    ack(e, 1, 2, 71);
    SAYS(e, 0, release(0), release(1));
    T_EQ_U64(brain_free(e), 0);
    T_OK(brain_say(e, 0, announce(3, 2, 64, 64)));
    T_TRUE(brain_events(e, 0, 2) & EVENT_GRANTED);
}

/* how much one langd may hold: twelve of sixteen blocks; all langds:
 * fourteen */

static struct rig *silent_one(void)
{
    struct rig *e = mapped(NULL); /* room 1 has two blocks */

    for (uint32_t i = 1; i < 6; i++)
        T_TRUE(goes(e, 1 + i, i, 70 + i));
    T_EQ_U64(brain_free(e), 4);
    return e;
}

/* RULES 10.5 */
TEST(a_langd_that_says_nothing_holds_its_share)
{
    struct rig *e = silent_one();

    T_FALSE(goes(e, 7, 6, 76));
    T_EQ_U64(brain_stat(e, "copies_refused"), 1);
    ack(e, 0, 7, 76); /* rows that are sent it does not hold */
    T_EQ_U64(brain_free(e), 4);
    for (uint32_t i = 0; i < 6; i++)
        T_OK(brain_say(e, 0, release(i)));
    link_down(e, 0);
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_free(e), 4); /* no timer frees them */
    brain_hear(e, 0, hello("a", L_EPOCH, 1));
    T_FALSE(goes(e, 8, 7, 77)); /* its further rooms are sent */
    ack(e, 0, 8, 77);
    brain_hear(e, 0, state(1, 70, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_free(e), 6);
    T_TRUE(goes(e, 9, 8, 78));
    brain_gone(e, 1);
    brain_hear(e, 0, about(9, 78, PEER_ACK));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 10.5 */
TEST_WITH(several_leave_a_part_to_others, struct rig *e, silent_one())
{
    uint64_t b = token_of(e, 1, hello("b", L_EPOCH + 1, 0));
    struct local_msg a = announce(7, 6, 16, 16);

    connect_as(e, 2, BRAIN_UID);
    T_OK(say_map(e, 2, "b", L_EPOCH + 1, b));
    brain_hear(e, 1, hello("b", L_EPOCH + 1, 1));
    for (uint32_t i = 0; i < 2; i++) {
        a = announce(7 + i, 6 + i, 16, 16);
        T_OK(brain_say(e, 0, a));
        (void)brain_events(e, 0, 6 + i);
        T_OK(brain_say(e, 0, commit(6 + i, 0, 16)));
        brain_hear(e, 1, init(e, 7 + i, 76 + i, 16));
        T_EQ_U64(brain_cmd(e, SEND_OPEN)->copy, i == 0);
    }
}

/* RULES 10.5 */
TEST_ENCODED(a_room_alone_may_be_as_large_as_the_pool)
{
    maps(e, 1);
    T_OK(brain_say(e, 0, announce(1, 0, 128, 128)));
    (void)brain_events(e, 0, 0);
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    brain_hear(e, 0, init(e, 1, 70, 128));
    T_TRUE(brain_cmd(e, SEND_OPEN)->copy);
}

/* RULES 10.5 */
TEST_ENCODED(rows_that_several_copy_are_counted_once)
{
    uint64_t b = token_of(e, 1, hello("b", L_EPOCH + 1, 0));
    struct local_msg a = announce(1, 0, 128, 128);

    maps(e, 1);
    connect_as(e, 2, BRAIN_UID);
    T_OK(say_map(e, 2, "b", L_EPOCH + 1, b));
    brain_hear(e, 1, hello("b", L_EPOCH + 1, 1));
    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    (void)brain_events(e, 0, 0);
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    for (uint32_t i = 0; i < 2; i++) {
        brain_hear(e, i, init(e, 1, 70 + i, 128));
        T_TRUE(brain_cmd(e, SEND_OPEN)->copy);
    }
    ack(e, 0, 1, 70);
    ack(e, 1, 1, 71);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING + 1);
}
