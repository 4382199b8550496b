/* shard_send.c - rows that are sent: messages of sending.c, through a peer's
 * carrier, to its data addresses.
 *
 * Invariants: every message that sending_next gave goes back by sending_done
 * exactly once: when the carrier has completed it, or at once if the carrier
 * refused it; a lost endpoint is reported once and closed, so that the next
 * post connects again. The shard's thread.
 *
 * Endpoint numbers are peer x ENDPOINTS(shards) + address / shards: this shard
 * serves the addresses a with a mod shards == its index. A connection is made
 * by its first post. The exception is one per peer, which PEER_TRY makes, at
 * first to address 0: it shows whether rows can be sent at all. Rejected: to
 * make all connections at once. Most peers of a fleet never exchange a row. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

static struct log_rate refusals =
    LOG_RATE("peers that took no message", LOG_WARN, 5);

/* A rendezvous costs a round trip; below this, a copy costs less. A guess,
 * until it is measured on RDMA. */
#define ALONE_BYTES (32u << 10)

_Static_assert(SEND_IOV_MAX <= DATA_IOV_MAX, "a batch fits into one message");
_Static_assert(SEND_SMALL_BYTES <= DATA_SMALL, "small ones go as small ones");

static struct sending_pool pool_of(const struct shard_pool *p)
{
    struct sending_pool out = {
        .blocks = p->blocks, .block_rows = p->block_rows};

    if (p->layout.count > 0 && p->mem) {
        out.row_bytes = p->layout.row_bytes;
        out.fields = p->layout.count;
        if (p->mem->gpu) /* a unit must fit into a slot */
            out.unit_most = layout_unit_most(&p->layout);
    }
    return out;
}

/* Returns the number of endpoints that the shard may have. */
static uint32_t eps_max(const struct shard_conf *c)
{
    return c->peers * ENDPOINTS(c->count);
}

static void carve(struct shard *s, struct slab *slab)
{
    const struct shard_conf *c = &s->conf;
    size_t eps = eps_max(c);
    struct sending_pool pools[SHARD_POOLS_MAX];

    for (uint32_t i = 0; i < c->pools_count; i++)
        pools[i] = pool_of(&c->pools[i]);
    s->send.sending = sending_init(slab, c->slots, c->peers, c->index, c->count,
        c->window_bytes, c->data.segment_bytes, pools, c->pools_count);
    s->spare = slab_take(slab, 1, SPARE_BYTES);
    s->send.routes = slab_take(slab, c->peers, sizeof(*s->send.routes));
    s->send.eps = slab_take(slab, eps, sizeof(*s->send.eps));
    s->send.straight = slab_take(slab, eps, sizeof(*s->send.straight));
    s->send.lost = slab_take(slab, eps, sizeof(*s->send.lost));
    s->send.sources = slab_take(slab, SEND_MESSAGES_MAX, SOURCES_BYTES_MAX);
    s->send.staged =
        slab_take(slab, SEND_MESSAGES_MAX, sizeof(*s->send.staged));
    gpu_carve(s, slab, SEND_MESSAGES_MAX);
}

static void set_pool(struct shard *s, uint32_t i)
{
    struct sending_pool p = pool_of(&s->conf.pools[i]);

    if (s->pools_alone >> i & 1)
        p.alone = ALONE_BYTES;
    sending_pool_set(s->send.sending, i, &p);
}

static void fini(struct shard *s)
{
    for (uint32_t i = 0; s->send.routes && i < s->conf.peers; i++)
        orders_blob_free(s, s->send.routes[i].blob);
}

/* peers */

/* Sets an endpoint's state. Counts those that wait for their transport, because
 * the carrier needs its ticks then. */
static void ep_becomes(struct shard *s, uint32_t ep, enum ep_state state)
{
    CHECK(ep < eps_max(&s->conf), "endpoint %u", ep);
    s->send.opening -= s->send.eps[ep] == EP_OPEN;
    s->send.opening += state == EP_OPEN;
    s->send.eps[ep] = (uint8_t)state;
}

/* Returns the carrier of the peer's endpoints. */
static const struct carry *carrier_of(const struct shard *s, uint32_t peer)
{
    CHECK(s->send.routes[peer].by, "peer %u has no carrier yet", peer);
    return s->send.routes[peer].by;
}

static void ep_close(struct shard *s, uint32_t ep)
{
    const struct carry *to;

    if (s->send.eps[ep] == EP_NONE)
        return;
    ep_becomes(s, ep, EP_NONE);
    to = carrier_of(s, ep / ENDPOINTS(s->conf.count));
    to->ops->disconnect(to->d, ep);
}

