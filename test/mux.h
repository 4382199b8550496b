/* mux.h - for tests of carriers: data_mux of TCP and UCX, whose endpoints all
 * go by the one that the name says. */
#ifndef MMX_TEST_MUX_H
#define MMX_TEST_MUX_H

#include "io/data.h"

/* Returns the operations for CARRIER_TCP or CARRIER_UCX. */
const struct data_ops *mux_by(uint8_t number);

#endif
