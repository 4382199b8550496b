/* relay.c - see relay.h. */
#include "test/relay.h"

#include "test/t.h"

#include <fcntl.h>
#include <poll.h>

#define HEARD_MAX ((size_t)512 * 1024)

static int nonblocking(int fd)
{
    T_TRUE(fd >= 0);
    T_EQ_I64(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

void relay_open(struct relay *r, struct side *to)
{
    struct tcp_place place;
    struct writer w = writer_of(r->address, sizeof(r->address));
    int fds[TCP_RAILS];

    *r = (struct relay){.flip_at = SIZE_MAX, .cut_at = SIZE_MAX};
    T_OK(tcp_place_get(to->ops->address(to->d), &r->to));
    T_OK(tcp_listen("lo", "", fds, &place));
    memcpy(place.token, r->to.token, TCP_TOKEN);
    place.streams = place.of = 1;
    tcp_place_put(&w, &place);
    r->address_len = (uint32_t)w.len;
    r->listener = nonblocking(fds[0]);
    r->up = r->down = (struct pipe){-1, -1, NULL, 0, 0};
    r->up.heard = malloc(HEARD_MAX);
    r->down.heard = malloc(HEARD_MAX);
}

void relay_end(struct relay *r)
{
    if (r->up.from >= 0)
        close(r->up.from);
    if (r->up.to >= 0)
        close(r->up.to);
    r->up.from = r->up.to = r->down.from = r->down.to = -1;
}

void relay_close(struct relay *r)
{
    relay_end(r);
    close(r->listener);
    free(r->up.heard);
    free(r->down.heard);
}

int relay_onward(const struct relay *r)
{
    struct pollfd p = {.events = POLLOUT};

    T_OK(tcp_connect(&r->to, 0, &p.fd));
    T_EQ_I64(poll(&p, 1, T_WAIT_MS), 1);
    return p.fd;
}

static bool pass(struct pipe *p, size_t flip_at, size_t cut_at)
{
    ssize_t n = 1;

    if (p->from < 0)
        return true;
    if (p->len < HEARD_MAX)
        n = recv(p->from, p->heard + p->len, HEARD_MAX - p->len, MSG_DONTWAIT);
    if (n > 0 && p->len < HEARD_MAX) {
        if (flip_at >= p->len && flip_at < p->len + (size_t)n)
            p->heard[flip_at] ^= 0x40;
        p->len += (size_t)n;
    }
    if (p->sent < p->len && p->sent < cut_at) {
        size_t most = (p->len < cut_at ? p->len : cut_at) - p->sent;
        ssize_t s =
            send(p->to, p->heard + p->sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);

        p->sent += s > 0 ? (size_t)s : 0;
    }
    return n > 0 || (n < 0 && errno == EAGAIN);
}

void relay_accept(struct relay *r)
{
    int fd = accept(r->listener, NULL, NULL);

    if (fd < 0)
        return;
    r->up.from = r->down.to = nonblocking(fd);
    r->up.to = r->down.from = relay_onward(r);
    r->up.len = r->up.sent = r->down.len = r->down.sent = 0;
}

void relay_turn(struct relay *r)
{
    if (r->up.from < 0)
        relay_accept(r);
    if (r->up.from < 0)
        return;
    if (!pass(&r->up, r->flip_at, r->cut_at) ||
        !pass(&r->down, SIZE_MAX, SIZE_MAX) || r->up.sent == r->cut_at)
        relay_end(r);
}

void relay_until(struct relay *r, struct side *a, struct side *b,
    const uint32_t *count, uint32_t wanted)
{
    uint64_t limit = t_end_ns(T_WAIT_MS);

    while (*count < wanted && a->broken_count == 0 && t_now_ns() < limit) {
        relay_turn(r);
        side_turn(a, b);
    }
}
