/* answers.c - asks all daemons for their reports at the same time, as mmxctl
 * does, so that one that hangs does not delay the others. Rejected: a thread
 * for each daemon. They would all share the library's single thread. */
#include "exporter.h"

#include "base/check.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 50 };

static const char *const words[SAID_COUNT] = {
    [SAID_STATUS] = "status",
    [SAID_STATS] = "stats",
    [SAID_ENDS] = "ends",
    [SAID_POOLS] = "pools",
    [SAID_PEERS] = "peers",
    [SAID_ROOMS] = "rooms",
    [SAID_SLOW] = "slow",
    [SAID_BUCKETS] = "buckets",
    [SAID_HEALTH] = "health",
};

/* The state of asking one daemon. */
struct asked_one {
    struct daemon *d;
    struct ctl *c; /* NULL: not connected */
    bool greeted;  /* WELCOME came */
    unsigned what; /* the report that comes next */
    bool over;
};

/* Stores a report; a refused one is empty. */
static bool keep(struct daemon *d, unsigned what, const struct ctl *c)
{
    d->memory[what] = malloc(c->got.len + 1);
    if (!d->memory[what])
        return false;
    memcpy(d->memory[what], c->got.p, c->got.len);
    d->said[what] = reader_of(d->memory[what], c->got.len);
    return true;
}

/* Handles a message, and asks for the next report. False: stop asking. */
static bool take(struct asked_one *a, const struct local_msg *m)
{
    if (!a->greeted) {
        a->greeted = m->type == LOCAL_WELCOME;
        return a->greeted && ctl_query(a->c, words[a->what]);
    }
    if (!ctl_take(a->c, m))
        return true;
    if (m->type == LOCAL_REPORT && !m->report.err && !keep(a->d, a->what, a->c))
        return false;
    a->d->up = ++a->what == SAID_COUNT;
    return !a->d->up && ctl_query(a->c, words[a->what]);
}

/* Receives the next packet. */
static void hear(struct asked_one *a)
{
    struct local_msg m = {0};

    do
        a->over = !ctl_next(a->c, &m) || !take(a, &m);
    while (!a->over && a->c->in.at < a->c->in.len);
}

/* Connects if it is not connected; a daemon whose queue of connections is full
 * may only be busy. */
static void connect_to(struct asked_one *a)
{
    a->c = ctl_open(a->d->path, 0);
    a->over = a->c ? !ctl_greet(a->c, 1) : errno != EAGAIN;
}

/* Waits for daemons with reports to come, and reads their packets. False: no
 * daemon is left. */
static bool go_on(struct asked_one *all, uint32_t count, uint64_t left_ns)
{
    struct pollfd waits[DAEMONS_MAX];
    int ms = (int)(left_ns / NS_PER_MS) + 1;
    bool more = false;

    for (uint32_t i = 0; i < count; i++) {
        struct asked_one *a = &all[i];

        if (!a->over && !a->c)
            connect_to(a);
        if (!a->over && !a->c && ms > AGAIN_MS)
            ms = AGAIN_MS;
        waits[i] = (struct pollfd){
            .fd = a->over || !a->c ? -1 : a->c->s, .events = POLLIN};
        more |= !a->over;
    }
    if (!more || poll(waits, count, ms) < 0)
        return more && errno == EINTR;
    for (uint32_t i = 0; i < count; i++)
        if (waits[i].revents)
            hear(&all[i]);
    return true;
}

void daemons_ask(struct daemon *d, uint32_t count, unsigned wait_s)
{
    uint64_t now = clock_ns(), until_ns = now + wait_s * NS_PER_S;
    struct asked_one all[DAEMONS_MAX] = {0};

    CHECK(count <= DAEMONS_MAX, "%u daemons to ask", count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(!d[i].up, "%s is asked twice", d[i].label);
        all[i].d = &d[i];
    }
    while (now < until_ns && go_on(all, count, until_ns - now))
        now = clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].c)
            ctl_close(all[i].c);
        d[i].silent = !d[i].up;
        if (d[i].silent) /* do not show a part as the whole */
            daemon_forget(&d[i]);
    }
}

void daemon_forget(struct daemon *d)
{
    for (unsigned i = 0; i < SAID_COUNT; i++)
        free(d->memory[i]);
    memset(d->said, 0, sizeof(d->said));
    memset(d->memory, 0, sizeof(d->memory));
    d->up = false;
}

double row_number(struct reader row, const char *column)
{
    char text[32];
    double value;

    CHECK(row.at <= row.len, "a row of %zu bytes at %zu", row.len, row.at);
    rows_get(row, column, text, sizeof(text));
    value = strtod(text, NULL);
    return value > 0 && isfinite(value) ? value : 0;
}
