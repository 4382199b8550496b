/* sending_test.c - which rows go next: shares, windows, packing, rewinds,
 * closes. */
#include "test/unit/sending_side.h"

TEST_WITH(nothing_to_send, struct sending *d, make())
{
    nothing(d);
    T_EQ_U64(sending_active(d), 0);
}

TEST_WITH(segments_of_one_job, struct sending *d, make())
{
    uint32_t t;

    job(d, 3, 9, 8, 100, ROWS_UNKNOWN);
    t = expect(d, 3, 0, 52); /* 53,248 - 512 - 48 bytes: 52 rows */
    T_EQ_U64(batch.segments[0].room, 90);
    T_EQ_U64(batch.segments[0].generation, 9);
    T_EQ_U64(batch.segments[0].attempt, 0);
    T_EQ_U64(batch.segments[0].total, ROWS_UNKNOWN);
    T_EQ_U64(batch.segments[0].bytes, 52000);
    T_EQ_U64(batch.segments[0].fields, SEGMENT_ALL);
    T_EQ_U64(batch.peer, 1);
    T_EQ_U64(batch.address, 0);
    T_EQ_U64(batch.pieces_count, 1);
    T_EQ_U64(batch.pieces[0].block, 24);
    T_EQ_U64(sending_active(d), 1);
    done(d, t);
    /* Up to the part's end, then the next part: two segments, one message. */
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, 2);
    T_EQ_U64(batch.segments[0].first, 52);
    T_EQ_U64(batch.segments[0].rows, 12);
    T_EQ_U64(batch.segments[1].first, 64);
    T_EQ_U64(batch.segments[1].rows, 36);
    done(d, t);
    nothing(d);
    T_EQ_U64(sending_active(d), 0);
}

TEST_WITH(only_whole_units_until_the_end, struct sending *d, make())
{
    job(d, 0, 9, 4, 7, ROWS_UNKNOWN);
    done(d, expect(d, 0, 0, 4));
    nothing(d);
    limit(d, 0, 9, 7, 7); /* the length, 7, becomes known */
    done(d, expect(d, 0, 4, 3));
    T_EQ_U64(batch.segments[0].total, 7);
    limit(d, 0, 9, 64, 7);
    nothing(d);
}

TEST_WITH(limit_needs_generation_and_attempt, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_LIMIT, 0, 9);

    job(d, 0, 9, 4, 4, ROWS_UNKNOWN);
    done(d, expect(d, 0, 0, 4));
    limit(d, 0, 8, 16, ROWS_UNKNOWN);
    nothing(d);
    c.attempt = 1;
    c.a = 16;
    T_FALSE(give(d, c));
    nothing(d);
    limit(d, 0, 9, 2, ROWS_UNKNOWN); /* a limit is never lowered */
    nothing(d);
    limit(d, 0, 9, 8, ROWS_UNKNOWN);
    done(d, expect(d, 0, 4, 4));
}

TEST_WITH(source_runs, struct sending *d, make())
{
    uint32_t t;

    T_FALSE(give(d, cmd_of(SEND_OPEN, 0, 9)));
    run(d, 0, 9, 7, 1);
    run(d, 0, 9, 3, 1);
    run(d, 0, 9, 100, 5);
    limit(d, 0, 9, 40, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, 1);
    T_EQ_U64(batch.from[0].pieces, 3);
    T_EQ_U64(batch.pieces[0].block, 7);
    T_EQ_U64(batch.pieces[1].block, 3);
    T_EQ_U64(batch.pieces[2].block, 100);
    T_EQ_U64(batch.pieces[2].rows, 8);
    limit(d, 0, 9, 60, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.pieces[0].block, 100);
    T_EQ_U64(batch.pieces[0].at, 8);
    T_EQ_U64(batch.pieces[0].rows, 20);
    /* never beyond the blocks that the job has */
    limit(d, 0, 9, 5000, ROWS_UNKNOWN);
    while (sending_next(d, &batch, &t))
        T_CHECK(batch.segments[batch.count - 1].first +
                        batch.segments[batch.count - 1].rows <=
                    112,
            "row %u", batch.segments[batch.count - 1].first);
}

