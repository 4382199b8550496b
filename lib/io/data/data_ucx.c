/* data_ucx.c - the carrier for networks that are more than TCP, and for shared
 * memory: UCX active messages, placed by the receiver.
 *
 * Never waits on UCX alone: every message and every fetch is an operation in
 * our own table and is on exactly one list: unused, active (UCX has it, its
 * endpoint lives), orphans (its endpoint is closed, UCX still has it),
 * fetching, or done (waiting to be told). UCX's callbacks only move operations
 * and set flags; endpoints are closed, and the owner is told, from progress().
 *
 * An endpoint without any completion for stall_ms is broken. Its operations
 * come back when it is closed by force; newer UCX keeps some of them for ever,
 * so an orphan that is stall_ms old (and a fetch of FETCH_STALLS times that)
 * has the whole worker destroyed and made anew: then every endpoint breaks,
 * everything completes, address() is another one and replaced() counts. A
 * sender need not tell anybody; a receiver has to publish its new address.
 * fd() stays the same number: poll it with poll(), an epoll set loses it.
 *
 * A message that fits one segment is eager, a larger one a rendezvous, on
 * transports that copy through the host; elsewhere UCX chooses, but for what
 * lies on a GPU: only a rendezvous can land on the other GPU straight.
 *
 * From arrived() only post() and fetch() may be called. One thread owns
 * everything; several progressing threads were rejected (UCX would lock). */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/list.h"
#include "base/log.h"
#include "wire/segment.h"
#include "io/data/tcp.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* What UCX and TCP put around header and payload, generously. */
#define FRAME_BYTES    128
#define FETCH_STALLS   4
#define CLOSE_LIMIT_NS (200 * NS_PER_MS)

static struct log_rate gone =
    LOG_RATE("rows whose memory is gone", LOG_WARN, 5);

struct op {
    struct list link;
    struct data *d;
    void *cookie;
    uint64_t since_ns; /* when tick() first saw it wait; 0: not yet */
    uint32_t ep;       /* of an active one */
    ucp_ep_h from;     /* of a fetch: UCX's own endpoint to the sender */
    bool fetch, ok;
    uint8_t *header;   /* DATA_HEADER_MAX, of one to send */
    ucp_dt_iov_t *iov; /* DATA_IOV_MAX; touched only as far as used */
    struct ucx_pack pack;
};

struct endpoint {
    ucp_ep_h h;
    uint64_t quiet_since_ns; /* outstanding, and nothing completed since */
    uint32_t outstanding;
    bool open, failed, broken, unreported;
    char transport[48];
};

struct data {
    struct data_conf conf;
    struct data_calls calls;
    struct ucx ucx;
    int fd; /* a copy of UCX's, so that its number can outlive a worker */
    uint32_t failures; /* endpoints with failed set and not looked at */
    uint32_t unreported, closing, replaced;
    bool inside; /* a callback from UCX is on the stack */
    struct list unused, unused_fetches;
    struct list active, orphans, fetching, done;
    struct endpoint *eps;
    struct op *ops; /* messages_max to send, fetches_max to fetch */
    uint8_t *headers;
    ucp_dt_iov_t *iovs;
    ucp_datatype_t packed;    /* of a struct ucx_pack */
    const struct data_in *in; /* the message that arrived() looks at */
    ucp_ep_h in_from;
    bool in_fetched;
};

/* operations */

static void op_complete(struct op *op, bool ok)
{
    struct data *d = op->d;
    struct list *n = &op->link;

    if (!op->fetch && op->ep != NONE) {
        d->eps[op->ep].outstanding--;
        d->eps[op->ep].quiet_since_ns = 0;
        op->ep = NONE;
    }
    op->ok = ok;
    list_remove(n);
    list_push_tail(&d->done, n);
}

static void complete_all(struct list *l)
{
    struct op *op;

    while ((op = LIST_FIRST(l, struct op, link)) != NULL)
        op_complete(op, false);
}

static void on_sent(void *request, ucs_status_t status, void *ud)
{
    op_complete(ud, status == UCS_OK);
    ucp_request_free(request);
}

static void on_fetched(void *request, ucs_status_t status, size_t len, void *ud)
{
    (void)len;
    op_complete(ud, status == UCS_OK);
    ucp_request_free(request);
}

