/* tcp.c - see tcp.h. Addresses are numeric: no name is ever looked up.
 * Link-local IPv6 is skipped, since its scope means nothing on another host. */
#include "io/data/tcp.h"

#include "base/log.h"

#include <arpa/inet.h>
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

/* Finds the address of a device, IPv4 before IPv6. "all": of any device,
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

static bool on_loopback(const struct sockaddr_storage *at)
{
    const struct sockaddr_in *four = (const void *)at;
    const struct sockaddr_in6 *six = (const void *)at;

    return at->ss_family == AF_INET ? ntohl(four->sin_addr.s_addr) >> 24 == 127
                                    : IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static struct log_rate bare =
    LOG_RATE("devices that are left out", LOG_WARN, 1);

/* Finds the addresses of the devices. A peer must reach all of them or none: so
 * only addresses are taken that are loopback if the first one is, and not
 * loopback if it is not. */
static void find_addresses(const char *devices, struct tcp_place *out)
{
    struct ifaddrs *list;

    if (getifaddrs(&list) != 0)
        return;
    while (*devices && out->rails < TCP_RAILS) {
        struct sockaddr_storage *at = &out->at[out->rails];
        size_t n = strcspn(devices, ",");
        bool there = device_address(list, devices, n, at);

        if (there && on_loopback(at) == on_loopback(&out->at[0]))
            out->rails++;
        else
            log_rated(&bare, "tcp: device %.*s is left out: %s", (int)n,
                devices,
                there ? "one of it and the first is of loopback"
                      : "it has no address");
        devices += n + (devices[n] == ',');
    }
    freeifaddrs(list);
}

bool data_tcp_device(struct span name)
{
    char text[IF_NAMESIZE];
    struct ifaddrs *list;
    bool found = false;

    if (name.len == 0 || name.len >= sizeof(text))
        return false;
    span_copy_str(name, text, sizeof(text));
    if (!strchr(text, ':'))
        return if_nametoindex(text) != 0;
    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next)
        found = strcmp(i->ifa_name, text) == 0;
    freeifaddrs(list);
    return found;
}

static uint32_t cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n > 0 ? (uint32_t)n : 1;
}

uint32_t tcp_streams_for(uint64_t mbits, uint32_t cores)
{
    uint64_t n = mbits ? (mbits + 9999) / 10000 : STREAMS_CHOSEN / 2;

    return (uint32_t)min_u64(min_u64(n, STREAMS_CHOSEN), max_u32(cores, 1));
}

uint32_t tcp_streams_of(const char *name)
{
    const char *device = strchr(name, '/');
    char path[96], text[16] = "";
    long mbits;
    FILE *f;

    if (!device || strcmp(device, "/lo") == 0)
        return 1;
    snprintf(path, sizeof(path), "/sys/class/net%s/speed", device);
    f = fopen(path, "re");
    mbits = f && fgets(text, sizeof(text), f) ? strtol(text, NULL, 10) : 0;
    if (f)
        fclose(f);
    return tcp_streams_for(mbits > 0 ? (uint64_t)mbits : 0, cores());
}

void tcp_name(int fd, char *out, size_t size)
{
    struct sockaddr_storage at = {0};
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

static void option(int fd, int level, int name, unsigned value)
{
    if (setsockopt(fd, level, name, &value, sizeof(value)) != 0)
        log_debug("tcp: option %d of a socket: %s", name, strerror(errno));
}

/* Returns a socket that listens at the address; -1 with errno. */
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
 * may both bind the same port, and listen() then fails for one of them, so each
 * attempt uses a socket of its own. */
static int listen_within(struct sockaddr_storage *at, const char *ports)
{
    const char *dash = ports ? strchr(ports, '-') : NULL;
    unsigned long first = dash ? strtoul(ports, NULL, 10) : 0;
    unsigned long last = dash ? strtoul(dash + 1, NULL, 10) : 0;
    int fd = -1;

    errno = EADDRINUSE;
    for (unsigned long port = first;
         fd < 0 && errno == EADDRINUSE && port <= last && port <= UINT16_MAX;
         port++) {
        *at_port(at) = htons((uint16_t)port);
        fd = listening(at);
    }
    return fd;
}

/* Listens at an address and sets its port in *at; all: at every address of the
 * host. */
static int listen_at(struct sockaddr_storage *at, bool all, const char *ports)
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
        return -1;
    }
    *at_port(at) = *at_port(&here);
    return fd;
}

