/* unit.c - the doctor's check that the daemon's systemd unit permits what the
 * configuration needs. The units hide all devices; a drop-in of share/mmx shows
 * some of them again.
 *
 * If the unit is not installed, nothing is reported. */
#include "ctl.h"

#include "base/text.h"
#include "core/conf/conf.h"
#include "io/data.h"
#include "io/keys.h"
#include "io/unit.h"
#include "io/yaml.h"

#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct wanted {
    const char *part;
    bool found;
};

/* Checks whether a line allows devices with this part in their name. */
static void look_at_line(void *ud, const char *line)
{
    struct wanted *w = ud;

    w->found |= !strncmp(line, "DeviceAllow=", 12) && strstr(line, w->part);
}

/* True if the unit, or a drop-in of any name, allows such devices. */
static bool allowed(const char *role, const char *part)
{
    struct wanted w = {part, false};

    unit_lines(role, look_at_line, &w);
    return w.found;
}

/* True if one of the list's words (UCX_TLS, or a status) is a transport of
 * network cards with RDMA. */
static bool lists_rdma(const char *list)
{
    static const char *const families[] = {"all", "ib", "rc", "dc", "ud"};
    const char *at = list;

    while (*at) { /* "rc_mlx5" is of the family "rc" */
        for (size_t i = 0; i < ARRAY_LEN(families); i++)
            if (strcspn(at, "_,; ") == strlen(families[i]) &&
                strncmp(at, families[i], strlen(families[i])) == 0)
                return true;
        at += strcspn(at, ",; ");
        at += strspn(at, ",; ");
    }
    return false;
}

/* True if this host has a card with RDMA; MMX_CARDS changes the folder. */
static bool has_card(void)
{
    const char *other = getenv("MMX_CARDS");
    char pattern[512];
    glob_t g;
    bool found;

    snprintf(pattern, sizeof(pattern), "%s/*",
        other ? other : "/sys/class/infiniband");
    found = glob(pattern, 0, NULL, &g) == 0;
    if (found)
        globfree(&g);
    return found;
}

/* True if the daemon would choose RDMA, given a UCX that is sound. */
static bool wants_rdma(const struct conf *c)
{
    return c->transfer_carrier == CARRIER_AUTO &&
           (c->insecure || c->transfer_trusted_network) &&
           strcmp(c->transfer_tls, "tcp") == 0 && has_card();
}

/* True if the daemon reports that its UCX is unsound. A drop-in of the unit
 * cannot mend that. */
static bool unsound(const struct seen *seen)
{
    return strstr(seen->not_by, UCX_ENDS_PROCESS) != NULL;
}

/* True if the daemon may choose RDMA, or has chosen it. */
static bool may_use_rdma(const struct conf *c, const struct seen *seen)
{
    return (c->transfer_carrier == CARRIER_AUTO &&
               lists_rdma(seen->carriers)) ||
           (wants_rdma(c) && !unsound(seen));
}

/* bad: the finding if the drop-in is missing. */
static void say(struct findings *r, const char *role, const char *what,
    const char *name, bool there, enum finding bad)
{
    char text[256], advice[512];

    snprintf(text, sizeof(text), "mmx-%s %s %s, its unit %s", role,
        bad == FAIL ? "is configured for" : "with transfer.carrier: auto uses",
        what, there ? "lets it" : "hides the devices");
    snprintf(advice, sizeof(advice),
        "install -Dm644 -t /etc/systemd/system/mmx-%s.service.d " MMX_SHARE
        "/%s && systemctl daemon-reload, then restart the daemon%s",
        role, name, bad == FAIL ? "" : "; or set transfer.carrier: tcp");
    findings_hold(r, there, bad, "unit", text, advice);
}

/* Returns the role in the file's name; ROLE_ANY: none or both. */
static uint8_t role_named(const char *file)
{
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    bool langd = strstr(base, "langd") != NULL;
    bool encoded = strstr(base, "encoded") != NULL;

    return langd == encoded ? ROLE_ANY : langd ? ROLE_LANGD : ROLE_ENCODED;
}

/* Reads the file as that of this role. */
static enum err load(
    struct conf *c, uint8_t role, const char *file, struct conf_error *e)
{
    conf_init(c, role);
    return yaml_load(file, c, e);
}

/* Reads the file as that of the first role whose keys fit, beginning with the
 * role whose unit is installed here. */