static void on_closed(void *request, ucs_status_t status, void *ud)
{
    struct data *d = ud;

    (void)status;
    d->closing--;
    ucp_request_free(request);
}

/* Copies iov into op; returns the pieces that hold something. */
static uint32_t op_iov(
    struct op *op, const struct iovec *iov, uint32_t iovs, uint64_t *bytes)
{
    uint32_t n = 0;

    *bytes = 0;
    for (uint32_t i = 0; i < iovs; i++) {
        if (iov[i].iov_len == 0)
            continue;
        op->iov[n].buffer = iov[i].iov_base;
        op->iov[n++].length = iov[i].iov_len;
        *bytes += iov[i].iov_len;
    }
    return n;
}

/* How UCX is told of n pieces: one is a plain buffer, its fast path. Pieces in
 * GPU memory come alone. */
static void op_param(struct op *op, uint32_t n, ucp_request_param_t *param,
    const void **buffer, size_t *count)
{
    bool many = n > 1;

    param->op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK |
                           UCP_OP_ATTR_FIELD_USER_DATA |
                           UCP_OP_ATTR_FIELD_DATATYPE;
    param->user_data = op;
    param->datatype = many ? ucp_dt_make_iov() : ucp_dt_make_contig(1);
    *buffer = many ? op->iov : n ? op->iov[0].buffer : NULL;
    *count = many ? n : n ? op->iov[0].length : 0;
    ucx_memory_param(&op->d->ucx, n ? op->iov[0].buffer : NULL, param);
}

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* endpoints */

/* Any time inside progress, perhaps inside post: only says so. */
static void on_failed(void *arg, ucp_ep_h h, ucs_status_t status)
{
    struct data *d = arg;

    for (uint32_t i = 0; i < d->conf.endpoints_max; i++) {
        if (d->eps[i].h != h || d->eps[i].failed)
            continue;
        d->eps[i].failed = true;
        d->failures++;
        log_debug("ucx: endpoint %u: %s", i, ucs_status_string(status));
    }
}

static void close_by_force(struct data *d, ucp_ep_h h)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS |
                                                 UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = d};
    ucs_status_ptr_t r;

    d->closing++;
    r = ucp_ep_close_nbx(h, &param);
    if (UCS_PTR_IS_PTR(r))
        return; /* on_closed() will be called */
    d->closing--;
    if (UCS_PTR_IS_ERR(r))
        log_warn("ucx: closing an endpoint: %s",
            ucs_status_string(UCS_PTR_STATUS(r)));
}

/* Closes by force; what UCX still has of it becomes orphans. */
static void endpoint_close(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];
    ucp_ep_h h = ep->h;

    ep->h = NULL;
    LIST_FOREACH_SAFE (n, &d->active) {
        struct op *op = LIST_ENTRY(n, struct op, link);

        if (op->ep != i)
            continue;
        op->ep = NONE;
        op->since_ns = 0;
        list_remove(n);
        list_push_tail(&d->orphans, n);
    }
    ep->outstanding = 0;
    ep->quiet_since_ns = 0;
    if (h)
        close_by_force(d, h);
}

static void endpoint_break(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    if (!ep->open || ep->broken)
        return;
    ep->broken = ep->unreported = true;
    d->unreported++;
    endpoint_close(d, i);
}

static void break_failed(struct data *d)
{
    if (d->failures == 0)
        return;
    d->failures = 0;
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        if (d->eps[i].failed)
            endpoint_break(d, i);
}

/* ucp_ep_create believes every length inside the blob: so it gets a copy of
 * sane length with zeros behind it. That it comes from a peer which is let in
 * is the caller's to know. */
static enum err endpoint_create(struct data *d, uint32_t i, struct span address)
{
    uint8_t copy[2 * UCX_ADDRESS_MAX] = {0};
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)copy,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_failed, .arg = d}};
    ucs_status_t s;

    memcpy(copy, address.p, address.len);
    s = ucp_ep_create(d->ucx.worker, &params, &d->eps[i].h);
    if (s == UCS_OK)
        return OK;
    log_warn("ucx: no endpoint with transports %s on %s: %s", d->conf.tls,
        d->conf.devices, ucs_status_string(s));
    d->eps[i].h = NULL;
    return ERR_PEER_LOST;
}

