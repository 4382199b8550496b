/* data_ucx.c - the carrier for networks beyond TCP, and for shared memory: UCX
 * active messages, placed by the receiver.
 *
 * Never waits on UCX alone: every message and every fetch is an operation of
 * carrier.h. Its lists here: orphans (the endpoint is closed, UCX still has the
 * message) and fetching. UCX's callbacks only move operations and set flags;
 * endpoints are closed, and the owner is notified, from progress().
 *
 * An endpoint without any completion for stall_ms is broken. Closing it by
 * force returns its operations, but newer UCX keeps some of them for ever. So
 * when an orphan is stall_ms old (a fetch: FETCH_STALLS times that), the whole
 * worker is destroyed and created again: every endpoint breaks, everything
 * completes, and address() changes. A receiver must publish
 * its new address, a sender need not. fd() stays the same number: use poll(),
 * since an epoll set loses it.
 *
 * Rows in one contiguous piece go by rendezvous, without a copy, on endpoints
 * with a transport that can do this (RDMA, CMA), and always from a GPU. A
 * message is eager if it fits a segment and is copied.
 *
 * From arrived() only post() and fetch() may be called. One thread owns
 * everything. Rejected: several progressing threads. UCX would lock. */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/carrier.h"
#include "io/data/tcp.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* No fewer bytes than UCX and TCP add to header and payload. */
#define FRAME_BYTES    128
#define FETCH_STALLS   4
#define CLOSE_LIMIT_NS (200 * NS_PER_MS)
/* A rendezvous costs a round trip, and the receiver an entry for the fetch. */
#define ZERO_COPY_BYTES (32u << 10)
#define ZERO_COPY_EACH  8        /* in flight per endpoint */
#define WORKER_EACH_NS  NS_PER_S /* between two attempts to open a worker */
#define ADDRESS_SLACK   1024     /* zero bytes behind a peer's address */

static struct log_rate gone =
    LOG_RATE("rows whose pages were removed", LOG_WARN, 5);

struct op {
    struct carrier_op op;
    struct data *d;
    uint64_t since_ns; /* when tick() first saw the operation wait; 0: never */
    ucp_ep_h from;     /* of a fetch: UCX's own endpoint to the sender */
    bool zero_copy;    /* counted by its endpoint */
    struct ucx_pack pack;
};

struct endpoint {
    ucp_ep_h h;
    char transport[48];
    uint32_t zero_copies; /* of its messages in flight */
    bool reaches;         /* the peer can read our memory in place */
};

struct data {
    struct carrier c; /* first: carrier.h's struct data is this member */
    struct ucx ucx;
    int fd; /* a duplicate of UCX's, whose number outlives a worker */
    uint32_t failures; /* endpoints whose `failed` was not handled yet */
    uint32_t closing;
    uint64_t worker_tried_ns; /* last attempt of tick() while there is no
                                 worker */
    struct list orphans, fetching;
    struct endpoint *eps;     /* endpoints_max */
    ucp_datatype_t packed;    /* type of a struct ucx_pack */
    const struct data_in *in; /* the message that arrived() is called for */
    ucp_ep_h in_from;
    bool in_fetched;
};

/* operations */

static struct op *op_of(struct list *n)
{
    return LIST_ENTRY(n, struct op, op.link);
}

/* Updates the endpoint's counts; call before op leaves it. */
static void op_leaves(struct op *op)
{
    struct endpoint *ep;

    if (op->op.ep == NONE)
        return;
    ep = &op->d->eps[op->op.ep];
    CHECK(ep->zero_copies >= op->zero_copy, "endpoint %u", op->op.ep);
    ep->zero_copies -= op->zero_copy;
    op->zero_copy = false;
}

static void op_complete(struct op *op, bool ok)
{
    op_leaves(op);
    carrier_complete(&op->d->c, &op->op, ok);
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
    CHECK(d->closing > 0, "an endpoint closes twice");
    d->closing--;
    ucp_request_free(request);
}

