/* client_link_test.c - the connection of the client library: opening, pools,
 * packets, the daemon's end and return, threads, fork. Against a double of a
 * daemon's socket. */
#include "client/client.h"
#include "test/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

TEST(no_daemon)
{
    char why[128];
    mmx *m = NULL;
    struct mmx_opt o = {.size = sizeof o,
        .role = MMX_LANGD,
        .socket = "/nonexistent/sock",
        .timeout_ms = 30,
        .why = why,
        .why_size = sizeof why};

    T_EQ_I64(mmx_open(&o, &m), -MMX_E_NOT_READY);
    T_HAS(why, "/nonexistent/sock: No such file");
    T_TRUE(m == NULL);
    o.role = 9;
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_MALFORMED);
    o.size = 0;
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_open(NULL, &m), -MMX_E_MALFORMED);
    mmx_close(&m);
    mmx_close(NULL);
}

TEST(socket_from_environment)
{
    char why[128];
    mmx *m;
    struct mmx_opt o = {.size = sizeof o,
        .role = MMX_LANGD,
        .timeout_ms = 1,
        .why = why,
        .why_size = sizeof why};

    setenv("MMX_LANGD_SOCKET", "/nonexistent/env", 1);
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_NOT_READY);
    T_HAS(why, "/nonexistent/env");
}

static void *refuse(void *arg)
{
    struct fake *f = arg;

    f->conn = accept4(f->listen, NULL, NULL, SOCK_CLOEXEC);
    f->r = reader_of(f->in, 0);
    fake_answer(f, fake_want(f, LOCAL_HELLO).seq, ERR_VERSION, "I speak 7");
    return NULL;
}

TEST(hello_refused)
{
    struct fake f;
    pthread_t t;
    char why[128];
    struct mmx_opt o;
    mmx *m = NULL;

    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, T_WAIT_MS);
    o.why = why;
    o.why_size = sizeof why;
    T_EQ_I64(pthread_create(&t, NULL, refuse, &f), 0);
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_VERSION);
    pthread_join(t, NULL);
    T_EQ_STR(why, "hello: version: I speak 7");
}

/* As fake_answer(), but the client may have left by now. */
static void answer_if_there(
    struct fake *f, uint32_t seq, enum err e, const char *text)
{
    uint8_t bytes[256];
    struct writer w = writer_of(bytes, sizeof bytes);
    struct local_msg m = {.type = LOCAL_ANSWER,
        .seq = seq,
        .answer = {.err = (uint8_t)e, .text = span_str(text)}};

    T_TRUE(local_put(&w, &m));
    if (send(f->conn, bytes, w.len, MSG_NOSIGNAL) < 0)
        T_TRUE(errno == EPIPE || errno == ECONNRESET);
}

/* A daemon whose places are taken: it refuses the client, and may have closed
 * the connection before the client's HELLO goes. */
static void *take_nobody(void *arg)
{
    struct fake *f = arg;
    int s;

    while ((s = accept4(f->listen, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        f->conn = s;
        answer_if_there(f, 0, ERR_QUOTA, "limits.connections");
        shutdown(s, SHUT_RD);
        close(s);
    }
    return NULL;
}

TEST(connection_not_taken)
{
    struct fake f;
    pthread_t t;
    char why[256];
    struct mmx_opt o;
    mmx *m = NULL;
    int err;

    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, 300);
    o.why = why;
    o.why_size = sizeof why;
    T_EQ_I64(pthread_create(&t, NULL, take_nobody, &f), 0);
    do /* the daemon's thread may not have run yet */
        err = mmx_open(&o, &m);
    while (err == -MMX_E_TIMEOUT);
    T_EQ_I64(err, -MMX_E_QUOTA);
    T_HAS(why, "quota: limits.connections");
    shutdown(f.listen, SHUT_RDWR);
    pthread_join(t, NULL);
}

TEST(daemon_silent)
{
    struct fake f;
    struct mmx_opt o;
    mmx *m = NULL;

    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, 20);
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_TIMEOUT);
}

/* A client that went on would wait for WELCOME for ever. */
TEST(a_hello_that_is_answered_otherwise_ends_the_connection)
{
    struct fake f;
    struct mmx_opt o;
    struct mmx_event ev;
    mmx *m;

    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, 0);
    T_EQ_I64(mmx_open(&o, &m), 0);
    f.conn = accept4(f.listen, NULL, NULL, SOCK_CLOEXEC);
    f.r = reader_of(f.in, 0);
    fake_answer(&f, fake_want(&f, LOCAL_HELLO).seq, OK, "");
    T_EQ_I64(mmx_step(m, &ev, 1), 0);
    T_EQ_U64(m->link, LINK_DOWN);
    mmx_close(&m);
}

