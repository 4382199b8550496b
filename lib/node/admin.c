/* admin.c - answers to QUERY: what the brain shows and what only the body
 * knows, as an aligned table or as JSON, in as many REPORTs as it takes.
 *
 * Invariants: one report per connection, and while it goes out the connection
 * is held, so that answers keep their order; a report never waits inside the
 * loop. Memory is taken per query, which is no room's path, and bounded
 * (REPORTS_MAX of TEXT_MAX). The loop's thread.
 *
 * Rejected: a second socket for administration. Whoever may map the pools may
 * look at them, and one wire is enough to learn. */
#include "node/node_impl.h"

#include "base/check.h"
#include "base/log.h"
#include "io/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REPORTS_MAX 16
#define TEXT_MAX    (16u << 20)
#define CONF_BYTES  (256u << 10)
#define COLUMNS_MAX 64
#define PIECE_MAX   60000
/* Header and fixed fields of a REPORT. */
#define PIECE_HEAD (LOCAL_HEADER + 6)

/* a text that grows */

static void add_bytes(struct report *r, const char *p, size_t n)
{
    size_t want = r->len + n;

    if (r->failed || want > TEXT_MAX) {
        r->failed = true;
        return;
    }
    if (want > r->cap) {
        size_t cap = r->cap ? r->cap : 16384;
        char *text;

        while (cap < want)
            cap *= 2;
        text = realloc(r->text, cap);
        if (!text) {
            r->failed = true;
            return;
        }
        r->text = text;
        r->cap = cap;
    }
    memcpy(r->text + r->len, p, n);
    r->len = want;
}

static void add_text(struct report *r, const char *s)
{
    add_bytes(r, s, strlen(s));
}

PRINTF_LIKE(2, 3)
static void add(struct report *r, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof(line))
        n = (int)sizeof(line) - 1;
    add_bytes(r, line, n > 0 ? (size_t)n : 0);
}

/* JSON: an array of objects */

struct json {
    struct shower shower;
    struct report *to;
    uint32_t rows, columns; /* rows so far; columns of the last */
};

/* Names come from engines; bytes beyond ASCII are escaped one by one, which
 * is valid JSON whatever they are. */
static void json_string(struct report *r, const char *s)
{
    add_text(r, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\')
            add(r, "\\%c", c);
        else if (c == '\n')
            add_text(r, "\\n");
        else if (c < 0x20 || c > 0x7e)
            add(r, "\\u%04x", c);
        else
            add_bytes(r, s, 1);
    }
    add_text(r, "\"");
}

static void json_row(struct shower *s)
{
    struct json *j = (struct json *)s;

    add_text(j->to, j->rows ? "},\n{" : "[\n{");
    j->rows++;
    j->columns = 0;
}

static void json_name(struct json *j, const char *name)
{
    if (j->columns++)
        add_text(j->to, ", ");
    json_string(j->to, name);
    add_text(j->to, ": ");
}

static void json_text(struct shower *s, const char *name, const char *value)
{
    struct json *j = (struct json *)s;

    json_name(j, name);
    json_string(j->to, value);
}

static void json_number(struct shower *s, const char *name, uint64_t value)
{
    struct json *j = (struct json *)s;

    json_name(j, name);
    add(j->to, "%llu", (unsigned long long)value);
}

/* text: columns as wide as what is in them */

/* A value longer than this is cut; JSON has all of it. */
#define CELL_MAX 104

struct column {
    char name[32];
    int width;
    bool number;
    char cell[CELL_MAX]; /* of the present row */
};

/* The brain shows twice: first names and widths are taken, then it is
 * printed. Rows may leave columns out. */
struct table_text {
    struct shower shower;
    struct report *to; /* NULL: taking widths */
    bool upright;      /* one column to a line */
    uint32_t rows, count;
    struct column columns[COLUMNS_MAX];
};

static void table_head(struct table_text *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        memcpy(
            t->columns[i].cell, t->columns[i].name, sizeof(t->columns[i].name));
}

/* Prints the row that was gathered and empties it. */
static void table_print(struct table_text *t)
{
    int pending = 0; /* spaces, unless nothing follows them */

    for (uint32_t i = 0; i < t->count; i++) {
        struct column *c = &t->columns[i];
        int len = (int)strlen(c->cell), pad = c->width - len;

        if (t->upright) {
            add(t->to, "%-20s  %s\n", c->name, c->cell);
        } else if (len == 0) {
            pending += c->width;
        } else {
            add(t->to, "%*s%s", pending + (c->number ? pad : 0), "", c->cell);
            pending = c->number ? 0 : pad;
        }
        pending += 2;
        c->cell[0] = 0;
    }
    if (!t->upright)
        add_text(t->to, "\n");
}

