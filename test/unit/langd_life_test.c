/* langd_life_test.c - how long rooms of langd live: streams that continue after
 * releases, readers that were announced, owners that die. As in langd_test.c:
 * blocks of 8 rows, 16 of them, a default grant is 2. */
#include "test/there.h"

/* RULES 2.1 */
TEST_LANGD(a_length_confirms_its_grant)
{
    struct there t = {.room = 1};
    struct peer_msg m;

    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    t.generation = brain_said(l, PEER_INIT, 0)->generation;
    m = length(&t, 16, 16, true);
    m.length.attempt = 0;
    m.length.granted = 8;
    brain_hear(l, 0, m); /* says another grant than the one in force */
    brain_pass(l, 1000);
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    m.length.granted = 16;
    m.length.attempt = NONE; /* says no grant */
    brain_hear(l, 0, m);
    brain_pass(l, 3000);
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    m.length.attempt = 0;
    brain_hear(l, 0, m);
    brain_pass(l, 10000);
    T_TRUE(brain_said(l, PEER_INIT, 0) == NULL);
    T_TRUE(brain_said(l, PEER_RESUME, 0) == NULL);
}

/* RULES 2.1 */
TEST_LANGD(a_length_is_answered_late_or_by_ack)
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    brain_hear(l, 0, length(&a, 16, 16, true));
    T_TRUE(brain_said(l, PEER_STATE, 0) == NULL);
    brain_pass(l, 200);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 1);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.total, 16);
    brain_hear(l, 0, length(&b, 16, 16, true));
    brain_hear(l, 0, length(&b, 16, 16, true)); /* a repetition right behind */
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.answers, PEER_LENGTH);
    brain_hear(l, 0, length(&b, 16, 16, true));
    brain_landed(l, &b.open, 0, 16);
    T_TRUE(brain_said(l, PEER_ACK, 0) != NULL);
    brain_pass(l, 200);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
}

/* RULES 2.1 */
TEST_LANGD(a_length_is_answered_soon, "timeouts.retry=10s")
{
    struct there a = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&a, 16, 16, true));
    brain_pass(l, 40);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 0);
    brain_pass(l, 20);
    T_EQ_U64(brain_said_count(l, PEER_STATE), 1);
}

TEST_LANGD(a_pool_says_for_how_long_its_oldest_rows_are_ready)
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    brain_pass(l, 5000);
    T_EQ_U64(brain_shown(l, "pools", "oldest_ready_ms", 0), 0);
    fill(l, &a, 8);
    brain_pass(l, 300);
    fill(l, &b, 8);
    brain_pass(l, 400);
    T_EQ_U64(brain_shown(l, "pools", "oldest_ready_ms", 0), 700);
}

/* RULES 2.1 */
TEST_LANGD(acked_answers_acks)
{
    struct there t[3];
    struct peer_msg m = {.type = PEER_ACKED};
    uint8_t bytes[32];
    struct writer w = writer_of(bytes, sizeof(bytes));

    for (uint32_t i = 0; i < 3; i++) {
        t[i] = ask_room(l, i + 1, i);
        fill(l, &t[i], 8);
        /* the last one belongs to no room */
        put_u64(&w, t[i].generation + (i == 2));
        if (i > 0)
            T_OK(brain_say(l, 0, release(i, ROWS_UNKNOWN)));
    }
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 3);
    m.acked.generations = span_of(bytes, w.len - 1);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.reason, ERR_MALFORMED);
    m.acked.generations = span_of(bytes, w.len);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 2);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 1);
    brain_pass(l, 500);
    T_TRUE(brain_said_count(l, PEER_ACK) > 0);
    T_EQ_U64(brain_said(l, PEER_ACK, -1)->generation, t[2].generation);
}

/* A stream of unknown length: four blocks are granted, one is shown and
 * released. */
TEST(a_stream_of_unknown_length_goes_on_after_a_release)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=4", "pools[0].max_room_blocks=8");
    struct there s = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&s, ROWS_UNKNOWN, 1000, false));
    told(l, &s);
    brain_landed(l, &s.open, 0, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 8);
    (void)brain_events(l, 0, 0);
    T_OK(brain_say(l, 0, release(0, 8)));
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 40);
    brain_landed(l, &s.open, 8, 32); /* the rest of the grant has landed */
    T_EQ_U64(cell_rows(l->cells[0][0]), 40);
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 4);
}

