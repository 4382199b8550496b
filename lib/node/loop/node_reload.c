/* node_reload.c - reads the configuration again while the daemon runs: for
 * SIGHUP, `mmxctl reload`, and `mmxctl conf-diff`, which changes nothing.
 *
 * Invariants: one is under way at a time, in the order in which they were asked
 * for, except that several SIGHUPs are one. All or nothing: the file and the
 * keys are read and checked completely, together with the values that stay as
 * they are, before anything changes; then only the first change can fail. Files
 * are read in one of libuv's threads, since a network mount may be slow; a
 * daemon that ends waits for that thread. All else is done by the loop's
 * thread, between two turns.
 *
 * Rejected: watching the file for changes. A half-written file would be read,
 * and its writer would not learn the result. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "io/notify.h"

#include <stdio.h>
#include <stdlib.h>

struct reload_job {
    uv_work_t work;
    struct node *node;
    uint8_t role;
    bool show; /* conf-diff: reports the differences only */
    /* the query that asked; empty: SIGHUP, or the connection has ended */
    struct list asker;
    enum err err;
    struct conf_error e;
    struct keys *keys; /* NULL: the configuration names none */
    /* read: from the file; merged: after the reload */
    struct conf read, merged;
    /* The report of the differences. */
    struct rows_out *rows; /* NULL: no query asks */
    uint32_t changed, left;
};

/* in another thread */

/* Makes j->merged. */
static enum err merge(struct reload_job *j)
{
    CHECK(j->read.role == j->role, "the file of role %u", j->read.role);
    memcpy(&j->merged, &j->read, sizeof(j->merged));
    conf_keep(&j->merged, j->node->conf);
    return conf_finish(&j->merged, "", &j->e);
}

/* Keys are checked against the configuration that will be in force. The loop
 * changes its configuration only when this function has ended. */
static void on_work(uv_work_t *w)
{
    struct reload_job *j = CONTAINER_OF(w, struct reload_job, work);
    const struct conf_source *from = j->node->reload.from;

    j->err = load_conf(from, j->role, &j->read, NULL, &j->e);
    if (j->err == OK)
        j->err = merge(j);
    if (j->err == OK && conf_secure(&j->read) == conf_secure(&j->merged))
        j->err =
            load_keys(from, &j->merged, geteuid(), getegid(), &j->keys, &j->e);
}

static void on_worked(uv_work_t *w, int status)
{
    struct reload_job *j = CONTAINER_OF(w, struct reload_job, work);

    CHECK(status == 0 && j->node->reload.job == j, "a reload ends with %d",
        status);
    j->node->reload.read = true;
}

/* beginning */

static void notify_begin(const struct node *n)
{
    if (!n->ending)
        notify_send("RELOADING=1\nMONOTONIC_USEC=%llu",
            (unsigned long long)(uv_hrtime() / 1000));
}

static void begin(struct node *n, struct query *q, bool show)
{
    struct reload_job *j = calloc(1, sizeof(*j));

    CHECK(!n->reload.job && !n->reload.read, "two reloads at a time");
    if (!j) {
        log_error("reload: no memory");
        if (q)
            admin_refuse(n, q, ERR_NO_BLOCKS, "no memory");
        return;
    }
    j->node = n;
    j->role = n->conf->role;
    j->show = show;
    list_init(&j->asker);
    if (q)
        admin_wait(q, &j->asker);
    n->reload.job = j;
    node_work(n, &j->work, on_work, on_worked);
    if (!show)
        notify_begin(n);
}

/* Begins the reload that was asked for first. */
static void begin_next(struct node *n)
{
    struct reload *r = &n->reload;
    struct query *q;

    CHECK(r->from, "a reload of no file");
    while (!r->job && (q = admin_next(&r->asked)))
        begin(n, q, false);
    if (!r->job && r->hup) {
        r->hup = false;
        begin(n, NULL, false);
    }
    while (!r->job && (q = admin_next(&r->shown)))
        begin(n, q, true);
}

static void ask(struct node *n, struct query *q, struct list *list)
{
    if (!n->reload.from) {
        admin_refuse(n, q, ERR_NOT_READY, "this daemon has no file to read");
        return;
    }
    admin_wait(q, list);
    begin_next(n);
}

void command_reload(struct node *n, struct query *q, const char *args)
{
    (void)args;
    ask(n, q, &n->reload.asked);
}

void command_conf_diff(struct node *n, struct query *q, const char *args)
{
    (void)args;
    ask(n, q, &n->reload.shown);
}

void node_reload(struct node *n)
{
    if (!n->reload.from) {
        log_info("SIGHUP: ignored, there is no file to read");
        return;
    }
    log_info("SIGHUP: reading %s again", n->reload.from->file);
    n->reload.hup = true;
    begin_next(n);
}

