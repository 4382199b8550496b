/* ghost.c - hostile or broken programs: a langd, an encoded and an engine that
 * send valid frames in any order, with any numbers, about their own rooms and
 * those of others. The brains must keep their invariants, and no other peer may
 * be told something false. Rooms that only ghosts announce and request are not
 * checked.
 *
 * Ghosts know epochs and generations by looking into the brains: a stranger
 * would have to guess them. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/encode/encode.h"
#include "core/lang/lang.h"

#define GHOST_LINK  11 /* above the link numbers of real langds */
#define GENERATIONS UINT64_C(0xfeed000000000000)
#define CELLS_USED  6

static uint64_t epoch = 0x60057;
static uint32_t wanted[DAEMONS_MAX]; /* by langd: 1 + its link to the ghost */
static uint32_t links[DAEMONS_MAX];  /* by langd: its link, if it is up */
static uint32_t lives[DAEMONS_MAX];
static struct econn *conns[DAEMONS_MAX];
static uint32_t tag = 1;

/* Returns a number that some code may depend on. */

static uint64_t odd(void)
{
    static const uint64_t some[] = {0, 1, 2, 3, 8, 16, 64, 127, 128, 1000,
        0x7fffffff, 0x80000000, UINT32_MAX - 1, UINT32_MAX, UINT64_MAX};

    return chance(700) ? between(0, 70) : some[between(0, ARRAY_LEN(some) - 1)];
}

static struct span any_text(uint32_t max)
{
    static const uint8_t bytes[32] = "ghostly words of a stranger";

    return span_of(bytes, (uint32_t)between(0, min_u32(max, 20)));
}

static void fill_u8(uint8_t *x)
{
    *x = (uint8_t)between(0, 5);
}

static void fill_u16(uint16_t *x)
{
    *x = (uint16_t)between(0, 3);
}

static void fill_u32(uint32_t *x)
{
    *x = (uint32_t)odd();
}

static void fill_u64(uint64_t *x)
{
    *x = odd();
}

static void fill_key(struct key *x)
{
    memset(x, 0, sizeof(*x));
    x->b[0] = chance(300) ? (uint8_t)between(0, 4) : 0;
}

static void fill_secret(struct secret *x)
{
    memset(x, 0, sizeof(*x));
    x->b[0] = chance(300) ? (uint8_t)between(0, 4) : 0;
}

/* each message of a table, with random numbers */

