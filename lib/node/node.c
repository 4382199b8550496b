/* node.c - a daemon's life: start, turns of the loop, signals, end.
 *
 * Invariants: one turn serves notes, then peers, then engines, and sends what
 * came of it once; the loop sleeps only when nothing is left that no
 * descriptor would show (wake_sleep, then one more look at the rings). Shards
 * start before the brain, which sends their addresses to peers; everything else
 * ends before them. The loop's thread.
 *
 * Rejected: carrying things out in libuv's callbacks. Their order is the
 * kernel's; ours is a rule (landings before requests). */
#include "node/node_impl.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"
#include "io/notify.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define NOTES_TURN 4096 /* served before peers and engines */
#define BEHIND_MS  1    /* how soon a full ring is tried again */
/* Steps of a turn for one look at the clock. */
#define STEPS_A_LOOK 16

static void turn(struct node *n);

/* stepping */

static uint64_t clock_ns(struct node *n)
{
    uint64_t now = uv_hrtime();

    if (now > n->now_ns)
        n->now_ns = now;
    return n->now_ns;
}

static void step(struct node *n, struct event *ev)
{
    ev->now_ns = n->steps++ % STEPS_A_LOOK ? n->now_ns : clock_ns(n);
    brain_step(n->brain, ev, &n->out);
    node_carry_out(n);
}

void node_event(struct node *n, struct event *ev)
{
    CHECK(n->out.count == 0, "a step inside another, event %u", ev->type);
    step(n, ev);
    if (!brain_pending(n->brain))
        return;
    for (struct event more = {.type = EV_MORE};
         brain_pending(n->brain) && !node_congested(n);)
        step(n, &more);
}

/* Continues what a step left because a shard was far behind. */
static void go_on(struct node *n)
{
    struct event more = {.type = EV_MORE};

    if (brain_pending(n->brain) && !node_congested(n))
        node_event(n, &more);
}

/* True if no more input may be read: a shard is far behind. */
static bool full(void *ud)
{
    return node_congested(ud);
}

/* what engines do */

static void conn_opened(void *ud, uint32_t conn, uint32_t uid, uint32_t gid,
    int32_t pid, const struct groups *groups)
{
    struct event ev = {.type = EV_CONN_OPEN,
        .conn = conn,
        .uid = uid,
        .gid = gid,
        .pid = pid,
        .groups = groups};
    struct node *n = ud;

    CHECK(conn < share_connections(n->conf) && !n->conns[conn].greeted &&
              !n->conns[conn].query && !list_linked(&n->conns[conn].notified),
        "connection %u is in use", conn);
    n->conns[conn].uid = uid;
    node_event(n, &ev);
}

static void conn_ended(void *ud, uint32_t conn)
{
    struct node *n = ud;
    struct event ev = {.type = EV_CONN_END, .conn = conn};

    list_remove(&n->conns[conn].notified);
    admin_forget(n, conn);
    n->conns[conn].greeted = false;
    node_event(n, &ev);
}

static void conn_dead(void *ud, uint32_t conn)
{
    struct event ev = {.type = EV_CONN_DEAD, .conn = conn};

    node_event(ud, &ev);
}

static void conn_message(void *ud, uint32_t conn, const struct local_msg *m)
{
    struct node *n = ud;
    struct event ev = {.type = EV_LOCAL, .conn = conn, .local = m};

    if (m->type == LOCAL_QUERY && n->conns[conn].greeted)
        admin_query(n, conn, m);
    else
        node_event(n, &ev);
}

static void conn_bad(
    void *ud, uint32_t conn, enum err err, const struct local_msg *m)
{
    struct event ev = {.type = EV_LOCAL_BAD,
        .conn = conn,
        .err = err,
        .seq = m->seq,
        .fault = m->fault};

    node_event(ud, &ev);
}

static void conn_writable(void *ud, uint32_t conn)
{
    struct node *n = ud;

    admin_write(n, conn);
}

/* what peers do */

