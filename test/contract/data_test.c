/* data_test.c - the contract of lib/io/data.h, over every carrier. A case that
 * is called EACH runs as mem_<case>, tcp_<case>, streams_<case> (TCP with
 * several connections), proved_<case> and encrypted_<case> (with a key), and
 * ucx_<case>. */
#include "test/data_mem.h"
#include "test/side.h"
#include "test/t.h"
#include "wire/segment.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define EACH(id)                                                               \
    static void id(const struct data_ops *ops);                                \
    TEST_IS(mem_##id, id(&data_mem));                                          \
    TEST_IS(tcp_##id, id(&data_tcp));                                          \
    TEST_IS(streams_##id, id(side_streams()));                                 \
    TEST_IS(proved_##id, id(side_proved()));                                   \
    TEST_IS(encrypted_##id, id(side_encrypted()));                             \
    TEST_IS(ucx_##id, id(&data_ucx));                                          \
    static void id(const struct data_ops *ops)

/* Interval of a test's ticks: a thousand of them are a stall. */
#define TICK_NS (SIDE_STALL_MS * NS_PER_MS / 1000)

/* connections */

/* Both ends hear of the connection's end, too. */
EACH(who_connects_hears_of_it_without_a_message)
{
    SIDE a, b;
    const char *text = "";

    side_pair(&a, &b, ops);
    side_until(&a, &b, &a.made_count, 1);
    T_EQ_U64(ops->state(a.d, 0, &text), TROUBLE_NONE);
    T_TRUE(side_goes(&a, 0)[0]);
    side_settle(&a, &b);
    T_EQ_U64(b.arrived_count, 0);
    side_close(&b);
    side_until(&a, NULL, &a.broken_count, 1);
    T_TRUE(trouble_of_data(ops->state(a.d, 0, &text)));
    T_HAS(text, ": ");
    T_EQ_U64(a.made_count, 1);
}

EACH(who_connects_to_one_that_is_gone_hears_why)
{
    SIDE a, b;
    struct span address;
    const char *text = "";
    uint8_t bytes[1024];

    side_pair(&a, &b, ops);
    address = ops->address(b.d);
    memcpy(bytes, address.p, address.len);
    address.p = bytes;
    side_until(&a, &b, &a.made_count, 1);
    side_close(&b);
    if (ops->connect(a.d, 1, address, NO_KEY) == OK)
        side_until(&a, NULL, &a.broken[1], 1);
    T_TRUE(trouble_of_data(ops->state(a.d, 1, &text)));
    T_HAS(text, ": ");
    T_EQ_U64(a.made_count, 1);
}

/* messages */

EACH(sizes_both_ways)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4 * KIB, 64 * KIB, 255 * KIB,
        SIDE_SEGMENT - 48, SIDE_SEGMENT, SIDE_SEGMENT + 1, MIB, 3 * MIB + 5};
    /* Fetched: with UCX what does not fit a segment with its header, over TCP
     * what is larger than 16 KiB. */
    uint32_t fetched = ops->number == CARRIER_UCX   ? 5
                       : ops->number == CARRIER_TCP ? 7
                                                    : 3;
    SIDE a, b;
    static uint8_t p[4 * MIB];

    side_pair(&a, &b, ops);
    T_OK(ops->connect(b.d, 7, ops->address(a.d), NO_KEY));
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        side_send(&a, 0, i, p, sizes[i]);
        side_until(&a, &b, &a.done_count, i + 1);
        side_until(&a, &b, &b.arrived_count, i + 1);
        T_OK(side_post(&b, 7, i, p, sizes[i]));
        side_until(&a, &b, &b.done_count, i + 1);
        side_until(&a, &b, &a.arrived_count, i + 1);
    }
    side_until(&a, &b, &a.fetched_count, fetched);
    side_until(&a, &b, &b.fetched_count, fetched);
    side_settle(&a, &b);
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        T_EQ_U64(a.done[i], 1);
        T_EQ_U64(b.done[i], 1);
        T_EQ_U64(a.arrived[i], 1);
        T_EQ_U64(b.arrived[i], 1);
    }
    T_EQ_U64(a.fetched_count, fetched);
    T_EQ_U64(b.fetched_count, fetched);
    T_EQ_U64(a.failed_count + b.failed_count, 0);
    T_EQ_U64(a.broken_count + b.broken_count, 0);
}

/* Sends pieces of random lengths, some empty, and a large header. */
static void send_pieces(struct side *a, struct side *b, uint32_t id,
    uint32_t pieces, size_t max, uint32_t header_len)
{
    struct iovec iov[DATA_IOV_MAX];
    uint64_t seed = id + 1;
    uint8_t *p = malloc(pieces * max + 1);
    size_t at = 0;

    for (uint32_t i = 0; i < pieces; i++) {
        iov[i].iov_base = p + at;
        iov[i].iov_len = i % 9 == 4 ? 0 : (size_t)t_rand_below(&seed, max);
        at += iov[i].iov_len;
    }
    side_fill(p, at, id);
    T_OK(side_post_iov(a, 0, id, iov, pieces, header_len));
    memset(iov, 0, sizeof(iov));
    side_until(a, b, &a->done_count, id + 1);
    memset(p, 0xee, at);
    side_until(a, b, &b->arrived_count, id + 1);
    free(p);
}

EACH(many_pieces)
{
    SIDE a, b;

    side_pair(&a, &b, ops);
    b.fetch_pieces = 300;
    send_pieces(&a, &b, 0, 2, 2000, 8);
    send_pieces(&a, &b, 1, 17, 1000, 100);
    send_pieces(&a, &b, 2, DATA_IOV_MAX, 100, 700);
    send_pieces(&a, &b, 3, DATA_IOV_MAX, 900, DATA_HEADER_MAX);
    /* sent as a rendezvous */
    send_pieces(&a, &b, 4, DATA_IOV_MAX, 9000, DATA_HEADER_MAX);
    side_until(&a, &b, &b.fetched_count, ops->number == CARRIER_TCP ? 3 : 1);
    T_EQ_U64(b.failed_count, 0);
}

EACH(source_is_free_after_done)
{
    SIDE a, b;
    uint8_t *p = malloc(4 * SIDE_SEGMENT);
    uint32_t next = 0;

    side_pair(&a, &b, ops);
    while (a.done_count < 200) {
        while (next < 200 && next < a.done_count + 4) {
            uint8_t *slot = p + (next % 4) * SIDE_SEGMENT;

            /* The slot is free when its last message is done. */
            if (next >= 4 && !a.done[next - 4])
                break;
            memset(slot, 0xee, SIDE_SEGMENT);
            side_send(&a, 0, next, slot, 100 * KIB);
            next++;
        }
        side_turn(&a, &b);
    }
    free(p);
    side_until(&a, &b, &b.arrived_count, 200);
    side_settle(&a, &b);
    for (uint32_t i = 0; i < 200; i++) {
        T_EQ_U64(a.done[i], 1);
        T_EQ_U64(b.arrived[i], 1);
    }
}

EACH(more_than_messages_max_is_busy)
{
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT];
    uint32_t id = 0;
    enum err e = OK;

    side_pair(&a, &b, ops);
    for (; id < SIDE_IDS; id++) {
        side_fill(p, 8, id);
        e = side_post(&a, 0, id, p, 0);
        if (e != OK)
            break;
    }
    T_ERR(e, ERR_BUSY);
    T_EQ_U64(id, SIDE_MESSAGES);
    side_until(&a, &b, &a.done_count, SIDE_MESSAGES);
    side_until(&a, &b, &b.arrived_count, SIDE_MESSAGES);
    T_OK(side_post(&a, 0, id, p, 0));
    side_until(&a, &b, &a.done_count, SIDE_MESSAGES + 1);
    side_until(&a, &b, &b.arrived_count, SIDE_MESSAGES + 1);
}

EACH(dropped_messages_complete)
{
    SIDE a, b;
    static uint8_t p[2 * MIB];

    side_pair(&a, &b, ops);
    b.drop = true;
    T_OK(side_post(&a, 0, 0, p, 1000));
    T_OK(side_post(&a, 0, 1, p, 2 * MIB));
    side_until(&a, &b, &a.done_count, 2);
    side_until(&a, &b, &b.arrived_count, 2);
    b.drop = false;
    side_send(&a, 0, 2, p, 2 * MIB);
    side_until(&a, &b, &a.done_count, 3);
    side_until(&a, &b, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 0);
}

/* The end of a dropped body and the next message may be in one record or
 * read. */
EACH(a_message_behind_a_dropped_one_arrives)
{
    struct side a, b;
    uint8_t *p = malloc(2 * 40000);

    side_pair(&a, &b, ops);
    b.drop_one = true;
    side_send(&a, 0, 0, p, 40000);
    side_send(&a, 0, 1, p + 40000, 40000);
    side_until(&a, &b, &a.done_count, 2);
    side_until(&a, &b, &b.arrived_count, 2);
    side_send(&a, 0, 2, p, 40000);
    side_until(&a, &b, &b.arrived_count, 3);
    /* other carriers copy too little for that */
    if (ops->number == CARRIER_TCP)
        side_until(&a, &b, &b.fetched_count, 2);
    T_EQ_U64(a.broken_count + b.failed_count, 0);
    side_close_both(&a, &b);
    free(p);
}

static void answer(struct side *s, uint32_t id)
{
    side_fill(s->answer, sizeof(s->answer), id);
    T_OK(side_post(s, 0, id, s->answer, sizeof(s->answer)));
}

EACH(post_inside_arrived)
{
    SIDE a, b;
    uint8_t p[16];

    side_pair(&a, &b, ops);
    T_OK(ops->connect(b.d, 0, ops->address(a.d), NO_KEY));
    b.heard = answer;
    side_send(&a, 0, 5, p, sizeof(p));
    side_until(&a, &b, &a.arrived_count, 1);
    side_until(&a, &b, &b.done_count, 1);
    T_EQ_U64(a.arrived[5], 1);
}

EACH(many_endpoints)
{
    static struct side a, b[8];
    uint8_t *p = malloc(64 * KIB);

    side_open(&a, ops);
    for (uint32_t i = 0; i < 8; i++) {
        side_open(&b[i], ops);
        T_OK(ops->connect(a.d, 3 * i + 1, ops->address(b[i].d), NO_KEY));
    }
    side_fill(p, 64 * KIB, 9);
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 4; k++)
            T_OK(side_post(&a, 3 * i + 1, 9, p, 64 * KIB));
    for (uint32_t i = 0; i < 8; i++)
        side_until(&a, &b[i], &b[i].arrived_count, 4);
    side_until(&a, NULL, &a.done_count, 32);
    for (uint32_t i = 0; i < 8; i++)
        side_close(&b[i]);
    side_close(&a);
    free(p);
}

