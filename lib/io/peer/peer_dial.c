/* peer_dial.c - connections that we make: looks names up, opens sockets again
 * after failures, and tries a name's next address when one does not answer.
 *
 * Invariants: a dial in use has a socket, a running lookup, or the time of its
 * next attempt (retry_ns); it stays in use until dial_stop, whatever fails. ZMQ
 * gets only numeric addresses: it would look names up in the thread that
 * carries the messages of all connections. While a socket is open, ZMQ repeats
 * the connect by itself; if that does not help, the name is looked up again
 * with growing waits. */
#include "io/peer/peer_impl.h"

#include "base/log.h"
#include "core/conf/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Waits before the next attempt: the first one, after an attempt without socket
 * or thread; after an attempt by ZMQ (longer than ZMQ takes); and the longest
 * one. */
#define WAIT_FIRST_NS (200 * NS_PER_MS)
#define WAIT_NAME_NS  (2 * NS_PER_S)
#define WAIT_MAX_NS   (30 * NS_PER_S)
/* The longest wait after all keys were refused. */
#define WAIT_KEYS_NS  (2 * NS_PER_S)
#define ASKED_LONG_NS (3 * NS_PER_S)
/* Interval of checks why there is no connection. */
#define PROBE_EVERY_NS (2 * NS_PER_S)
/* A guess about keys is reported after this time, and in the third round
 * through the keys: an encoder that ends or starts may break a few handshakes
 * too. */
#define GUESS_NS     (5 * NS_PER_S)
#define GUESS_ROUNDS 3

static struct log_rate lines =
    LOG_RATE("connections to encoders that fail", LOG_WARN, 5);

/* Takes host and port from tcp://host:port. */
static bool split(struct dial *d, struct span address)
{
    struct address a;

    if (!address_split(address, &a) || a.host.len >= sizeof(d->host) ||
        a.port.len == 0 || a.port.len >= sizeof(d->port))
        return false;
    span_copy_str(a.host, d->host, sizeof(d->host));
    span_copy_str(a.port, d->port, sizeof(d->port));
    return true;
}

/* True if the host is numeric, with or without an IPv6 zone. */
static bool numbers(const char *host)
{
    uint8_t to[sizeof(struct in6_addr)];

    return inet_pton(AF_INET, host, to) == 1 || strchr(host, ':');
}

/* Logs why the dial does not connect; once per reason. */
static void log_once(struct dial *d, const char *what)
{
    if (d->logged && strcmp(d->logged, what) == 0)
        return;
    d->logged = what;
    log_rated(&lines, "encoder at %s port %s: %s; trying again", d->host,
        d->port, what);
}

static void wait_for(struct dial *d, uint64_t now_ns, uint64_t first_ns)
{
    d->wait_ns = d->wait_ns ? min_u64(2 * d->wait_ns, WAIT_MAX_NS) : first_ns;
    d->retry_ns = now_ns + d->wait_ns;
}

static void say_refused(
    struct links *p, uint32_t link, enum trouble trouble, const char *why)
{
    struct event ev = {
        .type = EV_LINK_REFUSED, .link = link, .trouble = trouble, .text = why};

    p->calls.event(p->calls.ud, &ev);
}

static void probe_end(struct dial *d, uint64_t now_ns)
{
    if (d->probe >= 0)
        close(d->probe);
    d->probe = -1;
    d->probe_ns = now_ns + PROBE_EVERY_NS;
}

/* Begins to connect to the current address, as ZMQ does. Returns errno. */
static int probe_begin(struct dial *d)
{
    struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *a;
    int e = 0;

    if (getaddrinfo(d->found.addresses[d->at], d->port, &hints, &a) != 0)
        return EADDRNOTAVAIL;
    d->probe =
        socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->probe < 0 || connect(d->probe, a->ai_addr, a->ai_addrlen) != 0)
        e = errno;
    freeaddrinfo(a);
    return e == EINPROGRESS ? 0 : e;
}

/* ZMQ repeats the connect and does not report why it fails. While it has no
 * connection, a connect of our own finds out. */
static void probe(struct links *p, uint32_t link, uint64_t now_ns)
{
    struct dial *d = &link_at(p, link)->dial;
    struct pollfd poll_for = {.fd = d->probe, .events = POLLOUT};
    socklen_t len = sizeof(int);
    int e = 0;

    CHECK(d->used && d->at < d->found.count, "link %u has no address", link);
    if (d->probe < 0 && now_ns < d->probe_ns)
        return;
    if (d->probe < 0) {
        e = probe_begin(d);
        d->probe_ns = now_ns;
    } else if (poll(&poll_for, 1, 0) == 1) {
        getsockopt(d->probe, SOL_SOCKET, SO_ERROR, &e, &len);
        if (e == 0)
            probe_end(d, now_ns);
    } else if (now_ns - d->probe_ns >= ASKED_LONG_NS) {
        e = ETIMEDOUT;
    }
    if (e == 0)
        return;
    probe_end(d, now_ns);
    say_refused(p, link,
        e == ECONNREFUSED ? TROUBLE_REFUSED
        : e == ETIMEDOUT  ? TROUBLE_TIMEOUT
                          : TROUBLE_ROUTE,
        e == ETIMEDOUT ? "no answer" : strerror(e));
}

