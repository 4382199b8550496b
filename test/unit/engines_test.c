/* engines_test.c - connections, sessions, cells and events, which both brains
 * share (RULES 7), seen through the language side's. */
#include "core/head.h"
#include "test/there.h"

static struct local_msg hello(uint32_t magic, uint8_t version, uint8_t role)
{
    struct local_msg m = {.type = LOCAL_HELLO};

    m.hello.magic = magic;
    m.hello.version_min = m.hello.version_max = version;
    m.hello.role = role;
    m.hello.cells = 1000;
    m.hello.session = span_str("s");
    return m;
}

static void open_conn(struct rig *b, uint32_t conn)
{
    struct event ev = {.type = EV_CONN_OPEN, .conn = conn, .uid = 7};

    rig_step(b, &ev);
}

TEST(hello_comes_first_once_and_for_us)
{
    struct rig *l = BRAIN(ROLE_LANGD, "log=info");

    open_conn(l, 0);
    T_ERR(brain_say(l, 0, request(1, 0, MODE_WHOLE)), ERR_NOT_READY);
    T_ERR(
        brain_say(l, 0, (struct local_msg){.type = LOCAL_MAP}), ERR_NOT_READY);
    T_ERR(brain_say(l, 0, hello(1, WIRE_VERSION, 0)), ERR_MALFORMED);
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 1);
    T_ERR(brain_say(l, 0, hello(LOCAL_MAGIC, 9, 0)), ERR_VERSION);
    T_ERR(brain_say(l, 0, hello(LOCAL_MAGIC, 0, 0)), ERR_VERSION);
    T_ERR(brain_say(l, 0, hello(LOCAL_MAGIC, WIRE_VERSION, ROLE_ENCODED)),
        ERR_MALFORMED);
    T_OK(brain_say(l, 0, hello(LOCAL_MAGIC, WIRE_VERSION, ROLE_LANGD)));
    T_EQ_U64(l->acts[0].fd, FD_CELLS);
    T_TRUE(l->acts[0].index > 0);
    T_ERR(brain_say(l, 0, hello(LOCAL_MAGIC, WIRE_VERSION, 0)), ERR_MALFORMED);
}

/* RULES 7.7 */
TEST(a_connection_without_hello_is_ended)
{
    struct rig *l = BRAIN(ROLE_LANGD, "timeouts.hello=2s");
    uint64_t began;

    brain_pass(l, 1000);
    began = l->now_ns;
    open_conn(l, 0);
    open_conn(l, 1);
    T_EQ_U64(brain_acts(l, ACT_CONN_KNOWN), 0);
    T_OK(brain_say(l, 1, hello(LOCAL_MAGIC, WIRE_VERSION, 0)));
    T_EQ_U64(brain_acts(l, ACT_CONN_KNOWN), 1);
    T_EQ_U64(brain_deadline(l->is), began + 2 * NS_PER_S);
    brain_pass(l, 1999);
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 0);
    brain_pass(l, 1);
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 1);
    T_EQ_U64(l->acts[0].conn, 0);
    T_EQ_U64(brain_answer(l)->err, ERR_TIMEOUT);
    T_EQ_U64(brain_stat(l, "hello_overdue"), 1);
    T_EQ_U64(brain_deadline(l->is), TIME_NEVER);
}

/* Bytes that wait in the sockets are read before the deadline counts. */
/* RULES 7.7 */
TEST(a_loop_that_stood_still_ends_no_connection_unread)
{
    struct rig *l = BRAIN(ROLE_LANGD, "timeouts.hello=2s");

    open_conn(l, 0);
    open_conn(l, 1);
    l->now_ns += 3 * NS_PER_S;
    brain_is(l, EV_TIME);
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 0);
    T_EQ_U64(brain_deadline(l->is), l->now_ns + NS_PER_MS);
    T_OK(brain_say(l, 1, hello(LOCAL_MAGIC, WIRE_VERSION, 0)));
    l->now_ns += 3 * NS_PER_S;
    brain_is(l, EV_TIME); /* the second time it counts */
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 1);
    T_EQ_U64(l->acts[0].conn, 0);
}

