/* admin.c - answers QUERY: with the rows of the brain and of the body, in as
 * many REPORT messages as needed, or with those of a command, once it is done.
 *
 * Invariants: one report per connection; the connection is held until the
 * report is sent, so that answers keep their order. Reports are made in slices,
 * of all connections in turn; the slices of one turn of the loop take at most
 * SLICES_NS and one slice more; no slice is made for a connection that has
 * ended. Memory is taken per query, outside the path of rooms, and bounded
 * (QUERIES_MAX of REPORT_MAX, QUERIES_USER for one user). Commands are taken
 * only at the socket for orders, whose mode and folder say who may connect;
 * each command is logged. Owned by the loop's thread.
 *
 * Rejected: to ask for the user at the engines' socket. Root of a container
 * that mounts it is uid 0 there, and no administrator. */
#include "node/admin/admin.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "core/share.h"
#include "io/cuda.h"
#include "node/admin/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define QUERIES_MAX  20
#define QUERIES_USER 16 /* queries at once of one user */
#define QUERIES_OWN  2  /* more queries, for root and our own user */
/* more queries beyond those, for the socket for orders */
#define QUERIES_MORE 2
#define SLICES_NS    (NS_PER_MS / 2)
#define SLICE_PLACES 128 /* rows or empty places per slice */
#define CONF_BYTES   (256u << 10)
#define PIECE_MAX    60000
/* QUERY peers shows refused daemons for this long. */
#define REFUSAL_SHOWN_NS (60 * NS_PER_S)
/* Header and fixed fields of a REPORT. */
#define PIECE_HEAD (LOCAL_HEADER + 6)

/* A shard that has made no turn for this long moves no rows. Since it is
 * checked at intervals, this is seen within 2 s; a thread that only waits for a
 * core is not meant. */
#define SILENT_NS (SHARD_SLEEP_NS + SHARD_SLEEP_NS / 2)

/* rows of the body */

#define SHOW(NAME, word, meaning) WHAT_##NAME,
enum what {
#include "wire/show.def"
};
#define SHOW(NAME, word, meaning) word,
static const char *const whats[] = {
#include "wire/show.def"
};
#define SHOW(NAME, word, meaning) " " word
static const char there_is[] = "there is"
#include "wire/show.def"
#define COMMAND(name, word, takes, meaning) " " word
#include "wire/command.def"
    ;

/* Returns what protects control connections. */
static const char *secured(const struct node *n, char *out, size_t size)
{
    if (!n->keys)
        return "insecure: no key, in the clear";
    if (n->keys->lines_count)
        snprintf(out, size, "CURVE, keys of %u daemons", n->keys->lines_count);
    else
        snprintf(out, size, "CURVE, %u key%s", n->keys->count,
            n->keys->count > 1 ? "s" : "");
    return out;
}

/* Appends a row for the daemon whose key was refused lately: it is no peer. */
static void show_refusal(const struct node *n, struct rows_out *s)
{
    const struct links_refusal *r = links_refusal(n->links);
    uint64_t now = uv_hrtime();
    char why[160];

    CHECK(!r || now >= r->at_ns, "a refusal at %llu, later than now",
        (unsigned long long)r->at_ns);
    if (!r || now - r->at_ns > REFUSAL_SHOWN_NS)
        return;
    snprintf(why, sizeof(why), "refused: %s, %llu s ago", r->why,
        (unsigned long long)((now - r->at_ns) / NS_PER_S));
    s->row(s);
    s->text(s, "name", "-");
    s->text(s, "address", r->from);
    s->text(s, "state", "refused");
    s->text(s, "trouble", trouble_words[TROUBLE_KEY].name);
    s->text(s, "what", why);
    s->text(s, "mend", trouble_words[TROUBLE_KEY].mend);
}

static void node_numbers(struct node *n, struct rows_out *s)
{
    char epoch[32], keys[48];

    snprintf(epoch, sizeof(epoch), "%016llx",
        (unsigned long long)epoch_shown(n->brain_conf.epoch));
    s->text(s, "name", n->conf->name);
    s->text(s, "role", role_name(n->conf->role));
    s->text(s, "carriers", n->carriers.text);
    s->text(s, "not_by", n->carriers.why_not);
    s->text(s, "control", secured(n, keys, sizeof(keys)));
    s->text(s, "epoch", epoch);
    s->text(s, "software", MMX_VERSION);
    s->number(s, "pid", (uint64_t)getpid());
    s->number(s, "uptime_s", (uv_hrtime() - n->started_ns) / NS_PER_S);
    s->number(s, "shards", n->shards_count);
    s->number(s, "connections", local_stats(n->local)->open);
    s->number(s, "loop_turns", n->turns);
    s->number(s, "brain_steps", n->steps);
}

