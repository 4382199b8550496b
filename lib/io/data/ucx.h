/* ucx.h - one UCX context with one worker, configured from data_conf. Private
 * to data_ucx.c; owned by the thread that opened it. */
#ifndef MMX_IO_UCX_H
#define MMX_IO_UCX_H

#include "io/data.h"

#include <ucp/api/ucp.h>

#define UCX_AM_ID       1
#define UCX_ADDRESS_MIN 8
#define UCX_ADDRESS_MAX 1024

#define UCX_MEMORY_MAX 64

struct ucx {
    ucp_context_h context;
    ucp_worker_h worker; /* NULL: not open */
    int fd;              /* UCX's own; closed with the worker */
    bool host_only;      /* every transport copies through host memory */
    uint32_t address_len;
    uint8_t address[UCX_ADDRESS_MAX];
    struct ucx_memory {
        const uint8_t *base;
        uint64_t bytes;
        ucp_mem_h handle;     /* NULL: not registered by us */
    } memory[UCX_MEMORY_MAX]; /* of GPUs; kept when the worker goes */
    uint32_t memory_count;
};

/* Opens a context and a worker; *out is zeroed, or was closed. Messages go to
 * arrived(arg, ...), which is set before the address is read: a worker that
 * receives a message without a handler crashes. */
MUST_CHECK enum err ucx_open(struct ucx *out, const struct data_conf *c,
    ucp_am_recv_callback_t arrived, void *arg);
/* Destroys them; outstanding operations may call back meanwhile. Harmless
 * twice. */
void ucx_close(struct ucx *u);

/* Writes the endpoint's transports, "tcp/lo", joined by commas; empty while it
 * is not connected. */
void ucx_transport(ucp_ep_h ep, char *out, size_t size);

/* ucx_gpu.c. Registers memory of a GPU, for messages to be sent from and
 * fetched into, with this worker and later ones. False: this UCX does not
 * support GPUs, or refuses this memory. */
bool ucx_memory_add(struct ucx *u, const void *base, uint64_t bytes);
/* Sets the kind of memory that the buffer lies in; nothing if none was added.
 */
void ucx_memory_param(
    const struct ucx *u, const void *buffer, ucp_request_param_t *param);
/* True if that kind is a GPU's. */
bool ucx_memory_gpu(const ucp_request_param_t *param);
/* Called by ucx.c after a context was opened, and before it is closed. */
void ucx_memory_open(struct ucx *u);
void ucx_memory_close(struct ucx *u);

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