TEST(frames_that_break_the_protocol_are_counted)
{
    struct rig *l = langd(NULL, NULL);
    struct event bad = {
        .type = EV_LOCAL_BAD, .conn = 0, .err = ERR_MALFORMED, .seq = 3};
    struct local_msg m = {.type = LOCAL_COMMIT};
    struct event peer = {.type = EV_PEER_BAD, .link = 0, .err = ERR_MALFORMED};

    rig_step(l, &bad);
    T_EQ_U64(brain_answer(l)->err, ERR_MALFORMED);
    T_ERR(brain_say(l, 0, m), ERR_MALFORMED); /* a message for encoded only */
    T_EQ_U64(brain_stat(l, "malformed_local"), 2);
    rig_step(l, &peer);
    T_EQ_U64(brain_stat(l, "malformed_peer"), 1);
    T_EQ_U64(brain_stat(l, "unknown_bits"), 0);
}

/* Both wires answer the sender what is wrong with its message. */
/* RULES 2.3 */
TEST_LANGD(unknown_bits_are_answered)
{
    struct peer_msg m = {.type = PEER_LENGTH,
        .seq = 9,
        .from_epoch = PEER_EPOCH,
        .to_epoch = BRAIN_EPOCH,
        .room = 5,
        .generation = 6};
    struct event bad = {.type = EV_LOCAL_BAD,
        .err = ERR_MALFORMED,
        .seq = 3,
        .fault = {"flags", 255, 1, false}};
    struct event peer = {.type = EV_PEER_BAD,
        .err = ERR_MALFORMED,
        .peer = &m,
        .fault = {"flags", 128, 5, false}};
    const struct peer_msg *nack;

    rig_step(l, &bad);
    T_EQ_U64(brain_answer(l)->err, ERR_MALFORMED);
    T_TRUE(span_eq(brain_answer(l)->text,
        span_str("flags is 0xff, and only 0x1 is known")));
    bad.err = ERR_BUSY; /* an unknown type */
    rig_step(l, &bad);
    T_TRUE(span_eq(brain_answer(l)->text, span_str("no message of that type")));
    rig_step(l, &peer);
    nack = brain_said(l, PEER_NACK, 0);
    T_TRUE(nack != NULL);
    T_EQ_U64(nack->nack.reason, ERR_MALFORMED);
    T_EQ_U64(nack->nack.answers, PEER_LENGTH);
    T_EQ_U64(nack->generation, 6);
    T_TRUE(span_eq(
        nack->nack.text, span_str("flags is 0x80, and only 0x5 is known")));
    T_EQ_U64(brain_stat(l, "unknown_bits"), 2);
    m.from_epoch++; /* its header names another daemon */
    rig_step(l, &peer);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.reason, ERR_STALE);
}

/* RULES 7.3 */
TEST_LANGD(cells_and_tags)
{
    struct local_msg r = request(1, 512, MODE_WHOLE);

    T_ERR(brain_say(l, 0, r), ERR_MALFORMED); /* cells 0 to 511 were granted */
    r = request(1, 0, MODE_WHOLE);
    r.request.tag = TAG_MAX + 1;
    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    r.request.tag = 0; /* as in a cell that was never used */
    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    T_TRUE(span_eq(brain_answer(l)->text, span_str("request: tags are 1 to "
                                                   "4194303")));
    (void)ask_room(l, 1, 0);
    T_EQ_U64(cell_tag(l->cells[0][0]), 100);
    T_ERR(brain_say(l, 0, request(2, 0, MODE_WHOLE)), ERR_MALFORMED);
    r = release(0, ROWS_UNKNOWN);
    r.release.tag = 99; /* of an earlier use of the cell */
    T_ERR(brain_say(l, 0, r), ERR_UNKNOWN_ROOM);
    r = abort_of(5);
    T_ERR(brain_say(l, 0, r), ERR_UNKNOWN_ROOM);
    T_EQ_U64(brain_stat(l, "refused"), 6);
    SAYS(l, 0, release(0, ROWS_UNKNOWN), request(2, 0, MODE_WHOLE));
}

/* A tag that comes again in an idle cell must not find the word of its last
 * use. */
/* RULES 7.3 */
TEST_LANGD(a_released_cell_is_cleared)
{
    struct there t = ask_room(l, 1, 0);

    fill_succeeds(l, &t, 8, 0);
    SAYS(l, 0, attach(1, 1, RIGHT_WATCH), release(0, ROWS_UNKNOWN));
    T_EQ_U64(l->cells[0][0], 0);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_SUCCESS);
}

