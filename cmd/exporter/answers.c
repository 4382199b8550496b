/* answers.c - asks a daemon for its reports, as mmxctl does. */
#include "exporter.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_S = 4 }; /* for each daemon; Prometheus waits 10 s for both */

static const char *const words[SAID_COUNT] = {
    [SAID_STATUS] = "status",
    [SAID_STATS] = "stats",
    [SAID_ENDS] = "ends",
    [SAID_POOLS] = "pools",
    [SAID_PEERS] = "peers",
    [SAID_ROOMS] = "rooms",
    [SAID_HISTOGRAMS] = "histograms",
    [SAID_BUCKETS] = "buckets",
    [SAID_HEALTH] = "health",
};

/* Asks for one report and keeps its rows. False: the daemon is gone; a report
 * that it refuses is empty. */
static bool ask(struct ctl *c, struct daemon *d, unsigned what)
{
    struct local_msg m = {0};

    if (!ctl_ask(c, words[what], FORM_ROWS, &m))
        return m.type == LOCAL_ANSWER || m.type == LOCAL_REPORT;
    d->memory[what] = malloc(c->got.len + 1);
    if (!d->memory[what])
        return false;
    memcpy(d->memory[what], c->got.p, c->got.len);
    d->said[what] = reader_of(d->memory[what], c->got.len);
    return true;
}

static bool greet(struct ctl *c)
{
    struct local_msg m = {0};

    return ctl_hello(c, 1, &m) && m.type == LOCAL_WELCOME &&
           has_ability(m.welcome.abilities, LOCAL_CAN_ROWS);
}

void daemon_ask(struct daemon *d)
{
    uint64_t until_ns = ctl_now_ns() + WAIT_S * NS_PER_S;
    struct ctl *c = ctl_open(d->path, WAIT_S);

    CHECK(!d->up, "%s is asked twice", d->label);
    if (!c)
        return;
    c->until_ns = until_ns;
    d->up = greet(c);
    for (unsigned i = 0; i < SAID_COUNT && d->up; i++)
        d->up = ask(c, d, i);
    ctl_close(c);
    if (!d->up) /* a part of what it says would look like the whole */
        daemon_forget(d);
}

void daemon_forget(struct daemon *d)
{
    for (unsigned i = 0; i < SAID_COUNT; i++)
        free(d->memory[i]);
    *d = (struct daemon){.label = d->label, .path = d->path};
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
