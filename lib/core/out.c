/* out.c - see out.h. Owned by the caller of step(). */
#include "core/out.h"

#include "base/check.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

struct action *out_action(struct out *o, enum action_type type)
{
    struct action *a;

    CHECK(o->count < o->cap, "%u actions and no room for type %d", o->count,
        (int)type);
    a = &o->actions[o->count++];
    memset(a, 0, offsetof(struct action, cmd));
    a->type = (uint8_t)type;
    return a;
}

void out_data(struct out *o, const struct data_cmd *cmd)
{
    out_action(o, ACT_DATA)->cmd = *cmd;
}

void out_peer(struct out *o, uint32_t link, const struct peer_msg *m)
{
    size_t at = o->bytes.len;
    bool ok = peer_put(&o->bytes, m);
    struct action *a;

    CHECK(ok, "%s does not fit behind %zu bytes", peer_name(m->type), at);
    a = out_action(o, ACT_PEER);
    a->link = link;
    a->at = (uint32_t)at;
    a->len = (uint32_t)(o->bytes.len - at);
}

struct action *out_local(struct out *o, uint32_t conn,
    const struct local_msg *m, int fd, uint32_t index)
{
    size_t at = o->bytes.len;
    bool ok = local_put(&o->bytes, m);
    struct action *a;

    CHECK(ok, "%s does not fit behind %zu bytes", local_name(m->type), at);
    a = out_action(o, ACT_LOCAL);
    a->conn = conn;
    a->fd = (uint8_t)fd;
    a->index = index;
    a->at = (uint32_t)at;
    a->len = (uint32_t)(o->bytes.len - at);
    return a;
}

void out_answer(struct out *o, uint32_t conn, uint32_t seq, enum err err,
    uint32_t a, uint32_t b, const char *fmt, ...)
{
    char text[512];
    struct local_msg m = {.type = LOCAL_ANSWER, .seq = seq};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    text_clean(text, strlen(text)); /* it may quote a name */
    m.answer.err = (uint8_t)err;
    m.answer.a = a;
    m.answer.b = b;
    m.answer.text = span_str(text);
    out_local(o, conn, &m, FD_NONE, 0);
}

void out_warn(struct out *o, const char *fmt, ...)
{
    char text[512];
    size_t at = o->bytes.len;
    struct action *a;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    put_bytes(&o->bytes, text, strlen(text));
    a = out_action(o, ACT_WARN);
    a->at = (uint32_t)at;
    a->len = (uint32_t)(o->bytes.len - at);
}

void out_done(
    struct out *o, uint32_t conn, uint32_t seq, uint32_t a, uint32_t b)
{
    struct local_msg m;

    m.type = LOCAL_ANSWER;
    m.seq = seq;
    m.answer = (struct local_answer){.err = OK, .a = a, .b = b};
    out_local(o, conn, &m, FD_NONE, 0);
}

void out_ok(struct out *o, uint32_t conn, uint32_t seq)
{
    out_done(o, conn, seq, 0, 0);
    out_coalesce(o);
}

void out_coalesce(struct out *o)
{
    o->actions[o->count - 1].coalesce = true;
}