/* Rows that lie in one place are a message of their own; fewer rows, or rows of
 * several fields, travel together. */
TEST(rows_in_one_place_go_alone)
{
    struct sending_pool pool = POOL;
    struct sending *d;
    uint32_t t, rows = 0;

    pool.fields = 1;
    pool.alone = 16 * ROW;
    d = make_with(0, 1, 256 * KIB, 52 * KIB, &pool);
    sending_peer(d, 1, 1, 52 * KIB);
    T_FALSE(give(d, cmd_of(SEND_OPEN, 0, 9)));
    run(d, 0, 9, 7, 1);
    run(d, 0, 9, 3, 2);
    run(d, 0, 9, 100, 1);
    job(d, 2, 8, 1, 12, 12); /* too few rows for a message of their own */
    limit(d, 0, 9, 64, 64);
    T_TRUE(sending_next(d, &batch, &t));
    for (uint32_t i = 0; i < 4; i++) {
        T_EQ_U64(batch.count, 1);
        T_EQ_U64(batch.from[0].pieces, 1);
        rows += batch.segments[0].rows;
        T_EQ_U64(sending_next(d, &batch, &t), i < 3);
    }
    T_EQ_U64(rows, 64 + 12);
}

/* Of two peers one reads rows where they lie: it gets messages of their own, in
 * the first window. The other one's rows are copied: together, in the widened
 * window. */
TEST(peers_are_served_as_their_carriers_read)
{
    struct sending_pool pool = POOL;
    uint32_t counts[3] = {0}, t;
    struct sending *d;

    pool.fields = 1;
    pool.alone = 16 * ROW;
    d = make_with(0, 1, 64 * KIB, 52 * KIB, &pool);
    sending_widen(d, 128 * KIB);
    for (uint32_t peer = 1; peer <= 2; peer++) {
        struct data_cmd c = cmd_of(SEND_OPEN, peer, 9);

        c.peer = peer;
        sending_peer(d, peer, 1, 52 * KIB);
        sending_reads(d, peer, peer == 1 ? SEND_READS : SEND_READS_NOT);
        T_FALSE(give(d, c));
        for (uint32_t b = 0; b < 12; b++)
            run(d, peer, 9, 2 * b, 1);
        limit(d, peer, 9, 192, 192);
    }
    while (sending_next(d, &batch, &t)) {
        counts[batch.peer]++;
        T_EQ_I64(batch.bytes > 16 * ROW, batch.peer == 2);
    }
    T_EQ_U64(counts[1], 1);
    T_EQ_U64(counts[2], 2);
}

/* Two destinations of one extent: the same runs come twice. */
TEST_WITH(two_jobs_share_an_extent, struct sending *d, make())
{
    uint32_t t;

    sending_peer(d, 2, 1, 52 * KIB);
    for (uint32_t slot = 0; slot < 2; slot++) {
        struct data_cmd c = cmd_of(SEND_OPEN, slot, 9 + slot);

        c.peer = 1 + slot;
        T_FALSE(give(d, c));
        run(d, slot, 9 + slot, 7, 1);
        run(d, slot, 9 + slot, 3, 1);
        limit(d, slot, 9 + slot, 32, 32);
    }
    for (uint32_t slot = 0; slot < 2; slot++) {
        T_TRUE(sending_next(d, &batch, &t));
        T_EQ_U64(batch.peer, 1 + slot);
        T_EQ_U64(batch.bytes, 32 * ROW);
        T_EQ_U64(batch.pieces[0].block, 7);
        T_EQ_U64(batch.pieces[1].block, 3);
    }
}

/* RULES 5.9 */
TEST_WITH(window_holds, struct sending *d, make())
{
    uint32_t t[8], n = 0;
    uint64_t bytes = 0;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    while (n < 8 && sending_next(d, &batch, &t[n])) {
        bytes += batch.bytes;
        n++;
    }
    T_CHECK(bytes <= 256 * KIB && bytes > 200 * KIB && n < 8,
        "%u messages, %lu bytes", n, (unsigned long)bytes);
    nothing(d);
    done(d, t[2]);
    T_TRUE(sending_next(d, &batch, &t[2]));
    nothing(d);
}

