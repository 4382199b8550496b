/* data_test.c - the contract of lib/io/data.h, over every carrier. A case that
 * is called BOTH runs as mem_<case> and as ucx_<case>; the two sides of most
 * cases are turned by one thread, those about sleeping have two. */
#include "io/data.h"
#include "test/t.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB      ((size_t)1024)
#define MIB      (1024 * KIB)
#define IDS      512
#define SEGMENT  (256 * KIB)
#define MESSAGES 64

#define BOTH(id)                                                               \
    static void id(const struct data_ops *ops);                                \
    TEST(mem_##id)                                                             \
    {                                                                          \
        id(&data_mem);                                                         \
    }                                                                          \
    TEST(ucx_##id)                                                             \
    {                                                                          \
        id(&data_ucx);                                                         \
    }                                                                          \
    static void id(const struct data_ops *ops)

/* One end: a carrier, and what it has heard, by message id. */
struct side {
    const struct data_ops *ops;
    struct data *d;
    uint8_t arrived[IDS], done[IDS], fetched[IDS], failed[IDS];
    uint32_t arrived_count, done_count, fetched_count, failed_count;
    uint32_t broken[32], broken_count;
    uint32_t fetch_pieces; /* into how many pieces rendezvous go; 0: drop */
    bool drop, posting;
    bool any_bytes; /* the content is not of interest */
    void (*heard)(struct side *s, uint32_t id);
    uint8_t *into[IDS]; /* where rendezvous go */
    size_t into_len[IDS];
};

/* Byte i of message id. */
static uint8_t byte_of(uint32_t id, size_t i)
{
    return (uint8_t)(id * 37 + i * 11 + (i >> 8) * 3 + (i >> 16));
}

static void fill(uint8_t *p, size_t n, uint32_t id)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(id, i);
}

static void verify(const uint8_t *p, size_t n, uint32_t id)
{
    for (size_t i = 0; i < n; i++)
        T_CHECK(p[i] == byte_of(id, i),
            "message %u of %zu: byte %zu is %u, "
            "not %u",
            id, n, i, p[i], byte_of(id, i));
}

/* The cookie of message id: not NULL. */
static void *cookie_of(uint32_t id)
{
    return (void *)(uintptr_t)(id + 1);
}

static uint32_t id_of(void *cookie)
{
    return (uint32_t)(uintptr_t)cookie - 1;
}

static bool take_rendezvous(
    struct side *s, struct data *d, const struct data_in *in, uint32_t id)
{
    struct iovec iov[DATA_IOV_MAX];
    uint32_t n = s->fetch_pieces;
    size_t each = n ? in->len / n : 0;

    T_TRUE(in->data == NULL);
    if (n == 0)
        return false;
    s->into[id] = malloc(in->len);
    s->into_len[id] = in->len;
    for (uint32_t i = 0; i < n; i++) {
        iov[i].iov_base = s->into[id] + i * each;
        iov[i].iov_len = i + 1 < n ? each : in->len - i * each;
    }
    T_OK(s->ops->fetch(d, in, iov, n, cookie_of(id)));
    return true;
}

static bool on_arrived(void *ud, struct data *d, const struct data_in *in)
{
    struct side *s = ud;
    uint32_t id, len;

    T_FALSE(s->posting);
    T_TRUE(in->header.len >= 8);
    memcpy(&id, in->header.p, 4);
    memcpy(&len, in->header.p + 4, 4);
    T_TRUE(id < IDS);
    T_EQ_U64(in->len, len);
    for (uint32_t i = 8; i < in->header.len; i++)
        T_EQ_U64(in->header.p[i], (uint8_t)i);
    s->arrived[id]++;
    s->arrived_count++;
    if (s->drop)
        return false;
    if (in->handle)
        return take_rendezvous(s, d, in, id);
    if (!s->any_bytes)
        verify(in->data, in->len, id);
    if (s->heard)
        s->heard(s, id);
    return true;
}

static void on_fetched(void *ud, void *cookie, bool ok)
{
    struct side *s = ud;
    uint32_t id = id_of(cookie);

    T_FALSE(s->posting);
    s->fetched_count++;
    s->fetched[id]++;
    s->failed_count += !ok;
    s->failed[id] = (uint8_t)(s->failed[id] + !ok);
    if (ok && !s->any_bytes)
        verify(s->into[id], s->into_len[id], id);
    free(s->into[id]);
    s->into[id] = NULL;
}

static void on_done(void *ud, void *cookie)
{
    struct side *s = ud;

    T_FALSE(s->posting);
    s->done[id_of(cookie)]++;
    s->done_count++;
}

static void on_broken(void *ud, uint32_t ep)
{
    struct side *s = ud;

    T_FALSE(s->posting);
    s->broken[ep]++;
    s->broken_count++;
}

static struct data_conf conf(void)
{
    return (struct data_conf){.tls = "tcp",
        .devices = "lo",
        .ports = "",
        .segment_bytes = SEGMENT,
        .keepalive_ms = 1000,
        .stall_ms = 1000,
        .endpoints_max = 32,
        .messages_max = MESSAGES};
}

static void side_open_with(
    struct side *s, const struct data_ops *ops, const struct data_conf *c)
{
    struct data_calls calls = {.ud = s,
        .arrived = on_arrived,
        .fetched = on_fetched,
        .done = on_done,
        .broken = on_broken};

    memset(s, 0, sizeof(*s));
    s->ops = ops;
    s->fetch_pieces = 3;
    T_OK(ops->open(&s->d, c, &calls));
}

static void side_open(struct side *s, const struct data_ops *ops)
{
    struct data_conf c = conf();

    side_open_with(s, ops, &c);
}

static void side_close(struct side *s)
{
    s->ops->close(&s->d);
    T_TRUE(s->d == NULL);
}

static enum err post_iov(struct side *s, uint32_t ep, uint32_t id,
    const struct iovec *iov, uint32_t iovs, uint32_t header_len)
{
    uint8_t header[4096];
    uint32_t len = 0;
    enum err e;

    for (uint32_t i = 0; i < iovs; i++)
        len += (uint32_t)iov[i].iov_len;
    for (uint32_t i = 8; i < header_len; i++)
        header[i] = (uint8_t)i;
    memcpy(header, &id, 4);
    memcpy(header + 4, &len, 4);
    s->posting = true;
    e = s->ops->post(
        s->d, ep, span_of(header, header_len), iov, iovs, cookie_of(id));
    s->posting = false;
    memset(header, 0xff, sizeof(header));
    return e;
}

static enum err post(
    struct side *s, uint32_t ep, uint32_t id, void *p, size_t n)
{
    struct iovec iov = {p, n};

    return post_iov(s, ep, id, &iov, 1, 48);
}

static unsigned turn(struct side *a, struct side *b)
{
    unsigned n = a->d ? a->ops->progress(a->d) : 0;

    return n + (b && b->d ? b->ops->progress(b->d) : 0);
}

/* Turns both until *count is `wanted`. */
static void until(
    struct side *a, struct side *b, const uint32_t *count, uint32_t wanted)
{
    uint64_t limit = t_now_ns() + 5 * NS_PER_S;

    while (*count < wanted && t_now_ns() < limit)
        turn(a, b);
    T_EQ_U64(*count, wanted);
}

/* A little while, to see that nothing more comes. */
static void settle(struct side *a, struct side *b)
{
    uint64_t limit = t_now_ns() + 20 * NS_PER_MS;

    while (t_now_ns() < limit)
        turn(a, b);
}

static void pair_open(
    struct side *a, struct side *b, const struct data_ops *ops)
{
    side_open(a, ops);
    side_open(b, ops);
    T_OK(ops->connect(a->d, 0, ops->address(b->d)));
}

/* --- messages ------------------------------------------------------------- */

BOTH(sizes_both_ways)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4 * KIB, 64 * KIB, 255 * KIB,
        SEGMENT - 48, SEGMENT, SEGMENT + 1, MIB, 3 * MIB + 5};
    struct side a, b;
    uint8_t *p = malloc(4 * MIB);

    pair_open(&a, &b, ops);
    T_OK(ops->connect(b.d, 7, ops->address(a.d)));
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        fill(p, sizes[i], i);
        T_OK(post(&a, 0, i, p, sizes[i]));
        until(&a, &b, &a.done_count, i + 1);
        until(&a, &b, &b.arrived_count, i + 1);
        T_OK(post(&b, 7, i, p, sizes[i]));
        until(&a, &b, &b.done_count, i + 1);
        until(&a, &b, &a.arrived_count, i + 1);
    }
    settle(&a, &b);
    for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
        T_EQ_U64(a.done[i], 1);
        T_EQ_U64(b.done[i], 1);
        T_EQ_U64(a.arrived[i], 1);
        T_EQ_U64(b.arrived[i], 1);
    }
    /* What does not fit a segment with its header came as a rendezvous. */
    T_EQ_U64(a.fetched_count, ops == &data_ucx ? 5 : 3);
    T_EQ_U64(b.fetched_count, a.fetched_count);
    T_EQ_U64(a.failed_count + b.failed_count, 0);
    T_EQ_U64(a.broken_count + b.broken_count, 0);
    side_close(&a);
    side_close(&b);
    free(p);
}