/* A client that asks for no cells gets one: a file of no bytes cannot be
 * mapped. */
TEST_WITH(at_least_one_cell, struct rig *l, BRAIN(ROLE_LANGD, "log=info"))
{
    struct local_msg m = hello(LOCAL_MAGIC, WIRE_VERSION, 0), w;
    struct reader r;

    open_conn(l, 0);
    m.hello.cells = 0;
    T_OK(brain_say(l, 0, m));
    r = reader_of(l->bytes + l->acts[0].at, l->acts[0].len);
    T_OK(local_get(&r, &w));
    T_EQ_U64(w.welcome.cells, 1);
    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
}

/* Texts of one program reach others as clean UTF-8. */
/* RULES 2.4 */
TEST_LANGD(texts_of_others_are_clean)
{
    static const char dirty[] = "\x1b[2J gr\xc3\xbc\xc3\x9f \xff\xfe\n";
    static const char clean[] = "?[2J gr\xc3\xbc\xc3\x9f ???";
    struct peer_msg failed = {.type = PEER_FAILED};
    struct local_msg m = abort_of(0);
    struct there t = ask_room(l, 1, 0);
    const struct local_event *e;

    m.abort.text = span_str(dirty);
    T_OK(brain_say(l, 0, m));
    T_TRUE(span_eq(brain_said(l, PEER_ABORT, 0)->abort.text, span_str(clean)));
    while ((e = brain_event(l, 0)) && !(e->what & EVENT_FAILED))
        ;
    T_TRUE(e && span_eq(e->text, span_str(clean)));
    t = ask_room(l, 2, 1);
    failed.room = 2;
    failed.generation = t.generation;
    failed.failed.reason = ERR_GONE;
    failed.failed.text = span_str(dirty);
    brain_hear(l, 0, failed);
    while ((e = brain_event(l, 0)) && !(e->what & EVENT_FAILED))
        ;
    T_TRUE(e && span_eq(e->text, span_str(clean)));
    m = (struct local_msg){.type = LOCAL_POOL};
    m.pool.name = span_str("\xff\x1b");
    T_ERR(brain_say(l, 0, m), ERR_MALFORMED);
    T_TRUE(span_eq(brain_answer(l)->text, span_str("no pool `??` here")));
}

/* A refused HELLO changes nothing that was known of the peer. */
TEST(a_bad_hello_changes_nothing)
{
    static const uint8_t pools[] = {
        1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 'p', 5, 0, 'x', ':', 'u', '8', ':'};
    struct peer_hello good = {.version_min = 1,
        .version_max = 1,
        .segment_max = 4096,
        .name = span_str("enc"),
        .pools = span_of(pools, sizeof(pools))};
    struct key boot = {{0}};
    struct peer peer = {0}, before;
    uint8_t many[3 * 65] = {0}; /* addresses */
    const char *text;

    T_OK(peer_take_hello(&peer, &good, &boot, &text));
    T_EQ_U64(peer.pools_count, 1);
    T_EQ_STR(peer_layout(&peer, peer.pools[0].hash), "x:u8:");
    before = peer;
    for (unsigned i = 0; i < sizeof(many); i += 3)
        many[i] = 1;
    for (unsigned i = 0; i < 10; i++) {
        struct peer_hello m = good;

        m.software = span_str("9");
        if (i == 0)
            m.pools.len--;
        else if (i == 1)
            m.name = span_str("\x1b");
        else if (i == 2)
            m.name = span_of("enc", 0);
        else if (i == 3)
            m.segment_max = 1023;
        else if (i == 4)
            m.addresses = span_of(pools, 3);
        else if (i == 5)
            m.addresses = span_of("\0\0", 2); /* an empty one */
        else if (i == 6)
            m.addresses = span_of("\2\0a", 3); /* a cut one */
        else if (i == 7)
            m.addresses = span_of(many, sizeof(many));
        else if (i == 8)
            m.version_min = 2;
        else
            m.version_min = m.version_max = 0;
        T_ERR(peer_take_hello(&peer, &m, &boot, &text),
            i >= 8 ? ERR_VERSION : ERR_MALFORMED);
        T_TRUE(text[0] != 0);
        T_EQ_MEM(&peer, &before, sizeof(peer));
    }
}

