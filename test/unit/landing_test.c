/* landing_test.c - what may land, what is refused and why, and when a slot is
 * quiet. The last case is random, over all of it. */
#include "core/move/landing.h"
#include "test/slab.h"
#include "test/t.h"

#define SLOTS 8
#define ROW   100 /* bytes */

/* Blocks of 16 rows, units of 4, parts of 32. */
static const struct landing_pool POOL = {64, 16, 4, 32, ROW};

static struct landing *make(uint32_t shard, uint32_t shards,
    const struct landing_pool *pools, uint32_t n)
{
    static struct landing *l; /* a new one replaces the last one */
    struct slab s = {0};

    free(l);
    l = landing_init(&s, SLOTS, LANDINGS_MIN, shard, shards, pools, n);
    T_CHECK(!l, "a count gave %p", (void *)l);
    s = slab_fresh(s.used);
    l = landing_init(&s, SLOTS, LANDINGS_MIN, shard, shards, pools, n);
    T_CHECK(
        l && !s.failed && s.used == s.cap, "used %zu of %zu", s.used, s.cap);
    return l;
}

static struct landing *make_one(void)
{
    return make(0, 1, &POOL, 1);
}

static struct data_cmd cmd_of(uint8_t type, uint64_t generation)
{
    return (struct data_cmd){.type = type,
        .generation = generation,
        .slot = (uint32_t)(generation % SLOTS),
        .room = generation * 1000,
        .total = ROWS_UNKNOWN};
}

static bool give(struct landing *l, struct data_cmd c, bool *quiet)
{
    bool q, known = landing_cmd(l, &c, &q);

    if (quiet)
        *quiet = q;
    return known;
}

static void open_use(struct landing *l, uint64_t g, uint32_t attempt)
{
    struct data_cmd c = cmd_of(LAND_OPEN, g);

    c.attempt = attempt;
    T_TRUE(give(l, c, NULL));
}

static bool run(struct landing *l, uint64_t g, uint32_t block, uint32_t blocks)
{
    struct data_cmd c = cmd_of(LAND_RUN, g);

    c.a = block;
    c.b = blocks;
    return give(l, c, NULL);
}

/* Returns a landing in which use 11 is open, attempt 0, and has the first
 * blocks. */
static struct landing *with_blocks(uint32_t blocks)
{
    struct landing *l = make_one();

    open_use(l, 11, 0);
    run(l, 11, 0, blocks);
    return l;
}

static bool trim(struct landing *l, uint64_t g, uint32_t rows)
{
    struct data_cmd c = cmd_of(LAND_TRIM, g);
    bool quiet;

    c.a = rows;
    c.reply = true;
    give(l, c, &quiet);
    return quiet;
}

static bool close_use(struct landing *l, uint64_t g)
{
    struct data_cmd c = cmd_of(LAND_CLOSE, g);
    bool quiet;

    c.reply = true;
    give(l, c, &quiet);
    return quiet;
}

static struct segment seg(
    uint64_t g, uint32_t attempt, uint32_t first, uint32_t rows)
{
    return (struct segment){g * 1000, g, attempt, first, rows, ROWS_UNKNOWN,
        rows * ROW, SEGMENT_ALL};
}

struct begun {
    struct piece pieces[PIECES_MAX];
    uint32_t pool, n, token, bad;
};

static enum err begin_by(
    struct landing *l, uint32_t who, struct segment s, struct begun *b)
{
    *b = (struct begun){.pool = 77, .n = 77, .token = 77, .bad = 77};
    return landing_begin(
        l, who, &s, &b->pool, b->pieces, &b->n, &b->token, &b->bad);
}

static enum err begin(struct landing *l, struct segment s, struct begun *b)
{
    return begin_by(l, NONE, s, b);
}

static struct data_note note, quiet; /* of the landing that ended last */

/* Ends a landing whose bytes have arrived. answers: the number of fences that
 * its end answers. Returns true if its rows count. */
static bool ended(struct landing *l, const struct begun *b, uint32_t answers)
{
    uint32_t quiets;
    bool counts = landing_end(l, b->token, true, &note, &quiets, &quiet);

    T_EQ_U64(quiets, answers);
    return counts;
}

