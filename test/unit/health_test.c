/* health_test.c - whether a room could complete (RULES 9.6), as both brains
 * report it: what must be there, what may be missing, and the reason that is
 * given. */
#include "core/peers/peers.h"
#include "test/there.h"

/* langd's configuration has the encoder `enc`; this one is added. */
#define OTHER "peers[1].name=other", "peers[1].address=tcp://127.0.0.1:7602"

static struct health of(const struct rig *b)
{
    struct health h;

    brain_health(b->is, &h);
    T_EQ_U64(h.ready, strcmp(h.state, "ready") == 0);
    return h;
}

static void is_ready(const struct rig *b, const char *text)
{
    struct health h = of(b);

    T_CHECK(h.ready && strcmp(h.text, text) == 0, "%s", h.text);
}

static void is_not(const struct rig *b, const char *text)
{
    struct health h = of(b);

    T_CHECK(!h.ready && strstr(h.text, text), "%s", h.text);
}

static void have_pool(struct rig *b, uint32_t pool)
{
    static const uint64_t offsets[LAYOUT_FIELDS_MAX];
    struct pool_memory memory = {
        .offsets = offsets, .bytes = 4096, .share = ""};
    struct event ev = {.type = EV_POOL, .pool = pool, .memory = &memory};

    rig_step(b, &ev);
}

static void lose_pool(struct rig *b, uint32_t pool)
{
    struct event ev = {
        .type = EV_NOTE, .note = {.type = NOTE_POOL_LOST, .first = pool}};

    rig_step(b, &ev);
}

static void seek(struct rig *b)
{
    brain_is(b, EV_SEEK);
}

static void link_event(struct rig *b, enum event_type type, uint32_t link)
{
    struct event ev = {
        .type = type, .link = link, .trouble = TROUBLE_KEY, .text = "key"};

    rig_step(b, &ev);
}

/* RULES 9.6 */
TEST(an_encoder_is_ready_without_a_langd)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");

    is_ready(e, "ready, but no langd is connected");
    brain_hello(e, 0, "a", PEER_EPOCH);
    is_ready(e, "ready");
    link_event(e, EV_LINK_DOWN, 0);
    is_ready(e, "ready, but no langd is connected");
}

/* RULES 9.6 */
TEST(a_pool_that_is_lost_bars_rooms_when_it_is_the_last)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "pools[1].name=second",
        "pools[1].blocks=4", "pools[1].layout=x:u8:64");

    brain_hello(e, 0, "a", PEER_EPOCH);
    is_ready(e, "ready, but not for pool second: its memory is being prepared");
    have_pool(e, 1);
    is_ready(e, "ready");
    lose_pool(e, 1);
    is_ready(e, "ready, but not for pool second: its memory is lost");
    lose_pool(e, 0);
    is_not(e, "not ready: pool main: its memory is lost");
}

/* RULES 9.6 */
TEST(a_pool_without_memory_is_not_ready)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "pools[1].name=second",
        "pools[1].blocks=4", "pools[1].layout=x:u8:64");
    struct event none = {.type = EV_POOL, .pool = 1};

    brain_hello(e, 0, "a", PEER_EPOCH);
    rig_step(e, &none);
    is_ready(e, "ready, but not for pool second: its memory could not be had");
}

/* RULES 9.6 */
TEST(a_pool_without_a_layout_waits_for_an_engine)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "pools[0].layout=engine");

    is_ready(e, "ready, but no langd is connected");
}

/* RULES 9.6 */
TEST(a_langd_connects_encoders_until_one_is_there)
{
    struct rig *l = BRAIN(ROLE_LANGD, OTHER);

    is_not(l, "no encoder is connected; enc has not answered");
    seek(l);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    seek(l);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    seek(l); /* all encoders have been asked */
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
    link_event(l, EV_LINK_REFUSED, 0);
    is_not(l, "no encoder is connected; enc: refused: key (control.keys)");
    brain_hello(l, 1, "other", PEER_EPOCH);
    is_ready(l, "ready");
    link_event(l, EV_LINK_DOWN, 1);
    is_not(l, "no encoder is connected");
}

