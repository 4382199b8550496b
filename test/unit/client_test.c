/* client_test.c - the rooms of the client library against a double of a
 * daemon's socket: which messages each call sends, and what incoming messages
 * do. client_link_test.c has the connection, test/e2e rooms through real
 * daemons. */
#include "client/client.h"
#include "test/fake_daemon.h"

#include <poll.h>

TEST(words)
{
    const char *text;
    int advice;

    T_EQ_STR(mmx_reason(MMX_E_TOO_LARGE, &text, &advice), "too-large");
    T_HAS(text, "larger than the pool");
    T_EQ_I64(advice, MMX_ADVICE_GIVE_UP);
    T_EQ_STR(mmx_reason(-MMX_E_SPLIT, NULL, NULL), "split");
    T_EQ_STR(mmx_reason(-MMX_E_SYSTEM, NULL, NULL), "system");
    T_EQ_STR(mmx_reason(9999, NULL, NULL), "unknown");
    T_EQ_STR(mmx_advice_name(MMX_ADVICE_ENCODE_LOCALLY), "encode-locally");
    T_EQ_STR(mmx_state_name(MMX_WAITING), "WaitingForInput");
    T_EQ_STR(mmx_state_name(77), "unknown");
    T_EQ_STR(mmx_version(), MMX_VERSION);
    T_EQ_U64(mmx_room_id("", 0), UINT64_C(0xefd01f60ba992926));
    T_EQ_U64(mmx_room_id("a", 1), UINT64_C(0x82a2a958a9bece5b));
    T_EQ_U64(mmx_room_id("room-1", 6), UINT64_C(0x656bb5e56c350c3f));
}

/* A program passes structs of the header with which it was built. */
TEST(structs_of_other_headers)
{
    struct longer {
        struct mmx_attach a;
        uint64_t more;
    } newer = {.a = {.size = sizeof newer, .id = 8}, .more = 9};
    struct mmx_attach older = {
        .size = offsetof(struct mmx_attach, pool), .id = 7, .pool = 9};
    struct mmx_attach got, given = {.id = 5, .pool = 6};

    T_TRUE(CLIENT_TAKE(got, &older));
    T_EQ_U64(got.id, 7);
    T_EQ_I64(got.pool, 0);
    T_TRUE(CLIENT_TAKE(got, &newer));
    T_EQ_U64(got.id, 8);
    T_TRUE(CLIENT_GIVE(&older, given));
    T_EQ_U64(older.size, offsetof(struct mmx_attach, pool));
    T_EQ_U64(older.id, 5);
    T_EQ_I64(older.pool, 9);
    T_TRUE(CLIENT_GIVE(&newer, given));
    T_EQ_I64(newer.a.pool, 6);
    T_EQ_U64(newer.more, 9);
    T_EQ_U64(newer.a.size, sizeof newer);
}

