/* langd_rights_test.c - what langd tells an encoder about the engine that asks
 * for a room, and which engines a secret keeps out of a room's place here
 * (RULES 10.1). */
#include "test/there.h"

static const struct secret key = {"sixteen letters"};
static const struct secret other = {"sixteen lettert"};

static struct local_msg secret_request(
    uint64_t room, uint32_t cell, const struct secret *secret)
{
    struct local_msg m = request(room, cell, MODE_WHOLE);

    m.request.secret = *secret;
    return m;
}

static void greet(struct rig *l, bool same_host)
{
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = PEER_EPOCH};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.answer = 1;
    m.hello.segment_max = 65536;
    m.hello.name = span_str("enc");
    m.hello.boot = l->bc.boot;
    m.hello.boot.b[0] ^= !same_host;
    brain_hear(l, 0, m);
}

/* RULES 10.1 */
TEST_LANGD(an_init_says_the_secret)
{
    greet(l, false);
    T_OK(brain_say(l, 0, secret_request(7, 0, &key)));
    T_TRUE(secret_eq(&brain_said(l, PEER_INIT, 0)->init.secret, &key));
    /* an encoder on another host gets no user */
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->init.who, 0);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_TRUE(secret_eq(&brain_said(l, PEER_ABORT, 0)->abort.secret, &key));
}

/* RULES 10.3 */
TEST_LANGD(a_decline_says_it_too)
{
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = 7;
    m.decline.encoder = span_str("enc");
    m.decline.secret = key;
    T_OK(brain_say(l, 0, m));
    T_TRUE(secret_eq(&brain_said(l, PEER_DECLINE, 0)->decline.secret, &key));
    for (uint32_t i = 0; i < 2; i++) { /* on another host, then on this one */
        greet(l, i == 1);
        T_OK(brain_say(l, 0, m));
        T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->decline.who > 0, i);
    }
}

/* RULES 4.12 */
TEST_LANGD(an_init_says_announced)
{
    struct local_msg m = request(7, 0, MODE_WHOLE);

    m.request.flags = FLAG_KEEP | FLAG_ANNOUNCED;
    greet(l, false);
    T_OK(brain_say(l, 0, m));
    T_EQ_U64(
        brain_said(l, PEER_INIT, 0)->init.flags, FLAG_KEEP | FLAG_ANNOUNCED);
}

/* RULES 10.2 */
TEST_LANGD(users_are_named_on_one_host)
{
    static const struct groups groups = {2, {1001, 1002}};
    struct event ev = {.type = EV_CONN_OPEN,
        .conn = 3,
        .uid = 900,
        .gid = 90,
        .pid = 17,
        .groups = &groups};
    struct local_msg m = {.type = LOCAL_HELLO};
    const struct peer_init *n;

    rig_step(l, &ev);
    m.hello.magic = LOCAL_MAGIC;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.cells = 8;
    T_OK(brain_say(l, 3, m));
    greet(l, true);
    T_OK(brain_say(l, 3, request(7, 0, MODE_WHOLE)));
    n = &brain_said(l, PEER_INIT, 0)->init;
    T_EQ_U64(n->who, 901);
    T_EQ_U64(n->gids.len, 12);
    T_EQ_MEM(n->gids.p, "\x5a\0\0\0\xe9\3\0\0\xea\3\0\0", 12);
    greet(l, false); /* an encoder on another host */
    T_OK(brain_say(l, 3, request(8, 1, MODE_WHOLE)));
    n = &brain_said(l, PEER_INIT, 0)->init;
    T_EQ_U64(n->who, 0);
    T_EQ_U64(n->gids.len, 0);
}

/* The connection that asked may end before the room. */
TEST_LANGD(a_user_is_named_when_the_connection_that_asked_is_gone)
{
    struct peer_msg m;

    brain_user(l, 3, 900, "u");
    brain_user(l, 4, 900, "u");
    greet(l, true);
    T_OK(brain_say(l, 3, request(7, 0, MODE_WHOLE)));
    T_OK(brain_say(l, 4, attach(7, 0, RIGHT_READ)));
    brain_gone(l, 3);
    brain_pass(l, 1000);
    m = *brain_said(l, PEER_INIT, 0); /* repeated: it was not answered */
    T_EQ_U64(m.init.who, 901);
    T_EQ_U64(m.init.gids.len, 4); /* groups of the connection that is left */
    brain_end(l, 4);
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
    m = *brain_said(l, PEER_ABORT, 0);
    T_EQ_U64(m.abort.who, 901);
    T_EQ_U64(m.abort.gids.len, 0);
}

/* An engine that asks first for a known id takes no place from one with the
 * secret. */
/* RULES 10.1 */
TEST_LANGD(a_place_is_not_taken_without_the_secret)
{
    brain_user(l, 1, 4002, "thief");
    SAYS(l, 1, request(7, 0, MODE_WHOLE), secret_request(7, 1, &other));
    T_OK(brain_say(l, 0, secret_request(7, 0, &key)));
    T_TRUE(secret_eq(&brain_said(l, PEER_INIT, 0)->init.secret, &key));
    T_ERR(brain_say(l, 0, secret_request(7, 2, &key)), ERR_DUPLICATE_ROOM);
}

/* RULES 10.1 */
TEST_LANGD(readers_attach_with_the_secret)
{
    struct local_msg m = attach(7, 1, RIGHT_READ), q;

    brain_conn(l, 1, "s");
    T_OK(brain_say(l, 1, m)); /* waits for a room without a secret */
    m = attach(7, 2, RIGHT_READ);
    m.attach.secret = key;
    T_OK(brain_say(l, 1, m));
    q = secret_request(7, 0, &key);
    q.request.readers = 2;
    T_OK(brain_say(l, 0, q));
    m = attach(7, 3, RIGHT_READ);
    m.attach.secret = key;
    T_OK(brain_say(l, 1, m));
    T_EQ_U64(brain_state(l, 1, 1), 0);
    T_EQ_U64(brain_state(l, 1, 2), ROOM_BOOTSTRAPPING);
    T_EQ_U64(brain_state(l, 1, 3), ROOM_BOOTSTRAPPING);
}

/* an encoder that lies */

/* RULES 10.6 */
TEST(an_encoder_speaks_of_its_own_rooms_alone)
{
    struct rig *l =
        langd_up("peers[1].name=liar", "peers[1].address=tcp://127.0.0.1:7602");
    struct local_msg m = request(8, 1, MODE_WHOLE);
    struct there t, bad, own = {.room = 8};

    m.request.encoder = span_str("liar");
    T_OK(brain_say(l, 0, m));
    brain_hello(l, 1, "liar", PEER_EPOCH + 1);
    own.generation = brain_said(l, PEER_INIT, 0)->generation;
    t = bad = ask_room(l, 7, 0);
    HEARS(l, 1, length(&bad, 4000, 4000, true), want(&bad, 0, 0, 4000),
        about(&bad, PEER_FAILED), about(&bad, PEER_BROKEN),
        state(&bad, PEER_INIT, 0, 0));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    /* a bad length, which ends its own room */
    brain_hear(l, 1, length(&own, 4000, 16, true));
    T_EQ_U64(brain_reason(l, 0, 1), ERR_MALFORMED);
    fill_succeeds(l, &t, 16, 0);
}
