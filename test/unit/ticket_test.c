/* ticket_test.c - sequence ids leased to requests: who gets which id when, who
 * waits, and that no id is ever held twice. */
#include "core/lang/ticket.h"
#include "test/slab.h"
#include "test/t.h"

#define CONNS 8
#define TOLD  64

/* The events that connections got, in order. */
static struct {
    uint32_t conn, space, state, reason, seq, generation;
    char request[64];
} told[TOLD];
static uint32_t told_count;
static const char *why;
static uint64_t now_ns;

static struct tickets *make(uint32_t spaces, uint32_t requests)
{
    static struct conf c;
    static struct tickets t;
    static void *memory;
    struct slab s = {0};

    conf_init(&c, ROLE_LANGD);
    c.limit_connections = spaces;
    c.limit_rooms = requests;
    tickets_init(&t, &s, &c, 7);
    free(memory);
    s = slab_fresh(s.used);
    memory = s.p;
    t = (struct tickets){0};
    tickets_init(&t, &s, &c, 7);
    now_ns = 0;
    t.now_ns = &now_ns;
    T_TRUE(!s.failed && s.used == s.cap);
    return &t;
}

static uint32_t space(
    struct tickets *t, uint32_t session, const char *name, uint32_t size)
{
    uint32_t n = NONE;

    T_OK(space_open(t, session, session, span_str(name), size, &n, &why));
    return n;
}

static struct local_ticket ask_of(uint32_t space, const char *request)
{
    return (struct local_ticket){
        .space = space, .cell = NONE, .request = span_str(request)};
}

/* Acquires for connection 1 of session 5. */
static struct ticket_state ask(
    struct tickets *t, uint32_t space, const char *request)
{
    struct local_ticket m = ask_of(space, request);
    struct ticket_state s = {0};

    T_OK(ticket_acquire(t, 5, 1, &m, NULL, &s, &why));
    tickets_check(t);
    T_TRUE(!s.held || (s.seq < t->spaces[space].size && s.generation != NONE));
    return s;
}

static enum err release(
    struct tickets *t, uint32_t space, const char *request, uint32_t generation)
{
    struct local_ticket_release m = {
        .space = space, .generation = generation, .request = span_str(request)};
    enum err e = ticket_release(t, 5, 1, &m, &why);

    tickets_check(t);
    return e;
}

static enum err query(struct tickets *t, uint32_t space, const char *request,
    struct ticket_state *out)
{
    struct local_ticket_query m = {
        .space = space, .request = span_str(request)};

    return ticket_query(t, 5, &m, out, &why);
}

/* Takes all events; returns their number. */
static uint32_t listen(struct tickets *t)
{
    uint8_t bytes[256];
    uint32_t conn;

    told_count = 0;
    while ((conn = tickets_next_conn(t)) != NONE)
        for (;;) {
            struct writer w = writer_of(bytes, sizeof(bytes));
            struct reader r;
            struct local_msg m;

            if (!tickets_next_event(t, conn, &w))
                break;
            r = reader_of(bytes, w.len);
            T_OK(local_get(&r, &m));
            T_EQ_STR(local_name(m.type), "ticket_event");
            T_TRUE(told_count < TOLD);
            T_TRUE(m.ticket_event.seq < t->spaces[m.ticket_event.space].size);
            told[told_count].conn = conn;
            told[told_count].space = m.ticket_event.space;
            told[told_count].state = m.ticket_event.state;
            told[told_count].reason = m.ticket_event.reason;
            told[told_count].seq = m.ticket_event.seq;
            told[told_count].generation = m.ticket_event.generation;
            span_copy_str(m.ticket_event.request, told[told_count++].request,
                sizeof(told->request));
        }
    return told_count;
}

TEST(one)
{
    struct tickets *t = make(2, 8);
    uint32_t s = space(t, 5, "ctx", 4);
    struct ticket_state a = ask(t, s, "a"), again;

    T_TRUE(a.held);
    again = ask(t, s, "a"); /* a second ask changes nothing */
    T_EQ_U64(again.seq, a.seq);
    T_EQ_U64(again.generation, a.generation);
    T_EQ_U64(t->spaces[s].held, 1);
    T_OK(query(t, s, "a", &again));
    T_EQ_U64(again.seq, a.seq);
    T_OK(release(t, s, "a", a.generation));
    T_ERR(release(t, s, "a", a.generation), ERR_UNKNOWN_ROOM);
    T_ERR(query(t, s, "a", &again), ERR_UNKNOWN_ROOM);
    T_EQ_U64(t->spaces[s].idle_count, 4);
    T_EQ_U64(listen(t), 0);
}

