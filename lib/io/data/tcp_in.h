/* tcp_in.h - one connection that brings messages: greeting, frames, and rows
 * that are read from the socket straight to where they belong. Private to
 * data_tcp.c; the thread that owns the carrier. */
#ifndef MMX_IO_TCP_IN_H
#define MMX_IO_TCP_IN_H

#include "io/data.h"
#include "io/data/tcp.h"

/* A frame: u32 bytes of the header, u32 bytes of the body, header, body. */
#define TCP_FRAME 8
/* A body up to here is handed over from our buffer, in one piece. */
#define TCP_EAGER ((size_t)16 * 1024)

struct tcp_in;

/* What a connection tells: of the calls only arrived and fetched. */
struct tcp_in_conf {
    struct data *d;
    const struct data_calls *calls;
    const uint8_t *token; /* TCP_TOKEN bytes that a greeting has to say */
    uint32_t body_max;    /* a longer body ends the connection */
    struct data_counts *counts;
};

/* Takes fd. NULL: no memory, fd is closed. */
struct tcp_in *tcp_in_open(int fd, const struct tcp_in_conf *c);
/* Ends a fetch as not ok. */
void tcp_in_close(struct tcp_in **in);
int tcp_in_fd(const struct tcp_in *in);
bool tcp_in_greeted(const struct tcp_in *in);

/* Reads and delivers; returns how much happened. *over: the other side is
 * gone or speaks nonsense, and the connection has to be closed. */
unsigned tcp_in_turn(struct tcp_in *in, bool *over);

/* Inside arrived() only: as data.h's fetch and whole. */
MUST_CHECK enum err tcp_in_fetch(struct tcp_in *in, const struct iovec *iov,
    uint32_t iovs, uint64_t len, void *cookie);

void tcp_in_whole(struct tcp_in *in);

/* True if it has more memory than a connection with small messages. */
bool tcp_in_grown(const struct tcp_in *in);
/* Gives memory back that no message has needed since the last call. */
void tcp_in_shrink(struct tcp_in *in);

/* In the middle of something, without a byte for limit_ns. */
bool tcp_in_stalled(struct tcp_in *in, uint64_t now_ns, uint64_t limit_ns);

#endif
