/* langd_named_test.c - encoders that leave the configuration, or come back,
 * while they have rooms or are not connected, and addresses that control.allow
 * does not have any more. `enc` is peer 0. */
#include "core/head.h"
#include "test/there.h"
#include "base/text.h"

#define ENC "tcp://127.0.0.1:7601" /* address of `enc` */

/* Puts the peers of the configuration into force. */
static void take(struct rig *l)
{
    brain_is(l, EV_CONF);
}

/* Takes the only peer out of the configuration, or puts it back. */
static void name_it(struct rig *l, bool named)
{
    l->conf.peers_count = named;
    take(l);
}

static uint64_t peers(struct rig *l)
{
    char text[64] = "";

    snprintf(text, sizeof(text), "%s", brain_text(l, "peers", "state", 0));
    return text[0] != 0;
}

/* RULES 9.7 */
TEST_LANGD(one_that_has_left_completes_its_room_and_takes_no_other)
{
    struct there t = ask_room(l, 1, 0);

    name_it(l, false);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "leaving");
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 0);
    T_EQ_U64(brain_say(l, 0, request(2, 1, MODE_WHOLE)), ERR_NOT_READY);
    brain_conn(l, 1, "s");
    T_OK(brain_say(l, 1, attach(1, 0, RIGHT_READ))); /* as another rank does */
    fill_succeeds(l, &t, 8, 0);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
}

TEST_LANGD(without_rooms_it_is_forgotten_at_once)
{
    name_it(l, false);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 1);
    T_TRUE(!peers(l));
    name_it(l, true);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "named");
    T_OK(brain_say(l, 0, request(2, 1, MODE_WHOLE)));
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
}

/* RULES 9.7 */
TEST_LANGD(named_again_it_goes_on_where_it_was)
{
    struct there t = ask_room(l, 1, 0), u;

    name_it(l, false);
    name_it(l, true);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "up");
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT) + brain_acts(l, ACT_CONNECT), 0);
    u = ask_room(l, 2, 1);
    fill(l, &t, 8);
    fill_succeeds(l, &u, 8, 1);
}

/* RULES 9.7 */
TEST_LANGD(another_name_of_one_address_is_the_same_encoder)
{
    struct there t = ask_room(l, 1, 0);
    struct local_msg m = request(2, 1, MODE_WHOLE);

    snprintf(l->conf.peers[0].name, 8, "other");
    take(l);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 0);
    m.request.encoder = span_str("other");
    T_OK(brain_say(l, 0, m));
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    fill_succeeds(l, &t, 8, 0);
}

static enum err decline(struct rig *l, uint64_t room)
{
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = room;
    m.decline.encoder = span_str("enc");
    return brain_say(l, 0, m);
}

/* RULES 9.7 */
TEST_LANGD(one_without_rooms_stays_the_same_under_another_name)
{
    snprintf(l->conf.peers[0].name, 8, "other");
    take(l);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 0);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "up");
    T_EQ_STR(brain_text(l, "peers", "name", 0), "other");
    brain_down(l, 0);
    snprintf(l->conf.peers[0].name, 8, "enc");
    take(l);
    T_OK(decline(l, 2));
    snprintf(l->conf.peers[0].name, 8, "other");
    take(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_EQ_U64(brain_said_count(l, PEER_DECLINE), 1);
}

/* RULES 9.4 */
TEST(one_that_is_named_again_hears_the_declines_that_wait)
{
    struct rig *l = langd(NULL, NULL);

    T_OK(decline(l, 2));
    T_OK(decline(l, 3));
    name_it(l, false);
    T_TRUE(!peers(l));
    name_it(l, true);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    T_OK(brain_say(l, 0, request(3, 0, MODE_WHOLE)));
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_EQ_U64(brain_said_count(l, PEER_DECLINE), 1);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 2);
}

/* RULES 9.4 */
TEST(one_that_is_named_again_too_late_hears_none)
{
    struct rig *l = langd(NULL, NULL);

    T_OK(decline(l, 2));
    name_it(l, false);
    brain_pass(l, 121000);
    name_it(l, true);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
}