/* A window of one endpoint says nothing about another. */
/* RULES 5.9 */
TEST_WITH(windows_are_per_endpoint, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_OPEN, 5, 9);
    uint32_t t;

    sending_peer(d, 2, 1, 52 * KIB);
    job(d, 0, 8, 64, 1024, ROWS_UNKNOWN);
    while (sending_next(d, &batch, &t))
        T_EQ_U64(batch.peer, 1);
    c.peer = 2;
    T_FALSE(give(d, c));
    run(d, 5, 9, 200, 1);
    limit(d, 5, 9, 16, 16);
    done(d, expect(d, 5, 0, 16));
    T_EQ_U64(batch.peer, 2);
}

/* One message may always go: also with a unit beyond every limit, or a window
 * that is too small. */
TEST(a_unit_beyond_the_limits)
{
    struct sending_pool pool = {16, 100000, 16, 1, 0, 0};
    struct sending *d = make_with(0, 1, 64 * KIB, 52 * KIB, &pool);
    uint32_t t;

    sending_peer(d, 1, 1, 52 * KIB);
    T_FALSE(give(d, cmd_of(SEND_OPEN, 0, 9)));
    run(d, 0, 9, 0, 2);
    limit(d, 0, 9, 32, 30);
    for (uint32_t row = 0; row < 30; row += 4) {
        T_TRUE(sending_next(d, &batch, &t));
        T_EQ_U64(batch.count, 1);
        T_EQ_U64(batch.segments[0].first, row);
        T_EQ_U64(batch.segments[0].rows, row == 28 ? 2 : 4);
        nothing(d);
        done(d, t);
    }
    nothing(d);
}

/* The receiver fetches each such message, and has places for a few. */
TEST(units_larger_than_a_message_are_few_at_once)
{
    struct sending_pool pool = {16, 100000, 16, 1, 0, 0};
    struct sending *d = make_with(0, 1, 64 << 20, 52 * KIB, &pool);
    uint32_t t[SEND_LARGE_EP], next;

    sending_peer(d, 1, 1, 52 * KIB);
    T_FALSE(give(d, cmd_of(SEND_OPEN, 0, 9)));
    run(d, 0, 9, 0, 2);
    limit(d, 0, 9, 32, 30);
    for (uint32_t i = 0; i < SEND_LARGE_EP; i++)
        T_TRUE(sending_next(d, &batch, &t[i]));
    nothing(d);
    done(d, t[1]);
    T_TRUE(sending_next(d, &batch, &next));
    T_EQ_U64(batch.segments[0].first, 4 * SEND_LARGE_EP);
    nothing(d);
    done(d, next);
    done(d, t[0]);
    for (uint32_t i = 0; i < 2; i++)
        T_TRUE(sending_next(d, &batch, &next));
    nothing(d);
}

TEST_WITH(peers_message_size_counts, struct sending *d, make())
{
    sending_peer(d, 1, 1, 10 * KIB);
    job(d, 0, 9, 4, 64, ROWS_UNKNOWN);
    done(d, expect(d, 0, 0, 8));
}

/* A huge room and small ones: each turn of the endpoint has a segment of each,
 * so that the small ones are done after the first message or two. */
/* RULES 5.9 */
TEST_WITH(jobs_take_turns, struct sending *d, make())
{
    uint32_t t, small = 0, messages = 0;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &t));
    done(d, t);
    for (uint32_t i = 1; i <= 10; i++)
        job(d, i, 9 + i, 1, 4, 4);
    while (small < 10) {
        T_TRUE(sending_next(d, &batch, &t));
        for (uint32_t i = 0; i < batch.count; i++)
            small += batch.from[i].slot != 0;
        messages++;
        done(d, t);
    }
    T_CHECK(messages <= 3, "%u messages", messages);
}