TEST(spaces)
{
    struct tickets *t = make(2, 8);
    uint32_t a = space(t, 5, "ctx", 4), b = space(t, 6, "ctx", 2), n = 77;
    struct local_ticket m;
    struct ticket_state s;

    T_TRUE(a != b);
    T_EQ_U64(space(t, 5, "ctx", 4), a);
    T_ERR(space_open(t, 5, 5, span_str("ctx"), 3, &n, &why), ERR_MALFORMED);
    T_HAS(why, "another n_seq_max");
    T_ERR(space_open(t, 5, 5, span_str("x"), 0, &n, &why), ERR_MALFORMED);
    T_ERR(space_open(t, 5, 5, span_str("x"), 1025, &n, &why), ERR_MALFORMED);
    T_ERR(space_open(t, 5, 5, span_str("x"), 1, &n, &why), ERR_QUOTA);
    T_EQ_U64(n, 77);
    /* A space belongs to its session. */
    m = ask_of(b, "r");
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &s, &why), ERR_NOT_OWNER);
    m = ask_of(9, "r");
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &s, &why), ERR_NOT_OWNER);
    T_ERR(release(t, b, "r", 1), ERR_NOT_OWNER);
    T_ERR(query(t, b, "r", &s), ERR_NOT_OWNER);
    tickets_session_end(t, 6);
    T_EQ_U64(space(t, 5, "x", 1), b);
    /* Two spaces of one session: the same request has an id in each. */
    T_TRUE(ask(t, a, "r").held && ask(t, b, "r").held);
    T_FALSE(ask(t, b, "q").held);
    T_TRUE(ask(t, a, "q").held);
}

TEST(names)
{
    struct tickets *t = make(1, 8);
    uint32_t s = space(t, 5, "", 4);
    char text[65];
    struct local_ticket m = {.space = s, .cell = NONE};
    struct ticket_state out;

    memset(text, 'x', sizeof(text));
    m.request = span_of(text, 0);
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_MALFORMED);
    m.request = span_of(text, 64);
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_MALFORMED);
    m.request = span_of("a\0b", 3);
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_MALFORMED);
    m.request = span_of(text, 63);
    T_OK(ticket_acquire(t, 5, 1, &m, NULL, &out, &why));
}

TEST(same_hash)
{
    /* A known pair for FNV-1a 64: users may choose request ids. */
    const char *a = "8yn0iYCKYHlIj4-BwPqk", *b = "GReLUrM4wMqfg9yzV3KQ";
    struct tickets *t = make(1, 8);
    uint32_t s = space(t, 5, "ctx", 4);
    struct ticket_state first = ask(t, s, a), out;
    struct local_ticket m = ask_of(s, b);

    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_BUSY);
    T_ERR(query(t, s, b, &out), ERR_UNKNOWN_ROOM);
    tickets_check(t);
    T_OK(release(t, s, a, first.generation));
    T_TRUE(ask(t, s, b).held);
}

TEST_WITH(exhaustion_and_fifo, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 2);
    struct ticket_state a = ask(t, s, "a"), b = ask(t, s, "b"), c, q;

    T_TRUE(a.held && b.held && a.seq != b.seq);
    T_FALSE(ask(t, s, "c").held);
    T_FALSE(ask(t, s, "d").held);
    T_FALSE(ask(t, s, "c").held); /* keeps its place in the queue */
    T_EQ_U64(t->spaces[s].waiting_count, 2);
    T_OK(query(t, s, "d", &q));
    T_FALSE(q.held);
    T_EQ_U64(listen(t), 0);
    T_OK(release(t, s, "b", b.generation));
    T_EQ_U64(listen(t), 1);
    T_EQ_STR(told[0].request, "c");
    T_EQ_U64(told[0].conn, 1);
    T_EQ_U64(told[0].state, 1);
    T_EQ_U64(told[0].seq, b.seq);
    T_EQ_U64(told[0].generation, b.generation + 1);
    T_EQ_U64(listen(t), 0);
    c = ask(t, s, "c");
    T_EQ_U64(c.generation, told[0].generation);
    /* Leaves the queue. */
    T_ERR(release(t, s, "d", 0), ERR_STALE);
    T_OK(release(t, s, "d", NONE));
    T_OK(release(t, s, "c", c.generation));
    T_EQ_U64(listen(t), 0);
    T_EQ_U64(t->spaces[s].idle_count, 1);
}

