/* conf.c - turns text into configuration values, row by row of conf.def, and
 * explains errors in words. conf/check.c has the checks of the whole,
 * conf/print.c the writing.
 *
 * Invariants: a value in a struct conf is always within its row's limits
 * (except COUNTs without a default, which are 0 until set); on error nothing of
 * struct conf has changed. Pure; any thread.
 *
 * Rejected: a callback per key (forty functions that differ in a number). */
#include "core/conf/table.h"

#include "base/check.h"
#include "base/text.h"
#include "wire/wire.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    ROLES_E = ROLE_ENCODED,
    ROLES_L = ROLE_LANGD,
    ROLES_EL = ROLE_ENCODED | ROLE_LANGD
};

/* the table */

#define ROW(type, field, key, KIND, def, min, max, ROLES, TAKES, doc)          \
    {key, def, doc, KIND_##KIND, ROLES_##ROLES, TAKES_##TAKES, min, max,       \
        offsetof(type, field)},

#define KEY(...) ROW(struct conf, __VA_ARGS__)
static const struct conf_row keys[] = {
#include "core/conf/conf.def"
};
#define POOL_KEY(...) ROW(struct conf_pool, __VA_ARGS__)
static const struct conf_row pool_keys[] = {
#include "core/conf/conf.def"
};
#define PEER_KEY(...) ROW(struct conf_peer, __VA_ARGS__)
static const struct conf_row peer_keys[] = {
#include "core/conf/conf.def"
};

