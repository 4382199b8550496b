/* client_binding_test.c - a handle of a binding of another language: answers to
 * it, maps and rooms of its own. Against doubles of daemons. */
#include "client/mmx_binding.h"
#include "test/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define LENDER 5
#define LENT   (16 * LENDER + 3)

/* A binding, with the last answer that it took. */
struct bound {
    struct rig g;
    struct fake enc;
    uint32_t told;
    struct mmx_answer last;
    struct mmx_pool pool;
    char text[256];
    int gone; /* the offered pool that has gone */
};

/* Takes the answers. */
static void hear(struct bound *b)
{
    struct mmx_answer a = {.size = sizeof a};

    for (; mmx_answers(b->g.m, &a) == 1; b->told++) {
        size_t n = strlen(b->text);

        T_EQ_U64(a.size, sizeof a);
        b->last = a;
        snprintf(
            b->text + n, sizeof b->text - n, "%.*s", (int)a.text_len, a.text);
        if (a.pool)
            b->pool = *a.pool;
        if (a.gone)
            b->gone = a.pool->id;
    }
    T_EQ_I64(mmx_answers(b->g.m, &a), 0);
}

static void rests(struct bound *b)
{
    rig_no_event(b->g.m);
    hear(b);
}

static struct mmx_event one_event(struct bound *b)
{
    struct mmx_event ev = rig_one_event(b->g.m);

    hear(b);
    return ev;
}

static void bind_to(struct bound *b, uint8_t role)
{
    struct mmx_opt o;

    *b = (struct bound){.gone = -1, .g.seq = 1};
    fake_listen(&b->g.f, role);
    o = fake_opt(&b->g.f, 0);
    o.binding = 1;
    T_EQ_I64(mmx_open(&o, &b->g.m), 0);
    fake_welcome(&b->g.f, b->g.f.cells_fd);
    T_EQ_U64(one_event(b).what, MMX_UP);
}

#define TEST_BOUND(id, role)                                                   \
    static void t_bound_##id(struct bound *b);                                 \
    TEST(id)                                                                   \
    {                                                                          \
        struct bound bound;                                                    \
                                                                               \
        bind_to(&bound, role);                                                 \
        t_bound_##id(&bound);                                                  \
        rig_close(&bound.g);                                                   \
    }                                                                          \
    static void t_bound_##id(struct bound *b)

/* Asks for the pool, and takes the daemon's answer with this descriptor. */
static void ask_pool(struct bound *b, int fd)
{
    b->text[0] = 0;
    T_EQ_I64(mmx_ask_pool(b->g.m, "p", LAYOUT), 0);
    T_EQ_U64(fake_want(&b->g.f, LOCAL_POOL).seq, ++b->g.seq);
    T_EQ_U64(mmx_sent(b->g.m), b->g.seq);
    fake_pool(&b->g.f, b->g.seq, "p", fd);
    rests(b);
    T_EQ_U64(b->last.number, b->g.seq);
}

static void have_pool(struct bound *b)
{
    ask_pool(b, b->g.f.pool_fd);
    T_EQ_I64(b->last.reason, 0);
    close(b->last.fd);
    b->g.pool = b->pool;
}

TEST_BOUND(a_pool_comes_with_its_descriptor, ROLE_ENCODED)
{
    int small = memfd_create("small", MFD_ALLOW_SEALING);

    ask_pool(b, b->g.f.pool_fd);
    T_EQ_I64(b->last.reason, 0);
    T_TRUE(fcntl(b->last.fd, F_GETFD) >= 0);
    close(b->last.fd);
    T_EQ_U64(b->last.pool_number, 3);
    T_TRUE(b->pool.base == NULL && b->pool.writable);
    T_EQ_U64(
        (uintptr_t)b->pool.fields[1].data, (uint64_t)BLOCKS * BLOCK_ROWS * ROW);
    /* the same name has the same id */
    ask_pool(b, b->g.f.pool_fd);
    T_EQ_I64(b->pool.id, 0);
    close(b->last.fd);
    ask_pool(b, small);
    T_EQ_I64(b->last.reason, MMX_E_MALFORMED);
    T_HAS(b->text, "sealed");
    ask_pool(b, -1);
    T_EQ_I64(b->last.reason, MMX_E_MALFORMED);
    T_EQ_I64(mmx_pool(b->g.m, "p", NULL, 0, &b->pool), -MMX_E_MALFORMED);
    close(small);
}