/* UCX's pieces have the layout of struct iovec. */
_Static_assert(
    sizeof(ucp_dt_iov_t) == sizeof(struct iovec) &&
        offsetof(ucp_dt_iov_t, length) == offsetof(struct iovec, iov_len),
    "a piece is not a struct iovec");

/* Describes op's pieces to UCX. A single piece is a plain buffer, UCX's fast
 * path, with its registration. A piece in GPU memory is always single. */
static void op_param(struct op *op, ucp_request_param_t *param,
    const void **buffer, size_t *count)
{
    const struct iovec *iov = op->op.iov + 1;
    uint32_t n = op->op.iovs - 1;

    param->op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK |
                           UCP_OP_ATTR_FIELD_USER_DATA |
                           UCP_OP_ATTR_FIELD_DATATYPE;
    param->user_data = op;
    param->datatype = n > 1 ? ucp_dt_make_iov() : ucp_dt_make_contig(1);
    *buffer = n > 1 ? iov : n ? iov->iov_base : NULL;
    *count = n > 1 ? n : n ? iov->iov_len : 0;
    if (n == 1)
        ucx_memory_param(&op->d->ucx, *buffer, *count, param);
}

/* endpoints */

/* Called inside progress, perhaps inside post: only marks the endpoint. */
static void endpoint_fails(struct data *d, uint32_t i, ucs_status_t s)
{
    if (d->c.ends[i].failed)
        return;
    d->c.ends[i].failed = true;
    d->failures++;
    carrier_blame(&d->c, i,
        d->c.ends[i].answered           ? TROUBLE_DATA_LOST
        : s == UCS_ERR_ENDPOINT_TIMEOUT ? TROUBLE_DATA_TIMEOUT
                                        : TROUBLE_DATA_ROUTE,
        ucs_status_string(s));
    log_debug("ucx: endpoint %u: %s", i, ucs_status_string(s));
}

static void on_failed(void *arg, ucp_ep_h h, ucs_status_t status)
{
    struct data *d = arg;

    for (uint32_t i = 0; i < d->c.conf.endpoints_max; i++)
        if (d->eps[i].h == h)
            endpoint_fails(d, i, status);
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
        return; /* on_closed() is called later */
    d->closing--;
    if (UCS_PTR_IS_ERR(r))
        log_warn("ucx: closing an endpoint: %s",
            ucs_status_string(UCS_PTR_STATUS(r)));
}

/* Closes by force; operations that UCX still has become orphans. */
static void endpoint_close(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];
    struct list *ops = &d->c.ends[i].ops;
    ucp_ep_h h = ep->h;
    struct op *op;

    ep->h = NULL;
    while ((op = LIST_FIRST(ops, struct op, op.link)) != NULL) {
        op->since_ns = 0;
        op_leaves(op);
        carrier_move(&d->c, &op->op, &d->orphans);
    }
    if (h)
        close_by_force(d, h);
}

static void break_failed(struct data *d)
{
    if (d->failures == 0)
        return;
    d->failures = 0;
    for (uint32_t i = 0; i < d->c.conf.endpoints_max; i++)
        if (d->c.ends[i].failed)
            carrier_break(d, i);
}

/* Creates an endpoint. ucp_ep_create trusts every length inside the address, so
 * it gets a copy of bounded length followed by zeros. The caller makes sure
 * that the address is from an admitted peer. */
static enum err endpoint_create(struct data *d, uint32_t i, struct span address)
{
    uint8_t *copy = calloc(1, address.len + ADDRESS_SLACK);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)copy,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_failed, .arg = d}};
    ucs_status_t s;

    if (!copy)
        return ERR_PEER_LOST;
    memcpy(copy, address.p, address.len);
    s = ucp_ep_create(d->ucx.worker, &params, &d->eps[i].h);
    free(copy);
    if (s == UCS_OK)
        return OK;
    d->eps[i].h = NULL;
    endpoint_fails(d, i, s);
    return ERR_PEER_LOST;
}

/* Sends `len` bytes without a header: 0 bytes ask for an answer, which has 1
 * byte. */
