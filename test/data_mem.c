/* data_mem.c - the carrier for tests: messages between carriers of one
 * process, by memcpy, with faults on demand.
 *
 * A message is posted, then (at a later progress of the sender, so that a
 * source that is reused too early shows) copied into a parcel of the receiver,
 * then delivered from there. One that does not fit segment_bytes is a
 * rendezvous: its parcel names the sender's message, whose bytes the receiver
 * fetches at a later progress of its own.
 *
 * State is location: a message is on exactly one of the lists unused, posted,
 * offered (rendezvous, not fetched yet) and done; a parcel on unused, inbox,
 * fetching, or in the hand of deliver().
 *
 * Each carrier belongs to one thread, as data.h says, but parcels cross
 * threads, and a carrier that closes must vanish from all others. One mutex
 * guards all carriers: rings per pair, as daemons would use, were rejected,
 * because this carrier has to be obviously right. No callback runs with the
 * mutex held. */
#include "test/data_mem.h"

#include "base/check.h"
#include "base/list.h"
#include "base/log.h"
#include "wire/segment.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PARCELS     64
#define DELAY_TURNS 16 /* turns of progress that a delayed message waits */
#define FAULTS      3

struct message {
    struct list link;
    void *cookie;
    uint64_t serial; /* tells uses of this slot apart */
    uint64_t bytes;
    uint32_t ep, opening; /* of which opening of the endpoint */
    uint32_t header_len, iovs, delay;
    bool offered, stalls, breaks;
    uint8_t header[DATA_HEADER_MAX];
    struct iovec *iov; /* DATA_IOV_MAX */
};

struct parcel {
    struct list link;
    struct data *from; /* rendezvous: the sender; NULL: it has gone */
    struct message *message;
    uint64_t serial, len;
    void *cookie; /* of the fetch */
    uint32_t header_len, iovs;
    bool rendezvous, fetching;
    uint8_t header[DATA_HEADER_MAX];
    struct iovec *iov; /* where a fetch goes; DATA_IOV_MAX */
    uint8_t *bytes;    /* eager: segment_bytes */
};

struct endpoint {
    struct data *peer; /* NULL: it has gone, or never was */
    uint64_t quiet_since_ns;
    uint32_t opening, outstanding;
    uint32_t faults[FAULTS];
    bool open, broken, unreported;
    bool made; /* the pending report says that it is connected */
};

