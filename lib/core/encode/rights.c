/* rights.c - which pools' rows an engine may have, as far as that depends on
 * its user (RULES 10.2). Owned by the loop's thread.
 *
 * A uid has a meaning on one host only. A langd is believed about its engines'
 * users if its own user could take the rows anyway: it has shown that user at
 * our socket, and the user is root, ours, or listed for the pool. For any other
 * langd, a room of such a pool needs its secret. Rejected: the boot id in HELLO
 * as proof of the host. Every program there can read it. */
#include "core/encode/encode.h"

bool langd_trusted(const struct encoded *e, uint32_t conn, uint32_t i)
{
    const struct conf_pool *p = e->pools[i].meta->conf;
    uint32_t uid = e->b.engines.conns[conn].uid;

    return uid == 0 || uid == e->b.c.uid ||
           (conf_for_users(p) && engine_may(&e->b.engines, conn, p));
}

static bool is_here(const struct peer *p)
{
    return p->e.map_conn != NONE && p->e.map_epoch == p->epoch;
}

bool rights_wait(
    const struct encoded *e, const struct peer *p, const struct eroom *m)
{
    uint32_t of =
        m && eroom_announced(m) ? UINT32_C(1) << m->item->pool : UINT32_MAX;

    return (e->for_users & of) && !is_here(p) && e->b.now_ns < p->e.map_by_ns &&
           peer_token(&e->b.peers, p) != 0;
}

uint32_t rights_of(
    const struct encoded *e, const struct peer *p, const struct claim *a)
{
    struct reader r = reader_of(a->gids.p, a->gids.len);
    uint32_t pools = ~e->for_users;
    struct groups groups = {0};

    CHECK(p->life != PEER_FREE, "rights of an engine of a peer that is gone");
    if (!e->for_users)
        return pools;
    while (r.len - r.at >= 4 && groups.count < GROUPS_MAX)
        groups.ids[groups.count++] = get_u32(&r);
    for (uint32_t i = 0; i < e->b.pools_count; i++) {
        const struct conf_pool *c = e->pools[i].meta->conf;
        bool may = secret_given(a->secret);

        if (is_here(p) && langd_trusted(e, p->e.map_conn, i))
            may = a->who && user_may(c, a->who - 1, &groups);
        pools |= (uint32_t)may << i;
    }
    return pools;
}
