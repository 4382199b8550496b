/* calls.c - see calls.h. Owned by the loop's thread. */
#include "core/calls.h"

#include "base/check.h"

void call_hello(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    const struct self *self = &b->peers.self;
    const struct conf *conf = self->c->conf;
    struct local_msg w = {.type = LOCAL_WELCOME, .seq = m->seq};
    const char *text;
    enum err e = engine_hello(&b->engines, conn, &m->hello, self->role, &text);

    if (e != OK) {
        out_answer(out, conn, m->seq, e, 0, 0, "hello: %s", text);
        out_action(out, ACT_CONN_CLOSE)->conn = conn;
        return;
    }
    w.welcome.version = WIRE_VERSION;
    w.welcome.role = self->role;
    w.welcome.epoch = self->c->epoch;
    w.welcome.cells = b->engines.conns[conn].cells;
    w.welcome.rooms_max = (uint32_t)conf->limit_rooms;
    w.welcome.aux_max = AUX_MAX;
    w.welcome.name = span_str(conf->name);
    w.welcome.advertise = span_str(conf->control_advertise);
    w.welcome.software = span_str(MMX_VERSION);
    w.welcome.uid = b->engines.conns[conn].uid;
    w.welcome.gid = b->engines.conns[conn].gid;
    w.welcome.abilities = local_abilities();
    out_local(out, conn, &w, FD_CELLS, w.welcome.cells)->word = m->seq;
    engine_known(&b->engines, out, conn);
}

/* pools */

void call_say_pool(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i)
{
    const struct pool_meta *p = &b->metas[i];
    uint8_t fields[LAYOUT_FIELDS_MAX * 12];
    struct writer w = writer_of(fields, sizeof(fields));
    struct local_msg m = {.type = LOCAL_POOL_INFO, .seq = seq};

    if (!p->ready) {
        out_answer(out, conn, seq, ERR_INTERNAL, 0, 0,
            "pool %s: %s; the daemon's log says more", p->conf->name,
            p->lost ? "out of service, its GPU is lost"
                    : "its memory could not be allocated");
        return;
    }
    for (uint32_t f = 0; f < p->layout.count; f++) {
        put_u64(&w, p->offsets[f]);
        put_u32(&w, p->layout.fields[f].row_bytes);
    }
    m.pool_info.pool = (uint16_t)i;
    /* A langd that maps it only reads. */
    m.pool_info.access = (b->ops->engines_write || p->conf->engine_access) &&
                         b->engines.conns[conn].state == CONN_READY;
    m.pool_info.block_rows = (uint32_t)p->conf->block_rows;
    m.pool_info.blocks = (uint32_t)p->conf->blocks;
    m.pool_info.bytes = p->bytes;
    m.pool_info.name = span_str(p->conf->name);
    m.pool_info.memory = span_str(p->conf->memory);
    m.pool_info.layout = span_str(p->layout.text);
    m.pool_info.fields = span_of(fields, w.len);
    m.pool_info.share = span_str(p->share[0] ? p->share : "memfd");
    m.pool_info.handle = span_of(p->handle, p->handle_len);
    out_local(out, conn, &m, FD_POOL, i)->word = m.pool_info.access;
}

enum err call_pool_check(
    const struct brain *b, uint32_t conn, uint32_t i, const char **text)
{
    const struct pool_meta *p;

    *text = "no pool of that number";
    if (i >= b->pools_count)
        return ERR_MALFORMED;
    p = &b->metas[i];
    *text = "this user may not use the pool";
    if (!engine_may(&b->engines, conn, &p->conf->uids, &p->conf->gids))
        return ERR_NOT_OWNER;
    *text = "the pool is out of service, its GPU is lost";
    if (p->lost)
        return ERR_INTERNAL;
    *text = "the pool has no layout or memory yet";
    if (!p->ready)
        return ERR_NOT_READY;
    *text = "";
    return OK;
}

static uint32_t pool_named(const struct brain *b, struct span name)
{
    for (uint32_t i = 0; i < b->pools_count; i++)
        if (name.len == 0 || span_eq(span_str(b->metas[i].conf->name), name))
            return i;
    return NONE;
}

/* The answer comes when the pool's memory stands; one such call of a
 * connection can wait. */
