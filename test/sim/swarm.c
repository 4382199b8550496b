/* swarm.c - a seed's world: it draws what daemons, pools, engines and faults
 * there are, many rates being zero; lets them happen; heals; and wants
 * everything to end and nothing to be left. */
#include "test/sim/sim.h"

#include "base/check.h"

#include <stdio.h>

static uint64_t rooms;

/* A rate up to max, zero every other time. */
static uint32_t rate(uint32_t max)
{
    return chance(500) ? 0 : (uint32_t)between(1, max);
}

static void draw_nature(void)
{
    struct nature *n = &W.is;

    n->encodeds = (uint32_t)between(1, 2);
    n->langds = (uint32_t)between(1, 3);
    n->deliveries = (uint32_t)between(3, 40);
    n->faults_ns = between(2000, 12000) * MS;
    n->loss = rate(300);
    n->twice = rate(500);
    n->late = rate(300);
    n->cut_ms = rate(1) ? (uint32_t)between(100, 4000) : 0;
    n->partition_ms = rate(1) ? (uint32_t)between(300, 6000) : 0;
    n->crash_ms = rate(1) ? (uint32_t)between(1000, 12000) : 0;
    n->break_ms = rate(1) ? (uint32_t)between(50, 3000) : 0;
    n->net_us = (uint32_t)between(50, 5000);
    n->data_us = (uint32_t)between(50, 20000);
    n->local_us = (uint32_t)between(10, 3000);
    n->shard_us = (uint32_t)between(5, 3000);
    n->stall = rate(30);
    n->abort = rate(300);
    n->vanish = rate(700);
    n->silent = rate(150);
    n->wrong = rate(100);
    n->stream = rate(1) ? (uint32_t)between(100, 1000) : 0;
    n->several = rate(400);
    n->unknown = rate(700);
    n->open = rate(100);
    n->null = rate(50);
    n->rendezvous = rate(1) ? (uint32_t)between(100, 1000) : 0;
    n->group = rate(200);
    n->readers = rate(500);
    n->lonely = rate(100);
    n->shuffle = rate(500);
    n->late_rows = rate(300);
    n->long_hold = rate(200);
    n->tight_out = rate(300);
    n->again = rate(200);
    n->keys = rate(700);
    n->keep = rate(1000);
    n->batch = rate(300);
    n->decline = rate(200);
    n->hosts = chance(400) ? (uint32_t)between(1, 2) : 0;
    n->map_ms = chance(500) ? (uint32_t)between(100, 3000) : 0;
    n->copy_us = chance(500) ? n->data_us : (uint32_t)between(10000, 400000);
    n->tickets = chance(300) ? (uint32_t)between(1, 40) : 0;
    n->drain_ms = chance(200) ? (uint32_t)between(1000, 12000) : 0;
    n->pools = chance(300) ? 2 : 1;
}

/* daemons */

static void draw_times(struct conf *c)
{
    c->timeout_bootstrap = between(1000, 8000) * MS;
    c->timeout_first_byte = between(2000, 8000) * MS;
    c->timeout_progress = between(2000, 8000) * MS;
    c->timeout_total = between(4000, 20000) * MS;
    c->timeout_consumer = between(2000, 20000) * MS;
    c->timeout_keep = between(100, 10000) * MS;
    c->timeout_linger = chance(300) ? 0 : between(100, 3000) * MS;
    c->timeout_revoke_after = chance(300) ? 0 : between(1, 300) * MS;
    c->timeout_retry = between(10, 200) * MS;
    c->timeout_tombstone = between(200, 30000) * MS;
    c->control_lost_after = between(50, 1000) * MS;
    c->limit_tombstones = chance(200) ? 16 : 256;
    c->limit_rooms = chance(200) ? between(1, 4) : between(8, 48);
    c->limit_attachments = chance(100) ? between(4, 12) : 160;
}

static void draw_pool(
    struct conf *c, uint32_t i, const char *layout, bool langd)
{
    char text[80];
    struct conf_pool *p;

    snprintf(text, sizeof(text), "pools[%u].name=%s", i, i ? "more" : "main");
    conf_give(c, text);
    snprintf(text, sizeof(text), "pools[%u].blocks=4", i);
    conf_give(c, text);
    snprintf(text, sizeof(text), "pools[%u].layout=%s", i, layout);
    conf_give(c, text);
    p = &c->pools[i];
    for (uint32_t u = 0; W.is.hosts && !langd && u < 2 && i == 1; u++) {
        snprintf(text, sizeof(text), "pools[%u].uids[%u]=%u", i, u, 1000 + u);
        conf_give(c, text);
    }
    p->block_rows = UINT64_C(1) << between(0, 7);
    p->blocks = chance(300) ? between(1, 6) : between(4, 64);
    if (langd) {
        p->default_blocks = chance(200) ? 0 : between(1, 8);
        p->max_room_blocks = chance(700) ? 0 : between(1, p->blocks);
        if (p->default_blocks > p->blocks)
            p->default_blocks = p->blocks;
    }
}