TEST_BOUND(an_answer_of_another_kind_is_an_error, ROLE_ENCODED)
{
    T_EQ_I64(mmx_ask_pool(b->g.m, "p", NULL), 0);
    fake_answer(&b->g.f, fake_want(&b->g.f, LOCAL_POOL).seq, OK, "");
    rests(b);
    T_EQ_I64(b->last.reason, MMX_E_INTERNAL);
    T_EQ_I64(b->last.fd, -1);
}

TEST_BOUND(a_report_comes_in_parts, ROLE_ENCODED)
{
    struct local_msg m = {
        .type = LOCAL_REPORT, .report = {.more = 1, .text = span_str("one ")}};

    T_EQ_I64(mmx_query(b->g.m, "status"), 0);
    m.seq = fake_want(&b->g.f, LOCAL_QUERY).seq;
    fake_put(&b->g.f, &m, -1);
    rests(b);
    T_EQ_I64(b->last.more, 1);
    m.report = (struct local_report){.text = span_str("two")};
    fake_put(&b->g.f, &m, -1);
    fake_put(&b->g.f, &m, -1); /* no message has asked for it */
    rests(b);
    T_EQ_STR(b->text, "one two");
    T_EQ_I64(b->last.more, 0);
    T_EQ_U64(b->told, 2);
}

TEST_BOUND(a_refused_report_has_its_reason, ROLE_ENCODED)
{
    struct local_msg m = {.type = LOCAL_REPORT,
        .report = {.err = ERR_BUSY, .text = span_str("too many")}};

    T_EQ_I64(mmx_query(b->g.m, "status"), 0);
    m.seq = fake_want(&b->g.f, LOCAL_QUERY).seq;
    fake_put(&b->g.f, &m, -1);
    rests(b);
    T_EQ_I64(b->last.reason, MMX_E_BUSY);
    T_EQ_STR(b->text, "too many");
}

TEST_BOUND(each_message_has_one_answer, ROLE_ENCODED)
{
    struct mmx_event ev;
    mmx_room r;

    have_pool(b);
    r = rig_announce(&b->g, 7, 4);
    T_EQ_I64(mmx_commit(b->g.m, r, 0, 2), 0);
    T_EQ_U64(fake_want(&b->g.f, LOCAL_COMMIT).seq, ++b->g.seq);
    fake_answer(&b->g.f, b->g.seq, ERR_MALFORMED, "no");
    T_EQ_U64(one_event(b).what, MMX_REFUSED);
    T_EQ_U64(b->last.number, b->g.seq);
    T_EQ_I64(b->last.reason, MMX_E_MALFORMED);
    T_EQ_STR(b->text, "no");
    b->told = 0;
    close(b->g.f.conn); /* the announce has no answer */
    b->g.f.conn = -1;
    ev = one_event(b);
    T_EQ_U64(ev.what, MMX_FAILED);
    T_EQ_STR(ev.text, ""); /* and not the refusal's */
    T_EQ_U64(b->told, 1);
    T_EQ_U64(b->last.number, b->g.seq - 1);
    T_EQ_I64(b->last.reason, MMX_E_DAEMON_LOST);
}

TEST_BOUND(a_room_is_released_by_its_owner_alone, ROLE_ENCODED)
{
    struct mmx_event ev;
    mmx_room r;

    have_pool(b);
    r = rig_announce(&b->g, 7, 4);
    rig_event(&b->g, r,
        (struct local_event){.what = EVENT_WANTED, .state = 2, .a = 2}, NULL,
        0);
    rig_event(&b->g, r, (struct local_event){.what = EVENT_HAVE, .state = 2},
        NULL, 0);
    ev = one_event(b);
    T_EQ_U64(ev.what, MMX_WANTED | MMX_HAVE);
    T_EQ_U64(ev.a, 2); /* the later event says nothing of it */
    rig_event(&b->g, r,
        (struct local_event){.what = EVENT_DONE, .state = 4, .a = 2}, NULL, 0);
    T_EQ_U64(one_event(b).what, MMX_DONE);
    rests(b);
    T_TRUE(fake_idle(&b->g.f));
    T_EQ_I64(mmx_release(b->g.m, r, MMX_ALL, 0), 0);
    (void)fake_want(&b->g.f, LOCAL_RELEASE);
}