struct data {
    struct list link; /* on carriers */
    struct data_conf conf;
    struct data_calls calls;
    char name[32];
    int fd;
    bool armed;   /* the owner sleeps: write to fd */
    bool starved; /* a sender found no parcel */
    uint64_t serial;
    struct list unused, posted, offered, done;
    struct list parcels, inbox, fetching;
    struct endpoint *eps;
    struct message *messages;
    struct parcel *parcel_array;
    struct iovec *iovs;
    uint8_t *bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list carriers = {&carriers, &carriers};
static uint32_t names; /* given so far; a name is never given twice */

static void lock(void)
{
    CHECK(pthread_mutex_lock(&mutex) == 0, "lock failed");
}

static void unlock(void)
{
    CHECK(pthread_mutex_unlock(&mutex) == 0, "unlock failed");
}

/* with the mutex held */

static void signal_owner(struct data *d)
{
    uint64_t one = 1;

    if (!d->armed)
        return;
    d->armed = false;
    CHECK(write(d->fd, &one, sizeof(one)) == sizeof(one), "eventfd write");
}

static void message_complete(struct data *d, struct message *m)
{
    struct endpoint *ep = &d->eps[m->ep];

    list_remove(&m->link);
    m->offered = false;
    if (ep->opening == m->opening) {
        ep->outstanding--;
        ep->quiet_since_ns = 0;
    }
    list_push_tail(&d->done, &m->link);
    signal_owner(d);
}

static void complete_all(struct data *d, struct list *l, uint32_t ep)
{
    LIST_FOREACH_SAFE (n, l) {
        struct message *m = LIST_ENTRY(n, struct message, link);

        if (ep == NONE || m->ep == ep)
            message_complete(d, m);
    }
}

static void endpoint_break(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    complete_all(d, &d->posted, i);
    complete_all(d, &d->offered, i);
    if (ep->broken)
        return;
    ep->broken = ep->unreported = true;
    ep->made = false;
    ep->peer = NULL;
    signal_owner(d);
}

static void gather(uint8_t *out, const struct message *m)
{
    for (uint32_t i = 0; i < m->iovs; i++) {
        if (m->iov[i].iov_len)
            memcpy(out, m->iov[i].iov_base, m->iov[i].iov_len);
        out += m->iov[i].iov_len;
    }
}

/* Copies a message's bytes to where a fetch wants them; the totals agree. */
static void scatter(const struct parcel *p, const struct message *m)
{
    uint32_t to = 0, from = 0;
    size_t to_at = 0, from_at = 0;

    for (uint64_t left = p->len; left > 0;) {
        size_t n;

        while (to_at == p->iov[to].iov_len) {
            to++;
            to_at = 0;
        }
        while (from_at == m->iov[from].iov_len) {
            from++;
            from_at = 0;
        }
        n = min_u64(p->iov[to].iov_len - to_at, m->iov[from].iov_len - from_at);
        memcpy((uint8_t *)p->iov[to].iov_base + to_at,
            (uint8_t *)m->iov[from].iov_base + from_at, n);
        to_at += n;
        from_at += n;
        left -= n;
    }
}

static void parcel_recycle(struct data *d, struct parcel *p)
{
    list_push_tail(&d->parcels, &p->link);
    if (!d->starved)
        return;
    d->starved = false;
    LIST_FOREACH (n, &carriers)
        signal_owner(LIST_ENTRY(n, struct data, link));
}

/* Returns the message of a rendezvous parcel, if it is still on offer. */
static struct message *parcel_message(const struct parcel *p)
{
    if (!p->from || !p->message->offered || p->message->serial != p->serial)
        return NULL;
    return p->message;
}

static void message_send(struct data *d, struct message *m, struct parcel *p)
{
    struct data *peer = d->eps[m->ep].peer;

    p->rendezvous = m->bytes > peer->conf.segment_bytes;
    p->fetching = false;
    p->from = p->rendezvous ? d : NULL;
    p->message = p->rendezvous ? m : NULL;
    p->serial = m->serial;
    p->len = m->bytes;
    p->header_len = m->header_len;
    memcpy(p->header, m->header, m->header_len);
    list_push_tail(&peer->inbox, &p->link);
    signal_owner(peer);
    if (p->rendezvous) {
        list_remove(&m->link);
        list_push_tail(&d->offered, &m->link);
        m->offered = true;
        return;
    }
    gather(p->bytes, m);
    message_complete(d, m);
}

/* Moves one posted message on. false: it has to wait. */
static bool message_push(struct data *d, struct message *m)
{
    struct data *peer = d->eps[m->ep].peer;
    struct list *p;

    if (m->breaks || !peer) {
        endpoint_break(d, m->ep);
        return true;
    }
    if (m->stalls)
        return false;
    if (m->delay) {
        m->delay--;
        return false;
    }
    p = list_pop(&peer->parcels);
    if (!p) {
        peer->starved = true;
        return false;
    }
    message_send(d, m, LIST_ENTRY(p, struct parcel, link));
    return true;
}

/* True if there is a posted message that message_push would move or count
 * down. */
static bool posted_work(struct data *d)
{
    LIST_FOREACH (n, &d->posted) {
        struct message *m = LIST_ENTRY(n, struct message, link);
        struct data *peer = d->eps[m->ep].peer;

        if (m->breaks || !peer || m->delay)
            return true;
        if (m->stalls)
            continue;
        if (!list_empty(&peer->parcels))
            return true;
        peer->starved = true;
    }
    return false;
}

static bool unreported(const struct data *d)
{
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        if (d->eps[i].unreported)
            return true;
    return false;
}

/* progress: takes the mutex, gives it back around callbacks */

static unsigned push_posted(struct data *d)
{
    unsigned count = 0;
    struct list work = {&work, &work};
    struct list *n;

    lock();
    /* A break completes other messages of the list as well, so it is walked
     * from a private one; what has to wait goes back in the same order. */
    while ((n = list_pop(&d->posted)) != NULL)
        list_push_tail(&work, n);
    while ((n = list_pop(&work)) != NULL) {
        list_push_tail(&d->posted, n);
        count += message_push(d, LIST_ENTRY(n, struct message, link));
    }
    unlock();
    return count;
}

static void deliver(struct data *d, struct parcel *p)
{
    struct data_in in = {.header = span_of(p->header, p->header_len),
        .data = p->rendezvous ? NULL : p->bytes,
        .len = p->len,
        .handle = p->rendezvous ? p : NULL,
        .who = NONE};
    bool kept = d->calls.arrived(d->calls.ud, d, &in);
    struct message *m;

    CHECK(!kept || !p->rendezvous || p->fetching,
        "%s: a rendezvous of %lu bytes was kept and not fetched", d->name,
        (unsigned long)p->len);
    lock();
    if (p->fetching) {
        list_push_tail(&d->fetching, &p->link);
    } else {
        m = p->rendezvous ? parcel_message(p) : NULL;
        if (m)
            message_complete(p->from, m);
        parcel_recycle(d, p);
    }
    unlock();
}

static unsigned deliver_inbox(struct data *d)
{
    unsigned count = 0;

    for (; count < PARCELS; count++) {
        struct list *n;

        lock();
        n = list_pop(&d->inbox);
        unlock();
        if (!n)
            break;
        deliver(d, LIST_ENTRY(n, struct parcel, link));
    }
    return count;
}

static unsigned run_fetches(struct data *d, bool cancel)
{
    unsigned count = 0;

    for (;; count++) {
        struct parcel *p;
        struct message *m;
        void *cookie;

        lock();
        p = LIST_FIRST(&d->fetching, struct parcel, link);
        if (!p) {
            unlock();
            return count;
        }
        list_remove(&p->link);
        m = cancel ? NULL : parcel_message(p);
        cookie = p->cookie;
        if (m) {
            scatter(p, m);
            message_complete(p->from, m);
        }
        parcel_recycle(d, p);
        unlock();
        d->calls.fetched(d->calls.ud, cookie, m != NULL);
    }
}

static unsigned report_done(struct data *d)
{
    unsigned count = 0;

    for (; count < d->conf.messages_max; count++) {
        struct list *n;
        void *cookie;

        lock();
        n = list_pop(&d->done);
        if (!n) {
            unlock();
            break;
        }
        cookie = LIST_ENTRY(n, struct message, link)->cookie;
        list_push_head(&d->unused, n);
        unlock();
        d->calls.done(d->calls.ud, cookie);
    }
    return count;
}

static unsigned report_ends(struct data *d)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < d->conf.endpoints_max; i++) {
        bool report, made;

        lock();
        report = d->eps[i].unreported;
        made = d->eps[i].made;
        d->eps[i].unreported = false;
        unlock();
        if (!report)
            continue;
        count++;
        if (!made)
            d->calls.broken(d->calls.ud, i);
        else if (d->calls.connected)
            d->calls.connected(d->calls.ud, i);
    }
    return count;
}

