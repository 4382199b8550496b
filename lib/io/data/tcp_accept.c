/* tcp_accept.c - see tcp_accept.h. A connection has a rank, and is on the list
 * of its rank: it has sent nothing, sent something, named a key in force, or
 * proven the key. Only the last belongs to a peer. Each other list is bounded
 * and evicts its oldest when it is full; without a vacant entry the oldest of
 * the lowest rank goes. Each of those ends after greeting_ms.
 *
 * A peer names its key in its first bytes, right after the connect. So silent
 * connections cost little and may be many, and a flood of connections that name
 * no key evicts none that did. A key's name can be read on the way and
 * replayed, so per key only the newest connections have this protection, as
 * many as the key has streams. Of those that have proven a key, the newest for
 * each stream stays. The timer is in the epoll set, so that it runs while the
 * carrier is idle.
 *
 * Rejected: TCP_DEFER_ACCEPT. One byte is enough to pass it. Rejected: evicting
 * the newest. Peers that connect at the same time would close each other.
 * Rejected: entries per source address. A relay, or a large network, is one
 * source. */
#include "io/data/tcp_accept.h"

#include "base/check.h"
#include "base/list.h"
#include "base/log.h"
#include "io/strangers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define ACCEPTS_MAX 16
#define SWEEPS      4    /* within greeting_ms */
#define PROOFS_MAX  128  /* with keys: of rank TALKS, and as many of NAMED */
#define SILENT_MAX  1024 /* with keys */

enum rank { VACANT, SILENT, TALKS, NAMED, PROVEN, RANKS };

struct inbound {
    struct tcp_in *in; /* NULL: vacant */
    uint64_t since_ns;
    enum rank rank;
    struct list link; /* on the door's list of this rank, oldest first */
};

struct tcp_door {
    const struct data_conf *data;
    struct tcp_in_conf in;
    struct tcp_place place;
    struct inbound *ins; /* ins_count */
    uint32_t ins_count, silent_max;
    struct list of[RANKS];
    uint32_t count[RANKS];
    struct tcp_keys keys; /* keys_max entries; only if keys are required */
    int epoll, listeners[TCP_RAILS];
    int spare;    /* spare descriptor, with which clients are refused; or -1 */
    int timer;    /* timerfd */
    bool timed;   /* the timer runs */
    bool resting; /* the listener is not polled until the timer expires */
};

static struct log_rate closed =
    LOG_RATE("connections for data that were closed", LOG_WARN, 5);

bool tcp_watch(
    int epoll, int fd, uint32_t events, enum tcp_tag tag, uint32_t index)
{
    struct epoll_event ev = {
        .events = events, .data.u64 = (uint64_t)tag << 32 | index};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) == 0)
        return true;
    log_error("tcp: epoll: %s", strerror(errno));
    return false;
}

/* Polls the listeners for `events`; 0: not at all, and connections wait in the
 * kernel. */
static void listen_for(struct tcp_door *d, uint32_t events)
{
    for (uint32_t i = 0; i < d->place.rails; i++) {
        struct epoll_event ev = {
            .events = events, .data.u64 = (uint64_t)TCP_LISTENER << 32 | i};

        if (epoll_ctl(d->epoll, EPOLL_CTL_MOD, d->listeners[i], &ev) != 0)
            log_error("tcp: epoll: %s", strerror(errno));
    }
}

static void move(struct tcp_door *d, struct inbound *at, enum rank rank)
{
    CHECK(d->count[at->rank] > 0, "rank %d is empty", at->rank);
    d->count[at->rank]--;
    list_remove(&at->link);
    at->rank = rank;
    d->count[rank]++;
    list_push_tail(&d->of[rank], &at->link);
}

static void in_close(struct tcp_door *d, uint32_t i)
{
    CHECK(i < d->ins_count && d->ins[i].in, "connection %u", i);
    tcp_in_close(&d->ins[i].in);
    move(d, &d->ins[i], VACANT);
}

/* Starts the timer of sweep() unless it runs. */
static void timer_run(struct tcp_door *d)
{
    uint64_t ns = d->data->greeting_ms * NS_PER_MS / SWEEPS;
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(ns / NS_PER_S),
                               .tv_nsec = (long)(ns % NS_PER_S)}};

    if (d->timed)
        return;
    CHECK(timerfd_settime(d->timer, 0, &t, NULL) == 0, "timerfd: %d", errno);
    d->timed = true;
}