static void link_up(void *ud, uint32_t link)
{
    uint8_t fresh[DATA_KEY_FRESH];
    struct node *n = ud;
    struct event ev = {.type = EV_LINK_UP,
        .link = link,
        .fresh = node_carriers_draw(n, fresh)};

    CHECK(link < 2 * n->conf->limit_peers, "link %u", link);
    outbox_drop(n, link); /* the number may have been another peer's */
    node_event(n, &ev);
}

static void link_down(void *ud, uint32_t link)
{
    struct event ev = {.type = EV_LINK_DOWN, .link = link};

    node_event(ud, &ev);
}

static void link_refused(void *ud, uint32_t link, const char *why)
{
    struct event ev = {.type = EV_LINK_REFUSED, .link = link, .text = why};

    node_event(ud, &ev);
}

static void link_message(void *ud, uint32_t link, const struct peer_msg *m)
{
    struct event ev = {.type = EV_PEER, .link = link, .peer = m};
    uint8_t fresh[DATA_KEY_FRESH];

    if (m->type == PEER_HELLO)
        ev.fresh = node_carriers_draw(ud, fresh);
    node_event(ud, &ev);
}

static bool link_known(void *ud, uint32_t link)
{
    struct node *n = ud;

    return brain_link_known(n->brain, link);
}

static void link_bad(
    void *ud, uint32_t link, enum err err, const struct peer_msg *m)
{
    struct event ev = {.type = EV_PEER_BAD,
        .link = link,
        .err = err,
        .fault = m->fault,
        .peer = m};

    node_event(ud, &ev);
}

/* a turn */

/* Serves notes of all shards; returns their number. */
static uint32_t serve_notes(struct node *n)
{
    uint32_t served = 0;

    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct event ev = {.type = EV_NOTE};

        while (served < NOTES_TURN && !node_congested(n) &&
               shard_note(n->shards[k], &ev.note)) {
            node_event(n, &ev);
            served++;
        }
    }
    return served;
}

/* Writes events of one connection while its socket takes them. */
static void pull_events(struct node *n, uint32_t conn)
{
    CHECK(list_linked(&n->conns[conn].notified), "connection %u has no events",
        conn);
    for (;;) {
        struct writer w = local_writer(n->local, conn);

        while (brain_next_event(n->brain, conn, &w))
            ;
        local_wrote(n->local, conn, w.len);
        /* None is left, or it needs more space than there is. */
        if (!local_queued(n->local, conn)) {
            list_remove(&n->conns[conn].notified);
            return;
        }
        if (!local_push(n->local, conn))
            return;
    }
}

static void pull_all(struct node *n)
{
    LIST_FOREACH_SAFE (at, &n->notified) {
        struct node_conn *c = LIST_ENTRY(at, struct node_conn, notified);
        uint32_t conn = (uint32_t)(c - n->conns);

        if (!local_blocked(n->local, conn))
            pull_events(n, conn);
    }
}

static void drain_check(struct node *n)
{
    if (!n->draining || n->stopping)
        return;
    if (brain_open_rooms(n->brain) > 0 && clock_ns(n) < n->drain_ns)
        return;
    n->stopping = true;
    uv_stop(&n->loop);
}

static void on_timer(uv_timer_t *t)
{
    struct node *n = t->data;

    n->timer_ns = TIME_NEVER;
    turn(n);
}

