/* share.h - how many entries of a table one user has and may have, and which
 * user's turn is next. Pure.
 *
 * A table has its limit, and a reserve on top of it (SHARE_RESERVE). Up to the
 * limit entries are given in the order in which they are asked for. Beyond it a
 * user gets one more only while it holds fewer than are left after that. So one
 * user alone can take the limit and nothing of the reserve, the next user half
 * of the reserve, and the next half of what is left then. Rejected: a fixed
 * part of the limit for each user. A host with one user would need limits of
 * twice the size.
 *
 * Users that wait for other things (blocks) take turns: a round has one request
 * of each user, in the order in which they came, and a user's first request is
 * in the round after the one that is being served. So the requests of one user
 * stay in order, and of a user with many requests most wait behind those of
 * other users. */
#ifndef MMX_CORE_SHARE_H
#define MMX_CORE_SHARE_H

#include "base/slab.h"
#include "base/table.h"
#include "core/conf/conf.h"

/* A peer daemon counts as a user, for what it asked for. Engines' users are
 * their uid. */
#define SHARE_PEER(index) (UINT64_C(1) << 32 | (index))
/* Entries reserved for peers to come. */
#define SHARE_RESERVED (UINT64_C(1) << 33)

struct share_use {
    uint64_t who, turn; /* the last */
    uint32_t used;
};

struct share {
    const char *key;       /* what is counted, and its key */
    uint32_t limit, total; /* entries: without, and with the reserve */
    uint32_t unit;         /* amount of the key per entry */
    uint32_t used;
    struct table of; /* (who, 0) -> uses */
    struct share_use *uses;
    struct slots slots;
    uint32_t last;         /* record of the last look-up */
    uint64_t round, turns; /* of the last turn served; number drawn so far */
    char why[256];         /* text of the last refusal */
};

/* Percent that a table has beyond its limit, for users with few entries. */
#define SHARE_RESERVE 25u

/* Returns the entries of a table with this limit, reserve included. */
uint32_t share_total(uint64_t limit);

/* Peers beyond limits.peers and its reserve: addresses that requests name and
 * that have not answered yet (peers/places.c). */
#define PEERS_UNPROVEN 8

/* Returns the largest number of peers at once. Their numbers are below it, and
 * those of links below twice that. */
uint32_t share_peers(const struct conf *c);

/* Connections beyond limits.connections and its reserve: for root and the
 * daemon's own user, as many for orders, and some that are being closed. */
#define CONNECTIONS_OWN     4
#define CONNECTIONS_CLOSING 8

/* Returns the largest number of engines' connections at once; their numbers are
 * below it. */
uint32_t share_connections(const struct conf *c);

/* Prepares a table of `limit` entries. key: the name of the limit, which a
 * refusal prints; must stay valid. unit: how much of that limit one entry
 * takes, e.g. bytes. */
void share_init(struct share *s, struct slab *slab, const char *key,
    uint64_t limit, uint32_t unit, uint64_t seed);

/* True if n more of a table's entries may go to a user that holds `own` of the
 * entries in use. */
bool share_allows(
    uint32_t limit, uint32_t total, uint32_t used, uint32_t own, uint32_t n);

/* True if n more entries may go to `who`. */
bool share_may(const struct share *s, uint64_t who, uint32_t n);

/* Takes n entries. On failure nothing changes, and `why` names the limit. */
MUST_CHECK bool share_take(struct share *s, uint64_t who, uint32_t n);

/* Moves n entries from one user to another; never refused. */
void share_move(struct share *s, uint64_t from, uint64_t to, uint32_t n);

void share_give(struct share *s, uint64_t who, uint32_t n);

uint32_t share_used(const struct share *s, uint64_t who);

/* Draws a turn for `who`, which must have an entry. The lowest turn is served
 * first; waiting turns all differ. head: the lowest waiting turn; TURN_NONE:
 * none waits. */
#define TURN_NONE UINT64_MAX
uint64_t share_turn(struct share *s, uint64_t who, uint64_t head);

/* Records that the turn was served. */
void share_served(struct share *s, uint64_t turn);

#endif
