/* doctor.c - mmxctl doctor: does what an engine does, step by step, and reports
 * each result and how to correct it. It opens no room and changes nothing; it
 * maps a pool only for a moment.
 *
 * Rejected: asking the daemon for its health. Most faults of engines are
 * outside of it: folders, groups, namespaces, limits. */
#include "ctl.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOBODY 65534
#define CELLS  1024 /* default of clients */

/* The checks of one daemon. */
struct visit {
    struct findings *r;
    struct ctl *c;
    struct seen *seen;
    uint64_t pool_bytes;
    uint32_t cells;
};

static bool is_langd(uint8_t role)
{
    return role == ROLE_LANGD;
}

/* hello */

/* Returns our id outside of this user namespace, from the kernel's map. */
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

static void say_seen(struct findings *r, const struct local_welcome *w)
{
    uint32_t uid = mapped("/proc/self/uid_map", (uint32_t)geteuid());
    char text[160];

    snprintf(
        text, sizeof(text), "the daemon sees uid %u, gid %u", w->uid, w->gid);
    if (w->uid == uid)
        findings_say(r, FINE, "seen", text, "");
    else if (w->uid == NOBODY)
        findings_say(r, WARN, "seen", text,
            "the daemon cannot see your uid: it runs in a user namespace "
            "(PrivateUsers=yes) or you do; pools[].uids will refuse you");
    else
        findings_say(r, WARN, "seen", text,
            "not your uid: you are in different user namespaces; add the uid "
            "that the daemon sees to pools[].uids");
}

static void say_welcome(struct findings *r, const struct local_welcome *w)
{
    char text[512], version[40];

    span_copy_str(w->software, version, sizeof(version));
    snprintf(text, sizeof(text), "%s %.*s, mmx %s, protocol %u",
        is_langd(w->role) ? "langd" : "encoded", (int)w->name.len,
        (const char *)w->name.p, version, w->version);
    findings_hold(r, !strcmp(version, MMX_VERSION), WARN, "daemon", text,
        "this mmxctl is " MMX_VERSION ": fine as long as the protocols match");
    if (!is_langd(w->role)) {
        snprintf(text, sizeof(text), "advertised to routers as %.*s",
            (int)w->advertise.len, (const char *)w->advertise.p);
        findings_hold(r,
            !strstr(text, "//127.") && !strstr(text, "//localhost"), WARN,
            "address", text,
            "only this host can reach it: set control.listen or "
            "control.advertise for other hosts");
    }
    say_seen(r, w);
}

/* Returns the daemon's role; ROLE_ANY: no answer, or not a daemon's. */
static uint8_t hello(struct visit *v)
{
    struct local_msg m;
    char text[520];

    if (!ctl_hello(v->c, CELLS, &m)) {
        findings_say(v->r, FAIL, "hello",
            errno ? strerror(errno) : "connection closed",
            "check that this is an mmx daemon, and see its log");
    } else if (m.type != LOCAL_WELCOME) {
        span_copy_str(m.type == LOCAL_ANSWER
                          ? m.answer.text
                          : span_str("unexpected answer to HELLO"),
            text, sizeof(text));
        findings_say(v->r, FAIL, "hello", text,
            "install the same version of mmx on both sides");
    } else {
        v->cells = m.welcome.cells;
        v->seen->role = m.welcome.role;
        say_welcome(v->r, &m.welcome);
        return m.welcome.role;
    }
    return ROLE_ANY;
}

/* Asks for a report; v->c->got has its rows. */
static bool ask(struct visit *v, const char *what)
{
    struct local_msg m;

    CHECK(v->c, "%s without a connection", what);
    if (ctl_ask(v->c, what, &m))
        return true;
    findings_say(v->r, FAIL, what, "no answer", "see the daemon's log");
    return false;
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
    char why[520], text[600];

    if (m->answer.err == ERR_NOT_OWNER)
        advice = "add your uid, as the daemon sees it, to pools[].uids";
    if (m->answer.err == ERR_NOT_READY)
        advice = "layout: engine; the first engine that declares its fields "
                 "fixes them: mmx_pool(m, name, layout, ...)";
    span_copy_str(m->answer.text, why, sizeof(why));
    snprintf(text, sizeof(text), "%s: %s", name, why);
    findings_say(v->r, m->answer.err == ERR_NOT_READY ? WARN : FAIL, "pool",
        text, advice);
}

