/* share.c - see share.h. Owned by the loop's thread. Invariants: `used` is the
 * sum of all uses; a user without entries has no record, so there are never
 * more records than entries. */
#include "core/share.h"

#include "base/check.h"

#include <stdio.h>

uint32_t share_total(uint64_t limit)
{
    return (uint32_t)(limit + (limit * SHARE_RESERVE + 99) / 100);
}

uint32_t share_peers(const struct conf *c)
{
    return share_total(c->limit_peers) + PEERS_UNPROVEN;
}

uint32_t share_connections(const struct conf *c)
{
    return share_total(c->limit_connections) + 2 * CONNECTIONS_OWN +
           CONNECTIONS_CLOSING;
}

void share_init(struct share *s, struct slab *slab, const char *key,
    uint64_t limit, uint32_t unit, uint64_t seed)
{
    s->key = key;
    s->limit = (uint32_t)limit;
    s->total = share_total(limit);
    s->unit = unit;
    s->used = 0;
    CHECK(unit > 0 && s->total >= s->limit, "%s: %u entries of %u", key,
        s->total, s->limit);
    slots_init(&s->slots, slab, s->total);
    table_init(&s->of, slab, s->total, seed);
    s->uses = slab_take(slab, s->total, sizeof(*s->uses));
    s->last = NONE;
}

/* Returns the record of `who`, often the same as last time; NONE: none. */
static uint32_t record_of(const struct share *s, uint64_t who)
{
    uint32_t i = s->last;

    if (i != NONE && s->uses[i].who == who && s->uses[i].used > 0)
        return i;
    return table_get(&s->of, who, 0);
}

uint32_t share_used(const struct share *s, uint64_t who)
{
    uint32_t i = record_of(s, who);

    return i == NONE ? 0 : s->uses[i].used;
}

bool share_allows(
    uint32_t limit, uint32_t total, uint32_t used, uint32_t own, uint32_t n)
{
    uint32_t left = total - used;

    CHECK(used <= total && own <= used, "%u of %u are used, %u by one", used,
        total, own);
    return n <= left && (used + n <= limit || own + n <= left - n);
}

bool share_may(const struct share *s, uint64_t who, uint32_t n)
{
    uint32_t own = s->used + n > s->limit ? share_used(s, who) : 0;

    return share_allows(s->limit, s->total, s->used, own, n);
}

static void refused(struct share *s, uint64_t who, uint32_t n)
{
    unsigned long long unit = s->unit;
    char by[32];

    snprintf(
        by, sizeof(by), "%s %u", who >> 32 ? "peer" : "user", (uint32_t)who);
    if (who == SHARE_RESERVED)
        snprintf(by, sizeof(by), "peers to come");
    snprintf(s->why, sizeof(s->why),
        "%s: %llu asked, %llu of %llu in use, %llu of them by %s"
        " (%u%% more for others)",
        s->key, n * unit, s->used * unit, s->limit * unit,
        share_used(s, who) * unit, by, SHARE_RESERVE);
}

static void add(struct share *s, uint64_t who, uint32_t n)
{
    uint32_t i = record_of(s, who);

    if (i == NONE) {
        i = slots_take(&s->slots);
        CHECK(i != NONE && table_put(&s->of, who, 0, i),
            "no record for one of %u entries", s->used);
        s->uses[i] = (struct share_use){.who = who};
    }
    s->uses[i].used += n;
    s->used += n;
    s->last = i;
}

bool share_take(struct share *s, uint64_t who, uint32_t n)
{
    if (!share_may(s, who, n)) {
        refused(s, who, n);
        return false;
    }
    if (n > 0)
        add(s, who, n);
    return true;
}

void share_give(struct share *s, uint64_t who, uint32_t n)
{
    uint32_t i = n == 0 ? NONE : record_of(s, who);

    if (n == 0)
        return;
    CHECK(i != NONE && s->uses[i].used >= n && s->used >= n,
        "%s: %u are given back", s->key, n);
    s->used -= n;
    s->uses[i].used -= n;
    if (s->uses[i].used > 0)
        return;
    table_remove(&s->of, who, 0);
    slots_give(&s->slots, i);
}

void share_move(struct share *s, uint64_t from, uint64_t to, uint32_t n)
{
    share_give(s, from, n);
    if (n > 0)
        add(s, to, n);
}

/* A turn is a round; the lower bits have the order within the round. */
#define TURN_BITS  20
#define TURN_ORDER ((UINT64_C(1) << TURN_BITS) - 1)

uint64_t share_turn(struct share *s, uint64_t who, uint64_t head)
{
    uint64_t now = head == TURN_NONE ? s->round : head >> TURN_BITS;
    uint32_t i = record_of(s, who);
    struct share_use *u;

    CHECK(i != NONE, "%s: a turn for one without entries", s->key);
    u = &s->uses[i];
    u->turn = (max_u64(u->turn >> TURN_BITS, now) + 1) << TURN_BITS |
              (s->turns++ & TURN_ORDER);
    return u->turn;
}

void share_served(struct share *s, uint64_t turn)
{
    s->round = max_u64(s->round, turn >> TURN_BITS);
}
