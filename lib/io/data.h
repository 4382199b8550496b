/* data.h - a carrier of data messages: TCP or UCX. One object per shard; it is
 * called, and calls back, on the thread that runs the shard.
 *
 * Contract (test/contract/data_test.c holds every carrier to it):
 *  - post() of an accepted message completes exactly once, through done(),
 *    never inside post(). If post() fails there is no completion.
 *  - A completion means that the sender's memory is free again, and nothing
 *    about delivery.
 *  - A message arrives whole, at most once, or not at all. Messages of one
 *    endpoint may overtake each other.
 *  - An endpoint that breaks is reported once through broken(); its messages
 *    complete; posts to it fail with ERR_PEER_LOST until it is closed. One that
 *    connects is reported once before that, unless it breaks before.
 *  - Progress until it returns 0, then arm(); ERR_BUSY means progress again.
 *  - close() completes everything that is outstanding before it returns.
 *  - Inside arrived() only post() and fetch() may be called; inside the other
 *    callbacks anything but progress(), tick(), admit() and close(). */
#ifndef MMX_IO_DATA_H
#define MMX_IO_DATA_H

#include "base/bytes.h"
#include "base/err.h"
#include "core/peers/trouble.h"
#include "wire/wire.h"

#include <sys/uio.h>

#define DATA_IOV_MAX      512
#define DATA_CARRIERS_MAX 4 /* of a shard */
#define STREAMS_CHOSEN    8 /* the most that a carrier chooses */
/* Payload of a message that large ones of its endpoint are not to hold up. */
#define DATA_SMALL (64u * 1024)

/* Returns the number of connections that a TCP carrier with `addresses` in all
 * takes of a peer; configured: transfer.streams. */
static inline uint32_t data_streams(uint32_t configured, uint32_t addresses)
{
    return configured ? configured : min_u32(STREAMS_CHOSEN + addresses, 64);
}

struct data_ops;

/* What data connections of TCP ask of the other end. Off: langd's token alone.
 * Else proof of the pair's key; encrypted too, or where the listener's address
 * is not of loopback. */
enum data_safe { SAFE_OFF, SAFE_PROVED, SAFE_ENCRYPTED, SAFE_AUTO };

struct data_conf {
    const char *tls, *devices, *ports; /* as in transfer.* of the config */
    uint32_t segment_bytes;
    uint32_t message_max; /* bytes of the longest body to receive */
    uint32_t keepalive_ms;
    uint32_t stall_ms; /* an endpoint without progress for this time breaks */
    uint32_t greeting_ms;   /* from an accepted connection to its greeting */
    uint32_t endpoints_max; /* opened by us */
    uint32_t inbound_max;   /* opened to us by others; 0: we only send */
    uint32_t messages_max;  /* posted and not done */
    uint32_t fetches_max;   /* begun and not fetched */
    /* Of TCP. A peer with several addresses has a share of them at each. */
    uint32_t streams;      /* connections to a peer; 0: the carrier chooses */
    uint32_t addresses;    /* that we have; 0 is 1 */
    uint32_t buffer_bytes; /* of a socket, each way; 0: the kernel's choice */
    uint64_t pace_bytes;   /* a second and connection, sent; 0: no limit */
    /* What others must do to connect, and the least that we do: an address
     * without a key, or with one that asks for less, is not connected to. */
    enum data_safe safe;
    uint32_t keys_max;    /* that admit() may name; 0: none */
    uint64_t rekey_bytes; /* sent under one key of TLS; 0: the default */
};

/* A message that has arrived. Eager: data[0..len) is valid inside the callback.
 * Else (rendezvous): data is NULL and fetch() gets the bytes. */
struct data_in {
    struct span header;
    const uint8_t *data;
    uint64_t len;
    void *handle; /* rendezvous only */
    /* As in admit(), of the key that its connection has proven. NONE: not
     * known, where there are no keys, or the carrier proves nothing. */
    uint32_t who;
};

/* What a carrier counts since it was opened: connections that it closed, by
 * reason. */
struct data_counts {
    uint64_t strangers; /* no valid greeting */
    uint64_t unproven;  /* a proof that failed, either way */
    uint64_t malformed; /* an invalid frame */
    uint64_t refused;   /* more than inbound_max, or no descriptor */
    /* Not of connections: how often tick() had to restart the carrier, which
     * changed address() and broke all endpoints. */
    uint32_t replaced;
};

struct data;

struct data_calls {
    void *ud;
    /* Returns false to drop the message; a rendezvous that is not dropped must
     * be fetched before the callback returns. */
    bool (*arrived)(void *ud, struct data *d, const struct data_in *in);
    /* A fetch has ended; ok: all bytes are in place. */
    void (*fetched)(void *ud, void *cookie, bool ok);
    void (*done)(void *ud, void *cookie);
    void (*broken)(void *ud, uint32_t ep);
    /* Messages can go: the other end has answered, and proven the pair's key
     * where there is one. NULL: not wanted. */
    void (*connected)(void *ud, uint32_t ep);
};

