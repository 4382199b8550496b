/* copy.h - copies that bypass the caches: for rows that this process does not
 * read, from one pool of this host to another. Any thread. */
#ifndef MMX_BASE_COPY_H
#define MMX_BASE_COPY_H

#include "base/base.h"

/* Below this size plain memcpy is faster, and the rows are read soon. */
#define COPY_STREAM_MIN 4096

enum copy_kind { COPY_PLAIN, COPY_SSE2, COPY_AVX2, COPY_AVX512, COPY_KINDS };

const char *copy_name(enum copy_kind k);
/* True if this processor supports the kind. */
bool copy_can(enum copy_kind k);
/* Returns the widest kind that it supports. */
enum copy_kind copy_best(void);

/* Copies n bytes between places that do not overlap, at any alignment. When it
 * returns the bytes are ordered before every later store, as after memcpy. */
void copy_rows(void *to, const void *from, size_t n);
/* Copies as copy_rows, by one kind for any n. */
void copy_by(enum copy_kind k, void *to, const void *from, size_t n);

#endif