/* ends */

EACH(addresses_of_no_sense_are_refused)
{
    static uint8_t p[70000];
    SIDE a;

    side_open(&a, ops);
    T_TRUE(ops->address(a.d).len > 0);
    T_ERR(ops->connect(a.d, 0, span_of(p, 0), NO_KEY), ERR_MALFORMED);
    T_ERR(ops->connect(a.d, 0, span_of(p, 4), NO_KEY), ERR_MALFORMED);
    T_ERR(ops->connect(a.d, 0, span_of(p, sizeof(p)), NO_KEY), ERR_MALFORMED);
}

EACH(peer_closes_with_messages_outstanding)
{
    SIDE a, b, b2;
    static uint8_t p[SIDE_SEGMENT];
    uint32_t posted;

    side_pair(&a, &b, ops);
    side_send(&a, 0, 100, p, 1000);
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.done_count, 1);
    posted = side_post_many(&a, 0, p, 200 * KIB);
    T_TRUE(posted > 8);
    b.drop = true;
    side_close(&b);
    side_until(&a, NULL, &a.broken_count, 1);
    side_until(&a, NULL, &a.done_count, posted + 1);
    side_settle(&a, NULL);
    T_EQ_U64(a.broken[0], 1);
    T_EQ_U64(a.broken_count, 1);
    for (uint32_t i = 0; i < posted; i++)
        T_EQ_U64(a.done[i], 1);
    T_ERR(side_post(&a, 0, 200, p, 10), ERR_PEER_LOST);
    side_open(&b2, ops);
    ops->disconnect(a.d, 0);
    T_OK(ops->connect(a.d, 0, ops->address(b2.d), NO_KEY));
    side_send(&a, 0, 201, p, 1000);
    side_until(&a, &b2, &b2.arrived_count, 1);
    side_settle(&a, &b2);
    T_EQ_U64(a.done[201], 1);
    T_EQ_U64(a.broken_count, 1);
    T_EQ_U64(a.done[200], 0);
}

