/* shard_send.h - a shard of encoded: rows that go. Owned as the shard is. */
#ifndef MMX_NODE_SHARD_SEND_H
#define MMX_NODE_SHARD_SEND_H

#include "core/move/sending.h"
#include "node/shard/shard.h"

#define STRAIGHT_EACH    4 /* messages of an endpoint from a GPU */
#define TRANSPORT_WORDS  4
#define WHY_WORDS        16
#define OUT_ENTRIES      128 /* messages in one GPU slot */
#define ENDPOINTS(count) div_up(SEND_ADDRESSES_MAX, (count)) /* of a peer */

struct carry;

struct route {     /* to a peer */
    uint8_t *blob; /* its data addresses; owned */
    struct span addresses[SEND_ADDRESSES_MAX];
    uint32_t len, count, segment_max;
    uint8_t key_len;   /* its data_key, in the blob behind the addresses */
    uint8_t carrier;   /* enum carrier_number: what the addresses are for */
    struct carry *by;  /* it; NULL: it is not open here */
    uint64_t reported; /* turn of the last NOTE_PEER_BROKEN */
    uint64_t serial;   /* grows when the peer's addresses may mean another */
    uint32_t tried;    /* attempt of the last PEER_TRY; 0: none */
    _Atomic uint64_t transport[TRANSPORT_WORDS]; /* text; read by any thread */
    _Atomic uint64_t why[WHY_WORDS]; /* likewise: of NOTE_PEER_TRIED */
};

enum ep_state { EP_NONE, EP_OPEN, EP_NAMED, EP_LOST };

/* A message handed to the carrier, by sending.c's token. */
struct posted {
    uint32_t ep;
    bool busy, straight; /* straight: the receiver fetches from the GPU */
};

/* A message whose rows come from a GPU, by sending.c's token. */
struct staged {
    uint32_t ep, peer, address, slot, header_len, segments;
    bool held; /* the slot's memory; else a copy of it is late */
    uint64_t serial, len;
    uint8_t *bytes;
    uint8_t header[DATA_HEADER_MAX];
};

struct sender {
    struct sending *sending;
    struct route *routes; /* by peer */
    uint8_t *eps;         /* enum ep_state, by endpoint */
    uint8_t *straight;    /* posted straight and not done, by endpoint */
    uint32_t opening;     /* endpoints that are EP_OPEN */
    uint32_t *lost;       /* endpoints to be reported */
    uint32_t lost_count;
    struct posted posted[SEND_MESSAGES_MAX];
    uint8_t *sources;      /* payloads of SOURCES_BYTES_MAX, by token */
    struct staged *staged; /* by token; touched with a stage only */
    struct send_batch batch;
};

/* shard_gpu.c */
/* True if a message may be taken from sending.c, whatever its pools. */
bool gpu_send_room(struct shard *s);
/* How the batch's rows go. SEND_STRAIGHT: the carrier reads them from the GPU
 * itself; the receiver has to fetch them then, so an endpoint has at most
 * STRAIGHT_EACH. SEND_STAGED: rows of a GPU, which gpu_send copies to pinned
 * memory; the role's `staged` is called when they are there, and gpu_done ends
 * the message when the carrier has completed or never had it. */
enum send_way { SEND_PLAIN, SEND_STRAIGHT, SEND_STAGED };
enum send_way gpu_way(struct shard *s, uint32_t ep);
/* Copies a message that goes to the carrier out of its slot when slots are
 * scarce. */
void gpu_handed(struct shard *s, uint32_t token);
void gpu_send(struct shard *s, uint32_t ep, uint32_t token);
void gpu_done(struct shard *s, uint32_t token);

#endif
