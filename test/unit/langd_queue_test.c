/* langd_queue_test.c - who gets blocks of langd's pool, from whom they are
 * taken (RULES 5), and what happens when tables are full. As in langd_test.c:
 * blocks of 8 rows, 16 of them, a default grant is 2. */
#include "core/lang/lang.h"
#include "test/there.h"

#include <sys/mman.h>
#include <sys/resource.h>

/* RULES 5.1; F16 */
TEST_LANGD(head_only_no_overtaking, DEFAULT_BLOCKS(0))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct there c = ask_room(l, 3, 2);

    wants(l, &a, 0, 80); /* 10 of 16 blocks: fits */
    T_EQ_U64(brain_free(l), 6);
    brain_landed(l, &a.open, 0, 80);
    wants(l, &b, 0, 64); /* 8 blocks: do not fit beside a READY room */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    wants(l, &c, 0, 8); /* 1 block: would fit, and waits */
    T_EQ_U64(brain_free(l), 6);
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 2);
    T_OK(brain_say(l, 0, request(4, 3, MODE_WHOLE))); /* no default grant now */
    T_EQ_U64(brain_said(l, PEER_INIT, 0)->init.granted, 0);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 0);
    T_EQ_U64(brain_free(l), 7);
}

/* A whole room may hold max_room_blocks, or without that the pool. */
/* RULES 5.9 */
TEST_LANGD(max_room_blocks_bounds_a_room, ROOM_BLOCKS(4))
{
    struct there t[2];

    ask_rooms(l, t, 2);
    brain_hear(l, 0, length(&t[0], 32, 32, true));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 32);
    brain_hear(l, 0, length(&t[1], 33, 33, true));
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TOO_LARGE);
}

/* RULES 5.9 */
TEST_LANGD(the_wait_of_the_head_is_shown, DEFAULT_BLOCKS(0))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    wants(l, &a, 0, 128);
    brain_landed(l, &a.open, 0, 128);
    wants(l, &b, 0, 8);
    brain_pass(l, 500);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_TRUE(brain_shown(l, "rooms", "granted", 0) > 0 ||
           brain_shown(l, "rooms", "granted", 1) > 0);
    T_TRUE(brain_shown(l, "pools", "head_wait_max_us", 0) >= 500000);
}

/* RULES 9.6 */
TEST_LANGD(a_pool_that_gives_no_blocks_is_named, DEFAULT_BLOCKS(0))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct health h;

    wants(l, &a, 0, 128);
    brain_landed(l, &a.open, 0, 128);
    brain_pass(l, 10000);
    wants(l, &b, 0, 8);
    brain_pass(l, 2900);
    brain_health(l->is, &h);
    T_EQ_STR(h.text, "ready");
    brain_pass(l, 200);
    brain_health(l->is, &h);
    T_EQ_STR(h.text, "ready, but rooms wait for blocks of pool main and none "
                     "got any for 3 s");
    T_TRUE(h.ready);
    T_OK(brain_say(l, 0, abort_of(1)));
    brain_health(l->is, &h);
    T_EQ_STR(h.text, "ready");
}

/* RULES 5.1 */
TEST_LANGD(age_is_that_of_the_request, DEFAULT_BLOCKS(0))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct there c = ask_room(l, 3, 2);

    wants(l, &c, 0, 128);
    brain_landed(l, &c.open, 0, 128);
    wants(l, &b, 0, 64); /* asks first, but is younger */
    wants(l, &a, 0, 128);
    T_OK(brain_say(l, 0, release(2, ROWS_UNKNOWN)));
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->generation, a.generation);
    T_EQ_U64(brain_free(l), 0);
}

