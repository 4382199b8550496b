/* langd_test.c - the language side's brain against the rules of a room, one
 * case per rule. Blocks and units are 8 rows, the pool has 16, a default grant
 * is 2; the encoder is link 0. */
#include "test/there.h"

/* a room */

/* RULES 4.1, 4.3 */
TEST_LANGD(request_then_announce_widened_ready)
{
    struct there t = ask_room(l, 1, 0);
    const struct peer_msg *m;

    T_EQ_U64(brain_free(l), 14);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    brain_hear(l, 0, length(&t, 40, 40, true));
    m = brain_said(l, PEER_RESUME, 0);
    T_EQ_U64(m->resume.attempt, 0);
    T_EQ_U64(m->resume.granted, 40);
    brain_pass(l, 50);
    m = brain_said(l, PEER_STATE, 0);
    T_EQ_U64(m->state.answers, PEER_LENGTH);
    T_EQ_U64(m->state.total, 40);
    T_EQ_U64(m->state.flags, FLAG_AUX);
    T_EQ_U64(brain_stat(l, "widened"), 1);
    T_EQ_U64(brain_free(l), 11);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_WAITING);
    brain_landed(l, &t.open, 8, 32);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_TRANSFERRING);
    T_TRUE(brain_said(l, PEER_ACK, 0) == NULL);
    brain_landed(l, &t.open, 0, 8);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 1);
    T_EQ_U64(cell_rows(l->cells[0][0]), 40);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_events(l, 0, 0), EVENT_LENGTH | EVENT_READY);
    T_EQ_U64(there_blocks(&l->event.event), 5);
    T_EQ_MEM(l->event.event.aux.p, "aux!", 4);
    frees(l, 0, 16);
    T_EQ_U64(brain_stat(l, "rows_moved"), 40);
    brain_pass(l, 1000);
    T_TRUE(brain_said_count(l, PEER_ACK) > 1); /* repeated until answered */
    brain_hear(l, 0, acked(&t));
    brain_pass(l, 10000);
    T_EQ_U64(brain_said_count(l, PEER_ACK), 0);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* RULES 4.3 */
TEST_LANGD(trim_at_length_is_local)
{
    struct there t = ask_room(l, 1, 0);

    l->noisy = true;
    brain_hear(l, 0, length(&t, 3, 64, true));
    T_EQ_U64(brain_cmd(l, LAND_TRIM)->a, 8);
    T_TRUE(brain_said(l, PEER_RESUME, 0) == NULL);
    T_EQ_U64(brain_free(l), 14); /* a landing may still write to them */
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_free(l), 15);
    brain_landed(l, &t.open, 0, 3);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 4.8 */
TEST_LANGD(total_zero_is_ready_at_length)
{
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 0, 0, true));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_TRUE(brain_said(l, PEER_ACK, 0) != NULL);
    T_EQ_U64(brain_free(l), 16);
    T_TRUE(brain_events(l, 0, 0) & EVENT_READY);
    T_EQ_U64(l->event.event.aux.len, 4);
}

/* RULES 4.6 */
TEST_LANGD(ready_needs_rows_and_aux_in_any_order)
{
    struct there t = ask_room(l, 1, 0);

    brain_landed(l, &t.open, 0, 8); /* data overtakes LENGTH */
    brain_landed(l, &t.open, 8, 3);
    brain_hear(l, 0, length(&t, 11, 16, false));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_TRANSFERRING);
    brain_hear(l, 0, length(&t, 11, 16, true));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 2.1, 4.5 */
TEST_LANGD(want_is_granted_and_repetitions_change_nothing)
{
    struct there t = ask_room(l, 1, 0);
    uint32_t left;

    HEARS(l, 0, length(&t, ROWS_UNKNOWN, 64, false), want(&t, 0, 16, 24));
    T_TRUE(brain_said(l, PEER_RESUME, 0)->resume.granted >= 24);
    T_EQ_U64(brain_stat(l, "wants"), 1);
    left = brain_free(l);
    brain_hear(l, 0, want(&t, 0, 16, 24)); /* of the earlier grant */
    T_EQ_U64(brain_stat(l, "wants"), 1);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.answers, PEER_WANT);
    brain_hear(l, 0, want(&t, 1, 16, 24)); /* an attempt that does not exist */
    T_EQ_U64(brain_stat(l, "stale_attempt"), 1);
    brain_hear(l, 0, length(&t, ROWS_UNKNOWN, 64, false));
    T_EQ_U64(brain_free(l), left);
}

