/* brain.h - a brain, as seen by its body: that of the encode side (encode/) or
 * of the language side (lang/), by the role in its configuration. Pure; called
 * by the loop's thread only. */
#ifndef MMX_CORE_BRAIN_H
#define MMX_CORE_BRAIN_H

#include "base/slab.h"
#include "core/conf/conf.h"
#include "core/flow.h"
#include "wire/context.h"
#include "wire/layout.h"

struct recorder;

/* Bytes of the largest data message that a daemon takes or sends. With UCX over
 * TCP it has to be equal at both ends. */
#define DATA_MESSAGE_BYTES (256u << 10)

struct brain_conf {
    const struct conf *conf;   /* stays valid; changes only before EV_CONF */
    uint64_t epoch;            /* random, not 0 */
    uint64_t seed;             /* random: hash seed, first generation */
    uint32_t shards;           /* shards that execute ACT_DATA and send notes */
    struct key boot;           /* host proof of this machine */
    uint64_t secret[2];        /* random: hashes the secrets of rooms; encoded:
                                  also makes the tokens of langds that may map
                                  its pools; 0: none may */
    uint32_t uid;              /* of this process: its own engines may map all
                                  pools */
    bool data_keys;            /* langd: data connections must prove a key */
    uint8_t data_key_bits;     /* of that key: DATA_KEY_* */
    uint8_t carriers;          /* usable carriers here: bits by number */
    uint8_t carriers_barred;   /* unusable ones, since they cannot encrypt */
    const char *carriers_text; /* the same for HELLO; stays valid */
    struct recorder *recorder; /* zero at first, stays valid */
};

struct brain;

/* Makes the brain of the configuration's role in memory of the slab; NULL if
 * the slab only counts or is too small. */
struct brain *brain_init(struct slab *s, const struct brain_conf *c);

/* Handles one event; appends actions to `out`. If `out` has less space than
 * out_has_room asks for, the brain takes in the event, and leaves the rest of
 * its work for EV_MORE. */
void brain_step(struct brain *b, const struct event *ev, struct out *out);
/* True if the last list was too short for all actions. */
bool brain_pending(const struct brain *b);
/* Returns when EV_TIME is due; TIME_NEVER: there is no deadline. */
uint64_t brain_deadline(const struct brain *b);
/* Appends the next EVENT frame for conn. False: there is none, or it does not
 * fit and is returned again. */
bool brain_next_event(struct brain *b, uint32_t conn, struct writer *w);
/* Whether a room could complete now, and what prevents it. */
struct health {
    bool live; /* no thread of the daemon hangs */
    bool ready;
    const char *state; /* ready, not-ready, draining */
    char text[288];    /* one line; begins with the state */
};
void brain_health(const struct brain *b, struct health *h);
/* Sets why no room can complete, or with `ready` only a warning. The first text
 * stays, but not-ready replaces a warning. */
void health_say(struct health *h, bool ready, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* Returns the number of rooms that have not ended; a drain ends at 0. */
uint32_t brain_open_rooms(const struct brain *b);
/* Shows the report `what` (status rooms pools peers stats); false: unknown. */
bool brain_show(struct brain *b, const char *what, uint64_t now_ns,
    struct show_at *at, struct rows_out *s);

/* Returns the layout of pool i; its count is 0 if not known yet. */
const struct layout *brain_layout(const struct brain *b, uint32_t i);
/* True if the engines that map pool i may write to it. */
bool brain_engines_write(const struct brain *b, uint32_t i);

/* True if the link has a known peer: its HELLO was accepted. */
bool brain_link_known(const struct brain *b, uint32_t link);

/* Returns the number that engines see instead of an epoch: in WELCOME, reports,
 * the log. All daemons compute the same; the epoch cannot be computed from it.
 */
uint64_t epoch_shown(uint64_t epoch);

/* Counters, in the order of stats.def. */
enum counter {
#define STAT(name, doc) STAT_##name,
#include "core/stats.def"
    STAT_COUNT
};
extern const struct counter_words {
    const char *name, *text;
} counter_words[STAT_COUNT];
uint64_t brain_counter(const struct brain *b, enum counter s);

/* What is recorded of a room while it is open. */
struct history {
    uint64_t generation;
    uint64_t who; /* its user, as in share.h */
    uint32_t total, served, failed, resumes, attempts, blocks;
    uint64_t bytes;
    /* Times on the brain's clock; 0: did not happen. */
    uint64_t opened_ns, init_ns, length_ns, first_ns, resumed_ns, done_ns;
    uint64_t granted_ns;   /* its blocks; at langd the last ones before the
                              first row */
    uint64_t committed_ns; /* encoded: the last rows were committed */
    char traceparent[TRACEPARENT_LEN + 1]; /* empty: none */
};

/* Ended rooms that a report shows, the youngest. */
#define HISTORY_ROOMS 256u

/* A row in the history of ended rooms, for people and tests. */
struct ended {
    uint64_t room;
    struct history of;
    uint8_t state, reason;
    char peer[64], text[128];
};
/* Returns row number n, counted from 0; NULL: not there yet, or overwritten. */
const struct ended *brain_ended(const struct brain *b, uint64_t n);

#endif