TEST_RIG(encode_room, ROLE_ENCODED)
{
    struct mmx_event ev;
    struct mmx_view v;
    struct mmx_run runs[4];
    uint32_t granted[] = {2, 1, 7, 2};
    uint8_t rows[10 * ROW], back[10 * ROW];
    struct local_msg c;
    mmx_room r = rig_announce(g, 42, 10);

    T_EQ_I64(mmx_view(g->m, r, "a", 0, 1, &v), -MMX_E_NOT_READY);
    fake_answer(&g->f, g->seq, OK, "");
    rig_event(g, r,
        (struct local_event){.what = EVENT_GRANTED | EVENT_WANTED,
            .state = 2,
            .rows = 10,
            .total = 10,
            .a = 1},
        granted, 2);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_GRANTED | MMX_WANTED);
    T_EQ_U64(ev.id, 42);
    T_TRUE(ev.user == g);
    T_EQ_U64(ev.rows, 10);
    T_EQ_I64(mmx_runs(g->m, r, runs, 4), 2);
    T_EQ_U64(runs[0].rows, 4);
    T_EQ_U64(runs[1].first, 4);
    T_EQ_U64(runs[1].rows, 6);
    T_EQ_U64(runs[1].block, 7);
    T_EQ_I64(mmx_view(g->m, r, "a", 0, MMX_ALL, &v), -MMX_E_SPLIT);
    T_EQ_I64(mmx_view(g->m, r, "a", 4, MMX_ALL, &v), 0);
    T_EQ_U64(v.rows, 6);
    T_TRUE(v.data == (uint8_t *)g->pool.base + 7 * BLOCK_ROWS * ROW);
    T_EQ_I64(mmx_view(g->m, r, "a", 4, 7, &v), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_view(g->m, r, "z", 0, 1, &v), -MMX_E_MALFORMED);
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)(i + 1);
    T_EQ_I64(mmx_scatter(g->m, r, "a", 0, 10, rows, 0), 0);
    T_EQ_MEM(g->f.pool + 2 * BLOCK_ROWS * ROW, rows, 4 * ROW);
    T_EQ_MEM(g->f.pool + 7 * BLOCK_ROWS * ROW, rows + 4 * ROW, 6 * ROW);
    T_EQ_I64(mmx_gather(g->m, r, NULL, 0, 10, back, 0), 0);
    T_EQ_MEM(back, rows, sizeof rows);
    T_EQ_I64(mmx_gather(g->m, r, NULL, 0, 11, back, 0), -MMX_E_NOT_READY);

    T_EQ_I64(mmx_commit(g->m, r, 0, 6), 0);
    c = fake_want(&g->f, LOCAL_COMMIT);
    T_EQ_U64(c.commit.rows, 6);
    T_EQ_U64(c.commit.total, ROWS_UNKNOWN);
    T_EQ_U64(c.commit.flags, 0);
    T_EQ_I64(mmx_commit_final(g->m, r, 6, 4, 10, "aux", 3), 0);
    c = fake_want(&g->f, LOCAL_COMMIT);
    T_EQ_U64(c.commit.flags, FLAG_FINAL);
    T_EQ_U64(c.commit.total, 10);
    T_TRUE(span_eq(c.commit.aux, span_str("aux")));

    /* The library answers DONE when the engine gets the event. */
    rig_event(g, r,
        (struct local_event){.what = EVENT_DONE, .state = 4, .a = 1}, NULL, 0);
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_DONE, T_WAIT_MS), 0);
    T_TRUE(fake_idle(&g->f));
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_DONE);
    c = fake_want(&g->f, LOCAL_RELEASE);
    T_EQ_U64(c.release.tag, r.tag);
    T_EQ_U64(c.release.rows, MMX_ALL);
    T_EQ_I64(mmx_commit(g->m, r, 0, 1), -MMX_E_STALE);
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), -MMX_E_STALE);
}

TEST_RIG(unknown_length, ROLE_ENCODED)
{
    struct mmx_announce a = {.size = sizeof a, .max_rows = 20};
    struct local_msg m;
    mmx_room r;

    a.pool = g->pool.id;
    T_EQ_I64(mmx_announce(g->m, &a, &r), 0);
    m = fake_want(&g->f, LOCAL_ANNOUNCE);
    T_EQ_U64(m.announce.max_rows, 20);
    T_EQ_U64(m.announce.total, ROWS_UNKNOWN);
    a.rows = 3; /* known, with blocks for more */
    T_EQ_I64(mmx_announce(g->m, &a, &r), 0);
    m = fake_want(&g->f, LOCAL_ANNOUNCE);
    T_EQ_U64(m.announce.max_rows, 20);
    T_EQ_U64(m.announce.total, 3);
    a = (struct mmx_announce){.size = sizeof a, .pool = 5};
    T_EQ_I64(mmx_announce(g->m, &a, &r), -MMX_E_MALFORMED);
}

