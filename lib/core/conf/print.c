/* print.c - writes a configuration as YAML that io/yaml.c reads back to the
 * same values. With comments it makes the sample files, so these always match
 * conf.def. Pure; any thread.
 *
 * Invariant: an amount is written in the largest unit that divides it.
 * Rejected: a YAML emitter (this file is shorter than the calls would be). */
#include "core/conf/table.h"

#include "base/check.h"
#include "wire/wire.h"

#include <stdarg.h>
#include <stdio.h>

#define COLUMNS 78

PRINTF_LIKE(2, 3)
static void put(struct writer *w, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    CHECK(n >= 0 && (size_t)n < sizeof(text), "%d bytes for %s", n, fmt);
    put_bytes(w, text, (size_t)n);
}

/* values */

/* True if YAML reads the text unchanged without quotes. */
static bool plain(const char *s)
{
    size_t len = strlen(s);

    if (!len || s[len - 1] == ':' || strcmp(s, "null") == 0)
        return false;
    for (const char *p = s; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                (*p >= '0' && *p <= '9') || *p == '/' || *p == '.' ||
                (p > s && strchr("_:,-*+", *p))))
            return false;
    return true;
}

static void put_text(struct writer *w, const char *s)
{
    if (plain(s)) {
        put_bytes(w, s, strlen(s));
        return;
    }
    put_u8(w, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            put_u8(w, '\\');
        put_u8(w, (uint8_t)*s);
    }
    put_u8(w, '"');
}

static void put_list(
    struct writer *w, const struct conf_list *l, unsigned indent)
{
    if (l->count == 0) {
        put(w, " []");
        return;
    }
    for (uint32_t i = 0; i < l->count; i++) {
        put(w, "\n%*s- ", (int)indent + 2, "");
        put_text(w, l->items[i]);
    }
}

/* Writes the part behind "key:". */
static void put_value(struct writer *w, const struct conf_row *row,
    const void *base, unsigned indent)
{
    const void *v = (const char *)base + row->offset;
    char amount[32];
    struct span word;

    switch (row->kind) {
    case KIND_TEXT:
        put_u8(w, ' ');
        put_text(w, v);
        break;
    case KIND_COUNT:
    case KIND_SIZE:
    case KIND_TIME:
        conf_amount(row->kind, *(const uint64_t *)v, amount, sizeof(amount));
        put(w, " %s", amount);
        break;
    case KIND_BOOL:
        put(w, *(const bool *)v ? " true" : " false");
        break;
    case KIND_NAMES:
        word = conf_word(row, *(const uint64_t *)v);
        CHECK(word.len > 0, "%s has no such word", row->key);
        put(w, " %.*s", (int)word.len, (const char *)word.p);
        break;
    case KIND_LIST:
        put_list(w, v, indent);
        break;
    }
}

void conf_value(
    const struct conf_row *row, const void *base, char *out, size_t size)
{
    const struct conf_list *l =
        (const void *)((const char *)base + row->offset);
    char text[CONF_TEXT_MAX * 2];
    struct writer w = writer_of(text, sizeof(text));
    size_t skip;

    if (row->kind != KIND_LIST)
        put_value(&w, row, base, 0);
    else
        for (uint32_t i = 0; i < l->count && !w.failed; i++)
            put(&w, i > 0 ? ", %s" : " %s", l->items[i]);
    skip = w.len > 0 && text[0] == ' ';
    CHECK(size > 4 && w.len >= skip, "%zu bytes for a value", size);
    if (w.len - skip < size && !w.failed)
        snprintf(out, size, "%.*s", (int)(w.len - skip), text + skip);
    else
        snprintf(out, size, "%.*s...", (int)min_u64(w.len - skip, size - 4),
            text + skip);
}

/* comments */

/* Makes one line of the row's sentence, its allowed values, and what a change
 * needs. */
