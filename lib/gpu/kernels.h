/* kernels.h - what needs no toolkit: where the driver is, and the file that
 * `make kernels` builds of lib/gpu/rows.cu, read where there is a GPU. */
#ifndef MMX_GPU_KERNELS_H
#define MMX_GPU_KERNELS_H

#define KERNELS_MISSING                                                        \
    "no kernels: `make kernels install`, or MMX_KERNELS names the file"

/* All of it, from $MMX_KERNELS or else from where `make install` puts it; the
 * caller frees it. NULL: there is none that can be read. Any thread. */
void *kernels_read(void);

/* The driver's file, libcuda.so.1. Tests name another before the first call of
 * gpu_driver. */
extern const char *gpu_driver_file;

#endif
