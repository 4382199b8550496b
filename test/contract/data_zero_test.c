/* data_zero_test.c - rows that UCX moves without a copy, over shared memory:
 * CMA reads the sender's memory where it lies.
 *
 * UCX reads some of its variables when it is loaded, so this program sets them
 * and runs itself again. UCX uses CMA for endpoints with error handling only if
 * a variable says so, since a sender that gives up cannot stop a reader. The
 * daemons do not set that variable. */
#include "io/data/ucx.h"
#include "test/side.h"
#include "test/t.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ROWS (200 * KIB)

/* The hooks of UCX and of the thread sanitizer together end the process. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HOOKS false
#else
#define HOOKS true
#endif

static __attribute__((constructor)) void again(
    int argc, char **argv, char **environment)
{
    if (!HOOKS || getenv("UCX_CMA_MEMORY_INVALIDATE"))
        return;
    setenv("UCX_CMA_MEMORY_INVALIDATE", "y", 1);
    setenv("UCX_MEM_EVENTS", "y", 1);
    execv("/proc/self/exe", argv);
    abort();
}

static struct data_conf shared_memory(void)
{
    struct data_conf c = side_conf();

    if (!HOOKS)
        t_skip("UCX has no registration cache under this sanitizer");
    c.tls = "posix,cma";
    c.devices = "all";
    return c;
}

/* Opens a pair that has sent a first message, so that the transports are known;
 * *p: memory for messages. */
static void pair(struct side *a, struct side *b, uint8_t **p)
{
    struct data_conf c = shared_memory();

    side_open_with(a, &data_ucx, &c);
    side_open_with(b, &data_ucx, &c);
    b->fetch_pieces = 1;
    *p = malloc(16 * MIB);
    data_ucx.memory(a->d, *p, 16 * MIB, false);
    T_OK(data_ucx.connect(a->d, 0, data_ucx.address(b->d), NO_KEY));
    side_fill(*p, KIB, 0);
    T_OK(side_post(a, 0, 0, *p, KIB));
    side_until(a, b, &b->arrived_count, 1);
    side_until(a, b, &a->done_count, 1);
    side_until(a, b, &a->made_count, 1);
    T_EQ_U64(b->fetched_count, 0);
}

static void end(struct side *a, struct side *b, uint8_t *p)
{
    T_EQ_U64(a->failed_count + b->failed_count, 0);
    T_EQ_U64(a->broken_count + b->broken_count, 0);
    side_close(a);
    side_close(b);
    free(p);
}

/* The receiver fetches a message that fits a segment; over TCP it would be
 * eager. */
TEST(rows_in_one_place_are_fetched)
{
    struct side a, b;
    uint8_t *p;

    pair(&a, &b, &p);
    for (uint32_t i = 1; i <= 6; i++) {
        side_fill(p + i * MIB, ROWS, i);
        T_OK(side_post(&a, 0, i, p + i * MIB, ROWS));
    }
    side_until(&a, &b, &b.fetched_count, 6);
    side_until(&a, &b, &a.done_count, 7);
    T_HAS(side_goes(&a, 0), "cma/");
    end(&a, &b, p);
}

/* Several pieces, or few bytes, are copied. */
TEST(what_gains_nothing_is_copied)
{
    struct side a, b;
    struct iovec iov[2];
    uint8_t *p;

    pair(&a, &b, &p);
    side_fill(p, ROWS, 1);
    iov[0] = (struct iovec){p, ROWS / 2};
    iov[1] = (struct iovec){p + ROWS / 2, ROWS / 2};
    T_OK(side_post_iov(&a, 0, 1, iov, 2, 48));
    side_until(&a, &b, &a.done_count, 2);
    side_fill(p, 4 * KIB, 2);
    T_OK(side_post(&a, 0, 2, p, 4 * KIB));
    side_until(&a, &b, &b.arrived_count, 3);
    side_until(&a, &b, &a.done_count, 3);
    T_EQ_U64(b.fetched_count, 0);
    end(&a, &b, p);
}

/* A receiver without progress gets few rendezvous; the rest is copied. */
TEST(fetches_of_one_sender_are_bounded)
{
    struct side a, b;
    uint8_t *p;
    uint32_t n = 14;

    pair(&a, &b, &p);
    for (uint32_t i = 1; i <= n; i++) {
        side_fill(p + i * MIB, ROWS, i);
        T_OK(side_post(&a, 0, i, p + i * MIB, ROWS));
    }
    side_until(&a, &b, &a.done_count, n + 1);
    side_until(&a, &b, &b.arrived_count, n + 1);
    side_until(&a, &b, &b.fetched_count, 8);
    side_settle(&a, &b);
    T_EQ_U64(b.fetched_count, 8);
    end(&a, &b, p);
}

/* Memory that another worker of the process has registered is used at once, and
 * stays registered when that one closes. */