static void check_pool(struct visit *v, const char *name, const char *free_)
{
    struct local_msg m = {.type = LOCAL_POOL};
    char how[256], layout[600], text[1024];
    bool ok;

    m.pool.name = span_str(name);
    if (!ctl_send(v->c, &m) || !ctl_next(v->c, &m) ||
        (m.type != LOCAL_POOL_INFO && m.type != LOCAL_ANSWER)) {
        findings_say(
            v->r, FAIL, "pool", name, "no answer: see the daemon's log");
    } else if (m.type == LOCAL_ANSWER) {
        say_pool_refused(v, name, &m);
    } else {
        ok = try_map(&m.pool_info, v->c->fd, how);
        span_copy_str(m.pool_info.layout, layout, sizeof(layout));
        snprintf(text, sizeof(text),
            "%s: %s, %s of %u blocks of %u rows free, %s", name, how, free_,
            m.pool_info.blocks, m.pool_info.block_rows, layout);
        findings_hold(v->r, ok, FAIL, "pool", text,
            "check security modules and ulimit -v: an engine maps all of it");
        v->pool_bytes += m.pool_info.bytes;
    }
}

static void check_pools(struct visit *v)
{
    struct reader row;

    if (!ask(v, "pools"))
        return;
    while (rows_next(&v->c->got, &row)) {
        char name[65], state[32], free_[24];

        rows_get(row, "free", free_, sizeof(free_));
        rows_get(row, "pool", name, sizeof(name));
        rows_get(row, "state", state, sizeof(state));
        if (!strcmp(state, "no-layout"))
            findings_say(v->r, WARN, "pool", name,
                "no layout yet: the first engine that declares its fields "
                "fixes them; no rows move before");
        else
            check_pool(v, name, free_);
    }
}

/* cells */

/* Reports which carriers rows can take here, and why not others. */
static void say_carriers(const struct visit *v)
{
    const char *not_by = v->seen->not_by;
    char text[sizeof(v->seen->carriers) + sizeof(v->seen->not_by) + 40];

    snprintf(text, sizeof(text), "rows between hosts go by %s%s%s",
        v->seen->carriers, not_by[0] ? "; not by " : "", not_by);
    findings_hold(v->r, !strstr(not_by, "cannot encrypt"), WARN, "carrier",
        text,
        "if the network of transfer.devices is fenced, set "
        "transfer.trusted_network: true; else set transfer.carrier: tcp");
}

static void check_tables(struct visit *v)
{
    char open_[24], used[24], draining[8], control[64], text[160];
    struct reader row;

    if (!ask(v, "status") || !rows_next(&v->c->got, &row))
        return;
    rows_get(row, "rooms_open", open_, sizeof(open_));
    rows_get(row, "draining", draining, sizeof(draining));
    rows_get(row, "attachments", used, sizeof(used));
    rows_get(row, "control", control, sizeof(control));
    if (!strncmp(control, "insecure", strlen("insecure")))
        findings_say(v->r, WARN, "keys", control,
            "any program that reaches a port can act as a daemon: mmxctl "
            "keygen /etc/mmx/fleet.key, and control.keys instead of insecure");
    rows_get(row, "carriers", v->seen->carriers, sizeof(v->seen->carriers));
    rows_get(row, "not_by", v->seen->not_by, sizeof(v->seen->not_by));
    say_carriers(v);
    snprintf(text, sizeof(text),
        "%s rooms open, %s cells in use, %u free for a new engine", open_, used,
        v->cells);
    if (draining[0] == '1')
        findings_say(v->r, WARN, "status", text,
            "the daemon drains: new rooms are refused");
    else
        findings_hold(v->r, v->cells >= CELLS, WARN, "status", text,
            "clients ask for 1024 cells: raise limits.attachments");
}

static void visit(struct visit *v)
{
    uint8_t role = hello(v);

    if (role == ROLE_ANY)
        return;
    check_tables(v);
    check_pools(v);
    if (ask(v, "peers"))
        doctor_peers(v->r, v->c->got, is_langd(role));
}

void doctor_daemon(struct findings *r, const char *path, struct seen *seen)
{
    struct visit v = {.r = r, .c = ctl_open(path, CTL_WAIT_S), .seen = seen};
    int error = errno;

    r->about = path;
    doctor_path(r, path, v.c != NULL);
    if (v.c)
        visit(&v);
    else if (error != ENOENT)
        doctor_reach(r, path, error);
    if (v.c)
        ctl_close(v.c);
    doctor_here(r, v.pool_bytes);
}
