/* yaml.c - walks libyaml's events and passes every value to conf_set; conf.c
 * knows the meaning of keys.
 *
 * Invariants: only a small part of YAML is accepted (maps, lists, scalars; no
 * anchors, aliases, tags or further documents), since the rest can surprise or
 * expand without bound. The functions recurse as the keys nest: an unknown key
 * or a list in a wrong place is refused before anything below it is read, so
 * nesting in the file cannot recurse deeper. Main thread, at start; memory is
 * freed before return.
 *
 * Rejected: the document API (no marks at keys, and it resolves aliases). */
#include "io/yaml.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#define DEPTH_MAX 16
#define PATH_SIZE 160
/* Keys of one map; the largest in conf.def has half as many. */
#define SEEN_MAX 64
#define KEY_SIZE 32

struct load {
    const char *path;
    const uint8_t *text;
    size_t len;
    yaml_parser_t parser;
    yaml_event_t event; /* the present event */
    bool has_event;
    unsigned depth;
    struct conf *c;
    struct conf_error *e;
    const char *wanted; /* the key that is looked for; NULL: none */
};

/* errors */

static enum err place_error(struct load *l, size_t line, size_t column)
{
    char text[sizeof(l->e->text)];

    memcpy(text, l->e->text, sizeof(text));
    l->e->line = (uint32_t)line + 1;
    l->e->column = (uint32_t)column + 1;
    snprintf(l->e->text, sizeof(l->e->text), "%.200s:%u:%u: %.280s", l->path,
        l->e->line, l->e->column, text);
    return ERR_MALFORMED;
}

PRINTF_LIKE(3, 4)
static enum err refuse(struct load *l, yaml_mark_t at, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(l->e->text, sizeof(l->e->text), fmt, ap);
    va_end(ap);
    return place_error(l, at.line, at.column);
}

/* Returns the mark of an offset: libyaml has none for bytes that are no text.
 */
static yaml_mark_t mark_of(const struct load *l, size_t offset)
{
    yaml_mark_t m = {offset, 0, 0};

    for (size_t i = 0; i < offset && i < l->len; i++) {
        m.column = l->text[i] == '\n' ? 0 : m.column + 1;
        m.line += l->text[i] == '\n';
    }
    return m;
}

/* events */

static void drop_event(struct load *l)
{
    if (l->has_event)
        yaml_event_delete(&l->event);
    l->has_event = false;
}

static bool plain_value(const yaml_event_t *ev, const char *text)
{
    return ev->type == YAML_SCALAR_EVENT &&
           ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           strcmp((const char *)ev->data.scalar.value, text) == 0;
}

static const char *decoration(const yaml_event_t *ev)
{
    bool anchor = false, tag = false;

    switch (ev->type) {
    case YAML_ALIAS_EVENT:
        return "aliases";
    case YAML_SCALAR_EVENT:
        anchor = ev->data.scalar.anchor != NULL;
        tag = ev->data.scalar.tag != NULL;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = ev->data.mapping_start.anchor != NULL;
        tag = ev->data.mapping_start.tag != NULL;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = ev->data.sequence_start.anchor != NULL;
        tag = ev->data.sequence_start.tag != NULL;
        break;
    default:
        break;
    }
    return anchor ? "anchors" : tag ? "tags" : NULL;
}

/* True if a tab is at the mark, after only ASCII in its line. */
static bool is_tab(const struct load *l, yaml_mark_t at)
{
    size_t i = 0;

    for (size_t line = 0; line < at.line && i < l->len; i++)
        line += l->text[i] == '\n';
    return i + at.column < l->len && l->text[i + at.column] == '\t';
}

/* Moves to the next event; refuses kinds that are accepted nowhere. */
static enum err next(struct load *l)
{
    const char *what;

    drop_event(l);
    if (!yaml_parser_parse(&l->parser, &l->event)) {
        bool marked = l->parser.error != YAML_READER_ERROR;

        if (marked && is_tab(l, l->parser.problem_mark))
            return refuse(l, l->parser.problem_mark,
                "a tab: only spaces stand before a key");
        return refuse(l,
            marked ? l->parser.problem_mark
                   : mark_of(l, l->parser.problem_offset),
            "%s", l->parser.problem ? l->parser.problem : "out of memory");
    }
    l->has_event = true;
    what = decoration(&l->event);
    if (what)
        return refuse(l, l->event.start_mark, "%s are not supported", what);
    return OK;
}

/* the tree */

static enum err load_map(struct load *l, const char *path);

/* True if the error is about this key. */
static bool wanted(const struct load *l, const char *path)
{
    return l->wanted && strcmp(path, l->wanted) == 0;
}