static ucs_status_t on_arrived(void *arg, const void *header, size_t header_len,
    void *data, size_t len, const ucp_am_recv_param_t *param);

/* Opens a worker and gives its descriptor our number. */
static enum err worker_open(struct data *d)
{
    enum err e = ucx_open(&d->ucx, &d->conf, on_arrived, d);

    if (e != OK)
        return e;
    if (d->fd < 0)
        d->fd = fcntl(d->ucx.fd, F_DUPFD_CLOEXEC, 3);
    else if (dup3(d->ucx.fd, d->fd, O_CLOEXEC) < 0)
        e = ERR_INTERNAL;
    if (d->fd >= 0 && e == OK)
        return OK;
    log_error("ucx: no file descriptor left");
    ucx_close(&d->ucx);
    return ERR_INTERNAL;
}

/* A worker that is destroyed with a fetch outstanding aborts the process (in
 * builds of UCX with its assertions, as Debian's), so the endpoints that UCX
 * made for their senders are closed first. One that has failed by itself has
 * no fetch any more, so none of these is stale. */
static void close_fetches(struct data *d)
{
    ucp_ep_h from;

    do {
        from = NULL;
        LIST_FOREACH (n, &d->fetching) {
            struct op *op = LIST_ENTRY(n, struct op, link);

            from = from ? from : op->from;
            op->from = op->from == from ? NULL : op->from;
        }
        if (from)
            close_by_force(d, from);
    } while (from);
}

/* The end of everything that UCX has of ours, all endpoints being closed; a
 * moment is given to it for an end in order. */
static void worker_close(struct data *d)
{
    uint64_t limit_ns = clock_ns() + CLOSE_LIMIT_NS;

    d->inside = true; /* what still arrives is dropped */
    close_fetches(d);
    while (
        d->ucx.worker && clock_ns() < limit_ns &&
        (d->closing || !list_empty(&d->orphans) || !list_empty(&d->fetching)))
        ucp_worker_progress(d->ucx.worker);
    ucx_close(&d->ucx);
    d->inside = false;
    complete_all(&d->active);
    complete_all(&d->orphans);
    complete_all(&d->fetching);
    d->closing = d->failures = 0;
}

static void worker_replace(struct data *d)
{
    log_warn("ucx: operations never complete: the worker is replaced");
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        endpoint_break(d, i);
    worker_close(d);
    d->replaced++;
    if (worker_open(d) != OK)
        log_error("ucx: no new worker; the next connect tries again");
}

static enum err ucx_connect(struct data *d, uint32_t i, struct span address)
{
    struct endpoint *ep = &d->eps[i];
    enum err e = OK;

    CHECK(i < d->conf.endpoints_max && !ep->open, "endpoint %u", i);
    CHECK(!d->inside, "connect inside arrived()");
    if (tcp_place_looks_so(address))
        log_warn("ucx: a data address of carrier tcp: is transfer.carrier the "
                 "same on both sides?");
    if (tcp_place_looks_so(address) || address.len < UCX_ADDRESS_MIN ||
        address.len > UCX_ADDRESS_MAX)
        return ERR_MALFORMED;
    if (!d->ucx.worker)
        e = worker_open(d);
    if (e != OK)
        return e;
    *ep = (struct endpoint){.open = true};
    e = endpoint_create(d, i, address);
    if (e != OK)
        ep->open = false;
    return e;
}

static void ucx_disconnect(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];

    CHECK(i < d->conf.endpoints_max && ep->open, "endpoint %u", i);
    CHECK(!d->inside, "disconnect inside arrived()");
    endpoint_close(d, i);
    d->unreported -= ep->unreported;
    ep->open = ep->unreported = ep->failed = false;
}

static const char *ucx_name(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];
    char lanes[40];

    CHECK(i < d->conf.endpoints_max, "endpoint %u", i);
    if (ep->h && !ep->transport[0]) {
        ucx_transport(ep->h, lanes, sizeof(lanes));
        if (lanes[0])
            snprintf(ep->transport, sizeof(ep->transport), "ucx:%s", lanes);
    }
    return ep->transport;
}

/* messages */

/* Rows whose pages engines have taken out of their pool go as zeros, as from a
 * hole in small pages: the kernel would fail the endpoint, each time again. */
