/* declines.h - which langds declined a room, before its announce or as one of
 * its destinations. Entries are in order of arrival, with an index by room.
 * Each expires; when none is free, the oldest is evicted. Withdrawals by
 * programs of this host have a limit per user: beyond it the user's own oldest
 * is evicted. Rejected: a room record for each. Declines of rooms that never
 * come would fill limits.rooms. Pure; one thread. */
#ifndef MMX_CORE_ENCODE_DECLINES_H
#define MMX_CORE_ENCODE_DECLINES_H

#include "base/list.h"
#include "base/table.h"
#include "wire/wire.h"

/* Stands for the langd when a program of this host withdrew the room. */
#define WITHDRAWN 0u
/* Shares of the table for withdrawals; a hash of the uid selects one. */
#define DECLINE_USERS 16u

struct decline {
    uint64_t room, until_ns;
    uint32_t name;     /* hash of the room's secret */
    struct key key;    /* of the item; zero: not given */
    uint32_t langd;    /* serial number of the peer */
    uint32_t who;      /* uid + 1 of the declining engine; 0: unknown */
    uint32_t pools;    /* bit i: a room of pool i may count it */
    uint16_t required; /* required_dst of its INIT; 0: no INIT came */
    uint8_t reason;
    bool counted; /* the announced room counts it as failed, or served */
    bool served;  /* its langd has the rows: a later decline is ignored */
    bool used;
    uint32_t next;               /* next older entry of the room; NONE */
    uint32_t uid;                /* of the program that withdrew the room */
    struct list by_age, of_user; /* of_user: withdrawals only */
};

struct declines {
    struct decline *all;
    struct table index; /* (room, name) -> its latest entry */
    uint32_t cap, used;
    uint64_t keep_ns;
    struct list free, by_age; /* oldest first */
    struct list of_user[DECLINE_USERS];
    uint32_t held[DECLINE_USERS];
};

void declines_init(struct declines *d, struct slab *s, uint32_t cap,
    uint64_t seed, uint64_t keep_ns);
/* Stores a decline, in place of an earlier one of the same room and langd. True
 * if it evicted another decline that had not expired. */
bool declines_put(struct declines *d, uint64_t now_ns, const struct decline *g);
/* Returns the decline of this room and langd; NULL: none. Valid until the next
 * put. */
struct decline *declines_find(const struct declines *d, uint64_t now_ns,
    uint64_t room, uint32_t name, uint32_t langd);
/* Returns the room's latest decline, or the one before g; NULL: none. */
struct decline *declines_first(
    const struct declines *d, uint64_t now_ns, uint64_t room, uint32_t name);
struct decline *declines_next(
    const struct declines *d, uint64_t now_ns, const struct decline *g);
void declines_drop(struct declines *d, struct decline *g);

#endif