/* The stream's endpoint breaks, and a reader releases rows before the shards
 * have closed the attempt. In this time no rows can be granted, so no blocks
 * are given back. */
/* RULES 5.20 */
TEST(a_stream_that_is_read_while_it_closes_keeps_its_promise)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=4", "pools[0].max_room_blocks=8");
    struct there s = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&s, ROWS_UNKNOWN, 1000, false));
    told(l, &s);
    brain_landed(l, &s.open, 0, 16);
    l->noisy = true;
    brain_hear(l, 0, about(&s, PEER_BROKEN));
    T_OK(brain_say(l, 0, release(0, 16)));
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 4);
    while (brain_quiet(l))
        ;
    told(l, &s);
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 4);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 48);
    brain_landed(l, &s.open, 16, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 24);
}

/* RULES 5.20 */
TEST(what_a_stream_was_promised_ends_with_its_max_rows)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=4", "pools[0].max_room_blocks=8");
    struct there s = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&s, ROWS_UNKNOWN, 40, false));
    told(l, &s);
    brain_landed(l, &s.open, 0, 32);
    (void)brain_events(l, 0, 0);
    T_OK(brain_say(l, 0, release(0, 32)));
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 1);
    brain_landed(l, &s.open, 32, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 40);
}

/* RULES 5.20 */
TEST(rows_expected_of_a_stream_do_not_lower_what_it_was_promised)
{
    struct rig *l = langd_up("pools[0].default_blocks=4", NULL);
    struct local_msg r = request(1, 0, MODE_STREAM);
    struct there s;

    r.request.rows = 8;
    s = ask(l, 0, r);
    brain_hear(l, 0, length(&s, ROWS_UNKNOWN, 64, false));
    told(l, &s);
    brain_landed(l, &s.open, 0, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 8);
}

TEST(a_stream_far_beyond_32_bits_of_its_promise_is_capped)
{
    struct rig *l = langd_up("pools[0].default_blocks=4", NULL);
    struct local_msg r = request(1, 0, MODE_STREAM);

    r.request.rows = ROWS_UNKNOWN - 1;
    (void)ask(l, 0, r);
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 8); /* half the pool */
}

/* readers */

TEST(a_declared_reader_of_a_null_room_may_be_late)
{
    struct rig *l = langd(NULL, NULL);
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct local_msg a = attach(1, 5, RIGHT_READ);

    brain_conn(l, 1, "s");
    r.request.encoder = a.attach.encoder = span_str("null");
    r.request.readers = 1;
    T_OK(brain_say(l, 0, r));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_OK(brain_say(l, 1, a));
    T_EQ_U64(brain_state(l, 1, 5), ROOM_SUCCESS);
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* Takes a room of zero rows, requested with r, through its life. */
static void zero_rows(struct rig *l, struct local_msg r)
{
    struct there t;

    brain_conn(l, 1, "s");
    r.request.readers = 1;
    t = ask(l, 0, r);
    brain_hear(l, 0, length(&t, 0, 0, true));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    brain_hear(l, 0, acked(&t));
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_READ)));
    T_EQ_U64(brain_state(l, 1, 5), ROOM_SUCCESS);
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* RULES 7.2 */
TEST(a_declared_reader_of_no_rows_without_a_grant_may_be_late)
{
    zero_rows(
        langd_up("pools[0].default_blocks=0", NULL), request(1, 0, MODE_WHOLE));
}

TEST(a_declared_reader_of_no_rows_in_a_group_may_be_late)
{
    zero_rows(langd_up(NULL, NULL), request_in(1, 0, 7, 1));
}

TEST(a_declared_reader_of_no_rows_for_several_may_be_late)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);

    r.request.required_dst = 2;
    zero_rows(langd_up(NULL, NULL), r);
}

