/* swarm.c - a seed's world: draws daemons, pools, engines and faults (many
 * rates are zero), runs them, and ends all faults. Then everything must end,
 * and nothing may be left. */
#include "test/sim/sim.h"

#include "base/check.h"

/* faults */

static uint64_t in_about(uint32_t ms)
{
    return W.now_ns + between(1, 2 * (uint64_t)ms) * MS;
}

static void cut_comes(void *p, uint64_t a, uint64_t b)
{
    if (W.healing)
        return;
    net_cut_one();
    at(in_about(W.is.cut_ms), cut_comes, p, 0, 0);
}

static void break_comes(void *p, uint64_t a, uint64_t b)
{
    if (W.healing)
        return;
    data_break_one();
    at(in_about(W.is.break_ms), break_comes, p, 0, 0);
}

static void partition_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    struct daemon *l = W.daemons[W.is.encodeds + between(0, W.is.langds - 1)];
    bool turn = chance(500);

    if (W.healing)
        return;
    net_partition(
        turn ? e : l, turn ? l : e, between(10, 3000) * MS, chance(500));
    at(in_about(W.is.partition_ms), partition_comes, p, 0, 0);
}

static void restart(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;

    if (!d->alive)
        daemon_start(d);
}

static void crash_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];

    if (W.healing)
        return;
    if (d->alive) {
        daemon_crash(d);
        at(W.now_ns + between(1, 3000) * MS, restart, d, 0, 0);
    }
    at(in_about(W.is.crash_ms), crash_comes, p, 0, 0);
}

static void still_comes(void *p, uint64_t a, uint64_t b)
{
    if (W.healing)
        return;
    stand_one_still();
    at(in_about(W.is.still_ms), still_comes, p, 0, 0);
}

static void clock_comes(void *p, uint64_t a, uint64_t b)
{
    const struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];

    if (W.healing)
        return;
    clock_stands(d, between(0, chance(300) ? 10000 : 500) * MS,
        between(0, chance(300) ? 10000 : 500) * MS);
    at(in_about(W.is.clock_ms), clock_comes, p, 0, 0);
}

static void opens(void *p, uint64_t from, uint64_t to)
{
    W.shut[from][to] = 0;
}

static void shut_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    struct daemon *l = W.daemons[W.is.encodeds + between(0, W.is.langds - 1)];

    if (W.healing)
        return;
    carrier_shut(e, l, chance(700) ? CARRIER_UCX : CARRIER_TCP);
    at(W.now_ns + between(10, chance(500) ? 500 : 20000) * MS, opens, NULL,
        e->index, l->index);
    at(in_about(W.is.shut_ms), shut_comes, NULL, 0, 0);
}

/* A pool's memory is lost, for the rest of the daemon's life. */
static void pool_is_lost(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    struct event ev = {.type = EV_NOTE, .note = {.type = NOTE_POOL_LOST}};

    if (W.healing || !d->alive)
        return;
    ev.note.first = (uint32_t)between(0, d->conf->pools_count - 1);
    trace("%s: pool %u is lost", d->conf->name, ev.note.first);
    d->spoilt = d->draining = true; /* restarted when faults end */
    daemon_step(d, &ev);
}

static void map_comes(void *p, uint64_t a, uint64_t b)
{
    if (W.healing)
        return;
    map_lose_one();
    at(in_about(W.is.map_ms), map_comes, p, 0, 0);
}

void ticket_comes(void *p, uint64_t a, uint64_t b)
{
    uint64_t when = W.now_ns + between(0, 30) * MS;

    if (!W.healing)
        ask_start(W.daemons[W.is.encodeds + between(0, W.is.langds - 1)]);
    if (a < 3 && chance(500)) /* several at once, so that some wait */
        at(when, ticket_comes, NULL, a + 1, 0);
}

/* A daemon that drains ends when its rooms have ended, or when that takes too
 * long. */
static void drained(void *p, uint64_t life, uint64_t until_ns)
{
    struct daemon *d = p;

    if (!d->alive || d->life != life)
        return;
    if (W.now_ns < until_ns && brain_open_rooms(d->brain) > 0) {
        at(W.now_ns + 20 * MS, drained, d, life, until_ns);
        return;
    }
    daemon_crash(d);
    at(W.now_ns + between(1, 1000) * MS, restart, d, 0, 0);
}

/* Takes the order to drain back. */
static void undrain(void *p, uint64_t life, uint64_t b)
{
    struct daemon *d = p;
    struct event ev = {.type = EV_UNDRAIN};

    if (!d->alive || d->life != life)
        return;
    trace("%s drains no longer", d->conf->name);
    d->draining = d->spoilt;
    daemon_step(d, &ev);
}

static void drain_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    struct event ev = {.type = chance(500) ? EV_DRAIN : EV_ENDING};

    if (W.healing)
        return;
    if (d->alive && !d->draining) {
        trace("%s drains", d->conf->name);
        d->draining = true;
        daemon_step(d, &ev);
        if (ev.type == EV_DRAIN)
            at(W.now_ns + between(0, 6000) * MS, undrain, d, d->life, 0);
        else
            at(W.now_ns, drained, d, d->life, W.now_ns + between(0, 6000) * MS);
    }
    at(in_about(W.is.drain_ms), drain_comes, p, 0, 0);
}

