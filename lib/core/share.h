/* share.h - how much of a table one user has, and when that is too much; whose
 * turn it is. Pure.
 *
 * A table has its limit, and a reserve on top of it (limits.reserve). Up to
 * the limit entries go to the first that asks. Beyond it a user gets one more
 * only while it holds fewer than are left after that: one user alone can take
 * the limit and nothing of the reserve, the next one half of the reserve, the
 * next one half of what is left then. A part of the limit for each user was
 * rejected: a host with one user would need limits of twice the size.
 *
 * Where users wait for what a table does not bound (blocks) they take turns:
 * what a user asks for has its place behind all that the user asked for before,
 * and one place behind what is served now. The order of one user is that in
 * which it asks; one that asks for much at once waits behind others with the
 * most of it. */
#ifndef MMX_CORE_SHARE_H
#define MMX_CORE_SHARE_H

#include "base/slab.h"
#include "base/table.h"
#include "core/conf/conf.h"

/* Who holds what a peer daemon asked for; users are their uid. */
#define SHARE_PEER(index) (UINT64_C(1) << 32 | (index))
/* Entries kept for peers that are to come. */
#define SHARE_RESERVED (UINT64_C(1) << 33)

struct share_use {
    uint64_t who, round; /* of its last turn */
    uint32_t used;
};

struct share {
    const char *key;       /* of the configuration */
    uint32_t limit, total; /* entries, and with the reserve */
    uint32_t unit;         /* of the key that one entry is */
    uint32_t used, percent;
    struct table of; /* (who, 0) -> uses */
    struct share_use *uses;
    struct slots slots;
    uint32_t last;         /* the record that was looked for last */
    uint64_t round, turns; /* of the last turn that was served; drawn so far */
    char why[256];         /* of the last refusal */
};

/* Returns the entries of a table with this limit, reserve included. */
uint32_t share_total(const struct conf *c, uint64_t limit);

/* Peers on top of limits.peers and its reserve: addresses that requests name
 * and that have not answered (peers/places.c). */
#define PEERS_UNPROVEN 8

/* Returns how many peers there are at once at most; their numbers are lower,
 * those of their links than twice that. */
uint32_t share_peers(const struct conf *c);

/* Connections on top of limits.connections and its reserve: for root and the
 * daemon's own user, as many for orders, and for such as are being closed. */
#define CONNECTIONS_OWN     4
#define CONNECTIONS_CLOSING 8

/* Returns how many connections of engines there are at once at most; their
 * numbers are lower. */
uint32_t share_connections(const struct conf *c);

/* key, stays valid, is the configuration's for the limit of `limit` entries,
 * each of which is `unit` of it. */
void share_init(struct share *s, struct slab *slab, const struct conf *c,
    const char *key, uint64_t limit, uint32_t unit, uint64_t seed);

/* True if n more of a table's entries may go to a user that has `own` of those
 * in use. */
bool share_allows(
    uint32_t limit, uint32_t total, uint32_t used, uint32_t own, uint32_t n);

/* True if n more may go to `who`. */
bool share_may(const struct share *s, uint64_t who, uint32_t n);

/* Takes n entries. On failure nothing changes, and `why` says whose limit it
 * was. */
MUST_CHECK bool share_take(struct share *s, uint64_t who, uint32_t n);

/* Gives n entries of one user to another; nothing is refused. */
void share_move(struct share *s, uint64_t from, uint64_t to, uint32_t n);

void share_give(struct share *s, uint64_t who, uint32_t n);

uint32_t share_used(const struct share *s, uint64_t who);

/* Draws a turn for `who`, which has an entry. The lowest turn is served first.
 * Turns that wait at the same time differ. head: the lowest turn that waits;
 * TURN_NONE: none waits. */
#define TURN_NONE UINT64_MAX
uint64_t share_turn(struct share *s, uint64_t who, uint64_t head);

/* Says that the turn was served. */
void share_served(struct share *s, uint64_t turn);

#endif
