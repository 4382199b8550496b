/* kernels.h - the driver's name, and reading the file that `make kernels` makes
 * of lib/gpu/rows.cu. */
#ifndef MMX_GPU_KERNELS_H
#define MMX_GPU_KERNELS_H

#define KERNELS_MISSING                                                        \
    "no kernels: `make kernels install`, or MMX_KERNELS names the file"

/* Returns the file of kernels, named by $MMX_KERNELS or else where
 * `make install` puts it; the caller frees it. NULL: none can be read. Any
 * thread. */
void *kernels_read(void);

/* The driver's file, libcuda.so.1. Tests name another before the first call of
 * gpu_driver. */
extern const char *gpu_driver_file;

#endif
