/* gpu.h - GPUs for tests: the driver's double beside the test's program, or
 * the host's own driver when MMX_TEST_GPU is `real`. */
#ifndef MMX_TEST_GPU_H
#define MMX_TEST_GPU_H

#include "io/cuda.h"
#include "io/mem.h"

/* Before the first cuda_open of a process. */
void gpu_use(void);
bool gpu_real(void);
/* Only with the double: skips the case on a real GPU. */
void gpu_double_only(void);
/* Both, in this order. */
void gpu_use_double(void);
/* Where a CPU finds a byte of a GPU's; the double's only. */
void *gpu_host(const void *p);
void gpu_set(const char *name, long value);
long gpu_get(const char *name);

/* Bytes of GPU memory to and from the host's, by a lane of its own. */
void gpu_write(struct cuda *c, cuda_address to, const void *from, size_t n);
void gpu_read(struct cuda *c, void *to, cuda_address from, size_t n);

#endif
