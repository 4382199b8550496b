/* ucx.h - UCX as the carrier uses it: contexts, configured from data_conf and
 * shared by the workers of a process, and workers, each owned by the thread
 * that opened it. Private to data_ucx.c and the files named ucx_*.c. */
#ifndef MMX_IO_UCX_H
#define MMX_IO_UCX_H

#include "io/data.h"

#include <ucp/api/ucp.h>

#define UCX_AM_ID       1
#define UCX_ADDRESS_MIN 8
#define UCX_ADDRESS_MAX 16000 /* of those in a HELLO */
#define UCX_MEMORY_MAX  64

/* Memory that UCX has registered, for all workers of a context. */
struct ucx_memory {
    const uint8_t *base;
    uint64_t bytes;
    ucp_mem_h handle; /* NULL: not registered by us */
    uint32_t users;   /* workers; 0: a free place */
    bool gpu;
};

/* Changes under a mutex of ucx_context.c, but for what is constant; a worker
 * reads its own places of memory[] without. */
struct ucx_context {
    struct ucx_context *next; /* of those that are shared */
    ucp_context_h h;
    char *text; /* what it was configured from */
    uint32_t users;
    bool copies; /* every transport copies through host memory */
    bool cached; /* it has a registration cache */
    struct ucx_memory memory[UCX_MEMORY_MAX];
};

struct ucx {
    struct ucx_context *context;
    ucp_worker_h worker; /* NULL: not open */
    int fd;              /* UCX's own; closed with the worker */
    uint64_t memory;     /* the context's places that this worker uses */
    uint8_t *address;    /* owned; stays when the worker goes */
    uint32_t address_len;
};

/* Opens a worker, and a context if there is none that is configured so; *out
 * is zeroed, or its worker was closed. Messages go to arrived(arg, ...), which
 * is set before the address is read: a worker that receives a message without a
 * handler crashes. */
MUST_CHECK enum err ucx_open(struct ucx *out, const struct data_conf *c,
    ucp_am_recv_callback_t arrived, void *arg);
/* Destroys the worker; outstanding operations may call back meanwhile. Memory
 * stays registered for the next one. Harmless twice. */
void ucx_worker_close(struct ucx *u);
/* The same, and gives everything back. */
void ucx_close(struct ucx *u);

/* Writes the endpoint's transports, "tcp/lo", joined by commas; empty while it
 * is not connected. */
void ucx_transport(ucp_ep_h ep, char *out, size_t size);
/* True if one of the transports, with or without their devices, reads a peer's
 * memory where it lies. */
bool ucx_reaches(const char *list);

/* ucx_context.c. Returns a context for c, to be given back; NULL with a log
 * line. */
struct ucx_context *ucx_context_take(const struct data_conf *c);
void ucx_context_give(struct ucx_context **x);
/* True if UCX can keep a registration cache in this process: it sees when
 * memory is unmapped, which it tries. Without, a zero-copy message may read
 * memory that has gone. */
bool ucx_cache_works(void);
/* The mutex that environment and contexts are changed under. */
void ucx_lock(void);
void ucx_unlock(void);

/* ucx_memory.c. Registers memory for messages to be sent from and fetched into,
 * by this worker and later ones. False: not registered; of a GPU it must not be
 * used then. */
bool ucx_memory_add(struct ucx *u, const void *base, uint64_t bytes, bool gpu);
void ucx_memory_drop(struct ucx *u);
/* Sets the kind of memory that a buffer lies in, and how it is registered;
 * nothing if that is not known. */
void ucx_memory_param(const struct ucx *u, const void *buffer, uint64_t bytes,
    ucp_request_param_t *param);
/* True if that kind is a GPU's. */
bool ucx_memory_gpu(const ucp_request_param_t *param);

/* A message whose bytes UCX copies out of pieces, none of them empty. Sent as
 * one element of the type that ucx_pack_type creates (and ucp_dt_destroy
 * frees); it must stay until the message completes. */
struct ucx_pack {
    const struct iovec *iov;
    uint32_t iovs;
    uint32_t at_iov; /* private from here: UCX's position */
    size_t at_byte, at_total;
};
MUST_CHECK enum err ucx_pack_type(ucp_datatype_t *out);

#endif