/* RULES 5.3, 5.4 */
TEST_LANGD(speculative_grants_give_way_youngest_first, DEFAULT_BLOCKS(4))
{
    struct there t[4];

    ask_rooms(l, t, 4);
    T_EQ_U64(brain_free(l), 0);
    wants(l, &t[1], 32, 40); /* needs one more block */
    T_EQ_U64(brain_stat(l, "revokes"), 1);
    T_EQ_U64(brain_free(l), 3); /* taken from the youngest, room 4 */
    T_EQ_U64(brain_shown(l, "rooms", "attempt", 3), 1);
    T_EQ_U64(brain_shown(l, "rooms", "attempt", 0), 0);
    /* it loses rows, not its state */
    T_EQ_U64(brain_state(l, 0, 3), ROOM_BOOTSTRAPPING);
}

/* RULES 5.4 */
TEST_LANGD(blocks_taken_back_wait_for_landings, DEFAULT_BLOCKS(8))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    l->noisy = true;
    wants(l, &a, 64, 72);
    T_EQ_U64(
        brain_cmd(l, LAND_CLOSE) != NULL || brain_stat(l, "revokes") == 1, 1);
    T_EQ_U64(brain_free(l), 0);
    T_TRUE(brain_said(l, PEER_RESUME, 0) == NULL); /* no room is told yet */
    T_TRUE(brain_quiet(l));
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->generation, b.generation);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.attempt, 1);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 0);
    T_EQ_U64(brain_said(l, PEER_RESUME, 1)->generation, a.generation);
    T_EQ_U64(brain_said(l, PEER_RESUME, 1)->resume.granted, 72);
}

/* Both rooms hold half of the pool with landed rows, and want the other
 * half. */
static void deadlock(struct rig *l, struct there *a, struct there *b)
{
    *a = ask_room(l, 1, 0);
    *b = ask_room(l, 2, 1);
    brain_landed(l, &a->open, 0, 64);
    brain_landed(l, &b->open, 0, 64);
    wants(l, b, 64, 128);
}

/* RULES 5.4 */
TEST(landed_rows_of_younger_rooms_are_taken_when_all_is_calm)
{
    struct rig *l = langd_up("pools[0].default_blocks=8", NULL);
    struct there a, b;

    deadlock(l, &a, &b);
    T_EQ_U64(brain_stat(l, "revokes"), 0); /* older rooms never lose blocks */
    wants(l, &a, 64, 128);
    T_EQ_U64(brain_stat(l, "revokes"), 1);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 128);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 0);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_TRANSFERRING);
}

/* RULES 5.4 */
TEST_LANGD(landed_rows_are_spared_while_others_may_end, DEFAULT_BLOCKS(4))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1), c;

    c = ask_room(l, 3, 2);
    fill(l, &c, 32); /* READY, not released yet */
    brain_landed(l, &a.open, 0, 32);
    brain_landed(l, &b.open, 0, 32);
    wants(l, &b, 32, 96);
    wants(l, &a, 32, 96);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    brain_pass(l, 90);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    brain_pass(l, 20); /* longer than timeouts.revoke_after */
    T_EQ_U64(brain_stat(l, "revokes"), 1);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 96);
}

/* RULES 5.4 */
TEST_LANGD(patience_is_each_heads_own, DEFAULT_BLOCKS(4))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct there c = ask_room(l, 3, 2), d = ask_room(l, 4, 3);

    fill(l, &d, 32);
    brain_landed(l, &a.open, 0, 32);
    brain_landed(l, &b.open, 0, 32);
    brain_landed(l, &c.open, 0, 32);
    wants(l, &c, 32, 64);
    brain_pass(l, 5000); /* only the youngest waits: no room loses blocks */
    wants(l, &b, 32, 64);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    brain_pass(l, 50);
    wants(l, &a, 32, 64);
    brain_pass(l, 60);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    brain_pass(l, 50);
    T_EQ_U64(brain_stat(l, "revokes"), 1);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 0);
}