static void peer_close(struct shard *s, uint32_t peer)
{
    uint32_t per = ENDPOINTS(s->conf.count);

    for (uint32_t i = 0; i < per; i++)
        ep_close(s, peer * per + i);
}

/* Reads a HELLO's blob: per address a u16 length, then its bytes. Returns the
 * number of addresses; 0: malformed. */
static uint32_t addresses_of(struct route *to)
{
    struct reader r = reader_of(to->blob, to->len);
    uint32_t n = 0;

    while (r.at < r.len && n < SEND_ADDRESSES_MAX) {
        struct span a = get_span(&r, 2, UINT16_MAX);

        if (r.failed || a.len == 0)
            return 0;
        to->addresses[n++] = a;
    }
    return r.at == r.len ? n : 0;
}

static void peer_open(struct shard *s, uint32_t peer)
{
    const struct route *to = &s->send.routes[peer];

    if (to->count == 0)
        return;
    sending_peer(s->send.sending, peer, to->count, to->segment_max);
    if (s->carries_count > 1)
        sending_reads(s->send.sending, peer,
            to->by && to->by->ops->gpu ? SEND_READS : SEND_READS_NOT);
}

/* Stores text that the loop's thread reads. */
static void put_words(_Atomic uint64_t *to, uint32_t n, const char *text)
{
    char bytes[WHY_WORDS * sizeof(uint64_t)] = {0};
    uint64_t word;

    CHECK(n <= WHY_WORDS, "%u words", n);
    snprintf(bytes, n * sizeof(word), "%s", text);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));
        atomic_store_explicit(&to[i], word, memory_order_relaxed);
    }
}

