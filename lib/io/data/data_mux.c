/* data_mux.c - several carriers as one: each endpoint goes by the one that
 * choose() named before its connect(), and what arrives comes from any.
 *
 * The others do all of the work; this file only knows which of them an
 * endpoint, or the callback that is running, belongs to. Rejected: a list of
 * carriers in the shard, which would then hold several descriptors, addresses
 * and counts wherever it holds one today. Owned as data.h says.
 *
 * While it is lent to another thread, parts that not any thread may call rest.
 * The other thread sees by the descriptor when one of them has news, and gives
 * the work back then: so small rooms by TCP wake no thread while UCX is open
 * and quiet. */
#include "io/data.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PARTS_MAX 4
#define LOOK_EACH 16

static struct log_rate unwatched =
    LOG_RATE("carriers that cannot be polled", LOG_ERROR, 5);

/* One of the carriers. `ops` NULL: it could not be opened. */
struct part {
    const struct data_ops *ops;
    struct data *d;
    struct data *mux;
    int watched;       /* its descriptor in the epoll */
    uint32_t replaced; /* its count when that was put there */
};

struct data {
    struct data_conf conf;
    struct data_calls calls;
    struct part parts[PARTS_MAX];
    uint32_t parts_count;
    const struct part *inside; /* whose arrived() is on the stack */
    const struct part **of;    /* by endpoint; NULL: not chosen */
    int epoll;
    bool lent;     /* see lend() */
    bool wanted;   /* see wants_thread() */
    uint32_t busy; /* calls of progress that had something, while lent */
    uint8_t *address;
    uint32_t address_len;
    struct data_counts counts;
};

/* True if the caller may call the part, which is open. */
static bool callable(const struct data *d, const struct part *p)
{
    return p->ops->any_thread || !d->lent;
}

/* Returns an endpoint's part, to be called. */
static struct part *part_of(struct data *d, uint32_t ep)
{
    CHECK(ep < d->conf.endpoints_max && d->of[ep],
        "endpoint %u has no carrier yet", ep);
    CHECK(callable(d, d->of[ep]), "%s is called by another thread",
        d->of[ep]->ops->name);
    d->wanted |= !d->of[ep]->ops->any_thread;
    return (struct part *)d->of[ep];
}

/* calls of the parts */

static bool on_arrived(void *ud, struct data *inner, const struct data_in *in)
{
    const struct part *p = ud;
    bool kept;

    (void)inner;
    CHECK(!p->mux->inside, "two carriers call at once");
    p->mux->inside = p;
    kept = p->mux->calls.arrived(p->mux->calls.ud, p->mux, in);
    p->mux->inside = NULL;
    return kept;
}

static void on_fetched(void *ud, void *cookie, bool ok)
{
    const struct data *d = ((const struct part *)ud)->mux;

    d->calls.fetched(d->calls.ud, cookie, ok);
}

static void on_done(void *ud, void *cookie)
{
    const struct data *d = ((const struct part *)ud)->mux;

    d->calls.done(d->calls.ud, cookie);
}

static void on_broken(void *ud, uint32_t ep)
{
    const struct data *d = ((const struct part *)ud)->mux;

    d->calls.broken(d->calls.ud, ep);
}

static void on_connected(void *ud, uint32_t ep)
{
    const struct data *d = ((const struct part *)ud)->mux;

    d->calls.connected(d->calls.ud, ep);
}

/* opening */

static void mux_close(struct data **dp)
{
    struct data *d = *dp;

    if (!d)
        return;
    CHECK(!d->inside, "close inside arrived()");
    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops)
            d->parts[i].ops->close(&d->parts[i].d);
    if (d->epoll >= 0)
        (void)close(d->epoll);
    free(d->of);
    free(d->address);
    free(d);
    *dp = NULL;
}

/* Watches the descriptor of a part, which is another one after its worker was
 * replaced; that takes the old one out of the epoll. */
static enum err watch(struct data *d, struct part *p)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};
    uint32_t replaced = p->ops->replaced(p->d);
    int fd = p->ops->fd(p->d);

    if (p->watched == fd && p->replaced == replaced)
        return OK;
    if (epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &ev) != 0 && errno != EEXIST) {
        log_rated(&unwatched, "%s cannot be polled: %s", p->ops->name,
            strerror(errno));
        return ERR_INTERNAL;
    }
    p->watched = fd;
    p->replaced = replaced;
    return OK;
}

static enum err open_part(struct data *d, struct part *p)
{
    const struct data_calls calls = {.ud = p,
        .arrived = on_arrived,
        .fetched = on_fetched,
        .done = on_done,
        .broken = on_broken,
        .connected = d->calls.connected ? on_connected : NULL};
    enum err e = p->ops->open(&p->d, &d->conf, &calls);