/* Begins a landing and ends it at once. */
static enum err land(struct landing *l, struct segment s)
{
    struct begun b;
    enum err e = begin(l, s, &b);

    if (e != OK) {
        T_EQ_U64(b.n, 77);
        T_EQ_U64(b.token, 77);
        return e;
    }
    T_TRUE(ended(l, &b, 0));
    T_EQ_U64(note.type, NOTE_LANDED);
    T_EQ_U64(note.slot, s.generation % SLOTS);
    T_EQ_U64(note.generation, s.generation);
    T_EQ_U64(note.attempt, s.attempt);
    T_EQ_U64(note.first, s.first);
    T_EQ_U64(note.rows, s.rows);
    return OK;
}

static void bad(struct landing *l, struct segment s, enum err e, uint32_t slot)
{
    struct begun b;

    T_ERR(begin(l, s, &b), e);
    T_EQ_U64(b.bad, slot);
    T_EQ_U64(b.n, 77);
    T_EQ_U64(landing_active(l), 0);
}

TEST_WITH(lands_where_granted, struct landing *l, make_one())
{
    struct begun b;

    open_use(l, 11, 0);
    run(l, 11, 5, 2);
    T_OK(begin(l, seg(11, 0, 4, 8), &b));
    T_EQ_U64(b.n, 1);
    T_EQ_U64(b.pool, 0);
    T_EQ_U64(b.pieces[0].block, 5);
    T_EQ_U64(b.pieces[0].at, 4);
    T_EQ_U64(b.pieces[0].rows, 8);
    T_EQ_U64(b.bad, NONE);
    T_EQ_U64(landing_active(l), 1);
    T_OK(begin(l, seg(11, 0, 12, 20), &b));
    T_EQ_U64(b.n, 1); /* neighbours: one piece over two blocks */
    T_EQ_U64(b.pieces[0].at, 12);
    T_EQ_U64(b.pieces[0].rows, 20);
}

TEST_WITH(straddles_runs, struct landing *l, make_one())
{
    struct begun b;

    open_use(l, 3, 0);
    run(l, 3, 9, 1);
    run(l, 3, 2, 1);
    run(l, 3, 30, 3);
    T_OK(begin(l, seg(3, 0, 8, 24), &b));
    T_EQ_U64(b.n, 2);
    T_EQ_U64(b.pieces[0].block, 9);
    T_EQ_U64(b.pieces[0].at, 8);
    T_EQ_U64(b.pieces[0].rows, 8);
    T_EQ_U64(b.pieces[1].block, 2);
    T_EQ_U64(b.pieces[1].rows, 16);
    T_OK(begin(l, seg(3, 0, 64, 16), &b)); /* the cursor moves forward */
    T_EQ_U64(b.pieces[0].block, 32);
    T_OK(begin(l, seg(3, 0, 0, 8), &b)); /* the cursor moves back */
    T_EQ_U64(b.pieces[0].block, 9);
    T_EQ_U64(b.pieces[0].at, 0);
}

/* RULES 3.1 */
TEST_WITH(stale_refusals, struct landing *l, make_one())
{
    struct segment s = seg(11, 2, 0, 4);
    struct data_cmd c = cmd_of(LAND_OPEN, 11);

    bad(l, s, ERR_STALE, NONE); /* nothing is open */
    c.attempt = 2;
    c.from = 8;
    give(l, c, NULL);
    bad(l, seg(11, 2, 8, 4), ERR_STALE, NONE); /* nothing is granted */
    run(l, 11, 0, 2);
    bad(l, s, ERR_STALE, NONE); /* below from */
    T_OK(land(l, seg(11, 2, 8, 4)));
    bad(l, seg(11, 2, 8, 4), ERR_STALE, NONE); /* again */
    bad(l, seg(11, 2, 8, 8), ERR_STALE, NONE); /* one part again */
}

