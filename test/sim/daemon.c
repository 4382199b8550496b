/* daemon.c - one daemon: the real brain, whose actions are carried out as
 * lib/node does, with the real halves of shards behind queues that take time.
 *
 * Invariants: carrying out actions never steps the brain; commands reach each
 * shard in order, notes come back in order; the life number of a daemon voids
 * all that was under way when it died. Rejected: shards that answer at once. A
 * real brain is ahead of its shards, and that causes the races. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/share.h"
#include "core/trace/recorder.h"
#include "core/out.h"

#define ACTIONS_CAP 8192
#define BYTES_CAP   (1u << 20)
#define MORE_MAX    10000
/* time after which a shard that lags takes more commands */
#define BACKLOG_US 20000

/* configuration */

void conf_give(struct conf *c, const char *assignment)
{
    struct conf_error e = {0};
    enum err err = conf_set_assign(c, assignment, &e);

    CHECK(err == OK, "%s: %s", assignment, e.text);
}

struct conf *conf_make(uint8_t role, const char *name)
{
    static const uint32_t aux_total[] = {
        [ROLE_ENCODED] = 4 << 20, [ROLE_LANGD] = 65536};
    struct conf *c = must_alloc(1, sizeof(*c));

    conf_init(c, role);
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->limit_rooms = 16;
    c->limit_connections = CONNS_MAX;
    c->limit_attachments = 64;
    W.cells = CELLS;
    c->limit_peers = 6;
    c->limit_tombstones = 256;
    c->limit_aux_total = aux_total[role];
    snprintf(c->socket_path, sizeof(c->socket_path), "/run/%s", name);
    return c;
}

struct daemon *daemon_new(uint8_t role, struct conf *conf, uint32_t shards)
{
    struct daemon *d = must_alloc(1, sizeof(*d));

    CHECK(W.daemons_count < DAEMONS_MAX, "too many daemons");
    CHECK(2 * share_peers(conf) <= LINKS_MAX, "too many links");
    d->role = role;
    d->conf = conf;
    d->shards_count = shards;
    d->index = W.daemons_count;
    W.daemons[W.daemons_count++] = d;
    return d;
}

/* start */

static void quiet_step(struct daemon *d, struct event *ev);

/* Gives the brain the addresses of one carrier, each of which names that
 * carrier. */
static void addresses_say(struct daemon *d, uint8_t carrier)
{
    uint8_t blob[64];
    struct writer w = writer_of(blob, sizeof(blob));
    struct own_addresses a;
    struct event ev = {.type = EV_ADDRESSES, .addresses = &a};

    for (uint32_t k = 0; k < d->shards_count; k++) {
        put_u16(&w, 9);
        put_u32(&w, d->index);
        put_u32(&w, d->life);
        put_u8(&w, (uint8_t)((uint32_t)carrier << 4 | k));
    }
    CHECK(!w.failed, "addresses of %u shards", d->shards_count);
    a = (struct own_addresses){carrier, span_of(blob, w.len), false};
    quiet_step(d, &ev);
}

static void addresses_make(struct daemon *d)
{
    for (uint8_t c = CARRIER_TCP; conf_lands(d->conf) && c < CARRIER_END; c++)
        if (d->carriers >> c & 1)
            addresses_say(d, c);
}

static const struct layout *layout_of(const struct daemon *d, uint32_t i)
{
    return brain_layout(d->brain, i);
}

static void brain_make(struct daemon *d)
{
    static struct recorder recorder; /* shared by all daemons */
    struct slab s = {0};

    d->bc.recorder = &recorder;

    for (int round = 0; round < 2; round++) {
        d->brain = brain_init(&s, &d->bc);
        if (round == 0) {
            d->memory = must_alloc(1, s.used);
            s = (struct slab){.p = d->memory, .cap = s.used};
        }
    }
    CHECK(d->brain && !s.failed, "a brain in %zu bytes", s.cap);
}

static struct landing_pool lpool_of(const struct daemon *d, uint32_t i)
{
    const struct conf_pool *c = &d->conf->pools[i];
    const struct layout *l = layout_of(d, i);
    struct landing_pool p = {
        .blocks = (uint32_t)c->blocks, .block_rows = (uint32_t)c->block_rows};

    if (l->count > 0) {
        p.row_bytes = l->row_bytes;
        p.unit_rows = layout_unit_rows(l, p.block_rows);
        p.part_rows = layout_part_rows(l, p.unit_rows);
    }
    return p;
}

