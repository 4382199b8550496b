/* client_lend_test.c - rows in an encoder's pool that the client library reads
 * in place: mapping, reading, and BYE. Against doubles of a langd and of an
 * encoded, which do nothing by themselves. */
#include "test/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LENDER 5
#define LENT   (16 * LENDER + 3) /* langd's number for the encoder's pool 3 */
#define TOKEN  0xfeed

struct pair {
    struct rig g;
    struct fake enc;
    atomic_bool stop;
    char told[64];
};

/* Appends a call of on_map to `told`: +N mapped, -N unmapped, N the pool's
 * id. */
static void tell(void *ud, const struct mmx_pool *p, int mapped)
{
    char *told = ((struct pair *)ud)->told;
    size_t n = strlen(told);

    snprintf(told + n, 64 - n, "%c%d", mapped ? '+' : '-', p->id);
}

static bool step(struct pair *p)
{
    struct pollfd fd = {.fd = mmx_fd(p->g.m), .events = POLLIN};

    rig_no_event(p->g.m);
    return poll(&fd, 1, 0) == 0;
}

/* True if the handle has nothing to do. */
static bool quiet(void *p)
{
    return step(p);
}

/* True if a message for langd has come. */
static bool langd_has(void *ud)
{
    struct pair *p = ud;

    (void)step(p);
    return !fake_idle(&p->g.f);
}

static bool encoder_has(void *ud)
{
    struct pair *p = ud;

    (void)step(p);
    return !fake_idle(&p->enc);
}

/* True if the handle dials the encoder. */
static bool dials(void *ud)
{
    struct pair *p = ud;
    struct pollfd fd = {.fd = p->enc.listen, .events = POLLIN};

    (void)step(p);
    return poll(&fd, 1, 0) > 0;
}

/* Returns the seq of the MAP on a new connection. parting: BYE follows. */
static uint32_t accept_map(struct pair *p, bool parting)
{
    struct local_msg m;

    T_WAIT(dials, p);
    p->enc.conn = accept4(p->enc.listen, NULL, NULL, SOCK_CLOEXEC);
    p->enc.r = reader_of(p->enc.in, 0);
    m = fake_want(&p->enc, LOCAL_MAP);
    T_EQ_U64(m.map.token, TOKEN);
    T_EQ_U64(m.map.epoch, EPOCH);
    T_EQ_U64(m.map.parting, parting);
    T_TRUE(span_eq(m.map.name, span_str("lang-0")));
    return m.seq;
}

static void say_lender(struct pair *p)
{
    struct local_msg m = {.type = LOCAL_LENDER,
        .lender = {.lender = LENDER,
            .token = TOKEN,
            .epoch = EPOCH,
            .name = span_str("lang-0"),
            .socket = span_str(p->enc.path)}};

    fake_put(&p->g.f, &m, -1);
}

/* Takes the MAPPED of these pools. */
static void want_mapped(struct pair *p, uint32_t pools)
{
    struct local_msg m;

    T_WAIT(langd_has, p);
    m = fake_want(&p->g.f, LOCAL_MAPPED);
    T_EQ_U64(m.seq, ++p->g.seq);
    T_EQ_U64(m.mapped.lender, LENDER);
    T_EQ_U64(m.mapped.pools, pools);
    fake_answer(&p->g.f, m.seq, OK, "");
}

/* Opens a handle that has mapped the encoder's pool. */
static void open_pair(struct pair *p)
{
    uint32_t seq;

    *p = (struct pair){0};
    rig_open(&p->g, ROLE_LANGD);
    T_EQ_I64(mmx_on_map(p->g.m, tell, p), 0);
    fake_listen(&p->enc, ROLE_ENCODED);
    for (uint32_t i = 0; i < POOL_BYTES; i++)
        p->enc.pool[i] = (uint8_t)(3 + 7 * i);
    say_lender(p);
    seq = accept_map(p, false);
    T_WAIT(quiet, p);
    T_TRUE(fake_idle(&p->g.f)); /* nothing is mapped yet */
    fake_answer(&p->enc, seq, OK, "");
    fake_pool(&p->enc, 0, "p", p->enc.pool_fd);
    want_mapped(p, 1 << 3);
    T_WAIT(quiet, p);
    T_EQ_STR(p->told, "+0+1");
}

