/* data_mux_test.c - what data_mux adds to the carriers that it opens: which of
 * them an endpoint goes by. That each keeps the contract there as it does alone
 * is held by data_test.c. */
#include "test/side.h"
#include "test/t.h"

#include "test/mux.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(what_comes_by_both_carriers_arrives)
{
    struct side a, by_tcp, by_ucx;
    uint8_t *p = malloc(MIB);
    struct span all;

    side_open(&a, mux_by(CARRIER_TCP));
    side_open(&by_tcp, &data_tcp);
    side_open(&by_ucx, &data_ucx);
    a.fetch_pieces = 3;
    all = a.ops->address(a.d);
    T_OK(data_tcp.connect(by_tcp.d, 0, data_mux_address(all, CARRIER_TCP)));
    T_OK(data_ucx.connect(by_ucx.d, 0, data_mux_address(all, CARRIER_UCX)));
    for (uint32_t i = 0; i < 40; i += 2) {
        side_fill(p, MIB, i);
        T_OK(side_post(&by_tcp, 0, i, p, i % 4 ? 4 * KIB : MIB));
        side_until(&by_tcp, &a, &by_tcp.done_count, i / 2 + 1);
        side_fill(p, MIB, i + 1);
        T_OK(side_post(&by_ucx, 0, i + 1, p, i % 4 ? MIB : 4 * KIB));
        side_until(&by_ucx, &a, &by_ucx.done_count, i / 2 + 1);
    }
    side_until(&a, NULL, &a.arrived_count, 40);
    side_until(&a, NULL, &a.fetched_count, 20);
    side_close(&by_ucx);
    side_close(&by_tcp);
    side_close(&a);
    free(p);
}

TEST(an_endpoint_goes_by_the_carrier_that_was_chosen)
{
    struct side a, b;

    side_pair(&a, &b, mux_by(CARRIER_TCP));
    T_OK(side_post(&a, 0, 0, NULL, 0));
    side_until(&a, &b, &b.arrived_count, 1);
    T_EQ_STR(a.ops->transport(a.d, 0), "tcp/lo");
    a.ops->disconnect(a.d, 0);
    T_TRUE(data_mux.choose(a.d, 0, CARRIER_UCX));
    T_OK(data_mux.connect(
        a.d, 0, data_mux_address(b.ops->address(b.d), CARRIER_UCX)));
    T_OK(side_post(&a, 0, 1, NULL, 0));
    side_until(&a, &b, &b.arrived_count, 2);
    side_until(&a, &b, &a.made_count, 2);
    T_TRUE(strncmp(a.ops->transport(a.d, 0), "ucx", 3) == 0);
    T_FALSE(data_mux.choose(a.d, 1, CARRIER_END));
    side_close(&a);
    side_close(&b);
}

static bool wants_thread(void *ud)
{
    struct side *b = ud;

    side_turn(b, NULL);
    return data_mux.wants_thread(b->d);
}

/* Lent to another thread: what comes by TCP arrives, what comes by UCX waits
 * and is seen to wait. */
