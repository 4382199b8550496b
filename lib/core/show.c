/* show.c - see show.h: the reports of a brain, the same for both roles but for
 * the role's own columns. Owned by the loop's thread; changes nothing. */
#include "core/show.h"

#include "base/check.h"
#include "core/trace/trace.h"

#include <stdarg.h>
#include <stdio.h>

_Static_assert(SHOW_POOLS_MAX >= CONF_POOLS_MAX, "a report of all pools");

static const char *state_name(unsigned state)
{
    switch (state) {
#define STATE(NAME, number, name, doc)                                         \
    case number:                                                               \
        return name;
#include "wire/room.def"
    }
    return "unknown";
}

void show_rows(struct rows_out *s, const char *name, uint32_t rows)
{
    if (rows != ROWS_UNKNOWN)
        s->number(s, name, rows);
}

/* Appends the microseconds from the opening to another moment; nothing if that
 * never came. */
static void show_since(struct rows_out *s, const char *name,
    const struct history *h, uint64_t at_ns)
{
    if (at_ns)
        s->number(s, name, (at_ns - h->opened_ns) / 1000);
}

void show_room_id(
    struct rows_out *s, const struct show_at *at, uint64_t id, uint64_t who)
{
    if (shown_to(at, who))
        s->number(s, "room", id);
    else
        s->text(s, "room", OTHERS);
}

/* Appends the trace context, if there is one, for those that know the id. */
static void show_context(
    struct rows_out *s, const struct show_at *at, const struct history *h)
{
    if (h->traceparent[0] && shown_to(at, h->who))
        s->text(s, "traceparent", h->traceparent);
}

void show_room(struct rows_out *s, const struct show_at *at, uint64_t now_ns,
    const struct room *r, const struct history *h, const char *peer,
    const char *state)
{
    CHECK(r->used && h->opened_ns <= now_ns, "room ..%08x is opened later",
        (uint32_t)r->id);
    s->row(s);
    show_room_id(s, at, r->id, h->who);
    if (peer)
        s->text(s, "peer", peer);
    s->text(s, "state", state ? state : state_name(r->state));
    s->text(s, "reason", err_name((enum err)r->reason));
    s->number(s, "age_ms", (now_ns - h->opened_ns) / NS_PER_MS);
    show_context(s, at, h);
}

/* Returns the places of the role's table of rooms. */
static uint32_t rooms_max(const struct brain *b)
{
    return share_total(b->c.conf->limit_rooms);
}

static void show_status(const struct brain *b, struct rows_out *s)
{
    uint32_t up = 0;

    PEERS_FOREACH (p, &b->peers)
        up += peer_up(p);
    s->row(s);
    b->ops->show->status(b, s);
    s->number(s, "rooms_ended", b->ended_count);
    s->number(s, "peers_up", up);
    s->number(s, "attachments", b->engines.attachments_used);
    s->number(s, "aux_free_bytes", (uint64_t)b->aux.free * AUX_CHUNK);
    s->number(s, "draining", b->draining);
}

static void show_ended(
    struct rows_out *s, const struct show_at *at, const struct ended *e)
{
    const struct history *h = &e->of;

    CHECK(h->done_ns >= h->opened_ns, "room ..%08x ended before it was opened",
        (uint32_t)e->room);
    s->row(s);
    show_room_id(s, at, e->room, h->who);
    s->text(s, "peer", e->peer);
    s->text(s, "state", state_name(e->state));
    s->text(s, "reason", err_name((enum err)e->reason));
    s->number(s, "ended", 1);
    s->number(s, "opened_ns", h->opened_ns);
    show_rows(s, "total", h->total);
    s->number(s, "bytes", h->bytes);
    s->number(s, "blocks", h->blocks);
    s->number(s, "attempts", h->attempts);
    s->number(s, "resumes", h->resumes);
    s->number(s, "served", h->served);
    s->number(s, "failed", h->failed);
    show_since(s, "init_us", h, h->init_ns);
    show_since(s, "length_us", h, h->length_ns);
    show_since(s, "granted_us", h, h->granted_ns);
    show_since(s, "first_us", h, h->first_ns);
    show_since(s, "resumed_us", h, h->resumed_ns);
    show_since(s, "committed_us", h, h->committed_ns);
    show_since(s, "done_us", h, h->done_ns);
    if (e->text[0])
        s->text(s, "text", e->text);
    show_context(s, at, h);
}

/* Shows the slowest rooms, then the last that failed, and for each what took
 * most of its time. */
