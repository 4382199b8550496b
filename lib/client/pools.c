/* pools.c - mapping the daemon's pools.
 *
 * Invariants. A map's index in m->maps is its id, and stays the same for its
 * name over reconnects. Its serial is that of the connection on which it was
 * received, and a room uses only maps of its own connection. POOL_INFO is
 * checked against the size of the descriptor before it is mapped, so no view
 * can reach past the end. An old map stays until the pool is asked for again:
 * ready rows are still being read.
 *
 * Callbacks run without the lock: pinning gigabytes takes seconds. Rejected:
 * remapping without a call after a reconnect, while the engine reads. */
#include "client/client.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int map_host(mmx *m, struct client_reply *r)
{
    struct mmx_pool *p = &r->pool;

    if (r->fd < 0) {
        errno = EMFILE; /* then the kernel drops the descriptor without an
                           error */
        client_error(m, "pool %s: its descriptor: %m", p->name);
        return -MMX_E_SYSTEM;
    }
    if (!client_sealed(r->fd, p->bytes)) {
        client_error(m,
            "pool %s: its descriptor has less than %" PRIu64
            " bytes, or its size can change",
            p->name, p->bytes);
        return -MMX_E_MALFORMED;
    }
    p->base = mmap(NULL, p->bytes, PROT_READ | (p->writable ? PROT_WRITE : 0),
        MAP_SHARED, r->fd, 0);
    if (p->base == MAP_FAILED) {
        client_error(m, "pool %s: %m", p->name);
        return -MMX_E_SYSTEM;
    }
    /* Core dumps must not contain users' data, and a forked child must not
     * write to the pool. Failures are ignored: the pool works without. */
    (void)madvise(p->base, p->bytes, MADV_DONTDUMP);
    (void)madvise(p->base, p->bytes, MADV_DONTFORK);
    return 0;
}

int client_map_pool(mmx *m, struct client_reply *r)
{
    struct mmx_pool *p = &r->pool;
    int err = client_is_host(r) ? map_host(m, r) : client_gpu_map(m, r);

    if (err)
        return err;
    for (uint32_t f = 0; f < p->fields_count; f++)
        p->fields[f].data = (uint8_t *)p->base + (uintptr_t)p->fields[f].data;
    return 0;
}

/* Callbacks and unmapping that are due once the lock is released. */
struct change {
    struct mmx_pool old, now;
    bool has_old, has_now;
    mmx_map_fn notify;
    void *ud;
};

static void carry_out(const struct change *c)
{
    assert(!c->has_old || c->old.base);
    if (c->has_old && c->notify)
        c->notify(c->ud, &c->old, 0);
    if (c->has_old && c->old.gpu >= 0)
        mmx_gpu_unmap(c->old.gpu, c->old.base, c->old.bytes);
    else if (c->has_old)
        munmap(c->old.base, c->old.bytes);
    if (c->has_now && c->notify)
        c->notify(c->ud, &c->now, 1);
}

/* Maps the pool of the daemon's answer, unless it is mapped already. */
static int install(mmx *m, struct client_reply *r, struct change *c)
{
    struct client_map *map = client_map_of(m, r->pool.name);
    int err;

    if (!map)
        return -MMX_E_QUOTA;
    assert(!map->used || strcmp(map->pool.name, r->pool.name) == 0);
    c->notify = m->on_map;
    c->ud = m->on_map_ud;
    if (map->used && map->serial == m->serial) {
        c->now = map->pool;
        return 0;
    }
    err = client_map_pool(m, r);
    if (err)
        return err;
    c->has_old = map->used;
    c->old = map->pool;
    c->has_now = true;
    r->pool.id = (int)(map - m->maps);
    c->now = r->pool;
    *map = (struct client_map){.used = true,
        .told = true,
        .number = r->number,
        .serial = m->serial,
        .pool = r->pool};
    return 0;
}

int mmx_ask_pool(mmx *m, const char *name, const char *layout)
{
    struct local_msg msg = {.type = LOCAL_POOL,
        .pool = {.name = span_str(name ? name : ""),
            .layout = span_str(layout ? layout : "")}};

    return CLIENT_LOCKED(m, client_ask(m, &msg, 0, NONE, 0, NULL));
}

static int ask_pool(mmx *m, const char *name, const char *layout,
    int timeout_ms, struct change *c)
{
    struct local_msg msg = {.type = LOCAL_POOL,
        .pool = {.name = span_str(name ? name : ""),
            .layout = span_str(layout ? layout : "")}};
    struct client_reply r = {.fd = -1};
    int err = client_call(m, &msg, 0, &r, timeout_ms);

    if (!err)
        err = install(m, &r, c);
    if (r.fd >= 0)
        close(r.fd);
    return err;
}

int mmx_pool(mmx *m, const char *name, const char *layout, int timeout_ms,
    struct mmx_pool *out)
{
    struct change c = {0};
    int err;

    if (!out || out->size < sizeof out->size || m->said)
        return -MMX_E_MALFORMED;
    err = CLIENT_LOCKED(m, ask_pool(m, name, layout, timeout_ms, &c));
    if (err)
        return err;
    carry_out(&c);
    return CLIENT_GIVE(out, c.now) ? 0 : -MMX_E_MALFORMED;
}

int mmx_on_map(mmx *m, mmx_map_fn f, void *ud)
{
    struct mmx_pool pools[MAPS_MAX];
    uint32_t n = 0;
    int err = client_lock(m);

    if (err)
        return err;
    m->on_map = f;
    m->on_map_ud = ud;
    for (uint32_t i = 0; i < MAPS_MAX; i++)
        if (m->maps[i].used && m->maps[i].told)
            pools[n++] = m->maps[i].pool;
    client_unlock(m);
    for (uint32_t i = 0; f && i < n; i++)
        f(ud, &pools[i], 1);
    return 0;
}

void client_unmap_all(mmx *m)
{
    for (uint32_t i = 0; i < MAPS_MAX; i++) {
        struct client_map *map = &m->maps[i];
        struct change c = {.old = map->pool,
            .has_old = map->used,
            .notify = map->told ? m->on_map : NULL,
            .ud = m->on_map_ud};

        if (!m->said) /* a binding's maps are its own */
            carry_out(&c);
        map->used = false;
    }
}
