/* load.c - see load.h. Rejected: keeping the file's text and reading it anew
 * only when it has changed. A key file of the same name may have another key,
 * and a reload comes only when it is asked for. */
#include "node/load.h"

#include "base/check.h"
#include "io/yaml.h"

#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* True if the command line sets the key, or a map that contains it. */
static bool is_set(const struct conf_source *from, const char *path)
{
    bool found = false;

    for (uint32_t i = 0; !found && i < from->sets_count; i++) {
        size_t n = strcspn(from->sets[i], "=");

        found = strncmp(from->sets[i], path, n) == 0 &&
                (!path[n] || path[n] == '[' || path[n] == '.');
    }
    return found;
}

void load_place(
    const struct conf_source *from, const struct conf *c, struct conf_error *e)
{
    char path[64];

    snprintf(path, sizeof(path), "%.*s",
        (int)min_u64(strcspn(e->text, ":"), sizeof(path) - 1), e->text);
    if (is_set(from, path))
        return;
    e->line = 0;
    yaml_place(from->file, c, path, e);
    if (e->line == 0) { /* a key that is missing has no place */
        char text[sizeof(e->text)];

        memcpy(text, e->text, sizeof(text));
        snprintf(e->text, sizeof(e->text), "%.200s: %.300s", from->file, text);
    }
}

enum err load_conf(const struct conf_source *from, uint8_t role, struct conf *c,
    struct conf *given, struct conf_error *e)
{
    char host[256] = "localhost";
    enum err r;

    conf_init(c, role);
    r = yaml_load(from->file, c, e);
    for (uint32_t i = 0; r == OK && i < from->sets_count; i++)
        r = conf_set_assign(c, from->sets[i], e);
    if (r != OK)
        return r;
    if (given)
        *given = *c;
    gethostname(host, sizeof(host) - 1);
    r = conf_finish(c, host, e);
    if (r != OK)
        load_place(from, c, e);
    return r;
}

/* Returns the group that may connect to the socket. If the configuration names
 * one, it is that group, even if an earlier run left a socket of another. Else
 * it is the group of the socket that systemd made before the start, else the
 * daemon's own. */
static gid_t engines_group(const struct conf *c, gid_t own)
{
    const struct group *g;
    struct stat s;

    if (!c->socket_group[0])
        return stat(c->socket_path, &s) == 0 ? s.st_gid : own;
    g = getgrnam(c->socket_group);
    /* the group is missing: the start reports that */
    return g ? g->gr_gid : (gid_t)-1;
}

enum err load_keys(const struct conf_source *from, const struct conf *c,
    uid_t uid, gid_t gid, struct keys **out, struct conf_error *e)
{
    uint32_t bad;
    enum err r;

    *out = NULL;
    r = conf_secure(c) ? keys_load(out, &c->control_keys, uid,
                             engines_group(c, gid), &bad, e)
                       : OK;
    CHECK(!*out || (*out)->count == c->control_keys.count, "%u keys",
        *out ? (*out)->count : 0);
    if (*out && c->control_identities[0]) {
        r = keys_load_lines(*out, c, uid, e);
        if (r != OK)
            keys_free(out);
    }
    if (r == ERR_MALFORMED)
        load_place(from, c, e);
    return r;
}