TEST_RIG(have_and_batch, ROLE_ENCODED)
{
    uint8_t key[32] = {7};
    struct mmx_announce a = {.size = sizeof a, .rows = 4, .key = key};
    struct local_msg m;
    mmx_room r[3];

    a.pool = g->pool.id;
    T_EQ_I64(mmx_cork(g->m), 0);
    for (uint16_t i = 0; i < 3; i++) {
        a.id = i + 1;
        a.batch = (uint16_t)(2 - i);
        a.flags = MMX_KEEP;
        T_EQ_I64(mmx_announce(g->m, &a, &r[i]), 0);
    }
    T_EQ_I64(mmx_uncork(g->m), 0);
    for (uint16_t i = 0; i < 3; i++) {
        m = fake_want(&g->f, LOCAL_ANNOUNCE);
        T_EQ_U64(m.announce.room, i + 1);
        T_EQ_U64(m.announce.batch, 2 - i);
        T_EQ_U64(m.announce.flags, FLAG_KEEP);
        T_EQ_MEM(m.announce.key.b, key, sizeof key);
    }
    rig_event(g, r[1],
        (struct local_event){.what = EVENT_HAVE, .rows = 4, .total = 4}, NULL,
        0);
    T_EQ_I64(mmx_wait_room(g->m, r[1], MMX_GRANTED | MMX_HAVE, T_WAIT_MS), 0);
    T_EQ_U64(rig_one_event(g->m).what, MMX_HAVE);
}

/* The reader attaches to a stream after others have released rows. */
TEST_RIG(a_late_reader_hears_gone, ROLE_LANGD)
{
    struct mmx_attach a = {
        .size = sizeof a, .id = 7, .encoder = "e", .rights = MMX_READ};
    struct local_event landed = {.what = EVENT_LANDED,
        .state = 3,
        .pool = 3,
        .first = 4,
        .rows = 8,
        .total = 12};
    struct mmx_view v;
    mmx_room r;

    T_EQ_I64(mmx_attach(g->m, &a, &r), 0);
    rig_event(g, r, landed, (uint32_t[]){2, 1}, 1);
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_LANDED, T_WAIT_MS), 0);
    T_EQ_I64(mmx_view(g->m, r, "a", 4, 4, &v), 0);
    T_EQ_I64(mmx_view(g->m, r, "a", 0, 4, &v), -MMX_E_GONE);
    T_EQ_I64(mmx_view(g->m, r, "a", 8, 1, &v), -MMX_E_NOT_READY);
}

/* An attach names no pool: the events do. A watcher is shown no rows. */
TEST_RIG(attach_takes_the_pool_from_events, ROLE_LANGD)
{
    struct local_event ready = {
        .what = EVENT_READY, .state = 4, .rows = 4, .total = 4};
    struct mmx_attach a = {
        .size = sizeof a, .id = 7, .encoder = "e", .pool = -1};
    mmx_room seen, unmapped, watched;
    struct mmx_view v;

    a.rights = MMX_READ;
    T_EQ_I64(mmx_attach(g->m, &a, &seen), 0);
    T_EQ_I64(mmx_attach(g->m, &a, &unmapped), 0);
    a.rights = MMX_WATCH;
    T_EQ_I64(mmx_attach(g->m, &a, &watched), 0);
    T_EQ_I64(mmx_view(g->m, seen, "a", 0, 4, &v), -MMX_E_NOT_READY);
    ready.pool = 3;
    rig_event(g, seen, ready, (uint32_t[]){2, 1}, 1);
    rig_event(g, watched, ready, (uint32_t[]){2, 1}, 1);
    ready.pool = 9;
    rig_event(g, unmapped, ready, (uint32_t[]){2, 1}, 1);
    T_EQ_I64(mmx_wait_room(g->m, unmapped, MMX_READY, T_WAIT_MS), 0);
    rig_word(g, seen, 4, 4);
    T_EQ_I64(mmx_view(g->m, seen, "a", 0, 4, &v), 0);
    T_TRUE(v.data == (uint8_t *)g->pool.fields[0].data + 2 * BLOCK_ROWS * ROW);
    T_EQ_I64(mmx_view(g->m, unmapped, "a", 0, 4, &v), -MMX_E_NOT_READY);
    T_EQ_I64(mmx_view(g->m, watched, "a", 0, 4, &v), -MMX_E_NOT_OWNER);
}

