/* scenarios.c - worlds without faults that have to go exactly so. */
#include "test/sim/sim.h"

const struct scenario scenarios[] = {{"none", NULL}};
const uint32_t scenarios_count = 0;