static struct sending_pool spool_of(const struct daemon *d, uint32_t i)
{
    struct landing_pool p = lpool_of(d, i);

    return (struct sending_pool){
        p.blocks, p.row_bytes, p.block_rows, layout_of(d, i)->count, 0, 0};
}

static void shard_make(struct daemon *d, uint32_t k)
{
    struct shard *s = &d->shards[k];
    uint32_t n = d->conf->pools_count,
             rooms = share_total(d->conf->limit_rooms);
    struct sending_pool spools[CONF_POOLS_MAX];
    struct slab slab = {0};

    memset(s, 0, sizeof(*s));
    s->d = d;
    s->k = k;
    s->foreign = must_alloc(W.is.hosts ? LINKS_MAX : 1, sizeof(*s->foreign));
    for (uint32_t i = 0; i < n; i++)
        spools[i] = spool_of(d, i);
    for (int round = 0; round < 2; round++) {
        if (d->role == ROLE_LANGD)
            s->landing = landing_init(
                &slab, rooms, LANDINGS_MIN, k, d->shards_count, d->lpools, n);
        else
            s->sending = sending_init(&slab, rooms, share_peers(d->conf), k,
                d->shards_count, 1u << 20, DATA_MESSAGE_BYTES, spools, n);
        if (round == 0)
            slab = (struct slab){
                .p = s->memory = must_alloc(1, slab.used), .cap = slab.used};
    }
}

/* Draws whether the pool gets its memory. */
static bool has_memory(struct daemon *d, uint32_t i)
{
    uint64_t *from = W.from;
    bool has = true;

    draw_from(PART_MEMORY, (uint64_t)d->index << 16 | d->life << 4 | i);
    if (!W.healing && chance(W.is.no_memory)) {
        trace("%s: pool %u gets no memory", d->conf->name, i);
        d->spoilt = d->draining = true;
        has = false;
    }
    W.from = from;
    return has;
}

static void pool_fix(struct daemon *d, uint32_t i, bool start)
{
    uint64_t offsets[LAYOUT_FIELDS_MAX] = {0};
    struct pool_memory m = {.offsets = offsets, .share = ""};
    struct event ev = {.type = EV_POOL, .pool = i, .memory = &m};
    bool ok = layout_place(layout_of(d, i),
        d->conf->pools[i].blocks * d->conf->pools[i].block_rows, 4096, offsets,
        &m.bytes);

    CHECK(ok, "pool %u is too large", i);
    d->lpools[i] = lpool_of(d, i);
    for (uint32_t k = 0; !start && k < d->shards_count; k++) {
        struct sending_pool sp = spool_of(d, i);

        if (d->role == ROLE_LANGD)
            landing_pool_set(d->shards[k].landing, i, &d->lpools[i]);
        else
            sending_pool_set(d->shards[k].sending, i, &sp);
    }
    if (!has_memory(d, i))
        ev.memory = NULL;
    quiet_step(d, &ev);
}

/* Frees the memory of an older life. Not called in worlds that are watched
 * whole, where messages under way may still read it. */
static void memory_free(struct daemon *d)
{
    free(d->memory);
    for (uint32_t i = 0; i < d->conf->pools_count; i++) {
        free(d->tags[i]);
        free(d->reads[i]);
    }
    for (uint32_t k = 0; k < d->shards_count; k++) {
        free(d->shards[k].memory);
        free(d->shards[k].foreign);
        free(d->shards[k].orders);
    }
}

