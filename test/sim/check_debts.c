/* check_debts.c - checks that the encode side still owes each message that has
 * no answer yet, and will repeat it in time. If it sent one only once, or
 * forgot it, the other checks would notice only by luck. Reads the brain,
 * changes nothing. */
#include "test/sim/sim.h"

#include "core/encode/encode.h"

/* Several destinations are asked in the order of their names, each when those
 * before it have all their grants. */
static bool may_be_asked(const struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;

    if (m->item->total == ROWS_UNKNOWN || m->item->total == 0 ||
        m->asked < m->required)
        return false;
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);
        bool has = (o->flags & FLAG_STREAM) ? o->granted > 0
                                            : o->granted >= m->item->total;

        if (o->state == DST_ACTIVE && !has &&
            strcmp(e->b.peers.peers[o->peer].name,
                e->b.peers.peers[d->peer].name) < 0)
            return false;
    }
    return true;
}

/* True if rows are ready that can be sent only with a larger grant. */
static bool starved(const struct encoded *e, const struct edst *d)
{
    const struct eroom *m = d->room;
    uint32_t unit = d->unit_rows, usable = d->granted - d->granted % unit;

    if (!eroom_announced(m) || !item_held(m->item) || d->flags & FLAG_LEND)
        /* a room that hopes to be lent needs no grant: see below */
        return false;
    if (m->required > 1 && d->granted == 0)
        return may_be_asked(e, d);
    if (m->item->total != ROWS_UNKNOWN && d->granted >= m->item->total)
        return false;
    return item_sendable(m->item, unit) > usable;
}

/* RULES 2.1 */
static void look(const struct daemon *d, const char *what, bool due, bool owed,
    const struct edst *of)
{
    HOLDS(!due || owed, "what is not answered is owed",
        "%s room %llu g%llx: %s", d->conf->name,
        (unsigned long long)of->room->r.id,
        (unsigned long long)of->generation & 0xffffff, what);
}

void debts_watch(const struct daemon *d, uint32_t i)
{
    const struct encoded *e = d->brain;
    const struct edst *o = &e->dsts[i];
    const struct peer *p;

    if (o->state == DST_FREE)
        return;
    p = &e->b.peers.peers[o->peer];
    if (o->state == DST_ACTIVE) {
        look(d, "length",
            eroom_announced(o->room) &&
                o->length_acked != o->room->item->length_version,
            o->debt.owe & OWE_LENGTH, o);
        look(d, "want",
            starved(e, o) && !(o->want_known && o->want_attempt == o->attempt &&
                                 o->want_granted == o->granted),
            o->debt.owe & OWE_WANT, o);
        look(d, "lend",
            eroom_announced(o->room) && (o->flags & FLAG_LEND) &&
                item_done(o->room->item) && o->room->item->total > 0,
            o->lent && o->debt.owe & OWE_LEND, o);
        look(d, "broken", o->job == JOB_OPEN && o->broken_attempt == o->attempt,
            o->debt.owe & OWE_BROKEN, o);
    } else if (o->state == DST_FAILING) {
        look(d, "failed", true, o->debt.owe & OWE_FAILED, o);
    }
    look(d, "a time to say it again",
        o->debt.owe && peer_up(p) && !edst_ended(o),
        o->debt.retry_ns != TIME_NEVER &&
            o->debt.retry_ns <= d->now_ns + 3 * NS_PER_S,
        o);
}

/* Checks that a peer that was not sent our latest state will be sent it. */
void news_watch(const struct daemon *d, const struct brain *b)
{
    PEERS_FOREACH (p, &b->peers)
        HOLDS(!peer_up(p) || p->told == b->peers.self.news ||
                  p->hello_ns != TIME_NEVER,
            "news are told", "%s: %s was told %u of %u", d->conf->name, p->name,
            p->told, b->peers.self.news);
}

void shares_watch_end(
    const struct daemon *d, const struct share *const *shares, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        HOLDS(shares[i]->used == 0, "nothing is left", "%s: %u of %s",
            d->conf->name, shares[i]->used, shares[i]->key);
}