enum err tcp_listen(const char *devices, const char *ports, int fds[TCP_RAILS],
    struct tcp_place *out)
{
    bool all = strcmp(devices, "all") == 0;
    uint32_t n = 0;

    memset(out, 0, sizeof(*out));
    find_addresses(devices, out);
    if (out->rails == 0)
        log_error(
            "tcp: no device of transfer.devices `%s` has an address", devices);
    else if (getrandom(out->token, TCP_TOKEN, 0) != TCP_TOKEN)
        log_error("getrandom: no random bytes");
    else
        for (; n < out->rails; n++)
            if ((fds[n] = listen_at(&out->at[n], all, ports)) < 0)
                break;
    if (n > 0 && n == out->rails)
        return OK;
    while (n > 0) {
        close(fds[--n]);
        fds[n] = -1;
    }
    log_error(
        "tcp: devices %s, ports %s", devices, ports && *ports ? ports : "any");
    return ERR_INTERNAL;
}

static bool same_host(
    const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    struct sockaddr_storage x = *a, y = *b;
    uint32_t n, m;
    const void *at = at_bytes(&x, &n), *with = at_bytes(&y, &m);

    return n == m && memcmp(at, with, n) == 0;
}

bool tcp_moved(const char *devices, const char *ports, int fds[TCP_RAILS],
    struct tcp_place *p)
{
    bool all = strcmp(devices, "all") == 0, moved = false;
    struct tcp_place now = {0};

    find_addresses(devices, &now);
    if (now.rails != p->rails ||
        on_loopback(&now.at[0]) != on_loopback(&p->at[0]))
        return false;
    for (uint32_t i = 0; i < p->rails; i++) {
        int fd = -1;

        if (same_host(&now.at[i], &p->at[i]))
            continue;
        if (all && now.at[i].ss_family == p->at[i].ss_family) {
            *at_port(&now.at[i]) = *at_port(&p->at[i]);
        } else {
            fd = listen_at(&now.at[i], all, ports);
            if (fd < 0)
                return moved;
            close(fds[i]);
            fds[i] = fd;
        }
        p->at[i] = now.at[i];
        moved = true;
    }
    return moved;
}

/* places in messages */

void tcp_place_put(struct writer *w, const struct tcp_place *p)
{
    put_bytes(w, TCP_MAGIC, 4);
    put_bytes(w, p->token, TCP_TOKEN);
    put_u8(w, (uint8_t)p->streams);
    put_u8(w, (uint8_t)p->of);
    put_u8(w, (uint8_t)p->rails);
    for (uint32_t i = 0; i < p->rails; i++) {
        struct sockaddr_storage at = p->at[i];
        uint32_t n;
        const void *bytes = at_bytes(&at, &n);

        put_u16(w, ntohs(*at_port(&at)));
        put_u8(w, (uint8_t)n);
        put_bytes(w, bytes, n);
    }
}

bool tcp_place_looks_so(struct span s)
{
    return s.len >= TCP_HELLO && memcmp(s.p, TCP_MAGIC, 4) == 0;
}

/* Reads one address of n bytes. False: it is invalid. */
static bool get_at(
    struct reader *r, uint32_t n, uint16_t port, struct sockaddr_storage *out)
{
    const uint8_t *from = n == 4 || n == 16 ? get_bytes(r, n) : NULL;
    void *bytes;