static void ready(struct pair *p, mmx_room r, uint16_t pool, uint32_t block)
{
    uint32_t runs[] = {block, 1};

    rig_event(&p->g, r,
        (struct local_event){.what = EVENT_READY,
            .state = 4,
            .pool = pool,
            .rows = BLOCK_ROWS,
            .total = BLOCK_ROWS},
        runs, 1);
}

/* A room whose rows are those of a block of the encoder's pool. */
static mmx_room lent(struct pair *p, uint64_t id, uint32_t block)
{
    mmx_room r = rig_request(&p->g, id, MMX_WHOLE);

    ready(p, r, LENT, block);
    T_EQ_U64(rig_one_event(p->g.m).what, MMX_READY);
    return r;
}

static void check_rows(struct pair *p, mmx_room r, uint32_t block)
{
    uint8_t rows[BLOCK_ROWS * ROW];
    struct mmx_view v;

    T_EQ_I64(mmx_view(p->g.m, r, "a", 0, MMX_ALL, &v), 0);
    T_EQ_U64(v.rows, BLOCK_ROWS);
    T_EQ_MEM(v.data, p->enc.pool + block * sizeof rows, sizeof rows);
    T_EQ_I64(mmx_gather(p->g.m, r, "a", 0, BLOCK_ROWS, rows, 0), 0);
    T_EQ_MEM(rows, p->enc.pool + block * sizeof rows, sizeof rows);
}

/* Ends langd: takes the event of its death; its socket accepts no
 * connection. */
static void end_langd(struct pair *p)
{
    close(p->g.f.conn);
    close(p->g.f.listen);
    unlink(p->g.f.path);
    T_EQ_U64(rig_one_event(p->g.m).what, MMX_DOWN);
}

static void end_encoder(struct pair *p, bool dead)
{
    if (dead)
        close(p->enc.listen);
    shutdown(p->enc.conn, SHUT_RDWR);
    close(p->enc.conn);
}

/* Takes BYE, answers it, and waits for the end of maps and connection. */
static void want_bye(struct pair *p)
{
    struct local_msg m;
    uint8_t byte;

    T_WAIT(encoder_has, p);
    m = fake_want(&p->enc, LOCAL_BYE);
    fake_answer(&p->enc, m.seq, OK, "");
    while (!encoder_has(p))
        ;
    T_EQ_I64(recv(p->enc.conn, &byte, 1, 0), 0);
    while (!strstr(p->told, "-1"))
        (void)step(p);
}

static bool unmapped(void *ud)
{
    struct pair *p = ud;

    (void)step(p);
    return strstr(p->told, "-1") != NULL;
}

TEST(rows_of_an_encoder)
{
    struct mmx_look look = {.size = sizeof look};
    struct mmx_request q = {.size = sizeof q, .id = 9, .encoder = "enc"};
    struct pair p;
    mmx_room r, own;

    open_pair(&p);
    r = lent(&p, 1, 5);
    check_rows(&p, r, 5);
    T_EQ_I64(mmx_look(p.g.m, r, &look), 0);
    T_EQ_I64(look.pool, 1);
    q.pool = look.pool;
    T_EQ_I64(mmx_request(p.g.m, &q, &own), -MMX_E_MALFORMED);
    own = rig_request(&p.g, 2, MMX_WHOLE);
    ready(&p, own, 3, 5);
    T_EQ_U64(rig_one_event(p.g.m).what, MMX_READY);
    T_EQ_I64(mmx_look(p.g.m, own, &look), 0);
    T_EQ_I64(look.pool, p.g.pool.id);
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    (void)fake_want(&p.g.f, LOCAL_RELEASE);
    T_WAIT(quiet, &p);
    T_TRUE(fake_idle(&p.enc));
    rig_close(&p.g);
    T_EQ_STR(p.told, "+0+1-0-1");
}

