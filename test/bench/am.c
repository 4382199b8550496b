/* am.c - measures what latency is compared with: one UCX active message of 64
 * bytes between the two engines, over TCP on loopback. When it is sent the
 * receiver sleeps in poll, or spins. Our own data plane is made of such
 * messages, with more around them.
 *
 * One worker per engine, one endpoint, one direction. Rejected: only a ping of
 * raw TCP (which is measured, too), since no use of UCX can be as fast. */
#include "test/bench/bench.h"

#include <poll.h>
#include <ucp/api/ucp.h>

#define AM_ID    1
#define AM_BYTES 64

struct am {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    int fd;
    uint64_t got;
};

static struct am am;

static void ucx(ucs_status_t s, const char *what)
{
    if (s != UCS_OK)
        die("ucx: %s: %s", what, ucs_status_string(s));
}

static ucs_status_t arrived(void *arg, const void *header, size_t header_len,
    void *data, size_t len, const ucp_am_recv_param_t *param)
{
    am.got++;
    return UCS_OK;
}

static void open_worker(void)
{
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_am_handler_param_t h = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                              UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = AM_ID,
        .cb = arrived};
    ucp_config_t *c;

    ucx(ucp_config_read(NULL, NULL, &c), "config");
    ucx(ucp_config_modify(c, "TLS", "tcp"), "TLS");
    ucx(ucp_config_modify(c, "NET_DEVICES", "lo"), "NET_DEVICES");
    ucx(ucp_init(&p, c, &am.context), "init");
    ucp_config_release(c);
    ucx(ucp_worker_create(am.context, &w, &am.worker), "worker");
    ucx(ucp_worker_set_am_recv_handler(am.worker, &h), "handler");
    ucx(ucp_worker_get_efd(am.worker, &am.fd), "descriptor");
}

/* Makes progress until a message has come; when idle, sleeps or spins. */
static void wait_until(uint64_t count, bool spin)
{
    while (am.got < count) {
        struct pollfd p = {.fd = am.fd, .events = POLLIN};

        if (ucp_worker_progress(am.worker) || am.got >= count || spin)
            continue;
        if (ucp_worker_arm(am.worker) != UCS_OK)
            continue;
        if (poll(&p, 1, ROOM_MS) != 1)
            die("ucx: no ping came");
    }
}

static void send_one(void)
{
    static const uint8_t bytes[AM_BYTES];
    ucp_request_param_t p = {0};
    void *r = ucp_am_send_nbx(am.ep, AM_ID, NULL, 0, bytes, sizeof bytes, &p);

    if (!UCS_PTR_IS_PTR(r)) {
        ucx(UCS_PTR_STATUS(r), "send");
        return;
    }
    while (ucp_request_check_status(r) == UCS_INPROGRESS)
        ucp_worker_progress(am.worker);
    ucp_request_free(r);
}

void am_open(struct side *x)
{
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = (const ucp_address_t *)x->s->am_address};
    ucp_address_t *a;
    size_t len;

    open_worker();
    if (x->which == LANG) {
        ucx(ucp_worker_get_address(am.worker, &a, &len), "address");
        if (len > sizeof x->s->am_address)
            die("ucx: an address of %zu bytes", len);
        memcpy(x->s->am_address, a, len);
        ucp_worker_release_address(am.worker, a);
    }
    meet(x);
    if (x->which == ENC) {
        ucx(ucp_ep_create(am.worker, &p, &am.ep), "endpoint");
        send_one();
    } else {
        wait_until(1, false);
    }
    meet(x);
}

void am_ping(struct side *x, bool spin, int series)
{
    meet(x);
    if (x->which == ENC) {
        gap(x);
        x->s->stamp = now_ns();
        send_one();
    } else {
        wait_until(am.got + 1, spin);
        note(x, series, now_ns() - x->s->stamp);
    }
    meet(x);
    while (ucp_worker_progress(am.worker))
        ;
}

void am_close(void)
{
    ucp_worker_destroy(am.worker);
    ucp_cleanup(am.context);
}
