/* tcp.c - see tcp.h. Addresses are literal: no name is ever looked up.
 * Link-local IPv6 is passed over, since its scope means nothing elsewhere. */
#include "io/data/tcp.h"

#include "base/log.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define BACKLOG 256

static socklen_t at_len(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                    : sizeof(struct sockaddr_in6);
}

/* Returns the address's port, in network order. */
static in_port_t *at_port(struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET ? &((struct sockaddr_in *)at)->sin_port
                                    : &((struct sockaddr_in6 *)at)->sin6_port;
}

static void *at_bytes(const struct sockaddr_storage *at, uint32_t *len)
{
    *len = at->ss_family == AF_INET ? 4 : 16;
    return at->ss_family == AF_INET
               ? (void *)&((struct sockaddr_in *)at)->sin_addr
               : (void *)&((struct sockaddr_in6 *)at)->sin6_addr;
}

/* devices */

static bool usable(const struct ifaddrs *i)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
        return false;
    if (i->ifa_addr->sa_family == AF_INET6)
        return !IN6_IS_ADDR_LINKLOCAL(
            &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
    return i->ifa_addr->sa_family == AF_INET;
}

/* Finds the address of a device, IPv4 before IPv6. "all": of any device, the
 * loopback last. */
static bool device_address(const struct ifaddrs *list, const char *name,
    size_t len, struct sockaddr_storage *out)
{
    bool all = len == 3 && memcmp(name, "all", 3) == 0;
    const struct ifaddrs *best = NULL;
    int best_rank = 0;

    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        int rank;

        if (!usable(i) || (!all && (strlen(i->ifa_name) != len ||
                                       memcmp(i->ifa_name, name, len) != 0)))
            continue;
        rank = 1 + (i->ifa_addr->sa_family == AF_INET) +
               2 * !(i->ifa_flags & IFF_LOOPBACK);
        if (rank > best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    if (!best)
        return false;
    memset(out, 0, sizeof(*out));
    out->ss_family = best->ifa_addr->sa_family;
    memcpy(out, best->ifa_addr, at_len(out));
    return true;
}

static bool find_address(const char *devices, struct sockaddr_storage *out)
{
    struct ifaddrs *list;
    bool found = false;

    if (getifaddrs(&list) != 0)
        return false;
    while (!found && *devices) {
        size_t n = strcspn(devices, ",");

        found = device_address(list, devices, n, out);
        devices += n + (devices[n] == ',');
    }
    freeifaddrs(list);
    return found;
}

void tcp_name(int fd, char *out, size_t size)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    struct ifaddrs *list;

    snprintf(out, size, "tcp");
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0 ||
        getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct sockaddr_storage of = {0};
        const void *a, *b;
        uint32_t n;

        if (!usable(i) || i->ifa_addr->sa_family != at.ss_family)
            continue;
        memcpy(&of, i->ifa_addr, at_len(&at));
        a = at_bytes(&at, &n);
        b = at_bytes(&of, &n);
        if (memcmp(a, b, n) == 0) {
            snprintf(out, size, "tcp/%s", i->ifa_name);
            break;
        }
    }
    freeifaddrs(list);
}

/* listening */

/* Returns a socket that listens there; -1 with errno. */
static int listening(struct sockaddr_storage *at)
{
    int on = 1, e;
    int fd =
        socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    /* Ports of a range can be bound again right after a restart. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)at, at_len(at)) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    e = errno;
    close(fd);
    errno = e;
    return -1;
}

/* Listens on the first free port of the range. Two daemons that start together
 * may both bind one; listen() then fails for one of them, so each attempt has a
 * socket of its own. */
static int listen_within(struct sockaddr_storage *at, const char *ports)
{
    unsigned first = 0, last = 0;
    int fd = -1;

    if (ports && sscanf(ports, "%u-%u", &first, &last) != 2)
        first = last = 0;
    errno = EADDRINUSE;
    for (unsigned port = first;
         fd < 0 && errno == EADDRINUSE && port <= last && port <= UINT16_MAX;
         port++) {
        *at_port(at) = htons((uint16_t)port);
        fd = listening(at);
    }
    return fd;
}

static enum err listen_at(struct sockaddr_storage *at, bool all,
    const char *ports, int *out, in_port_t *port)
{
    struct sockaddr_storage here = *at;
    socklen_t len = sizeof(here);
    uint32_t n;
    int fd;

    if (all) {
        void *bytes = at_bytes(&here, &n);

        memset(bytes, 0, n);
    }
    fd = listen_within(&here, ports);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&here, &len) != 0) {
        log_error("tcp: cannot listen for data: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return ERR_INTERNAL;
    }
    *port = *at_port(&here);
    *out = fd;
    return OK;
}

