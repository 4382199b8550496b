/* brain.c - see brain.h. One thread. Rejected: to use the simulator's world for
 * this. A rule is clearer when every message of its case is in the test. */
#include "core/head.h"
#include "test/brain.h"

static uint64_t epochs[64]; /* of the peers, by link */

static void set(struct rig *b, const char *assignment)
{
    struct conf_error e;

    T_CHECK(conf_set_assign(&b->conf, assignment, &e) == OK, "%s", e.text);
}

/* stepping */

static void note_of(struct rig *b, const struct data_cmd *c)
{
    bool asks = c->type == LAND_TRIM || (c->type == LAND_CLOSE && c->reply) ||
                c->type == SEND_CLOSE;

    if (!asks)
        return;
    T_TRUE(b->waiting_count < ARRAY_LEN(b->waiting));
    b->waiting[b->waiting_count++] = (struct data_note){
        .type = c->type == SEND_CLOSE ? NOTE_SEND_QUIET : NOTE_LAND_QUIET,
        .slot = c->slot,
        .generation = c->generation};
}

static void collect(struct rig *b)
{
    T_TRUE(b->bytes_len + b->out.bytes.len <= sizeof(b->bytes));
    memcpy(b->bytes + b->bytes_len, b->out.bytes.p, b->out.bytes.len);
    for (uint32_t i = 0; i < b->out.count; i++) {
        struct action a = b->out.actions[i];

        a.at += (uint32_t)b->bytes_len;
        if (a.type == ACT_CELL && a.conn < 8 && a.index < 64)
            b->cells[a.conn][a.index] = a.word;
        if (a.type == ACT_DATA)
            note_of(b, &a.cmd);
        b->fixing |= a.type == ACT_POOL_FIX && !b->slow_pools;
        T_TRUE(b->acts_count < MAX_ACTS);
        b->acts[b->acts_count++] = a;
    }
    b->bytes_len += b->out.bytes.len;
    b->out.count = 0;
    b->out.bytes.len = 0;
}

static void one(struct rig *b, struct event *ev);

/* The pool has its memory, or it cannot be had. */
static void ready(struct rig *b, bool ok)
{
    uint64_t offsets[LAYOUT_FIELDS_MAX] = {0};
    struct pool_memory m = {.offsets = offsets, .bytes = 1 << 20, .share = ""};
    struct event ev = {.type = EV_POOL, .memory = ok ? &m : NULL};

    b->fixing = false;
    one(b, &ev);
}

static void one(struct rig *b, struct event *ev)
{
    ev->now_ns = b->now_ns;
    brain_step(b->is, ev, &b->out);
    collect(b);
    for (uint32_t i = 0; brain_pending(b->is); i++) {
        struct event more = {.type = EV_MORE, .now_ns = b->now_ns};

        T_CHECK(i < 1000, "%s", "EV_MORE never ends");
        brain_step(b->is, &more, &b->out);
        collect(b);
    }
    if (b->fixing)
        ready(b, true);
    b->is->ops->check(b->is);
}

bool brain_quiet(struct rig *b)
{
    struct event ev = {.type = EV_NOTE, .note = b->waiting[0]};

    if (b->waiting_count == 0)
        return false;
    b->waiting_count--;
    memmove(
        b->waiting, b->waiting + 1, b->waiting_count * sizeof(b->waiting[0]));
    one(b, &ev);
    return true;
}

static void begin(struct rig *b)
{
    b->acts_count = 0;
    b->bytes_len = 0;
}

static void go_on(struct rig *b, struct event *ev)
{
    one(b, ev);
    while (!b->noisy && brain_quiet(b))
        ;
}

void rig_step(struct rig *b, struct event *ev)
{
    begin(b);
    go_on(b, ev);
}

void brain_pool(struct rig *b, bool ok)
{
    begin(b);
    ready(b, ok);
    while (!b->noisy && brain_quiet(b))
        ;
}

void brain_pass(struct rig *b, uint64_t ms)
{
    uint64_t end = b->now_ns + ms * NS_PER_MS;

    begin(b);
    for (uint32_t i = 0;; i++) {
        uint64_t at = brain_deadline(b->is);
        struct event ev = {.type = EV_TIME};

        T_CHECK(i < 10000, "%s", "time stands still");
        if (at > end)
            break;
        if (at > b->now_ns)
            b->now_ns = at;
        go_on(b, &ev);
    }
    b->now_ns = end;
}