TEST_BOUND(blocks_of_a_pool_that_is_not_known, ROLE_LANGD)
{
    const uint32_t runs[] = {5, 1, 90, 7};
    struct mmx_blocks out[4];
    uint32_t first = 9;
    int pool = 0;
    mmx_room r;

    have_pool(b);
    r = rig_request(&b->g, 7, MMX_WHOLE);
    T_EQ_I64(mmx_blocks(b->g.m, r, &pool, &first, out, 4), 0);
    T_EQ_I64(pool, -1);
    rig_event(&b->g, r,
        (struct local_event){.what = EVENT_READY,
            .state = 4,
            .rows = 32,
            .total = 32,
            .pool = 8},
        runs, 2);
    T_EQ_U64(one_event(b).what, MMX_READY);
    T_EQ_I64(mmx_blocks(b->g.m, r, &pool, &first, out, 4), 2);
    T_EQ_I64(pool, 8);
    T_EQ_U64(first, 0);
    T_EQ_U64(out[1].block, 90);
    T_EQ_U64(out[1].blocks, 7);
    T_EQ_I64(mmx_blocks(b->g.m, r, &pool, &first, out, 1), 1);
    r.tag++;
    T_EQ_I64(mmx_blocks(b->g.m, r, &pool, &first, out, 4), -MMX_E_STALE);
}

TEST_BOUND(a_space_can_be_used_once_it_is_answered, ROLE_LANGD)
{
    struct mmx_ticket t = {.size = sizeof t, .request = "r"};

    T_EQ_I64(mmx_ask_space(b->g.m, "s", 4), 0);
    T_EQ_I64(mmx_ticket(b->g.m, &t), -MMX_E_STALE);
    fake_answer(&b->g.f, fake_want(&b->g.f, LOCAL_SPACE).seq, OK, "");
    rests(b);
    T_EQ_I64(mmx_ask_ticket(b->g.m, 0, "r"), 0);
    fake_answer(&b->g.f, fake_want(&b->g.f, LOCAL_TICKET_QUERY).seq,
        ERR_UNKNOWN_ROOM, "");
    rests(b);
    T_EQ_I64(b->last.reason, MMX_E_UNKNOWN_ROOM);
    /* a name that is refused keeps no place */
    T_EQ_I64(mmx_ask_space(b->g.m, "wrong", 0), 1);
    fake_answer(
        &b->g.f, fake_want(&b->g.f, LOCAL_SPACE).seq, ERR_MALFORMED, "");
    rests(b);
    T_EQ_I64(mmx_ask_space(b->g.m, "other", 4), 1);
    (void)fake_want(&b->g.f, LOCAL_SPACE);
}