static void show_slow(
    const struct brain *b, struct show_at *at, struct rows_out *s)
{
    const struct ended *e;

    while ((e = slow_row(&b->slow, (uint32_t)at->at)) && show_place(at)) {
        uint64_t us;
        const char *longest = slow_longest(b->c.conf->role, e, &us);

        show_ended(s, at, e);
        s->text(s, "longest", longest);
        s->number(s, "longest_us", us);
        at->at++;
    }
    at->over = !e;
}

/* Shows the open rooms, then the ended ones that are remembered, oldest first.
 */
static void show_rooms(const struct brain *b, uint64_t now_ns,
    struct show_at *at, struct rows_out *s)
{
    uint64_t places = rooms_max(b), end = places + b->ended_count;

    for (; at->at < places && show_place(at); at->at++)
        b->ops->show->room(b, (uint32_t)at->at, now_ns, at, s);
    /* Rows that were overwritten since the last call are gone. */
    if (at->at >= places && b->ended_count > HISTORY_ROOMS)
        at->at = max_u64(at->at, end - HISTORY_ROOMS);
    for (; at->at >= places && at->at < end && show_place(at); at->at++)
        show_ended(s, at, &b->history[(at->at - places) % HISTORY_ROOMS]);
    at->over = at->at >= end;
}

static void show_pool(const struct brain *b, uint32_t i, struct rows_out *s)
{
    const struct histogram *sizes = &b->histograms[i].of[HISTOGRAM_room_size];
    const struct pool_meta *m = &b->metas[i];

    s->row(s);
    s->of = i;
    s->number(s, "number", i);
    s->text(s, "pool", m->conf->name);
    s->text(s, "memory", m->conf->memory);
    s->text(s, "state",
        m->ready    ? "ready"
        : m->lost   ? "lost"
        : m->fixing ? "populating"
        : m->broken ? "broken"
                    : "no-layout");
    s->text(s, "layout", m->layout.text);
    s->number(s, "block_rows", m->conf->block_rows);
    s->number(s, "row_bytes", m->layout.row_bytes);
    s->number(s, "bytes", m->bytes);
    s->number(s, "blocks", m->conf->blocks);
    s->number(s, "free", b->ops->blocks_free(b, i));
    s->number(s, "rooms_moved", histogram_count(sizes));
    s->number(s, "bytes_moved", sizes->sum);
}

/* Returns for how long rooms have waited for blocks of pool i and none has got
 * any; 0: none waits. */
static uint64_t stands_ns(const struct brain *b, uint32_t i)
{
    uint64_t since = b->ops->show->stands_ns(b, i);

    CHECK(since == TIME_NEVER || since <= b->now_ns,
        "pool %u stands since %llu, it is %llu", i, (unsigned long long)since,
        (unsigned long long)b->now_ns);
    return since == TIME_NEVER ? 0 : b->now_ns - since;
}

/* Counts the places of the rooms, then shows the pools' rows. */
static void show_pools(
    const struct brain *b, struct show_at *at, struct rows_out *s)
{
    uint64_t places = rooms_max(b), end = places + b->pools_count;

    for (; at->at < places && show_place(at); at->at++)
        b->ops->show->count(b, (uint32_t)at->at, at->sums);
    for (; at->at >= places && at->at < end && show_place(at); at->at++) {
        uint32_t i = (uint32_t)(at->at - places);

        show_pool(b, i, s);
        b->ops->show->pool(b, i, at->sums[i], s);
        s->number(s, "stands_ms", stands_ns(b, i) / NS_PER_MS);
    }
    at->over = at->at >= end;
}

/* Writes why rows do not go by a better way than the present one. */
static void why_not(
    const struct peers *all, const struct peer *p, char *out, size_t size)
{
    const struct brain_conf *c = all->self.c;
    size_t used = 0;

    out[0] = 0;
    if (!peer_up(p) || !p->pair.chosen)
        return;
    if (p->same_host && !p->mapped)
        used = (size_t)snprintf(out, size, "copy: %s",
            c->conf->transfer_same_host == SAME_HOST_OFF ? "off here"
            : all->ops->greets && !p->l.map_token        ? "off there"
            : p->l.map_why                               ? p->l.map_why
                                                         : "not mapped");
    CHECK(used + 2 < size, "%zu bytes for %zu", size, used);
    carriers_why(&p->pair, c->carriers, c->carriers_barred,
        out + used + (used ? 2 : 0), size - used - 2);
    if (used && out[used + 2])
        memcpy(out + used, ", ", 2);
}