/* RULES 5.9 */
TEST_WITH(two_large_jobs_share_evenly, struct sending *d, make())
{
    uint32_t t, rows[2] = {0};

    job(d, 0, 9, 8, 128, ROWS_UNKNOWN);
    job(d, 1, 10, 8, 128, ROWS_UNKNOWN);
    while (sending_next(d, &batch, &t)) {
        for (uint32_t i = 0; i < batch.count; i++)
            rows[batch.from[i].slot] += batch.segments[i].rows;
        T_CHECK(rows[0] + 64 >= rows[1] && rows[1] + 64 >= rows[0],
            "%u and %u rows", rows[0], rows[1]);
        done(d, t);
    }
    T_EQ_U64(rows[0], 128);
    T_EQ_U64(rows[1], 128);
}

TEST(small_jobs_travel_together)
{
    struct sending_pool pool = {256, 16, 16, 1, 0, 0};
    struct sending *d = make_with(0, 1, 256 * KIB, 52 * KIB, &pool);
    uint32_t t;

    sending_peer(d, 1, 1, 52 * KIB);
    for (uint32_t i = 0; i < SEGMENTS_MAX + 9; i++)
        job(d, i, 100 + i, 1, 4, 4);
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, SEGMENTS_MAX);
    T_EQ_U64(batch.pieces_count, SEGMENTS_MAX);
    T_EQ_U64(batch.bytes, SEGMENTS_MAX * 4 * 16);
    for (uint32_t i = 0; i < batch.count; i++)
        T_EQ_U64(batch.from[i].slot, i);
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, 9);
    nothing(d);
}

/* Checks that the next message has rows of these two slots; second NONE: of
 * one. */
static void expect_slots(struct sending *d, uint32_t first, uint32_t second)
{
    uint32_t t;

    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, second == NONE ? 1 : 2);
    T_EQ_U64(batch.from[0].slot, first);
    T_EQ_U64(batch.from[batch.count - 1].slot, second == NONE ? first : second);
}

/* So that a carrier can let small messages overtake large ones. */
TEST(small_jobs_share_no_message_with_large_ones)
{
    struct sending_pool pool = {256, 2 * ROW, 16, 2, 0, 0};
    struct sending *d = make_with(0, 1, 1024 * KIB, 256 * KIB, &pool);

    sending_peer(d, 1, 1, 256 * KIB);
    job(d, 0, 100, 8, 128, 128); /* two parts of 128,000 bytes */
    job(d, 1, 101, 1, 4, 4);
    job(d, 2, 102, 1, 8, 8);
    job(d, 3, 103, 8, 128, 128);
    expect_slots(d, 0, NONE);
    expect_slots(d, 1, 2);
    expect_slots(d, 3, 0);
    expect_slots(d, 3, NONE);
    nothing(d);
}

/* With its headers a message is never larger than both ends agreed on, and
 * never has more places than either end can take. */
TEST(messages_fit)
{
    struct sending_pool pool = {256, 300, 1, 20, 0, 0};
    struct sending *d = make_with(0, 1, 256 * KIB, 20 * KIB, &pool);
    uint32_t t, n = 0;

    sending_peer(d, 1, 1, 52 * KIB);
    for (uint32_t i = 0; i < 20; i++) {
        struct data_cmd c = cmd_of(SEND_OPEN, i, 100 + i);

        c.unit_rows = i % 3 + 1;
        c.part_rows = c.unit_rows * 50;
        T_FALSE(give(d, c));
        for (uint32_t b = 0; b < 12; b++)
            run(d, i, 100 + i, (i * 12 + b * 5) % 256, 1);
        limit(d, i, 100 + i, 12, 12);
    }
    while (sending_next(d, &batch, &t)) {
        uint32_t places = 0, units = 0;

        for (uint32_t i = 0; i < batch.count; i++) {
            places += batch.from[i].pieces * 20;
            units += div_up(batch.segments[i].rows, i % 3 + 1) * 20;
            T_CHECK(batch.from[i].pieces <= PIECES_MAX / 2, "%u pieces",
                batch.from[i].pieces);
            n += batch.segments[i].rows;
        }
        T_CHECK(SEGMENT_HEADER + batch.count * SEGMENT_BYTES + batch.bytes +
                        SEND_CARRIER_ROOM <=
                    20 * KIB,
            "%u segments, %lu bytes", batch.count, (unsigned long)batch.bytes);
        T_CHECK(places <= SEND_IOV_MAX && batch.pieces_count <= 128,
            "%u places, %u units", places, units);
        done(d, t);
    }
    T_EQ_U64(n, 240);
}