static void make_daemons(void)
{
    static const char *const layouts[] = {"a:u8:32768", "a:u8:8192,b:i32:1",
        "a:u8:262144", "a:u8:1048576", "a:u8:2048,b:u8:2048"};
    const char *layout = layouts[between(0, ARRAY_LEN(layouts) - 1)];
    char text[80], name[16];

    for (uint32_t i = 0; i < W.is.encodeds + W.is.langds; i++) {
        bool langd = i >= W.is.encodeds;
        const char *own = chance(W.is.wrong) ? layouts[0] : layout;
        struct conf *c;
        struct daemon *d;

        snprintf(name, sizeof(name), langd ? "l%u" : "e%u",
            langd ? i - W.is.encodeds : i);
        c = conf_make(langd ? ROLE_LANGD : ROLE_ENCODED, name);
        draw_times(c);
        for (uint32_t k = 0; k < W.is.pools; k++)
            draw_pool(c, k, k ? layout : own, langd);
        c->transfer_same_host = chance(50);
        snprintf(text, sizeof(text), "tcp://10.0.0.%u:7601", i);
        if (!langd)
            snprintf(c->control_listen, sizeof(c->control_listen), "%s", text);
        for (uint32_t k = 0; langd && k < W.is.encodeds; k++) {
            snprintf(text, sizeof(text), "peers[%u].name=e%u", k, k);
            conf_give(c, text);
            snprintf(text, sizeof(text),
                "peers[%u].address=tcp://10.0.0.%u:7601", k, k);
            conf_give(c, text);
        }
        d = daemon_new(
            langd ? ROLE_LANGD : ROLE_ENCODED, c, (uint32_t)between(1, 3));
        d->host = W.is.hosts ? (uint32_t)between(0, W.is.hosts - 1) : i;
        daemon_start(d);
    }
}

/* deliveries */

static uint32_t draw_rows(const struct daemon *d, uint32_t pool)
{
    const struct conf_pool *p = &d->conf->pools[pool];
    uint64_t all = p->blocks * p->block_rows;

    if (chance(40))
        return 0;
    if (chance(30))
        return (uint32_t)(all + between(1, all));
    if (chance(400))
        return (uint32_t)between(1, p->block_rows);
    return (uint32_t)between(1, chance(300) ? all : all / 3 + 1);
}

static struct prod *draw_prod(struct daemon *e, uint64_t room, uint32_t dsts)
{
    struct prod *p = prod_new(e, room);

    p->session = (uint32_t)between(0, 1);
    p->pool = (uint32_t)between(0, e->conf->pools_count - 1);
    p->total = draw_rows(e, p->pool);
    p->max_rows = p->total + (chance(300) ? (uint32_t)between(0, 40) : 0);
    p->known = !chance(W.is.unknown);
    p->required = chance(200) ? 0 : dsts;
    p->conns = 1 + (chance(W.is.readers) ? (uint32_t)between(1, 2) : 0);
    if (W.is.again) /* which announce an attach means must be clear */
        p->conns = 1;
    p->early = chance(300);
    p->pieces = (uint32_t)between(1, min_u32(8, max_u32(1, p->total)));
    if (chance(W.is.shuffle))
        for (uint32_t i = p->pieces; i > 1; i--) {
            uint32_t k = (uint32_t)between(0, i - 1), x = p->order[i - 1];

            p->order[i - 1] = p->order[k];
            p->order[k] = x;
        }
    p->separate_final = chance(300);
    p->aux = chance(400) ? (uint32_t)between(1, 600) : 0;
    p->storage = STORAGE_COMPACT;
    p->aborts = chance(W.is.abort);
    p->abort_ns = W.now_ns + between(1, 3000) * MS;
    p->silent = chance(W.is.silent);
    p->commit_wrong = chance(W.is.wrong);
    p->pace_ns = between(1, chance(100) ? 500 : 20) * MS;
    if (chance(W.is.keep))
        p->flags |= FLAG_KEEP;
    if (chance(W.is.open)) {
        p->flags |= FLAG_OPEN;
        p->required = 0;
    }
    if (chance(100))
        p->deadline_ms = (uint32_t)between(50, 4000);
    return p;
}

