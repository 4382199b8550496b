/* stage.h - pinned host memory that rows of GPU pools pass through: a ring of
 * slots, one direction of one shard, on that shard's thread.
 *
 * A slot is filled with whatever goes the same way (room, take, copy, entry),
 * then pushed: its copies are submitted together, and the next slot can be
 * filled meanwhile. When the copies are over each entry is told through
 * over(), in order; the slot is free again when nobody holds it.
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
    uint32_t most;            /* slots that it may grow to */
    uint32_t entries, copies; /* that a slot has room for; copies per GPU */
    struct wake *wake;        /* woken when copies are over */
    void *ud;
    /* Copies of an entry are over, well or badly. May call anything here but
     * stage_progress, stage_wait and stage_free. */
    void (*over)(void *ud, uint32_t slot, uint64_t cookie, bool ok);
};

/* Without a GPU yet, and so without memory. */
MUST_CHECK enum err stage_new(struct stage **out, const struct stage_conf *c);
/* Waits for what was submitted, tells nobody. Accepts NULL. */
void stage_free(struct stage **s);

/* Rows of this GPU will pass; idempotent. The first one brings the memory. */
MUST_CHECK enum err stage_gpu(struct stage *s, struct cuda *gpu);

/* Is there a slot to be filled with so many bytes and copies and one entry?
 * A slot that has no room for them is pushed. false: all slots are in use;
 * stage_wait brings one if it is being copied, stage_drop if it is held. */
bool stage_room(struct stage *s, uint32_t bytes, uint32_t copies);
/* The same for an entry whose bytes are still to come (stage_fill). Such
 * entries share no slot with others, and one slot never waits for bytes.
 * false: stage_wait may help, or nothing but the bytes. */
bool stage_room_fill(struct stage *s, uint32_t bytes, uint32_t copies);
/* One slot more, for when all are held by somebody who stands still. false:
 * there are as many as may be, or no memory. */
bool stage_grow(struct stage *s);
/* Are nearly all slots, those that may still come included, held? */
bool stage_scarce(const struct stage *s);
/* Submits what is filled. */
void stage_push(struct stage *s);
/* The same, unless enough is under way that it may as well wait for more: a
 * slot is given back as a whole. To be called every turn, soon again while
 * stage_due. */
void stage_push_due(struct stage *s);

/* The next eight belong to the slot that was found. */
uint8_t *stage_take(struct stage *s, uint32_t bytes);
/* Neighbours at both ends become one copy. Host memory is the slot's, or
 * stage_pageable is said of the GPU. */
void stage_pageable(struct stage *s, const struct cuda *gpu);
void stage_copy(struct stage *s, struct cuda *gpu, const void *to,
    const void *from, uint64_t bytes);
/* Number of the entry, for stage_bad. */
uint32_t stage_entry(struct stage *s, uint64_t cookie);
/* Number of the slot that is being filled. */
uint32_t stage_filling(const struct stage *s);
/* Number of the slot. It is kept after over() until stage_drop. */
uint32_t stage_hold(struct stage *s);
void stage_drop(struct stage *s, uint32_t slot);
/* The slot's bytes are still to come: it is not submitted before stage_filled,
 * called once. A copy of bytes that did not come is made all the same; its
 * entry is told as bad. */
uint32_t stage_fill(struct stage *s);
void stage_bad(struct stage *s, uint32_t slot, uint32_t entry);
void stage_filled(struct stage *s, uint32_t slot);

/* Tells what is over. Returns how many entries that were. */
uint32_t stage_progress(struct stage *s);
/* Is there something to tell, or to be pushed soon? */
bool stage_due(struct stage *s);
/* Asks GPUs now and then whether they are still there, also when there is
 * nothing to copy. true: one is lost. To be called every second at least. */
bool stage_probe(struct stage *s, uint64_t now_ns);
/* Waits for the oldest copies and tells. false: none are under way. */
bool stage_wait(struct stage *s);
/* Slots that are being copied. */
uint32_t stage_copying(const struct stage *s);
uint32_t stage_slot_bytes(const struct stage *s);

#endif
