/* unit.c - see unit.h. Stateless, except for MMX_UNITS in the environment. */
#include "io/unit.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Folders of units, in the order in which systemd searches; MMX_UNITS replaces
 * them. */
static const char *const places[] = {
    "/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"};

static const char *place(size_t i)
{
    const char *other = getenv("MMX_UNITS");

    if (other)
        return i == 0 ? other : NULL;
    return i < ARRAY_LEN(places) ? places[i] : NULL;
}

/* Writes the path of the unit that systemd uses. */
static bool find(const char *role, char *out, size_t size)
{
    for (size_t i = 0; place(i); i++) {
        snprintf(out, size, "%s/mmx-%s.service", place(i), role);
        if (access(out, F_OK) == 0)
            return true;
    }
    return false;
}

bool unit_installed(const char *role)
{
    char path[512];

    return find(role, path, sizeof(path));
}

bool unit_enabled(const char *role)
{
    char path[512], to[16];

    if (find(role, path, sizeof(path)) &&
        readlink(path, to, sizeof(to)) == sizeof("/dev/null") - 1)
        return false; /* `systemctl mask` leaves the link below */
    for (size_t i = 0; place(i); i++) {
        snprintf(path, sizeof(path),
            "%s/multi-user.target.wants/mmx-%s.service", place(i), role);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

static void read_lines(
    const char *path, void (*line)(void *ud, const char *text), void *ud)
{
    FILE *f = fopen(path, "re");
    char text[512];

    while (f && fgets(text, sizeof(text), f))
        line(ud, text);
    if (f)
        fclose(f);
}

void unit_lines(
    const char *role, void (*line)(void *ud, const char *text), void *ud)
{
    char path[512];

    if (find(role, path, sizeof(path)))
        read_lines(path, line, ud);
    for (size_t i = ARRAY_LEN(places); i-- > 0;) { /* the last one wins */
        glob_t g;

        if (!place(i))
            continue;
        /* mmx-.service.d applies to all units with this prefix. */
        snprintf(path, sizeof(path), "%s/mmx-{,%s}.service.d/*.conf", place(i),
            role);
        if (glob(path, GLOB_BRACE, NULL, &g) != 0)
            continue;
        for (size_t k = 0; k < g.gl_pathc; k++)
            read_lines(g.gl_pathv[k], line, ud);
        globfree(&g);
    }
}