/* Although the encoder's descriptor may be written. */
TEST(the_map_cannot_be_written)
{
    struct mmx_view v;
    struct pair p;

    open_pair(&p);
    T_EQ_I64(mmx_view(p.g.m, lent(&p, 1, 5), "a", 0, MMX_ALL, &v), 0);
    T_EQ_I64(pread(p.enc.pool_fd, v.data, 1, 0), -1);
    T_EQ_I64(errno, EFAULT);
    rig_close(&p.g);
}

/* A langd that names runs or pools that do not exist: no rows are shown. */
TEST(runs_and_pools_that_are_not_there)
{
    static const struct {
        uint16_t pool;
        uint32_t block;
    } bad[] = {{LENT, BLOCKS}, {LENT, UINT32_MAX}, {LENT + 1, 0},
        {LENT + 16, 0}, {LENDER, 0}};
    struct mmx_view v;
    struct pair p;

    open_pair(&p);
    for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
        mmx_room r = rig_request(&p.g, i + 1, MMX_WHOLE);

        ready(&p, r, bad[i].pool, bad[i].block);
        T_EQ_U64(rig_one_event(p.g.m).what, MMX_READY);
        T_EQ_I64(mmx_view(p.g.m, r, "a", 0, 1, &v), -MMX_E_NOT_READY);
    }
    rig_close(&p.g);
}

TEST(a_pool_that_comes_later)
{
    struct pair p;

    open_pair(&p);
    p.enc.number = 7;
    fake_pool(&p.enc, 0, "q", p.enc.pool_fd);
    want_mapped(&p, 1 << 3 | 1 << 7);
    rig_close(&p.g);
    T_EQ_STR(p.told, "+0+1+2-0-1-2");
}