/* RULES 7.2 */
TEST_LANGD(a_reader_that_is_late_hears_so_wherever_the_encoder_is_now)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct local_msg a = attach(1, 1, RIGHT_READ);
    struct conf_peer *other = &l->conf.peers[0], enc = *other;
    struct there t;

    r.request.readers = 1;
    t = ask(l, 0, r);
    fill(l, &t, 8);
    brain_hear(l, 0, acked(&t));
    r = release(0, ROWS_UNKNOWN);
    r.release.flags = FLAG_NO_READERS;
    T_OK(brain_say(l, 0, r));
    snprintf(other->name, 8, "other");
    snprintf(other->address, 32, "tcp://127.0.0.1:7602");
    take(l); /* `other` has the entry of `enc` now */
    l->conf.peers[1] = enc;
    l->conf.peers_count = 2;
    take(l);
    a.attach.encoder = span_str("other");
    T_OK(brain_say(l, 0, a));
    T_ERR(brain_say(l, 0, attach(1, 2, RIGHT_READ)), ERR_GONE);
}

static void allow(struct rig *l, const char *address)
{
    struct conf_list *list = &l->conf.control_allow;

    list->count = address != NULL;
    if (address)
        snprintf(list->items[0], sizeof(list->items[0]), "%s", address);
    take(l);
}

static struct local_msg request_at(
    const char *encoder, uint64_t room, uint32_t cell)
{
    struct local_msg m = request(room, cell, MODE_WHOLE);

    m.request.encoder = span_str(encoder);
    return m;
}

/* RULES 9.7 */
TEST_LANGD(an_encoder_leaves_before_it_is_known_to_be_lost)
{
    brain_down(l, 0);
    name_it(l, false);
    brain_pass(l, 10000);
    T_EQ_U64(brain_stat(l, "peers_unreachable"), 0);
}

/* RULES 9.7 */
TEST(an_encoder_leaves_that_answers_no_hello)
{
    struct rig *l = langd(NULL, NULL);

    brain_is(l, EV_SEEK);
    brain_is(l, EV_LINK_UP);
    T_TRUE(brain_said(l, PEER_HELLO, 0) != NULL);
    name_it(l, false);
    brain_pass(l, 10000);
    T_TRUE(brain_said(l, PEER_HELLO, 0) == NULL);
}

/* RULES 9.7 */
TEST(an_address_that_is_allowed_no_more_takes_no_rooms)
{
    struct rig *l = langd("control.allow=tcp://127.0.0.1:7777", NULL);

    T_OK(brain_say(l, 0, request_at("tcp://127.0.0.1:7777", 1, 0)));
    allow(l, NULL);
    T_ERR(brain_say(l, 0, request_at("tcp://127.0.0.1:7777", 2, 1)),
        ERR_NOT_READY);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_is(l, EV_SEEK);
    T_EQ_STR(brain_text(l, "peers", "name", 1), "");
}

/* The peer is forgotten when the engine that waits for its room has ended. */
TEST(a_decline_connects_none_that_is_leaving)
{
    struct rig *l = langd(NULL, NULL);

    T_OK(brain_say(l, 0, attach(1, 0, RIGHT_READ)));
    name_it(l, false);
    T_OK(decline(l, 2));
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
}

/* RULES 9.7 */
TEST_LANGD(an_encoder_that_leaves_and_is_allowed_stays_one,
    "control.allow=tcp://127.0.0.1:*")
{
    T_OK(brain_say(l, 0, request_at("enc", 1, 0)));
    name_it(l, false);
    T_ERR(brain_say(l, 0, request_at("enc", 2, 1)), ERR_NOT_READY);
    T_OK(brain_say(l, 0, request_at(ENC, 3, 2)));
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 3);
    T_EQ_STR(brain_text(l, "peers", "name", 1), "");
}

