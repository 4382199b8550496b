/* encoded_names_test.c - places of langds at encoded: which langds a daemon
 * with many names keeps out. limits.peers is 16, and the reserve 4 more; each
 * name has a room, so that it is not idle. */
#include "test/here.h"
#include "base/text.h"

/* Says HELLO as l`link` from the host, and asks for a room. True if it has a
 * place. */
static bool comes(struct rig *e, uint64_t host, uint32_t link)
{
    struct peer_msg m = init(e, 100 + link, 70 + link, 8);
    char name[16];

    snprintf(name, sizeof(name), "l%u", link);
    e->host = host;
    brain_hello(e, link, name, 100 + link);
    if (brain_said(e, PEER_NACK, 0)) {
        T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
        return false;
    }
    m.from_epoch = 100 + link;
    brain_hear(e, link, m);
    return true;
}

static uint32_t come(struct rig *e, uint64_t host, uint32_t first, uint32_t n)
{
    uint32_t in = 0;

    for (uint32_t i = first; i < first + n; i++)
        in += comes(e, host, i);
    return in;
}

static struct rig *many(void)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "limits.peers=16");

    brain_conn(e, 0, "s");
    return e;
}

/* RULES 1.9 */
TEST_WITH(names_of_one_address_leave_places_to_others, struct rig *e, many())
{
    T_EQ_U64(come(e, 1, 0, 17), 16);
    T_EQ_U64(come(e, 2, 20, 3), 2);
    T_EQ_U64(come(e, 3, 25, 2), 1);
    brain_pass(e, 10000);
    T_EQ_U64(come(e, 1, 17, 1), 0);
    T_EQ_U64(brain_stat(e, "peers_given_up"), 0);
}

/* RULES 1.9 */
TEST_WITH(a_refusal_says_whose_limit_it_is, struct rig *e, many())
{
    char text[160];

    T_EQ_U64(come(e, 1, 0, 17), 16);
    text_copy(brain_said(e, PEER_NACK, 0)->nack.text, text, sizeof(text));
    T_EQ_STR(text, "limits.peers: 16 of 16 in use, 16 of them by this address"
                   " (25% more for others)");
}

/* Has a peer say HELLO that gets a place, and no room. */
static void idles(struct rig *e, uint64_t host, uint32_t link)
{
    char name[16];

    snprintf(name, sizeof(name), "idle%u", link);
    e->host = host;
    brain_hello(e, link, name, 100 + link);
    T_TRUE(!brain_said(e, PEER_NACK, 0));
}

/* RULES 1.9 */
TEST(an_address_without_a_place_to_come_gives_up_its_own_idle_names)
{
    struct rig *e = many();

    T_EQ_U64(come(e, 1, 0, 15), 15);
    idles(e, 1, 15);
    T_EQ_U64(come(e, 2, 20, 2), 2);
    idles(e, 3, 30);
    /* the idle one is evicted after 5 s, not before */
    T_EQ_U64(come(e, 1, 17, 1), 0);
    brain_pass(e, 10000);
    T_EQ_U64(come(e, 1, 17, 1), 1);
    brain_pass(e, 10000);
    T_EQ_U64(come(e, 1, 18, 1), 0); /* the other idle one has another address */
    T_EQ_U64(brain_stat(e, "peers_given_up"), 1);
}

/* RULES 1.9 */
TEST(where_none_holds_more_than_others_all_of_them_come)
{
    struct rig *e = many();
    uint32_t in = 0;

    for (uint32_t i = 0; i < 20; i++)
        in += comes(e, 1 + i, i);
    T_EQ_U64(in, 19);
}

/* Its rooms would end, though a short absence must not end them. */
/* RULES 1.9 */
TEST(a_name_that_is_away_is_not_taken_from_another_address)
{
    struct rig *e = many();

    T_EQ_U64(come(e, 1, 0, 1), 1);
    brain_down(e, 0);
    e->host = 2;
    brain_hello(e, 1, "l0", 7);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_BUSY);
    T_EQ_U64(brain_stat(e, "peers_lost"), 0);
    brain_pass(e, 1000); /* control.lost_after is 500 ms */
    brain_hello(e, 1, "l0", 7);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
}

/* RULES 1.9 */
TEST_WITH(a_restart_at_its_own_address_takes_it_at_once, struct rig *e, many())
{
    T_EQ_U64(come(e, 1, 0, 1), 1);
    brain_down(e, 0);
    brain_hello(e, 1, "l0", 7);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
    T_EQ_U64(brain_stat(e, "peers_lost"), 1);
}

/* Says a HELLO of a protocol version that encoded does not speak. */
static void comes_newer(
    struct rig *e, uint32_t link, const char *name, uint64_t epoch)
{
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = epoch};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION + 1;
    m.hello.role = ROLE_LANGD;
    m.hello.name = span_str(name);
    rig_step(
        e, &(struct event){.type = EV_LINK_UP, .link = link, .host = e->host});
    brain_hear(e, link, m);
}

