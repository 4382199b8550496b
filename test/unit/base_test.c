/* base_test.c - the dependency-free islands: heap, table, bytes, list, ring and
 * wake, slab, reasons. Each is compared with a simpler model of itself. */
#include "base/bytes.h"
#include "base/err.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/log.h"
#include "base/ring.h"
#include "base/slab.h"
#include "base/table.h"
#include "test/t.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* heap */

#define NODES 200

static struct heap_node nodes[NODES], *places[NODES];

static uint64_t least(void)
{
    uint64_t best = UINT64_MAX;

    for (unsigned i = 0; i < NODES; i++)
        if (heap_linked(&nodes[i]) && nodes[i].key < best)
            best = nodes[i].key;
    return best;
}

TEST(heap_random_against_scan)
{
    struct heap h = {places, 0, NODES};
    uint64_t seed = 11;

    for (unsigned step = 0; step < 50000; step++) {
        struct heap_node *n = &nodes[t_rand_below(&seed, NODES)];

        if (t_rand_below(&seed, 3) > 0)
            heap_set(&h, n, t_rand_below(&seed, 1000));
        else
            heap_remove(&h, n);
        if (h.len)
            T_EQ_U64(heap_first(&h)->key, least());
        else
            T_TRUE(heap_first(&h) == NULL);
    }
}

/* A process that must end by SIGABRT. */
static void expect_abort(void (*run)(void))
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        run();
        _exit(0);
    }
    T_TRUE(pid > 0 && waitpid(pid, &status, 0) == pid);
    T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT,
        "ended with status 0x%x, not by abort", (unsigned)status);
}

static void overfill_heap(void)
{
    struct heap h = {places, 0, 1};

    heap_set(&h, &nodes[0], 1);
    heap_set(&h, &nodes[1], 1);
}

TEST_IS(heap_that_is_full_is_our_bug, expect_abort(overfill_heap));

/* table */

#define IDS 64
#define CAP 40

static _Alignas(64) uint8_t slab_bytes[65536];

static struct table new_table(uint32_t cap, uint64_t seed)
{
    struct slab s = {.p = slab_bytes, .cap = sizeof(slab_bytes)};
    struct table t;

    memset(slab_bytes, 0, sizeof(slab_bytes));
    table_init(&t, &s, cap, seed);
    T_FALSE(s.failed);
    return t;
}

/* Few ids in a small table, so that chains form and a removal has to shift
 * entries; several seeds, so that ids collide in several ways. */
static void table_against_model(uint64_t seed)
{
    struct table t = new_table(CAP, seed);
    uint32_t model[IDS][2], len = 0;

    memset(model, 0xff, sizeof(model));
    for (unsigned step = 0; step < 4000; step++) {
        uint32_t id = (uint32_t)t_rand_below(&seed, IDS);
        uint32_t scope = (uint32_t)t_rand_below(&seed, 2);
        uint32_t *m = &model[id][scope];

        if (t_rand_below(&seed, 5) < 3) {
            bool fits = *m != NONE || len < CAP;

            T_EQ_U64(table_put(&t, id, scope, step), fits);
            len += fits && *m == NONE;
            if (fits)
                *m = step;
        } else {
            table_remove(&t, id, scope);
            len -= *m != NONE;
            *m = NONE;
        }
        T_EQ_U64(t.len, len);
        for (unsigned i = 0; step % 16 == 0 && i < IDS; i++)
            for (unsigned j = 0; j < 2; j++)
                T_EQ_U64(table_get(&t, i, j), model[i][j]);
    }
}

TEST(table_random_against_model)
{
    for (uint64_t seed = 1; seed <= 30; seed++)
        table_against_model(seed * UINT64_C(0x9e3779b97f4a7c15));
}

TEST(table_replaces_and_fills)
{
    struct table t = new_table(2, 9);

    T_EQ_U64(table_get(&t, 1, 1), NONE);
    T_TRUE(table_put(&t, 1, 1, 5));
    T_TRUE(table_put(&t, 1, 1, 6));
    T_TRUE(table_put(&t, 1, 2, 7));
    T_FALSE(table_put(&t, 2, 1, 8));
    T_TRUE(table_put(&t, 1, 2, 9));
    T_EQ_U64(table_get(&t, 1, 1), 6);
    T_EQ_U64(table_get(&t, 1, 2), 9);
    T_EQ_U64(table_get(&t, 2, 1), NONE);
    table_remove(&t, 2, 1);
    table_remove(&t, 1, 1);
    T_TRUE(table_put(&t, 2, 1, 8));
}

/* At sizes beyond which a table moves its entries: those that were put are
 * found, those that were removed are not. */
