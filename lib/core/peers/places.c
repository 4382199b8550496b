/* places.c - who has a place among the peers, and who gives it up. Owned by the
 * loop's thread.
 *
 * A program with a key of the fleet may come to encoded under any number of
 * names, and an engine may name any number of addresses where control.allow
 * lets it. So a place counts for the host that the daemon comes from, at langd
 * for the user that named it, and the rule of share.h keeps the last places for
 * other holders, who need not wait until one is given back.
 *
 * An address that requests name and where no daemon has said HELLO yet is
 * unproven: it counts for no holder and evicts no proven peer. It takes a free
 * entry; PEERS_UNPROVEN entries are on top of all places. If no entry is free
 * the oldest unproven address gives way, of the holder's own if it has
 * UNPROVEN_OWN. With its HELLO it takes a place as any new peer does, or waits
 * for one.
 *
 * Rejected: to count by key, which the daemons of a fleet share; a part of the
 * limit for each host, since many daemons may be behind one address; and to
 * evict peers with rooms, which would compete for the place that is freed. */
#include "core/peers/peers.h"

#include "base/check.h"
#include "base/sip.h"
#include "core/share.h"

#include <stdio.h>

/* A holder with this many unproven addresses gives up its own oldest one for a
 * new one; with fewer, another holder's oldest one is given up. */
enum { UNPROVEN_OWN = 4 };

/* Places in use: by all holders, and by one. */
struct places {
    uint32_t used, own;
};

/* Free, or, at encoded, never used. At langd engines may wait for such a peer:
 * its owner says when it is free (lang/named.c). */
static bool is_vacant(const struct peers *all, const struct peer *p)
{
    return p->life == PEER_FREE ||
           (!all->ops->greets && !p->epoch && p->link == NONE &&
               list_empty(&p->rooms));
}

static bool is_unproven(const struct peers *all, const struct peer *p)
{
    return all->ops->greets && !p->l.configured && !p->l.leaving && !p->epoch;
}

static struct places count(const struct peers *p, uint64_t holder)
{
    struct places n = {0, 0};

    PEERS_FOREACH (peer, p) {
        bool taken = !is_vacant(p, peer) && !is_unproven(p, peer);

        n.used += taken;
        n.own += taken && peer->holder == holder;
    }
    return n;
}

/* True if the holder may have one more place after `given` places of others are
 * freed. */
static bool may(const struct peers *p, const struct places *n, uint64_t holder,
    uint32_t given)
{
    uint32_t total = p->max - PEERS_UNPROVEN;

    CHECK(n->used >= given, "%u places of %u are given", given, n->used);
    /* a reload may have brought the count above the total */
    if (n->used - given >= total)
        return false;
    return holder == HOLDER_OF_CONF ||
           share_allows((uint32_t)p->self.c->conf->limit_peers, total,
               n->used - given, n->own, 1);
}

uint32_t peers_who(const struct peers *p, struct span text)
{
    return (uint32_t)sip_words(p->self.c->secret, span_hash(text), 0) | 1;
}

uint32_t peers_run(const struct peers *p, uint32_t who, uint64_t epoch)
{
    return (uint32_t)sip_words(p->self.c->secret, who, epoch) | 1;
}

static struct peer *vacant(struct peers *p, struct span who, uint64_t holder)
{
    for (uint32_t i = 0; i < p->max; i++) {
        struct peer *peer = &p->peers[i];

        if (!is_vacant(p, peer))
            continue;
        CHECK(!peer->l.keyed, "place %u is free and has a key", i);
        heap_remove(&p->timers, &peer->timer);
        memset(peer, 0, sizeof(*peer));
        peer_move(peer, PEER_NAMED);
        peer->holder = holder;
        peer->serial = ++p->serials;
        peer->who = peers_who(p, who);
        peer->link = peer->e.map_conn = NONE;
        peer->lost_ns = peer->hello_ns = peer->l.away_ns = TIME_NEVER;
        peer->e.try_ns = TIME_NEVER;
        list_init(&peer->rooms);
        return peer;
    }
    return NULL;
}

/* Returns the unproven address that gives way to a new one of the holder's. */
static struct peer *oldest_unproven(const struct peers *p, uint64_t holder)
{
    struct peer *first[2] = {NULL, NULL}; /* of other holders, of this one */
    uint32_t own = 0;

