/* json.c - reports as JSON, for programs: as sent by the daemon, with
 * translations that only this host can make (of a user's number, or a moment of
 * its clock). One thread. */
#include "ctl.h"

#include "base/check.h"

#include <pwd.h>
#include <stdio.h>

bool cell_named(const struct cell *c, const char **name, char out[NAMED_TEXT])
{
    const struct passwd *user;

    if (c->kind != CELL_NUMBER)
        return false;
    if (span_eq(c->name, span_str("opened_ns"))) {
        *name = "opened";
        clock_text(c->number, true, out);
        return true;
    }
    if (!span_eq(c->name, span_str("uid")))
        return false;
    *name = "user";
    user = getpwuid((uid_t)c->number);
    if (user)
        snprintf(out, NAMED_TEXT, "%s", user->pw_name);
    else
        snprintf(out, NAMED_TEXT, "%llu", (unsigned long long)c->number);
    return true;
}

static void json_text(
    struct writer *w, struct json *json, const char *name, const char *text)
{
    json_cell(
        w, json, &(struct cell){CELL_TEXT, span_str(name), span_str(text), 0});
}

void rows_json_part(struct json *json, struct reader rows, const char *daemon)
{
    /* A cell never needs more as JSON. */
    static uint8_t out[64 + 6 * (ROWS_NAME_MAX + ROWS_TEXT_MAX)];
    struct writer w = writer_of(out, sizeof(out));
    char text[NAMED_TEXT];
    const char *name;
    struct cell c;

    for (; cell_get(&rows, &c); w.len = 0) {
        if (json->rows || c.kind == CELL_ROW)
            json_cell(&w, json, &c);
        if (daemon && c.kind == CELL_ROW)
            json_text(&w, json, "daemon", daemon);
        if (cell_named(&c, &name, text))
            json_text(&w, json, name, text);
        CHECK(!w.failed, "a cell of %u bytes", c.text.len);
        fwrite(w.p, 1, w.len, stdout);
    }
}

void rows_json_end(const struct json *json)
{
    uint8_t out[8];
    struct writer w = writer_of(out, sizeof(out));

    json_end(&w, json);
    fwrite(w.p, 1, w.len, stdout);
}

void rows_json(struct reader rows)
{
    struct json json = {0};

    rows_json_part(&json, rows, NULL);
    rows_json_end(&json);
}