TEST_RIG(language_stream, ROLE_LANGD)
{
    struct mmx_event ev;
    struct mmx_view v;
    struct mmx_look l = {.size = sizeof l};
    struct mmx_run run;
    struct mmx_state s;
    uint32_t one[] = {0, 2}, all[] = {0, 2, 5, 1};
    mmx_room r;

    T_FALSE(g->pool.writable);
    r = rig_request(g, 7, MMX_STREAM);
    fake_answer(&g->f, g->seq, OK, "");
    rig_event(g, r,
        (struct local_event){.what = EVENT_LENGTH | EVENT_LANDED,
            .state = 3,
            .generation = 77,
            .rows = 5,
            .total = 12,
            .aux = span_str("grid")},
        one, 1);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_LENGTH | MMX_LANDED);
    T_EQ_U64(ev.total, 12);
    T_EQ_U64(ev.generation, 77);
    T_EQ_U64(ev.aux_len, 4);
    T_EQ_MEM(ev.aux, "grid", 4);
    /* The cell may know of more rows than the last event. */
    rig_word(g, r, 3, 7);
    T_EQ_I64(mmx_poll(g->m, &r, 1, &s), MMX_TRANSFERRING);
    T_EQ_U64(s.rows, 7);
    T_EQ_I64(mmx_view(g->m, r, "a", 0, MMX_ALL, &v), 0);
    T_EQ_U64(v.rows, 7);
    T_EQ_I64(mmx_scatter(g->m, r, "a", 0, 1, "12345678", 0), -MMX_E_NOT_OWNER);
    T_EQ_I64(mmx_release(g->m, r, 6, 0), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_RELEASE).release.rows, 6);
    T_EQ_I64(mmx_view(g->m, r, "a", 4, 1, &v), -MMX_E_GONE);
    /* The daemon has not taken the release yet. */
    rig_event(g, r,
        (struct local_event){.what = EVENT_LANDED | EVENT_READY,
            .state = 4,
            .rows = 12,
            .total = 12},
        all, 2);
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_READY, T_WAIT_MS), 0);
    T_EQ_I64(mmx_view(g->m, r, "a", 6, MMX_ALL, &v), -MMX_E_SPLIT);
    T_EQ_I64(mmx_view(g->m, r, "a", 8, MMX_ALL, &v), 0);
    T_TRUE(v.data == (uint8_t *)g->pool.base + 5 * BLOCK_ROWS * ROW);
    T_EQ_I64(mmx_runs(g->m, r, &run, 1), 2);
    T_EQ_U64(run.first, 4);
    T_EQ_U64(run.block, 1);
    T_EQ_I64(mmx_look(g->m, r, &l), 0);
    T_EQ_U64(l.first, 6);
    T_EQ_U64(l.stream_rows, 9);
    T_EQ_U64(l.seen & MMX_READY, MMX_READY);
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, MMX_KEEP), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_RELEASE).release.flags, FLAG_KEEP);
    rig_no_event(g->m); /* the room was released before READY was handed out */
}

TEST_RIG(bad_runs, ROLE_LANGD)
{
    struct mmx_view v;
    uint32_t beyond[] = {BLOCKS - 1, 2};
    mmx_room r = rig_request(g, 7, MMX_WHOLE);

    rig_event(g, r,
        (struct local_event){.what = EVENT_READY, .state = 4, .rows = 8},
        beyond, 1);
    (void)rig_one_event(g->m);
    T_EQ_I64(mmx_view(g->m, r, "a", 0, 1, &v), -MMX_E_NOT_READY);
}

TEST_RIG(other_tags, ROLE_LANGD)
{
    mmx_room r, old, none = {0, 0};
    struct mmx_state s;

    r = rig_request(g, 7, MMX_WHOLE);
    old = (mmx_room){r.cell, r.tag + 5};
    rig_word(g, old, 4, 8);
    T_EQ_I64(mmx_poll(g->m, &r, 1, &s), MMX_BOOTSTRAPPING);
    rig_event(
        g, old, (struct local_event){.what = EVENT_READY, .state = 4}, NULL, 0);
    rig_no_event(g->m);
    T_EQ_I64(mmx_poll(g->m, &none, 1, &s), MMX_FAILED_STATE);
    T_TRUE(mmx_cell(g->m, r) != NULL);
    T_TRUE(mmx_cell(g->m, (mmx_room){CELLS, 1}) == NULL);
    /* A released room's cell is used again, with a new tag. */
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), 0);
    (void)fake_want(&g->f, LOCAL_RELEASE);
    g->seq++;
    old = r;
    r = rig_request(g, 8, MMX_WHOLE);
    T_EQ_U64(r.cell, old.cell);
    T_TRUE(r.tag != old.tag);
}