void daemon_start(struct daemon *d)
{
    CHECK(!d->alive, "daemon %u lives already", d->index);
    if (W.sparse && !W.is.hosts)
        memory_free(d);
    d->life++;
    d->alive = true;
    d->draining = d->spoilt = false;
    d->bc.conf = d->conf;
    d->bc.epoch = draw() | 1;
    d->bc.seed = draw();
    d->bc.boot.b[0] = (uint8_t)(d->host + 1);
    d->bc.uid = 500;
    carriers_draw(d);
    if (d->role == ROLE_ENCODED && W.is.hosts)
        d->bc.secret[0] = draw() | 1;
    d->bc.shards = d->shards_count;
    brain_make(d);
    d->timer_ns = TIME_NEVER;
    if (!d->out.actions) {
        d->out.actions = must_alloc(ACTIONS_CAP, sizeof(struct action));
        d->out.bytes = writer_of(must_alloc(1, BYTES_CAP), BYTES_CAP);
        d->out.cap = ACTIONS_CAP;
    }
    for (uint32_t i = 0; i < d->conf->pools_count; i++) {
        const struct conf_pool *c = &d->conf->pools[i];

        d->lpools[i] = lpool_of(d, i);
        d->tags[i] = must_alloc(c->blocks * c->block_rows, sizeof(uint64_t));
        d->reads[i] = must_alloc(c->blocks, sizeof(uint16_t));
    }
    for (uint32_t k = 0; k < d->shards_count; k++)
        shard_make(d, k);
    for (uint32_t i = 0; i < d->conf->pools_count; i++)
        if (layout_of(d, i)->count)
            pool_fix(d, i, true);
    addresses_make(d);
    d->fixing = 0;
    for (uint32_t k = 0; k < d->shards_count; k++)
        d->backlog[k].at = d->backlog[k].len = 0;
    memset(d->conns, 0, sizeof(d->conns));
    memset(d->mappers, 0, sizeof(d->mappers));
    memset(d->maps, 0, sizeof(d->maps));
    memset(d->links, 0, sizeof(d->links));
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        d->wants[i] = NONE;
    trace("%s starts, life %u", d->conf->name, d->life);
}

void daemon_crash(struct daemon *d)
{
    trace("%s crashes", d->conf->name);
    d->alive = false;
    net_daemon_gone(d);
    data_daemon_gone(d);
    map_daemon_gone(d);
    econn_daemon_gone(d);
    prods_daemon_gone(d);
    cons_daemon_gone(d);
    if (d->role == ROLE_ENCODED)
        encoded_unwatch(d);
    else
        langd_unwatch(d);
}

/* shards */

struct note {
    struct daemon *d;
    struct data_note note;
};

static void note_comes(void *p, uint64_t life, uint64_t k)
{
    struct note *n = p;
    struct event ev = {.type = EV_NOTE, .note = n->note};

    if (stands_still(n->d, LOOP, note_comes, p, life, k))
        return;
    trace("%s shard %u: note %u slot %u g%llx a%u: rows %u+%u",
        n->d->conf->name, (uint32_t)k, n->note.type, n->note.slot,
        (unsigned long long)n->note.generation & 0xffffff, n->note.attempt,
        n->note.first, n->note.rows);
    if (n->d->alive && n->d->life == life) {
        daemon_touches(n->d, n->note.slot);
        daemon_step(n->d, &ev);
    }
    free(n);
}

void shard_note(struct shard *s, const struct data_note *note)
{
    struct note *n = must_alloc(1, sizeof(*n));
    static bool again;
    uint64_t when = W.now_ns + delay_us(W.is.shard_us);

    n->d = s->d;
    n->note = *note;
    s->note_ns = when > s->note_ns ? when : s->note_ns + 1;
    at(s->note_ns, note_comes, n, s->d->life, s->k);
    if (canary("landed-twice") && note->type == NOTE_LANDED && !again) {
        again = true;
        shard_note(s, note);
        again = false;
    }
}

static void shard_address(struct shard *s, const struct order *o)
{
    struct address *a = &s->peers[o->cmd.peer];

    if (a->count == o->count && a->to == o->to && a->life == o->to_life &&
        a->segment_max == o->segment_max && a->carrier == o->carrier)
        return;
    if (a->count > 0)
        data_break(s, o->cmd.peer);
    *a = (struct address){
        o->to, o->to_life, o->count, o->segment_max, o->carrier};
}

static void shard_cmd(struct shard *s, const struct order *o)
{
    const struct data_cmd *c = &o->cmd;
    struct address *a = &s->peers[c->peer % LINKS_MAX];
    bool quiet = false;

    trace("%s shard %u: command %u slot %u g%llx a%u: %u %u", s->d->conf->name,
        s->k, c->type, c->slot, (unsigned long long)c->generation & 0xffffff,
        c->attempt, c->a, c->b);
    if (o->source) {
        s->foreign[c->peer][o->pool] = o->foreign;
        return;
    }
    if (s->landing && c->type <= LAND_CLOSE) {
        (void)landing_cmd(s->landing, c, &quiet);
        if (!quiet && (c->type == LAND_TRIM || c->reply))
            data_purge(s);
    } else if (s->sending && o->address) {
        shard_address(s, o);
    } else if (s->sending && c->type == PEER_OPEN) {
        if (a->count > 0)
            sending_peer(s->sending, c->peer, a->count, a->segment_max);
    } else if (s->sending && c->type == PEER_TRY) {
        data_try(s, c);
    } else if (s->sending) {
        sending_cmd(s->sending, c, &quiet);
    }
    if (canary("landing-fence") && c->type == LAND_CLOSE && c->reply)
        quiet = true;
    if (canary("send-fence") && c->type == SEND_CLOSE)
        quiet = true;
    if (quiet) {
        struct data_note n = {
            .type = s->landing ? NOTE_LAND_QUIET : NOTE_SEND_QUIET,
            .slot = c->slot,
            .attempt = c->attempt,
            .generation = c->generation};

        shard_note(s, &n);
    }
}

