/* encoded_user_test.c - rooms of pools that are for some users: who gets their
 * rows, on this host and on others, and who may decline them (RULES 10.2,
 * 10.3). The pool is for user 1000 and group 50; langd `a` is link 0 and of
 * this host, `b` is link 1 and of another. */
#include "test/unit/map_side.h"

static const struct secret key = {"sixteen letters"};
static const struct secret other = {"sixteen lettert"};

/* Has langd `a` map as this user. */
static void shows_user(struct rig *e, uint32_t uid)
{
    uint64_t token = token_of(e, 0, hello("a", L_EPOCH, 0));

    connect_as(e, 1, uid);
    T_OK(say_map(e, 1, "a", L_EPOCH, token));
}

/* Returns a rig with both langds; `a` has not shown its user. */
static struct rig *fenced(void)
{
    struct rig *e =
        BRAIN(ROLE_ENCODED, "pools[0].uids[0]=1000", "pools[0].gids[0]=50");
    struct peer_msg b = hello("b", L_EPOCH + 1, 0);

    brain_user(e, 0, 1000, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    brain_hello(e, 1, "b", L_EPOCH + 1);
    (void)token_of(e, 0, hello("a", L_EPOCH, 0));
    b.hello.boot.b[0] = 77;
    brain_hear(e, 1, b);
    return e;
}

static struct rig *here(void)
{
    struct rig *e = fenced();

    shows_user(e, BRAIN_UID);
    return e;
}

static struct peer_msg init_of(struct rig *e, uint64_t generation, uint32_t uid)
{
    struct peer_msg m = init(e, 1, generation, 16);

    m.init.who = uid + 1;
    return m;
}

static struct local_msg secret_announce(void)
{
    struct local_msg m = announce(1, 0, 16, 16);

    m.announce.secret = key;
    return m;
}

static void is_refused(struct rig *e, uint32_t link, struct peer_msg m)
{
    brain_hear(e, link, m);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_NOT_OWNER);
    T_TRUE(brain_cmd(e, SEND_OPEN) == NULL);
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 0);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
}

static void is_served(struct rig *e, uint32_t link, struct peer_msg m)
{
    brain_hear(e, link, m);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_WAITING);
}

/* RULES 10.2 */
TEST_WITH(rows_are_for_the_users_that_the_pool_names, struct rig *e, here())
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    is_refused(e, 0, init_of(e, 70, 1001));
    /* root's engine may not map another user's pool */
    is_refused(e, 0, init_of(e, 71, 0));
    is_refused(e, 0, init(e, 1, 72, 16)); /* this INIT names no user */
    T_EQ_U64(brain_stat(e, "rights_refused"), 3);
    is_served(e, 0, init_of(e, 73, 1000));
    /* the only destination has the room */
    brain_hear(e, 0, init_of(e, 74, 1001));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_NOT_OWNER);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 74);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 73);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
}

/* RULES 10.2 */
TEST_WITH(and_for_its_groups, struct rig *e, here())
{
    static const uint8_t groups[] = {49, 0, 0, 0, 50, 0, 0, 0};
    struct peer_msg m = init_of(e, 70, 1001);

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    m.init.gids = span_of(groups, 4);
    is_refused(e, 0, m);
    m = init_of(e, 71, 1001);
    m.init.gids = span_of(groups, 8);
    is_served(e, 0, m);
}

/* RULES 10.2 */
TEST_WITH(a_user_needs_the_secret_as_well, struct rig *e, here())
{
    struct peer_msg m = init_of(e, 71, 1001);

    T_OK(brain_say(e, 0, secret_announce()));
    m.init.secret = key;
    is_refused(e, 0, m);
    brain_hear(e, 0, init_of(e, 72, 1000));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    m = init_of(e, 73, 1000);
    m.init.secret = key;
    is_served(e, 0, m);
}

/* RULES 10.2 */
TEST_WITH(from_another_host_the_secret_decides, struct rig *e, here())
{
    struct peer_msg m = init_of(e, 70, 1000);

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    is_refused(e, 1, m);
    SAYS(e, 0, release(0), secret_announce());
    m.init.secret = key;
    m.generation = 71;
    is_served(e, 1, m);
}

/* RULES 10.2 */
TEST(a_langd_is_believed_that_could_take_the_rows_itself)
{
    struct rig *e = fenced();

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    shows_user(e, 4002);
    is_refused(e, 0, init_of(e, 70, 1000));
    brain_gone(e, 1);
    shows_user(e, 1000);
    is_served(e, 0, init_of(e, 71, 1000));
}

/* RULES 10.2 */
TEST_WITH(one_that_has_just_come_is_waited_for, struct rig *e, fenced())
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init_of(e, 70, 1000));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    shows_user(e, BRAIN_UID);
    is_served(e, 0, init_of(e, 70, 1000));
}

/* RULES 10.2 */
TEST(where_that_decides)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "pools[1].name=some",
        "pools[1].blocks=4", "pools[1].block_rows=8",
        "pools[1].layout=x:u8:4096", "pools[1].uids[0]=1000");

    brain_user(e, 0, 1000, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    is_served(e, 0, init(e, 1, 70, 16));
    /* the layout of its pool is not known yet */
    brain_hear(e, 0, init(e, 2, 71, 16));
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
}

/* RULES 10.2 */
TEST_WITH(but_not_for_long, struct rig *e, fenced())
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_pass(e, 5100);
    is_refused(e, 0, init_of(e, 70, 1000));
}

