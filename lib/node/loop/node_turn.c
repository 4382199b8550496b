/* node_turn.c - turns of the loop: messages and notes of engines, peers and
 * shards are given to the brain, and its actions are carried out.
 *
 * Invariants: one turn serves notes, then peers, then engines, and sends the
 * results once at its end, rows also while it reads; the loop sleeps only when
 * no work is left that no descriptor would show (wake_sleep, then one more look
 * at the rings). Owned by the loop's thread.
 *
 * Rejected: carrying things out in libuv's callbacks. Their order is the
 * kernel's; ours is a rule (landings before requests). */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"

#include <sys/prctl.h>

#define NOTES_TURN 4096 /* served before peers and engines */
#define BEHIND_US  100  /* pause while a ring is full; up to SLACK_NS more */
/* slack of timers: a kernel tick at 250 Hz */
#define SLACK_NS (4 * NS_PER_MS)
/* While commits are read, rows are sent after each group of this many commits:
 * so the peer gets the first of many small rooms before the last one is
 * committed. */
#define COMMITS_FLUSH 16

static void turn(struct node *n);

/* True if no more input may be read: a shard is far behind. */
static bool full(void *ud)
{
    return node_congested(ud);
}

static void flush_shards(struct node *n)
{
    n->commits = 0;
    for (uint32_t k = 0; k < n->shards_count; k++)
        shard_flush(n->shards[k]);
}

/* what engines do */

static void engine_event(void *ud, struct event *ev)
{
    struct node *n = ud;
    struct node_conn *c = &n->conns[ev->conn];
    bool commit = ev->type == EV_LOCAL && ev->local->type == LOCAL_COMMIT;

    CHECK(ev->conn < n->conns_count &&
              (ev->type != EV_CONN_OPEN ||
                  (!c->greeted && !c->query && !list_linked(&c->notified))),
        "event %u of connection %u", ev->type, ev->conn);
    if (ev->type == EV_CONN_OPEN)
        c->uid = ev->uid;
    if (ev->type == EV_CONN_END) {
        list_remove(&c->notified);
        admin_forget(n, ev->conn);
        c->greeted = false;
    }
    if (ev->type == EV_LOCAL && ev->local->type == LOCAL_QUERY && c->greeted)
        admin_query(n, ev->conn, ev->local);
    else
        node_event(n, ev);
    if (commit && ++n->commits == COMMITS_FLUSH)
        flush_shards(n);
}

static void conn_writable(void *ud, uint32_t conn)
{
    struct node *n = ud;

    admin_write(n, conn);
}

/* what peers do */

static void peer_event(void *ud, struct event *ev)
{
    uint8_t fresh[DATA_KEY_FRESH];
    struct node *n = ud;

    if (ev->type == EV_LINK_UP ||
        (ev->type == EV_PEER && ev->peer->type == PEER_HELLO))
        ev->fresh = node_carriers_draw(n, fresh);
    node_event(n, ev);
}

static bool link_known(void *ud, uint32_t link)
{
    struct node *n = ud;

    return brain_link_known(n->brain, link);
}

/* a turn */

/* Serves notes of all shards; returns their number. */
static uint32_t serve_notes(struct node *n)
{
    uint32_t served = 0;

    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct event ev = {.type = EV_NOTE};
        char why[TROUBLE_TEXT];

        while (served < NOTES_TURN && !node_congested(n) &&
               shard_note(n->shards[k], &ev.note)) {
            ev.text = NULL;
            if (ev.note.type == NOTE_PEER_TRIED) {
                shard_say(
                    n->shards[k], ev.note.peer, SHARD_WHY, why, sizeof(why));
                ev.text = why;
            }
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

        while (w.cap > 0 && brain_next_event(n->brain, conn, &w))
            ;
        /* None is left, or it needs more space than there is. */
        if (!local_wrote(n->local, conn, w.len)) {
            list_remove(&n->conns[conn].notified);
            return;
        }
        if (!local_push(n->local, conn))
            return;
    }
}

