/* local.c - messages of encode engines, their attachments, and the events that
 * engines get. Owned by the loop's thread. */
#include "core/encode/encode.h"

#include <stdio.h>

/* announce */

static enum err check_announce(struct encoded *e, uint32_t conn,
    const struct local_announce *n, const char **text)
{
    const struct eroom *m = eroom_find(e, n->room, &n->secret);
    enum err err = pools_usable(&e->b, conn, n->pool, text);

    if (err != OK)
        return err;
    *text = err_text(ERR_DRAINING);
    if (e->b.draining && !(m && eroom_awaited(m)))
        return ERR_DRAINING;
    *text = "storage is 1 to 3, total at most max_rows";
    if (n->storage == STORAGE_ANY || n->storage > STORAGE_PROMPT ||
        n->max_rows == ROWS_UNKNOWN ||
        (n->total != ROWS_UNKNOWN && n->total > n->max_rows))
        return ERR_MALFORMED;
    *text = "traceparent has not W3C's form";
    if (!trace_good(n->traceparent))
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

/* True if the item with this key agrees with the announce. */
static bool same_item(const struct item *it, const struct local_announce *n)
{
    return it->storage == n->storage &&
           (n->total == ROWS_UNKNOWN || it->total == ROWS_UNKNOWN ||
               n->total == it->total);
}

/* Finds the item of the announce by its key (have), or makes one that will wait
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

/* Makes the room LIVE with the values of its announce. */
static void fill_announce(
    struct encoded *e, struct eroom *m, const struct local_announce *n)
{
    uint64_t wait =
        conf_wait_ns(n->deadline_ms, e->b.c.conf->timeout_bootstrap);

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

/* Refuses destinations that asked before the announce and do not fit it, or
 * exceed `required`. An open room keeps all that fit. */
static void check_waiting(struct encoded *e, struct eroom *m)
{
    char text[512];
    uint32_t places = m->required ? m->required : NONE;

    LIST_FOREACH (n, &m->dsts) {
        struct edst *d = LIST_ENTRY(n, struct edst, in_room);
        enum err err = edst_check(e, m, d, text, sizeof(text));

        if (err == OK && places == 0) {
            err = ERR_DESTINATIONS_DISAGREE;
            snprintf(text, sizeof(text), "the room has all its destinations");
        }
        if (d->state == DST_ACTIVE && err != OK) {
            edst_refuse(d);
            edst_fail(e, d, err, text);
        } else if (d->state == DST_ACTIVE) {
            places--;
        }
        edst_touch(e, d);
    }
}

/* Returns the required_dst of those destinations that asked before the announce
 * and may have rows of the pool; 0: none said a number. */
static uint16_t required_of(const struct eroom *m, uint32_t pool)
{
    bool asked = false;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *d = LIST_ENTRY(n, struct edst, in_room);

        if (d->pools >> pool & 1)
            return m->required;
        asked = true;
    }
    return asked ? 0 : m->required;
}

/* Binds the room with its id, its attachment and its item to each other. */
static enum err announce(struct encoded *e, uint32_t conn,
    const struct local_announce *n, const char **text)
{
    struct eroom *m = eroom_find(e, n->room, &n->secret);
    uint16_t required = m && !eroom_announced(m) ? required_of(m, n->pool) : 0;
    struct item *it = NULL;
    bool have = false;
    struct attachment *att;
    enum err err;

    *text = "the room was opened with another number of destinations";
    if (n->required_dst && required && n->required_dst != required)
        return ERR_DESTINATIONS_DISAGREE;
    err = attachment_add(&e->b.engines, conn, n->cell, n->tag,
        RIGHT_WRITE | RIGHT_WATCH, &att, text);
    if (err != OK)
        return err;
    err = find_item(e, conn, n, &it, &have, text);
    if (err == OK && m && eroom_announced(m)) {
        eroom_unlink(e, m, ERR_UNKNOWN_ROOM); /* the id belongs to the new
                                                 instance now */
        m = NULL;
    }
    if (err == OK && !m &&
        !(m = eroom_new(
              e, n->room, &n->secret, e->b.engines.conns[conn].uid))) {
        *text = e->share.why;
        err = ERR_BUSY;
        if (!have)
            item_discard(e, it);
    }
    if (err != OK) {
        attachment_drop(&e->b.engines, att);
        return err;
    }
    CHECK(m->life == EROOM_AWAITED && it,
        "room ..%08x of state %u is announced", (uint32_t)m->r.id, m->life);
    memory_forget(&e->ended_rooms, n->room, m->name);
    m->required = required;
    fill_announce(e, m, n);
    m->history.who = it->uid;
    m->have = have;
    e->b.stats[STAT_have] += have;
    att->owner = true;
    item_join(e, it, m);
    attachment_join(&e->b.engines, att, &m->r);
    room_gather(&e->b.engines, &m->r, conn, 0, m->name);
    check_waiting(e, m);
    queue_counts(e, m);
    eroom_count_declines(e, m);
    e->announced = m;
    if (!eroom_complete(m)) /* else it ends */
        epool_serve(e, eroom_pool(e, m));
    e->announced = NULL;
    happened(&e->b, HAPPENED_ANNOUNCED, &m->r, &m->history, NONE, n->total,
        m->item->src.blocks);
    if (n->traceparent.len)
        trace_context(&e->b, &m->r, &m->history, n->traceparent, false);
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
    if (m->announce.batch == 0) /* also if the last announce of the batch is
                                   refused */
        item_close_batch(e, conn);
    if (err != OK)
        head_refuse(&e->b, out, conn, m, &(struct refusal){err, a, b, text});
    else
        out_done(out, conn, m->seq, 0, 0);
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
    if (!item_held(m->item))
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

/* True if the commit repeats what already made the room a success. A room of no
 * rows ends as soon as its langd has the length, perhaps before its commit. */
static bool is_known(const struct eroom *m, const struct attachment *att,
    const struct local_commit *n)
{
    return m->r.state == ROOM_SUCCESS && (att->rights & RIGHT_WRITE) &&
           n->rows == 0 && n->aux.len == 0 &&
           (n->total == ROWS_UNKNOWN || n->total == m->history.total);
}

/* Ends the writers' hold on the item's blocks, which are final now. A writer
 * whose connection is closed is not waited for. */
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

    CHECK(item_held(it) && n->first + n->rows <= it->max_rows,
        "rows %u + %u are committed to an item of state %u with %u", n->first,
        n->rows, it->life, it->max_rows);
    if (n->rows > 0)
        it->committed = rowmap_add(&p->committed, &p->p, &it->src, 0,
            it->committed, n->first, n->rows);
    it->highest = max_u32(it->highest, n->first + n->rows);
    it->moved_ns = e->b.now_ns;
    if (n->total != ROWS_UNKNOWN)
        it->total = n->total;
    if (n->flags & FLAG_FINAL) {
        if (it->life == ITEM_HELD)
            item_move(e, it, ITEM_FINAL);
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
    uint32_t before;

    if (m && is_known(m, att, n)) {
        out_ok(out, conn, msg->seq);
        return;
    }
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

        head_refuse(&e->b, out, conn, msg,
            &(struct refusal){err, (uint32_t)min_u64(end, UINT32_MAX),
                m ? m->item->max_rows : 0, text});
        return;
    }
    before = m->item->committed;
    take_commit(e, out, m->item, n);
    e->b.engines.conns[conn].bytes += (uint64_t)(m->item->committed - before) *
                                      eroom_pool(e, m)->meta->layout.row_bytes;
    if ((n->flags & FLAG_FINAL) || happening_due(before, m->item->committed))
        happened(&e->b, HAPPENED_COMMITTED, &m->r, &m->history, NONE,
            m->item->committed, m->item->total);
    out_ok(out, conn, msg->seq);
}

static void on_decline(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *msg)
{
    if (!secret_given(&msg->decline.secret)) {
        head_refuse(&e->b, out, conn, msg,
            &(struct refusal){
                ERR_NOT_OWNER, 0, 0, "a room is withdrawn here by its secret"});
        return;
    }
    encoded_withdraw(e, &msg->decline, e->b.engines.conns[conn].uid);
    out_ok(out, conn, msg->seq);
}

bool encoded_local(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m)
{
    if (m->type == LOCAL_ANNOUNCE)
        on_announce(brain, out, conn, m);
    else if (m->type == LOCAL_COMMIT)
        on_commit(brain, out, conn, m);
    else if (m->type == LOCAL_DECLINE)
        on_decline(brain, out, conn, m);
    else
        return false;
    return true;
}

/* attachments */

static enum err find(void *brain, struct out *out, uint32_t conn,
    const struct local_attach *n, struct attach_to *to, const char **text)
{
    struct encoded *e = brain;
    struct eroom *m = eroom_find(e, n->room, &n->secret);

    (void)out;
    (void)conn;
    *text = "";
    to->name = brain_name(&e->b, &n->secret);
    if (m && eroom_announced(m))
        to->room = &m->r;
    else
        to->ended = memory_get(&e->ended_rooms, e->b.now_ns, n->room, to->name);
    return OK;
}

static void withdraw(void *brain, struct room *r)
{
    eroom_withdraw(brain, to_eroom(r));
}

static void fail(void *brain, struct room *r, enum err reason, const char *text)
{
    eroom_fail(brain, to_eroom(r), reason, text);
}

static void on_touched(void *brain, struct room *r)
{
    eroom_touch(brain, to_eroom(r));
}

static void on_leaving(void *brain, struct attachment *att)
{
    struct eroom *m = to_eroom(att->room);
    struct encoded *e = brain;

    if (att->owner && e->b.engines.conns[att->conn].bye && !item_done(m->item))
        eroom_withdraw(e, m);
    eroom_touch(e, m);
}

static void on_orphaned(void *brain, struct room *r)
{
    struct eroom *m = to_eroom(r);

    if (!item_done(m->item)) /* complete rows outlive their engine */
        eroom_fail(brain, m, ERR_ENGINE_LOST, "the encode engine is gone");
}

static void on_conn_over(void *brain, uint32_t conn)
{
    struct encoded *e = brain;

    item_close_batch(e, conn);
    if (e->b.engines.conns[conn].bye)
        reader_gone(e, conn);
}

const struct engines_ops encoded_engines = {
    .succeeded = EVENT_DONE,
    .wrong_role = "this is mmx-encoded, not mmx-langd",
    .rights = RIGHT_WRITE | RIGHT_WATCH,
    .rights_text = "rights are 2 write, 4 watch",
    .find = find,
    .withdraw = withdraw,
    .fail = fail,
    .touched = on_touched,
    .leaving = on_leaving,
    .orphaned = on_orphaned,
    .conn_over = on_conn_over,
};

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
    if (!item_held(m->item))
        n->what &= (uint16_t)~EVENT_GRANTED;
    n->storage = m->item->storage;
    n->total = m->item->total;
    n->rows = m->item->max_rows;
    n->pool = m->item->pool;
    n->a = eroom_ended(m) ? m->r.a : m->asked;
    if (n->what & EVENT_GRANTED)
        pool_put_runs(&eroom_pool(e, m)->p, &m->item->src, w);
    return (att->rights & RIGHT_WRITE) && m->item->life != ITEM_FINAL;
}
