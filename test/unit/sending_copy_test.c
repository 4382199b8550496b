/* sending_copy_test.c - messages to a peer that maps our pool: they have the
 * rows' places in place of the rows, in segments of their own size. */
#include "test/unit/sending_side.h"

static void copy_job(struct sending *d, uint32_t slot, uint64_t g,
    uint32_t blocks, uint32_t rows, bool copy)
{
    struct data_cmd c = cmd_of(SEND_OPEN, slot, g);

    c.copy = copy;
    T_FALSE(give(d, c));
    run(d, slot, g, slot * 8 % 256, blocks);
    limit(d, slot, g, rows, rows);
}

TEST_WITH(copies_are_large, struct sending *d, make())
{
    uint32_t token, rows = 0;

    copy_job(d, 1, 1, 88, 1408, true);
    T_TRUE(sending_next(d, &batch, &token) && batch.copy);
    T_EQ_U64(batch.count, 22);
    T_EQ_U64(batch.bytes, 22 * (SEGMENT_SOURCE + PIECE_BYTES));
    for (uint32_t i = 0; i < batch.count; i++) {
        T_EQ_U64(batch.segments[i].first, rows);
        T_EQ_U64(batch.segments[i].bytes, batch.segments[i].rows * ROW);
        T_EQ_U64(batch.pieces[i].block, 8 + rows / 16);
        rows += batch.segments[i].rows;
    }
    T_EQ_U64(rows, 1408);
    T_FALSE(sending_next(d, &batch, &token));
}

TEST_WITH(kinds_have_messages_of_their_own, struct sending *d, make())
{
    uint32_t tokens[3], copies = 0;

    copy_job(d, 1, 1, 1, 16, true);
    copy_job(d, 2, 2, 1, 16, false);
    copy_job(d, 3, 3, 1, 16, true);
    for (uint32_t i = 0; i < 3; i++) {
        T_TRUE(sending_next(d, &batch, &tokens[i]) && batch.count == 1);
        copies += batch.copy;
    }
    T_EQ_U64(copies, 2);
}

TEST_WITH(a_rewind_changes_the_kind, struct sending *d, make())
{
    struct data_cmd c = cmd_of(SEND_REWIND, 1, 1);
    uint32_t token;

    copy_job(d, 1, 1, 2, 32, true);
    T_TRUE(sending_next(d, &batch, &token) && batch.copy);
    c.attempt = 1;
    c.a = c.total = 32;
    T_FALSE(give(d, c));
    T_TRUE(sending_next(d, &batch, &token) && !batch.copy);
    T_EQ_U64(batch.segments[0].attempt, 1);
    T_EQ_U64(batch.bytes, 32 * ROW);
}

TEST(copies_of_many_pieces)
{
    struct sending *d = make_with(0, 1, 256 * KIB, 1024, &POOL);
    uint32_t token, rows = 0;

    sending_peer(d, 1, 1, 1024);
    copy_job(d, 1, 1, 1, 0, true);
    for (uint32_t i = 1; i < 100; i++)
        run(d, 1, 1, 8 + 2 * i, 1);
    limit(d, 1, 1, 1600, 1600);
    while (sending_next(d, &batch, &token)) {
        uint32_t at = 0;

        T_TRUE(batch.copy && batch.count > 0);
        T_TRUE(batch.count == 1 ||
               SEGMENT_HEADER + batch.count * SEGMENT_BYTES + batch.bytes <=
                   1024 - SEND_CARRIER_ROOM);
        for (uint32_t i = 0; i < batch.count; i++) {
            uint32_t sum = 0;

            for (uint32_t k = 0; k < batch.from[i].pieces; k++, at++) {
                T_EQ_U64(batch.pieces[at].block, 8 + 2 * ((rows + sum) / 16));
                T_EQ_U64(batch.pieces[at].at, (rows + sum) % 16);
                sum += batch.pieces[at].rows;
            }
            T_EQ_U64(sum, batch.segments[i].rows);
            rows += sum;
        }
        done(d, token);
    }
    T_EQ_U64(rows, 1600);
}
