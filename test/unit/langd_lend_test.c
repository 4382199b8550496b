/* langd_lend_test.c - the language side with an encoder that lends: which
 * engines are told of it, which rooms hope for its rows, and what LEND does to
 * them (RULES 6.7). Blocks are 8 rows of 4 KiB, the pool has 16. */
#include "test/unit/lender_side.h"

/* lenders */

static bool notified(const struct rig *l, uint32_t conn)
{
    bool found = false;

    for (uint32_t i = 0; i < l->acts_count; i++)
        found |= l->acts[i].type == ACT_NOTIFY && l->acts[i].conn == conn;
    return found;
}

static void told_once(
    struct rig *l, uint32_t conn, uint16_t number, uint64_t token)
{
    const struct local_lender *n = told_of(l, conn);

    T_TRUE(n != NULL);
    T_EQ_U64(n->lender, number);
    T_EQ_U64(n->token, token);
    T_EQ_U64(n->epoch, BRAIN_EPOCH);
    T_TRUE(span_eq(n->name, span_str(l->conf.name)));
    T_TRUE(span_eq(n->socket, span_str("/run/enc.sock")));
    T_TRUE(told_of(l, conn) == NULL);
}

/* RULES 6.7 */
TEST_LANGD(engines_that_can_are_told_of_a_lender_once)
{
    able(l, 1, "able");
    T_TRUE(told_of(l, 1) == NULL);
    lends(l, LEND);
    T_TRUE(notified(l, 1) && !notified(l, 0));
    told_once(l, 1, 1, LEND);
    T_TRUE(told_of(l, 0) == NULL);
    able(l, 2, "able"); /* an engine that connects later */
    T_TRUE(notified(l, 2));
    told_once(l, 2, 1, LEND);
    lends(l, LEND); /* repeated by the encoder */
    T_FALSE(notified(l, 1));
    T_TRUE(told_of(l, 1) == NULL);
    lends(l, LEND + 1);
    told_once(l, 1, 2, LEND + 1);
    told_once(l, 2, 2, LEND + 1);
    able(l, 3, "able");
    told_once(l, 3, 2, LEND + 1);
    T_TRUE(told_of(l, 0) == NULL);
}

/* RULES 6.7 */
TEST(who_does_not_lend_is_no_lender)
{
    static const char *const conf[] = {
        NULL, NULL, NULL, "transfer.same_host=copy", "transfer.same_host=off"};

    for (uint32_t i = 0; i < ARRAY_LEN(conf); i++) {
        struct rig *l = langd_up(conf[i], NULL);
        struct peer_msg m = lender(i == 0 ? 0 : LEND);

        m.hello.boot.b[0] = i == 1;
        m.hello.socket = span_str(i == 2 ? "" : "/run/enc.sock");
        able(l, 1, "able");
        brain_hear(l, 0, m);
        T_CHECK(told_of(l, 1) == NULL, "case %u", i);
    }
}

/* The engines want rows on a GPU; lent rows lie in host memory. */
TEST(rooms_of_a_pool_on_a_gpu_do_not_hope)
{
    struct rig *l = lending("pools[0].memory=cuda:0", NULL);
    struct there t;

    maps(l, 1, 1, 1);
    (void)brain_events(l, 1, 0);
    T_FALSE(hopes(l, 1, large(1, 0), &t));
}

/* RULES 6.7 */
TEST(a_lender_that_is_back_is_the_same_one)
{
    struct there t;
    struct rig *l = hoping(&t);

    brain_down(l, 0);
    brain_pass(l, 600);
    T_EQ_U64(brain_reason(l, 1, 0), ERR_PEER_LOST);
    T_OK(brain_say(l, 1, release(0, ROWS_UNKNOWN)));
    (void)brain_events(l, 1, 0);
    lends(l, LEND);
    T_TRUE(told_of(l, 1) == NULL);
    T_TRUE(hopes(l, 1, large(2, 1), &t));
    lends(l, LEND + 1); /* another run */
    told_once(l, 1, 2, LEND + 1);
    T_FALSE(hopes(l, 1, large(3, 2), &t));
    T_EQ_U64(brain_stat(l, "lends_unmapped"), 1);
    maps(l, 1, 2, 1);
    T_TRUE(hopes(l, 1, large(4, 3), &t));
}

/* hopes */

struct hope {
    const char *name, *conf;
    uint32_t rows;
    uint16_t readers, required;
    /* maps: number of the session's connections that have mapped */
    uint8_t mode, maps;
    bool group, unable, unmapped; /* one connection cannot map, or has not */
    bool hopes;
};

