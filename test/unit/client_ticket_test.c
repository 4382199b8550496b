/* client_ticket_test.c - sequence ids in the client library against a double
 * of a daemon's socket: frame by frame, then eight threads on one handle
 * against the daemon's own tickets behind the double. */
#include "core/lang/ticket.h"
#include "test/fake_daemon.h"
#include "test/slab.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

static void answer(
    struct fake *f, uint32_t seq, enum err e, uint32_t a, uint32_t b)
{
    struct local_msg m = {.type = LOCAL_ANSWER,
        .seq = seq,
        .answer = {.err = (uint8_t)e, .a = a, .b = b}};

    fake_put(f, &m, -1);
}

/* Opens a space, which has number 21 at the daemon. */
static int rig_space(struct rig *g, const char *name)
{
    struct local_msg m;
    int s;

    answer(&g->f, ++g->seq, OK, 21, 8);
    s = mmx_space(g->m, name, 8, T_WAIT_MS);
    m = fake_want(&g->f, LOCAL_SPACE);
    T_EQ_U64(m.space.n_seq_max, 8);
    T_TRUE(span_eq(m.space.name, span_str(name)));
    return s;
}

static int ask(struct rig *g, int space, const char *request)
{
    struct mmx_ticket t = {
        .size = sizeof t, .space = space, .request = request, .user = g};

    return mmx_ticket(g->m, &t);
}

/* Asks for a ticket; returns the message that the daemon gets. */
static struct local_msg asked(struct rig *g, int space, const char *request)
{
    struct local_msg m;

    T_EQ_I64(ask(g, space, request), 0);
    m = fake_want(&g->f, LOCAL_TICKET);
    T_EQ_U64(m.seq, ++g->seq);
    T_EQ_U64(m.ticket.space, 21);
    T_TRUE(span_eq(m.ticket.request, span_str(request)));
    return m;
}

static void tell(struct rig *g, const char *request, bool held, uint8_t reason,
    uint32_t seq, uint32_t generation)
{
    struct local_msg m = {.type = LOCAL_TICKET_EVENT,
        .ticket_event = {.space = 21,
            .state = held,
            .reason = reason,
            .seq = seq,
            .generation = generation,
            .request = span_str(request)}};

    fake_put(&g->f, &m, -1);
}

static void released(struct rig *g, int space, const char *request,
    uint32_t generation, enum err e)
{
    struct local_msg m;

    T_EQ_I64(mmx_ticket_release(g->m, space, request, generation), 0);
    m = fake_want(&g->f, LOCAL_TICKET_RELEASE);
    T_EQ_U64(m.seq, ++g->seq);
    T_EQ_U64(m.ticket_release.space, 21);
    T_EQ_U64(m.ticket_release.generation, generation);
    T_TRUE(span_eq(m.ticket_release.request, span_str(request)));
    answer(&g->f, m.seq, e, 0, 0);
}

TEST_RIG(held_at_once, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_seq id;
    struct local_msg m;
    int s = rig_space(g, "ctx");

    T_EQ_I64(s, 0);
    m = asked(g, s, "r-1");
    T_EQ_U64(m.ticket.cell, NONE);
    rig_no_event(g->m);
    answer(&g->f, m.seq, OK, 3, 77);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_TICKET);
    T_EQ_STR(ev.request, "r-1");
    T_EQ_I64(ev.space, s);
    T_EQ_U64(ev.a, 3);
    T_EQ_U64(ev.generation, 77);
    T_TRUE(ev.user == g);
    T_EQ_I64(ev.reason, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "r-1", 0, &id), 0);
    T_EQ_U64(id.id, 3);
    T_EQ_U64(id.generation, 77);
    released(g, s, "r-1", 76, ERR_STALE); /* by the holder of an older lease */
    T_EQ_I64(mmx_ticket_wait(g->m, s, "r-1", 0, &id), 0);
    released(g, s, "r-1", 77, OK);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "r-1", 0, &id), -MMX_E_STALE);
    rig_no_event(g->m);
}