TEST(table_grows)
{
    const uint32_t cap = 500;
    struct table t = new_table(cap + 1, 11);

    for (uint32_t i = 0; i < cap + cap / 5; i++) {
        T_TRUE(table_put(&t, i, i % 3, i));
        if (i % 6 == 5)
            table_remove(&t, i - 5, (i - 5) % 3);
        for (uint32_t k = 0; i % 50 == 0 && k <= i; k++)
            T_EQ_U64(table_get(&t, k, k % 3), k % 6 || k + 5 > i ? k : NONE);
    }
    T_EQ_U64(t.len, cap);
    T_TRUE(table_put(&t, cap * 2, 0, 1));
    T_FALSE(table_put(&t, cap * 3, 0, 1));
    table_remove(&t, cap * 2, 0);
    for (uint32_t k = 0; k < cap + cap / 5; k++)
        table_remove(&t, k, k % 3);
    T_EQ_U64(t.len, 0);
    for (uint32_t i = 0; i < t.size; i++)
        T_EQ_U64(t.bytes[i], 0);
}

/* slab */

TEST(slab_counts_and_carves_alike)
{
    static const size_t sizes[] = {1, 64, 65, 1000, 3};
    struct slab count = {0};
    struct slab s = {.p = slab_bytes};
    uint8_t *end = slab_bytes;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        T_TRUE(slab_take(&count, sizes[i], i + 1) == NULL);
    T_FALSE(count.failed);
    s.cap = count.used;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint8_t *p = slab_take(&s, sizes[i], i + 1);

        T_TRUE(p != NULL);
        T_EQ_U64((uintptr_t)p % SLAB_ALIGN, 0);
        T_TRUE(p >= end);
        end = p + sizes[i] * (i + 1);
        memset(p, 0xff, sizes[i] * (i + 1));
    }
    T_EQ_U64(s.used, s.cap);
    T_FALSE(s.failed);
    T_TRUE(slab_take(&s, 1, 1) == NULL);
    T_TRUE(s.failed);
}

TEST(slots_come_again_last_given_first)
{
    struct slab s = {.p = slab_bytes, .cap = sizeof(slab_bytes)};
    struct slots slots;

    slots_init(&slots, &s, 3);
    for (uint32_t i = 0; i < 3; i++)
        T_EQ_U64(slots_take(&slots), i);
    T_EQ_U64(slots_take(&slots), NONE);
    slots_give(&slots, 0);
    slots_give(&slots, 2);
    T_EQ_U64(slots_take(&slots), 2);
    T_EQ_U64(slots_take(&slots), 0);
    T_EQ_U64(slots_take(&slots), NONE);
    T_EQ_U64(slots.fresh, 3);
}

/* bytes */

TEST(bytes_are_little_endian)
{
    static const uint8_t wanted[] = {
        1, 3, 2, 7, 6, 5, 4, 0xf, 0xe, 0xd, 0xc, 0xb, 0xa, 9, 8};
    uint8_t b[15];
    struct writer w = writer_of(b, sizeof(b));
    struct reader r = reader_of(b, sizeof(b));

    put_u8(&w, 1);
    put_u16(&w, 0x0203);
    put_u32(&w, 0x04050607);
    put_u64(&w, UINT64_C(0x08090a0b0c0d0e0f));
    T_FALSE(w.failed);
    T_EQ_U64(w.len, 15);
    T_EQ_MEM(b, wanted, sizeof(b));
    T_EQ_U64(get_u8(&r), 1);
    T_EQ_U64(get_u16(&r), 0x0203);
    T_EQ_U64(get_u32(&r), 0x04050607);
    T_EQ_U64(get_u64(&r), UINT64_C(0x08090a0b0c0d0e0f));
    T_FALSE(r.failed);
    T_EQ_U64(get_u8(&r), 0);
    T_TRUE(r.failed);
}

TEST(bytes_errors_stick)
{
    uint8_t b[4] = {1, 2, 3, 4};
    struct writer w = writer_of(b, sizeof(b));
    struct reader r = reader_of(b, 3);

    put_u16(&w, 0xffff);
    put_u32(&w, 0);
    T_TRUE(w.failed);
    put_u8(&w, 9);
    T_TRUE(w.failed);
    T_EQ_U64(w.len, 2);
    T_EQ_U64(b[2], 3);
    T_EQ_U64(get_u32(&r), 0);
    T_TRUE(r.failed);
    T_EQ_U64(get_u8(&r), 0);
    T_EQ_U64(r.at, 0);
    T_TRUE(get_bytes(&r, 0) == NULL);
}