/* RULES 9.6 */
TEST(an_encoder_that_is_away_says_since_when_and_why)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");
    struct event ev = {.type = EV_LINK_REFUSED,
        .trouble = TROUBLE_REFUSED,
        .text = "Connection refused"};

    seek(l);
    rig_step(l, &ev);
    is_not(l, "; enc: cannot be connected: Connection refused");
    brain_hello(l, 0, "enc", PEER_EPOCH);
    is_ready(l, "ready");
    link_event(l, EV_LINK_DOWN, 0);
    brain_pass(l, 2000);
    seek(l);
    is_not(l, "; enc: the connection is lost, for 2 s");
    rig_step(l, &ev);
    is_not(l, "; enc: cannot be connected: Connection refused "
              "(control.listen), for 2 s");
    T_EQ_U64(brain_shown(l, "peers", "trouble_ms", 0), 2000);
    T_EQ_STR(brain_text(l, "peers", "trouble", 0), "refused");
}

/* RULES 9.6 */
TEST_LANGD(an_encoder_elsewhere_does_not_reach_loopback)
{
    static const char says[] = "on another network, and transfer.devices is lo";
    struct own_addresses a = {.carrier = CARRIER_TCP,
        .data = span_of("\3\0xyz", 5),
        .loopback = true};
    struct event ev = {.type = EV_ADDRESSES, .addresses = &a};

    rig_step(l, &ev);
    is_ready(l, "ready");
    link_event(l, EV_LINK_DOWN, 0);
    l->far = true;
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_EQ_U64(brain_acts(l, ACT_WARN), 1);
    is_not(l, says);
    T_EQ_STR(brain_text(l, "peers", "what", 0), says);
    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_STR(brain_ended(l->is, 1)->text, says);
    a.loopback = false;
    rig_step(l, &ev);
    is_ready(l, "ready");
    T_EQ_STR(brain_text(l, "peers", "what", 0), "");
}

static void says(struct rig *e, struct data_note n)
{
    struct event ev = {
        .type = EV_NOTE, .note = n, .text = "10.0.0.7:9: no answer"};

    rig_step(e, &ev);
}

/* Says how the last try of the peer's data connection went. Returns its number.
 */
static uint32_t tried(struct rig *e, enum trouble t, uint32_t address)
{
    const struct data_cmd *c = brain_cmd(e, PEER_TRY);
    uint32_t attempt;

    T_TRUE(c != NULL);
    attempt = c->attempt;
    says(e, (struct data_note){.type = NOTE_PEER_TRIED,
                .peer = c->peer,
                .attempt = attempt,
                .slot = address,
                .rows = t});
    return attempt;
}

/* RULES 9.6 */
TEST(a_langd_whose_data_port_is_shut_is_none)
{
    static const char what[] = "rows cannot go to 10.0.0.7:9: no answer";
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");

    brain_hello(e, 0, "a", PEER_EPOCH);
    brain_pass(e, 1);
    is_ready(e, "ready");
    tried(e, TROUBLE_DATA_TIMEOUT, 0);
    T_EQ_U64(brain_acts(e, ACT_WARN), 1);
    is_not(e, "not ready: langd a: rows cannot go to 10.0.0.7:9: no answer "
              "(transfer.ports)");
    T_EQ_STR(brain_text(e, "peers", "what", 0), what);
    T_EQ_STR(brain_text(e, "peers", "trouble", 0), "data-timeout");
    T_EQ_STR(brain_text(e, "peers", "key", 0), "transfer.ports");
    brain_pass(e, 0);
    T_EQ_U64(brain_said(e, PEER_HELLO, 0)->hello.path, PATH_SHUT);
    T_EQ_U64(brain_said(e, PEER_HELLO, 0)->hello.trouble, TROUBLE_DATA_TIMEOUT);
    brain_pass(e, 150); /* while another langd serves */
    tried(e, TROUBLE_DATA_TIMEOUT, 0);
    T_EQ_U64(brain_acts(e, ACT_WARN), 0);
    brain_hello(e, 1, "b", PEER_EPOCH + 1);
    is_ready(e, "ready, but langd a: rows cannot go to 10.0.0.7:9: no answer "
                "(transfer.ports)");
    link_event(e, EV_LINK_DOWN, 1);
    brain_pass(e, 250);
    tried(e, TROUBLE_NONE, 0);
    T_EQ_U64(brain_acts(e, ACT_WARN), 1);
    is_ready(e, "ready");
    T_EQ_STR(brain_text(e, "peers", "trouble", 0), "");
}

/* Says that the data address is not connected, before any PEER_TRY for it. */
static void unmade(struct rig *e, uint32_t attempt, uint32_t address)
{
    says(e, (struct data_note){.type = NOTE_PEER_TRIED,
                .attempt = attempt,
                .slot = address,
                .rows = TROUBLE_DATA_REFUSED});
}