struct data_ops {
    const char *name;
    uint8_t number;  /* enum carrier_number */
    bool any_thread; /* several threads may call, one after the other */
    bool gpu;        /* memory() may take that of GPUs */
    /* ERR_INTERNAL with a log line that names what failed. */
    MUST_CHECK enum err (*open)(struct data **out, const struct data_conf *c,
        const struct data_calls *calls);
    void (*close)(struct data **d);
    /* Returns the address that others connect to; valid while d is open. */
    struct span (*address)(struct data *d);
    /* Accepts connections by the key of peer `who` (< keys_max) from now on, in
     * place of its last one, whose connections end; empty: by none. Never
     * inside a callback. A carrier that proves nothing ignores it. */
    void (*admit)(struct data *d, uint32_t who, struct span key);
    /* Opens endpoint number ep (< endpoints_max, free). key: of the pair,
     * data_key of HELLO; empty: there is none. ERR_MALFORMED: not an address;
     * ERR_PEER_LOST: no peer there, which broken() may report later, too. */
    MUST_CHECK enum err (*connect)(
        struct data *d, uint32_t ep, struct span address, struct span key);
    /* Closes ep, without broken(); its messages complete later. */
    void (*disconnect)(struct data *d, uint32_t ep);
    /* Sends header and the bytes of iov as one message. The header and iov
     * itself are copied, the bytes must stay until done(cookie). */
    MUST_CHECK enum err (*post)(struct data *d, uint32_t ep, struct span header,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Inside arrived() only, for a rendezvous: fetches its bytes into iov. iovs
     * 0: has arrived() called again instead, with data, when all bytes are
     * here; ERR_MALFORMED: not supported. */
    MUST_CHECK enum err (*fetch)(struct data *d, const struct data_in *in,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Returns the number of events handled; 0: there was nothing to do. */
    unsigned (*progress)(struct data *d);
    /* Returns a descriptor that is readable when progress may have work. */
    int (*fd)(struct data *d);
    MUST_CHECK enum err (*arm)(struct data *d);
    /* Breaks endpoints that stall. Call it about every stall_ms / 4 while
     * anything is outstanding. */
    void (*tick)(struct data *d, uint64_t now_ns);
    /* Returns what was wrong with ep's connection since its last connect(), and
     * says it for people: "10.0.0.7:41234: Connection refused". TROUBLE_NONE:
     * nothing is known; the text is its transport for display: "tcp/eth0",
     * "ucx:rc_mlx5"; empty: not known yet. */
    enum trouble (*state)(struct data *d, uint32_t ep, const char **text);
    /* Tells of memory that rows go from and come to until close, so that it can
     * be registered. True, of a host's: a message of one piece of it is better
     * than one of many; of a GPU's: its rows can be sent and fetched, by
     * messages of one piece. */
    bool (*memory)(struct data *d, const void *base, uint64_t bytes, bool gpu);
    /* Returns counts that stay valid while d is open. */
    const struct data_counts *(*counts)(struct data *d);
};

/* True if a TCP listener at this address encrypts what it takes. */
bool data_tcp_encrypts(struct span address, enum data_safe safe);
/* True if this host has the network device, by its name or that of an address's
 * label ("eth0:1"). */
bool data_tcp_device(struct span name);
/* True if the address of a shard is of loopback. */
bool data_tcp_loopback(struct span address);
/* True if UCX has the device here: "mlx5_0:1", or "mlx5_0" for all its ports;
 * patterns of UCX ("mlx5_*", "^mlx5_1:1") are not looked up. */
bool data_ucx_device(struct span name);

extern const struct data_ops data_tcp;
extern const struct data_ops data_ucx;

/* What UCX is worth on this host, for transfer.carrier: auto. */
struct ucx_offer {
    char version[16];
    char transports[128], devices[128]; /* comma-separated; worth the choice */
    char why_not[160];                  /* empty where it is */
};
/* In why_not where UCX itself is what is not sound, whatever the host has. */
#define UCX_ENDS_PROCESS "ends the process when a peer goes"
/* True if UCX is sound, and has a transport between hosts that is better than a
 * TCP socket, or one that tls, unless that is "tcp", names. Before any carrier
 * is opened. */
bool ucx_probe(struct ucx_offer *offer, const char *tls);
/* Writes the offer as HELLO has it: "1.22 rc_mlx5,dc_mlx5 on mlx5_0:1". */
void ucx_offer_text(const struct ucx_offer *offer, char *out, size_t size);

#endif
