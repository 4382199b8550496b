/* encoded_queue_test.c - who gets source blocks, and which room is ended so
 * that another one gets them (RULES 5). As in encoded_test.c: blocks and units
 * are 8 rows, the pool has 16, langd `a` is link 0, `b` link 1. */
#include "test/here.h"

/* Has langd queue for a room: it knows that rows wait, and has no blocks for
 * them yet. */
static void queues(
    struct rig *e, uint32_t link, uint64_t room, uint64_t generation)
{
    T_EQ_U64(brain_said(e, PEER_WANT, -1)->generation, generation);
    brain_hear(e, link, state(room, generation, PEER_WANT, ROOM_WAITING));
}

static void fill_pool(struct rig *e, uint64_t room, uint32_t cell)
{
    T_OK(brain_say(e, 0, announce(room, cell, 128, 128)));
    T_EQ_U64(brain_free(e), 0);
}

/* Announces a room whose langd has granted all of it firmly: it lacks only
 * source blocks. */
static void full_room(struct rig *e, uint32_t link, uint64_t room,
    uint32_t cell, uint64_t generation, uint32_t rows)
{
    T_OK(brain_say(e, 0, announce(room, cell, rows, rows)));
    brain_hear(e, link, asks(e, room, generation));
    brain_hear(e, link, grants(room, generation, rows, FIRM_YES));
}

static void leaves(struct rig *e, uint32_t cell)
{
    T_OK(brain_say(e, 0, release(cell)));
}

/* RULES 5.11 */
TEST_ENCODED(rooms_with_all_their_grants_come_first)
{
    fill_pool(e, 1, 0);
    SAYS(e, 0, announce(2, 1, 64, 64), announce(3, 2, 64, 64),
        announce(4, 3, 128, 128));
    HEARS(e, 0, asks(e, 3, 73), asks(e, 4, 74));
    /* langd may take this grant back */
    brain_hear(e, 0, grants(3, 73, 64, FIRM_NO));
    brain_hear(e, 0, grants(4, 74, 128, FIRM_YES));
    leaves(e, 0);
    T_TRUE(is_granted(e, 3));
    T_TRUE(!is_granted(e, 1) && !is_granted(e, 2));
}

static struct peer_msg asks_at(
    struct rig *e, uint64_t room, uint64_t generation, uint64_t turn)
{
    struct peer_msg m = asks(e, room, generation);

    m.init.turn = turn;
    return m;
}

/* Room 2 is the oldest here, but the youngest of langd `a`: when its turn comes
 * room 4 is served. `b` gets no more turns by saying that its room is very
 * old. */
/* RULES 5.11 */
TEST_ENCODED(a_langds_rooms_come_in_its_order)
{
    fill_pool(e, 1, 0);
    for (uint32_t cell = 1; cell < 5; cell++)
        T_OK(brain_say(e, 0, announce(1 + cell, cell, 128, 128)));
    brain_hear(e, 0, asks_at(e, 2, 72, 30));
    brain_hear(e, 1, asks_at(e, 3, 73, 5));
    HEARS(e, 0, asks_at(e, 4, 74, 20), asks_at(e, 5, 75, 25));
    leaves(e, 0);
    T_TRUE(is_granted(e, 3));
    leaves(e, 3);
    brain_hear(e, 0, state(4, 74, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 2));
    leaves(e, 2);
    brain_hear(e, 1, state(3, 73, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 4));
    leaves(e, 4);
    brain_hear(e, 0, state(5, 75, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 1));
}

