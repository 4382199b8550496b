/* data_key_test.c - the key of a pair's data connections: how the brains draw
 * it, send it (HELLO's data_key) and pass it to the shards. Bodies give random
 * bytes. */
#include "test/there.h"
#include "core/share.h"

static uint8_t fresh[DATA_KEY_FRESH], drawn[DATA_KEY_FRESH];

/* Keeps a rig reachable, so that the leak checker does not report it. */
static struct rig *kept(struct rig *r)
{
    static struct rig *volatile all[4];
    static uint32_t count;

    T_TRUE(count < ARRAY_LEN(all));
    return all[count++] = r;
}

/* Returns bytes that no earlier call gave. */
static const uint8_t *draw(void)
{
    static uint8_t at;

    memset(fresh, ++at, sizeof(fresh));
    return fresh;
}

/* Returns a langd whose data connections have keys; its link comes up. */
static struct rig *keyed(bool encrypt)
{
    struct rig *l = langd(
        "control.keys=/etc/mmx/key", encrypt ? "transfer.encrypt=on" : NULL);

    T_OK(brain_say(l, 0, request(1000, 63, MODE_WHOLE)));
    rig_step(l, &(struct event){.type = EV_LINK_UP, .fresh = draw()});
    return l;
}

static void hello_of(struct rig *l, uint64_t epoch)
{
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = epoch};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.answer = true;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("enc");
    rig_step(l, &(struct event){.type = EV_PEER, .peer = &m, .fresh = draw()});
}

/* Returns the i-th key that shards were given since the last step. */
static const struct action *told_key(const struct rig *l, uint32_t i)
{
    for (uint32_t k = 0; k < l->acts_count; k++)
        if (l->acts[k].type == ACT_PEER_KEY && i-- == 0)
            return &l->acts[k];
    return NULL;
}

/* Checks that shards got the key that was drawn last, before the peer got any
 * message. */
static void is_told(struct rig *l, const struct action *a, uint8_t bits)
{
    T_TRUE(a != NULL && a->len == DATA_KEY_BYTES);
    T_EQ_U64(l->bytes[a->at], bits);
    T_EQ_MEM(l->bytes + a->at + DATA_KEY_BITS, fresh, DATA_KEY_FRESH);
    for (const struct action *p = l->acts; p < a; p++)
        T_TRUE(p->type != ACT_PEER);
    memcpy(drawn, fresh, sizeof(drawn));
}

/* Checks that the last HELLO has no key: any daemon may answer on the link. */
static void is_unsaid(struct rig *l)
{
    const struct peer_msg *m = brain_said(l, PEER_HELLO, -1);

    T_EQ_U64(m->to_epoch, 0);
    T_EQ_U64(m->hello.data_key.len + m->hello.addresses.len, 0);
}

/* Checks that the run that has answered gets the key. */
static void is_said(struct rig *l, uint64_t epoch, uint8_t bits)
{
    const struct peer_msg *m = brain_said(l, PEER_HELLO, -1);

    T_EQ_U64(brain_said_count(l, PEER_HELLO), 1);
    T_EQ_U64(m->to_epoch, epoch);
    T_EQ_U64(m->hello.data_key.len, DATA_KEY_BYTES);
    T_EQ_U64(m->hello.data_key.p[0], bits);
    T_EQ_MEM(m->hello.data_key.p + DATA_KEY_BITS, drawn, DATA_KEY_FRESH);
}

TEST(a_key_is_drawn_for_the_pair_and_told_first)
{
    struct rig *l = keyed(true);

    is_told(l, told_key(l, 0), DATA_KEY_ENCRYPT);
    is_unsaid(l);
    hello_of(l, PEER_EPOCH);
    T_TRUE(told_key(l, 0) == NULL);
    is_said(l, PEER_EPOCH, DATA_KEY_ENCRYPT);
    hello_of(l, PEER_EPOCH);
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 0);
    l = keyed(false);
    is_told(l, told_key(l, 0), 0);
}

TEST_WITH(a_new_run_has_a_new_key, struct rig *l, keyed(false))
{
    hello_of(l, PEER_EPOCH);
    hello_of(l, PEER_EPOCH + 1);
    T_EQ_U64(told_key(l, 0)->len, 0);
    is_told(l, told_key(l, 1), 0);
    is_said(l, PEER_EPOCH + 1, 0);
    hello_of(l, PEER_EPOCH + 1);
    T_TRUE(told_key(l, 0) == NULL);
}

TEST_WITH(a_link_that_comes_back_keeps_it, struct rig *l, keyed(false))
{
    is_told(l, told_key(l, 0), 0);
    hello_of(l, PEER_EPOCH);
    brain_down(l, 0);
    rig_step(l, &(struct event){.type = EV_LINK_UP, .fresh = draw()});
    T_TRUE(told_key(l, 0) == NULL);
    is_unsaid(l);
    hello_of(l, PEER_EPOCH);
    T_TRUE(told_key(l, 0) == NULL);
    is_said(l, PEER_EPOCH, 0);
}