/* An older room that comes and fits does not begin the head's wait anew. */
/* RULES 5.4 */
TEST_LANGD(patience_goes_on_while_an_older_room_is_served, DEFAULT_BLOCKS(3))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct there c = ask_room(l, 3, 2), d = ask_room(l, 4, 3);

    fill(l, &d, 24);
    brain_landed(l, &a.open, 0, 24);
    brain_landed(l, &b.open, 0, 24);
    brain_landed(l, &c.open, 0, 24);
    wants(l, &c, 24, 80);
    wants(l, &b, 24, 64); /* needs 5 blocks, 4 are free */
    brain_pass(l, 60);
    wants(l, &a, 24, 32);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 32);
    brain_landed(l, &a.open, 24, 8);
    brain_pass(l, 30);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    brain_pass(l, 20);
    T_EQ_U64(brain_stat(l, "revokes"), 1);
}

/* RULES 5.2 */
TEST_LANGD(firm_grants_are_not_taken, DEFAULT_BLOCKS(0))
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);

    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 96, true));
    brain_hear(l, 0, want(&b, 0, 0, 96)); /* all granted, none landed */
    wants(l, &a, 0, 64);
    brain_pass(l, 5000);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 96);
}

/* A firm grant's attempt breaks: what is left of the grant stays firm. */
static void firm_grant_breaks(uint16_t destinations, uint32_t total)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there a, b;

    r.request.required_dst = destinations;
    a = ask(l, 0, r);
    b = ask_room(l, 2, 1);
    brain_hear(l, 0, length(&a, total, 96, false));
    brain_hear(l, 0, want(&a, 0, 0, 96)); /* 12 of 16 blocks */
    wants(l, &b, 0, 64);                  /* 8 blocks do not fit */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    brain_hear(l, 0, about(&a, PEER_BROKEN));
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.attempt, 1);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 96);
    brain_pass(l, 1000);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 96);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 0);
}

/* RULES 5.2 */
TEST_IS(
    a_broken_endpoint_leaves_a_grant_firm, firm_grant_breaks(1, ROWS_UNKNOWN));
TEST_IS(a_broken_endpoint_leaves_grants_of_several_destinations_firm,
    firm_grant_breaks(2, 96));

/* RULES 5.16 */
TEST_LANGD(a_grant_goes_back_when_its_encoder_asks_for_that)
{
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct peer_msg back;
    struct there a;

    r.request.required_dst = 2;
    a = ask(l, 0, r);
    HEARS(l, 0, length(&a, 96, 96, false), want(&a, 0, 0, 96));
    T_EQ_U64(brain_free(l), 4);
    back = about(&a, PEER_BROKEN);
    back.broken.back = 1;
    for (uint32_t i = 0; i < 5; i++) { /* these do not count as breaks */
        back.broken.attempt = i;
        brain_hear(l, 0, back);
        T_EQ_U64(brain_free(l), 16);
        T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 0);
        HEARS(l, 0, state(&a, PEER_RESUME, i + 1, 0), want(&a, i + 1, 0, 96));
        T_EQ_U64(brain_free(l), 4);
    }
    T_EQ_U64(brain_stat(l, "broken"), 0);
}

/* Only rooms with several destinations give grants back: a group would not get
 * its blocks again. */
/* RULES 5.5 */
TEST_LANGD(a_group_keeps_its_blocks_whatever_its_encoder_asks)
{
    struct there a = member(l, 1, 1);
    struct peer_msg back;

    brain_hear(l, 0, length(&a, 64, 64, true));
    T_EQ_U64(brain_free(l), 8);
    back = about(&a, PEER_BROKEN);
    back.broken.back = 1;
    brain_hear(l, 0, back);
    brain_pass(l, 3000);
    T_EQ_U64(brain_free(l), 8);
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.attempt, 1);
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.granted, 64);
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.firm, FIRM_YES);
}

/* RULES 5.2, 5.20 */
TEST(stream_keeps_what_it_was_promised)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=4", "pools[0].max_room_blocks=12");
    struct there s = ask(l, 0, request(1, 0, MODE_STREAM)), a;

    brain_hear(l, 0, length(&s, 320, 320, true));
    told(l, &s);
    brain_landed(l, &s.open, 0, 32);
    a = ask_room(l, 2, 1);
    wants(l, &a, 32, 96); /* more than is free: it waits */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    T_TRUE(cell_rows(l->cells[0][0]) >= 24);
    (void)brain_events(l, 0, 0);
    for (uint32_t row = 8; row <= 24; row += 8) {
        T_OK(brain_say(l, 0, release(0, row)));
        T_TRUE(brain_shown(l, "rooms", "blocks", 0) >= 3);
    }
}