static void peer_closes(
    const struct data_ops *ops, uint32_t pieces, size_t each)
{
    struct iovec iov[DATA_IOV_MAX];
    struct side a, b;
    uint8_t *p = malloc(pieces * each);
    uint32_t posted = 0;

    side_pair(&a, &b, ops);
    for (uint32_t i = 0; i < pieces; i++)
        iov[i] = (struct iovec){p + each * i, each};
    T_OK(side_post_iov(&a, 0, 100, iov, pieces, 48));
    b.drop = true;
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.done_count, 1);
    while (posted < SIDE_MESSAGES &&
           side_post_iov(&a, 0, posted, iov, pieces, 48) == OK)
        posted++;
    side_settle(&a, NULL);
    side_close(&b);
    side_until(&a, NULL, &a.broken_count, 1);
    side_until(&a, NULL, &a.done_count, posted + 1);
    side_close(&a);
    free(p);
}

EACH(peer_closes_with_pieces_outstanding)
{
    static const uint32_t pieces[] = {1, 2, 5, 6, 15, 16, 17, 64, DATA_IOV_MAX};

    for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
        peer_closes(ops, pieces[i], 250 * KIB / pieces[i]);
}

/* The listener has gone: connect() or broken() reports it. */
EACH(the_address_of_a_dead_carrier)
{
    struct side a, b;
    uint8_t address[1024], *p = malloc(SIDE_SEGMENT);
    struct span from;
    uint32_t posted;
    enum err e;

    side_open(&a, ops);
    side_open(&b, ops);
    from = ops->address(b.d);
    memcpy(address, from.p, from.len);
    from.p = address;
    side_close(&b);
    e = ops->connect(a.d, 0, from, NO_KEY);
    T_TRUE(e == OK || e == ERR_PEER_LOST);
    if (e == OK) {
        posted = side_post_many(&a, 0, p, 200 * KIB);
        side_until(&a, NULL, &a.broken_count, 1);
        side_until(&a, NULL, &a.done_count, posted);
    }
    side_settle(&a, NULL);
    T_EQ_U64(a.broken_count, e == OK);
    side_close(&a);
    free(p);
}

