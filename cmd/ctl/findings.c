/* findings.c - the doctor's findings, one line or one object each. Each is
 * printed at once, so that a check that hangs can be seen. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

static const char *const names[] = {"ok", "warn", "fail"};
_Static_assert(ARRAY_LEN(names) == FAIL + 1, "a finding without a name");

static void print_json(struct findings *r, enum finding f, const char *check,
    const char *text, const char *advice)
{
    static char out[1u << 20]; /* must hold a path of the command line */
    struct writer w = writer_of(out, sizeof(out));

    rows_put(&w);
    rows_put_text(&w, "daemon", r->about);
    rows_put_text(&w, "check", check);
    rows_put_text(&w, "result", names[f]);
    rows_put_text(&w, "text", text);
    rows_put_text(&w, "advice", advice);
    CHECK(!w.failed, "a finding of %s does not fit", check);
    rows_json_part(&r->json, reader_of(out, w.len), NULL);
}

void findings_say(struct findings *r, enum finding f, const char *check,
    const char *text, const char *advice)
{
    static char clean[1u << 16]; /* has names and texts of daemons */

    CHECK((f == FINE) == (advice[0] == 0), "%s: %s", check, advice);
    text_copy(span_str(text), clean, sizeof(clean));
    if (r->as_json)
        print_json(r, f, check, text, advice);
    else
        printf("%-4s  %-8s  %s%s%s\n", names[f], check, clean,
            advice[0] ? " -> " : "", advice);
    r->count[f]++;
    fflush(stdout);
}

void findings_hold(struct findings *r, bool fine, enum finding bad,
    const char *check, const char *text, const char *advice)
{
    findings_say(r, fine ? FINE : bad, check, text, fine ? "" : advice);
}

void findings_end(const struct findings *r)
{
    if (r->as_json)
        rows_json_end(&r->json);
    else
        printf("%u ok, %u warn, %u fail\n", r->count[FINE], r->count[WARN],
            r->count[FAIL]);
}