    if (e == OK)
        e = watch(d, p);
    if (e == OK)
        return OK;
    if (p->ops->place)
        log_error("tcp: cannot be opened, and every pair of daemons may have "
                  "to fall back to it");
    else
        log_warn("rows do not go by %s", p->ops->name);
    if (p->d)
        p->ops->close(&p->d);
    p->ops = NULL;
    return e;
}

/* Writes "number, u16 length, address" of each part. */
static enum err gather_addresses(struct data *d)
{
    struct writer w = writer_of(d->address, DATA_MUX_ADDRESS_MAX);

    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct part *p = &d->parts[i];

        if (!p->ops)
            continue;
        put_u8(&w, p->ops->number);
        put_span(&w, p->ops->address(p->d), 2, UINT16_MAX);
    }
    d->address_len = (uint32_t)w.len;
    return w.failed ? ERR_TOO_LARGE : OK;
}

static enum err mux_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data *d = calloc(1, sizeof(*d));
    bool opened = true;

    if (!d)
        return ERR_INTERNAL;
    d->conf = *c;
    d->calls = *calls;
    d->of = calloc(max_u32(c->endpoints_max, 1), sizeof(struct part *));
    d->address = malloc(DATA_MUX_ADDRESS_MAX);
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; d->of && d->address && d->epoll >= 0 && c->carriers[i];
         i++) {
        struct part *p = &d->parts[i];

        CHECK(i < PARTS_MAX, "more than %d carriers", PARTS_MAX);
        *p = (struct part){c->carriers[i], NULL, d, -1, 0};
        d->parts_count++;
        opened = (open_part(d, p) == OK || !c->carriers[i]->place) && opened;
    }
    if (d->parts_count > 0 && opened && gather_addresses(d) == OK) {
        *out = d;
        return OK;
    }
    mux_close(&d);
    return ERR_INTERNAL;
}

/* addresses and endpoints */

static struct span mux_address(struct data *d)
{
    return span_of(d->address, d->address_len);
}

struct span data_mux_address(struct span address, uint8_t number)
{
    struct reader r = reader_of(address.p, address.len);

    while (!r.failed && r.at < r.len) {
        uint8_t n = get_u8(&r);
        struct span a = get_span(&r, 2, UINT16_MAX);

        if (n == number && !r.failed)
            return a;
    }
    return span_of(NULL, 0);
}

/* Returns the place of the part that has one: TCP. */
static struct span mux_place(struct data *d)
{
    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && d->parts[i].ops->place)
            return d->parts[i].ops->place(d->parts[i].d);
    return span_of(NULL, 0);
}

static bool mux_choose(struct data *d, uint32_t ep, uint8_t number)
{
    CHECK(ep < d->conf.endpoints_max, "endpoint %u", ep);
    d->of[ep] = NULL;
    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && d->parts[i].ops->number == number)
            d->of[ep] = &d->parts[i];
    return d->of[ep] != NULL;
}

static void mux_prove(struct data *d, uint32_t ep, struct span key)
{
    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && d->parts[i].ops->prove)
            d->parts[i].ops->prove(d->parts[i].d, ep, key);
}

static void mux_admit(struct data *d, uint32_t who, struct span key)
{
    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && d->parts[i].ops->admit)
            d->parts[i].ops->admit(d->parts[i].d, who, key);
}

static enum err mux_connect(struct data *d, uint32_t ep, struct span address)
{
    const struct part *p = part_of(d, ep);

    return p->ops->connect(p->d, ep, address);
}

static void mux_disconnect(struct data *d, uint32_t ep)
{
    const struct part *p = part_of(d, ep);

    p->ops->disconnect(p->d, ep);
}

static const char *mux_transport(struct data *d, uint32_t ep)
{
    const struct part *p = part_of(d, ep);

    return p->ops->transport(p->d, ep);
}

static enum trouble mux_why(struct data *d, uint32_t ep, const char **text)
{
    const struct part *p = d->of[ep];

    CHECK(ep < d->conf.endpoints_max, "endpoint %u", ep);
    return p ? p->ops->why(p->d, ep, text) : TROUBLE_NONE;
}

/* messages */

static enum err mux_post(struct data *d, uint32_t ep, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    const struct part *p = part_of(d, ep);

    return p->ops->post(p->d, ep, header, iov, iovs, cookie);
}

static enum err mux_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    CHECK(d->inside, "fetch outside arrived()");
    return d->inside->ops->fetch(d->inside->d, in, iov, iovs, cookie);
}

static bool mux_whole(struct data *d, const struct data_in *in)
{
    const struct part *p = d->inside;

    CHECK(p, "whole outside arrived()");
    return p->ops->whole && p->ops->whole(p->d, in);
}

/* turns */