/* RULES 2.1 */
TEST_LANGD(init_is_repeated_until_answered)
{
    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    brain_pass(l, 1000);
    T_TRUE(brain_said_count(l, PEER_INIT) >= 3);
    T_TRUE(brain_stat(l, "retries") >= 3);
}

/* RULES 4.4 */
TEST_LANGD(total_never_changes)
{
    struct there t = ask_room(l, 1, 0);

    HEARS(l, 0, length(&t, 12, 16, false), length(&t, 13, 16, false));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_MALFORMED);
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
}

/* RULES 4.4 */
TEST_LANGD(total_below_what_came_is_malformed)
{
    struct there t = ask_room(l, 1, 0);

    brain_landed(l, &t.open, 8, 8);
    brain_hear(l, 0, length(&t, 8, 16, true));
    T_EQ_U64(brain_reason(l, 0, 0), ERR_MALFORMED);
}

/* F27 */
TEST_LANGD(rows_beyond_the_total_do_not_count)
{
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 12, 16, true));
    /* the block has 8 rows, the item 4 of them */
    brain_landed(l, &t.open, 8, 8);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_MALFORMED);
}

TEST_LANGD(absurd_lengths_are_refused)
{
    struct there t = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&t, 0xfffffffe, 0xfffffffe, true));
    T_EQ_U64(brain_reason(l, 0, 0), ERR_MALFORMED);
    T_EQ_U64(brain_free(l), 16);
}

TEST_LANGD(too_large_says_both_numbers)
{
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 1000, 1000, false));
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TOO_LARGE);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_EQ_U64(l->event.event.a, 1000);
    T_EQ_U64(l->event.event.b, 128);
    t = ask_room(l, 2, 1); /* too large by its committed rows */
    HEARS(l, 0, length(&t, ROWS_UNKNOWN, 1000, false), want(&t, 0, 16, 129));
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TOO_LARGE);
}

/* identity */

/* RULES 1.7, 1.8 */
TEST_LANGD(key_and_storage_must_agree)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t;
    struct peer_msg m;

    r.request.key.b[0] = 1;
    t = ask(l, 0, r);
    m = length(&t, 8, 8, true);
    m.length.key.b[0] = 2;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_ITEM_MISMATCH);
    r = request(2, 1, MODE_WHOLE);
    r.request.storage = STORAGE_PROMPT;
    t = ask(l, 0, r);
    brain_hear(l, 0, length(&t, 8, 8, true));
    T_EQ_U64(brain_reason(l, 0, 1), ERR_ITEM_MISMATCH);
    t = ask(l, 0, request(3, 2, MODE_WHOLE)); /* no key differs from any key */
    m = length(&t, 8, 8, true);
    m.length.key.b[0] = 2;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 2), ERR_ITEM_MISMATCH);
}

TEST_LANGD(a_request_that_makes_no_sense_is_refused)
{
    struct local_msg r = request(1, 0, MODE_STREAM + 1);

    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    r = request(1, 0, MODE_WHOLE);
    r.request.storage = STORAGE_PROMPT + 1;
    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    r = request(1, 0, MODE_WHOLE);
    r.request.traceparent = span_str("00-1");
    T_ERR(brain_say(l, 0, r), ERR_MALFORMED);
    l = langd_up("pools[0].blocks=2", "pools[0].default_blocks=2");
    T_ERR(brain_say(l, 0, request(1, 0, MODE_STREAM)), ERR_TOO_LARGE);
}

/* An engine that reads a READY room sees the loss in its own calls. */
TEST_LANGD(rooms_of_a_pool_that_is_lost_fail)
{
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_POOL_LOST}};
    struct there t = ask_room(l, 1, 0);

    fill(l, &t, 8);
    (void)ask_room(l, 2, 1);
    rig_step(l, &ev);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_INTERNAL);
}