TEST_RIG(refused, ROLE_ENCODED)
{
    struct mmx_event ev;
    struct mmx_state s;
    mmx_room r = rig_announce(g, 1, 500);

    T_EQ_I64(mmx_commit(g->m, r, 0, 1), 0);
    (void)fake_want(&g->f, LOCAL_COMMIT);
    fake_answer(&g->f, g->seq++, ERR_TOO_LARGE, "9 rows, 4 fit");
    fake_answer(&g->f, g->seq, ERR_UNKNOWN_ROOM, "no such cell");
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_REFUSED);
    T_EQ_STR(ev.op, "announce");
    T_EQ_I64(ev.reason, MMX_E_TOO_LARGE);
    T_EQ_I64(ev.advice, MMX_ADVICE_GIVE_UP);
    T_EQ_U64(ev.a, 9);
    T_EQ_U64(ev.b, 4);
    T_EQ_STR(ev.text, "9 rows, 4 fit");
    rig_no_event(g->m);
    T_EQ_I64(mmx_poll(g->m, &r, 1, &s), MMX_FAILED_STATE);
    T_EQ_I64(s.reason, MMX_E_TOO_LARGE);
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), -MMX_E_STALE);

    /* Any other refusal leaves the room as it was. */
    r = rig_announce(g, 2, 5);
    T_EQ_I64(mmx_commit(g->m, r, 4, 2), 0);
    (void)fake_want(&g->f, LOCAL_COMMIT);
    fake_answer(&g->f, g->seq++, OK, "");
    fake_answer(&g->f, g->seq, ERR_MALFORMED, "rows 4 to 6 of 5");
    ev = rig_one_event(g->m);
    T_EQ_STR(ev.op, "commit");
    T_EQ_STR(ev.text, "rows 4 to 6 of 5");
    T_EQ_I64(mmx_commit(g->m, r, 0, 5), 0);
    g->seq++;

    T_EQ_I64(
        mmx_decline(g->m, "enc", &(struct mmx_reference){.id = 99}, NULL), 0);
    fake_answer(&g->f, ++g->seq, ERR_PEER_LOST, "who?");
    ev = rig_one_event(g->m);
    T_EQ_STR(ev.op, "decline");
    T_EQ_U64(ev.id, 99);
    T_EQ_STR(ev.text, "who?");
}

/* RULES 10.1 */
TEST(references)
{
    static const char text[] =
        "fedcba9876543210-000102030405060708090a0b0c0d0e0f";
    static const char *const wrong[] = {"", "7", "0000000000000000",
        "000000000000000g", "000000000000000A", "0000000000000007-",
        "fedcba9876543210-000102030405060708090a0b0c0d0e0",
        "fedcba9876543210:000102030405060708090a0b0c0d0e0f",
        "fedcba9876543210-000102030405060708090a0b0c0d0e0x",
        "fedcba9876543210-000102030405060708090a0b0c0d0e0f0"};
    struct mmx_reference r, again, drawn = {0}, plain = {.id = 7};
    uint8_t bytes[MMX_REFERENCE_BYTES];
    char out[MMX_REFERENCE_TEXT];

    T_EQ_I64(mmx_reference_read(text, strlen(text), &r), 0);
    T_EQ_U64(r.id, 0xfedcba9876543210);
    T_EQ_U64(r.secret[0], 0);
    T_EQ_U64(r.secret[15], 15);
    T_EQ_I64(mmx_reference_text(&r, out), 49);
    T_EQ_STR(out, text);
    T_EQ_I64(mmx_reference_bytes(&r, bytes), 24);
    T_EQ_MEM(bytes, "\x10\x32\x54\x76\x98\xba\xdc\xfe\x00\x01", 10);
    T_EQ_I64(mmx_reference_read(bytes, sizeof bytes, &again), 0);
    T_EQ_MEM(&again, &r, sizeof r);
    T_EQ_I64(mmx_reference_text(&plain, out), 16);
    T_EQ_STR(out, "0000000000000007");
    T_EQ_I64(mmx_reference_read(out, 16, &again), 0);
    T_EQ_MEM(&again, &plain, sizeof plain);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        T_CHECK(mmx_reference_read(wrong[i], strlen(wrong[i]), &r) ==
                    -MMX_E_MALFORMED,
            "\"%s\" is read", wrong[i]);
    T_EQ_U64(r.id, 0xfedcba9876543210); /* a refused text leaves r untouched */
    memset(bytes, 0, 8);
    T_EQ_I64(mmx_reference_read(bytes, sizeof bytes, &r), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_reference_text(&drawn, out), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_reference_bytes(&drawn, bytes), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_reference_draw(&drawn), 0);
    T_EQ_I64(mmx_reference_draw(&again), 0);
    T_EQ_I64(mmx_reference_text(&drawn, out), 49);
    T_TRUE(drawn.id != again.id && memcmp(&drawn, &again, sizeof r) != 0);
}

