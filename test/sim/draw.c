/* draw.c - what a seed's world consists of: delays and rates, daemons with
 * their pools, and deliveries with their engines. In the swarm a configuration
 * is drawn from all that it may say. In a calm world deadlines have their
 * defaults, except the total one (TOTAL_CALM), engines behave, and all rooms
 * have sizes that fit. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/move/sending.h"

#define STREAM_BLOCKS 3 /* least blocks of a stream */

static uint64_t rooms;

uint64_t room_last(void)
{
    return rooms;
}

uint64_t room_next(void)
{
    return ++rooms;
}

/* Returns a rate up to max, and zero every other time. */
static uint32_t rate(uint32_t max)
{
    return chance(500) ? 0 : (uint32_t)between(1, max);
}

static void draw_swarm(struct nature *n)
{
    draw_from(PART_NATURE, 0);
    n->encodeds = (uint32_t)between(1, 2);
    n->langds = (uint32_t)between(1, 3);
    n->deliveries = (uint32_t)between(3, 40);
    n->faults_ms = (uint32_t)between(2000, 12000);
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
    n->still_ms = chance(200) ? (uint32_t)between(100, 4000) : 0;
    n->stale = rate(200);
    n->forged = rate(100);
    n->ghost_ms = chance(150) ? (uint32_t)between(1, 40) : 0;
    n->ring = chance(300) ? (uint32_t)between(1, 12) : 0;
    n->secrets = rate(1000);
    n->thieves = rate(500);
    n->pool_lost = 50;
    /* Configurations change in every fourth world. */
    n->reload_ms = W.seed % 4 == 3 ? 100 + (uint32_t)(W.seed * 7 % 1900) : 0;
    n->lend = n->hosts > 0 && W.seed % 2;
}

/* Draws what was added later, so that older seeds keep their worlds. */
static void draw_more(struct nature *n)
{
    uint64_t *from = W.from;

    draw_from(PART_CLOCK, 0);
    n->clock_ms = chance(150) ? (uint32_t)between(300, 4000) : 0;
    n->no_memory = chance(100) ? (uint32_t)between(50, 500) : 0;
    draw_from(PART_CARRIER, 0);
    n->ucx = chance(200) ? (uint32_t)between(300, 1000) : 0;
    n->no_tcp = n->ucx && chance(500) ? (uint32_t)between(50, 500) : 0;
    n->shut_ms = n->ucx && chance(700) ? (uint32_t)between(300, 4000) : 0;
    W.from = from;
}

void draw_nature(void)
{
    draw_swarm(&W.is);
    draw_more(&W.is);
    options_apply(&W.is);
}

/* Draws a world without faults, whose engines do what they promised. */
void draw_calm(void)
{
    struct nature *n = &W.is;

    draw_swarm(n);
    n->calm = true;
    n->loss = n->twice = n->late = n->cut_ms = n->partition_ms = 0;
    n->crash_ms = n->break_ms = n->stall = n->abort = n->vanish = 0;
    n->silent = n->wrong = n->lonely = n->again = 0;
    n->drain_ms = n->map_ms = n->still_ms = n->stale = n->forged = 0;
    n->ghost_ms = 0;
    n->pool_lost = 0;
    n->faults_ms = (uint32_t)between(100, 12000);
    n->reload_ms = W.seed % 8 == 5 ? 50 : 0;
    options_apply(n);
}

/* daemons */