static void get_words(
    const _Atomic uint64_t *from, uint32_t n, char *out, size_t size)
{
    uint64_t words[WHY_WORDS + 1] = {0};

    CHECK(n <= WHY_WORDS, "%u words", n);
    for (uint32_t i = 0; i < n; i++)
        words[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
    span_copy_str(span_str((const char *)words), out, size);
}

/* Returns the number of the endpoint's address at its peer. */
static uint32_t address_at(const struct shard *s, uint32_t ep)
{
    return ep % ENDPOINTS(s->conf.count) * s->conf.count + s->conf.index;
}

/* Reports the result of a try, the end of the connection that it made, or that
 * another connection could not be made. */
static void say_tried(struct shard *s, uint32_t ep, bool ok)
{
    uint32_t peer = ep / ENDPOINTS(s->conf.count);
    struct route *to = &s->send.routes[peer];
    uint32_t at = address_at(s, ep), state = s->send.eps[ep];
    bool unmade = !ok && state != EP_NAMED && state != EP_LOST;
    enum trouble t = TROUBLE_NONE;
    const char *text = "";

    if (to->tried == 0 || at >= to->count || (at != to->tried_at && !unmade))
        return;
    if (!ok && to->by)
        t = to->by->ops->state(to->by->d, ep, &text);
    if (!ok && t == TROUBLE_NONE)
        t = TROUBLE_DATA_LOST;
    put_words(to->why, WHY_WORDS, text);
    shard_notify(s, &(struct data_note){.type = NOTE_PEER_TRIED,
                        .peer = peer,
                        .attempt = to->tried,
                        .slot = at,
                        .rows = t});
}

static enum err connected(
    struct shard *s, uint32_t ep, uint32_t peer, uint32_t address);

/* Makes the first connection to the peer. */
static void peer_try(struct shard *s, const struct data_cmd *cmd)
{
    uint32_t ep = cmd->peer * ENDPOINTS(s->conf.count) + cmd->a / s->conf.count;
    struct route *to = &s->send.routes[cmd->peer];
    const char *text = "";
    enum err e;

    to->tried = cmd->attempt;
    to->tried_at = cmd->a;
    if (cmd->a % s->conf.count != s->conf.index || cmd->a >= to->count ||
        s->send.eps[ep] >= EP_LOST) /* report_lost() answers */
        return;
    e = connected(s, ep, cmd->peer, cmd->a);
    if (e != OK || (to->by->ops->state(to->by->d, ep, &text) == TROUBLE_NONE &&
                       text[0])) /* otherwise the carrier tells */
        say_tried(s, ep, e == OK);
}

static void command(struct shard *s, const struct data_cmd *cmd)
{
    bool quiet;

    CHECK(cmd->peer < s->conf.peers, "command %u for peer %u of %u", cmd->type,
        cmd->peer, s->conf.peers);
    if (cmd->type == PEER_OPEN) {
        peer_open(s, cmd->peer);
        return;
    }
    if (cmd->type == PEER_TRY) {
        peer_try(s, cmd);
        return;
    }
    if (cmd->type == PEER_CLOSE) {
        s->send.routes[cmd->peer].serial++;
        s->send.routes[cmd->peer].tried = 0;
        put_words(s->send.routes[cmd->peer].transport, TRANSPORT_WORDS, "");
        peer_close(s, cmd->peer);
    }
    sending_cmd(s->send.sending, cmd, &quiet);
    if (quiet)
        shard_notify(s, &(struct data_note){.type = NOTE_SEND_QUIET,
                            .slot = cmd->slot,
                            .attempt = cmd->attempt,
                            .generation = cmd->generation});
}

static void add_lost(struct shard *s, uint32_t ep)
{
    CHECK(s->send.lost_count < eps_max(&s->conf), "endpoint %u is lost twice",
        ep);
    s->send.lost[s->send.lost_count++] = ep;
}

static void broken(void *ud, uint32_t ep)
{
    struct shard *s = ud;

    CHECK(ep < eps_max(&s->conf), "endpoint %u", ep);
    if (s->send.eps[ep] != EP_OPEN && s->send.eps[ep] != EP_NAMED)
        return;
    ep_becomes(s, ep, s->send.eps[ep] == EP_OPEN ? EP_UNMADE : EP_LOST);
    add_lost(s, ep);
}

static void report_lost(struct shard *s)
{
    for (uint32_t i = 0; i < s->send.lost_count; i++) {
        uint32_t ep = s->send.lost[i], peer = ep / ENDPOINTS(s->conf.count);

        say_tried(s, ep, false);
        ep_close(s, ep);
        stat_add(&s->stats.endpoints_lost, 1);
        if (s->send.routes[peer].reported == s->turn)
            continue;
        s->send.routes[peer].reported = s->turn;
        sending_broken(s->send.sending, peer);
        shard_notify(s, &(struct data_note){.type = NOTE_PEER_BROKEN,
                            .peer = peer,
                            .slot = address_at(s, ep),
                            .first = s->conf.index});
    }
    s->send.lost_count = 0;
}

/* Replaces the addresses of a peer and takes over the blob. The same addresses
 * again (another HELLO of its epoch) change nothing; with others, endpoints
 * that are connected are lost and reported. */
static void set_peer(struct shard *s, const struct order_peer *o)
{
    struct route *to = &s->send.routes[o->peer];
    uint32_t per = ENDPOINTS(s->conf.count), peer = o->peer;

    CHECK(peer < s->conf.peers && o->blob && o->key_len <= o->len,
        "addresses of peer %u of %u", peer, s->conf.peers);
    if (to->blob && to->segment_max == o->segment_max &&
        to->carrier == o->carrier && to->key_len == o->key_len &&
        span_eq(span_of(to->blob, to->len + to->key_len),
            span_of(o->blob, o->len))) {
        orders_blob_free(s, o->blob);
        return;
    }
    to->tried = 0; /* the next PEER_TRY is for the new addresses */
    for (uint32_t i = 0; i < per; i++)
        broken(s, peer * per + i);
    report_lost(s);
    to->serial++;
    orders_blob_free(s, to->blob);
    to->blob = o->blob;
    to->len = o->len - o->key_len;
    to->key_len = o->key_len;
    to->segment_max = o->segment_max;
    to->carrier = o->carrier;
    to->by = carry_by(s, o->carrier);
    to->count = addresses_of(to);
    if (to->count == 0)
        log_warn("peer %u has data addresses that cannot be read", peer);
}

/* messages */

static uint32_t batch_iov(struct shard *s)
{
    const struct send_batch *b = &s->send.batch;
    const struct piece *at = b->pieces;
    uint32_t used = 0;

    for (uint32_t i = 0; i < b->count; i++) {
        bool fits = rows_iov(&s->conf.pools[b->from[i].pool], at,
            b->from[i].pieces, s->iov, &used, DATA_IOV_MAX);

        CHECK(fits, "message of %u segments in %u places", b->count, used);
        at += b->from[i].pieces;
    }
    return used;
}

/* Writes where the batch's rows are, for a peer that copies them itself. */
static uint32_t sources_iov(struct shard *s, uint32_t token)
{
    const struct send_batch *b = &s->send.batch;
    const struct piece *at = b->pieces;
    struct writer w = writer_of(
        s->send.sources + token * SOURCES_BYTES_MAX, SOURCES_BYTES_MAX);

    CHECK(token < SEND_MESSAGES_MAX && b->copy, "message %u", token);
    for (uint32_t i = 0; i < b->count; i++) {
        source_put(&w, b->from[i].pool, at, b->from[i].pieces);
        at += b->from[i].pieces;
    }
    CHECK(!w.failed && w.len == b->bytes, "%u segments in %zu bytes", b->count,
        w.len);
    s->iov[0] = (struct iovec){w.p, w.len};
    return 1;
}

static struct span key_of(const struct route *to)
{
    return span_of(to->blob + to->len, to->key_len);
}

static enum err connected(
    struct shard *s, uint32_t ep, uint32_t peer, uint32_t address)
{
    const struct route *to = &s->send.routes[peer];
    const struct carry *c;
    enum err e;

    /* The peer may have fewer addresses since the message was made. */
    if (s->send.eps[ep] >= EP_LOST || address >= to->count || !to->by)
        return ERR_PEER_LOST;
    if (s->send.eps[ep] != EP_NONE)
        return OK;
    c = carrier_of(s, peer);
    e = c->ops->connect(c->d, ep, to->addresses[address], key_of(to));
    if (e == OK)
        ep_becomes(s, ep, EP_OPEN);
    return e;
}

static enum err post(struct shard *s, uint32_t ep, uint32_t token)
{
    uint8_t header[DATA_HEADER_MAX];
    enum err e = connected(s, ep, s->send.batch.peer, s->send.batch.address);
    const struct carry *c;
    uint32_t len, iovs;

    if (e != OK)
        return e;
    c = carrier_of(s, s->send.batch.peer);
    len = segments_put(header, s->send.batch.segments, s->send.batch.count,
        s->send.batch.copy ? SEGMENTS_SOURCES : SEGMENTS_BYTES);
    iovs = s->send.batch.copy ? sources_iov(s, token) : batch_iov(s);
    return c->ops->post(
        c->d, ep, span_of(header, len), s->iov, iovs, &s->send.posted[token]);
}

static void notify_quiet(void *ud, const struct data_note *n)
{
    shard_notify(ud, n);
}

static void not_posted(
    struct shard *s, uint32_t peer, uint32_t ep, uint32_t token, enum err e)
{
    log_rated(&refusals, "peer %u took no message: %s", peer, err_text(e));
    sending_done(s->send.sending, token, notify_quiet, s);
    if (s->send.eps[ep] < EP_LOST)
        add_lost(s, ep);
    report_lost(s);
}

/* Posts a message whose rows have arrived in pinned memory; !ok: ends the
 * message. */
static void staged(struct shard *s, uint64_t cookie, bool ok)
{
    uint32_t token = (uint32_t)cookie;
    const struct staged *t = &s->send.staged[token];
    const struct carry *c;
    struct iovec iov;
    enum err e;

    CHECK(token < SEND_MESSAGES_MAX && !s->send.posted[token].busy,
        "message %u was staged", token);
    if (!ok || t->serial != s->send.routes[t->peer].serial) {
        gpu_done(s, token);
        sending_done(s->send.sending, token, notify_quiet, s);
        return;
    }
    gpu_handed(s, token);
    iov = (struct iovec){t->bytes, t->len};
    e = connected(s, t->ep, t->peer, t->address);
    if (e == OK) {
        c = carrier_of(s, t->peer);
        e = c->ops->post(c->d, t->ep, span_of(t->header, t->header_len), &iov,
            1, &s->send.posted[token]);
    }
    if (e != OK) {
        gpu_done(s, token);
        not_posted(s, t->peer, t->ep, token, e);
        return;
    }
    s->send.posted[token] = (struct posted){t->ep, true, false};
}

/* Posts all messages that may go; returns their number. */
static unsigned post_all(struct shard *s)
{
    uint32_t token;
    unsigned n = 0;

    while (gpu_send_room(s) &&
           sending_next(s->send.sending, &s->send.batch, &token)) {
        uint32_t ep = s->send.batch.peer * ENDPOINTS(s->conf.count) +
                      s->send.batch.address / s->conf.count;
        enum send_way way = gpu_way(s, ep);
        bool straight = way == SEND_STRAIGHT;
        enum err e = OK;

        CHECK(s->send.batch.peer < s->conf.peers && !s->send.posted[token].busy,
            "message %u for peer %u", token, s->send.batch.peer);
        n++;
        if (way == SEND_STAGED)
            gpu_send(s, ep, token);
        else
            e = post(s, ep, token);
        if (e != OK) {
            not_posted(s, s->send.batch.peer, ep, token, e);
            continue;
        }
        if (way != SEND_STAGED)
            s->send.posted[token] = (struct posted){ep, true, straight};
        s->send.straight[ep] += straight;
        stat_add(&s->stats.messages_sent, 1);
        stat_add(&s->stats.segments_sent, s->send.batch.count);
        if (s->send.batch.copy)
            stat_add(&s->stats.segments_copied, s->send.batch.count);
        stat_add(&s->stats.bytes_sent, s->send.batch.bytes);
        s->moved += s->send.batch.bytes;
    }
    return n;
}

/* Logs and stores the transport once it is known. */
static void ep_name(struct shard *s, uint32_t ep)
{
    uint32_t peer = ep / ENDPOINTS(s->conf.count);
    const struct carry *c = carrier_of(s, peer);
    const char *text;

    if (c->ops->state(c->d, ep, &text) != TROUBLE_NONE || !text[0])
        return;
    ep_becomes(s, ep, EP_NAMED);
    put_words(s->send.routes[peer].transport, TRANSPORT_WORDS, text);
    log_info("peer %u data goes by %s", peer, text);
}

static void done(void *ud, void *cookie)
{
    struct shard *s = ud;
    struct posted *p = cookie;

    CHECK(p->busy, "message %td was not out", p - s->send.posted);
    p->busy = false;
    CHECK(s->send.straight[p->ep] >= p->straight, "endpoint %u has %u straight",
        p->ep, s->send.straight[p->ep]);
    s->send.straight[p->ep] -= p->straight;
    gpu_done(s, (uint32_t)(p - s->send.posted));
    sending_done(
        s->send.sending, (uint32_t)(p - s->send.posted), notify_quiet, s);
    if (s->send.eps[p->ep] == EP_OPEN)
        ep_name(s, p->ep);
}

static void made(void *ud, uint32_t ep)
{
    struct shard *s = ud;

    CHECK(ep < eps_max(&s->conf), "endpoint %u", ep);
    if (s->send.eps[ep] == EP_OPEN)
        ep_name(s, ep);
    say_tried(s, ep, true);
}

/* the role */

static void limits(struct shard_conf *c)
{
    c->data.endpoints_max = eps_max(c);
}

static void order(struct shard *s, const struct order *o)
{
    switch ((enum order_type)o->type) {
    case ORDER_CMD: /* goes to command() */
        break;
    case ORDER_PEER:
        set_peer(s, &o->peer);
        return;
    case ORDER_KEY: /* langd only */
        return;
    case ORDER_POOL:
        orders_pool(s, o->pool);
        set_pool(s, o->pool);
        return;
    case ORDER_SOURCE: /* langd only */
        source_drop(o->source.source);
        return;
    }
    CHECK(false, "order %u", o->type);
}

static unsigned after(struct shard *s, bool in_loop)
{
    unsigned n = s->send.lost_count;

    (void)in_loop;
    report_lost(s);
    return n;
}

static bool due(struct shard *s)
{
    return sending_ready(s->send.sending) && gpu_send_room(s);
}

static uint32_t active(const struct shard *s)
{
    return sending_active(s->send.sending) + s->send.opening;
}

/* Refuses a message: encoded receives none. */
static bool arrived(void *ud, struct data *d, const struct data_in *in)
{
    struct shard *s = ud;

    (void)d;
    (void)in;
    stat_add(&s->stats.segments_dropped, 1);
    return false;
}

/* Widens the windows: rows count as in flight while they are copied, so with a
 * smaller window copy and network would take turns. */
static void by_slots(struct shard *s)
{
    sending_widen(s->send.sending, STAGE_SLOTS * STAGE_SLOT_BYTES);
}

static void say(const struct shard *s, uint32_t peer, enum shard_words what,
    char *out, size_t size)
{
    const struct route *r = &s->send.routes[peer];
    bool transport = what == SHARD_TRANSPORT;

    get_words(transport ? r->transport : r->why,
        transport ? TRANSPORT_WORDS : WHY_WORDS, out, size);
}

const struct shard_role shard_sends = {.limits = limits,
    .carve = carve,
    .fini = fini,
    .command = command,
    .order = order,
    .orders_move_rows = true,
    .before = post_all,
    .after = after,
    .due = due,
    .active = active,
    .calls = {.arrived = arrived,
        .done = done,
        .broken = broken,
        .connected = made},
    .staged = staged,
    .slots_most = STAGE_SLOTS_MOST,
    .slot_entries = OUT_ENTRIES,
    .by_slots = by_slots,
    .alone = set_pool,
    .say = say};