static ucs_status_t send_bare(ucp_ep_h h, size_t len)
{
    static const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY};
    ucs_status_ptr_t r =
        ucp_am_send_nbx(h, UCX_AM_ID, NULL, 0, "", len, &param);

    if (!UCS_PTR_IS_PTR(r))
        return UCS_PTR_STATUS(r);
    ucp_request_free(r); /* UCX frees it at the end of the send */
    return UCS_OK;
}

/* A message without a header: a peer's question, or the answer to ours, which
 * comes by the endpoint that asked. A question at each connect is how we know
 * that the peer lives. UCX's own flush and rendezvous show that, too, but 1.18
 * over TCP ends the process if the peer goes before they have ended. */
static void on_bare(struct data *d, ucp_ep_h from, size_t len)
{
    if (len == 0) {
        (void)send_bare(from, 1); /* may fail: the peer is gone */
        return;
    }
    for (uint32_t i = 0; i < d->c.conf.endpoints_max; i++)
        if (d->eps[i].h == from && !d->c.ends[i].failed &&
            !d->c.ends[i].answered)
            carrier_made(&d->c, i);
}

static ucs_status_t on_arrived(void *arg, const void *header, size_t header_len,
    void *data, size_t len, const ucp_am_recv_param_t *param);

/* Opens a worker and gives its descriptor our number. */
static enum err worker_open(struct data *d)
{
    enum err e = ucx_open(&d->ucx, &d->c.conf, on_arrived, d);

    if (e != OK)
        return e;
    if (d->fd < 0)
        d->fd = fcntl(d->ucx.fd, F_DUPFD_CLOEXEC, 3);
    else if (dup3(d->ucx.fd, d->fd, O_CLOEXEC) < 0)
        e = ERR_INTERNAL;
    if (d->fd >= 0 && e == OK)
        return OK;
    log_error("ucx: no file descriptor left");
    ucx_worker_close(&d->ucx);
    return ERR_INTERNAL;
}

/* Closes the endpoints that UCX made for the senders of outstanding fetches.
 * Destroying a worker with such a fetch aborts the process (in builds of UCX
 * with assertions, such as Debian's). An endpoint that failed by itself has no
 * fetch left, so none of these is stale. */
static void close_fetches(struct data *d)
{
    ucp_ep_h from;

    do {
        from = NULL;
        LIST_FOREACH (n, &d->fetching) {
            struct op *op = op_of(n);

            from = from ? from : op->from;
            op->from = op->from == from ? NULL : op->from;
        }
        if (from)
            close_by_force(d, from);
    } while (from);
}

/* Ends everything that UCX has of ours, after all endpoints were closed. Gives
 * UCX CLOSE_LIMIT_NS to finish cleanly. */
static void worker_close(struct data *d)
{
    uint64_t limit_ns = clock_ns() + CLOSE_LIMIT_NS;

    d->c.inside = true; /* messages that still arrive are dropped */
    close_fetches(d);
    while (
        d->ucx.worker && clock_ns() < limit_ns &&
        (d->closing || !list_empty(&d->orphans) || !list_empty(&d->fetching)))
        ucp_worker_progress(d->ucx.worker);
    ucx_worker_close(&d->ucx);
    d->c.inside = false;
    carrier_complete_all(&d->c, &d->orphans);
    carrier_complete_all(&d->c, &d->fetching);
    d->closing = d->failures = 0;
}

/* Returns true if there is another worker now. */
static bool worker_replace(struct data *d)
{
    CHECK(!d->c.inside, "replaced inside a callback");
    log_warn("ucx: operations never complete: the worker is replaced");
    carrier_break_all(d);
    worker_close(d);
    if (worker_open(d) == OK)
        return true;
    log_error("ucx: no new worker; it is tried again each second");
    return false;
}

/* Tries to open a worker after an earlier replacement failed. */
static bool worker_retry(struct data *d, uint64_t now_ns)
{
    if (now_ns - d->worker_tried_ns < WORKER_EACH_NS)
        return false;
    d->worker_tried_ns = now_ns;
    if (worker_open(d) != OK)
        return false;
    log_info("ucx: there is a worker again");
    return true;
}

