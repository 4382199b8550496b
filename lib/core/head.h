/* head.h - the first part of both brains: their configuration, engines, peers,
 * pools as others see them, history and counters, and the table of functions by
 * which brain.c calls the role. For lib/core only. Pure; one thread. */
#ifndef MMX_CORE_HEAD_H
#define MMX_CORE_HEAD_H

#include "base/sip.h"
#include "core/aux_arena.h"
#include "core/engines.h"
#include "core/histogram/histograms.h"
#include "core/peers/peers.h"
#include "core/pools.h"
#include "core/slow.h"

/* A role's part of the reports. */
struct show_ops {
    /* Appends columns to the status. */
    void (*status)(const void *brain, struct rows_out *s);
    /* Appends the row of the room in slot `place`, if there is one. */
    void (*room)(const void *brain, uint32_t place, uint64_t now_ns,
        const struct show_at *at, struct rows_out *s);
    /* Adds to sums the blocks of slot `place`, by pool. */
    void (*count)(const void *brain, uint32_t place, uint32_t sums[][3]);
    /* Appends columns of pool i; `sums` has the counts for it. */
    void (*pool)(const void *brain, uint32_t i, const uint32_t sums[3],
        struct rows_out *s);
    /* Returns since when rooms wait for blocks of pool i and none gets any;
     * TIME_NEVER: none waits. */
    uint64_t (*stands_ns)(const void *brain, uint32_t i);
    /* Reports whether the peers let a room complete. usable: bit i: pool i has
     * its memory, or waits for the engine that declares its layout. */
    void (*health)(const void *brain, uint32_t usable, struct health *h);
    /* Shows another report; false: unknown name. NULL: the role has none. */
    bool (*more)(const void *brain, const char *what, struct show_at *at,
        struct rows_out *s);
};

/* A role; members without a comment are as in brain.h. */
struct brain_ops {
    uint8_t role;
    bool engines_write; /* all engines of a pool may write to it */
    struct brain *(*init)(struct slab *s, const struct brain_conf *c);
    /* Handles a message of an engine; false: it is not for this role. */
    bool (*local)(
        void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
    /* Handles a message of a peer; false: it is not for this role. */
    bool (*peer)(
        void *brain, struct out *out, struct peer *p, const struct peer_msg *m);
    /* Handles MAP, which comes instead of a HELLO; NULL: not for this role. */
    void (*map)(
        void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
    /* Handles the role's part of an event: CONN_END, CONN_DEAD, NOTE, MAP,
     * TIME, POOL, MORE if POOL did not fit the list, and all that brain.c does
     * not handle. */
    void (*event)(void *brain, struct out *out, const struct event *ev);
    /* Settles what has changed until nothing is left, or the list is full. */
    void (*work)(void *brain, struct out *out);
    /* True if the role has more to do. */
    bool (*pending)(const void *brain);
    uint64_t (*deadline)(const void *brain);
    /* Adds to an event the role's facts about its attachment's room, and
     * appends to w the runs that it shows. True if the engine may use them from
     * now on. */
    bool (*fill_event)(void *brain, const struct attachment *att,
        struct local_event *n, struct writer *w);
    /* Called if no attachment has an event; NULL: there are no others. */
    bool (*next_event)(void *brain, uint32_t conn, struct writer *w);
    uint32_t (*open_rooms)(const void *brain);
    const struct show_ops *show;
    /* Pool i has its memory; NULL: nothing to do. */
    void (*pool_ready)(void *brain, uint32_t i);
    /* Returns the blocks of pool i that no room, reader or quarantine holds. */
    uint32_t (*blocks_free)(const void *brain, uint32_t i);
    /* Walks and CHECKs everything that must always hold: blocks conserved,
     * lists and tables agree. For tests: O(everything). */
    void (*check)(const void *brain);
};
extern const struct brain_ops encoded_ops; /* brain: struct encoded * */
extern const struct brain_ops langd_ops;   /* brain: struct langd * */

/* First member of struct encoded and struct langd. */
struct brain {
    const struct brain_ops *ops;
    struct brain_conf c;
    struct engines engines;
    struct peers peers;
    struct aux_arena aux;
    struct pool_meta metas[CONF_POOLS_MAX];
    uint32_t pools_count;
    struct ended *history;    /* a ring of HISTORY_ROOMS rows */
    uint64_t ended_count;     /* rows added since the start */
    uint64_t ends[ERR_COUNT]; /* the same, by reason */
    struct slow slow;
    uint64_t now_ns;       /* of the last event */
    bool draining, ending; /* draining: no new rooms; ending: for good, before
                              the exit */
    uint64_t stats[STAT_COUNT];
    struct histograms histograms[CONF_POOLS_MAX];
};

/* Returns the scope of a secret in tables of rooms: 0 for no secret, else a
 * hash that no one outside can predict. Two secrets may have the same scope, so
 * the secrets must be compared after a look-up. */
static inline uint32_t brain_name(
    const struct brain *b, const struct secret *secret)
{
    uint64_t words[2];

    if (!secret_given(secret))
        return 0;
    memcpy(words, secret, sizeof(words));
    return (uint32_t)sip_words(b->c.secret, words[0], words[1]) | 1;
}

/* Takes the head's memory from the slab; c must be set. */
void head_carve(struct brain *b, struct slab *s, const struct brain_ops *ops);
/* Initializes a head that has its memory. */
void head_init(struct brain *b, const struct engines_ops *engines,
    const struct peers_ops *peers);
/* Adds an ended room to the history of `peer`, a daemon's label or empty. Sets
 * h->done_ns. */
void head_record(
    struct brain *b, struct room *r, struct history *h, const char *peer);

/* local.c: messages of engines */

/* Why a message is refused; text stays valid for the call. */
struct refusal {
    enum err err;
    uint32_t a, b; /* numbers that belong to it */
    const char *text;
};

/* Answers a message, or passes it to the role. */
void head_local(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m);
/* Counts and answers a frame that could not be read. */
void head_local_bad(struct brain *b, struct out *out, const struct event *ev);
/* Counts and answers a message that is refused. */
void head_refuse(struct brain *b, struct out *out, uint32_t conn,
    const struct local_msg *m, const struct refusal *r);
#endif