TEST_WITH(stale_uses, struct landing *l, make_one())
{
    struct segment s;

    open_use(l, 11, 2);
    run(l, 11, 0, 2);
    bad(l, seg(11, 1, 0, 4), ERR_STALE, NONE);         /* older attempt */
    bad(l, seg(11, 3, 0, 4), ERR_STALE, NONE);         /* attempt to come */
    bad(l, seg(11 - SLOTS, 2, 0, 4), ERR_STALE, NONE); /* older generation */
    bad(l, seg(11 + SLOTS, 2, 0, 4), ERR_STALE, NONE);
    bad(l, seg(12, 2, 0, 4), ERR_STALE, NONE); /* another slot */
    s = seg(11, 2, 0, 4);
    s.room++;
    bad(l, s, ERR_STALE, NONE);
    s = seg(11, 2, 0, 4); /* the slot's earlier use: same room, same attempt */
    s.generation -= SLOTS;
    bad(l, s, ERR_STALE, NONE);
    bad(l, seg(11, 2, 32, 4), ERR_STALE, NONE); /* beyond the grant */
    T_OK(land(l, seg(11, 2, 28, 4)));
    T_TRUE(close_use(l, 11));
    bad(l, seg(11, 2, 0, 4), ERR_STALE, NONE); /* closed */
    T_FALSE(run(l, 11, 4, 1));
}

/* RULES 3.1 */
TEST_WITH(malformed_refusals, struct landing *l, with_blocks(4))
{
    struct segment s;

    bad(l, seg(11, 0, 2, 4), ERR_MALFORMED, NONE);  /* not at a unit */
    bad(l, seg(11, 0, 0, 6), ERR_MALFORMED, NONE);  /* does not end at one */
    bad(l, seg(11, 0, 0, 0), ERR_MALFORMED, NONE);  /* nothing */
    bad(l, seg(11, 0, 28, 8), ERR_MALFORMED, NONE); /* crosses a part */
    s = seg(11, 0, 0, 4);
    s.bytes--;
    bad(l, s, ERR_MALFORMED, NONE);
    s.bytes += 2;
    bad(l, s, ERR_MALFORMED, NONE);
    s = seg(11, 0, 0, 4);
    s.fields = 1;
    bad(l, s, ERR_MALFORMED, NONE);
    s = seg(11, 0, 0, 8);
    s.total = 6;
    bad(l, s, ERR_MALFORMED, NONE); /* beyond its own total */
    s = seg(11, 0, 0, 6);
    s.total = 7;
    bad(l, s, ERR_MALFORMED, NONE); /* half a unit that is not the end */
    T_OK(land(l, seg(11, 0, 0, 32)));
}

TEST(totals)
{
    struct landing *l = with_blocks(3);
    struct data_cmd c = cmd_of(LAND_TOTAL, 11);
    struct segment s = seg(11, 0, 40, 2);

    s.total = 42;
    T_OK(land(l, s)); /* an item's end before its length is known */
    c.total = 42;
    T_TRUE(give(l, c, NULL));
    s = seg(11, 0, 0, 4);
    s.total = 43;
    /* contradicts the length: the slot is named */
    bad(l, s, ERR_MALFORMED, 3);
    bad(l, s, ERR_MALFORMED, NONE); /* named once only */
    /* the sender does not know the length yet */
    s = seg(11, 0, 0, 4);
    T_OK(land(l, s));
    s = seg(11, 0, 4, 4);
    s.total = 42;
    T_OK(land(l, s));
}

/* Each attempt names the slot once more. */
TEST(rows_beyond_the_total)
{
    struct landing *l = with_blocks(3);

    for (uint32_t attempt = 1; attempt < 3; attempt++) {
        struct data_cmd c = cmd_of(LAND_OPEN, 11);

        c.attempt = attempt;
        c.total = 42;
        give(l, c, NULL);
        run(l, 11, 0, 3);
        bad(l, seg(11, attempt, 36 + 4 * attempt, 4), ERR_MALFORMED, 3);
        bad(l, seg(11, attempt, 40, 4), ERR_MALFORMED, NONE);
    }
}