/* What is read as a reference is written as the same text. */
TEST(any_text_is_a_reference_or_refused)
{
    static const char chars[] = "0123456789abcdef-";
    uint64_t dice = 1;
    uint32_t read = 0;

    for (uint32_t i = 0; i < 200000; i++) {
        char text[MMX_REFERENCE_TEXT + 8], out[MMX_REFERENCE_TEXT];
        size_t len = i % 2 ? 49 : i / 2 % sizeof text;
        struct mmx_reference r;

        for (size_t k = 0; k < len; k++) {
            dice = dice * UINT64_C(6364136223846793005) + 1;
            text[k] = chars[(dice >> 33) % (i % 4 < 3 ? 16 : 17)];
        }
        if (i % 8 && len > 16)
            text[16] = '-';
        if (mmx_reference_read(text, len, &r) != 0 || len == 24)
            continue;
        read++;
        T_EQ_U64((uint64_t)mmx_reference_text(&r, out), len);
        T_EQ_MEM(out, text, len);
    }
    T_TRUE(read > 10000);
}

/* RULES 10.1 */
TEST_RIG(secrets, ROLE_ENCODED)
{
    static const uint8_t none[SECRET_BYTES];
    struct mmx_reference a, b, zero = {0}, plain = {.id = 9};
    struct mmx_announce n = {.size = sizeof n, .rows = 5};
    struct mmx_request q = {.size = sizeof q, .encoder = "e", .reference = &a};
    struct mmx_attach t = {
        .size = sizeof t, .rights = MMX_WRITE, .reference = &a};
    struct local_msg m;
    mmx_room r;

    n.pool = q.pool = g->pool.id;
    T_EQ_I64(mmx_announce(g->m, &n, &r), 0);
    m = fake_want(&g->f, LOCAL_ANNOUNCE);
    T_EQ_I64(mmx_reference(g->m, r, &a), 0);
    T_EQ_U64(a.id, m.announce.room);
    T_TRUE(a.id != 0 && memcmp(a.secret, none, sizeof none) != 0);
    T_EQ_MEM(m.announce.secret.b, a.secret, sizeof a.secret);
    T_EQ_I64(mmx_request(g->m, &q, &r), 0);
    m = fake_want(&g->f, LOCAL_REQUEST);
    T_EQ_U64(m.request.room, a.id);
    T_EQ_MEM(m.request.secret.b, a.secret, sizeof a.secret);
    T_EQ_I64(mmx_attach(g->m, &t, &r), 0);
    m = fake_want(&g->f, LOCAL_ATTACH);
    T_EQ_U64(m.attach.room, a.id);
    T_EQ_MEM(m.attach.secret.b, a.secret, sizeof a.secret);
    T_EQ_I64(mmx_reference(g->m, r, &b), 0);
    T_EQ_MEM(&a, &b, sizeof a);
    q.reference = NULL;
    T_EQ_I64(mmx_request(g->m, &q, &r), 0); /* the language side is first */
    m = fake_want(&g->f, LOCAL_REQUEST);
    T_TRUE(m.request.room != 0 && m.request.room != a.id);
    T_EQ_I64(mmx_decline(g->m, NULL, &a, NULL), 0);
    m = fake_want(&g->f, LOCAL_DECLINE);
    T_EQ_U64(m.decline.room, a.id);
    T_EQ_MEM(m.decline.secret.b, a.secret, sizeof a.secret);
    T_EQ_I64(mmx_decline(g->m, "e", NULL, NULL), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_decline(g->m, NULL, &plain, NULL), -MMX_E_MALFORMED);
    n.id = 7;
    T_EQ_I64(mmx_announce(g->m, &n, &r), 0);
    m = fake_want(&g->f, LOCAL_ANNOUNCE);
    T_EQ_U64(m.announce.room, 7);
    T_EQ_MEM(m.announce.secret.b, none, sizeof none);
    n.reference = &a; /* a reference and an id: refused */
    T_EQ_I64(mmx_announce(g->m, &n, &r), -MMX_E_MALFORMED);
    n.id = 0;
    n.reference = &zero;
    T_EQ_I64(mmx_announce(g->m, &n, &r), -MMX_E_MALFORMED);
    t.reference = NULL;
    T_EQ_I64(mmx_attach(g->m, &t, &r), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_reference(g->m, (mmx_room){0}, &b), -MMX_E_STALE);
}