static struct rig *with_two_addresses(void)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");

    e->second = true;
    brain_hello(e, 0, "a", PEER_EPOCH);
    brain_pass(e, 1);
    return e;
}

/* RULES 9.6 */
TEST(a_path_is_open_again_when_the_address_that_failed_is_connected)
{
    struct rig *e = with_two_addresses();
    uint32_t first = tried(e, TROUBLE_NONE, 0);

    unmade(e, first, 1);
    is_not(e, "rows cannot go to 10.0.0.7:9: no answer");
    brain_hello(e, 0, "a", PEER_EPOCH);
    is_not(e, "rows cannot go to 10.0.0.7:9: no answer");
    brain_pass(e, 2000);
    T_EQ_U64(brain_cmd(e, PEER_TRY)->a, 1);
    T_TRUE(tried(e, TROUBLE_NONE, 1) != first);
    is_ready(e, "ready");
}

/* RULES 9.6 */
TEST(an_address_that_connects_says_nothing_of_one_that_failed_meanwhile)
{
    struct rig *e = with_two_addresses();
    struct data_note made = {.type = NOTE_PEER_TRIED};

    made.attempt = brain_cmd(e, PEER_TRY)->attempt;
    unmade(e, made.attempt, 1);
    says(e, made);
    is_not(e, "rows cannot go to 10.0.0.7:9: no answer");
    brain_pass(e, 2000);
    tried(e, TROUBLE_NONE, 1);
    is_ready(e, "ready");
}

/* RULES 9.6 */
TEST(a_path_is_shut_until_each_address_that_failed_is_connected)
{
    struct rig *e = with_two_addresses();
    uint32_t first = tried(e, TROUBLE_NONE, 0);

    for (uint32_t i = 0; i < 2; i++)
        unmade(e, first, i);
    brain_pass(e, 2000);
    tried(e, TROUBLE_NONE, brain_cmd(e, PEER_TRY)->a);
    is_not(e, "rows cannot go to 10.0.0.7:9: no answer");
    brain_pass(e, 2000);
    tried(e, TROUBLE_NONE, brain_cmd(e, PEER_TRY)->a);
    is_ready(e, "ready");
}

/* RULES 9.6 */
TEST(an_address_that_breaks_is_tried)
{
    struct rig *e = with_two_addresses();

    tried(e, TROUBLE_NONE, 0);
    says(e, (struct data_note){.type = NOTE_PEER_BROKEN, .slot = 1});
    is_ready(e, "ready");
    brain_pass(e, 2000);
    T_EQ_U64(brain_cmd(e, PEER_TRY)->a, 1);
    tried(e, TROUBLE_DATA_REFUSED, 1);
    is_not(e, "rows cannot go to 10.0.0.7:9: no answer");
    e->second = false; /* there is one address less */
    brain_hello(e, 0, "a", PEER_EPOCH);
    brain_pass(e, 2000);
    T_EQ_U64(brain_cmd(e, PEER_TRY)->a, 0);
}

/* Many rooms find the same: the next try does not wait for longer. RULES 9.6 */
TEST(rows_that_fail_on_delay_no_try)
{
    struct rig *e = with_two_addresses();
    uint32_t first = tried(e, TROUBLE_NONE, 0);

    for (int i = 0; i < 10; i++) {
        unmade(e, first, 1);
        brain_pass(e, e->conf.timeout_retry / NS_PER_MS / 10 + 1);
    }
    T_TRUE(brain_cmd(e, PEER_TRY) != NULL);
}

static void is_lost(struct rig *e)
{
    T_EQ_STR(brain_text(e, "peers", "trouble", 0), "lost");
    T_EQ_STR(brain_text(e, "peers", "what", 0), "the connection is lost");
}

/* Its data connection ends, too, and cannot be made again: that is no news.
 * RULES 9.6 */
TEST(why_a_langd_is_away_is_not_forgotten)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");
    struct data_note n = {.type = NOTE_PEER_BROKEN};

    brain_hello(e, 0, "a", PEER_EPOCH);
    brain_pass(e, 1);
    n.attempt = tried(e, TROUBLE_NONE, 0);
    link_event(e, EV_LINK_DOWN, 0);
    is_lost(e);
    says(e, n);
    brain_pass(e, 200);
    T_TRUE(!brain_cmd(e, PEER_TRY));
    n.type = NOTE_PEER_TRIED;
    n.rows = TROUBLE_DATA_REFUSED;
    says(e, n);
    is_lost(e);
    brain_pass(e, 1000); /* longer than control.lost_after */
    is_lost(e);
}

