/* map.c - daemons of one host: a langd that maps an encoder's pools over its
 * Unix socket, as lib/node does, and everything that can happen meanwhile.
 *
 * A mapping has two ends that learn of each other late: the langd's is over
 * when it says so, the encoder's connection ends after that, and the langd's
 * process may end later still, or never. What a langd has mapped can be read
 * whatever happens to the encoder. An engine's process that a langd told of the
 * encoder maps the pool in the same way, and is its reader: it can read its
 * rows whatever happens to the langd, until the process says BYE or ends. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/encode/encode.h"

#define OWN_UID 500

struct mapping {
    struct daemon *l, *e;
    uint32_t l_life, e_life, peer, conn, uid;
    uint64_t token, heard_ns; /* heard_ns: keeps frames in order */
    bool false_token, connected, ended, dead_told;
    bool over; /* the langd's end is */
    struct foreign *pools[CONF_POOLS_MAX];
    uint32_t mapped;      /* bits of pools that the shards know */
    struct econn *reader; /* the engine's process that maps; NULL: the langd */
    bool dead, bye;       /* the process has ended; it will read no more */
    bool parting;         /* it has connected again to say BYE */
    uint16_t lender;
    uint64_t epoch; /* of the langd */
    struct mapping *next;
};

struct heard {
    struct mapping *m;
    uint32_t len;
    uint8_t bytes[];
};

static struct mapping *mappings;

static bool l_lives(const struct mapping *m)
{
    if (m->reader)
        return !m->dead && !m->bye;
    return m->l->alive && m->l->life == m->l_life;
}

static bool e_lives(const struct mapping *m)
{
    return m->e->alive && m->e->life == m->e_life;
}

/* the encoder's end */

static void gone(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct event ev = {.type = EV_CONN_DEAD, .conn = m->conn};

    if (!e_lives(m) || m->dead_told)
        return;
    m->dead_told = true;
    m->e->mappers[m->conn] = NULL;
    trace("%s: mapping connection %u is gone", m->e->conf->name, m->conn);
    daemon_step(m->e, &ev);
}

static void ends(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct event ev = {.type = EV_CONN_END, .conn = m->conn};

    if (!e_lives(m) || m->ended)
        return;
    m->ended = true;
    trace("%s: mapping connection %u ends", m->e->conf->name, m->conn);
    daemon_step(m->e, &ev);
    if (!l_lives(m) || canary("map-end-is-death"))
        at(W.now_ns + delay_us(W.is.local_us), gone, m, 0, 0);
}

/* the langd's end */

static void map_end(struct mapping *m)
{
    m->over = true;
    if (!m->reader)
        m->l->maps[m->peer] = NULL;
    for (uint32_t i = 0; !m->reader && i < CONF_POOLS_MAX; i++)
        if (m->pools[i])
            shards_source(m->l, m->peer, i, NULL);
    if (m->connected)
        at(W.now_ns + delay_us(W.is.local_us), ends, m, 0, 0);
}

static void map_fail(struct mapping *m, const char *why)
{
    struct event ev = {
        .type = EV_MAP, .peer_at = m->peer, .err = ERR_PEER_LOST};

    if (m->over || !l_lives(m))
        return;
    trace("%s: no mapping of %s: %s", m->l->conf->name, m->e->conf->name, why);
    if (m->reader) { /* pools that are mapped can still be read */
        m->over = true;
        return;
    }
    map_end(m);
    daemon_step(m->l, &ev);
}

static void closed_there(void *p, uint64_t a, uint64_t b)
{
    map_fail(p, "it closed the connection");
}

void map_stop(struct daemon *l, uint32_t peer)
{
    if (l->maps[peer])
        map_end(l->maps[peer]);
}