/* RULES 7.2 */
TEST_LANGD(more_readers_than_cells_are_refused)
{
    struct local_msg r = request(1, 0, MODE_STREAM);

    r.request.readers = 128;
    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    T_TRUE(strstr((const char *)brain_answer(l)->text.p, "127"));
    r.request.readers = 127;
    T_OK(brain_say(l, 0, r));
}

/* RULES 5.20 */
TEST_LANGD(a_stream_that_no_process_reads_any_more_ends)
{
    struct local_msg a = attach(1, 5, RIGHT_READ | RIGHT_WATCH);
    struct there s;

    brain_conn(l, 1, "s"); /* keeps the session alive */
    s = ask(l, 0, request(1, 0, MODE_STREAM));
    T_OK(brain_say(l, 1, a));
    brain_hear(l, 0, length(&s, 64, 64, true));
    brain_gone(l, 0);
    T_TRUE(brain_state(l, 1, 5) != ROOM_FAILED); /* a reader is left */
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_said(l, PEER_ABORT, 0)->abort.reason, ERR_ENGINE_LOST);
    T_EQ_U64(brain_free(l), 16);
}

/* Returns a READY room of two readers, of which the first has attached. */
static struct there half_attached(struct rig *l, uint8_t mode)
{
    struct local_msg r = request(1, 0, mode);
    struct there t;

    brain_conn(l, 1, "s");
    brain_conn(l, 2, "s");
    r.request.readers = 2;
    t = ask(l, 0, r);
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_READ)));
    fill(l, &t, 16);
    (void)brain_events(l, 0, 0);
    (void)brain_events(l, 1, 5);
    return t;
}

static struct local_msg last_release(uint32_t cell, uint32_t rows)
{
    struct local_msg m = release(cell, rows);

    m.release.flags = FLAG_NO_READERS;
    return m;
}

/* Otherwise it would get READY, and see no rows. */
/* RULES 7.2 */
TEST_LANGD(a_reader_that_was_not_declared_finds_no_rows_that_went)
{
    struct there t;

    brain_conn(l, 1, "s");
    t = ask(l, 0, request(1, 0, MODE_WHOLE));
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_WATCH)));
    brain_hear(l, 0, length(&t, 16, 16, true));
    brain_landed(l, &t.open, 0, 16);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    /* all rows are still there */
    T_OK(brain_say(l, 1, attach(1, 6, RIGHT_READ)));
    T_OK(brain_say(l, 1, release(6, ROWS_UNKNOWN)));
    frees(l, 0, 16);
    T_ERR(brain_say(l, 1, attach(1, 6, RIGHT_READ)), ERR_GONE);
    T_OK(brain_say(l, 1, attach(1, 6, RIGHT_WATCH)));
}

/* RULES 7.2 */
TEST(readers_that_do_not_attach_in_time_are_not_waited_for)
{
    struct rig *l = langd_up("timeouts.consumer=1s", NULL);
    struct there t = half_attached(l, MODE_WHOLE);

    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, acked(&t));
    brain_pass(l, 1100);
    T_EQ_U64(brain_free(l), 14); /* the reader that has attached still reads */
    T_ERR(brain_say(l, 2, attach(1, 6, RIGHT_READ)), ERR_GONE);
    SAYS(l, 2, attach(1, 7, RIGHT_WATCH), release(7, ROWS_UNKNOWN));
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 16);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* RULES 7.2 */
TEST_LANGD(the_requester_may_say_that_no_more_readers_come)
{
    struct there t = half_attached(l, MODE_WHOLE);

    brain_hear(l, 0, acked(&t));
    T_ERR(brain_say(l, 1, last_release(5, ROWS_UNKNOWN)), ERR_NOT_OWNER);
    /* for a room that does not exist yet */
    T_OK(brain_say(l, 1, attach(2, 7, RIGHT_READ)));
    T_ERR(brain_say(l, 1, last_release(7, ROWS_UNKNOWN)), ERR_NOT_OWNER);
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 14);
    T_OK(brain_say(l, 0, last_release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 16);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
    /* The missing reader is told once; a further attach is for a later room. */
    T_ERR(brain_say(l, 2, attach(1, 6, RIGHT_READ)), ERR_GONE);
    T_OK(brain_say(l, 2, attach(1, 6, RIGHT_READ)));
}

