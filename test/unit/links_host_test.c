/* links_host_test.c - which host a link comes from, as far as its address says:
 * daemons that connect to a listener of all addresses from several. */
#include "io/peer.h"
#include "test/t.h"

#include <zmq.h>

struct side {
    struct links *links;
    uint32_t count;
    uint64_t hosts[8]; /* of the links, in the order in which they came */
};

static uv_loop_t loop;
static struct side a;
static void *ctx, *socks[8];

static void on_event(void *ud, struct event *ev)
{
    struct side *s = ud;

    if (ev->type != EV_LINK_UP)
        return;
    T_TRUE(s->count < ARRAY_LEN(s->hosts));
    s->hosts[s->count++] = ev->host;
}

static bool on_full(void *ud)
{
    return false;
}

static bool came(void *ud)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    links_serve(a.links);
    links_flush(a.links);
    return a.count >= *(uint32_t *)ud;
}

/* Connects from the address and says HELLO. Returns the host that its link
 * has. */
static uint64_t from(const char *own, const char *to)
{
    uint32_t n = a.count, wanted = n + 1;
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 7};
    const char *port = strrchr(to, ':');
    char address[160];
    int none = 0;

    T_TRUE(n < ARRAY_LEN(socks) && peer_put(&w, &m));
    socks[n] = zmq_socket(ctx, ZMQ_DEALER);
    zmq_setsockopt(socks[n], ZMQ_LINGER, &none, sizeof(none));
    snprintf(address, sizeof(address), "tcp://%s:0;127.0.0.1%s", own, port);
    T_TRUE(zmq_connect(socks[n], address) == 0);
    T_TRUE(zmq_send(socks[n], w.p, w.len, 0) == (int)w.len);
    T_WAIT(came, &wanted);
    return a.hosts[n];
}

static void hosts_at(const char *listen)
{
    struct links_opt opt = {listen, 8, 1000, 5, 60 * NS_PER_S, 1 << 20, NULL};
    struct links_calls calls = {&a, on_event, on_full, NULL};
    char to[128];
    uint64_t first;

    ctx = zmq_ctx_new();
    T_TRUE(uv_loop_init(&loop) == 0);
    T_OK(links_new(&a.links, &loop, &opt, &calls));
    links_endpoint(a.links, to, sizeof(to));
    first = from("127.0.0.1", to);
    T_EQ_U64(first, UINT64_C(1) << 32 | 0x0100007f);
    T_EQ_U64(from("127.0.0.1", to), first); /* from another port */
    T_TRUE(from("127.0.0.2", to) != first);
    for (uint32_t i = 0; i < a.count; i++)
        zmq_close(socks[i]);
    zmq_ctx_term(ctx);
    links_stop(a.links);
    uv_run(&loop, UV_RUN_DEFAULT);
    T_EQ_I64(uv_loop_close(&loop), 0);
    links_free(&a.links);
}

/* RULES 1.9 */
TEST(links_of_one_address_are_of_one_host)
{
    hosts_at("tcp://0.0.0.0:*");
}