static void wait_for_pool(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i)
{
    struct conn *k = &b->engines.conns[conn];

    if (k->pool != 0) {
        out_answer(out, conn, seq, ERR_NOT_READY, 0, 0,
            "pool %s: its memory is being made, and another call waits for "
            "that of a pool",
            b->metas[i].conf->name);
        return;
    }
    k->pool = i + 1;
    k->pool_seq = seq;
}

void call_pool(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    uint32_t i = pool_named(b, m->pool.name), at = 0;
    struct pool_meta *p = i == NONE ? NULL : &b->metas[i];
    struct layout want;
    const char *text;

    if (!p) {
        out_answer(out, conn, m->seq, ERR_MALFORMED, 0, 0,
            "no pool `%.*s` here", (int)m->pool.name.len,
            (const char *)m->pool.name.p);
        return;
    }
    if (call_pool_check(b, conn, i, &text) == ERR_NOT_OWNER) {
        out_answer(out, conn, m->seq, ERR_NOT_OWNER, 0, 0, "pool %s: %s",
            p->conf->name, text);
        return;
    }
    if (m->pool.layout.len && layout_parse(m->pool.layout, &want, &at) != OK) {
        out_answer(out, conn, m->seq, ERR_MALFORMED, at, 0,
            "layout cannot be parsed from byte %u on", at);
        return;
    }
    if (p->layout.count == 0 && m->pool.layout.len && !p->news) {
        p->layout = want;
        p->fixing = true;
        out_action(out, ACT_POOL_FIX)->index = i;
        wait_for_pool(b, out, conn, m->seq, i);
    } else if (p->layout.count == 0) {
        out_answer(out, conn, m->seq, ERR_NOT_READY, 0, 0,
            "pool %s: no engine has declared its layout yet", p->conf->name);
    } else if (m->pool.layout.len && want.hash != p->layout.hash) {
        out_answer(out, conn, m->seq, ERR_INCOMPATIBLE_LAYOUT, 0, 0,
            "pool %s has %.200s, the engine has %.200s", p->conf->name,
            p->layout.text, want.text);
    } else if (p->fixing) {
        wait_for_pool(b, out, conn, m->seq, i);
    } else {
        call_say_pool(b, out, conn, m->seq, i);
    }
}

bool calls_pools_waiting(const struct brain *b)
{
    for (uint32_t i = 0; i < b->pools_count; i++)
        if (b->metas[i].news)
            return true;
    return false;
}

/* Answers who waits for pool i. false: there is no room for all of it. */
static bool answer_waiting(struct brain *b, struct out *out, uint32_t i)
{
    for (uint32_t k = 0; k < b->engines.conns_max; k++) {
        struct conn *conn = &b->engines.conns[k];

        if (conn->state != CONN_READY || conn->pool != i + 1)
            continue;
        if (!out_has_room(out))
            return false;
        conn->pool = 0;
        call_say_pool(b, out, k, conn->pool_seq, i);
    }
    return true;
}

void calls_pools_ready(struct brain *b, struct out *out)
{
    if (!calls_pools_waiting(b))
        return;
    for (uint32_t i = 0; i < b->pools_count; i++) {
        struct pool_meta *p = &b->metas[i];

        if (!p->news)
            continue;
        if (!answer_waiting(b, out, i))
            return; /* it goes on with the next step */
        p->news = false;
    }
    for (uint32_t i = 0; i < b->peers.max; i++) {
        struct peer *peer = &b->peers.peers[i];

        if (!peer->used || !peer->up)
            continue;
        peer->hello_ns = 0; /* at once, as many at a time as there is room */
        peer_arm(&b->peers, peer);
    }
}

void call_bad(struct brain *b, struct out *out, const struct event *ev)
{
    const struct wire_fault *f = &ev->fault;
    bool unknown = ev->err == ERR_BUSY;
    char text[WIRE_FAULT_TEXT];

    b->engines.stats[STAT_malformed_local]++;
    if (f->field && !unknown) {
        b->engines.stats[STAT_unknown_bits] += !f->length;
        out_answer(out, ev->conn, ev->seq, ERR_MALFORMED, 0, 0, "%s",
            wire_fault_text(f, text));
        return;
    }
    out_answer(out, ev->conn, ev->seq, ERR_MALFORMED, 0, 0, "%s",
        unknown ? "no message of that type" : "the frame breaks its table");
}