/* Blocks that the stream's reader releases go to a room whose rows wait. */
/* RULES 5.1, 5.3 */
TEST(a_stream_that_was_served_waits_when_it_wants_again)
{
    struct rig *l =
        langd_up("pools[0].default_blocks=4", "pools[0].max_room_blocks=12");
    struct there a = ask_room(l, 1, 0), s;

    /* leaves the stream only 4 blocks */
    brain_hear(l, 0, length(&a, 96, 96, true));
    s = ask(l, 0, request(2, 1, MODE_STREAM));
    brain_hear(l, 0, length(&s, 320, 320, true));
    told(l, &s);
    brain_hear(l, 0, want(&s, 0, 32, 96));
    T_EQ_U64(brain_free(l), 4); /* the stream has 12 blocks */
    brain_landed(l, &s.open, 0, 96);
    a = ask_room(l, 3, 2);
    HEARS(l, 0, length(&a, 96, 96, true), want(&a, 0, 0, 96));
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    (void)brain_events(l, 0, 1);
    T_OK(brain_say(l, 0, release(1, 8)));
    T_EQ_U64(brain_free(l), 5); /* the room needs 12 blocks */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
}

/* RULES 5.4 */
TEST(shown_rows_of_a_stream_that_waits_are_not_taken_back)
{
    struct rig *l = langd_up("pools[0].default_blocks=4", NULL);
    struct there a = ask_room(l, 1, 0);
    struct there s = ask(l, 0, request(2, 1, MODE_STREAM));

    brain_hear(l, 0, length(&s, 320, 320, true));
    told(l, &s);
    brain_landed(l, &s.open, 0, 32);
    T_EQ_U64(cell_rows(l->cells[0][1]), 32);
    wants(l, &a, 32, 128); /* older, and needs more than is free */
    brain_landed(l, &a.open, 0, 32);
    brain_hear(l, 0, want(&s, 0, 64, 320));
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 2);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
    T_EQ_U64(brain_shown(l, "rooms", "blocks", 1), 8);
}

/* groups */

static void announced(struct rig *l, struct there *t, uint32_t total)
{
    brain_hear(l, 0, length(t, total, total, true));
    told(l, t);
}

/* RULES 5.5 */
TEST(group_is_admitted_whole_when_its_lengths_are_known)
{
    struct rig *l = langd_up("pools[0].default_blocks=4", NULL);
    struct there a = member(l, 1, 2), b;

    T_EQ_U64(brain_free(l), 16); /* members get no default grants */
    wants(l, &a, 0, 8);
    T_EQ_U64(brain_free(l), 16);
    b = member(l, 2, 2);
    T_ERR(brain_say(l, 0, request(2, 5, MODE_WHOLE)), ERR_DUPLICATE_ROOM);
    T_EQ_U64(brain_free(l), 16);
    announced(l, &b, 16); /* all lengths are known, no row is committed */
    T_EQ_U64(brain_free(l), 13);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.firm, FIRM_YES);
    T_EQ_U64(brain_said(l, PEER_RESUME, 1)->resume.firm, FIRM_YES);
    SAYS(l, 0, release(0, ROWS_UNKNOWN), release(1, ROWS_UNKNOWN));
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 5.5 */
TEST_LANGD(group_takes_no_more_members_than_it_has)
{
    struct local_msg stream = request_in(4, 3, 8, 2);

    (void)member(l, 1, 2);
    (void)member(l, 2, 2);
    T_ERR(brain_say(l, 0, request_in(3, 2, 9, 2)), ERR_MALFORMED);
    stream.request.mode = MODE_STREAM;
    T_ERR(brain_say(l, 0, stream), ERR_MALFORMED);
    SAYS(l, 0, release(0, ROWS_UNKNOWN), release(1, ROWS_UNKNOWN));
    (void)member(l, 3, 2); /* the group's id is free again */
}