/* Pieces of random length, empty ones among them, and a large header. */
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
    fill(p, at, id);
    T_OK(post_iov(a, 0, id, iov, pieces, header_len));
    memset(iov, 0, sizeof(iov));
    until(a, b, &a->done_count, id + 1);
    memset(p, 0xee, at);
    until(a, b, &b->arrived_count, id + 1);
    free(p);
}

BOTH(many_pieces)
{
    struct side a, b;

    pair_open(&a, &b, ops);
    b.fetch_pieces = 300;
    send_pieces(&a, &b, 0, 2, 2000, 8);
    send_pieces(&a, &b, 1, 17, 1000, 100);
    send_pieces(&a, &b, 2, DATA_IOV_MAX, 100, 2000);
    send_pieces(&a, &b, 3, DATA_IOV_MAX, 900, 2568);
    send_pieces(&a, &b, 4, DATA_IOV_MAX, 9000, 2568); /* a rendezvous */
    until(&a, &b, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 0);
    side_close(&a);
    side_close(&b);
}

BOTH(source_is_free_after_done)
{
    struct side a, b;
    uint8_t *p = malloc(4 * SEGMENT);
    uint32_t next = 0;

    pair_open(&a, &b, ops);
    while (a.done_count < 200) {
        while (next < 200 && next < a.done_count + 4) {
            uint8_t *slot = p + (next % 4) * SEGMENT;

            /* The slot's last message is done only if all before are. */
            if (next >= 4 && !a.done[next - 4])
                break;
            memset(slot, 0xee, SEGMENT);
            fill(slot, 100 * KIB, next);
            T_OK(post(&a, 0, next, slot, 100 * KIB));
            next++;
        }
        turn(&a, &b);
    }
    free(p);
    until(&a, &b, &b.arrived_count, 200);
    settle(&a, &b);
    for (uint32_t i = 0; i < 200; i++) {
        T_EQ_U64(a.done[i], 1);
        T_EQ_U64(b.arrived[i], 1);
    }
    side_close(&a);
    side_close(&b);
}