TEST(bytes_huge_lengths_do_not_wrap)
{
    uint8_t b[8] = {0};
    struct writer w = writer_of(b, sizeof(b));
    struct reader r = reader_of(b, sizeof(b));
    volatile size_t huge = SIZE_MAX; /* a constant, gcc warns of */

    put_u8(&w, 1);
    put_bytes(&w, b, huge);
    T_TRUE(w.failed);
    (void)get_u8(&r);
    T_TRUE(get_bytes(&r, huge) == NULL);
    T_TRUE(r.failed);
}

TEST(spans)
{
    uint8_t b[16];
    struct writer w = writer_of(b, sizeof(b));
    struct reader r;
    struct span s;
    char text[4];

    put_span(&w, span_str("abc"), 2, 3);
    put_span(&w, span_str(""), 4, 3);
    T_FALSE(w.failed);
    r = reader_of(b, w.len);
    s = get_span(&r, 2, 3);
    T_TRUE(span_eq(s, span_str("abc")));
    T_FALSE(span_eq(s, span_str("abd")));
    T_FALSE(span_eq(s, span_str("ab")));
    s = get_span(&r, 4, 3);
    T_EQ_U64(s.len, 0);
    T_FALSE(r.failed);
    T_TRUE(span_eq(s, span_of(NULL, 0)));
    put_span(&w, span_str("abcd"), 2, 3);
    T_TRUE(w.failed);
    r = reader_of(b, w.len);
    s = get_span(&r, 2, 2);
    T_TRUE(r.failed);
    T_EQ_U64(s.len, 0);
    span_copy_str(span_str("abcdef"), text, sizeof(text));
    T_EQ_STR(text, "abc");
    span_copy_str(span_of(NULL, 0), text, sizeof(text));
    T_EQ_STR(text, "");
}

/* list */

struct item {
    uint32_t n;
    struct list node;
};

TEST(list_keeps_order)
{
    struct item items[4];
    struct list l, *n;
    uint32_t seen = 0;

    list_init(&l);
    T_TRUE(list_empty(&l));
    T_TRUE(list_pop(&l) == NULL);
    T_TRUE(LIST_FIRST(&l, struct item, node) == NULL);
    for (uint32_t i = 0; i < 4; i++) {
        items[i].n = i;
        list_init(&items[i].node);
        T_FALSE(list_linked(&items[i].node));
    }
    list_push_tail(&l, &items[2].node);
    list_push_tail(&l, &items[3].node);
    list_push_head(&l, &items[0].node);
    list_insert_before(&items[2].node, &items[1].node);
    T_EQ_U64(LIST_FIRST(&l, struct item, node)->n, 0);
    LIST_FOREACH (m, &l)
        T_EQ_U64(LIST_ENTRY(m, struct item, node)->n, seen++);
    T_EQ_U64(seen, 4);
    LIST_FOREACH_SAFE (m, &l)
        if (LIST_ENTRY(m, struct item, node)->n % 2)
            list_remove(m);
    T_FALSE(list_linked(&items[1].node));
    list_remove(&items[1].node);
    n = list_pop(&l);
    T_TRUE(n == &items[0].node);
    n = list_pop(&l);
    T_TRUE(n == &items[2].node);
    T_TRUE(list_empty(&l));
}

/* ring */

TEST(ring_full_and_empty)
{
    struct ring r;
    uint32_t v = 0;

    T_OK(ring_init(&r, 5, sizeof(v)));
    T_TRUE(ring_empty(&r));
    T_FALSE(ring_pop(&r, &v));
    T_EQ_U64(ring_space(&r), 8);
    for (unsigned turn = 0; turn < 100; turn++) {
        for (uint32_t i = 0; i < 8; i++) {
            v = turn * 8 + i;
            T_TRUE(ring_push(&r, &v));
            T_EQ_U64(ring_space(&r), 7 - i);
        }
        T_FALSE(ring_push(&r, &v));
        T_EQ_U64(ring_space(&r), 0);
        for (uint32_t i = 0; i < 8; i++) {
            T_FALSE(ring_empty(&r));
            T_TRUE(ring_pop(&r, &v));
            T_EQ_U64(v, turn * 8 + i);
        }
        T_TRUE(ring_empty(&r));
    }
    ring_fini(&r);
}

TEST(ring_space_is_what_is_left)
{
    struct ring r;
    uint32_t v = 0;

    T_OK(ring_init(&r, 8, sizeof(v)));
    for (unsigned i = 0; i < 8; i++)
        T_TRUE(ring_push(&r, &v));
    for (unsigned i = 0; i < 3; i++)
        T_TRUE(ring_pop(&r, &v));
    T_EQ_U64(ring_space(&r), 3);
    ring_fini(&r);
}

