/* raw.c - the yardsticks: what the kernel alone can do, between the same two
 * processes and from the same memory.
 *
 * TCP_NODELAY and several sizes of write: without them loopback has two speeds
 * and any target is easy. The ping sleeps in poll as an engine does; one that
 * spins would measure something else. One thread of each engine. */
#include "test/bench/bench.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

static const uint32_t pieces[PIECES] = {512 << 10, 1 << 20, 2 << 20};

void tcp_open(struct side *x, int listener, uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;

    if (x->which == ENC) {
        x->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(x->tcp, (struct sockaddr *)&sa, sizeof sa) != 0)
            die("tcp: %s", strerror(errno));
    } else {
        x->tcp = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (x->tcp < 0)
            die("tcp: %s", strerror(errno));
    }
    setsockopt(x->tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void tcp_write(int fd, const void *p, size_t n, size_t piece)
{
    for (size_t at = 0; at < n;) {
        size_t want = n - at < piece ? n - at : piece;
        ssize_t k = write(fd, (const uint8_t *)p + at, want);

        if (k <= 0)
            die("tcp: %s", strerror(errno));
        at += (size_t)k;
    }
}

static void tcp_read(int fd, void *p, size_t n, size_t piece)
{
    for (size_t at = 0; at < n;) {
        size_t want = n - at < piece ? n - at : piece;
        ssize_t k = read(fd, (uint8_t *)p + at, want);

        if (k <= 0)
            die("tcp: %s", k ? strerror(errno) : "the other engine is gone");
        at += (size_t)k;
    }
}

void *faulted(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (p == MAP_FAILED)
        die("no memory for %zu bytes", bytes);
    return p;
}

/* Moves bytes from the source pool's memfd into faulted memory. */
void tcp_move(struct side *x, size_t bytes, size_t piece, int series)
{
    meet(x);
    if (x->which == ENC) {
        x->s->stamp = now_ns();
        tcp_write(x->tcp, x->e->pools[POOL_ROWS].base, bytes, piece);
    } else {
        tcp_read(x->tcp, x->landing, bytes, piece);
        note(x, series, now_ns() - x->s->stamp);
    }
    meet(x);
}

void tcp_bulk(struct side *x)
{
    for (int i = 0; i < PIECES; i++) {
        uint64_t used = cpu_ns(getpid());

        tcp_move(x, BULK_BYTES, pieces[i], S_TCP + i);
        used = cpu_ns(getpid()) - used;
        if (x->which == ENC)
            x->s->cpu = used;
        meet(x);
        if (x->which == LANG)
            note(x, S_TCP_CPU + i, used + x->s->cpu);
    }
}

/* Measures one way of a TCP ping of the same bytes between sleeping ends. */
void tcp_ping(struct side *x)
{
    uint8_t bytes[SMALL_BYTES] = {0};

    meet(x);
    if (x->which == ENC) {
        gap(x);
        x->s->stamp = now_ns();
        tcp_write(x->tcp, bytes, sizeof bytes, sizeof bytes);
    } else {
        struct pollfd p = {.fd = x->tcp, .events = POLLIN};

        if (poll(&p, 1, ROOM_MS) != 1)
            die("tcp: no ping came");
        tcp_read(x->tcp, bytes, sizeof bytes, sizeof bytes);
        note(x, S_TCP_PING, now_ns() - x->s->stamp);
    }
    meet(x);
}

/* Measures the socket alone: one process sends and receives 64 bytes. */
uint64_t bare_packets(unsigned n)
{
    uint8_t bytes[64] = {0};
    int s[2];
    uint64_t t;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s) != 0)
        die("socketpair: %s", strerror(errno));
    t = now_ns();
    for (unsigned i = 0; i < n; i++)
        if (send(s[0], bytes, sizeof bytes, 0) < 0 ||
            recv(s[1], bytes, sizeof bytes, 0) < 0)
            die("socketpair: %s", strerror(errno));
    t = now_ns() - t;
    close(s[0]);
    close(s[1]);
    return t / n;
}
