/* node_pool.c - memory of pools: placed by layout, opened by kind, given to
 * brain and shards. A pool whose layout the config has is opened at the start,
 * any other when an engine has given its layout. Its memory stays until the
 * daemon ends.
 *
 * Clearing the pages of a large pool takes a second per one or two GiB, so one
 * of libuv's threads does it where the kind of memory allows that, for one pool
 * at a time, since other work waits for those threads. At the start the loop
 * only handles signals meanwhile, and extends the service manager's timeout.
 * The other thread touches only its job's memory and result; all else belongs
 * to the loop's thread.
 *
 * Invariant: a job is idle, wanted, busy or done, in this order.
 *
 * Rejected: serving engines before all pools of the config are there. They
 * would be refused what they could have a moment later. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "io/notify.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 1000 /* interval of notifications about a long start */
#define LOOK_US     1000 /* pause between turns of the loop meanwhile */

struct pool_job {
    uv_work_t work;
    struct node *node;
    uint32_t pool;
    const struct mem_ops *kind;
    struct mem_opt opt;
    struct mem mem;
    uint64_t offsets[LAYOUT_FIELDS_MAX];
    /* wanted: it waits; busy: it is in the other thread; done: it has ended
     * there */
    bool wanted, busy, done;
    enum err result;
};

enum err node_pools_new(struct node *n)
{
    n->pool_jobs = calloc(n->conf->pools_count, sizeof(*n->pool_jobs));
    return n->pool_jobs ? OK : ERR_NO_BLOCKS;
}

/* Fills the job for pool i, whose layout is known. */
static enum err prepare(struct node *n, uint32_t i, struct pool_job *j)
{
    const struct conf_pool *c = &n->conf->pools[i];
    const struct layout *l = brain_layout(n->brain, i);
    uint64_t rows = c->blocks * c->block_rows;

    CHECK(!j->busy && !j->done, "pool %u is being opened", i);
    j->node = n;
    j->pool = i;
    j->work.data = j;
    j->opt = (struct mem_opt){.name = c->name,
        .kind = c->memory,
        .engines_write = brain_engines_write(n->brain, i),
        .huge_pages = c->huge_pages,
        .numa_node = strcmp(c->numa, "any") == 0 ? -1 : atoi(c->numa),
        .watch = &n->pool_watch};
    j->kind = mem_kind(c->memory);
    if (!j->kind) {
        log_error(
            "pool %s: no memory of kind %s in this build", c->name, c->memory);
        return ERR_INTERNAL;
    }
    if (layout_place(
            l, rows, j->kind->page(&j->opt), j->offsets, &j->opt.bytes))
        return OK;
    log_error("pool %s: too large", c->name);
    return ERR_TOO_LARGE;
}

static void open_memory(struct pool_job *j)
{
    atomic_store(&j->opt.watch->bytes, 0);
    j->result = j->kind->open(&j->mem, &j->opt);
}

/* Gives the job's memory to the pool, or notifies the brain that it failed. */
static void finish(struct node *n, uint32_t i)
{
    struct pool_job *j = &n->pool_jobs[i];
    const struct layout *l = brain_layout(n->brain, i);
    const struct conf_pool *c = &n->conf->pools[i];
    struct shard_pool *p = &n->pools[i];
    struct event ev = {.type = EV_POOL, .pool = i};
    struct pool_memory memory;

    CHECK(!p->mem && l->count > 0, "pool %u has its memory already", i);
    j->wanted = j->busy = j->done = false;
    if (j->result != OK) {
        log_error("pool %s: no memory", c->name);
        node_event(n, &ev);
        return;
    }
    n->mems[i] = j->mem;
    p->layout = *l;
    p->mem = &n->mems[i];
    memcpy(p->offsets, j->offsets, sizeof(p->offsets));
    node_order(n, &(struct order){.type = ORDER_POOL, .pool = i});
    memory = (struct pool_memory){p->offsets, p->mem->bytes, p->mem->share,
        span_of(p->mem->handle, p->mem->handle_bytes)};
    ev.memory = &memory;
    node_event(n, &ev);
    log_info("pool %s: %llu blocks of %llu rows, %llu bytes, %s, %s", c->name,
        (unsigned long long)c->blocks, (unsigned long long)c->block_rows,
        (unsigned long long)n->mems[i].bytes, n->mems[i].text, l->text);
}