static bool tries(const struct hope *c)
{
    struct rig *l = lending(c->conf, NULL);
    struct local_msg m = large(1, 0);
    struct there t;

    for (uint32_t i = 1; i <= c->maps; i++) {
        if (i > 1)
            able(l, i, "able");
        maps(l, i, 1, 1);
    }
    able(l, 6, "another");
    if (c->unmapped)
        able(l, 7, "able");
    else if (c->unable)
        brain_conn(l, 7, "able");
    m.request.mode = c->mode;
    m.request.rows = c->rows;
    m.request.readers = c->readers;
    m.request.required_dst = c->required;
    m.request.group = c->group ? 9 : 0;
    m.request.group_size = c->group;
    return hopes(l, 1, m, &t);
}

/* RULES 6.7 */
TEST(a_room_hopes_if_all_that_it_may_be_shown_to_can_read_it)
{
    static const struct hope t[] = {
        {.name = "256 KiB", .rows = 64, .maps = 1, .hopes = true},
        {.name = "one destination",
            .rows = 64,
            .required = 1,
            .maps = 1,
            .hopes = true},
        {.name = "less", .rows = 63, .maps = 1},
        {.name = "default blocks of less", .rows = 0, .maps = 1},
        {"of 256 KiB", "pools[0].default_blocks=8", 0, .maps = 1,
            .hopes = true},
        {"any size", "transfer.same_host=lend", 1, .maps = 1, .hopes = true},
        {"nor then", "transfer.same_host=lend", 0, .maps = 1, .hopes = true},
        {.name = "stream", .rows = 64, .mode = MODE_STREAM, .maps = 1},
        {.name = "group", .rows = 64, .group = true, .maps = 1, .hopes = true},
        {.name = "two destinations", .rows = 64, .required = 2, .maps = 1},
        {.name = "a reader to come", .rows = 64, .readers = 1, .maps = 1},
        {.name = "that has come",
            .rows = 64,
            .readers = 1,
            .maps = 2,
            .hopes = true},
        {.name = "and one more", .rows = 64, .readers = 2, .maps = 2},
        {.name = "none has mapped", .rows = 64},
        {.name = "one has not", .rows = 64, .maps = 2, .unmapped = true},
        {.name = "one cannot", .rows = 64, .maps = 2, .unable = true}};

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++)
        T_CHECK(tries(&t[i]) == t[i].hopes, "%s", t[i].name);
}