/* Of two destinations, the turn of the one that asked first counts. */
/* RULES 5.11 */
TEST_ENCODED(a_room_of_two_langds_comes_in_the_order_of_the_first)
{
    fill_pool(e, 1, 0);
    SAYS(e, 0, announce(2, 1, 128, 128), announce(3, 2, 128, 128),
        announce_for(2, 4, 3, 128));
    brain_hear(e, 0, asks_at(e, 2, 72, 30));
    brain_hear(e, 1, asks_at(e, 3, 73, 30));
    brain_hear(e, 0, two(asks_at(e, 4, 74, 20)));
    brain_hear(e, 1, two(asks_at(e, 4, 84, 40)));
    leaves(e, 0);
    T_TRUE(is_granted(e, 3));
    leaves(e, 3);
    brain_hear(e, 0, state(4, 74, PEER_FAILED, ROOM_FAILED));
    brain_hear(e, 1, state(4, 84, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 2));
    leaves(e, 2);
    brain_hear(e, 1, state(3, 73, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 1));
}

/* The oldest room that others overtook asks for its grant before its rows are
 * written, and so comes among those that overtake. */
/* RULES 5.14 */
TEST_ENCODED(a_room_that_was_overtaken_asks_ahead)
{
    const struct peer_msg *m;

    fill_pool(e, 1, 0);
    SAYS(e, 0, announce(2, 1, 64, 60), announce(3, 2, 128, 128));
    HEARS(e, 0, asks(e, 2, 72), asks(e, 3, 73));
    T_TRUE(brain_said(e, PEER_WANT, 0) == NULL);
    brain_hear(e, 0, grants(3, 73, 128, FIRM_YES));
    leaves(e, 0);
    m = brain_said(e, PEER_WANT, 0);
    T_EQ_U64(m->generation, 72);
    T_EQ_U64(m->want.ahead, 1);
    T_EQ_U64(m->want.committed, 60);
    full_room(e, 0, 4, 3, 74, 64);
    brain_hear(e, 0, grants(2, 72, 64, FIRM_YES));
    leaves(e, 2);
    brain_hear(e, 0, state(3, 73, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 1));
    T_TRUE(is_granted(e, 3));
}

/* The room without rows needs no blocks of its langd, so no room waits for
 * it. */
/* RULES 5.11 */
TEST_ENCODED(a_room_without_rows_passes_no_other)
{
    fill_pool(e, 1, 0);
    brain_hear(e, 0, asks(e, 1, 71));
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    queues(e, 0, 1, 71);
    SAYS(e, 0, announce(2, 1, 64, 64), announce(3, 2, 128, 0));
    HEARS(e, 0, asks(e, 3, 73), grants(3, 73, 0, FIRM_YES));
    brain_pass(e, 5000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    leaves(e, 0);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 1));
}

/* Returns a rig in which room 1 has its rows and waits for its langd; room 2
 * has its grant, and waits for blocks. */
static struct rig *stuck(const char *setting)
{
    struct rig *e = encoded(setting, NULL);

    fill_pool(e, 1, 0);
    brain_hear(e, 0, asks(e, 1, 71));
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    queues(e, 0, 1, 71);
    T_OK(brain_say(e, 0, final(0, 128)));
    full_room(e, 1, 2, 1, 82, 64);
    return e;
}

/* RULES 5.12 */
TEST(who_waits_for_a_grant_is_ended_for_a_room_that_has_all)
{
    struct rig *e = stuck(NULL);

    brain_pass(e, 90);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    brain_pass(e, 20);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 71);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_NO_BLOCKS);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    T_TRUE(is_granted(e, 1));
}

/* RULES 5.12 */
TEST(patience_with_those_who_hold_is_configured)
{
    struct rig *e = stuck("timeouts.revoke_after=5s");

    brain_pass(e, 4900);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    brain_pass(e, 200);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
}

TEST(langds_word_stands_also_for_a_room_that_is_ended)
{
    struct rig *e = stuck(NULL);

    brain_pass(e, 110);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_SUCCESS));
    T_EQ_U64(brain_state(e, 0, 0), ROOM_SUCCESS);
}

