/* langd_any_test.c - whatever encoders, their links, landing rows and language
 * engines do in any order, right or wrong: langd takes it, and its check of
 * itself passes after each step. */
#include "test/any.h"
#include "test/unit/lender_side.h"

#define LINKS 3
#define ROOMS 9
#define SLOTS 64

/* what the shards know */

static struct slot {
    bool open;
    struct data_cmd cmd;
    uint32_t end, total;
    uint8_t landed[64];
} slots[SLOTS];
static struct {
    uint64_t room, generation;
    uint32_t attempt, granted, link;
    bool hopes;
} asked[32];
static uint32_t asked_count;

static void take_cmd(const struct data_cmd *c)
{
    struct slot *s = &slots[c->slot % SLOTS];

    if (c->type == LAND_OPEN) {
        memset(s, 0, sizeof(*s));
        s->open = true;
        s->cmd = *c;
        s->end = c->base + c->b * 8;
        s->total = c->total;
    } else if (c->type == LAND_RUN) {
        s->end += c->b * 8;
    } else if (c->type == LAND_TOTAL) {
        s->total = c->total;
    } else if (c->type == LAND_TRIM) {
        s->end = c->a;
    } else if (c->type == LAND_CLOSE) {
        s->open = false;
    }
}

static void look(struct rig *l)
{
    for (uint32_t i = 0; i < l->acts_count; i++) {
        struct peer_msg m;
        struct reader r = reader_of(l->bytes + l->acts[i].at, l->acts[i].len);

        if (l->acts[i].type == ACT_DATA)
            take_cmd(&l->acts[i].cmd);
        if (l->acts[i].type == ACT_PEER && peer_get(&r, &m) == OK &&
            (m.type == PEER_INIT || m.type == PEER_RESUME)) {
            uint32_t at = asked_count++ % ARRAY_LEN(asked);

            asked[at].room = m.room;
            asked[at].generation = m.generation;
            asked[at].attempt =
                m.type == PEER_INIT ? m.init.attempt : m.resume.attempt;
            asked[at].granted =
                m.type == PEER_INIT ? m.init.granted : m.resume.granted;
            asked[at].link = l->acts[i].link;
            asked[at].hopes = m.type == PEER_INIT && m.init.flags & FLAG_LEND;
        }
    }
    l->acts_count = 0;
}

static void any_landing(struct rig *l)
{
    struct slot *s = &slots[below(SLOTS)];
    uint32_t end = min_u32(s->end, s->total), unit;
    struct event ev = {.type = EV_NOTE};

    for (uint32_t i = 0; i < SLOTS && !s->open; i++)
        s = &slots[i];
    end = min_u32(s->end, s->total);
    if (!s->open || end <= s->cmd.from)
        return;
    unit = s->cmd.from / 8 + below((end - s->cmd.from + 7) / 8);
    if (unit >= 64 || s->landed[unit])
        return;
    s->landed[unit] = 1;
    ev.note.type = NOTE_LANDED;
    ev.note.slot = s->cmd.slot;
    ev.note.generation = s->cmd.generation;
    ev.note.attempt = s->cmd.attempt;
    ev.note.first = max_u32(unit * 8, s->cmd.from);
    ev.note.rows = min_u32((unit + 1) * 8, end) - ev.note.first;
    if (s->total == ROWS_UNKNOWN && one_in(8))
        ev.note.rows = 1 + below(ev.note.rows);
    if (one_in(60))
        ev.note.type = one_in(2) ? NOTE_LAND_BAD : NOTE_LAND_GONE;
    rig_step(l, &ev);
    look(l);
}

/* encoders */

static uint64_t epochs_of[LINKS];

static void says_hello(struct rig *l, uint32_t link)
{
    char name[4] = {'e', '0' + (char)(one_in(9) ? below(LINKS) : link)};
    struct peer_msg m = any_hello(name, 1 + link, &epochs_of[link]);

    m.hello.role = one_in(20) ? ROLE_LANGD : ROLE_ENCODED;
    m.hello.path = (uint8_t)below(6);
    m.hello.trouble = (uint8_t)below(40);
    m.hello.trouble_text = span_str("why");
    m.hello.token = one_in(2) ? below(4) : 0;
    m.hello.lend = one_in(4) ? 0 : 7 + one_in(20);
    if (m.hello.token || m.hello.lend)
        m.hello.socket = span_str("/run/e.sock");
    brain_hear(l, link, m);
    look(l);
}

/* Says LEND for a room that may be lent, or may not. */
static void any_lend(struct rig *l, uint32_t at)
{
    struct there t = {
        .room = asked[at].room, .generation = asked[at].generation};
    uint32_t link = asked[at].link % LINKS;
    struct peer_msg m = length(&t, 64, 64, true);

    m.from_epoch = epochs_of[link] ? epochs_of[link] : 3;
    brain_hear(l, link, m);
    look(l);
    m = lend(&t);
    if (one_in(3)) {
        m.lend.pool = (uint8_t)below(20);
        m.lend.total = any_rows();
        m.lend.block_rows = any_rows();
        m.lend.runs.len -= one_in(2);
    }
    m.from_epoch = epochs_of[link] ? epochs_of[link] : 3;
    brain_hear(l, link, m);
    look(l);
}

