/* tcp_out.h - the connections of data_tcp.c that send: the streams of each
 * endpoint. Private to the two; the thread that owns the carrier. */
#ifndef MMX_IO_TCP_OUT_H
#define MMX_IO_TCP_OUT_H

#include "io/data/carrier.h"
#include "io/data/tcp_safe.h"

#define SEAL ((size_t)16 * 1024) /* the most that a record holds */

/* A record that was begun: its rows are copied here until the kernel has all
 * of it. */
struct seal {
    size_t at, len; /* bytes[at..len) are to be sent */
    uint8_t bytes[SEAL];
};

struct stream {
    struct list ready; /* in data.ready: has bytes, and the socket takes some */
    struct endpoint *ep;
    struct carrier_op *op;   /* begun here and not complete; or NULL */
    uint64_t quiet_since_ns; /* as of carrier_end, of op */
    int fd;                  /* -1: closed, or not opened */
    bool connected, blocked; /* connected: and proven, where there is a key */
    bool small;              /* for messages of DATA_SMALL bytes at most */
    uint32_t hello_left;
    struct tcp_safe *safe; /* until it has proven; then if it encrypts */
    struct seal *seal;     /* where it encrypts */
};

struct endpoint {
    struct carrier_end *end;
    /* For messages of any size `most`, of which some are open, and behind them
     * one for small ones. NULL: the endpoint is closed. */
    struct stream *streams;
    uint32_t places; /* length of streams[] */
    uint32_t most, opened;
    struct stream *small; /* NULL: not opened */
    uint32_t turn;        /* of streams: takes messages that none has begun */
    uint64_t taken;       /* by that one in its turn */
    struct tcp_place place;
    uint8_t hello[TCP_HELLO];
    struct tcp_key key; /* of the pair */
    char name[64];
};

struct data {
    struct carrier c; /* first: carrier.h finds it there */
    int epoll;
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
    struct list ready;
    struct endpoint *eps;  /* endpoints_max */
    struct tcp_door *door; /* NULL: no connections from others */
    struct data_counts counts;
    uint64_t looked_ns; /* at this host's addresses */
};

/* Notes why endpoint i breaks, by errno. */
void tcp_out_blame(struct data *d, uint32_t i, int error);
/* Begins to connect one more stream of the endpoint, by the rails in turn. */
MUST_CHECK enum err tcp_out_open(struct data *d, struct endpoint *ep);
/* Closes all of endpoint i; its messages complete. Harmless twice. */
void tcp_out_close(struct data *d, uint32_t i);
/* Handles an event of a stream: index is endpoint x TCP_STREAMS + stream. */
void tcp_out_event(struct data *d, uint32_t index, uint32_t events);
/* Notes that the endpoint has this message more. */
void tcp_out_posted(
    struct data *d, struct endpoint *ep, const struct carrier_op *op);
/* Sends what is due; returns the number of streams that had something. */
unsigned tcp_out_send(struct data *d);
/* Breaks endpoints of which one stream stalls while others go on. */
void tcp_out_tick(struct data *d, struct endpoint *ep, uint64_t now_ns);

#endif
