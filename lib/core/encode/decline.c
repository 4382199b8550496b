/* decline.c - langds that give a room up (RULES 5.19, 7.4). A decline that
 * comes before the announce is remembered. One that comes later counts once, as
 * a destination that failed. Owned by the loop's thread.
 *
 * The last message of a langd counts: when it asks for the room, its decline is
 * forgotten. A lost langd has not declined: its engines ask again. */
#include "core/encode/encode.h"

/* True if the decline is about this announced room, and its engine may ask for
 * the room. A langd on this host reports the engine's user: if the pool lists
 * no users and the room has no secret, that user must own the item. A key in
 * the decline must match the item's key. */
static bool speaks_of(
    const struct encoded *e, const struct eroom *m, const struct decline *g)
{
    static const struct key none;
    const struct item *it = m->item;
    bool any_user =
        e->for_users >> it->pool & 1 || secret_given(&m->secret) || !g->who;

    return (g->pools >> it->pool & 1) && (any_user || g->who == it->uid + 1) &&
           (key_eq(&g->key, &none) || key_eq(&it->key, &none) ||
               key_eq(&it->key, &g->key));
}

struct decline *decline_find(
    const struct encoded *e, uint64_t room, uint32_t name, uint32_t langd)
{
    struct decline *g = memory_get(&e->declines, e->b.now_ns, room, name);

    while (g && g->langd != langd)
        g = memory_next(&e->declines, e->b.now_ns, g);
    return g;
}

void decline_put(struct encoded *e, const struct decline *g, uint32_t holder)
{
    struct decline *old = decline_find(e, g->memo.id, g->memo.scope, g->langd);

    if (old)
        memory_drop(&e->declines, old);
    (void)memory_put(&e->declines, e->b.now_ns, g, holder);
    e->b.stats[STAT_declines_forgotten] = e->declines.forgotten;
}

/* Remembers a decline of a room that may still be announced. A late decline of
 * a room that ended does not count against the next room of that id, unless the
 * room ended with no-blocks. A decline already stored from an INIT stays as it
 * is. */
static void remember_early(
    struct encoded *e, const struct decline *g, uint32_t holder)
{
    const struct decline *before =
        decline_find(e, g->memo.id, g->memo.scope, g->langd);
    const struct tomb *ended =
        memory_get(&e->ended_rooms, e->b.now_ns, g->memo.id, g->memo.scope);

    if ((!before || before->counted) &&
        (!ended || ended->reason == ERR_NO_BLOCKS))
        decline_put(e, g, holder);
}

/* Counts one destination of the room as asked and failed. */
static void lessen(struct encoded *e, struct eroom *m, enum err reason)
{
    CHECK(eroom_serves(m) && m->asked >= m->served + m->failed,
        "room ..%08x of state %u loses a destination, %u of %u have ended",
        (uint32_t)m->r.id, m->life, m->served + m->failed, m->asked);
    m->asked++;
    m->failed++;
    if (m->fail_reason == OK)
        m->fail_reason = (uint8_t)reason;
    if (m->required <= 1)
        eroom_fail(e, m, reason, "no language engine wants the rows");
    edsts_touch(e, m); /* the others may be asked now */
    eroom_touch(e, m);
}

/* True if the room lacks a destination, which the declining langd may be. */
static bool lacks(const struct eroom *m, const struct decline *g)
{
    uint32_t required = m->required ? m->required : 1;

    return eroom_serves(m) && !(m->flags & FLAG_OPEN) && m->asked < required &&
           (!g->required || g->required == required);
}

/* True if the langd has asked for the room, and counts as a destination. */
static bool asked_for_it(
    const struct encoded *e, const struct eroom *m, const struct peer *p)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->peer == peer_index(&e->b.peers, p) && !d->refused)
            return true;
    }
    return false;
}