BOTH(more_than_messages_max_is_busy)
{
    struct side a, b;
    uint8_t *p = malloc(SEGMENT);
    uint32_t id = 0;
    enum err e = OK;

    pair_open(&a, &b, ops);
    for (; id < IDS; id++) {
        fill(p, 8, id);
        e = post(&a, 0, id, p, 0);
        if (e != OK)
            break;
    }
    T_ERR(e, ERR_BUSY);
    T_EQ_U64(id, MESSAGES);
    until(&a, &b, &a.done_count, MESSAGES);
    until(&a, &b, &b.arrived_count, MESSAGES);
    T_OK(post(&a, 0, id, p, 0));
    until(&a, &b, &a.done_count, MESSAGES + 1);
    until(&a, &b, &b.arrived_count, MESSAGES + 1);
    side_close(&a);
    side_close(&b);
    free(p);
}

BOTH(dropped_messages_complete)
{
    struct side a, b;
    uint8_t *p = malloc(2 * MIB);

    pair_open(&a, &b, ops);
    b.drop = true;
    T_OK(post(&a, 0, 0, p, 1000));
    T_OK(post(&a, 0, 1, p, 2 * MIB));
    until(&a, &b, &a.done_count, 2);
    until(&a, &b, &b.arrived_count, 2);
    b.drop = false;
    fill(p, 2 * MIB, 2);
    T_OK(post(&a, 0, 2, p, 2 * MIB));
    until(&a, &b, &a.done_count, 3);
    until(&a, &b, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 0);
    side_close(&a);
    side_close(&b);
    free(p);
}

static void answer(struct side *s, uint32_t id)
{
    static uint8_t p[16];

    fill(p, sizeof(p), id);
    T_OK(post(s, 0, id, p, sizeof(p)));
}

