/* brain.h - what both brains are made with. Pure; the loop's thread. */
#ifndef MMX_CORE_BRAIN_H
#define MMX_CORE_BRAIN_H

#include "base/slab.h"
#include "core/conf/conf.h"
#include "core/flow.h"
#include "wire/layout.h"

struct brain_conf {
    const struct conf *conf; /* stays valid and unchanged */
    uint64_t epoch;          /* random, not 0 */
    uint64_t seed;           /* random: hash seed, first generation */
    uint32_t shards;         /* that carry out ACT_DATA and send notes */
    struct key boot;         /* host proof of this machine */
    uint64_t secret[2];      /* encoded: random, for the tokens of langds that
                                may map its pools; 0: none may */
    uint32_t uid;            /* of this process: its own may map all */
    struct span addresses;   /* langd: HELLO's addresses blob; stays valid */
    uint32_t segment_max;    /* largest data payload taken or sent */
};

/* Each brain takes its memory from a slab: once to count, once to have. */
struct encoded;
struct langd;
struct encoded *encoded_init(struct slab *s, const struct brain_conf *c);
struct langd *langd_init(struct slab *s, const struct brain_conf *c);
extern const struct brain_ops encoded_ops; /* brain: struct encoded * */
extern const struct brain_ops langd_ops;   /* brain: struct langd * */

/* Layout of pool i, for the body (ACT_POOL_FIX); count 0: not known yet. */
const struct layout *encoded_layout(const struct encoded *e, uint32_t i);
const struct layout *langd_layout(const struct langd *l, uint32_t i);
/* Answer to ACT_POOL_FIX, at any later time between two steps, before one of
 * EV_MORE: the pool's memory stands (region offsets, size), or could not be
 * had. */
void encoded_pool_ready(struct encoded *e, uint32_t i, bool ok,
    const uint64_t *offsets, uint64_t bytes);
void langd_pool_ready(struct langd *l, uint32_t i, bool ok,
    const uint64_t *offsets, uint64_t bytes);

/* Before that, of memory that is not a memfd: how engines map it. */
void encoded_pool_share(
    struct encoded *e, uint32_t i, const char *share, struct span handle);
void langd_pool_share(
    struct langd *l, uint32_t i, const char *share, struct span handle);

/* True if a peer is known on this link: its hello was taken. */
bool encoded_link_known(const struct encoded *e, uint32_t link);
bool langd_link_known(const struct langd *l, uint32_t link);

/* Pools with a layout in the config are fixed by the body in the same way
 * right after init, before the first step. */

/* Counters by name order of stats.def. */
enum counter {
#define STAT(name, doc) STAT_##name,
#include "core/stats.def"
#undef STAT
    STAT_COUNT
};
const char *stat_name(enum counter s);
const char *stat_text(enum counter s);

/* Shown for people and by tests: one row of the ended rooms' history. */
struct ended {
    uint64_t room, generation;
    uint64_t who; /* its user, as in share.h */
    char peer[64];
    uint8_t state, reason;
    uint32_t total, served, failed, resumes, attempts, blocks;
    uint64_t bytes;
    /* Times on the brain's clock; 0: did not happen. */
    uint64_t opened_ns, init_ns, length_ns, first_ns, resumed_ns, done_ns;
    char text[128];
};
/* Row number n, counted from 0; NULL: not there yet, or forgotten. */
const struct ended *encoded_ended(const struct encoded *e, uint64_t n);
const struct ended *langd_ended(const struct langd *l, uint64_t n);

/* Everything that must always hold, walked and CHECKed: blocks conserved,
 * lists and tables agree. For tests: O(everything). */
void encoded_check(const struct encoded *e);
void langd_check(const struct langd *l);

/* Blocks of pool i that no room, reader or quarantine has. */
uint32_t encoded_blocks_free(const struct encoded *e, uint32_t i);
uint32_t langd_blocks_free(const struct langd *l, uint32_t i);

#endif