void shard_drain(struct shard *s)
{
    while (s->len > 0) {
        struct order o = s->orders[s->head];

        s->head = (s->head + 1) % s->cap;
        s->len--;
        shard_cmd(s, &o);
    }
    if (s->sending)
        data_pump(s);
}

static void shard_wakes(void *p, uint64_t life, uint64_t k)
{
    struct daemon *d = p;

    if (stands_still(d, SHARD((uint32_t)k), shard_wakes, p, life, k))
        return;
    if (d->alive && d->life == life)
        shard_drain(&d->shards[k]);
}

static void shard_give(struct shard *s, const struct order *o)
{
    if (s->len == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 256;
        struct order *more = must_alloc(cap, sizeof(*more));

        for (uint32_t i = 0; i < s->len; i++)
            more[i] = s->orders[(s->head + i) % s->cap];
        free(s->orders);
        s->orders = more;
        s->head = 0;
        s->cap = cap;
    }
    s->orders[(s->head + s->len++) % s->cap] = *o;
    if (s->len == 1)
        at(W.now_ns + delay_us(W.is.shard_us), shard_wakes, s->d, s->d->life,
            s->k);
}

/* Commands that find a shard's ring full wait with the loop, in order; no
 * message to a peer overtakes them. */
static void backlog_moves(void *p, uint64_t life, uint64_t k)
{
    struct daemon *d = p;
    struct backlog *b = &d->backlog[k];

    if (stands_still(d, LOOP, backlog_moves, p, life, k))
        return;
    if (!d->alive || d->life != life)
        return;
    while (b->at < b->len && d->shards[k].len < W.is.ring)
        shard_give(&d->shards[k], &b->orders[b->at++]);
    if (b->at < b->len) {
        at(W.now_ns + delay_us(BACKLOG_US), backlog_moves, d, life, k);
        return;
    }
    b->at = b->len = 0;
    for (uint32_t i = 0; i < d->shards_count; i++)
        if (d->backlog[i].len > 0)
            return;
    net_flush(d);
}

static void give_later(struct daemon *d, uint32_t k, const struct order *o)
{
    struct backlog *b = &d->backlog[k];

    if (b->len == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 64;
        b->orders = realloc(b->orders, b->cap * sizeof(*b->orders));
        CHECK(b->orders, "no memory for %u orders", b->cap);
    }
    b->orders[b->len++] = *o;
    if (b->len == 1)
        at(W.now_ns + delay_us(BACKLOG_US), backlog_moves, d, d->life, k);
}

bool daemon_lags(const struct daemon *d)
{
    for (uint32_t k = 0; k < d->shards_count; k++)
        if (d->backlog[k].len > 0)
            return !canary("early-message");
    return false;
}

static void give_all(struct daemon *d, const struct order *o)
{
    for (uint32_t k = 0; k < d->shards_count; k++)
        if (W.is.ring && (d->backlog[k].len || d->shards[k].len >= W.is.ring))
            give_later(d, k, o);
        else
            shard_give(&d->shards[k], o);
}

static void give_address(struct daemon *d, const struct action *a)
{
    struct reader r = reader_of(d->out.bytes.p + a->at, a->len);
    struct order o = {.address = true,
        .segment_max = (uint32_t)a->word,
        .carrier = (uint8_t)(a->word >> 32)};

    o.cmd.peer = a->index;
    while (r.at < r.len) {
        CHECK(get_u16(&r) == 9, "an address that is not ours");
        o.to = get_u32(&r);
        o.to_life = get_u32(&r);
        HOLDS(get_u8(&r) >> 4 == o.carrier, "addresses are of their carrier",
            "%s: not of %u", d->conf->name, o.carrier);
        o.count++;
    }
    CHECK(!r.failed && o.count > 0, "addresses that cannot be read");
    give_all(d, &o);
}