BOTH(post_inside_arrived)
{
    struct side a, b;
    uint8_t p[16];

    pair_open(&a, &b, ops);
    T_OK(ops->connect(b.d, 0, ops->address(a.d)));
    b.heard = answer;
    fill(p, sizeof(p), 5);
    T_OK(post(&a, 0, 5, p, sizeof(p)));
    until(&a, &b, &a.arrived_count, 1);
    until(&a, &b, &b.done_count, 1);
    T_EQ_U64(a.arrived[5], 1);
    side_close(&a);
    side_close(&b);
}

BOTH(many_endpoints)
{
    static struct side a, b[8];
    uint8_t *p = malloc(64 * KIB);

    side_open(&a, ops);
    for (uint32_t i = 0; i < 8; i++) {
        side_open(&b[i], ops);
        T_OK(ops->connect(a.d, 3 * i + 1, ops->address(b[i].d)));
    }
    fill(p, 64 * KIB, 9);
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 4; k++)
            T_OK(post(&a, 3 * i + 1, 9, p, 64 * KIB));
    for (uint32_t i = 0; i < 8; i++)
        until(&a, &b[i], &b[i].arrived_count, 4);
    until(&a, NULL, &a.done_count, 32);
    for (uint32_t i = 0; i < 8; i++)
        side_close(&b[i]);
    side_close(&a);
    free(p);
}

/* --- ends ----------------------------------------------------------------- */

BOTH(addresses_of_no_sense_are_refused)
{
    static uint8_t p[2000];
    struct side a;

    side_open(&a, ops);
    T_TRUE(ops->address(a.d).len > 0);
    T_ERR(ops->connect(a.d, 0, span_of(p, 0)), ERR_MALFORMED);
    T_ERR(ops->connect(a.d, 0, span_of(p, 4)), ERR_MALFORMED);
    T_ERR(ops->connect(a.d, 0, span_of(p, sizeof(p))), ERR_MALFORMED);
    side_close(&a);
}

/* Posts until the carrier takes no more, or 64. */
static uint32_t post_many(struct side *a, uint32_t ep, uint8_t *p, size_t n)
{
    uint32_t id = 0;

    while (id < MESSAGES && post(a, ep, id, p, n) == OK)
        id++;
    return id;
}

BOTH(peer_closes_with_messages_outstanding)
{
    struct side a, b, b2;
    uint8_t *p = malloc(SEGMENT);
    uint32_t posted;

    pair_open(&a, &b, ops);
    fill(p, 1000, 100);
    T_OK(post(&a, 0, 100, p, 1000));
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    posted = post_many(&a, 0, p, 200 * KIB);
    T_TRUE(posted > 8);
    b.drop = true;
    side_close(&b);
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, posted + 1);
    settle(&a, NULL);
    T_EQ_U64(a.broken[0], 1);
    T_EQ_U64(a.broken_count, 1);
    for (uint32_t i = 0; i < posted; i++)
        T_EQ_U64(a.done[i], 1);
    T_ERR(post(&a, 0, 200, p, 10), ERR_PEER_LOST);
    side_open(&b2, ops);
    ops->disconnect(a.d, 0);
    T_OK(ops->connect(a.d, 0, ops->address(b2.d)));
    fill(p, 1000, 201);
    T_OK(post(&a, 0, 201, p, 1000));
    until(&a, &b2, &b2.arrived_count, 1);
    settle(&a, &b2);
    T_EQ_U64(a.done[201], 1);
    T_EQ_U64(a.broken_count, 1);
    T_EQ_U64(a.done[200], 0);
    side_close(&a);
    side_close(&b2);
    free(p);
}

BOTH(peer_closes_with_many_pieces_outstanding)
{
    struct iovec iov[DATA_IOV_MAX];
    struct side a, b;
    uint8_t *p = malloc(DATA_IOV_MAX * 400);
    uint32_t posted = 0;

    pair_open(&a, &b, ops);
    for (uint32_t i = 0; i < DATA_IOV_MAX; i++)
        iov[i] = (struct iovec){p + 400 * i, 400};
    T_OK(post_iov(&a, 0, 100, iov, DATA_IOV_MAX, 48));
    b.drop = true;
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    while (posted < MESSAGES &&
           post_iov(&a, 0, posted, iov, DATA_IOV_MAX, 48) == OK)
        posted++;
    settle(&a, NULL);
    side_close(&b);
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, posted + 1);
    side_close(&a);
    free(p);
}