/* making */

void brain_addresses(struct rig *b, uint8_t carrier, struct span blob)
{
    struct own_addresses a = {.carrier = carrier, .data = blob};
    struct event ev = {.type = EV_ADDRESSES, .addresses = &a};

    one(b, &ev);
}

struct rig *brain_make(uint8_t role, const char *const *settings)
{
    static struct rig *last;
    struct rig *b = calloc(1, sizeof(*b));
    struct slab s = {0};
    struct conf_error e;

    b->before = last;
    last = b;
    conf_init(&b->conf, role);
    set(b, "insecure=true");
    set(b, "limits.rooms=32");
    set(b, "limits.connections=8");
    set(b, "limits.peers=4");
    set(b, "pools[0].name=main");
    set(b, "pools[0].blocks=16");
    set(b, "pools[0].block_rows=8");
    set(b, "pools[0].layout=x:u8:4096");
    if (role == ROLE_LANGD) {
        set(b, "pools[0].default_blocks=2");
        set(b, "peers[0].name=enc");
        set(b, "peers[0].address=tcp://127.0.0.1:7601");
    }
    for (; *settings; settings++)
        set(b, *settings);
    if (conf_secure(&b->conf))
        set(b, "insecure=false");
    T_CHECK(conf_finish(&b->conf, "host", &e) == OK, "%s", e.text);
    b->bc = (struct brain_conf){.conf = &b->conf,
        .epoch = BRAIN_EPOCH,
        .seed = 0x1234567890abcdef,
        .shards = 1,
        .secret = {0x5ec, 0x2e7},
        .uid = BRAIN_UID,
        .carriers = 1u << CARRIER_TCP,
        .carriers_text = "tcp",
        .recorder = &b->recorder};
    if (strcmp(b->conf.transfer_tls, "tcp") != 0) {
        b->bc.carriers |= 1u << CARRIER_UCX;
        b->bc.carriers_text = "ucx 1.18 rc; tcp";
    }
    b->bc.data_keys = role == ROLE_LANGD && conf_secure(&b->conf);
    b->bc.data_key_bits =
        b->conf.transfer_encrypt == ENCRYPT_ON ? DATA_KEY_ENCRYPT : 0;
    (void)brain_init(&s, &b->bc);
    s = (struct slab){.p = aligned_alloc(SLAB_ALIGN, s.used), .cap = s.used};
    memset(s.p, 0, s.cap);
    b->is = brain_init(&s, &b->bc);
    T_TRUE(b->is != NULL);
    b->out.actions = calloc(OUT_ACTIONS, sizeof(struct action));
    b->out.cap = OUT_ACTIONS;
    b->out.bytes = writer_of(malloc(OUT_BYTES), OUT_BYTES);
    b->now_ns = NS_PER_S;
    if (brain_layout(b->is, 0)->count)
        ready(b, true);
    if (conf_lands(&b->conf)) {
        brain_addresses(b, CARRIER_TCP, span_of("\3\0abc", 5));
        brain_addresses(b, CARRIER_UCX, span_of("\4\0ucx1", 6));
    }
    return b;
}

/* engines */

void brain_conn(struct rig *b, uint32_t conn, const char *session)
{
    brain_user(b, conn, 7, session);
}

void brain_user(struct rig *b, uint32_t conn, uint32_t uid, const char *session)
{
    brain_able(b, conn, uid, session, 0);
}

void brain_able(struct rig *b, uint32_t conn, uint32_t uid, const char *session,
    uint64_t abilities)
{
    struct event ev = {.type = EV_CONN_OPEN,
        .conn = conn,
        .uid = uid,
        .pid = 1000 + (int32_t)conn};
    struct local_msg m = {.type = LOCAL_HELLO};

    rig_step(b, &ev);
    m.hello.magic = LOCAL_MAGIC;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.cells = 512;
    m.hello.session = span_str(session);
    m.hello.abilities = abilities;
    T_OK(brain_say(b, conn, m));
}

static bool frame_of(struct rig *b, const struct action *a, struct local_msg *m)
{
    struct reader r = reader_of(b->bytes + a->at, a->len);

    return local_get(&r, m) == OK;
}