void shards_source(
    struct daemon *d, uint32_t peer, uint32_t pool, struct foreign *f)
{
    struct order o = {.source = true, .pool = pool, .foreign = f};

    o.cmd.peer = peer;
    give_all(d, &o);
}

/* carrying out */

static void conn_closed(void *p, uint64_t life, uint64_t conn)
{
    struct daemon *d = p;

    if (d->alive && d->life == life && d->conns[conn])
        econn_close(d->conns[conn]);
}

static void act(struct daemon *d, const struct action *a)
{
    struct span bytes = span_of(d->out.bytes.p + a->at, a->len);
    struct econn *c = a->conn < CONNS_MAX ? d->conns[a->conn] : NULL;
    struct mapping *m = a->conn < CONNS_MAX ? d->mappers[a->conn] : NULL;

    switch ((enum action_type)a->type) {
    case ACT_LOCAL:
        if (c)
            econn_deliver(c, bytes);
        else if (m)
            map_deliver(m, bytes);
        return;
    case ACT_NOTIFY:
        if (c)
            econn_pull(c);
        return;
    case ACT_CELL:
        if (c)
            econn_cell(c, a->index, a->word);
        return;
    case ACT_CONN_KNOWN:
        return;
    case ACT_CONN_CLOSE:
        if (m) {
            map_close(m);
            return;
        }
        at(W.now_ns + delay_us(W.is.local_us), conn_closed, d, d->life,
            a->conn);
        return;
    case ACT_PEER:
        net_send(d, a->link, bytes);
        return;
    case ACT_CONNECT:
        net_connect(d, a->link, bytes);
        return;
    case ACT_DISCONNECT:
        net_disconnect(d, a->link);
        return;
    case ACT_PEER_DATA:
        give_address(d, a);
        return;
    case ACT_PEER_KEY: /* connections have no keys here */
        return;
    case ACT_DATA:
        daemon_touches(d, a->cmd.slot);
        if (d->role == ROLE_LANGD)
            langd_watch_cmd(d, &a->cmd);
        give_all(d, &(struct order){.cmd = a->cmd});
        return;
    case ACT_POOL_FIX:
        d->fixing |= UINT32_C(1) << a->index;
        return;
    case ACT_MAP:
        map_start(d, a->index, bytes, a->word);
        return;
    case ACT_UNMAP:
        map_stop(d, a->index);
        return;
    case ACT_ENDED:
    case ACT_WARN:
        return;
    }
    CHECK(false, "action %u", a->type);
}

/* Takes a step for an event that the body itself makes, whatever the list of
 * actions holds. */
static void quiet_step(struct daemon *d, struct event *ev)
{
    struct out *o = &d->out;

    ev->now_ns = d->now_ns = clock_of(d, W.now_ns);
    o->count = 0;
    o->bytes.len = 0;
    o->cap = OUT_ACTIONS;
    o->bytes.cap = OUT_BYTES;
    brain_step(d->brain, ev, o);
    for (uint32_t i = 0; i < o->count; i++)
        act(d, &o->actions[i]);
}

static void one_step(struct daemon *d, struct event *ev)
{
    struct out *o = &d->out;
    bool tight = chance(W.is.tight_out);

    ev->now_ns = d->now_ns = clock_of(d, W.now_ns);
    o->count = 0;
    o->bytes.len = 0;
    o->bytes.failed = false;
    o->cap = tight ? 2300 + (uint32_t)between(0, 30) : OUT_ACTIONS;
    o->bytes.cap = tight ? (160u << 10) + between(0, 400) : OUT_BYTES;
    cost_begin();
    brain_step(d->brain, ev, o);
    cost_end(d, ev);
    W.steps++;
    if (ev->type != EV_MORE) {
        d->last = (uint8_t)ev->type;
        d->asked_of = ev->type == EV_PEER && ev->peer->type == PEER_WANT
                          ? ev->peer->generation
                          : 0;
        d->landed_of = ev->type == EV_NOTE && ev->note.type == NOTE_LANDED
                           ? ev->note.generation
                           : 0;
        d->full = !out_has_room(o);
    }
    CHECK(!o->bytes.failed, "the list of actions did not fit: %u", o->count);
    for (uint32_t i = 0; i < o->count; i++)
        act(d, &o->actions[i]);
}

void daemon_touches(struct daemon *d, uint32_t slot)
{
    if (d->touched_count < TOUCHED_MAX)
        d->touched[d->touched_count++] = slot;
}