/* Evicts the oldest connection of a rank that is not empty. */
static void evict(struct tcp_door *d, enum rank rank)
{
    struct inbound *at = LIST_FIRST(&d->of[rank], struct inbound, link);

    d->data->counts->strangers++;
    in_close(d, (uint32_t)(at - d->ins));
}

/* Returns a vacant entry, after an eviction if needed. NONE: all belong to
 * peers. */
static uint32_t in_place(struct tcp_door *d)
{
    struct inbound *at;

    for (enum rank r = SILENT; d->count[VACANT] == 0 && r < PROVEN; r++)
        if (d->count[r] > 0)
            evict(d, r);
    at = LIST_FIRST(&d->of[VACANT], struct inbound, link);
    return at ? (uint32_t)(at - d->ins) : NONE;
}

/* Moves the oldest connection that named the key of `newest` back to TALKS, if
 * more have named it than the key may have streams. */
static void spare_newest(struct tcp_door *d, const struct inbound *newest)
{
    struct inbound *oldest = NULL;
    uint32_t same = 0;

    LIST_FOREACH (n, &d->of[NAMED]) {
        struct inbound *at = LIST_ENTRY(n, struct inbound, link);

        if (!tcp_in_same_key(at->in, newest->in))
            continue;
        oldest = oldest ? oldest : at;
        same++;
    }
    if (same > d->in.streams)
        move(d, oldest, TALKS);
}

/* Updates a connection's rank. named: it had named its key before this turn. */
static void in_ranked(struct tcp_door *d, uint32_t i, bool named)
{
    struct inbound *at = &d->ins[i];

    if (tcp_in_greeted(at->in)) {
        move(d, at, PROVEN);
    } else if (!named && tcp_in_named(at->in)) {
        move(d, at, NAMED);
        spare_newest(d, at);
    } else if (at->rank == SILENT) {
        move(d, at, TALKS);
    }
    for (enum rank r = TALKS; d->in.keys && r <= NAMED; r++)
        if (d->count[r] > PROOFS_MAX)
            evict(d, r);
}

/* Handles a failing accept(), after which the listener stays readable: accepts
 * and closes a connection with the spare descriptor, or else stops polling for
 * a while. */
static void refuse_one(struct tcp_door *d, int listener)
{
    int fd = -1;

    if (d->spare >= 0) {
        close(d->spare);
        fd = accept(listener, NULL, NULL);
    }
    if (fd >= 0) {
        close(fd);
        d->data->counts->refused++;
        log_rated(
            &closed, "tcp: no file descriptor left: a connection is refused");
    } else {
        log_rated(
            &closed, "tcp: accept: %s: connections wait", strerror(errno));
        d->resting = true;
        listen_for(d, 0);
        timer_run(d);
    }
    d->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void take_in(struct tcp_door *d, int fd)
{
    uint32_t i = in_place(d);

    if (i == NONE) {
        log_rated(&closed,
            "tcp: more than %u connections for data (from limits.peers): "
            "one is refused",
            d->data->inbound_max);
        d->data->counts->refused++;
        close(fd);
        return;
    }
    tcp_options(fd, d->data->keepalive_ms, d->data->stall_ms);
    d->ins[i].in = tcp_in_open(fd, &d->in);
    if (!d->ins[i].in)
        return;
    d->ins[i].since_ns = clock_ns();
    move(d, &d->ins[i], SILENT);
    if (!tcp_watch(d->epoll, fd, EPOLLIN | EPOLLRDHUP, TCP_IN, i))
        in_close(d, i);
    else if (d->in.keys && d->count[SILENT] > d->silent_max)
        evict(d, SILENT);
    timer_run(d);
}

static unsigned accept_some(struct tcp_door *d, int listener)
{
    unsigned n = 0;

    for (; n < ACCEPTS_MAX; n++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            take_in(d, fd);
            continue;
        }
        if (errno == EAGAIN)
            break;
        /* Other errors are of a connection that ended, or of the network. */
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
            errno != ENOMEM)
            continue;
        refuse_one(d, listener);
        break;
    }
    return n;
}

/* Closes connection i, which sent no greeting in time, or whose key is not in
 * force. */
static void close_stranger(struct tcp_door *d, uint32_t i)
{
    bool waits = tcp_in_waits(d->ins[i].in);

    log_rated(&closed,
        waits ? "tcp: a connection by a key that is not in force (%u ms)"
              : "tcp: a connection without a greeting for %u ms",
        d->data->greeting_ms);
    d->data->counts->unproven += waits;
    d->data->counts->strangers += !waits;
    in_close(d, i);
}

