/* identities.c - the admitted keys: those of control.identities, a file of
 * public keys with their daemons, or without it each of our own pairs, under
 * any name. Stateless except for its result; any thread.
 *
 * Invariants: a file is accepted whole or not at all, and must have this
 * daemon's own line. Without that all its peers would refuse it, so it refuses
 * the file and prints the missing line. The file has no secret, so it may be a
 * link, and readable by all; its writers decide which keys are admitted, so
 * they are checked as for keys.
 *
 * Rejected: a file for each daemon (one file is copied, and compared, as one),
 * certificates (a signer's key would admit anything), and a line without role:
 * a langd's key could then serve rows. */
#include "io/keys.h"

#include "base/check.h"
#include "base/text.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define EXPECTED "expected `NAME encoded|langd KEY`"

/* the file */

/* Returns why the open file is not trusted; NULL: it is. */
static const char *judge(const struct stat *s, uid_t own)
{
    if (!S_ISREG(s->st_mode))
        return "is not a regular file";
    if (s->st_uid != 0 && s->st_uid != own && own != (uid_t)-1)
        return "belongs to another user; expected root or this daemon's own";
    if (s->st_mode & (S_IWGRP | S_IWOTH))
        return "may be written by others than its owner; expected mode 0644";
    return NULL;
}

/* Reads one line, without its end. Returns what is wrong; NULL: it is valid. */
static const char *read_line(struct keys *k, char *text)
{
    struct key_line *to = &k->lines[k->lines_count];
    char *save = NULL, *name = strtok_r(text, " \t", &save);
    char *role = strtok_r(NULL, " \t", &save);
    char *key = strtok_r(NULL, " \t", &save);

    if (!name || name[0] == '#')
        return NULL;
    if (k->lines_count == KEY_LINES_MAX)
        return "more lines than can be";
    if (!key || strtok_r(NULL, " \t", &save))
        return EXPECTED;
    if (strlen(name) >= sizeof(to->who.name) || !text_is_clean(span_str(name)))
        return "a name has 1 to 63 bytes of UTF-8, no control characters";
    to->who.role = strcmp(role, role_name(ROLE_ENCODED)) == 0 ? ROLE_ENCODED
                   : strcmp(role, role_name(ROLE_LANGD)) == 0 ? ROLE_LANGD
                                                              : ROLE_ANY;
    if (to->who.role == ROLE_ANY)
        return EXPECTED;
    if (strlen(key) != KEY_TEXT || !zmq_z85_decode(to->public_bytes, key))
        return "that is no key; expected 40 characters, as `mmxctl keygen "
               "--public FILE` prints them";
    if (k->lines_count && keys_find(k, to->public_bytes) != NONE)
        return "a key that is listed before";
    memcpy(to->who.name, name, strlen(name) + 1);
    memcpy(to->public, key, sizeof(to->public));
    k->lines_count++;
    return NULL;
}

/* Returns what is wrong, and the number of the line (0: no single line); NULL:
 * the file is valid. */
static const char *read_file(struct keys *k, FILE *f, uid_t own, uint32_t *line)
{
    const char *why;
    char text[256];
    struct stat s;

    *line = 0;
    why = fstat(fileno(f), &s) == 0 ? judge(&s, own) : strerror(errno);
    while (!why && fgets(text, sizeof(text), f)) {
        size_t n = strcspn(text, "\r\n");

        why = n + 1 == sizeof(text) ? EXPECTED : NULL;
        text[n] = 0;
        ++*line;
        if (!why)
            why = read_line(k, text);
    }
    if (!why && ferror(f))
        why = "cannot be read";
    return why;
}

/* Returns the line of our own key; NULL: there is none. */
static const struct key_line *own_line(const struct keys *k)
{
    uint32_t i = k->lines_count ? keys_find(k, k->pairs[0].public_bytes) : NONE;

    return i == NONE ? NULL : &k->lines[i];
}

enum err keys_load_lines(
    struct keys *k, const struct conf *c, uid_t uid, struct conf_error *e)
{
    const struct key_line *own;
    const char *why = NULL;
    uint32_t line = 0;
    char path[4096 + 128], at[24] = "";
    FILE *f;
    int fd;