static void any_message(struct rig *l)
{
    uint32_t at = below(ARRAY_LEN(asked)), link = asked[at].link % LINKS;
    struct peer_msg m = {.type = PEER_LENGTH,
        .room = asked[at].room,
        .generation = asked[at].generation};
    uint8_t bytes[16];
    struct writer w = writer_of(bytes, sizeof(bytes));
    uint32_t attempt = one_in(9) ? below(4) : asked[at].attempt;
    uint32_t granted = one_in(9) ? any_rows() : asked[at].granted;

    if (one_in(30))
        m.generation = one_in(2) ? below(2000) : UINT64_MAX - below(3);
    if (one_in(30))
        link = below(LINKS);
    if (one_in(asked[at].hopes ? 2 : 20)) {
        any_lend(l, at);
        return;
    }
    m.from_epoch = epochs_of[link] ? epochs_of[link] : 3;
    switch (below(18)) {
    case 0:
    case 1:
    case 2:
        m.type = PEER_STATE;
        m.state.answers =
            (uint8_t)(one_in(3) ? below(16) : PEER_INIT + below(2));
        m.state.state = (uint8_t)(one_in(9) ? below(7) : 2);
        m.state.reason = any_reason();
        m.state.attempt = attempt;
        m.state.granted = granted;
        m.state.total = any_rows();
        m.state.firm = (uint8_t)below(3);
        break;
    case 3:
    case 4:
    case 5:
        m.type = PEER_WANT;
        m.want.attempt = attempt;
        m.want.granted = granted;
        m.want.committed = any_rows();
        m.want.ahead = one_in(4);
        break;
    case 6:
        m.type = PEER_BROKEN;
        m.broken.attempt = attempt;
        m.broken.back = one_in(3);
        m.broken.committed = any_rows();
        break;
    case 7:
        if (!one_in(3))
            return;
        m.type = PEER_FAILED;
        m.failed.reason = any_reason();
        m.failed.a = any_rows();
        break;
    case 8:
        m.type = PEER_DRAINED;
        break;
    case 9:
        m.type = PEER_NACK;
        m.nack.answers = (uint8_t)below(16);
        m.nack.reason = one_in(3) ? any_reason() : ERR_BUSY;
        break;
    case 10:
    case 11:
    case 12:
        m.type = PEER_ACKED;
        put_u64(&w, m.generation);
        if (one_in(9))
            put_u32(&w, 7);
        m.acked.generations = span_of(bytes, w.len);
        break;
    case 13:
        m.type = (uint8_t)(2 + below(15));
        break;
    default:
        m.length.max_rows = one_in(9) ? any_rows() : 8 + below(3) * 8;
        m.length.total = one_in(3)   ? any_rows()
                         : one_in(3) ? ROWS_UNKNOWN
                                     : m.length.max_rows;
        m.length.committed = one_in(2) ? any_rows() : m.length.max_rows;
        m.length.storage = (uint8_t)(one_in(20) ? below(6) : 1);
        m.length.flags = one_in(9) ? 0 : FLAG_AUX;
        if (m.length.flags)
            m.length.aux = span_str(one_in(2) ? "" : "aux!");
        m.length.key = any_key();
        m.length.attempt = attempt;
        m.length.granted = granted;
        m.length.firm = (uint8_t)below(3);
        break;
    }
    brain_hear(l, link, m);
    look(l);
}

static void any_link(struct rig *l, uint32_t link)
{
    uint32_t what = below(3);

    rig_step(l, &(struct event){.type = what == 0   ? EV_LINK_UP
                                        : what == 1 ? EV_LINK_DOWN
                                                    : EV_LINK_REFUSED,
                    .link = link,
                    .trouble = (enum trouble)(1 + below(8)),
                    .text = "no way",
                    .far = one_in(2)});
    look(l);
}

static void any_conf(struct rig *l)
{
    struct conf *c = &l->conf;

    c->peers_count = 0;
    for (uint32_t i = 0; i < LINKS; i++) {
        struct conf_peer *p = &c->peers[c->peers_count];

        if (one_in(8))
            continue;
        snprintf(p->name, sizeof(p->name), "%s%u", one_in(9) ? "x" : "e", i);
        snprintf(
            p->address, sizeof(p->address), "tcp://127.0.0.1:%u", 7601 + i);
        c->peers_count++;
    }
    c->control_allow.count = one_in(3);
    snprintf(c->control_allow.items[0], 32, "tcp://127.0.0.1:760*");
    brain_is(l, EV_CONF);
    look(l);
}