/* Sets the one timer to the earliest deadline. */
static void arm_timer(struct node *n)
{
    uint64_t at = brain_deadline(n->brain);
    uint64_t now = clock_ns(n), ms;

    if (n->draining)
        at = min_u64(at, n->drain_ns);
    if (node_congested(n))
        at = now + BEHIND_MS * NS_PER_MS;
    else if (node_behind(n))
        at = min_u64(at, now + BEHIND_MS * NS_PER_MS);
    if (local_coalescing(n->local))
        at = min_u64(at, now + LOCAL_COALESCE_MS * NS_PER_MS);
    if (n->lines_lost)
        at = min_u64(at, now + NS_PER_S);
    if (links_coalescing(n->links))
        at = min_u64(at, now + LINKS_COALESCE_MS * NS_PER_MS);
    if (at == n->timer_ns)
        return;
    n->timer_ns = at;
    if (at == TIME_NEVER) {
        uv_timer_stop(&n->timer);
        return;
    }
    /* Never 0: libuv runs timers until none is due, and serves nothing else
     * meanwhile, not even uv_stop. */
    ms = at > now ? (at - now + NS_PER_MS - 1) / NS_PER_MS : 1;
    uv_update_time(&n->loop);
    uv_timer_start(&n->timer, on_timer, ms, 0);
}

static void flush_shards(struct node *n)
{
    for (uint32_t k = 0; k < n->shards_count; k++)
        shard_flush(n->shards[k]);
}

static void turn(struct node *n)
{
    CHECK(
        n->out.count == 0, "a turn inside a step of %u actions", n->out.count);
    n->turns++;
    (void)clock_ns(n);
    node_carriers_watch(n);
    if (node_behind(n))
        flush_shards(n);
    local_flush_coalesced(n->local);
    links_flush_coalesced(n->links);
    if (n->pools_seen && !node_congested(n))
        node_pools_serve(n);
    go_on(n);
    node_inline_watch(n);
    if (!node_congested(n))
        node_inline_serve(n);
    (void)serve_notes(n);
    if (!node_congested(n) && n->maps_seen)
        node_maps_serve(n);
    if (!node_congested(n))
        links_serve(n->links);
    if (!node_congested(n))
        local_serve(n->local);
    admin_serve(n);
    if (!node_congested(n) && brain_deadline(n->brain) <= clock_ns(n)) {
        struct event ev = {.type = EV_TIME};

        node_event(n, &ev);
    }
    /* Orders for rows first, then events, then frames to peers, whose next
     * messages may need both. */
    flush_shards(n);
    pull_all(n);
    local_flush(n->local);
    outbox_flush(n);
    node_inline_watch(n);
    n->lines_lost = log_report_lost();
    drain_check(n);
    arm_timer(n);
}

static void on_idle(uv_idle_t *h)
{
    (void)h; /* while it runs, the poll does not sleep */
}

static void on_check(uv_check_t *h)
{
    struct node *n = h->data;

    uv_idle_stop(&n->idle);
    wake_awake(&n->wake);
    turn(n);
}

/* Keeps the loop awake, before it sleeps, for work that no descriptor shows. */
static void on_prepare(uv_prepare_t *h)
{
    struct node *n = h->data;
    bool more = false;

    if (n->stopping)
        return;
    wake_sleep(&n->wake);
    if (!node_congested(n)) {
        /* Notes since the turn get a turn of their own; later ones write to
         * the wake. */
        more = serve_notes(n) > 0 || local_busy(n->local) ||
               links_busy(n->links) || n->maps_seen || n->pools_seen ||
               admin_busy(n) || node_inline_busy(n) || brain_pending(n->brain);
    }
    if (more)
        uv_idle_start(&n->idle, on_idle);
}

static void on_wake(uv_poll_t *h, int status, int events)
{
    struct node *n = h->data;

    (void)status;
    (void)events;
    wake_clear(&n->wake); /* the check that follows takes the notes */
}

/* signals and service manager */

static void on_end(uv_signal_t *h, int signal)
{
    struct node *n = h->data;
    struct event ev = {.type = EV_DRAIN};

    if (n->draining) {
        log_info("signal %d again: stopping at once", signal);
        n->stopping = true;
        uv_stop(&n->loop);
        return;
    }
    log_info("signal %d: draining, %u rooms are open", signal,
        brain_open_rooms(n->brain));
    notify_send("STOPPING=1");
    n->draining = true;
    n->drain_ns = clock_ns(n) + n->conf->timeout_drain;
    node_event(n, &ev);
}

