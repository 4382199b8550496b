/* brain.h - a brain, as its body sees it: the encode side's (encode/) or the
 * language side's (lang/), by the role of its configuration. Pure; the loop's
 * thread. */
#ifndef MMX_CORE_BRAIN_H
#define MMX_CORE_BRAIN_H

#include "base/slab.h"
#include "core/conf/conf.h"
#include "core/flow.h"
#include "wire/context.h"
#include "wire/layout.h"

struct recorder;

struct brain_conf {
    const struct conf *conf;   /* stays valid; changes before EV_CONF only */
    uint64_t epoch;            /* random, not 0 */
    uint64_t seed;             /* random: hash seed, first generation */
    uint32_t shards;           /* that carry out ACT_DATA and send notes */
    struct key boot;           /* host proof of this machine */
    uint64_t secret[2];        /* random: for the names of rooms' secrets;
                                  encoded: and for the tokens of langds that
                                  may map its pools; 0: none may */
    uint32_t uid;              /* of this process: its own may map all */
    bool data_keys;            /* langd: data connections have to prove one */
    bool data_encrypt;         /* and are encrypted */
    uint8_t carriers;          /* that rows can go by here: bits by number */
    uint8_t carriers_barred;   /* that are not, since they cannot encrypt */
    const char *carriers_text; /* the same for HELLO; stays valid */
    uint32_t segment_max;      /* largest data payload taken or sent */
    struct recorder *recorder; /* zero, stays valid */
};

struct brain;

/* Makes the brain of the configuration's role in memory of the slab; NULL
 * while the slab only counts, or when it is too small. */
struct brain *brain_init(struct slab *s, const struct brain_conf *c);

/* Takes one event in, and appends what is to be done about it. */
void brain_step(struct brain *b, const struct event *ev, struct out *out);
/* True if there is more to do than the last list held. */
bool brain_pending(const struct brain *b);
/* Returns when EV_TIME is due; TIME_NEVER: nothing is waited for. */
uint64_t brain_deadline(const struct brain *b);
/* Appends the next EVENT frame for conn; false: none is left, or it does not
 * fit (then it comes again). */
bool brain_next_event(struct brain *b, uint32_t conn, struct writer *w);
/* Whether a room could complete now, and what is in its way. */
struct health {
    bool ready;
    const char *state; /* ready, not-ready, draining */
    char text[288];    /* one line that begins with the state */
};
void brain_health(const struct brain *b, struct health *h);
/* Says why no room can complete; with ready, what is wrong besides. What is
 * said first stays, unless it only was besides. */
void health_say(struct health *h, bool ready, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* Returns the number of rooms that have not ended: a drain ends at 0. */
uint32_t brain_open_rooms(const struct brain *b);
/* Shows what (status rooms pools peers stats); false: no such thing. */
bool brain_show(struct brain *b, const char *what, uint64_t now_ns,
    struct show_at *at, struct rows_out *s);

/* Returns the layout of pool i; count 0: not known yet. */
const struct layout *brain_layout(const struct brain *b, uint32_t i);
/* True if the engines that map pool i may write to it. */
bool brain_engines_write(const struct brain *b, uint32_t i);
/* Returns the blocks of pool i that no room, reader or quarantine has. */
uint32_t brain_blocks_free(const struct brain *b, uint32_t i);

/* True if a peer is known on this link: its hello was taken. */
bool brain_link_known(const struct brain *b, uint32_t link);

/* Returns the number that stands for a run wherever engines can see it: their
 * WELCOME, reports, the log. The same for all daemons, and no way back from it.
 */
uint64_t epoch_shown(uint64_t epoch);

/* Counters by name order of stats.def. */
enum counter {
#define STAT(name, doc) STAT_##name,
#include "core/stats.def"
#undef STAT
    STAT_COUNT
};
const char *stat_name(enum counter s);
uint64_t brain_counter(const struct brain *b, enum counter s);
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
    uint64_t granted_ns;   /* blocks; at langd the last before the first row */
    uint64_t committed_ns; /* encoded: the last rows */
    char text[128];
    char traceparent[TRACEPARENT_LEN + 1]; /* empty: none */
};
/* Returns row number n, counted from 0; NULL: not there yet, or forgotten. */
const struct ended *brain_ended(const struct brain *b, uint64_t n);

/* Walks and CHECKs everything that must always hold: blocks conserved, lists
 * and tables agree. For tests: O(everything). */
void brain_check(const struct brain *b);

#endif