/* The receiver goes at any moment of a rendezvous. */
static void receiver_goes(
    const struct data_ops *ops, uint32_t turns, uint32_t pieces)
{
    struct iovec iov[64];
    struct side a, b;
    uint8_t *p = malloc(64 * 64 * KIB);

    pair_open(&a, &b, ops);
    b.fetch_pieces = pieces;
    for (uint32_t i = 0; i < 64; i++)
        iov[i] = (struct iovec){p + 64 * KIB * i, 64 * KIB};
    b.any_bytes = true;
    T_OK(post_iov(&a, 0, 0, iov, 1, 48));
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    for (uint32_t i = 0; i < 3; i++)
        T_OK(post(&a, 0, i + 1, p, 64 * 64 * KIB));
    T_OK(post_iov(&a, 0, 4, iov, 64, 48));
    for (uint32_t i = 0; i < turns; i++)
        turn(&a, &b);
    side_close(&b);
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, 5);
    side_close(&a);
    free(p);
}

BOTH(receiver_goes_during_a_rendezvous)
{
    for (uint32_t turns = 0; turns < 24; turns++)
        receiver_goes(ops, turns, turns & 1 ? 1 : 100);
}

BOTH(sender_goes_during_a_rendezvous)
{
    uint8_t *p = malloc(4 * MIB);

    for (uint32_t turns = 0; turns < 24; turns++) {
        struct side a, b;
        uint64_t tick = NS_PER_S;
        uint64_t limit = t_now_ns() + 5 * NS_PER_S;

        pair_open(&a, &b, ops);
        b.fetch_pieces = 1 + turns % 7;
        b.any_bytes = true;
        T_OK(post(&a, 0, 0, p, 8));
        until(&a, &b, &b.arrived_count, 1);
        for (uint32_t i = 0; i < 3; i++)
            T_OK(post(&a, 0, i + 1, p, 4 * MIB));
        for (uint32_t i = 0; i < turns; i++)
            turn(&a, &b);
        side_close(&a);
        T_EQ_U64(a.done_count, 4);
        while (b.fetched_count + 1 < b.arrived_count && t_now_ns() < limit) {
            turn(&b, NULL);
            ops->tick(b.d, tick += NS_PER_MS);
        }
        T_EQ_U64(b.fetched_count + 1, b.arrived_count);
        side_close(&b);
    }
    free(p);
}

BOTH(an_idle_endpoint_hears_of_the_end)
{
    struct side a, b;
    uint8_t p[8];

    pair_open(&a, &b, ops);
    fill(p, 8, 0);
    T_OK(post(&a, 0, 0, p, 8));
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    side_close(&b);
    until(&a, NULL, &a.broken_count, 1);
    side_close(&a);
}

/* The other side never turns. */
BOTH(an_endpoint_without_progress_breaks)
{
    struct side a, b;
    uint8_t *p = malloc(SEGMENT);
    uint64_t now = 1000 * NS_PER_S;
    uint32_t posted, done;

    pair_open(&a, &b, ops);
    fill(p, 8, 0);
    T_OK(post(&a, 0, 300, p, 0));
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    a.done_count = 0;
    posted = post_many(&a, 0, p, 200 * KIB);
    if (ops == &data_mem)
        data_mem_fault(a.d, 0, DATA_FAULT_STALL, 1);
    settle(&a, NULL);
    if (ops == &data_mem) {
        T_OK(post(&a, 0, posted++, p, 8));
        settle(&a, NULL);
    }
    done = a.done_count;
    T_TRUE(done < posted);
    ops->tick(a.d, now);
    ops->tick(a.d, now + 900 * NS_PER_MS);
    settle(&a, NULL);
    T_EQ_U64(a.broken_count, 0);
    T_EQ_U64(a.done_count, done);
    ops->tick(a.d, now + 1000 * NS_PER_MS);
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, posted);
    T_ERR(post(&a, 0, 200, p, 10), ERR_PEER_LOST);
    T_EQ_U64(ops->replaced(a.d), 0);
    side_close(&a);
    side_close(&b);
    free(p);
}

BOTH(close_completes_everything)
{
    struct side a, b;
    uint8_t *p = malloc(2 * MIB);
    uint32_t posted;

    pair_open(&a, &b, ops);
    fill(p, 8, 300);
    T_OK(post(&a, 0, 300, p, 8));
    until(&a, &b, &b.arrived_count, 1);
    T_OK(post(&a, 0, 301, p, 2 * MIB));
    posted = 2 + post_many(&a, 0, p, 200 * KIB);
    side_close(&a);
    T_EQ_U64(a.done_count, posted);
    for (uint32_t i = 0; i + 2 < posted; i++)
        T_EQ_U64(a.done[i], 1);
    b.drop = true;
    settle(&b, NULL);
    side_close(&b);
    side_close(&b); /* harmless */
    free(p);
}

