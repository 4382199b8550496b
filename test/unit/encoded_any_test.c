/* encoded_any_test.c - whatever langds, their links and encode engines do in
 * any order, right or wrong: encoded takes it, and its check of itself passes
 * after each step. */
#include "test/any.h"
#include "test/here.h"

#define LINKS 6
#define GENS  12
#define ROOMS 9

static uint64_t epochs_of[LINKS];
static uint32_t opened; /* bit i: the shards know peer i */
static struct {
    uint64_t token, lend, epoch;
    char name;
    /* of the langd's connection that maps, and of a reader's */
    uint32_t stage[2];
} maps[LINKS];

static void says_hello(struct rig *e, uint32_t link)
{
    static const uint8_t address[] = {3, 0, 'x', 'y', 'z'};
    char name[2] = {'a' + (char)(one_in(8) ? below(8) : link)};
    struct peer_msg m = any_hello(name, 1 + link, &epochs_of[link]);

    m.hello.role = one_in(20) ? ROLE_ENCODED : ROLE_LANGD;
    m.hello.carrier = one_in(9) ? (uint8_t)below(5) : CARRIER_TCP;
    if (one_in(2))
        m.hello.addresses = span_of(address, sizeof(address) - one_in(20));
    m.hello.mapped = one_in(2) ? 1 : one_in(2) ? MAPS_NONE : 0;
    brain_hear(e, link, m);
    if (brain_cmd(e, PEER_OPEN))
        opened |= 1u << brain_cmd(e, PEER_OPEN)->peer;
    if (brain_said(e, PEER_HELLO, -1)) {
        maps[link].token = brain_said(e, PEER_HELLO, -1)->hello.token;
        maps[link].lend = brain_said(e, PEER_HELLO, -1)->hello.lend;
        maps[link].epoch = m.from_epoch;
        maps[link].name = name[0];
    }
}

/* A connection that maps pools begins, or it or its process ends: the langd's
 * own, or one of an engine of that langd. */
static void any_map(struct rig *e, uint32_t link)
{
    struct event ev = {
        .type = EV_CONN_OPEN, .conn = 2 + link, .uid = BRAIN_UID};
    struct local_msg m = {.type = LOCAL_MAP, .seq = 9};
    bool reads = one_in(2);

    ev.uid += one_in(3);
    ev.pid = (int32_t)below(3);
    ev.conn += reads ? LINKS : 0;
    ev.type += maps[link].stage[reads];
    if (ev.type == EV_CONN_END && one_in(3))
        (void)brain_say(e, ev.conn, (struct local_msg){.type = LOCAL_BYE});
    rig_step(e, &ev);
    maps[link].stage[reads] = (maps[link].stage[reads] + 1) % 3;
    if (ev.type != EV_CONN_OPEN)
        return;
    m.map.token = reads ? maps[link].lend : maps[link].token;
    m.map.epoch = maps[link].epoch;
    m.map.name = span_of(&maps[link].name, 1);
    ev.type = EV_LOCAL;
    ev.local = &m;
    rig_step(e, &ev);
}

static void any_link(struct rig *e, uint32_t link)
{
    struct event ev = {.type = one_in(2) ? EV_LINK_UP : EV_LINK_DOWN,
        .link = link,
        .host = one_in(9) ? below(4) : link / 2};

    rig_step(e, &ev);
    if (one_in(2))
        return;
    epochs_of[link] = 0; /* says HELLO as another run */
    says_hello(e, link);
}

