/* load.h - where a daemon's configuration comes from: the file, what the
 * command line sets over it, and the files with keys that it names. Called at
 * the start and for each reload; any thread, one at a time. */
#ifndef MMX_NODE_LOAD_H
#define MMX_NODE_LOAD_H

#include "core/conf/conf.h"
#include "io/keys.h"

/* Must stay valid for the life of the daemon. */
struct conf_source {
    const char *file;
    const char *const *sets; /* "key=value" */
    uint32_t sets_count;
};

/* Reads and finishes *c. given: a copy from before conf_finish, or NULL. On
 * error *c is of no use, and *e says what is wrong. */
MUST_CHECK enum err load_conf(const struct conf_source *from, uint8_t role,
    struct conf *c, struct conf *given, struct conf_error *e);
/* Reads the files of control.keys, and control.identities; *out is NULL if c
 * has none. uid, gid: those of the daemon; -1: unknown, and not judged by. */
MUST_CHECK enum err load_keys(const struct conf_source *from,
    const struct conf *c, uid_t uid, gid_t gid, struct keys **out,
    struct conf_error *e);

/* Prefixes the error with "file:line" of the key that it begins with; with the
 * file's name alone if the file does not set that key. */
void load_place(
    const struct conf_source *from, const struct conf *c, struct conf_error *e);

#endif