/* Returns the sum of one counter over all shards; `at` is its offset. */
static uint64_t shards_sum(const struct node *n, size_t at)
{
    uint64_t sum = 0;

    for (uint32_t k = 0; k < n->shards_count; k++) {
        const void *stat = (const char *)shard_stats(n->shards[k]) + at;

        sum += *(const _Atomic uint64_t *)stat;
    }
    return sum;
}

static void stat_row(
    struct rows_out *s, const char *name, uint64_t value, const char *meaning)
{
    s->row(s);
    s->text(s, "name", name);
    s->number(s, "value", value);
    s->text(s, "meaning", meaning);
}

static void node_stats(const struct node *n, struct rows_out *s)
{
    const struct links_stats *links = links_stats(n->links);
    const struct local_stats *local = local_stats(n->local);

#define SHARD_STAT(name, text)                                                 \
    stat_row(s, #name, shards_sum(n, offsetof(struct shard_stats, name)), text);
/* of what the carriers count */
#define DATA_SUM(of) shards_sum(n, offsetof(struct shard_stats, data.of))

#define NODE_STAT(name, value, text) stat_row(s, #name, value, text);
#include "node/stats.def"
}

void node_health(struct node *n, struct health *h)
{
    uint64_t now = uv_hrtime();

    brain_health(n->brain, h);
    for (uint32_t k = 0; k < n->shards_count; k++) {
        uint64_t silent = shard_silent_ns(n->shards[k], now);

        h->live &= silent <= SHARD_HANGS_NS;
        if (silent > SILENT_NS)
            health_say(h, false, "shard %u has done nothing for %llu s", k,
                (unsigned long long)(silent / NS_PER_S));
    }
}

void node_health_row(struct node *n, struct rows_out *to)
{
    struct health h;

    node_health(n, &h);
    to->row(to);
    to->text(to, "name", n->conf->name);
    to->text(to, "role", role_name(n->conf->role));
    to->number(to, "live", h.live);
    to->number(to, "ready", h.ready);
    to->text(to, "state", h.state);
    to->text(to, "text", h.text);
    to->number(to, "rooms_open", brain_open_rooms(n->brain));
}

/* A QUERY in progress. */
struct query {
    struct list making; /* on the node's list until the text is whole */
    struct node *n;
    uint32_t conn, seq;
    enum err err;
    enum what what;
    bool whole;
    struct show_at at;
    struct report report;
    size_t sent;
};

/* Appends how the memory is mapped, and why it is lost. */
static void add_pool(const struct mem *m, struct rows_out *to)
{
    const char *lost = m->gpu ? cuda_lost(m->gpu) : NULL;

    if (m->ops)
        to->text(to, "mapped", m->text);
    if (lost)
        to->text(to, "lost", lost);
}

static void add_peer(const struct node *n, uint32_t peer, struct rows_out *to)
{
    char text[64] = "";

    for (uint32_t k = 0; k < n->shards_count && text[0] == 0; k++)
        shard_say(n->shards[k], peer, SHARD_TRANSPORT, text, sizeof(text));
    to->text(to, "transport", text[0] ? text : "-");
}

/* Appends the body's columns to a row of the brain's. */
static void end_row(struct report *r)
{
    const struct query *q = LIST_ENTRY(r, struct query, report);
    uint32_t of = r->rows_out.of;

    r->rows_out.of = NONE;
    if (of == NONE)
        return;
    CHECK(q->what == WHAT_POOLS || q->what == WHAT_PEERS,
        "a row of %s is about number %u", whats[q->what], of);
    if (q->what == WHAT_POOLS)
        add_pool(&q->n->mems[of], &r->rows_out);
    else
        add_peer(q->n, of, &r->rows_out);
}

static void fail(struct query *q, enum err err, const char *text)
{
    report_fini(&q->report);
    report_init(&q->report);
    report_add(&q->report, text);
    q->err = err;
    q->whole = true;
}

static void show_slice(struct node *n, struct query *q)
{
    struct rows_out *to = &q->report.rows_out;
    bool known;

    q->at.places = SLICE_PLACES;
    known = brain_show(n->brain, whats[q->what], uv_hrtime(), &q->at, to);
    end_row(&q->report);
    if (!known)
        q->at.over = true;
    if (!q->at.over)
        return;
    if (q->what == WHAT_STATUS)
        node_numbers(n, to);
    if (q->what == WHAT_STATS)
        node_stats(n, to);
    if (q->what == WHAT_PEERS)
        show_refusal(n, to);
    q->whole = true;
}

static void make_slice(struct node *n, struct query *q)
{
    if (q->what != WHAT_HEALTH) {
        show_slice(n, q);
        return;
    }
    node_health_row(n, &q->report.rows_out);
    q->whole = true;
}

/* sending */

static void put_piece(struct writer *w, const struct query *q, size_t n)
{
    struct local_msg m = {.type = LOCAL_REPORT, .seq = q->seq};
    bool ok;

    CHECK(q->sent + n <= q->report.len, "%zu bytes after %zu", n, q->sent);
    m.report.err = (uint8_t)q->err;
    m.report.more = q->sent + n < q->report.len;
    m.report.text = span_of(q->report.p + q->sent, n);
    ok = local_put(w, &m);
    CHECK(ok, "a report of %zu bytes does not fit", n);
}

void admin_forget(struct node *n, uint32_t conn)
{
    struct query *q = n->conns[conn].query;

    if (!q)
        return;
    CHECK(n->queries > 0 && q->conn == conn, "query of connection %u at %u",
        q->conn, conn);
    n->conns[conn].query = NULL;
    n->queries--;
    list_remove(&q->making);
    report_fini(&q->report);
    free(q);
}

void admin_write(struct node *n, uint32_t conn)
{
    struct query *q = n->conns[conn].query;

    if (!q || !q->whole)
        return;
    for (;;) {
        struct writer w = local_writer(n->local, conn);
        size_t piece = q->report.len - q->sent;

        if (w.cap < PIECE_HEAD + 1024) {
            /* There is no space although everything was sent: the connection is
             * ending. */
            if (!local_wrote(n->local, conn, 0) || !local_push(n->local, conn))
                return;
            continue;
        }
        if (piece > PIECE_MAX)
            piece = PIECE_MAX;
        if (piece > w.cap - PIECE_HEAD)
            piece = w.cap - PIECE_HEAD;
        put_piece(&w, q, piece);
        (void)local_wrote(n->local, conn, w.len);
        q->sent += piece;
        if (q->sent == q->report.len)
            break;
    }
    admin_forget(n, conn);
    local_hold(n->local, conn, false);
}

void admin_serve(struct node *n)
{
    uint64_t until = uv_hrtime() + SLICES_NS;

    while (!list_empty(&n->making)) {
        struct query *q = LIST_FIRST(&n->making, struct query, making);

        list_remove(&q->making);
        if (local_gone(n->local, q->conn)) {
            admin_forget(n, q->conn);
            continue;
        }
        if (!q->whole)
            make_slice(n, q);
        if (q->report.failed)
            fail(q, ERR_TOO_LARGE, "the report is too large");
        if (q->whole)
            admin_write(n, q->conn);
        else
            list_push_tail(&n->making, &q->making);
        if (uv_hrtime() >= until)
            return;
    }
}

/* new queries */

/* Sends a REPORT with only a reason. */
static void refuse(
    struct node *n, uint32_t conn, uint32_t seq, enum err err, const char *text)
{
    struct local_msg m = {.type = LOCAL_REPORT, .seq = seq};
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));

    m.report.err = (uint8_t)err;
    m.report.text = span_str(text);
    if (local_put(&w, &m))
        local_send(n->local, conn, span_of(w.p, w.len), -1);
}