/* RULES 9.7 */
TEST_LANGD(an_encoder_that_is_leaving_may_be_allowed_again)
{
    T_OK(brain_say(l, 0, request_at("enc", 1, 0)));
    name_it(l, false);
    T_ERR(brain_say(l, 0, request_at(ENC, 2, 1)), ERR_NOT_READY);
    allow(l, ENC);
    T_OK(brain_say(l, 0, request_at(ENC, 3, 2)));
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 3);
    T_EQ_STR(brain_text(l, "peers", "name", 1), "");
}

TEST_LANGD(a_key_allows_any_address_to_connect_to, "control.keys=fleet.key",
    "control.allow=key")
{
    static const char *const none[] = {"a", "tcp://*:1", "tcp://a:0"};

    T_OK(brain_say(l, 0, request_at("tcp://a:1", 1, 0)));
    for (uint32_t i = 0; i < ARRAY_LEN(none); i++)
        T_ERR(brain_say(l, 0, request_at(none[i], 2, 1)), ERR_NOT_READY);
}

/* The leaving encoder may have an announced room that waits for this langd. */
/* RULES 9.7 */
TEST_LANGD(one_that_is_leaving_hears_declines_until_it_is_forgotten)
{
    struct there t = ask_room(l, 1, 0);

    name_it(l, false);
    T_OK(decline(l, 2));
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 2);
    brain_down(l, 0);
    T_OK(decline(l, 3));
    T_EQ_U64(brain_said_count(l, PEER_DECLINE), 0);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 3);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, about(&t, PEER_DRAINED));
    brain_is(l, EV_SEEK);
    T_TRUE(!peers(l));
    T_ERR(decline(l, 4), ERR_NOT_READY);
}

/* places */

/* Requests rooms of n encoders at addresses that are not peers yet. Returns how
 * many got a place. */
static uint32_t ask_many(
    struct rig *l, uint32_t conn, uint32_t first, uint32_t n)
{
    uint32_t in = 0;

    for (uint32_t i = first; i < first + n; i++) {
        char at[40];

        snprintf(at, sizeof(at), "tcp://127.0.0.1:%u", 8000 + i);
        in += brain_say(l, conn, request_at(at, 1 + conn, i)) == OK;
    }
    return in;
}

static struct rig *many(void)
{
    struct rig *l = BRAIN(ROLE_LANGD, "limits.peers=16", "limits.rooms=64",
        "control.allow=tcp://127.0.0.1:*");

    brain_conn(l, 0, "s");
    brain_user(l, 1, 1001, "other");
    return l;
}

/* Has the daemon at address n say HELLO on the link that its request made. */
static void answer(struct rig *l, uint32_t link)
{
    char name[12];

    snprintf(name, sizeof(name), "e%u", link);
    brain_hello(l, link, name, PEER_EPOCH + link);
}

/* Ends the only room of the encoder on this link. */
static void idle(struct rig *l, uint32_t link, uint32_t cell)
{
    struct there t = {.room = 1};

    T_OK(brain_say(l, 0, release(cell, ROWS_UNKNOWN)));
    t.generation = brain_said(l, PEER_ABORT, 0)->generation;
    brain_hear(l, link, about(&t, PEER_DRAINED));
}

/* Returns how many peers are up. */
static uint32_t up(struct rig *l)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->conf.limit_peers * 2; i++)
        n += strcmp(brain_text(l, "peers", "state", i), "up") == 0;
    return n;
}

/* One of the 16 places belongs to the configured encoder. */
/* RULES 1.9 */
TEST_WITH(encoders_of_one_user_leave_places_to_others, struct rig *l, many())
{
    const struct peer_msg *nack;
    char text[160];

    T_EQ_U64(ask_many(l, 0, 0, 17), 17);
    for (uint32_t i = 1; i <= 17; i++)
        answer(l, i);
    T_EQ_U64(up(l), 15);
    nack = brain_said(l, PEER_NACK, 0);
    T_TRUE(nack != NULL);
    text_copy(nack->nack.text, text, sizeof(text));
    T_EQ_STR(text, "limits.peers: 16 of 16 in use, 15 of them by user 7"
                   " (25% more for others)");
    T_EQ_U64(ask_many(l, 1, 20, 3), 3);
    for (uint32_t i = 18; i <= 20; i++)
        answer(l, i);
    T_EQ_U64(up(l), 17);
    T_EQ_U64(ask_many(l, 1, 3, 1), 1); /* this address has a place already */
}