/* WELCOME needs a file of cells that cannot shrink while it is read; the last
 * one here can. */
TEST(welcome_without_cells)
{
    int fds[] = {-1, memfd_create("cells", MFD_CLOEXEC)};
    struct fake f;
    struct mmx_opt o;
    mmx *m;
    char text[128];
    struct mmx_event ev;

    T_EQ_I64(posix_fallocate(fds[1], 0, CELLS * 8), 0);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fake_listen(&f, ROLE_LANGD);
        o = fake_opt(&f, 0);
        T_EQ_I64(mmx_open(&o, &m), 0);
        fake_welcome(&f, fds[i]);
        T_EQ_I64(mmx_step(m, &ev, 1), 0);
        T_EQ_I64(mmx_error_text(m, text, sizeof text), 0);
        T_HAS(text, "has no valid cells");
        mmx_close(&m);
    }
}

TEST_RIG(info_and_pool, ROLE_ENCODED)
{
    struct mmx_info i = {.size = sizeof i};
    struct mmx_pool again = {.size = sizeof again};

    T_EQ_I64(mmx_info(g->m, &i), 0);
    T_EQ_I64(i.up, 1);
    T_EQ_I64(i.role, MMX_ENCODED);
    T_EQ_STR(i.advertise, "tcp://127.0.0.1:1");
    T_EQ_U64(i.cells, CELLS);
    T_EQ_STR(g->pool.name, "p");
    T_EQ_U64(g->pool.fields_count, 2);
    T_EQ_STR(g->pool.fields[1].name, "b");
    T_EQ_U64(g->pool.fields[1].row_bytes, 4);
    T_EQ_I64((char *)g->pool.fields[1].data - (char *)g->pool.base,
        BLOCKS * BLOCK_ROWS * ROW);
    T_TRUE(g->pool.writable);
    fake_pool(&g->f, ++g->seq, "p", g->f.pool_fd);
    T_EQ_I64(mmx_pool(g->m, NULL, NULL, T_WAIT_MS, &again), 0);
    T_TRUE(again.base == g->pool.base);
    T_EQ_I64(again.id, g->pool.id);
}

TEST_RIG(pool_refused, ROLE_ENCODED)
{
    struct mmx_pool p = {.size = sizeof p};
    char text[128];
    void *map;
    int small = fake_memory(64, &map), open = memfd_create("q", MFD_CLOEXEC);

    fake_answer(&g->f, ++g->seq, ERR_INCOMPATIBLE_LAYOUT, "a:f32:2 against c");
    T_EQ_I64(
        mmx_pool(g->m, "q", "c", T_WAIT_MS, &p), -MMX_E_INCOMPATIBLE_LAYOUT);
    T_EQ_I64(mmx_error_text(g->m, text, sizeof text), 0);
    T_EQ_STR(text, "pool: incompatible-layout: a:f32:2 against c");
    /* A file that is or gets smaller than the pool would mean SIGBUS. */
    fake_pool(&g->f, ++g->seq, "q", small);
    T_EQ_I64(mmx_pool(g->m, "q", NULL, T_WAIT_MS, &p), -MMX_E_MALFORMED);
    T_EQ_I64(posix_fallocate(open, 0, POOL_BYTES), 0);
    fake_pool(&g->f, ++g->seq, "q", open);
    T_EQ_I64(mmx_pool(g->m, "q", NULL, T_WAIT_MS, &p), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_pool(g->m, "q", NULL, 10, &p), -MMX_E_TIMEOUT);
    /* An answer that comes too late changes nothing. */
    fake_pool(&g->f, ++g->seq, "q", g->f.pool_fd);
    rig_no_event(g->m);
}

static int next_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