/* RULES 5.13 */
TEST_WITH(a_room_is_ended_so_at_most_once, struct rig *e, stuck(NULL))
{
    const struct peer_msg *m;

    brain_pass(e, 110);
    /* requested before it is announced again */
    brain_hear(e, 0, asks(e, 1, 72));
    is_taken(e);
    T_TRUE(brain_said(e, PEER_FAILED, 0) == NULL);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    SAYS(e, 0, release(0), announce(1, 2, 64, 64));
    m = brain_said(e, PEER_WANT, 0);
    T_EQ_U64(m->generation, 72);
    T_EQ_U64(m->want.ahead, 1);
    /* blocks are free, but room 1 does not get them */
    T_EQ_U64(brain_free(e), 8);
    T_TRUE(!is_granted(e, 2));
    brain_pass(e, 5000);
    T_TRUE(!is_granted(e, 2));
    brain_hear(e, 0, grants(1, 72, 64, FIRM_YES));
    T_TRUE(is_granted(e, 2));
    full_room(e, 1, 3, 3, 83, 64);
    T_OK(brain_say(e, 0, commit(2, 0, 64)));
    brain_pass(e, 60000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    ack(e, 0, 1, 72);
    T_OK(brain_say(e, 0, release(2)));
    T_OK(brain_say(e, 0, announce(1, 4, 8, 8))); /* a new room of the same id */
    leaves(e, 1);
    brain_hear(e, 1, state(2, 82, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 4));
}

/* RULES 5.13 */
TEST_ENCODED(the_same_content_is_remembered_by_its_key)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = asks(e, 1, 71);

    a.announce.key.b[0] = m.init.key.b[0] = 9;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, m);
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    queues(e, 0, 1, 71);
    T_OK(brain_say(e, 0, final(0, 128)));
    full_room(e, 1, 2, 1, 82, 8);
    brain_pass(e, 110);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    a.announce.room = 5;
    a.announce.cell = 2;
    a.announce.tag = 102;
    T_OK(brain_say(e, 0, a));
    T_TRUE(!is_granted(e, 2));
    leaves(e, 1);
    brain_hear(e, 1, state(2, 82, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_free(e), 16);
    T_TRUE(!is_granted(e, 2));
    brain_pass(e, 301000); /* longer than timeouts.total */
    a.announce.cell = 3;
    a.announce.tag = 103;
    a.announce.room = 6;
    T_OK(brain_say(e, 0, a));
    T_TRUE(is_granted(e, 3));
}

/* RULES 5.12 */
TEST_ENCODED(rows_that_go_out_are_waited_for)
{
    T_OK(brain_say(e, 0, announce(1, 0, 64, 64)));
    HEARS(e, 0, asks(e, 1, 71), grants(1, 71, 64, FIRM_NO));
    T_OK(brain_say(e, 0, commit(0, 0, 64))); /* messages are on their way */
    T_OK(brain_say(e, 0, announce(2, 1, 64, 64)));
    brain_hear(e, 0, asks(e, 2, 72));
    T_OK(brain_say(e, 0, commit(1, 0, 64)));
    queues(e, 0, 2, 72);
    full_room(e, 1, 3, 2, 83, 64);
    brain_pass(e, 20000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    T_OK(brain_say(e, 0, final(0, 64)));
    ack(e, 0, 1, 71);
    T_TRUE(is_granted(e, 2));
}

/* RULES 5.12 */
TEST_ENCODED(an_encoder_at_work_is_waited_for_an_idle_one_is_not,
    "timeouts.progress=10s")
{
    fill_pool(e, 1, 0);
    brain_hear(e, 0, asks(e, 1, 71));
    full_room(e, 1, 2, 1, 82, 64);
    for (uint32_t i = 0; i < 5; i++) {
        brain_pass(e, 8000);
        T_OK(brain_say(e, 0, commit(0, 8 * i, 8)));
        if (i == 0)
            queues(e, 0, 1, 71);
        T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    }
    brain_pass(e, 10200);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
}

/* Returns a rig in which two rooms of 64 rows make no progress; a third, with
 * all its grants, needs their blocks. */
static struct rig *two_stand(uint32_t rows)
{
    struct rig *e = encoded(NULL, NULL);

    for (uint32_t i = 0; i < 2; i++) {
        T_OK(brain_say(e, 0, announce(1 + i, i, 64, 64)));
        brain_hear(e, 0, asks(e, 1 + i, 71 + i));
        T_OK(brain_say(e, 0, commit(i, 0, 64)));
        queues(e, 0, 1 + i, 71 + i);
    }
    full_room(e, 1, 3, 2, 83, rows);
    return e;
}

/* RULES 5.12 */
TEST_WITH(blocks_that_come_back_are_waited_for, struct rig *e, two_stand(64))
{
    brain_pass(e, 20000); /* neither langd nor the engine answers */
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    brain_pass(e, 20000); /* after timeouts.progress the next room is ended */
    T_EQ_U64(brain_stat(e, "sources_revoked"), 2);
}

/* RULES 5.12 */
TEST_WITH(the_youngest_is_ended_first, struct rig *e, two_stand(128))
{
    brain_pass(e, 110);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 72);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    brain_pass(e, 110); /* the waiting room needs the blocks of both */
    T_EQ_U64(brain_stat(e, "sources_revoked"), 2);
    brain_pass(e, 20000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 2);
}