static void show_peer(struct rows_out *s, uint32_t number, const struct peer *p,
    const struct peers *all, uint64_t now_ns)
{
    char epoch[32], why[128];
    enum trouble t = (enum trouble)p->trouble.kind;

    CHECK(t < TROUBLE_END, "peer %u has trouble %u", number, t);
    snprintf(epoch, sizeof(epoch), "%016llx",
        (unsigned long long)epoch_shown(p->epoch));
    s->row(s);
    s->of = number;
    s->number(s, "peer", number);
    s->text(s, "name", p->label[0] ? p->label : p->name);
    s->text(s, "says", p->name);
    s->text(s, "address", p->address[0] ? p->address : p->advertise);
    s->number(s, "configured", p->l.configured);
    s->text(s, "state", p->l.leaving ? "leaving" : peer_life_name(p));
    s->text(s, "trouble", trouble_words[t].name);
    if (t)
        s->number(s, "trouble_ms", (now_ns - p->trouble.since_ns) / NS_PER_MS);
    s->text(s, "what", t ? p->trouble.text : "");
    s->text(s, "key", trouble_words[t].key);
    s->text(s, "mend", trouble_words[t].mend);
    s->text(s, "epoch", epoch);
    s->text(s, "software", p->software);
    s->number(s, "same_host", p->same_host);
    s->text(s, "path", p->mapped ? "copy" : "sent");
    s->text(s, "carrier", carrier_name(p->carrier));
    s->text(s, "carriers", p->carriers);
    why_not(all, p, why, sizeof(why));
    s->text(s, "not_by", why);
    s->number(s, "data_addresses", p->addresses);
    s->number(s, "rooms_moved", p->rooms_moved);
    s->number(s, "bytes_moved", p->bytes_moved);
}

/* Shows the daemon that was refused last and is no peer, while it still tries
 * to connect. */
static void show_stranger(
    struct rows_out *s, const struct peers *all, uint64_t now_ns)
{
    if (!all->strangers.text[0] ||
        now_ns >= all->strangers.from_ns + SAID_EVERY_NS)
        return;
    s->row(s);
    s->text(s, "name", "-");
    s->text(s, "says", all->stranger);
    s->text(s, "address", "-");
    s->text(s, "state", "refused");
    s->text(s, "trouble", trouble_words[TROUBLE_HELLO].name);
    s->text(s, "what", all->strangers.text);
    s->text(s, "mend", trouble_words[TROUBLE_HELLO].mend);
}

static void show_engine(
    struct rows_out *s, const struct conn *c, uint64_t now_ns)
{
    CHECK(c->opened_ns <= now_ns, "the connection of %d is opened later",
        (int)c->pid);
    s->row(s);
    s->text(s, "name", c->name);
    s->number(s, "pid", c->pid > 0 ? (uint64_t)c->pid : 0);
    s->number(s, "uid", c->uid);
    s->text(s, "state",
        c->state == CONN_ENDED    ? "gone"
        : c->state == CONN_OPEN   ? "silent"
        : c->state == CONN_DAEMON ? "maps"
                                  : "connected");
    s->number(s, "age_ms", (now_ns - c->opened_ns) / NS_PER_MS);
    s->number(s, "rooms", c->rooms);
    s->number(s, "rooms_total", c->rooms_total);
    s->number(s, "bytes", c->bytes);
}

/* Shows the connections of engines, also those whose process still holds rooms
 * after its end, and at encoded those that map its pools: of a langd and of its
 * engines. */
static void show_engines(struct rows_out *s, struct show_at *at,
    const struct engines *g, uint64_t now_ns)
{
    for (; at->at < g->conns_max && show_place(at); at->at++) {
        if (g->conns[at->at].state != CONN_FREE)
            show_engine(s, &g->conns[at->at], now_ns);
    }
    at->over = at->at >= g->conns_max;
}

static void show_peers(struct rows_out *s, struct show_at *at,
    const struct peers *peers, uint64_t now_ns)
{
    for (; at->at < peers->max && show_place(at); at->at++)
        if (peers->peers[at->at].life != PEER_FREE)
            show_peer(
                s, (uint32_t)at->at, &peers->peers[at->at], peers, now_ns);
    at->over = at->at >= peers->max;
    if (at->over)
        show_stranger(s, peers, now_ns);
}

static void show_stats(struct rows_out *s, const uint64_t *stats)
{
    for (unsigned i = 0; i < STAT_COUNT; i++) {
        s->row(s);
        s->text(s, "name", counter_words[i].name);
        s->number(s, "value", stats[i]);
        s->text(s, "meaning", counter_words[i].text);
    }
}

