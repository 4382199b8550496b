/* head.h - what both brains begin with: their configuration, engines, peers,
 * pools as others see them, history and counters, and the table of functions
 * by which brain.c reaches the rest. For lib/core only. Pure; one thread. */
#ifndef MMX_CORE_HEAD_H
#define MMX_CORE_HEAD_H

#include "core/aux_arena.h"
#include "core/engines.h"
#include "core/peers.h"

#define POOL_SHARE_MAX  16
#define POOL_HANDLE_MAX 128

/* What engines and peers are told of a pool. */
struct pool_meta {
    const struct conf_pool *conf;
    struct layout layout; /* count 0: no engine has declared it yet */
    bool ready, broken;   /* the memory stands; or could not be had */
    bool lost;            /* it stood, and works no more */
    bool fixing;          /* ACT_POOL_FIX is out: the memory is being made */
    bool news;            /* it stands or not, and who waits is not told yet */
    uint64_t offsets[LAYOUT_FIELDS_MAX], bytes;
    char share[POOL_SHARE_MAX + 1]; /* how engines map it */
    uint8_t handle[POOL_HANDLE_MAX];
    uint32_t handle_len;
};

/* What a role is, and does; those without a comment as in brain.h. */
struct brain_ops {
    uint8_t role;
    bool engines_write; /* pools are writable for all their engines */
    bool greets;        /* connects to its peers, and says HELLO first */
    struct brain *(*init)(struct slab *s, const struct brain_conf *c);
    /* A step begins, now_ns is set; NULL: nothing to do. */
    void (*begin)(void *brain);
    /* What brain.c left of an event, or the role's own part of it: CONN_END,
     * CONN_DEAD, LOCAL, PEER, NOTE, MAP, TIME and, when pools have become
     * ready, MORE. */
    void (*event)(void *brain, struct out *out, const struct event *ev);
    /* The peer's connection stays away. */
    void (*peer_lost)(void *brain, struct out *out, struct peer *p);
    /* Draws consequences until there are none, or the list is full. */
    void (*work)(void *brain, struct out *out);
    /* Beyond what the head waits for. */
    bool (*pending)(const void *brain);
    uint64_t (*deadline)(const void *brain);
    /* Fills what an event says of its attachment's room beyond the head's part,
     * and appends the runs that it shows to w. True if they may be in use then.
     */
    bool (*fill_event)(void *brain, const struct attachment *att,
        struct local_event *n, struct writer *w);
    /* When no attachment has one; NULL: there are no others. */
    bool (*next_event)(void *brain, uint32_t conn, struct writer *w);
    uint32_t (*open_rooms)(const void *brain);
    bool (*show)(void *brain, const char *what, uint64_t now_ns,
        struct show_at *at, struct rows_out *s);
    /* The memory of pool i stands; NULL: nothing to do. */
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
    struct ended *history; /* a ring of limits.history rows */
    uint64_t ended_count;  /* rows that were ever put there */
    uint64_t now_ns;       /* of the last event */
    bool draining;
    uint64_t stats[STAT_COUNT];
};

/* Carves the head, whose c is set, from the slab. */
void head_carve(struct brain *b, struct slab *s, const struct brain_ops *ops);
/* Fills a head that has its memory. */
void head_init(struct brain *b, const struct engines_ops *ops);

/* Takes the body's word on the pool's memory. */
void pool_meta_ready(
    struct pool_meta *m, bool ok, const uint64_t *offsets, uint64_t bytes);
/* Takes how engines map it; before pool_meta_ready. Never: a memfd. */
void pool_meta_share(
    struct pool_meta *m, const char *share, struct span handle);
/* Takes it out of service, as its memory works no more. false: that was
 * known. */
bool pool_meta_lost(struct pool_meta *m);

#endif