/* RULES 7.1 */
TEST_LANGD(rooms_belong_to_their_session)
{
    struct event ev = {.type = EV_CONN_OPEN, .conn = 2, .uid = 8};

    (void)ask_room(l, 1, 0);
    brain_conn(l, 1, "other");
    T_ERR(brain_say(l, 1, attach(1, 0, RIGHT_READ)), ERR_NOT_OWNER);
    rig_step(l, &ev); /* the session's name is the same, the user is not */
    T_OK(brain_say(l, 2, hello(LOCAL_MAGIC, WIRE_VERSION, 0)));
    T_ERR(brain_say(l, 2, attach(1, 0, RIGHT_READ)), ERR_NOT_OWNER);
    T_ERR(brain_say(l, 0, attach(1, 9, RIGHT_WRITE)), ERR_MALFORMED);
}

/* RULES 7.1 */
TEST_LANGD(attach_waits_and_fails_by_its_deadline)
{
    struct local_msg a = attach(1, 5, RIGHT_READ);

    a.attach.deadline_ms = 500;
    T_OK(brain_say(l, 0, a));
    T_ERR(brain_say(l, 0, release(5, 1)), ERR_MALFORMED);
    T_HAS(
        (const char *)brain_answer(l)->text.p, "0 are shown, 0 were released");
    brain_pass(l, 400);
    T_EQ_U64(brain_events(l, 0, 5), 0);
    brain_pass(l, 200);
    T_EQ_U64(brain_events(l, 0, 5), EVENT_FAILED);
    T_EQ_U64(l->event.event.reason, ERR_TIMEOUT);
    T_EQ_U64(brain_state(l, 0, 5), ROOM_FAILED);
    (void)ask_room(l, 1, 0); /* the request comes too late for it */
    T_EQ_U64(brain_state(l, 0, 5), ROOM_FAILED);
    T_ERR(brain_say(l, 0, release(5, 1)), ERR_MALFORMED);
    T_OK(brain_say(l, 0, release(5, ROWS_UNKNOWN)));
}

/* RULES 7.3 */
TEST_LANGD(events_fold_and_wait_for_whoever_is_slow)
{
    struct there t = ask_room(l, 1, 0);
    struct writer w = writer_of(l->event_bytes, 60);

    brain_hear(l, 0, length(&t, 16, 16, true));
    T_EQ_U64(brain_acts(l, ACT_NOTIFY), 1);
    brain_landed(l, &t.open, 0, 16);
    /* the connection has not pulled the first event yet */
    T_EQ_U64(brain_acts(l, ACT_NOTIFY), 0);
    /* no space for the event: it stays */
    T_FALSE(brain_next_event(l->is, 0, &w));
    T_EQ_U64(w.len, 0);
    T_EQ_U64(brain_event(l, 0)->what, EVENT_LENGTH | EVENT_READY);
    T_EQ_U64(l->event.event.state, ROOM_SUCCESS);
    T_TRUE(brain_event(l, 0) == NULL);
    (void)ask_room(l, 2, 1);
    T_OK(brain_say(l, 0, abort_of(1)));
    /* notified again, for the next event */
    T_EQ_U64(brain_acts(l, ACT_NOTIFY), 1);
}

/* RULES 7.1 */
TEST_LANGD(session_end_ends_rooms_not_a_connections)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t;

    r.request.readers = 1;
    t = ask(l, 0, r);
    brain_conn(l, 1, "s");
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_READ)));
    brain_end(l, 0); /* another connection of the session is there */
    T_EQ_U64(brain_state(l, 1, 5), ROOM_BOOTSTRAPPING);
    fill(l, &t, 8);
    T_TRUE(brain_events(l, 1, 5) & EVENT_READY);
    T_EQ_U64(brain_free(l), 15);
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 16);
    (void)ask(l, 1, request(2, 6, MODE_WHOLE));
    brain_end(l, 1);
    T_EQ_U64(brain_free(l), 16);
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
    T_EQ_U64(brain_said(l, PEER_ABORT, 0)->abort.reason, ERR_ENGINE_LOST);
    T_EQ_U64(brain_stat(l, "engines_lost"), 2);
    T_EQ_U64(brain_shown(l, "status", "attachments", 0), 0);
}

