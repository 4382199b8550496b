/* shard_rows.c - where the rows of a pool lie in memory. A segment has, field
 * after field, the pieces of its rows. Pieces that touch become one entry of an
 * iovec, a "place". */
#include "node/shard/shard_in.h"

#include "base/check.h"

/* Appends one place, or lengthens the last one; false: it is one too many. */
static bool append(
    struct iovec *iov, uint32_t *used, uint32_t max, uint8_t *start, size_t len)
{
    struct iovec *last = *used > 0 ? &iov[*used - 1] : NULL;

    if (last && (uint8_t *)last->iov_base + last->iov_len == start)
        last->iov_len += len;
    else if (*used < max)
        iov[(*used)++] = (struct iovec){start, len};
    else
        return false;
    return true;
}

bool rows_iov(const struct shard_pool *p, const struct piece *pieces,
    uint32_t n, struct iovec *iov, uint32_t *used, uint32_t max)
{
    CHECK(p->layout.count > 0 && n <= PIECES_MAX && *used <= max,
        "%u pieces of %u fields, place %u of %u", n, p->layout.count, *used,
        max);
    for (uint32_t k = 0; k < n * p->layout.count; k++) {
        const struct piece *c = &pieces[k % n];
        uint64_t row = (uint64_t)c->block * p->block_rows + c->at;
        uint64_t row_bytes = p->layout.fields[k / n].row_bytes;

        CHECK(row + c->rows <= (uint64_t)p->blocks * p->block_rows,
            "%u rows from row %llu on", c->rows, (unsigned long long)row);
        if (!append(iov, used, max,
                mem_start(p->mem) + p->offsets[k / n] + row * row_bytes,
                c->rows * row_bytes))
            return false;
    }
    return true;
}

uint32_t rows_find(struct shard *s, const struct shard_pool *p,
    const struct piece *pieces, uint32_t n)
{
    uint32_t used = 0;
    bool fits = rows_iov(p, pieces, n, s->rows, &used, ROWS_IOV_MAX);

    CHECK(fits, "%u pieces of %u fields", n, p->layout.count);
    return used;
}