TEST_RIG(an_answer_of_another_kind_is_ignored, ROLE_LANGD)
{
    struct local_msg welcome = {.type = LOCAL_WELCOME};
    struct mmx_pool p = {.size = sizeof p};
    int fd = next_fd();

    fake_pool(&g->f, ++g->seq, "q", g->f.pool_fd);
    fake_answer(&g->f, g->seq, ERR_QUOTA, "");
    T_EQ_I64(mmx_space(g->m, "ctx", 8, T_WAIT_MS), -MMX_E_QUOTA);
    T_EQ_I64(next_fd(), fd);
    welcome.seq = ++g->seq;
    fake_put(&g->f, &welcome, g->f.cells_fd);
    fake_pool(&g->f, g->seq, "q", g->f.pool_fd);
    T_EQ_I64(mmx_pool(g->m, "q", NULL, T_WAIT_MS, &p), 0);
    T_EQ_I64(next_fd(), fd);
}

/* If a call has read events from the socket, the wakeup fd makes the handle
 * readable, for the loop that steps. */
TEST_RIG(events_survive_a_blocking_call, ROLE_ENCODED)
{
    struct pollfd p = {.events = POLLIN};
    mmx_room a, b;

    p.fd = mmx_fd(g->m);
    a = rig_announce(g, 1, 5);
    b = rig_announce(g, 2, 5);
    T_EQ_I64(mmx_wait_room(g->m, a, MMX_GRANTED, 1), -MMX_E_TIMEOUT);
    T_EQ_I64(poll(&p, 1, 0), 0);
    rig_event(
        g, b, (struct local_event){.what = EVENT_GRANTED, .state = 1}, NULL, 0);
    rig_event(
        g, a, (struct local_event){.what = EVENT_GRANTED, .state = 1}, NULL, 0);
    T_EQ_I64(mmx_wait_room(g->m, a, MMX_GRANTED, T_WAIT_MS), 0);
    T_EQ_I64(poll(&p, 1, 0), 1);
    T_EQ_U64(rig_one_event(g->m).id, 2);
    T_EQ_U64(rig_one_event(g->m).id, 1);
    rig_no_event(g->m);
    T_EQ_I64(poll(&p, 1, 0), 0);
}

TEST_RIG(cork, ROLE_ENCODED)
{
    mmx_room r = rig_announce(g, 1, 50);

    g->f.packets = 0;
    T_EQ_I64(mmx_cork(g->m), 0);
    for (uint32_t i = 0; i < 20; i++)
        T_EQ_I64(mmx_commit(g->m, r, i, 1), 0);
    T_TRUE(fake_idle(&g->f));
    T_EQ_I64(mmx_uncork(g->m), 0);
    for (uint32_t i = 0; i < 20; i++)
        T_EQ_U64(fake_want(&g->f, LOCAL_COMMIT).commit.first, i);
    T_EQ_U64(g->f.packets, 1);
}

TEST_RIG(back_pressure, ROLE_ENCODED)
{
    uint32_t sent = 0;
    static const uint8_t aux[20000];
    int err;
    mmx_room r = rig_announce(g, 1, 5);

    do {
        err = mmx_commit_final(g->m, r, sent, 0, 5, aux, sizeof aux);
        sent += err == 0;
    } while (err == 0);
    T_EQ_I64(err, -MMX_E_BUSY);
    T_CHECK(sent > 10, "only %u messages were taken", sent);
    /* Messages that were taken are all sent, the refused one is not. */
    for (uint32_t i = 0; i < sent; i++) {
        T_EQ_U64(fake_want(&g->f, LOCAL_COMMIT).commit.first, i);
        rig_no_event(g->m);
    }
    T_TRUE(fake_idle(&g->f));
    T_EQ_I64(mmx_commit(g->m, r, 1, 1), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_COMMIT).commit.first, 1);
}

/* Calls of on_map, as text: +N mapped, -N unmapped, N the pool's id. */
static char told[64];

static void tell(void *ud, const struct mmx_pool *p, int mapped)
{
    size_t n = strlen(told);

    T_TRUE(ud == told);
    T_TRUE(p->base != NULL);
    snprintf(told + n, sizeof told - n, "%c%d", mapped ? '+' : '-', p->id);
}

static void end_of_daemon(struct rig *g)
{
    close(g->f.conn);
    close(g->f.listen);
    g->f.epoch++;
}

