/* data_mem.h - a carrier between carriers of one process, by memcpy, with
 * faults on demand: a second implementation, against which the contract of
 * io/data.h is tested. */
#ifndef MMX_TEST_DATA_MEM_H
#define MMX_TEST_DATA_MEM_H

#include "io/data.h"

extern const struct data_ops data_mem;

/* Faults of the endpoint's next `count` posts. */
enum data_fault { DATA_FAULT_BREAK, DATA_FAULT_DELAY, DATA_FAULT_STALL };
void data_mem_fault(
    struct data *d, uint32_t ep, enum data_fault fault, uint32_t count);

#endif