/* Another daemon, or a later run, may answer on the link. */
TEST(another_run_hears_no_key_of_the_one_before)
{
    struct rig *l = keyed(false);

    hello_of(l, PEER_EPOCH);
    brain_down(l, 0);
    rig_step(l, &(struct event){.type = EV_LINK_UP, .fresh = draw()});
    is_unsaid(l);
    hello_of(l, PEER_EPOCH + 1);
    T_EQ_U64(told_key(l, 0)->len, 0);
    is_told(l, told_key(l, 1), 0);
    is_said(l, PEER_EPOCH + 1, 0);
}

TEST_WITH(a_peer_that_is_lost_has_none, struct rig *l, keyed(false))
{
    hello_of(l, PEER_EPOCH);
    brain_down(l, 0);
    brain_pass(l, (uint32_t)(l->conf.control_lost_after / NS_PER_MS) + 1);
    T_EQ_U64(told_key(l, 0)->len, 0);
    rig_step(l, &(struct event){.type = EV_LINK_UP, .fresh = draw()});
    is_told(l, told_key(l, 0), 0);
    is_unsaid(l);
}

/* The evicted peer had a link, and never said HELLO. */
TEST(a_place_that_is_given_away_has_none)
{
    struct rig *l = kept(BRAIN(ROLE_LANGD, "control.keys=/etc/mmx/key",
        "control.allow[0]=tcp://127.0.0.1:*", "limits.peers=2"));
    struct local_msg m = request(1000, 63, MODE_WHOLE);
    uint32_t link = 1; /* `enc` has link 0 */
    char name[40];

    brain_conn(l, 0, "s");
    m.request.encoder = span_str("tcp://127.0.0.1:8001");
    T_OK(brain_say(l, 0, m));
    rig_step(
        l, &(struct event){.type = EV_LINK_UP, .link = link, .fresh = draw()});
    is_told(l, told_key(l, 0), 0);
    T_EQ_U64(told_key(l, 0)->index, link);
    brain_down(l, link);
    T_OK(brain_say(l, 0, release(63, ROWS_UNKNOWN)));
    for (uint32_t i = 0; i < 3 + PEERS_UNPROVEN && !told_key(l, 0); i++) {
        snprintf(name, sizeof(name), "tcp://127.0.0.1:%u", 8002 + i);
        m = request(1001, i, MODE_WHOLE);
        m.request.encoder = span_str(name);
        T_OK(brain_say(l, 0, m));
    }
    T_TRUE(told_key(l, 0) != NULL);
    T_EQ_U64(told_key(l, 0)->len, 0);
    T_EQ_U64(told_key(l, 0)->index, link);
}

TEST(without_keys_none_is_said)
{
    struct rig *l = kept(langd_up(NULL, NULL));

    brain_down(l, 0);
    rig_step(l, &(struct event){.type = EV_LINK_UP, .fresh = draw()});
    T_TRUE(told_key(l, 0) == NULL);
    T_EQ_U64(brain_said(l, PEER_HELLO, -1)->hello.data_key.len, 0);
}

/* encoded */

/* Has a langd say HELLO with a key of `bytes` bytes. Returns what the shards
 * got, or NULL. */
static const struct action *hears(struct rig *e, uint32_t bytes)
{
    static const uint8_t key[64] = {DATA_KEY_ENCRYPT, 7, 7, 7};
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = PEER_EPOCH};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_LANGD;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("a");
    m.hello.carrier = CARRIER_TCP;
    m.hello.carriers = span_str("tcp");
    m.hello.addresses = span_of("\3\0abc", 5);
    m.hello.data_key = span_of(key, bytes);
    brain_hear(e, 0, m);
    for (uint32_t i = 0; i < e->acts_count; i++)
        if (e->acts[i].type == ACT_PEER_DATA)
            return &e->acts[i];
    return NULL;
}

TEST(shards_get_the_key_behind_the_addresses)
{
    struct rig *e = kept(BRAIN(ROLE_ENCODED, "control.keys=/etc/mmx/key"));
    const struct action *a = hears(e, DATA_KEY_BYTES);

    T_EQ_U64(a->len, 5 + DATA_KEY_BYTES);
    T_EQ_U64(a->word >> 40, DATA_KEY_BYTES);
    T_EQ_MEM(e->bytes + a->at + 5, "\1\7\7\7", 4);
}

TEST(what_came_in_the_clear_is_no_key)
{
    struct rig *e = kept(BRAIN(ROLE_ENCODED, NULL));
    const struct action *a = hears(e, DATA_KEY_BYTES);

    T_EQ_U64(a->len, 5);
    T_EQ_U64(a->word >> 40, 0);
}

TEST(a_key_of_another_length_is_refused)
{
    struct rig *e = kept(BRAIN(ROLE_ENCODED, "control.keys=/etc/mmx/key"));

    T_TRUE(hears(e, DATA_KEY_BYTES - 1) == NULL);
    T_EQ_U64(brain_said(e, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
}
