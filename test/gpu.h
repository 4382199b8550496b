/* gpu.h - GPUs for tests: the driver's double beside the test's program, or
 * the host's own driver when MMX_TEST_GPU is `real`. */
#ifndef MMX_TEST_GPU_H
#define MMX_TEST_GPU_H

#include "io/cuda.h"
#include "io/mem.h"

/* Call it before the first cuda_open of a process. */
void gpu_use(void);
bool gpu_real(void);
/* Skips the case on a real GPU: it needs the double. */
void gpu_double_only(void);
/* gpu_use() and gpu_double_only(), in this order. */
void gpu_use_double(void);
/* Returns the address of a byte of GPU memory for a CPU; only with the
 * double. */
void *gpu_host(const void *p);
void gpu_set(const char *name, long value);
long gpu_get(const char *name);

/* Copy bytes between GPU memory and host memory, by a lane of their own. */
void gpu_write(struct cuda *c, cuda_address to, const void *from, size_t n);
void gpu_read(struct cuda *c, void *to, cuda_address from, size_t n);

#endif
