/* local.c - what encode engines say, and what they hear. Owned by the
 * loop's thread. */
#include "core/encode/encode.h"

#include "base/text.h"

#include <stdio.h>

static void refuse(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *m, enum err err, uint32_t a, uint32_t b,
    const char *text)
{
    e->b.stats[STAT_refused]++;
    out_answer(
        out, conn, m->seq, err, a, b, "%s: %s", local_name(m->type), text);
}

/* announce */

static enum err check_announce(struct encoded *e, uint32_t conn,
    const struct local_announce *n, const char **text)
{
    const struct eroom *m = eroom_find(e, n->room);
    enum err err = call_pool_check(&e->b, conn, n->pool, text);

    if (err != OK)
        return err;
    *text = "the daemon is shutting down";
    if (e->b.draining)
        return ERR_DRAINING;
    *text = "storage is 1 to 3, total at most max_rows";
    if (n->storage == STORAGE_ANY || n->storage > STORAGE_PROMPT ||
        n->max_rows == ROWS_UNKNOWN ||
        (n->total != ROWS_UNKNOWN && n->total > n->max_rows))
        return ERR_MALFORMED;
    *text = "an open room has required_dst 0";
    if ((n->flags & FLAG_OPEN) && n->required_dst)
        return ERR_MALFORMED;
    *text = "more destinations than limits.rooms";
    if (n->required_dst > e->dst_share.limit)
        return ERR_QUOTA;
    *text = "more rows than the pool has";
    if (div_up(n->max_rows, e->pools[n->pool].block_rows) >
        e->pools[n->pool].p.blocks)
        return ERR_TOO_LARGE;
    *text = "the room is already announced";
    if (m && eroom_running(m))
        return ERR_DUPLICATE_ROOM;
    *text = "";
    return OK;
}

/* Does what is there under the key agree with what is announced? */
static bool same_item(const struct item *it, const struct local_announce *n)
{
    return it->storage == n->storage &&
           (n->total == ROWS_UNKNOWN || it->total == ROWS_UNKNOWN ||
               n->total == it->total);
}

/* The item of the announce: the one with its key, or a new one in the queue
 * for blocks. */
static enum err find_item(struct encoded *e, uint32_t conn,
    const struct local_announce *n, struct item **out, bool *have,
    const char **text)
{
    uint32_t uid = e->b.engines.conns[conn].uid;
    struct item *it = item_find(e, &n->key, n->pool, uid);
    enum err err;

    *text = "the key names an item with another length or storage";
    *have = it != NULL;
    *out = it;
    if (it)
        return same_item(it, n) ? OK : ERR_ITEM_MISMATCH;
    it = item_new(e, n, uid);
    *text = "limits.rooms is reached";
    if (!it)
        return ERR_BUSY;
    *text = e->b.aux.share.why;
    if (!aux_set(&e->b.aux, &it->aux, uid, n->aux)) {
        e->b.stats[STAT_aux_full]++;
        item_discard(e, it);
        return ERR_NO_BLOCKS;
    }
    err = item_queue(e, it, conn, n->batch > 0);
    *text = "a batch in several pools, or larger than its pool";
    if (err != OK) {
        item_discard(e, it);
        return err;
    }
    *out = it;
    return OK;
}

static void fill_announce(
    struct encoded *e, struct eroom *m, const struct local_announce *n)
{
    uint64_t wait = conf_wait_ns(
        e->b.c.conf, n->deadline_ms, e->b.c.conf->timeout_bootstrap);

    eroom_move(e, m, EROOM_LIVE);
    m->flags = n->flags & (FLAG_KEEP | FLAG_OPEN);
    m->bootstrap_ns = e->b.now_ns + wait;
    m->history.length_ns = e->b.now_ns;
    m->said_total = n->total;
    if (n->required_dst)
        m->required = n->required_dst;
    else if (m->flags & FLAG_OPEN)
        m->required = 0;
    e->b.stats[STAT_rooms_opened]++;
}

/* Destinations that came before the announce: do they fit it? Of those that
 * do, a room with one destination has the first, an open one all. */
