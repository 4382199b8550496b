/* still.c - a daemon's loop, or one shard, that is not scheduled for a while:
 * its links stay up, and what would have happened meanwhile happens when it
 * continues, in the same order. Also commands that the loop keeps while a ring
 * is full. */
#include "test/sim/sim.h"

struct later {
    happening fn;
    void *p;
    uint64_t a, b;
};

struct waiting {
    struct later *items;
    uint32_t len, cap;
    uint64_t until_ns;
};

static struct waiting parts[DAEMONS_MAX][1 + SHARDS_MAX];

static struct {
    uint64_t at_ns, until_ns, ahead_ns; /* ahead_ns: before the world's time */
} clocks[DAEMONS_MAX];                  /* by host */

uint64_t clock_of(const struct daemon *d, uint64_t world_ns)
{
    bool stands = world_ns < clocks[d->host].until_ns;

    return clocks[d->host].ahead_ns +
           (stands ? clocks[d->host].at_ns : world_ns);
}

uint64_t clock_shows(const struct daemon *d, uint64_t when_ns)
{
    return max_u64(clocks[d->host].until_ns,
        when_ns - min_u64(when_ns, clocks[d->host].ahead_ns));
}

static void clock_jumps(void *p, uint64_t host, uint64_t by_ns)
{
    clocks[host].ahead_ns += by_ns;
    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (W.daemons[i]->host == host && W.daemons[i]->alive)
            daemon_clocked(W.daemons[i]);
}

void clock_stands(const struct daemon *d, uint64_t for_ns, uint64_t by_ns)
{
    if (W.now_ns < clocks[d->host].until_ns)
        return;
    trace("the clock of %s stops for %llu ms, then jumps by %llu ms",
        d->conf->name, (unsigned long long)(for_ns / MS),
        (unsigned long long)(by_ns / MS));
    clocks[d->host].at_ns = W.now_ns;
    clocks[d->host].until_ns = W.now_ns + for_ns;
    at(W.now_ns + for_ns, clock_jumps, NULL, d->host, by_ns);
}

bool stands_still(struct daemon *d, uint32_t part, happening fn, void *p,
    uint64_t a, uint64_t b)
{
    struct waiting *w = &parts[d->index][part];

    if (W.now_ns >= w->until_ns)
        return false;
    if (w->len == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 64;
        w->items = realloc(w->items, w->cap * sizeof(*w->items));
        if (!w->items)
            abort();
    }
    w->items[w->len++] = (struct later){fn, p, a, b};
    return true;
}

static void goes_on(void *p, uint64_t index, uint64_t part)
{
    struct waiting *w = &parts[index][part];
    struct waiting was = *w;

    if (W.now_ns < w->until_ns)
        return; /* it was told to stand still for longer */
    *w = (struct waiting){NULL, 0, 0, 0};
    for (uint32_t i = 0; i < was.len; i++)
        was.items[i].fn(was.items[i].p, was.items[i].a, was.items[i].b);
    free(was.items);
}

void stand_still(struct daemon *d, uint32_t part, uint64_t for_ns)
{
    struct waiting *w = &parts[d->index][part];

    trace("%s %s %u stands still for %llu ms", d->conf->name,
        part == LOOP ? "loop" : "shard", part == LOOP ? 0 : part - 1,
        (unsigned long long)(for_ns / MS));
    if (W.now_ns + for_ns > w->until_ns)
        w->until_ns = W.now_ns + for_ns;
    at(w->until_ns, goes_on, NULL, d->index, part);
}

void all_go_on(void)
{
    for (uint32_t i = 0; i < DAEMONS_MAX; i++)
        clocks[i].until_ns = 0;
    for (uint32_t i = 0; i < DAEMONS_MAX; i++)
        for (uint32_t k = 0; k <= SHARDS_MAX; k++)
            if (parts[i][k].until_ns > W.now_ns) {
                parts[i][k].until_ns = W.now_ns;
                goes_on(NULL, i, k);
            }
}

/* Has one daemon, or one shard of one, stand still for a while. */
void stand_one_still(void)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    uint64_t for_ns = between(1, chance(300) ? 8000 : 200) * MS;

    if (chance(300))
        for (uint32_t k = 0; k <= d->shards_count; k++)
            stand_still(d, k, for_ns);
    else
        stand_still(d, (uint32_t)between(0, d->shards_count), for_ns);
}