TEST_LANGD(bye_releases_all_of_the_connection)
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    brain_conn(l, 1, "s"); /* keeps the session alive */
    fill(l, &a, 8);
    T_TRUE(brain_events(l, 0, 0) & EVENT_READY);
    T_EQ_U64(brain_free(l), 13);
    T_OK(brain_say(l, 0, (struct local_msg){.type = LOCAL_BYE}));
    T_EQ_U64(brain_acts(l, ACT_CONN_CLOSE), 1);
    T_EQ_U64(brain_free(l), 16);
    T_EQ_U64(brain_said(l, PEER_ABORT, 0)->generation, b.generation);
    T_EQ_U64(brain_stat(l, "engines_lost"), 0);
    brain_gone(l, 0);
    brain_conn(l, 0, "s"); /* the connection's number may be used again */
}

TEST(pool_of_the_first_engines_layout)
{
    struct rig *l = BRAIN(ROLE_LANGD, "pools[0].layout=engine");
    struct local_msg m = {.type = LOCAL_POOL};

    brain_conn(l, 0, "s");
    T_ERR(brain_say(l, 0, m), ERR_NOT_READY);
    T_ERR(brain_say(l, 0, request(1, 0, MODE_WHOLE)), ERR_NOT_READY);
    m.pool.layout = span_str("x:nonsense:4");
    T_ERR(brain_say(l, 0, m), ERR_MALFORMED);
    m.pool.layout = span_str("x:u8:4096");
    T_OK(brain_say(l, 0, m));
    T_EQ_U64(brain_acts(l, ACT_POOL_FIX), 1);
    T_EQ_U64(l->acts[l->acts_count - 1].fd, FD_POOL);
    T_OK(brain_say(l, 0, m));
    m.pool.layout = span_str("x:u8:4095");
    T_ERR(brain_say(l, 0, m), ERR_INCOMPATIBLE_LAYOUT);
    m.pool.name = span_str("none");
    T_ERR(brain_say(l, 0, m), ERR_MALFORMED);
    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
}

/* Makes a POOL call on this connection. */
static void ask_pool(struct rig *b, uint32_t conn, uint32_t seq)
{
    struct local_msg m = {.type = LOCAL_POOL, .seq = seq};
    struct event ev = {.type = EV_LOCAL, .conn = conn, .local = &m};

    m.pool.layout = span_str("x:u8:4096");
    rig_step(b, &ev);
}

/* Returns how many POOL calls the last step answered with a descriptor. */
static uint32_t pools_said(const struct rig *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->acts_count; i++)
        n += b->acts[i].type == ACT_LOCAL && b->acts[i].fd == FD_POOL;
    return n;
}

/* Other calls are answered meanwhile. The answer comes when the memory is
 * there, and not to a later connection of the same number. */
TEST(a_pool_whose_memory_takes_long)
{
    struct rig *l = BRAIN(ROLE_LANGD, "pools[0].layout=engine");

    l->slow_pools = true;
    for (uint32_t conn = 0; conn < 4; conn++)
        brain_conn(l, conn, "s");
    for (uint32_t conn = 0; conn < 3; conn++) {
        ask_pool(l, conn, 70 + conn);
        T_EQ_U64(pools_said(l), 0);
        T_EQ_U64(brain_acts(l, ACT_POOL_FIX), conn == 0);
    }
    T_ERR(brain_say(l, 3, request(1, 0, MODE_WHOLE)), ERR_NOT_READY);
    brain_gone(l, 2);
    brain_conn(l, 2, "s");
    brain_pool(l, true);
    T_EQ_U64(pools_said(l), 2);
    T_OK(brain_say(l, 3, request(1, 0, MODE_WHOLE)));
}

TEST(a_pool_whose_memory_cannot_be_had)
{
    struct rig *l = BRAIN(ROLE_LANGD, "pools[0].layout=engine");

    l->slow_pools = true;
    brain_conn(l, 0, "s");
    ask_pool(l, 0, 70);
    T_EQ_STR(brain_text(l, "pools", "state", 0), "populating");
    brain_pool(l, false);
    T_EQ_U64(pools_said(l), 0);
    T_EQ_U64(brain_acts(l, ACT_LOCAL), 1);
    T_EQ_STR(brain_text(l, "pools", "state", 0), "broken");
    ask_pool(l, 0, 71); /* asks again: the memory may be there now */
    T_EQ_U64(brain_acts(l, ACT_POOL_FIX), 1);
    brain_pool(l, true);
    T_EQ_U64(pools_said(l), 1);
}