#undef FIELD
#undef TEXT
#undef BLOB
#undef END
#define FIELD(name, kind, doc) fill_##kind(&x->name);
#define TEXT(name, max, doc)   x->name = any_text(max);
#define BLOB(name, max, doc)   x->name = any_text(max);
#define END(NAME, name)        }
#define MESSAGE(NAME, name, number, doc)                                       \
    static void fill_peer_##name(struct peer_##name *x)                        \
    {                                                                          \
        (void)x;
#include "wire/peer.def"
#undef MESSAGE
#define MESSAGE(NAME, name, number, doc)                                       \
    static void fill_local_##name(struct local_##name *x)                      \
    {                                                                          \
        (void)x;
#include "wire/local.def"
#undef MESSAGE
#undef FIELD
#undef TEXT
#undef BLOB
#undef END

#define FIELD(name, kind, doc)
#define TEXT(name, max, doc)
#define BLOB(name, max, doc)
#define END(NAME, name)

static void fill_peer(struct peer_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case PEER_##NAME:                                                          \
        fill_peer_##name(&m->name);                                            \
        return;
#include "wire/peer.def"
#undef MESSAGE
    }
}

static void fill_local(struct local_msg *m)
{
    switch (m->type) {
#define MESSAGE(NAME, name, number, doc)                                       \
    case LOCAL_##NAME:                                                         \
        fill_local_##name(&m->name);                                           \
        return;
#include "wire/local.def"
#undef MESSAGE
    }
}

/* between daemons */

static void hello(const struct daemon *to, struct peer_msg *m)
{
    static uint8_t blob[9 + 2];
    struct writer w = writer_of(blob, sizeof(blob));
    bool langd = to->role == ROLE_ENCODED;

    m->hello.version_min = m->hello.version_max = WIRE_VERSION;
    m->hello.role = role_other(to->role);
    m->hello.name = span_str(langd ? "ghost" : "g0");
    m->hello.segment_max = 1 << 20;
    m->hello.socket = m->hello.pools = span_of(NULL, 0);
    m->hello.token = 0;
    put_u16(&w, 9);
    put_u32(&w, 0); /* a data address where no one listens */
    put_u32(&w, 0xffff);
    put_u8(&w, CARRIER_TCP << 4);
    m->hello.carriers = span_str("tcp");
    m->hello.carrier = langd ? CARRIER_TCP : CARRIER_AUTO;
    m->hello.addresses = langd ? span_of(blob, w.len) : span_of(NULL, 0);
}

/* Makes an INIT that a real langd could send. */
static void init(const struct daemon *to, struct peer_msg *m)
{
    m->init.unit_rows = 1u << between(0, 3);
    m->init.part_rows = m->init.unit_rows * (uint32_t)between(1, 4);
    m->init.required_dst = (uint16_t)between(1, 2);
    m->init.from = (uint32_t)between(0, chance(800) ? 0 : 9);
    m->init.layout = brain_layout(to->brain, 0)->hash;
    m->init.storage = 0;
}

static uint64_t generation_there(const struct daemon *to, uint64_t *room)
{
    const struct encoded *e = to->brain;
    const struct langd *l = to->brain;

    *room = between(1, room_last() + 3);
    if (to->role == ROLE_LANGD) {
        const struct lroom *m = &l->rooms[between(0, l->rooms_max - 1)];

        *room = m->r.used ? m->r.id : *room;
        return m->generation;
    }
    if (chance(100))
        return e->dsts[between(0, e->rooms_max - 1)].generation;
    return GENERATIONS + between(0, 20);
}

static void peer_speaks(struct daemon *to, uint32_t link)
{
    static uint8_t bytes[PEER_PACKET_MAX];
    struct writer w = writer_of(bytes, sizeof(bytes));
    struct event ev = {.type = EV_PEER, .link = link};
    struct peer_msg m = {.type = (enum peer_type)between(1, PEER_NACK)}, got;
    struct reader r;

    if (chance(150))
        m.type = PEER_HELLO;
    if (chance(10))
        epoch++;
    fill_peer(&m);
    m.from_epoch = epoch;
    m.to_epoch = chance(980) ? to->bc.epoch : odd();
    m.generation = generation_there(to, &m.room);
    if (m.type == PEER_HELLO && chance(900))
        hello(to, &m);
    if (m.type == PEER_INIT && to->role == ROLE_ENCODED && chance(900))
        init(to, &m);
    CHECK(peer_put(&w, &m), "%s does not fit", peer_name(m.type));
    r = reader_of(bytes, w.len);
    ev.err = peer_get(&r, &got);
    ev.peer = &got;
    if (ev.err != OK)
        ev.type = EV_PEER_BAD;
    trace("ghost>%s %s %llu g%llx", to->conf->name, peer_name(m.type),
        (unsigned long long)m.room,
        (unsigned long long)m.generation & 0xffffff);
    daemon_step(to, &ev);
}

static void link_event(struct daemon *to, enum event_type type, uint32_t link)
{
    struct event ev = {.type = type, .link = link};

    daemon_step(to, &ev);
}

static void link_stands(void *p, uint64_t life, uint64_t link)
{
    struct daemon *l = p;

    if (!l->alive || l->life != life || W.healing ||
        wanted[l->index] != link + 1)
        return;
    links[l->index] = (uint32_t)link + 1;
    lives[l->index] = l->life;
    link_event(l, EV_LINK_UP, (uint32_t)link);
}

bool ghost_connects(struct daemon *l, uint32_t link, const char *address)
{
    if (strcmp(address, GHOST_ADDRESS) != 0)
        return false;
    links[l->index] = 0;
    wanted[l->index] = link + 1;
    at(W.now_ns + MS, link_stands, l, l->life, link);
    return true;
}

void ghost_disconnects(struct daemon *l, uint32_t link)
{
    if (wanted[l->index] != link + 1)
        return;
    wanted[l->index] = links[l->index] = 0;
}

/* engines */

static bool for_role(uint8_t role, uint32_t type)
{
    switch (type) {
    case LOCAL_ANNOUNCE:
    case LOCAL_COMMIT:
        return role == ROLE_ENCODED;
    case LOCAL_REQUEST:
    case LOCAL_DECLINE:
    case LOCAL_SPACE:
    case LOCAL_TICKET:
    case LOCAL_TICKET_RELEASE:
    case LOCAL_TICKET_QUERY:
        return role == ROLE_LANGD || chance(100);
    case LOCAL_POOL:
    case LOCAL_ATTACH:
    case LOCAL_RELEASE:
    case LOCAL_ABORT:
        return true;
    default:
        return false;
    }
}

/* Sends a message that names a cell, most often one that was used. */
static void engine_speaks(struct econn *c)
{
    struct local_msg m = {.type = LOCAL_POOL};
    uint32_t type = (uint32_t)between(2, 15);
    uint32_t cell = (uint32_t)between(0, CELLS_USED);

    while (!for_role(c->d->role, type))
        type = (uint32_t)between(2, 15);
    m.type = (enum local_type)type;
    fill_local(&m);
    if (type == LOCAL_ANNOUNCE) {
        m.announce.room = GHOST_ROOMS + between(0, 5);
        m.announce.cell = cell;
        m.announce.tag = ++tag;
        m.announce.storage = 1;
        m.announce.pool = 0;
    } else if (type == LOCAL_REQUEST) {
        m.request.room = GHOST_ROOMS + between(0, 5);
        m.request.cell = cell;
        m.request.tag = ++tag;
        m.request.pool = 0;
        m.request.encoder = span_str(chance(300) ? "g0" : "e0");
    } else if (type == LOCAL_ATTACH) {
        m.attach.room = chance(300) ? 1 : GHOST_ROOMS + between(0, 5);
        m.attach.cell = cell;
        m.attach.tag = ++tag;
        m.attach.encoder = span_str("e0");
    } else if (type == LOCAL_COMMIT || type == LOCAL_RELEASE ||
               type == LOCAL_ABORT) {
        m.commit.cell = m.release.cell = m.abort.cell = cell;
        m.commit.tag = (uint32_t)(c->words[cell] & TAG_MAX);
    }
    econn_send(c, &m, NULL);
}

static void engine_acts(struct daemon *d)
{
    struct econn *c = conns[d->index];

    if (c && (c->ended || c->dead || c->life != d->life))
        c = conns[d->index] = NULL;
    if (!c) {
        c = conns[d->index] = econn_open(d, "ghost", 1999);
        if (c)
            c->ghost = true;
        return;
    }
    if (!econn_usable(c))
        return;
    if (chance(20))
        econn_die(c);
    else
        engine_speaks(c);
}

/* all of them */

static void ghosts_act(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    uint32_t i = d->index;

    if (W.healing)
        return;
    at(W.now_ns + between(0, 2 * W.is.ghost_ms) * MS, ghosts_act, p, a, b);
    if (!d->alive)
        return;
    if (chance(400)) {
        engine_acts(d);
    } else if (d->role == ROLE_LANGD) {
        if (links[i] && lives[i] == d->life)
            peer_speaks(d, links[i] - 1);
    } else {
        if (lives[i] != d->life)
            link_event(d, EV_LINK_UP, GHOST_LINK);
        lives[i] = d->life;
        peer_speaks(d, GHOST_LINK);
    }
}

void ghosts_start(void)
{
    draw_from(PART_GHOST, 0);
    if (W.is.ghost_ms)
        at(W.now_ns, ghosts_act, NULL, 0, 0);
}

void ghosts_go(void)
{
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        struct daemon *d = W.daemons[i];

        if (!W.is.ghost_ms || !d->alive || lives[i] != d->life)
            continue;
        if (d->role == ROLE_ENCODED)
            link_event(d, EV_LINK_DOWN, GHOST_LINK);
        else if (links[i])
            link_event(d, EV_LINK_DOWN, links[i] - 1);
        lives[i] = 0;
        links[i] = 0;
    }
    for (uint32_t i = 0; i < DAEMONS_MAX; i++)
        if (conns[i])
            econn_die(conns[i]);
}