/* Its grant may be on its way: no room is ended only because a message is
 * late. */
/* RULES 5.12 */
TEST_ENCODED(a_langd_that_has_not_heard_of_the_rows_is_waited_for)
{
    struct peer_msg m = state(1, 71, PEER_WANT, ROOM_WAITING);

    fill_pool(e, 1, 0);
    brain_hear(e, 0, asks(e, 1, 71));
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    full_room(e, 1, 2, 1, 82, 8);
    brain_pass(e, 5000);
    m.state.firm = FIRM_YES; /* the grant was lost, the answer was not */
    brain_hear(e, 0, m);
    brain_pass(e, 5000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    brain_hear(e, 0, grants(1, 71, 128, FIRM_YES));
    T_EQ_U64(brain_limit(e), 128);
}

/* RULES 5.13 */
TEST_ENCODED(a_batch_is_ended_and_comes_back_item_by_item)
{
    struct local_msg a = announce(1, 0, 64, 64);

    a.announce.batch = 1;
    SAYS(e, 0, a, announce(2, 1, 64, 64));
    for (uint32_t i = 0; i < 2; i++) {
        brain_hear(e, 0, asks(e, 1 + i, 71 + i));
        T_OK(brain_say(e, 0, commit(i, 0, 64)));
        queues(e, 0, 1 + i, 71 + i);
        T_OK(brain_say(e, 0, final(i, 64)));
    }
    full_room(e, 1, 3, 2, 83, 64);
    brain_pass(e, 110);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 72);
    brain_hear(e, 0, state(2, 72, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 2));
    brain_hear(e, 0, grants(1, 71, 64, FIRM_YES)); /* the other room goes on */
    ack_succeeds(e, 0, 1, 71, 0);
}

/* RULES 5.12 */
TEST_ENCODED(all_rooms_of_an_item_are_ended_with_it)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = asks(e, 1, 71);

    a.announce.key.b[0] = m.init.key.b[0] = 9;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, m);
    a.announce.room = 2;
    a.announce.cell = 1;
    a.announce.tag = 101;
    T_OK(brain_say(e, 0, a));
    m.room = 2;
    m.generation = 82;
    brain_hear(e, 1, m);
    T_TRUE(brain_events(e, 0, 1) & EVENT_HAVE);
    T_OK(brain_say(e, 0, commit(0, 0, 128)));
    brain_hear(e, 0, state(1, 71, PEER_WANT, ROOM_WAITING));
    full_room(e, 1, 3, 2, 83, 8);
    /* langd b's room gets its rows */
    brain_hear(e, 1, grants(2, 82, 128, FIRM_YES));
    ack(e, 1, 2, 82);
    brain_pass(e, 210);
    T_EQ_U64(brain_state(e, 0, 1), ROOM_SUCCESS);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 71);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
}