/* Without a seal the owner could take pages from under the reader. */
TEST(pools_that_are_not_mapped)
{
    struct pair p;
    uint8_t *mem;
    int without_pages = memfd_create("q", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fds[] = {memfd_create("q", MFD_CLOEXEC), without_pages,
        fake_memory(POOL_BYTES / 2, &mem),
        open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};

    open_pair(&p);
    T_EQ_I64(posix_fallocate(fds[0], 0, POOL_BYTES), 0);
    T_EQ_I64(ftruncate(without_pages, POOL_BYTES), 0);
    T_EQ_I64(fcntl(without_pages, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    p.enc.number = 4;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fake_pool(&p.enc, 0, "q", fds[i]);
    p.enc.number = 16;
    fake_pool(&p.enc, 0, "q", p.enc.pool_fd);
    T_WAIT(quiet, &p);
    T_TRUE(fake_idle(&p.g.f));
    T_EQ_STR(p.told, "+0+1");
    rig_close(&p.g);
}

static void say_large(struct pair *p, int fd)
{
    uint8_t blob[24];
    struct writer w = writer_of(blob, sizeof blob);
    struct local_msg m = {.type = LOCAL_POOL_INFO};

    put_u64(&w, 0);
    put_u32(&w, ROW);
    put_u64(&w, 64 << 20);
    put_u32(&w, 4);
    m.pool_info = (struct local_pool_info){.pool = 8,
        .block_rows = BLOCK_ROWS,
        .blocks = 1,
        .bytes = 100 << 20,
        .name = span_str("large"),
        .memory = span_str("host"),
        .layout = span_str(LAYOUT),
        .fields = span_of(blob, w.len)};
    fake_put(&p->enc, &m, fd);
}

/* One step maps 7 of 16 MiB; MAPPED comes after the last step. */
TEST(a_large_pool_takes_several_steps)
{
    struct pair p;
    uint8_t *mem;
    uint32_t steps = 0;
    int fd = fake_memory(100 << 20, &mem);

    open_pair(&p);
    say_large(&p, fd);
    while (!langd_has(&p))
        steps++;
    T_CHECK(steps == 7, "mapped in %u steps", steps);
    want_mapped(&p, 1 << 3 | 1 << 8);
    T_EQ_STR(p.told, "+0+1+2");
    end_langd(&p);
    want_bye(&p);
    T_WAIT(quiet, &p);
    T_EQ_STR(p.told, "+0+1+2-1-2");
    mmx_close(&p.g.m);
    T_EQ_STR(p.told, "+0+1+2-1-2-0");
}

static void *steps(void *arg)
{
    struct pair *p = arg;
    struct mmx_event ev;

    while (!p->stop)
        T_TRUE(mmx_wait(p->g.m, &ev, 1, 1) >= 0);
    return NULL;
}

/* Each slice of a map, and each callback, is done by one thread. */
TEST(several_threads_step)
{
    pthread_t t[3];
    struct pair p;
    uint8_t *mem;
    int fd = fake_memory(100 << 20, &mem);

    open_pair(&p);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        T_EQ_I64(pthread_create(&t[i], NULL, steps, &p), 0);
    say_large(&p, fd);
    T_EQ_U64(fake_want(&p.g.f, LOCAL_MAPPED).mapped.pools, 1 << 3 | 1 << 8);
    close(p.g.f.conn);
    close(p.g.f.listen);
    fake_answer(&p.enc, fake_want(&p.enc, LOCAL_BYE).seq, OK, "");
    T_EQ_I64(recv(p.enc.conn, p.enc.in, 1, 0), 0);
    p.stop = true;
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        T_EQ_I64(pthread_join(t[i], NULL), 0);
    T_EQ_U64(strncmp(p.told, "+0+1+2", 6), 0);
    mmx_close(&p.g.m);
    T_EQ_U64(strlen(p.told), 12);
}

/* RULES 6.7: BYE frees the blocks that a dead langd was lent. */
TEST(langd_ends_while_a_room_is_read)
{
    struct pair p;
    mmx_room a, b;

    open_pair(&p);
    a = lent(&p, 1, 5);
    b = lent(&p, 2, 6);
    end_langd(&p);
    T_EQ_I64(mmx_release(p.g.m, a, MMX_ALL, 0), 0);
    for (int i = 0; i < 20; i++) {
        (void)step(&p);
        T_TRUE(fake_idle(&p.enc));
    }
    check_rows(&p, b, 6);
    T_EQ_I64(mmx_release(p.g.m, b, MMX_ALL, 0), 0);
    want_bye(&p);
    T_EQ_STR(p.told, "+0+1-1");
    mmx_close(&p.g.m);
    T_EQ_STR(p.told, "+0+1-1-0");
}

/* The engine has not received the room's event yet. */
TEST(langd_ends_before_its_event_is_handed_out)
{
    struct mmx_event ev;
    struct pair p;
    mmx_room r;

    open_pair(&p);
    r = rig_request(&p.g, 1, MMX_WHOLE);
    ready(&p, r, LENT, 5);
    T_EQ_I64(mmx_wait_room(p.g.m, r, MMX_READY, T_WAIT_MS), 0);
    close(p.g.f.conn);
    close(p.g.f.listen);
    for (int i = 0; i < 20; i++)
        T_EQ_I64(mmx_wait_room(p.g.m, r, MMX_LANDED, 1), -MMX_E_TIMEOUT);
    T_TRUE(fake_idle(&p.enc));
    T_EQ_I64(mmx_step(p.g.m, &ev, 1), 1);
    T_EQ_U64(ev.what, MMX_READY);
    check_rows(&p, r, 5);
    T_EQ_U64(rig_one_event(p.g.m).what, MMX_DOWN);
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    want_bye(&p);
    mmx_close(&p.g.m);
}

/* Events that were not received go with the socket: BYE does not wait for
 * them. */
TEST(langd_returns)
{
    struct mmx_event ev;
    struct pair p;
    mmx_room r;

    open_pair(&p);
    r = lent(&p, 1, 5);
    end_langd(&p);
    fake_listen(&p.g.f, ROLE_LANGD);
    p.g.f.epoch = EPOCH + 1;
    while (
        poll(&(struct pollfd){.fd = p.g.f.listen, .events = POLLIN}, 1, 0) == 0)
        T_EQ_I64(mmx_wait(p.g.m, &ev, 1, 100), 0);
    fake_welcome(&p.g.f, p.g.f.cells_fd);
    T_EQ_U64(rig_one_event(p.g.m).what, MMX_UP);
    p.g.seq = p.g.f.hello_seq;
    check_rows(&p, r, 5);
    T_TRUE(fake_idle(&p.enc));
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    want_bye(&p);
    T_TRUE(fake_idle(&p.g.f));
    rig_close(&p.g);
}

TEST(encoder_dies_while_a_room_is_read)
{
    struct pair p;
    mmx_room r;

    open_pair(&p);
    r = lent(&p, 1, 5);
    end_encoder(&p, true);
    want_mapped(&p, 0);
    T_WAIT(quiet, &p);
    check_rows(&p, r, 5);
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    (void)fake_want(&p.g.f, LOCAL_RELEASE);
    T_WAIT(unmapped, &p);
    T_WAIT(quiet, &p);
    rig_close(&p.g);
    T_EQ_STR(p.told, "+0+1-1-0");
}

/* langd may have published the room before it heard that the map is gone. */
TEST(encoder_dies_before_a_room_is_ready)
{
    struct pair p;
    mmx_room r;

    open_pair(&p);
    r = rig_request(&p.g, 1, MMX_WHOLE);
    end_encoder(&p, true);
    want_mapped(&p, 0);
    (void)rig_request(&p.g, 2, MMX_WHOLE); /* never lent */
    for (int i = 0; i < 20; i++)
        (void)step(&p);
    ready(&p, r, LENT, 5);
    T_EQ_U64(rig_one_event(p.g.m).what, MMX_READY);
    check_rows(&p, r, 5);
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    T_WAIT(unmapped, &p);
    rig_close(&p.g);
}

/* The encoder lives: it must get BYE, though the room's langd is dead by
 * then. */
TEST(connection_ends_before_bye)
{
    struct pair p;
    mmx_room r;

    open_pair(&p);
    r = lent(&p, 1, 5);
    end_encoder(&p, false);
    want_mapped(&p, 0);
    end_langd(&p);
    for (int i = 0; i < 20; i++)
        T_FALSE(dials(&p));
    T_EQ_I64(mmx_release(p.g.m, r, MMX_ALL, 0), 0);
    (void)accept_map(&p, true);
    end_encoder(&p, false); /* it dials once more */
    (void)accept_map(&p, true);
    want_bye(&p);
    mmx_close(&p.g.m);
}

/* A refused map's place in the table is free again. */
TEST(map_refused)
{
    struct pair p = {0};

    rig_open(&p.g, ROLE_LANGD);
    fake_listen(&p.enc, ROLE_ENCODED);
    for (int i = 0; i < 40; i++) {
        say_lender(&p);
        fake_answer(&p.enc, accept_map(&p, false), ERR_NOT_OWNER, "who?");
        want_mapped(&p, 0);
        end_encoder(&p, false);
        T_WAIT(quiet, &p);
        T_FALSE(dials(&p));
    }
    T_TRUE(fake_idle(&p.g.f));
    rig_close(&p.g);
}

static void *answer_bye(void *arg)
{
    struct pair *p = arg;
    struct local_msg m = fake_want(&p->enc, LOCAL_BYE);

    fake_answer(&p->enc, m.seq, OK, "");
    return NULL;
}

TEST(close_says_bye_to_lenders)
{
    struct pair p;
    pthread_t t;

    open_pair(&p);
    (void)lent(&p, 1, 5);
    T_EQ_I64(pthread_create(&t, NULL, answer_bye, &p), 0);
    rig_close(&p.g);
    T_EQ_I64(pthread_join(t, NULL), 0);
    T_EQ_STR(p.told, "+0+1-0-1");
}

TEST(a_child_says_no_bye)
{
    struct pair p;
    int status;
    pid_t pid;

    open_pair(&p);
    pid = fork();
    if (pid == 0) {
        mmx_close(&p.g.m);
        _exit(0);
    }
    T_EQ_I64(waitpid(pid, &status, 0), pid);
    T_EQ_I64(status, 0);
    T_TRUE(fake_idle(&p.enc));
    check_rows(&p, lent(&p, 1, 5), 5);
    rig_close(&p.g);
}