TEST_RIG(waits_for_its_turn, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_seq id = {9, 9, 9};
    int s = rig_space(g, "ctx");

    answer(&g->f, asked(g, s, "a").seq, OK, NONE, 0);
    answer(&g->f, asked(g, s, "b").seq, OK, NONE, 0);
    rig_no_event(g->m);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_TIMEOUT);
    T_EQ_U64(id.id, 9);
    tell(g, "b", true, 0, 5, 1);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "b", T_WAIT_MS, &id), 0);
    T_EQ_U64(id.id, 5);
    rig_no_event(g->m); /* the waiting call has taken the event */
    tell(g, "a", true, 0, 6, 2);
    ev = rig_one_event(g->m);
    T_EQ_STR(ev.request, "a");
    T_EQ_U64(ev.a, 6);
    /* The lease has ended. */
    tell(g, "a", false, MMX_E_TIMEOUT, 6, 2);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_TICKET_LOST);
    T_EQ_STR(ev.request, "a");
    T_EQ_I64(ev.reason, MMX_E_TIMEOUT);
    T_EQ_U64(ev.generation, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_STALE);
    /* The wait has ended. */
    answer(&g->f, asked(g, s, "a").seq, OK, NONE, 0);
    tell(g, "a", false, MMX_E_TIMEOUT, 0, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", T_WAIT_MS, &id), -MMX_E_TIMEOUT);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_STALE);
    rig_no_event(g->m);
}

TEST_RIG(never_a_negative_id, ROLE_LANGD)
{
    struct mmx_seq id;
    int s = rig_space(g, "ctx");

    answer(&g->f, asked(g, s, "a").seq, OK, NONE, 0);
    tell(g, "a", true, 0, NONE, 4);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_TIMEOUT);
    rig_no_event(g->m);
}

TEST_RIG(what_comes_before_the_answer_is_old, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_seq id;
    struct local_msg m;
    int s = rig_space(g, "ctx");

    answer(&g->f, asked(g, s, "a").seq, OK, NONE, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_TIMEOUT);
    m = asked(g, s, "a");
    tell(g, "a", false, MMX_E_TIMEOUT, 0, 0); /* this crossed the second ask */
    answer(&g->f, m.seq, OK, 2, 5);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_TICKET);
    T_EQ_U64(ev.a, 2);
    rig_no_event(g->m);
    /* A release while an ask is on its way: the answer is dropped. */
    m = asked(g, s, "a");
    released(g, s, "a", MMX_UNKNOWN, OK);
    answer(&g->f, m.seq, OK, 2, 5);
    rig_no_event(g->m);
    m = asked(g, s, "a");
    tell(g, "a", true, 0, 2, 5);
    answer(&g->f, m.seq, OK, 2, 6);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", T_WAIT_MS, &id), 0);
    T_EQ_U64(id.generation, 6);
}

TEST_RIG(refused, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_seq id;
    struct mmx_ticket t = {.size = sizeof t, .request = "x"};
    mmx_room room;
    char text[65];
    int s;

    T_EQ_I64(ask(g, 0, "a"), -MMX_E_MALFORMED); /* no such space */
    s = rig_space(g, "ctx");
    memset(text, 'x', sizeof text);
    text[64] = 0;
    T_EQ_I64(ask(g, s, text), -MMX_E_MALFORMED);
    T_EQ_I64(ask(g, s, ""), -MMX_E_MALFORMED);
    T_EQ_I64(ask(g, s, NULL), -MMX_E_MALFORMED);
    T_EQ_I64(ask(g, -1, "a"), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_space(g->m, text, 8, 0), -MMX_E_MALFORMED);
    answer(&g->f, ++g->seq, ERR_MALFORMED, 0, 0);
    T_EQ_I64(mmx_space(g->m, "ctx", 9, T_WAIT_MS), -MMX_E_MALFORMED);
    (void)fake_want(&g->f, LOCAL_SPACE);

    answer(&g->f, asked(g, s, "a").seq, ERR_QUOTA, 0, 0);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_TICKET_LOST);
    T_EQ_I64(ev.reason, MMX_E_QUOTA);
    T_EQ_STR(ev.op, "ticket");
    answer(&g->f, asked(g, s, "a").seq, ERR_QUOTA, 0, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", T_WAIT_MS, &id), -MMX_E_QUOTA);
    rig_no_event(g->m);

    /* A ticket may be bound to a room, which must exist. */
    room = rig_request(g, 7, MMX_WHOLE);
    t.space = s;
    t.room = room;
    T_EQ_I64(mmx_ticket(g->m, &t), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_TICKET).ticket.tag, room.tag);
    g->seq++;
    t.room.tag++;
    T_EQ_I64(mmx_ticket(g->m, &t), -MMX_E_STALE);
    /* If a second ask is refused the first one's ticket stays. */
    answer(&g->f, g->seq, OK, 1, 1);
    T_EQ_U64(rig_one_event(g->m).what, MMX_TICKET);
    answer(&g->f, asked(g, s, "x").seq, ERR_UNKNOWN_ROOM, 0, 0);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_TICKET);
    T_EQ_U64(ev.a, 1);
}

