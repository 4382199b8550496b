/* json.c - reports as JSON, for programs: as sent by the daemon, with
 * translations that only this host can make (of a user's number, or a moment of
 * its clock). One thread. */
#include "ctl.h"

#include "base/text.h"

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

/* Prints a string. Names come from engines: bytes that are not UTF-8 become a
 * question mark, control characters are escaped. */
static void print_string(struct span s)
{
    size_t len;

    putchar('"');
    for (size_t at = 0; at < s.len; at += max_u64(len, 1)) {
        unsigned char c = s.p[at];

        len = text_char((const char *)s.p + at, s.len - at);
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else if (len)
            fwrite(s.p + at, 1, len, stdout);
        else
            putchar('?');
    }
    putchar('"');
}

static void print_cell(struct json *json, const struct cell *c)
{
    if (c->kind == CELL_ROW) {
        fputs(json->rows ? "},\n{" : "[\n{", stdout);
        *json = (struct json){.rows = true};
    } else if (json->rows) {
        fputs(json->cells ? ", " : "", stdout);
        json->cells = true;
        print_string(c->name);
        fputs(": ", stdout);
        if (c->kind == CELL_TEXT)
            print_string(c->text);
        else
            printf("%llu", (unsigned long long)c->number);
    }
}

static void print_text(struct json *json, const char *name, const char *text)
{
    print_cell(
        json, &(struct cell){CELL_TEXT, span_str(name), span_str(text), 0});
}

void rows_json_part(struct json *json, struct reader rows, const char *daemon)
{
    char text[NAMED_TEXT];
    const char *name;
    struct cell c;

    while (cell_get(&rows, &c)) {
        print_cell(json, &c);
        if (daemon && c.kind == CELL_ROW)
            print_text(json, "daemon", daemon);
        if (cell_named(&c, &name, text))
            print_text(json, name, text);
    }
}

void rows_json_end(const struct json *json)
{
    fputs(json->rows ? "}\n]\n" : "[]\n", stdout);
}

void rows_json(struct reader rows)
{
    struct json json = {0};

    rows_json_part(&json, rows, NULL);
    rows_json_end(&json);
}
