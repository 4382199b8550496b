/* local.c - messages of engines, as far as both roles handle them alike: each
 * message gets exactly one answer. engines_ops and brain_ops have the
 * differences. Owned by the loop's thread. */
#include "core/head.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

void head_refuse(struct brain *b, struct out *out, uint32_t conn,
    const struct local_msg *m, const struct refusal *r)
{
    CHECK(r->err != OK, "%s is refused without a reason", local_name(m->type));
    b->stats[STAT_refused]++;
    out_answer(out, conn, m->seq, r->err, r->a, r->b, "%s: %s",
        local_name(m->type), r->text);
}

static void accept(struct out *out, uint32_t conn, const struct local_msg *m)
{
    out_done(out, conn, m->seq, 0, 0);
}

static void on_hello(
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
    w.welcome.epoch = epoch_shown(self->c->epoch);
    w.welcome.cells = b->engines.conns[conn].cells;
    w.welcome.rooms_max = (uint32_t)conf->limit_rooms;
    w.welcome.aux_max = AUX_MAX;
    w.welcome.name = span_str(conf->name);
    w.welcome.advertise = span_str(conf->control_advertise);
    _Static_assert(sizeof(MMX_VERSION) <= 32, "it fits WELCOME and HELLO");
    w.welcome.software = span_str(MMX_VERSION);
    w.welcome.uid = b->engines.conns[conn].uid;
    w.welcome.gid = b->engines.conns[conn].gid;
    CHECK(w.welcome.cells > 0, "connection %u has no cells", conn);
    out_local(out, conn, &w, FD_CELLS, w.welcome.cells)->word = m->seq;
    engine_known(&b->engines, out, conn);
    if (b->engines.conns[conn].lends) /* its role may have more to say */
        engine_notify(&b->engines, out, conn);
}

static void on_bye(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    b->engines.conns[conn].bye = true;
    accept(out, conn, m);
    out_action(out, ACT_CONN_CLOSE)->conn = conn;
    engine_end(&b->engines, conn);
}

/* attachments */

static enum err check_attach(struct brain *b, struct out *out, uint32_t conn,
    const struct local_attach *n, struct attach_to *to, const char **text)
{
    const struct engines_ops *ops = b->engines.ops;
    enum err e;

    *text = ops->rights_text;
    if (n->rights & ~ops->rights)
        return ERR_MALFORMED;
    e = ops->find(b, out, conn, n, to, text);
    if (e != OK)
        return e;
    *text = "the room belongs to another engine";
    if (to->room && to->room->session != b->engines.conns[conn].serial)
        return ERR_NOT_OWNER;
    *text = "the room is in the maximum number of cells";
    if (to->room && room_crowded(to->room))
        return ERR_QUOTA;
    return OK;
}

static void on_attach(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    const struct local_attach *n = &m->attach;
    struct attach_to to = {.scope = 0};
    struct refusal r = {.text = ""};
    struct attachment *att = NULL;

    r.err = check_attach(b, out, conn, n, &to, &r.text);
    if (r.err == OK)
        r.err = attachment_add(
            &b->engines, conn, n->cell, n->tag, n->rights, &att, &r.text);
    if (r.err != OK) {
        head_refuse(b, out, conn, m, &r);
        return;
    }
    CHECK(!to.room || !to.ended, "room ..%08x is there and has ended",
        (uint32_t)n->room);
    accept(out, conn, m);
    att->scope = to.scope;
    att->name = to.name;
    att->room_id = n->room;
    if (to.room)
        attachment_join(&b->engines, att, to.room);
    else if (to.ended && to.ended->owner == b->engines.conns[conn].serial)
        attachment_over(&b->engines, out, att, to.ended->state,
            (enum err)to.ended->end_reason);
    else
        attachment_wait(&b->engines, att,
            b->now_ns +
                conf_wait_ns(n->deadline_ms, b->c.conf->timeout_bootstrap));
}

/* Returns the attachment under cell and tag; NULL: the message was refused. */
static struct attachment *attachment_of(struct brain *b, struct out *out,
    uint32_t conn, const struct local_msg *m, uint32_t cell, uint32_t tag)
{
    struct attachment *att = attachment_get(&b->engines, conn, cell, tag);
    char text[64];

    if (att)
        return att;
    snprintf(text, sizeof(text), "no room has cell %u and tag %u", cell, tag);
    head_refuse(
        b, out, conn, m, &(struct refusal){ERR_UNKNOWN_ROOM, 0, 0, text});
    return NULL;
}