TEST_RIG(failed, ROLE_ENCODED)
{
    struct mmx_event ev;
    mmx_room r = rig_announce(g, 1, 5);

    fake_event(&g->f, &(struct local_event){.cell = r.cell,
                          .tag = r.tag,
                          .what = EVENT_FAILED,
                          .reason = ERR_TIMEOUT,
                          .text = span_str("no encoder answered")});
    T_EQ_I64(mmx_wait_room(g->m, r, MMX_GRANTED, T_WAIT_MS), -MMX_E_TIMEOUT);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_FAILED);
    T_EQ_STR(ev.text, "no encoder answered");
    T_EQ_I64(ev.advice, MMX_ADVICE_RETRY);
    T_EQ_I64(mmx_commit(g->m, r, 0, 1), -MMX_E_TIMEOUT);
    T_TRUE(fake_idle(&g->f));
    T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), 0);
    (void)fake_want(&g->f, LOCAL_RELEASE);
}

TEST_RIG(cells_run_out, ROLE_ENCODED)
{
    struct mmx_announce a = {.size = sizeof a, .rows = 1};
    mmx_room r;

    a.pool = g->pool.id;
    for (uint32_t i = 0; i < CELLS; i++)
        (void)rig_announce(g, i + 1, 1);
    T_EQ_I64(mmx_announce(g->m, &a, &r), -MMX_E_QUOTA);
}

TEST_RIG(empty_room, ROLE_LANGD)
{
    struct mmx_view v;
    struct mmx_run run;
    mmx_room r = rig_request(g, 7, MMX_WHOLE);

    rig_event(g, r,
        (struct local_event){
            .what = EVENT_LENGTH | EVENT_READY, .state = 4, .total = 0},
        NULL, 0);
    T_EQ_U64(rig_one_event(g->m).what, MMX_LENGTH | MMX_READY);
    T_EQ_I64(mmx_view(g->m, r, "a", 0, MMX_ALL, &v), 0);
    T_EQ_U64(v.rows, 0);
    T_EQ_I64(mmx_runs(g->m, r, &run, 1), 0);
    T_EQ_I64(mmx_gather(g->m, r, "a", 0, MMX_ALL, NULL, 0), 0);
}

/* A commit on its way when the room fails is refused; the event tells why the
 * room failed. */
TEST_RIG(failed_and_refused, ROLE_ENCODED)
{
    struct mmx_event ev;
    mmx_room r;

    for (int refused_first = 0; refused_first < 2; refused_first++) {
        r = rig_announce(g, 1, 5);
        fake_answer(&g->f, g->seq, OK, "");
        T_EQ_I64(mmx_commit(g->m, r, 0, 1), 0);
        g->seq = fake_want(&g->f, LOCAL_COMMIT).seq;
        if (refused_first)
            fake_answer(&g->f, g->seq, ERR_UNKNOWN_ROOM, "it is over");
        fake_event(&g->f, &(struct local_event){.cell = r.cell,
                              .tag = r.tag,
                              .what = EVENT_FAILED,
                              .reason = ERR_PEER_LOST,
                              .text = span_str("langd went")});
        if (!refused_first)
            fake_answer(&g->f, g->seq, ERR_UNKNOWN_ROOM, "it is over");
        ev = rig_one_event(g->m);
        T_EQ_U64(ev.what, MMX_FAILED);
        T_EQ_I64(ev.reason, MMX_E_PEER_LOST);
        T_EQ_STR(ev.text, "langd went");
        T_EQ_I64(mmx_release(g->m, r, MMX_ALL, 0), 0);
        g->seq = fake_want(&g->f, LOCAL_RELEASE).seq;
        fake_answer(&g->f, g->seq, OK, "");
    }
}