/* RULES 9.3 */
TEST(daemon_returns)
{
    struct rig g;
    struct mmx_event ev;
    struct mmx_view v;
    struct mmx_request q = {.size = sizeof q, .encoder = "enc"};
    struct mmx_pool old;
    struct fake before;
    uint32_t where[] = {3, 2};
    mmx_room ready, open, r;
    struct mmx_state state;
    int fd;

    rig_open(&g, ROLE_LANGD);
    T_EQ_I64(mmx_on_map(g.m, tell, told), 0);
    fd = mmx_fd(g.m);
    ready = rig_request(&g, 1, MMX_WHOLE);
    open = rig_request(&g, 2, MMX_WHOLE);
    rig_word(&g, ready, 4, 8);
    rig_word(&g, open, 3, 2);
    rig_event(&g, ready,
        (struct local_event){
            .what = EVENT_READY, .state = 4, .rows = 8, .total = 8},
        where, 1);
    T_EQ_U64(rig_one_event(g.m).id, 1);
    before = g.f;
    end_of_daemon(&g);
    /* First comes the end of each room, once, then DOWN. */
    ev = rig_one_event(g.m);
    T_EQ_U64(ev.what, MMX_FAILED);
    T_EQ_U64(ev.id, 2);
    T_EQ_I64(ev.reason, MMX_E_DAEMON_LOST);
    T_EQ_I64(ev.advice, MMX_ADVICE_RETRY);
    T_EQ_U64(rig_one_event(g.m).what, MMX_DOWN);
    T_EQ_I64(mmx_poll(g.m, &ready, 1, NULL), MMX_SUCCESS);
    T_EQ_I64(mmx_poll(g.m, &open, 1, &state), MMX_FAILED_STATE);
    T_EQ_U64(state.rows, 2);
    T_EQ_I64(mmx_request(g.m, &q, &r), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_commit(g.m, open, 0, 1), -MMX_E_DAEMON_LOST);

    fake_listen(&g.f, ROLE_LANGD);
    g.f.epoch = EPOCH + 1;
    while (
        poll(&(struct pollfd){.fd = g.f.listen, .events = POLLIN}, 1, 0) == 0)
        T_EQ_I64(mmx_wait(g.m, &ev, 1, 100), 0);
    fake_welcome(&g.f, g.f.cells_fd);
    ev = rig_one_event(g.m);
    T_EQ_U64(ev.what, MMX_UP);
    T_EQ_U64(ev.epoch, EPOCH + 1);
    T_EQ_I64(mmx_fd(g.m), fd);
    /* No room opens in the old pool; its READY rooms can still be read. */
    q.pool = g.pool.id;
    T_EQ_I64(mmx_request(g.m, &q, &r), -MMX_E_STALE);
    before.pool[3 * BLOCK_ROWS * ROW] = 99;
    T_EQ_I64(mmx_view(g.m, ready, "a", 0, MMX_ALL, &v), 0);
    T_EQ_U64(*(uint8_t *)v.data, 99);
    T_EQ_I64(mmx_poll(g.m, &ready, 1, NULL), MMX_SUCCESS);
    old = g.pool;
    g.seq = g.f.hello_seq;
    rig_pool(&g);
    T_EQ_STR(told, "+0-0+0");
    T_EQ_I64(g.pool.id, old.id);
    T_EQ_I64(mmx_view(g.m, ready, "a", 0, MMX_ALL, &v), -MMX_E_STALE);
    /* Releases of rooms that the new daemon never knew are not sent. */
    T_EQ_I64(mmx_release(g.m, ready, MMX_ALL, 0), 0);
    T_EQ_I64(mmx_release(g.m, open, MMX_ALL, 0), 0);
    T_TRUE(fake_idle(&g.f));
    r = rig_request(&g, 3, MMX_WHOLE);
    rig_word(&g, r, 2, 0);
    T_EQ_I64(mmx_poll(g.m, &r, 1, NULL), MMX_WAITING);
    rig_close(&g);
    T_EQ_STR(told, "+0-0+0-0");
}

TEST_RIG(daemon_returns_silently, ROLE_ENCODED)
{
    struct mmx_event ev[8];
    int n;

    (void)rig_announce(g, 1, 5);
    end_of_daemon(g);
    fake_listen(&g->f, ROLE_ENCODED);
    /* The new daemon listens at once; the order of events is the same. */
    n = mmx_wait(g->m, ev, 8, T_WAIT_MS);
    T_EQ_I64(n, 2);
    T_EQ_U64(ev[0].what, MMX_FAILED);
    T_EQ_U64(ev[1].what, MMX_DOWN);
    while (
        poll(&(struct pollfd){.fd = g->f.listen, .events = POLLIN}, 1, 0) == 0)
        T_EQ_I64(mmx_wait(g->m, ev, 8, 100), 0);
    fake_welcome(&g->f, g->f.cells_fd);
    T_EQ_U64(rig_one_event(g->m).what, MMX_UP);
}