/* RULES 5.5 */
TEST_LANGD(group_waits_for_its_turn_and_then_is_firm, DEFAULT_BLOCKS(0))
{
    struct there c = ask_room(l, 9, 20), a = member(l, 1, 2);
    struct there b = member(l, 2, 2);

    wants(l, &c, 0, 64);
    brain_landed(l, &c.open, 0, 64);
    announced(l, &a, 40);
    announced(l, &b, 40); /* 10 blocks in all, 8 are free */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    T_EQ_U64(brain_free(l), 8);
    frees(l, 20, 6);
    brain_pass(l, 5000);
    T_EQ_U64(brain_stat(l, "revokes"), 0);
}

/* Unknown lengths count as max_rows; blocks that are not needed go back. */
/* RULES 5.6 */
TEST_LANGD(group_of_unknown_lengths_holds_max_rows_until_they_are_known)
{
    struct there a = member(l, 1, 2), b = member(l, 2, 2), c;

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 56, false));
    told(l, &a);
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 56, false));
    T_EQ_U64(brain_free(l), 2);
    c = ask_room(l, 3, 2);
    wants(l, &c, 16, 64); /* needs 8 blocks */
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    brain_hear(l, 0, length(&a, 8, 56, true));
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 0);
    T_EQ_U64(brain_free(l), 0);
}

/* If max_rows are more than a group may hold, all that it may hold is kept for
 * the group. Each member takes blocks for its committed rows; what no member
 * needs in the end goes to others. So the group cannot stand at the head for
 * ever. */
/* RULES 5.6 */
TEST(group_of_unknown_lengths_may_be_larger_than_the_pool)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct there a = member(l, 1, 2), b = member(l, 2, 2);
    struct there c = ask_room(l, 3, 2);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 72, false)); /* 9 of 16 blocks */
    HEARS(l, 0, length(&b, ROWS_UNKNOWN, 72, false), want(&a, 0, 0, 8));
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 8);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.firm, FIRM_YES);
    wants(l, &c, 0, 8);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 0);
    brain_hear(l, 0, want(&b, 0, 0, 72)); /* takes the spare blocks */
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 72);
    brain_hear(l, 0, want(&a, 0, 8, 56));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 56);
    T_EQ_U64(brain_free(l), 0);
    HEARS(l, 0, length(&b, 72, 72, true), length(&a, 56, 72, true));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 0);
    told(l, &a);
    brain_landed(l, &a.open, 0, 56);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 0);
    T_EQ_U64(brain_free(l), 6);
}

/* RULES 5.6 */
TEST(spare_blocks_are_for_others_when_the_lengths_are_known)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct there a = member(l, 1, 2), b = member(l, 2, 2);
    struct there c = ask_room(l, 3, 2);

    brain_hear(l, 0, length(&a, ROWS_UNKNOWN, 128, false));
    brain_hear(l, 0, length(&b, ROWS_UNKNOWN, 128, false));
    wants(l, &c, 0, 64);
    HEARS(l, 0, length(&a, 8, 128, true), want(&b, 0, 0, 40));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 0);
    brain_hear(l, 0, length(&b, 48, 128, true));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 48);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 64);
}

/* RULES 5.6 */
TEST(what_one_of_a_group_does_not_need_is_spare_for_the_others)
{
    struct rig *l = langd_up("pools[0].default_blocks=0", NULL);
    struct there a = member(l, 1, 2), b = member(l, 2, 2);
    struct there c = ask_room(l, 3, 2);

    HEARS(l, 0, length(&a, ROWS_UNKNOWN, 128, false),
        length(&b, ROWS_UNKNOWN, 128, false), want(&a, 0, 0, 64));
    wants(l, &c, 0, 8);
    brain_hear(l, 0, length(&a, 8, 128, true));
    T_EQ_U64(brain_free(l), 15);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 2), 0);
    brain_hear(l, 0, want(&b, 0, 0, 120));
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 120);
}