TEST(workers_share_what_is_registered)
{
    struct side a, b, c;
    struct data_conf conf = shared_memory();
    uint8_t *p;

    pair(&a, &b, &p);
    side_open_with(&c, &data_ucx, &conf);
    data_ucx.memory(c.d, p, 16 * MIB, false);
    data_ucx.memory(c.d, p, 16 * MIB, false);
    side_close(&a);
    T_OK(data_ucx.connect(c.d, 0, data_ucx.address(b.d), NO_KEY));
    side_until(&c, &b, &c.made_count, 1);
    for (uint32_t i = 1; i <= 3; i++) {
        side_fill(p + i * MIB, ROWS, i);
        T_OK(side_post(&c, 0, i, p + i * MIB, ROWS));
        side_until(&c, &b, &c.done_count, i);
        side_until(&c, &b, &b.arrived_count, 1 + i);
    }
    side_until(&c, &b, &b.fetched_count, 3);
    end(&c, &b, p);
}

static ucs_status_t unheard(void *arg, const void *header, size_t header_len,
    void *data, size_t len, const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_len, (void)data, (void)len;
    return UCS_OK;
}

/* True if an operation on these bytes names memory that is registered. */
static bool named(const struct ucx *u, const uint8_t *p, uint64_t bytes)
{
    ucp_request_param_t param = {.op_attr_mask = 0};

    ucx_memory_param(u, p, bytes, &param);
    return param.op_attr_mask & UCP_OP_ATTR_FIELD_MEMH && param.memh;
}

/* Two workers of a process share a context, in which a pool is registered once.
 * Each operation on the pool names that registration. */
TEST(a_pool_is_registered_once)
{
    struct data_conf c = shared_memory();
    struct ucx one = {.fd = -1}, two = {.fd = -1};
    uint8_t *p = malloc(4 * MIB);

    T_OK(ucx_open(&one, &c, unheard, NULL));
    T_OK(ucx_open(&two, &c, unheard, NULL));
    T_TRUE(one.context == two.context);
    T_FALSE(named(&one, p, 4096));
    T_TRUE(ucx_memory_add(&one, p, 4 * MIB, false));
    T_TRUE(ucx_memory_add(&two, p, 4 * MIB, false));
    T_TRUE(ucx_memory_add(&two, p, 4 * MIB, false));
    T_EQ_U64(one.context->memory[0].users, 2);
    T_EQ_U64(one.context->memory[1].users, 0);
    T_TRUE(named(&one, p, 4 * MIB));
    T_TRUE(named(&two, p + MIB, 4096));
    T_FALSE(named(&one, p + 4 * MIB - 1, 2));
    ucx_close(&one);
    T_EQ_U64(two.context->memory[0].users, 1);
    T_TRUE(named(&two, p, 4096));
    ucx_close(&two);
    free(p);
}

/* a receiver that is killed while it fetches */

NORETURN static void victim(int out, uint32_t turns)
{
    struct data_conf c = shared_memory();
    struct side b;
    struct span address;

    side_open_with(&b, &data_ucx, &c);
    b.any_bytes = true;
    b.fetch_pieces = 1;
    address = data_ucx.address(b.d);
    T_EQ_I64(write(out, address.p, address.len), address.len);
    while (b.fetched_count < turns)
        data_ucx.progress(b.d);
    kill(getpid(), SIGKILL);
    abort();
}

static void killed(uint32_t turns)
{
    struct data_conf c = shared_memory();
    uint8_t address[1024], *p = malloc(16 * MIB);
    uint64_t limit = t_end_ns(T_WAIT_MS), tick = NS_PER_S;
    uint32_t posted;
    struct side a;
    int pipes[2];
    ssize_t n;
    pid_t child;

    T_EQ_I64(pipe(pipes), 0);
    child = fork(); /* before UCX is initialised here */
    T_TRUE(child >= 0);
    if (child == 0)
        victim(pipes[1], turns);
    n = read(pipes[0], address, sizeof(address));
    T_TRUE(n > 0);
    side_open_with(&a, &data_ucx, &c);
    data_ucx.memory(a.d, p, 16 * MIB, false);
    T_OK(data_ucx.connect(a.d, 0, span_of(address, (size_t)n), NO_KEY));
    T_OK(side_post(&a, 0, 500, p, 1000));
    side_until(&a, NULL, &a.done_count, 1);
    side_until(&a, NULL, &a.made_count, 1);
    posted = side_post_many(&a, 0, p, ROWS);
    T_TRUE(posted > 8);
    while (waitpid(child, NULL, WNOHANG) == 0) /* for UCX a zombie is alive */
        side_turn(&a, NULL);
    side_until(&a, NULL, &a.broken_count, 1);
    /* UCX keeps messages that a full queue of shared memory holds up, until
     * ticks end them. */
    while (a.done_count < posted + 1 && t_now_ns() < limit) {
        side_turn(&a, NULL);
        data_ucx.tick(a.d, tick += SIDE_STALL_MS * NS_PER_MS / 100);
    }
    T_EQ_U64(a.done_count, posted + 1);
    side_close(&a);
    close(pipes[0]);
    close(pipes[1]);
    free(p);
}

TEST(a_killed_receiver_breaks_the_endpoint)
{
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    for (uint32_t turns = 1; turns <= 4; turns++)
        killed(turns);
}