static void on_hup(uv_signal_t *h, int signal)
{
    (void)h;
    (void)signal;
    log_info("SIGHUP: ignored, configuration is read at start only");
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
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    uint32_t digits = 0;

    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        unsigned v;

        if (sscanf((char[2]){text[i], 0}, "%1x", &v) != 1)
            continue;
        k.b[digits / 2] = (uint8_t)((unsigned)k.b[digits / 2] << 4 | v);
        digits++;
    }
    return k;
}

static enum err take_memory(struct node *n)
{
    const struct conf *c = n->conf;

    n->conns = calloc(share_connections(c), sizeof(*n->conns));
    n->pools = calloc(c->pools_count, sizeof(*n->pools));
    n->mems = calloc(c->pools_count, sizeof(*n->mems));
    n->out.actions = calloc(OUT_ACTIONS, sizeof(*n->out.actions));
    n->out.cap = OUT_ACTIONS;
    n->out.bytes = writer_of(malloc(OUT_BYTES), OUT_BYTES);
    n->outbox.cap = OUTBOX_BYTES;
    n->outbox.bytes = malloc(OUTBOX_BYTES);
    if (!n->conns || !n->pools || !n->mems || !n->out.actions ||
        !n->out.bytes.p || !n->outbox.bytes)
        return ERR_NO_BLOCKS;
    for (uint64_t i = 0; i < share_connections(c); i++)
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
    if (e != 0 || wake_init(&n->wake) != OK) {
        log_error("the loop cannot be made: %s", e ? uv_strerror(e) : "wake");
        return ERR_INTERNAL;
    }
    if (uv_prepare_init(l, &n->prepare) || uv_check_init(l, &n->check) ||
        uv_idle_init(l, &n->idle) || uv_timer_init(l, &n->timer) ||
        uv_timer_init(l, &n->watchdog) || uv_timer_init(l, &n->look) ||
        uv_signal_init(l, &n->term) || uv_signal_init(l, &n->intr) ||
        uv_signal_init(l, &n->hup) ||
        uv_poll_init(l, &n->wake_poll, n->wake.fd)) {
        log_error("the loop's handles cannot be made");
        return ERR_INTERNAL;
    }
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

static bool gpu_pools(const struct conf *c)
{
    for (uint32_t i = 0; i < c->pools_count; i++)
        if (mem_gpu(c->pools[i].memory) != NONE)
            return true;
    return false;
}

static enum err start_shard(struct node *n, uint32_t k)
{
    const struct conf *c = n->conf;
    bool pinned = k < c->transfer_cpus.count;
    struct shard_conf s = {.carrier = n->carriers.ops,
        .data = {.tls = n->carriers.tls,
            .devices = n->carriers.devices,
            .carriers = n->carriers.parts,
            .ports = c->transfer_ports,
            .segment_bytes = (uint32_t)c->transfer_segment,
            .keepalive_ms = (uint32_t)(c->transfer_keepalive / NS_PER_MS),
            .stall_ms = (uint32_t)(c->transfer_stall / NS_PER_MS),
            .streams = (uint32_t)c->transfer_streams,
            .addresses = (uint32_t)c->transfer_shards,
            .buffer_bytes = (uint32_t)c->transfer_buffer,
            .pace_bytes = c->transfer_pace,
            .safe = node_carriers_safe(c)},
        .role = c->role,
        .index = k,
        .count = (uint32_t)c->transfer_shards,
        .slots = share_total(c, c->limit_rooms),
        .peers = (uint32_t)c->limit_peers,
        .window_bytes = (uint32_t)c->transfer_window,
        .spin_us = (uint32_t)(c->transfer_spin / 1000),
        .ring_records = (uint32_t)c->transfer_commands,
        .cpu = pinned ? atoi(c->transfer_cpus.items[k]) : -1,
        .may_inline = n->carriers.ops->any_thread && !pinned &&
                      c->transfer_spin == 0 && !gpu_pools(c),
        .pools = n->pools,
        .pools_count = c->pools_count,
        .wake = &n->wake};

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
    n->brain_conf.segment_max = (uint32_t)n->conf->transfer_segment;
    (void)brain_init(&s, &n->brain_conf);
    n->brain_bytes = s.used;
    p = mmap(NULL, s.used, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        log_error("no memory for %zu bytes of tables", s.used);
        return ERR_NO_BLOCKS;
    }
    n->brain_memory = p;
    s = (struct slab){p, 0, n->brain_bytes, false, true};
    n->brain = brain_init(&s, &n->brain_conf);
    CHECK(!s.failed && s.used == n->brain_bytes,
        "the brain counted %zu bytes and took %zu", n->brain_bytes, s.used);
    return OK;
}

static enum err start_peers(struct node *n)
{
    const struct conf *c = n->conf;
    struct links_opt opt = {.listen = conf_lands(c) ? NULL : c->control_listen,
        .links = 2 * (uint32_t)c->limit_peers,
        .heartbeat_ms = (uint32_t)(c->control_heartbeat / NS_PER_MS),
        .seed = n->brain_conf.seed,
        .hello_ns = c->timeout_hello,
        .inbox = c->limit_inbox,
        .keys = n->keys};
    struct links_calls calls = {n, link_up, link_down, link_message, link_bad,
        full, link_known, link_refused};