/* Checks the rows against the structs that they fill in. */
#define LIMIT_TEXT  CONF_TEXT_MAX
#define LIMIT_LIST  (sizeof((struct conf_list){0}.items[0]) - 1)
#define LIMIT_COUNT UINT64_MAX
#define LIMIT_SIZE  UINT64_MAX
#define LIMIT_TIME  (UINT64_MAX / NS_PER_MS)
#define LIMIT_BOOL  0
#define LIMIT_NAMES 15
#define GOOD(KIND, key, min, max)                                              \
    _Static_assert((min) <= (max) && (max) <= LIMIT_##KIND, key);
#define KEY(field, key, KIND, def, min, max, ROLES, TAKES, doc)                \
    GOOD(KIND, key, min, max)
#define POOL_KEY KEY
#define PEER_KEY KEY
#include "core/conf/conf.def"

const struct conf_rows conf_keys = {NULL, keys, ARRAY_LEN(keys)};
const struct conf_rows conf_pool_keys = {
    "pools", pool_keys, ARRAY_LEN(pool_keys)};
const struct conf_rows conf_peer_keys = {
    "peers", peer_keys, ARRAY_LEN(peer_keys)};

/* Largest first; a row without a name ends the list. */
struct unit {
    const char *name;
    uint64_t factor;
};
static const struct unit sizes[] = {{"TiB", UINT64_C(1) << 40},
    {"GiB", 1u << 30}, {"MiB", 1u << 20}, {"KiB", 1u << 10}, {"B", 1},
    {NULL, 0}};
static const struct unit times[] = {{"h", 3600 * NS_PER_S},
    {"m", 60 * NS_PER_S}, {"s", NS_PER_S}, {"ms", NS_PER_MS}, {NULL, 0}};

struct span conf_word(const struct conf_row *row, uint64_t i)
{
    const char *p = row->def;

    CHECK(row->kind == KIND_NAMES, "words of %s", row->key);
    for (; i > 0; i--) {
        p = strchr(p, '|');
        if (!p)
            return span_of("", 0);
        p++;
    }
    return span_of(p, strcspn(p, "|"));
}

void conf_amount(enum conf_kind kind, uint64_t value, char *out, size_t size)
{
    const struct unit *u = kind == KIND_SIZE ? sizes : times;

    CHECK(kind == KIND_COUNT || kind == KIND_SIZE || kind == KIND_TIME,
        "an amount of kind %d", kind);
    if (kind == KIND_COUNT) {
        snprintf(out, size, "%llu", (unsigned long long)value);
        return;
    }
    while (u[1].name && (value == 0 || value % u->factor != 0))
        u++;
    snprintf(
        out, size, "%llu%s", (unsigned long long)(value / u->factor), u->name);
}

/* errors */

enum err conf_refuse(struct conf_error *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    e->line = e->column = 0;
    return ERR_MALFORMED;
}

/* Text from the file, made safe to print: short, without control characters. */
struct shown {
    char text[68];
};

static struct shown show(struct span s)
{
    struct shown out;
    uint32_t n = min_u32(s.len, 60);

    for (uint32_t i = 0; i < n; i++)
        out.text[i] = (char)(s.p[i] < 0x20 || s.p[i] == 0x7f ? '?' : s.p[i]);
    memcpy(out.text + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return out;
}

/* paths */

enum found { FOUND_NONE, FOUND_MAP, FOUND_ITEMS, FOUND_ENTRY, FOUND_KEY };

/* The key that a path names, and its position. */
struct target {
    enum found found;
    const struct conf_rows *rows;
    const struct conf_row *row;
    uint32_t entry; /* index in pools or peers, else NONE */
    uint32_t item;  /* index in a LIST, else NONE */
};

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads "[n]" at *p and moves *p behind it. False: it is not there. */
static bool read_index(const char **p, uint32_t *out)
{
    const char *s = *p;
    uint32_t v = 0;

    if (*s++ != '[' || !digit(*s))
        return false;
    for (; digit(*s); s++) {
        v = v * 10 + (uint32_t)(*s - '0');
        if (v > 9999)
            return false;
    }
    if (*s++ != ']')
        return false;
    *out = v;
    *p = s;
    return true;
}

static bool in_role(const struct conf_row *row, uint8_t role)
{
    CHECK(role == ROLE_ENCODED || role == ROLE_LANGD, "role %u", role);
    return (row->roles & role) != 0;
}

static const struct conf_row *find_row(
    const struct conf_rows *rows, uint8_t role, const char *key, size_t len)
{
    for (size_t i = 0; i < rows->count; i++)
        if (in_role(&rows->rows[i], role) && strlen(rows->rows[i].key) == len &&
            memcmp(rows->rows[i].key, key, len) == 0)
            return &rows->rows[i];
    return NULL;
}

static bool has_keys(const struct conf_rows *rows, uint8_t role)
{
    for (size_t i = 0; i < rows->count; i++)
        if (in_role(&rows->rows[i], role))
            return true;
    return false;
}

/* True if a key begins with `path` and a dot. */
static bool is_map(uint8_t role, const char *path)
{
    size_t len = strlen(path);

    for (size_t i = 0; i < conf_keys.count; i++)
        if (in_role(&keys[i], role) && strncmp(keys[i].key, path, len) == 0 &&
            keys[i].key[len] == '.')
            return true;
    return false;
}

/* Finds a key of t->rows. Nothing may follow the key, except an index into a
 * LIST. */
static bool find_key(struct target *t, uint8_t role, const char *path)
{
    const char *end = path + strcspn(path, "[");

    t->row = find_row(t->rows, role, path, (size_t)(end - path));
    if (!t->row)
        return false;
    if (*end &&
        (t->row->kind != KIND_LIST || !read_index(&end, &t->item) || *end))
        return false;
    t->found = FOUND_KEY;
    return true;
}

/* Finds a path into pools or peers. */
static bool find_entry(struct target *t, uint8_t role,
    const struct conf_rows *rows, const char *path)
{
    size_t len;

    CHECK(rows->list && rows->count > 0, "rows of no list");
    len = strlen(rows->list);
    if (strncmp(path, rows->list, len) != 0 || !has_keys(rows, role))
        return false;
    path += len;
    t->rows = rows;
    t->found = *path ? FOUND_ENTRY : FOUND_ITEMS;
    if (!*path)
        return true;
    if (!read_index(&path, &t->entry))
        return false;
    return *path == 0 || (*path == '.' && find_key(t, role, path + 1));
}

static struct target find(uint8_t role, const char *path)
{
    struct target t = {FOUND_NONE, &conf_pool_keys, NULL, NONE, NONE};

    if (find_entry(&t, role, &conf_pool_keys, path))
        return t;
    t = (struct target){FOUND_NONE, &conf_peer_keys, NULL, NONE, NONE};
    if (find_entry(&t, role, &conf_peer_keys, path))
        return t;
    t = (struct target){FOUND_NONE, &conf_keys, NULL, NONE, NONE};
    if (find_key(&t, role, path))
        return t;
    t.found = is_map(role, path) ? FOUND_MAP : FOUND_NONE;
    return t;
}

enum conf_shape conf_shape(uint8_t role, const char *path)
{
    struct target t = find(role, path);

    switch (t.found) {
    case FOUND_NONE:
        return CONF_NOTHING;
    case FOUND_MAP:
    case FOUND_ENTRY:
        return CONF_MAP;
    case FOUND_ITEMS:
        return CONF_MAPS;
    case FOUND_KEY:
        break;
    }
    return t.row->kind == KIND_LIST && t.item == NONE ? CONF_LIST : CONF_VALUE;
}

/* unknown keys */

/* Lists the keys of the map at the path's end, or above it: the words that are
 * allowed in the place of the path's last word. */
static void list_keys(uint8_t role, const struct conf_rows *rows,
    const char *path, char *out, size_t size)
{
    const char *dot = strrchr(path, '.'), *last = "";
    size_t len = dot ? (size_t)(dot - path) + 1 : 0, used = 0;

    CHECK(size > 0 && len <= strlen(path), "keys of %s", path);
    out[0] = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const char *word = rows->rows[i].key + len;
        size_t n;

        if (!in_role(&rows->rows[i], role) ||
            strncmp(rows->rows[i].key, path, len) != 0)
            continue;
        n = strcspn(word, ".");
        if (strncmp(word, last, n) == 0 && last[n] == word[n])
            continue; /* another key of the same map */
        used += (size_t)snprintf(
            out + used, size - used, "%s%.*s", used ? " " : "", (int)n, word);
        last = word;
        CHECK(used < size, "the keys beside %s", path);
    }
    if (!rows->list && len == 0)
        snprintf(out + used, size - used, " pools%s",
            has_keys(&conf_peer_keys, role) ? " peers" : "");
}

static enum err unknown_key(
    uint8_t role, const char *path, struct conf_error *e)
{
    const struct conf_rows *rows = &conf_keys;
    struct shown shown = show(span_str(path));
    uint8_t other = role_other(role);
    char words[256];

    if (find(other, path).found != FOUND_NONE)
        return conf_refuse(e, "`%s` is a key of mmx-%s, not of mmx-%s",
            shown.text, role_name(other), role_name(role));
    if (strchr(path, '.') && strncmp(path, "pools[", 6) == 0)
        rows = &conf_pool_keys;
    else if (strchr(path, '.') && strncmp(path, "peers[", 6) == 0)
        rows = &conf_peer_keys;
    if (rows->list)
        path = strchr(path, '.') + 1;
    list_keys(role, rows, path, words, sizeof(words));
    return conf_refuse(e, "unknown key `%s`%s%s", shown.text,
        words[0] ? "; there are " : "", words);
}

/* values */

static bool clean_text(struct span s)
{
    for (uint32_t i = 0; i < s.len; i++)
        if (s.p[i] < 0x20 || s.p[i] == 0x7f)
            return false;
    return true;
}

/* Reads a number with a unit; 0 needs no unit. */
static bool read_amount(struct span s, const struct unit *units, uint64_t *out)
{
    struct span unit;
    uint32_t n = 0;
    uint64_t v;

    while (n < s.len && digit((char)s.p[n]))
        n++;
    if (!text_number(span_of(s.p, n), UINT64_MAX, &v))
        return false;
    unit = span_of(s.p + n, s.len - n);
    if (unit.len == 0 && v == 0) {
        *out = 0;
        return true;
    }
    for (; units->name; units++)
        if (span_eq(unit, span_str(units->name)))
            return !__builtin_mul_overflow(v, units->factor, out);
    return false;
}

static bool read_number(
    const struct conf_row *row, struct span value, uint64_t *out)
{
    if (row->kind == KIND_SIZE)
        return read_amount(value, sizes, out);
    if (row->kind == KIND_TIME)
        return read_amount(value, times, out);
    return text_number(value, UINT64_MAX, out);
}

static enum err set_number(const struct conf_row *row, const char *path,
    struct span value, uint64_t *out, struct conf_error *e)
{
    static const char *const what[] = {[KIND_COUNT] = "number",
        [KIND_SIZE] = "size",
        [KIND_TIME] = "duration"};
    static const char *const units[] = {[KIND_COUNT] = "",
        [KIND_SIZE] = "; units are B KiB MiB GiB TiB",
        [KIND_TIME] = "; units are ms s m h"};
    uint64_t scale = row->kind == KIND_TIME ? NS_PER_MS : 1, v;
    char min[32], max[32];

    if (read_number(row, value, &v) && v >= row->min * scale &&
        v <= row->max * scale) {
        *out = v;
        return OK;
    }
    conf_amount(row->kind, row->min * scale, min, sizeof(min));
    conf_amount(row->kind, row->max * scale, max, sizeof(max));
    return conf_refuse(e, "%s: `%s` is not a %s from %s to %s%s", path,
        show(value).text, what[row->kind], min, max, units[row->kind]);
}

static enum err set_bool(
    const char *path, struct span value, bool *out, struct conf_error *e)
{
    bool yes = span_eq(value, span_str("true"));

    if (!yes && !span_eq(value, span_str("false")))
        return conf_refuse(
            e, "%s: `%s` is not true or false", path, show(value).text);
    *out = yes;
    return OK;
}

static enum err set_names(const struct conf_row *row, const char *path,
    struct span value, uint64_t *out, struct conf_error *e)
{
    char words[128];
    size_t n = 0;

    for (uint64_t i = 0; conf_word(row, i).len; i++)
        if (span_eq(value, conf_word(row, i))) {
            *out = i;
            return OK;
        }
    for (const char *p = row->def; *p; p++) {
        CHECK(n + 3 < sizeof(words), "the words of %s", path);
        words[n++] = *p == '|' ? ',' : *p;
        if (*p == '|')
            words[n++] = ' ';
    }
    words[n] = 0;
    return conf_refuse(
        e, "%s: `%s` is not one of %s", path, show(value).text, words);
}

static enum err check_text(const struct conf_row *row, const char *path,
    struct span value, uint64_t min, struct conf_error *e)
{
    CHECK(min <= row->max, "%s: at least %llu bytes", row->key,
        (unsigned long long)min);
    if (!clean_text(value))
        return conf_refuse(
            e, "%s: `%s` has control characters", path, show(value).text);
    if (value.len == 0 && min > 0)
        return conf_refuse(e, "%s: must not be empty", path);
    if (value.len > row->max)
        return conf_refuse(e, "%s: `%s` is %u bytes long, %llu at most", path,
            show(value).text, value.len, (unsigned long long)row->max);
    return OK;
}

/* Sets item i of a list; i == count appends. */
static enum err set_item(const struct conf_row *row, const char *path,
    struct span value, uint32_t i, struct conf_list *out, struct conf_error *e)
{
    enum err r;

    CHECK(row->kind == KIND_LIST && out->count <= CONF_LIST_MAX,
        "%u items of %s", out->count, row->key);
    if (i > out->count)
        return conf_refuse(e, "%s: comes before item %u", path, out->count);
    if (i >= CONF_LIST_MAX)
        return conf_refuse(e, "%s: %d items at most", path, CONF_LIST_MAX);
    r = check_text(row, path, value, 1, e);
    if (r)
        return r;
    CHECK(value.len < sizeof(out->items[i]), "%s: %u bytes", path, value.len);
    span_copy_str(value, out->items[i], sizeof(out->items[i]));
    if (i == out->count)
        out->count++;
    return OK;
}

/* Sets a whole list, comma separated; empty text empties it. */
static enum err set_list(const struct conf_row *row, const char *path,
    struct span value, struct conf_list *out, struct conf_error *e)
{
    struct conf_list list = {.count = 0};

    while (value.len) {
        uint32_t n = 0;
        enum err r;

        while (n < value.len && value.p[n] != ',')
            n++;
        r = set_item(row, path, span_of(value.p, n), list.count, &list, e);
        if (r)
            return r;
        if (n + 1 == value.len)
            return conf_refuse(e, "%s: a comma without an item after it", path);
        n = min_u32(n + 1, value.len);
        value = span_of(value.p + n, value.len - n);
    }
    *out = list;
    return OK;
}

static enum err set_value(const struct conf_row *row, const char *path,
    struct span value, uint32_t item, void *base, struct conf_error *e)
{
    void *out = (char *)base + row->offset;
    enum err r;

    switch (row->kind) {
    case KIND_TEXT:
        r = check_text(row, path, value, row->min, e);
        if (!r)
            span_copy_str(value, out, row->max + 1);
        return r;
    case KIND_COUNT:
    case KIND_SIZE:
    case KIND_TIME:
        return set_number(row, path, value, out, e);
    case KIND_BOOL:
        return set_bool(path, value, out, e);
    case KIND_NAMES:
        return set_names(row, path, value, out, e);
    case KIND_LIST:
        if (item != NONE)
            return set_item(row, path, value, item, out, e);
        return set_list(row, path, value, out, e);
    }
    return ERR_INTERNAL;
}

/* defaults */

static void set_default(const struct conf_row *row, void *base)
{
    struct conf_error e;
    struct span def =
        row->kind == KIND_NAMES ? conf_word(row, row->min) : span_str(row->def);

    if (def.len == 0)
        return; /* empty text, empty list, or a key without a default: 0 */
    CHECK(set_value(row, row->key, def, NONE, base, &e) == OK,
        "default of %s: %s", row->key, e.text);
}

static void set_defaults(const struct conf_rows *rows, void *base)
{
    for (size_t i = 0; i < rows->count; i++)
        set_default(&rows->rows[i], base);
}

void conf_init(struct conf *c, uint8_t role)
{
    CHECK(role == ROLE_ENCODED || role == ROLE_LANGD, "role %u", role);
    memset(c, 0, offsetof(struct conf, pools));
    c->role = role;
    set_defaults(&conf_keys, c);
}

/* Returns the struct that t's key is in; NULL: refused. A new entry is prepared
 * beyond the count, and counted once its first value is good. */
static void *target_base(struct conf *c, const struct target *t,
    const char *path, struct conf_error *e)
{
    bool pools = t->rows == &conf_pool_keys;
    uint32_t count = pools ? c->pools_count : c->peers_count;
    uint32_t max = pools ? CONF_POOLS_MAX : CONF_PEERS_MAX;
    size_t size = pools ? sizeof(c->pools[0]) : sizeof(c->peers[0]);
    void *base;

    if (!t->rows->list)
        return c;
    CHECK(count <= max, "%u %s of %u", count, t->rows->list, max);
    if (t->entry > count) {
        (void)conf_refuse(
            e, "%s: comes before %s[%u]", path, t->rows->list, count);
        return NULL;
    }
    if (t->entry >= max) {
        (void)conf_refuse(e, "%s: %u %s at most", path, max, t->rows->list);
        return NULL;
    }
    base = pools ? (void *)&c->pools[t->entry] : (void *)&c->peers[t->entry];
    if (t->entry == count) {
        memset(base, 0, size);
        set_defaults(t->rows, base);
    }
    return base;
}

enum err conf_set(
    struct conf *c, const char *path, struct span value, struct conf_error *e)
{
    struct target t = find(c->role, path);
    void *base;
    enum err r;

    if (t.found == FOUND_NONE)
        return unknown_key(c->role, path, e);
    if (t.found != FOUND_KEY)
        return conf_refuse(e, "%s: has keys of its own, not a value", path);
    CHECK(t.row && in_role(t.row, c->role), "%s leads to no key", path);
    base = target_base(c, &t, path, e);
    if (!base)
        return ERR_MALFORMED;
    r = set_value(t.row, path, value, t.item, base, e);
    if (r || !t.rows->list)
        return r;
    if (t.rows == &conf_pool_keys && t.entry == c->pools_count)
        c->pools_count++;
    else if (t.rows == &conf_peer_keys && t.entry == c->peers_count)
        c->peers_count++;
    return OK;
}

enum err conf_set_assign(
    struct conf *c, const char *assignment, struct conf_error *e)
{
    const char *eq = strchr(assignment, '=');
    char path[128];

    if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof(path))
        return conf_refuse(
            e, "`%s` is not key=value", show(span_str(assignment)).text);
    span_copy_str(
        span_of(assignment, (size_t)(eq - assignment)), path, sizeof(path));
    return conf_set(c, path, span_str(eq + 1), e);
}
