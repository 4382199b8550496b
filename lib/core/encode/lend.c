/* lend.c - rows that language engines of this host read in our pool
 * (RULES 6.7). Owned by the loop's thread.
 *
 * Such an engine maps the pool over a connection of its own, so its process is
 * known here; it is a reader for one run of its langd. A lent destination has a
 * fence until that langd says RETURN. When the langd is dead, the fence is for
 * its readers: each of them has to say BYE or die. Rejected: a fence for each
 * reader of each room. A rank would have to return rooms that it never saw. */
#include "core/encode/encode.h"

/* lending */

/* True if rows of the destination's pool may be lent to L at all. */
static bool may_lend(struct encoded *e, const struct edst *d)
{
    const struct peer *p = &e->b.peers.peers[d->peer];

    return d->granted == 0 && d->required == 1 && d->map == NONE &&
           e->b.c.conf->transfer_same_host < SAME_HOST_COPY &&
           conf_lends(eroom_pool(e, d->room)->meta->conf) &&
           e->pools[d->room->item->pool].waiting == 0 &&
           p->e.map_conn != NONE && p->e.map_epoch == p->epoch &&
           langd_trusted(e, p->e.map_conn, d->room->item->pool) &&
           !item_asks(d->room->item);
}

void edst_lend(struct encoded *e, struct edst *d)
{
    const struct item *it = d->room->item;
    bool may;

    CHECK(d->state == DST_ACTIVE, "destination %u of state %u is lent rows",
        edst_slot(e, d), d->state);
    if (d->lent || !eroom_announced(d->room) || it->total == 0)
        return;
    may = may_lend(e, d);
    if (may && !item_complete(it))
        return;
    /* All rows without `final`: they may be written again, or `final` never
     * comes. */
    if (may && item_done(it) && edst_fence(e, d, true)) {
        debt_owe(&d->debt, OWE_LEND);
        return;
    }
    d->flags &= (uint8_t)~FLAG_LEND;
    e->b.stats[STAT_lends_refused]++;
}

void edst_unlend(struct encoded *e, struct out *out, struct edst *d)
{
    uint32_t conn = d->map;

    if (!d->lent)
        return;
    CHECK(!edst_ended(d), "destination %u of state %u gives back",
        edst_slot(e, d), d->state);
    edst_unfence(e, d);
    edst_conn_quiet(e, out, conn);
}

void edst_fill_lend(const struct encoded *e, const struct edst *d,
    struct peer_lend *n, uint8_t bytes[POOL_RUNS_MAX * 8])
{
    const struct item *it = d->room->item;
    struct writer w = writer_of(bytes, (size_t)POOL_RUNS_MAX * 8);

    CHECK(d->lent && item_held(it), "destination %u of state %u lends",
        edst_slot(e, d), d->state);
    pool_put_runs(&e->pools[it->pool].p, &it->src, &w);
    n->pool = (uint8_t)it->pool;
    n->total = it->total;
    n->block_rows = e->pools[it->pool].block_rows;
    n->runs = span_of(bytes, (uint32_t)w.len);
}

/* readers */

bool readers_of(const struct encoded *e, uint32_t run, uint32_t pool)
{
    CHECK(run != 0, "readers of no run");
    for (uint32_t i = 0; i < e->b.engines.conns_max; i++)
        if (e->readers[i].run == run && (e->readers[i].offered >> pool & 1))
            return true;
    return false;
}

static void offer(struct encoded *e, struct out *out, uint32_t conn)
{
    struct ereader *r = &e->readers[conn];

    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        const struct pool_meta *p = e->pools[i].meta;

        if ((r->offered >> i & 1) || !p->ready || !conf_lends(p->conf) ||
            !engine_may(&e->b.engines, conn, p->conf))
            continue;
        r->offered |= UINT32_C(1) << i;
        pools_say(&e->b, out, conn, 0, i);
    }
}

void readers_offer(struct encoded *e, struct out *out)
{
    for (uint32_t i = 0; i < e->b.engines.conns_max && out_has_room(out); i++)
        if (e->readers[i].run && e->b.engines.conns[i].state == CONN_DAEMON)
            offer(e, out, i);
}

/* Forgets one earlier connection of the process of conn: the BYE on the new one
 * counts for it. The rest belong to other handles in that process. */
static void supersede(struct encoded *e, struct out *out, uint32_t conn)
{
    const struct conn *c = e->b.engines.conns;

    for (uint32_t i = 0; i < e->b.engines.conns_max; i++) {
        if (i == conn || c[i].state != CONN_ENDED || c[conn].pid <= 0 ||
            c[i].pid != c[conn].pid ||
            e->readers[i].run != e->readers[conn].run)
            continue;
        e->readers[conn].offered = e->readers[i].offered;
        e->readers[i].run = 0;
        edst_conn_quiet(e, out, i);
        return;
    }
}

bool encoded_map_reader(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *m)
{
    const struct peers *peers = &e->b.peers;
    const struct peer *p = peer_named(peers, m->map.name);
    uint32_t who = peers_who(peers, m->map.name);
    uint64_t epoch = m->map.epoch;

    if (e->b.c.conf->transfer_same_host >= SAME_HOST_COPY ||
        (e->b.c.secret[0] | e->b.c.secret[1]) == 0 ||
        m->map.token != peer_lend_token(peers, who, epoch) ||
        !(m->map.parting || (p && p->epoch == epoch)))
        return false;
    CHECK(e->readers[conn].run == 0, "connection %u is a reader twice", conn);
    e->readers[conn] = (struct ereader){.run = peers_run(peers, who, epoch)};
    e->b.engines.conns[conn].state = CONN_DAEMON;
    engine_known(&e->b.engines, out, conn);
    out_done(out, conn, m->seq, 0, 0);
    if (m->map.parting)
        supersede(e, out, conn);
    else
        offer(e, out, conn);
    return true;
}

void reader_gone(struct encoded *e, uint32_t conn)
{
    uint32_t run = e->readers[conn].run;

    CHECK(conn < e->b.engines.conns_max, "reader %u is gone", conn);
    e->readers[conn] = (struct ereader){0};
    if (run)
        LIST_FOREACH_SAFE (n, &e->fences[e->b.engines.conns_max]) {
            struct edst *d = LIST_ENTRY(n, struct edst, in_fence);

            if (d->run == run && !readers_of(e, run, d->room->item->pool))
                edst_unfence(e, d);
        }
}
