/* data.h - a carrier of data messages: TCP or UCX. One object per shard; it is
 * called, and calls back, on the thread that runs the shard.
 *
 * Contract (test/contract/data_test.c tests every carrier for it):
 *  - post() of an accepted message completes exactly once, through done(),
 *    never inside post(). If post() fails there is no completion.
 *  - A completion means that the sender's memory may be reused. It says nothing
 *    about delivery.
 *  - A message arrives whole, at most once, or not at all. Messages of one
 *    endpoint may overtake each other.
 *  - An endpoint that breaks is reported once through broken(); its messages
 *    complete; posts to it fail with ERR_PEER_LOST until it is closed. An
 *    endpoint that connects is reported once, unless it breaks before.
 *  - Call progress() until it returns 0, then arm(); ERR_BUSY: progress()
 * again.
 *  - close() completes everything in flight before it returns.
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
#define STREAMS_CHOSEN    8 /* most connections that a carrier chooses */
/* Largest payload of messages that large ones must not delay. */
#define DATA_SMALL (64u * 1024)

/* Returns how many connections of a peer a TCP carrier with `addresses`
 * addresses takes; configured: transfer.streams. */
static inline uint32_t data_streams(uint32_t configured, uint32_t addresses)
{
    return configured ? configured : min_u32(STREAMS_CHOSEN + addresses, 64);
}

struct data_ops;

/* What TCP data connections require of the other end. OFF: only langd's token.
 * Otherwise proof of the pair's key. ENCRYPTED: also encryption, AES_256: by
 * AES-256-GCM alone; AUTO: encryption unless the listener's address is
 * loopback. */
enum data_safe {
    SAFE_OFF,
    SAFE_PROVED,
    SAFE_ENCRYPTED,
    SAFE_AES_256,
    SAFE_AUTO
};

struct data_conf {
    const char *tls, *devices, *ports; /* as in transfer.* of the config */
    uint32_t segment_bytes;
    uint32_t message_max; /* bytes of the longest body to receive */
    uint32_t keepalive_ms;
    uint32_t stall_ms; /* an endpoint without progress for this time breaks */
    uint32_t greeting_ms;   /* limit from accept to greeting */
    uint32_t endpoints_max; /* endpoints that we open */
    /* connections that others open to us; 0: we only send */
    uint32_t inbound_max;
    uint32_t messages_max; /* messages in flight */
    uint32_t fetches_max;  /* fetches that have begun and not ended */
    /* For TCP. A peer's connections are divided among our addresses. */
    uint32_t streams;    /* connections to a peer; 0: the carrier chooses */
    uint32_t addresses;  /* our number of addresses; 0 means 1 */
    uint64_t pace_bytes; /* sent per second and connection; 0: no limit */
    /* Requirement for connections to us, and minimum for ours: an address
     * without a key, or whose key requires less, is not connected to. */
    enum data_safe safe;
    uint32_t keys_max; /* number of keys for admit(); 0: none */
    /* bytes sent under one TLS key; 0: the default */
    uint64_t rekey_bytes;
    struct data_counts *counts; /* the owner's counters; used until close */
};

/* A message that has arrived. Eager: data[0..len) is valid inside the callback.
 * Rendezvous: data is NULL and fetch() gets the bytes. */
struct data_in {
    struct span header;
    const uint8_t *data;
    uint64_t len;
    void *handle; /* rendezvous only */
    /* Peer of admit() whose key its connection has proven. NONE: not known,
     * because there are no keys or the carrier has no proof. */
    uint32_t who;
};

/* Connections that carriers closed, by reason, and bytes. Any thread may read
 * them. */
struct data_counts {
    _Atomic uint64_t strangers; /* no valid greeting */
    _Atomic uint64_t unproven;  /* a proof that failed, in either direction */
    _Atomic uint64_t malformed; /* an invalid frame */
    _Atomic uint64_t refused;   /* beyond inbound_max, or no descriptor */
    /* bytes that UCX copied into buffers of its own to send them */
    _Atomic uint64_t packed;
};

struct data;

struct data_calls {
    void *ud;
    /* Returns false to drop the message. A rendezvous that is kept must be
     * fetched before the callback returns. */
    bool (*arrived)(void *ud, struct data *d, const struct data_in *in);
    /* A fetch has ended; ok: all bytes are in place. */
    void (*fetched)(void *ud, void *cookie, bool ok);
    void (*done)(void *ud, void *cookie);
    void (*broken)(void *ud, uint32_t ep);
    /* Messages can be sent: the other end has answered, and proven the pair's
     * key if there is one. NULL: not wanted. */
    void (*connected)(void *ud, uint32_t ep);
};