/* RULES 3.1 */
TEST(hostile_numbers)
{
    static const uint32_t odd[] = {0, 1, 3, 4, 16, 31, 32, 0x7ffffffc,
        0x80000000, 0xfffffff0, 0xfffffffc, 0xfffffffe, 0xffffffff};
    struct landing *l = with_blocks(1);

    for (size_t a = 0; a < ARRAY_LEN(odd); a++)
        for (size_t b = 0; b < ARRAY_LEN(odd); b++)
            for (size_t c = 0; c < ARRAY_LEN(odd); c++) {
                struct segment s = seg(11, 0, odd[a], odd[b]);

                s.total = odd[c];
                if ((uint64_t)odd[a] + odd[b] > 16 || odd[b] == 0)
                    T_CHECK(land(l, s) != OK, "%u + %u of %u", odd[a], odd[b],
                        odd[c]);
                s.bytes = odd[b];
                T_CHECK(
                    land(l, s) != OK, "%u + %u of %u", odd[a], odd[b], odd[c]);
            }
    bad(l, (struct segment){.generation = UINT64_MAX, .rows = 4}, ERR_STALE,
        NONE);
}

TEST(too_many_pieces)
{
    /* Blocks of one row, one part, every second block: 65 pieces. */
    struct landing_pool pool = {200, 1, 1, 1000, ROW};
    struct landing *l = make(0, 1, &pool, 1);
    struct begun b;

    open_use(l, 11, 0);
    for (uint32_t i = 0; i < 70; i++)
        run(l, 11, i * 2, 1);
    bad(l, seg(11, 0, 0, PIECES_MAX + 1), ERR_MALFORMED, NONE);
    T_OK(begin(l, seg(11, 0, 3, PIECES_MAX), &b));
    T_EQ_U64(b.n, PIECES_MAX);
    T_EQ_U64(b.pieces[63].block, 132);
}

TEST(unknown_layout_takes_units_later)
{
    struct landing_pool pool = {8, 16, 0, 0, 0};
    struct landing *l = make(0, 1, &pool, 1);

    bad(l, seg(11, 0, 0, 4), ERR_STALE, NONE);
    pool = (struct landing_pool){8, 16, 1, 8, ROW};
    landing_pool_set(l, 0, &pool);
    open_use(l, 11, 0);
    run(l, 11, 0, 8);
    for (uint32_t i = 0; i < 128; i++)
        T_OK(land(l, seg(11, 0, i, 1)));
    for (uint32_t i = 0; i < 128; i++)
        bad(l, seg(11, 0, i, 1), ERR_STALE, NONE);
}

/* What landed under an older attempt does not block the new one; landings that
 * end under the old attempt do not count. */
/* RULES 3.2 */
TEST_WITH(new_attempt, struct landing *l, with_blocks(2))
{
    struct begun b;

    T_OK(land(l, seg(11, 0, 0, 4)));
    T_OK(begin(l, seg(11, 0, 4, 4), &b));
    open_use(l, 11, 1);
    run(l, 11, 2, 2);
    T_FALSE(ended(l, &b, 0));
    T_OK(land(l, seg(11, 1, 0, 4)));
    T_OK(land(l, seg(11, 1, 4, 4)));
    bad(l, seg(11, 0, 8, 4), ERR_STALE, NONE);
    open_use(l, 11, 2);
    run(l, 11, 0, 2); /* granted anew: earlier claims are gone */
    T_OK(land(l, seg(11, 2, 0, 4)));
}

/* RULES 3.2 */
TEST_WITH(failed_landing_counts_nothing, struct landing *l, with_blocks(2))
{
    struct begun b;
    uint32_t quiets;

    T_OK(begin(l, seg(11, 0, 4, 4), &b));
    T_FALSE(landing_end(l, b.token, false, &note, &quiets, &quiet));
    T_EQ_U64(landing_active(l), 0);
    T_FALSE(landing_full(l, 3));
}

/* RULES 4.3 */
TEST_WITH(trim_takes_rows_back, struct landing *l, with_blocks(2))
{
    struct begun b;

    run(l, 11, 10, 3);
    T_TRUE(trim(l, 11, 48));
    bad(l, seg(11, 0, 48, 4), ERR_STALE, NONE);
    T_OK(land(l, seg(11, 0, 44, 4)));
    run(l, 11, 20, 1); /* block 20 comes behind block 10 */
    T_OK(begin(l, seg(11, 0, 48, 4), &b));
    T_EQ_U64(b.pieces[0].block, 20);
    T_EQ_U64(b.pieces[0].at, 0);
    close_use(l, 11);
}

