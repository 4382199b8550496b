/* reference.h - what the rules of order (RULES 5) read of a brain, once a step,
 * and the oracles that read it. reference_step.c looks at the brain; then come
 * reference.c (who is to get what now, and in which order), and what follows
 * from it, each an oracle of its own: check_taken.c (what langd takes back for
 * the head), check_spare.c (what a group keeps free), check_victims.c (which
 * item is ended for another), check_fair.c (how often one is passed),
 * check_kept.c (rows that none asks for give way).
 *
 * Facts of the step before are values; pointers of theirs may be stale. */
#ifndef MMX_SIM_REFERENCE_H
#define MMX_SIM_REFERENCE_H

#include "test/sim/sim.h"

#include "core/lang/lang.h"

/* a langd */

struct lfact {
    const struct lroom *m; /* NULL: no room has the slot */
    const struct lgroup *group;
    uint64_t generation, age, broken_ns;
    uint32_t pool, attempt, held, base, landed, lacks;
    bool alive, firm, aux, plays; /* aux: it has space for it; plays: it may get
                                     blocks */
    /* Its group was admitted. It waits for blocks; it could use some, without
     * rows. */
    bool admitted, queued, idle;
    /* check_taken.c: it was the head and kept its blocks; what may be taken
     * back of it: a default grant, rows that landed. */
    bool led, spec, rows;
};

struct lorder {
    uint32_t life, count;
    const struct daemon *d;
    struct langd *l;
    struct lfact *now, *was; /* by slot: after the step, and before it */
    struct lfact **live;     /* rooms that there are now */
    struct lline {
        const struct lfact *head, *idle; /* the oldest of either */
        uint32_t lacks;                  /* blocks, of the head, else of idle */
        uint64_t served; /* age of the oldest that got firm blocks now */
        /* check_taken.c. Before the step a room was READY, or landing into a
         * firm grant. */
        bool spares;
        uint64_t head_age, head_ns; /* age + 1 of the head; since when it is */
    } line[CONF_POOLS_MAX];
    const struct lroom *aux_head;
    struct spare { /* check_spare.c, by group */
        uint64_t age;
        uint32_t gone; /* blocks of members that are READY */
        bool capped, admitted;
    } * groups;
};

/* True if the slot has the room that it had before, alive then and now. */
static inline bool lfact_same(const struct lfact *was, const struct lfact *f)
{
    return was->generation == f->generation && was->alive && f->alive;
}

/* For "%s room %llu". */
#define NAMED(number) k->d->conf->name, (unsigned long long)(number)

/* reference.c */

/* Blocks that a room may hold at most (5.9). */
uint32_t blocks_most(const struct lpool *p, uint8_t mode);
/* What follows from the present room alone. */
void reference_room(
    const struct lorder *k, const struct lroom *m, struct lfact *f);
/* Who was to get blocks, and aux, in this step, and who is to have them now. */
void reference_blocks(struct lorder *k);
void reference_space(struct lorder *k);

/* What all members of a group add up to. */
struct gfact {
    bool known, lacks_aux, closing; /* known: all lengths are */
    uint32_t needs, held, chunks;   /* blocks; chunks: of aux, lacking */
};
struct gfact group_of(const struct lorder *k, const struct lgroup *g);

/* Who comes first for aux (5.8). */
enum aux_class { AUX_FIRST, AUX_ROWS, AUX_BARE };
enum aux_class aux_class_of(const struct lroom *m);

/* the others */

void spare_look(struct lorder *k);
void taken_look(struct lorder *k);

#endif