static enum err ucx_connect(
    struct data *d, uint32_t i, struct span address, struct span key)
{
    enum err e = OK;
    ucs_status_t s;

    (void)key; /* UCX has no proof by key */
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
    carrier_connect(&d->c, i);
    CHECK(!d->eps[i].h, "endpoint %u is UCX's still", i);
    d->eps[i] = (struct endpoint){.h = NULL};
    snprintf(d->c.ends[i].why, sizeof(d->c.ends[i].why),
        "its UCX address by %.30s on %.30s", d->c.conf.tls, d->c.conf.devices);
    e = endpoint_create(d, i, address);
    d->c.ends[i].open = e == OK;
    if (e == OK && (s = send_bare(d->eps[i].h, 0)) != UCS_OK)
        endpoint_fails(d, i, s);
    return e;
}

/* Asks UCX for its transports, until it has chosen some. */
static const char *ucx_name(struct data *d, uint32_t i)
{
    struct endpoint *ep = &d->eps[i];
    char lanes[256];

    CHECK(i < d->c.conf.endpoints_max, "endpoint %u", i);
    if (!ep->h || !d->c.ends[i].answered || ep->transport[0])
        return ep->transport;
    ucx_transport(ep->h, lanes, sizeof(lanes));
    if (lanes[0])
        snprintf(ep->transport, sizeof(ep->transport), "ucx:%.43s", lanes);
    ep->reaches = d->ucx.context->cached && ucx_reaches(lanes);
    return ep->transport;
}

static enum trouble ucx_state(struct data *d, uint32_t i, const char **text)
{
    return carrier_state(&d->c, i, ucx_name(d, i), text);
}

/* Ignores the key: senders are not proven here. */
static void ucx_admit(struct data *d, uint32_t who, struct span key)
{
    CHECK(!d->c.inside, "a key of peer %u inside a callback", who);
    (void)key;
}

/* messages */

/* Returns zeros to send instead of rows whose pages engines have removed from
 * their pool, as a hole in small pages reads. Otherwise the kernel would fail
 * the endpoint each time. */
static const void *zeros_for(const void *rows, size_t n)
{
    const void *zeros = guard_zeros(n);

    log_rated(&gone, "ucx: pages of a pool were removed: zeros are sent");
    return zeros ? zeros : rows;
}

/* True if op has a single piece that the peer should fetch in place. */
static bool zero_copy(struct data *d, const struct op *op)
{
    struct endpoint *ep = &d->eps[op->op.ep];

    if (op->op.iovs != 2 || op->op.bytes < ZERO_COPY_BYTES)
        return false;
    if (!d->ucx.context->copies)
        (void)ucx_name(d, op->op.ep);
    return ep->reaches && ep->zero_copies < ZERO_COPY_EACH;
}

/* Chooses how a message is sent. A single piece may go by rendezvous: from a
 * GPU, or in place. We pack everything else into UCX's buffers, eager if it
 * fits a segment. Reasons: engines may remove pages of a pool before the send,
 * and UCX's own copy would end the process by SIGBUS; UCX 1.13 over TCP aborts
 * the process (comp->count) if the peer goes during an eager zero-copy message
 * of several pieces or fragments; no UCX has a rendezvous of several pieces
 * without a copy. A rendezvous requests a reply endpoint, which close_fetches()
 * needs. */
static void send_param(struct data *d, struct op *op, size_t header_len,
    ucp_request_param_t *param, const void **buffer, size_t *count)
{
    bool fits =
        header_len + op->op.bytes + FRAME_BYTES <= d->c.conf.segment_bytes;
    bool gpu;

    param->op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param->cb.send = on_sent;
    op_param(op, param, buffer, count);
    gpu = ucx_memory_gpu(param);
    op->zero_copy = !gpu && zero_copy(d, op);
    d->eps[op->op.ep].zero_copies += op->zero_copy;
    param->flags = fits && !gpu && !op->zero_copy
                       ? UCP_AM_SEND_FLAG_EAGER
                       : UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
    if (gpu || *count == 0)
        return;
    if (op->zero_copy) {
        if (!guard_readable(*buffer, *count)) {
            *buffer = zeros_for(*buffer, *count);
            param->op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMH;
        }
        return;
    }
    d->c.conf.counts->packed += op->op.bytes;
    op->pack.iov = op->op.iov + 1;
    op->pack.iovs = op->op.iovs - 1;
    param->op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMH;
    param->datatype = d->packed;
    *buffer = &op->pack;
    *count = 1;
}

