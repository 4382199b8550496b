/* encoded_lend_test.c - rows that language engines of this host read in the
 * encode side's pool: which processes may, when LEND goes out, and what a langd
 * is asked for instead (RULES 6.7). Blocks are 8 rows, the pool has 16; langd
 * `a` maps over connection 1, its engines over 2 and up. */
#include "test/unit/lend_side.h"

/* who may read */

/* RULES 6.7 */
TEST_WITH(a_reader_has_the_token_of_its_langd, struct rig *e, mapped(NULL))
{
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
TEST_WITH(the_langd_s_own_token_makes_no_reader, struct rig *e, lent())
{
    uint64_t token = token_of(e, 0, hello("a", L_EPOCH, 1));

    /* by this token it is the langd that maps, and as an unknown user */
    open_as(e, 2, 7, 50);
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

TEST_WITH(a_reader_only_reads, struct rig *e, mapped(NULL))
{
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
        T_EQ_U64(e->acts[i].word, 0); /* the descriptor is read-only, too */
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
    brain_is(e, EV_MORE);
    T_EQ_U64(pools_given(e, 2), 0);
}

TEST(so_many_readers_are_given_a_pool_in_turns)
{
    static char layout[1024];
    struct rig *e =
        BRAIN(ROLE_ENCODED, "limits.connections=500", "pools[0].layout=engine");
    struct local_msg m = {.type = LOCAL_POOL};
    struct event ev = {.type = EV_LOCAL, .conn = 0, .local = &m};
    uint32_t given = 0, n = 400;
    uint64_t token;

    for (int i = 0; i < LAYOUT_FIELDS_MAX; i++)
        snprintf(layout + strlen(layout), sizeof(layout) - strlen(layout),
            "%sa_field_of_the_pool_%02d:u8:1", i ? "," : "", i);
    brain_conn(e, 0, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    token = lend_of(e, L_EPOCH);
    for (uint32_t i = 1; i <= n; i++) {
        open_as(e, i, 7, (int32_t)i);
        T_OK(say_map(e, i, "a", L_EPOCH, token));
    }
    m.pool.name = span_str("main");
    m.pool.layout = span_str(layout);
    rig_step(e, &ev);
    for (uint32_t i = 1; i <= n; i++)
        given += pools_given(e, i) == 1;
    T_EQ_U64(given, n);
}

TEST_WITH(of_a_lost_langd_only_who_parts_is_heard, struct rig *e, mapped(NULL))
{
    struct local_msg m = {.type = LOCAL_MAP};

    m.map.token = lend_of(e, L_EPOCH);
    m.map.epoch = L_EPOCH;
    m.map.name = span_str("a");
    m.map.parting = 1;
    link_down(e, 0);
    open_as(e, 2, 7, 50);
    T_ERR(say_map(e, 2, "a", L_EPOCH, m.map.token), ERR_NOT_OWNER);
    open_as(e, 3, 7, 50);
    T_OK(brain_say(e, 3, m));
    T_EQ_U64(pools_given(e, 3), 0);
    says_bye(e, 3);
}

/* LEND */

/* RULES 6.7 */
TEST_WITH(rows_are_lent_after_the_final_commit, struct rig *e, mapped(NULL))
{
    struct local_msg last = commit(0, 8, 8);
    struct reader r;
    struct peer_lend n;
    uint32_t blocks = 0;

    brain_hear(e, 0, hopes(e, 1, 70));
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    T_OK(brain_say(e, 0, commit(0, 0, 8)));
    T_EQ_U64(brain_said_count(e, PEER_WANT), 0);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    last.commit.flags = FLAG_FINAL;
    last.commit.total = 16;
    T_OK(brain_say(e, 0, last));
    T_EQ_U64(brain_said_count(e, PEER_WANT), 0);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 1);
    n = brain_said(e, PEER_LEND, 0)->lend;
    T_EQ_U64(n.pool, 0);
    T_EQ_U64(n.total, 16);
    T_EQ_U64(n.block_rows, 8);
    r = reader_of(n.runs.p, n.runs.len);
    while (r.at < r.len) {
        T_TRUE(get_u32(&r) < 16);
        blocks += get_u32(&r);
    }
    T_EQ_U64(blocks, 2);
    T_TRUE(brain_cmd(e, SEND_OPEN) == NULL);
    T_EQ_U64(brain_stat(e, "lends_refused"), 0);
}

/* RULES 6.7 */
TEST_WITH(lend_is_said_until_the_room_ends, struct rig *e, lent())
{
    brain_pass(e, 3000);
    T_TRUE(brain_said_count(e, PEER_LEND) >= 2);
    brain_hear(e, 0, hopes(e, 1, 70)); /* a repeated INIT */
    /* held back: its aux waits */
    brain_hear(e, 0, about_lend(ROOM_WAITING, FLAG_HELD));
    brain_pass(e, 3000);
    T_TRUE(brain_said_count(e, PEER_LEND) >= 1);
    T_EQ_U64(brain_said_count(e, PEER_WANT), 0);
    ack(e, 0, 1, 70);
    brain_pass(e, DAY_MS);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
}

/* RULES 6.7. The other rooms of a group may wait for that item. */
TEST_WITH(
    what_is_not_shown_gives_way_to_an_item_that_waits, struct rig *e, lent())
{
    brain_hear(e, 0, about_lend(ROOM_WAITING, FLAG_HELD));
    T_OK(brain_say(e, 0, announce(2, 1, 120, 120)));
    brain_pass(e, 3000);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    T_TRUE(brain_said_count(e, PEER_WANT) >= 1);
    T_EQ_U64(brain_free(e), 14); /* it may be shown by now */
    brain_hear(e, 0, resume(1, 70, 0, 16, 0));
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 0);
    T_TRUE(brain_cmd(e, SEND_OPEN) != NULL);
}

/* RULES 6.7 */
TEST(another_run_of_the_langd_is_lent_what_it_maps_itself)
{
    struct rig *e = mapped(NULL);
    struct peer_msg m = hopes(e, 1, 70);

    (void)lend_of(e, NEXT_EPOCH); /* connection 1 belongs to the earlier run */
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    all_rows(e, 0, 16);
    m.from_epoch = NEXT_EPOCH;
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    T_EQ_U64(brain_said_count(e, PEER_WANT), 1);
}

/* RULES 6.7 */
TEST_WITH(who_has_granted_gets_the_rows, struct rig *e, mapped(NULL))
{
    struct peer_msg m = hopes(e, 1, 70);

    m.init.granted = 16;
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    all_rows(e, 0, 16);
    brain_hear(e, 0, m);
    T_EQ_U64(brain_said_count(e, PEER_LEND), 0);
    T_TRUE(brain_cmd(e, SEND_OPEN) != NULL);
}

/* Cases in which langd is asked for a grant instead. */

struct refused {
    const char *name, *a, *b;
    /* all rows are committed, but not finally; an item waits for blocks; L maps
     * no pool */
    bool commits, waits, apart;
    uint16_t required;
};

static void refuses(const struct refused *c)
{
    struct rig *e = encoded(c->a, c->b);
    struct peer_msg m = hopes(e, 1, 70);

    if (!c->apart) {
        uint64_t token = token_of(e, 0, hello("a", L_EPOCH, 0));

        connect_as(e, 1, BRAIN_UID);
        T_OK(say_map(e, 1, "a", L_EPOCH, token));
        brain_hear(e, 0, hello("a", L_EPOCH, 1));
    }
    m.init.required_dst = c->required;
    T_OK(brain_say(e, 0, announce_for(c->required, 1, 0, 16)));
    (void)brain_events(e, 0, 0);
    if (c->waits)
        T_OK(brain_say(e, 0, announce(2, 1, 128, 128)));
    T_OK(brain_say(e, 0, commit(0, 0, 16)));
    if (!c->commits)
        T_OK(brain_say(e, 0, final(0, 16)));
    if (c->required > 1)
        brain_hear(e, 1, two(hopes(e, 1, 71)));
    brain_hear(e, 0, m);
    T_CHECK(brain_said_count(e, PEER_LEND) == 0 &&
                brain_said_count(e, PEER_WANT) == 1,
        "%s: %u LEND, %u WANT", c->name, brain_said_count(e, PEER_LEND),
        brain_said_count(e, PEER_WANT));
    T_CHECK(brain_stat(e, "lends_refused") == c->required, "%s: %llu refused",
        c->name, (unsigned long long)brain_stat(e, "lends_refused"));
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 0);
}