/* Closes the receiver at any moment of a rendezvous. */
static void receiver_goes(
    const struct data_ops *ops, uint32_t turns, uint32_t pieces)
{
    struct iovec iov[64];
    SIDE a, b;
    static uint8_t p[64 * 64 * KIB];

    side_pair(&a, &b, ops);
    b.fetch_pieces = pieces;
    for (uint32_t i = 0; i < 64; i++)
        iov[i] = (struct iovec){p + 64 * KIB * i, 64 * KIB};
    b.any_bytes = true;
    T_OK(side_post_iov(&a, 0, 0, iov, 1, 48));
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.done_count, 1);
    for (uint32_t i = 0; i < 3; i++)
        T_OK(side_post(&a, 0, i + 1, p, 64 * 64 * KIB));
    T_OK(side_post_iov(&a, 0, 4, iov, 64, 48));
    for (uint32_t i = 0; i < turns; i++)
        side_turn(&a, &b);
    side_close(&b);
    side_until(&a, NULL, &a.broken_count, 1);
    side_until(&a, NULL, &a.done_count, 5);
}

EACH(receiver_goes_during_a_rendezvous)
{
    for (uint32_t turns = 0; turns < 24; turns++)
        receiver_goes(ops, turns, turns & 1 ? 1 : 100);
}

