/* encoded_share_test.c - one user fills its share of encoded's tables, and
 * another goes on: connection 0 is user 7's, connection 1 user 8's. */
#include "test/here.h"

static struct rig *two_users(const char *limit)
{
    struct rig *e = BRAIN(ROLE_ENCODED, limit);

    brain_conn(e, 0, "s");
    brain_user(e, 1, 8, "other");
    return e;
}

/* Announces rooms of no rows until one is refused; returns their number. */
static uint32_t take(struct rig *e, uint32_t conn, uint32_t aux_bytes,
    enum err refusal, const char *key)
{
    static uint8_t aux[AUX_MAX];
    struct local_msg m;
    char text[256];
    uint32_t n = 0;
    enum err err;

    do {
        m = announce(100 * conn + n + 1, n, 0, 0);
        m.announce.aux = span_of(aux, aux_bytes);
        err = brain_say(e, conn, m);
        n += err == OK;
    } while (err == OK);
    T_ERR(err, refusal);
    span_copy_str(brain_answer(e)->text, text, sizeof(text));
    T_TRUE(strstr(text, key) && strstr(text, "25% more"));
    return n;
}

/* RULES 7.6 */
TEST(rooms_are_left_for_others)
{
    struct rig *e = two_users("limits.rooms=16");

    T_EQ_U64(take(e, 0, 0, ERR_BUSY, "limits.rooms"), 16);
    T_EQ_U64(take(e, 1, 0, ERR_BUSY, "limits.rooms"), 2);
}

TEST(attachments_are_left_for_others)
{
    struct rig *e = two_users("limits.attachments=16");

    T_EQ_U64(take(e, 0, 0, ERR_QUOTA, "limits.attachments"), 16);
    T_EQ_U64(take(e, 1, 0, ERR_QUOTA, "limits.attachments"), 2);
}

/* RULES 7.6 */
TEST(aux_is_left_for_others)
{
    struct rig *e = two_users("limits.aux_total=64KiB");

    T_EQ_U64(take(e, 0, 4096, ERR_NO_BLOCKS, "limits.aux_total"), 16);
    T_EQ_U64(take(e, 1, 1024, ERR_NO_BLOCKS, "limits.aux_total"), 8);
}

TEST(aux_that_a_commit_replaces_is_counted_once)
{
    static uint8_t aux[AUX_MAX];
    struct rig *e = two_users("limits.aux_total=64KiB");
    struct local_msg m = announce(1, 0, 8, ROWS_UNKNOWN);

    for (uint32_t i = 0; i < 4; i++) {
        m.announce.room = i + 1;
        m.announce.cell = i;
        m.announce.tag = i + 100;
        m.announce.aux = span_of(aux, 30000);
        T_OK(brain_say(e, 0, m));
        m = final(i, 8);
        m.commit.rows = 8;
        m.commit.aux = span_of(aux, 100);
        T_OK(brain_say(e, 0, m));
        m = announce(1, 0, 8, ROWS_UNKNOWN);
    }
    T_EQ_U64(brain_shown(e, "status", "aux_free_bytes", 0), 80 * 1024 - 1024);
}

/* RULES 8.1 */
TEST(no_engine_waits_longer_than_an_hour)
{
    struct rig *e = two_users(NULL);
    struct local_msg m = announce(1, 0, 8, 8);

    m.announce.deadline_ms = UINT32_MAX;
    T_OK(brain_say(e, 0, m));
    brain_pass(e, 3599900);
    T_EQ_U64(brain_state(e, 0, 0), ROOM_BOOTSTRAPPING);
    brain_pass(e, 200);
    T_EQ_U64(brain_reason(e, 0, 0), ERR_TIMEOUT);
}

/* RULES 8.2 */
TEST(a_room_without_source_blocks_says_that_it_lacked_them)
{
    struct rig *e = two_users(NULL);
    struct local_msg m = announce(2, 1, 8, 8);

    T_OK(brain_say(e, 0, announce(1, 0, 128, 128))); /* the whole pool */
    m.announce.deadline_ms = 1000;
    T_OK(brain_say(e, 1, m));
    brain_pass(e, 1100);
    T_EQ_U64(brain_reason(e, 1, 1), ERR_TIMEOUT);
    T_TRUE(brain_event(e, 1) &&
           strstr((const char *)e->event.event.text.p, "no source blocks"));
}

/* The last room of a batch is refused: the others are served without it. */
TEST(a_batch_is_served_when_its_last_room_is_refused)
{
    struct rig *e = two_users("limits.rooms=1");
    struct local_msg m = announce(1, 0, 8, 8);

    m.announce.batch = 1;
    T_OK(brain_say(e, 0, m));
    T_ERR(brain_say(e, 0, announce(2, 1, 8, 8)), ERR_BUSY);
    T_TRUE(brain_events(e, 0, 0) & EVENT_GRANTED);
}

/* User 7 asks for the whole pool forty times; user 8's one room waits for the
 * first of these rooms and one more, not for all. */
/* RULES 5.1 */
TEST(users_take_turns_for_source_blocks)
{
    struct rig *e = two_users("limits.rooms=48");
    uint32_t cells[41];

    for (uint32_t i = 0; i < 40; i++)
        T_OK(brain_say(e, 0, announce(i + 1, i, 128, 128)));
    T_OK(brain_say(e, 1, announce(41, 40, 128, 128)));
    T_OK(brain_say(e, 0, release(0)));
    for (uint32_t i = 0; i < 41; i++)
        cells[i] = i < 3 ? i : i == 3 ? 40 : i - 1;
    for (uint32_t i = 1; i < 41; i++) {
        uint32_t conn = cells[i] == 40;

        for (uint32_t o = i + 1; o < 41; o++)
            T_ERR(brain_say(e, cells[o] == 40, commit(cells[o], 0, 0)),
                ERR_NOT_READY);
        SAYS(e, conn, commit(cells[i], 0, 0), release(cells[i]));
    }
}