/* RULES 1.9 */
TEST(encoders_of_the_configuration_have_a_place_before_others)
{
    struct rig *l = many();
    struct conf_peer *p = l->conf.peers;

    T_EQ_U64(ask_many(l, 0, 0, 15), 15);
    for (uint32_t i = 1; i <= 15; i++)
        answer(l, i);
    for (uint32_t i = 1; i <= 4; i++) {
        snprintf(p[i].name, sizeof(p[i].name), "late%u", i);
        snprintf(p[i].address, sizeof(p[i].address), "tcp://10.0.0.%u:1", i);
    }
    l->conf.peers_count = 5;
    take(l);
    for (uint32_t i = 1; i <= 4; i++)
        T_OK(brain_say(l, 0, request_at(p[i].name, 1, 40 + i)));
}

/* RULES 1.9 */
TEST(an_encoder_that_is_up_and_idle_gives_its_place_to_another)
{
    struct rig *l = many();

    T_EQ_U64(ask_many(l, 0, 0, 15), 15);
    for (uint32_t i = 0; i < 15; i++) {
        answer(l, 1 + i);
        idle(l, 1 + i, i);
        brain_pass(l, 10);
    }
    T_EQ_U64(ask_many(l, 0, 40, 1), 1);
    answer(l, 16);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.answers, PEER_HELLO);
    T_EQ_U64(up(l), 15);
    brain_pass(l, 4900); /* timeouts.unreachable is 5 s */
    answer(l, 16);       /* repeats its HELLO */
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    T_EQ_U64(brain_stat(l, "peers_given_up"), 1);
    T_EQ_U64(up(l), 15);
}

/* RULES 1.9 */
TEST(an_encoder_whose_room_is_waited_for_is_not_idle)
{
    struct rig *l = many();

    T_EQ_U64(ask_many(l, 0, 0, 15), 15);
    for (uint32_t i = 0; i < 15; i++) {
        struct local_msg a = attach(100, 45 + i, RIGHT_READ);
        char at[40];

        answer(l, 1 + i);
        idle(l, 1 + i, i);
        snprintf(at, sizeof(at), "tcp://127.0.0.1:%u", 8000 + i);
        a.attach.encoder = span_str(at);
        T_OK(brain_say(l, 0, a));
    }
    brain_pass(l, 5000); /* timeouts.unreachable */
    T_EQ_U64(ask_many(l, 0, 40, 1), 1);
    answer(l, 16);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.answers, PEER_HELLO);
    T_EQ_U64(up(l), 15);
    T_EQ_U64(brain_stat(l, "peers_given_up"), 0);
}

/* Addresses that never answer; any client of an engine may name them. */
/* RULES 1.9 */
TEST(addresses_that_never_answer_take_no_place_of_one_that_has)
{
    struct rig *l = many();

    T_EQ_U64(ask_many(l, 0, 0, 1), 1);
    answer(l, 1);
    idle(l, 1, 0);
    brain_pass(l, 10000);
    T_EQ_U64(ask_many(l, 0, 1, 59), 59);
    T_EQ_STR(brain_text(l, "peers", "state", 1), "up");
    T_OK(brain_say(l, 1, request_at("tcp://127.0.0.1:8000", 5, 60)));
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 5);
}