static void mapped(void *p, uint64_t pool, uint64_t b)
{
    struct mapping *m = p;
    struct event ev = {.type = EV_MAP, .peer_at = m->peer};

    if (m->over || !l_lives(m))
        return;
    if (m->reader) {
        struct local_msg say = {.type = LOCAL_MAPPED};

        m->mapped |= UINT32_C(1) << pool;
        say.mapped.lender = m->lender;
        say.mapped.pools = (uint16_t)m->mapped;
        if (econn_usable(m->reader))
            econn_send(m->reader, &say, NULL);
        return;
    }
    if (!e_lives(m) && chance(500)) { /* its end may be seen before the map */
        map_fail(m, "gone");
        return;
    }
    shards_source(m->l, m->peer, (uint32_t)pool, m->pools[pool]);
    ev.mapped = m->mapped |= UINT32_C(1) << pool;
    trace("%s: pools %x of %s are mapped", m->l->conf->name, ev.mapped,
        m->e->conf->name);
    daemon_step(m->l, &ev);
}

static void hear_pool(struct mapping *m, const struct local_pool_info *n)
{
    struct foreign *f;

    /* a memfd would have come along, but here memory belongs to a life */
    if (!e_lives(m))
        return;
    HOLDS(!m->pools[n->pool], "a pool is offered once", "%s: pool %u",
        m->l->conf->name, n->pool);
    if (!m->reader && !W.healing && chance(W.is.wrong)) {
        if (chance(500))
            map_fail(m, "a pool that cannot be mapped");
        return; /* or one that does not fit, whose rows are sent */
    }
    m->pools[n->pool] = f = must_alloc(1, sizeof(*f));
    *f = (struct foreign){.of = m->e,
        .life = m->e_life,
        .tags = m->e->tags[n->pool],
        .reads = m->e->reads[n->pool],
        .blocks = n->blocks,
        .block_rows = n->block_rows,
        .layout = brain_layout(m->e->brain, n->pool)};
    at(W.now_ns + delay_us(W.is.local_us), mapped, m, n->pool, 0);
}

static void hears(void *p, uint64_t a, uint64_t b)
{
    struct heard *h = p;
    struct mapping *m = h->m;
    struct reader r = reader_of(h->bytes, h->len);
    struct local_msg msg;
    enum err e = local_get(&r, &msg);

    HOLDS(e == OK, "answers can be read", "%s", err_name(e));
    if (!m->over && l_lives(m)) {
        HOLDS(!m->false_token || msg.type != LOCAL_POOL_INFO,
            "pools are for their daemons", "a false token is believed");
        if (msg.type == LOCAL_ANSWER && msg.answer.err)
            map_fail(m, err_name((enum err)msg.answer.err));
        else if (msg.type == LOCAL_POOL_INFO)
            hear_pool(m, &msg.pool_info);
    }
    free(h);
}

/* what the encoder asks for */

void map_deliver(struct mapping *m, struct span frame)
{
    struct heard *h = must_alloc(1, sizeof(*h) + frame.len);
    uint64_t when = W.now_ns + delay_us(W.is.local_us);

    h->m = m;
    h->len = frame.len;
    memcpy(h->bytes, frame.p, frame.len);
    m->heard_ns = when > m->heard_ns ? when : m->heard_ns + 1;
    at(m->heard_ns, hears, h, 0, 0);
}

/* Carries out ACT_CONN_CLOSE: hangs up, or forgets a process whose end was
 * seen. */
void map_close(struct mapping *m)
{
    if (m->ended) {
        at(W.now_ns + delay_us(W.is.local_us), gone, m, 0, 0);
        return;
    }
    at(W.now_ns + delay_us(W.is.local_us), ends, m, 0, 0);
    at(W.now_ns + 2 * delay_us(W.is.local_us), closed_there, m, 0, 0);
}

static void says_bye(void *p, uint64_t a, uint64_t b);

/* the handshake */

static void says_map(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct local_msg msg = {.type = LOCAL_MAP, .seq = 1};
    struct event ev = {.type = EV_LOCAL, .conn = m->conn, .local = &msg};

    if (!e_lives(m) || m->ended)
        return;
    msg.map.token = m->token;
    /* The MAP of a langd's later life is refused. */
    msg.map.epoch = m->reader ? m->epoch : m->l->bc.epoch;
    msg.map.name = span_str(m->l->conf->name);
    msg.map.parting = m->parting;
    trace("%s > %s MAP", m->l->conf->name, m->e->conf->name);
    daemon_step(m->e, &ev);
    if (m->parting)
        at(W.now_ns + delay_us(W.is.local_us), says_bye, m, 0, 0);
}