/* while the loop runs */

/* Opens a pool's memory, in libuv's thread. */
static void on_work(uv_work_t *w)
{
    open_memory(w->data);
}

static void on_worked(uv_work_t *w, int status)
{
    struct pool_job *j = w->data;

    CHECK(j->busy && !j->done, "pool %u is opened twice", j->pool);
    if (status != 0)
        j->result = ERR_INTERNAL;
    j->done = true;
    j->node->pools_seen = true;
}

/* Starts the next waiting pool, unless one is in progress. */
static void begin_next(struct node *n)
{
    struct pool_job *next = NULL;

    for (uint32_t i = 0; i < n->conf->pools_count; i++) {
        if (n->pool_jobs[i].busy)
            return;
        if (n->pool_jobs[i].wanted && !next)
            next = &n->pool_jobs[i];
    }
    if (!next)
        return;
    CHECK(!next->done, "pool %u is open already", next->pool);
    next->busy = true;
    node_work(n, &next->work, on_work, on_worked);
}

void node_fix_pool(struct node *n, uint32_t i)
{
    struct pool_job *j = &n->pool_jobs[i];

    CHECK(i < n->conf->pools_count && !j->wanted, "pool %u is fixed twice", i);
    j->result = prepare(n, i, j);
    if (j->result == OK && j->kind->any_thread) {
        j->wanted = true;
        begin_next(n);
        return;
    }
    if (j->result == OK)
        open_memory(j);
    j->done = n->pools_seen = true;
}

void node_pools_serve(struct node *n)
{
    n->pools_seen = false;
    for (uint32_t i = 0; i < n->conf->pools_count; i++)
        if (n->pool_jobs[i].done)
            finish(n, i);
    begin_next(n);
}

/* at start */

/* Extends the service manager's timeout. */
static void on_patience(uv_timer_t *t)
{
    struct node *n = t->data;

    for (uint32_t i = 0; i < n->conf->pools_count; i++) {
        const struct pool_job *j = &n->pool_jobs[i];

        if (!j->busy)
            continue;
        notify_send(
            "EXTEND_TIMEOUT_USEC=%u\nSTATUS=pool %s: %llu of %llu MiB are "
            "there",
            10 * PATIENCE_MS * 1000, j->opt.name,
            (unsigned long long)(atomic_load(&j->opt.watch->bytes) >> 20),
            (unsigned long long)(j->opt.bytes >> 20));
    }
}

enum err node_fix_pools(struct node *n)
{
    enum err e = OK;

    uv_timer_start(&n->look, on_patience, PATIENCE_MS, PATIENCE_MS);
    for (uint32_t i = 0; e == OK && i < n->conf->pools_count; i++) {
        struct pool_job *j = &n->pool_jobs[i];

        if (brain_layout(n->brain, i)->count == 0)
            continue;
        node_fix_pool(n, i);
        while (!j->done) {
            /* uv_run() might not sleep: sockets may have news for the first
             * turn. */
            usleep(LOOK_US);
            uv_run(&n->loop, UV_RUN_NOWAIT);
            if (n->ending)
                node_pools_stop(n);
        }
        /* The signal may have come when the pool was done. */
        e = n->ending ? ERR_ABORTED : j->result;
        if (e == OK)
            finish(n, i);
    }
    uv_timer_stop(&n->look);
    n->pools_seen = false;
    return e;
}

/* end */

void node_pools_stop(struct node *n)
{
    atomic_store(&n->pool_watch.stop, true);
}

void node_close_pools(struct node *n)
{
    for (uint32_t i = 0; n->mems && i < n->conf->pools_count; i++) {
        struct pool_job *j = n->pool_jobs ? &n->pool_jobs[i] : NULL;

        /* the memory is open, and not given to the pool yet */
        if (j && j->done && j->result == OK)
            j->kind->close(&j->mem);
        if (n->mems[i].ops)
            n->mems[i].ops->close(&n->mems[i]);
    }
    free(n->pool_jobs);
    n->pool_jobs = NULL;
}