    PEERS_FOREACH (peer, p) {
        struct peer **best;

        if (!is_unproven(p, peer))
            continue;
        best = &first[peer->holder == holder];
        own += peer->holder == holder;
        if (!*best || peer->serial < (*best)->serial)
            *best = peer;
    }
    return own >= UNPROVEN_OWN || !first[0] ? first[1] : first[0];
}

/* Frees the entry of an unproven address. False: there is none. */
static bool give_way(struct peers *p, struct out *out, uint64_t holder)
{
    struct peer *peer = out ? oldest_unproven(p, holder) : NULL;

    if (!peer)
        return false;
    CHECK(!peer_up(peer), "%s is up and unproven", peer->label);
    p->stats[STAT_peers_given_up]++;
    p->ops->gives_way(p->brain, peer);
    peer_forget(p, out, peer);
    return true;
}

/* True if the peer loses nothing but its place. */
static bool is_spare(
    const struct peers *p, const struct peer *peer, uint64_t now_ns)
{
    if (is_vacant(p, peer) || is_unproven(p, peer) ||
        !list_empty(&peer->rooms) ||
        (p->ops->spare && !p->ops->spare(p->brain, peer)))
        return false;
    return !peer_up(peer) || now_ns - peer->asked_ns >= PEER_IDLE_NS;
}

/* Returns the peer that gives way. own: only a peer of the holder's. */
static struct peer *idlest(const struct peers *p, uint64_t holder, bool own,
    uint32_t but, uint64_t now_ns)
{
    struct peer *best = NULL;

    PEERS_FOREACH (peer, p) {
        if (!is_spare(p, peer, now_ns) || (own && peer->holder != holder) ||
            (but != NONE && peer->link == but))
            continue;
        if (!peer_up(peer))
            return peer;
        if (!best || peer->asked_ns < best->asked_ns)
            best = peer;
    }
    return best;
}

/* Frees the place of a peer without rooms. encoded evicts at most one peer per
 * second that is up, since a stranger may give any number of names. */
static bool evict(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns)
{
    if (!peer || (peer_up(peer) && now_ns < p->evict_ns))
        return false;
    CHECK(list_empty(&peer->rooms), "%s is evicted and has rooms", peer->name);
    if (peer_up(peer) && !p->ops->greets)
        p->evict_ns = now_ns + NS_PER_S;
    p->stats[STAT_peers_given_up]++;
    peer_forget(p, out, peer);
    return true;
}

static void say_why(struct peers *p, uint64_t holder)
{
    struct places n = count(p, holder);
    const struct conf *c = p->self.c->conf;
    char by[32] = "this address";

    if (p->ops->greets)
        snprintf(by, sizeof(by), "user %u", (uint32_t)holder);
    if (holder == HOLDER_OF_CONF)
        snprintf(by, sizeof(by), "peers");
    snprintf(p->why, sizeof(p->why),
        "limits.peers: %u of %u in use, %u of them by %s"
        " (%u%% more for others)",
        n.used, (unsigned)c->limit_peers, n.own, by, SHARE_RESERVE);
    p->stats[STAT_table_full]++;
}

/* True if the holder may take a free place; evicts a peer if it has to. */
static bool admit(struct peers *p, struct out *out, uint64_t holder,
    uint32_t but, uint64_t now_ns)
{
    struct places n = count(p, holder);
    bool own;

    if (may(p, &n, holder, 0))
        return true;
    own = n.own == n.used || !may(p, &n, holder, 1);
    if (out && evict(p, out, idlest(p, holder, own, but, now_ns), now_ns))
        return true;
    say_why(p, holder);
    return false;
}

struct peer *peer_place(struct peers *p, struct out *out, struct span who,
    uint64_t holder, uint32_t but, uint64_t now_ns)
{
    bool unproven = p->ops->greets && holder != HOLDER_OF_CONF;
    struct peer *peer;

    if (!unproven && !admit(p, out, holder, but, now_ns))
        return NULL;
    peer = vacant(p, who, holder);
    if (!peer && give_way(p, out, holder))
        peer = vacant(p, who, holder);
    if (!peer)
        say_why(p, holder);
    return peer;
}

bool peer_proven(
    struct peers *p, struct out *out, const struct peer *peer, uint64_t now_ns)
{
    return !is_unproven(p, peer) ||
           admit(p, out, peer->holder, peer->link, now_ns);
}

bool peer_returns(struct peers *p, struct out *out, const struct peer *peer,
    uint64_t holder, uint32_t but, uint64_t now_ns)
{
    return !is_vacant(p, peer) || admit(p, out, holder, but, now_ns);
}