TEST_LANGD(a_new_room_of_the_id_has_readers_of_its_own)
{
    struct there t = half_attached(l, MODE_WHOLE);

    brain_hear(l, 0, acked(&t));
    T_OK(brain_say(l, 0, last_release(0, ROWS_UNKNOWN)));
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    (void)ask(l, 0, request(1, 0, MODE_WHOLE));
    T_OK(brain_say(l, 2, attach(1, 6, RIGHT_READ)));
}

TEST_LANGD(a_stream_goes_on_when_no_more_readers_come)
{
    struct local_msg r = request(1, 0, MODE_STREAM);
    struct there t;

    r.request.readers = 1;
    t = ask(l, 0, r);
    fill(l, &t, 24);
    (void)brain_events(l, 0, 0);
    T_OK(brain_say(l, 0, release(0, 8)));
    T_EQ_U64(brain_free(l), 13);
    T_OK(brain_say(l, 0, last_release(0, 16)));
    T_EQ_U64(brain_free(l), 15);
}

/* groups */

/* Requests a room of a group of two in cell 0, and releases it. */
static void group_of_one(struct rig *l, uint64_t group)
{
    struct there t = ask(l, 0, request_in(5000 + group, 0, group, 2));

    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, about(&t, PEER_DRAINED));
}

/* RULES 5.7 */
TEST_LANGD(groups_whose_last_member_never_came_give_way, "limits.rooms=8")
{
    for (uint32_t i = 1; i <= 100; i++)
        group_of_one(l, i);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
    /* limits.rooms and the reserve */
    T_EQ_U64(brain_shown(l, "status", "groups", 0), 10);
    /* Group 100 is still known: a room with another size does not fit. */
    T_ERR(brain_say(l, 0, request_in(1, 0, 100, 3)), ERR_MALFORMED);
    /* Group 1 is forgotten: the oldest groups were evicted. */
    T_OK(brain_say(l, 0, request_in(1, 0, 1, 3)));
}

/* RULES 5.7 */
TEST_LANGD(groups_end_with_their_session, "limits.rooms=8")
{
    for (uint32_t i = 1; i <= 5; i++)
        group_of_one(l, i);
    T_EQ_U64(brain_shown(l, "status", "groups", 0), 5);
    brain_gone(l, 0);
    T_EQ_U64(brain_shown(l, "status", "groups", 0), 0);
}

/* memory that is taken away */

/* RULES 6.6 */
TEST_LANGD(rows_without_memory_end_their_room_and_no_other)
{
    struct there t = ask_room(l, 1, 0), other = ask_room(l, 2, 1);
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_LAND_GONE}};

    told(l, &t);
    ev.note.slot = t.open.slot;
    ev.note.generation = t.generation;
    rig_step(l, &ev);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_CORRUPT);
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
    rig_step(l, &ev); /* its next segment finds no memory either */
    fill_succeeds(l, &other, 8, 1);
}

/* giving up before the encoder was reached */

/* RULES 7.4, 9.4 */
TEST(what_was_given_up_is_said_when_the_encoder_comes)
{
    struct rig *l = langd(NULL, NULL);
    const struct peer_msg *said;

    SAYS(l, 0, request(7, 0, MODE_WHOLE), release(0, ROWS_UNKNOWN));
    brain_is(l, EV_LINK_UP);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    said = brain_said(l, PEER_ABORT, 0);
    T_TRUE(said != NULL);
    T_EQ_U64(said->room, 7);
    T_EQ_U64(brain_said_count(l, PEER_INIT), 0);
}

/* RULES 9.4 */
TEST(an_encoder_that_never_comes_holds_no_room)
{
    struct rig *l = langd(NULL, NULL);

    SAYS(l, 0, request(7, 0, MODE_WHOLE), release(0, ROWS_UNKNOWN));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 1);
    brain_pass(l, 6000);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* RULES 9.4 */