static void comment_text(const struct conf_row *row, char *out, size_t size)
{
    uint64_t scale = row->kind == KIND_TIME ? NS_PER_MS : 1;
    const char *live = row->takes == TAKES_RELOAD ? " [reload]" : "";
    char min[32], max[32], more[128] = "";

    if (row->kind == KIND_COUNT || row->kind == KIND_SIZE ||
        row->kind == KIND_TIME) {
        conf_amount(row->kind, row->min * scale, min, sizeof(min));
        conf_amount(row->kind, row->max * scale, max, sizeof(max));
        snprintf(more, sizeof(more), " (%s to %s)", min, max);
    } else if (row->kind == KIND_NAMES) {
        snprintf(more, sizeof(more), " (%s)", row->def);
    }
    snprintf(out, size, "%s%s%s", row->doc, more, live);
}

static void put_comment(struct writer *w, const char *text, unsigned indent)
{
    size_t room = COLUMNS - indent - 2;

    CHECK(indent + 2 < COLUMNS, "a comment at column %u", indent);
    while (*text) {
        size_t n = strlen(text), cut = n;

        if (n > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--)
                ;
            CHECK(cut > 0, "a word of more than %zu columns", room);
        }
        put(w, "%*s# %.*s\n", (int)indent, "", (int)cut, text);
        text += cut;
        text += strspn(text, " ");
    }
}

/* keys */

static void put_row(struct writer *w, const struct conf_row *row,
    const char *key, const void *base, unsigned indent, bool comments)
{
    char text[384];

    if (comments) {
        comment_text(row, text, sizeof(text));
        put_comment(w, text, indent);
    }
    put(w, "%*s%s:", (int)indent, "", key);
    put_value(w, row, base, indent);
    put_u8(w, '\n');
}

/* Writes the keys of the file. Rows of one map are adjacent in conf.def, so a
 * new map begins where the word before the dot changes. */
static void put_keys(struct writer *w, const struct conf *c, bool comments)
{
    const char *map = "";
    size_t map_len = 0;

    for (size_t i = 0; i < conf_keys.count; i++) {
        const struct conf_row *row = &conf_keys.rows[i];
        const char *dot = strchr(row->key, '.');
        size_t len = dot ? (size_t)(dot - row->key) : 0;

        if (!(row->roles & c->role))
            continue;
        if (len != map_len || strncmp(row->key, map, len) != 0) {
            put(w, comments ? "\n%.*s:\n" : "%.*s:\n", (int)len, row->key);
            map = row->key;
            map_len = len;
        }
        put_row(w, row, dot ? dot + 1 : row->key, c, dot ? 2 : 0, comments);
    }
}

/* Writes one item of pools or peers. The dash is at the first key; only the
 * first item has comments. */
static void put_entry(struct writer *w, const struct conf_rows *rows,
    uint8_t role, const void *base, bool comments)
{
    bool first = true;

    CHECK(rows->list, "an entry of the file itself");
    for (size_t i = 0; i < rows->count; i++) {
        const struct conf_row *row = &rows->rows[i];
        char key[64];

        if (!(row->roles & role))
            continue;
        if (!first) {
            put_row(w, row, row->key, base, 4, comments);
            continue;
        }
        CHECK(strlen(row->key) + 2 < sizeof(key), "key %s", row->key);
        snprintf(key, sizeof(key), "- %s", row->key);
        put_row(w, row, key, base, 2, comments);
        first = false;
    }
}

bool conf_print(const struct conf *c, bool comments, struct writer *w)
{
    if (comments)
        put(w,
            "# mmx-%s: every key there is. A key that is left out has its "
            "default.\n"
            "# `mmxctl reload` or SIGHUP changes those with [reload], a "
            "restart "
            "all.\n\n",
            role_name(c->role));
    put_keys(w, c, comments);
    if (comments)
        put(w, "\n# memory that engines map; the first pool is the one they "
               "get unasked\n");
    put(w, c->pools_count ? "pools:\n" : "pools: []\n");
    for (uint32_t i = 0; i < c->pools_count; i++)
        put_entry(
            w, &conf_pool_keys, c->role, &c->pools[i], comments && i == 0);
    if (!conf_lands(c))
        return !w->failed;
    if (comments)
        put(w, "\n# encoders by name\n");
    put(w, c->peers_count ? "peers:\n" : "peers: []\n");
    for (uint32_t i = 0; i < c->peers_count; i++)
        put_entry(
            w, &conf_peer_keys, c->role, &c->peers[i], comments && i == 0);
    return !w->failed;
}