void brain_says(const char *file, int line, struct rig *b, uint32_t conn,
    const struct local_msg *m, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        enum err e = brain_say(b, conn, m[i]);

        if (e != OK)
            t_fail(file, line, "message %zu: %s", i + 1, err_name(e));
    }
}

void brain_hears(
    struct rig *b, uint32_t link, const struct peer_msg *m, size_t count)
{
    for (size_t i = 0; i < count; i++)
        brain_hear(b, link, m[i]);
}

const struct local_answer *brain_answer(struct rig *b)
{
    static struct local_msg m;
    bool found = false;

    for (uint32_t i = 0; i < b->acts_count; i++)
        if (b->acts[i].type == ACT_LOCAL && frame_of(b, &b->acts[i], &m))
            if (m.type == LOCAL_ANSWER) {
                found = true;
                break;
            }
    return found ? &m.answer : NULL;
}

enum err brain_say(struct rig *b, uint32_t conn, struct local_msg m)
{
    struct event ev = {.type = EV_LOCAL, .conn = conn, .local = &m};
    const struct local_answer *a;
    uint32_t answers = 0;

    m.seq = 77;
    rig_step(b, &ev);
    for (uint32_t i = 0; i < b->acts_count; i++)
        answers += b->acts[i].type == ACT_LOCAL;
    T_EQ_U64(answers, 1); /* every message has one answer */
    a = brain_answer(b);
    return a ? (enum err)a->err : OK;
}

const struct local_event *brain_event(struct rig *b, uint32_t conn)
{
    struct writer w = writer_of(b->event_bytes, sizeof(b->event_bytes));
    struct reader r;

    if (!brain_next_event(b->is, conn, &w))
        return NULL;
    r = reader_of(w.p, w.len);
    T_OK(local_get(&r, &b->event));
    return &b->event.event;
}

uint16_t brain_events(struct rig *b, uint32_t conn, uint32_t cell)
{
    const struct local_event *e;
    uint16_t what = 0;

    while ((e = brain_event(b, conn)))
        if (e->cell == cell)
            what |= e->what;
    return what;
}

void brain_end(struct rig *b, uint32_t conn)
{
    struct event ev = {.type = EV_CONN_END, .conn = conn};

    rig_step(b, &ev);
}

void brain_dead(struct rig *b, uint32_t conn)
{
    struct event ev = {.type = EV_CONN_DEAD, .conn = conn};

    rig_step(b, &ev);
}

void brain_gone(struct rig *b, uint32_t conn)
{
    brain_end(b, conn);
    brain_dead(b, conn);
}

unsigned brain_state(const struct rig *b, uint32_t conn, uint32_t cell)
{
    return cell_state(b->cells[conn][cell]);
}

unsigned brain_reason(const struct rig *b, uint32_t conn, uint32_t cell)
{
    return cell_reason(b->cells[conn][cell]);
}

/* the other daemon */

void brain_hello(struct rig *b, uint32_t link, const char *name, uint64_t epoch)
{
    static const uint8_t address[] = {3, 0, 'x', 'y', 'z', 2, 0, 'u', 'v'};
    struct event up = {
        .type = EV_LINK_UP, .link = link, .host = b->host, .far = b->far};
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = epoch};
    struct event ev = {
        .type = EV_PEER, .link = link, .peer = &m, .owner = b->owner};

    epochs[link] = epoch;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = role_other(b->conf.role);
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str(name);
    m.hello.carriers = span_str("tcp");
    if (m.hello.role == ROLE_LANGD) {
        m.hello.carrier = CARRIER_TCP;
        m.hello.addresses = span_of(address, b->second ? 9 : 5);
    }
    begin(b);
    go_on(b, &up);
    go_on(b, &ev);
}

void brain_hear(struct rig *b, uint32_t link, struct peer_msg m)
{
    struct event ev = {.type = EV_PEER, .link = link, .peer = &m};

    if (!m.from_epoch)
        m.from_epoch = epochs[link];
    if (!m.to_epoch)
        m.to_epoch = BRAIN_EPOCH;
    rig_step(b, &ev);
}

const struct peer_msg *brain_said(struct rig *b, enum peer_type type, int i)
{
    static struct peer_msg m[4];
    static unsigned turn;
    struct peer_msg *at = &m[turn++ % 4];
    int n = (int)brain_said_count(b, type);

    if (i < 0)
        i += n;
    for (uint32_t k = 0; k < b->acts_count; k++) {
        struct reader r = reader_of(b->bytes + b->acts[k].at, b->acts[k].len);

        if (b->acts[k].type != ACT_PEER || peer_get(&r, at) != OK)
            continue;
        if (at->type == type && i-- == 0)
            return at;
    }
    return NULL;
}