static bool may_ask(const struct node *n, uint32_t conn)
{
    uint32_t uid = n->conns[conn].uid, same = 0;
    bool own = uid == 0 || uid == n->brain_conf.uid;

    if (local_orders(n->local, conn))
        return n->queries < QUERIES_MAX + QUERIES_OWN + QUERIES_MORE;
    if (n->queries >= QUERIES_MAX + (own ? QUERIES_OWN : 0))
        return false;
    for (uint32_t i = 0; i < n->conns_count; i++)
        same += n->conns[i].query && n->conns[i].uid == uid;
    return same < QUERIES_USER;
}

static bool find_what(struct span what, enum what *out)
{
    for (uint32_t i = 0; i < ARRAY_LEN(whats); i++)
        if (span_eq(what, span_str(whats[i]))) {
            *out = (enum what)i;
            return true;
        }
    return false;
}

/* Begins to answer; NULL: refused. */
static struct query *begin(struct node *n, uint32_t conn, uint32_t seq)
{
    struct query *q = may_ask(n, conn) ? calloc(1, sizeof(*q)) : NULL;

    if (!q) {
        refuse(n, conn, seq, ERR_BUSY, "too many reports are under way");
        return NULL;
    }
    q->conn = conn;
    q->seq = seq;
    list_init(&q->making);
    report_init(&q->report);
    n->conns[conn].query = q;
    n->queries++;
    local_hold(n->local, conn, true);
    return q;
}

static void show(
    struct node *n, uint32_t conn, const struct local_msg *m, enum what what)
{
    struct query *q = begin(n, conn, m->seq);
    char from[24];

