/* tcp.h - sockets for data_tcp.c: listening, the address that peers get, and
 * connections that never block. Any thread. */
#ifndef MMX_IO_TCP_H
#define MMX_IO_TCP_H

#include "base/bytes.h"
#include "base/err.h"
#include "io/data.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define TCP_TOKEN       16
#define TCP_MAGIC       "tcp1"
#define TCP_HELLO       (4 + TCP_TOKEN)
#define TCP_RAILS       4  /* addresses per place */
#define TCP_STREAMS     64 /* connections to a peer */
#define TCP_ADDRESS_MAX (TCP_HELLO + 3 + TCP_RAILS * 19)

/* The least number of bytes of a message that must move in this time, 64 KiB in
 * 10 s, unless the message has fewer left. Fewer are a stall: otherwise a peer
 * that sends a few bytes now and then would hold the connection for hours. */
#define TCP_LEAST(stall_ns) ((stall_ns) / 152588)

/* Where a peer connects. A connection begins with the token, which only peers
 * know. A process that took over the port does not know it. */
struct tcp_place {
    struct sockaddr_storage at[TCP_RAILS]; /* addresses of its devices, with
                                              ports */
    uint32_t rails;
    uint32_t streams; /* connections that it accepts from a peer, in total */
    uint32_t of;      /* how many data addresses the daemon has */
    uint8_t token[TCP_TOKEN];
};

/* Listens on each of the comma-separated devices that has an address, the first
 * TCP_RAILS of them ("all": on every one); on the first free port of
 * "first-last" (empty: any). Writes a socket per rail. ERR_INTERNAL with a log
 * line that names the failed part. */
MUST_CHECK enum err tcp_listen(const char *devices, const char *ports,
    int fds[TCP_RAILS], struct tcp_place *out);

/* Checks whether the devices have other addresses now, as many as before; if
 * so, listens there with new sockets. True: *p has changed. */
bool tcp_moved(const char *devices, const char *ports, int fds[TCP_RAILS],
    struct tcp_place *p);

/* Writes a place, for a HELLO: "tcp1", token, u8 streams, of and rails, and for
 * each of those u16 port, u8 length of the address, the address. */
void tcp_place_put(struct writer *w, const struct tcp_place *p);
/* True if the bytes begin like a place. */
bool tcp_place_looks_so(struct span s);
/* Reads a place. ERR_MALFORMED with a log line. */
MUST_CHECK enum err tcp_place_get(struct span s, struct tcp_place *out);

/* Writes the first address: "10.0.0.7:41234". */
void tcp_place_text(const struct tcp_place *p, char *out, size_t size);
/* True if no other host can reach it. */
bool tcp_place_loopback(const struct tcp_place *p);

/* Returns how its listener encrypts its connections: DATA_KEY_*. */
uint8_t tcp_bits(const struct tcp_place *p, enum data_safe safe);

/* Begins to connect to a rail; writable later means connected or failed.
 * ERR_PEER_LOST, with errno. */
MUST_CHECK enum err tcp_connect(
    const struct tcp_place *p, uint32_t rail, int *fd);
/* Sets the options of both ends: no delay, and an end within some seconds after
 * the other host vanishes. */
void tcp_options(int fd, uint32_t keepalive_ms, uint32_t stall_ms);

/* Limits the sends on fd to `bytes` per second; 0: no limit. */
void tcp_pace(int fd, uint64_t bytes);

/* Writes the name of the device that fd uses: "tcp/lo". */
void tcp_name(int fd, char *out, size_t size);
/* Returns the number of connections that suit the device: one per 10 Gb/s of
 * its link, at most one per core; a few if the kernel does not report the
 * speed; 1 on loopback. At most STREAMS_CHOSEN. */
uint32_t tcp_streams_of(const char *name);
/* Returns the same for a link of `mbits` Mb/s (0: unknown) and a host with
 * `cores` cores. */
uint32_t tcp_streams_for(uint64_t mbits, uint32_t cores);

#endif
