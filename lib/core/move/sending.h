/* sending.h - the sending half of a shard: which rows of which destination go
 * next. Pure; owned by the shard's thread (or the simulator). Its input are
 * SEND_* and PEER_* commands.
 *
 * A job is one destination slot. An endpoint is one data address of one peer.
 * The jobs of an endpoint take turns, one segment each, inside its byte window,
 * so that a huge room does not delay small ones. Small segments share a message
 * that has no large ones, and carriers let it overtake messages with large
 * ones. To a peer that maps our pool a message only says where the rows lie. A
 * job sends the parts of this shard in ascending order.
 *
 * A unit must lie in few source blocks: unit_rows <= 15 x block_rows of the
 * source pool; otherwise the job is never sent (sending_unit_ok). */
#ifndef MMX_CORE_MOVE_SENDING_H
#define MMX_CORE_MOVE_SENDING_H

#include "core/flow.h"
#include "core/move/landing.h"
#include "wire/segment.h"
#include "base/slab.h"

struct sending_pool { /* row_bytes 0: layout not known yet */
    uint32_t blocks, row_bytes, block_rows, fields;
    uint32_t unit_most; /* bytes of the largest unit to send; 0: no limit */
    /* Adjacent rows of at least this many bytes get a message of their own,
     * which the carrier moves without a copy. 0: the carrier cannot do that. */
    uint32_t alone;
};

#define SEND_ADDRESSES_MAX 64  /* per peer */
#define SEND_MESSAGES_MAX  256 /* handed out and not done */
#define SEND_MESSAGES_EP   64  /* the same, per endpoint */
#define SEND_LARGE_EP      4   /* of those, larger than a segment: one unit */
#define SEND_IOV_MAX       512 /* iovec entries of a message, at either end */
#define SEND_CARRIER_ROOM  512 /* bytes that the carrier adds to a message */
/* Bytes of a message of small segments, headers included. */
#define SEND_SMALL_BYTES (64u << 10)

/* One data message: segments, and the places of each segment's rows. */
struct send_batch {
    uint32_t peer, address; /* endpoint: data address number of the peer */
    uint32_t count;
    bool copy;      /* kind SEGMENTS_SOURCES: the peer copies the rows */
    uint64_t bytes; /* payload */
    struct segment segments[SEGMENTS_MAX];
    struct {
        uint16_t pool;
        uint16_t pieces; /* of this segment, in order, in pieces[] below */
        uint32_t slot;
        uint64_t generation;
    } from[SEGMENTS_MAX];
    struct piece pieces[SEGMENTS_MAX + PIECES_MAX];
    uint32_t pieces_count;
};

/* Payload of a message of kind SEGMENTS_SOURCES. */
#define SOURCES_BYTES_MAX                                                      \
    (SEGMENTS_MAX * SEGMENT_SOURCE + (SEGMENTS_MAX + PIECES_MAX) * PIECE_BYTES)

/* Most bytes of a segment that a peer copies itself; one unit may be more. */
#define COPY_BYTES_MAX (4u << 20)

struct sending; /* opaque */

static inline bool sending_unit_ok(uint32_t unit_rows, uint32_t block_rows)
{
    return unit_rows > 0 && unit_rows <= 15 * (uint64_t)block_rows;
}

/* Makes the sending half of shard number `shard`, which serves the data
 * addresses a with a mod shards == shard. slots: size of the brain's
 * destination table; peers: size of its peer table. Counting works as in
 * slab.h: NULL while counting. */
struct sending *sending_init(struct slab *s, uint32_t slots, uint32_t peers,
    uint32_t shard, uint32_t shards, uint32_t window_bytes,
    uint32_t segment_bytes, const struct sending_pool *pools, uint32_t n);
/* Sets the layout of pool i. */
void sending_pool_set(
    struct sending *s, uint32_t i, const struct sending_pool *p);
/* Raises the window of every endpoint to at least `window_bytes`, except for
 * peers whose carrier reads rows in place. */
void sending_widen(struct sending *s, uint32_t window_bytes);
/* Whether a peer's carrier reads rows in place; only then `alone` applies.
 * Until it is known, a peer gets both `alone` and the wider window. */
enum send_reads { SEND_READS_AS_POOLS, SEND_READS, SEND_READS_NOT };
void sending_reads(struct sending *s, uint32_t peer, enum send_reads reads);

/* Executes PEER_OPEN: the peer has `addresses` data addresses (1 to
 * SEND_ADDRESSES_MAX) and takes messages of at most `segment_bytes`, headers
 * included. */
void sending_peer(struct sending *s, uint32_t peer, uint32_t addresses,
    uint32_t segment_bytes);

/* Executes one SEND_* or PEER_CLOSE command. *quiet: NOTE_SEND_QUIET is due for
 * cmd's slot and generation now. */
void sending_cmd(struct sending *s, const struct data_cmd *cmd, bool *quiet);

/* Makes the next message for the carrier; false: nothing may be sent now. Each
 * *token must be given to sending_done exactly once. */
bool sending_next(struct sending *s, struct send_batch *b, uint32_t *token);

/* Ends a message: the carrier no longer needs its memory. Calls quiet(ud, note)
 * for each SEND_CLOSE that waited only for it. */
void sending_done(struct sending *s, uint32_t token,
    void (*quiet)(void *ud, const struct data_note *note), void *ud);

/* Drops queued rows for a peer whose endpoint broke: its jobs are not sent
 * until a SEND_REWIND. */
void sending_broken(struct sending *s, uint32_t peer);

/* True if sending_next may return a message. */
bool sending_ready(const struct sending *s);
/* Returns the number of messages in flight. */
uint32_t sending_active(const struct sending *s);

#endif