TEST_LANGD(an_encoder_that_connects_and_says_nothing_is_not_waited_for_longer)
{
    struct there t = ask_room(l, 1, 0);

    fill(l, &t, 8);
    /* its ACK is not answered */
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_down(l, 0);
    for (int i = 0; i < 4; i++) {
        T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 1);
        brain_pass(l, 31000);
        brain_is(l, EV_LINK_UP);
        brain_down(l, 0);
    }
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
    T_EQ_U64(brain_stat(l, "peers_lost"), 1);
}

static struct local_msg decline(uint64_t room)
{
    struct local_msg m = {.type = LOCAL_DECLINE};

    m.decline.room = room;
    m.decline.encoder = span_str("enc");
    m.decline.key.b[0] = 9;
    return m;
}

static uint32_t declines_said(struct rig *l)
{
    brain_is(l, EV_LINK_UP);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    return brain_said_count(l, PEER_DECLINE);
}

/* RULES 9.4 */
TEST_WITH(declines_wait_for_their_encoder, struct rig *l, langd(NULL, NULL))
{
    T_OK(brain_say(l, 0, decline(7)));
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 1);
    T_OK(brain_say(l, 0, decline(8)));
    /* room 8 is wanted again */
    T_OK(brain_say(l, 0, request(8, 0, MODE_WHOLE)));
    T_EQ_U64(declines_said(l), 1);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 7);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->decline.key.b[0], 9);
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 8);
    T_EQ_U64(declines_said(l), 0);
}

/* RULES 9.4 */
TEST(declines_that_wait_are_forgotten_in_time_the_oldest_first)
{
    struct rig *l = langd(NULL, NULL);

    T_OK(brain_say(l, 0, decline(1)));
    brain_pass(l, 121000);
    for (uint64_t room = 2; room < 302; room++)
        T_OK(brain_say(l, 0, decline(room)));
    T_EQ_U64(brain_stat(l, "declines_forgotten"), 44);
    T_EQ_U64(declines_said(l), 256);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 46);
    brain_down(l, 0);
    T_OK(brain_say(l, 0, decline(1)));
    brain_pass(l, 121000);
    T_EQ_U64(declines_said(l), 0);
}

/* RULES 9.4 */
TEST(declines_of_one_user_evict_those_of_no_other)
{
    struct rig *l = langd(NULL, NULL);

    brain_user(l, 1, 8, "other");
    T_OK(brain_say(l, 1, decline(1)));
    for (uint64_t room = 2; room < 602; room++)
        T_OK(brain_say(l, 0, decline(room)));
    for (uint64_t room = 602; room < 702; room++)
        T_OK(brain_say(l, 1, decline(room)));
    T_EQ_U64(declines_said(l), 256);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 0)->room, 1);
    T_EQ_U64(brain_said(l, PEER_DECLINE, 1)->room, 601 - 154);
    T_EQ_U64(brain_said(l, PEER_DECLINE, -1)->room, 701);
}

/* encoders that cannot be reached */

/* Requests a room in its own cell. Returns OK, or why the room failed at
 * once. */
static enum err try_room(struct rig *l, uint64_t room, uint32_t cell)
{
    T_OK(brain_say(l, 0, request(room, cell, MODE_WHOLE)));
    return brain_reason(l, 0, cell);
}

/* RULES 8.4 */
TEST(rooms_of_an_encoder_that_is_not_reached_end_soon_then_at_once)
{
    struct rig *l = langd("timeouts.unreachable=2s", NULL);

    T_ERR(try_room(l, 1, 0), OK);
    brain_pass(l, 1500);
    T_ERR(try_room(l, 2, 1), OK);
    brain_pass(l, 400);
    T_EQ_U64(brain_reason(l, 0, 0), OK);
    brain_pass(l, 200); /* 2 s after the first request */
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_PEER_LOST);
    T_EQ_U64(brain_stat(l, "peers_unreachable"), 1);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_HAS((const char *)l->event.event.text.p, "never reached");
    T_ERR(try_room(l, 3, 2), ERR_PEER_LOST);
    brain_is(l, EV_LINK_UP);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    /* no ABORT: the engines ask for these rooms again */
    T_EQ_U64(brain_said_count(l, PEER_ABORT), 0);
    T_ERR(try_room(l, 4, 3), OK);
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 4);
}