/* RULES 1.6; F29 */
TEST_LANGD(second_owner_of_a_key_is_refused)
{
    struct there t = ask_room(l, 1, 0);

    brain_conn(l, 1, "other");
    T_ERR(brain_say(l, 1, request(1, 0, MODE_WHOLE)), ERR_DUPLICATE_ROOM);
    fill(l, &t, 8); /* the first room is not affected */
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    /* a new room of this id */
    T_OK(brain_say(l, 1, request(1, 0, MODE_WHOLE)));
    T_TRUE(brain_said(l, PEER_INIT, 0)->generation != t.generation);
}

/* RULES 1.2; F21 */
TEST_LANGD(unknown_generation_is_stale)
{
    struct there t = {.room = 5, .generation = 12345};
    const struct peer_msg *m;

    brain_hear(l, 0, length(&t, 8, 8, true));
    m = brain_said(l, PEER_STATE, 0);
    T_EQ_U64(m->state.state, ROOM_FAILED);
    T_EQ_U64(m->state.reason, ERR_STALE);
    T_EQ_U64(brain_stat(l, "stale_generation"), 1);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 4.6 */
TEST_LANGD(ready_wins_over_failed)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_FAILED);

    fill(l, &t, 8);
    m.failed.reason = ERR_ENGINE_LOST;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_SUCCESS);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    brain_hear(l, 0, acked(&t));
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, m); /* the room is forgotten, but its end is remembered */
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_SUCCESS);
}

TEST_LANGD(failed_ends_the_room_and_is_answered)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_FAILED);

    m.failed.reason = ERR_UNKNOWN_ROOM;
    m.failed.text = span_str("encode again");
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.state, ROOM_FAILED);
    T_TRUE(brain_said(l, PEER_ABORT, 0) == NULL);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_UNKNOWN_ROOM);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 1.1 */
TEST_LANGD(another_epoch_changes_nothing)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = length(&t, 8, 8, true);

    m.to_epoch = 99;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_NACK, 0)->nack.reason, ERR_STALE);
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 1);
    m = length(&t, 8, 8, true);
    m.from_epoch = 98;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_stat(l, "stale_epoch"), 2);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
}

static void refuse(struct rig *l, const char *text)
{
    struct peer_msg m = {.type = PEER_NACK, .from_epoch = PEER_EPOCH};

    m.nack.answers = PEER_HELLO;
    m.nack.reason = ERR_BUSY;
    m.nack.text = span_str(text);
    brain_hear(l, 0, m);
}

/* RULES 1.9 */
TEST(a_hello_that_is_refused_is_told_once_and_names_why_rooms_fail)
{
    struct rig *l = langd("timeouts.unreachable=20s", "timeouts.bootstrap=2s");

    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    brain_pass(l, 2500);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_HAS((const char *)l->event.event.text.p, "encoder was never reached");
    SAYS(l, 0, release(0, ROWS_UNKNOWN), request(1, 0, MODE_WHOLE));
    brain_is(l, EV_LINK_UP);
    T_EQ_U64(brain_said_count(l, PEER_HELLO), 1);
    refuse(l, "this name is taken");
    T_EQ_U64(brain_acts(l, ACT_WARN), 1);
    refuse(l, "this name is taken");
    T_EQ_U64(brain_acts(l, ACT_WARN), 0);
    refuse(l, "");
    T_EQ_U64(brain_acts(l, ACT_WARN), 0); /* at most one line in ten seconds */
    T_EQ_U64(brain_reason(l, 0, 0), OK);
    refuse(l, "this name is taken");
    brain_pass(l, 2500);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
    T_TRUE(brain_events(l, 0, 0) & EVENT_FAILED);
    T_HAS((const char *)l->event.event.text.p,
        "no announce came in time; the encoder refuses this daemon: this name "
        "is taken");
    brain_hello(l, 0, "enc", PEER_EPOCH); /* the refusal is over */
    T_OK(brain_say(l, 0, request(2, 1, MODE_WHOLE)));
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    refuse(l, "too late");
    T_EQ_U64(brain_acts(l, ACT_WARN), 0);
    T_OK(brain_say(l, 0, request(3, 2, MODE_WHOLE)));
}