TEST(ucx_rests_while_it_is_lent)
{
    struct data_conf c = side_conf();
    struct side a, b;
    struct span all;

    c.keepalive_ms = T_NEVER_MS; /* what UCX says by itself wakes it as well */
    side_open_with(&a, mux_by(CARRIER_TCP), &c);
    side_open_with(&b, mux_by(CARRIER_TCP), &c);
    all = b.ops->address(b.d);
    for (uint32_t ep = 0; ep < 2; ep++) {
        uint8_t number = ep ? CARRIER_UCX : CARRIER_TCP;

        T_TRUE(data_mux.choose(a.d, ep, number));
        T_OK(data_mux.connect(a.d, ep, data_mux_address(all, number)));
        T_OK(side_post(&a, ep, ep, NULL, 0));
    }
    side_until(&a, &b, &b.arrived_count, 2);
    T_FALSE(b.ops->by_thread(b.d, CARRIER_TCP));
    T_TRUE(b.ops->by_thread(b.d, CARRIER_UCX));
    T_TRUE(b.ops->by_thread(b.d, CARRIER_AUTO));
    while (b.ops->arm(b.d) == ERR_BUSY)
        side_turn(&a, &b);
    (void)data_mux.wants_thread(b.d);
    b.ops->lend(b.d, true);
    T_OK(side_post(&a, 0, 2, NULL, 0));
    side_until(&a, &b, &b.arrived_count, 3);
    T_FALSE(data_mux.wants_thread(b.d));
    T_OK(side_post(&a, 1, 3, NULL, 0));
    side_until(&a, NULL, &a.done_count, 4);
    T_WAIT(wants_thread, &b);
    T_EQ_U64(b.arrived_count, 3);
    /* Also where TCP has something each time. */
    for (uint32_t id = 4; id < 4 + 2 * 16; id++) {
        T_OK(side_post(&a, 0, id, NULL, 0));
        side_until(&a, &b, &b.arrived_count, id);
    }
    T_TRUE(data_mux.wants_thread(b.d));
    b.ops->lend(b.d, false);
    side_until(&a, &b, &b.arrived_count, 4 + 2 * 16);
    side_close(&a);
    side_close(&b);
}

TEST(a_carrier_that_does_not_open_is_left_out)
{
    struct data_conf c = side_conf();
    struct side a, b;

    c.tls = "no-such-transport";
    side_open_with(&a, mux_by(CARRIER_TCP), &c);
    side_open(&b, &data_tcp);
    T_EQ_U64(data_mux_address(a.ops->address(a.d), CARRIER_UCX).len, 0);
    T_FALSE(data_mux.choose(a.d, 0, CARRIER_UCX));
    T_TRUE(data_mux.choose(a.d, 0, CARRIER_TCP));
    T_OK(data_mux.connect(a.d, 0, data_tcp.address(b.d)));
    T_OK(side_post(&a, 0, 0, NULL, 0));
    side_until(&a, &b, &b.arrived_count, 1);
    side_close(&a);
    side_close(&b);
}

/* A pair falls back to TCP, so UCX alone is not enough: the port is taken. */
TEST(without_tcp_nothing_is_opened)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct data_calls calls = {0};
    struct data_conf c = side_conf();
    struct data *d = NULL;
    char ports[16];

    T_EQ_I64(bind(fd, (struct sockaddr *)&at, len), 0);
    T_EQ_I64(listen(fd, 1), 0);
    T_EQ_I64(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(
        ports, sizeof(ports), "%u-%u", ntohs(at.sin_port), ntohs(at.sin_port));
    c.ports = ports;
    c.tls = "posix";
    T_ERR(mux_by(CARRIER_UCX)->open(&d, &c, &calls), ERR_INTERNAL);
    close(fd);
    T_OK(mux_by(CARRIER_UCX)->open(&d, &c, &calls));
    data_mux.close(&d);
}

TEST(an_address_that_is_cut_is_none)
{
    static const uint8_t cut[] = {CARRIER_TCP, 4, 0, 1, 2, 3};

    T_EQ_U64(data_mux_address(span_of(cut, sizeof cut), CARRIER_TCP).len, 0);
    T_EQ_U64(data_mux_address(span_of(cut, 1), CARRIER_TCP).len, 0);
    T_EQ_U64(data_mux_address(span_of(NULL, 0), CARRIER_TCP).len, 0);
}

/* The probe, on hosts as they come: what it says is consistent. */
TEST(what_ucx_is_worth)
{
    struct ucx_offer any, named, none;

    if (!ucx_probe(&any, "tcp"))
        T_TRUE(any.why_not[0] != 0);
    T_TRUE(any.version[0] == '1' && any.version[1] == '.');
    T_FALSE(ucx_probe(&none, "no-such-transport"));
    T_TRUE(none.why_not[0] != 0);
    if (ucx_probe(&named, "posix,tcp"))
        T_EQ_STR(named.transports, "posix");
    else
        T_TRUE(strstr(named.why_not, "ends the process") != NULL);
}
