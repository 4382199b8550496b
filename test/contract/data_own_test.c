/* data_own_test.c - promises that only one carrier makes. UCX: its environment,
 * transports, stuck workers and killed peers; TCP: killed peers. */
#include "base/guard.h"
#include "test/data_mem.h"
#include "test/side.h"
#include "test/t.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* The configuration decides, not the environment. */
/* RULES 3.3 */
TEST(ucx_environment_does_not_override)
{
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT];

    setenv("UCX_TLS", "self", 1);
    setenv("UCX_NET_DEVICES", "none0", 1);
    setenv("UCX_TCP_TX_SEG_SIZE", "4k", 1);
    setenv("UCX_TCP_RX_SEG_SIZE", "1k", 1);
    side_pair(&a, &b, &data_ucx);
    side_send(&a, 0, 0, p, 255 * KIB);
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.made_count, 1);
    T_EQ_STR(side_goes(&a, 0), "ucx:tcp/lo");
}

TEST(ucx_says_what_cannot_be_had)
{
    struct data_conf c = side_conf();
    struct data_calls calls = {.ud = NULL};
    struct data *d = NULL;

    c.devices = "nosuchdevice0";
    T_ERR(data_ucx.open(&d, &c, &calls), ERR_INTERNAL);
    T_TRUE(d == NULL);
}

TEST(ucx_over_shared_memory)
{
    struct data_conf c = side_conf();
    SIDE a, b;
    static uint8_t p[SIDE_SEGMENT];

    c.tls = "posix,tcp";
    side_open_with(&a, &data_ucx, &c);
    side_open_with(&b, &data_ucx, &c);
    T_OK(data_ucx.connect(a.d, 0, data_ucx.address(b.d), NO_KEY));
    side_send(&a, 0, 0, p, 255 * KIB);
    side_until(&a, &b, &b.arrived_count, 1);
    side_until(&a, &b, &a.made_count, 1);
    T_HAS(side_goes(&a, 0), "posix");
}

/* Returns the segments of System V that this process has made. */
static uint32_t segments(void)
{
    FILE *f = fopen("/proc/sysvipc/shm", "re");
    uint32_t mine = 0;
    char line[256];
    int maker;

    T_TRUE(f != NULL);
    while (fgets(line, sizeof(line), f))
        mine += sscanf(line, "%*d %*d %*d %*d %d", &maker) == 1 &&
                maker == getpid();
    fclose(f);
    return mine;
}

TEST(ucx_makes_no_segments_that_a_group_could_write)
{
    static const char *const tls[] = {
        "sm", "shm", "mm", "all", "sysv,posix", "tcp,sm", "^tcp"};

    for (size_t i = 0; i < ARRAY_LEN(tls); i++) {
        struct data_conf c = side_conf();
        SIDE a;

        c.tls = tls[i];
        side_open_with(&a, &data_ucx, &c);
        T_CHECK(segments() == 0, "%s: %u segments", tls[i], segments());
    }
}

/* Engines may remove pages of a pool at any time until UCX copies the rows,
 * perhaps long after post(). */
TEST(ucx_sends_zeros_for_pages_that_go_after_post)
{
    int fd = memfd_create("pool", MFD_CLOEXEC);
    struct side a, b;
    uint8_t *p;

    guard_install();
    T_TRUE(ftruncate(fd, 64 * KIB) == 0);
    p = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    T_TRUE(p != MAP_FAILED);
    side_pair(&a, &b, &data_ucx);
    b.any_bytes = true;
    /* The endpoint is not connected yet, so both messages wait. */
    T_OK(side_post(&a, 0, 1, p, 40 * KIB));
    T_OK(side_post(&a, 0, 2, p + 60 * KIB, 100));
    T_TRUE(ftruncate(fd, 0) == 0);
    side_until(&a, &b, &b.arrived_count, 2);
    side_until(&a, &b, &a.done_count, 2);
    T_EQ_U64(b.broken_count, 0);
    side_close_both(&a, &b);
    munmap(p, 64 * KIB);
    close(fd);
}

/* Makes b wait for a fetch whose sender does nothing. */
static void stick(struct side *a, struct side *b, uint8_t *p)
{
    side_pair(a, b, &data_ucx);
    T_OK(data_ucx.connect(b->d, 4, data_ucx.address(a->d), NO_KEY));
    side_fill(p, 2 * MIB, 0);
    T_OK(side_post(a, 0, 0, p, 2 * MIB));
    side_until(a, b, &b->arrived_count, 1);
    side_settle(b, NULL);
    T_EQ_U64(b->fetched_count, 0);
}

/* The worker that replaced the stuck one receives a message. */
static void worker_works(struct side *a, struct side *b, uint8_t *p)
{
    side_until(a, NULL, &a->broken_count, 1);
    side_until(a, NULL, &a->done_count, 1);
    data_ucx.disconnect(a->d, 0);
    T_OK(data_ucx.connect(a->d, 0, data_ucx.address(b->d), NO_KEY));
    side_fill(p, 1000, 2);
    T_OK(side_post(a, 0, 2, p, 1000));
    side_until(a, b, &b->arrived_count, 2);
}

/* A fetch whose sender does nothing gets the worker replaced; the new worker
 * works. */