/* Records of a large ring lie at its beginning, unless many wait. */
TEST(ring_starts_over_when_it_is_empty)
{
    uint64_t v = 0, next = 0;
    struct ring r;

    T_OK(ring_init(&r, 1u << 20, sizeof(v)));
    for (uint32_t i = 0; i < 100000; i++) {
        T_TRUE(ring_push(&r, &(uint64_t){i}));
        T_TRUE(ring_pop(&r, &v));
        T_EQ_U64(v, i);
        T_EQ_U64(((uint64_t *)(void *)r.records)[40000], 0);
    }
    for (v = 0; v < 1u << 20; v++)
        T_TRUE(ring_push(&r, &v));
    T_FALSE(ring_push(&r, &v));
    T_FALSE(ring_fits(&r, 1));
    for (; ring_pop(&r, &v); next++)
        T_EQ_U64(v, next);
    T_EQ_U64(next, 1u << 20);
    T_TRUE(ring_fits(&r, 1u << 20));
    ring_fini(&r);
}

#define RECORDS 200000

struct pair {
    struct ring there, back;
    struct wake wake_there, wake_back;
    uint64_t naps;
};

struct record {
    uint64_t n, twice;
};

/* Sleeps until r has a record; the limit turns a lost wake into a failure. */
static void sleep_for(struct ring *r, struct wake *w, uint64_t *naps)
{
    struct pollfd p = {w->fd, POLLIN, 0};

    wake_sleep(w);
    if (ring_empty(r)) {
        (*naps)++;
        T_CHECK(poll(&p, 1, T_WAIT_MS) == 1, "a wake was lost");
    }
    wake_clear(w);
}

/* Sends each record back with its answer. */
static void *echo(void *ud)
{
    struct pair *p = ud;
    uint64_t naps = 0;

    for (uint64_t i = 0; i < RECORDS; i++) {
        struct record rec;

        while (!ring_pop(&p->there, &rec))
            sleep_for(&p->there, &p->wake_there, &naps);
        T_EQ_U64(rec.n, i);
        T_EQ_U64(rec.twice, 2 * i);
        while (!ring_push(&p->back, &rec))
            sched_yield();
        wake_up(&p->wake_back);
    }
    p->naps = naps;
    return NULL;
}

/* Sends `window` records at once: with 1 both sides always sleep, with many the
 * rings fill. */
static void exchange(unsigned records, uint32_t window)
{
    struct pair p;
    uint64_t sent = 0, got = 0, naps = 0;
    pthread_t thread;

    T_OK(ring_init(&p.there, 16, sizeof(struct record)));
    T_OK(ring_init(&p.back, 16, sizeof(struct record)));
    T_OK(wake_init(&p.wake_there));
    T_OK(wake_init(&p.wake_back));
    T_TRUE(pthread_create(&thread, NULL, echo, &p) == 0);
    while (got < RECORDS) {
        struct record rec = {sent, 2 * sent};

        if (sent < RECORDS && sent - got < (sent < records ? window : 64) &&
            ring_push(&p.there, &rec)) {
            sent++;
            wake_up(&p.wake_there);
        } else if (ring_pop(&p.back, &rec)) {
            T_EQ_U64(rec.n, got);
            T_EQ_U64(rec.twice, 2 * got);
            got++;
        } else {
            sleep_for(&p.back, &p.wake_back, &naps);
        }
    }
    T_TRUE(pthread_join(thread, NULL) == 0);
    T_TRUE(ring_empty(&p.there) && ring_empty(&p.back));
    ring_fini(&p.there);
    ring_fini(&p.back);
    wake_fini(&p.wake_there);
    wake_fini(&p.wake_back);
}

TEST_IS(ring_two_threads_in_order, exchange(0, 64));
TEST_IS(ring_two_threads_that_sleep, exchange(5000, 1));

static bool readable(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};

    return poll(&p, 1, 0) == 1;
}

TEST(wake_writes_only_for_a_sleeper)
{
    struct wake w;

    T_OK(wake_init(&w));
    wake_up(&w);
    T_FALSE(readable(w.fd));
    wake_sleep(&w);
    wake_up(&w);
    T_TRUE(readable(w.fd));
    wake_up(&w);
    wake_clear(&w);
    T_FALSE(readable(w.fd));
    wake_up(&w);
    T_FALSE(readable(w.fd));
    wake_sleep(&w);
    wake_clear(&w);
    T_FALSE(readable(w.fd));
    wake_fini(&w);
    wake_fini(&w);
}