static unsigned mem_progress(struct data *d)
{
    unsigned count = push_posted(d);

    /* Fetches first: one that arrived() asks for runs at a later turn. */
    count += run_fetches(d, false);
    count += deliver_inbox(d);
    count += report_done(d);
    return count + report_ends(d);
}

static enum err mem_arm(struct data *d)
{
    uint64_t n;
    ssize_t r;
    bool busy;

    lock();
    r = read(d->fd, &n, sizeof(n));
    (void)r; /* EAGAIN: it was not written to */
    busy = !list_empty(&d->inbox) || !list_empty(&d->done) ||
           !list_empty(&d->fetching) || unreported(d) || posted_work(d);
    d->armed = !busy;
    unlock();
    return busy ? ERR_BUSY : OK;
}

static int mem_fd(struct data *d)
{
    return d->fd;
}

static bool mem_tick(struct data *d, uint64_t now_ns)
{
    lock();
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++) {
        struct endpoint *ep = &d->eps[i];

        if (!ep->open || ep->broken || ep->outstanding == 0)
            ep->quiet_since_ns = 0;
        else if (ep->quiet_since_ns == 0)
            ep->quiet_since_ns = now_ns;
        else if (now_ns - ep->quiet_since_ns >= d->conf.stall_ms * NS_PER_MS)
            endpoint_break(d, i);
    }
    unlock();
    return false;
}

/* endpoints and messages */

static struct span mem_address(struct data *d)
{
    return span_str(d->name);
}

