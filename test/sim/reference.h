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

#include "core/encode/encode.h"
#include "core/lang/lang.h"

/* a langd */

struct lfact {
    const struct lroom *m; /* NULL: no room has the slot */
    const struct lgroup *group;
    uint64_t generation, age, broken_ns;
    uint32_t pool, attempt, held, base, landed;
    uint32_t lacks, chunks; /* blocks; chunks of aux: as its group, if first */
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

/* an encoded */

struct efact {
    const struct item *it; /* NULL: no item has the slot */
    uint64_t age, turn;    /* age: of no other item; 0: no item */
    uint64_t moved_ns;
    uint32_t pool, blocks;
    bool leaves;     /* all of its rooms do: its blocks come back */
    bool waits, got; /* for blocks; got: some in this step */
    bool own_full, complete, ahead; /* by itself */
    /* While it waits at the head of its batch, all of that: blocks that it is
     * to get; one is full; one is a victim, none full; none is either, or asks
     * for its grants early. */
    uint32_t lacks;
    bool queued, full, barred, plain;
    const struct ebatch *batch; /* in which it waits; NULL: it does not */
    uint64_t langd, there;      /* who asked first for one of its rooms, + 1; 0:
                                   none. Its turn there */
    uint32_t passed, older;     /* check_fair.c, of its turn */
    /* check_victims.c, of its rooms: one lacks a grant, is read, was ended for
     * another item; all end. */
    bool lacks_grants, active, ended, ends;
    /* check_kept.c, of its rooms: none is asked for or read; one is, or is read
     * elsewhere; all are kept. */
    bool bare, held, kept;
    uint64_t kept_ns, room; /* until when; the last of its rooms */
    uint32_t name;
};

struct eorder {
    uint32_t life;
    const struct daemon *d;
    struct encoded *e;
    struct efact *now, *was;
    struct eline {
        const struct efact *head; /* the first that may have blocks */
        uint32_t lacks;           /* blocks, of the head */
        /* check_victims.c */
        uint64_t turn, head_ns; /* the full head's turn + 1, since when */
        uint64_t least_ns;      /* timeouts.revoke_after, least since then:
                                   reloads leave a clock that runs */
        uint64_t stuck_ns;      /* since when an item is to be ended; 0: none */
        uint64_t lacks_ns; /* from when on the head lacks blocks, and none come;
                              TIME_NEVER: not by time alone */
    } line[CONF_POOLS_MAX];
    uint64_t revoked, after_ns; /* check_victims.c */
    uint64_t unclaimed, others; /* check_kept.c */
    /* By room: since when no langd asks for its rows, and for none of its
     * item's; 0: one does. */
    struct bare {
        uint64_t opened_ns, room_ns, item_ns, age; /* age of its item */
        uint32_t item;
    } * bare;
};

static inline bool efact_same(const struct efact *was, const struct efact *f)
{
    return f->age != 0 && was->age == f->age;
}

/* reference.c */

/* Blocks that a room may hold at most (5.9). */
uint32_t blocks_most(const struct lpool *p, uint8_t mode);
/* What follows from the present room, or item, alone. */
void reference_room(
    const struct lorder *k, const struct lroom *m, struct lfact *f);
void reference_item(
    const struct eorder *k, const struct item *it, struct efact *f);
/* Who was to get blocks, and aux, in this step, and who is to have them now. */
void reference_blocks(struct lorder *k);
void reference_space(struct lorder *k);
void reference_sources(struct eorder *k);

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
void victims_see(const struct item *it, struct efact *f);
void victims_look(struct eorder *k);
void fair_look(struct eorder *k);
void kept_see(const struct item *it, struct efact *f);
void kept_look(struct eorder *k);

#endif