/* RULES 1.1, 9.2 */
TEST_LANGD(new_epoch_ends_rooms_ready_rows_stay)
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    (void)b;
    fill(l, &a, 8);
    brain_hello(l, 0, "enc", PEER_EPOCH + 1);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_PEER_LOST);
    T_EQ_U64(brain_free(l), 15);
    T_TRUE(brain_cmd(l, PEER_CLOSE) != NULL);
    /* requests work at once */
    T_OK(brain_say(l, 0, request(3, 2, MODE_WHOLE)));
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->to_epoch, PEER_EPOCH + 1);
}

TEST_LANGD(silence_is_lost_only_after_a_while)
{
    struct there t = ask_room(l, 1, 0);

    brain_down(l, 0);
    brain_pass(l, 400);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    /* The encoder may have given the room up: langd asks, and is told. */
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->generation, t.generation);
    brain_pass(l, 1000);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
    brain_down(l, 0);
    brain_pass(l, 600);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
}

/* RULES 1.3 */
TEST_LANGD(what_is_forgotten_there_is_not_begun_anew)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg nack = about(&t, PEER_NACK);

    nack.nack.answers = PEER_RESUME;
    nack.nack.reason = ERR_STALE;
    for (unsigned i = 0; i < 3; i++) {
        T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
        brain_hear(l, 0, nack);
        T_TRUE(brain_said(l, PEER_INIT, 0) == NULL);
    }
    T_EQ_U64(brain_reason(l, 0, 0), ERR_STALE);
}

/* Its INIT comes after younger rooms have ended, and after the encoder has
 * forgotten those. */
/* RULES 1.3 */
TEST_LANGD(what_is_never_begun_there_is_given_up)
{
    struct peer_msg nack;
    struct there t;

    T_OK(brain_say(l, 0, request(1, 0, MODE_WHOLE)));
    t = (struct there){1, brain_said(l, PEER_INIT, 0)->generation, {0}};
    nack = about(&t, PEER_NACK);
    nack.nack.answers = PEER_INIT;
    nack.nack.reason = ERR_STALE;
    for (unsigned i = 0; i < 3; i++) {
        T_EQ_U64(brain_state(l, 0, 0), ROOM_BOOTSTRAPPING);
        brain_hear(l, 0, nack);
    }
    T_EQ_U64(brain_reason(l, 0, 0), ERR_STALE);
}

TEST_LANGD(a_refusal_without_a_reason_has_one)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg nack = about(&t, PEER_NACK);

    nack.nack.answers = PEER_RESUME;
    brain_hear(l, 0, nack);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_INTERNAL);
}

/* RULES 6.4 */
TEST_LANGD(an_abort_that_is_not_answered_is_said_no_more)
{
    uint32_t said = 0;

    (void)ask_room(l, 1, 0);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    said += brain_said_count(l, PEER_ABORT);
    for (uint32_t i = 0; i < 10; i++) {
        brain_pass(l, 30000);
        said += brain_said_count(l, PEER_ABORT);
    }
    T_EQ_U64(said, 8);
    T_EQ_U64(brain_stat(l, "aborts_unanswered"), 1);
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* attempts */

/* RULES 1.5; F43 */
TEST_LANGD(broken_endpoint_raises_the_attempt_three_times)
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_BROKEN);

    brain_hear(l, 0, length(&t, 16, 16, true));
    for (uint32_t i = 0; i < 3; i++) {
        l->noisy = true;
        m.broken.attempt = i;
        brain_hear(l, 0, m);
        T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.answers, PEER_BROKEN);
        /* No RESUME before the shards have closed the last attempt. */
        T_TRUE(brain_said(l, PEER_RESUME, 0) == NULL);
        T_TRUE(brain_quiet(l));
        T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.attempt, i + 1);
        T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 16);
        T_EQ_U64(brain_free(l), 14); /* the room keeps its blocks */
        told(l, &t);
        T_EQ_U64(t.open.attempt, i + 1);
        brain_hear(l, 0, m); /* repeated: for an attempt that is over */
        T_TRUE(brain_cmd(l, LAND_CLOSE) == NULL);
        l->noisy = false;
        brain_pass(l, 11000); /* so that the next break is another outage */
    }
    brain_landed(l, &t.open, 0, 8);
    m.broken.attempt = 3;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_EQ_U64(brain_stat(l, "broken"), 4);
    T_EQ_U64(brain_free(l), 16);
}