BOTH(a_number_can_be_used_again_at_once)
{
    struct side a, b;
    uint8_t *p = malloc(SEGMENT);
    uint32_t posted;

    pair_open(&a, &b, ops);
    b.drop = true;
    posted = post_many(&a, 0, p, 200 * KIB) - 1;
    ops->disconnect(a.d, 0);
    T_OK(ops->connect(a.d, 0, ops->address(b.d)));
    until(&a, &b, &a.done_count, posted + 1);
    settle(&a, &b);
    for (uint32_t i = 0; i <= posted; i++)
        T_EQ_U64(a.done[i], 1);
    b.drop = false;
    b.arrived_count = 0;
    fill(p, 100, 300);
    T_OK(post(&a, 0, 300, p, 100));
    until(&a, &b, &b.arrived_count, 1);
    settle(&a, &b);
    T_EQ_U64(b.arrived[300], 1);
    T_EQ_U64(a.broken_count, 0);
    side_close(&a);
    side_close(&b);
    free(p);
}

/* The sender goes between the offer and the fetch's end. */
BOTH(a_fetch_from_a_closed_sender_ends)
{
    struct side a, b;
    uint8_t *p = malloc(8 * MIB);
    uint64_t limit = t_now_ns() + 5 * NS_PER_S;
    uint64_t tick = NS_PER_S;

    pair_open(&a, &b, ops);
    fill(p, 8 * MIB, 0);
    T_OK(post(&a, 0, 0, p, 8 * MIB));
    while (b.arrived_count == 0 && t_now_ns() < limit)
        turn(&a, &b);
    T_EQ_U64(b.fetched_count, 0);
    side_close(&a);
    T_EQ_U64(a.done_count, 1);
    free(p);
    /* What the carrier does not notice by itself, its ticks do. */
    while (b.fetched_count == 0 && t_now_ns() < limit) {
        turn(&b, NULL);
        ops->tick(b.d, tick += NS_PER_MS);
    }
    T_EQ_U64(b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
    side_close(&b);
}

BOTH(close_ends_fetches)
{
    struct side a, b;
    uint8_t *p = malloc(8 * MIB);

    pair_open(&a, &b, ops);
    fill(p, 8 * MIB, 0);
    T_OK(post(&a, 0, 0, p, 8 * MIB));
    until(&a, &b, &b.arrived_count, 1);
    T_EQ_U64(b.fetched_count, 0);
    side_close(&b);
    T_EQ_U64(b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
    until(&a, NULL, &a.done_count, 1);
    side_close(&a);
    free(p);
}

BOTH(transport_has_a_name)
{
    struct side a, b;

    pair_open(&a, &b, ops);
    answer(&a, 0);
    until(&a, &b, &b.arrived_count, 1);
    T_EQ_STR(ops->transport(a.d, 0), ops == &data_ucx ? "tcp/lo" : "mem");
    side_close(&a);
    side_close(&b);
}

/* --- sleeping ------------------------------------------------------------- */

struct player {
    struct side side;
    struct span other;
    uint32_t rounds;
    bool first;
    pthread_barrier_t *start;
};

/* Sleeps until there is something to do; a second of nothing fails. */
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
    T_CHECK(poll(&p, 1, 2000) == 1, "slept through a message: %u arrived",
        s->arrived_count);
}

static void *play(void *arg)
{
    struct player *p = arg;
    struct side *s = &p->side;

    T_OK(s->ops->connect(s->d, 0, p->other));
    pthread_barrier_wait(p->start);
    for (uint32_t i = 0; i < p->rounds; i++) {
        if (p->first)
            answer(s, i % IDS);
        while (s->arrived_count == i)
            sleep_on(s);
        if (!p->first)
            answer(s, i % IDS);
    }
    while (s->done_count < p->rounds)
        sleep_on(s);
    pthread_barrier_wait(p->start);
    return NULL;
}

BOTH(sleepers_are_woken)
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
    _Atomic bool *stop;
};

static void *receive(void *arg)
{
    struct stream *r = arg;

    while (!atomic_load(r->stop))
        r->side.ops->progress(r->side.d);
    return NULL;
}