TEST_RIG(query, ROLE_LANGD)
{
    struct mmx_seq id;
    int s = rig_space(g, "ctx");

    answer(&g->f, ++g->seq, OK, 4, 9);
    T_EQ_I64(mmx_ticket_query(g->m, s, "other's", T_WAIT_MS, &id), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_TICKET_QUERY).ticket_query.space, 21);
    T_TRUE(id.held);
    T_EQ_U64(id.id, 4);
    T_EQ_U64(id.generation, 9);
    answer(&g->f, ++g->seq, OK, NONE, 0);
    T_EQ_I64(mmx_ticket_query(g->m, s, "other's", T_WAIT_MS, &id), 0);
    T_FALSE(id.held);
    T_EQ_U64(id.id, 0);
    answer(&g->f, ++g->seq, ERR_UNKNOWN_ROOM, 0, 0);
    T_EQ_I64(mmx_ticket_query(g->m, s, "other's", T_WAIT_MS, &id),
        -MMX_E_UNKNOWN_ROOM);
}

TEST_RIG(daemon_lost, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_seq id;
    int s = rig_space(g, "ctx");

    answer(&g->f, asked(g, s, "a").seq, OK, 0, 1);
    T_EQ_U64(rig_one_event(g->m).what, MMX_TICKET);
    answer(&g->f, asked(g, s, "b").seq, OK, NONE, 0);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "b", 0, &id), -MMX_E_TIMEOUT);
    T_EQ_I64(ask(g, s, "c"), 0);
    close(g->f.conn);
    for (uint32_t i = 0; i < 3; i++) {
        ev = rig_one_event(g->m);
        T_EQ_U64(ev.what, MMX_TICKET_LOST);
        T_EQ_STR(ev.request, ((const char *[]){"a", "b", "c"})[i]);
        T_EQ_I64(ev.reason, MMX_E_DAEMON_LOST);
    }
    T_EQ_U64(rig_one_event(g->m).what, MMX_DOWN);
    T_EQ_I64(ask(g, s, "a"), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_ticket_wait(g->m, s, "a", 0, &id), -MMX_E_STALE);
    (void)poll(
        &(struct pollfd){.fd = mmx_fd(g->m), .events = POLLIN}, 1, T_WAIT_MS);
    rig_no_event(g->m); /* the handle dials */
    fake_welcome(&g->f, g->f.cells_fd);
    T_EQ_U64(rig_one_event(g->m).what, MMX_UP);
    T_EQ_I64(ask(g, s, "a"), -MMX_E_STALE);
    g->seq = g->f.hello_seq;
    T_EQ_I64(rig_space(g, "ctx"), s);
    answer(&g->f, asked(g, s, "a").seq, OK, 0, 1);
    T_EQ_U64(rig_one_event(g->m).what, MMX_TICKET);
}

TEST_RIG(every_request_of_a_handle, ROLE_LANGD)
{
    char name[16];
    int s = rig_space(g, "ctx");

    T_EQ_I64(mmx_cork(g->m), 0);
    for (uint32_t i = 0; i < 4096; i++) {
        snprintf(name, sizeof name, "r%u", i);
        T_EQ_I64(ask(g, s, name), 0);
    }
    T_EQ_I64(ask(g, s, "one more"), -MMX_E_QUOTA);
    T_EQ_I64(ask(g, s, "r17"), 0);
    T_EQ_I64(mmx_ticket_release(g->m, s, "r4095", MMX_UNKNOWN), 0);
    T_EQ_I64(ask(g, s, "one more"), 0);
    T_EQ_I64(mmx_uncork(g->m), 0);
}

/* eight threads on one handle */

#define THREADS 8
#define ROUNDS  200
#define IDS     3