struct call {
    mmx *m;
    struct mmx_pool pool;
    int err;
};

static void *call_pool(void *arg)
{
    struct call *c = arg;

    c->err = mmx_pool(c->m, "p", LAYOUT, T_WAIT_MS, &c->pool);
    return NULL;
}

/* Another thread takes the answer, the daemon's end and the next WELCOME before
 * the call has the lock again: the answer's memory is of the run before. */
TEST_RIG(an_answer_of_the_connection_before_is_stale, ROLE_LANGD)
{
    struct call c = {.m = g->m, .pool = {.size = sizeof c.pool}};
    pthread_t t;

    T_EQ_I64(pthread_create(&t, NULL, call_pool, &c), 0);
    (void)fake_want(&g->f, LOCAL_POOL);
    pthread_mutex_lock(&g->m->lock);
    fake_pool(&g->f, ++g->seq, "p", g->f.pool_fd);
    end_of_daemon(g);
    (void)client_receive(g->m);
    fake_listen(&g->f, ROLE_LANGD);
    client_connect(g->m);
    fake_welcome(&g->f, g->f.cells_fd);
    (void)client_receive(g->m);
    T_EQ_U64(g->m->link, LINK_UP);
    pthread_mutex_unlock(&g->m->lock);
    pthread_join(t, NULL);
    T_EQ_I64(c.err, -MMX_E_STALE);
    g->seq = g->f.hello_seq;
    rig_pool(g);
    g->f.pool[0] = 99;
    T_EQ_U64(*(uint8_t *)g->pool.base, 99);
}

/* a daemon that answers by itself */

static _Atomic uint32_t answered;

/* Answers every message, so that the client's BYE does not wait long. */
static void *answer_all(void *arg)
{
    struct fake *f = arg;
    struct local_msg m;

    for (; m = fake_get(f), m.type != LOCAL_BYE; answered++)
        fake_answer(f, m.seq, OK, "");
    answer_if_there(f, m.seq, OK, "");
    shutdown(f->conn, SHUT_RDWR);
    return NULL;
}

static bool all_answered(void *ud)
{
    return answered == *(uint32_t *)ud;
}

TEST(close_says_bye)
{
    struct rig g;
    pthread_t t;

    rig_open(&g, ROLE_ENCODED);
    T_EQ_I64(pthread_create(&t, NULL, answer_all, &g.f), 0);
    mmx_close(&g.m);
    T_EQ_I64(pthread_join(t, NULL), 0);
}

#define COMMITS 20000

struct load {
    mmx *m;
    mmx_room room;
    atomic_bool stop;
};

static void *commit_load(void *arg)
{
    struct load *l = arg;

    for (uint32_t i = 0; i < COMMITS;) {
        int err = mmx_commit(l->m, l->room, i, 1);

        T_CHECK(err == 0 || err == -MMX_E_BUSY, "commit gave %d", err);
        i += err == 0;
        if (err)
            sched_yield();
    }
    return NULL;
}

static void *look_load(void *arg)
{
    struct load *l = arg;
    struct mmx_event ev;

    while (!l->stop) {
        T_EQ_I64(mmx_poll(l->m, &l->room, 1, NULL), MMX_BOOTSTRAPPING);
        T_EQ_I64(mmx_wait(l->m, &ev, 1, 1), 0);
    }
    return NULL;
}

TEST(threads)
{
    struct rig g;
    struct load l = {0};
    pthread_t daemon, looker, t[3];
    uint32_t commits = COMMITS * ARRAY_LEN(t);

    rig_open(&g, ROLE_ENCODED);
    l.m = g.m;
    l.room = rig_announce(&g, 1, 5);
    fake_answer(&g.f, g.seq, OK, "");
    T_EQ_I64(pthread_create(&daemon, NULL, answer_all, &g.f), 0);
    T_EQ_I64(pthread_create(&looker, NULL, look_load, &l), 0);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        T_EQ_I64(pthread_create(&t[i], NULL, commit_load, &l), 0);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        T_EQ_I64(pthread_join(t[i], NULL), 0);
    T_WAIT(all_answered, &commits);
    l.stop = true;
    T_EQ_I64(pthread_join(looker, NULL), 0);
    mmx_close(&g.m);
    T_EQ_I64(pthread_join(daemon, NULL), 0);
}