static const void *zeros_for(const void *rows, size_t n)
{
    const void *zeros = guard_zeros(n);

    log_rated(&gone, "ucx: pages of a pool were taken away: zeros are sent");
    return zeros ? zeros : rows;
}

/* How a message of n pieces goes. One piece that fits a segment is sent from
 * where it lies. All else is packed by us into UCX's buffers: UCX 1.13 over
 * TCP aborts the process (comp->count) when the peer goes during a zero-copy
 * message of several pieces or fragments. The copy costs some 5 % of the CPU
 * time of a byte's way. A reply endpoint is asked for where there
 * may be a rendezvous: close_fetches() needs it. */
static void send_param(struct data *d, struct op *op, uint32_t n,
    uint64_t bytes, ucp_request_param_t *param, const void **buffer,
    size_t *count)
{
    bool fits = bytes + FRAME_BYTES <= d->conf.segment_bytes;

    param->op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param->cb.send = on_sent;
    op_param(op, n, param, buffer, count);
    if (!d->ucx.host_only) {
        param->flags = UCP_AM_SEND_FLAG_REPLY;
        if (ucx_memory_gpu(param))
            param->flags |= UCP_AM_SEND_FLAG_RNDV;
        return;
    }
    param->flags = fits ? UCP_AM_SEND_FLAG_EAGER
                        : UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
    if (fits && n <= 1) {
        if (n == 1 && !guard_readable(*buffer, *count))
            *buffer = zeros_for(*buffer, *count);
        return;
    }
    op->pack.iov = op->iov;
    op->pack.iovs = n;
    param->datatype = d->packed;
    *buffer = &op->pack;
    *count = 1;
}

static enum err send_refused(struct data *d, struct op *op, ucs_status_t s)
{
    struct endpoint *ep = &d->eps[op->ep];

    ep->outstanding--;
    list_remove(&op->link);
    list_push_head(&d->unused, &op->link);
    if (s == UCS_ERR_NO_MEMORY || s == UCS_ERR_NO_RESOURCE)
        return ERR_BUSY;
    log_debug("ucx: endpoint %u: send: %s", op->ep, ucs_status_string(s));
    if (!ep->failed) {
        ep->failed = true;
        d->failures++;
    }
    return ERR_PEER_LOST;
}

static enum err ucx_post(struct data *d, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    struct endpoint *ep = &d->eps[i];
    ucp_request_param_t param = {0};
    const void *buffer;
    size_t count;
    uint64_t bytes;
    uint32_t n;
    struct op *op;
    ucs_status_ptr_t r;

    CHECK(i < d->conf.endpoints_max && ep->open, "endpoint %u", i);
    CHECK(iovs <= DATA_IOV_MAX && header.len <= DATA_HEADER_MAX,
        "%u pieces, %u header bytes", iovs, header.len);
    if (ep->broken || ep->failed)
        return ERR_PEER_LOST;
    if (list_empty(&d->unused))
        return ERR_BUSY;
    op = LIST_ENTRY(list_pop(&d->unused), struct op, link);
    op->cookie = cookie;
    op->ep = i;
    if (header.len)
        memcpy(op->header, header.p, header.len);
    n = op_iov(op, iov, iovs, &bytes);
    send_param(d, op, n, header.len + bytes, &param, &buffer, &count);
    ep->outstanding++;
    list_push_tail(&d->active, &op->link);
    r = ucp_am_send_nbx(
        ep->h, UCX_AM_ID, op->header, header.len, buffer, count, &param);
    if (UCS_PTR_IS_ERR(r))
        return send_refused(d, op, UCS_PTR_STATUS(r));
    if (r == NULL)
        op_complete(op, true); /* no callback then; told by progress() */
    return OK;
}

static ucs_status_t on_arrived(void *arg, const void *header, size_t header_len,
    void *data, size_t len, const ucp_am_recv_param_t *param)
{
    struct data *d = arg;
    bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    struct data_in in = {.header = span_of(header, header_len),
        .data = rendezvous ? NULL : data,
        .len = len,
        .handle = rendezvous ? data : NULL};
    bool kept;

    if (d->inside) /* destroying a worker: nobody wants it any more */
        return UCS_OK;
    d->inside = true;
    d->in = &in;
    d->in_from = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                     ? param->reply_ep
                     : NULL;
    d->in_fetched = false;
    kept = d->calls.arrived(d->calls.ud, d, &in);
    CHECK(!kept || !rendezvous || d->in_fetched,
        "a rendezvous of %zu bytes was kept and not fetched", len);
    d->in = NULL;
    d->inside = false;
    /* Also after a fetch: UCX knows that it has begun. */
    return UCS_OK;
}