/* Takes the next key, from index `from` on, that the other end may have. */
static void take_key(const struct links *p, struct dial *d, uint32_t from)
{
    d->key = p->opt.keys ? keys_next(p->opt.keys, from, d->name) : 0;
}

/* Connects to the current address, if some key is admitted there. */
static void open_socket(struct links *p, uint32_t link, uint64_t now_ns)
{
    struct link *k = link_at(p, link);
    struct dial *d = &k->dial;
    const char *host = d->found.addresses[d->at];
    bool six = strchr(host, ':') != NULL;
    char to[128];

    CHECK(!k->sock && d->at < d->found.count, "link %u: address %u of %u", link,
        d->at, d->found.count);
    if (d->key == NONE) {
        wait_for(d, now_ns, WAIT_NAME_NS);
        return;
    }
    snprintf(d->tried, sizeof(d->tried), "%s", host);
    k->sock = sock_open(p, ZMQ_DEALER, link, six);
    if (!k->sock) {
        log_once(d, "no socket: no descriptor or memory is left");
        p->stats.dials_failed++;
        wait_for(d, now_ns, WAIT_FIRST_NS);
        return;
    }
    snprintf(
        to, sizeof(to), six ? "tcp://[%s]:%s" : "tcp://%s:%s", host, d->port);
    if (zmq_connect(k->sock->zmq, to) != 0) {
        log_once(d, zmq_strerror(zmq_errno()));
        p->stats.dials_failed++;
        sock_close(k->sock);
        k->sock = NULL;
        wait_for(d, now_ns, WAIT_NAME_NS);
        return;
    }
    wait_for(d, now_ns, WAIT_NAME_NS);
}

static void close_socket(struct links *p, uint32_t link)
{
    struct link *k = link_at(p, link);
    struct sock *s = k->sock;

    if (!s)
        return;
    link_down(p, link);
    if (k->sock != s) /* the owner disconnected it in down() */
        return;
    k->sock = NULL;
    sock_close(s);
}

/* True if the failures have a lasting cause, and not a listener that ends or is
 * full. */
static bool tells(const struct dial *d, uint32_t keys, uint64_t now_ns)
{
    if (d->sure)
        return d->refused >= 2 * keys;
    return d->refused >= GUESS_ROUNDS * keys &&
           now_ns - d->refused_ns >= GUESS_NS;
}

void dial_refused(struct links *p, uint32_t link, const char *why, bool sure)
{
    struct dial *d = &link_at(p, link)->dial;
    uint32_t keys = p->opt.keys ? keys_fitting(p->opt.keys, d->name) : 1;
    uint64_t now = uv_hrtime();

    CHECK(d->used && keys > 0, "link %u: key %u of %u", link, d->key, keys);
    take_key(p, d, d->key + 1);
    if (d->refused++ == 0)
        d->refused_ns = now;
    if (sure || !d->sure)
        d->why = why;
    d->sure |= sure;
    close_socket(p, link);
    d->retry_ns = now;
    if (d->refused % keys == 0) {
        wait_for(d, now, WAIT_FIRST_NS);
        d->wait_ns = min_u64(d->wait_ns, WAIT_KEYS_NS);
        d->retry_ns = now + d->wait_ns;
    } else if (d->used && !link_at(p, link)->sock && d->found.count > 0) {
        /* At once, since a listener may have a new first key, and the link is
         * needed. */
        open_socket(p, link, now);
    }
    if (tells(d, keys, now))
        say_refused(p, link, TROUBLE_KEY, d->why);
}

void dial_again(struct links *p, uint32_t link)
{
    struct link *k = link_at(p, link);
    struct dial *d = &k->dial;

    CHECK(d->used, "link %u is not connected to anything", link);
    d->wait_ns = 0;
    d->refused = 0;
    d->sure = false;
    take_key(p, d, 0);
    close_socket(p, link);
    if (d->used && !k->sock && d->found.count > 0)
        open_socket(p, link, uv_hrtime());
}

static void ask(struct links *p, struct dial *d, uint64_t now_ns)
{
    CHECK(!d->lookup, "%s is looked up already", d->host);
    d->lookup = lookup_start(d->host);
    d->asked_ns = now_ns;
    if (d->lookup) {
        d->retry_ns = now_ns + ASKED_LONG_NS;
        return;
    }
    p->stats.dials_failed++;
    log_once(d, "too many names are being looked up");
    wait_for(d, now_ns, WAIT_FIRST_NS);
}

/* Takes the addresses of a name, for a link that is not up: the one after the
 * last that was tried comes next, with a new socket if it is another one. */
