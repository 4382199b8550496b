/* report.c - the doctor's findings, one line or one object each, printed as
 * they are made so that a check that hangs is seen. */
#include "ctl.h"

#include <stdio.h>

static const char *const names[] = {"ok", "warn", "fail"};

static void json_text(const char *name, const char *s)
{
    printf("\"%s\": \"", name);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c > 0x7e)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static uint32_t all(const struct report *r)
{
    return r->count[FINE] + r->count[WARN] + r->count[FAIL];
}

void report_say(struct report *r, enum finding f, const char *check,
    const char *text, const char *advice)
{
    if (r->json) {
        fputs(all(r) ? "},\n{" : "[\n{", stdout);
        json_text("daemon", r->about);
        fputs(", ", stdout);
        json_text("check", check);
        fputs(", ", stdout);
        json_text("result", names[f]);
        fputs(", ", stdout);
        json_text("text", text);
        fputs(", ", stdout);
        json_text("advice", advice);
    } else {
        printf("%-4s  %-8s  %s%s%s\n", names[f], check, text,
            advice[0] ? " -> " : "", advice);
    }
    r->count[f]++;
    fflush(stdout);
}

void report_end(const struct report *r)
{
    if (r->json)
        fputs(all(r) ? "}\n]\n" : "[]\n", stdout);
    else
        printf("%u ok, %u warn, %u fail\n", r->count[FINE], r->count[WARN],
            r->count[FAIL]);
}