/* RULES 4.12 */
TEST_RIG(announced_is_said, ROLE_LANGD)
{
    struct mmx_request q = {.size = sizeof q, .id = 7, .encoder = "enc"};
    mmx_room r;

    q.flags = MMX_OPEN;
    T_EQ_I64(mmx_request(g->m, &q, &r), -MMX_E_MALFORMED);
    q.flags = MMX_KEEP | MMX_ANNOUNCED;
    T_EQ_I64(mmx_request(g->m, &q, &r), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_REQUEST).request.flags,
        FLAG_KEEP | FLAG_ANNOUNCED);
}

TEST(no_more_readers_is_said)
{
    struct rig g;
    struct mmx_attach a = {
        .size = sizeof a, .id = 8, .rights = MMX_READ, .encoder = "enc"};
    mmx_room r;

    rig_open(&g, ROLE_LANGD);
    r = rig_request(&g, 7, MMX_WHOLE);
    T_EQ_I64(mmx_release(g.m, r, MMX_ALL, MMX_OPEN), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_release(g.m, r, MMX_ALL, MMX_NO_READERS), 0);
    T_EQ_U64(fake_want(&g.f, LOCAL_RELEASE).release.flags, FLAG_NO_READERS);
    /* A daemon refuses NO_READERS of a reader; the cell would then stay in
     * use. */
    T_EQ_I64(mmx_attach(g.m, &a, &r), 0);
    (void)fake_want(&g.f, LOCAL_ATTACH);
    T_EQ_I64(mmx_release(g.m, r, MMX_ALL, MMX_NO_READERS), -MMX_E_NOT_OWNER);
    T_EQ_I64(mmx_release(g.m, r, MMX_ALL, 0), 0);
    T_EQ_U64(fake_want(&g.f, LOCAL_RELEASE).release.tag, r.tag);
    rig_close(&g);
    rig_open(&g, ROLE_ENCODED);
    r = rig_announce(&g, 7, 10);
    T_EQ_I64(mmx_release(g.m, r, MMX_ALL, MMX_NO_READERS), -MMX_E_MALFORMED);
    T_EQ_I64(mmx_release(g.m, r, 1, 0), -MMX_E_MALFORMED);
    rig_close(&g);
}

TEST(rows_that_may_not_be_read_are_not_released)
{
    struct rig g;
    mmx_room r;

    rig_open(&g, ROLE_LANGD);
    r = rig_request(&g, 7, MMX_STREAM);
    rig_event(&g, r,
        (struct local_event){.what = EVENT_LANDED, .state = 3, .rows = 8},
        (uint32_t[]){2, 5}, 1);
    (void)rig_one_event(g.m);
    T_EQ_I64(mmx_release(g.m, r, 9, 0), -MMX_E_MALFORMED);
    rig_word(&g, r, MMX_TRANSFERRING, 9); /* the cell is ahead of the events */
    T_EQ_I64(mmx_release(g.m, r, 10, 0), -MMX_E_MALFORMED);
    T_TRUE(fake_idle(&g.f));
    T_EQ_I64(mmx_release(g.m, r, 9, 0), 0);
    T_EQ_U64(fake_want(&g.f, LOCAL_RELEASE).release.rows, 9);
    /* Rows that had landed may be released after the daemon is lost. */
    rig_word(&g, r, MMX_TRANSFERRING, 10);
    close(g.f.conn);
    (void)rig_one_event(g.m);
    T_EQ_I64(mmx_release(g.m, r, 10, 0), 0);
    mmx_close(&g.m);
}