EACH(sender_goes_during_a_rendezvous)
{
    uint8_t *p = malloc(4 * MIB);

    for (uint32_t turns = 0; turns < 24; turns++) {
        SIDE a, b;
        uint64_t tick = NS_PER_S;
        uint64_t limit = t_end_ns(T_WAIT_MS);

        side_pair(&a, &b, ops);
        b.fetch_pieces = 1 + turns % 7;
        b.any_bytes = true;
        T_OK(side_post(&a, 0, 0, p, 8));
        side_until(&a, &b, &b.arrived_count, 1);
        for (uint32_t i = 0; i < 3; i++)
            T_OK(side_post(&a, 0, i + 1, p, 4 * MIB));
        for (uint32_t i = 0; i < turns; i++)
            side_turn(&a, &b);
        side_close(&a);
        T_EQ_U64(a.done_count, 4);
        while (b.fetched_count + 1 < b.arrived_count && t_now_ns() < limit) {
            side_turn(&b, NULL);
            ops->tick(b.d, tick += TICK_NS);
        }
        T_EQ_U64(b.fetched_count + 1, b.arrived_count);
    }
    free(p);
}

EACH(an_idle_endpoint_hears_of_the_end)
{
    SIDE a, b;
    uint8_t p[8];

    side_pair(&a, &b, ops);
    side_send(&a, 0, 0, p, 8);
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.done_count, 1);
    side_close(&b);
    side_until(&a, NULL, &a.broken_count, 1);
}

/* The other side makes no progress. */
EACH(an_endpoint_without_progress_breaks)
{
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT];
    const uint64_t stall = SIDE_STALL_MS * NS_PER_MS;
    uint64_t now = 900 * stall, last = now + 10 * stall;
    uint32_t posted;

    side_pair(&a, &b, ops);
    side_fill(p, 8, 0);
    T_OK(side_post(&a, 0, 300, p, 0));
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.done_count, 1);
    a.done_count = 0;
    posted = side_post_many(&a, 0, p, 200 * KIB);
    if (ops == &data_mem)
        data_mem_fault(a.d, 0, DATA_FAULT_STALL, 1);
    side_settle(&a, NULL);
    if (ops == &data_mem) {
        T_OK(side_post(&a, 0, posted++, p, 8));
        side_settle(&a, NULL);
    }
    do { /* the kernel still takes bytes: the time begins anew */
        T_TRUE(now < last);
        T_FALSE(ops->tick(a.d, now));
        T_FALSE(ops->tick(a.d, now + stall / 10 * 9));
        side_settle(&a, NULL);
        T_EQ_U64(a.broken_count, 0);
        T_TRUE(a.done_count < posted);
        T_FALSE(ops->tick(a.d, now += stall));
        side_settle(&a, NULL);
    } while (a.broken_count == 0);
    T_EQ_U64(a.broken_count, 1);
    side_until(&a, NULL, &a.done_count, posted);
    T_ERR(side_post(&a, 0, 200, p, 10), ERR_PEER_LOST);
}

