/* map.c - daemons of one host: a langd that maps an encoder's pools over its
 * Unix socket, as lib/node does it, and everything that can come in between.
 *
 * A mapping is two ends that learn of each other late: the langd's is over
 * when it says so, the encoder's connection ends after that, and the langd's
 * process may be gone later still, or never. What a langd has mapped stays
 * readable whatever happens to the encoder. Rejected: the connections of
 * engines for this. Nobody there maps what others write. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/encode/encode.h"

#include <stdlib.h>

#define OWN_UID 500

struct mapping {
    struct daemon *l, *e;
    uint32_t l_life, e_life, peer, conn, uid;
    uint64_t token, heard_ns; /* frames in order */
    bool false_token, connected, ended, dead_told;
    bool over; /* at the langd */
    struct foreign *pools[CONF_POOLS_MAX];
    uint32_t mapped; /* bits of those that the shards know */
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

    (void)a;
    (void)b;
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

    (void)a;
    (void)b;
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
    m->l->maps[m->peer] = NULL;
    for (uint32_t i = 0; i < CONF_POOLS_MAX; i++)
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
    map_end(m);
    daemon_step(m->l, &ev);
}

static void closed_there(void *p, uint64_t a, uint64_t b)
{
    (void)a;
    (void)b;
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

    (void)b;
    if (m->over || !l_lives(m))
        return;
    if (!e_lives(m) && chance(500)) { /* its end is seen first, or not */
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

    if (!e_lives(m)) /* the memfd came with it, but here memory is a life's */
        return;
    HOLDS(!m->pools[n->pool], "a pool is offered once", "%s: pool %u",
        m->l->conf->name, n->pool);
    if (!W.healing && chance(W.is.wrong)) {
        if (chance(500))
            map_fail(m, "a pool that cannot be mapped");
        return; /* or one that does not fit: only its rows are sent */
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

    (void)a;
    (void)b;
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

/* ACT_CONN_CLOSE: hangs up, or forgets whose end it has seen. */
void map_close(struct mapping *m)
{
    if (m->ended) {
        at(W.now_ns + delay_us(W.is.local_us), gone, m, 0, 0);
        return;
    }
    at(W.now_ns + delay_us(W.is.local_us), ends, m, 0, 0);
    at(W.now_ns + 2 * delay_us(W.is.local_us), closed_there, m, 0, 0);
}

/* the handshake */

static void says_map(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct local_msg msg = {.type = LOCAL_MAP, .seq = 1};
    struct event ev = {.type = EV_LOCAL, .conn = m->conn, .local = &msg};

    (void)a;
    (void)b;
    if (!e_lives(m) || m->ended)
        return;
    msg.map.token = m->token;
    msg.map.epoch = m->l->bc.epoch; /* of a later life: refused */
    msg.map.name = span_str(m->l->conf->name);
    trace("%s > %s MAP", m->l->conf->name, m->e->conf->name);
    daemon_step(m->e, &ev);
}

static void connects(void *p, uint64_t a, uint64_t b)
{
    struct mapping *m = p;
    struct event ev = {.type = EV_CONN_OPEN, .pid = 2000};

    (void)a;
    (void)b;
    if (m->over || !l_lives(m))
        return;
    while (
        ev.conn < CONNS_MAX && (m->e->conns[ev.conn] || m->e->mappers[ev.conn]))
        ev.conn++;
    if (!m->e->alive || ev.conn == CONNS_MAX) {
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
        m->uid = 4242; /* may map what is for all */
    if (!W.healing && chance(W.is.wrong)) {
        m->false_token = true;
        m->token ^= 2;
    }
    m->next = mappings;
    mappings = m;
    l->maps[peer] = m;
    at(W.now_ns + delay_us(W.is.local_us), connects, m, 0, 0);
}

/* what goes wrong */

void map_lose_one(void)
{
    struct mapping *found = NULL;
    uint32_t n = 0;

    for (struct mapping *m = mappings; m; m = m->next)
        if (!m->over && l_lives(m) && draw() % ++n == 0)
            found = m;
    if (found)
        map_fail(found, "it breaks");
}

/* Its process has ended, with all its connections. */
void map_daemon_gone(struct daemon *d)
{
    for (struct mapping *m = mappings; m; m = m->next) {
        uint64_t when = W.now_ns + delay_us(W.is.local_us);

        if (m->l == d && m->l_life == d->life) {
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

/* Is it a connection whose langd still maps? */
bool map_stands(const struct mapping *m)
{
    return !m->over && !m->ended && l_lives(m);
}