void draw_times(struct conf *c)
{
    if (W.is.calm) { /* places for all rooms, and time for all work */
        c->limit_rooms = 256;
        c->limit_attachments = 400;
        W.cells = CELLS_CALM;
        c->timeout_total = TOTAL_CALM;
        return;
    }
    c->timeout_bootstrap = between(1000, 8000) * MS;
    c->timeout_progress = between(2000, 8000) * MS;
    c->timeout_total = between(4000, 20000) * MS;
    c->timeout_consumer = between(2000, 20000) * MS;
    c->timeout_keep = between(100, 10000) * MS;
    c->timeout_linger = chance(300) ? 0 : between(100, 3000) * MS;
    c->timeout_revoke_after = chance(300) ? 0 : between(1, 300) * MS;
    c->timeout_unclaimed = between(100, 3000) * MS;
    c->timeout_retry = between(10, 200) * MS;
    c->control_lost_after = between(50, 1000) * MS;
    c->limit_tombstones = chance(200) ? 16 : 256;
    c->limit_rooms = chance(200) ? between(1, 4) : between(8, 48);
    /* encoders wait so long for a langd that never maps */
    c->timeout_hello = 200 * MS;
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
    for (uint32_t u = 0, users = W.is.calm ? 2 : (uint32_t)between(1, 2);
         W.is.hosts && !langd && u < users && i == 1; u++) {
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
    /* A block holds at least a unit of any other pool in the world. */
    if (W.is.calm && !langd)
        p->block_rows = p->block_rows < 16 ? 16 : p->block_rows;
}

static void give_ghost(struct conf *c)
{
    char text[80];

    snprintf(text, sizeof(text), "peers[%u].name=g0", W.is.encodeds);
    conf_give(c, text);
    snprintf(
        text, sizeof(text), "peers[%u].address=" GHOST_ADDRESS, W.is.encodeds);
    conf_give(c, text);
}

void draw_daemons(void)
{
    static const char *const layouts[] = {"a:u8:32768", "a:u8:8192,b:i32:1",
        "a:u8:262144", "a:u8:1048576", "a:u8:2048,b:u8:2048"};
    const char *layout = layouts[between(0, ARRAY_LEN(layouts) - 1)];
    char text[80], name[16];

    for (uint32_t i = 0; i < W.is.encodeds + W.is.langds; i++) {
        static const uint8_t roles[] = {ROLE_ENCODED, ROLE_LANGD};
        bool langd = i >= W.is.encodeds;
        const char *own;
        struct conf *c;
        struct daemon *d;

        draw_from(PART_DAEMON, i);
        own = chance(W.is.wrong) ? layouts[0] : layout;
        snprintf(name, sizeof(name), langd ? "l%u" : "e%u",
            langd ? i - W.is.encodeds : i);
        c = conf_make(roles[langd], name);
        draw_times(c);
        for (uint32_t k = 0; k < W.is.pools; k++)
            draw_pool(c, k, k ? layout : own, langd);
        c->transfer_same_host = chance(50)  ? SAME_HOST_OFF
                                : W.is.lend ? SAME_HOST_LEND
                                            : SAME_HOST_AUTO;
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
        if (langd && W.is.ghost_ms)
            give_ghost(c);
        d = daemon_new(roles[langd], c, (uint32_t)between(1, 3));
        d->host = W.is.hosts ? (uint32_t)between(0, W.is.hosts - 1) : i;
        daemon_start(d);
    }
}

/* deliveries */

/* Draws rows that the pool holds; in a calm world at most `most`. */
static uint32_t draw_rows(const struct daemon *d, uint32_t pool, uint64_t most)
{
    const struct conf_pool *p = &d->conf->pools[pool];
    uint64_t all = min_u64(p->blocks * p->block_rows, most);

    if (chance(40) || all == 0)
        return 0;
    if (chance(30) && !W.is.calm)
        return (uint32_t)(all + between(1, all));
    if (chance(400))
        return (uint32_t)between(1, min_u64(all, p->block_rows));
    return (uint32_t)between(1, chance(300) ? all : all / 3 + 1);
}

static uint64_t stream_blocks(const struct cons *c)
{
    const struct conf_pool *p = &c->d->conf->pools[c->pool];

    return p->max_room_blocks ? p->max_room_blocks : p->blocks / 2;
}

/* Returns how many rows a whole room may have there. */
static uint64_t whole_rows(const struct cons *c)
{
    const struct conf_pool *p = &c->d->conf->pools[c->pool];
    uint64_t blocks = p->max_room_blocks ? p->max_room_blocks : p->blocks;

    return c->mode == MODE_WHOLE ? blocks * p->block_rows : UINT64_MAX;
}

static struct prod *draw_prod(
    struct daemon *e, uint64_t room, uint32_t dsts, uint64_t most)
{
    struct prod *p = prod_new(e, room);

    p->session = (uint32_t)between(0, 1);
    p->pool = (uint32_t)between(0, e->conf->pools_count - 1);
    p->total = draw_rows(e, p->pool, most);
    p->max_rows = p->total + (chance(300) ? (uint32_t)between(0, 40) : 0);
    if (W.is.calm)
        p->max_rows = (uint32_t)min_u64(
            p->max_rows, e->conf->pools[p->pool].blocks *
                             e->conf->pools[p->pool].block_rows);
    p->known = !chance(W.is.unknown);
    p->required = chance(200) ? 0 : dsts;
    p->conns = 1 + (chance(W.is.readers) ? (uint32_t)between(1, 2) : 0);
    if (W.is.again) /* it must be clear which announce an attach means */
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
    if (W.seed % 4 == 1) /* langd has space for four of them */
        p->aux *= 27;
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
    p->must_succeed = W.is.calm;
    if (chance(100) && !W.is.calm)
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
    if (W.is.calm && stream_blocks(c) < STREAM_BLOCKS)
        c->mode = MODE_WHOLE;
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
    c->must_succeed = W.is.calm;
    if (chance(100) && !W.is.calm)
        c->deadline_ms = (uint32_t)between(50, 6000);
    c->declines = chance(W.is.decline);
    return c;
}

/* A room with all of its destinations; its engines have not started. */
struct delivery {
    struct prod *p; /* NULL: the room is never announced */
    struct cons *c[DAEMONS_MAX];
    uint32_t dsts;
};

/* Takes back what engines of a calm world must not combine, since the room
 * could not succeed. */
static void make_sense(struct delivery *v)
{
    bool declines = false;

    for (uint32_t i = 0; i < v->dsts; i++) {
        struct cons *c = v->c[i];
        if (v->dsts > 1 || c->group)
            c->null = false;
        /* On one host a decline of another user is ignored. */
        c->declines &=
            !c->null && !c->group && c->session % 2 == v->p->session % 2;
        declines |= c->declines;
    }
    if (v->c[0]->null)
        return;
    if (declines) {
        v->p->expected = ERR_DECLINED;
        v->p->required = v->dsts; /* otherwise the first decline would end it */
        v->p->flags &= (uint8_t)~FLAG_OPEN;
    }
}

static uint64_t most_rows(const struct delivery *v)
{
    uint64_t most = UINT64_MAX;

    for (uint32_t i = 0; W.is.calm && i < v->dsts; i++)
        most = min_u64(most, whole_rows(v->c[i]));
    return most;
}

static struct prod *draw_source(
    struct daemon *e, uint64_t room, struct delivery *v, uint64_t most)
{
    uint64_t key = chance(W.is.keys) ? between(1, 4) : 0;
    bool same = !chance(W.is.wrong);

    v->p = draw_prod(e, room, v->dsts, most);
    if (W.is.calm)
        make_sense(v);
    if (key == 0 || v->p->expected || !prod_key(v->p, key, most))
        return v->p;
    for (uint32_t i = 0; same && i < v->dsts; i++)
        v->c[i]->key = key;
    return v->p;
}

/* Adds an engine that knows the room's id, but not its secret: it requests the
 * room, or declines it. */
static void draw_thief(const struct delivery *v)
{
    const struct cons *c = v->c[0];
    struct daemon *l = W.daemons[W.is.encodeds + between(0, W.is.langds - 1)];
    struct cons *t = draw_cons(l, c->encoder, c->room, (uint32_t)between(1, 3));

    t->thief = true;
    t->must_succeed = t->null = false;
    t->readers = 0;
    t->conns = 1;
    t->key = c->key;
    t->secret = chance(500) ? 0 : draw() | 1;
    t->deadline_ms = (uint32_t)between(50, 2000);
    cons_start(t, W.now_ns + between(0, 50) * MS);
}

/* Gives the room and its engines a secret, by chance; always if engines of
 * another host need one for a pool that is for some users. */
static void draw_secret(const struct delivery *v)
{
    const struct conf_pool *p = &v->p->d->conf->pools[v->p->pool];

    if (chance(W.is.secrets) || (W.is.calm && p->uids.count > 0))
        v->p->secret = draw() | 1;
    for (uint32_t i = 0; i < v->dsts; i++)
        v->c[i]->secret = chance(W.is.wrong) ? draw() : v->p->secret;
    if (v->p->secret && chance(W.is.thieves))
        draw_thief(v);
}

static void start_all(struct delivery *v, uint64_t spread_ms)
{
    if (v->p && !(W.is.calm && v->c[0]->null))
        prod_start(v->p, W.now_ns + between(0, spread_ms) * MS);
    else if (v->p)
        v->p->over = true; /* a null encoder's rows are never announced */
    for (uint32_t i = 0; i < v->dsts; i++)
        cons_start(v->c[i], W.now_ns + between(0, spread_ms) * MS);
}

/* Returns the rows that each of n rooms may have, if all are to fit at once. */
static uint64_t share_of(const struct cons *c, uint32_t n)
{
    uint32_t rows = (uint32_t)c->d->conf->pools[c->pool].block_rows;

    return whole_rows(c) / rows / n * rows;
}

static uint64_t share_of_source(const struct prod *p, uint32_t n)
{
    const struct conf_pool *c = &p->d->conf->pools[p->pool];

    return c->blocks / n * c->block_rows;
}

/* Draws rooms that are admitted together, and perhaps announced together; the
 * last one may never be requested. */
static void deliver_group(void)
{
    static uint64_t groups;
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    struct daemon *l = W.daemons[W.is.encodeds + between(0, W.is.langds - 1)];
    uint32_t n = (uint32_t)between(2, 4), session = 2 + (uint32_t)(draw() % 2);
    uint32_t pool = (uint32_t)++groups % l->conf->pools_count;
    struct prod *before = NULL;
    bool batch = chance(W.is.batch), together = W.is.calm && chance(500);

    for (uint32_t i = 0; i < n; i++) {
        struct delivery v = {.dsts = 1};
        struct cons *c = v.c[0] = draw_cons(l, e->index, room_next(), 1);
        struct prod *p;

        c->session = session;
        c->pool = pool;
        c->mode = chance(W.is.wrong) ? MODE_STREAM : MODE_WHOLE;
        c->group = groups;
        c->together = together;
        c->group_size = (uint16_t)(chance(W.is.wrong) ? n + 1 : n);
        p = draw_prod(e, c->room, 1, W.is.calm ? share_of(c, n) : UINT64_MAX);
        p->session = 0;
        p->pool = W.is.calm ? 0 : p->pool;
        if (W.is.calm)
            p->total = p->max_rows =
                min_u32(p->total, (uint32_t)share_of_source(p, n));
        v.p = p;
        if (W.is.calm)
            make_sense(&v);
        draw_secret(&v);
        if (before && batch) {
            before->mate = p;
            p->led = before;
        }
        before = p;
        start_all(&v, 100);
    }
}

/* Draws engines at two langds that need each other's rooms, and say so (an open
 * room's destinations have no order); also an encoder that continues when its
 * rows are consumed. */
static void couple(struct delivery *v)
{
    struct cons *c = v->c[0], *d = v->dsts == 2 ? v->c[1] : NULL;
    struct prod *p = v->p;

    if (d && c->mode == MODE_WHOLE && d->mode == MODE_WHOLE && chance(500) &&
        !c->declines && !d->declines && !(p->flags & FLAG_OPEN)) {
        c->twin = d;
        d->twin = c;
    }
    if (v->dsts > 1 || c->mode != MODE_STREAM || c->readers || p->key ||
        c->declines || c->null || chance(500))
        return;
    c->eager = true;
    p->paced = c;
    for (uint32_t i = 0; i < p->pieces; i++)
        p->order[i] = i;
}

void deliver(void *ptr, uint64_t again, uint64_t same)
{
    struct daemon *e = W.daemons[between(0, W.is.encodeds - 1)];
    uint32_t first = (uint32_t)between(0, W.is.langds - 1);
    struct delivery v = {.dsts = chance(W.is.several) ? W.is.langds : 1};
    uint64_t room = again ? same : room_next();
    bool lonely = chance(W.is.lonely);
    uint32_t spread_ms = chance(200) ? 3000 : 50;

    if (W.healing)
        return;
    if (W.is.ghost_ms && chance(100)) {
        v.c[0] = draw_cons(
            W.daemons[W.is.encodeds + first], e->index, room_next(), 1);
        v.c[0]->ghost = true;
        cons_start(v.c[0], W.now_ns);
        return;
    }
    if (!again && chance(W.is.group)) {
        deliver_group();
        return;
    }
    for (uint32_t i = 0; i < v.dsts; i++)
        v.c[i] = draw_cons(W.daemons[W.is.encodeds + (first + i) % W.is.langds],
            e->index, room, v.dsts);
    (void)draw_source(e, room, &v, most_rows(&v));
    draw_secret(&v);
    if (W.is.calm)
        couple(&v);
    if (lonely && chance(500)) { /* never requested */
        for (uint32_t i = 0; i < v.dsts; i++)
            v.c[i]->over = true;
        v.dsts = 0;
    } else if (lonely) { /* never announced */
        v.p->over = true;
        v.p = NULL;
    }
    start_all(&v, spread_ms);
    if (chance(W.is.again))
        at_leisure(W.now_ns + between(1, 3000) * MS, deliver, NULL, 1, room);
}
