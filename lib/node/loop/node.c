/* node.c - a daemon's life: start, signals, end.
 *
 * Invariants: shards start before the brain, which sends their addresses to
 * peers; everything else ends before them. The loop's thread; its turns are in
 * node_turn.c. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"
#include "io/notify.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define COMMAND(name, word, takes, meaning) {word, takes, command_##name},
static const struct command commands[] = {
#include "wire/command.def"
    {NULL, false, NULL}};

/* Interval at which TCP probes an idle data connection. */
#define KEEPALIVE_MS 5000

/* signals and service manager */

static void on_end(uv_signal_t *h, int signal)
{
    struct node *n = h->data;
    struct event ev = {.type = EV_ENDING};

    if (!n->brain) /* the start failed and closes what it has opened */
        return;
    if (n->ending) {
        log_info("signal %d again: stopping at once", signal);
        n->stopping = true;
        uv_stop(&n->loop);
        return;
    }
    log_info("signal %d: draining, %u rooms are open", signal,
        brain_open_rooms(n->brain));
    notify_send("STOPPING=1");
    n->ending = true;
    n->drain_ns = node_clock_ns(n) + n->conf->timeout_drain;
    node_event(n, &ev);
}

static void on_hup(uv_signal_t *h, int signal)
{
    struct node *n = h->data;

    (void)signal;
    if (n->brain)
        node_reload(n);
}

/* Notifies the service manager unless a shard hangs. */
static void on_watchdog(uv_timer_t *t)
{
    static struct log_rate hangs = LOG_RATE("shards that hang", LOG_ERROR, 1);
    struct node *n = t->data;
    bool well = true;

    for (uint32_t k = 0; k < n->shards_count; k++)
        if (shard_silent_ns(n->shards[k], uv_hrtime()) > SHARD_HANGS_NS) {
            log_rated(&hangs, "shard %u hangs: no WATCHDOG=1", k);
            well = false;
        }
    if (well)
        notify_send("WATCHDOG=1");
}

/* start */

static enum err random_u64(uint64_t *out)
{
    do {
        if (getrandom(out, sizeof(*out), 0) != (ssize_t)sizeof(*out)) {
            log_error("getrandom: no random bytes");
            return ERR_INTERNAL;
        }
    } while (*out == 0);
    return OK;
}

/* Returns the machine's boot id as 16 bytes; zero: there is none. */
static struct key boot_id(void)
{
    struct key k = {{0}};
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    for (uint32_t i = 0; f && i < sizeof(k.b); i++)
        if (fscanf(f, "%2hhx", &k.b[i]) != 1 || fscanf(f, "-") == EOF)
            break;
    if (f)
        fclose(f);
    return k;
}

static enum err take_memory(struct node *n)
{
    const struct conf *c = n->conf;

    n->conns_count = share_connections(c);
    n->peers_count = share_peers(c);
    n->conns = calloc(n->conns_count, sizeof(*n->conns));
    n->pools = calloc(c->pools_count, sizeof(*n->pools));
    n->mems = calloc(c->pools_count, sizeof(*n->mems));
    n->maps = calloc(n->peers_count, sizeof(*n->maps));
    n->maps_room = mem_total();
    n->recorder = calloc(1, sizeof(*n->recorder));
    n->out.actions = calloc(OUT_ACTIONS, sizeof(*n->out.actions));
    n->step_orders = OUT_ACTIONS + 4 * n->peers_count;
    n->out.bytes = writer_of(malloc(OUT_BYTES), OUT_BYTES);
    if (!n->conns || !n->pools || !n->mems || !n->maps || !n->recorder ||
        !n->out.actions || !n->out.bytes.p)
        return ERR_NO_BLOCKS;
    for (uint64_t i = 0; i < n->conns_count; i++)
        list_init(&n->conns[i].notified);
    for (uint32_t i = 0; i < c->pools_count; i++) {
        n->pools[i].blocks = (uint32_t)c->pools[i].blocks;
        n->pools[i].block_rows = (uint32_t)c->pools[i].block_rows;
    }
    return OK;
}

static enum err start_loop(struct node *n)
{
    uv_loop_t *l = &n->loop;
    int e = uv_loop_init(l);