/* RULES 1.9 */
TEST(a_restart_that_is_refused_leaves_nothing_of_the_run_before)
{
    struct rig *e = many();

    idles(e, 1, 0);
    brain_down(e, 0);
    comes_newer(e, 1, "idle0", 7);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_VERSION);
    T_EQ_STR(brain_text(e, "peers", "state", 0), "refused");
    brain_pass(e, 1000); /* control.lost_after is 500 ms */
    T_EQ_U64(brain_stat(e, "peers_lost"), 1);
}

/* Free places belong to no address, whichever name had them. */
/* RULES 1.9 */
TEST(names_that_are_gone_open_no_place_to_their_address)
{
    struct rig *e = many();

    T_EQ_U64(come(e, 1, 0, 16), 16);
    T_EQ_U64(come(e, 2, 20, 2), 2);
    for (uint32_t i = 12; i < 16; i++)
        brain_down(e, i);
    brain_pass(e, 20000);
    T_EQ_U64(come(e, 3, 25, 2), 2);
    T_EQ_U64(come(e, 1, 30, 1), 0);
    T_EQ_U64(come(e, 1, 14, 2), 0);
    T_EQ_U64(come(e, 4, 35, 1), 1);
}

static void goes_away(struct rig *e, uint32_t link)
{
    brain_down(e, link);
    brain_pass(e, 1000); /* longer than control.lost_after */
}

/* Asks as langd 0 for room 1, which is announced in that cell. */
static void seventy(struct rig *e, uint32_t cell)
{
    struct peer_msg m = init(e, 1, 70, 8);

    m.from_epoch = 100;
    T_OK(brain_say(e, 0, announce(1, cell, 8, 8)));
    brain_hear(e, 0, m);
}

/* Returns a rig in which generation 70 of langd 0 has ended. Another peer has
 * its old place, and it is back in a new one. */
static struct rig *moved(const char *setting)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "limits.peers=2", setting);

    brain_conn(e, 0, "s");
    for (uint32_t link = 0; link < 2; link++)
        idles(e, 1, link);
    seventy(e, 0);
    T_TRUE(brain_said(e, PEER_LENGTH, 0) != NULL);
    goes_away(e, 0);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_PEER_LOST);
    T_OK(brain_say(e, 0, release(0)));
    goes_away(e, 1);
    idles(e, 1, 2);
    idles(e, 1, 0);
    T_EQ_STR(brain_text(e, "peers", "name", 1), "idle0");
    return e;
}

/* RULES 1.2 */
TEST(a_generation_stays_dead_while_another_has_its_langds_place)
{
    struct rig *e = moved(NULL);

    seventy(e, 1);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_PEER_LOST);
    T_TRUE(brain_said(e, PEER_LENGTH, 0) == NULL);
}

/* RULES 1.2 */
TEST(there_it_stays_dead_when_it_is_forgotten)
{
    struct rig *e = moved("limits.tombstones=16");

    for (uint64_t g = 200; g < 216; g++) { /* 16 others end */
        struct peer_msg m = about(g, g, PEER_ABORT);

        m.from_epoch = 100;
        brain_hear(e, 0, m);
    }
    seventy(e, 1);
    T_TRUE(brain_said(e, PEER_LENGTH, 0) == NULL);
}

/* whose key a link is under */

/* Says HELLO under the key of a langd of this name and role. */
static const struct peer_msg *says(
    struct rig *e, const char *name, const char *key_of, uint8_t role)
{
    struct identity who = {.role = role};

    snprintf(who.name, sizeof(who.name), "%s", key_of);
    e->owner = &who;
    brain_hello(e, 1, name, 77);
    e->owner = NULL;
    return brain_said(e, PEER_NACK, 0);
}

/* RULES 1.9 */
TEST_WITH(a_name_is_the_owners_of_its_key, struct rig *e, many())
{
    const struct peer_msg *nack = says(e, "langd-2", "langd-1", ROLE_LANGD);
    char text[160];

    T_EQ_U64(nack->nack.reason, ERR_NOT_OWNER);
    text_copy(nack->nack.text, text, sizeof(text));
    T_EQ_STR(text, "its key is that of langd langd-1");
    T_EQ_U64(brain_acts(e, ACT_WARN), 1);
    T_EQ_STR(brain_text(e, "peers", "says", 0), "langd-2");
    T_EQ_STR(brain_text(e, "peers", "state", 0), "refused");
    T_EQ_STR(brain_text(e, "peers", "what", 0),
        "is refused: its key is that of langd langd-1");
    T_TRUE(says(e, "langd-1", "langd-1", ROLE_ENCODED) != NULL);
    T_TRUE(says(e, "langd-1", "langd-1", ROLE_LANGD) == NULL);
    T_EQ_STR(brain_text(e, "peers", "state", 0), "up");
    T_TRUE(says(e, "langd-2", "langd-1", ROLE_LANGD) != NULL);
    T_EQ_STR(brain_text(e, "peers", "says", 0), "langd-1");
    T_EQ_STR(brain_text(e, "peers", "state", 0), "up");
}
