/* copy.h - copies that bypass the caches: for rows that this process does not
 * read, from one pool of this host to another. Any thread. */
#ifndef MMX_BASE_COPY_H
#define MMX_BASE_COPY_H

#include "base/base.h"

/* Below this size plain memcpy is faster, and the rows are read soon. */
#define COPY_STREAM_MIN 4096

/* Copies n bytes between places that do not overlap, at any alignment. When it
 * returns the bytes are ordered before every later store, as after memcpy. */
void copy_rows(void *to, const void *from, size_t n);

#endif