/* Breaks the room's attempt; checks that RESUME comes after pause_ms. */
static void breaks(
    struct rig *l, struct there *t, uint32_t attempt, uint32_t pause_ms)
{
    struct peer_msg m = about(t, PEER_BROKEN);

    m.broken.attempt = attempt;
    brain_hear(l, 0, m);
    told(l, t);
    if (pause_ms > 0) {
        T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
        brain_pass(l, pause_ms - 1);
        T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
        brain_pass(l, 1);
    }
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 1);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.attempt, attempt + 1);
    brain_hear(l, 0, state(t, PEER_RESUME, attempt + 1, 16));
}

/* RULES 1.5 */
TEST_LANGD(one_outage_is_one_attempt_and_has_patience)
{
    static const uint32_t pauses[] = {0, 100, 200, 400, 800, 1600, 2000, 2000};
    struct there t = ask_room(l, 1, 0);

    brain_hear(l, 0, length(&t, 16, 16, true));
    for (uint32_t i = 0; i < ARRAY_LEN(pauses); i++)
        breaks(l, &t, i, pauses[i]);
    T_TRUE(brain_state(l, 0, 0) != ROOM_FAILED);
    brain_landed(l, &t.open, 0, 16);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 1.5 */
TEST_LANGD(an_outage_ends_by_count_with_time_between, "timeouts.progress=300s")
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_BROKEN);
    uint64_t began = l->now_ns;

    brain_hear(l, 0, length(&t, 16, 16, true));
    while (brain_state(l, 0, 0) != ROOM_FAILED) {
        T_TRUE(l->now_ns - began < 60 * NS_PER_S);
        brain_hear(l, 0, m);
        m.broken.attempt++;
        brain_pass(l, 2000);
    }
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
    T_TRUE(l->now_ns - began > 30 * NS_PER_S);
}

/* RULES 1.5 */
TEST_LANGD(or_by_rows_that_do_not_come, "timeouts.progress=3s")
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = about(&t, PEER_BROKEN);

    HEARS(l, 0, length(&t, 16, 16, true), m);
    /* no committed row is missing */
    T_TRUE(brain_state(l, 0, 0) != ROOM_FAILED);
    m = want(&t, 1, 16, 16);
    brain_hear(l, 0, m);
    m = about(&t, PEER_BROKEN);
    for (m.broken.attempt = 1; m.broken.attempt <= 2; m.broken.attempt++) {
        brain_pass(l, 1400);
        T_TRUE(brain_state(l, 0, 0) != ROOM_FAILED);
        brain_hear(l, 0, m);
    }
    brain_pass(l, 1700);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_PEER_LOST);
}

