/* declines.h - which langds gave a room up, before it was announced or as one
 * of its destinations. In order of arrival under an index by room; the oldest
 * is evicted first, and each expires. What programs of this host withdraw has a
 * share of the places for each user: beyond it the user's own oldest is
 * evicted. Rejected: a room record for each. Declines of rooms that never come
 * would fill limits.rooms. Pure; one thread. */
#ifndef MMX_CORE_ENCODE_DECLINES_H
#define MMX_CORE_ENCODE_DECLINES_H

#include "base/list.h"
#include "base/table.h"
#include "wire/wire.h"

/* In place of a langd: a program of this host has withdrawn the room. */
#define WITHDRAWN 0u
/* Users, by a hash of their uid, that a withdrawal counts to. */
#define DECLINE_USERS 16u

struct decline {
    uint64_t room, until_ns;
    uint32_t name;     /* of the room's secret */
    struct key key;    /* of the item; zero: not named */
    uint32_t langd;    /* serial number of the peer */
    uint32_t who;      /* uid + 1 of the engine behind it; 0: not known */
    uint32_t pools;    /* bit i: it counts for a room of pool i */
    uint16_t required; /* of its INIT; 0: none has come */
    uint8_t reason;
    bool counted; /* the announced room counts it as failed, or served */
    bool served;  /* it has the rows: a late decline of it is ignored */
    bool used;
    uint32_t next;               /* an earlier one of the room; NONE */
    uint32_t uid;                /* of the program that withdrew it */
    struct list by_age, of_user; /* the latter: withdrawn ones */
};

struct declines {
    struct decline *all;
    struct table index; /* (room, name) -> its latest */
    uint32_t cap, used;
    uint64_t keep_ns;
    struct list free, by_age; /* oldest first */
    struct list of_user[DECLINE_USERS];
    uint32_t held[DECLINE_USERS];
};

void declines_init(struct declines *d, struct slab *s, uint32_t cap,
    uint64_t seed, uint64_t keep_ns);
/* Puts a decline in place of an earlier one of the same room and langd; true:
 * another one that had not expired was evicted for it. */
bool declines_put(struct declines *d, uint64_t now_ns, const struct decline *g);
/* Returns the decline of this room and langd; NULL: none. Valid until the next
 * put. */
struct decline *declines_find(const struct declines *d, uint64_t now_ns,
    uint64_t room, uint32_t name, uint32_t langd);
/* Returns the latest of the room, or the one before g; NULL: none. */
struct decline *declines_first(
    const struct declines *d, uint64_t now_ns, uint64_t room, uint32_t name);
struct decline *declines_next(
    const struct declines *d, uint64_t now_ns, const struct decline *g);
void declines_drop(struct declines *d, struct decline *g);

#endif