/* RULES 5.15 */
TEST_ENCODED(a_kept_room_that_waits_for_its_langd_gives_way)
{
    struct local_msg a = announce(1, 0, 128, 128);

    a.announce.flags = FLAG_KEEP;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, init(e, 1, 71, 128));
    all_rows(e, 0, 128);
    ack(e, 0, 1, 71);
    frees(e, 0, 0);
    brain_hear(e, 0, asks(e, 1, 72));
    queues(e, 0, 1, 72);
    full_room(e, 1, 2, 1, 82, 8);
    brain_pass(e, 110);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 72);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->failed.reason, ERR_GONE);
    brain_hear(e, 0, state(1, 72, PEER_FAILED, ROOM_FAILED));
    T_TRUE(is_granted(e, 1));
}

/* langd's engines encode and ask again: they mean the next announce. */
/* RULES 5.7 */
TEST_ENCODED(a_room_whose_group_lost_its_place_is_not_kept)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = about(1, 71, PEER_ABORT);

    a.announce.flags = FLAG_KEEP;
    m.abort.reason = ERR_NO_BLOCKS;
    T_OK(brain_say(e, 0, a));
    brain_hear(e, 0, asks(e, 1, 71));
    all_rows(e, 0, 128);
    brain_hear(e, 0, m);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    brain_hear(e, 0, asks(e, 1, 72));
    frees(e, 0, 16);
    T_OK(brain_say(e, 0, announce(1, 1, 128, 128)));
    T_EQ_U64(brain_said(e, PEER_LENGTH, -1)->generation, 72);
    all_rows(e, 1, 128);
    ack_succeeds(e, 0, 1, 72, 1);
}

