/* doctor.c - mmxctl doctor: takes the steps that an engine takes, and reports
 * for each what was found and what to do. It opens no room and changes
 * nothing; its map of a pool lasts a moment.
 *
 * Rejected: asking the daemon whether it is well. What fails for engines lies
 * between them and it: folders, groups, namespaces, limits. */
#include "ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOBODY 65534
#define CELLS  1024 /* that clients ask for by default */
#define REPORT_SIZE                                                            \
    (1u << 20) /* of one QUERY; more is cut, at whole packets                  \
                */

/* One connection to one daemon. */
struct visit {
    struct report *r;
    int s;
    uint64_t pool_bytes;
    uint32_t cells;
    char *text; /* the answer to a QUERY, REPORT_SIZE */
    uint8_t packet[LOCAL_PACKET_MAX];
    char kept[1024]; /* texts of a message that is gone */
};

static bool is_langd(uint8_t role)
{
    return role == ROLE_LANGD;
}

/* hello */

/* Returns our uid outside of this user namespace, as the kernel maps it. */
static uint32_t mapped(const char *file, uint32_t id)
{
    uint32_t found = NOBODY;
    char line[96];
    FILE *f = fopen(file, "re");

    if (!f)
        return id;
    while (fgets(line, sizeof(line), f)) {
        char *p = line;
        unsigned long inside = strtoul(p, &p, 10);
        unsigned long outside = strtoul(p, &p, 10);
        unsigned long count = strtoul(p, &p, 10);

        if (id >= inside && id - inside < count)
            found = (uint32_t)(outside + (id - inside));
    }
    fclose(f);
    return found;
}

static void say_seen(struct report *r, const struct local_welcome *w)
{
    uint32_t uid = mapped("/proc/self/uid_map", (uint32_t)geteuid());
    char text[160];

    snprintf(
        text, sizeof(text), "the daemon sees uid %u, gid %u", w->uid, w->gid);
    if (w->uid == uid)
        report_say(r, FINE, "seen", text, "");
    else if (w->uid == NOBODY)
        report_say(r, WARN, "seen", text,
            "the daemon cannot see your uid: it runs in a user namespace "
            "(PrivateUsers=yes) or you do; pools[].uids will refuse you");
    else
        report_say(r, WARN, "seen", text,
            "not your uid: you are in different user namespaces; add the uid "
            "that the daemon sees to pools[].uids");
}

static void say_welcome(struct report *r, const struct local_welcome *w)
{
    char text[512], version[40];
    bool same;

    span_copy_str(w->software, version, sizeof(version));
    same = !strcmp(version, MMX_VERSION);
    snprintf(text, sizeof(text), "%s %.*s, mmx %s, protocol %u",
        is_langd(w->role) ? "langd" : "encoded", (int)w->name.len,
        (const char *)w->name.p, version, w->version);
    report_say(r, same ? FINE : WARN, "daemon", text,
        same ? ""
             : "this mmxctl is " MMX_VERSION
               ": fine as long as the protocols match");
    if (!is_langd(w->role)) {
        snprintf(text, sizeof(text), "advertised to routers as %.*s",
            (int)w->advertise.len, (const char *)w->advertise.p);
        if (strstr(text, "//127.") || strstr(text, "//localhost"))
            report_say(r, WARN, "address", text,
                "only this host can reach it: set control.listen or "
                "control.advertise for other hosts");
        else
            report_say(r, FINE, "address", text, "");
    }
    say_seen(r, w);
}

/* Returns the daemon's role, or ROLE_ANY: it did not answer as a daemon. */
static uint8_t hello(struct visit *v)
{
    struct local_msg m;
    struct reader in;
    uint8_t role = ROLE_ANY;
    ssize_t n;
    int fd;

    ctl_hello(&m);
    m.hello.cells = CELLS;
    n = ctl_send(v->s, &m, 1) ? ctl_recv(v->s, v->packet, &fd) : -1;
    if (n <= 0) {
        report_say(v->r, FAIL, "hello",
            n < 0 ? strerror(errno) : "connection closed",
            "check that this is an mmx daemon, and see its log");
        return ROLE_ANY;
    }
    if (fd >= 0)
        close(fd);
    in = reader_of(v->packet, (size_t)n);
    if (local_get(&in, &m) == OK && m.type == LOCAL_WELCOME) {
        role = m.welcome.role;
        v->cells = m.welcome.cells;
        say_welcome(v->r, &m.welcome);
    } else {
        span_copy_str(m.type == LOCAL_ANSWER
                          ? m.answer.text
                          : span_str("unexpected answer to HELLO"),
            v->kept, sizeof(v->kept));
        report_say(v->r, FAIL, "hello", v->kept,
            "install the same version of mmx on both sides");
    }
    return role;
}

/* questions */

static bool ask(struct visit *v, const char *what)
{
    struct local_msg m = {.type = LOCAL_QUERY};
    size_t len = 0;
    bool more = true;

    m.query.json = 1;
    m.query.what = span_str(what);
    v->text[0] = 0;
    if (!ctl_send(v->s, &m, 1))
        return false;
    while (more) {
        int fd;
        ssize_t n = ctl_recv(v->s, v->packet, &fd);
        struct reader in = reader_of(v->packet, n > 0 ? (size_t)n : 0);

        if (n <= 0 || local_get(&in, &m) != OK || m.type != LOCAL_REPORT ||
            m.report.err)
            return false;
        if (len + m.report.text.len + 1 <= REPORT_SIZE) {
            memcpy(v->text + len, m.report.text.p, m.report.text.len);
            len += m.report.text.len;
            v->text[len] = 0;
        }
        more = m.report.more;
    }
    return true;
}

/* pools */