TEST(pools_are_for_their_users)
{
    struct rig *l = BRAIN(ROLE_LANGD, "pools[0].uids[0]=99");
    struct local_msg m = {.type = LOCAL_POOL};

    brain_conn(l, 0, "s");
    T_ERR(brain_say(l, 0, m), ERR_NOT_OWNER);
    T_ERR(brain_say(l, 0, request(1, 0, MODE_WHOLE)), ERR_NOT_OWNER);
}

/* RULES 10.2 */
TEST(any_group_of_a_process_counts)
{
    static const struct groups groups = {3, {20, 21, 22}};
    struct rig *l =
        BRAIN(ROLE_LANGD, "pools[0].gids[0]=5", "pools[0].gids[1]=22");
    struct event ev = {.type = EV_CONN_OPEN, .conn = 1, .gid = 4, .pid = 17};
    struct local_msg hello = {.type = LOCAL_HELLO}, m = {.type = LOCAL_POOL};

    hello.hello.magic = LOCAL_MAGIC;
    hello.hello.version_min = hello.hello.version_max = WIRE_VERSION;
    hello.hello.cells = 8;
    for (uint32_t i = 1; i < 4; i++) {
        ev.conn = i;
        ev.gid = i == 2 ? 5 : 4;
        ev.groups = i == 3 ? &groups : NULL;
        rig_step(l, &ev);
        T_OK(brain_say(l, i, hello));
        T_ERR(brain_say(l, i, m), i == 1 ? ERR_NOT_OWNER : OK);
    }
}

TEST_LANGD(a_room_is_in_so_many_cells_at_most)
{
    uint32_t shown = 0, conns = 7;

    for (uint32_t conn = 1; conn <= conns; conn++)
        brain_conn(l, conn, "s");
    /* they attach before the request */
    for (uint32_t i = 0; i < 60 * conns; i++)
        T_OK(brain_say(l, 1 + i / 60, attach(1, i % 60, RIGHT_READ)));
    (void)ask_room(l, 1, 0);
    T_ERR(brain_say(l, 0, attach(1, 9, RIGHT_READ)), ERR_QUOTA);
    T_OK(brain_say(l, 0, abort_of(0)));
    for (uint32_t conn = 1; conn <= conns; conn++)
        for (uint32_t cell = 0; cell < 60; cell++)
            shown += cell_tag(l->cells[conn][cell]) == cell + 100;
    T_EQ_U64(shown, ROOM_ATTACHMENTS_MAX - 1);
}

TEST_LANGD(what_each_connection_has_is_shown)
{
    uint64_t before = brain_shown(l, "engines", "rooms_total", 0);
    struct there t = ask_room(l, 1, 0);

    brain_conn(l, 1, "s");
    open_conn(l, 2);
    T_OK(brain_say(l, 1, attach(1, 3, RIGHT_READ)));
    brain_hear(l, 0, length(&t, 8, 8, true));
    brain_pass(l, 50);
    brain_landed(l, &t.open, 0, 8);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    for (uint32_t i = 0; i < 2; i++) {
        T_EQ_STR(brain_text(l, "engines", "state", i), "connected");
        T_EQ_U64(brain_shown(l, "engines", "uid", i), 7);
        T_EQ_U64(brain_shown(l, "engines", "rooms", i), 1);
        T_EQ_U64(brain_shown(l, "engines", "bytes", i), 8 * 4096);
    }
    T_EQ_STR(brain_text(l, "engines", "state", 2), "silent");
    T_EQ_U64(brain_shown(l, "engines", "age_ms", 2), 50);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "engines", "rooms", 0), 0);
    T_EQ_U64(brain_shown(l, "engines", "rooms_total", 0), before + 1);
    brain_end(l, 1); /* the process of the connection may still read the rows */
    T_EQ_STR(brain_text(l, "engines", "state", 1), "gone");
    brain_dead(l, 1);
    T_EQ_STR(brain_text(l, "engines", "state", 1), "silent");
}