/* F21 */
TEST_LANGD(rows_of_another_generation_do_not_count)
{
    struct there t = ask_room(l, 1, 0);
    struct data_cmd old;

    brain_hear(l, 0, length(&t, 16, 16, true));
    told(l, &t);
    old = t.open;
    old.generation--; /* an earlier room had the same slot and attempt */
    brain_landed(l, &old, 0, 16);
    T_TRUE(brain_state(l, 0, 0) != ROOM_SUCCESS);
    brain_landed(l, &t.open, 0, 16);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 1.4, 3.2 */
TEST_LANGD(rows_of_an_older_attempt_do_not_count)
{
    struct there t = ask_room(l, 1, 0);
    struct data_cmd old = t.open;
    struct peer_msg m = about(&t, PEER_BROKEN);

    HEARS(l, 0, length(&t, 16, 16, true), m);
    told(l, &t);
    brain_landed(l, &old, 0, 8);
    brain_landed(l, &old, 8, 8);
    T_TRUE(brain_state(l, 0, 0) != ROOM_SUCCESS);
    brain_landed(l, &t.open, 0, 16);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* stream */

/* RULES 5.20 */
TEST_LANGD(stream_shows_and_frees_a_prefix, ROOM_BLOCKS(4))
{
    struct there t;

    T_OK(brain_say(l, 0, request(1, 0, MODE_STREAM)));
    T_TRUE(brain_answer(l)->a >= 16); /* stream_rows: at least two blocks */
    t = (struct there){1, brain_said(l, PEER_INIT, 0)->generation, {0}};
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->init.flags, FLAG_STREAM);
    told(l, &t);
    HEARS(l, 0, state(&t, PEER_INIT, 0, 32), length(&t, 64, 64, true));
    brain_landed(l, &t.open, 8, 8);
    T_FALSE(brain_events(l, 0, 0) & EVENT_LANDED);
    brain_landed(l, &t.open, 0, 8);
    T_TRUE(brain_events(l, 0, 0) & EVENT_LANDED);
    T_EQ_U64(l->event.event.rows, 16);
    T_ERR(brain_say(l, 0, release(0, 17)), ERR_MALFORMED);
    T_EQ_U64(brain_answer(l)->b, 16);
    T_OK(brain_say(l, 0, release(0, 9)));
    T_EQ_U64(brain_cmd(l, LAND_BASE)->a, 8);
    /* what is released stays released */
    T_ERR(brain_say(l, 0, release(0, 8)), ERR_MALFORMED);
    brain_hear(l, 0, want(&t, 0, 32, 64));
    T_TRUE(brain_said(l, PEER_RESUME, 0) != NULL ||
           brain_shown(l, "rooms", "granted", 0) >= 40);
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 0), 4);
}

TEST_LANGD(stream_prefix_ends_where_the_item_does)
{
    struct there t = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&t, ROWS_UNKNOWN, 64, false));
    /* the item's end lands before the total is known */
    brain_landed(l, &t.open, 8, 3);
    brain_landed(l, &t.open, 0, 8);
    T_EQ_U64(cell_rows(l->cells[0][0]), 11);
    brain_hear(l, 0, length(&t, 11, 64, true));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
}

/* RULES 5.20 */
TEST_LANGD(stream_waits_for_the_slowest_reader_while_it_lives)
{
    struct local_msg r = request(1, 0, MODE_STREAM);
    struct there t;

    brain_conn(l, 1, "s");
    r.request.readers = 1;
    t = ask(l, 0, r);
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_READ)));
    brain_hear(l, 0, length(&t, 64, 64, true));
    told(l, &t);
    brain_landed(l, &t.open, 0, 24);
    (void)brain_events(l, 0, 0);
    (void)brain_events(l, 1, 5);
    T_OK(brain_say(l, 0, release(0, 24)));
    T_TRUE(brain_cmd(l, LAND_BASE) == NULL);
    T_OK(brain_say(l, 1, release(5, 8)));
    T_EQ_U64(brain_cmd(l, LAND_BASE)->a, 8);
    brain_end(l, 1); /* its process may still read */
    T_TRUE(brain_cmd(l, LAND_BASE) == NULL);
    brain_dead(l, 1);
    T_EQ_U64(brain_cmd(l, LAND_BASE)->a, 24);
}

TEST_LANGD(exposed_rows_stay_when_the_endpoint_breaks)
{
    struct there t = ask(l, 0, request(1, 0, MODE_STREAM));
    struct peer_msg m = about(&t, PEER_BROKEN);

    brain_hear(l, 0, length(&t, 64, 64, true));
    brain_landed(l, &t.open, 0, 16);
    T_EQ_U64(cell_rows(l->cells[0][0]), 16);
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.from, 16);
    T_EQ_U64(cell_rows(l->cells[0][0]), 16);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_TRANSFERRING);
}

/* fences */