    n->loop_made = e == 0;
    if (e != 0) {
        log_error("the loop cannot be made: %s", uv_strerror(e));
        return ERR_INTERNAL;
    }
    if (wake_init(&n->wake) != OK)
        return ERR_INTERNAL;
    if (uv_prepare_init(l, &n->prepare) || uv_check_init(l, &n->check) ||
        uv_idle_init(l, &n->idle) || uv_timer_init(l, &n->timer) ||
        uv_timer_init(l, &n->watchdog) || uv_timer_init(l, &n->look) ||
        uv_signal_init(l, &n->term) || uv_signal_init(l, &n->intr) ||
        uv_signal_init(l, &n->hup) ||
        uv_poll_init(l, &n->wake_poll, n->wake.fd)) {
        log_error("the loop's handles cannot be made");
        return ERR_INTERNAL;
    }
    n->hup.data = n;
    n->prepare.data = n->check.data = n->timer.data = n->look.data = n;
    n->term.data = n->intr.data = n->wake_poll.data = n->watchdog.data = n;
    /* From here on a signal is kept until the loop runs. */
    if (uv_signal_start(&n->term, on_end, SIGTERM) ||
        uv_signal_start(&n->intr, on_end, SIGINT) ||
        uv_signal_start(&n->hup, on_hup, SIGHUP)) {
        log_error("the signals cannot be had");
        return ERR_INTERNAL;
    }
    return OK;
}

static enum err start_shard(struct node *n, uint32_t k)
{
    const struct conf *c = n->conf;
    bool pinned = k < c->transfer_cpus.count;
    struct shard_conf s = {
        .data = {.tls = n->carriers.tls,
            .devices = node_carriers_devices(&n->carriers, k),
            .ports = c->transfer_ports,
            .segment_bytes = DATA_MESSAGE_BYTES,
            .keepalive_ms = KEEPALIVE_MS,
            .stall_ms = (uint32_t)(c->transfer_stall / NS_PER_MS),
            .streams = (uint32_t)c->transfer_streams,
            .addresses = (uint32_t)c->transfer_shards,
            .pace_bytes = c->transfer_pace,
            .safe = node_carriers_safe(c)},
        .role = c->role,
        .index = k,
        .count = (uint32_t)c->transfer_shards,
        .slots = share_total(c->limit_rooms),
        .peers = n->peers_count,
        /* In flight to an endpoint. */
        .window_bytes = 4 * DATA_MESSAGE_BYTES,
        /* this many may wait while the loop takes another step */
        .orders = 2048 + n->step_orders,
        .cpu = pinned ? atoi(c->transfer_cpus.items[k]) : -1,
        .may_inline = n->carriers.any_thread && !pinned && !conf_uses_gpus(c),
        .gpu = conf_uses_gpus(c),
        .pools = n->pools,
        .pools_count = c->pools_count,
        .wake = &n->wake};

    memcpy(s.carriers, n->carriers.parts, sizeof(s.carriers));
    return shard_start(&n->shards[k], &s);
}

static enum err start_shards(struct node *n)
{
    sigset_t all, old;
    enum err e = OK;

    node_carriers_choose(n);
    /* The shards' threads inherit it: signals come to this thread only. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    while (e == OK && n->shards_count < n->conf->transfer_shards) {
        e = start_shard(n, n->shards_count);
        n->shards_count += e == OK;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    n->places = 0; /* the rings were not looked at yet */
    return e == OK ? node_carriers_opened(n) : e;
}

static enum err start_brain(struct node *n)
{
    struct slab s = {0};
    void *p;

    n->brain_conf.conf = n->conf;
    n->brain_conf.shards = n->shards_count;
    n->brain_conf.boot = boot_id();
    n->brain_conf.uid = geteuid();
    n->brain_conf.recorder = n->recorder;
    (void)brain_init(&s, &n->brain_conf);
    n->brain_bytes = s.used;
    p = mmap(NULL, s.used, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        log_error("no memory for %zu bytes of tables", s.used);
        return ERR_NO_BLOCKS;
    }
    n->brain_memory = p;
    s = (struct slab){.p = p, .cap = n->brain_bytes};
    n->brain = brain_init(&s, &n->brain_conf);
    CHECK(!s.failed && s.used == n->brain_bytes,
        "the brain counted %zu bytes and took %zu", n->brain_bytes, s.used);
    return OK;
}

static enum err start_peers(struct node *n)
{
    const struct conf *c = n->conf;
    struct links_opt opt = {.listen = conf_lands(c) ? NULL : c->control_listen,
        .links = 2 * n->peers_count,
        .heartbeat_ms = (uint32_t)(c->control_heartbeat / NS_PER_MS),
        .seed = n->brain_conf.seed,
        .hello_ns = c->timeout_hello,
        .inbox = c->limit_inbox,
        .keys = n->keys};
    struct links_calls calls = node_links_calls(n);

    return links_new(&n->links, &n->loop, &opt, &calls);
}

/* Makes the shares of limits.connections: runs once to count memory, once to
 * use it. */
static enum err share_connections_out(struct node *n)
{
    const struct conf *c = n->conf;
    struct slab s = {0};

