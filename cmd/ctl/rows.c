/* rows.c - reads what a daemon answers to QUERY with json = 1: an array of
 * objects whose values are strings and numbers, never nested. The text is the
 * daemon's, so it is read defensively, but anything else in it is our own bug
 * there. Rejected: a JSON library, for sixty lines and one shape. */
#include "ctl.h"

#include <string.h>

static const char *spaces(const char *p)
{
    return p + strspn(p, " \t\r\n,");
}

/* Copies a string's characters from behind its opening quote; escapes other
 * than quote and backslash are for terminals we do not trust: '?'. Returns
 * where it ends. */
static const char *string(const char *p, char *out, size_t size)
{
    size_t n = 0;

    for (; *p && *p != '"'; p++) {
        char c = *p;

        if (c == '\\' && p[1] == 'u') {
            size_t hex = strspn(p + 2, "0123456789abcdefABCDEF");

            p += 1 + (hex < 4 ? hex : 4);
            c = '?';
        } else if (c == '\\' && p[1]) {
            c = *++p;
            if (c != '"' && c != '\\')
                c = '?';
        }
        if (n + 1 < size)
            out[n++] = c;
    }
    if (size)
        out[n] = 0;
    return *p ? p + 1 : p;
}

static const char *value(const char *p, char *out, size_t size)
{
    size_t n = strcspn(p, ",}\n"), copied = n;

    if (*p == '"')
        return string(p + 1, out, size);
    if (copied + 1 > size)
        copied = size ? size - 1 : 0;
    if (size) {
        memcpy(out, p, copied);
        out[copied] = 0;
    }
    return p + n;
}

/* Reads one member. Returns NULL at the end of the object. */
static const char *member(
    const char *p, char *name, size_t name_size, char *out, size_t size)
{
    p = spaces(p);
    if (*p != '"')
        return NULL;
    p = spaces(string(p + 1, name, name_size));
    if (*p != ':')
        return NULL;
    return value(spaces(p + 1), out, size);
}

const char *rows_next(const char *row)
{
    char name[64];

    if (*row == '{')
        for (const char *p = row + 1; p; p = member(p, name, 64, NULL, 0))
            row = p;
    row = strchr(row, '{');
    return row;
}

bool rows_get(const char *row, const char *name, char *out, size_t size)
{
    char have[64];

    for (const char *p = row + 1;
         (p = member(p, have, sizeof(have), out, size)) != NULL;)
        if (strcmp(have, name) == 0)
            return true;
    out[0] = 0;
    return false;
}