/* RULES 5.6 */
TEST_LANGD(group_that_grows_beyond_the_pool_is_too_large, DEFAULT_BLOCKS(0))
{
    struct there a = member(l, 1, 2), b = member(l, 2, 2);

    HEARS(l, 0, length(&a, ROWS_UNKNOWN, 128, false),
        length(&b, ROWS_UNKNOWN, 128, false), want(&a, 0, 0, 64));
    /* 17 blocks in all, the pool has 16 */
    brain_hear(l, 0, want(&b, 0, 0, 72));
    T_EQ_U64(brain_reason(l, 0, 0), ERR_TOO_LARGE);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_TOO_LARGE);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 5.7 */
TEST_LANGD(group_fails_whole_when_a_member_lost_its_place)
{
    struct there a = member(l, 1, 2), b = member(l, 2, 2);
    struct peer_msg m = about(&a, PEER_FAILED);

    announced(l, &a, 8);
    announced(l, &b, 8);
    m.failed.reason = ERR_NO_BLOCKS;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_NO_BLOCKS);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_NO_BLOCKS);
    T_EQ_U64(brain_said(l, PEER_ABORT, 0)->generation, b.generation);
    T_EQ_U64(brain_said(l, PEER_ABORT, 0)->abort.reason, ERR_NO_BLOCKS);
    T_EQ_U64(brain_free(l), 16);
}

/* RULES 5.7 */
TEST_LANGD(a_member_that_comes_after_one_lost_its_place_fails_too)
{
    struct there a = member(l, 1, 2);
    struct peer_msg m = about(&a, PEER_FAILED);

    m.failed.reason = ERR_NO_BLOCKS;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_reason(l, 0, 0), ERR_NO_BLOCKS);
    T_OK(brain_say(l, 0, request_in(2, 1, 9, 2)));
    T_EQ_U64(brain_state(l, 0, 1), ROOM_FAILED);
    T_EQ_U64(brain_reason(l, 0, 1), ERR_NO_BLOCKS);
}

/* firmness */

/* A grant that is asked for before its rows are committed waits for the room's
 * turn, even if blocks are free: until then others may take it back. */
/* RULES 5.2, 5.14 */
TEST_LANGD(a_grant_that_is_asked_for_ahead_becomes_firm_in_its_turn)
{
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct peer_msg m;

    announced(l, &b, 64);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 1), 64);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.firm, FIRM_NO);
    wants(l, &a, 16, 80); /* older: takes the blocks back */
    T_EQ_U64(brain_stat(l, "revokes"), 1);
    T_EQ_U64(brain_shown(l, "rooms", "granted", 0), 80);
    m = want(&b, 1, 0, 64);
    m.want.ahead = 1;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_shown(l, "pools", "waiting_rooms", 0), 1);
    told(l, &a);
    brain_landed(l, &a.open, 0, 80);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.granted, 64);
    T_EQ_U64(brain_said(l, PEER_RESUME, -1)->resume.firm, FIRM_YES);
    /* no row is committed, so timeouts.progress does not run */
    brain_pass(l, 200000);
    T_EQ_U64(brain_state(l, 0, 1), ROOM_WAITING);
}

/* RULES 2.1, 5.2 */
TEST_LANGD(firmness_is_said_until_it_is_known)
{
    struct there a = ask_room(l, 1, 0);
    struct peer_msg m;

    announced(l, &a, 64);
    brain_hear(l, 0, state(&a, PEER_RESUME, 0, 64));
    m = want(&a, 0, 64, 64);
    m.want.ahead = 1;
    brain_hear(l, 0, m);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.firm, FIRM_YES);
    m = state(&a, PEER_RESUME, 0, 64);
    m.state.firm = FIRM_NO; /* answers the earlier RESUME */
    brain_hear(l, 0, m);
    brain_pass(l, 500);
    T_TRUE(brain_said_count(l, PEER_RESUME) >= 1);
    m.state.firm = FIRM_YES;
    brain_hear(l, 0, m);
    brain_pass(l, 5000);
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 0);
}