static void any_init(struct rig *e, struct peer_msg *m)
{
    struct peer_init *n = &m->init;

    m->type = PEER_INIT;
    n->layout = one_in(20) ? 1 : brain_layout(e->is, 0)->hash;
    n->attempt = below(3);
    n->granted = any_rows();
    n->from = one_in(3) ? any_rows() : 0;
    n->unit_rows = one_in(20) ? any_rows() : 8;
    n->part_rows = one_in(20) ? any_rows() : 64;
    n->required_dst = (uint16_t)(one_in(30) ? below(65536) : 1 + below(3) / 2);
    n->storage = one_in(20) ? (uint8_t)below(6) : 0;
    n->flags = (uint8_t)(one_in(4)   ? FLAG_ANNOUNCED
                         : one_in(4) ? FLAG_STREAM
                         : one_in(2) ? FLAG_LEND
                                     : 0);
    if (n->flags == FLAG_LEND && !one_in(9))
        n->granted = n->from = 0;
    n->key = any_key();
    n->firm = (uint8_t)below(3);
    n->who = below(9);
    n->secret = any_secret();
    n->turn = below(9);
}

static void any_message(struct rig *e, uint32_t link)
{
    uint32_t age = (uint32_t)(e->now_ns / NS_PER_S);
    struct peer_msg m = {.type = PEER_ACK,
        .room = 1 + below(ROOMS),
        .generation = 1000 * epochs_of[link] + age + below(GENS)};

    if (!one_in(9))
        m.room = 1 + m.generation % ROOMS;
    if (one_in(30))
        m.generation = below(2000);
    m.from_epoch = epochs_of[link] ? epochs_of[link] : 3;
    switch (below(16)) {
    case 0:
        m.type = PEER_RESUME;
        m.resume.attempt = below(4);
        m.resume.granted = any_rows();
        m.resume.from = one_in(3) ? any_rows() : 0;
        m.resume.firm = (uint8_t)below(3);
        break;
    case 1: /* an ACK */
        break;
    case 2:
        m.type = one_in(2) ? PEER_ABORT : PEER_RETURN;
        if (m.type == PEER_RETURN)
            break;
        m.abort.reason = any_reason();
        m.abort.secret = any_secret();
        break;
    case 3:
        m.type = PEER_DECLINE;
        m.decline.key = any_key();
        m.decline.who = below(9);
        m.decline.secret = any_secret();
        break;
    case 4:
    case 5:
        m.type = PEER_STATE;
        m.state.answers = (uint8_t)below(18);
        m.state.state = (uint8_t)below(7);
        m.state.reason = any_reason();
        m.state.attempt = below(3);
        m.state.granted = any_rows();
        m.state.total = any_rows();
        m.state.flags = one_in(2) ? FLAG_AUX : 0;
        m.state.flags |= one_in(2) ? FLAG_HELD : 0;
        m.state.firm = (uint8_t)below(3);
        break;
    case 6:
        m.type = PEER_NACK;
        m.nack.answers = (uint8_t)below(16);
        m.nack.reason = any_reason();
        break;
    case 7:
        m.type = (uint8_t)(1 + below(16));
        if (m.type == PEER_HELLO)
            return;
        break;
    default:
        any_init(e, &m);
        break;
    }
    brain_hear(e, link, m);
    if (brain_said(e, PEER_HELLO, 0) && one_in(2))
        says_hello(e, link);
}

static void any_word(struct rig *e, uint32_t cell)
{
    struct local_msg m = {.type = LOCAL_DECLINE};
    uint32_t max = any_rows(), of = below(cell + 1), conn = one_in(4);

    if (!one_in(4))
        max = 8 + below(3) * 8;
    (void)brain_say(e, conn, release(cell));
    switch (below(8)) {
    case 0:
    case 1:
    case 2:
        m = announce(
            1 + below(ROOMS), cell, max, one_in(3) ? ROWS_UNKNOWN : max);
        m.announce.secret = any_secret();
        m.announce.key = any_key();
        m.announce.flags = (uint8_t)(one_in(4)   ? FLAG_OPEN
                                     : one_in(3) ? FLAG_KEEP
                                                 : 0);
        m.announce.required_dst =
            m.announce.flags & FLAG_OPEN ? 0 : (uint16_t)below(3);
        m.announce.deadline_ms = one_in(4) ? below(5000) : 0;
        m.announce.batch = one_in(6);
        break;
    case 3:
    case 4:
        m = commit(of, one_in(4) ? any_rows() : 0, any_rows());
        m.commit.flags = one_in(2) ? FLAG_FINAL : 0;
        m.commit.total = one_in(3) ? any_rows() : ROWS_UNKNOWN;
        break;
    case 5:
        m = release(of);
        break;
    case 6:
        m = attach(1 + below(ROOMS), cell, RIGHT_WATCH);
        m.attach.secret = any_secret();
        break;
    default:
        m.decline.room = 1 + below(ROOMS);
        m.decline.secret = (struct secret){"two"};
        m.decline.key = any_key();
        break;
    }
    (void)brain_say(e, conn, m);
}

