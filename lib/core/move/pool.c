/* pool.c - see pool.h. Takes the first run that is long enough, from where the
 * last search ended. If there is none, one pass collects the free runs by
 * length and the longest are taken. A failed search is remembered until blocks
 * are given back. Invariant: a block is free in the bitmap or in exactly one
 * run of one extent. by_len is empty between calls; its chains use run_next of
 * free blocks.
 *
 * Rejected: a buddy allocator. Rooms have any number of blocks, and one run per
 * room matters more than freeing in O(1). */
#include "core/move/pool.h"

#include "base/check.h"

void pool_init(struct pool *p, struct slab *s, uint32_t blocks)
{
    uint32_t words = div_up(blocks, 64);

    p->blocks = p->free = blocks;
    p->hint = 0;
    p->free_map = slab_take(s, words, sizeof(*p->free_map));
    p->run_len = slab_take(s, blocks, sizeof(*p->run_len));
    p->run_next = slab_take(s, blocks, sizeof(*p->run_next));
    p->by_len = slab_take(s, (size_t)blocks + 1, sizeof(*p->by_len));
    p->longest = blocks;
    p->scattered = NONE;
    for (uint32_t b = 0; p->run_next && b < blocks; b++)
        p->free_map[b / 64] |= UINT64_C(1) << b % 64;
}

static bool is_free(const struct pool *p, uint32_t b)
{
    return p->free_map[b / 64] >> b % 64 & 1;
}

/* Returns the first free block at or after b; p->blocks: none. */
static uint32_t next_free(const struct pool *p, uint32_t b)
{
    while (b < p->blocks) {
        uint64_t w = p->free_map[b / 64] >> b % 64;

        if (w)
            return min_u32(b + (uint32_t)__builtin_ctzll(w), p->blocks);
        b = (b / 64 + 1) * 64;
    }
    return p->blocks;
}

/* Returns the first block at or after b that is not free; `end`: none. */
static uint32_t next_taken(const struct pool *p, uint32_t b, uint32_t end)
{
    while (b < end) {
        uint64_t w = ~p->free_map[b / 64] >> b % 64;

        if (w)
            return min_u32(b + (uint32_t)__builtin_ctzll(w), end);
        b = (b / 64 + 1) * 64;
    }
    return end;
}

/* Returns the first block of n free neighbours that begin in [from, to); NONE:
 * no such run. */
static uint32_t find_run(struct pool *p, uint32_t from, uint32_t to, uint32_t n)
{
    for (uint32_t b = next_free(p, from); b < to;) {
        uint32_t end = next_taken(p, b, min_u32(p->blocks, b + n));

        p->steps++;
        if (end - b == n)
            return b;
        b = next_free(p, end);
    }
    return NONE;
}

/* Appends a run to the extent. */
static void add_run(struct pool *p, struct extent *e, uint32_t b, uint32_t n)
{
    p->run_len[b] = n;
    p->run_next[b] = NONE;
    if (e->tail == NONE)
        e->head = b;
    else
        p->run_next[e->tail] = b;
    e->tail = b;
    e->blocks += n;
    e->runs++;
}

static void take_run(struct pool *p, struct extent *e, uint32_t b, uint32_t n)
{
    CHECK(n > 0 && b < p->blocks && n <= p->blocks - b && n <= p->free,
        "%u blocks at %u of %u", n, b, p->blocks);
    for (uint32_t i = b; i < b + n; i++)
        p->free_map[i / 64] &= ~(UINT64_C(1) << i % 64);
    p->free -= n;
    add_run(p, e, b, n);
    p->hint = b + n < p->blocks ? b + n : 0;
}

/* Chains all free runs by their length. */
static void collect(struct pool *p)
{
    p->longest = 0;
    for (uint32_t b = next_free(p, 0), end; b < p->blocks;
         b = next_free(p, end)) {
        uint32_t len;

        end = next_taken(p, b, p->blocks);
        len = end - b;
        CHECK(end > b && end <= p->blocks, "a free run from %u to %u of %u", b,
            end, p->blocks);
        p->steps++;
        p->run_next[b] = p->by_len[len] - 1; /* NONE: the last of its chain */
        p->by_len[len] = b + 1;
        p->longest = max_u32(p->longest, len);
    }
}