    CHECK(k->count == 1 && !k->lines, "%u keys of our own", k->count);
    keys_path(c->control_identities, path, sizeof(path));
    k->lines = calloc(KEY_LINES_MAX + 1, sizeof(*k->lines));
    /* Opening a FIFO would block. */
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    f = fd < 0 ? NULL : fdopen(fd, "r");
    why = !k->lines ? "no memory"
          : f       ? read_file(k, f, uid, &line)
                    : strerror(errno);
    if (f)
        fclose(f);
    else if (fd >= 0)
        close(fd);
    if (why) {
        if (line)
            snprintf(at, sizeof(at), "line %u: ", line);
        snprintf(e->text, sizeof(e->text), "control.identities: %.200s: %s%s",
            path, at, why);
        return ERR_MALFORMED;
    }
    own = own_line(k);
    if (own && own->who.role == c->role && !strcmp(own->who.name, c->name))
        return OK;
    snprintf(e->text, sizeof(e->text),
        "control.identities: %.200s: has no line of this daemon; expected "
        "`%.63s %s %s`",
        path, c->name, role_name(c->role), k->pairs[0].public);
    return ERR_MALFORMED;
}

/* admitted keys */

uint32_t keys_count(const struct keys *k)
{
    CHECK(k->count > 0 && k->count <= CONF_KEYS_MAX, "%u keys", k->count);
    return k->lines_count ? k->lines_count : k->count;
}

const uint8_t *keys_bytes(const struct keys *k, uint32_t i)
{
    return k->lines_count ? k->lines[i].public_bytes : k->pairs[i].public_bytes;
}

const char *keys_public(const struct keys *k, uint32_t i)
{
    CHECK(i < keys_count(k), "key %u of %u", i, keys_count(k));
    return k->lines_count ? k->lines[i].public : k->pairs[i].public;
}

uint32_t keys_find(const struct keys *k, const uint8_t *public_bytes)
{
    for (uint32_t i = 0; i < keys_count(k); i++)
        if (memcmp(keys_bytes(k, i), public_bytes, 32) == 0)
            return i;
    return NONE;
}

const struct identity *keys_owner(const struct keys *k, uint32_t i)
{
    static const struct identity unlisted = {"no daemon", ROLE_ANY};

    if (!k->lines_count)
        return NULL;
    return i == NONE ? &unlisted : &k->lines[i].who;
}

static bool fits(const struct keys *k, uint32_t i, const char *name)
{
    const struct identity *who = keys_owner(k, i);

    return !who || (who->role == ROLE_ENCODED &&
                       (!name[0] || strcmp(who->name, name) == 0));
}

uint32_t keys_next(const struct keys *k, uint32_t from, const char *name)
{
    uint32_t count = keys_count(k);

    for (uint32_t n = 0; n < count; n++)
        if (fits(k, (from + n) % count, name))
            return (from + n) % count;
    return NONE;
}

uint32_t keys_fitting(const struct keys *k, const char *name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < keys_count(k); i++)
        n += fits(k, i, name);
    return n;
}

static bool same_owner(const struct identity *a, const struct identity *b)
{
    if (!a || !b)
        return a == b;
    return a->role == b->role && strcmp(a->name, b->name) == 0;
}

bool keys_both(
    const struct keys *a, const struct keys *b, const uint8_t *public_bytes)
{
    uint32_t i = keys_find(a, public_bytes), k = keys_find(b, public_bytes);

    return i != NONE && k != NONE &&
           same_owner(keys_owner(a, i), keys_owner(b, k));
}

bool keys_same(const struct keys *a, const struct keys *b)
{
    bool same = a->count == b->count && keys_count(a) == keys_count(b);

    for (uint32_t i = 0; same && i < a->count; i++)
        same =
            memcmp(a->pairs[i].public_bytes, b->pairs[i].public_bytes, 32) == 0;
    for (uint32_t i = 0; same && i < keys_count(a); i++)
        same = memcmp(keys_bytes(a, i), keys_bytes(b, i), 32) == 0 &&
               same_owner(keys_owner(a, i), keys_owner(b, i));
    return same;
}