/* Looks for news of parts that the caller may not call. */
static void look_for_news(struct data *d)
{
    struct epoll_event ev[PARTS_MAX];
    int n = epoll_wait(d->epoll, ev, PARTS_MAX, 0);

    for (int i = 0; i < n; i++)
        d->wanted |= !callable(d, ev[i].data.ptr);
}

static unsigned mux_progress(struct data *d)
{
    unsigned n = 0, k;

    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct part *p = &d->parts[i];

        if (!p->ops || !callable(d, p))
            continue;
        k = p->ops->progress(p->d);
        n += k;
        d->wanted |= k > 0 && !p->ops->any_thread;
    }
    /* Beside a part that always has something, others wait a little. */
    if (d->lent && (n == 0 || ++d->busy % LOOK_EACH == 0))
        look_for_news(d);
    return n;
}

static void mux_lend(struct data *d, bool lent)
{
    CHECK(!d->inside, "lent inside arrived()");
    d->lent = lent;
}

static bool mux_by_thread(struct data *d, uint8_t number)
{
    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct data_ops *ops = d->parts[i].ops;

        if (ops && !ops->any_thread &&
            (number == CARRIER_AUTO || number == ops->number))
            return true;
    }
    return false;
}

static bool mux_wants_thread(struct data *d)
{
    bool wanted = d->wanted;

    d->wanted = false;
    return wanted;
}

static int mux_fd(struct data *d)
{
    return d->epoll;
}

static enum err mux_arm(struct data *d)
{
    for (uint32_t i = 0; i < d->parts_count; i++) {
        struct part *p = &d->parts[i];
        enum err e;

        if (!p->ops || !callable(d, p))
            continue;
        e = watch(d, p);
        if (e == OK)
            e = p->ops->arm(p->d);
        if (e != OK)
            return e;
    }
    return OK;
}

static uint32_t mux_replaced(struct data *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops)
            n += d->parts[i].ops->replaced(d->parts[i].d);
    return n;
}

static void mux_tick(struct data *d, uint64_t now_ns)
{
    uint32_t before = mux_replaced(d);

    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && callable(d, &d->parts[i]))
            d->parts[i].ops->tick(d->parts[i].d, now_ns);
    if (mux_replaced(d) != before)
        CHECK(gather_addresses(d) == OK, "a carrier's address has grown");
}

/* At most one part knows of GPUs, so true is of that one. */
static bool mux_gpu_memory(struct data *d, const void *base, uint64_t bytes)
{
    const struct part *with = NULL;

    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct part *p = &d->parts[i];

        if (!p->ops || !p->ops->gpu_memory)
            continue;
        CHECK(!with, "%s and %s reach GPUs", with->ops->name, p->ops->name);
        with = p;
    }
    return with && with->ops->gpu_memory(with->d, base, bytes);
}

static bool mux_reaches(struct data *d, uint8_t number)
{
    if (number == CARRIER_AUTO)
        return d->inside && d->inside->ops->gpu_memory;
    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct data_ops *ops = d->parts[i].ops;

        if (ops && ops->number == number)
            return ops->gpu_memory != NULL;
    }
    return false;
}

static bool mux_host_memory(struct data *d, const void *base, uint64_t bytes)
{
    bool alone = false;

    for (uint32_t i = 0; i < d->parts_count; i++)
        if (d->parts[i].ops && d->parts[i].ops->host_memory)
            alone |= d->parts[i].ops->host_memory(d->parts[i].d, base, bytes);
    return alone;
}

static const struct data_counts *mux_counts(struct data *d)
{
    d->counts = (struct data_counts){0};
    for (uint32_t i = 0; i < d->parts_count; i++) {
        const struct part *p = &d->parts[i];
        const struct data_counts *c =
            p->ops && p->ops->counts ? p->ops->counts(p->d) : NULL;

        if (!c)
            continue;
        d->counts.strangers += c->strangers;
        d->counts.unproven += c->unproven;
        d->counts.malformed += c->malformed;
        d->counts.refused += c->refused;
    }
    return &d->counts;
}

const struct data_ops data_mux = {.name = "mux",
    .any_thread = true,
    .open = mux_open,
    .close = mux_close,
    .address = mux_address,
    .place = mux_place,
    .choose = mux_choose,
    .prove = mux_prove,
    .admit = mux_admit,
    .connect = mux_connect,
    .disconnect = mux_disconnect,
    .post = mux_post,
    .fetch = mux_fetch,
    .whole = mux_whole,
    .progress = mux_progress,
    .fd = mux_fd,
    .arm = mux_arm,
    .tick = mux_tick,
    .transport = mux_transport,
    .why = mux_why,
    .gpu_memory = mux_gpu_memory,
    .reaches = mux_reaches,
    .host_memory = mux_host_memory,
    .lend = mux_lend,
    .by_thread = mux_by_thread,
    .wants_thread = mux_wants_thread,
    .replaced = mux_replaced,
    .counts = mux_counts};
