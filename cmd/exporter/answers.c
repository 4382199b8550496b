/* answers.c - asks the daemons for their reports, one after the other. A daemon
 * that hangs delays the others by GREETING_S, one that hangs in the middle of
 * its reports by REPORTS_S more; Prometheus waits for 10 s. Rejected: asking
 * all at the same time, which needs a second way to read reports. */
#include "exporter.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GREETING_S = 1, REPORTS_S = 3 };

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

/* Stores a report. */
static bool keep(struct daemon *d, unsigned what, const struct ctl *c)
{
    d->memory[what] = malloc(c->got.len + 1);
    if (!d->memory[what])
        return false;
    memcpy(d->memory[what], c->got.p, c->got.len);
    d->said[what] = reader_of(d->memory[what], c->got.len);
    return true;
}

/* Asks for all reports; a refused one is not stored. False: not all were
 * answered. */
static bool ask(struct daemon *d, struct ctl *c)
{
    struct local_msg m;

    if (!ctl_hello(c, 1, &m) || m.type != LOCAL_WELCOME)
        return false;
    c->until_ns = clock_ns() + REPORTS_S * NS_PER_S;
    for (unsigned i = 0; i < SAID_COUNT; i++)
        if (ctl_ask(c, words[i], &m)
                ? !keep(d, i, c)
                : m.type != LOCAL_ANSWER &&
                      (m.type != LOCAL_REPORT || !m.report.err))
            return false;
    return true;
}

void daemons_ask(struct daemon *d, uint32_t count)
{
    for (; count > 0; count--, d++) {
        uint64_t until_ns = clock_ns() + GREETING_S * NS_PER_S;
        struct ctl *c = ctl_open(d->path, GREETING_S);

        CHECK(!d->up, "%s is asked twice", d->label);
        if (c) {
            c->until_ns = until_ns;
            d->up = ask(d, c);
            ctl_close(c);
        }
        if (!d->up) /* do not show a part as the whole */
            daemon_forget(d);
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
