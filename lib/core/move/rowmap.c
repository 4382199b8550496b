/* rowmap.c - see rowmap.h. Rows added in order only move the prefix and set no
 * bit; bits are for rows beyond a gap. */
#include "core/move/rowmap.h"

#include "base/check.h"
#include "core/move/runs.h"

void rowmap_init(
    struct rowmap *m, struct slab *s, uint32_t blocks, uint32_t block_rows)
{
    uint64_t bits = (uint64_t)blocks * block_rows;

    m->block_rows = block_rows;
    m->unit = 1;
    m->bits = slab_take(s, (size_t)(bits / 64 + 1), sizeof(*m->bits));
}

void rowmap_clear(struct rowmap *m, const struct pool *p, uint32_t first_run)
{
    uint64_t per_block;

    CHECK(m->unit > 0 && m->block_rows % m->unit == 0,
        "units of %u rows in blocks of %u", m->unit, m->block_rows);
    per_block = m->block_rows / m->unit;
    for (uint32_t b = first_run; b != NONE; b = p->run_next[b]) {
        uint64_t end = (b + (uint64_t)p->run_len[b]) * per_block;

        for (uint64_t i = b * per_block; i < end;) {
            if (i % 64 == 0 && end - i >= 64) {
                m->bits[i / 64] = 0;
                i += 64;
            } else {
                m->bits[i / 64] &= ~(UINT64_C(1) << i % 64);
                i++;
            }
        }
    }
}

/* Returns the bit index of the unit that holds `row`; *at is a run of the
 * extent at or before it. UINT64_MAX: the extent ends before it. */
static uint64_t unit_of(const struct rowmap *m, const struct pool *p,
    uint64_t end, struct run_at *at, uint32_t row)
{
    const struct runs r = {p->run_len, p->run_next, m->block_rows};

    if (row >= end)
        return UINT64_MAX;
    runs_seek(&r, at, row);
    return ((uint64_t)at->run * m->block_rows + (row - at->row)) / m->unit;
}

uint32_t rowmap_add(struct rowmap *m, const struct pool *p,
    const struct extent *e, uint32_t base, uint32_t prefix, uint32_t first,
    uint32_t rows)
{
    struct run_at at = {e->head, base};
    uint64_t held = base + (uint64_t)e->blocks * m->block_rows;
    uint32_t end = first + rows;
    uint64_t i;

    CHECK(end >= first && base <= prefix, "%u rows from %u on, base %u of %u",
        rows, first, base, prefix);
    if (first > prefix) {
        for (uint32_t r = first; r < end; r += m->unit) {
            i = unit_of(m, p, held, &at, r);
            CHECK(i != UINT64_MAX, "row %u is beyond the extent", r);
            m->bits[i / 64] |= UINT64_C(1) << i % 64;
        }
        return prefix;
    }
    prefix = max_u32(prefix, end);
    while (prefix % m->unit == 0) {
        i = unit_of(m, p, held, &at, prefix);
        if (i == UINT64_MAX || !(m->bits[i / 64] >> i % 64 & 1))
            break;
        prefix += m->unit;
    }
    return prefix;
}
