/* encoded_lend_test.c - rows that language engines of this host read in the
 * encode side's pool: which processes may, when LEND goes out, and what a langd
 * is asked for instead (RULES 6.7). Blocks are 8 rows, the pool has 16; langd
 * `a` maps over connection 1, its engines over 2 and up. */
#include "test/unit/lend_side.h"

/* who may read */

/* RULES 6.7 */
TEST(a_reader_has_the_token_of_its_langd)
{
    struct rig *e = mapped(NULL);
    uint64_t lend = lend_of(e, L_EPOCH);
    const struct {
        const char *name;
        uint64_t epoch, token;
        enum err err;
    } t[] = {{"a", L_EPOCH, lend, OK}, {"b", L_EPOCH, lend, ERR_NOT_OWNER},
        {"c", L_EPOCH, lend, ERR_NOT_OWNER},
        {"a", L_EPOCH + 1, lend, ERR_NOT_OWNER},
        {"a", L_EPOCH, lend ^ 2, ERR_NOT_OWNER},
        {"a", L_EPOCH, 0, ERR_NOT_OWNER}};

    T_TRUE(lend != 0 && lend != token_of(e, 0, hello("a", L_EPOCH, 1)));
    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        open_as(e, 2, 7, 50);
        T_ERR(say_map(e, 2, t[i].name, t[i].epoch, t[i].token), t[i].err);
        T_EQ_U64(pools_given(e, 2), t[i].err == OK);
        T_EQ_U64(closed(e, 2), t[i].err != OK);
        T_EQ_U64(stays(e, 2), t[i].err == OK);
        brain_dead(e, 2);
    }
}

/* RULES 6.7 */
TEST(the_langd_s_own_token_makes_no_reader)
{
    struct rig *e = lent();
    uint64_t token = token_of(e, 0, hello("a", L_EPOCH, 1));

    open_as(e, 2, 7, 50); /* it is the langd that maps now, and untrusted */
    T_OK(say_map(e, 2, "a", L_EPOCH, token));
    T_EQ_U64(pools_given(e, 2), 0);
    T_FALSE(stays(e, 2));
    brain_dead(e, 2);
    loses_langd(e);
    T_FALSE(orphaned(e));
}

TEST(a_daemon_that_does_not_lend_says_no_token_and_takes_none)
{
    static const char *const off[] = {
        "transfer.same_host=copy", "transfer.same_host=off"};
    uint64_t lend = lend_of(mapped(NULL), L_EPOCH);
    struct rig *e;

    T_EQ_U64(lend_of(mapped("transfer.same_host=lend"), L_EPOCH), lend);
    for (uint32_t i = 0; i < ARRAY_LEN(off); i++) {
        e = encoded(off[i], NULL);
        T_EQ_U64(lend_of(e, L_EPOCH), 0);
        open_as(e, 2, 7, 50);
        T_ERR(say_map(e, 2, "a", L_EPOCH, lend), ERR_NOT_OWNER);
    }
}

/* RULES 6.7 */
TEST(a_pool_is_given_to_readers_that_may_use_it_where_it_is_lent)
{
    static const struct {
        const char *a, *b;
        uint32_t pools;
    } t[] = {{NULL, NULL, 1}, {"pools[0].lend=no", NULL, 0},
        {"pools[0].lend=trusted", NULL, 1},
        {"pools[0].huge_pages=true", NULL, 0},
        {"pools[0].huge_pages=true", "pools[0].lend=trusted", 1},
        {"pools[0].huge_pages=true", "pools[0].lend=no", 0},
        {"pools[0].memory=cuda:0", NULL, 0}, {"pools[0].uids[0]=8", NULL, 0},
        {"pools[0].uids[0]=7", NULL, 1}, {"pools[0].gids[0]=8", NULL, 0}};

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        struct rig *e = encoded(t[i].a, t[i].b);

        reads(e, 2, 50);
        T_CHECK(pools_given(e, 2) == t[i].pools, "case %u: %u", i,
            pools_given(e, 2));
    }
}

TEST(a_reader_only_reads)
{
    struct rig *e = mapped(NULL);
    bool found = false;

    reads(e, 2, 50);
    for (uint32_t i = 0; i < e->acts_count; i++) {
        struct reader r = reader_of(e->bytes + e->acts[i].at, e->acts[i].len);
        struct local_msg m;

        if (e->acts[i].type != ACT_LOCAL || local_get(&r, &m) != OK ||
            m.type != LOCAL_POOL_INFO)
            continue;
        found = true;
        T_EQ_U64(m.pool_info.access, 0);
        T_EQ_U64(e->acts[i].word, 0); /* nor is its descriptor for more */
    }
    T_TRUE(found);
    T_ERR(brain_say(e, 2, announce(1, 0, 8, 8)), ERR_NOT_READY);
}

TEST(a_pool_that_gets_its_layout_later_is_given_then_once)
{
    struct rig *e = encoded("pools[0].layout=engine", NULL);
    struct local_msg m = {.type = LOCAL_POOL, .seq = 3};
    struct event ev = {.type = EV_LOCAL, .conn = 0, .local = &m};

    reads(e, 2, 50);
    T_EQ_U64(pools_given(e, 2), 0);
    m.pool.layout = span_str("x:u8:4096");
    rig_step(e, &ev);
    T_EQ_U64(pools_given(e, 2), 1);
    rig_step(e, &(struct event){.type = EV_MORE});
    T_EQ_U64(pools_given(e, 2), 0);
}

/* It comes to say BYE. */
TEST(a_reader_of_a_lost_langd_is_heard_and_given_nothing)
{
    struct rig *e = mapped(NULL);
    uint64_t lend = lend_of(e, L_EPOCH);

    link_down(e, 0);
    open_as(e, 2, 7, 50);
    T_OK(say_map(e, 2, "a", L_EPOCH, lend));
    T_EQ_U64(pools_given(e, 2), 0);
    says_bye(e, 2);
}
