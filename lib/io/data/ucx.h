/* ucx.h - UCX for the carrier: contexts, configured from data_conf and shared
 * by the workers of a process, and workers, each owned by the thread that
 * opened it. Private to data_ucx.c and the files named ucx_*.c. */
#ifndef MMX_IO_UCX_H
#define MMX_IO_UCX_H

#include "io/data.h"

#include <ucp/api/ucp.h>

#define UCX_AM_ID       1
#define UCX_ADDRESS_MIN 8
#define UCX_ADDRESS_MAX 16000 /* of an address in a HELLO */
#define UCX_MEMORY_MAX  64

/* Memory that UCX has registered, for all workers of a context. */
struct ucx_memory {
    const uint8_t *base;
    uint64_t bytes;
    ucp_mem_h handle; /* NULL: not registered by us */
    uint32_t users;   /* workers; 0: the entry is free */
    bool gpu;
};

/* Changes under a mutex of ucx_context.c, except constant members. A worker
 * reads its own entries of memory[] without it. */
struct ucx_context {
    struct ucx_context *next; /* next in the list of shared ones */
    ucp_context_h h;
    char *text; /* the configuration it was made from */
    uint32_t users;
    bool copies; /* every transport copies through host memory */
    bool cached; /* it has a registration cache */
    struct ucx_memory memory[UCX_MEMORY_MAX];
};

struct ucx {
    struct ucx_context *context;
    ucp_worker_h worker; /* NULL: not open */
    int fd;              /* UCX's own; closed with the worker */
    uint64_t memory;     /* bits: the context's entries that this worker uses */
    uint8_t *address;    /* owned; kept when the worker is closed */
    uint32_t address_len;
};

/* Opens a worker, and a context unless one with this configuration exists. *out
 * is zeroed, or its worker was closed. Messages go to arrived(arg, ...), which
 * is set before the address is read: a worker that receives a message without a
 * handler crashes. */
MUST_CHECK enum err ucx_open(struct ucx *out, const struct data_conf *c,
    ucp_am_recv_callback_t arrived, void *arg);
/* Destroys the worker; outstanding operations may call back meanwhile. Memory
 * stays registered for the next one. May be called twice. */
void ucx_worker_close(struct ucx *u);
/* Does the same, and frees everything. */
void ucx_close(struct ucx *u);

/* Writes the endpoint's transports, "tcp/lo", joined by commas; empty while it
 * is not connected. */
void ucx_transport(ucp_ep_h ep, char *out, size_t size);
/* Appends the word to the comma-separated list, unless it is in there or does
 * not fit. */
void ucx_add_word(char *out, size_t size, const char *word);
/* True if one of the transports, given with or without device, reads a peer's
 * memory in place. */
bool ucx_reaches(const char *list);

/* ucx_context.c. Returns a context for c, which must be given back; NULL with a
 * log line. */
struct ucx_context *ucx_context_take(const struct data_conf *c);
void ucx_context_give(struct ucx_context **x);
/* True if UCX can have a registration cache in this process: tests whether UCX
 * notices when memory is unmapped. Otherwise a zero-copy message might read
 * unmapped memory. */
bool ucx_cache_works(void);
/* Locks the mutex for changes of environment and contexts. */
void ucx_lock(void);
void ucx_unlock(void);

/* ucx_memory.c. Registers memory for sends and fetches, by this worker and
 * later ones. False: not registered; GPU memory must not be used then. */
bool ucx_memory_add(struct ucx *u, const void *base, uint64_t bytes, bool gpu);
void ucx_memory_drop(struct ucx *u);
/* Sets the kind of memory of a buffer, and its registration; no effect if they
 * are not known. */
void ucx_memory_param(const struct ucx *u, const void *buffer, uint64_t bytes,
    ucp_request_param_t *param);
/* True if that kind is GPU memory. */
bool ucx_memory_gpu(const ucp_request_param_t *param);

/* A message whose bytes UCX copies from pieces, none of them empty. Sent as one
 * element of the type that ucx_pack_type creates (and ucp_dt_destroy frees); it
 * must stay valid until the message completes. */
struct ucx_pack {
    const struct iovec *iov;
    uint32_t iovs;
    uint32_t at_iov; /* private below: UCX's position */
    size_t at_byte, at_total;
};
MUST_CHECK enum err ucx_pack_type(ucp_datatype_t *out);

#endif
