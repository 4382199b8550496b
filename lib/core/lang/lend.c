/* lend.c - rooms whose rows engines read in the pool of an encoder on this host
 * (RULES 6.7). Owned by the loop's thread.
 *
 * A lender is a run of an encoder that lends. Engines that understand it are
 * told of it (LENDER), map its pools by themselves, and say so (MAPPED). A room
 * hopes for a lend from its request on, if at that time each connection of its
 * session has mapped the lender's pools, since each may be shown the room's
 * rows. Such a room has no blocks here. When the encoder asks for a grant
 * instead, or a connection comes that has not mapped, the room takes blocks as
 * any other and no longer hopes.
 *
 * A group hopes as one, and is shown once all of it is lent: a member that was
 * shown before would hold its encoder's blocks while another member waits for
 * blocks. Until then its encoder may still ask for a grant instead. */
#include "core/lang/lang.h"

#define LENDERS_MAX 4095u   /* so that a lender's pool has a 16-bit number */
#define LEND_FROM   262144u /* bytes; copying fewer takes no longer */

_Static_assert((LENDERS_MAX + 1) * CONF_POOLS_MAX == UINT16_MAX + 1,
    "EVENT.pool has a lender and its pool");

/* lenders */

void lender_gone(struct peer *p)
{
    p->l.lender = 0;
    p->l.lend_token = 0;
}

void lender_take(struct langd *l, struct peer *p, const struct peer_hello *n)
{
    if (!p->same_host || !n->lend || n->socket.len == 0 ||
        l->b.c.conf->transfer_same_host >= SAME_HOST_COPY) {
        lender_gone(p);
    } else if (n->lend != p->l.lend_token) {
        p->l.lender = 0;
        p->l.lend_token = n->lend;
        span_copy_str(n->socket, p->l.lend_socket, sizeof(p->l.lend_socket));
        lender_open(l, p);
    }
}

void lender_open(struct langd *l, struct peer *p)
{
    if (!p->mapped || !p->l.lend_token || p->l.lender ||
        l->lenders == LENDERS_MAX)
        return;
    p->l.lender = ++l->lenders;
    CHECK(p->l.lender <= LENDERS_MAX, "lender %u", p->l.lender);
    l->lender_news = 0;
}

void lenders_serve(struct langd *l, struct out *out)
{
    for (; l->lender_news < l->b.engines.conns_max && out_has_room(out);
         l->lender_news++)
        if (l->b.engines.conns[l->lender_news].lends)
            engine_notify(&l->b.engines, out, l->lender_news);
}

bool lender_next(struct langd *l, uint32_t conn, struct writer *w)
{
    struct conn *c = &l->b.engines.conns[conn];
    struct local_msg m = {.type = LOCAL_LENDER};
    const struct peer *next = NULL;

    CHECK(c->lender_said <= l->lenders, "connection %u knows ahead", conn);
    if (c->lender_said == l->lenders)
        return false;
    PEERS_FOREACH (p, &l->b.peers)
        if (p->l.lender > c->lender_said &&
            (!next || p->l.lender < next->l.lender))
            next = p;
    if (!next) {
        c->lender_said = l->lenders;
        return false;
    }
    m.lender.lender = next->l.lender;
    m.lender.token = next->l.lend_token;
    m.lender.epoch = l->b.c.epoch;
    m.lender.name = span_str(l->b.c.conf->name);
    m.lender.socket = span_str(next->l.lend_socket);
    if (!local_put(w, &m))
        return false;
    c->lender_said = next->l.lender;
    return true;
}

/* Returns the pools of the lender that conn maps, as bits. */
static uint32_t maps(const struct langd *l, uint32_t conn, uint16_t lender)
{
    const struct conn *c = &l->b.engines.conns[conn];

    for (uint32_t i = 0; lender && i < CONN_MAPS_MAX; i++)
        if (c->maps[i].lender == lender)
            return c->maps[i].pools;
    return 0;
}

bool lender_refused(const struct langd *l, uint32_t conn, const struct lroom *m)
{
    const struct conn *c = &l->b.engines.conns[conn];

    for (uint32_t i = 0; i < CONN_MAPS_MAX; i++)
        if (c->maps[i].lender == m->lent_pool / CONF_POOLS_MAX)
            return c->maps[i].pools == 0;
    return !c->lends;
}