static enum err ucx_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    ucp_request_param_t param = {.cb.recv_am = on_fetched};
    const void *buffer;
    size_t count;
    uint64_t bytes;
    struct op *op;
    ucs_status_ptr_t r;

    CHECK(in == d->in && in->handle && !d->in_fetched, "nothing to fetch");
    CHECK(iovs <= DATA_IOV_MAX, "%u pieces", iovs);
    if (list_empty(&d->unused_fetches))
        return ERR_BUSY;
    op = LIST_FIRST(&d->unused_fetches, struct op, link);
    op_param(op, op_iov(op, iov, iovs, &bytes), &param, &buffer, &count);
    if (bytes != in->len)
        return ERR_MALFORMED;
    op->cookie = cookie;
    op->since_ns = 0;
    op->from = d->in_from;
    d->in_fetched = true;
    list_remove(&op->link);
    list_push_tail(&d->fetching, &op->link);
    r = ucp_am_recv_data_nbx(
        d->ucx.worker, in->handle, (void *)(uintptr_t)buffer, count, &param);
    /* UCX has taken the message even when it failed: so it is told later. */
    if (!UCS_PTR_IS_PTR(r))
        op_complete(op, r == NULL);
    return OK;
}

/* turns */

static unsigned report_done(struct data *d)
{
    unsigned count = 0;

    /* Bounded: a callback may post what completes at once. */
    for (; count < d->conf.messages_max + d->conf.fetches_max; count++) {
        struct list *n = list_pop(&d->done);
        struct op *op;

        if (!n)
            break;
        op = LIST_ENTRY(n, struct op, link);
        list_push_head(op->fetch ? &d->unused_fetches : &d->unused, n);
        if (op->fetch)
            d->calls.fetched(d->calls.ud, op->cookie, op->ok);
        else
            d->calls.done(d->calls.ud, op->cookie);
    }
    return count;
}

static unsigned report_broken(struct data *d)
{
    unsigned count = 0;

    for (uint32_t i = 0; d->unreported && i < d->conf.endpoints_max; i++) {
        if (!d->eps[i].unreported)
            continue;
        d->eps[i].unreported = false;
        d->unreported--;
        count++;
        d->calls.broken(d->calls.ud, i);
    }
    return count;
}

static unsigned ucx_progress(struct data *d)
{
    unsigned count = 0;

    CHECK(!d->inside, "progress inside arrived()");
    if (d->ucx.worker)
        count = ucp_worker_progress(d->ucx.worker);
    break_failed(d);
    count += report_done(d);
    return count + report_broken(d);
}

static int ucx_fd(struct data *d)
{
    return d->fd;
}

static struct log_rate arms =
    LOG_RATE("workers that cannot be armed", LOG_ERROR, 1);

static enum err ucx_arm(struct data *d)
{
    ucs_status_t s;

    if (!list_empty(&d->done) || d->failures || d->unreported)
        return ERR_BUSY;
    if (!d->ucx.worker)
        return OK;
    s = ucp_worker_arm(d->ucx.worker);
    if (s == UCS_OK || s == UCS_ERR_BUSY)
        return s == UCS_OK ? OK : ERR_BUSY;
    /* To be busy would be to spin: who polls looks again after a while. */
    log_rated(&arms, "ucx: ucp_worker_arm: %s", ucs_status_string(s));
    return OK;
}

/* Has one of l waited for limit_ns? Notes the time of those not seen before. */
static bool one_waits(struct list *l, uint64_t now_ns, uint64_t limit_ns)
{
    bool old = false;

    LIST_FOREACH (n, l) {
        struct op *op = LIST_ENTRY(n, struct op, link);

        if (op->since_ns == 0)
            op->since_ns = now_ns;
        old |= now_ns - op->since_ns >= limit_ns;
    }
    return old;
}