TEST_WITH(trim_to_nothing, struct landing *l, with_blocks(2))
{
    struct begun b;

    T_TRUE(trim(l, 11, 0));
    bad(l, seg(11, 0, 0, 4), ERR_STALE, NONE);
    run(l, 11, 7, 1);
    T_OK(begin(l, seg(11, 0, 0, 4), &b));
    T_EQ_U64(b.pieces[0].block, 7);
}

/* A landing that is under way in a trimmed block does not count, and is still
 * tracked. */
TEST_WITH(trim_with_a_landing, struct landing *l, with_blocks(4))
{
    struct begun in, out, half;

    T_OK(begin(l, seg(11, 0, 8, 4), &in));
    T_OK(begin(l, seg(11, 0, 48, 4), &out));
    T_OK(begin(l, seg(11, 0, 12, 20), &half));
    T_FALSE(trim(l, 11, 16));
    run(l, 11, 20, 4); /* the same rows again, elsewhere */
    T_FALSE(ended(l, &out, 0));
    T_TRUE(ended(l, &half, 0));
    T_EQ_U64(note.first, 12);
    T_EQ_U64(note.rows, 4);
    T_TRUE(ended(l, &in, 1));
    T_EQ_U64(quiet.type, NOTE_LAND_QUIET);
    T_EQ_U64(quiet.slot, 3);
    T_EQ_U64(quiet.generation, 11);
    T_OK(land(l, seg(11, 0, 48, 4)));
}

/* TRIM and CLOSE are each answered once, by the last landing that began before
 * them. */
TEST_WITH(every_fence_is_answered, struct landing *l, with_blocks(4))
{
    struct begun a, b, c;

    T_OK(begin(l, seg(11, 0, 0, 4), &a));
    T_OK(begin(l, seg(11, 0, 4, 4), &b));
    T_FALSE(trim(l, 11, 32)); /* waits for a and b */
    T_OK(begin(l, seg(11, 0, 8, 4), &c));
    T_TRUE(ended(l, &b, 0));
    T_FALSE(close_use(l, 11)); /* waits for a and c; b has ended */
    T_FALSE(ended(l, &a, 1));
    T_FALSE(ended(l, &c, 1));
    T_TRUE(close_use(l, 11)); /* the use is closed: quiet at once */
}

TEST_WITH(two_fences_on_one_landing, struct landing *l, with_blocks(4))
{
    struct begun a;

    T_OK(begin(l, seg(11, 0, 0, 4), &a));
    T_FALSE(trim(l, 11, 32));
    T_FALSE(close_use(l, 11));
    T_FALSE(ended(l, &a, 2));
}

/* The slot is used again while old landings are under way. */
TEST_WITH(quiet_of_an_older_generation, struct landing *l, with_blocks(2))
{
    struct begun a, b;
    uint64_t next = 11 + SLOTS;

    T_OK(begin(l, seg(11, 0, 0, 4), &a));
    T_FALSE(close_use(l, 11));
    open_use(l, next, 0);
    run(l, next, 4, 2);
    T_OK(begin(l, seg(next, 0, 0, 4), &b));
    T_FALSE(close_use(l, next));
    T_FALSE(close_use(l, 11)); /* asked and answered again */
    T_FALSE(ended(l, &b, 1));
    T_EQ_U64(quiet.generation, next);
    T_FALSE(ended(l, &a, 2));
    T_EQ_U64(quiet.generation, 11);
}

TEST_WITH(close_without_reply_is_silent, struct landing *l, make_one())
{
    bool answered;

    open_use(l, 11, 0);
    T_TRUE(give(l, cmd_of(LAND_CLOSE, 11), &answered));
    T_FALSE(answered);
    T_FALSE(give(l, cmd_of(LAND_CLOSE, 11), &answered));
    T_FALSE(answered);
}

TEST(landings_are_bounded)
{
    struct landing_pool pool = {2048, 1, 1, 4096, ROW};
    struct landing *l = make(0, 1, &pool, 1);
    struct begun b;
    uint32_t quiets;

    open_use(l, 11, 0);
    run(l, 11, 0, 2048);
    for (uint32_t i = 0; i < LANDINGS_MIN; i++)
        T_OK(begin(l, seg(11, 0, i, 1), &b));
    T_ERR(begin(l, seg(11, 0, 2000, 1), &b), ERR_BUSY);
    T_TRUE(landing_end(l, 500, true, &note, &quiets, &quiet));
    /* the refused landing claimed no row */
    T_OK(begin(l, seg(11, 0, 2000, 1), &b));
    T_EQ_U64(landing_active(l), LANDINGS_MIN);
}