static enum err mem_connect(
    struct data *d, uint32_t i, struct span address, struct span key)
{
    struct endpoint *ep;

    CHECK(i < d->conf.endpoints_max && !d->eps[i].open, "endpoint %u", i);
    if (address.len < 5 || address.len >= sizeof(d->name) ||
        memcmp(address.p, "mem:", 4) != 0)
        return ERR_MALFORMED;
    lock();
    ep = &d->eps[i];
    ep->open = true;
    ep->broken = false;
    ep->unreported = ep->made = true;
    ep->opening++;
    ep->outstanding = 0;
    ep->quiet_since_ns = 0;
    ep->peer = NULL;
    LIST_FOREACH (n, &carriers) {
        struct data *other = LIST_ENTRY(n, struct data, link);

        if (span_eq(span_str(other->name), address))
            ep->peer = other;
    }
    if (!ep->peer) /* as with a network: a missing peer is noticed later */
        endpoint_break(d, i);
    unlock();
    return OK;
}

static void mem_disconnect(struct data *d, uint32_t i)
{
    CHECK(i < d->conf.endpoints_max && d->eps[i].open, "endpoint %u", i);
    lock();
    endpoint_break(d, i);
    d->eps[i].open = d->eps[i].unreported = false;
    unlock();
}

static void message_faults(struct message *m, struct endpoint *ep)
{
    bool hit[FAULTS];

    for (uint32_t i = 0; i < FAULTS; i++) {
        hit[i] = ep->faults[i] > 0;
        ep->faults[i] -= hit[i];
    }
    m->breaks = hit[DATA_FAULT_BREAK];
    m->stalls = hit[DATA_FAULT_STALL];
    m->delay = hit[DATA_FAULT_DELAY] ? DELAY_TURNS : 0;
}

static void message_fill(struct message *m, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    m->cookie = cookie;
    m->header_len = header.len;
    m->iovs = iovs;
    m->bytes = 0;
    m->offered = false;
    if (header.len)
        memcpy(m->header, header.p, header.len);
    for (uint32_t i = 0; i < iovs; i++) {
        m->iov[i] = iov[i];
        m->bytes += iov[i].iov_len;
    }
}

static enum err mem_post(struct data *d, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct message *m;
    enum err e = OK;

    CHECK(i < d->conf.endpoints_max && d->eps[i].open, "endpoint %u", i);
    CHECK(iovs <= DATA_IOV_MAX && header.len <= DATA_HEADER_MAX,
        "%u pieces, %u header bytes", iovs, header.len);
    lock();
    if (d->eps[i].broken) {
        e = ERR_PEER_LOST;
    } else if (list_empty(&d->unused)) {
        e = ERR_BUSY;
    } else {
        m = LIST_ENTRY(list_pop(&d->unused), struct message, link);
        message_fill(m, header, iov, iovs, cookie);
        m->serial = ++d->serial;
        m->ep = i;
        m->opening = d->eps[i].opening;
        message_faults(m, &d->eps[i]);
        d->eps[i].outstanding++;
        list_push_tail(&d->posted, &m->link);
    }
    unlock();
    return e;
}

static enum err mem_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct parcel *p = in->handle;
    uint64_t bytes = 0;

    CHECK(p && p->rendezvous && !p->fetching, "%s: nothing to fetch", d->name);
    CHECK(iovs <= DATA_IOV_MAX, "%u pieces", iovs);
    for (uint32_t i = 0; i < iovs; i++)
        bytes += iov[i].iov_len;
    if (bytes != p->len)
        return ERR_MALFORMED;
    if (iovs)
        memcpy(p->iov, iov, iovs * sizeof(*iov));
    p->iovs = iovs;
    p->cookie = cookie;
    p->fetching = true; /* deliver() puts it on the list */
    return OK;
}

static enum trouble mem_state(struct data *d, uint32_t ep, const char **text)
{
    bool broken;

    lock(); /* a peer that vanishes breaks it from its own thread */
    broken = d->eps[ep].broken;
    unlock();
    *text = broken ? "mem: closed" : "mem";
    return broken ? TROUBLE_DATA_LOST : TROUBLE_NONE;
}

static bool mem_memory(
    struct data *d, const void *base, uint64_t bytes, bool gpu)
{
    return false;
}

static void mem_admit(struct data *d, uint32_t who, struct span key) {}