static void ucx_tick(struct data *d, uint64_t now_ns)
{
    uint64_t limit_ns = d->conf.stall_ms * NS_PER_MS;
    bool orphan_waits, fetch_waits;

    CHECK(!d->inside, "tick inside arrived()");
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++) {
        struct endpoint *ep = &d->eps[i];

        if (ep->outstanding == 0)
            continue;
        if (ep->quiet_since_ns == 0)
            ep->quiet_since_ns = now_ns;
        if (now_ns - ep->quiet_since_ns < limit_ns)
            continue;
        log_warn("ucx: endpoint %u: %u messages without progress for %u ms", i,
            ep->outstanding, d->conf.stall_ms);
        endpoint_break(d, i);
    }
    orphan_waits = one_waits(&d->orphans, now_ns, limit_ns);
    fetch_waits = one_waits(&d->fetching, now_ns, FETCH_STALLS * limit_ns);
    if (orphan_waits || fetch_waits)
        worker_replace(d);
}

static bool ucx_gpu_memory(struct data *d, const void *base, uint64_t bytes)
{
    return ucx_memory_add(&d->ucx, base, bytes);
}

static uint32_t ucx_replaced(struct data *d)
{
    return d->replaced;
}

/* open and close */

static struct span ucx_address(struct data *d)
{
    return span_of(d->ucx.address, d->ucx.address_len);
}

static void ucx_free(struct data *d)
{
    if (d->fd >= 0)
        close(d->fd);
    if (d->packed)
        ucp_dt_destroy(d->packed);
    free(d->eps);
    free(d->ops);
    free(d->headers);
    free(d->iovs);
    free(d);
}

/* The lists are used from the head, so that of all this memory only as much is
 * touched as is in use at once. */
static bool take_memory(struct data *d)
{
    struct list *lists[] = {&d->unused, &d->unused_fetches, &d->active,
        &d->orphans, &d->fetching, &d->done};
    uint32_t n = d->conf.messages_max, all = n + d->conf.fetches_max;

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    d->eps = calloc(d->conf.endpoints_max, sizeof(*d->eps));
    d->ops = calloc(all, sizeof(*d->ops));
    d->iovs = calloc((size_t)all * DATA_IOV_MAX, sizeof(*d->iovs));
    d->headers = calloc(n, DATA_HEADER_MAX);
    if (!d->eps || !d->ops || !d->headers || !d->iovs)
        return false;
    for (uint32_t i = 0; i < all; i++) {
        struct op *op = &d->ops[i];

        op->d = d;
        op->ep = NONE;
        op->fetch = i >= n;
        op->header =
            op->fetch ? NULL : d->headers + (size_t)i * DATA_HEADER_MAX;
        op->iov = d->iovs + (size_t)i * DATA_IOV_MAX;
        list_push_tail(op->fetch ? &d->unused_fetches : &d->unused, &op->link);
    }
    return true;
}

static enum err ucx_carrier_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data *d = calloc(1, sizeof(*d));
    enum err e = ERR_INTERNAL;

    CHECK(c->segment_bytes > 0 && c->messages_max > 0 && c->endpoints_max > 0,
        "segment_bytes, messages_max and endpoints_max are needed");
    if (!d) {
        log_error("data_ucx: out of memory");
        return ERR_INTERNAL;
    }
    d->conf = *c;
    d->calls = *calls;
    d->fd = d->ucx.fd = -1;
    if (take_memory(d) && ucx_pack_type(&d->packed) == OK)
        e = worker_open(d);
    else
        log_error("data_ucx: no memory for %u messages", c->messages_max);
    if (e != OK) {
        ucx_free(d);
        return e;
    }
    *out = d;
    return OK;
}

static void ucx_carrier_close(struct data **dp)
{
    struct data *d = *dp;

    if (!d)
        return;
    CHECK(!d->inside, "close inside arrived()");
    for (uint32_t i = 0; i < d->conf.endpoints_max; i++)
        if (d->eps[i].open)
            endpoint_break(d, i);
    worker_close(d);
    report_done(d);
    ucx_free(d);
    *dp = NULL;
}

const struct data_ops data_ucx = {.name = "ucx",
    .open = ucx_carrier_open,
    .close = ucx_carrier_close,
    .address = ucx_address,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .post = ucx_post,
    .fetch = ucx_fetch,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .tick = ucx_tick,
    .transport = ucx_name,
    .gpu_memory = ucx_gpu_memory,
    .replaced = ucx_replaced};