/* Destinations that have the rows already are not waited for. */
/* RULES 5.13 */
TEST_ENCODED(a_room_that_comes_again_needs_those_only_that_failed)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = asks(e, 1, 71);

    a.announce.required_dst = m.init.required_dst = 2;
    T_OK(brain_say(e, 0, a));
    all_rows(e, 0, 128);
    brain_hear(e, 0, m);
    m.generation = 82;
    brain_hear(e, 1, m);
    brain_hear(e, 0, grants(1, 71, 128, FIRM_YES));
    ack(e, 0, 1, 71);
    brain_hear(e, 1, state(1, 82, PEER_WANT, ROOM_WAITING));
    full_room(e, 0, 2, 1, 72, 8);
    brain_pass(e, 110);
    brain_hear(e, 1, state(1, 82, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    SAYS(e, 0, release(0), a);
    m.generation = 83;
    HEARS(e, 1, m, grants(1, 83, 128, FIRM_YES));
    all_rows(e, 1, 8);
    ack(e, 0, 2, 72);
    all_rows(e, 0, 128);
    ack_succeeds(e, 1, 1, 83, 0);
}

/* langd a has the rows, but its ACK comes after the room was ended for another:
 * a's engine will not ask again. */
/* RULES 5.13 */
TEST_ENCODED(a_room_that_comes_again_does_not_wait_for_those_that_had_the_rows)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = asks(e, 1, 71);

    a.announce.required_dst = m.init.required_dst = 2;
    T_OK(brain_say(e, 0, a));
    all_rows(e, 0, 128);
    brain_hear(e, 0, m);
    m.generation = 82;
    brain_hear(e, 1, m);
    brain_hear(e, 0, grants(1, 71, 128, FIRM_YES));
    brain_hear(e, 1, state(1, 82, PEER_WANT, ROOM_WAITING));
    full_room(e, 0, 2, 1, 72, 8);
    brain_pass(e, 110);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_SUCCESS));
    brain_hear(e, 1, state(1, 82, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    T_OK(brain_say(e, 0, release(0)));
    all_rows(e, 1, 8);
    ack(e, 0, 2, 72);
    T_OK(brain_say(e, 0, a));
    m.generation = 83;
    HEARS(e, 1, m, grants(1, 83, 128, FIRM_YES));
    all_rows(e, 0, 128);
    ack_succeeds(e, 1, 1, 83, 0);
}

/* One of two langds declined the room, which still counts when it is announced
 * again. */
/* RULES 5.13 */
TEST_ENCODED(a_room_that_comes_again_does_not_wait_for_those_that_declined)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg m = asks(e, 1, 71);
    struct peer_msg no = {.type = PEER_DECLINE, .room = 1};

    a.announce.required_dst = m.init.required_dst = 2;
    T_OK(brain_say(e, 0, a));
    all_rows(e, 0, 128);
    brain_hear(e, 0, m);
    brain_hear(e, 1, no);
    brain_hear(e, 0, state(1, 71, PEER_WANT, ROOM_WAITING));
    full_room(e, 0, 2, 1, 72, 8);
    brain_pass(e, 110);
    brain_hear(e, 0, state(1, 71, PEER_FAILED, ROOM_FAILED));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    T_OK(brain_say(e, 0, release(0)));
    all_rows(e, 1, 8);
    ack(e, 0, 2, 72);
    T_OK(brain_say(e, 0, a));
    m.generation = 81;
    HEARS(e, 0, m, grants(1, 81, 128, FIRM_YES));
    all_rows(e, 0, 128);
    ack(e, 0, 1, 81);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* It may also decline before the room is announced again. */
/* RULES 5.13 */
TEST_ENCODED(a_room_that_comes_again_may_be_declined_before)
{
    struct local_msg a = announce(1, 0, 128, 128);
    struct peer_msg no = {.type = PEER_DECLINE, .room = 1};

    T_OK(brain_say(e, 0, a));
    all_rows(e, 0, 128);
    full_room(e, 0, 2, 1, 72, 8);
    brain_pass(e, 110);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_NO_BLOCKS);
    T_OK(brain_say(e, 0, release(0)));
    brain_hear(e, 0, no);
    T_OK(brain_say(e, 0, a));
    T_EQ_U64(brain_reason(e, 0, 0), ERR_DECLINED);
}

/* Returns a rig with rooms 2 and 3 of one key; the pool is full. */
static struct rig *shared(void)
{
    struct rig *e = encoded(NULL, NULL);

    fill_pool(e, 1, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct local_msg a = announce(2 + i, 1 + i, 64, 64);
        struct peer_msg m = asks(e, 2 + i, 72 + i);

        a.announce.key.b[0] = m.init.key.b[0] = 9;
        T_OK(brain_say(e, 0, a));
        brain_hear(e, 0, m);
    }
    return e;
}

/* Until the full room has gone, its langd may have no blocks for the other
 * one. */
/* RULES 5.11 */
TEST_WITH(one_room_with_its_grants_makes_the_item_full, struct rig *e, shared())
{
    full_room(e, 1, 4, 3, 84, 128);
    brain_hear(e, 0, grants(3, 73, 64, FIRM_YES));
    leaves(e, 0);
    T_TRUE(is_granted(e, 1)); /* room 1 is older */
    T_TRUE(!is_granted(e, 3));
}

/* After the room with the grants has its rows, the item is ended once more, for
 * the room that had to wait: once for each room that is served. */