TEST(a_huge_group_fits_the_list_of_actions)
{
    struct rig *l = langd_up("limits.rooms=4096", "pools[0].blocks=4096");
    static struct there t[3000];
    uint32_t free_before = brain_free(l);

    for (uint32_t i = 0; i < 3000; i++) {
        if (i % 500 == 0)
            brain_conn(l, 1 + i / 500, "s");
        t[i] = ask(l, 1 + i / 500, request_in(1 + i, i % 500, 9, 3000));
        wants(l, &t[i], 0, 8);
    }
    T_EQ_U64(brain_free(l), free_before - 3000);
}

/* what fills up */

/* RULES 2.2 */
TEST_LANGD(full_aux_delays_and_is_counted, "limits.aux_total=64KiB")
{
    static uint8_t big[AUX_MAX];
    struct there t[3];
    struct peer_msg m;

    for (uint32_t i = 0; i < 3; i++) {
        t[i] = ask_room(l, i + 1, i);
        m = length(&t[i], 8, 8, true);
        m.length.aux = span_of(big, sizeof(big));
        brain_hear(l, 0, m);
    }
    T_EQ_U64(brain_stat(l, "aux_full"), 1);
    T_EQ_U64(brain_said(l, PEER_STATE, -1)->state.reason, ERR_NO_BLOCKS);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    brain_hear(l, 0, m);
    brain_pass(l, 50);
    T_EQ_U64(brain_said(l, PEER_STATE, 0)->state.flags, FLAG_AUX);
}

TEST_LANGD(
    full_tables_refuse_and_recover, "limits.rooms=4", "limits.attachments=64")
{
    for (uint32_t i = 0; i < 4; i++)
        (void)ask_room(l, i + 1, i);
    T_ERR(brain_say(l, 0, request(9, 9, MODE_WHOLE)), ERR_BUSY);
    T_OK(brain_say(l, 0, release(1, ROWS_UNKNOWN)));
    brain_hear(l, 0,
        (struct peer_msg){.type = PEER_DRAINED,
            .room = 2,
            .generation = brain_said(l, PEER_ABORT, 0)->generation});
    T_OK(brain_say(l, 0, request(9, 9, MODE_WHOLE)));
    for (uint32_t i = 10; i < 70; i++)
        T_OK(brain_say(l, 0, attach(1, i, RIGHT_WATCH)));
    T_ERR(brain_say(l, 0, attach(1, 75, RIGHT_WATCH)), ERR_QUOTA);
    SAYS(l, 0, release(10, ROWS_UNKNOWN), attach(1, 75, RIGHT_WATCH));
}

TEST_LANGD(many_views_of_one_room_are_refused_not_fatal)
{
    uint32_t ok = 0;

    brain_conn(l, 1, "s");
    (void)ask_room(l, 1, 0);
    for (uint32_t conn = 0; conn < 2; conn++)
        for (uint32_t i = 1; i < 64; i++)
            ok += brain_say(l, conn, attach(2, i, RIGHT_READ)) == OK;
    T_TRUE(ok > 64);
    T_OK(brain_say(l, 0, release(1, ROWS_UNKNOWN)));
    T_OK(brain_say(l, 0, request(2, 1, MODE_WHOLE))); /* they all attach */
    ok = 0;
    for (uint32_t conn = 2; conn < 8; conn++) {
        brain_conn(l, conn, "s");
        for (uint32_t i = 0; i < 64; i++)
            ok += brain_say(l, conn, attach(1, i, RIGHT_READ)) == OK;
    }
    T_TRUE(ok < 128);
    /* all of them get the event */
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
}

/* encoders */