static void check_waiting(struct encoded *e, struct eroom *m)
{
    char text[512];
    uint32_t places = m->required ? m->required : NONE;

    LIST_FOREACH (n, &m->dsts) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_room);
        enum err err = edst_check(e, m, d, text, sizeof(text));

        if (d->state == DST_ACTIVE && err == OK && places-- == 0) {
            err = ERR_DESTINATIONS_DISAGREE;
            snprintf(text, sizeof(text), "the room has all its destinations");
        }
        if (d->state == DST_ACTIVE && err != OK) {
            edst_refuse(d);
            edst_fail(e, d, err, text);
        }
        edst_touch(e, d);
    }
}

/* Binds the room under its id, its attachment and its item to each other. */
static enum err announce(struct encoded *e, uint32_t conn,
    const struct local_announce *n, const char **text)
{
    struct eroom *m = eroom_find(e, n->room);
    struct item *it = NULL;
    bool have = false;
    struct attachment *att;
    enum err err;

    *text = "the room was opened with another number of destinations";
    if (m && !eroom_announced(m) && n->required_dst && m->required &&
        n->required_dst != m->required)
        return ERR_DESTINATIONS_DISAGREE;
    err = attachment_add(&e->b.engines, conn, n->cell, n->tag,
        RIGHT_WRITE | RIGHT_WATCH, &att, text);
    if (err != OK)
        return err;
    err = find_item(e, conn, n, &it, &have, text);
    if (err == OK && m && eroom_announced(m)) {
        eroom_unlink(e, m, ERR_UNKNOWN_ROOM); /* the new instance has the id */
        m = NULL;
    }
    if (err == OK && !m &&
        !(m = eroom_new(e, n->room, e->b.engines.conns[conn].uid))) {
        *text = e->share.why;
        err = ERR_BUSY;
        if (!have)
            item_discard(e, it);
    }
    if (err != OK) {
        attachment_drop(&e->b.engines, att);
        return err;
    }
    tombs_forget(&e->ended_rooms, n->room, 0);
    fill_announce(e, m, n);
    m->history.who = it->uid;
    m->have = have;
    att->owner = true;
    item_join(e, it, m);
    attachment_join(&e->b.engines, att, &m->r);
    room_gather(&e->b.engines, &m->r, e->b.engines.conns[conn].session, 0);
    check_waiting(e, m);
    queue_counts(e, m);
    eroom_count_declines(e, m);
    epool_serve(e, eroom_pool(e, m));
    return OK;
}

static void on_announce(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *m)
{
    const char *text = "";
    enum err err = check_announce(e, conn, &m->announce, &text);
    uint32_t a = 0, b = 0;

    if (err == ERR_TOO_LARGE) {
        a = m->announce.max_rows;
        b = e->pools[m->announce.pool].p.blocks *
            e->pools[m->announce.pool].block_rows;
    }
    if (err == ERR_QUOTA) {
        a = e->dst_share.limit;
        b = m->announce.required_dst;
    }
    if (err == OK)
        err = announce(e, conn, &m->announce, &text);
    if (m->announce.batch == 0) /* its last may be refused, or be there */
        item_close_batch(e, conn);
    if (err != OK)
        refuse(e, out, conn, m, err, a, b, text);
    else
        out_answer(out, conn, m->seq, OK, 0, 0, "%s", "");
}

/* commit */

static enum err check_commit(const struct eroom *m,
    const struct attachment *att, const struct local_commit *n,
    const char **text)
{
    bool final = n->flags & FLAG_FINAL;
    uint32_t total = n->total != ROWS_UNKNOWN ? n->total : m->item->total;
    uint64_t end = (uint64_t)n->first + n->rows;

    *text = "this connection attached without the right to write";
    if (!(att->rights & RIGHT_WRITE))
        return ERR_NOT_OWNER;
    *text = "the rows exist already and are not written again";
    if (m->have)
        return ERR_NOT_OWNER;
    *text = m->r.text[0] ? m->r.text : "the room has ended";
    if (eroom_failing(m) || eroom_ended(m))
        return m->fail_reason ? (enum err)m->fail_reason : ERR_GONE;
    *text = "rows may be committed once they are granted";
    if (m->item->source != SOURCE_HELD)
        return ERR_NOT_READY;
    *text = "rows beyond max_rows or the total";
    if (n->first > m->item->max_rows || end > m->item->max_rows ||
        (total != ROWS_UNKNOWN && (end > total || m->item->highest > total)))
        return ERR_MALFORMED;
    *text = "a total never changes once it is set";
    if (n->total != ROWS_UNKNOWN && m->item->total != ROWS_UNKNOWN &&
        n->total != m->item->total)
        return ERR_MALFORMED;
    *text = "a total beyond max_rows, or final without a total";
    if ((total == ROWS_UNKNOWN && final) ||
        (total != ROWS_UNKNOWN && total > m->item->max_rows))
        return ERR_MALFORMED;
    *text = "the total and the aux are already set";
    if (n->aux.len > 0 && m->item->total != ROWS_UNKNOWN)
        return ERR_MALFORMED;
    *text = "";
    return OK;
}