static struct cons *draw_cons(
    struct daemon *l, uint32_t encoder, uint64_t room, uint32_t dsts)
{
    struct cons *c = cons_new(l, encoder, room);

    c->session = 2 + (uint32_t)between(0, 1);
    c->pool = (uint32_t)between(0, l->conf->pools_count - 1);
    c->required = chance(W.is.wrong) ? dsts + 1 : dsts;
    c->mode = chance(W.is.stream) ? MODE_STREAM : MODE_WHOLE;
    c->storage = chance(W.is.wrong)
                     ? STORAGE_PADDED
                     : (chance(500) ? STORAGE_ANY : STORAGE_COMPACT);
    c->key = chance(W.is.wrong) ? 7 : 0;
    c->null = chance(W.is.null);
    c->readers = chance(W.is.readers) ? (uint32_t)between(1, READERS_MAX) : 0;
    c->conns = 1 + c->readers;
    c->rows = chance(800) ? 0 : (uint32_t)between(1, 300);
    c->aborts = chance(W.is.abort);
    c->abort_ns = W.now_ns + between(1, 3000) * MS;
    c->silent = chance(W.is.silent);
    c->hold_ns = between(0, chance(W.is.long_hold) ? 5000 : 50) * MS;
    c->window = 1;
    if (chance(100))
        c->deadline_ms = (uint32_t)between(50, 6000);
    c->declines = chance(W.is.decline);
    return c;
}

/* Rooms that are admitted together, announced together by chance; the last
 * one may never be asked for. */
static void deliver_group(void)
{
    static uint64_t groups;
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    struct daemon *l = W.daemons[W.is.encodeds + between(0, W.is.langds - 1)];
    uint32_t n = (uint32_t)between(2, 4), session = 2 + (uint32_t)(draw() % 2);
    struct prod *before = NULL;

    groups++;
    for (uint32_t i = 0; i < n; i++) {
        struct prod *p = draw_prod(e, ++rooms, 1);
        struct cons *c = draw_cons(l, e->index, rooms, 1);

        p->session = 0;
        c->session = session;
        c->pool = (uint32_t)groups % l->conf->pools_count;
        c->mode = chance(W.is.wrong) ? MODE_STREAM : MODE_WHOLE;
        c->group = groups;
        c->group_size = (uint16_t)(chance(W.is.wrong) ? n + 1 : n);
        if (before && chance(W.is.batch)) {
            before->mate = p;
            p->led = before;
        }
        before = p;
        prod_start(p, W.now_ns + between(0, 100) * MS);
        cons_start(c, W.now_ns + between(0, 100) * MS);
    }
}

static void deliver(void *ptr, uint64_t again, uint64_t same)
{
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    uint32_t first = (uint32_t)between(0, W.is.langds - 1);
    uint32_t dsts = chance(W.is.several) ? W.is.langds : 1;
    uint64_t room = again ? same : ++rooms;
    bool lonely = chance(W.is.lonely);

    (void)ptr;
    if (W.healing)
        return;
    if (!again && chance(W.is.group)) {
        deliver_group();
        return;
    }
    if (!lonely || chance(500)) {
        struct prod *p = draw_prod(e, room, dsts);

        if (chance(W.is.keys))
            prod_key(p, between(1, 4));
        prod_start(p, W.now_ns + between(0, chance(200) ? 3000 : 50) * MS);
        if (lonely)
            return;
    }
    for (uint32_t i = 0; i < dsts; i++)
        cons_start(
            draw_cons(W.daemons[W.is.encodeds + (first + i) % W.is.langds],
                e->index, room, dsts),
            W.now_ns + between(0, chance(200) ? 3000 : 50) * MS);
    if (chance(W.is.again))
        at(W.now_ns + between(1, 3000) * MS, deliver, NULL, 1, room);
}

/* faults */

static uint64_t in_about(uint32_t ms)
{
    return W.now_ns + between(1, 2 * (uint64_t)ms) * MS;
}

static void cut_comes(void *p, uint64_t a, uint64_t b)
{
    (void)a;
    (void)b;
    if (W.healing)
        return;
    net_cut_one();
    at(in_about(W.is.cut_ms), cut_comes, p, 0, 0);
}

static void break_comes(void *p, uint64_t a, uint64_t b)
{
    (void)a;
    (void)b;
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

    (void)a;
    (void)b;
    if (W.healing)
        return;
    net_partition(
        turn ? e : l, turn ? l : e, between(10, 3000) * MS, chance(500));
    at(in_about(W.is.partition_ms), partition_comes, p, 0, 0);
}

