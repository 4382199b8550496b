/* map.c - langd daemons of this host that map our pools and copy rows out of
 * them (RULES 3.4, 6.2, 6.4). Owned by the loop's thread.
 *
 * HELLO gives a token to one langd. A connection to our Unix socket that sends
 * MAP with this token is that langd, and is on this host; an address would
 * prove neither. The connection is open as long as the pools are mapped. When
 * it ends, no new rows are copied. A copy that was going on is over when langd
 * answers for its room, or when langd's process is dead. Rejected: the
 * connection's end as that proof. A process that closes its socket may still be
 * reading. */
#include "core/encode/encode.h"

#include "base/text.h"

/* offers */

/* True if the langd on conn may map pool i. It can then read the rows of any
 * room until it answers or its process dies; an untrusted langd is sent rows
 * instead. */
static bool may_map(const struct encoded *e, uint32_t conn, uint32_t i)
{
    return e->pools[i].meta->ready && langd_trusted(e, conn, i);
}

static void offer(struct encoded *e, struct out *out, struct peer *p)
{
    CHECK(p->e.map_conn != NONE, "%s is offered pools and maps none", p->name);
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        if ((p->e.offered >> i & 1) || !may_map(e, p->e.map_conn, i))
            continue;
        p->e.offered |= UINT32_C(1) << i;
        pools_say(&e->b, out, p->e.map_conn, 0, i);
    }
}

void encoded_map_offer(struct encoded *e, struct out *out)
{
    PEERS_FOREACH (p, &e->b.peers)
        if (p->e.map_conn != NONE && out_has_room(out))
            offer(e, out, p);
    readers_offer(e, out);
    e->offers_due = !out_has_room(out);
}

/* Ends the mapping by p: rows of its open rooms are sent from now on. */
static void map_over(struct encoded *e, struct peer *p)
{
    CHECK(p->e.map_conn != NONE, "%s has no mapping that ends", p->name);
    p->e.map_conn = NONE;
    p->e.offered = p->mapped = 0;
    LIST_FOREACH (n, &p->rooms) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_peer);

        if (d->copy)
            edst_broken(e, d);
    }
}

void encoded_map(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m)
{
    struct encoded *e = brain;
    struct conn *c = &e->b.engines.conns[conn];
    struct peer *p = peer_named(&e->b.peers, m->map.name);
    uint64_t token = p ? peer_token(&e->b.peers, p) : 0;

    text_copy(m->map.name, c->name, sizeof(c->name));
    if (encoded_map_reader(e, out, conn, m))
        return;
    if (!token || token != m->map.token || p->epoch != m->map.epoch) {
        head_refuse(&e->b, out, conn, m,
            &(struct refusal){ERR_NOT_OWNER, 0, 0,
                "no langd of this host has this name and token, nor has an "
                "engine of it"});
        out_action(out, ACT_CONN_CLOSE)->conn = conn;
        return;
    }
    if (p->e.map_conn != NONE)
        map_over(e, p);
    c->state = CONN_DAEMON;
    engine_known(&e->b.engines, out, conn);
    p->e.map_conn = conn;
    p->e.map_epoch = p->epoch;
    out_done(out, conn, m->seq, 0, 0);
    offer(e, out, p);
}

/* ends */

void encoded_map_end(struct encoded *e, uint32_t conn)
{
    PEERS_FOREACH (p, &e->b.peers)
        if (p->e.map_conn == conn)
            map_over(e, p);
}

/* Engines of a dead langd may still read the rows that it was lent. */
static void orphan(struct encoded *e, struct edst *d)
{
    CHECK(d->lent && d->map != MAP_ORPHAN, "destination %u is an orphan twice",
        edst_slot(e, d));
    d->map = MAP_ORPHAN;
    list_remove(&d->in_fence);
    list_push_tail(&e->fences[e->b.engines.conns_max], &d->in_fence);
    eroom_pool(e, d->room)->orphaned += d->room->item->src.blocks;
}

void encoded_map_dead(struct encoded *e, uint32_t conn)
{
    LIST_FOREACH_SAFE (n, &e->fences[conn]) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_fence);

        if (d->lent && readers_of(e, d->run, d->room->item->pool))
            orphan(e, d);
        else
            edst_unfence(e, d);
    }
    reader_gone(e, conn);
}