    if (!q)
        return;
    q->what = what;
    q->n = n;
    q->report.row_ends = end_row;
    if (n->conns[conn].uid != n->brain_conf.uid &&
        !local_orders(n->local, conn))
        q->at.uid = n->conns[conn].uid;
    if (what == WHAT_TRACE) {
        text_copy(m->query.args, from, sizeof(from));
        q->at.at = strtoull(from, NULL, 10);
    }
    list_push_tail(&n->making, &q->making);
}

static const struct command *find_command(struct node *n, struct span what)
{
    for (const struct command *c = n->commands; c->word; c++)
        if (span_eq(what, span_str(c->word)))
            return c;
    return NULL;
}

static void run_command(struct node *n, uint32_t conn,
    const struct local_msg *m, const struct command *c)
{
    char args[260], where[SOCKET_PATH_MAX + 80] = "";
    struct query *q;

    text_copy(m->query.args, args, sizeof(args));
    if (!local_orders(n->local, conn)) {
        snprintf(where, sizeof(where),
            "orders are taken at %.107s, of root and the daemon's own user",
            n->conf->socket_orders);
        refuse(n, conn, m->seq, ERR_NOT_OWNER, where);
        return;
    }
    q = begin(n, conn, m->seq);
    if (!q)
        return;
    /* Without the arguments: they may be a room's id, or the key of rows. */
    log_info("command `%s` of user %u", c->word, n->conns[conn].uid);
    if (args[0] && !c->takes)
        admin_refuse(n, q, ERR_MALFORMED, "this order has no arguments");
    else
        c->run(n, q, args);
}

void admin_query(struct node *n, uint32_t conn, const struct local_msg *m)
{
    const struct command *c = find_command(n, m->query.what);
    enum what what;

    if (local_gone(n->local, conn))
        return;
    if (c)
        run_command(n, conn, m, c);
    else if (find_what(m->query.what, &what))
        show(n, conn, m, what);
    else
        refuse(n, conn, m->seq, ERR_MALFORMED, there_is);
}

/* commands */

void command_conf(struct node *n, struct query *q, const char *args)
{
    char *text = malloc(CONF_BYTES);
    struct writer w = writer_of(text, CONF_BYTES - 1);
    struct rows_out *to = &q->report.rows_out;

    (void)args;
    if (!text || !conf_print(n->conf, false, &w)) {
        admin_refuse(n, q, ERR_TOO_LARGE, "the report is too large");
    } else {
        text[w.len] = 0;
        admin_answer(n, q);
        to->row(to);
        to->text(to, "yaml", text);
    }
    free(text);
}

struct rows_out *admin_rows(struct query *q)
{
    return &q->report.rows_out;
}

void admin_answer(struct node *n, struct query *q)
{
    CHECK(!q->whole, "the command of connection %u is answered", q->conn);
    q->whole = true;
    admin_wait(q, &n->making);
}

void admin_refuse(
    struct node *n, struct query *q, enum err err, const char *text)
{
    admin_answer(n, q);
    fail(q, err, text);
}

void admin_wait(struct query *q, struct list *list)
{
    list_remove(&q->making);
    list_push_tail(list, &q->making);
}

struct query *admin_next(struct list *list)
{
    struct list *first = list_pop(list);

    return first ? LIST_ENTRY(first, struct query, making) : NULL;
}

/* for crashes: rooms have only their last digits, as in the log */

static void plain_row(struct rows_out *s)
{
    (void)s;
    log_text("\n");
}

static void plain_text(struct rows_out *s, const char *name, const char *value)
{
    (void)s;
    log_text("%s=%s ", name, value);
}

static void plain_number(struct rows_out *s, const char *name, uint64_t value)
{
    (void)s;
    if (!strcmp(name, "room"))
        log_text("room=..%08x ", (uint32_t)value);
    else
        log_text("%s=%llu ", name, (unsigned long long)value);
}

const struct crash_view *node_crash_view(struct node *n)
{
    CHECK(n->brain, "a node that has not started is watched");
    n->crash = (struct crash_view){n->recorder, &n->event};
    return &n->crash;
}

void node_print(struct node *n)
{
    struct rows_out s = {plain_row, plain_text, plain_number, NONE};

    log_text("turns %llu, steps %llu, connections %u",
        (unsigned long long)n->turns, (unsigned long long)n->steps,
        n->local ? local_stats(n->local)->open : 0);
    if (n->brain) {
        (void)brain_show(n->brain, "status", n->now_ns, SHOW_ALL, &s);
        (void)brain_show(n->brain, "rooms", n->now_ns, SHOW_ALL, &s);
    }
    log_text("\n");
}