TEST_RIG(child, ROLE_ENCODED)
{
    struct mmx_event ev;
    int status;
    mmx_room r = rig_announce(g, 1, 5);
    pid_t pid = fork();

    if (pid == 0) {
        T_EQ_I64(mmx_step(g->m, &ev, 1), -MMX_E_FORKED);
        T_EQ_I64(mmx_commit(g->m, r, 0, 1), -MMX_E_FORKED);
        T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), -MMX_E_FORKED);
        mmx_close(&g->m);
        T_TRUE(g->m == NULL);
        _exit(0);
    }
    T_EQ_I64(waitpid(pid, &status, 0), pid);
    T_EQ_I64(status, 0);
    /* The parent's connection is as it was. */
    T_TRUE(fake_idle(&g->f));
    T_EQ_I64(mmx_commit(g->m, r, 0, 1), 0);
    (void)fake_want(&g->f, LOCAL_COMMIT);
}

/* True if the handle has nothing to do; a dial may have been due. */
static bool is_quiet(void *ud)
{
    struct pollfd p = {.fd = mmx_fd(ud), .events = POLLIN};
    struct mmx_event ev;

    T_EQ_I64(mmx_step(ud, &ev, 1), 0);
    return poll(&p, 1, 0) == 0;
}

/* A child that lives on holds copies of the descriptors. The parent must still
 * see its daemon's end, once. */
TEST_RIG(daemon_ends_while_a_child_lives, ROLE_ENCODED)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        close(g->f.conn);
        close(g->f.listen);
        pause();
        _exit(0);
    }
    end_of_daemon(g);
    unlink(g->f.path);
    T_EQ_U64(rig_one_event(g->m).what, MMX_DOWN);
    T_WAIT(is_quiet, g->m);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

TEST_RIG(frames_that_make_no_sense, ROLE_ENCODED)
{
    uint8_t junk[64];
    uint64_t seed = 1;
    struct mmx_event ev;

    for (int i = 0; i < 200; i++) {
        t_rand_bytes(&seed, junk, sizeof junk);
        T_TRUE(send(g->f.conn, junk, 1 + t_rand_below(&seed, 64), 0) > 0);
        T_EQ_I64(mmx_step(g->m, &ev, 1), 0);
    }
    fake_answer(&g->f, 12345, ERR_MALFORMED, "answers nothing");
    rig_no_event(g->m);
    (void)rig_announce(g, 1, 5);
}

static void heard(int sig) {}

/* Interpreters and profilers send signals all the time. */
TEST_RIG(a_signal_ends_no_timed_call, ROLE_ENCODED)
{
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    struct sigaction a = {.sa_handler = heard};
    struct mmx_pool p = {.size = sizeof p};
    struct mmx_opt o;
    struct fake f;
    mmx *m = NULL;
    mmx_room r = rig_announce(g, 1, 5);

    T_EQ_I64(sigaction(SIGALRM, &a, NULL), 0);
    T_EQ_I64(setitimer(ITIMER_REAL, &often, NULL), 0);
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_GRANTED, 50), -MMX_E_TIMEOUT);
    T_EQ_I64(mmx_pool(g->m, "q", NULL, 50, &p), -MMX_E_TIMEOUT);
    fake_listen(&f, ROLE_LANGD);
    o = fake_opt(&f, 50);
    T_EQ_I64(mmx_open(&o, &m), -MMX_E_TIMEOUT);
    T_EQ_I64(setitimer(ITIMER_REAL, &never, NULL), 0);
}

TEST(why_there_is_no_socket_is_said)
{
    struct rlimit was, none = {3, 3};
    struct fake f;
    struct mmx_opt o;
    struct mmx_event ev;
    char text[200];
    mmx *m;

    fake_listen(&f, ROLE_LANGD);
    close(f.listen);
    o = fake_opt(&f, 0);
    T_EQ_I64(mmx_open(&o, &m), 0);
    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &was), 0);
    none.rlim_max = was.rlim_max;
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &none), 0);
    do {
        T_EQ_I64(mmx_wait(m, &ev, 1, 1), 0);
        T_EQ_I64(mmx_error_text(m, text, sizeof text), 0);
    } while (strstr(text, "Connection refused"));
    T_HAS(text, "Too many open files");
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &was), 0);
    mmx_close(&m);
}