TEST(encoders_by_address)
{
    struct rig *l = langd("control.allow[0]=tcp://127.0.0.1:*", NULL);
    struct local_msg r = request(1, 0, MODE_WHOLE);
    char name[40];

    r.request.encoder = span_str("tcp://10.0.0.1:7601");
    T_ERR(brain_say(l, 0, r), ERR_NOT_READY);
    r.request.encoder = span_str("tcp://127.0.0.1:0;10.0.0.1:7601");
    T_ERR(brain_say(l, 0, r), ERR_NOT_READY);
    r.request.encoder = span_of("tcp://127.0.0.1:1\0", 18);
    T_ERR(brain_say(l, 0, r), ERR_NOT_READY);
    for (uint32_t i = 0; i < 20; i++) { /* limits.peers is 4 */
        snprintf(name, sizeof(name), "tcp://127.0.0.1:%u", 8000 + i);
        r.request.encoder = span_str(name);
        SAYS(l, 0, r, release(0, ROWS_UNKNOWN));
    }
    T_TRUE(brain_stat(l, "peers_given_up") > 0);
}

TEST(one_encoder_by_two_names_is_one)
{
    struct rig *l = langd_up("control.allow[0]=tcp://127.0.0.1:*", NULL);
    struct local_msg r = request(1, 1, MODE_WHOLE);

    (void)ask_room(l, 1, 0);
    /* this is the address of `enc` */
    r.request.encoder = span_str("tcp://127.0.0.1:7601");
    T_ERR(brain_say(l, 0, r), ERR_DUPLICATE_ROOM);
    T_EQ_U64(brain_acts(l, ACT_CONNECT), 0);
}

TEST(an_attach_keeps_the_place_of_its_encoder)
{
    struct rig *l = langd("control.allow[0]=tcp://127.0.0.1:*", NULL);
    struct local_msg a = attach(1, 5, RIGHT_READ);
    struct local_msg r = request(1, 0, MODE_WHOLE);

    a.attach.encoder = span_str("tcp://127.0.0.1:8001");
    T_OK(brain_say(l, 0, a));
    r.request.encoder = span_str("tcp://127.0.0.1:8002");
    T_OK(brain_say(l, 0, r)); /* the same room id at another encoder */
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    /* it is not the room that was attached to */
    T_EQ_U64(brain_events(l, 0, 5), 0);
}

/* RULES 7.5 */
TEST_WITH(null_encoder_is_ready_at_once, struct rig *l, langd(NULL, NULL))
{
    struct local_msg r = request(1, 0, MODE_WHOLE);

    r.request.encoder = span_str("null");
    T_OK(brain_say(l, 0, r));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_TRUE(brain_events(l, 0, 0) & EVENT_READY);
    T_EQ_U64(l->event.event.total, 0);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_shown(l, "status", "rooms_held", 0), 0);
}

/* RULES 9.5 */
TEST_LANGD(drain_takes_no_new_rooms)
{
    struct there t = ask_room(l, 1, 0);

    brain_is(l, EV_DRAIN);
    T_ERR(brain_say(l, 0, request(2, 1, MODE_WHOLE)), ERR_DRAINING);
    T_EQ_U64(brain_open_rooms(l->is), 1);
    fill(l, &t, 8);
    /* the encoder may not know that the room has ended */
    T_EQ_U64(brain_open_rooms(l->is), 1);
    brain_hear(l, 0, acked(&t));
    T_EQ_U64(brain_open_rooms(l->is), 0);
}

#define PAGE 65536 /* the largest there is */

/* At each turn of a drain langd counts its open rooms. */
TEST_LANGD(a_drain_reads_no_room_that_was_never_used, "limits.rooms=100000")
{
    const struct langd *d = (const struct langd *)l->is;
    char *first =
        (char *)(((uintptr_t)d->rooms + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    struct rusage before, after;

    brain_is(l, EV_DRAIN);
    T_EQ_U64((uint64_t)madvise(first, 500 * PAGE, MADV_DONTNEED), 0);
    getrusage(RUSAGE_SELF, &before);
    T_EQ_U64(brain_open_rooms(l->is), 0);
    getrusage(RUSAGE_SELF, &after);
    T_CHECK(after.ru_minflt - before.ru_minflt < 10, "%ld pages were read",
        after.ru_minflt - before.ru_minflt);
}