EACH(close_completes_everything)
{
    struct side a, b;
    uint8_t *p = malloc(2 * MIB);
    uint32_t posted;

    side_pair(&a, &b, ops);
    side_send(&a, 0, 300, p, 8);
    side_until(&a, &b, &b.arrived_count, 1);
    T_OK(side_post(&a, 0, 301, p, 2 * MIB));
    posted = 2 + side_post_many(&a, 0, p, 200 * KIB);
    side_close(&a);
    T_EQ_U64(a.done_count, posted);
    for (uint32_t i = 0; i + 2 < posted; i++)
        T_EQ_U64(a.done[i], 1);
    b.drop = true;
    side_settle(&b, NULL);
    side_close(&b);
    side_close(&b); /* harmless: may be called twice */
    free(p);
}

EACH(a_number_can_be_used_again_at_once)
{
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT];
    uint32_t posted, arrived;

    side_pair(&a, &b, ops);
    b.drop = true;
    posted = side_post_many(&a, 0, p, 200 * KIB) - 1;
    ops->disconnect(a.d, 0);
    T_OK(ops->connect(a.d, 0, ops->address(b.d), NO_KEY));
    side_until(&a, &b, &a.done_count, posted + 1);
    do { /* bytes that the kernel still holds arrive */
        arrived = b.arrived_count;
        side_settle(&a, &b);
    } while (b.arrived_count != arrived);
    for (uint32_t i = 0; i <= posted; i++)
        T_EQ_U64(a.done[i], 1);
    b.drop = false;
    b.arrived_count = 0;
    side_send(&a, 0, 300, p, 100);
    side_until(&a, &b, &b.arrived_count, 1);
    side_settle(&a, &b);
    T_EQ_U64(b.arrived[300], 1);
    T_EQ_U64(a.broken_count, 0);
}

