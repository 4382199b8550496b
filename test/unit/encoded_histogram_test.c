/* encoded_histogram_test.c - what the encode side counts in its histograms:
 * each room once, between the right moments, in its pool. As in encoded_test.c:
 * blocks and units are 8 rows of 4096 bytes, the pool has 16, langd `a` is link
 * 0, `b` link 1. */
#include "core/histogram/histograms.h"
#include "test/here.h"

/* Rows of QUERY histograms with one pool. */
enum { FIRST_ROW, TO_READY, SOURCE_WAIT, SIZE };

static uint64_t count(struct rig *e, uint32_t row)
{
    return brain_shown(e, "histograms", "count", row);
}

static uint64_t mean(struct rig *e, uint32_t row)
{
    return brain_shown(e, "histograms", "mean", row);
}

TEST_ENCODED(the_moments_of_a_room)
{
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_EQ_U64(count(e, SOURCE_WAIT), 1);
    T_EQ_U64(mean(e, SOURCE_WAIT), 0);
    brain_pass(e, 100);
    brain_hear(e, 0, init(e, 1, 77, 16));
    brain_pass(e, 30);
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    T_EQ_U64(count(e, FIRST_ROW), 1);
    T_EQ_U64(mean(e, FIRST_ROW), 130000);
    brain_pass(e, 500);
    T_OK(brain_say(e, 0, commit(0, 8, 8)));
    T_EQ_U64(count(e, TO_READY), 0);
    brain_pass(e, 7);
    ack(e, 0, 1, 77);
    T_EQ_U64(count(e, TO_READY), 1);
    T_EQ_U64(mean(e, TO_READY), 7000);
    T_EQ_U64(count(e, SIZE), 1);
    T_EQ_U64(mean(e, SIZE), 16 * 4096);
    T_EQ_U64(count(e, FIRST_ROW), 1);
    T_EQ_U64(count(e, SOURCE_WAIT), 1);
    brain_hear(e, 0, about(1, 77, PEER_ACK)); /* a repeated ACK */
    T_EQ_U64(count(e, TO_READY), 1);
    T_EQ_U64(count(e, SIZE), 1);
}

/* The time in which rows wait for their request is not counted. */
TEST_ENCODED(a_request_that_comes_last)
{
    SAYS(e, 0, announce(1, 0, 16, 16), commit(0, 0, 16));
    brain_pass(e, 400);
    brain_hear(e, 0, init(e, 1, 77, 16));
    brain_pass(e, 3);
    ack(e, 0, 1, 77);
    T_EQ_U64(mean(e, TO_READY), 3000);
}

/* Each destination counts by itself, the room once. */
TEST_ENCODED(two_destinations)
{
    struct local_msg m = announce(1, 0, 16, 16);
    struct peer_msg i = init(e, 1, 77, 16);

    m.announce.required_dst = i.init.required_dst = 2;
    T_OK(brain_say(e, 0, m));
    brain_hear(e, 0, i);
    i.generation = 78;
    brain_hear(e, 1, i);
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    brain_pass(e, 10);
    ack(e, 0, 1, 77);
    brain_pass(e, 20);
    T_EQ_U64(count(e, SIZE), 0);
    ack(e, 1, 1, 78);
    T_EQ_U64(count(e, TO_READY), 2);
    T_EQ_U64(mean(e, TO_READY), 20000);
    T_EQ_U64(count(e, FIRST_ROW), 1);
    T_EQ_U64(count(e, SIZE), 1);
    T_EQ_U64(mean(e, SIZE), 16 * 4096);
}

TEST_ENCODED(items_that_wait_for_blocks)
{
    SAYS(e, 0, announce(1, 0, 128, 128), announce(2, 1, 64, 64),
        announce(3, 2, 64, 64));
    T_EQ_U64(count(e, SOURCE_WAIT), 1);
    brain_pass(e, 600);
    T_OK(brain_say(e, 0, release(1))); /* it ends without having had blocks */
    T_EQ_U64(count(e, SOURCE_WAIT), 2);
    T_EQ_U64(mean(e, SOURCE_WAIT), 300000);
    brain_pass(e, 300);
    T_OK(brain_say(e, 0, release(0)));
    T_EQ_U64(count(e, SOURCE_WAIT), 3);
    T_EQ_U64(mean(e, SOURCE_WAIT), 500000);
    T_OK(brain_say(e, 0, release(2)));
    T_EQ_U64(count(e, SOURCE_WAIT), 3);
    T_EQ_U64(count(e, SIZE), 0);
    T_EQ_U64(count(e, FIRST_ROW), 0);
}

TEST_ENCODED(buckets_are_cumulative)
{
    uint32_t row = HISTOGRAM_BUCKETS * SIZE;

    for (uint32_t i = 0; i < 3; i++) {
        uint32_t rows = i < 2 ? 8 : 16;

        SAYS(e, 0, announce(i, i, rows, rows), commit(i, 0, rows));
        brain_hear(e, 0, init(e, i, 77 + i, rows));
        ack(e, 0, i, 77 + i);
    }
    T_EQ_STR(brain_text(e, "buckets", "name", row), "room_size");
    T_EQ_STR(brain_text(e, "buckets", "up_to", row + 3), "32768");
    T_EQ_U64(brain_shown(e, "buckets", "count", row + 2), 0);
    T_EQ_U64(brain_shown(e, "buckets", "count", row + 3), 2);
    T_EQ_U64(brain_shown(e, "buckets", "count", row + 4), 3);
    T_EQ_STR(brain_text(e, "buckets", "up_to", row + 19), "+Inf");
    T_EQ_U64(brain_shown(e, "buckets", "count", row + 19), 3);
    T_EQ_U64(brain_shown(e, "buckets", "sum", row + 19), 32 * 4096);
}