enum err tcp_listen(
    const char *devices, const char *ports, int *fd, struct tcp_place *out)
{
    in_port_t port;
    enum err e = ERR_INTERNAL;

    memset(out, 0, sizeof(*out));
    if (!find_address(devices, &out->at))
        log_error(
            "tcp: no device of transfer.devices `%s` has an address", devices);
    else if (getrandom(out->token, TCP_TOKEN, 0) != TCP_TOKEN)
        log_error("getrandom: no random bytes");
    else
        e = listen_at(&out->at, strcmp(devices, "all") == 0, ports, fd, &port);
    if (e != OK) {
        log_error("tcp: devices %s, ports %s", devices,
            ports && *ports ? ports : "any");
        return e;
    }
    *at_port(&out->at) = port;
    return OK;
}

/* places as bytes */

void tcp_place_put(struct writer *w, const struct tcp_place *p)
{
    struct sockaddr_storage at = p->at;
    uint32_t n;
    const void *bytes = at_bytes(&at, &n);

    put_bytes(w, TCP_MAGIC, 4);
    put_bytes(w, p->token, TCP_TOKEN);
    put_u16(w, ntohs(*at_port(&at)));
    put_bytes(w, bytes, n);
}

bool tcp_place_looks_so(struct span s)
{
    return (s.len == TCP_HELLO + 2 + 4 || s.len == TCP_HELLO + 2 + 16) &&
           memcmp(s.p, TCP_MAGIC, 4) == 0;
}

enum err tcp_place_get(struct span s, struct tcp_place *out)
{
    struct reader r = reader_of(s.p, s.len);
    const uint8_t *token;
    uint16_t port;
    uint32_t n;
    void *bytes;

    memset(out, 0, sizeof(*out));
    (void)get_bytes(&r, 4);
    token = get_bytes(&r, TCP_TOKEN);
    port = get_u16(&r);
    if (!tcp_place_looks_so(s) || port == 0) {
        log_warn("tcp: a data address of %u bytes is not one of carrier tcp: "
                 "is transfer.carrier the same on both sides?",
            s.len);
        return ERR_MALFORMED;
    }
    out->at.ss_family = r.len - r.at == 4 ? AF_INET : AF_INET6;
    bytes = at_bytes(&out->at, &n);
    memcpy(bytes, get_bytes(&r, n), n);
    memcpy(out->token, token, TCP_TOKEN);
    *at_port(&out->at) = htons(port);
    return OK;
}

/* connections */

static struct log_rate connects =
    LOG_RATE("data connections that fail", LOG_WARN, 5);

enum err tcp_connect(const struct tcp_place *p, int *out)
{
    int fd =
        socket(p->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0 &&
        (connect(fd, (const struct sockaddr *)&p->at, at_len(&p->at)) == 0 ||
            errno == EINPROGRESS)) {
        *out = fd;
        return OK;
    }
    log_rated(&connects, "tcp: cannot connect: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return ERR_PEER_LOST;
}

static void option(int fd, int level, int name, unsigned value)
{
    if (setsockopt(fd, level, name, &value, sizeof(value)) != 0)
        log_debug("tcp: option %d of a socket: %s", name, strerror(errno));
}

void tcp_options(int fd, uint32_t keepalive_ms, uint32_t stall_ms)
{
    unsigned every = keepalive_ms < 1000 ? 1 : keepalive_ms / 1000;

    option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    option(fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    option(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, stall_ms);
}
