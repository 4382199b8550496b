/* data_none.c - takes the place of data/data_ucx.c and data/ucx_*.c in programs
 * that are linked without UCX: those of the wheel, as UCX loads its parts for a
 * card from a folder of the system, which no wheel has. host_check() refuses a
 * configuration that asks for UCX; with transfer.carrier: auto rows go by
 * TCP. */
#include "io/data.h"
#include "wire/carriers.h"

#include <stdio.h>

const struct data_ops data_ucx = {.name = "ucx", .number = CARRIER_UCX};

bool ucx_probe(struct ucx_offer *offer, const char *tls)
{
    (void)tls;
    *offer = (struct ucx_offer){.why_not = DATA_NO_UCX};
    return false;
}

void ucx_offer_text(const struct ucx_offer *offer, char *out, size_t size)
{
    (void)offer;
    snprintf(out, size, "none");
}

bool data_ucx_device(struct span name)
{
    (void)name;
    return false;
}