struct data_ops {
    const char *name;
    uint8_t number;  /* enum carrier_number */
    bool any_thread; /* several threads may call, one at a time */
    bool gpu;        /* memory() accepts GPU memory */
    /* ERR_INTERNAL with a log line that names the failed part. */
    MUST_CHECK enum err (*open)(struct data **out, const struct data_conf *c,
        const struct data_calls *calls);
    void (*close)(struct data **d);
    /* Returns the address for others to connect to; valid while d is open. */
    struct span (*address)(struct data *d);
    /* Accepts connections with the key of peer `who` (< keys_max) from now on.
     * The peer's earlier key ends, with its connections; empty: no key. Never
     * inside a callback. A carrier without proofs ignores it. */
    void (*admit)(struct data *d, uint32_t who, struct span key);
    /* Opens endpoint number ep (< endpoints_max, free). key: the pair's
     * data_key of HELLO; empty: none. ERR_MALFORMED: not an address;
     * ERR_PEER_LOST: no peer there, which broken() may also report later. */
    MUST_CHECK enum err (*connect)(
        struct data *d, uint32_t ep, struct span address, struct span key);
    /* Closes ep, without broken(); its messages complete later. */
    void (*disconnect)(struct data *d, uint32_t ep);
    /* Sends header and the bytes of iov as one message. The header and iov
     * itself are copied; the bytes must stay valid until done(cookie). */
    MUST_CHECK enum err (*post)(struct data *d, uint32_t ep, struct span header,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Inside arrived() only, for a rendezvous: fetches its bytes into iov. iovs
     * 0: instead calls arrived() again, with data, when all bytes are here;
     * ERR_MALFORMED: not supported. */
    MUST_CHECK enum err (*fetch)(struct data *d, const struct data_in *in,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Returns the number of events handled; 0: there was nothing to do. */
    unsigned (*progress)(struct data *d);
    /* Returns a descriptor that is readable when progress may have work. */
    int (*fd)(struct data *d);
    MUST_CHECK enum err (*arm)(struct data *d);
    /* Breaks endpoints that stall. Call it about every stall_ms / 4 while
     * anything is in flight. True: address() has changed, because the host's
     * has, or because stuck parts were replaced; then all endpoints broke, and
     * pollers have to watch fd() anew. */
    bool (*tick)(struct data *d, uint64_t now_ns);
    /* Returns the trouble of ep's connection since its last connect(), with a
     * text for people: "10.0.0.7:41234: Connection refused". TROUBLE_NONE: no
     * trouble is known; the text is its transport: "tcp/eth0", "ucx:rc_mlx5";
     * empty: not known yet. */
    enum trouble (*state)(struct data *d, uint32_t ep, const char **text);
    /* Announces memory that rows are sent from and fetched into until close, so
     * that it can be registered. True for host memory: messages of one piece of
     * it are better than of several. True for GPU memory: its rows can be sent
     * and fetched, one piece per message. NULL: it makes no difference. */
    bool (*memory)(struct data *d, const void *base, uint64_t bytes, bool gpu);
};

/* Returns how a TCP listener at this address encrypts: DATA_KEY_*, as in the
 * data_key of HELLO. */
uint8_t data_tcp_bits(struct span address, enum data_safe safe);
/* True if this host has the network device, by its name or an address's label
 * ("eth0:1"). */
bool data_tcp_device(struct span name);
/* True if the address of a shard is loopback. */
bool data_tcp_loopback(struct span address);
/* True if UCX has the device here: "mlx5_0:1", or "mlx5_0" for all its ports.
 * Patterns of UCX ("mlx5_*", "^mlx5_1:1") are not looked up. */
bool data_ucx_device(struct span name);

extern const struct data_ops data_tcp;
/* Has no open() in a program that was built without UCX. */
extern const struct data_ops data_ucx;
#define DATA_NO_UCX "this program was built without UCX"

/* What UCX offers on this host, for transfer.carrier: auto. */
struct ucx_offer {
    char version[16];
    char transports[128], devices[128]; /* comma-separated; better than TCP */
    char why_not[160];                  /* empty if UCX is worth using */
};
/* why_not contains this if UCX itself is unsound, whatever the host has. */
#define UCX_ENDS_PROCESS "ends the process when a peer goes"
/* True if UCX is sound, and has a transport between hosts that is better than a
 * TCP socket, or one that tls names (unless tls is "tcp"). Call it before any
 * carrier is opened. */
bool ucx_probe(struct ucx_offer *offer, const char *tls);
/* Writes the offer as in HELLO: "1.22 rc_mlx5,dc_mlx5 on mlx5_0:1". */
void ucx_offer_text(const struct ucx_offer *offer, char *out, size_t size);

#endif
