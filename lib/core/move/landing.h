/* landing.h - the receiving half of a shard: which rows are granted, and
 * whether a segment may land. Pure; owned by the shard's thread (or the
 * simulator). LAND_* commands come in the order in which the brain gave them,
 * so a block's old room is closed before its new one is opened.
 *
 * A segment names no slot: generation mod slots is the slot (slots = size of
 * the table, the same in brain and shards). The brain chooses each generation
 * so that it gives a free slot.
 *
 * A unit (unit_rows rows) lands at most once per attempt: it is claimed before
 * its bytes move. A segment is admitted only for granted rows of the present
 * room, generation and attempt, in a part of this shard, and only from the
 * room's peer, if the sender is known. */
#ifndef MMX_CORE_MOVE_LANDING_H
#define MMX_CORE_MOVE_LANDING_H

#include "core/flow.h"
#include "wire/segment.h"
#include "base/slab.h"

/* A pool's layout; unit_rows divides block_rows and part_rows. */
struct landing_pool {
    uint32_t blocks, block_rows, unit_rows, part_rows, row_bytes;
};

/* Landings needed for a shard's copies and GPU slots; add one for each message
 * that may be fetched at the same time. */
#define LANDINGS_MIN 1024

struct landing; /* opaque */

/* Makes the receiving half of shard number `shard`. slots: size of the brain's
 * room table. landings: the most that may be in progress in all slots. pools:
 * blocks and block_rows are final; a pool with an unknown layout has row_bytes
 * 0 until landing_pool_set. Counting works as in slab.h: NULL while counting.
 */
struct landing *landing_init(struct slab *s, uint32_t slots, uint32_t landings,
    uint32_t shard, uint32_t shards, const struct landing_pool *pools,
    uint32_t n);
/* Sets the layout of pool i, which has no open room yet. */
void landing_pool_set(
    struct landing *l, uint32_t i, const struct landing_pool *p);

/* Executes one LAND_* command; false: ignored, the slot has another use.
 * LAND_TRIM, and LAND_CLOSE with reply, get exactly one NOTE_LAND_QUIET each,
 * even if ignored. *quiet true: the caller sends that note now. False: a later
 * landing_end reports it as due. */
bool landing_cmd(struct landing *l, const struct data_cmd *cmd, bool *quiet);

/* Admits a segment of peer `who`; NONE: sender unknown. OK: its units are
 * claimed, and it lands in *pool at pieces[0..*n). Call landing_end once for
 * *token when its bytes are there or cannot come. Otherwise nothing has
 * changed:
 *   ERR_STALE      no such slot, generation or attempt; of another peer;
 *                  closed; not granted; landed before
 *   ERR_MALFORMED  not whole units, crosses a part, part of another shard,
 *                  wrong bytes, more than PIECES_MAX pieces, or contradicts
 *                  the total known here: then, once per attempt, *bad_slot is
 *                  the slot, and a NOTE_LAND_BAD for it and s->generation is
 *                  due
 *   ERR_BUSY       `landings` are active
 * *bad_slot is NONE in every other case. */
MUST_CHECK enum err landing_begin(struct landing *l, uint32_t who,
    const struct segment *s, uint32_t *pool, struct piece *pieces, uint32_t *n,
    uint32_t *token, uint32_t *bad_slot);

/* Looks up the peer that sends to this generation, and the pool; false: the
 * generation is not open. */
bool landing_peer(const struct landing *l, uint64_t generation, uint32_t *peer,
    uint32_t *pool);
/* Looks up the slot, attempt and generation of an active landing. */
void landing_whose(const struct landing *l, uint32_t token, uint32_t *slot,
    uint32_t *attempt, uint64_t *generation);
/* True if the landing `token` would count if it ended now. */
bool landing_counts(const struct landing *l, uint32_t token);

/* Ends the landing `token`, with its bytes in place iff ok. Returns true and
 * fills *note (NOTE_LANDED) if it counts: its attempt is the present one and
 * its rows were not trimmed. *quiets: how many NOTE_LAND_QUIETs, all equal to
 * *quiet_note, are due for waiting commands. */
bool landing_end(struct landing *l, uint32_t token, bool ok,
    struct data_note *note, uint32_t *quiets, struct data_note *quiet_note);

/* True if all rows granted to the slot in this shard have landed. A hint for
 * when to notify the brain. */
bool landing_full(const struct landing *l, uint32_t slot);

/* Returns the number of landings in progress. */
uint32_t landing_active(const struct landing *l);

#endif
