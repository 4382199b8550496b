/* mux.c - see mux.h. Only opening and connecting differ from data_mux, so the
 * rest is called through it. */
#include "test/mux.h"

static enum err open_both(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    static const struct data_ops *const both[] = {&data_tcp, &data_ucx, NULL};
    struct data_conf conf = *c;

    conf.carriers = both;
    return data_mux.open(out, &conf, calls);
}

static enum err connect_by(
    struct data *d, uint32_t ep, struct span address, uint8_t number)
{
    struct span a = data_mux_address(address, number);

    if (!data_mux.choose(d, ep, number))
        return ERR_INTERNAL;
    return data_mux.connect(d, ep, a.len ? a : address);
}

static enum err connect_tcp(struct data *d, uint32_t ep, struct span address)
{
    return connect_by(d, ep, address, CARRIER_TCP);
}

static enum err connect_ucx(struct data *d, uint32_t ep, struct span address)
{
    return connect_by(d, ep, address, CARRIER_UCX);
}

const struct data_ops *mux_by(uint8_t number)
{
    static struct data_ops by[2];
    struct data_ops *ops = &by[number == CARRIER_UCX];

    *ops = data_mux;
    ops->number = number;
    ops->open = open_both;
    ops->connect = number == CARRIER_UCX ? connect_ucx : connect_tcp;
    return ops;
}