/* Takes the shortest run of at least `want` blocks off its chain, or else the
 * longest of all. *longest: none is longer. Returns it and its length. */
static uint32_t pick(
    struct pool *p, uint32_t want, uint32_t *longest, uint32_t *len)
{
    uint32_t b;

    while (*longest > 0 && !p->by_len[*longest])
        --*longest;
    *len = min_u32(want, *longest);
    CHECK(*len > 0, "%u of %u blocks free, none found", p->free, p->blocks);
    while (!p->by_len[*len])
        ++*len;
    b = p->by_len[*len] - 1;
    CHECK(is_free(p, b) && p->run_next[b] != b,
        "block %u, of a run of %u, is not free", b, *len);
    p->by_len[*len] = p->run_next[b] + 1;
    return b;
}

/* Takes n blocks as the longest runs; false: that needs more than runs_max. */
static bool take_pieces(
    struct pool *p, struct extent *e, uint32_t n, uint32_t runs_max)
{
    uint32_t longest;

    collect(p);
    longest = p->longest;
    while (e->blocks < n && e->runs < runs_max) {
        uint32_t want = n - e->blocks, len;
        uint32_t b = pick(p, want, &longest, &len);

        take_run(p, e, b, min_u32(len, want));
    }
    memset(p->by_len, 0, ((size_t)p->longest + 1) * sizeof(*p->by_len));
    return e->blocks == n;
}

bool pool_take(
    struct pool *p, struct extent *e, uint32_t n, uint32_t *first_run)
{
    struct extent added = extent_none();
    uint32_t b = NONE;

    *first_run = NONE;
    if (n > p->free || (n >= p->scattered && e->runs >= p->scattered_runs))
        return false;
    if (n == 0)
        return true;
    if (n <= p->longest)
        b = find_run(p, p->hint, p->blocks, n);
    if (n <= p->longest && b == NONE)
        b = find_run(p, 0, p->hint, n);
    if (b != NONE && e->runs < POOL_RUNS_MAX) {
        take_run(p, &added, b, n);
    } else if (!take_pieces(p, &added, n, POOL_RUNS_MAX - e->runs)) {
        pool_give(p, &added);
        p->scattered = n;
        p->scattered_runs = e->runs;
        return false;
    }
    *first_run = added.head;
    if (e->tail == NONE)
        e->head = added.head;
    else
        p->run_next[e->tail] = added.head;
    e->tail = added.tail;
    e->blocks += added.blocks;
    e->runs += added.runs;
    return true;
}

void pool_give(struct pool *p, struct extent *e)
{
    for (uint32_t b = e->head; b != NONE; b = p->run_next[b]) {
        CHECK(p->run_len[b] <= p->blocks - b, "a run of %u blocks at %u of %u",
            p->run_len[b], b, p->blocks);
        for (uint32_t i = b; i < b + p->run_len[b]; i++) {
            CHECK(!is_free(p, i), "block %u given back twice", i);
            p->free_map[i / 64] |= UINT64_C(1) << i % 64;
        }
        p->free += p->run_len[b];
    }
    p->longest = p->blocks;
    p->scattered = NONE;
    *e = extent_none();
}

struct extent pool_split(struct pool *p, struct extent *e, uint32_t n)
{
    struct extent rest = extent_none(), kept = extent_none();
    uint32_t b = e->head;

    CHECK(n <= e->blocks, "split at %u of %u", n, e->blocks);
    while (b != NONE) {
        uint32_t next = p->run_next[b], len = p->run_len[b];
        uint32_t keep = min_u32(len, n - kept.blocks);

        if (keep > 0)
            add_run(p, &kept, b, keep);
        if (keep < len)
            add_run(p, &rest, b + keep, len - keep);
        b = next;
    }
    CHECK(kept.blocks == n, "%u blocks kept of %u", kept.blocks, n);
    *e = kept;
    return rest;
}

void pool_check(const struct pool *p)
{
    uint32_t n = 0;

    for (uint32_t b = 0; b < p->blocks; b++)
        n += is_free(p, b);
    CHECK(n == p->free, "%u blocks in the map, %u counted", n, p->free);
}

void pool_put_runs(
    const struct pool *p, const struct extent *e, struct writer *w)
{
    for (uint32_t b = e->head; b != NONE; b = p->run_next[b]) {
        put_u32(w, b);
        put_u32(w, p->run_len[b]);
    }
}
