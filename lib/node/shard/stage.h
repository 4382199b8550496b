/* stage.h - pinned host memory that rows of GPU pools pass through: a ring of
 * slots, one direction of one shard, on that shard's thread.
 *
 * A slot is filled with entries (room, take, copy, entry), then pushed: its
 * copies are submitted together, and the next slot can be filled meanwhile.
 * When the copies have ended each entry is reported through over(), in order;
 * the slot is free again when nothing holds it.
 *
 *   out, GPU to network: take host memory for a message, copy the rows into
 *        it, hold; over() posts the message; drop when the carrier is done
 *   in, network to GPU: take host memory, put the bytes there (at once, or by
 *        a fetch: fill and filled), copy to the rows; over() ends the landing
 */
#ifndef MMX_NODE_STAGE_H
#define MMX_NODE_STAGE_H

#include "base/ring.h"
#include "io/cuda.h"

#define STAGE_SLOTS      4
#define STAGE_SLOTS_MOST 16
#define STAGE_SLOT_BYTES (2u << 20)

struct stage;

struct stage_conf {
    uint32_t slots, slot_bytes;
    uint32_t most;            /* slots that the stage may grow to */
    uint32_t entries, copies; /* per slot; copies also per GPU */
    struct wake *wake;        /* woken when copies have ended */
    void *ud;
    /* Reports that the copies of an entry have ended. May call anything here
     * but stage_progress, stage_wait and stage_free. */
    void (*over)(void *ud, uint32_t slot, uint64_t cookie, bool ok);
};

/* Makes a stage without a GPU, and so without memory. */
MUST_CHECK enum err stage_new(struct stage **out, const struct stage_conf *c);
/* Waits for what was submitted, reports nothing. Accepts NULL. */
void stage_free(struct stage **s);

/* Adds a GPU whose rows will pass; idempotent. The first one pins the memory.
 */
MUST_CHECK enum err stage_gpu(struct stage *s, struct cuda *gpu);

/* True if a slot has room for `bytes`, `copies` and one entry. A slot without
 * that room is pushed. false: all slots are in use; stage_wait frees one that
 * is being copied, stage_drop one that is held. */
bool stage_room(struct stage *s, uint32_t bytes, uint32_t copies);
/* Does the same for an entry whose bytes are pending (stage_fill). Such entries
 * share no slot with others, and one slot never waits for bytes. false:
 * stage_wait may help, or only the bytes. */
bool stage_room_fill(struct stage *s, uint32_t bytes, uint32_t copies);
/* Adds a slot, for when stalled peers hold all. false: the stage has `most`, or
 * memory is short. */
bool stage_grow(struct stage *s);
/* True if nearly all slots, those that may still be added included, are held.
 */
bool stage_scarce(const struct stage *s);
/* Submits the slot that is being filled. */
void stage_push(struct stage *s);
/* Submits the slot that is being filled, unless enough other slots are under
 * way: then it waits for more entries, since a slot is freed only as a whole.
 * Call it every turn, and soon again while stage_due. */
void stage_push_due(struct stage *s);

/* Returns the next `bytes` of the slot that stage_room found. All calls from
 * here to stage_fill act on that slot. */
uint8_t *stage_take(struct stage *s, uint32_t bytes);
/* Adds a copy; adjacent ones are merged. */
void stage_copy(struct stage *s, struct cuda *gpu, const void *to,
    const void *from, uint64_t bytes);
/* Ends an entry; returns its number, for stage_bad. */
uint32_t stage_entry(struct stage *s, uint64_t cookie);
/* Returns the number of the slot that is being filled. */
uint32_t stage_filling(const struct stage *s);
/* Keeps the slot after over() until stage_drop; returns its number. */
uint32_t stage_hold(struct stage *s);
void stage_drop(struct stage *s, uint32_t slot);
/* Notes that bytes of the slot are pending: it is not copied before as many
 * calls of stage_filled as of stage_fill. Returns its number. If bytes do not
 * come, call stage_bad for their entry before: the slot is copied as it is, and
 * that entry is reported as bad. */
uint32_t stage_fill(struct stage *s);
void stage_bad(struct stage *s, uint32_t slot, uint32_t entry);
void stage_filled(struct stage *s, uint32_t slot);

/* Reports entries that have ended; returns their number. */
uint32_t stage_progress(struct stage *s);
/* True if entries are to be reported, or a slot is to be pushed soon. */
bool stage_due(struct stage *s);
/* Probes the GPUs from time to time, also when there is nothing to copy; true:
 * one is lost. Call at least every second. */
bool stage_probe(struct stage *s, uint64_t now_ns);
/* Waits for the oldest copies and reports them. false: none are under way. */
bool stage_wait(struct stage *s);
/* Returns the number of slots that are being copied. */
uint32_t stage_copying(const struct stage *s);

#endif
