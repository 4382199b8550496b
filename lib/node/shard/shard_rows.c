/* shard_rows.c - where rows of a pool lie in memory. A segment's rows are its
 * fields one after the other, each in pieces; adjacent pieces are one place. */
#include "node/shard/shard_in.h"

#include "base/check.h"

/* Appends the places of field f. */
static bool field_iov(const struct shard_pool *p, uint32_t f,
    const struct piece *pieces, uint32_t n, struct iovec *iov, uint32_t *used,
    uint32_t max)
{
    uint64_t row_bytes = p->layout.fields[f].row_bytes;
    uint8_t *region = mem_start(p->mem) + p->offsets[f];
    uint32_t at = *used;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t row = (uint64_t)pieces[i].block * p->block_rows + pieces[i].at;
        uint8_t *start = region + row * row_bytes;
        size_t len = pieces[i].rows * row_bytes;

        CHECK(row + pieces[i].rows <= (uint64_t)p->blocks * p->block_rows,
            "%u rows from row %llu on", pieces[i].rows,
            (unsigned long long)row);
        if (at > 0 &&
            (uint8_t *)iov[at - 1].iov_base + iov[at - 1].iov_len == start) {
            iov[at - 1].iov_len += len;
        } else if (at < max) {
            iov[at++] = (struct iovec){start, len};
        } else {
            return false;
        }
    }
    *used = at;
    return true;
}

bool rows_iov(const struct shard_pool *p, const struct piece *pieces,
    uint32_t n, struct iovec *iov, uint32_t *used, uint32_t max)
{
    bool fits = true;

    CHECK(p->layout.count > 0 && n <= PIECES_MAX && *used <= max,
        "%u pieces of %u fields, place %u of %u", n, p->layout.count, *used,
        max);
    for (uint32_t f = 0; fits && f < p->layout.count; f++)
        fits = field_iov(p, f, pieces, n, iov, used, max);
    return fits;
}

uint32_t rows_find(struct shard *s, const struct shard_pool *p,
    const struct piece *pieces, uint32_t n)
{
    uint32_t used = 0;
    bool fits = rows_iov(p, pieces, n, s->rows, &used, ROWS_IOV_MAX);

    CHECK(fits, "%u pieces of %u fields", n, p->layout.count);
    return used;
}