static enum err send_refused(struct data *d, struct op *op, ucs_status_t s)
{
    uint32_t i = op->op.ep;

    op_leaves(op);
    carrier_move(&d->c, &op->op, &d->c.unused);
    if (s == UCS_ERR_NO_MEMORY || s == UCS_ERR_NO_RESOURCE)
        return ERR_BUSY;
    endpoint_fails(d, i, s);
    return ERR_PEER_LOST;
}

static enum err ucx_post(struct data *d, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    ucp_request_param_t param = {0};
    const void *buffer;
    size_t count;
    struct carrier_op *at;
    struct op *op;
    ucs_status_ptr_t r;
    enum err e = carrier_post(&d->c, i, header, iov, iovs, cookie, &at);

    if (e != OK)
        return e;
    op = op_of(&at->link);
    send_param(d, op, header.len, &param, &buffer, &count);
    r = ucp_am_send_nbx(d->eps[i].h, UCX_AM_ID, at->frame + CARRIER_FRAME,
        header.len, buffer, count, &param);
    if (UCS_PTR_IS_ERR(r))
        return send_refused(d, op, UCS_PTR_STATUS(r));
    if (r == NULL)
        op_complete(op, true); /* no callback comes; progress() reports it */
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
        .handle = rendezvous ? data : NULL,
        .who = NONE};
    bool kept;

    if (d->c.inside) /* a worker is being destroyed: drop the message */
        return UCS_OK;
    if (header_len == 0) {
        if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
            on_bare(d, param->reply_ep, len);
        return UCS_OK;
    }
    d->in = &in;
    d->in_from = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                     ? param->reply_ep
                     : NULL;
    d->in_fetched = false;
    kept = carrier_arrived(d, &in);
    CHECK(!kept || !rendezvous || d->in_fetched,
        "a rendezvous of %zu bytes was kept and not fetched", len);
    d->in = NULL;
    /* Also after a fetch: UCX knows that it has begun. */
    return UCS_OK;
}

static enum err ucx_fetch(struct data *d, const struct data_in *in,
    const struct iovec *iov, uint32_t iovs, void *cookie)
{
    ucp_request_param_t param = {.cb.recv_am = on_fetched};
    const void *buffer;
    size_t count;
    struct op *op;
    ucs_status_ptr_t r;

    CHECK(in == d->in && in->handle && !d->in_fetched, "nothing to fetch");
    if (list_empty(&d->c.unused_fetches))
        return ERR_BUSY;
    op = op_of(d->c.unused_fetches.next);
    carrier_pieces(&op->op, iov, iovs);
    if (op->op.bytes != in->len) /* UCX fetches all bytes or none */
        return ERR_MALFORMED;
    op_param(op, &param, &buffer, &count);
    CHECK(op->op.ep == NONE && op->op.fetch, "an operation in use");
    op->op.cookie = cookie;
    op->since_ns = 0;
    op->from = d->in_from;
    d->in_fetched = true;
    list_remove(&op->op.link);
    list_push_tail(&d->fetching, &op->op.link);
    r = ucp_am_recv_data_nbx(
        d->ucx.worker, in->handle, (void *)(uintptr_t)buffer, count, &param);
    /* UCX has taken the message even if it failed: reported later. */
    if (!UCS_PTR_IS_PTR(r))
        op_complete(op, r == NULL);
    return OK;
}

/* turns */