static bool readable(const mmx *m)
{
    struct pollfd p = {.fd = mmx_fd(m), .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

TEST_BOUND(a_bell_makes_a_step_due, ROLE_ENCODED)
{
    rests(b);
    T_TRUE(!readable(b->g.m));
    mmx_wake(b->g.m);
    mmx_wake(b->g.m);
    T_TRUE(readable(b->g.m));
    rests(b);
    T_TRUE(!readable(b->g.m));
}

TEST_BOUND(an_end_is_the_last_one, ROLE_ENCODED)
{
    struct mmx_event ev[4];
    mmx_room r;

    have_pool(b);
    r = rig_announce(&b->g, 7, 4);
    T_EQ_I64(mmx_bye(b->g.m), 0);
    (void)fake_want(&b->g.f, LOCAL_BYE);
    T_EQ_I64(mmx_end(b->g.m), 0);
    T_EQ_I64(recv(b->g.f.conn, ev, sizeof ev, 0), 0);
    T_EQ_I64(mmx_fd(b->g.m), -1);
    T_EQ_I64(mmx_step(b->g.m, ev, 4), 2);
    T_EQ_U64(ev[0].what, MMX_FAILED);
    T_EQ_U64(ev[0].room.cell, r.cell);
    T_EQ_U64(ev[1].what, MMX_DOWN);
    T_EQ_I64(mmx_step(b->g.m, ev, 4), 0);
    hear(b);
    T_EQ_I64(b->last.reason, MMX_E_DAEMON_LOST);
    mmx_wake(b->g.m);
}

static bool dials(void *ud)
{
    struct bound *b = ud;
    struct pollfd fd = {.fd = b->enc.listen, .events = POLLIN};

    rests(b);
    return poll(&fd, 1, 0) > 0;
}

/* Has the encoder offer its pool. */
static void offer(struct bound *b)
{
    struct local_msg m = {.type = LOCAL_LENDER,
        .lender = {.lender = LENDER, .token = 1, .epoch = EPOCH}};

    fake_listen(&b->enc, ROLE_ENCODED);
    m.lender.socket = span_str(b->enc.path);
    fake_put(&b->g.f, &m, -1);
    T_WAIT(dials, b);
    b->enc.conn = accept4(b->enc.listen, NULL, NULL, SOCK_CLOEXEC);
    fake_answer(&b->enc, fake_want(&b->enc, LOCAL_MAP).seq, OK, "");
    fake_pool(&b->enc, 0, "p", b->enc.pool_fd);
    rests(b);
    T_EQ_U64(b->last.number, 0);
    T_EQ_U64(b->last.pool_number, LENT);
    T_TRUE(!b->pool.writable);
    close(b->last.fd);
}

static void want_mapped(struct bound *b, uint32_t pools)
{
    rests(b); /* a step tells */
    T_EQ_U64(fake_want(&b->g.f, LOCAL_MAPPED).mapped.pools, pools);
}

TEST_BOUND(an_offered_pool_is_mapped_by_its_reader, ROLE_LANGD)
{
    offer(b);
    T_TRUE(fake_idle(&b->g.f));
    T_EQ_I64(mmx_lend(b->g.m, b->pool.id, 1), 0);
    want_mapped(b, 1 << 3);
    T_EQ_I64(mmx_lend(b->g.m, b->pool.id, 0), 0);
    want_mapped(b, 0);
    T_EQ_I64(mmx_lend(b->g.m, 31, 1), -MMX_E_MALFORMED);
    /* the encoder is told of the end of the map, and not before */
    close(b->g.f.conn);
    b->g.f.conn = -1;
    T_EQ_U64(one_event(b).what, MMX_DOWN);
    rests(b);
    T_EQ_I64(b->gone, b->pool.id);
    T_TRUE(fake_idle(&b->enc));
    T_EQ_I64(mmx_lend(b->g.m, b->pool.id, -1), 0);
    (void)fake_want(&b->enc, LOCAL_BYE);
    close(b->enc.conn);
}

TEST_BOUND(a_pool_is_offered_once, ROLE_LANGD)
{
    offer(b);
    T_TRUE(!readable(b->g.m));
    fake_pool(&b->enc, 0, "q", b->enc.pool_fd);
    b->enc.number = 4;
    fake_pool(&b->enc, 0, "q", b->enc.pool_fd);
    b->told = 0;
    T_EQ_I64(mmx_lend(b->g.m, b->pool.id, 1), 0);
    want_mapped(b, 1 << 3);
    T_EQ_U64(b->told, 1); /* pool 3 is no other pool */
    T_EQ_U64(b->last.pool_number, LENT + 1);
    T_EQ_STR(b->pool.name, "q");
    close(b->last.fd);
    rests(b);
    T_TRUE(!readable(b->g.m));
    close(b->enc.conn);
}

TEST_BOUND(what_is_not_taken_is_closed, ROLE_ENCODED)
{
    int before = dup(0), after;

    close(before);
    T_EQ_I64(mmx_ask_pool(b->g.m, "p", NULL), 0);
    fake_pool(&b->g.f, fake_want(&b->g.f, LOCAL_POOL).seq, "p", b->g.f.pool_fd);
    rig_no_event(b->g.m);
    mmx_close(&b->g.m);
    after = dup(0);
    T_TRUE(after <= before);
    close(after);
}

/* A name that got no answer takes no place. */
TEST_BOUND(spaces_without_an_answer_are_forgotten, ROLE_LANGD)
{
    char name[12];

    for (int i = 0; i < 130; i++) {
        if (i == 64) {
            close(b->g.f.conn);
            b->g.f.conn = -1;
            T_EQ_U64(one_event(b).what, MMX_DOWN);
        }
        snprintf(name, sizeof(name), "%d", i);
        T_EQ_I64(mmx_ask_space(b->g.m, name, 4) >= 0, i < 64);
        if (i >= 64)
            T_EQ_I64(mmx_ask_space(b->g.m, name, 4), -MMX_E_NOT_READY);
    }
}