/* RULES 5.12 */
TEST(an_item_is_not_ended_while_one_room_has_its_grants)
{
    struct rig *e = shared();

    leaves(e, 0);
    brain_hear(e, 0, grants(3, 73, 64, FIRM_YES));
    T_OK(brain_say(e, 0, commit(1, 0, 64)));
    queues(e, 0, 2, 72);
    full_room(e, 1, 4, 3, 84, 128);
    brain_pass(e, 20000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    ack(e, 0, 3, 73);
    brain_pass(e, 110);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
    T_EQ_U64(brain_said(e, PEER_FAILED, 0)->generation, 72);
    brain_hear(e, 0, state(2, 72, PEER_FAILED, ROOM_FAILED));
    T_TRUE(brain_state(e, 0, 2) == ROOM_SUCCESS);
}

/* The langd keeps blocks for one room of the batch, and may have none for the
 * others. */
static void full_by_one(uint64_t room, uint64_t generation)
{
    struct rig *e = encoded(NULL, NULL);
    struct local_msg a = announce(2, 1, 64, 64);

    fill_pool(e, 1, 0);
    T_OK(brain_say(e, 0, announce(5, 4, 128, 128)));
    a.announce.batch = 1;
    SAYS(e, 0, a, announce(3, 2, 64, 64));
    HEARS(e, 0, asks(e, 2, 72), asks(e, 3, 73),
        grants(room, generation, 64, FIRM_YES));
    leaves(e, 0);
    T_TRUE(is_granted(e, 1) && is_granted(e, 2));
    T_TRUE(!is_granted(e, 4));
}

/* RULES 5.11 */
TEST(one_room_with_its_grants_makes_the_batch_full)
{
    /* once it has blocks the rest of the batch is not full */
    full_by_one(2, 72);
    full_by_one(3, 73);
}

/* Every second block is free, and one extent has at most POOL_RUNS_MAX runs:
 * the first of the batch gets its block, the second cannot. Without the first
 * the batch is not full, so the older room 5 comes before it. */
/* RULES 5.11 */
TEST(what_is_left_of_a_batch_waits_as_any_other)
{
    struct rig *e = encoded("limits.rooms=8192", "pools[0].blocks=4096");
    struct local_msg a = announce(2, 1, 8, 8);

    for (uint32_t i = 0; i < 4096; i++) {
        if (i % 500 == 0)
            brain_conn(e, 1 + i / 500, "s");
        T_OK(brain_say(e, 1 + i / 500, announce(100 + i, i % 500, 8, 8)));
    }
    T_EQ_U64(brain_free(e), 0);
    T_OK(brain_say(e, 0, announce(5, 4, 24, 24)));
    a.announce.batch = 1;
    SAYS(e, 0, a, announce(3, 2, 2001 * 8, 2001 * 8));
    HEARS(e, 0, asks(e, 2, 72), grants(2, 72, 8, FIRM_YES));
    for (uint32_t i = 1; i < 2 * 2002; i += 2)
        T_OK(brain_say(e, 1 + i / 500, release(i % 500)));
    T_TRUE(is_granted(e, 1) && !is_granted(e, 2));
    T_TRUE(is_granted(e, 4));
    T_EQ_U64(brain_free(e), 1998);
}

/* WANT 2 says more rows than WANT 1: an answer to WANT 1 does not answer it. */
/* RULES 5.14 */
TEST_ENCODED(an_answer_to_an_older_want_is_none_to_the_newer)
{
    struct peer_msg m = state(2, 72, PEER_WANT, ROOM_WAITING);

    fill_pool(e, 1, 0);
    SAYS(e, 0, announce(2, 1, 64, 60), announce(3, 2, 128, 128));
    HEARS(e, 0, asks(e, 2, 72), asks(e, 3, 73), grants(3, 73, 128, FIRM_YES));
    leaves(e, 0);
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.granted, 0);
    brain_hear(e, 0, grants(2, 72, 64, FIRM_NO));
    /* this WANT is lost */
    T_EQ_U64(brain_said(e, PEER_WANT, 0)->want.granted, 64);
    m.state.granted = 64;
    m.state.firm = FIRM_NO;
    brain_hear(e, 0, m); /* answers the earlier WANT */
    brain_pass(e, 5000);
    T_TRUE(brain_said_count(e, PEER_WANT) > 0);
}