/* RULES 6.7 */
TEST(a_langd_is_asked_for_a_grant_where_rows_are_not_lent)
{
    static const struct refused t[] = {
        {.name = "all rows without final", .commits = true, .required = 1},
        {.name = "an item waits for blocks", .waits = true, .required = 1},
        {.name = "the langd maps nothing", .apart = true, .required = 1},
        {"a pool that is not lent", "pools[0].lend=no", .required = 1},
        {"huge pages", "pools[0].huge_pages=true", .required = 1},
        {"a GPU", "pools[0].memory=cuda:0", .required = 1},
        {"copies only", "transfer.same_host=copy", .required = 1},
        {.name = "several destinations", .required = 2}};

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++)
        refuses(&t[i]);
}

/* RULES 6.7, 10.5 */
TEST(a_langd_is_lent_its_share_of_the_pool)
{
    struct rig *e = mapped(NULL);

    T_TRUE(goes(e, 1, 0, 70, 56)); /* seven blocks of sixteen */
    T_FALSE(goes(e, 2, 1, 71, 16));
    T_EQ_U64(brain_stat(e, "lends_refused"), 1);
    T_TRUE(goes(e, 3, 2, 72, 8));
    T_FALSE(goes(e, 4, 3, 73, 8));
    T_EQ_U64(brain_stat(e, "lends_refused"), 2);
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 8);
    ack(e, 0, 1, 70);
    brain_hear(e, 0, about(1, 70, PEER_RETURN));
    T_TRUE(goes(e, 5, 4, 74, 8));
}

/* RULES 5.12 */
TEST_ENCODED(
    a_room_that_hopes_keeps_no_blocks_from_a_full_one, "timeouts.progress=10s")
{
    maps(e, 1);
    T_OK(brain_say(e, 0, announce(1, 0, 128, 128)));
    brain_hear(e, 0, hopes(e, 1, 70));
    SAYS(e, 0, commit(0, 0, 8), announce(2, 1, 64, 64));
    HEARS(e, 1, asks(e, 2, 82), grants(2, 82, 64, FIRM_YES));
    brain_pass(e, 1000);
    T_EQ_U64(brain_said(e, PEER_WANT, -1)->generation, 70);
    brain_hear(e, 0, state(1, 70, PEER_WANT, ROOM_WAITING));
    brain_pass(e, 8000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 0);
    brain_pass(e, 2000);
    T_EQ_U64(brain_stat(e, "sources_revoked"), 1);
}