/* A segment has few units, so that it lands in few blocks of the peer. */
TEST(segments_have_few_units)
{
    struct sending_pool pool = {256, 4, 128, 1, 0, 0};
    struct sending *d = make_with(0, 1, 256 * KIB, 256 * KIB, &pool);
    struct data_cmd c = cmd_of(SEND_OPEN, 0, 9);
    uint32_t t;

    sending_peer(d, 1, 1, 256 * KIB);
    c.unit_rows = 2;
    c.part_rows = 4096;
    T_FALSE(give(d, c));
    run(d, 0, 9, 0, 64);
    limit(d, 0, 9, 4096, 4096);
    T_TRUE(sending_next(d, &batch, &t));
    T_EQ_U64(batch.count, 8); /* 512 units may lie in as many places */
    for (uint32_t i = 0; i < batch.count; i++)
        T_EQ_U64(batch.segments[i].rows, SEGMENT_UNITS_MAX * 2);
}

/* RULES 1.4 */
TEST_WITH(rewind_goes_back, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_REWIND, 0, 9);

    job(d, 0, 9, 8, 128, ROWS_UNKNOWN);
    done(d, expect(d, 0, 0, 52));
    c.attempt = 1;
    c.from = 8;
    c.a = 16;
    T_FALSE(give(d, c));
    done(d, expect(d, 0, 8, 8));
    T_EQ_U64(batch.segments[0].attempt, 1);
    nothing(d);
    limit(d, 0, 9, 32, ROWS_UNKNOWN); /* a limit for attempt 0 */
    nothing(d);
    c = cmd_of(SEND_LIMIT, 0, 9);
    c.attempt = 1;
    c.a = 20;
    T_FALSE(give(d, c));
    done(d, expect(d, 0, 16, 4));
}

/* The length becomes known while the peer is away. */
TEST_WITH(rewind_tells_the_total, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_REWIND, 0, 9);

    job(d, 0, 9, 8, 4, ROWS_UNKNOWN);
    done(d, expect(d, 0, 0, 4));
    c.attempt = 1;
    c.a = c.total = 7;
    T_FALSE(give(d, c));
    done(d, expect(d, 0, 0, 7));
    T_EQ_U64(batch.segments[0].total, 7);
}

TEST_WITH(close_when_nothing_is_out, struct sending *d, make())
{
    job(d, 0, 9, 8, 128, ROWS_UNKNOWN);
    T_TRUE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    nothing(d);
    limit(d, 0, 9, 128, 128);
    nothing(d);
    T_TRUE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    T_TRUE(give(d, cmd_of(SEND_CLOSE, 0, 8)));
    T_TRUE(give(d, cmd_of(SEND_CLOSE, 7, 1)));
}

TEST_WITH(close_waits_for_what_is_out, struct sending *d, make())
{
    uint32_t a, b;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &a));
    T_TRUE(sending_next(d, &batch, &b));
    T_EQ_U64(batch.count, 2);
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    nothing(d);
    done(d, b);
    T_EQ_U64(quiets, 0);
    /* the second CLOSE is answered, too */
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    done(d, a);
    T_EQ_U64(quiets, 2);
    T_EQ_U64(last_quiet.slot, 0);
    T_EQ_U64(last_quiet.generation, 9);
}

/* The slot serves another generation while old messages are under way. */
TEST_WITH(close_of_an_older_generation, struct sending *d, make())
{
    uint32_t a, b, c;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &a));
    T_TRUE(sending_next(d, &batch, &b));
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    job(d, 0, 10, 8, 16, 16);
    T_TRUE(sending_next(d, &batch, &c));
    T_EQ_U64(batch.segments[0].generation, 10);
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    done(d, a);
    T_EQ_U64(quiets, 0);
    done(d, b);
    T_EQ_U64(quiets, 2);
    T_EQ_U64(last_quiet.generation, 9);
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 10)));
    done(d, c);
    T_EQ_U64(quiets, 3);
    T_EQ_U64(last_quiet.generation, 10);
    T_TRUE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
}