static void drain_check(struct node *n)
{
    if (!n->ending || n->stopping)
        return;
    if (brain_open_rooms(n->brain) > 0 && node_clock_ns(n) < n->drain_ns)
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

/* Sets the one timer to the earliest deadline. coalesces: frames wait for it,
 * too. */
static void arm_timer(struct node *n, bool coalesces)
{
    uint64_t at = brain_deadline(n->brain);
    uint64_t now = node_clock_ns(n), ms;

    if (n->ending)
        at = min_u64(at, n->drain_ns);
    if (coalesces)
        at = min_u64(at, now + NS_PER_MS);
    if (n->lines_lost)
        at = min_u64(at, now + NS_PER_S);
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

static void turn(struct node *n)
{
    bool coalesces;

    CHECK(
        n->out.count == 0, "a turn inside a step of %u actions", n->out.count);
    n->turns++;
    (void)node_clock_ns(n);
    node_carriers_watch(n);
    if (n->pools_seen && !node_congested(n))
        node_pools_serve(n);
    node_more(n);
    /* Only when no step has work left: links that go down cause steps, too. */
    if (n->reload.read && !node_congested(n))
        node_reload_serve(n);
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
    if (!list_empty(&n->making))
        admin_serve(n);
    if (!node_congested(n) && brain_deadline(n->brain) <= node_clock_ns(n)) {
        struct event ev = {.type = EV_TIME};

        node_event(n, &ev);
    }
    /* First orders for rows, then events, then frames to peers: the next
     * messages of peers may need both. */
    flush_shards(n);
    LIST_FOREACH_SAFE (at, &n->notified)
        pull_events(n,
            (uint32_t)(LIST_ENTRY(at, struct node_conn, notified) - n->conns));
    coalesces = local_flush(n->local);
    coalesces |= links_flush(n->links);
    node_inline_watch(n);
    n->lines_lost = log_report_lost();
    drain_check(n);
    arm_timer(n, coalesces);
}

static void on_idle(uv_idle_t *h)
{
    (void)h; /* while the idle handle runs, the poll does not sleep */
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

    if (n->stopping)
        return;
    wake_sleep(&n->wake);
    if (node_congested(n))
        usleep(BEHIND_US); /* unread input keeps the poll from sleeping */
    /* Notes since the turn get a turn of their own; later ones write to the
     * wake. */
    else if (serve_notes(n) == 0 && !local_busy(n->local) &&
             !links_busy(n->links) && !n->maps_seen && !n->pools_seen &&
             list_empty(&n->making) && !node_inline_busy(n) &&
             !brain_pending(n->brain))
        return;
    uv_idle_start(&n->idle, on_idle);
}

static void on_wake(uv_poll_t *h, int status, int events)
{
    struct node *n = h->data;

    (void)status;
    (void)events;
    wake_clear(&n->wake); /* the check that follows takes the notes */
}

/* the loop */

struct local_calls node_local_calls(struct node *n)
{
    return (struct local_calls){n, engine_event, conn_writable, full};
}

struct links_calls node_links_calls(struct node *n)
{
    return (struct links_calls){n, peer_event, full, link_known};
}

/* Lets the kernel serve the loop's timers at a tick that comes anyway.
 * Otherwise a sleep of a millisecond programs the clock when it begins and when
 * it ends. On a virtual machine that costs 8 us each time, before the engine
 * that was just woken can run. */
static void ring_with_ticks(void)
{
    if (prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS) != 0)
        log_warn("the timers' slack stays as it is: %m");
}

void node_turns(struct node *n)
{
    CHECK(n->wake.fd >= 0, "nothing would wake the loop of %s", n->conf->name);
    uv_prepare_start(&n->prepare, on_prepare);
    uv_check_start(&n->check, on_check);
    uv_poll_start(&n->wake_poll, UV_READABLE, on_wake);
    ring_with_ticks();
    turn(n);
    uv_run(&n->loop, UV_RUN_DEFAULT);
}
