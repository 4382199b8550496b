/* encoded_rights_test.c - who gets a room's rows: those that know its secret
 * (RULES 10.1). */
#include "test/here.h"

static const struct secret key = {"sixteen letters"};
static const struct secret other = {"sixteen lettert"};

static struct local_msg secret_announce(uint64_t room, uint32_t cell)
{
    struct local_msg m = announce(room, cell, 16, 16);

    m.announce.secret = key;
    m.announce.aux = span_str("aux");
    return m;
}

static struct peer_msg secret_init(struct rig *e, uint64_t room,
    uint64_t generation, const struct secret *secret)
{
    struct peer_msg m = init(e, room, generation, 16);

    if (secret)
        m.init.secret = *secret;
    return m;
}

/* Hears an INIT whose sender must learn nothing: it waits as for a room that is
 * not announced. */
static void learns_nothing(
    struct rig *e, uint32_t link, uint64_t generation, const struct secret *s)
{
    brain_hear(e, link, secret_init(e, 1, generation, s));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    T_TRUE(brain_cmd(e, SEND_OPEN) == NULL);
    brain_pass(e, 50);
    T_EQ_U64(brain_said_count(e, PEER_STATE), 1);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.state, ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_said(e, PEER_STATE, 0)->state.total, ROWS_UNKNOWN);
}

static void served(struct rig *e, uint64_t generation)
{
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, generation);
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->length.aux.len, 3);
    ack_succeeds(e, 0, 1, generation, 0);
}

/* RULES 10.1 */
TEST_ENCODED(who_has_not_the_secret_learns_nothing)
{
    SAYS(e, 0, secret_announce(1, 0), commit(0, 0, 16));
    learns_nothing(e, 1, 70, NULL);
    learns_nothing(e, 1, 71, &other);
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 0);
    brain_hear(e, 0, secret_init(e, 1, 72, &key));
    served(e, 72);
}

/* RULES 10.1 */
TEST_ENCODED(nor_when_it_asks_before_the_announce)
{
    struct peer_msg m = secret_init(e, 1, 70, &other);

    /* an INIT without the secret fixes no number of destinations */
    m.init.required_dst = 3;
    HEARS(e, 1, m, secret_init(e, 1, 71, NULL));
    brain_hear(e, 0, secret_init(e, 1, 72, &key));
    T_OK(brain_say(e, 0, secret_announce(1, 0)));
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    served(e, 72);
}

/* RULES 10.1 */
TEST_ENCODED(a_secret_opens_no_room_that_has_none)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    learns_nothing(e, 1, 70, &key);
}

/* RULES 10.1 */
TEST_ENCODED(the_end_of_a_room_is_told_to_none_without_it)
{
    SAYS(e, 0, secret_announce(1, 0), release(0));
    learns_nothing(e, 1, 70, NULL);
    learns_nothing(e, 1, 71, &other);
    brain_hear(e, 0, secret_init(e, 1, 72, &key));
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_UNKNOWN_ROOM);
}

/* RULES 10.1 */
TEST_ENCODED(an_open_room_has_its_secret_for_all)
{
    struct local_msg a = secret_announce(1, 0);

    a.announce.flags = FLAG_OPEN;
    T_OK(brain_say(e, 0, a));
    learns_nothing(e, 1, 70, NULL);
    brain_hear(e, 0, secret_init(e, 1, 71, &key));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, 71);
    brain_hear(e, 1, secret_init(e, 1, 72, &key));
    T_EQ_U64(brain_said(e, PEER_LENGTH, 0)->generation, 72);
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 2);
}

/* RULES 10.1 */
TEST_ENCODED(a_key_is_no_secret)
{
    struct local_msg a = secret_announce(1, 0);
    struct peer_msg m = secret_init(e, 1, 70, NULL);

    memset(a.announce.key.b, 5, KEY_BYTES);
    T_OK(brain_say(e, 0, a));
    a = announce(2, 1, 16, 16); /* of the same user, without a secret */
    memset(a.announce.key.b, 5, KEY_BYTES);
    T_OK(brain_say(e, 0, a));
    T_TRUE(brain_events(e, 0, 1) & EVENT_HAVE);
    m.init.key = a.announce.key;
    brain_hear(e, 1, m);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
    m.room = 2;
    m.generation = 71;
    brain_hear(e, 1, m);
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
}

/* giving up */

/* RULES 10.3 */
TEST_ENCODED(a_decline_says_the_secret)
{
    struct peer_msg m = about(1, 0, PEER_DECLINE);

    /* without the right secret: before the announce, and after it */
    brain_hear(e, 1, m);
    m.decline.secret = other;
    brain_hear(e, 1, m);
    T_OK(brain_say(e, 0, secret_announce(1, 0)));
    brain_hear(e, 1, m);
    m = about(1, 80, PEER_ABORT);
    brain_hear(e, 1, m);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
    m = about(1, 0, PEER_DECLINE);
    m.decline.secret = key;
    brain_hear(e, 1, m);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* A daemon has a key and knows the id of a room, but not its secret. Each way
 * in which it could cost the room, before the room's langd asks. */
/* RULES 10.6 */
TEST(what_a_stranger_says_of_a_room_costs_it_nothing)
{
    for (uint32_t secrets = 0; secrets < 2; secrets++) {
        const struct secret *said = secrets ? &other : NULL;

        for (uint32_t way = 0; way < 4; way++) {
            struct rig *e = encoded(NULL, NULL);
            struct peer_msg m = secret_init(e, 1, 70, said);

            if (way < 2)
                T_OK(brain_say(e, 0, secret_announce(1, 0)));
            if (way == 0)
                m.init.required_dst = 2;
            if (way < 3)
                brain_hear(e, 1, m);
            if (way == 1)
                ack(e, 1, 1, 70);
            m = about(1, 0, PEER_DECLINE);
            if (said)
                m.decline.secret = *said;
            brain_hear(e, 1, m);
            if (way >= 2)
                T_OK(brain_say(e, 0, secret_announce(1, 0)));
            T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
            T_OK(brain_say(e, 0, commit(0, 0, 16)));
            brain_hear(e, 0, secret_init(e, 1, 72, &key));
            served(e, 72);
        }
    }
}

/* RULES 10.3 */
TEST_ENCODED(so_does_an_abort_whose_init_did_not_come)
{
    struct peer_msg m = about(1, 80, PEER_ABORT);

    m.abort.secret = key;
    brain_hear(e, 1, m);
    T_OK(brain_say(e, 0, secret_announce(1, 0)));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_ABORTED);
}

