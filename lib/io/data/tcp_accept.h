/* tcp_accept.h - accepted connections, which receive messages: the listener, an
 * entry for each connection, and the end of connections without a greeting.
 * Private to data_tcp.c. Called only by the thread that owns the carrier. */
#ifndef MMX_IO_TCP_ACCEPT_H
#define MMX_IO_TCP_ACCEPT_H

#include "io/data/tcp_in.h"

/* The source of an event in the carrier's epoll set. data.u64 has the tag in
 * the upper half and an index in the lower. TCP_OUT belongs to the carrier. */
enum tcp_tag { TCP_OUT, TCP_IN, TCP_LISTENER, TCP_TIMER };

struct tcp_door;

struct tcp_door_conf {
    const struct data_conf *data; /* stays valid */
    struct data *d;
    const struct data_calls *calls; /* passed to tcp_in.h; stays valid */
    int epoll;                      /* the carrier's epoll set */
};

/* Listens; *place is the address. ERR_INTERNAL with a log line. */
MUST_CHECK enum err tcp_door_open(struct tcp_door **out,
    const struct tcp_door_conf *c, struct tcp_place *place);
/* Closes all; unfinished fetches end with ok false. Accepts NULL. */
void tcp_door_close(struct tcp_door **door);

/* Accepts connections with this key from peer `who`. The peer's earlier key
 * ends, and its connections are closed. */
void tcp_door_admit(
    struct tcp_door *door, uint32_t who, const struct tcp_key *key);

/* Handles an event; returns the number of things done. */
unsigned tcp_door_event(
    struct tcp_door *door, enum tcp_tag tag, uint32_t index);
/* Checks if this host's addresses changed; true: *place is the new place. */
bool tcp_door_moved(struct tcp_door *door, struct tcp_place *place);
/* Closes connections that stall inside a message. */
void tcp_door_tick(struct tcp_door *door, uint64_t now_ns);

/* Adds fd to an epoll set. Returns false with a log line. */
bool tcp_watch(
    int epoll, int fd, uint32_t events, enum tcp_tag tag, uint32_t index);

#endif
