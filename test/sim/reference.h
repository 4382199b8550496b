/* reference.h - what the rules of order (RULES 5) read of a brain, once for
 * each step, and the oracles that read it. reference_step.c looks at the brain;
 * reference.c says who should get what now, and in which order. Oracles of
 * their own check what follows from that: check_taken.c (what langd takes back
 * for the head), check_spare.c (what a group keeps free), check_victims.c
 * (which item is ended for another), check_fair.c (how often an item is
 * overtaken), check_kept.c (rows that no langd asks for give way).
 *
 * Facts of the step before are values; pointers in them may be stale. */
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
    /* blocks and chunks of aux that it lacks; for the first member of a group:
     * those that the group lacks */
    uint32_t lacks, chunks;
    /* aux: it has space for its aux; plays: it may get blocks */
    bool alive, firm, aux, plays;
    /* admitted: its group was; queued: it waits for blocks; idle: it could use
     * blocks, but no rows wait. */
    bool admitted, queued, idle;
    /* For check_taken.c. led: it was the head and kept its blocks. spec, rows:
     * its default grant, or its landed rows, may be taken back. */
    bool led, spec, rows;
};

struct lorder {
    uint32_t life, count;
    const struct daemon *d;
    struct langd *l;
    struct lfact *now, *was; /* by slot: after the step and before it */
    struct lfact **live;     /* rooms that exist now */
    struct lline {
        /* the oldest that waits, and the oldest idle one */
        const struct lfact *head, *idle;
        /* blocks that the head lacks, or without a head the idle one */
        uint32_t lacks;
        /* age of the oldest room that got firm blocks in this step */
        uint64_t served;
        /* For check_taken.c: before the step a room was READY, or rows landed
         * into a firm grant. */
        bool spares;
        /* age + 1 of the head; since when it is the head */
        uint64_t head_age, head_ns;
    } line[CONF_POOLS_MAX];
    const struct lroom *aux_head;
    struct spare { /* check_spare.c, by group */
        uint64_t age;
        uint32_t gone; /* blocks of members that are READY already */
        bool capped, admitted;
    } * groups;
};

/* True if the slot has the same room as before, alive then and now. */
static inline bool lfact_same(const struct lfact *was, const struct lfact *f)
{
    return was->generation == f->generation && was->alive && f->alive;
}

/* For "%s room %llu". */
#define NAMED(number) k->d->conf->name, (unsigned long long)(number)

/* an encoded */

struct efact {
    const struct item *it; /* NULL: no item has the slot */
    uint64_t age, turn;    /* age: different for each item; 0: no item */
    uint64_t moved_ns;
    uint32_t pool, blocks;
    bool leaves;     /* all of its rooms do: its blocks will come back */
    bool waits, got; /* waits for blocks; got some in this step */
    bool own_full, complete, ahead; /* of the item alone, without its batch */
    /* Facts of the whole batch, if the item waits at its head. lacks: blocks
     * that the batch needs; full: one item is full; barred: one is a victim and
     * none is full; plain: none is full or a victim, and none asks ahead for
     * its grants. */
    uint32_t lacks;
    bool queued, full, barred, plain;
    /* in which the item waits; NULL: it does not wait */
    const struct ebatch *batch;
    /* langd: the one that asked first for a room of the item, + 1; 0: none did.
     * there: the item's turn at that langd */
    uint64_t langd, there;
    uint32_t passed, older; /* check_fair.c, of this turn */
    /* For check_victims.c. lacks_grants: one of its rooms lacks a grant;
     * active: one is read; ended: one was ended for another item; ends: all are
     * ending. */
    bool lacks_grants, active, ended, ends;
    /* For check_kept.c. bare: none of its rooms is asked for or read; held: one
     * is asked for, or read elsewhere; kept: all are kept. */
    bool bare, held, kept;
    uint64_t kept_ns, room; /* until when it is kept; id of its last room */
    uint32_t name;
};

struct eorder {
    uint32_t life;
    const struct daemon *d;
    struct encoded *e;
    struct efact *now, *was;
    struct eline {
        const struct efact *head; /* the first item that may have blocks */
        uint32_t lacks;           /* blocks that the head lacks */
        /* check_victims.c */
        /* 1 + turn of the full head; since when it is the head */
        uint64_t turn, head_ns;
        /* the least timeouts.revoke_after since then: a reload does not change
         * a clock that runs */
        uint64_t least_ns;
        /* since when an item should have been ended; 0: none */
        uint64_t stuck_ns;
        /* since when the head lacks blocks and none will come back; TIME_NEVER:
         * not by time alone */
        uint64_t lacks_ns;
    } line[CONF_POOLS_MAX];
    uint64_t revoked, after_ns; /* check_victims.c */
    uint64_t unclaimed, others; /* check_kept.c */
    /* By room: since when no langd asks for its rows, and for no rows of its
     * item; 0: one does. */
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
/* Sets the facts that follow from this room, or item, alone. */
void reference_room(
    const struct lorder *k, const struct lroom *m, struct lfact *f);
void reference_item(
    const struct eorder *k, const struct item *it, struct efact *f);
/* Checks who got blocks and aux in this step, and finds who should have them
 * now. */
void reference_blocks(struct lorder *k);
void reference_space(struct lorder *k);
void reference_sources(struct eorder *k);

/* Sums over all members of a group. */
struct gfact {
    /* known: all lengths are known; hopes: to be lent, all of it (6.7) */
    bool known, lacks_aux, closing, hopes;
    /* blocks; chunks: of aux that members lack */
    uint32_t needs, held, chunks;
};
struct gfact group_of(const struct lorder *k, const struct lgroup *g);

/* Order in which rooms get space for aux (5.8). */
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