static unsigned ucx_progress(struct data *d)
{
    unsigned count = 0;

    CHECK(!d->c.inside, "progress inside arrived()");
    if (d->ucx.worker)
        count = ucp_worker_progress(d->ucx.worker);
    break_failed(d);
    return count + carrier_report(&d->c);
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

    if (d->failures || carrier_pending(&d->c))
        return ERR_BUSY;
    if (!d->ucx.worker)
        return OK;
    s = ucp_worker_arm(d->ucx.worker);
    if (s == UCS_OK || s == UCS_ERR_BUSY)
        return s == UCS_OK ? OK : ERR_BUSY;
    /* ERR_BUSY would make the owner spin; its tick calls again later. */
    log_rated(&arms, "ucx: ucp_worker_arm: %s", ucs_status_string(s));
    return OK;
}

/* True if an operation in l has waited for limit_ns. Starts the clock of new
 * ones. */
static bool one_waits(struct list *l, uint64_t now_ns, uint64_t limit_ns)
{
    bool old = false;

    LIST_FOREACH (n, l) {
        struct op *op = op_of(n);

        if (op->since_ns == 0)
            op->since_ns = now_ns;
        old |= now_ns - op->since_ns >= limit_ns;
    }
    return old;
}

static bool ucx_tick(struct data *d, uint64_t now_ns)
{
    uint64_t limit_ns = d->c.conf.stall_ms * NS_PER_MS;
    bool orphan_waits, fetch_waits;

    carrier_tick(d, now_ns);
    orphan_waits = one_waits(&d->orphans, now_ns, limit_ns);
    fetch_waits = one_waits(&d->fetching, now_ns, FETCH_STALLS * limit_ns);
    if (orphan_waits || fetch_waits)
        return worker_replace(d);
    return !d->ucx.worker && worker_retry(d, now_ns);
}

static bool ucx_memory(
    struct data *d, const void *base, uint64_t bytes, bool gpu)
{
    CHECK(!d->c.inside, "memory inside arrived()");
    return ucx_memory_add(&d->ucx, base, bytes, gpu) &&
           (gpu || d->ucx.context->cached);
}

/* open and close */

static struct span ucx_address(struct data *d)
{
    return span_of(d->ucx.address, d->ucx.address_len);
}

static void ucx_free(struct data *d)
{
    ucx_close(&d->ucx);
    if (d->fd >= 0)
        close(d->fd);
    if (d->packed)
        ucp_dt_destroy(d->packed);
    carrier_fini(&d->c);
    free(d->eps);
    free(d);
}

static enum err take_memory(struct data *d, const struct data_conf *conf,
    const struct data_calls *calls)
{
    enum err e = carrier_init(
        &d->c, "ucx", conf, calls, sizeof(struct op), endpoint_close);

    if (e != OK)
        return e;
    LIST_FOREACH (n, &d->c.unused)
        op_of(n)->d = d;
    LIST_FOREACH (n, &d->c.unused_fetches)
        op_of(n)->d = d;
    d->eps = calloc(conf->endpoints_max, sizeof(*d->eps));
    if (!d->eps)
        log_error("ucx: no memory for %u endpoints", conf->endpoints_max);
    return d->eps ? ucx_pack_type(&d->packed) : ERR_INTERNAL;
}

static enum err ucx_carrier_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data *d = calloc(1, sizeof(*d));
    enum err e;

    CHECK(c->segment_bytes > 0, "segment_bytes is needed");
    if (!d) {
        log_error("ucx: out of memory");
        return ERR_INTERNAL;
    }
    d->fd = d->ucx.fd = -1;
    list_init(&d->orphans);
    list_init(&d->fetching);
    e = take_memory(d, c, calls);
    if (e == OK)
        e = worker_open(d);
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
    CHECK(!d->c.inside, "close inside arrived()");
    carrier_break_all(d);
    worker_close(d);
    carrier_report_done(&d->c);
    ucx_free(d);
    *dp = NULL;
}

const struct data_ops data_ucx = {.name = "ucx",
    .number = CARRIER_UCX,
    .gpu = true,
    .open = ucx_carrier_open,
    .close = ucx_carrier_close,
    .address = ucx_address,
    .admit = ucx_admit,
    .connect = ucx_connect,
    .disconnect = carrier_disconnect,
    .post = ucx_post,
    .fetch = ucx_fetch,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .tick = ucx_tick,
    .state = ucx_state,
    .memory = ucx_memory};