/* Many messages of all sizes at once, the receiver in a thread of its own. */
BOTH(a_stream_between_threads)
{
    static struct stream r;
    struct side a;
    _Atomic bool stop = false;
    pthread_t thread;
    uint8_t *p = malloc(IDS * 8 * KIB);
    uint64_t limit = t_now_ns() + 10 * NS_PER_S;

    side_open(&a, ops);
    side_open(&r.side, ops);
    r.stop = &stop;
    T_OK(ops->connect(a.d, 0, ops->address(r.side.d)));
    T_EQ_I64(pthread_create(&thread, NULL, receive, &r), 0);
    for (uint32_t id = 0; id < IDS; id++) {
        uint8_t *at = p + id * 8 * KIB;

        fill(at, 8 * KIB, id);
        while (post(&a, 0, id, at, id * 16) == ERR_BUSY && t_now_ns() < limit)
            turn(&a, NULL);
    }
    until(&a, NULL, &a.done_count, IDS);
    /* One more of each side's turns orders the count for us: join does. */
    while (
        *(volatile uint32_t *)&r.side.arrived_count < IDS && t_now_ns() < limit)
        turn(&a, NULL);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    T_EQ_U64(r.side.arrived_count, IDS);
    for (uint32_t id = 0; id < IDS; id++)
        T_EQ_U64(r.side.arrived[id], 1);
    side_close(&a);
    side_close(&r.side);
    free(p);
}

/* --- one carrier only ----------------------------------------------------- */

TEST(mem_fault_break)
{
    struct side a, b;
    uint8_t p[8];

    pair_open(&a, &b, &data_mem);
    fill(p, 8, 0);
    data_mem_fault(a.d, 0, DATA_FAULT_BREAK, 1);
    T_OK(post(&a, 0, 0, p, 8));
    until(&a, &b, &a.broken_count, 1);
    until(&a, &b, &a.done_count, 1);
    T_ERR(post(&a, 0, 0, p, 8), ERR_PEER_LOST);
    data_mem.disconnect(a.d, 0);
    T_OK(data_mem.connect(a.d, 0, data_mem.address(b.d)));
    T_OK(post(&a, 0, 0, p, 8));
    until(&a, &b, &b.arrived_count, 1);
    T_EQ_U64(b.arrived[0], 1);
    side_close(&a);
    side_close(&b);
}

TEST(mem_fault_delay_lets_others_pass)
{
    struct side a, b;
    uint8_t p[8], q[8];

    pair_open(&a, &b, &data_mem);
    fill(p, 8, 0);
    fill(q, 8, 1);
    data_mem_fault(a.d, 0, DATA_FAULT_DELAY, 1);
    T_OK(post(&a, 0, 0, p, 8));
    T_OK(post(&a, 0, 1, q, 8));
    until(&a, &b, &b.arrived_count, 1);
    T_EQ_U64(b.arrived[1], 1);
    T_ERR(data_mem.arm(a.d), ERR_BUSY);
    until(&a, &b, &b.arrived_count, 2);
    T_EQ_U64(b.arrived[0], 1);
    side_close(&a);
    side_close(&b);
}

/* Source bytes are read after post(): a too early reuse has to show. */
TEST(mem_reads_the_source_late)
{
    struct side a, b;
    uint8_t p[8] = {0};

    pair_open(&a, &b, &data_mem);
    T_OK(post(&a, 0, 3, p, 8));
    fill(p, 8, 3);
    until(&a, &b, &b.arrived_count, 1);
    side_close(&a);
    side_close(&b);
}

/* What the config says holds, whatever the environment says. */
TEST(ucx_environment_does_not_override)
{
    struct side a, b;
    uint8_t *p = malloc(SEGMENT);

    setenv("UCX_TLS", "self", 1);
    setenv("UCX_NET_DEVICES", "none0", 1);
    setenv("UCX_TCP_TX_SEG_SIZE", "4k", 1);
    setenv("UCX_TCP_RX_SEG_SIZE", "1k", 1);
    pair_open(&a, &b, &data_ucx);
    fill(p, 255 * KIB, 0);
    T_OK(post(&a, 0, 0, p, 255 * KIB));
    until(&a, &b, &b.arrived_count, 1);
    T_EQ_STR(data_ucx.transport(a.d, 0), "tcp/lo");
    side_close(&a);
    side_close(&b);
    free(p);
}

TEST(ucx_says_what_cannot_be_had)
{
    struct data_conf c = conf();
    struct data_calls calls = {.arrived = on_arrived};
    struct data *d = NULL;

    c.devices = "nosuchdevice0";
    T_ERR(data_ucx.open(&d, &c, &calls), ERR_INTERNAL);
    T_TRUE(d == NULL);
}