/* A stream gives back blocks that are read: those wholly below the base. */
TEST_WITH(base_moves, struct landing *l, with_blocks(4))
{
    struct data_cmd c = cmd_of(LAND_BASE, 11);
    struct begun b;

    run(l, 11, 8, 2);
    for (uint32_t r = 0; r < 96; r += 16)
        T_OK(land(l, seg(11, 0, r, 16)));
    c.a = 40; /* two and a half blocks: the run is cut */
    T_TRUE(give(l, c, NULL));
    open_use(l, 12, 0);
    run(l, 12, 0, 2); /* the two blocks belong to another room now */
    T_OK(land(l, seg(12, 0, 0, 32)));
    bad(l, seg(11, 0, 0, 4), ERR_STALE, NONE);
    bad(l, seg(11, 0, 28, 4), ERR_STALE, NONE);
    bad(l, seg(11, 0, 40, 4), ERR_STALE, NONE);
    run(l, 11, 20, 2);
    T_OK(begin(l, seg(11, 0, 96, 32), &b));
    T_EQ_U64(b.pieces[0].block, 20);
    c.a = 128; /* all rows are read */
    T_TRUE(give(l, c, NULL));
    run(l, 11, 30, 1);
    T_OK(begin(l, seg(11, 0, 128, 4), &b));
    T_EQ_U64(b.pieces[0].block, 30);
}

/* A new attempt of a stream starts behind what was read. */
TEST_WITH(open_with_a_base, struct landing *l, make_one())
{
    struct data_cmd c = cmd_of(LAND_OPEN, 11);
    struct begun b;

    c.attempt = 1;
    c.base = 32;
    c.from = 36;
    give(l, c, NULL);
    run(l, 11, 6, 2);
    bad(l, seg(11, 1, 32, 4), ERR_STALE, NONE);
    T_OK(begin(l, seg(11, 1, 36, 4), &b));
    T_EQ_U64(b.pieces[0].block, 6);
    T_EQ_U64(b.pieces[0].at, 4);
    T_ERR(begin(l, seg(11, 1, 64, 4), &b), ERR_STALE);
}

/* The rows of a part are taken by exactly one of n shards. */
TEST(parts_belong_to_one_shard)
{
    for (uint32_t shards = 1; shards <= 5; shards++)
        for (uint64_t g = 11; g < 20; g++) {
            uint32_t takes[16] = {0};

            for (uint32_t i = 0; i < shards; i++) {
                struct landing *l = make(i, shards, &POOL, 1);

                open_use(l, g, 0);
                run(l, g, 0, 32);
                for (uint32_t p = 0; p < 16; p++) {
                    enum err e = land(l, seg(g, 0, p * 32, 32));

                    T_CHECK(e == OK || e == ERR_MALFORMED, "part %u: %s", p,
                        err_name(e));
                    takes[p] += e == OK;
                }
                T_TRUE(landing_full(l, (uint32_t)(g % SLOTS)));
            }
            for (uint32_t p = 0; p < 16; p++)
                T_EQ_U64(takes[p], 1);
        }
}

TEST(full_means_our_share)
{
    struct landing *l = make(1, 3, &POOL, 1);
    struct data_cmd c = cmd_of(LAND_TOTAL, 12);
    struct segment s = seg(12, 0, 128, 2);

    open_use(l, 12, 0); /* parts 1 and 4 are shard 1's */
    run(l, 12, 0, 9);
    c.total = 130;
    give(l, c, NULL);
    T_FALSE(landing_full(l, 4));
    T_OK(land(l, seg(12, 0, 32, 32)));
    T_FALSE(landing_full(l, 4));
    s.total = 130;
    T_OK(land(l, s));
    T_TRUE(landing_full(l, 4));
}

/* Random grants, sizes, orders, duplicates: every row lands once, where its
 * block is. The model knows the place of every row. */