/* RULES 6.5 */
TEST(ucx_replaces_a_stuck_worker)
{
    struct side a, b;
    const uint64_t stall = SIDE_STALL_MS * NS_PER_MS;
    uint8_t *p = malloc(2 * MIB), old[1024];
    struct span address;
    int fd;

    stick(&a, &b, p);
    address = data_ucx.address(b.d);
    memcpy(old, address.p, address.len);
    fd = data_ucx.fd(b.d);
    data_ucx.tick(b.d, stall);
    T_FALSE(data_ucx.tick(b.d, 4 * stall));
    T_TRUE(data_ucx.tick(b.d, 6 * stall));
    T_ERR(data_ucx.arm(b.d), ERR_BUSY);
    side_until(&b, NULL, &b.fetched_count, 1);
    T_EQ_U64(b.failed_count, 1);
    T_EQ_U64(b.broken[4], 1);
    T_EQ_I64(data_ucx.fd(b.d), fd);
    T_FALSE(span_eq(data_ucx.address(b.d), span_of(old, address.len)));
    worker_works(&a, &b, p);
    side_close_both(&a, &b);
    free(p);
}

/* A new worker that cannot get the old one's descriptor fails to open; tick()
 * tries again once a second. */
TEST(ucx_opens_a_worker_later)
{
    const uint64_t stall = SIDE_STALL_MS * NS_PER_MS;
    struct rlimit limit, none;
    uint8_t *p = malloc(2 * MIB);
    struct side a, b;
    uint64_t now_ns = 8 * stall + NS_PER_S;
    int low[32];

    for (size_t i = 0; i < ARRAY_LEN(low); i++)
        T_TRUE((low[i] = dup(0)) >= 0);
    stick(&a, &b, p);
    for (size_t i = 0; i < ARRAY_LEN(low); i++)
        close(low[i]); /* enough for a worker, but not for that descriptor */
    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){(rlim_t)data_ucx.fd(b.d), limit.rlim_max};
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &none), 0);
    data_ucx.tick(b.d, stall);
    T_FALSE(data_ucx.tick(b.d, 8 * stall));
    T_OK((side_until(&b, NULL, &b.fetched_count, 1), data_ucx.arm(b.d)));
    T_FALSE(data_ucx.tick(b.d, now_ns));
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &limit), 0);
    T_FALSE(data_ucx.tick(b.d, now_ns + NS_PER_S / 2));
    T_TRUE(data_ucx.tick(b.d, now_ns + NS_PER_S));
    worker_works(&a, &b, p);
    side_close_both(&a, &b);
    free(p);
}

/* A worker that makes no progress answers nothing; with progress it answers. */
/* RULES 9.6 */
TEST(ucx_that_gets_no_answer_says_so)
{
    struct data_conf c = side_conf();
    uint64_t limit = t_end_ns(T_WAIT_MS);
    const char *text = "";
    SIDE a, b;

    c.stall_ms = 200;
    side_open_with(&a, &data_ucx, &c);
    side_open(&b, &data_ucx);
    T_OK(data_ucx.connect(a.d, 0, data_ucx.address(b.d), NO_KEY));
    while (a.broken_count == 0 && t_now_ns() < limit) {
        side_turn(&a, NULL);
        data_ucx.tick(a.d, t_now_ns());
    }
    T_EQ_U64(a.broken_count, 1);
    T_EQ_U64(a.made_count, 0);
    T_EQ_U64(data_ucx.state(a.d, 0, &text), TROUBLE_DATA_TIMEOUT);
    T_EQ_STR(text, "its UCX address by tcp on lo: no answer");
    data_ucx.disconnect(a.d, 0);
    T_OK(data_ucx.connect(a.d, 0, data_ucx.address(b.d), NO_KEY));
    side_until(&a, &b, &a.made_count, 1);
    T_EQ_U64(data_ucx.state(a.d, 0, &text), TROUBLE_NONE);
}

/* a peer that is killed */

NORETURN static void victim(const struct data_ops *ops, int out)
{
    struct side b;
    struct span address;

    side_open(&b, ops);
    address = ops->address(b.d);
    T_EQ_I64(write(out, address.p, address.len), address.len);
    for (;;)
        ops->progress(b.d);
}

/* The carrier itself notices it: the test calls no tick(), and keepalives are
 * too slow. */
static void peer_killed(const struct data_ops *ops)
{
    struct data_conf c = side_conf();
    struct side a;
    uint8_t address[1024], *p = malloc(SIDE_SEGMENT);
    uint32_t posted;
    uint64_t killed;
    int pipes[2];
    ssize_t n;
    pid_t child;

    T_EQ_I64(pipe(pipes), 0);
    child = fork(); /* before UCX is initialised here */
    T_TRUE(child >= 0);
    if (child == 0)
        victim(ops, pipes[1]);
    n = read(pipes[0], address, sizeof(address));
    T_TRUE(n > 0);
    c.keepalive_ms = 60000;
    side_open_with(&a, ops, &c);
    T_OK(ops->connect(a.d, 0, span_of(address, (size_t)n), NO_KEY));
    side_send(&a, 0, 300, p, 1000);
    side_until(&a, NULL, &a.done_count, 1);
    side_fill(p, 200 * KIB, 0);
    T_EQ_I64(kill(child, SIGSTOP), 0);
    /* the child has stopped */
    T_EQ_I64(waitpid(child, NULL, WUNTRACED), child);
    a.done_count = 0;
    posted = side_post_many(&a, 0, p, 200 * KIB);
    side_settle(&a, NULL);
    T_TRUE(a.done_count < posted);
    T_EQ_I64(kill(child, SIGKILL), 0);
    killed = t_now_ns();
    side_until(&a, NULL, &a.broken_count, 1);
    side_until(&a, NULL, &a.done_count, posted);
    T_TRUE(t_now_ns() - killed < 20 * NS_PER_S);
    side_settle(&a, NULL);
    T_EQ_U64(a.broken_count, 1);
    T_EQ_I64(waitpid(child, NULL, 0), child);
    side_close(&a);
    free(p);
}

TEST_IS(ucx_killed_peer_is_broken_without_a_keepalive, peer_killed(&data_ucx));
TEST_IS(tcp_killed_peer_is_broken_without_a_keepalive, peer_killed(&data_tcp));
