/* ucx_pack.c - messages that UCX copies: it asks for their bytes part by part,
 * as its buffers have space, and gets them from a list of pieces.
 *
 * Stateless except for struct ucx_pack, which belongs to one message from post
 * to completion. Rejected: gathering into buffers of our own, which is one more
 * copy; UCX's own lists of pieces (see data_ucx.c). */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/guard.h"

static void *pack_start(void *context, const void *buffer, size_t count)
{
    struct ucx_pack *k = (struct ucx_pack *)(uintptr_t)buffer;

    (void)context;
    (void)count;
    k->at_iov = 0;
    k->at_byte = k->at_total = 0;
    return k;
}

static size_t pack_size(void *state)
{
    struct ucx_pack *k = state;
    size_t bytes = 0;

    for (uint32_t i = 0; i < k->iovs; i++)
        bytes += k->iov[i].iov_len;
    return bytes;
}

/* Moves to `offset`, nearly always the present one. UCX asks again for a
 * fragment that it could not send. */
static void pack_seek(struct ucx_pack *k, size_t offset)
{
    if (offset < k->at_total) {
        k->at_iov = 0;
        k->at_byte = k->at_total = 0;
    }
    while (k->at_total < offset) {
        CHECK(k->at_iov < k->iovs, "byte %zu of a message of %zu", offset,
            k->at_total);
        size_t left = k->iov[k->at_iov].iov_len - k->at_byte;

        if (left > offset - k->at_total)
            left = offset - k->at_total;
        k->at_byte += left;
        k->at_total += left;
        if (k->at_byte == k->iov[k->at_iov].iov_len) {
            k->at_iov++;
            k->at_byte = 0;
        }
    }
}

static size_t pack(void *state, size_t offset, void *dest, size_t max)
{
    struct ucx_pack *k = state;
    size_t done = 0;

    pack_seek(k, offset);
    while (done < max && k->at_iov < k->iovs) {
        const struct iovec *v = &k->iov[k->at_iov];
        size_t n = min_u64(max - done, v->iov_len - k->at_byte);

        guard_copy_zeros((uint8_t *)dest + done,
            (const uint8_t *)v->iov_base + k->at_byte, n);
        done += n;
        k->at_byte += n;
        if (k->at_byte == v->iov_len) {
            k->at_iov++;
            k->at_byte = 0;
        }
    }
    k->at_total += done;
    return done;
}

static void pack_finish(void *state)
{
    (void)state;
}

static const ucp_generic_dt_ops_t packing = {.start_pack = pack_start,
    .packed_size = pack_size,
    .pack = pack,
    .finish = pack_finish};

enum err ucx_pack_type(ucp_datatype_t *out)
{
    return ucp_dt_create_generic(&packing, NULL, out) == UCS_OK ? OK
                                                                : ERR_INTERNAL;
}