/* RULES 6.7 */
TEST(want_ends_the_hope)
{
    struct there t;
    struct rig *l = hoping(&t);

    T_EQ_U64(brain_free(l), 16);
    brain_hear(l, 0, want(&t, 0, 0, 64));
    is_granted(l);
    told(l, &t);
    brain_hear(l, 0, lend(&t)); /* a LEND that the encoder had sent before */
    T_FALSE(held(l));
    T_EQ_U64(brain_state(l, 1, 0), ROOM_WAITING);
    brain_landed(l, &t.open, 0, 64);
    T_EQ_U64(ready(l, 1)->pool, 0);
    T_OK(brain_say(l, 1, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
    T_EQ_U64(brain_stat(l, "rooms_lent"), 0);
}

/* RULES 6.7 */
TEST(a_short_length_ends_the_hope)
{
    for (uint32_t rows = 62; rows < 66; rows++) {
        struct rig *l = lending("pools[0].default_blocks=8", NULL);
        struct local_msg m = large(1, 0);
        struct there t;

        maps(l, 1, 1, 1);
        m.request.rows = 0;
        T_TRUE(hopes(l, 1, m, &t));
        brain_hear(l, 0, length(&t, rows, rows, false));
        T_CHECK((brain_free(l) < 16) == (rows < 64), "%u rows", rows);
    }
}

/* RULES 6.7 */
TEST(a_room_of_no_rows_needs_none)
{
    struct rig *l = lending("transfer.same_host=lend", NULL);
    struct there t;

    maps(l, 1, 1, 1);
    T_TRUE(hopes(l, 1, large(1, 0), &t));
    brain_hear(l, 0, length(&t, 0, 0, true));
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    T_OK(brain_say(l, 1, release(0, ROWS_UNKNOWN)));
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
}

/* LEND */

/* RULES 6.7 */
TEST(a_lent_room_is_ready_in_its_encoder_s_pool)
{
    struct there t;
    struct rig *l = hoping(&t);
    const struct local_event *e;
    struct reader r;

    brain_hear(l, 0, lend(&t));
    T_TRUE(held(l));
    T_EQ_U64(brain_said_count(l, PEER_ACK), 1);
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    T_EQ_U64(brain_free(l), 16);
    e = ready(l, 1);
    T_TRUE(e != NULL);
    T_EQ_U64(e->pool, LENT_POOL);
    T_EQ_U64(e->first, 0);
    T_EQ_U64(e->rows, 64);
    T_EQ_U64(e->total, 64);
    T_TRUE(span_eq(e->aux, span_str("aux!")));
    T_EQ_U64(e->runs.len, 8);
    r = reader_of(e->runs.p, e->runs.len);
    T_EQ_U64(get_u32(&r), 3);
    T_EQ_U64(get_u32(&r), 8);
    T_EQ_U64(brain_stat(l, "rooms_lent"), 1);
    brain_hear(l, 0, lend(&t)); /* is said again */
    T_TRUE(held(l));
    T_EQ_U64(brain_stat(l, "rooms_lent"), 1);
}

struct bad {
    const char *name;
    uint32_t total, block_rows, pool, len, runs[4];
};

/* RULES 6.7 */
TEST(a_lend_that_is_none_is_not_taken)
{
    static const struct bad bad[] = {{"fewer rows", 63, 8, 0, 8, {3, 8}},
        {"more rows", 65, 8, 0, 16, {3, 8, 20, 1}},
        {"too few blocks", 64, 8, 0, 8, {3, 7}},
        {"smaller blocks", 64, 7, 0, 8, {3, 8}},
        {"blocks of nothing", 64, 0, 0, 8, {3, 8}},
        {"no runs", 64, 8, 0, 0, {0}}, {"half a run", 64, 8, 0, 12, {3, 8, 0}},
        {"an odd byte", 64, 8, 0, 9, {3, 8, 0}},
        {"a run of none", 64, 8, 0, 16, {3, 8, 20, 0}},
        {"a run around", 64, 8, 0, 8, {UINT32_MAX - 6, 8}},
        {"pool that cannot be", 64, 8, 16, 8, {3, 8}},
        {"pool that is not mapped", 64, 8, 1, 8, {3, 8}}};
    uint8_t bytes[16];

    for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct there t;
        struct rig *l = hoping(&t);
        struct peer_msg m = lend(&t);
        struct writer w = writer_of(bytes, sizeof(bytes));

        for (uint32_t k = 0; k < 4; k++)
            put_u32(&w, bad[i].runs[k]);
        m.lend.total = bad[i].total;
        m.lend.block_rows = bad[i].block_rows;
        m.lend.pool = (uint8_t)bad[i].pool;
        m.lend.runs = span_of(bytes, bad[i].len);
        maps(l, 1, 2, 1); /* the same pool: 16 of lender 1 */
        brain_hear(l, 0, m);
        T_CHECK(!held(l), "%s", bad[i].name);
        T_EQ_U64(brain_state(l, 1, 0), ROOM_WAITING);
        is_granted(l);
        told(l, &t);
        brain_landed(l, &t.open, 0, 64);
        T_EQ_U64(ready(l, 1)->pool, 0);
    }
}

/* RULES 6.7 */
TEST(a_lend_before_its_length_is_not_taken)
{
    struct rig *l = lending(NULL, NULL);
    struct there t;

    maps(l, 1, 1, 1);
    T_TRUE(hopes(l, 1, large(1, 0), &t));
    brain_hear(l, 0, lend(&t));
    T_FALSE(held(l));
    is_granted(l);
}

/* RULES 6.7 */
TEST(each_that_the_room_is_shown_to_maps_that_pool)
{
    for (uint16_t pools = 1; pools <= 3; pools++) {
        struct rig *l = lending(NULL, NULL);
        struct there t;

        able(l, 2, "able");
        maps(l, 1, 1, 1);
        maps(l, 2, 1, pools);
        T_TRUE(hopes(l, 1, large(1, 0), &t));
        T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
        HEARS(l, 0, length(&t, 64, 64, true), lend(&t));
        T_EQ_U64(held(l), pools & 1);
        T_EQ_U64(ready(l, 2) != NULL, pools & 1);
        T_EQ_U64(brain_free(l), pools & 1 ? 16 : 8);
    }
}

/* groups */

/* Returns a rig with a group of two rooms, in cells 0 and 1 of engine 1. Each
 * of them hopes and has its length. */
static struct rig *two_hope(struct there t[2])
{
    struct rig *l = lending(NULL, NULL);

    maps(l, 1, 1, 1);
    (void)brain_events(l, 1, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct local_msg m = large(1 + i, i);

        m.request.group = 9;
        m.request.group_size = 2;
        T_TRUE(hopes(l, 1, m, &t[i]));
        brain_hear(l, 0, length(&t[i], 64, 64, true));
    }
    return l;
}

/* Checks that both rooms got blocks in the last step, and takes their rows. */
static void both_are_copied(struct rig *l)
{
    struct data_cmd open[2];
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->acts_count; i++)
        if (l->acts[i].type == ACT_DATA && l->acts[i].cmd.type == LAND_OPEN &&
            n < 2)
            open[n++] = l->acts[i].cmd;
    T_EQ_U64(n, 2);
    T_EQ_U64(brain_free(l), 0);
    for (uint32_t i = 0; i < 2; i++)
        brain_landed(l, &open[i], 0, 64);
    for (uint32_t i = 0; i < 2; i++) {
        T_EQ_U64(brain_state(l, 1, i), ROOM_SUCCESS);
        T_OK(brain_say(l, 1, release(i, ROWS_UNKNOWN)));
    }
    T_EQ_U64(brain_free(l), 16);
    T_EQ_U64(brain_stat(l, "rooms_lent"), 0);
    T_EQ_U64(brain_said_count(l, PEER_RETURN), 0);
}

