/* langd_histogram_test.c - what the language side counts in its histograms:
 * each room once, between the right moments, in its pool. As in langd_test.c:
 * blocks of 8 rows of 4096 bytes, 16 of them. */
#include "test/there.h"

/* The histograms of langd, in the order of QUERY histograms. With two pools
 * each has three rows, of which the last is for both. */
enum { TO_READY, WAIT, SIZE };

static uint64_t count(struct rig *l, uint32_t row)
{
    return brain_shown(l, "histograms", "count", row);
}

static uint64_t mean(struct rig *l, uint32_t row)
{
    return brain_shown(l, "histograms", "mean", row);
}

TEST_LANGD(the_moments_of_a_room, DEFAULT_BLOCKS(0))
{
    uint64_t before = count(l, WAIT); /* with the request that made the link */
    struct there t = ask_room(l, 1, 0);

    brain_pass(l, 250);
    fill(l, &t, 32);
    T_EQ_U64(count(l, TO_READY), 1);
    T_EQ_U64(mean(l, TO_READY), 250000);
    T_EQ_U64(count(l, WAIT), before + 1);
    T_EQ_U64(mean(l, WAIT), 0);
    T_EQ_U64(count(l, SIZE), 1);
    T_EQ_U64(mean(l, SIZE), 32 * 4096);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(count(l, TO_READY), 1);
    T_EQ_U64(count(l, WAIT), before + 1);
}

/* What counts is the wait for blocks that another room has, not for the
 * announce. */
TEST_LANGD(a_room_that_waits_for_blocks, DEFAULT_BLOCKS(0))
{
    uint64_t before = count(l, WAIT);
    struct there a = ask_room(l, 1, 0), b = ask_room(l, 2, 1);
    struct there c = ask_room(l, 3, 2);

    fill(l, &a, 128);
    brain_pass(l, 100);
    HEARS(l, 0, length(&b, 64, 64, true), length(&c, 64, 64, true));
    brain_pass(l, 200);
    T_OK(brain_say(l, 0, abort_of(2)));
    T_EQ_U64(count(l, WAIT), before + 2);
    /* its wait ended when it failed */
    T_EQ_U64(mean(l, WAIT), 200000 / (before + 2));
    brain_pass(l, 100);
    T_OK(brain_say(l, 0, release(0, ROWS_UNKNOWN)));
    told(l, &b);
    brain_pass(l, 50);
    brain_landed(l, &b.open, 0, 64);
    T_EQ_U64(count(l, WAIT), before + 3);
    T_EQ_U64(mean(l, WAIT), 500000 / (before + 3));
    T_EQ_U64(count(l, TO_READY), 2);
}

/* For all members the wait begins when the last length is known. */
TEST_LANGD(groups_wait_together, DEFAULT_BLOCKS(0))
{
    uint64_t before = count(l, WAIT);
    struct there a = ask_room(l, 1, 0), g[2];

    fill(l, &a, 128);
    for (uint32_t i = 0; i < 2; i++)
        g[i] = member(l, i + 2, 2);
    for (uint32_t i = 0; i < 2; i++) {
        brain_pass(l, 100);
        brain_hear(l, 0, length(&g[i], 16, 16, true));
    }
    brain_pass(l, 300);
    frees(l, 0, 12);
    brain_pass(l, 100);
    for (uint32_t i = 0; i < 2; i++)
        T_OK(brain_say(l, 0, abort_of(i + 1)));
    T_EQ_U64(count(l, WAIT), before + 3);
    T_EQ_U64(mean(l, WAIT), 600000 / (before + 3));
    T_EQ_U64(count(l, SIZE), 1);
}

TEST(each_pool_has_its_own)
{
    struct rig *l = BRAIN(ROLE_LANGD, "pools[1].name=second",
        "pools[1].blocks=16", "pools[1].block_rows=8",
        "pools[1].layout=x:u8:4096", "pools[1].default_blocks=2");
    const uint64_t offsets[LAYOUT_FIELDS_MAX] = {0};
    struct pool_memory memory = {offsets, 16 * 8 * 4096, "", {0}};
    struct event ev = {.type = EV_POOL, .pool = 1, .memory = &memory};
    struct local_msg r = request(1, 0, MODE_WHOLE);
    struct there t = {.room = 1};

    rig_step(l, &ev);
    brain_conn(l, 0, "s");
    r.request.pool = 1;
    T_OK(brain_say(l, 0, r)); /* the first request makes the link */
    told(l, &t);
    brain_hello(l, 0, "enc", PEER_EPOCH);
    t.generation = brain_said(l, PEER_INIT, 0)->generation;
    fill_succeeds(l, &t, 16, 0);
    T_EQ_STR(brain_text(l, "histograms", "pool", 0), "main");
    T_EQ_STR(brain_text(l, "histograms", "pool", 1), "second");
    T_EQ_STR(brain_text(l, "histograms", "pool", 2), "*");
    for (uint32_t row = 0; row < 9; row++)
        T_EQ_U64(count(l, row), row % 3 > 0);
}

/* A room without an encoder counts in no histogram. */
TEST_LANGD(a_null_room_is_not_counted)
{
    uint64_t before = count(l, WAIT);
    struct local_msg r = request(1, 0, MODE_WHOLE);

    r.request.encoder = span_str("null");
    T_OK(brain_say(l, 0, r));
    T_EQ_U64(brain_state(l, 0, 0), ROOM_SUCCESS);
    T_EQ_U64(count(l, TO_READY), 0);
    T_EQ_U64(count(l, WAIT), before);
    T_EQ_U64(count(l, SIZE), 0);
}