/* Closes connections without a greeting, frees unused memory, and polls a
 * resting listener again. */
static unsigned sweep(struct tcp_door *d)
{
    uint64_t now_ns = clock_ns(), runs;
    bool more = false;
    ssize_t n = read(d->timer, &runs, sizeof(runs));

    (void)n; /* read so that it is no longer readable */
    d->timed = false;
    if (d->resting)
        listen_for(d, EPOLLIN);
    d->resting = false;
    for (uint32_t i = 0; i < d->ins_count; i++) {
        struct inbound *at = &d->ins[i];

        if (!at->in)
            continue;
        if (tcp_in_greeted(at->in)) {
            tcp_in_shrink(at->in);
            more |= tcp_in_grown(at->in);
        } else if (now_ns - at->since_ns < d->data->greeting_ms * NS_PER_MS) {
            more = true;
        } else {
            close_stranger(d, i);
        }
    }
    if (more)
        timer_run(d);
    return 1;
}

/* Closes the older connection that connection i, which has just proven its key,
 * replaces. */
static void end_older(struct tcp_door *d, uint32_t i)
{
    for (uint32_t k = 0; k < d->ins_count; k++) {
        if (k == i || !d->ins[k].in || !tcp_in_same(d->ins[k].in, d->ins[i].in))
            continue;
        log_rated(&closed, "tcp: a peer's connection ends for its newer one");
        in_close(d, k);
    }
}

static unsigned in_event(struct tcp_door *d, uint32_t i)
{
    bool over = false, greeted, named;
    unsigned count;

    CHECK(i < d->ins_count, "connection %u of %u", i, d->ins_count);
    if (!d->ins[i].in)
        return 0; /* closed earlier in this turn */
    greeted = tcp_in_greeted(d->ins[i].in);
    named = tcp_in_named(d->ins[i].in);
    count = tcp_in_turn(d->ins[i].in, &over);
    if (!greeted && tcp_in_greeted(d->ins[i].in))
        end_older(d, i);
    if (over) {
        in_close(d, i);
        return count;
    }
    if (!greeted)
        in_ranked(d, i, named);
    if (d->ins[i].in && tcp_in_grown(d->ins[i].in))
        timer_run(d);
    return count;
}

/* called by the carrier */

/* Closes the connections of a key. */
static void end_key(struct tcp_door *d, const uint8_t *id)
{
    for (uint32_t i = 0; i < d->ins_count; i++)
        if (d->ins[i].in && tcp_in_of(d->ins[i].in, id))
            in_close(d, i);
}

void tcp_door_admit(struct tcp_door *d, uint32_t who, const struct tcp_key *key)
{
    struct tcp_key *at = &d->keys.of[who];

    CHECK(who < d->keys.count, "a key of peer %u of %u", who, d->keys.count);
    if (at->there && key->there && memcmp(at, key, sizeof(*at)) == 0)
        return;
    if (at->there)
        end_key(d, at->id);
    tcp_key_wipe(at);
    *at = *key;
    for (uint32_t i = 0; i < d->ins_count; i++) {
        bool over = false;

        if (!d->ins[i].in || !tcp_in_waits(d->ins[i].in))
            continue;
        tcp_in_again(d->ins[i].in, &over);
        if (over)
            in_close(d, i);
        else
            in_ranked(d, i, false);
    }
}

unsigned tcp_door_event(struct tcp_door *d, enum tcp_tag tag, uint32_t index)
{
    switch (tag) {
    case TCP_IN:
        return in_event(d, index);
    case TCP_LISTENER:
        return accept_some(d, d->listeners[index]);
    case TCP_TIMER:
        return sweep(d);
    case TCP_OUT:
        break;
    }
    CHECK(false, "an event of tag %d", tag);
    return 0;
}

void tcp_door_tick(struct tcp_door *d, uint64_t now_ns)
{
    uint64_t limit_ns = d->data->stall_ms * NS_PER_MS;

    for (uint32_t i = 0; i < d->ins_count; i++) {
        if (!d->ins[i].in || !tcp_in_stalled(d->ins[i].in, now_ns, limit_ns))
            continue;
        log_rated(&closed, "tcp: an incoming message stalled for %u ms: closed",
            d->data->stall_ms);
        in_close(d, i);
    }
}