    if (!from || r->failed)
        return false;
    out->ss_family = n == 4 ? AF_INET : AF_INET6;
    bytes = at_bytes(out, &n);
    memcpy(bytes, from, n);
    *at_port(out) = htons(port);
    return port > 0;
}

/* Reads the part behind the token, and ignores bytes after that. */
static bool get_rails(struct reader *r, struct tcp_place *out)
{
    out->streams = get_u8(r);
    out->of = get_u8(r);
    out->rails = get_u8(r);
    if (r->failed || out->streams == 0 || out->streams > TCP_STREAMS ||
        out->of == 0 || out->rails == 0 || out->rails > TCP_RAILS)
        return false;
    for (uint32_t i = 0; i < out->rails; i++) {
        uint16_t port = get_u16(r);

        if (!get_at(r, get_u8(r), port, &out->at[i]))
            return false;
    }
    return !r->failed;
}

enum err tcp_place_get(struct span s, struct tcp_place *out)
{
    struct reader r = reader_of(s.p, s.len);
    const uint8_t *token;

    memset(out, 0, sizeof(*out));
    (void)get_bytes(&r, 4);
    token = get_bytes(&r, TCP_TOKEN);
    if (!tcp_place_looks_so(s) || !token || !get_rails(&r, out)) {
        log_warn("tcp: a data address of %u bytes is not one of carrier tcp: "
                 "is transfer.carrier the same on both sides?",
            s.len);
        return ERR_MALFORMED;
    }
    memcpy(out->token, token, TCP_TOKEN);
    return OK;
}

bool tcp_place_loopback(const struct tcp_place *p)
{
    return on_loopback(&p->at[0]);
}

void tcp_place_text(const struct tcp_place *p, char *out, size_t size)
{
    struct sockaddr_storage at = p->at[0];
    char host[INET6_ADDRSTRLEN] = "";
    uint32_t n;
    const void *bytes = at_bytes(&at, &n);

    (void)inet_ntop(at.ss_family, bytes, host, sizeof(host));
    snprintf(
        out, size, n == 4 ? "%s:%u" : "[%s]:%u", host, ntohs(*at_port(&at)));
}

uint8_t tcp_bits(const struct tcp_place *p, enum data_safe safe)
{
    bool plain =
        safe < SAFE_ENCRYPTED || (safe == SAFE_AUTO && on_loopback(&p->at[0]));

    return plain                  ? 0
           : safe == SAFE_AES_256 ? DATA_KEY_ENCRYPT | DATA_KEY_AES_256
                                  : DATA_KEY_ENCRYPT;
}

uint8_t data_tcp_bits(struct span address, enum data_safe safe)
{
    struct tcp_place place;

    return tcp_place_get(address, &place) == OK ? tcp_bits(&place, safe) : 0;
}

bool data_tcp_loopback(struct span address)
{
    struct tcp_place place;

    return tcp_place_get(address, &place) == OK && on_loopback(&place.at[0]);
}

/* connections */

static struct log_rate connects =
    LOG_RATE("data connections that fail", LOG_WARN, 5);

enum err tcp_connect(const struct tcp_place *p, uint32_t rail, int *out)
{
    const struct sockaddr_storage *at = &p->at[rail];
    int e, fd = socket(
               at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0 && (connect(fd, (const struct sockaddr *)at, at_len(at)) == 0 ||
                       errno == EINPROGRESS)) {
        *out = fd;
        return OK;
    }
    e = errno;
    log_rated(&connects, "tcp: cannot connect: %s", strerror(e));
    if (fd >= 0)
        close(fd);
    errno = e;
    return ERR_PEER_LOST;
}

void tcp_pace(int fd, uint64_t bytes)
{
    if (bytes > 0 && setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes,
                         sizeof(bytes)) != 0)
        log_debug("tcp: pacing of a socket: %s", strerror(errno));
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