/* RULES 8.4 */
TEST_LANGD(an_encoder_that_restarts_in_time_serves_those_that_asked_meanwhile,
    "timeouts.unreachable=2s")
{
    T_ERR(try_room(l, 1, 0), OK);
    brain_down(l, 0);
    brain_pass(l, 1000); /* the encoder is lost */
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_ERR(try_room(l, 2, 1), OK);
    brain_pass(l, 900);
    brain_is(l, EV_LINK_UP);
    brain_hello(l, 0, "enc", PEER_EPOCH + 1);
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->room, 2);
    brain_pass(l, 10000);
    T_EQ_U64(brain_reason(l, 0, 1), OK);
    brain_down(l, 0);
    brain_pass(l, 1000);
    T_ERR(try_room(l, 3, 2), OK);
    brain_pass(l, 1100); /* this time the encoder does not come back */
    T_EQ_U64(brain_reason(l, 0, 2), ERR_PEER_LOST);
}

/* RULES 8.4 */
TEST(a_connection_without_a_hello_does_not_reach_the_encoder)
{
    struct rig *l = langd("timeouts.unreachable=1s", NULL);

    T_ERR(try_room(l, 1, 0), OK);
    for (int i = 0; i < 3; i++) {
        brain_is(l, EV_LINK_UP);
        brain_pass(l, 300);
        brain_down(l, 0);
    }
    T_EQ_U64(brain_reason(l, 0, 0), OK);
    rig_step(l, &(struct event){.type = EV_LINK_REFUSED,
                    .trouble = TROUBLE_KEY,
                    .text = "it has no key"});
    brain_pass(l, 200);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_HAS((const char *)l->event.event.text.p, "it has no key");
}

/* RULES 1.4 */
TEST(rows_of_a_broken_attempt_are_not_shown_in_the_next)
{
    struct rig *l = langd_up("pools[0].default_blocks=4", NULL);
    struct there s = ask(l, 0, request(1, 0, MODE_STREAM));
    struct peer_msg m = about(&s, PEER_BROKEN);

    brain_hear(l, 0, length(&s, ROWS_UNKNOWN, 64, false));
    told(l, &s);
    brain_landed(l, &s.open, 8, 24);
    brain_hear(l, 0, m);
    told(l, &s);
    brain_landed(l, &s.open, 24, 8);
    brain_landed(l, &s.open, 0, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 8);
}

/* RULES 2.1 */
TEST(an_answer_about_a_smaller_grant_confirms_no_larger_one)
{
    struct rig *l = langd_up("pools[0].default_blocks=1", NULL);
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 16, 16, true)); /* LENGTH widens the grant */
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 16);
    brain_hear(l, 0, state(&t, PEER_RESUME, 0, 8));
    brain_pass(l, 100);
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 1);
    brain_hear(l, 0, state(&t, PEER_RESUME, 0, 16));
    brain_pass(l, 5000);
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
}

TEST_LANGD(a_room_whose_key_is_taken_waits_for_no_readers)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t;

    r.request.readers = 1;
    t = ask(l, 0, r);
    fill(l, &t, 16);
    brain_hear(l, 0, acked(&t));
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 1);
    (void)ask_room(l, 1, 1);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 1);
}

/* The encoder announced before it committed, and needed no WANT. */
TEST_LANGD(a_break_says_what_is_due, "timeouts.progress=3s")
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_BROKEN);

    brain_hear(l, 0, length(&t, 16, 16, true));
    m.broken.committed = 16;
    for (m.broken.attempt = 0; m.broken.attempt < 2; m.broken.attempt++) {
        brain_hear(l, 0, m);
        brain_pass(l, 1400);
        T_TRUE(brain_state(l, 0, 0) != ROOM_FAILED);
    }
    brain_pass(l, 400);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
}

TEST_LANGD(what_ended_is_remembered_for_30_seconds)
{
    struct there t = ask_room(l, 1, 0);

    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, about(&t, PEER_DRAINED));
    brain_pass(l, 29000);
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.reason, ERR_ABORTED);
    brain_pass(l, 2000);
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.reason, ERR_STALE);
}
