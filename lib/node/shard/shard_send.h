/* shard_send.h - a shard of encoded: rows that are sent. All of it belongs to
 * the shard's owner. */
#ifndef MMX_NODE_SHARD_SEND_H
#define MMX_NODE_SHARD_SEND_H

#include "core/move/sending.h"
#include "node/shard/shard.h"

#define STRAIGHT_EACH    4 /* messages from a GPU per endpoint */
#define TRANSPORT_WORDS  4
#define WHY_WORDS        16
#define OUT_ENTRIES      128 /* messages in one GPU slot */
#define ENDPOINTS(count) div_up(SEND_ADDRESSES_MAX, (count)) /* of one peer */

struct carry;

struct route {     /* to a peer */
    uint8_t *blob; /* the peer's data addresses; owned */
    struct span addresses[SEND_ADDRESSES_MAX];
    uint32_t len, count, segment_max;
    /* length of the data_key behind the addresses in the blob */
    uint8_t key_len;
    uint8_t carrier;   /* enum carrier_number: what the addresses are for */
    struct carry *by;  /* that carrier; NULL: not open here */
    uint64_t reported; /* turn of the last NOTE_PEER_BROKEN */
    /* grows when the addresses change or the peer's epoch ends */
    uint64_t serial;
    uint32_t tried, tried_at; /* attempt and address of the last PEER_TRY; 0:
                                 none */
    /* text; any thread may read it */
    _Atomic uint64_t transport[TRANSPORT_WORDS];
    _Atomic uint64_t why[WHY_WORDS]; /* the same for NOTE_PEER_TRIED */
};

/* OPEN: not connected yet, or its transport has no name yet. LOST: it was
 * NAMED; UNMADE: it was not. */
enum ep_state { EP_NONE, EP_OPEN, EP_NAMED, EP_LOST, EP_UNMADE };

/* A message handed to the carrier, by sending.c's token. */
struct posted {
    uint32_t ep;
    bool busy, straight; /* straight: the receiver fetches from the GPU */
};

/* A message whose rows come from a GPU, by sending.c's token. */
struct staged {
    uint32_t ep, peer, address, slot, header_len, segments;
    bool held; /* holds the slot's memory; otherwise has a copy in `late` */
    uint64_t serial, len;
    uint8_t *bytes;
    uint8_t header[DATA_HEADER_MAX];
};

struct sender {
    struct sending *sending;
    struct route *routes; /* by peer */
    uint8_t *eps;         /* enum ep_state, by endpoint */
    /* by endpoint: messages posted straight and not done */
    uint8_t *straight;
    uint32_t opening; /* endpoints that are EP_OPEN */
    uint32_t *lost;   /* endpoints to be reported */
    uint32_t lost_count;
    struct posted posted[SEND_MESSAGES_MAX];
    uint8_t *sources;      /* payloads of SOURCES_BYTES_MAX, by token */
    struct staged *staged; /* by token; touched with a stage only */
    struct send_batch batch;
};

/* shard_gpu.c */
/* True if any message may be taken from sending.c, whatever its pools. */
bool gpu_send_room(struct shard *s);
/* How the batch's rows go. SEND_STRAIGHT: the carrier reads them from the GPU
 * itself; the receiver has to fetch them then, so an endpoint has at most
 * STRAIGHT_EACH. SEND_STAGED: rows of a GPU, which gpu_send copies to pinned
 * memory; the role's `staged` is called when they are there, and gpu_done ends
 * the message when the carrier has completed or never had it. */
enum send_way { SEND_PLAIN, SEND_STRAIGHT, SEND_STAGED };
enum send_way gpu_way(struct shard *s, uint32_t ep);
/* If slots are scarce, copies a message that is given to the carrier out of its
 * slot. */
void gpu_handed(struct shard *s, uint32_t token);
void gpu_send(struct shard *s, uint32_t ep, uint32_t token);
void gpu_done(struct shard *s, uint32_t token);

#endif
