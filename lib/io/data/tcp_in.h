/* tcp_in.h - one connection that receives messages: greeting, frames, and rows
 * read from the socket straight into their blocks. Private to data_tcp.c.
 * Called only by the thread that owns the carrier. */
#ifndef MMX_IO_TCP_IN_H
#define MMX_IO_TCP_IN_H

#include "io/data.h"
#include "io/data/tcp_safe.h"

/* A frame: u32 header length, u32 body length, header, body. */
#define TCP_FRAME 8
/* A body up to this size is delivered from our buffer, in one piece. */
#define TCP_EAGER ((size_t)16 * 1024)

struct tcp_in;

/* Messages go to carrier_arrived(); only `fetched` of the calls is used. */
struct tcp_in_conf {
    struct data *d;
    const struct data_calls *calls;
    const uint8_t *token; /* TCP_TOKEN bytes that the greeting must have */
    const struct tcp_keys *keys; /* NULL: the token is enough */
    uint8_t bits;                /* with keys: how connections encrypt */
    uint32_t streams;            /* with keys: per key */
    uint32_t body_max;           /* a longer body ends the connection */
    struct data_counts *counts;
};

/* Opens a connection that owns fd. NULL: no memory, and fd is closed. */
struct tcp_in *tcp_in_open(int fd, const struct tcp_in_conf *c);
/* Closes the connection; an unfinished fetch ends with ok false. */
void tcp_in_close(struct tcp_in **in);
/* True if the greeting was received, and proven if there are keys. */
bool tcp_in_greeted(const struct tcp_in *in);
/* True if the connection names a key that is not in force. The key may still
 * come: close the connection if it does not come in time. */
bool tcp_in_waits(const struct tcp_in *in);
/* Checks the keys again while tcp_in_waits(). */
void tcp_in_again(struct tcp_in *in, bool *over);
/* True if the connection has named a key that is in force. */
bool tcp_in_named(const struct tcp_in *in);
/* True if the connection has proven, or begun to prove, the key with this
 * id. */
bool tcp_in_of(const struct tcp_in *in, const uint8_t *id);
/* True if both have proven, or begun to prove, the same key. */
bool tcp_in_same_key(const struct tcp_in *a, const struct tcp_in *b);
/* True if both have proven the same key and the same stream. */
bool tcp_in_same(const struct tcp_in *a, const struct tcp_in *b);

/* Reads and delivers; returns the number of events handled. Sets *over if the
 * other end closed or broke the protocol: then close the connection. */
unsigned tcp_in_turn(struct tcp_in *in, bool *over);

/* Does what fetch() of data.h does; tcp_in_whole() is the form without iov.
 * Inside arrived() only. */
MUST_CHECK enum err tcp_in_fetch(struct tcp_in *in, const struct iovec *iov,
    uint32_t iovs, uint64_t len, void *cookie);

void tcp_in_whole(struct tcp_in *in);

/* True if the buffer has grown for a large message. */
bool tcp_in_grown(const struct tcp_in *in);
/* Frees memory that no message has needed since the last call. */
void tcp_in_shrink(struct tcp_in *in);

/* True if the connection is inside a message of which less than TCP_LEAST came
 * in limit_ns. */
bool tcp_in_stalled(struct tcp_in *in, uint64_t now_ns, uint64_t limit_ns);

#endif
