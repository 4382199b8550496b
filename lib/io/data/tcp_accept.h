/* tcp_accept.h - where connections that bring messages come in: a listener, a
 * place for each connection, and what becomes of those that say nothing.
 * Private to data_tcp.c; the thread that owns the carrier. */
#ifndef MMX_IO_TCP_ACCEPT_H
#define MMX_IO_TCP_ACCEPT_H

#include "io/data/tcp_in.h"

/* What an event of the carrier's epoll set is of: its data.u64 has the tag in
 * the upper half, an index in the lower. The carrier's own is TCP_OUT. */
enum tcp_tag { TCP_OUT, TCP_IN, TCP_LISTENER, TCP_TIMER };

struct tcp_door;

struct tcp_door_conf {
    const struct data_conf *data; /* stays valid */
    struct data *d;
    const struct data_calls *calls; /* as tcp_in.h; stays valid */
    int epoll;                      /* that events are wanted from */
};

/* Listens; *place is where. ERR_INTERNAL with a log line. */
MUST_CHECK enum err tcp_door_open(struct tcp_door **out,
    const struct tcp_door_conf *c, struct tcp_place *place);
/* Ends fetches as not ok. Accepts NULL. */
void tcp_door_close(struct tcp_door **door);

/* Serves an event; returns how much happened. */
unsigned tcp_door_event(
    struct tcp_door *door, enum tcp_tag tag, uint32_t index);
/* Closes what stands still in the middle of something. */
void tcp_door_tick(struct tcp_door *door, uint64_t now_ns);
const struct data_counts *tcp_door_counts(const struct tcp_door *door);

/* Adds fd to an epoll set. false with a log line. */
bool tcp_watch(
    int epoll, int fd, uint32_t events, enum tcp_tag tag, uint32_t index);

#endif