/* RULES 5.5, 6.7 */
TEST(a_group_is_shown_once_all_of_it_is_lent)
{
    struct there t[2];
    struct rig *l = two_hope(t);

    for (uint32_t i = 0; i < 2; i++) { /* it is repeated */
        brain_hear(l, 0, lend(&t[0]));
        T_TRUE(held(l));
        T_EQ_U64(brain_state(l, 1, 0), ROOM_WAITING);
        T_EQ_U64(brain_said_count(l, PEER_ACK), 0);
    }
    brain_hear(l, 0, lend(&t[1]));
    for (uint32_t i = 0; i < 2; i++) {
        T_EQ_U64(brain_state(l, 1, i), ROOM_SUCCESS);
        T_EQ_U64(ready(l, 1)->pool, LENT_POOL);
    }
    T_EQ_U64(brain_stat(l, "rooms_lent"), 2);
    T_EQ_U64(brain_free(l), 16);
    for (uint32_t i = 0; i < 2; i++) {
        T_OK(brain_say(l, 1, release(i, ROWS_UNKNOWN)));
        T_EQ_U64(brain_said_count(l, PEER_RETURN), 1);
    }
}

/* RULES 6.7 */
TEST(a_group_of_which_one_is_not_lent_takes_blocks)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct there t[2];
        struct rig *l = two_hope(t);

        brain_hear(l, 0, lend(&t[0]));
        if (i < 2) /* its encoder has an item that waits, or the other one's */
            brain_hear(l, 0, want(&t[i], 0, 0, 64));
        else if (i == 2)
            able(l, 2, "able");
        if (i == 2)
            T_OK(brain_say(l, 2, attach(1, 5, RIGHT_READ)));
        if (i == 3) { /* no lend of this room */
            struct peer_msg m = lend(&t[1]);

            m.lend.total = 63;
            brain_hear(l, 0, m);
            T_FALSE(held(l));
        }
        both_are_copied(l);
    }
}

/* RULES 6.7 */
TEST(a_group_hopes_only_with_its_last_member)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct rig *l = lending(NULL, NULL);
        struct there t[2];

        maps(l, 1, 1, 1);
        for (uint32_t k = 0; k < 2; k++) {
            struct local_msg m = large(1 + k, k);

            m.request.rows = k == i ? 63 : 64; /* one is small */
            m.request.group = 9;
            m.request.group_size = 2;
            T_EQ_U64(hopes(l, 1, m, &t[k]), i == 1 && k == 0);
        }
        for (uint32_t k = 0; k < 2; k++)
            brain_hear(l, 0, length(&t[k], 64, 64, true));
        both_are_copied(l);
    }
}

/* RULES 6.7 */
TEST(a_group_is_shown_without_those_that_failed)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct there t[2];
        struct rig *l = two_hope(t);
        struct peer_msg m = about(&t[i], PEER_FAILED);

        m.failed.reason = ERR_ENGINE_LOST;
        brain_hear(l, 0, lend(&t[0]));
        brain_hear(l, 0, m);
        if (i == 0)
            brain_hear(l, 0, lend(&t[1]));
        T_EQ_U64(brain_reason(l, 1, i), ERR_ENGINE_LOST);
        T_EQ_U64(brain_state(l, 1, 1 - i), ROOM_SUCCESS);
        for (uint32_t k = 0; k < 2; k++)
            T_OK(brain_say(l, 1, release(k, ROWS_UNKNOWN)));
        T_EQ_U64(brain_free(l), 16);
    }
}