/* A room that can be lent, most of the time. */
static void any_lend(struct rig *e, uint32_t link, uint32_t cell)
{
    uint32_t age = (uint32_t)(e->now_ns / NS_PER_S);
    uint64_t g = 1000 * epochs_of[link] + age + below(GENS);
    struct peer_msg m = init(e, 1 + g % ROOMS, g, 0);

    says_hello(e, link);
    for (uint32_t i = 0; i < 6 && maps[link].stage[0] != 1; i++)
        any_map(e, link);
    (void)brain_say(e, 0, release(cell));
    (void)brain_say(e, 0, announce(m.room, cell, 8, 8));
    (void)brain_say(e, 0, commit(cell, 0, 8));
    (void)brain_say(e, 0, final(cell, 8));
    m.from_epoch = epochs_of[link] ? epochs_of[link] : 3;
    m.init.flags = FLAG_LEND;
    brain_hear(e, link, m);
}

static void any_note(struct rig *e)
{
    struct event ev = {.type = EV_NOTE};

    ev.note.type = one_in(2) ? NOTE_PEER_TRIED : NOTE_PEER_BROKEN;
    ev.note.peer = below(12);
    if (!(opened >> ev.note.peer & 1))
        return;
    ev.note.attempt = below(40);
    ev.note.rows = one_in(2) ? TROUBLE_NONE
                             : TROUBLE_DATA_LOOPBACK +
                                   below(TROUBLE_END - TROUBLE_DATA_LOOPBACK);
    if (ev.note.type == NOTE_PEER_BROKEN)
        ev.note.rows = 0;
    rig_step(e, &ev);
}

static void anything(struct rig *e, uint32_t cell)
{
    uint32_t link = one_in(4) ? below(LINKS) : below(3), what = below(100);

    if (what < 2)
        any_link(e, link);
    else if (what < 6)
        says_hello(e, link);
    else if (what < 12)
        brain_pass(e, one_in(20) ? below(20000) : below(200));
    else if (what < 15)
        any_note(e);
    else if (what < 18)
        any_map(e, link);
    else if (what < 19)
        rig_step(e, &(struct event){.type = one_in(4) ? EV_DRAIN : EV_UNDRAIN});
    else if (what < 24)
        any_lend(e, link, cell);
    else if (what < 55)
        any_word(e, cell);
    else
        any_message(e, link);
}

TEST(whatever_langds_say_is_taken)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct rig *e =
            BRAIN(ROLE_ENCODED, "limits.peers=5", "limits.connections=20",
                "limits.tombstones=16", "timeouts.bootstrap=800ms",
                seed % 2 ? "pools[0].uids=7" : "log=info");

        any_begin(seed);
        opened = 0;
        memset(maps, 0, sizeof(maps));
        memset(epochs_of, 0, sizeof(epochs_of));
        e->noisy = one_in(2);
        brain_conn(e, 0, "s");
        brain_user(e, 1, 8, "t");
        for (uint32_t i = 0; i < 3000; i++) {
            anything(e, i % 60);
            while (e->noisy && (one_in(2) || e->waiting_count > 200))
                (void)brain_quiet(e);
        }
    }
}