/* Maps the pool as an engine would; text gets the result as a sentence. */
static bool try_map(const struct local_pool_info *p, int fd, char text[256])
{
    int prot = PROT_READ | (p->access ? PROT_WRITE : 0);
    void *at;

    if (!span_eq(p->memory, span_str("host"))) {
        snprintf(text, 256, "shared as %.*s, not mapped by this check",
            (int)p->share.len, (const char *)p->share.p);
        return true;
    }
    at = fd < 0 ? MAP_FAILED
                : mmap(NULL, (size_t)p->bytes, prot, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        snprintf(text, 256, "cannot be mapped: %s",
            fd < 0 ? "no descriptor received" : strerror(errno));
        return false;
    }
    munmap(at, (size_t)p->bytes);
    snprintf(text, 256, "maps %s", p->access ? "for writing" : "read-only");
    return true;
}

static void say_pool_refused(
    struct visit *v, const char *name, const struct local_msg *m)
{
    const char *advice = "see the daemon's log";
    char why[520];

    if (m->answer.err == ERR_NOT_OWNER)
        advice = "add your uid, as the daemon sees it, to pools[].uids";
    if (m->answer.err == ERR_NOT_READY)
        advice = "layout: engine; the first engine that declares its fields "
                 "fixes them: mmx_pool(m, name, layout, ...)";
    span_copy_str(m->answer.text, why, sizeof(why));
    snprintf(v->kept, sizeof(v->kept), "%s: %s", name, why);
    report_say(v->r, m->answer.err == ERR_NOT_READY ? WARN : FAIL, "pool",
        v->kept, advice);
}

static void check_pool(struct visit *v, const char *name, const char *free_)
{
    struct local_msg m = {.type = LOCAL_POOL};
    char how[256], layout[600];
    struct reader in;
    int fd = -1;
    ssize_t n;
    bool ok;

    m.pool.name = span_str(name);
    n = ctl_send(v->s, &m, 1) ? ctl_recv(v->s, v->packet, &fd) : -1;
    in = reader_of(v->packet, n > 0 ? (size_t)n : 0);
    if (n <= 0 || local_get(&in, &m) != OK ||
        (m.type != LOCAL_POOL_INFO && m.type != LOCAL_ANSWER)) {
        report_say(v->r, FAIL, "pool", name, "no answer: see the daemon's log");
    } else if (m.type == LOCAL_ANSWER) {
        say_pool_refused(v, name, &m);
    } else {
        ok = try_map(&m.pool_info, fd, how);
        span_copy_str(m.pool_info.layout, layout, sizeof(layout));
        snprintf(v->kept, sizeof(v->kept),
            "%s: %s, %s of %u blocks of %u rows free, %s", name, how, free_,
            m.pool_info.blocks, m.pool_info.block_rows, layout);
        report_say(v->r, ok ? FINE : FAIL, "pool", v->kept,
            ok ? ""
               : "check security modules and ulimit -v: an engine maps all of "
                 "it");
        v->pool_bytes += m.pool_info.bytes;
    }
    if (fd >= 0)
        close(fd);
}

static void check_pools(struct visit *v)
{
    char *copy;

    if (!ask(v, "pools")) {
        report_say(v->r, FAIL, "pools", "no answer", "see the daemon's log");
        return;
    }
    copy = strdup(v->text);
    for (const char *row = copy ? rows_next(copy) : NULL; row;
         row = rows_next(row)) {
        char name[65], state[32], free_[24];

        rows_get(row, "free", free_, sizeof(free_));
        rows_get(row, "pool", name, sizeof(name));
        rows_get(row, "state", state, sizeof(state));
        if (!strcmp(state, "no-layout"))
            report_say(v->r, WARN, "pool", name,
                "no layout yet: the first engine that declares its fields "
                "fixes them; no rows move before");
        else
            check_pool(v, name, free_);
    }
    free(copy);
}

/* cells */

static void check_tables(struct visit *v)
{
    char open_[24], used[24], draining[8], text[160];
    const char *row = ask(v, "status") ? rows_next(v->text) : NULL;

    if (!row) {
        report_say(v->r, FAIL, "status", "no answer", "see the daemon's log");
        return;
    }
    rows_get(row, "rooms_open", open_, sizeof(open_));
    rows_get(row, "draining", draining, sizeof(draining));
    rows_get(row, "attachments", used, sizeof(used));
    snprintf(text, sizeof(text),
        "%s rooms open, %s cells in use, %u free for a new engine", open_, used,
        v->cells);
    if (draining[0] == '1')
        report_say(v->r, WARN, "status", text,
            "the daemon is shutting down: new rooms are refused");
    else if (v->cells < CELLS)
        report_say(v->r, WARN, "status", text,
            "clients ask for 1024 cells: raise limits.cells");
    else
        report_say(v->r, FINE, "status", text, "");
}

static void visit(struct visit *v)
{
    uint8_t role = hello(v);

    if (role == ROLE_ANY)
        return;
    check_tables(v);
    check_pools(v);
    if (ask(v, "peers"))
        doctor_peers(v->r, v->text, is_langd(role));
    else
        report_say(v->r, FAIL, "peers", "no answer", "see the daemon's log");
}

void doctor_daemon(struct report *r, const char *path)
{
    struct visit *v = calloc(1, sizeof(*v));

    r->about = path;
    if (v && (v->text = malloc(REPORT_SIZE)) != NULL) {
        int error;

        v->r = r;
        v->s = ctl_connect(path);
        error = errno;
        doctor_path(r, path, v->s >= 0);
        if (v->s >= 0)
            visit(v);
        else if (error != ENOENT)
            doctor_reach(r, path, error);
        if (v->s >= 0)
            close(v->s);
        doctor_here(r, v->pool_bytes);
        free(v->text);
    }
    free(v);
}