/* Closes the sender between the offer and the end of the fetch. */
EACH(a_fetch_from_a_closed_sender_ends)
{
    SIDE a, b;
    uint8_t *p = malloc(8 * MIB);
    uint64_t limit = t_end_ns(T_WAIT_MS);
    uint64_t tick = NS_PER_S;

    side_pair(&a, &b, ops);
    side_send(&a, 0, 0, p, 8 * MIB);
    while (b.arrived_count == 0 && t_now_ns() < limit)
        side_turn(&a, &b);
    T_EQ_U64(b.fetched_count, 0);
    side_close(&a);
    T_EQ_U64(a.done_count, 1);
    free(p);
    /* Ticks notice what the carrier does not notice by itself. */
    while (b.fetched_count == 0 && t_now_ns() < limit) {
        side_turn(&b, NULL);
        ops->tick(b.d, tick += TICK_NS);
    }
    T_EQ_U64(b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
}

EACH(close_ends_fetches)
{
    SIDE a, b;
    static uint8_t p[8 * MIB];

    side_pair(&a, &b, ops);
    side_send(&a, 0, 0, p, 8 * MIB);
    side_until(&a, &b, &b.arrived_count, 1);
    T_EQ_U64(b.fetched_count, 0);
    side_close(&b);
    T_EQ_U64(b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
    side_until(&a, NULL, &a.done_count, 1);
}

static const char *name_of(const struct data_ops *ops)
{
    if (ops == &data_mem)
        return "mem";
    if (ops == side_streams())
        return "tcp/lo x4";
    if (ops == side_proved())
        return "tcp/lo proved";
    if (ops == side_encrypted())
        return "tcp/lo x4 encrypted";
    return ops->number == CARRIER_TCP ? "tcp/lo" : "ucx:tcp/lo";
}

EACH(transport_has_a_name)
{
    SIDE a, b;

    side_pair(&a, &b, ops);
    answer(&a, 0);
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.made_count, 1);
    T_EQ_STR(side_goes(&a, 0), name_of(ops));
}

/* sleeping */

struct player {
    struct side side;
    struct span other;
    uint32_t rounds;
    bool first;
    pthread_barrier_t *start;
};

/* Sleeps until there is something to do; fails if nothing comes for long. */
static void sleep_on(struct side *s)
{
    struct pollfd p = {.fd = s->ops->fd(s->d), .events = POLLIN};
    enum err e;

    if (s->ops->progress(s->d) > 0)
        return;
    e = s->ops->arm(s->d);
    if (e == ERR_BUSY)
        return;
    T_OK(e);
    T_CHECK(poll(&p, 1, T_WAIT_MS) == 1, "slept through a message: %u arrived",
        s->arrived_count);
}

static void *play(void *arg)
{
    struct player *p = arg;
    struct side *s = &p->side;

    T_OK(s->ops->connect(s->d, 0, p->other, NO_KEY));
    pthread_barrier_wait(p->start);
    for (uint32_t i = 0; i < p->rounds; i++) {
        if (p->first)
            answer(s, i % SIDE_IDS);
        while (s->arrived_count == i)
            sleep_on(s);
        if (!p->first)
            answer(s, i % SIDE_IDS);
    }
    while (s->done_count < p->rounds)
        sleep_on(s);
    pthread_barrier_wait(p->start);
    return NULL;
}

EACH(sleepers_are_woken)
{
    static struct player a, b;
    pthread_barrier_t start;
    pthread_t threads[2];

    pthread_barrier_init(&start, NULL, 2);
    side_open(&a.side, ops);
    side_open(&b.side, ops);
    a.rounds = b.rounds = 2000;
    a.first = true;
    a.start = b.start = &start;
    a.other = ops->address(b.side.d);
    b.other = ops->address(a.side.d);
    T_EQ_I64(pthread_create(&threads[0], NULL, play, &a), 0);
    T_EQ_I64(pthread_create(&threads[1], NULL, play, &b), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    T_EQ_U64(a.side.arrived_count, 2000);
    T_EQ_U64(b.side.arrived_count, 2000);
    side_close(&a.side);
    side_close(&b.side);
    pthread_barrier_destroy(&start);
}

struct stream {
    struct side side;
    uint64_t limit_ns;
    _Atomic bool over;
};

static void *receive(void *arg)
{
    struct stream *r = arg;

    while (r->side.arrived_count < SIDE_IDS && t_now_ns() < r->limit_ns)
        side_turn(&r->side, NULL);
    atomic_store(&r->over, true);
    return NULL;
}

/* Sends many messages of all sizes at once; the receiver has a thread of its
 * own. */
EACH(a_stream_between_threads)
{
    static struct stream r;
    struct side a;
    pthread_t thread;
    uint8_t *p = malloc(SIDE_IDS * 8 * KIB);
    uint64_t limit = t_end_ns(T_WAIT_MS);

    side_open(&a, ops);
    side_open(&r.side, ops);
    r.limit_ns = limit;
    T_OK(ops->connect(a.d, 0, ops->address(r.side.d), NO_KEY));
    T_EQ_I64(pthread_create(&thread, NULL, receive, &r), 0);
    for (uint32_t id = 0; id < SIDE_IDS; id++) {
        uint8_t *at = p + id * 8 * KIB;

        side_fill(at, 8 * KIB, id);
        while (
            side_post(&a, 0, id, at, id * 16) == ERR_BUSY && t_now_ns() < limit)
            side_turn(&a, NULL);
    }
    side_until(&a, NULL, &a.done_count, SIDE_IDS);
    while (!atomic_load(&r.over))
        side_turn(&a, NULL);
    pthread_join(thread, NULL);
    T_EQ_U64(r.side.arrived_count, SIDE_IDS);
    for (uint32_t id = 0; id < SIDE_IDS; id++)
        T_EQ_U64(r.side.arrived[id], 1);
    side_close(&a);
    side_close(&r.side);
    free(p);
}
