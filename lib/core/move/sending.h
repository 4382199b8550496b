/* sending.h - the sending half of a shard: which rows of which destination go
 * next. Pure; owned by the shard's thread (or the simulator). Fed by SEND_*
 * and PEER_* commands.
 *
 * A job is one destination slot. Jobs of one peer and data address take turns,
 * one segment each, inside a byte window per endpoint, so that a huge room
 * does not delay small ones; what is small travels together in one message.
 * To a peer that maps our pool a message only says where the rows lie.
 * A job walks those of its parts that belong to this shard in ascending order.
 *
 * A job can only go if a unit lies in few source blocks: unit_rows <= 15 x
 * block_rows of the source pool, or it stands still (sending_unit_ok). */
#ifndef MMX_CORE_MOVE_SENDING_H
#define MMX_CORE_MOVE_SENDING_H

#include "core/flow.h"
#include "core/move/landing.h"
#include "wire/segment.h"
#include "base/slab.h"

struct sending_pool { /* row_bytes 0: layout not known yet */
    uint32_t blocks, row_bytes, block_rows, fields;
    uint32_t unit_most; /* bytes that a unit may be asked for in; 0: any */
};

#define SEND_ADDRESSES_MAX 64  /* of one peer */
#define SEND_MESSAGES_MAX  256 /* handed out and not done */
#define SEND_MESSAGES_EP   64  /* of those, of one endpoint */
#define SEND_LARGE_EP      4   /* of those: of one unit that is larger */
#define SEND_IOV_MAX       512 /* places of a message, at either end */
#define SEND_CARRIER_ROOM  512 /* bytes of a message that the carrier needs */

/* One data message: segments, and per segment where its rows lie. */
struct send_batch {
    uint32_t peer, address; /* endpoint: data address number of the peer */
    uint32_t count;
    bool copy;      /* of kind SEGMENTS_SOURCES: the peer copies the rows */
    uint64_t bytes; /* payload */
    struct segment segments[SEGMENTS_MAX];
    struct {
        uint16_t pool;
        uint16_t pieces; /* of this segment, in pieces[] below, in order */
        uint32_t slot;
        uint64_t generation;
    } from[SEGMENTS_MAX];
    struct piece pieces[SEGMENTS_MAX + PIECES_MAX];
    uint32_t pieces_count;
};

/* Payload of a message of kind SEGMENTS_SOURCES. */
#define SOURCES_BYTES_MAX                                                      \
    (SEGMENTS_MAX * SEGMENT_SOURCE + (SEGMENTS_MAX + PIECES_MAX) * PIECE_BYTES)

/* Rows of one segment that a peer copies itself: so many bytes at most, unless
 * one unit is more. */
#define COPY_BYTES_MAX (4u << 20)

struct sending; /* opaque */

static inline bool sending_unit_ok(uint32_t unit_rows, uint32_t block_rows)
{
    return unit_rows > 0 && unit_rows <= 15 * (uint64_t)block_rows;
}

/* slots: size of the brain's destination table; peers: of its peer table.
 * This shard serves the data addresses a with a mod shards == shard. Counting
 * works as in slab.h: NULL while counting. */
struct sending *sending_init(struct slab *s, uint32_t slots, uint32_t peers,
    uint32_t shard, uint32_t shards, uint32_t window_bytes,
    uint32_t segment_bytes, const struct sending_pool *pools, uint32_t n);
void sending_pool_set(
    struct sending *s, uint32_t i, const struct sending_pool *p);
/* The window of every endpoint is so many bytes at least from now on. */
void sending_widen(struct sending *s, uint32_t window_bytes);

/* PEER_OPEN: the peer has so many data addresses (1..SEND_ADDRESSES_MAX) and
 * takes messages of at most so many bytes, headers included. */
void sending_peer(struct sending *s, uint32_t peer, uint32_t addresses,
    uint32_t segment_bytes);

/* Carries out one SEND_* or PEER_CLOSE command. *quiet: NOTE_SEND_QUIET is due
 * for cmd's slot and generation now. */
void sending_cmd(struct sending *s, const struct data_cmd *cmd, bool *quiet);

/* The next message to hand to the carrier; false: nothing may be sent now.
 * *token is to be given back to sending_done exactly once. */
bool sending_next(struct sending *s, struct send_batch *b, uint32_t *token);

/* The carrier is done with the batch's memory, well or badly. Calls quiet(ud,
 * note) for each slot that became quiet by it. */
void sending_done(struct sending *s, uint32_t token,
    void (*quiet)(void *ud, const struct data_note *note), void *ud);

/* The endpoint broke: drops what is queued for the peer (jobs stand still
 * until a SEND_REWIND or SEND_CLOSE). */
void sending_broken(struct sending *s, uint32_t peer);

/* Would sending_next give a message now? */
bool sending_ready(const struct sending *s);
/* Messages handed out and not done. */
uint32_t sending_active(const struct sending *s);

#endif