static void any_map(struct rig *l)
{
    struct event ev = {.type = EV_MAP,
        .peer_at = below(LINKS),
        .err = one_in(3) ? ERR_INTERNAL : OK,
        .mapped = below(2)};

    rig_step(l, &ev);
    look(l);
}

/* Returns a connection that takes LENDER and has mapped some pools, or another
 * one. */
static uint32_t any_conn(struct rig *l)
{
    struct local_msg m = {.type = LOCAL_MAPPED};

    if (one_in(2))
        return one_in(4);
    m.mapped.pools = (uint16_t)(1 + below(3) / 2);
    while (brain_event(l, 2))
        if (l->event.type == LOCAL_LENDER) {
            m.mapped.lender = (uint16_t)(l->event.lender.lender - one_in(9));
            (void)brain_say(l, 2, m);
            look(l);
        }
    return 2;
}

static void any_word(struct rig *l, uint32_t cell)
{
    struct local_msg m;
    uint32_t of = below(cell + 1), conn = any_conn(l);
    char name[40];

    snprintf(name, sizeof(name), one_in(6) ? "tcp://127.0.0.1:760%u" : "e%u",
        below(LINKS) + one_in(6));
    if (one_in(20))
        snprintf(name, sizeof(name), "null");
    (void)brain_say(l, conn, release(cell, ROWS_UNKNOWN));
    look(l);
    switch (below(12)) {
    case 0:
        m = release(of, one_in(2) ? any_rows() : ROWS_UNKNOWN);
        break;
    case 1:
        m = abort_of(of);
        break;
    case 2:
    case 3:
        m = attach(1 + below(ROOMS), cell,
            (uint8_t)(one_in(2) ? RIGHT_READ : RIGHT_WATCH));
        m.attach.encoder = span_str(name);
        m.attach.secret = any_secret();
        m.attach.deadline_ms = one_in(2) ? below(3000) : 0;
        break;
    case 4:
        m = (struct local_msg){.type = LOCAL_DECLINE};
        m.decline.room = 1 + below(ROOMS);
        m.decline.encoder = span_str(name);
        m.decline.secret = any_secret();
        m.decline.key = any_key();
        break;
    default:
        m = request(
            1 + below(ROOMS), cell, one_in(2) ? MODE_WHOLE : MODE_STREAM);
        m.request.encoder = span_str(name);
        m.request.secret = any_secret();
        m.request.key = any_key();
        m.request.rows = one_in(2) ? any_rows() : 0;
        m.request.readers = (uint16_t)(one_in(3) ? below(4) : 0);
        m.request.required_dst = (uint16_t)below(3);
        if (one_in(3)) {
            m.request.group = 1 + below(4);
            m.request.group_size = (uint16_t)(one_in(20) ? below(5) : 2);
            if (!one_in(20))
                m.request.mode = MODE_WHOLE;
        }
        m.request.deadline_ms = one_in(2) ? 100 + below(5000) : 0;
        break;
    }
    (void)brain_say(l, conn, m);
    look(l);
    if (one_in(3))
        (void)brain_events(l, conn, 0);
}

static void anything(struct rig *l, uint32_t cell)
{
    uint32_t link = below(LINKS), what = below(100);

    if (what < 2)
        any_link(l, link);
    else if (what < 6)
        says_hello(l, link);
    else if (what < 12) {
        brain_pass(l, one_in(20) ? below(20000) : below(200));
        look(l);
    } else if (what < 13)
        any_map(l);
    else if (what < 14) {
        rig_step(l, &(struct event){.type = one_in(4) ? EV_DRAIN : EV_UNDRAIN});
        look(l);
    } else if (what < 15) {
        brain_is(l, EV_SEEK);
        look(l);
    } else if (what < 16 && one_in(3))
        any_conf(l);
    else if (what < 35)
        any_word(l, cell);
    else if (what < 65)
        any_landing(l);
    else
        any_message(l);
}

TEST(whatever_encoders_say_is_taken)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct rig *l = BRAIN(ROLE_LANGD, "limits.peers=3",
            "limits.tombstones=16", "timeouts.unreachable=1s",
            "timeouts.consumer=2s", "transfer.same_host=lend");

        any_begin(seed);
        memset(slots, 0, sizeof(slots));
        memset(asked, 0, sizeof(asked));
        memset(epochs_of, 0, sizeof(epochs_of));
        any_conf(l);
        l->noisy = one_in(2);
        brain_conn(l, 0, "s");
        brain_user(l, 1, 8, "t");
        able(l, 2, "u");
        for (uint32_t i = 0; i < 3000; i++) {
            anything(l, i % 60);
            look(l);
            while (l->noisy && (one_in(2) || l->waiting_count > 200)) {
                (void)brain_quiet(l);
                look(l);
            }
        }
    }
}