/* Shows the reasons that have occurred, and that of success. */
static void show_ends(struct rows_out *s, const uint64_t *ends)
{
    for (unsigned i = 0; i < ERR_COUNT; i++) {
        if (i != OK && !ends[i])
            continue;
        s->row(s);
        s->text(s, "reason", err_name((enum err)i));
        s->number(s, "rooms", ends[i]);
        s->text(s, "meaning", err_text((enum err)i));
    }
}

bool brain_show(struct brain *b, const char *what, uint64_t now_ns,
    struct show_at *at, struct rows_out *s)
{
    at->over = true;
    if (!strcmp(what, "status"))
        show_status(b, s);
    else if (!strcmp(what, "rooms"))
        show_rooms(b, now_ns, at, s);
    else if (!strcmp(what, "slow"))
        show_slow(b, at, s);
    else if (!strcmp(what, "pools"))
        show_pools(b, at, s);
    else if (!strcmp(what, "peers"))
        show_peers(s, at, &b->peers, now_ns);
    else if (!strcmp(what, "engines"))
        show_engines(s, at, &b->engines, now_ns);
    else if (!strcmp(what, "stats"))
        show_stats(s, b->stats);
    else if (!strcmp(what, "ends"))
        show_ends(s, b->ends);
    else if (!strcmp(what, "histograms"))
        histograms_show(b, at, s);
    else if (!strcmp(what, "buckets"))
        histograms_show_buckets(b, at, s);
    else if (!strcmp(what, "trace"))
        show_trace(b, at, s);
    else
        return b->ops->show->more && b->ops->show->more(b, what, at, s);
    return true;
}

/* health (RULES 9.6)
 *
 * A pool whose layout an engine has to bring is no fault, nor is an encoded
 * without a langd: layout and langd come by themselves when they are needed,
 * and an engine that waits for a ready daemon would wait for ever. A pool that
 * gives no blocks is named, but is no fault either: it may be in use, and if a
 * daemon were taken out of service because of its load, the next one would get
 * that load. */

/* Busy pools give blocks more often than this. */
#define STANDS_NS (3 * NS_PER_S)

_Static_assert(CONF_POOLS_MAX <= 32, "a bit for each pool");

void health_say(struct health *h, bool ready, const char *format, ...)
{
    char text[256];
    va_list args;

    CHECK(h->state && h->text[0], "the health of %s has no text",
        h->state ? h->state : "nothing");
    if (!h->ready || (ready && strcmp(h->text, h->state) != 0))
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    h->ready = ready;
    h->state = ready ? "ready" : "not-ready";
    snprintf(h->text, sizeof(h->text), "%s%s",
        ready ? "ready, but " : "not ready: ", text);
}

/* Returns what is wrong with a pool; NULL: nothing. */
static const char *fault(const struct pool_meta *m)
{
    if (m->lost)
        return "its memory is lost";
    if (m->broken)
        return "its memory could not be had";
    if (!m->ready && (m->fixing || m->layout.count > 0))
        return "its memory is being prepared";
    return NULL;
}

/* Returns the pools that are usable, as bits. */
static uint32_t look_at_pools(const struct brain *b, struct health *h)
{
    const struct pool_meta *bad = NULL;
    uint32_t usable = 0;

    for (uint32_t i = 0; i < b->pools_count; i++) {
        const struct pool_meta *m = &b->metas[i];

        if (!fault(m))
            usable |= UINT32_C(1) << i;
        else if (!bad)
            bad = m;
    }
    if (bad && !usable)
        health_say(h, false, "pool %s: %s", bad->conf->name, fault(bad));
    else if (bad)
        health_say(h, true, "not for pool %s: %s", bad->conf->name, fault(bad));
    for (uint32_t i = 0; i < b->pools_count; i++)
        if (stands_ns(b, i) >= STANDS_NS)
            health_say(h, true,
                "rooms wait for blocks of pool %s and none got any for %llu s",
                b->metas[i].conf->name,
                (unsigned long long)(stands_ns(b, i) / NS_PER_S));
    return usable;
}

void brain_health(const struct brain *b, struct health *h)
{
    uint32_t usable, open = b->draining ? brain_open_rooms(b) : 0;

    *h = (struct health){true, true, "ready", "ready"};
    if (b->draining) {
        *h = (struct health){true, false, "draining", "draining"};
        if (open)
            snprintf(h->text, sizeof(h->text), "draining: %u room%s open", open,
                open == 1 ? " is" : "s are");
        return;
    }
    usable = look_at_pools(b, h);
    if (h->ready)
        b->ops->show->health(b, usable, h);
}
