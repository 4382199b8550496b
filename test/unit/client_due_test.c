/* client_due_test.c - a daemon that hangs: how waits and rooms end. Against a
 * double of a daemon's socket. */
#include "test/fake_daemon.h"

#include <poll.h>
#include <pthread.h>

#define LONG_MS 800 /* in a wait of this length a living daemon answers */

static mmx_room request_by(struct rig *g, uint64_t id, uint32_t deadline_ms)
{
    struct mmx_request q = {.size = sizeof q,
        .id = id,
        .pool = g->pool.id,
        .encoder = "enc",
        .deadline_ms = deadline_ms};
    mmx_room r = {0, 0};

    T_EQ_I64(mmx_request(g->m, &q, &r), 0);
    fake_answer(&g->f, fake_want(&g->f, LOCAL_REQUEST).seq, OK, "");
    g->seq++;
    return r;
}

/* Steps until the handle asks whether the daemon lives; returns the seq. */
static uint32_t asked(struct rig *g)
{
    struct pollfd p = {.fd = mmx_fd(g->m), .events = POLLIN};
    struct local_msg m;

    while (fake_idle(&g->f)) {
        T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
        rig_no_event(g->m);
    }
    m = fake_want(&g->f, LOCAL_POOL);
    T_EQ_U64(m.pool.name.len, 1);
    return m.seq;
}

TESTS_AT_ONCE(4);

/* RULES 8.5 */
TEST_RIG(a_room_ends_by_its_deadline, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_state s;
    mmx_room r, other;

    r = request_by(g, 1, 1);
    other = request_by(g, 2, 60000);
    rig_word(g, r, MMX_TRANSFERRING, 3);
    (void)asked(g);
    ev = rig_one_event(g->m); /* mmx_fd became readable for it */
    T_EQ_U64(ev.what, MMX_FAILED);
    T_EQ_U64(ev.id, 1);
    T_EQ_I64(ev.reason, MMX_E_DAEMON_SILENT);
    T_EQ_I64(ev.advice, MMX_ADVICE_RETRY);
    T_EQ_I64(mmx_poll(g->m, &r, 1, &s), MMX_FAILED_STATE);
    T_EQ_I64(s.reason, MMX_E_DAEMON_SILENT);
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_READY, -1), -MMX_E_DAEMON_SILENT);
    T_TRUE(fake_idle(&g->f)); /* the handle has asked only once */

    /* The daemon goes on: its answer comes too late. */
    rig_event(g, r,
        (struct local_event){
            .what = EVENT_READY, .state = MMX_SUCCESS, .rows = 3, .total = 3},
        (uint32_t[]){1, 1}, 1);
    rig_no_event(g->m);
    T_EQ_I64(mmx_poll(g->m, &r, 1, NULL), MMX_FAILED_STATE);
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_RELEASE).release.cell, r.cell);
    T_EQ_I64(mmx_poll(g->m, &other, 1, NULL), MMX_BOOTSTRAPPING);
}

TEST_RIG(who_only_waits_for_a_room_hears_it_as_well, ROLE_LANGD)
{
    mmx_room r = request_by(g, 1, 1);

    T_EQ_I64(mmx_wait_room(g->m, r, MMX_READY, -1), -MMX_E_DAEMON_SILENT);
}

/* RULES 8.5 */
TEST_RIG(a_daemon_that_answers_judges_by_itself, ROLE_LANGD)
{
    struct mmx_event ev;
    char text[64];
    mmx_room r = request_by(g, 1, 1);

    fake_answer(&g->f, asked(g), ERR_MALFORMED, "no pool `?` here");
    T_EQ_I64(mmx_wait(g->m, &ev, 1, 2 * LONG_MS), 0);
    T_EQ_I64(mmx_poll(g->m, &r, 1, NULL), MMX_BOOTSTRAPPING);
    T_TRUE(fake_idle(&g->f)); /* nor does the handle ask again */
    T_EQ_I64(mmx_error_text(g->m, text, sizeof text), 0);
    T_EQ_STR(text, "");
}

TEST_RIG(a_room_that_has_ended_is_not_looked_at, ROLE_LANGD)
{
    struct mmx_event ev;
    mmx_room r = request_by(g, 1, 1);

    rig_event(
        g, r, (struct local_event){.what = EVENT_READY, .state = 4}, NULL, 0);
    T_EQ_U64(rig_one_event(g->m).what, MMX_READY);
    T_EQ_I64(mmx_wait(g->m, &ev, 1, LONG_MS), 0);
    T_TRUE(fake_idle(&g->f));
}

/* Answers the question of a wait, and nothing else. */
static void *answer(void *arg)
{
    struct fake *f = arg;
    struct local_msg m;

    do
        m = fake_want(f, LOCAL_POOL);
    while (!span_eq(m.pool.name, span_str("?")));
    fake_answer(f, m.seq, ERR_MALFORMED, "none");
    return NULL;
}

static int wait_granted(struct rig *g, mmx_room r, int ms)
{
    return mmx_wait_room(g->m, r, MMX_GRANTED, ms);
}

/* As of a pool whose memory is being made, which takes seconds. */
static int wait_pool(struct rig *g, mmx_room r, int ms)
{
    struct mmx_pool p = {.size = sizeof p};

    return mmx_pool(g->m, "q", NULL, ms, &p);
}

/* RULES 8.5 */
TEST_RIG(a_wait_that_ends_says_whether_the_daemon_lives, ROLE_ENCODED)
{
    int (*const waits[])(struct rig *, mmx_room, int) = {
        wait_granted, wait_pool};
    mmx_room r = rig_announce(g, 1, 5);
    char text[128];
    pthread_t t;

    T_EQ_I64(wait_granted(g, r, 10), -MMX_E_TIMEOUT);
    T_TRUE(fake_idle(&g->f)); /* the wait is too short for a question */
    for (size_t i = 0; i < ARRAY_LEN(waits); i++) {
        T_EQ_I64(pthread_create(&t, NULL, answer, &g->f), 0);
        T_EQ_I64(waits[i](g, r, LONG_MS), -MMX_E_TIMEOUT);
        pthread_join(t, NULL);
        T_EQ_I64(mmx_error_text(g->m, text, sizeof text), 0);
        T_HAS(text, ": not within 800 ms");
    }
    for (size_t i = 0; i < ARRAY_LEN(waits); i++) {
        T_EQ_I64(waits[i](g, r, LONG_MS), -MMX_E_DAEMON_SILENT);
        T_EQ_I64(mmx_error_text(g->m, text, sizeof text), 0);
        T_HAS(text, ": not within 800 ms, nor any other answer");
    }
    /* A poll leaves the text of what failed before. */
    T_EQ_I64(wait_granted(g, r, 0), -MMX_E_TIMEOUT);
    T_EQ_I64(wait_granted(g, r, 10), -MMX_E_TIMEOUT);
    T_EQ_I64(mmx_error_text(g->m, text, sizeof text), 0);
    T_HAS(text, ": not within 800 ms, nor any other answer");
}

TEST(a_daemon_that_takes_no_hello_is_silent)
{
    struct fake f;
    struct mmx_opt o;
    mmx *m = NULL;

    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, LONG_MS);
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_DAEMON_SILENT);
}