/* reasons */

TEST(reasons)
{
    for (unsigned i = 0; i < ERR_COUNT; i++) {
        const char *name = err_name((enum err)i);

        T_CHECK(name && name[0], "reason %u has no name", i);
        T_CHECK(i < 64, "reason %u does not fit into a cell", i);
        T_TRUE(err_text((enum err)i)[0]);
        T_EQ_U64(strspn(name, "abcdefghijklmnopqrstuvwxyz-"), strlen(name));
        for (unsigned j = 0; j < i; j++)
            T_TRUE(strcmp(name, err_name((enum err)j)) != 0);
    }
    T_EQ_STR(err_name((enum err)ERR_COUNT), "unknown");
    T_EQ_STR(err_name((enum err) - 1), "unknown");
    T_TRUE(err_text((enum err)63)[0]);
    T_EQ_U64(err_advice((enum err)63), ADVICE_GIVE_UP);
    T_EQ_U64(err_advice(ERR_UNKNOWN_ROOM), ADVICE_ENCODE_LOCALLY);
    T_EQ_STR(advice_name(ADVICE_RETRY), "retry");
    T_EQ_STR(advice_name((enum advice)9), "give-up");
}

/* Reasons' numbers are on the wire. */
TEST(reasons_keep_their_numbers)
{
    T_EQ_U64(ERR_OK, 0);
    T_EQ_U64(ERR_MALFORMED, 7);
    T_EQ_U64(ERR_PEER_LOST, 15);
    T_EQ_U64(ERR_INTERNAL, 24);
}

/* A text from outside cannot begin a line of its own. */
TEST(a_log_line_is_one_line)
{
    char got[2048] = "", whole[1500];
    int pipes[2], err = dup(STDERR_FILENO);

    memset(whole, 'x', sizeof(whole) - 1);
    whole[sizeof(whole) - 1] = 0;
    T_EQ_I64(pipe(pipes), 0);
    T_TRUE(dup2(pipes[1], STDERR_FILENO) >= 0);
    log_init("test", LOG_INFO);
    log_warn("%s: %s", "gr\xc3\xbc\xc3\x9f", "a\n<2>root: \x1b[2Jowned\r\x7f");
    log_info("%s", whole);
    T_TRUE(dup2(err, STDERR_FILENO) >= 0);
    T_TRUE(read(pipes[0], got, sizeof(got) - 1) > 0);
    T_HAS(got, " warning test: gr\xc3\xbc\xc3\x9f: a?<2>root: ?[2Jowned??\n");
    /* the long line is cut, and ended */
    T_EQ_U64(strlen(strchr(got, '\n') + 1), 1024 - 1);
    T_TRUE(got[strlen(got) - 1] == '\n');
    close(pipes[0]);
    close(pipes[1]);
    close(err);
}

static bool all_told(void *ud)
{
    return !log_report_lost();
}

/* Lines that strangers cause have a rate; lines beyond it are counted. */
TEST(rated_lines_are_counted_and_told)
{
    static struct log_rate rate = LOG_RATE("strangers", LOG_WARN, 3);
    static struct log_rate quiet = LOG_RATE("details", LOG_DEBUG, 3);
    char got[4096] = "";
    int pipes[2], err = dup(STDERR_FILENO);
    unsigned said = 0, lost = 0, n;
    uint64_t begun = t_now_ns(), seconds;

    T_EQ_I64(pipe(pipes), 0);
    T_TRUE(dup2(pipes[1], STDERR_FILENO) >= 0);
    log_init("test", LOG_INFO);
    for (unsigned i = 0; i < 100; i++) {
        log_rated(&rate, "stranger %u", i);
        log_rated(&quiet, "detail %u", i);
    }
    seconds = (t_now_ns() - begun) / NS_PER_S;
    T_WAIT(all_told, NULL);
    T_TRUE(dup2(err, STDERR_FILENO) >= 0);
    T_TRUE(read(pipes[0], got, sizeof(got) - 1) > 0);
    for (char *line = strtok(got, "\n"); line; line = strtok(NULL, "\n")) {
        const char *text = strstr(line, "test: stranger");

        if (text && sscanf(text, "test: strangers: %u more lines", &n) == 1)
            lost += n;
        else
            said += text && text[14] == ' ';
    }
    /* One second, or several, may have ended meanwhile. */
    T_CHECK(said >= 3 && said <= 3 * (2 + seconds), "%u lines", said);
    T_EQ_U64(said + lost, 100);
    T_EQ_U64(log_lost(), lost);
    close(pipes[0]);
    close(pipes[1]);
    close(err);
}