/* RULES 1.9 */
TEST_WITH(the_oldest_that_has_not_answered_gives_way, struct rig *l, many())
{
    /* 16 places, 4 in reserve, 8 that have not answered, without that of
     * `enc` */
    uint32_t first = 27;

    T_EQ_U64(ask_many(l, 0, 0, first), first);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    T_EQ_U64(ask_many(l, 0, first, 1), 1);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_BOOTSTRAPPING);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    l->is->ops->check(l->is);
}

/* RULES 9.4 */
TEST(one_that_gave_way_hears_declines_when_it_is_named_again)
{
    struct rig *l = many();
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = 9;
    m.decline.encoder = span_str("tcp://127.0.0.1:8000");
    T_OK(brain_say(l, 0, m));
    /* its entry is used for another address */
    T_EQ_U64(ask_many(l, 0, 1, 30), 30);
    T_OK(brain_say(l, 1, request_at("tcp://127.0.0.1:8000", 5, 0)));
    for (uint32_t i = 1; i < 28; i++) {
        answer(l, i);
        T_EQ_U64(brain_said_count(l, PEER_DECLINE),
            strcmp(brain_text(l, "peers", "address", i),
                "tcp://127.0.0.1:8000") == 0);
    }
}

/* Peers that leave while they have rooms count. There may be more of them than
 * places. */
TEST_WITH(a_reload_may_leave_more_than_have_a_place, struct rig *l, many())
{
    T_EQ_U64(ask_many(l, 0, 0, 27), 27);
    allow(l, "tcp://127.0.0.1:8026"); /* allows only the last one */
    answer(l, 27);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.answers, PEER_HELLO);
}

/* Addresses that one user's clients name, again and again, keep no true encoder
 * out. */
/* RULES 1.9 */
TEST(addresses_of_one_user_leave_others_time_to_answer)
{
    struct rig *l = many();

    T_EQ_U64(ask_many(l, 0, 0, 40), 40);
    T_OK(brain_say(l, 1, request_at("tcp://127.0.0.1:9000", 1, 0)));
    T_EQ_U64(ask_many(l, 0, 40, 20), 20);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_BOOTSTRAPPING);
    for (uint32_t link = 0; link < 60; link++)
        if (strcmp(brain_text(l, "peers", "address", link),
                "tcp://127.0.0.1:9000") == 0)
            return;
    T_FAIL("the other user's encoder has no place");
}

/* The engine waits for this peer, by its number. */
TEST(an_encoder_whose_room_is_waited_for_keeps_its_place)
{
    struct rig *l = many();
    struct local_msg a = attach(1, 100, RIGHT_READ);

    a.attach.encoder = span_str("enc");
    T_OK(brain_say(l, 0, a));
    l->conf.peers_count = 0;
    take(l);
    T_EQ_U64(ask_many(l, 0, 0, 40), 40);
    T_EQ_STR(brain_text(l, "peers", "address", 0), ENC);
}

/* RULES 1.9 */
TEST_WITH(one_that_waits_for_a_room_of_none_hears_so, struct rig *l, many())
{
    struct local_msg a = attach(1, 63, RIGHT_READ);

    a.attach.encoder = span_str("tcp://127.0.0.1:7999");
    T_OK(brain_say(l, 0, a));
    T_EQ_U64(ask_many(l, 0, 0, 40), 40);
    brain_pass(l, 1);
    T_EQ_U64(brain_state(l, 0, 63), ROOM_FAILED);
}

/* Returns the length of the name that the last connect had, or NONE. */
static uint64_t connected_to(const struct rig *l)
{
    uint64_t len = NONE;

    for (uint32_t i = 0; i < l->acts_count; i++)
        if (l->acts[i].type == ACT_CONNECT)
            len = l->acts[i].word;
    return len;
}