static enum err load_any(struct conf *c, const char *file, struct conf_error *e)
{
    bool langd = unit_installed("langd") && !unit_installed("encoded");
    uint8_t first = langd ? ROLE_LANGD : ROLE_ENCODED;
    uint8_t other = langd ? ROLE_ENCODED : ROLE_LANGD;
    struct conf_error unused;

    if (load(c, first, file, e) == OK || load(c, other, file, &unused) == OK)
        return OK;
    return load(c, first, file, e);
}

static void take_user(void *ud, const char *line)
{
    struct runs_as *as = ud;

    (void)sscanf(line, "User=%63s", as->user);
    (void)sscanf(line, "Group=%63s", as->group);
}

struct runs_as unit_runs_as(const char *role)
{
    struct runs_as as = {.uid = (uid_t)-1, .gid = (gid_t)-1};
    struct passwd *p;
    struct group *g;

    unit_lines(role, take_user, &as);
    p = as.user[0] ? getpwnam(as.user) : NULL;
    g = as.group[0] ? getgrnam(as.group) : p ? getgrgid(p->pw_gid) : NULL;
    if (p && g) {
        as.uid = p->pw_uid, as.gid = g->gr_gid;
        text_copy(span_str(g->gr_name), as.group, sizeof(as.group));
    }
    return as;
}

/* Checks that the unit's user can read a key that is named by its path: those
 * of a name alone are handed over by systemd. */
static void check_reads(struct findings *r, const char *role, const char *key)
{
    char text[4096 + 384], mend[2 * 4096 + 512];
    struct runs_as as = unit_runs_as(role);
    struct stat s;

    if (as.uid == (uid_t)-1 || stat(key, &s) != 0)
        return;
    snprintf(text, sizeof(text), "mmx-%s runs as %s, which has to read %s",
        role, as.user, key);
    snprintf(
        mend, sizeof(mend), "chgrp %s %s && chmod 640 %s", as.group, key, key);
    findings_hold(r,
        s.st_uid == as.uid || (s.st_gid == as.gid && (s.st_mode & S_IRGRP)),
        FAIL, "key", text, mend);
}

static const char *socket_of(const struct conf *c)
{
    return c->socket_path[0] ? c->socket_path : ctl_sockets[c->role - 1];
}

/* Checks each key file: this user cannot read it, and the unit's user can. The
 * fleet's key is tried with each daemon (where.c), not here. */
static void check_keys(
    struct findings *r, const struct conf *c, const char *role)
{
    const char *socket = socket_of(c);

    for (uint32_t i = 0; i < c->control_keys.count; i++) {
        const char *name = c->control_keys.items[i];
        char key[4096 + 128];

        keys_path(name, key, sizeof(key));
        if (strcmp(key, DEFAULT_KEY) != 0)
            doctor_key(r, socket, key);
        if (strchr(name, '/'))
            check_reads(r, role, key);
    }
}

void doctor_unit(struct findings *r, const char *file, const struct seen *seen)
{
    static struct conf c; /* large */
    struct conf_error e;
    uint8_t known = seen->role ? seen->role : role_named(file);
    enum err err = known ? load(&c, known, file, &e) : load_any(&c, file, &e);
    const char *role = c.role == ROLE_LANGD ? "langd" : "encoded";

    if (err != OK) {
        findings_say(r, seen->role || seen->absent ? WARN : FAIL, "config",
            e.text,
            c.role == ROLE_LANGD ? "mmx-langd --check-config says the same"
                                 : "mmx-encoded --check-config says the same");
        return;
    }
    check_keys(r, &c, role);
    /* A daemon that this user may not reach may well run. */
    if (!seen->role && !seen->absent &&
        (access(socket_of(&c), W_OK) == 0 || errno != EACCES))
        doctor_start(r, file, c.role);
    if (wants_rdma(&c) && unsound(seen))
        findings_say(r, WARN, "card", seen->not_by,
            "this host has a card for RDMA: a newer UCX (1.18 is known to "
            "work); or set transfer.carrier: tcp");
    if (!unit_installed(role))
        return;
    if (conf_uses_gpus(&c))
        say(r, role, "GPUs", "mmx-gpu.conf", allowed(role, "nvidia"), FAIL);
    /* With carrier tcp such transports are refused. */
    if (lists_rdma(c.transfer_tls) || may_use_rdma(&c, seen))
        say(r, role, "RDMA", "mmx-rdma.conf", allowed(role, "infiniband"),
            lists_rdma(c.transfer_tls) ? FAIL : WARN);
}