    for (int i = 0; i < 2; i++) {
        share_init(&n->conn_share, &s, "limits.connections",
            c->limit_connections, 1, n->brain_conf.seed);
        if (i == 0 && !(n->share_memory = calloc(1, s.used)))
            return ERR_NO_BLOCKS;
        s = (struct slab){.p = n->share_memory, .cap = s.used};
    }
    return OK;
}

static enum err start_local(struct node *n, int listen_fd)
{
    const struct conf *c = n->conf;
    struct local_opt opt = {.path = c->socket_path,
        .mode = (uint32_t)strtoul(c->socket_mode, NULL, 8),
        .group = c->socket_group,
        .fd = listen_fd,
        .orders = c->socket_orders,
        .connections = n->conns_count,
        .share = &n->conn_share,
        .own = CONNECTIONS_OWN};
    struct local_calls calls = node_local_calls(n);

    if (share_connections_out(n) != OK)
        return ERR_NO_BLOCKS;
    return local_new(&n->local, &n->loop, &opt, &calls);
}

enum err node_new(struct node **out, const struct node_opt *opt)
{
    struct node *n = calloc(1, sizeof(*n));
    enum err e;

    if (!n)
        return ERR_NO_BLOCKS;
    n->conf = opt->conf;
    n->keys = opt->keys;
    node_reload_init(n, opt->from);
    n->watchdog_ns = opt->watchdog_ns;
    n->wake.fd = -1;
    n->timer_ns = TIME_NEVER;
    n->started_ns = uv_hrtime();
    list_init(&n->notified);
    list_init(&n->making);
    list_init(&n->maps_left);
    n->commands = commands;
    e = take_memory(n);
    if (e == OK)
        e = node_pools_new(n);
    if (e == OK)
        e = start_loop(n);
    if (e == OK)
        e = random_u64(&n->brain_conf.epoch);
    if (e == OK)
        e = random_u64(&n->brain_conf.seed);
    for (int i = 0; i < 2 && e == OK; i++)
        e = random_u64(&n->brain_conf.secret[i]);
    /* Sockets before memory: a daemon that was started twice must not fill
     * the machine before it notices. Early connections wait. */
    if (e == OK)
        e = start_local(n, opt->listen_fd);
    if (e == OK)
        e = start_peers(n);
    if (e == OK)
        e = start_shards(n);
    if (e == OK)
        e = node_inline_open(n);
    if (e == OK)
        e = start_brain(n);
    if (e == OK)
        e = node_carriers_say(n);
    if (e == OK)
        e = node_fix_pools(n);
    if (e != OK) {
        node_free(&n);
        return e;
    }
    *out = n;
    return OK;
}

void node_run(struct node *n)
{
    uint64_t beat_ms = n->watchdog_ns / 2 / NS_PER_MS;

    CHECK(!n->stopping && n->brain && n->shards_count > 0,
        "a node of %u shards cannot run", n->shards_count);
    if (n->conf->insecure)
        log_warn("insecure: true: any program that reaches a port can act as a "
                 "daemon, and read along");
    if (beat_ms)
        uv_timer_start(&n->watchdog, on_watchdog, beat_ms, beat_ms);
    log_info("%s: ready, engines at %s, epoch %016llx", n->conf->name,
        n->conf->socket_path,
        (unsigned long long)epoch_shown(n->brain_conf.epoch));
    notify_send("READY=1");
    node_health_look(&n->look);
    node_turns(n);
    log_info("%s: stopping, %u rooms are open", n->conf->name,
        brain_open_rooms(n->brain));
}

/* end */

static void close_walk(uv_handle_t *h, void *ud)
{
    (void)ud;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void end_loop(struct node *n)
{
    if (n->local)
        local_stop(n->local);
    node_maps_stop(n);
    node_pools_stop(n);
    if (n->links)
        links_stop(n->links);
    if (n->loop_made) {
        uv_walk(&n->loop, close_walk, NULL);
        uv_run(&n->loop, UV_RUN_DEFAULT);
        uv_loop_close(&n->loop);
    }
    local_free(&n->local);
    links_free(&n->links);
}

void node_free(struct node **out)
{
    struct node *n = *out;

    if (!n)
        return;
    for (uint64_t i = 0; n->conns && i < n->conns_count; i++)
        admin_forget(n, (uint32_t)i);
    end_loop(n);
    for (uint32_t k = 0; k < SHARDS_MAX; k++)
        shard_stop(&n->shards[k]);
    wake_fini(&n->wake);
    node_reload_fini(n);
    keys_free(&n->keys);
    node_close_pools(n);
    if (n->brain_memory)
        munmap(n->brain_memory, n->brain_bytes);
    node_maps_free(n);
    free(n->share_memory);
    free(n->conns);
    free(n->pools);
    free(n->mems);
    free(n->recorder);
    free(n->out.actions);
    free(n->out.bytes.p);
    free(n);
    *out = NULL;
}
