/* diff.c - compares the present configuration with one read anew: what differs,
 * and what a reload makes of it. Pure; any thread.
 *
 * Invariants: a reload changes only rows that conf.def lets it change, and
 * conf_take does not write unchanged values: other threads read some of them (a
 * shard its transfer.ports). Pools match if their names are the same in the
 * same order; peers match by name in any order.
 *
 * Rejected: replacing the configuration by a copy. Code with a pointer into the
 * old one would read outdated values. */
#include "core/conf/table.h"

#include "base/check.h"

#include <stdio.h>

/* one value */

static size_t size_of(const struct conf_row *row)
{
    switch (row->kind) {
    case KIND_TEXT:
        return row->max + 1;
    case KIND_COUNT:
    case KIND_SIZE:
    case KIND_TIME:
    case KIND_NAMES:
        return sizeof(uint64_t);
    case KIND_BOOL:
        return sizeof(bool);
    case KIND_LIST:
        return sizeof(struct conf_list);
    }
    return 0;
}

static bool same_list(const struct conf_list *a, const struct conf_list *b)
{
    CHECK(a->count <= CONF_LIST_MAX, "a list of %u", a->count);
    for (uint32_t i = 0; i < a->count && i < b->count; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return a->count == b->count;
}

static bool same(const struct conf_row *row, const void *a, const void *b)
{
    const char *x = (const char *)a + row->offset;
    const char *y = (const char *)b + row->offset;

    if (row->kind == KIND_LIST)
        return same_list((const void *)x, (const void *)y);
    if (row->kind == KIND_TEXT)
        return strcmp(x, y) == 0;
    return memcmp(x, y, size_of(row)) == 0;
}

static void copy(const struct conf_row *row, void *to, const void *from)
{
    memcpy((char *)to + row->offset, (const char *)from + row->offset,
        size_of(row));
}

/* Returns why the change needs a restart; NULL: it needs none. turns: the
 * change is from keys to none, or from none to keys. */
static const char *why_not(const struct conf_row *row, bool turns)
{
    if (row->takes == TAKES_RESTART)
        return "needs a restart";
    if (turns && (row->offset == offsetof(struct conf, control_keys) ||
                     row->offset == offsetof(struct conf, control_identities)))
        return "needs a restart: with keys or without is for the whole run";
    return NULL;
}

/* the whole */

static bool same_pools(const struct conf *a, const struct conf *b)
{
    if (a->pools_count != b->pools_count)
        return false;
    for (uint32_t i = 0; i < a->pools_count; i++)
        if (strcmp(a->pools[i].name, b->pools[i].name) != 0)
            return false;
    return true;
}

static const struct conf_peer *peer_of(const struct conf *c, const char *name)
{
    for (uint32_t i = 0; i < c->peers_count; i++)
        if (strcmp(c->peers[i].name, name) == 0)
            return &c->peers[i];
    return NULL;
}

/* The receiver of the differences. */
struct diff {
    const struct conf *now, *next;
    conf_change_fn *take;
    void *ud;
};

/* Reports the differences between two structs; prefix: of the keys,
 * "pools[0].". */
static void tell_rows(const struct diff *d, const struct conf_rows *rows,
    const char *prefix, const void *now, const void *next)
{
    char key[80], was[CONF_CHANGE_TEXT], is[CONF_CHANGE_TEXT];

    for (size_t i = 0; i < rows->count; i++) {
        const struct conf_row *row = &rows->rows[i];

        if (!(row->roles & d->now->role) || same(row, now, next))
            continue;
        CHECK(row->offset + size_of(row) <= sizeof(struct conf), "row %s",
            row->key);
        snprintf(key, sizeof(key), "%s%s", prefix, row->key);
        conf_value(row, now, was, sizeof(was));
        conf_value(row, next, is, sizeof(is));
        d->take(d->ud, key, was, is,
            rows->list
                ? row->takes == TAKES_RESTART ? "needs a restart" : NULL
                : why_not(row, conf_secure(d->now) != conf_secure(d->next)));
    }
}

static void tell_pools(const struct diff *d)
{
    char prefix[32], was[32], is[32];

    if (!same_pools(d->now, d->next)) {
        snprintf(was, sizeof(was), "%u pools", d->now->pools_count);
        snprintf(is, sizeof(is), "%u pools", d->next->pools_count);
        d->take(d->ud, "pools", was, is,
            "needs a restart: pools of other names, or in another order");
        return;
    }
    for (uint32_t i = 0; i < d->now->pools_count; i++) {
        snprintf(prefix, sizeof(prefix), "pools[%u].", i);
        tell_rows(
            d, &conf_pool_keys, prefix, &d->now->pools[i], &d->next->pools[i]);
    }
}

static void tell_peers(const struct diff *d)
{
    char key[80];

    for (uint32_t i = 0; i < d->now->peers_count; i++) {
        const struct conf_peer *p = &d->now->peers[i];
        const struct conf_peer *q = peer_of(d->next, p->name);

        if (q && strcmp(p->address, q->address) == 0)
            continue;
        snprintf(key, sizeof(key), "peers: %s", p->name);
        d->take(d->ud, key, p->address, q ? q->address : "", NULL);
    }
    for (uint32_t i = 0; i < d->next->peers_count; i++) {
        const struct conf_peer *q = &d->next->peers[i];

        if (peer_of(d->now, q->name))
            continue;
        snprintf(key, sizeof(key), "peers: %s", q->name);
        d->take(d->ud, key, "", q->address, NULL);
    }
}

void conf_diff(const struct conf *now, const struct conf *next,
    conf_change_fn *take, void *ud)
{
    struct diff d = {now, next, take, ud};

    CHECK(now->role == next->role, "roles %u and %u", now->role, next->role);
    tell_rows(&d, &conf_keys, "", now, next);
    tell_pools(&d);
    tell_peers(&d);
}

/* a reload */

void conf_keep(struct conf *next, const struct conf *now)
{
    bool pools = same_pools(now, next);
    bool turns = conf_secure(now) != conf_secure(next);

    for (size_t i = 0; i < conf_keys.count; i++)
        if (why_not(&conf_keys.rows[i], turns))
            copy(&conf_keys.rows[i], next, now);
    if (!pools) {
        memcpy(next->pools, now->pools, sizeof(next->pools));
        next->pools_count = now->pools_count;
    }
    for (uint32_t i = 0; i < now->pools_count; i++)
        for (size_t k = 0; k < conf_pool_keys.count; k++)
            if (conf_pool_keys.rows[k].takes == TAKES_RESTART)
                copy(&conf_pool_keys.rows[k], &next->pools[i], &now->pools[i]);
}

static void take_rows(const struct conf_rows *rows, void *now, const void *next)
{
    for (size_t i = 0; i < rows->count; i++)
        if (!same(&rows->rows[i], now, next)) {
            CHECK(rows->rows[i].takes == TAKES_RELOAD, "%s changes",
                rows->rows[i].key);
            copy(&rows->rows[i], now, next);
        }
}

void conf_take(struct conf *now, const struct conf *next)
{
    take_rows(&conf_keys, now, next);
    CHECK(same_pools(now, next), "%u pools, and %u others", now->pools_count,
        next->pools_count);
    for (uint32_t i = 0; i < now->pools_count; i++)
        take_rows(&conf_pool_keys, &now->pools[i], &next->pools[i]);
    memcpy(now->peers, next->peers, sizeof(now->peers));
    now->peers_count = next->peers_count;
}