/* Returns the lent room that the attachment waits for, since its connection did
 * not map the pool; NULL: none. */
static struct lroom *awaited(struct langd *l, const struct attachment *att)
{
    uint32_t slot;
    struct lroom *m;

    if (att->room || !heap_linked(&att->timer) || att->scope >= l->b.peers.max)
        return NULL;
    slot = table_get(
        &l->keys, att->room_id, att->name ^ l->b.peers.peers[att->scope].who);
    m = slot == NONE ? NULL : &l->rooms[slot];
    return m && m->lent && m->peer == att->scope &&
                   m->r.session == l->b.engines.conns[att->conn].serial
               ? m
               : NULL;
}

/* Joins an attachment that waits to its room, or ends it, since its connection
 * never maps the pool. */
static void join(struct langd *l, struct attachment *att)
{
    struct lroom *m = awaited(l, att);

    if (!m)
        return;
    if (lender_refused(l, att->conn, m))
        attachment_end(&l->b.engines, att, ERR_NOT_READY, l->b.now_ns);
    else if (!m->no_readers && !room_crowded(&m->r) &&
             lroom_shows(l, m, att->conn))
        attachment_join(&l->b.engines, att, &m->r);
}

void lender_mapped(struct langd *l, uint32_t conn, const struct local_mapped *n)
{
    struct conn_maps *maps = l->b.engines.conns[conn].maps, *at = maps;

    /* In its old place, else in that of the oldest. */
    for (uint32_t i = 0; i < CONN_MAPS_MAX && at->lender != n->lender; i++)
        if (maps[i].lender == n->lender || maps[i].lender < at->lender)
            at = &maps[i];
    *at = (struct conn_maps){n->lender, n->pools};
    LIST_FOREACH_SAFE (i, &l->b.engines.conns[conn].attachments)
        join(l, LIST_ENTRY(i, struct attachment, in_conn));
}

/* rooms */

/* True if copying the room's rows, as far as their number is known, takes no
 * longer than lending them, and the configuration does not ask for lending. */
static bool is_small(struct langd *l, const struct lroom *m)
{
    const struct lpool *p = lroom_pool(l, m);

    return grant_rows(p, m) * p->meta->layout.row_bytes < LEND_FROM &&
           l->b.c.conf->transfer_same_host != SAME_HOST_LEND;
}

void lroom_hope(struct langd *l, struct lroom *m, uint32_t session)
{
    const struct peer *p = lroom_peer(l, m);
    uint32_t able = 0;

    if (!p || !p->l.lender || conf_on_gpu(lroom_pool(l, m)->meta->conf) ||
        m->mode != MODE_WHOLE || (m->group && m->group->copied) ||
        m->required != 1 || is_small(l, m))
        return;
    for (uint32_t i = 0; i < l->b.engines.conns_max; i++) {
        const struct conn *c = &l->b.engines.conns[i];

        if (c->state != CONN_READY || c->session != session)
            continue;
        if (!maps(l, i, p->l.lender)) {
            l->b.stats[STAT_lends_unmapped]++;
            return;
        }
        able++;
    }
    m->hopes = able > m->readers;
    l->b.stats[STAT_lends_unmapped] += !m->hopes;
}

void lroom_despair(struct langd *l, struct lroom *m)
{
    struct lgroup *g = m->group;

    if (g && !g->copied) {
        g->copied = true;
        LIST_FOREACH (n, &g->members)
            lroom_despair(l, LIST_ENTRY(n, struct lroom, in_group));
    }
    if (!m->hopes || m->lent)
        return;
    m->hopes = false;
    aux_drop(&l->b.aux, &m->lent_runs);
    lroom_touch(l, m);
}

void lroom_measure(struct langd *l, struct lroom *m)
{
    if (m->hopes && is_small(l, m))
        lroom_despair(l, m);
}