static void random_room(uint64_t *seed)
{
    struct landing *l = make_one();
    uint32_t place[64 * 16], landed[64 * 16] = {0}, blocks[64], n = 64;
    uint32_t held = 0;
    uint64_t g = t_rand(seed) >> 20;

    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t k = (uint32_t)t_rand_below(seed, i + 1), t = blocks[i];

        blocks[i] = blocks[k];
        blocks[k] = t;
    }
    open_use(l, g, 0);
    for (int turn = 0; turn < 3000; turn++) {
        uint32_t first = (uint32_t)t_rand_below(seed, 300) * 4;
        uint32_t rows = (1 + (uint32_t)t_rand_below(seed, 8)) * 4;
        struct begun b;

        if (held < n && t_rand_below(seed, 20) == 0) {
            run(l, g, blocks[held], 1);
            for (uint32_t r = 0; r < 16; r++)
                place[held * 16 + r] = blocks[held] * 16 + r;
            held++;
        }
        if (begin(l, seg(g, 0, first, rows), &b) == OK) {
            uint32_t row = first;

            for (uint32_t i = 0; i < b.n; i++)
                for (uint32_t r = 0; r < b.pieces[i].rows; r++, row++) {
                    T_EQ_U64(b.pieces[i].block * 16 + b.pieces[i].at + r,
                        place[row]);
                    landed[row]++;
                    T_EQ_U64(landed[row], 1);
                }
            T_EQ_U64(row, first + rows);
            T_TRUE(ended(l, &b, 0));
        }
    }
    for (uint32_t r = 0; r < held * 16; r += 4)
        if (!landed[r])
            T_OK(land(l, seg(g, 0, r, 4)));
    T_TRUE(landing_full(l, (uint32_t)(g % SLOTS)));
}

/* RULES 3.2 */
TEST(every_row_lands_once)
{
    uint64_t seed = 42;

    for (int i = 0; i < 50; i++)
        random_room(&seed);
}

/* Which peer sends to a use, and whether a copy for it still counts. */
TEST_WITH(peers_and_what_counts, struct landing *l, make_one())
{
    struct data_cmd c = cmd_of(LAND_OPEN, 5);
    uint32_t peer = 77, pool = 77;
    struct begun b[2];

    c.peer = 3;
    T_TRUE(give(l, c, NULL));
    T_TRUE(run(l, 5, 0, 2));
    T_FALSE(landing_peer(l, 5 + SLOTS, &peer, &pool));
    T_FALSE(landing_peer(l, 6, &peer, &pool));
    T_EQ_U64(peer, 77);
    T_TRUE(landing_peer(l, 5, &peer, &pool));
    T_EQ_U64(peer, 3);
    T_EQ_U64(pool, 0);
    T_OK(begin(l, seg(5, 0, 0, 16), &b[0]));
    T_OK(begin(l, seg(5, 0, 16, 16), &b[1]));
    T_FALSE(trim(l, 5, 16));
    T_TRUE(landing_counts(l, b[0].token));
    T_FALSE(landing_counts(l, b[1].token));
    T_FALSE(close_use(l, 5));
    T_FALSE(landing_counts(l, b[0].token));
    T_FALSE(landing_peer(l, 5, &peer, &pool));
}

/* A known sender lands rows only in its own rooms, and takes no place in rooms
 * of others. */
/* RULES 10.6 */
TEST_WITH(rows_come_from_the_peer_of_the_room, struct landing *l, make_one())
{
    struct data_cmd c = cmd_of(LAND_OPEN, 5);
    struct begun b;

    c.peer = 3;
    T_TRUE(give(l, c, NULL));
    T_TRUE(run(l, 5, 0, 2));
    for (uint32_t who = 0; who < 6; who++)
        if (who != 3) {
            T_ERR(begin_by(l, who, seg(5, 0, 0, 16), &b), ERR_STALE);
            T_EQ_U64(b.bad, NONE);
            T_EQ_U64(b.token, 77);
        }
    T_EQ_U64(landing_active(l), 0);
    T_OK(begin_by(l, 3, seg(5, 0, 0, 16), &b));
    T_OK(begin_by(l, NONE, seg(5, 0, 16, 16), &b));
    T_ERR(begin_by(l, 3, seg(5, 0, 16, 16), &b), ERR_STALE);
}