/* No process writes a row of the item any more: those whose connection was
 * closed are not waited for. */
static void writers_done(
    struct encoded *e, struct out *out, const struct item *it)
{
    LIST_FOREACH (r, &it->rooms) {
        struct eroom *m = LIST_ENTRY(r, struct eroom, in_item);

        LIST_FOREACH_SAFE (n, &m->r.attachments) {
            struct attachment *att = LIST_ENTRY(n, struct attachment, in_room);
            uint32_t conn = att->conn;

            att->shown = false;
            if (e->b.engines.conns[conn].state != CONN_ENDED)
                continue;
            attachment_drop(&e->b.engines, att);
            edst_conn_quiet(e, out, conn);
        }
    }
}

static void take_commit(struct encoded *e, struct out *out, struct item *it,
    const struct local_commit *n)
{
    struct epool *p = &e->pools[it->pool];
    uint32_t total = it->total;

    if (n->rows > 0)
        it->committed = rowmap_add(&p->committed, &p->p, &it->src, 0,
            it->committed, n->first, n->rows);
    it->highest = max_u32(it->highest, n->first + n->rows);
    it->moved_ns = e->b.now_ns;
    if (n->total != ROWS_UNKNOWN)
        it->total = n->total;
    if (n->flags & FLAG_FINAL) {
        it->final = true;
        writers_done(e, out, it);
    }
    if (it->total != total)
        eroom_measured(e, it);
    item_touch(e, it);
}

static void on_commit(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_commit *n = &msg->commit;
    struct attachment *att =
        attachment_get(&e->b.engines, conn, n->cell, n->tag);
    struct eroom *m = att ? to_eroom(att->room) : NULL;
    const char *text = "no room has that cell and tag";
    enum err err = ERR_UNKNOWN_ROOM;

    if (m)
        err = check_commit(m, att, n, &text);
    if (err == OK && n->aux.len > 0 &&
        !aux_set(&e->b.aux, &m->item->aux, m->item->uid, n->aux)) {
        e->b.stats[STAT_aux_full]++;
        text = e->b.aux.share.why;
        err = ERR_NO_BLOCKS;
    }
    if (err != OK) {
        uint64_t end = (uint64_t)n->first + n->rows;

        refuse(e, out, conn, msg, err, (uint32_t)min_u64(end, UINT32_MAX),
            m ? m->item->max_rows : 0, text);
        return;
    }
    take_commit(e, out, m->item, n);
    out_ok(out, conn, msg->seq);
}

/* the rest */

static void on_attach(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_attach *n = &msg->attach;
    struct eroom *m = eroom_find(e, n->room);
    const struct tomb *tomb =
        tombs_get(&e->ended_rooms, e->b.now_ns, n->room, 0);
    uint64_t wait = conf_wait_ns(
        e->b.c.conf, n->deadline_ms, e->b.c.conf->timeout_bootstrap);
    const char *text = "rights are 2 write, 4 watch";
    enum err err = ERR_MALFORMED;
    struct attachment *att = NULL;

    if (m && !eroom_announced(m))
        m = NULL;
    if (!(n->rights & ~(RIGHT_WRITE | RIGHT_WATCH)))
        err = OK;
    if (err == OK && m && m->r.session != e->b.engines.conns[conn].session) {
        text = "the room belongs to another engine";
        err = ERR_NOT_OWNER;
    } else if (err == OK && m && room_crowded(&m->r)) {
        text = "the room is in the maximum number of cells";
        err = ERR_QUOTA;
    }
    if (err == OK)
        err = attachment_add(
            &e->b.engines, conn, n->cell, n->tag, n->rights, &att, &text);
    if (err != OK) {
        refuse(e, out, conn, msg, err, 0, 0, text);
        return;
    }
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
    att->room_id = n->room;
    if (m)
        attachment_join(&e->b.engines, att, &m->r);
    else if (tomb && tomb->owner == e->b.engines.conns[conn].session)
        attachment_over(
            &e->b.engines, out, att, tomb->state, (enum err)tomb->end_reason);
    else
        attachment_wait(&e->b.engines, att, n->room, 0, e->b.now_ns + wait);
}