/* Counts, once, that a langd declines a room for which it has sent no INIT. */
static void give_up(struct encoded *e, const struct peer *p,
    const struct secret *secret, struct decline g)
{
    struct eroom *m = eroom_find(e, g.memo.id, secret);
    const struct decline *before =
        decline_find(e, g.memo.id, g.memo.scope, g.langd);

    if (m && asked_for_it(e, m, p))
        return;
    if (!m || !eroom_announced(m)) {
        remember_early(e, &g, g.langd);
        return;
    }
    if (!speaks_of(e, m, &g)) {
        e->b.stats[STAT_declines_ignored]++;
        return;
    }
    if ((before && before->counted) || !lacks(m, &g))
        return;
    g.counted = true;
    decline_put(e, &g, g.langd);
    lessen(e, m, (enum err)g.reason);
}

void encoded_on_decline(
    struct encoded *e, struct peer *p, const struct peer_msg *msg)
{
    give_up(e, p, &msg->decline.secret,
        (struct decline){.memo = {.id = msg->room,
                             .scope = brain_name(&e->b, &msg->decline.secret)},
            .key = msg->decline.key,
            .langd = p->who,
            .who = p->same_host ? msg->decline.who : 0,
            .pools = rights_of(e, p,
                &(struct claim){
                    msg->decline.who, msg->decline.gids, &msg->decline.secret}),
            .reason = ERR_DECLINED});
}

/* Ends a withdrawn room; an open room only stops taking destinations. */
static void end_withdrawn(struct encoded *e, struct eroom *m)
{
    if (m->flags & FLAG_OPEN)
        eroom_withdraw(e, m);
    else
        eroom_fail(e, m, ERR_DECLINED, "withdrawn by its secret");
}

void encoded_withdraw(
    struct encoded *e, const struct local_decline *n, uint32_t uid)
{
    struct eroom *m = eroom_find(e, n->room, &n->secret);
    struct decline g = {
        .memo = {.id = n->room, .scope = brain_name(&e->b, &n->secret)},
        .key = n->key,
        .langd = WITHDRAWN,
        .pools = UINT32_MAX,
        .reason = ERR_DECLINED};

    CHECK(secret_given(&n->secret), "room ..%08x is withdrawn without a secret",
        (uint32_t)n->room);
    if (!m || !eroom_announced(m))
        remember_early(e, &g, uid);
    else if (eroom_serves(m) && speaks_of(e, m, &g))
        end_withdrawn(e, m);
}

void encoded_never_asked(
    struct encoded *e, struct peer *p, const struct peer_msg *msg)
{
    uint8_t reason = msg->abort.reason;

    give_up(e, p, &msg->abort.secret,
        (struct decline){.memo = {.id = msg->room,
                             .scope = brain_name(&e->b, &msg->abort.secret)},
            .langd = p->who,
            .pools = rights_of(e, p,
                &(struct claim){
                    msg->abort.who, msg->abort.gids, &msg->abort.secret}),
            .reason = reason && reason < ERR_COUNT ? reason : ERR_ABORTED});
}

void eroom_count_declines(struct encoded *e, struct eroom *m)
{
    struct decline *g = memory_get(&e->declines, e->b.now_ns, m->r.id, m->name);

    CHECK(m->life == EROOM_LIVE, "declines of room ..%08x of state %u count",
        (uint32_t)m->r.id, m->life);
    /* The INIT of a langd that declined later may have said how many
     * destinations there are. */
    for (struct decline *n = g; n && !m->required && !(m->flags & FLAG_OPEN);
         n = memory_next(&e->declines, e->b.now_ns, n))
        if (!n->counted && speaks_of(e, m, n))
            m->required = n->required;
    while (g) {
        struct decline *next = memory_next(&e->declines, e->b.now_ns, g);

        bool about = speaks_of(e, m, g);

        e->b.stats[STAT_declines_ignored] += !g->counted && !about;
        if (g->langd == WITHDRAWN && about)
            end_withdrawn(e, m);
        if (g->counted || !about || !lacks(m, g)) {
            memory_drop(&e->declines, g);
        } else {
            g->counted = true;
            lessen(e, m, (enum err)g->reason);
        }
        g = next;
    }
}

void eroom_keep_declines(struct encoded *e, const struct eroom *m)
{
    struct decline *g = memory_get(&e->declines, e->b.now_ns, m->r.id, m->name);

    for (; g; g = memory_next(&e->declines, e->b.now_ns, g))
        g->counted &= g->served;
}