struct party {
    struct rig g;
    int space;
    atomic_uint holders[IDS]; /* of each id; never above 1 */
    atomic_uint done;
    bool over;
};

/* The daemon is the double's socket over the core's tickets. */
static struct tickets *real_tickets(void)
{
    static struct conf c;
    static struct tickets t;
    static uint64_t now_ns;
    struct slab s = {0};

    conf_init(&c, ROLE_LANGD);
    c.limit_connections = 2;
    tickets_init(&t, &s, &c, 7);
    s = slab_fresh(s.used);
    tickets_init(&t, &s, &c, 7);
    t.now_ns = &now_ns;
    return &t;
}

static void serve_one(struct fake *f, struct tickets *t)
{
    struct local_msg m = fake_get(f);
    struct ticket_state s = {0};
    const char *text;
    enum err e = ERR_MALFORMED;
    uint32_t a = 0, conn;

    if (m.type == LOCAL_SPACE) {
        e = space_open(t, 5, 5, m.space.name, m.space.n_seq_max, &a, &text);
        answer(f, m.seq, e, a, m.space.n_seq_max);
        return;
    }
    if (m.type == LOCAL_TICKET)
        e = ticket_acquire(t, 5, 1, &m.ticket, NULL, &s, &text);
    else if (m.type == LOCAL_TICKET_RELEASE)
        e = ticket_release(t, 5, 1, &m.ticket_release, &text);
    T_OK(e);
    tickets_check(t);
    answer(f, m.seq, e, s.held ? s.seq : NONE, s.held ? s.generation : 0);
    while ((conn = tickets_next_conn(t)) != NONE)
        for (;;) {
            uint8_t bytes[256];
            struct writer w = writer_of(bytes, sizeof bytes);

            if (!tickets_next_event(t, conn, &w))
                break;
            T_EQ_I64(send(f->conn, bytes, w.len, MSG_NOSIGNAL), w.len);
        }
}

static void *serve(void *ud)
{
    struct party *p = ud;
    struct tickets *t = real_tickets();

    while (!__atomic_load_n(&p->over, __ATOMIC_ACQUIRE))
        if (!fake_idle(&p->g.f))
            serve_one(&p->g.f, t);
        else
            (void)poll(
                &(struct pollfd){.fd = p->g.f.conn, .events = POLLIN}, 1, 10);
    T_EQ_U64(t->requests.len, 0);
    T_EQ_U64(t->spaces[0].idle_count, IDS);
    return NULL;
}

static void *work(void *ud)
{
    struct party *p = ud;
    char name[32];

    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct mmx_seq id;

        snprintf(name, sizeof name, "%lx-%u", (unsigned long)pthread_self(), i);
        T_EQ_I64(ask(&p->g, p->space, name), 0);
        T_EQ_I64(mmx_ticket_wait(p->g.m, p->space, name, T_WAIT_MS, &id), 0);
        T_TRUE(id.id < IDS);
        T_EQ_U64(atomic_fetch_add(&p->holders[id.id], 1), 0);
        T_EQ_U64(atomic_fetch_sub(&p->holders[id.id], 1), 1);
        T_EQ_I64(mmx_ticket_release(p->g.m, p->space, name, id.generation), 0);
        atomic_fetch_add(&p->done, 1);
    }
    return NULL;
}

TEST(eight_threads)
{
    static struct party p;
    pthread_t daemon, threads[THREADS];

    rig_open(&p.g, ROLE_LANGD);
    T_EQ_I64(pthread_create(&daemon, NULL, serve, &p), 0);
    p.space = mmx_space(p.g.m, "ctx", IDS, T_WAIT_MS);
    T_EQ_I64(p.space, 0);
    for (uint32_t i = 0; i < THREADS; i++)
        T_EQ_I64(pthread_create(&threads[i], NULL, work, &p), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    T_EQ_U64(p.done, THREADS * ROUNDS);
    /* When a later call is answered, the last release has been carried out. */
    T_EQ_I64(mmx_space(p.g.m, "ctx", IDS, T_WAIT_MS), 0);
    rig_no_event(p.g.m);
    __atomic_store_n(&p.over, true, __ATOMIC_RELEASE);
    pthread_join(daemon, NULL);
    rig_close(&p.g);
}
