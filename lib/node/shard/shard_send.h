/* shard_send.h - a shard of encoded: rows that go. Owned as the shard is. */
#ifndef MMX_NODE_SHARD_SEND_H
#define MMX_NODE_SHARD_SEND_H

#include "core/move/sending.h"
#include "node/shard.h"

#define STRAIGHT_EACH    4 /* messages of an endpoint from a GPU */
#define TRANSPORT_WORDS  4
#define OUT_ENTRIES      128 /* messages in one GPU slot */
#define ENDPOINTS(count) div_up(SEND_ADDRESSES_MAX, (count)) /* of a peer */

struct route {     /* to a peer */
    uint8_t *blob; /* its data addresses, from shard_peer; ours */
    struct span addresses[SEND_ADDRESSES_MAX];
    uint32_t len, count, segment_max;
    uint64_t told;   /* turn in which NOTE_PEER_BROKEN was given */
    uint64_t serial; /* grows when the peer's addresses may mean another */
    _Atomic uint64_t transport[TRANSPORT_WORDS]; /* text; any thread reads */
};

enum ep_state { EP_NONE, EP_OPEN, EP_NAMED, EP_LOST };

/* A message handed to the carrier, by sending.c's token. */
struct posted {
    uint32_t ep;
    bool busy, straight; /* its rows are read from a GPU, to be fetched */
};

/* One whose rows come from a GPU, by sending.c's token. */
struct staged {
    uint32_t ep, peer, address, slot, header_len, segments;
    bool held; /* the slot's memory */
    uint64_t serial, len;
    uint8_t *bytes;
    uint8_t *own; /* NULL, or where bytes were brought from the slot */
    uint8_t header[DATA_HEADER_MAX];
};

struct sender {
    struct sending *sending;
    struct route *routes; /* by peer */
    uint8_t *eps;         /* enum ep_state, by endpoint */
    uint8_t *straight;    /* posted straight and not done, by endpoint */
    uint32_t *lost;       /* endpoints to be told about */
    uint32_t lost_count;
    struct posted posted[SEND_MESSAGES_MAX];
    uint8_t *said;         /* payloads of SOURCES_BYTES_MAX, by token */
    struct staged *staged; /* by token; touched with a stage only */
    struct send_batch batch;
};

/* shard_gpu.c */
/* May a message be taken from sending.c, whatever its rows lie in? */
bool gpu_send_room(struct shard *s);
/* Does the carrier read the batch's rows from a GPU itself? The receiver has
 * to fetch them then, so there are STRAIGHT_EACH at most. */
bool gpu_straight(struct shard *s, uint32_t ep);
/* Has the batch rows of a GPU? Then, unless they go straight, gpu_send, and
 * send_staged when they are there; gpu_done when the carrier is done with it,
 * or never had it. */
bool gpu_batch(const struct shard *s);
/* The rows of a message are about to be handed to the carrier: not from the
 * slot, when there are few that nobody holds. */
void gpu_handed(struct shard *s, uint32_t token);
void gpu_send(struct shard *s, uint32_t ep, uint32_t token);
void gpu_done(struct shard *s, uint32_t token);

#endif