void deliveries_start(
    void (*later)(uint64_t when_ns, happening, void *, uint64_t, uint64_t))
{
    for (uint32_t i = 0; i < W.is.deliveries; i++) {
        draw_from(PART_DELIVERY, i);
        if (!option_skips(i))
            later(between(0, W.is.faults_ms) * MS, deliver, NULL, 0, 0);
    }
    for (uint32_t i = 0; i < W.is.tickets; i++) {
        draw_from(PART_TICKET, i);
        later(between(0, W.is.faults_ms) * MS, ticket_comes, NULL, 0, 0);
    }
}

static void schedule(void)
{
    const struct {
        uint32_t about_ms;
        happening comes;
    } faults[] = {{W.is.cut_ms, cut_comes}, {W.is.break_ms, break_comes},
        {W.is.partition_ms, partition_comes}, {W.is.crash_ms, crash_comes},
        {W.is.map_ms, map_comes}, {W.is.still_ms, still_comes},
        {W.is.drain_ms, drain_comes}};

    deliveries_start(at);
    for (uint32_t i = 0; i < ARRAY_LEN(faults); i++) {
        draw_from(PART_FAULT, i);
        if (faults[i].about_ms)
            at(in_about(faults[i].about_ms), faults[i].comes, NULL, 0, 0);
    }
    draw_from(PART_FAULT, ARRAY_LEN(faults));
    if (chance(W.is.pool_lost))
        at(between(0, W.is.faults_ms) * MS, pool_is_lost, NULL, 0, 0);
    draw_from(PART_CLOCK, 1);
    if (W.is.clock_ms)
        at(in_about(W.is.clock_ms), clock_comes, NULL, 0, 0);
    draw_from(PART_CARRIER, 1);
    if (W.is.ucx && W.is.shut_ms)
        at(in_about(W.is.shut_ms), shut_comes, NULL, 0, 0);
    reloads_start();
    ghosts_start();
}

/* the end */

bool world_over(void)
{
    return prods_over() && cons_over() && asks_over() && data_on_the_way() == 0;
}

static void run_while_busy(bool (*over)(void), uint64_t limit_ns)
{
    uint64_t end = W.now_ns + limit_ns;

    while (W.now_ns < end && !over())
        (void)run_until(W.now_ns + 20 * MS);
}

static bool conns_over(void)
{
    return econns_open() == 0;
}

static void heal(void)
{
    trace("--- all heals ---");
    W.healing = true;
    all_go_on();
    ghosts_go();
    net_heal();
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        if (W.daemons[i]->alive && W.daemons[i]->draining)
            daemon_crash(W.daemons[i]);
        if (!W.daemons[i]->alive)
            daemon_start(W.daemons[i]);
    }
    reloads_end();
}

/* One room for every pair of daemons, each of which must succeed. */
static void prove_service(void)
{
    draw_from(PART_PROOF, 0);
    for (uint32_t e = 0; e < W.is.encodeds; e++)
        for (uint32_t l = W.is.encodeds; l < W.daemons_count; l++) {
            struct daemon *to = W.daemons[l];
            struct prod *p = prod_new(W.daemons[e], 1000000 + room_next());
            struct cons *c = cons_new(to, e, p->room);
            bool reached = W.daemons[e]->carriers & to->carriers;

            if (strcmp(W.daemons[e]->conf->pools[0].layout,
                    to->conf->pools[0].layout) != 0 ||
                W.daemons[e]->conf->pools[0].block_rows * 15 < 16) {
                p->over = c->over = true;
                continue;
            }
            p->total = p->max_rows = 1;
            c->session = 2;
            c->must_succeed = p->patient = reached;
            prod_start(p, W.now_ns);
            cons_start(c, W.now_ns);
            if (!reached)
                (void)run_until(W.now_ns + 5 * NS_PER_S);
            HOLDS(reached || carriers_refused(c),
                "nothing in common is said at once", "%s to %s",
                W.daemons[e]->conf->name, to->conf->name);
            run_while_busy(world_over, 3600 * NS_PER_S);
        }
}

static void leave(void)
{
    draw_from(PART_LEAVE, 0);
    for (uint32_t i = 0; i < econns_count(); i++) {
        struct econn *c = econn_at(i);

        if (econn_usable(c) && chance(700))
            econn_bye(c);
        else
            econn_die(c);
    }
    (void)run_until(W.now_ns + 200 * MS);
    for (uint32_t i = 0; i < econns_count(); i++)
        econn_die(econn_at(i));
}

void world_finish(uint64_t limit_ns)
{
    run_while_busy(world_over, limit_ns);
    HOLDS(world_over(), "every room ends",
        "after %llu s without faults: encode%s; language%s; %u messages",
        (unsigned long long)(limit_ns / NS_PER_S), prods_left(), cons_left(),
        data_on_the_way());
    for (uint32_t i = 0; i < econns_count(); i++)
        if (econn_at(i)->ended)
            econn_die(econn_at(i));
    /* Answers owed to a peer that never comes back are kept for 120 s. */
    (void)run_until(W.now_ns + (W.is.ghost_ms ? 130 : 10) * NS_PER_S);
    if (!W.sparse)
        prove_service();
    leave();
    run_while_busy(conns_over, 60 * NS_PER_S);
    (void)run_until(W.now_ns + 120 * NS_PER_S);
    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (W.daemons[i]->role == ROLE_ENCODED)
            encoded_watch_end(W.daemons[i]);
        else
            langd_watch_end(W.daemons[i]);
}

static void swarm(void)
{
    draw_daemons();
    schedule();
    (void)run_until(W.is.faults_ms * MS);
    heal();
    world_finish(200 * NS_PER_S);
}

void swarm_run(void)
{
    draw_nature();
    swarm();
}

void swarm_of_reloads(void)
{
    draw_nature();
    W.is.reload_ms = 100;
    swarm();
}