uint32_t brain_said_count(struct rig *b, enum peer_type type)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < b->acts_count; k++) {
        struct reader r = reader_of(b->bytes + b->acts[k].at, b->acts[k].len);
        struct peer_msg m;

        n += b->acts[k].type == ACT_PEER && peer_get(&r, &m) == OK &&
             m.type == type;
    }
    return n;
}

const struct data_cmd *brain_cmd(const struct rig *b, uint8_t type)
{
    for (uint32_t k = b->acts_count; k-- > 0;)
        if (b->acts[k].type == ACT_DATA && b->acts[k].cmd.type == type)
            return &b->acts[k].cmd;
    return NULL;
}

uint32_t brain_limit(const struct rig *b)
{
    for (uint32_t k = b->acts_count; k-- > 0;)
        if (b->acts[k].type == ACT_DATA &&
            (b->acts[k].cmd.type == SEND_LIMIT ||
                b->acts[k].cmd.type == SEND_OPEN))
            return b->acts[k].cmd.type == SEND_LIMIT ? b->acts[k].cmd.a
                                                     : b->acts[k].cmd.limit;
    return 0;
}

uint32_t brain_acts(const struct rig *b, uint8_t type)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < b->acts_count; k++)
        n += b->acts[k].type == type;
    return n;
}

void brain_landed(
    struct rig *b, const struct data_cmd *open, uint32_t first, uint32_t rows)
{
    struct event ev = {.type = EV_NOTE,
        .note = {.type = NOTE_LANDED,
            .slot = open->slot,
            .attempt = open->attempt,
            .first = first,
            .rows = rows,
            .generation = open->generation}};

    rig_step(b, &ev);
}

/* what it shows */

#define SHOWN_TEXT 256

struct look {
    struct rows_out s;
    const char *name;
    bool by_name, hit;
    uint32_t row, at;
    uint64_t value;
    char *text; /* SHOWN_TEXT bytes, for a text; or NULL */
};

static void look_row(struct rows_out *s)
{
    struct look *k = (struct look *)(void *)s;

    k->at++;
    k->hit = !k->by_name && k->at == k->row + 1;
}

static void look_text(struct rows_out *s, const char *name, const char *value)
{
    struct look *k = (struct look *)(void *)s;

    if (k->by_name && !strcmp(name, "name"))
        k->hit = !strcmp(value, k->name);
    if (k->text && k->hit && !strcmp(name, k->name))
        snprintf(k->text, SHOWN_TEXT, "%s", value);
}

static void look_number(struct rows_out *s, const char *name, uint64_t value)
{
    struct look *k = (struct look *)(void *)s;

    if (k->hit && !strcmp(name, k->by_name ? "value" : k->name))
        k->value = value;
}

static uint64_t look(struct rig *b, const char *what, struct look k)
{
    k.s = (struct rows_out){look_row, look_text, look_number, NONE};
    k.value = UINT64_MAX;
    T_TRUE(brain_show(b->is, what, b->now_ns, SHOW_ALL, &k.s));
    T_CHECK(k.value != UINT64_MAX, "%s shows no %s", what, k.name);
    return k.value;
}

uint64_t brain_stat(struct rig *b, const char *name)
{
    return look(b, "stats", (struct look){.name = name, .by_name = true});
}

uint64_t brain_shown(
    struct rig *b, const char *what, const char *name, uint32_t row)
{
    return look(b, what, (struct look){.name = name, .row = row});
}

const char *brain_text(
    struct rig *b, const char *what, const char *name, uint32_t row)
{
    static char text[4][SHOWN_TEXT];
    static unsigned turn;
    struct look k = {.name = name, .row = row, .text = text[turn++ % 4]};

    k.text[0] = 0;
    k.s = (struct rows_out){look_row, look_text, look_number, NONE};
    T_TRUE(brain_show(b->is, what, b->now_ns, SHOW_ALL, &k.s));
    return k.text;
}

uint32_t brain_free(const struct rig *b)
{
    return b->is->ops->blocks_free(b->is, 0);
}