bool lroom_shows(struct langd *l, struct lroom *m, uint32_t conn)
{
    bool known = m->lent_runs.len > 0;
    uint32_t pools;

    if (!m->hopes)
        return true;
    pools = maps(l, conn,
        known ? m->lent_pool / CONF_POOLS_MAX : lroom_peer(l, m)->l.lender);
    if (pools && (!known || (pools >> m->lent_pool % CONF_POOLS_MAX & 1)))
        return true;
    lroom_despair(l, m);
    return !m->lent;
}

/* True if the runs hold the rows. */
static bool runs_hold(const struct peer_lend *n)
{
    struct reader r = reader_of(n->runs.p, n->runs.len);
    uint64_t rows = 0;

    while (r.len - r.at >= 8) {
        uint32_t first = get_u32(&r), blocks = get_u32(&r);

        if (blocks == 0 || first > UINT32_MAX - blocks)
            return false;
        rows += (uint64_t)blocks * n->block_rows;
    }
    return r.at == r.len && n->pool < CONF_POOLS_MAX && rows >= n->total;
}

void lroom_on_lend(struct langd *l, struct lroom *m, const struct peer_lend *n)
{
    uint16_t lender = lroom_peer(l, m)->l.lender;

    if (m->lent)
        return;
    CHECK(lroom_alive(m) && (!m->hopes || m->held.blocks == 0),
        "room ..%08x of state %u hopes, with %u blocks", (uint32_t)m->r.id,
        m->r.state, m->held.blocks);
    m->lent_pool = (uint16_t)(lender * CONF_POOLS_MAX + n->pool);
    if (!m->hopes || !lender || m->total != n->total || !runs_hold(n) ||
        !aux_set(&l->b.aux, &m->lent_runs, m->uid, n->runs))
        lroom_despair(l, m); /* the answer makes its encoder ask for a grant */
    LIST_FOREACH (i, &m->r.attachments)
        (void)lroom_shows(
            l, m, LIST_ENTRY(i, struct attachment, in_room)->conn);
    if (!m->hopes)
        return;
    m->init = INIT_CONFIRMED;
    debt_paid(&m->debt, OWE_GRANT);
    lroom_touch(l, m);
}

void lroom_take_lent(struct langd *l, struct lroom *m)
{
    if (m->group && lroom_lacks_aux(m)) /* its LENDs take of that space, too */
        lroom_despair(l, m);
    if (m->lent || m->lent_runs.len == 0 || m->aux_state != LAUX_STORED)
        return;
    grant_count(l, m, true);
    if (m->group && !group_lent(m->group))
        return;
    m->lent = true;
    m->landed = m->highest = m->total;
    l->b.stats[STAT_rooms_lent]++;
    if (m->group) {
        LIST_FOREACH (n, &m->group->members)
            lroom_touch(l, LIST_ENTRY(n, struct lroom, in_group));
    }
}

/* Ends the attachments that wait to map the pool of the room, which is read no
 * more. */
static void end_late(struct langd *l, struct lroom *m)
{
    const struct heap *h = &l->b.engines.timers;
    enum err why = m->r.state == ROOM_SUCCESS ? ERR_GONE : m->r.reason;

    /* To give a timer an earlier key moves no timer that was not visited
     * yet. */
    for (uint32_t i = 0; i < h->len; i++) {
        struct attachment *att =
            CONTAINER_OF(h->nodes[i], struct attachment, timer);

        if (att->room_id != m->r.id || awaited(l, att) != m)
            continue;
        attachment_end(&l->b.engines, att, why, l->b.now_ns);
        if (m->missing > 0)
            m->missing--; /* it came */
    }
}

void lroom_lent_over(struct langd *l, struct lroom *m)
{
    CHECK(!lroom_alive(m) && (m->lent || m->r.state == ROOM_FAILED),
        "room ..%08x of state %u is read no more", (uint32_t)m->r.id,
        m->r.state);
    if (m->late)
        end_late(l, m);
    m->lent = false;
    aux_drop(&l->b.aux, &m->lent_runs);
    if (m->r.state != ROOM_SUCCESS)
        return; /* its ABORT says that none was shown */
    debt_owe(&m->debt, OWE_RETURN);
    if (!peer_up(lroom_peer(l, m)))
        m->forget_ns = l->b.now_ns + FORGET_NS;
}
