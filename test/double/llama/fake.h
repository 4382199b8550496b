/* fake.h - what the doubles of libllama and libmtmd share. */
#ifndef DOUBLE_FAKE_H
#define DOUBLE_FAKE_H

#include "mtmd-helper.h"

#include <stdio.h>

struct llama_model {
    int width, mrope, both_ways;
};

/* Returns the hash of n bytes behind h. */
uint64_t fake_mix(uint64_t h, const void *p, size_t n);

/* Reads the pipe that the variable names to its end, if there is one. */
void fake_hold(const char *variable);

#endif