static void restart(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;

    (void)a;
    (void)b;
    if (!d->alive)
        daemon_start(d);
}

static void crash_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];

    (void)a;
    (void)b;
    if (W.healing)
        return;
    if (d->alive) {
        daemon_crash(d);
        at(W.now_ns + between(1, 3000) * MS, restart, d, 0, 0);
    }
    at(in_about(W.is.crash_ms), crash_comes, p, 0, 0);
}

static void map_comes(void *p, uint64_t a, uint64_t b)
{
    (void)a;
    (void)b;
    if (W.healing)
        return;
    map_lose_one();
    at(in_about(W.is.map_ms), map_comes, p, 0, 0);
}

static void ticket_comes(void *p, uint64_t a, uint64_t b)
{
    uint64_t when = W.now_ns + between(0, 30) * MS;

    (void)p;
    (void)b;
    if (!W.healing)
        ask_start(W.daemons[W.is.encodeds + between(0, W.is.langds - 1)]);
    if (a < 3 && chance(500)) /* several at once: some wait */
        at(when, ticket_comes, NULL, a + 1, 0);
}

/* Who drains goes when its rooms have ended, or when that takes too long. */
static void drained(void *p, uint64_t life, uint64_t until_ns)
{
    struct daemon *d = p;

    if (!d->alive || d->life != life)
        return;
    if (W.now_ns < until_ns && d->ops->open_rooms(d->brain) > 0) {
        at(W.now_ns + 20 * MS, drained, d, life, until_ns);
        return;
    }
    daemon_crash(d);
    at(W.now_ns + between(1, 1000) * MS, restart, d, 0, 0);
}

static void drain_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    struct event ev = {.type = EV_DRAIN};

    (void)a;
    (void)b;
    if (W.healing)
        return;
    if (d->alive && !d->draining) {
        trace("%s drains", d->conf->name);
        d->draining = true;
        daemon_step(d, &ev);
        at(W.now_ns, drained, d, d->life, W.now_ns + between(0, 6000) * MS);
    }
    at(in_about(W.is.drain_ms), drain_comes, p, 0, 0);
}

static void schedule(void)
{
    for (uint32_t i = 0; i < W.is.deliveries; i++)
        at(between(0, W.is.faults_ns), deliver, NULL, 0, 0);
    if (W.is.cut_ms)
        at(in_about(W.is.cut_ms), cut_comes, NULL, 0, 0);
    if (W.is.break_ms)
        at(in_about(W.is.break_ms), break_comes, NULL, 0, 0);
    if (W.is.partition_ms)
        at(in_about(W.is.partition_ms), partition_comes, NULL, 0, 0);
    if (W.is.crash_ms)
        at(in_about(W.is.crash_ms), crash_comes, NULL, 0, 0);
    for (uint32_t i = 0; i < W.is.tickets; i++)
        at(between(0, W.is.faults_ns), ticket_comes, NULL, 0, 0);
    if (W.is.map_ms)
        at(in_about(W.is.map_ms), map_comes, NULL, 0, 0);
    if (W.is.drain_ms)
        at(in_about(W.is.drain_ms), drain_comes, NULL, 0, 0);
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
    net_heal();
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        if (W.daemons[i]->alive && W.daemons[i]->draining)
            daemon_crash(W.daemons[i]);
        if (!W.daemons[i]->alive)
            daemon_start(W.daemons[i]);
    }
}

/* One room for every pair of daemons, which must succeed. */
static void prove_service(void)
{
    for (uint32_t e = 0; e < W.is.encodeds; e++)
        for (uint32_t l = W.is.encodeds; l < W.daemons_count; l++) {
            struct daemon *to = W.daemons[l];
            struct prod *p = prod_new(W.daemons[e], 1000000 + ++rooms);
            struct cons *c = cons_new(to, e, p->room);

            if (strcmp(W.daemons[e]->conf->pools[0].layout,
                    to->conf->pools[0].layout) != 0 ||
                W.daemons[e]->conf->pools[0].block_rows * 15 < 16) {
                p->over = c->over = true;
                continue;
            }
            p->total = p->max_rows = 1;
            c->session = 2;
            c->must_succeed = p->patient = true;
            prod_start(p, W.now_ns);
            cons_start(c, W.now_ns);
            run_while_busy(world_over, 3600 * NS_PER_S);
        }
}

static void leave(void)
{
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
    (void)run_until(W.now_ns + 10 * NS_PER_S);
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

void swarm_run(void)
{
    draw_nature();
    make_daemons();
    schedule();
    (void)run_until(W.is.faults_ns);
    heal();
    world_finish(200 * NS_PER_S);
}