TEST_WITH(longest_idle_first, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 4), order[] = {2, 0, 3, 1};
    struct ticket_state got[4];
    char name[8];

    for (uint32_t i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "%u", i);
        got[i] = ask(t, s, name);
        T_EQ_U64(got[i].seq, i);
    }
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "%u", order[i]);
        T_OK(release(t, s, name, got[order[i]].generation));
    }
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        T_EQ_U64(ask(t, s, name).seq, order[i]);
    }
}

TEST_WITH(late_release, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);
    struct ticket_state old = ask(t, s, "a"), now;

    T_OK(release(t, s, "a", old.generation));
    now = ask(t, s, "a");
    T_EQ_U64(now.seq, old.seq);
    T_TRUE(now.generation != old.generation);
    T_ERR(release(t, s, "a", old.generation), ERR_STALE);
    T_OK(query(t, s, "a", &old));
    T_TRUE(old.held);
    T_OK(release(t, s, "a", now.generation));
    T_TRUE(ask(t, s, "b").held);
    T_ERR(release(t, s, "a", now.generation), ERR_UNKNOWN_ROOM);
    T_OK(query(t, s, "b", &old));
    /* A generation from a space that has ended is stale, too. */
    tickets_session_end(t, 5);
    T_EQ_U64(space(t, 5, "ctx", 1), s);
    T_TRUE(ask(t, s, "b").generation > old.generation);
    T_ERR(release(t, s, "b", old.generation), ERR_STALE);
}

TEST(generations_wrap)
{
    struct tickets *t = make(1, 4);
    uint32_t s = space(t, 5, "ctx", 1);
    struct ticket_state a;

    t->spaces[s].generations[0] = NONE - 1;
    a = ask(t, s, "a");
    T_EQ_U64(a.generation, 1);
    T_OK(release(t, s, "a", 1));
}

TEST_WITH(deadline, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);
    struct ticket_state a = ask(t, s, "a"), q;
    struct local_ticket m = ask_of(s, "b");

    T_TRUE(a.held);
    T_TRUE(heap_first(&t->timers) == NULL); /* it has no lease */
    m.wait_ms = 100;
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &q, &why));
    T_FALSE(ask(t, s, "c").held); /* waits for the configured time */
    T_EQ_U64(heap_first(&t->timers)->key, 100 * NS_PER_MS);
    tickets_expire(t, 100 * NS_PER_MS - 1);
    T_EQ_U64(listen(t), 0);
    tickets_expire(t, 100 * NS_PER_MS);
    tickets_check(t);
    T_EQ_U64(listen(t), 1);
    T_EQ_U64(told[0].conn, 2);
    T_EQ_STR(told[0].request, "b");
    T_EQ_U64(told[0].state, 0);
    T_EQ_U64(told[0].reason, ERR_TIMEOUT);
    T_ERR(query(t, s, "b", &q), ERR_UNKNOWN_ROOM);
    T_EQ_U64(heap_first(&t->timers)->key, t->conf->timeout_total);
    T_OK(release(t, s, "a", a.generation)); /* c has not timed out yet */
    T_EQ_U64(listen(t), 1);
    T_TRUE(heap_first(&t->timers) == NULL);
    T_EQ_U64(t->expired, 1);
}

TEST_WITH(lease, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);
    struct local_ticket m = ask_of(s, "a");
    struct ticket_state a;

    m.hold_ms = 50;
    T_OK(ticket_acquire(t, 5, 1, &m, NULL, &a, &why));
    m = ask_of(s, "b");
    m.hold_ms = 30; /* counts from the moment that it is held */
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &a, &why));
    now_ns = 50 * NS_PER_MS;
    tickets_expire(t, now_ns);
    tickets_check(t);
    T_EQ_U64(listen(t), 2);
    T_EQ_STR(told[0].request, "a");
    T_EQ_U64(told[0].state, 0);
    T_EQ_STR(told[1].request, "b");
    T_EQ_U64(told[1].state, 1);
    T_ERR(release(t, s, "a", told[0].generation), ERR_UNKNOWN_ROOM);
    T_EQ_U64(heap_first(&t->timers)->key, 80 * NS_PER_MS);
    T_OK(release(t, s, "b", told[1].generation));
    T_TRUE(heap_first(&t->timers) == NULL);
}