/* telling */

static void tell(void *ud, const char *key, const char *was, const char *is,
    const char *left)
{
    struct reload_job *j = ud;
    struct rows_out *s = j->rows;

    CHECK(j->err == OK && strlen(key) > 0, "a change of nothing");
    j->changed += !left;
    j->left += left != NULL;
    if (s) {
        s->row(s);
        s->text(s, "key", key);
        s->text(s, "running", was);
        s->text(s, "file", is);
        s->text(s, "result",
            left      ? left
            : j->show ? "a reload changes it"
                      : "changed");
    }
    if (!j->show)
        log_info("reload: %s: `%s`, in the file `%s`: %s", key, was, is,
            left ? left : "changed");
}

/* True if the two sets differ in their keys or in the order. */
static bool other_keys(const struct keys *a, const struct keys *b)
{
    return a && b && !keys_same(a, b);
}

/* Reports how many keys come and go, but not which. */
static void tell_keys(struct reload_job *j, const struct keys *now)
{
    const struct keys *next = j->keys;
    char was[64], is[64];
    uint32_t kept = 0;

    if (!other_keys(now, next))
        return;
    for (uint32_t i = 0; i < keys_count(next); i++)
        kept += keys_both(now, next, keys_bytes(next, i));
    CHECK(kept <= keys_count(now), "%u keys of %u stay", kept, keys_count(now));
    snprintf(was, sizeof(was), "%u, of which %u go", keys_count(now),
        keys_count(now) - kept);
    snprintf(is, sizeof(is), "%u, of which %u are new", keys_count(next),
        keys_count(next) - kept);
    tell(j, "keys in the files", was, is, NULL);
}

/* applying */

/* Puts the new keys in force; links whose keys are in both sets go on. On error
 * nothing has changed. */
static enum err take_keys(struct node *n, struct reload_job *j)
{
    struct keys *old = n->keys;
    enum err r;

    if (!other_keys(old, j->keys))
        return OK;
    r = links_rekey(n->links, j->keys);
    if (r != OK) {
        snprintf(j->e.text, sizeof(j->e.text),
            "control.keys: no socket for the new keys");
        return r;
    }
    tell_keys(j, old);
    n->keys = j->keys;
    j->keys = NULL;
    keys_free(&old);
    return OK;
}

/* Puts `next` in force, after conf_keep and conf_finish. */
static void put_in_force(struct node *n, const struct conf *next)
{
    struct event ev = {.type = EV_CONF};

    CHECK(n->out.count == 0, "a configuration inside a step");
    conf_take(n->conf, next);
    log_set_level((enum log_level)n->conf->log_level);
    links_limits(n->links, n->conf->timeout_hello, n->conf->limit_inbox);
    node_event(n, &ev);
}

/* Applies the configuration, or only compares it, and gathers the report. */
static void finish(struct node *n, struct reload_job *j, struct query *q)
{
    if (j->err == OK && q)
        j->rows = admin_rows(q);
    if (j->err == OK && j->show) {
        conf_diff(n->conf, &j->read, tell, j);
        tell_keys(j, n->keys);
        return;
    }
    if (j->err == OK)
        j->err = take_keys(n, j);
    if (j->err == OK) {
        conf_diff(n->conf, &j->read, tell, j);
        put_in_force(n, &j->merged);
        log_info(
            "reload: %u changed, %u left as they are", j->changed, j->left);
    }
}

static void job_free(struct reload_job **out)
{
    struct reload_job *j = *out;

    *out = NULL;
    if (!j)
        return;
    CHECK(list_empty(&j->asker), "a query waits for a reload that has ended");
    keys_free(&j->keys);
    free(j);
}

void node_reload_serve(struct node *n)
{
    struct reload_job *j = n->reload.job;
    struct query *q = admin_next(&j->asker);

    CHECK(n->reload.read, "a reload is served before it was read");
    n->reload.read = false;
    n->reload.job = NULL;
    finish(n, j, q);
    if (j->err != OK && !j->show)
        log_warn("reload: refused, nothing has changed: %s", j->e.text);
    if (q && j->err != OK)
        admin_refuse(n, q, j->err, j->e.text);
    else if (q)
        admin_answer(n, q);
    if (!j->show && !n->ending)
        notify_send("READY=1");
    job_free(&j);
    begin_next(n);
}

void node_reload_init(struct node *n, const struct conf_source *from)
{
    CHECK(!from || from->file, "a configuration from nowhere");
    n->reload.from = from;
    list_init(&n->reload.asked);
    list_init(&n->reload.shown);
}

void node_reload_fini(struct node *n)
{
    job_free(&n->reload.job);
}
