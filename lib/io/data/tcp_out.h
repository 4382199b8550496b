/* tcp_out.h - the connections of data_tcp.c that send: the streams of each
 * endpoint. Private to these two files. Called only by the thread that owns the
 * carrier. */
#ifndef MMX_IO_TCP_OUT_H
#define MMX_IO_TCP_OUT_H

#include "io/data/carrier.h"
#include "io/data/tcp_safe.h"

struct stream {
    struct list ready; /* in data.ready: has bytes and its socket takes some */
    struct endpoint *ep;
    struct carrier_op *op;   /* begun here and incomplete; or NULL */
    uint64_t quiet_since_ns; /* of op, as in carrier_end */
    uint64_t moved;          /* bytes since quiet_since_ns */
    int fd;                  /* -1: closed, or never opened */
    bool connected, blocked; /* connected: and proven, if there is a key */
    bool small;              /* only for messages up to DATA_SMALL bytes */
    uint32_t hello_left;
    struct tcp_safe *safe;       /* until the proof */
    struct tcp_records *records; /* after it, if it encrypts */
};

struct endpoint {
    struct carrier_end *end;
    /* `most` streams for messages of any size, `opened` of them open, then one
     * for small messages. NULL: the endpoint is closed. */
    struct stream *streams;
    uint32_t places; /* length of streams[] */
    uint32_t most, opened;
    struct stream *small; /* NULL: never opened */
    uint32_t turn;        /* index of the stream that may begin messages */
    uint64_t taken;       /* bytes taken in this turn */
    struct tcp_place place;
    uint8_t hello[TCP_HELLO];
    struct tcp_key key; /* the pair's key */
    char name[64];
};

struct data {
    struct carrier c; /* first: carrier.h's struct data is this member */
    int epoll;
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
    struct list ready;
    struct endpoint *eps;  /* endpoints_max */
    struct tcp_door *door; /* NULL: accepts no connections */
    uint64_t looked_ns;    /* when this host's addresses were last checked */
};

/* Stores from errno why endpoint i breaks. */
void tcp_out_blame(struct data *d, uint32_t i, int error);
/* Begins to connect another stream of the endpoint, over the rails in turn. */
MUST_CHECK enum err tcp_out_open(struct data *d, struct endpoint *ep);
/* Closes endpoint i; its messages complete. May be called twice. */
void tcp_out_close(struct data *d, uint32_t i);
/* Handles an event of a stream: index is endpoint x TCP_STREAMS + stream. */
void tcp_out_event(struct data *d, uint32_t index, uint32_t events);
/* Called after this message was added to the endpoint. */
void tcp_out_posted(
    struct data *d, struct endpoint *ep, const struct carrier_op *op);
/* Sends what is due; returns the number of streams that had bytes to send. */
unsigned tcp_out_send(struct data *d);
/* Breaks endpoints with one stalled stream while others progress. */
void tcp_out_tick(struct data *d, struct endpoint *ep, uint64_t now_ns);

#endif
