/* fence.c - fences of source blocks: rows that processes of this host may be
 * reading out of our pools (RULES 6.2, 6.4). Owned by the loop's thread. */
#include "core/encode/encode.h"

/* Adds the blocks of a destination to the copy counts (one: 1), or subtracts
 * them (-1). The item keeps its blocks meanwhile. */
static void count_copy(struct encoded *e, const struct edst *d, int32_t one)
{
    struct item *it = d->room->item;
    struct epool *p = &e->pools[it->pool];
    uint32_t *mine = &e->b.peers.peers[d->peer].e.copied[it->pool];
    uint32_t blocks = it->src.blocks;

    CHECK(item_held(it) && (one > 0 || (*mine >= blocks && it->fences > 0)),
        "destination %u has %u blocks copied of %u", edst_slot(e, d), blocks,
        *mine);
    *mine += (uint32_t)one * blocks;
    it->fences += (uint32_t)one;
    if (it->fences == (one > 0))
        p->copied += (uint32_t)one * blocks;
}

/* Percent of a pool's blocks that one langd may be copying from. All langds
 * together may also copy from half of the remaining blocks. */
#define COPY_SHARE 75u

/* True if the langd may copy the item within its share of the pool: it can hold
 * the blocks until it answers, or as long as its process lives. */
static bool may_copy(
    const struct encoded *e, const struct peer *p, const struct item *it)
{
    const struct epool *pool = &e->pools[it->pool];
    uint64_t mine = p->e.copied[it->pool], n = it->src.blocks;
    uint64_t all = pool->p.blocks, more = it->fences ? 0 : n;

    CHECK(pool->copied <= all && mine <= UINT32_MAX - n,
        "%u of %u blocks are copied", pool->copied, pool->p.blocks);
    if (mine == 0 && pool->copied + more == n)
        return true; /* alone */
    return (mine + n) * 100 <= COPY_SHARE * all &&
           (pool->copied + more) * 200 <= (100 + COPY_SHARE) * all;
}

void edst_conn_quiet(struct encoded *e, struct out *out, uint32_t conn)
{
    /* An orphan's L said something before its process died. */
    if (conn != MAP_ORPHAN && engine_empty(&e->b.engines, conn) &&
        list_empty(&e->fences[conn]) && e->readers[conn].run == 0)
        out_action(out, ACT_CONN_CLOSE)->conn = conn;
}

bool eroom_lent(const struct eroom *m)
{
    bool lent = false;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->map != NONE && (!d->lent || d->map == MAP_ORPHAN))
            return false;
        lent |= d->lent;
    }
    return lent;
}

bool edst_fence(struct encoded *e, struct edst *d, bool lend)
{
    const struct peer *p = &e->b.peers.peers[d->peer];
    struct epool *pool = eroom_pool(e, d->room);
    uint32_t blocks = d->room->item->src.blocks;

    CHECK(p->e.map_conn != NONE && d->map == NONE,
        "destination %u of %s, which maps by connection %u, has a fence",
        edst_slot(e, d), p->name, p->e.map_conn);
    if (lend ? (pool->lent + (uint64_t)blocks) * 2 > pool->p.blocks
             : !may_copy(e, p, d->room->item))
        return false;
    d->map = p->e.map_conn;
    list_push_tail(&e->fences[d->map], &d->in_fence);
    d->map_epoch = p->epoch;
    d->lent = lend;
    if (lend)
        pool->lent += blocks;
    else
        count_copy(e, d, 1);
    return true;
}

void edst_unfence(struct encoded *e, struct edst *d)
{
    CHECK(list_linked(&d->in_fence),
        "destination %u lifts a fence that it has not", edst_slot(e, d));
    CHECK(d->lent || d->map != MAP_ORPHAN, "destination %u: nothing is lent",
        edst_slot(e, d));
    if (d->lent) {
        eroom_pool(e, d->room)->lent -= d->room->item->src.blocks;
        if (d->map == MAP_ORPHAN)
            eroom_pool(e, d->room)->orphaned -= d->room->item->src.blocks;
        d->flags &= (uint8_t)~FLAG_LEND;
        debt_paid(&d->debt, OWE_LEND);
    } else {
        count_copy(e, d, -1);
    }
    d->lent = false;
    d->map = NONE;
    list_remove(&d->in_fence);
    if (d->state == DST_FENCED) {
        d->debt.owe = 0; /* FAILED was only for the fence */
        edst_move(e, d, DST_ENDED);
    }
    edst_touch(e, d);
    eroom_touch(e, d->room);
}

void edst_answered(
    struct encoded *e, struct out *out, struct edst *d, bool held)
{
    uint32_t conn = d->map;

    if (d->map == NONE || e->b.peers.peers[d->peer].epoch != d->map_epoch)
        return;
    debt_paid(&d->debt, OWE_FAILED);
    if (d->lent && held)
        return;
    edst_unfence(e, d);
    edst_conn_quiet(e, out, conn);
}
