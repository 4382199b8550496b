/* there.c - see there.h. One thread. Rejected: a copy of these functions in
 * every test of langd. */
#include "test/there.h"

struct local_msg request(uint64_t room, uint32_t cell, uint8_t mode)
{
    struct local_msg m = {.type = LOCAL_REQUEST};

    m.request.room = room;
    m.request.cell = cell;
    m.request.tag = cell + 100;
    m.request.mode = mode;
    m.request.encoder = span_str("enc");
    return m;
}

struct local_msg request_in(
    uint64_t room, uint32_t cell, uint64_t group, uint16_t size)
{
    struct local_msg m = request(room, cell, MODE_WHOLE);

    m.request.group = group;
    m.request.group_size = size;
    return m;
}

struct local_msg attach(uint64_t room, uint32_t cell, uint8_t rights)
{
    struct local_msg m = {.type = LOCAL_ATTACH};

    m.attach.room = room;
    m.attach.cell = cell;
    m.attach.tag = cell + 100;
    m.attach.rights = rights;
    m.attach.encoder = span_str("enc");
    return m;
}

struct local_msg release(uint32_t cell, uint32_t rows)
{
    struct local_msg m = {.type = LOCAL_RELEASE};

    m.release.cell = cell;
    m.release.tag = cell + 100;
    m.release.rows = rows;
    return m;
}

struct local_msg abort_of(uint32_t cell)
{
    struct local_msg m = {.type = LOCAL_ABORT};

    m.abort.cell = cell;
    m.abort.tag = cell + 100;
    return m;
}

struct peer_msg about(const struct there *t, enum peer_type type)
{
    return (struct peer_msg){
        .type = type, .room = t->room, .generation = t->generation};
}

struct peer_msg length(
    const struct there *t, uint32_t total, uint32_t max_rows, bool aux)
{
    struct peer_msg m = about(t, PEER_LENGTH);

    m.length.total = total;
    m.length.max_rows = max_rows;
    m.length.storage = STORAGE_COMPACT;
    m.length.attempt = NONE;
    m.length.flags = aux ? FLAG_AUX : 0;
    if (aux)
        m.length.aux = span_str("aux!");
    return m;
}

struct peer_msg state(const struct there *t, enum peer_type answers,
    uint32_t attempt, uint32_t granted)
{
    struct peer_msg m = about(t, PEER_STATE);

    m.state.answers = (uint8_t)answers;
    m.state.state = ROOM_WAITING;
    m.state.attempt = attempt;
    m.state.granted = granted;
    return m;
}

struct peer_msg acked(const struct there *t)
{
    static uint8_t bytes[8];
    struct writer w = writer_of(bytes, sizeof(bytes));
    struct peer_msg m = {.type = PEER_ACKED};

    put_u64(&w, t->generation);
    m.acked.generations = span_of(bytes, sizeof(bytes));
    return m;
}

struct peer_msg want(const struct there *t, uint32_t attempt, uint32_t granted,
    uint32_t committed)
{
    struct peer_msg m = about(t, PEER_WANT);

    m.want.attempt = attempt;
    m.want.granted = granted;
    m.want.committed = committed;
    return m;
}

struct peer_msg near_hello(uint64_t token)
{
    struct peer_msg m = {.type = PEER_HELLO};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_ENCODED;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("enc");
    m.hello.carriers = span_str("tcp");
    m.hello.socket = span_str("/run/enc.sock");
    m.hello.token = token;
    return m;
}

struct rig *langd(const char *a, const char *b)
{
    struct rig *l = BRAIN(ROLE_LANGD, a ? a : "log=info", b ? b : "log=info");

    brain_conn(l, 0, "s");
    return l;
}

struct rig *langd_up(const char *a, const char *b)
{
    struct rig *l = langd(a, b);

    T_OK(brain_say(l, 0, request(1000, 63, MODE_WHOLE))); /* makes the link */
    brain_hello(l, 0, "enc", PEER_EPOCH);
    T_OK(brain_say(l, 0, release(63, ROWS_UNKNOWN)));
    brain_hear(l, 0,
        (struct peer_msg){.type = PEER_DRAINED,
            .room = 1000,
            .generation = brain_said(l, PEER_ABORT, 0)->generation});
    return l;
}

void told(struct rig *l, struct there *t)
{
    const struct data_cmd *open = brain_cmd(l, LAND_OPEN);

    if (open)
        t->open = *open;
}

/* Requests a room, and takes INIT as the encoder. */
struct there ask(struct rig *l, uint32_t conn, struct local_msg m)
{
    struct there t = {.room = m.request.room};
    const struct peer_msg *init;

    T_OK(brain_say(l, conn, m));
    init = brain_said(l, PEER_INIT, 0);
    T_TRUE(init != NULL);
    t.generation = init->generation;
    told(l, &t);
    brain_hear(l, 0, state(&t, PEER_INIT, 0, init->init.granted));
    return t;
}

struct there ask_room(struct rig *l, uint64_t room, uint32_t cell)
{
    return ask(l, 0, request(room, cell, MODE_WHOLE));
}

/* The encoder announces the total; all rows are granted and land. */
void fill(struct rig *l, struct there *t, uint32_t total)
{
    brain_hear(l, 0, length(t, total, total, true));
    told(l, t);
    brain_landed(l, &t->open, 0, total);
}

uint32_t there_blocks(const struct local_event *e)
{
    struct reader r = reader_of(e->runs.p, e->runs.len);
    uint32_t n = 0;

    while (r.at < r.len) {
        (void)get_u32(&r);
        n += get_u32(&r);
    }
    return n;
}

struct there member(struct rig *l, uint64_t room, uint16_t size)
{
    return ask(l, 0, request_in(room, (uint32_t)room - 1, 9, size));
}

void wants(struct rig *l, struct there *t, uint32_t granted, uint32_t total)
{
    brain_hear(l, 0, length(t, total, total, true));
    told(l, t);
    brain_hear(l, 0, want(t, 0, granted, total));
    told(l, t);
}

void ask_rooms(struct rig *l, struct there *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        t[i] = ask_room(l, i + 1, i);
}

void fill_succeeds(
    struct rig *l, struct there *t, uint32_t total, uint32_t cell)
{
    fill(l, t, total);
    T_EQ_U64(brain_state(l, 0, cell), ROOM_SUCCESS);
}

void frees(struct rig *l, uint32_t cell, uint32_t blocks)
{
    T_OK(brain_say(l, 0, release(cell, ROWS_UNKNOWN)));
    T_EQ_U64(brain_free(l), blocks);
}
