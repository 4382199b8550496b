/* tcp.h - sockets for data_tcp.c: listening, the address that peers get, and
 * connections that never block. Any thread. */
#ifndef MMX_IO_TCP_H
#define MMX_IO_TCP_H

#include "base/bytes.h"
#include "base/err.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define TCP_TOKEN       16
#define TCP_ADDRESS_MAX 48
#define TCP_MAGIC       "tcp1"
#define TCP_HELLO       (4 + TCP_TOKEN)

/* A place to connect to. A connection begins with the token, which only peers
 * know; a process that has taken over the port does not know it. */
struct tcp_place {
    struct sockaddr_storage at; /* with its port */
    uint8_t token[TCP_TOKEN];
};

/* Listens on the first of the comma-separated devices that has an address
 * ("all": on every one), on the first free port of "first-last" (empty: any).
 * ERR_INTERNAL with a log line that names what failed. */
MUST_CHECK enum err tcp_listen(
    const char *devices, const char *ports, int *fd, struct tcp_place *out);

/* Writes a place, for a HELLO: "tcp1", token, u16 port, 4 or 16 bytes of
 * address. */
void tcp_place_put(struct writer *w, const struct tcp_place *p);
/* True if the bytes begin as a place and have its length. */
bool tcp_place_looks_so(struct span s);
/* Reads a place. ERR_MALFORMED with a log line. */
MUST_CHECK enum err tcp_place_get(struct span s, struct tcp_place *out);

/* Begins to connect; writable means: connected or failed. ERR_PEER_LOST. */
MUST_CHECK enum err tcp_connect(const struct tcp_place *p, int *fd);
/* Sets the options of either end: no delay, and an end within some seconds when
 * the other host vanishes. */
void tcp_options(int fd, uint32_t keepalive_ms, uint32_t stall_ms);

/* Writes the name of the device that fd uses: "tcp/lo". */
void tcp_name(int fd, char *out, size_t size);

#endif
