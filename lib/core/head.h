/* head.h - what both brains begin with: their configuration, engines, peers,
 * pools as others see them, history and counters, and the table of functions
 * by which brain.c reaches the rest. For lib/core only. Pure; one thread. */
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
    /* Appends columns of the status. */
    void (*status)(const void *brain, struct rows_out *s);
    /* Appends the row of the room in a place, if there is one. */
    void (*room)(const void *brain, uint32_t place, uint64_t now_ns,
        const struct show_at *at, struct rows_out *s);
    /* Adds what a place has of its pool. */
    void (*count)(const void *brain, uint32_t place, uint32_t sums[][3]);
    /* Appends columns of pool i, of which `sums` was counted. */
    void (*pool)(const void *brain, uint32_t i, const uint32_t sums[3],
        struct rows_out *s);
    /* Returns since when a room waits for blocks of pool i and none gets any;
     * TIME_NEVER: none waits. */
    uint64_t (*stands_ns)(const void *brain, uint32_t i);
    /* Says of the peers whether they let a room complete. usable: bit i: pool i
     * has its memory, or waits for the engine that brings its layout. */
    void (*health)(const void *brain, uint32_t usable, struct health *h);
    /* Another report; false: there is none of that name. NULL: never. */
    bool (*more)(const void *brain, const char *what, struct show_at *at,
        struct rows_out *s);
};

/* A role; members without a comment are as in brain.h. */
struct brain_ops {
    uint8_t role;
    bool engines_write; /* pools are writable for all their engines */
    struct brain *(*init)(struct slab *s, const struct brain_conf *c);
    /* A step begins, now_ns is set; NULL: nothing to do. */
    void (*begin)(void *brain);
    /* An engine's message that is the role's alone; false: it is not for this
     * role. */
    bool (*local)(
        void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
    /* A peer's message; false: it is not for this role. */
    bool (*peer)(
        void *brain, struct out *out, struct peer *p, const struct peer_msg *m);
    /* MAP instead of a HELLO; NULL: not for this role. */
    void (*map)(
        void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
    /* What brain.c left of an event, or the role's own part of it: CONN_END,
     * CONN_DEAD, NOTE, MAP, TIME, POOL, and MORE when POOL lacked room. */
    void (*event)(void *brain, struct out *out, const struct event *ev);
    /* Draws consequences until there are none, or the list is full. */
    void (*work)(void *brain, struct out *out);
    /* True if the role has more to do. */
    bool (*pending)(const void *brain);
    uint64_t (*deadline)(const void *brain);
    /* Fills what an event says of its attachment's room beyond the head's part,
     * and appends the runs that it shows to w. True if they may be in use then.
     */
    bool (*fill_event)(void *brain, const struct attachment *att,
        struct local_event *n, struct writer *w);
    /* Called when no attachment has one; NULL: there are no others. */
    bool (*next_event)(void *brain, uint32_t conn, struct writer *w);
    uint32_t (*open_rooms)(const void *brain);
    const struct show_ops *show;
    /* Pool i has its memory; NULL: nothing to do. */
    void (*pool_ready)(void *brain, uint32_t i);
    uint32_t (*blocks_free)(const void *brain, uint32_t i);
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
    struct ended *history;    /* a ring of limits.history rows */
    uint64_t ended_count;     /* rows that were ever put there */
    uint64_t ends[ERR_COUNT]; /* the same, by reason */
    struct slow slow;
    uint64_t now_ns;       /* of the last event */
    bool draining, ending; /* no new rooms; nor ever again: its end comes */
    uint64_t stats[STAT_COUNT];
    struct histograms histograms[CONF_POOLS_MAX];
};

/* Returns the scope of the secret in tables whose entries are rooms: 0 for
 * none, else a number that nothing outside can aim at. Two secrets may have
 * one, so what is found by it is compared. */
static inline uint32_t brain_name(
    const struct brain *b, const struct secret *secret)
{
    uint64_t words[2];

    if (!secret_given(secret))
        return 0;
    memcpy(words, secret, sizeof(words));
    return (uint32_t)sip_words(b->c.secret, words[0], words[1]) | 1;
}

/* Carves the head, whose c is set, from the slab. */
void head_carve(struct brain *b, struct slab *s, const struct brain_ops *ops);
/* Fills a head that has its memory. */
void head_init(struct brain *b, const struct engines_ops *engines,
    const struct peers_ops *peers);
/* Puts the end of a room, of which the role filled its part of the row, into
 * the history; sets row->done_ns. */
void head_record(struct brain *b, struct room *r, struct ended *row);

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