static void connects(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct event ev = {.type = EV_CONN_OPEN,
        .pid = m->reader ? 3000 + (int32_t)m->reader->process : 2000};

    if (m->over || !l_lives(m))
        return;
    while (
        ev.conn < CONNS_MAX && (m->e->conns[ev.conn] || m->e->mappers[ev.conn]))
        ev.conn++;
    if (!m->e->alive || ev.conn >= (m->reader ? CONNS_MAX / 2 : CONNS_MAX)) {
        if (m->parting && m->e->alive)
            at(W.now_ns + 50 * MS, connects, m, 0, 0);
        else
            map_fail(m, "connect");
        return;
    }
    m->connected = true;
    m->e_life = m->e->life;
    m->conn = ev.conn;
    m->e->mappers[ev.conn] = m;
    ev.uid = ev.gid = m->uid;
    daemon_step(m->e, &ev);
    at(W.now_ns + delay_us(W.is.local_us), says_map, m, 0, 0);
}

void map_start(
    struct daemon *l, uint32_t peer, struct span path, uint64_t token)
{
    static const uint32_t uids[] = {OWN_UID, OWN_UID, 0, 1000};
    struct mapping *m = must_alloc(1, sizeof(*m));

    HOLDS(!l->maps[peer], "one mapping at a time", "%s peer %u", l->conf->name,
        peer);
    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (span_eq(path, span_str(W.daemons[i]->conf->socket_path)))
            m->e = W.daemons[i];
    HOLDS(m->e && m->e->role == ROLE_ENCODED && m->e->host == l->host,
        "maps stay on their host", "%s: %.*s", l->conf->name, (int)path.len,
        (const char *)path.p);
    m->l = l;
    m->l_life = l->life;
    m->peer = peer;
    m->token = token;
    m->uid = uids[W.is.wrong ? between(0, ARRAY_LEN(uids) - 1) : 0];
    if (!W.healing && chance(W.is.wrong))
        m->uid = 4242; /* may map only a pool for all users */
    if (!W.healing && chance(W.is.wrong)) {
        m->false_token = true;
        m->token ^= 2;
    }
    m->next = mappings;
    mappings = m;
    l->maps[peer] = m;
    at(W.now_ns + delay_us(W.is.local_us), connects, m, 0, 0);
}

/* readers */

void map_lender(struct econn *c, const struct local_lender *n)
{
    struct mapping *m = must_alloc(1, sizeof(*m));

    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (span_eq(n->socket, span_str(W.daemons[i]->conf->socket_path)))
            m->e = W.daemons[i];
    HOLDS(m->e && m->e->role == ROLE_ENCODED && m->e->host == c->d->host,
        "lenders are of their host", "%s: %.*s", c->d->conf->name,
        (int)n->socket.len, (const char *)n->socket.p);
    m->l = c->d;
    m->l_life = c->life;
    m->reader = c;
    m->uid = c->uid;
    m->token = n->token;
    m->epoch = n->epoch;
    m->lender = n->lender;
    m->next = mappings;
    mappings = m;
    at(W.now_ns + delay_us(W.is.local_us), connects, m, 0, 0);
}

const struct foreign *map_pool(const struct econn *c, uint16_t pool)
{
    const struct mapping *m = mappings;

    while (m &&
           (m->parting || m->reader != c || m->lender != pool / CONF_POOLS_MAX))
        m = m->next;
    HOLDS(m && (m->mapped >> (pool % CONF_POOLS_MAX) & 1),
        "rows are shown to who maps them", "pool %u of connection %u", pool,
        c->number);
    return m->pools[pool % CONF_POOLS_MAX];
}

/* True if the handle shows rows of this block to a program. */
static bool shows(const struct handle *h, uint16_t pool, uint32_t block)
{
    if (!h->cons || h->released || h->pool != pool)
        return false;
    for (uint32_t r = h->given; r < h->shown; r += handle_block_rows(h))
        if (handle_row(h, r) / handle_block_rows(h) == block)
            return true;
    return false;
}