static enum err check_release(const struct brain *b,
    const struct attachment *att, const struct local_release *n,
    struct refusal *r, char text[128])
{
    const struct room *room = att->room;
    bool no_readers = n->flags & FLAG_NO_READERS;

    r->text = "rooms of this daemon have no readers";
    if (no_readers && !b->engines.ops->no_readers)
        return ERR_MALFORMED;
    r->text = "only the connection that requested the room ends the wait";
    if (no_readers && (!room || !att->owner))
        return ERR_NOT_OWNER;
    if (n->rows == ROWS_UNKNOWN)
        return OK;
    r->text = "an attachment that does not read releases all rows at once";
    if (!(att->rights & RIGHT_READ))
        return ERR_MALFORMED;
    r->a = n->rows;
    r->b = room ? room->rows_shown : 0;
    if (room && room->state != ROOM_FAILED && n->rows <= r->b &&
        n->rows >= att->released)
        return OK;
    snprintf(text, 128, "rows up to %u: %u are shown, %u were released",
        n->rows, r->b, att->released);
    r->text = text;
    return ERR_MALFORMED;
}

static void on_release(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    const struct local_release *n = &m->release;
    const struct engines_ops *ops = b->engines.ops;
    struct attachment *att = attachment_of(b, out, conn, m, n->cell, n->tag);
    struct room *room = att ? att->room : NULL;
    struct refusal r = {.text = ""};
    char text[128];

    if (!att)
        return;
    r.err = check_release(b, att, n, &r, text);
    if (r.err != OK) {
        head_refuse(b, out, conn, m, &r);
        return;
    }
    if (n->rows != ROWS_UNKNOWN) {
        att->released = n->rows;
    } else {
        if (room && att->owner)
            ops->withdraw(b, room);
        attachment_release(&b->engines, out, att);
    }
    if (n->flags & FLAG_NO_READERS)
        ops->no_readers(b, room);
    if (room && ops->released)
        ops->released(b, out, room);
    out_ok(out, conn, m->seq);
}

static void on_abort(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    const struct local_abort *n = &m->abort;
    struct attachment *att = attachment_of(b, out, conn, m, n->cell, n->tag);
    bool known = n->reason && n->reason < ERR_COUNT;
    char text[128];

    if (!att)
        return;
    text_copy(n->text, text, sizeof(text));
    if (att->room)
        b->engines.ops->fail(
            b, att->room, known ? (enum err)n->reason : ERR_ABORTED, text);
    else
        attachment_over(&b->engines, out, att, ROOM_FAILED, ERR_ABORTED);
    accept(out, conn, m);
}

/* all messages */

void head_local(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m)
{
    uint8_t state;

    CHECK(conn < b->engines.conns_max, "a message of connection %u", conn);
    state = b->engines.conns[conn].state;
    CHECK(state != CONN_FREE, "a message of free connection %u", conn);
    if (m->type == LOCAL_HELLO) {
        on_hello(b, out, conn, m);
        return;
    }
    if (state == CONN_OPEN && m->type == LOCAL_MAP && b->ops->map) {
        b->ops->map(b, out, conn, m);
        return;
    }
    if (state == CONN_DAEMON && m->type == LOCAL_BYE) {
        on_bye(b, out, conn, m);
        return;
    }
    if (state != CONN_READY) {
        head_refuse(b, out, conn, m,
            &(struct refusal){ERR_NOT_READY, 0, 0, "HELLO must come first"});
        return;
    }
    switch (m->type) {
    case LOCAL_POOL:
        pools_call(b, out, conn, m);
        break;
    case LOCAL_ATTACH:
        on_attach(b, out, conn, m);
        break;
    case LOCAL_RELEASE:
        on_release(b, out, conn, m);
        break;
    case LOCAL_ABORT:
        on_abort(b, out, conn, m);
        break;
    case LOCAL_BYE:
        on_bye(b, out, conn, m);
        break;
    default:
        if (b->ops->local(b, out, conn, m))
            return;
        b->stats[STAT_malformed_local]++;
        head_refuse(b, out, conn, m,
            &(struct refusal){ERR_MALFORMED, 0, 0,
                "not a message for a daemon of this role"});
    }
}

void head_local_bad(struct brain *b, struct out *out, const struct event *ev)
{
    const struct wire_fault *f = &ev->fault;
    bool unknown = ev->err == ERR_BUSY;
    char text[WIRE_FAULT_TEXT];

    CHECK(ev->err != OK && ev->conn < b->engines.conns_max,
        "a bad frame of connection %u without a reason", ev->conn);
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