TEST_WITH(room, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 2);
    struct list room, other;
    struct local_ticket a = ask_of(s, "a"), b = ask_of(s, "b"),
                        c = ask_of(s, "c"), d = ask_of(s, "d");
    struct ticket_state out;

    list_init(&room);
    list_init(&other);
    T_OK(ticket_acquire(t, 5, 1, &a, &room, &out, &why));
    T_OK(ticket_acquire(t, 5, 1, &b, &other, &out, &why));
    T_OK(ticket_acquire(t, 5, 1, &c, &room, &out, &why)); /* waits */
    T_OK(ticket_acquire(t, 5, 1, &d, NULL, &out, &why));
    tickets_room_failed(t, &room, ERR_PEER_LOST);
    tickets_check(t);
    T_TRUE(list_empty(&room));
    T_EQ_U64(listen(t), 3);
    T_EQ_STR(told[0].request, "a");
    T_EQ_U64(told[0].reason, ERR_PEER_LOST);
    T_EQ_STR(told[1].request, "c");
    T_EQ_U64(told[1].reason, ERR_PEER_LOST);
    T_EQ_STR(told[2].request, "d");
    T_EQ_U64(told[2].state, 1);
    /* A ticket of another room stays. */
    T_OK(query(t, s, "b", &out));
    T_TRUE(out.held);
}

TEST(session_end)
{
    struct tickets *t = make(2, 16);
    uint32_t s = space(t, 5, "ctx", 1), o = space(t, 6, "ctx", 1);
    struct local_ticket m = ask_of(o, "a");
    struct ticket_state out;

    T_OK(ticket_acquire(t, 6, 3, &m, NULL, &out, &why));
    (void)ask(t, s, "a");
    (void)ask(t, s, "b");
    (void)ask(t, s, "c");
    tickets_conn_end(t, 1);
    tickets_session_end(t, 5);
    tickets_check(t);
    T_EQ_U64(listen(t), 0);
    T_FALSE(t->spaces[s].used);
    T_TRUE(t->spaces[o].used);
    T_EQ_U64(t->spaces[o].held, 1);
    s = space(t, 5, "ctx", 1);
    T_TRUE(ask(t, s, "d").held);
    T_EQ_U64(listen(t), 0);
}

TEST_WITH(conn_end, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 2);
    struct local_ticket m = ask_of(s, "gone");
    struct ticket_state a = ask(t, s, "a"), b = ask(t, s, "b"), out;

    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &out, &why));
    T_FALSE(ask(t, s, "c").held);
    m = ask_of(s, "gone-2");
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &out, &why));
    /* "gone" was given the id, but no connection is left to hear it: c's
     * turn. */
    T_OK(release(t, s, "a", a.generation));
    tickets_conn_end(t, 2);
    tickets_check(t);
    T_EQ_U64(listen(t), 1);
    T_EQ_U64(told[0].conn, 1);
    T_EQ_STR(told[0].request, "c");
    T_ERR(query(t, s, "gone", &out), ERR_UNKNOWN_ROOM);
    T_ERR(query(t, s, "gone-2", &out), ERR_UNKNOWN_ROOM);
    /* Ids that are held belong to the session. */
    tickets_conn_end(t, 1);
    tickets_check(t);
    T_OK(query(t, s, "b", &out));
    m = ask_of(s, "b");
    T_OK(ticket_acquire(t, 5, 3, &m, NULL, &out, &why));
    T_EQ_U64(out.generation, b.generation);
    T_OK(release(t, s, "b", b.generation));
    T_EQ_U64(listen(t), 0);
}

/* Losses and grants that were not heard go with their connection, or with the
 * session. A holder whose connection has ended is told of no loss. */
TEST_WITH(
    what_was_not_heard_ends_with_who_asked, struct tickets *t, make(2, 16))
{
    uint32_t s = space(t, 5, "ctx", 1), o = space(t, 5, "other", 1);
    struct local_ticket m = ask_of(s, "a");
    struct ticket_state out, b;

    m.hold_ms = 100;
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &out, &why));
    tickets_conn_end(t, 2);
    tickets_expire(t, now_ns + 100 * NS_PER_MS);
    T_ERR(query(t, s, "a", &out), ERR_UNKNOWN_ROOM);
    b = ask(t, s, "b");
    T_FALSE(ask(t, s, "c").held);
    tickets_expire(t, now_ns + t->conf->timeout_total); /* c is lost */
    T_FALSE(ask(t, s, "d").held);
    T_TRUE(ask(t, o, "c").held);            /* another one, of that name */
    T_OK(release(t, s, "b", b.generation)); /* d has the id */
    T_FALSE(ask(t, o, "d").held);
    tickets_conn_end(t, 1);
    tickets_check(t);
    T_TRUE(ask(t, s, "e").held);
    T_FALSE(ask(t, s, "f").held);
    tickets_expire(t, now_ns + t->conf->timeout_total);
    tickets_session_end(t, 5);
    T_EQ_U64(t->requests.len, 0);
    T_EQ_U64(listen(t), 0);
}