/* Makes the entries, all vacant. False: no memory. */
static bool places(struct tcp_door *d)
{
    uint32_t n = d->data->inbound_max;

    d->silent_max = strangers_max(SILENT_MAX, d->place.of);
    n += d->in.keys ? d->silent_max : 0;
    d->ins = calloc(n, sizeof(*d->ins));
    if (!d->ins)
        return false;
    d->ins_count = d->count[VACANT] = n;
    for (uint32_t i = 0; i < n; i++) {
        list_init(&d->ins[i].link);
        list_push_tail(&d->of[VACANT], &d->ins[i].link);
    }
    return true;
}

static enum err begin(struct tcp_door *d)
{
    enum err e =
        tcp_listen(d->data->devices, d->data->ports, d->listeners, &d->place);

    if (e != OK)
        return e;
    d->place.of = max_u32(d->data->addresses, 1);
    d->place.streams = data_streams(d->data->streams, d->place.of);
    d->keys.of = calloc(max_u32(d->data->keys_max, 1), sizeof(*d->keys.of));
    d->keys.count = d->data->keys_max;
    d->in.keys = d->data->safe == SAFE_OFF ? NULL : &d->keys;
    d->in.bits = tcp_bits(&d->place, d->data->safe);
    d->in.streams = div_up(d->place.streams, d->place.of);
    if (d->in.bits && !tcp_safe_ready())
        return ERR_INTERNAL;
    d->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    d->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (!places(d) || !d->keys.of || d->timer < 0) {
        log_error(
            "tcp: no memory or timer for %u connections", d->data->inbound_max);
        return ERR_INTERNAL;
    }
    if (!tcp_watch(d->epoll, d->timer, EPOLLIN, TCP_TIMER, 0))
        return ERR_INTERNAL;
    for (uint32_t i = 0; i < d->place.rails; i++)
        if (!tcp_watch(d->epoll, d->listeners[i], EPOLLIN, TCP_LISTENER, i))
            return ERR_INTERNAL;
    return OK;
}

enum err tcp_door_open(struct tcp_door **out, const struct tcp_door_conf *c,
    struct tcp_place *place)
{
    struct tcp_door *d = calloc(1, sizeof(*d));
    enum err e;

    CHECK(c->data->message_max > 0 && c->data->greeting_ms > 0,
        "message_max and greeting_ms are needed");
    if (!d) {
        log_error("tcp: out of memory");
        return ERR_INTERNAL;
    }
    d->data = c->data;
    d->in = (struct tcp_in_conf){.d = c->d,
        .calls = c->calls,
        .token = d->place.token,
        .body_max = c->data->message_max,
        .counts = c->data->counts};
    d->epoll = c->epoll;
    for (uint32_t i = 0; i < TCP_RAILS; i++)
        d->listeners[i] = -1;
    for (enum rank r = VACANT; r < RANKS; r++)
        list_init(&d->of[r]);
    d->spare = d->timer = -1;
    e = begin(d);
    if (e != OK) {
        tcp_door_close(&d);
        return e;
    }
    *place = d->place;
    *out = d;
    return OK;
}

bool tcp_door_moved(struct tcp_door *d, struct tcp_place *place)
{
    int before[TCP_RAILS];

    memcpy(before, d->listeners, sizeof(before));
    if (!tcp_moved(d->data->devices, d->data->ports, d->listeners, &d->place))
        return false;
    for (uint32_t i = 0; i < d->place.rails; i++)
        if (d->listeners[i] != before[i])
            (void)tcp_watch(
                d->epoll, d->listeners[i], EPOLLIN, TCP_LISTENER, i);
    *place = d->place;
    return true;
}

static void fd_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

void tcp_door_close(struct tcp_door **door)
{
    struct tcp_door *d = *door;

    *door = NULL;
    if (!d)
        return;
    for (uint32_t i = 0; i < d->ins_count; i++)
        if (d->ins[i].in)
            in_close(d, i);
    for (uint32_t i = 0; i < TCP_RAILS; i++)
        fd_close(d->listeners[i]);
    fd_close(d->spare);
    fd_close(d->timer);
    for (uint32_t i = 0; d->keys.of && i < d->keys.count; i++)
        tcp_key_wipe(&d->keys.of[i]);
    free(d->keys.of);
    free(d->ins);
    free(d);
}