/* Checks the whole brain, or the rooms that the step touched. */
static void watch(struct daemon *d)
{
    bool all = !W.sparse || d->steps++ % W.sparse == 0;

    if (d->role == ROLE_ENCODED)
        (all ? encoded_watch : encoded_watch_step)(d);
    else
        (all ? langd_watch : langd_watch_step)(d);
    if (all)
        reloads_watch(d);
    d->touched_count = 0;
}

static void arm(struct daemon *d);

static void time_comes(void *p, uint64_t life, uint64_t no)
{
    struct daemon *d = p;
    struct event ev = {.type = EV_TIME};

    if (stands_still(d, LOOP, time_comes, p, life, no))
        return;
    if (!d->alive || d->life != life || d->timer_no != no)
        return;
    if (clock_of(d, W.now_ns) < d->timer_ns) { /* the clock stands still */
        at_leisure(clock_shows(d, d->timer_ns), time_comes, d, life, no);
        return;
    }
    d->timer_ns = TIME_NEVER;
    if (W.sparse && brain_deadline(d->brain) > clock_of(d, W.now_ns))
        arm(d); /* the deadline has moved */
    else
        daemon_step(d, &ev);
}

static void arm(struct daemon *d)
{
    uint64_t due = brain_deadline(d->brain);

    if (due == d->timer_ns || (W.sparse && due > d->timer_ns))
        return;
    d->timer_ns = due;
    d->timer_no++;
    if (due != TIME_NEVER)
        at_leisure(clock_shows(d, due), time_comes, d, d->life, d->timer_no);
}

void daemon_clocked(struct daemon *d)
{
    d->timer_ns = TIME_NEVER;
    arm(d);
}

void daemon_step(struct daemon *d, struct event *ev)
{
    uint64_t *from = W.from;

    W.from = &W.moves;
    one_step(d, ev);
    for (uint32_t i = 0; brain_pending(d->brain); i++) {
        struct event more = {.type = EV_MORE};

        HOLDS(i < MORE_MAX, "no busy loop", "%s is pending for ever",
            d->conf->name);
        one_step(d, &more);
    }
    for (uint32_t i = 0; d->fixing; i++)
        if (d->fixing >> i & 1) {
            d->fixing &= ~(UINT32_C(1) << i);
            pool_fix(d, i, false);
        }
    arm(d);
    watch(d);
    W.from = from;
}

/* what it says of itself */

struct seek {
    struct rows_out s;
    const char *name;
    uint64_t found;
    bool here;
};

static void seek_row(struct rows_out *s) {}

/* Counters are rows of a name and a value. */
static void seek_text(struct rows_out *s, const char *name, const char *value)
{
    struct seek *k = CONTAINER_OF(s, struct seek, s);

    if (strcmp(name, "name") == 0)
        k->here = strcmp(value, k->name) == 0;
}

static void seek_number(struct rows_out *s, const char *name, uint64_t value)
{
    struct seek *k = CONTAINER_OF(s, struct seek, s);

    if (strcmp(name, k->name) == 0 || (k->here && strcmp(name, "value") == 0))
        k->found = value;
}

static void print_row(struct rows_out *s)
{
    fputs("\n   ", stderr);
}

static void print_text(struct rows_out *s, const char *name, const char *value)
{
    fprintf(stderr, " %s=%s", name, value);
}

static void print_number(struct rows_out *s, const char *name, uint64_t value)
{
    fprintf(stderr, " %s=%llu", name, (unsigned long long)value);
}

void daemons_print(void)
{
    struct rows_out s = {print_row, print_text, print_number, NONE};

    for (uint32_t i = 0; i < W.daemons_count; i++) {
        struct daemon *d = W.daemons[i];

        fprintf(stderr, "  %s%s:", d->conf->name, d->alive ? "" : " (dead)");
        if (d->alive && d->brain) {
            (void)brain_show(d->brain, "status", W.now_ns, SHOW_ALL, &s);
            (void)brain_show(d->brain, "pools", W.now_ns, SHOW_ALL, &s);
            (void)brain_show(d->brain, "rooms", W.now_ns, SHOW_ALL, &s);
        }
        fputc('\n', stderr);
    }
}

uint64_t daemon_number(struct daemon *d, const char *what, const char *name)
{
    struct seek k = {
        {seek_row, seek_text, seek_number, NONE}, name, UINT64_MAX, false};
    bool known = brain_show(d->brain, what, W.now_ns, SHOW_ALL, &k.s);

    CHECK(known, "%s shows no %s", d->conf->name, what);
    return k.found;
}
