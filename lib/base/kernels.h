/* kernels.h - the file that `make kernels` builds of lib/kernels, read by
 * whoever has a GPU to run it on. */
#ifndef MMX_BASE_KERNELS_H
#define MMX_BASE_KERNELS_H

#define KERNELS_MISSING                                                        \
    "no kernels: `make kernels install`, or MMX_KERNELS names the file"

/* All of it, from $MMX_KERNELS or else from where `make install` puts it; the
 * caller frees it. NULL: there is none that can be read. Any thread. */
void *kernels_read(void);

#endif
