/* pools.c - see pools.h. Owned by the loop's thread. */
#include "core/head.h"

#include "base/check.h"

void pool_meta_init(struct pool_meta *m, const struct conf_pool *c)
{
    uint32_t at;

    m->conf = c;
    if (strcmp(c->layout, "engine") != 0) {
        enum err e = layout_parse(span_str(c->layout), &m->layout, &at);

        CHECK(e == OK, "layout of pool %s was not checked", c->name);
    }
}

void pools_take(struct brain *b, uint32_t i, const struct pool_memory *m)
{
    struct pool_meta *p = &b->metas[i];

    CHECK(i < b->pools_count && p->layout.count > 0 && !p->ready,
        "memory of pool %u, which has %u fields", i, p->layout.count);
    p->ready = m != NULL;
    p->broken = !m;
    p->news = p->fixing;
    p->fixing = false;
    if (!m) {
        p->layout.count = 0;
        return;
    }
    CHECK(
        m->handle.len <= POOL_HANDLE_MAX, "handle of %u bytes", m->handle.len);
    p->bytes = m->bytes;
    memcpy(p->offsets, m->offsets, sizeof(p->offsets));
    span_copy_str(span_str(m->share), p->share, sizeof(p->share));
    if (m->handle.len)
        memcpy(p->handle, m->handle.p, m->handle.len);
    p->handle_len = m->handle.len;
    if (b->ops->pool_ready)
        b->ops->pool_ready(b, i);
}

bool pool_meta_lost(struct pool_meta *m)
{
    bool news = !m->lost;

    m->lost = true;
    m->ready = false;
    return news;
}

/* to engines */

enum err pools_usable(
    const struct brain *b, uint32_t conn, uint32_t i, const char **text)
{
    const struct pool_meta *p;

    *text = "no pool of that number";
    if (i >= b->pools_count)
        return ERR_MALFORMED;
    p = &b->metas[i];
    *text = "this user may not use the pool";
    if (!engine_may(&b->engines, conn, p->conf))
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

void pools_say(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i)
{
    const struct pool_meta *p = &b->metas[i];
    uint8_t fields[LAYOUT_FIELDS_MAX * 12];
    struct writer w = writer_of(fields, sizeof(fields));
    struct local_msg m = {.type = LOCAL_POOL_INFO, .seq = seq};

    CHECK(i < b->pools_count, "pool %u of %u", i, b->pools_count);
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
    /* A langd that maps the pool only reads. */
    m.pool_info.access =
        brain_engines_write(b, i) && b->engines.conns[conn].state == CONN_READY;
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

static uint32_t pool_named(const struct brain *b, struct span name)
{
    for (uint32_t i = 0; i < b->pools_count; i++)
        if (name.len == 0 || span_eq(span_str(b->metas[i].conf->name), name))
            return i;
    return NONE;
}

/* Answers when the pool's memory is ready: one such call per connection. */
static void wait_for_pool(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i)
{
    struct conn *k = &b->engines.conns[conn];

    CHECK(b->metas[i].fixing, "pool %u is waited for, and not being made", i);
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

void pools_call(
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
    if (pools_usable(b, conn, i, &text) == ERR_NOT_OWNER) {
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
        pools_say(b, out, conn, m->seq, i);
    }
}

bool pools_pending(const struct brain *b)
{
    for (uint32_t i = 0; i < b->pools_count; i++)
        if (b->metas[i].news)
            return true;
    return false;
}

/* Answers the calls that wait for pool i. False: the list is full. */
static bool answer_waiting(struct brain *b, struct out *out, uint32_t i)
{
    for (uint32_t k = 0; k < b->engines.conns_max; k++) {
        struct conn *conn = &b->engines.conns[k];

        if (conn->state != CONN_READY || conn->pool != i + 1)
            continue;
        if (!out_has_room(out))
            return false;
        conn->pool = 0;
        pools_say(b, out, k, conn->pool_seq, i);
    }
    return true;
}

void pools_serve(struct brain *b, struct out *out)
{
    if (!pools_pending(b))
        return;
    for (uint32_t i = 0; i < b->pools_count; i++) {
        struct pool_meta *p = &b->metas[i];

        if (!p->news)
            continue;
        if (!answer_waiting(b, out, i))
            return; /* the next step continues */
        p->news = false;
    }
    peers_news(&b->peers, b->now_ns);
}