const struct handle *map_reader(
    const struct daemon *e, uint32_t pool, uint32_t block)
{
    for (const struct mapping *m = mappings; m; m = m->next) {
        uint16_t number = (uint16_t)(m->lender * CONF_POOLS_MAX + pool);

        if (!m->reader || m->dead || m->bye || m->e != e || !e_lives(m))
            continue;
        for (uint32_t i = 0; i < m->reader->cells; i++)
            if (m->reader->handles[i] &&
                shows(m->reader->handles[i], number, block))
                return m->reader->handles[i];
    }
    return NULL;
}

/* Connects once more for a reader whose connection has ended. */
static void part(const struct mapping *before)
{
    struct mapping *m = must_alloc(1, sizeof(*m));

    *m = *before;
    m->parting = true;
    m->connected = m->ended = m->over = m->bye = m->dead_told = false;
    memset(m->pools, 0, sizeof(m->pools));
    m->mapped = 0;
    m->next = mappings;
    mappings = m;
    at(W.now_ns + delay_us(W.is.local_us), connects, m, 0, 0);
}

static void says_bye(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct local_msg msg = {.type = LOCAL_BYE, .seq = 2};
    struct event ev = {.type = EV_LOCAL, .conn = m->conn, .local = &msg};

    if (m->dead || m->bye)
        return;
    m->bye = m->over = true;
    if (!m->connected || !e_lives(m))
        return;
    if (m->ended)
        part(m);
    else
        daemon_step(m->e, &ev);
}

/* The langd is dead: the reader reads what it was shown, then releases it. */
static void reads_out(void *p, uint64_t a, uint64_t b)
{
    struct econn *c = ((struct mapping *)p)->reader;

    for (uint32_t i = 0; i < c->cells; i++) {
        const struct handle *h = c->handles[i];

        if (h && h->cons && h->pool >= CONF_POOLS_MAX && !h->released &&
            h->pool / CONF_POOLS_MAX == ((struct mapping *)p)->lender)
            cons_read(h, h->given, h->shown, "after its langd's death");
    }
    says_bye(p, a, b);
}

void map_reader_gone(struct econn *c, enum gone_how how)
{
    for (struct mapping *m = mappings; m; m = m->next) {
        if (m->reader != c || m->dead)
            continue;
        if (how == GONE_LANGD)
            at(W.now_ns + between(0, 500) * MS, reads_out, m, 0, 0);
        else if (how == GONE_BYE)
            at(W.now_ns + delay_us(W.is.local_us), says_bye, m, 0, 0);
        if (how != GONE_DIES)
            continue;
        m->dead = m->over = true;
        if (m->connected)
            at(W.now_ns + delay_us(W.is.local_us), m->ended ? gone : ends, m, 0,
                0);
    }
}

/* what goes wrong */

void map_lose_one(void)
{
    struct mapping *found = NULL;
    uint32_t n = 0;

    for (struct mapping *m = mappings; m; m = m->next)
        if (!m->over && !m->parting && l_lives(m) && draw() % ++n == 0)
            found = m;
    if (found && found->reader && found->connected)
        at(W.now_ns, ends, found, 0, 0);
    else if (found)
        map_fail(found, "it breaks");
}

/* The daemon's process has ended, with all of its connections. */
void map_daemon_gone(struct daemon *d)
{
    for (struct mapping *m = mappings; m; m = m->next) {
        uint64_t when = W.now_ns + delay_us(W.is.local_us);

        if (!m->reader && m->l == d && m->l_life == d->life) {
            m->over = true;
            if (m->connected && m->ended)
                at(when, gone, m, 0, 0);
            else if (m->connected)
                at(when, ends, m, 0, 0);
        } else if (m->e == d && m->connected && m->e_life == d->life) {
            at(when, closed_there, m, 0, 0);
        }
    }
}

/* True if the connection's langd still maps. */
bool map_stands(const struct mapping *m)
{
    return !m->reader && !m->over && !m->ended && l_lives(m);
}