/* engines of its own host */

/* RULES 10.1 */
TEST_ENCODED(a_room_of_another_secret_is_another_room)
{
    struct local_msg m = secret_announce(1, 1);

    SAYS(e, 0, announce(1, 0, 16, 16), m);
    m.announce.cell = 2;
    m.announce.tag = 102;
    T_ERR(brain_say(e, 0, m), ERR_DUPLICATE_ROOM);
}

/* RULES 10.1 */
TEST_ENCODED(to_attach_names_the_secret)
{
    struct local_msg m = attach(1, 1, RIGHT_WATCH);

    T_OK(brain_say(e, 0, m)); /* for a room without a secret: it waits */
    m = attach(1, 2, RIGHT_WATCH);
    m.attach.secret = key;
    T_OK(brain_say(e, 0, m)); /* it waits for the announce */
    T_OK(brain_say(e, 0, secret_announce(1, 0)));
    T_TRUE(brain_events(e, 0, 2) & EVENT_GRANTED);
    T_EQ_U64(brain_state(e, 0, 1), 0);
    m = attach(1, 3, RIGHT_WATCH);
    m.attach.secret = key;
    T_OK(brain_say(e, 0, m)); /* the room is open */
    T_TRUE(brain_events(e, 0, 3) & EVENT_GRANTED);
    T_OK(brain_say(e, 0, release(0)));
    m = attach(1, 4, RIGHT_WATCH);
    m.attach.secret = key;
    T_OK(brain_say(e, 0, m)); /* the room has ended */
    T_EQ_U64(brain_state(e, 0, 4), ROOM_FAILED);
}

/* a langd that lies */

/* RULES 10.6 */
TEST_ENCODED(a_langd_speaks_of_its_own_generations_alone)
{
    struct peer_msg m = resume(1, 70, 1, 16, 0);

    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 70, 8));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    brain_hear(e, 1, m);
    T_TRUE(
        brain_cmd(e, SEND_LIMIT) == NULL && brain_cmd(e, SEND_REWIND) == NULL);
    HEARS(e, 1, about(1, 70, PEER_ACK), state(1, 70, PEER_FAILED, ROOM_SUCCESS),
        state(1, 70, PEER_WANT, ROOM_FAILED), about(1, 70, PEER_ABORT),
        about(1, 70, PEER_DECLINE));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_TRANSFERRING);
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_EQ_U64(brain_cmd(e, SEND_LIMIT)->a, 16);
    ack_succeeds(e, 0, 1, 70, 0);
}

/* RULES 10.6 */
TEST_ENCODED(lengths_and_grants_that_are_none_cost_their_room)
{
    static const struct {
        uint32_t granted, from, unit, part;
        uint16_t dsts;
    } bad[] = {{ROWS_UNKNOWN, 0, 8, 64, 1}, {8, 16, 8, 64, 1},
        {16, 0, 0, 64, 1}, {16, 0, 8, 0, 1}, {16, 0, 8, 12, 1},
        {16, 0, 8, 64, 0}, {16, 0, UINT32_MAX, UINT32_MAX, 1},
        {ROWS_UNKNOWN - 1, ROWS_UNKNOWN - 1, 8, 64, 65535}};

    SAYS(e, 0, announce(1, 0, 16, 16), announce(2, 1, 16, 16));
    brain_hear(e, 0, init(e, 2, 90, 16));
    T_OK(brain_say(e, 0, commit(1, 0, 16)));
    for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct peer_msg m = init(e, 1, 70 + i, bad[i].granted);

        m.init.from = bad[i].from;
        m.init.unit_rows = bad[i].unit;
        m.init.part_rows = bad[i].part;
        m.init.required_dst = bad[i].dsts;
        brain_hear(e, 1, m);
        T_EQ_U64(brain_said_count(e, PEER_LENGTH), 0);
        T_TRUE(brain_cmd(e, SEND_OPEN) == NULL);
    }
    T_EQ_U64(brain_shown(e, "rooms", "asked", 0), 0);
    ack_succeeds(e, 0, 2, 90, 1);
    brain_hear(e, 0, init(e, 1, 91, 16)); /* room 1 is not the liar's either */
    T_EQ_U64(brain_said_count(e, PEER_LENGTH), 1);
}

/* RULES 10.6 */
TEST_ENCODED(all_rows_of_no_known_number_are_none)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, ROWS_UNKNOWN)));
    brain_hear(e, 0, init(e, 1, 70, 16));
    ack(e, 0, 1, 70);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_MALFORMED);
    T_EQ_U64(brain_shown(e, "peers", "bytes_moved", 0), 0);
    brain_hear(e, 0, init(e, 2, 71, 16)); /* the room is not announced yet */
    ack(e, 0, 2, 71);
    T_OK(brain_say(e, 0, announce(2, 1, 16, 16)));
    T_EQ_U64(brain_reason(e, 0, 1), OK);
}