static void table_row(struct shower *s)
{
    struct table_text *t = (struct table_text *)s;

    if (!t->to)
        return;
    if (t->rows == 0 && !t->upright)
        table_head(t);
    if (t->rows > 0 || !t->upright)
        table_print(t);
    t->rows++;
}

static struct column *table_column(
    struct table_text *t, const char *name, bool number)
{
    struct column *c;

    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(t->columns[i].name, name) == 0)
            return &t->columns[i];
    if (t->to || t->count == COLUMNS_MAX)
        return NULL;
    c = &t->columns[t->count++];
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->width = (int)strlen(c->name);
    c->number = number;
    return c;
}

static void table_value(
    struct table_text *t, const char *name, const char *value, bool number)
{
    struct column *c = table_column(t, name, number);
    char cell[CELL_MAX];
    size_t n = strlen(value);

    if (!c)
        return;
    snprintf(cell, sizeof(cell), "%s", value);
    if (n >= sizeof(cell))
        memcpy(cell + sizeof(cell) - 4, "...", 4);
    /* A terminal shall not be told what to do by an engine's name. */
    for (char *p = cell; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    if ((int)strlen(cell) > c->width)
        c->width = (int)strlen(cell);
    if (t->to)
        memcpy(c->cell, cell, sizeof(cell));
}

static void table_one_text(
    struct shower *s, const char *name, const char *value)
{
    table_value((struct table_text *)s, name, value, false);
}

static void table_number(struct shower *s, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    table_value((struct table_text *)s, name, text, true);
}

/* what the body adds */

enum what { WHAT_STATUS, WHAT_ROOMS, WHAT_POOLS, WHAT_PEERS, WHAT_STATS };
static const char *const whats[] = {
    "status", "rooms", "pools", "peers", "stats", "sequences"};

/* Passes on what the brain shows and puts its own beside it. */
struct adding {
    struct shower shower;
    struct shower *to;
    struct node *n;
    enum what what;
    bool inside;   /* a row has begun */
    uint32_t peer; /* of this row; NONE */
    uint32_t pool; /* number of this row */
    char name[48]; /* of this row */
};

static uint64_t shard_sum(const struct node *n, const char *name)
{
    uint64_t sum = 0;

    for (uint32_t k = 0; k < n->shards_count; k++) {
        const struct shard_stats *s = shard_stats(n->shards[k]);
        const struct {
            const char *name;
            const _Atomic uint64_t *value;
        } rows[] = {{"segments_landed", &s->segments_landed},
            {"segments_copied", &s->segments_copied},
            {"segments_staged", &s->segments_staged},
            {"segments_late", &s->segments_late},
            {"segments_dropped", &s->segments_dropped},
            {"segments_sent", &s->segments_sent},
            {"messages_sent", &s->messages_sent},
            {"endpoints_lost", &s->endpoints_lost},
            {"workers_replaced", &s->workers_replaced},
            {"bytes_landed", &s->bytes_landed}, {"bytes_sent", &s->bytes_sent},
            {"shard_wakeups", &s->wakeups}};

        for (size_t i = 0; i < ARRAY_LEN(rows); i++)
            if (strcmp(rows[i].name, name) == 0)
                sum += *rows[i].value;
    }
    return sum;
}

/* What the memory really is, and why it works no more. */
static void add_pool(struct adding *a)
{
    const struct mem *m = a->inside ? &a->n->mems[a->pool++] : NULL;
    const char *lost = m && m->gpu ? cuda_lost(m->gpu) : NULL;

    if (m && m->ops)
        a->to->text(a->to, "mapped", m->text);
    if (lost)
        a->to->text(a->to, "lost", lost);
}

static void end_row(struct adding *a)
{
    char text[64] = "";

    if (a->what == WHAT_POOLS)
        add_pool(a);
    if (!a->inside || a->what != WHAT_PEERS || a->peer == NONE)
        return;
    for (uint32_t k = 0; k < a->n->shards_count && text[0] == 0; k++)
        shard_transport(a->n->shards[k], a->peer, text, sizeof(text));
    a->to->text(a->to, "transport", text[0] ? text : "-");
}

static void adding_row(struct shower *s)
{
    struct adding *a = (struct adding *)s;

    end_row(a);
    a->inside = true;
    a->peer = NONE;
    a->name[0] = 0;
    a->to->row(a->to);
}

static void adding_text(struct shower *s, const char *name, const char *value)
{
    struct adding *a = (struct adding *)s;

    if (strcmp(name, "name") == 0)
        snprintf(a->name, sizeof(a->name), "%s", value);
    a->to->text(a->to, name, value);
}

static void adding_number(struct shower *s, const char *name, uint64_t value)
{
    struct adding *a = (struct adding *)s;

    if (strcmp(name, "peer") == 0 && value < a->n->conf->limit_peers)
        a->peer = (uint32_t)value;
    if (a->what == WHAT_STATS)
        value += shard_sum(a->n, a->name[0] ? a->name : name);
    a->to->number(a->to, name, value);
}

static void node_numbers(struct node *n, struct shower *s)
{
    char epoch[32];

    snprintf(epoch, sizeof(epoch), "%016llx",
        (unsigned long long)n->brain_conf.epoch);
    s->text(s, "name", n->conf->name);
    s->text(s, "role", n->conf->role == ROLE_ENCODED ? "encoded" : "langd");
    s->text(s, "epoch", epoch);
    s->text(s, "software", MMX_VERSION);
    s->number(s, "pid", (uint64_t)getpid());
    s->number(s, "uptime_s", (uv_hrtime() - n->started_ns) / NS_PER_S);
    s->number(s, "shards", n->shards_count);
    s->number(s, "connections", local_count(n->local));
    s->number(s, "loop_turns", n->turns);
    s->number(s, "brain_steps", n->steps);
}

static void extra_stat(struct node *n, struct shower *s, const char *name,
    uint64_t value, const char *meaning)
{
    s->row(s);
    s->text(s, "name", name);
    s->number(s, "value", value + shard_sum(n, name));
    s->text(s, "meaning", meaning);
}

static void node_stats(struct node *n, struct shower *s)
{
    const struct links_stats *l = links_stats(n->links);

    extra_stat(n, s, "bytes_landed", 0, "bytes of segments that were placed");
    extra_stat(n, s, "bytes_sent", 0, "bytes handed to the carrier");
    extra_stat(n, s, "shard_wakeups", 0, "times a shard was woken");
    extra_stat(n, s, "log_lines_left_out", log_lost(),
        "lines about engines, rooms and strangers beyond so many a second");
    extra_stat(n, s, "log_lines_lost", log_unwritten(),
        "lines that found standard error full or gone");
    extra_stat(n, s, "peer_packets_in", l->packets_in,
        "control packets that came from daemons");
    extra_stat(n, s, "peer_packets_out", l->packets_out,
        "control packets that went to daemons");
    extra_stat(
        n, s, "peer_frames_out", l->frames_out, "frames in those that went");
    extra_stat(n, s, "peer_frames_dropped", l->dropped_frames,
        "frames for a link that was down or full; they are repeated");
    extra_stat(n, s, "peer_packets_dropped", l->dropped_packets,
        "control packets from a connection that is no link");
}

static void show(struct node *n, enum what what, struct shower *to)
{
    struct adding a = {{adding_row, adding_text, adding_number}, to, n, what,
        false, NONE, 0, ""};

    (void)n->kind->ops->show(n->brain, whats[what], uv_hrtime(), &a.shower);
    end_row(&a);
    if (what == WHAT_STATUS)
        node_numbers(n, to);
    if (what == WHAT_STATS)
        node_stats(n, to);
}

static void render(struct node *n, enum what what, bool json, struct report *r)
{
    struct json j = {{json_row, json_text, json_number}, r, 0, 0};
    struct table_text t = {.shower = {table_row, table_one_text, table_number},
        .upright = what == WHAT_STATUS};

    if (json) {
        show(n, what, &j.shower);
        add_text(r, j.rows ? "}\n]\n" : "[]\n");
        return;
    }
    show(n, what, &t.shower);
    t.to = r;
    show(n, what, &t.shower);
    if (t.rows)
        table_print(&t);
    else
        add_text(r, "none\n");
}

static void render_conf(struct node *n, bool json, struct report *r)
{
    char *text = malloc(CONF_BYTES);
    struct writer w = writer_of(text, CONF_BYTES - 1);

    if (!text || !conf_print(n->conf, false, &w)) {
        r->failed = true;
    } else {
        text[w.len] = 0;
        if (json)
            add_text(r, "[\n{\"yaml\": ");
        if (json)
            json_string(r, text);
        else
            add_text(r, text);
        if (json)
            add_text(r, "}\n]\n");
    }
    free(text);
}

/* going out */

static void put_piece(struct writer *w, const struct report *r, size_t n)
{
    struct local_msg m = {.type = LOCAL_REPORT, .seq = r->seq};
    bool ok;

    m.report.err = (uint8_t)r->err;
    m.report.more = r->sent + n < r->len;
    m.report.text = span_of(r->text + r->sent, n);
    ok = local_put(w, &m);
    CHECK(ok, "a report of %zu bytes does not fit", n);
}

void admin_forget(struct node *n, uint32_t conn)
{
    struct report *r = n->conns[conn].report;

    if (!r)
        return;
    n->conns[conn].report = NULL;
    n->reports--;
    free(r->text);
    free(r);
}

void admin_write(struct node *n, uint32_t conn)
{
    struct report *r = n->conns[conn].report;

    for (;;) {
        struct writer w = local_writer(n->local, conn);
        size_t piece = r->len - r->sent;

        if (w.cap < PIECE_HEAD + 1024) {
            /* Still no room when all is sent: it is about to end. */
            if (!local_queued(n->local, conn) || !local_push(n->local, conn))
                return;
            continue;
        }
        if (piece > PIECE_MAX)
            piece = PIECE_MAX;
        if (piece > w.cap - PIECE_HEAD)
            piece = w.cap - PIECE_HEAD;
        put_piece(&w, r, piece);
        local_wrote(n->local, conn, w.len);
        r->sent += piece;
        if (r->sent == r->len)
            break;
    }
    admin_forget(n, conn);
    local_hold(n->local, conn, false);
}

static void fail(struct report *r, enum err err, const char *text)
{
    r->err = err;
    r->failed = false;
    r->len = 0;
    add_text(r, text);
}

static void fill(struct node *n, const struct local_query *q, struct report *r)
{
    if (span_eq(q->what, span_str("conf"))) {
        render_conf(n, q->json == 1, r);
        return;
    }
    for (uint32_t i = 0; i < ARRAY_LEN(whats); i++)
        if (span_eq(q->what, span_str(whats[i]))) {
            render(n, i, q->json == 1, r);
            return;
        }
    fail(r, ERR_MALFORMED,
        "there is status, rooms, pools, peers, sequences, conf and stats");
}

/* Without memory for a report: a REPORT that says so. */
static void refuse(struct node *n, uint32_t conn, uint32_t seq)
{
    static const char text[] = "too many reports are under way";
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct report r = {.seq = seq, .err = ERR_BUSY, .len = sizeof(text) - 1};
    struct local_msg m = {.type = LOCAL_REPORT, .seq = r.seq};

    m.report.err = ERR_BUSY;
    m.report.text = span_str(text);
    if (local_put(&w, &m))
        local_send(n->local, conn, span_of(w.p, w.len), -1);
}

void admin_query(struct node *n, uint32_t conn, const struct local_msg *m)
{
    struct report *r = n->reports < REPORTS_MAX ? calloc(1, sizeof(*r)) : NULL;

    if (!r) {
        refuse(n, conn, m->seq);
        return;
    }
    r->seq = m->seq;
    fill(n, &m->query, r);
    if (r->failed)
        fail(r, ERR_TOO_LARGE, "the report is too large");
    n->conns[conn].report = r;
    n->reports++;
    local_hold(n->local, conn, true);
    admin_write(n, conn);
}

/* for crashes */

static void plain_row(struct shower *s)
{
    (void)s;
    log_text("\n");
}

static void plain_text(struct shower *s, const char *name, const char *value)
{
    (void)s;
    log_text("%s=%s ", name, value);
}

static void plain_number(struct shower *s, const char *name, uint64_t value)
{
    (void)s;
    log_text("%s=%llu ", name, (unsigned long long)value);
}

void node_print(struct node *n)
{
    struct shower s = {plain_row, plain_text, plain_number};

    log_text("turns %llu, steps %llu, connections %u",
        (unsigned long long)n->turns, (unsigned long long)n->steps,
        n->local ? local_count(n->local) : 0);
    if (n->brain) {
        (void)n->kind->ops->show(n->brain, "status", n->now_ns, &s);
        (void)n->kind->ops->show(n->brain, "rooms", n->now_ns, &s);
    }
    log_text("\n");
}