/* RULES 9.6 */
TEST(a_langd_whose_path_broke_first_is_lost_at_last)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");

    brain_hello(e, 0, "a", PEER_EPOCH);
    brain_pass(e, 1);
    (void)tried(e, TROUBLE_DATA_LOST, 0);
    link_event(e, EV_LINK_DOWN, 0);
    T_EQ_STR(brain_text(e, "peers", "trouble", 0), "data-lost");
    brain_pass(e, 1000); /* longer than control.lost_after */
    is_lost(e);
    brain_hello(e, 0, "a", PEER_EPOCH);
    T_EQ_STR(brain_text(e, "peers", "trouble", 0), "");
}

/* Hears from encoded that the path has changed. */
static void hear_path(struct rig *l, enum path path, enum trouble t)
{
    static uint32_t seq = 100;
    struct peer_msg m = {
        .type = PEER_HELLO, .from_epoch = PEER_EPOCH, .seq = ++seq};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.answer = true;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("enc");
    m.hello.path = (uint8_t)path;
    m.hello.trouble = (uint8_t)t;
    m.hello.trouble_text = span_str("rows cannot go to 10.0.0.7:9: refused");
    rig_step(l, &(struct event){.type = EV_PEER, .peer = &m});
}

/* RULES 9.6 */
TEST_LANGD(an_encoder_whose_rows_cannot_come_is_none)
{
    hear_path(l, PATH_TRIED, TROUBLE_NONE);
    is_not(l, "the data path from encoder enc is being tried");
    hear_path(l, PATH_OPEN, TROUBLE_NONE);
    is_ready(l, "ready");
    hear_path(l, PATH_SHUT, TROUBLE_DATA_REFUSED);
    T_EQ_U64(brain_acts(l, ACT_WARN), 1);
    is_not(l, "not ready: enc: rows cannot go to 10.0.0.7:9: refused "
              "(transfer.ports)");
    hear_path(l, PATH_SHUT, 250); /* a trouble of a later release */
    T_EQ_STR(brain_text(l, "peers", "trouble", 0), "data-lost");
    hear_path(l, PATH_OPEN, TROUBLE_NONE);
    is_ready(l, "ready");
    T_EQ_U64(brain_acts(l, ACT_WARN), 1);
}

/* RULES 9.6 */
TEST_LANGD(trouble_of_rows_does_not_make_a_lost_connection_older)
{
    hear_path(l, PATH_SHUT, TROUBLE_DATA_REFUSED);
    brain_pass(l, 60000);
    link_event(l, EV_LINK_DOWN, 0);
    is_not(l, "no encoder is connected; enc: the connection is lost, for 0 s");
}

TEST(one_encoder_that_is_connected_is_enough)
{
    struct rig *l = BRAIN(ROLE_LANGD, OTHER);

    seek(l);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    is_ready(l, "ready");
    seek(l);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
}

/* RULES 9.6 */
TEST(where_requests_may_name_encoders_none_is_missed)
{
    is_ready(BRAIN(ROLE_LANGD, "control.allow=tcp://127.0.0.1:*"),
        "ready, but no encoder is connected; requests may name some");
}

/* RULES 9.6 */
TEST(an_encoder_of_other_layouts_is_none)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");
    uint8_t pools[64];
    struct writer w = writer_of(pools, sizeof(pools));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = PEER_EPOCH};
    struct event ev = {.type = EV_PEER, .peer = &m};

    put_u64(&w, 1);
    put_span(&w, span_str("main"), 2, 63);
    put_span(&w, span_str("y:u8:8"), 2, 63);
    seek(l);
    brain_is(l, EV_LINK_UP);
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.answer = true;
    m.hello.segment_max = 65536;
    m.hello.name = span_str("enc");
    m.hello.pools = span_of(pools, w.len);
    rig_step(l, &ev);
    is_not(l, "encoder enc has no pool of a layout that is here");
}

TEST(a_daemon_that_drains_is_not_ready)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");

    brain_is(e, EV_DRAIN);
    is_not(e, "draining");
    T_TRUE(strcmp(of(e).state, "draining") == 0);
}