static void on_release(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_release *n = &msg->release;
    struct attachment *att =
        attachment_get(&e->b.engines, conn, n->cell, n->tag);
    struct eroom *m = att ? to_eroom(att->room) : NULL;

    if (!att || n->rows != ROWS_UNKNOWN || n->flags & FLAG_NO_READERS) {
        refuse(e, out, conn, msg, att ? ERR_MALFORMED : ERR_UNKNOWN_ROOM, 0, 0,
            att ? "an encode engine must release all rows, and has no readers"
                : "no room has that cell and tag");
        return;
    }
    if (m && att->owner)
        eroom_withdraw(e, m);
    attachment_release(&e->b.engines, out, att);
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
}

static void on_abort(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    const struct local_abort *n = &msg->abort;
    struct attachment *att =
        attachment_get(&e->b.engines, conn, n->cell, n->tag);
    char text[128];

    if (!att) {
        refuse(e, out, conn, msg, ERR_UNKNOWN_ROOM, 0, 0,
            "no room has that cell and tag");
        return;
    }
    text_copy(n->text, text, sizeof(text));
    if (att->room)
        eroom_fail(e, to_eroom(att->room),
            n->reason && n->reason < ERR_COUNT ? (enum err)n->reason
                                               : ERR_ABORTED,
            text);
    else
        attachment_fail(&e->b.engines, out, att, ERR_ABORTED);
    out_answer(out, conn, msg->seq, OK, 0, 0, "%s", "");
}

void encoded_on_local(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *m)
{
    struct conn *c = &e->b.engines.conns[conn];

    if (m->type == LOCAL_HELLO) {
        call_hello(&e->b, out, conn, m);
        return;
    }
    if (m->type == LOCAL_MAP && c->state == CONN_OPEN) {
        encoded_on_map(e, out, conn, m);
        return;
    }
    if (c->state != CONN_READY) {
        refuse(e, out, conn, m, ERR_NOT_READY, 0, 0, "HELLO must come first");
        return;
    }
    switch (m->type) {
    case LOCAL_POOL:
        call_pool(&e->b, out, conn, m);
        break;
    case LOCAL_ANNOUNCE:
        on_announce(e, out, conn, m);
        break;
    case LOCAL_COMMIT:
        on_commit(e, out, conn, m);
        break;
    case LOCAL_ATTACH:
        on_attach(e, out, conn, m);
        break;
    case LOCAL_RELEASE:
        on_release(e, out, conn, m);
        break;
    case LOCAL_ABORT:
        on_abort(e, out, conn, m);
        break;
    case LOCAL_BYE:
        c->bye = true;
        out_answer(out, conn, m->seq, OK, 0, 0, "%s", "");
        out_action(out, ACT_CONN_CLOSE)->conn = conn;
        engine_end(&e->b.engines, conn, e->b.now_ns);
        break;
    default:
        e->b.stats[STAT_malformed_local]++;
        refuse(e, out, conn, m, ERR_MALFORMED, 0, 0,
            "not a message for mmx-encoded");
    }
}

/* events */

bool encoded_fill_event(void *brain, const struct attachment *att,
    struct local_event *n, struct writer *w)
{
    struct encoded *e = brain;
    const struct eroom *m = to_eroom(att->room);

    if (!m) {
        n->state = att->pending & EVENT_DONE ? ROOM_SUCCESS : ROOM_FAILED;
        return false;
    }
    if (m->item->source != SOURCE_HELD)
        n->what &= (uint16_t)~EVENT_GRANTED;
    n->storage = m->item->storage;
    n->total = m->item->total;
    n->rows = m->item->max_rows;
    n->pool = m->item->pool;
    n->a = eroom_ended(m) ? m->r.a : m->asked;
    if (n->what & EVENT_GRANTED)
        pool_put_runs(&eroom_pool(e, m)->p, &m->item->src, w);
    return (att->rights & RIGHT_WRITE) && !m->item->final;
}