TEST_WITH(broken_peer_stands_still, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_REWIND, 0, 9);
    uint32_t t;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    job(d, 1, 10, 64, 1024, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &t));
    sending_broken(d, 1);
    nothing(d);
    limit(d, 0, 9, 1100, ROWS_UNKNOWN);
    nothing(d);
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 1, 10)) && batch.count > 1);
    done(d, t);
    nothing(d);
    c.attempt = 1;
    c.a = 8;
    T_FALSE(give(d, c));
    done(d, expect(d, 0, 0, 8));
    job(d, 2, 11, 1, 4, 4); /* jobs that are opened after the break are sent */
    done(d, expect(d, 2, 0, 4));
}

TEST_WITH(closed_peer, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_REWIND, 0, 9);
    uint32_t t;

    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    T_TRUE(sending_next(d, &batch, &t));
    T_FALSE(give(d, cmd_of(PEER_CLOSE, 0, 0)));
    nothing(d);
    T_FALSE(give(d, cmd_of(SEND_CLOSE, 0, 9)));
    done(d, t);
    T_EQ_U64(quiets, 1);
    job(d, 0, 9, 64, 1024, ROWS_UNKNOWN);
    nothing(d); /* the peer is not open */
    sending_peer(d, 1, 2, 52 * KIB);
    nothing(d);
    c.a = 64;
    T_FALSE(give(d, c));
    done(d, expect(d, 0, 0, 52));
    T_EQ_U64(batch.address, 1); /* generation 9, part 0, of two */
}

/* A peer whose geometry is nonsense gets no rows; no other peer is affected. */
TEST_WITH(hostile_geometry, struct sending *d, make())
{
    static const uint32_t odd[] = {0, 1, 3, 4, 16, 240, 241, 0x7fffffff,
        0x80000000, 0xfffffffc, 0xffffffff};
    uint32_t t;

    for (size_t u = 0; u < ARRAY_LEN(odd); u++)
        for (size_t p = 0; p < ARRAY_LEN(odd); p++)
            for (size_t f = 0; f < ARRAY_LEN(odd); f++) {
                struct data_cmd c = cmd_of(SEND_OPEN, 0, 9 + u);

                c.unit_rows = odd[u];
                c.part_rows = odd[p];
                c.from = odd[f];
                give(d, c);
                run(d, 0, 9 + u, 0, 8);
                limit(d, 0, 9 + u, odd[p], odd[f]);
                limit(d, 0, 9 + u, ROWS_UNKNOWN, ROWS_UNKNOWN);
                for (int i = 0; i < 200 && sending_next(d, &batch, &t); i++) {
                    T_CHECK(batch.segments[0].first < 128, "row %u",
                        batch.segments[0].first);
                    done(d, t);
                }
                T_TRUE(give(d, cmd_of(SEND_CLOSE, 0, 9 + u)));
            }
}

/* A unit of more source pieces than a message may have is never sent. */
TEST(units_of_a_pool_that_bounds_them)
{
    struct sending_pool pool = {256, ROW, 16, 2, 4 * ROW, 0};
    struct sending *d = make_with(0, 1, 256 * KIB, 52 * KIB, &pool);
    struct data_cmd c = cmd_of(SEND_OPEN, 0, 9);

    sending_peer(d, 1, 1, 52 * KIB);
    c.unit_rows = 8;
    T_FALSE(give(d, c));
    run(d, 0, 9, 0, 2);
    limit(d, 0, 9, 32, 32);
    nothing(d);
    job(d, 1, 10, 2, 32, 32); /* with units of 4 rows */
    done(d, expect(d, 1, 0, 32));
}

