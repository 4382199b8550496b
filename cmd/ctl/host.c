/* host.c - the daemons that a command line is about: at the sockets it names,
 * or at all sockets in /run/mmx; and their reports, one below the other. A
 * socket without a daemon, left by one that was killed, is reported on stderr
 * and skipped. Blocking, one thread.
 *
 * Rejected: JSON with an object per daemon. A reader of one daemon's report can
 * read that of two if only a column is added. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"
#include "io/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const ctl_sockets[HOST_MAX] = {CTL_ENCODED, CTL_LANGD};
_Static_assert(ARRAY_LEN(ctl_sockets) == ROLE_LANGD, "one for each role");

static int complain(const char *about, const char *why)
{
    fprintf(stderr, "mmxctl: %s: %s\n", about, why);
    return CTL_NO_DAEMON;
}

static const char *why_not(void)
{
    return errno == ECONNREFUSED ? "no daemon is listening" : strerror(errno);
}

uint32_t host_sockets(
    const struct asked *a, bool dead, const char *here[HOST_MAX])
{
    uint32_t count = 0;

    if (a->also)
        here[count++] = a->also;
    if (a->path)
        here[count++] = a->path;
    for (uint32_t i = 0; i < HOST_MAX && !a->path; i++)
        if (ctl_listens(ctl_sockets[i]) ||
            (dead &&
                (errno != ENOENT || unit_enabled(role_name((uint8_t)(i + 1))))))
            here[count++] = ctl_sockets[i];
        else if (errno != ENOENT)
            complain(ctl_sockets[i], why_not());
    if (count == 0)
        fputs("mmxctl: no daemon listens in /run/mmx: mmxctl doctor says why, "
              "--socket PATH asks another\n",
            stderr);
    CHECK(count <= HOST_MAX, "%u sockets", count);
    return count;
}

/* Connects to the host's next daemon. Returns an exit status. */
static int open_side(struct host *h, const char *path)
{
    struct host_side *s = &h->sides[h->count];
    struct local_msg m = {0};

    s->c = ctl_open(path, CTL_WAIT_S);
    if (!s->c)
        return complain(path, why_not());
    h->count++;
    if (!ctl_hello(s->c, 1, &m) || m.type != LOCAL_WELCOME)
        return ctl_failed(&m);
    s->role = m.welcome.role;
    text_copy(m.welcome.name, s->name, sizeof(s->name));
    return CTL_SHOWN;
}

int host_open(
    struct host *h, const char *const *paths, uint32_t count, bool named)
{
    int status = CTL_SHOWN;

    CHECK(count > 0 && count <= HOST_MAX, "%u daemons", count);
    *h = (struct host){.named = named};
    for (uint32_t i = 0; i < count && status == CTL_SHOWN; i++)
        status = open_side(h, paths[i]);
    if (status != CTL_SHOWN)
        host_close(h);
    return status;
}

void host_close(struct host *h)
{
    for (uint32_t i = 0; i < h->count; i++)
        ctl_close(h->sides[i].c);
    h->count = 0;
}

/* reports */

static bool changes_are(const char *what)
{
    return !strcmp(what, "reload") || !strcmp(what, "conf-diff");
}

/* Prints the report of one daemon for people. any: it has rows. */
static void print(
    const struct host *h, const struct host_side *s, const char *what, bool any)
{
    bool conf = !strcmp(what, "conf");
    struct reader rest = s->c->got, row;
    struct cell c;

    if (h->count > 1)
        printf("%s%s%s (%s):\n", s == h->sides ? "" : "\n", conf ? "# " : "",
            s->name, role_name(s->role));
    if (conf && rows_next(&rest, &row) && cell_get(&row, &c))
        fwrite(c.text.p, 1, c.text.len, stdout);
    else if (!conf && (any || !changes_are(what)))
        rows_table(s->c->got, !strcmp(what, "status"));
    else if (!conf)
        puts("the file says what is in force");
}

/* Asks each daemon and prints what it answers. Returns the worst status. */
static int show_once(struct host *h, const char *what, const struct asked *a)
{
    int status = CTL_SHOWN;
    struct local_msg m = {0};
    struct json json = {0};

    for (uint32_t i = 0; i < h->count; i++) {
        struct host_side *s = &h->sides[i];
        bool good = ctl_ask(s->c, what, &m);
        struct reader rest = s->c->got, row;
        bool any = good && rows_next(&rest, &row);
        int one = !good                               ? ctl_failed(&m)
                  : any && !strcmp(what, "conf-diff") ? CTL_DIFFERS
                                                      : CTL_SHOWN;

        if (i == 0)
            rows_again(a, what);
        if (good && a->json)
            rows_json_part(&json, s->c->got, h->named ? NULL : s->name);
        else if (good)
            print(h, s, what, any);
        /* A failure is worse than a difference. */
        if (one != CTL_SHOWN && (status == CTL_SHOWN || status == CTL_DIFFERS))
            status = one;
    }
    if (a->json)
        rows_json_end(&json);
    return fflush(stdout) == 0 ? status : CTL_REFUSED;
}

int host_show(struct host *h, const char *what, const struct asked *a)
{
    const struct timespec rest = {.tv_sec = (time_t)a->watch_s};
    int status = show_once(h, what, a);

    while (a->watch_s && status == CTL_SHOWN) {
        nanosleep(&rest, NULL);
        status = show_once(h, what, a);
    }
    return status;
}