    return links_new(&n->links, &n->loop, &opt, &calls);
}

/* Makes the shares of limits.connections: once to count memory, once to use it.
 */
static enum err share_connections_out(struct node *n)
{
    const struct conf *c = n->conf;
    struct slab s = {0};

    for (int i = 0; i < 2; i++) {
        share_init(&n->conn_share, &s, c, "limits.connections",
            c->limit_connections, 1, n->brain_conf.seed);
        if (i == 0 && !(n->share_memory = calloc(1, s.used)))
            return ERR_NO_BLOCKS;
        s = (struct slab){n->share_memory, 0, s.used, false, true};
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
        .connections = share_connections(c),
        .share = &n->conn_share,
        .own = CONNECTIONS_OWN};
    struct local_calls calls = {n, conn_opened, conn_ended, conn_dead,
        conn_message, conn_bad, conn_writable, full};

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
    n->watchdog_ns = opt->watchdog_ns;
    n->wake.fd = -1;
    n->timer_ns = TIME_NEVER;
    n->started_ns = uv_hrtime();
    list_init(&n->notified);
    list_init(&n->making);
    e = take_memory(n);
    if (e == OK)
        e = node_pools_new(n);
    if (e == OK)
        e = node_maps_new(n);
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
    uv_prepare_start(&n->prepare, on_prepare);
    uv_check_start(&n->check, on_check);
    uv_poll_start(&n->wake_poll, UV_READABLE, on_wake);
    if (n->conf->insecure)
        log_warn("insecure: true: any program that reaches a port can act as a "
                 "daemon, and read along");
    if (beat_ms)
        uv_timer_start(&n->watchdog, on_watchdog, beat_ms, beat_ms);
    log_info("%s: ready, engines at %s, epoch %016llx", n->conf->name,
        n->conf->socket_path,
        (unsigned long long)epoch_shown(n->brain_conf.epoch));
    notify_send("READY=1");
    node_health_start(n);
    turn(n);
    uv_run(&n->loop, UV_RUN_DEFAULT);
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
    for (uint64_t i = 0; n->conns && i < share_connections(n->conf); i++)
        admin_forget(n, (uint32_t)i);
    end_loop(n);
    for (uint32_t k = 0; k < SHARDS_MAX; k++)
        shard_stop(&n->shards[k]);
    wake_fini(&n->wake);
    node_close_pools(n);
    if (n->brain_memory)
        munmap(n->brain_memory, n->brain_bytes);
    free(n->maps);
    free(n->share_memory);
    free(n->conns);
    free(n->pools);
    free(n->mems);
    free(n->out.actions);
    free(n->out.bytes.p);
    free(n->outbox.bytes);
    free(n);
    *out = NULL;
}