/* Passes the current scalar to conf_set. */
static enum err load_scalar(struct load *l, const char *path)
{
    const yaml_event_t *ev = &l->event;

    if (plain_value(ev, "null") || plain_value(ev, "~"))
        return refuse(l, ev->start_mark,
            "%s: null is not a value; leave the key out for its default", path);
    if (wanted(l, path) ||
        conf_set(l->c, path,
            span_of(ev->data.scalar.value, ev->data.scalar.length), l->e))
        return place_error(l, ev->start_mark.line, ev->start_mark.column);
    return OK;
}

/* True for a key without a value, as after its list is commented out. */
static bool empty_value(const yaml_event_t *ev)
{
    return plain_value(ev, "");
}

/* Loads the items of a list, of values or of maps; the event is the list's
 * start. */
static enum err load_items(struct load *l, const char *path, bool maps)
{
    for (unsigned i = 0;; i++) {
        char item[PATH_SIZE];
        enum err r = next(l);

        if (r || l->event.type == YAML_SEQUENCE_END_EVENT)
            return r;
        snprintf(item, sizeof(item), "%.140s[%u]", path, i);
        if (maps && wanted(l, item))
            return place_error(
                l, l->event.start_mark.line, l->event.start_mark.column);
        if (maps && l->event.type == YAML_MAPPING_START_EVENT)
            r = load_map(l, item);
        else if (!maps && l->event.type == YAML_SCALAR_EVENT)
            r = load_scalar(l, item);
        else
            r = refuse(l, l->event.start_mark, "%s: expected a %s", item,
                maps ? "map of keys" : "single value");
        if (r)
            return r;
    }
}

static enum err load_list(struct load *l, const char *path, bool maps)
{
    struct conf_error e;

    if (!empty_value(&l->event) && l->event.type != YAML_SEQUENCE_START_EVENT)
        return refuse(l, l->event.start_mark, "%s: expected a list", path);
    if (wanted(l, path))
        return place_error(
            l, l->event.start_mark.line, l->event.start_mark.column);
    if (strcmp(path, "pools") == 0)
        l->c->pools_count = 0;
    else if (strcmp(path, "peers") == 0)
        l->c->peers_count = 0;
    else if (conf_set(l->c, path, span_of("", 0), &e))
        return refuse(l, l->event.start_mark, "%s", e.text);
    return empty_value(&l->event) ? OK : load_items(l, path, maps);
}

/* Loads the value of a key; the event is the value's first. */
static enum err load_value(struct load *l, const char *path)
{
    switch (conf_shape(l->c->role, path)) {
    case CONF_VALUE:
        if (l->event.type != YAML_SCALAR_EVENT)
            return refuse(
                l, l->event.start_mark, "%s: expected a single value", path);
        return load_scalar(l, path);
    case CONF_LIST:
        return load_list(l, path, false);
    case CONF_MAPS:
        return load_list(l, path, true);
    case CONF_MAP:
        if (empty_value(&l->event))
            return OK;
        if (l->event.type != YAML_MAPPING_START_EVENT)
            return refuse(
                l, l->event.start_mark, "%s: expected a map of keys", path);
        return load_map(l, path);
    case CONF_NOTHING:
        break;
    }
    return ERR_INTERNAL;
}

struct seen {
    unsigned count;
    char keys[SEEN_MAX][KEY_SIZE];
};

/* Takes the current scalar as a key of the map at path: it must be known, and
 * new in this map. Writes its full path to out. */
static enum err load_key(
    struct load *l, const char *path, struct seen *seen, char *out)
{
    const yaml_event_t *ev = &l->event;
    const char *key;
    size_t len;

    if (ev->type != YAML_SCALAR_EVENT)
        return refuse(l, ev->start_mark, "expected a key");
    key = (const char *)ev->data.scalar.value;
    len = ev->data.scalar.length;
    if (len == 0 || len >= KEY_SIZE ||
        strspn(key, "abcdefghijklmnopqrstuvwxyz_") != len)
        return refuse(l, ev->start_mark,
            "`%.60s` is not a key: keys are lower-case words", key);
    snprintf(out, PATH_SIZE, "%.100s%s%s", path, *path ? "." : "", key);
    if (conf_shape(l->c->role, out) == CONF_NOTHING) {
        if (conf_set(l->c, out, span_of("", 0), l->e))
            return place_error(l, ev->start_mark.line, ev->start_mark.column);
        return ERR_INTERNAL;
    }
    for (unsigned i = 0; i < seen->count; i++)
        if (strcmp(seen->keys[i], key) == 0)
            return refuse(l, ev->start_mark, "%s: is given twice", out);
    if (seen->count == SEEN_MAX)
        return refuse(l, ev->start_mark, "%s: too many keys", out);
    memcpy(seen->keys[seen->count++], key, len + 1);
    return OK;
}

