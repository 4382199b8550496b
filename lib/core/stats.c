/* stats.c - names of the counters. Pure data; any thread. */
#include "core/brain.h"

const struct counter_words counter_words[STAT_COUNT] = {
#define STAT(name, doc) {#name, doc},
#include "core/stats.def"
};