/* Two processes of one engine ask for the same request. */
TEST_WITH(asked_by_two, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);
    struct ticket_state a = ask(t, s, "a"), out;
    struct local_ticket m = ask_of(s, "b");

    T_FALSE(ask(t, s, "b").held);
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &out, &why));
    T_OK(release(t, s, "a", a.generation));
    T_EQ_U64(listen(t), 1);
    /* the connection that asked last gets the event */
    T_EQ_U64(told[0].conn, 2);
    T_ERR(release(t, s, "b", NONE), ERR_STALE);
    /* If an ask is answered with the id, the event is taken back. */
    T_FALSE(ask(t, s, "c").held);
    T_OK(release(t, s, "b", told[0].generation));
    m = ask_of(s, "c");
    T_OK(ticket_acquire(t, 5, 2, &m, NULL, &out, &why));
    T_TRUE(out.held);
    T_EQ_U64(listen(t), 0);
    tickets_conn_end(t, 1);
    T_OK(query(t, s, "c", &out));
}

TEST_WITH(asked_again_before_the_loss_was_heard, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);

    (void)ask(t, s, "a");
    T_FALSE(ask(t, s, "b").held);
    T_FALSE(ask(t, s, "c").held);
    tickets_expire(t, t->conf->timeout_total);
    T_FALSE(ask(t, s, "b").held);
    T_EQ_U64(listen(t), 1);
    T_EQ_STR(told[0].request, "c");
}

/* The id was given, and before its event was taken the connection went away. */
TEST_WITH(given_up_before_the_grant_was_heard, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 1);
    struct ticket_state a = ask(t, s, "a");

    T_FALSE(ask(t, s, "b").held);
    T_FALSE(ask(t, s, "c").held);
    T_OK(release(t, s, "a", a.generation));
    T_OK(release(t, s, "b", NONE));
    T_EQ_U64(listen(t), 1);
    T_EQ_STR(told[0].request, "c");
}

TEST(caps)
{
    struct tickets *t = make(1, 3);
    uint32_t s = space(t, 5, "ctx", 2);
    struct local_ticket m = ask_of(s, "d");
    struct ticket_state a = ask(t, s, "a"), out = {true, 9, 9};

    (void)ask(t, s, "b");
    (void)ask(t, s, "c");
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_QUOTA);
    T_HAS(why, "sequence requests");
    T_EQ_U64(out.seq, 9);
    (void)ask(t, s, "c");
    /* A loss keeps its place until its event is taken. */
    tickets_expire(t, t->conf->timeout_total);
    T_ERR(ticket_acquire(t, 5, 1, &m, NULL, &out, &why), ERR_QUOTA);
    T_EQ_U64(listen(t), 1);
    T_OK(ticket_acquire(t, 5, 1, &m, NULL, &out, &why));
    T_OK(release(t, s, "a", a.generation));
}

/* What hung before there were tickets: the ninth to eleventh request of eight
 * ids. */
TEST_WITH(eleven_requests_on_eight_ids, struct tickets *t, make(1, 16))
{
    uint32_t s = space(t, 5, "ctx", 8), done = 0, waiting = 0;
    struct ticket_state got[11];
    char name[16];

    for (uint32_t i = 0; i < 11; i++) {
        snprintf(name, sizeof(name), "req-%u", i);
        got[i] = ask(t, s, name);
        waiting += !got[i].held;
    }
    T_EQ_U64(waiting, 3);
    for (uint32_t i = 0; i < 11; i++, done++) {
        T_TRUE(got[i].held);
        snprintf(name, sizeof(name), "req-%u", i);
        T_OK(release(t, s, name, got[i].generation));
        if (i >= 3)
            continue;
        T_EQ_U64(listen(t), 1);
        snprintf(name, sizeof(name), "req-%u", 8 + i);
        T_EQ_STR(told[0].request, name);
        got[8 + i] =
            (struct ticket_state){true, told[0].seq, told[0].generation};
    }
    T_EQ_U64(done, 11);
    T_EQ_U64(t->spaces[s].idle_count, 8);
    T_EQ_U64(t->requests.len, 0);
}