/* Its user stays unknown, as that of a langd on another host. */
/* RULES 10.2 */
TEST(one_that_says_it_will_map_nothing_is_not_waited_for)
{
    struct rig *e = fenced();
    struct peer_msg a = hello("a", L_EPOCH, MAPS_NONE);

    brain_hear(e, 0, a);
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    is_refused(e, 0, init_of(e, 70, 1000));
}

/* A stranger asks before the announce, with other numbers. */
/* RULES 10.2 */
TEST_WITH(a_stranger_that_asks_first_binds_nothing, struct rig *e, here())
{
    struct peer_msg m = init_of(e, 70, 1001);
    struct local_msg a = announce(1, 0, 16, 16);

    m.init.required_dst = 3;
    brain_hear(e, 0, m);
    a.announce.required_dst = 1;
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_NOT_OWNER);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    is_served(e, 0, init_of(e, 71, 1000));
}

/* declines */

static struct peer_msg decline_of(uint32_t uid)
{
    struct peer_msg m = about(1, 0, PEER_DECLINE);

    m.decline.who = uid + 1;
    return m;
}

/* RULES 10.3 */
TEST_WITH(to_decline_takes_the_right_to_ask, struct rig *e, here())
{
    static const uint8_t group[] = {50, 0, 0, 0};
    struct peer_msg m = decline_of(1001);

    /* of a user without the right: before the announce, and after it */
    brain_hear(e, 0, m);
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, m);
    /* another host's user ids mean nothing here */
    brain_hear(e, 1, decline_of(1000));
    brain_hear(e, 1, about(1, 90, PEER_ABORT));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
    m.decline.gids = span_of(group, sizeof(group));
    brain_hear(e, 0, m);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

static struct local_msg withdraw(const struct secret *secret)
{
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = 1;
    if (secret)
        m.decline.secret = *secret;
    return m;
}

/* RULES 10.3 */
TEST_WITH(who_has_the_secret_withdraws_the_room, struct rig *e, here())
{
    brain_user(e, 2, 4002, "router");
    T_OK(brain_say(e, 0, secret_announce()));
    T_ERR(brain_say(e, 2, withdraw(NULL)), ERR_NOT_OWNER);
    /* names another secret, and so a room that may come */
    T_OK(brain_say(e, 2, withdraw(&other)));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
    T_OK(brain_say(e, 2, withdraw(&key)));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
    T_OK(brain_say(e, 0, release(0)));
    T_EQ_U64(brain_free(e), 16);
}

/* RULES 10.3 */
TEST_WITH(also_before_its_announce, struct rig *e, here())
{
    struct local_msg a = secret_announce();

    brain_user(e, 2, 4002, "router");
    T_OK(brain_say(e, 2, withdraw(&key)));
    a.announce.required_dst = 2;
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* RULES 10.3 */
TEST(an_open_room_that_is_withdrawn_serves_those_that_asked)
{
    struct rig *e = here();
    struct local_msg a = secret_announce();
    struct peer_msg m = init_of(e, 70, 1000);

    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    m.init.secret = key;
    is_served(e, 0, m);
    T_OK(brain_say(e, 0, withdraw(&key)));
    m.generation = 71;
    brain_hear(e, 1, m);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
}

/* Adds pools whose layouts fill a HELLO. */
static void many_pools(char text[64][1200], const char **settings)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < CONF_POOLS_MAX; i++) {
        int at = snprintf(text[n], 64, "pools[%u].layout=", i);

        for (uint32_t k = 0; k < 24; k++)
            at += snprintf(text[n] + at, 64,
                "%sa_field_with_a_long_name_%02u:u8:64", k ? "," : "", k);
        snprintf(text[n + 1], 64, "pools[%u].name=p%u", i, i);
        snprintf(text[n + 2], 64, "pools[%u].blocks=4", i);
        settings[n] = text[n + 1];
        settings[n + 1] = text[n + 2];
        settings[n + 2] = text[n];
        n += 3;
    }
    settings[n] = "limits.peers=64";
    settings[n + 1] = NULL;
}

/* RULES 9.7 */
TEST(a_drain_is_said_to_all)
{
    static char text[64][1200];
    const char *settings[64];
    struct rig *e;
    uint32_t said;

    many_pools(text, settings);
    e = brain_make(ROLE_ENCODED, settings);
    for (uint32_t i = 0; i < 64; i++) {
        char name[8];

        snprintf(name, sizeof(name), "l%u", i);
        brain_hello(e, i, name, L_EPOCH + i);
        T_EQ_U64(brain_said(e, PEER_HELLO, -1)->hello.draining, 0);
    }
    rig_step(e, &(struct event){.type = EV_DRAIN});
    said = brain_said_count(e, PEER_HELLO);
    for (uint32_t i = 0; said < 64 && i < 8; i++) {
        brain_pass(e, 0);
        said += brain_said_count(e, PEER_HELLO);
    }
    T_EQ_U64(said, 64);
    T_EQ_U64(brain_said(e, PEER_HELLO, -1)->hello.draining, 1);
}

/* RULES 7.3 */
TEST_ENCODED(a_later_session_is_not_told_of_rooms_of_an_earlier_one)
{
    SAYS(e, 0, announce(1, 0, 8, 8), release(0));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_FAILED);
    T_OK(brain_say(e, 0, attach(1, 1, RIGHT_WATCH)));
    T_TRUE(brain_events(e, 0, 1) & EVENT_FAILED);
    brain_gone(e, 0);
    brain_user(e, 1, 8, "other");
    T_OK(brain_say(e, 1, attach(1, 0, RIGHT_WATCH)));
    T_EQ_U64(brain_events(e, 1, 0), 0);
}
