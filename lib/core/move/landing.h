/* landing.h - the receiving half of a shard: what has been granted to whom,
 * and whether a segment may land. Pure; owned by the shard's thread (or the
 * simulator). Fed by LAND_* commands in the order in which the brain gave
 * them, so that a block's old room is closed before its new one is opened.
 *
 * A segment names no slot: generation mod slots is the slot (slots = size of
 * the table, the same for brain and shards), so the brain issues generations
 * to fit the slot that is free.
 *
 * A unit (unit_rows rows) lands at most once per attempt: it is claimed before
 * its bytes move. Only rows that the grant covers, of the room, generation
 * and attempt in force, in a part that belongs to this shard, are let in. */
#ifndef MMX_CORE_MOVE_LANDING_H
#define MMX_CORE_MOVE_LANDING_H

#include "core/flow.h"
#include "wire/segment.h"
#include "base/slab.h"

/* What a shard knows of a pool. */
struct landing_pool { /* unit_rows divides block_rows and part_rows */
    uint32_t blocks, block_rows, unit_rows, part_rows, row_bytes;
};

/* Enough for a shard's copies and GPU slots; each message that may be fetched
 * needs one beside these. */
#define LANDINGS_MIN 1024

struct landing; /* opaque */

/* slots: size of the brain's room table. landings: how many may have begun and
 * not ended, all slots together. shard of shards: which parts are
 * ours. pools[0..n) give the numbers; block_rows etc. must be set; a pool with
 * an unknown layout has row_bytes 0 until landing_pool_set. Counting works as
 * in slab.h: NULL while counting. */
struct landing *landing_init(struct slab *s, uint32_t slots, uint32_t landings,
    uint32_t shard, uint32_t shards, const struct landing_pool *pools,
    uint32_t n);
/* Layout of pool i becomes known; nothing of it is open yet. */
void landing_pool_set(
    struct landing *l, uint32_t i, const struct landing_pool *p);

/* Carries out one LAND_* command. false: the slot has moved on, ignored.
 * *quiet: a NOTE_LAND_QUIET for cmd's slot and generation is due now; else,
 * when one was asked for (LAND_TRIM, LAND_CLOSE with reply), it becomes due
 * with a landing_end. Exactly one for each such command, ignored or not. */
bool landing_cmd(struct landing *l, const struct data_cmd *cmd, bool *quiet);

/* May this segment land? OK: its units are claimed, *pool and pieces[0..*n)
 * say where, and landing_end must be called once for *token when the bytes
 * are there (or failed to come). Otherwise nothing changed:
 *   ERR_STALE      no such slot, generation or attempt; closed; not granted;
 *                  landed before
 *   ERR_MALFORMED  not whole units, crosses a part, part of another shard,
 *                  wrong bytes, more than PIECES_MAX pieces, or contradicts
 *                  the total known here: then *bad_slot is the slot, and a
 *                  NOTE_LAND_BAD for it and s->generation is due
 *   ERR_BUSY       `landings` are active
 * *bad_slot is NONE in every other case. */
MUST_CHECK enum err landing_begin(struct landing *l, const struct segment *s,
    uint32_t *pool, struct piece *pieces, uint32_t *n, uint32_t *token,
    uint32_t *bad_slot);

/* Who sends to this generation, as LAND_OPEN said, and into which pool; false:
 * it is not open. */
bool landing_peer(const struct landing *l, uint64_t generation, uint32_t *peer,
    uint32_t *pool);
/* Says what an active landing is of. */
void landing_whose(const struct landing *l, uint32_t token, uint32_t *slot,
    uint32_t *attempt, uint64_t *generation);
/* Would the landing `token` count if it ended now? */
bool landing_counts(const struct landing *l, uint32_t token);

/* The landing `token` is over, with its bytes in place iff ok. Returns true
 * and fills *note (NOTE_LANDED) when it counts: same attempt still in force,
 * rows not trimmed away. *quiets: so many equal NOTE_LAND_QUIETs, one per
 * command that waited, are due: *quiet_note. */
bool landing_end(struct landing *l, uint32_t token, bool ok,
    struct data_note *note, uint32_t *quiets, struct data_note *quiet_note);

/* Has everything landed that this shard was granted in the slot? A hint for
 * when to tell the brain, not for what is true. */
bool landing_full(const struct landing *l, uint32_t slot);

/* Landings begun and not ended. */
uint32_t landing_active(const struct landing *l);

#endif