TEST(ucx_over_shared_memory)
{
    struct data_conf c = conf();
    struct side a, b;
    uint8_t *p = malloc(SEGMENT);

    c.tls = "posix,tcp";
    side_open_with(&a, &data_ucx, &c);
    side_open_with(&b, &data_ucx, &c);
    T_OK(data_ucx.connect(a.d, 0, data_ucx.address(b.d)));
    fill(p, 255 * KIB, 0);
    T_OK(post(&a, 0, 0, p, 255 * KIB));
    until(&a, &b, &b.arrived_count, 1);
    until(&a, &b, &a.done_count, 1);
    T_HAS(data_ucx.transport(a.d, 0), "posix");
    side_close(&a);
    side_close(&b);
    free(p);
}

/* A fetch whose sender does nothing: the worker is replaced, and works. */
TEST(ucx_replaces_a_stuck_worker)
{
    struct side a, b;
    uint8_t *p = malloc(2 * MIB), old[1024];
    struct span address;
    int fd;

    pair_open(&a, &b, &data_ucx);
    T_OK(data_ucx.connect(b.d, 4, data_ucx.address(a.d)));
    address = data_ucx.address(b.d);
    memcpy(old, address.p, address.len);
    fd = data_ucx.fd(b.d);
    fill(p, 2 * MIB, 0);
    T_OK(post(&a, 0, 0, p, 2 * MIB));
    until(&a, &b, &b.arrived_count, 1);
    settle(&b, NULL);
    T_EQ_U64(b.fetched_count, 0);
    data_ucx.tick(b.d, NS_PER_S);
    data_ucx.tick(b.d, 4 * NS_PER_S);
    T_EQ_U64(data_ucx.replaced(b.d), 0);
    data_ucx.tick(b.d, 6 * NS_PER_S);
    T_EQ_U64(data_ucx.replaced(b.d), 1);
    T_ERR(data_ucx.arm(b.d), ERR_BUSY);
    until(&b, NULL, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
    T_EQ_U64(b.broken[4], 1);
    T_EQ_I64(data_ucx.fd(b.d), fd);
    T_FALSE(span_eq(data_ucx.address(b.d), span_of(old, address.len)));
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, 1);
    data_ucx.disconnect(a.d, 0);
    T_OK(data_ucx.connect(a.d, 0, data_ucx.address(b.d)));
    fill(p, 1000, 2);
    T_OK(post(&a, 0, 2, p, 1000));
    until(&a, &b, &b.arrived_count, 2);
    side_close(&a);
    side_close(&b);
    free(p);
}

/* --- a peer that is killed ------------------------------------------------ */

NORETURN static void victim(int out)
{
    struct side b;
    struct span address;

    side_open(&b, &data_ucx);
    address = data_ucx.address(b.d);
    T_EQ_I64(write(out, address.p, address.len), address.len);
    for (;;)
        data_ucx.progress(b.d);
}

TEST(ucx_killed_peer_is_broken_within_two_seconds)
{
    struct side a;
    uint8_t address[1024], *p = malloc(SEGMENT);
    uint32_t posted;
    uint64_t killed;
    int pipes[2];
    ssize_t n;
    pid_t child;

    T_EQ_I64(pipe(pipes), 0);
    child = fork(); /* before UCX is initialised here */
    T_TRUE(child >= 0);
    if (child == 0)
        victim(pipes[1]);
    n = read(pipes[0], address, sizeof(address));
    T_TRUE(n > 0);
    side_open(&a, &data_ucx);
    T_OK(data_ucx.connect(a.d, 0, span_of(address, (size_t)n)));
    fill(p, 1000, 300);
    T_OK(post(&a, 0, 300, p, 1000));
    until(&a, NULL, &a.done_count, 1);
    fill(p, 200 * KIB, 0);
    T_EQ_I64(kill(child, SIGSTOP), 0);
    a.done_count = 0;
    posted = post_many(&a, 0, p, 200 * KIB);
    settle(&a, NULL);
    T_TRUE(a.done_count < posted);
    T_EQ_I64(kill(child, SIGKILL), 0);
    killed = t_now_ns();
    until(&a, NULL, &a.broken_count, 1);
    until(&a, NULL, &a.done_count, posted);
    T_TRUE(t_now_ns() - killed < 2 * NS_PER_S);
    settle(&a, NULL);
    T_EQ_U64(a.broken_count, 1);
    T_EQ_I64(waitpid(child, NULL, 0), child);
    side_close(&a);
    free(p);
}