/* Loads the keys of a map; the event is the map's start. */
static enum err load_map(struct load *l, const char *path)
{
    yaml_mark_t start = l->event.start_mark;
    struct seen seen = {.count = 0};

    if (++l->depth > DEPTH_MAX)
        return refuse(l, start, "nested too deeply");
    for (;;) {
        char key[PATH_SIZE];
        enum err r = next(l);

        if (!r && l->event.type == YAML_MAPPING_END_EVENT)
            break;
        if (!r)
            r = load_key(l, path, &seen, key);
        if (!r)
            r = next(l);
        if (!r)
            r = load_value(l, key);
        if (r)
            return r;
    }
    CHECK(l->depth > 0, "the end of a map that did not begin");
    l->depth--;
    if (seen.count == 0 && strchr(path, '['))
        return refuse(l, start, "%s: has no keys", path);
    return OK;
}

/* Loads the whole file: empty, or one document with one map. */
static enum err load_file(struct load *l)
{
    enum err r = next(l);

    if (!r)
        r = next(l);
    if (r || l->event.type == YAML_STREAM_END_EVENT)
        return r;
    r = next(l);
    if (r || empty_value(&l->event))
        return r;
    if (l->event.type != YAML_MAPPING_START_EVENT)
        return refuse(l, l->event.start_mark, "expected keys at the top");
    r = load_map(l, "");
    if (!r)
        r = next(l);
    if (!r)
        r = next(l);
    if (!r && l->event.type != YAML_STREAM_END_EVENT)
        return refuse(l, l->event.start_mark, "one document only");
    return r;
}

/* the file */

/* Reads the whole file, at most YAML_FILE_MAX bytes; the caller frees them. */
static enum err read_file(
    const char *path, uint8_t **out, size_t *len, struct conf_error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    uint8_t *text = NULL;
    size_t n = 0;
    ssize_t got = 1;

    if (fd < 0)
        goto failed;
    text = malloc(YAML_FILE_MAX + 1);
    while (text && n <= YAML_FILE_MAX && got > 0) {
        got = read(fd, text + n, YAML_FILE_MAX + 1 - n);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            n += (size_t)got;
    }
    if (!text || got < 0)
        goto failed;
    close(fd);
    if (n > YAML_FILE_MAX) {
        free(text);
        snprintf(e->text, sizeof(e->text), "%.200s: larger than %u KiB", path,
            YAML_FILE_MAX >> 10);
        return ERR_MALFORMED;
    }
    *out = text;
    *len = n;
    return OK;
failed:
    snprintf(e->text, sizeof(e->text), "%.200s: %s", path, strerror(errno));
    free(text);
    if (fd >= 0)
        close(fd);
    return ERR_INTERNAL;
}

static enum err load(
    const char *path, const char *wanted, struct conf *c, struct conf_error *e)
{
    struct load l = {.path = path, .c = c, .e = e, .wanted = wanted};
    uint8_t *text = NULL;
    enum err r;

    e->line = e->column = 0;
    r = read_file(path, &text, &l.len, e);
    if (r)
        return r;
    l.text = text;
    if (!yaml_parser_initialize(&l.parser)) {
        snprintf(e->text, sizeof(e->text), "%.200s: out of memory", path);
        free(text);
        return ERR_INTERNAL;
    }
    yaml_parser_set_encoding(&l.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l.parser, text, l.len);
    r = load_file(&l);
    drop_event(&l);
    yaml_parser_delete(&l.parser);
    free(text);
    return r;
}

enum err yaml_load(const char *path, struct conf *c, struct conf_error *e)
{
    return load(path, NULL, c, e);
}

/* True if the file has the key. */
static bool place(const char *file, const struct conf *c, const char *path,
    struct conf_error *e)
{
    struct conf_error placed = *e;
    struct conf *again = malloc(sizeof(*again));
    bool found = false;

    if (again) {
        conf_init(again, c->role);
        found = load(file, path, again, &placed) == ERR_MALFORMED;
    }
    free(again);
    if (found)
        *e = placed;
    return found;
}

void yaml_place(const char *file, const struct conf *c, const char *path,
    struct conf_error *e)
{
    const char *end = strstr(path, "].");
    char item[PATH_SIZE];

    if (place(file, c, path, e) || !end)
        return;
    snprintf(item, sizeof(item), "%.*s", (int)(end + 1 - path), path);
    (void)place(file, c, item, e);
}