void data_mem_fault(
    struct data *d, uint32_t ep, enum data_fault fault, uint32_t count)
{
    CHECK(ep < d->conf.endpoints_max && (uint32_t)fault < FAULTS,
        "endpoint %u, fault %u", ep, (unsigned)fault);
    lock();
    d->eps[ep].faults[fault] = count;
    unlock();
}

/* open and close */

static void mem_free(struct data *d)
{
    if (d->fd >= 0)
        close(d->fd);
    free(d->eps);
    free(d->messages);
    free(d->parcel_array);
    free(d->iovs);
    free(d->bytes);
    free(d);
}

static bool mem_allocate(struct data *d)
{
    uint32_t messages = d->conf.messages_max;

    d->eps = calloc(d->conf.endpoints_max, sizeof(*d->eps));
    d->messages = calloc(messages, sizeof(*d->messages));
    d->parcel_array = calloc(PARCELS, sizeof(*d->parcel_array));
    d->iovs =
        calloc((size_t)(messages + PARCELS) * DATA_IOV_MAX, sizeof(*d->iovs));
    d->bytes = calloc(PARCELS, d->conf.segment_bytes);
    return d->eps && d->messages && d->parcel_array && d->iovs && d->bytes;
}

static void mem_lists(struct data *d)
{
    struct list *lists[] = {&d->unused, &d->posted, &d->offered, &d->done,
        &d->parcels, &d->inbox, &d->fetching};
    struct iovec *iov = d->iovs;

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    for (uint32_t i = 0; i < d->conf.messages_max; i++) {
        d->messages[i].iov = iov;
        iov += DATA_IOV_MAX;
        list_push_tail(&d->unused, &d->messages[i].link);
    }
    for (uint32_t i = 0; i < PARCELS; i++) {
        struct parcel *p = &d->parcel_array[i];

        p->iov = iov;
        iov += DATA_IOV_MAX;
        p->bytes = d->bytes + (size_t)i * d->conf.segment_bytes;
        list_push_tail(&d->parcels, &p->link);
    }
}

static enum err mem_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data *d = calloc(1, sizeof(*d));

    CHECK(c->segment_bytes > 0 && c->messages_max > 0 && c->endpoints_max > 0,
        "segment_bytes, messages_max and endpoints_max are needed");
    if (!d) {
        log_error("data_mem: out of memory");
        return ERR_INTERNAL;
    }
    d->conf = *c;
    d->calls = *calls;
    d->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (d->fd < 0 || !mem_allocate(d)) {
        log_error("data_mem: no eventfd or memory for %u messages of %u bytes",
            c->messages_max, c->segment_bytes);
        mem_free(d);
        return ERR_INTERNAL;
    }
    mem_lists(d);
    lock();
    snprintf(d->name, sizeof(d->name), "mem:%u", ++names);
    list_push_tail(&carriers, &d->link);
    unlock();
    *out = d;
    return OK;
}

/* Makes all other carriers forget d. */
static void mem_vanish(struct data *d)
{
    list_remove(&d->link);
    LIST_FOREACH (n, &carriers) {
        struct data *other = LIST_ENTRY(n, struct data, link);

        for (uint32_t i = 0; i < other->conf.endpoints_max; i++)
            if (other->eps[i].peer == d)
                endpoint_break(other, i);
        for (uint32_t i = 0; i < PARCELS; i++)
            if (other->parcel_array[i].from == d)
                other->parcel_array[i].from = NULL;
    }
}

static void mem_close(struct data **dp)
{
    struct data *d = *dp;

    if (!d)
        return;
    lock();
    mem_vanish(d);
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++) {
        if (d->eps[i].open)
            endpoint_break(d, i);
        d->eps[i].unreported = false;
    }
    unlock();
    run_fetches(d, true);
    report_done(d);
    mem_free(d);
    *dp = NULL;
}

const struct data_ops data_mem = {.name = "mem",
    .any_thread = true,
    .open = mem_open,
    .close = mem_close,
    .address = mem_address,
    .admit = mem_admit,
    .connect = mem_connect,
    .disconnect = mem_disconnect,
    .post = mem_post,
    .fetch = mem_fetch,
    .progress = mem_progress,
    .fd = mem_fd,
    .arm = mem_arm,
    .tick = mem_tick,
    .state = mem_state,
    .memory = mem_memory};
