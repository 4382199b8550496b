/* data.h - a carrier of data messages: TCP, UCX, or memcpy inside one process.
 * One object per shard; calls and callbacks of whoever runs that shard.
 *
 * Contract (test/contract/data_test.c holds every carrier to it):
 *  - post() of an accepted message completes exactly once, through done(),
 *    never inside post(). If post() fails there is no completion.
 *  - A completion says that the sender's memory is free again, nothing about
 *    delivery.
 *  - A message arrives whole, at most once, or not at all. Messages of one
 *    endpoint may overtake each other.
 *  - An endpoint that breaks is reported once through broken(); its messages
 *    complete; posts to it fail with ERR_PEER_LOST until it is closed.
 *  - Progress until it returns 0, then arm(); ERR_BUSY means progress again.
 *  - close() completes everything that is outstanding before it returns.
 *  - Inside arrived() only post() and fetch() may be called; inside the other
 *    callbacks anything but progress(), tick() and close(). */
#ifndef MMX_IO_DATA_H
#define MMX_IO_DATA_H

#include "base/bytes.h"
#include "base/err.h"

#include <sys/uio.h>

#define DATA_IOV_MAX 512

struct data_conf {
    const char *tls, *devices, *ports; /* as in transfer.* of the config */
    uint32_t segment_bytes;
    uint32_t message_max; /* bytes that the longest body to come may have */
    uint32_t keepalive_ms;
    uint32_t stall_ms; /* an endpoint without progress for so long is broken */
    uint32_t greeting_ms;   /* a connection says within this what it is */
    uint32_t endpoints_max; /* that we open */
    uint32_t inbound_max;   /* that others may open to us; 0: we only send */
    uint32_t messages_max;  /* posted and not done */
    uint32_t fetches_max;   /* begun and not over */
};

/* A message that has come. Eager: data[0..len) is valid inside the callback.
 * Else (rendezvous): data is NULL and the bytes are fetched by fetch(). */
struct data_in {
    struct span header;
    const uint8_t *data;
    uint64_t len;
    void *handle; /* rendezvous only */
};

/* What others did to a carrier since it was opened. */
struct data_counts {
    uint64_t strangers; /* connections without a good greeting */
    uint64_t malformed; /* connections closed for frames that mean nothing */
    uint64_t refused;   /* connections that there was no place for */
};

struct data;

struct data_calls {
    void *ud;
    /* Return false to drop; a rendezvous that is not dropped must be fetched,
     * or asked for whole, before the callback returns. */
    bool (*arrived)(void *ud, struct data *d, const struct data_in *in);
    /* A fetch is over; ok: all bytes are in place. */
    void (*fetched)(void *ud, void *cookie, bool ok);
    void (*done)(void *ud, void *cookie);
    void (*broken)(void *ud, uint32_t ep);
};

struct data_ops {
    const char *name;
    bool any_thread; /* calls may come from several, one after the other */
    /* ERR_INTERNAL with a log line naming what could not be had. */
    MUST_CHECK enum err (*open)(struct data **out, const struct data_conf *c,
        const struct data_calls *calls);
    void (*close)(struct data **d);
    /* Our address for others; valid while d is open. */
    struct span (*address)(struct data *d);
    /* Opens endpoint number ep (< endpoints_max, free). ERR_MALFORMED: no
     * address; ERR_PEER_LOST: nobody there, which may also show later. */
    MUST_CHECK enum err (*connect)(
        struct data *d, uint32_t ep, struct span address);
    /* Breaks and forgets ep; its messages complete later. */
    void (*disconnect)(struct data *d, uint32_t ep);
    /* Sends header and the bytes of iov as one message. iov itself is copied,
     * the header is copied, the bytes must stay until done(cookie). */
    MUST_CHECK enum err (*post)(struct data *d, uint32_t ep, struct span header,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Inside arrived() only, for a rendezvous: fetch into iov. */
    MUST_CHECK enum err (*fetch)(struct data *d, const struct data_in *in,
        const struct iovec *iov, uint32_t iovs, void *cookie);
    /* Inside arrived() only, instead of fetch(): arrived() is called again when
     * all bytes are here, with data. NULL: this carrier cannot. */
    void (*whole)(struct data *d, const struct data_in *in);
    /* Returns how much happened; 0: nothing to do. */
    unsigned (*progress)(struct data *d);
    /* A descriptor that becomes readable when progress may have work. */
    int (*fd)(struct data *d);
    MUST_CHECK enum err (*arm)(struct data *d);
    /* Called about every stall_ms / 4 while anything is outstanding. */
    void (*tick)(struct data *d, uint64_t now_ns);
    /* What ep goes by, for people: "tcp/eth0", "ucx:rc_mlx5". Empty: not known
     * yet. */
    const char *(*transport)(struct data *d, uint32_t ep);
    /* A GPU's memory, from now until close. true: rows of it can be sent and
     * fetched; such a message, or fetch, has one piece. NULL: none can be. */
    bool (*gpu_memory)(struct data *d, const void *base, uint64_t bytes);
    /* How often the carrier had to start anew by itself, in tick(): each time
     * address() changed and all endpoints broke. */
    uint32_t (*replaced)(struct data *d);
    /* Valid while d is open. NULL: this carrier does not count. */
    const struct data_counts *(*counts)(struct data *d);
};

extern const struct data_ops data_tcp;
extern const struct data_ops data_ucx;

#endif
