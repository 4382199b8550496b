/* pool_test.c - which runs of blocks an extent gets, and how much a search
 * looks at: each free run once to see that none is long enough, and once to
 * collect runs, however many are taken. */
#include "core/move/pool.h"
#include "test/t.h"

#define BLOCKS 8192

static struct pool p;

static void make(uint32_t blocks)
{
    static uint8_t memory[1u << 20];
    struct slab s = {0};

    memset(memory, 0, sizeof(memory));
    s.p = memory;
    s.cap = sizeof(memory);
    pool_init(&p, &s, blocks);
    T_TRUE(!s.failed);
}

static struct extent take(uint32_t n)
{
    struct extent e = extent_none();
    uint32_t first;

    T_TRUE(pool_take(&p, &e, n, &first));
    T_EQ_U64(e.blocks, n);
    T_EQ_U64(first, e.head);
    return e;
}

/* Takes all blocks, and gives every other one back. */
static void scatter(uint32_t blocks)
{
    static struct extent all[BLOCKS];

    make(blocks);
    for (uint32_t i = 0; i < blocks; i++)
        all[i] = take(1);
    for (uint32_t i = 0; i < blocks; i += 2)
        pool_give(&p, &all[i]);
}

TEST(pieces_cost_one_pass)
{
    struct extent e;
    uint64_t steps;

    scatter(4096);
    steps = p.steps;
    e = take(8);
    T_EQ_U64(e.runs, 8);
    T_TRUE(p.steps - steps <= 2 * 2048);
    steps = p.steps;
    e = take(1000); /* no run is longer than one block, which is known */
    T_EQ_U64(e.runs, 1000);
    T_TRUE(p.steps - steps <= 2048);
    pool_check(&p);
}

TEST(too_scattered_is_known_until_blocks_are_given)
{
    struct extent e = extent_none(), one;
    uint64_t steps;
    uint32_t first;

    scatter(BLOCKS);
    one = take(1);
    T_TRUE(!pool_take(&p, &e, POOL_RUNS_MAX + 1, &first));
    steps = p.steps;
    T_TRUE(!pool_take(&p, &e, POOL_RUNS_MAX + 1, &first));
    T_TRUE(!pool_take(&p, &e, POOL_RUNS_MAX + 5, &first));
    T_EQ_U64(p.steps, steps);
    T_EQ_U64(p.free, BLOCKS / 2 - 1);
    pool_give(&p, &one);
    T_TRUE(!pool_take(&p, &e, POOL_RUNS_MAX + 1, &first));
    T_TRUE(p.steps > steps);
    e = take(POOL_RUNS_MAX);
    /* this extent has the most runs that it may have */
    T_TRUE(!pool_take(&p, &e, 1, &first));
    T_EQ_U64(take(1).runs, 1);
    pool_check(&p);
}

TEST(the_longest_come_first_and_the_rest_fits_best)
{
    static const uint32_t free[] = {3, 5, 2, 7, 6};
    struct extent gaps[5], e;

    make(28);
    for (uint32_t i = 0; i < 5; i++) {
        gaps[i] = take(free[i]);
        (void)take(1);
    }
    for (uint32_t i = 0; i < 5; i++)
        pool_give(&p, &gaps[i]);
    e = take(12); /* the run of 7, and that of 5: the run of 6 stays whole */
    T_EQ_U64(e.runs, 2);
    T_EQ_U64(p.run_len[e.head], 7);
    T_EQ_U64(p.run_len[e.tail], 5);
    e = take(6);
    T_EQ_U64(e.runs, 1);
    e = take(5); /* takes all blocks that are left */
    T_EQ_U64(e.runs, 2);
    T_EQ_U64(p.free, 0);
    pool_check(&p);
}

/* Takes and gives at random; every block is in one extent, or free. */
TEST(blocks_are_conserved)
{
    struct extent e[64];
    uint8_t owner[512];

    make(512);
    srand(7);
    for (int i = 0; i < 64; i++)
        e[i] = extent_none();
    for (int i = 0; i < 20000; i++) {
        struct extent *x = &e[rand() % 64];
        uint32_t n = (uint32_t)rand() % 40, before = x->blocks, first;

        if (rand() % 2)
            pool_give(&p, x);
        else
            T_EQ_U64(pool_take(&p, x, n, &first) ? x->blocks : before + n,
                before + n);
        if (i % 100)
            continue;
        memset(owner, 0, sizeof(owner));
        for (int k = 0; k < 64; k++)
            for (uint32_t b = e[k].head; b != NONE; b = p.run_next[b])
                for (uint32_t j = 0; j < p.run_len[b]; j++)
                    T_EQ_U64(owner[b + j]++, 0);
        pool_check(&p);
    }
}