/* With control.identities a connect is to the daemon of that name. */
/* RULES 1.9 */
TEST(an_encoder_that_is_not_up_is_connected_again_under_another_name)
{
    struct rig *l = langd(NULL, NULL);

    brain_is(l, EV_SEEK);
    T_EQ_U64(connected_to(l), strlen(l->conf.peers[0].name));
    brain_is(l, EV_LINK_UP);
    snprintf(l->conf.peers[0].name, 64, "another");
    snprintf(l->conf.control_identities, 64, "identities");
    take(l);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 1);
    brain_pass(l, 1000);
    T_TRUE(brain_said(l, PEER_HELLO, 0) == NULL);
    brain_is(l, EV_SEEK);
    T_EQ_U64(connected_to(l), strlen("another"));
}

/* Has the daemon of this name, whose key it is, say HELLO on link 0. Returns
 * the reason of a refusal. */
static enum err hello_of(struct rig *l, const char *name, uint64_t epoch)
{
    struct identity who = {.role = ROLE_ENCODED};
    const struct peer_msg *nack;

    snprintf(who.name, sizeof(who.name), "%s", name);
    l->owner = &who;
    brain_hello(l, 0, name, epoch);
    l->owner = NULL;
    nack = brain_said(l, PEER_NACK, 0);
    return nack ? (enum err)nack->nack.reason : OK;
}

static void rename_it(struct rig *l, const char *name)
{
    snprintf(l->conf.peers[0].name, 64, "%s", name);
    take(l);
}

/* Each daemon has a key of its own, and requests may name the address. */
static struct rig *own_keys(void)
{
    struct rig *l = langd("control.allow=" ENC, NULL);

    snprintf(l->conf.control_identities, 64, "identities");
    return l;
}

/* RULES 9.7 */
TEST(a_link_to_the_daemon_of_another_name_is_made_again)
{
    struct rig *l = own_keys();

    brain_is(l, EV_SEEK);
    T_OK(hello_of(l, "enc", PEER_EPOCH));
    T_OK(brain_say(l, 0, request_at("enc", 1, 0)));
    rename_it(l, "true");
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 1);
    T_EQ_U64(connected_to(l), strlen("true"));
    T_OK(brain_say(l, 0, request_at("true", 2, 1)));
    T_TRUE(brain_said(l, PEER_INIT, 0) == NULL);
    T_EQ_U64(hello_of(l, "enc", PEER_EPOCH), ERR_NOT_OWNER);
    T_TRUE(brain_said(l, PEER_INIT, 0) == NULL);
    T_EQ_STR(brain_text(l, "peers", "what", 0),
        "is refused: its key is that of encoded enc");
    T_OK(hello_of(l, "true", PEER_EPOCH + 1));
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 2);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
}

/* RULES 9.7 */
TEST(a_link_to_the_daemon_of_the_new_name_stays)
{
    struct rig *l = own_keys();

    name_it(l, false);
    T_OK(brain_say(l, 0, request_at(ENC, 1, 0)));
    T_EQ_U64(connected_to(l), 0);
    T_OK(hello_of(l, "enc", PEER_EPOCH));
    name_it(l, true);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 0);
    T_EQ_STR(brain_text(l, "peers", "state", 0), "up");
}

/* RULES 9.7 */
TEST(a_link_that_a_request_named_is_made_again_if_its_daemon_is_another)
{
    struct rig *l = own_keys();

    name_it(l, false);
    T_OK(brain_say(l, 0, request_at(ENC, 1, 0)));
    T_OK(hello_of(l, "false", PEER_EPOCH));
    name_it(l, true);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 1);
    T_EQ_U64(connected_to(l), strlen("enc"));
}

/* The name of the daemon there is no matter any more. RULES 9.7 */
TEST(what_leaves_the_file_and_is_allowed_is_connected_under_no_name)
{
    struct rig *l = own_keys();

    brain_is(l, EV_SEEK);
    T_OK(hello_of(l, "enc", PEER_EPOCH));
    T_OK(brain_say(l, 0, request_at("enc", 1, 0)));
    name_it(l, false);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 1);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    T_EQ_U64(connected_to(l), 0);
    T_OK(hello_of(l, "another", PEER_EPOCH + 1));
    take(l);
    T_EQ_U64(brain_acts(l, ACT_DISCONNECT), 0);
}
