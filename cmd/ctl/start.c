/* start.c - the doctor's checks of a daemon that does not answer: what would
 * prevent its start with this configuration, by the same checks as the start,
 * and the last lines in its unit's log.
 *
 * Rejected: running mmx-langd --check-config. An engine's container does not
 * have it, and it skips what a running daemon may hold. */
#include "ctl.h"

#include "base/check.h"
#include "io/unit.h"
#include "io/host.h"
#include "node/load.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINES 5 /* lines of the unit's log */

struct start {
    struct findings *r;
    const struct conf_source *from;
    const struct conf *c;
};

static void say_finding(void *ud, const struct host_finding *f)
{
    struct start *s = ud;
    struct conf_error e = {0};

    snprintf(e.text, sizeof(e.text), "%s", f->text);
    load_place(s->from, s->c, &e);
    findings_say(s->r, f->fatal ? FAIL : WARN, "start", e.text, f->mend);
}

/* Reports the log of the unit's last run, if the journal can be read. */
static void say_log(struct findings *r, const char *role)
{
    char command[128], advice[96], line[512];
    FILE *f;

    if (!unit_installed(role))
        return;
    snprintf(command, sizeof(command),
        "journalctl -q --no-pager -o cat -n %d -u mmx-%s.service 2>/dev/null",
        LINES, role);
    snprintf(advice, sizeof(advice), "journalctl -u mmx-%s has more", role);
    f = popen(command, "re");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        findings_say(r, WARN, "log", line, advice);
    }
    if (f)
        pclose(f);
}

void doctor_start(struct findings *r, const char *file, uint8_t role)
{
    static struct conf c; /* large */
    const struct conf_source from = {.file = file};
    struct start s = {r, &from, &c};
    struct keys *keys = NULL;
    struct runs_as as = unit_runs_as(role_name(role));
    struct conf_error e;
    char advice[128], text[160];
    uint32_t before = r->count[WARN] + r->count[FAIL];
    enum err err;

    CHECK(role == ROLE_LANGD || role == ROLE_ENCODED, "role %u", role);
    snprintf(advice, sizeof(advice),
        "mend it; mmx-%s --check-config FILE says when it is good",
        role_name(role));
    err = load_conf(&from, role, &c, NULL, &e);
    if (err == OK)
        host_check(&c, true, say_finding, &s);
    if (err == OK && geteuid() == 0) /* only root may read the keys */
        err = load_keys(&from, &c, as.uid, as.gid, &keys, &e);
    keys_free(&keys);
    if (err != OK)
        findings_say(r, FAIL, "start", e.text, advice);
    snprintf(text, sizeof(text),
        "nothing on this host keeps mmx-%s from starting", role_name(role));
    if (r->count[WARN] + r->count[FAIL] == before)
        findings_say(r, FINE, "start", text, "");
    say_log(r, role_name(role));
}