/* RULES 6.1 */
TEST_LANGD(blocks_wait_for_owner_and_readers)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t;

    brain_conn(l, 1, "s");
    T_OK(brain_say(l, 1, attach(1, 5, RIGHT_READ))); /* before the request */
    r.request.readers = 2;
    t = ask(l, 0, r);
    fill(l, &t, 8);
    brain_conn(l, 2, "s");
    T_OK(brain_say(l, 2, attach(1, 6, RIGHT_READ))); /* after READY */
    T_TRUE(brain_events(l, 1, 5) & EVENT_READY);
    T_TRUE(brain_events(l, 2, 6) & EVENT_READY);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_OK(brain_say(l, 1, release(5, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 15);
    T_OK(brain_say(l, 2, release(6, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 6.1 */
TEST_LANGD(no_deadline_or_abort_takes_blocks_from_a_reader)
{
    struct there t = ask(l, 0, request(1, 0, MODE_STREAM));

    brain_hear(l, 0, length(&t, 64, 64, true));
    brain_landed(l, &t.open, 0, 16);
    T_TRUE(brain_events(l, 0, 0) & EVENT_LANDED); /* the rows are shown now */
    T_OK(brain_say(l, 0, abort_of(0)));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_FAILED);
    T_TRUE(brain_free(l) < 16);
    T_TRUE(brain_shown(l, "pools", "quarantined", 0) > 0);
    T_TRUE(brain_stat(l, "blocks_quarantined") > 0);
    brain_pass(l, 3600000);
    brain_end(l, 0); /* end of file is not the process's death */
    T_TRUE(brain_free(l) < 16);
    brain_dead(l, 0);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 6.1 */
TEST_LANGD(blocks_of_a_failed_room_wait_for_landings)
{
    (void)ask_room(l, 1, 0);
    l->noisy = true;
    frees(l, 0, 14);
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_free(l), 16);
    T_TRUE(brain_said(l, PEER_ABORT, 0) != NULL);
    brain_pass(l, 1000); /* blocks do not wait for DRAINED */
    T_TRUE(brain_said_count(l, PEER_ABORT) >= 2);
}

/* deadlines */

/* RULES 8.3 */
TEST_LANGD(bootstrap_and_total, "timeouts.bootstrap=1s", "timeouts.total=2s")
{
    struct there t = ask_room(l, 1, 0);

    (void)t;
    brain_pass(l, 1100);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
    t = ask_room(l, 2, 1);
    brain_hear(l, 0, length(&t, 8, 8, true));
    brain_pass(l, 1100);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_WAITING);
    brain_pass(l, 1000);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TIMEOUT);
    T_EQ_U64(brain_stat(l, "deadlines"), 2);
}

/* RULES 8.3; F44 */
TEST_LANGD(progress_needs_rows_and_a_grant, "timeouts.progress=2s")
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m;

    brain_hear(l, 0, length(&t, 16, 16, true));
    brain_pass(l, 5000); /* no row is committed, so none is due */
    T_EQ_U64(brain_state(l, 0, 0), ROOM_WAITING);
    m = length(&t, 16, 16, true);
    m.length.committed = 16;
    brain_hear(l, 0, m);
    brain_pass(l, 1900);
    brain_landed(l, &t.open, 0, 8);
    brain_pass(l, 1900);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_TRANSFERRING);
    brain_pass(l, 200);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
}

/* RULES 8.3 */
TEST_LANGD(progress_runs_for_less_than_a_unit, "timeouts.progress=1s")
{
    struct there t = ask_room(l, 1, 0);
    struct peer_msg m = length(&t, 3, 3, true);

    m.length.committed = 3;
    brain_hear(l, 0, m);
    brain_pass(l, 1100);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TIMEOUT);
}

/* RULES 8.3 */
TEST_LANGD(consumer_deadline_only_counts, "timeouts.consumer=1s")
{
    struct there t = ask_room(l, 1, 0);

    fill(l, &t, 8);
    brain_pass(l, 1100);
    T_EQ_U64(brain_stat(l, "consumer_overdue"), 1);
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_free(l), 15);
}

/* several destinations */

/* RULES 5.16 */
TEST_LANGD(one_of_several_gets_no_default_grant)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t;

    r.request.required_dst = 2;
    t = ask(l, 0, r);
    T_EQ_U64(brain_free(l), 16);
    brain_hear(l, 0, want(&t, 0, 0, 40)); /* comes before LENGTH */
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 40);
    brain_hear(l, 0, length(&t, 40, 40, true));
    T_TRUE(brain_said(l, PEER_RESUME, 0) == NULL);
    T_EQ_U64(brain_free(l), 11);
}
