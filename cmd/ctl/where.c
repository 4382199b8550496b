/* where.c - the doctor's checks before there is a connection: the socket, its
 * folder, this user, and the reason of a refused connect. Most faults of
 * engines in containers are found here. */
#include "ctl.h"

#include "base/base.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool in_container(void)
{
    return access("/.dockerenv", F_OK) == 0 ||
           access("/run/.containerenv", F_OK) == 0 ||
           getenv("KUBERNETES_SERVICE_HOST") != NULL;
}

/* True if path is a mount point. Names with blanks, escaped in mountinfo, are
 * not found; folders of sockets do not have such names. */
static bool is_mount(const char *path)
{
    char line[4096], point[1024];
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "%*s %*s %*s %*s %1023s", point) == 1 &&
                strcmp(point, path) == 0;
    if (f)
        fclose(f);
    return found;
}

/* Resolves the folder of the path. False: it cannot be resolved. */
static bool folder_of(const char *path, char out[4096])
{
    char copy[4096];
    char *slash;

    snprintf(copy, sizeof(copy), "%s", path);
    slash = strrchr(copy, '/');
    if (slash && slash != copy)
        *slash = 0;
    else
        snprintf(copy, sizeof(copy), "%s", slash ? "/" : ".");
    return realpath(copy, out) != NULL;
}

static void say_folder(struct findings *r, const char *path, bool reached)
{
    char folder[4096], text[4352];
    bool inside = in_container(), mounted = false;

    if (!folder_of(path, folder))
        return;
    if (is_mount(path)) {
        findings_say(r, WARN, "folder", "the socket itself is mounted",
            "mount its folder instead: a restarted daemon makes a new socket");
        return;
    }
    snprintf(text, sizeof(text), "%s", folder);
    while (!mounted && strlen(text) > 1) {
        mounted = is_mount(text);
        *strrchr(text, '/') = 0;
    }
    snprintf(text, sizeof(text), "%s%s", folder,
        mounted ? " is mounted here"
                : (inside ? " is this container's own" : " of this host"));
    findings_hold(r, !inside || mounted || reached, WARN, "folder", text,
        "mount the host's folder: docker run -v /run/mmx:/run/mmx");
}

static void owner_text(const struct stat *st, char *out, size_t size)
{
    const struct passwd *u = getpwuid(st->st_uid);
    const struct group *g = getgrgid(st->st_gid);

    snprintf(out, size, "mode %04o, %s (%u):%s (%u)", st->st_mode & 07777,
        u ? u->pw_name : "?", (unsigned)st->st_uid, g ? g->gr_name : "?",
        (unsigned)st->st_gid);
}

static void say_who(struct findings *r)
{
    gid_t groups[64];
    int n = getgroups(64, groups);
    char text[512];
    int len = snprintf(text, sizeof(text), "uid %u, gid %u, groups",
        (unsigned)geteuid(), (unsigned)getegid());

    for (int i = 0; i < n && len < (int)sizeof(text) - 16; i++)
        len += snprintf(
            text + len, sizeof(text) - (size_t)len, " %u", (unsigned)groups[i]);
    findings_say(r, FINE, "you", text, "");
}

void doctor_key(struct findings *r, const char *path, const char *key)
{
    char text[256];
    struct stat st;

    if (geteuid() == 0 || (stat(path, &st) == 0 && geteuid() == st.st_uid) ||
        access(key, R_OK) != 0)
        return;
    snprintf(
        text, sizeof(text), "this user can read %s, a key of the fleet", key);
    findings_say(r, FAIL, "key", text,
        "chown root:root and chmod 600 it; no engine may be in its group; then "
        "change the key: who had it keeps it");
}

void doctor_path(struct findings *r, const char *path, bool reached)
{
    char text[512], owner[256];
    struct stat st;

    say_who(r);
    if (stat(path, &st) != 0) {
        snprintf(text, sizeof(text), "%s: %s", path, strerror(errno));
        findings_say(r, FAIL, "socket", text,
            errno == EACCES
                ? "the folder must be searchable (mode 0755)"
                : "start the daemon (systemctl status mmx-langd, "
                  "mmx-encoded); in a container mount the folder /run/mmx");
        say_folder(r, path, reached);
        return;
    }
    doctor_key(r, path, DEFAULT_KEY);
    owner_text(&st, owner, sizeof(owner));
    snprintf(text, sizeof(text), "%s, %s", path, owner);
    findings_hold(
        r, S_ISSOCK(st.st_mode), FAIL, "socket", text, "this is not a socket");
    say_folder(r, path, reached);
}

/* True if the mode lets this process write to it. */
static bool mode_allows(const struct stat *st)
{
    gid_t groups[256];
    int n = getgroups(256, groups);
    bool member = st->st_gid == getegid();

    if (geteuid() == 0)
        return true;
    if (st->st_uid == geteuid())
        return st->st_mode & S_IWUSR;
    for (int i = 0; i < n; i++)
        member |= groups[i] == st->st_gid;
    return st->st_mode & (member ? S_IWGRP : S_IWOTH);
}

static bool selinux_enforces(void)
{
    FILE *f = fopen("/sys/fs/selinux/enforce", "re");
    bool on = f && fgetc(f) == '1';

    if (f)
        fclose(f);
    return on;
}

static void say_denied(struct findings *r, const char *path)
{
    char advice[320];
    struct stat st;

    if (stat(path, &st) == 0 && !mode_allows(&st) && !(st.st_mode & S_IWGRP)) {
        findings_say(r, FAIL, "reach",
            "permission denied: only its owner may connect",
            "set socket.mode: 0660 and socket.group in the daemon's YAML");
    } else if (stat(path, &st) == 0 && !mode_allows(&st)) {
        snprintf(advice, sizeof(advice),
            "join group %u: usermod -aG, docker run --group-add %u, "
            "supplementalGroups: [%u] in a pod",
            (unsigned)st.st_gid, (unsigned)st.st_gid, (unsigned)st.st_gid);
        findings_say(
            r, FAIL, "reach", "permission denied by mode and group", advice);
    } else if (selinux_enforces()) {
        findings_say(r, FAIL, "reach", "permission denied, SELinux enforces",
            "ausearch -m avc; --security-opt label=disable, or allow "
            "connectto and fd use; do not relabel the folder (no :z)");
    } else {
        findings_say(r, FAIL, "reach",
            "permission denied, although mode and group allow it",
            "check user namespaces (rootless: keep your groups, podman "
            "--group-add keep-groups) and security modules");
    }
}

void doctor_reach(struct findings *r, const char *path, int error)
{
    if (error == EACCES || error == EPERM)
        say_denied(r, path);
    else if (error == ECONNREFUSED)
        findings_say(r, FAIL, "reach", "no daemon listens on the socket",
            "start the daemon; if it runs, this mount is a stale copy of its "
            "folder: restart the container that mounts it");
    else if (error == EPROTOTYPE)
        findings_say(r, FAIL, "reach", "a socket of another kind",
            "it is not the socket of an mmx daemon: check --socket");
    else
        findings_say(r, FAIL, "reach", strerror(error), "see the daemon's log");
}