TEST(unit_in_too_many_blocks)
{
    struct sending_pool pool = {256, 10, 1, 32, 0, 0};
    struct sending *d = make_with(0, 1, 256 * KIB, 52 * KIB, &pool);
    struct data_cmd c = cmd_of(SEND_OPEN, 0, 9);

    T_TRUE(sending_unit_ok(15, 1));
    T_FALSE(sending_unit_ok(16, 1));
    T_FALSE(sending_unit_ok(0, 1));
    sending_peer(d, 1, 1, 52 * KIB);
    c.unit_rows = 16;
    T_FALSE(give(d, c));
    for (uint32_t b = 0; b < 64; b++)
        run(d, 0, 9, b * 3, 1);
    limit(d, 0, 9, 64, 64);
    nothing(d);
    c.generation = 10;
    c.unit_rows = 15;
    c.part_rows = 60;
    T_FALSE(give(d, c));
    for (uint32_t b = 0; b < 60; b++)
        run(d, 0, 10, b * 3, 1);
    limit(d, 0, 10, 60, 60);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t t;

        T_TRUE(sending_next(d, &batch, &t));
        T_EQ_U64(batch.segments[0].rows, 15);
        T_EQ_U64(batch.from[0].pieces, 15);
        done(d, t);
    }
    nothing(d);
}

/* Opens a job of the peer whose rows spread over all of its addresses. */
static void wide_job(
    struct sending *d, uint32_t slot, uint32_t peer, uint32_t rows)
{
    struct data_cmd c = cmd_of(SEND_OPEN, slot, 9 + slot);

    c.peer = peer;
    T_FALSE(give(d, c));
    for (int i = 0; i < 40; i++)
        run(d, slot, 9 + slot, 0, 256);
    limit(d, slot, 9 + slot, rows, ROWS_UNKNOWN);
}

/* One peer takes no messages, by any number of addresses; another peer comes
 * later. */
TEST(a_stuck_peer_leaves_messages_for_others)
{
    struct sending *d = make_with(0, 1, 512 << 20, 52 * KIB, &POOL);
    uint32_t t, out[SEND_MESSAGES_MAX], n = 0;

    for (uint32_t peer = 0; peer < PEERS; peer++)
        sending_peer(d, peer, peer == 0 ? 64 : 1, 52 * KIB);
    for (uint32_t slot = 0; slot < 64; slot++)
        wide_job(d, slot, 0, 4096);
    while (sending_next(d, &batch, &t))
        out[n++] = t;
    T_EQ_U64(
        n, SEND_MESSAGES_MAX - (PEERS - 1) * SEND_MESSAGES_MAX / 2 / PEERS);
    T_FALSE(sending_ready(d));
    wide_job(d, 100, 2, 16);
    T_TRUE(sending_ready(d));
    done(d, expect(d, 100, 0, 16));
    T_FALSE(sending_ready(d));
    done(d, out[--n]); /* this peer's own message place is free again */
    T_TRUE(sending_next(d, &batch, &out[n++]));
    T_EQ_U64(batch.peer, 0);
    for (uint32_t peer = 1; peer < PEERS; peer++) {
        struct data_cmd c = cmd_of(PEER_CLOSE, 0, 0);

        c.peer = peer;
        T_FALSE(give(d, c));
    }
    while (sending_next(d, &batch, &t)) /* no other peer is left */
        n++;
    T_EQ_U64(n, SEND_MESSAGES_MAX);
}

TEST(messages_are_bounded)
{
    struct sending *d = make_with(0, 1, 512 << 20, 52 * KIB, &POOL);
    uint32_t t, n = 0;

    for (uint32_t peer = 0; peer < PEERS; peer++)
        sending_peer(d, peer, 1, 52 * KIB);
    for (uint32_t slot = 0; slot < PEERS + 1; slot++) {
        struct data_cmd c = cmd_of(SEND_OPEN, slot, 9 + slot);

        c.peer = slot % PEERS;
        T_FALSE(give(d, c));
        for (int i = 0; i < 40; i++)
            run(d, slot, 9 + slot, 0, 256);
        limit(d, slot, 9 + slot, 4096, ROWS_UNKNOWN);
    }
    while (n < 10000 && sending_next(d, &batch, &t))
        n++;
    T_CHECK(n <= SEND_MESSAGES_MAX, "%u messages", n);
    T_EQ_U64(n, sending_active(d));
    T_TRUE(n <= PEERS * SEND_MESSAGES_EP);
}

/* peers that copy for themselves */
