/* runs.c - where a room's rows lie in its pool: runs of blocks, from the row
 * `first` of the room on.
 *
 * Invariants. Every block number is within the pool, and no run is empty. Runs
 * of released rows go as soon as whole blocks are released, so their number is
 * that of the rows in use and not of all that a stream has had. Under the
 * handle's lock. */
#include "client/client.h"

#include <string.h>

static struct window_blocks *runs_of(mmx *m, const struct client_room *r)
{
    assert(r >= m->rooms && r < m->rooms + m->cells);
    return m->stores[r - m->rooms].runs;
}

void client_runs_trim(mmx *m, struct client_room *r)
{
    struct window_blocks *runs = runs_of(m, r);
    uint32_t block_rows = m->maps[r->map].pool.block_rows, gone = 0;

    assert(r->map < MAPS_MAX && block_rows > 0);
    while (gone < r->runs && r->base > r->first) {
        uint32_t n =
            min_u32((r->base - r->first) / block_rows, runs[gone].blocks);

        if (n == 0)
            break;
        r->first += n * block_rows;
        runs[gone].block += n;
        runs[gone].blocks -= n;
        gone += runs[gone].blocks == 0;
    }
    assert(gone <= r->runs);
    r->runs -= gone;
    memmove(runs, runs + gone, r->runs * sizeof *runs);
}

static void add_run(
    struct client_room *r, struct window_blocks *runs, struct window_blocks add)
{
    struct window_blocks *last = r->runs ? &runs[r->runs - 1] : NULL;

    assert(add.blocks > 0 && r->runs <= RUNS_MAX);
    if (last && last->block + last->blocks == add.block)
        last->blocks += add.blocks;
    else if (r->runs < RUNS_MAX)
        runs[r->runs++] = add;
}

static bool runs_good(struct span s, uint32_t blocks)
{
    struct reader in = reader_of(s.p, s.len);

    while (in.at < in.len) {
        uint32_t b = get_u32(&in), n = get_u32(&in);

        if (in.failed || n == 0 || b >= blocks || n > blocks - b)
            return false;
    }
    return true;
}

void client_runs_take(
    mmx *m, struct client_room *r, uint32_t first, struct span s)
{
    struct window_blocks *runs = runs_of(m, r);
    /* a binding asks for a pool that it does not know yet */
    uint32_t blocks =
        r->map == MAP_NONE ? UINT32_MAX : m->maps[r->map].pool.blocks;
    struct reader in = reader_of(s.p, s.len);

    assert(r->map != MAP_NONE || m->said);
    if (s.len == 0 || !runs_good(s, blocks))
        return;
    r->runs = 0;
    r->first = first;
    while (in.at < in.len) {
        uint32_t b = get_u32(&in), n = get_u32(&in);

        add_run(r, runs, (struct window_blocks){b, n});
    }
    if (!m->said)
        client_runs_trim(m, r);
}