static void found(struct links *p, uint32_t link, uint64_t now_ns,
    const struct lookup_result *r)
{
    struct link *k = link_at(p, link);
    struct dial *d = &k->dial;
    uint32_t at = 0;

    CHECK(!k->up, "link %u is up, and its name is looked up", link);
    if (r->count == 0) {
        log_once(d, r->error);
        say_refused(p, link, TROUBLE_NAME, r->error);
        p->stats.dials_failed++;
        wait_for(d, now_ns, WAIT_NAME_NS);
        return;
    }
    while (at < r->count && strcmp(r->addresses[at], d->tried) != 0)
        at++;
    d->found = *r;
    d->at = at == r->count ? 0 : (at + 1) % r->count;
    if (k->sock && strcmp(r->addresses[d->at], d->tried) == 0) {
        wait_for(d, now_ns, WAIT_NAME_NS);
        return;
    }
    close_socket(p, link);
    if (d->used && !k->sock)
        open_socket(p, link, now_ns);
}

static void go_on(struct links *p, uint32_t link, uint64_t now_ns)
{
    struct link *k = link_at(p, link);
    struct dial *d = &k->dial;
    struct lookup_result r = {0};
    bool over;

    CHECK(
        k->sock || d->lookup || d->retry_ns, "link %u: nothing goes on", link);
    if (d->lookup && lookup_done(d->lookup, &r)) {
        lookup_drop(&d->lookup);
        found(p, link, now_ns, &r);
        return;
    }
    if (d->lookup && now_ns - d->asked_ns >= ASKED_LONG_NS)
        log_once(d, "no answer from DNS for the name");
    if (k->sock && !k->up && k->sock->meter.fd < 0)
        probe(p, link, now_ns);
    else
        probe_end(d, now_ns);
    if (!d->used)
        return;
    over = k->sock && k->up && meter_over(&k->sock->meter, p->opt.inbox);
    p->behind += k->sock ? k->sock->meter.behind : 0;
    if (over) {
        p->stats.flooded++;
        log_rated(&lines,
            "encoder at %s port %s: %llu bytes wait, limits.inbox "
            "is %llu; its connection is made again",
            d->host, d->port, (unsigned long long)k->sock->meter.behind,
            (unsigned long long)p->opt.inbox);
        close_socket(p, link);
        wait_for(d, now_ns, WAIT_NAME_NS);
        return;
    }
    if (k->up || d->lookup || now_ns < d->retry_ns)
        return;
    if (d->key == NONE)
        say_refused(p, link, TROUBLE_KEY,
            "key (control.identities has none of such an encoder)");
    if (!d->used)
        return;
    if (d->named)
        ask(p, d, now_ns);
    else if (!k->sock)
        open_socket(p, link, now_ns);
    else
        wait_for(d, now_ns, WAIT_NAME_NS); /* ZMQ connects again by itself */
}

bool dial_due(const struct links *p, uint64_t at_ns)
{
    for (uint32_t i = 0; i < p->opt.links; i++) {
        const struct dial *d = &p->links[i].dial;

        if (d->used && !p->links[i].up && (d->lookup || d->retry_ns < at_ns))
            return true;
    }
    return false;
}

void dial_tick(struct links *p, uint64_t now_ns)
{
    for (uint32_t i = 0; i < p->opt.links; i++)
        if (p->links[i].dial.used)
            go_on(p, i, now_ns);
}

void dial_changed(struct links *p, uint32_t link)
{
    struct dial *d = &link_at(p, link)->dial;

    lookup_drop(&d->lookup);
    d->logged = NULL;
    d->wait_ns = 0;
    d->refused = 0;
    d->sure = false;
    d->retry_ns = uv_hrtime() + WAIT_NAME_NS;
}

enum err links_connect(
    struct links *p, uint32_t link, struct span address, struct span name)
{
    struct dial *d = &link_at(p, link)->dial;

    CHECK(!link_at(p, link)->sock && !d->used, "link %u is in use", link);
    *d = (struct dial){.probe = -1, .probe_ns = uv_hrtime() + WAIT_FIRST_NS};
    if (!split(d, address))
        return ERR_MALFORMED;
    d->used = true;
    span_copy_str(name, d->name, sizeof(d->name));
    take_key(p, d, 0);
    d->named = !numbers(d->host);
    if (d->named) {
        ask(p, d, uv_hrtime());
    } else {
        d->found.count = 1;
        snprintf(d->found.addresses[0], LOOKUP_TEXT, "%.*s", LOOKUP_TEXT - 1,
            d->host);
        open_socket(p, link, uv_hrtime());
    }
    links_watch(p);
    return OK;
}

void dial_stop(struct links *p, uint32_t link)
{
    struct dial *d = &link_at(p, link)->dial;

    lookup_drop(&d->lookup);
    if (d->used)
        probe_end(d, 0);
    d->used = false;
}
