/* unit.c - the doctor's check of the daemon's systemd unit: that it may use
 * what the configuration asks for. The units hide all devices; a drop-in of
 * share/mmx shows some of them again.
 *
 * Reads files only. Rejected: asking systemd, which an engine's user in a
 * container cannot. Where the unit is not installed there is nothing to say. */
#include "ctl.h"

#include "core/conf/conf.h"
#include "io/yaml.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In the order of systemd's search; MMX_UNITS names another place. */
static const char *const places[] = {
    "/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"};

static const char *place(size_t i)
{
    const char *other = getenv("MMX_UNITS");

    if (other)
        return i == 0 ? other : NULL;
    return i < ARRAY_LEN(places) ? places[i] : NULL;
}

static bool installed(const char *role)
{
    char path[512];

    for (size_t i = 0; place(i); i++) {
        snprintf(path, sizeof(path), "%s/mmx-%s.service", place(i), role);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

/* True if a line of the drop-in allows devices whose name has `part`. */
static bool allows(const char *path, const char *part)
{
    FILE *f = fopen(path, "re");
    char line[512];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = !strncmp(line, "DeviceAllow=", 12) && strstr(line, part);
    if (f)
        fclose(f);
    return found;
}

/* True if a drop-in of the unit, whatever its name, allows such devices. */
static bool dropped_in(const char *role, const char *part)
{
    bool found = false;

    for (size_t i = 0; !found && place(i); i++) {
        char pattern[512];
        glob_t g;

        /* mmx-.service.d is for all units whose names begin so. */
        snprintf(pattern, sizeof(pattern), "%s/mmx-{,%s}.service.d/*.conf",
            place(i), role);
        if (glob(pattern, GLOB_BRACE, NULL, &g) != 0)
            continue;
        for (size_t k = 0; !found && k < g.gl_pathc; k++)
            found = allows(g.gl_pathv[k], part);
        globfree(&g);
    }
    return found;
}

/* True if rows may go by a network card's RDMA. A configuration that names such
 * transports with carrier tcp is refused. */
static bool uses_rdma(const struct conf *c)
{
    static const char *const families[] = {"all", "ib", "rc", "dc", "ud"};
    const char *at = c->transfer_tls;

    while (*at) { /* "rc_mlx5" is of the family "rc" */
        for (size_t i = 0; i < ARRAY_LEN(families); i++)
            if (strcspn(at, "_,") == strlen(families[i]) &&
                strncmp(at, families[i], strlen(families[i])) == 0)
                return true;
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return false;
}

static bool uses_gpu(const struct conf *c)
{
    bool gpu = false;

    for (uint32_t i = 0; i < c->pools_count; i++)
        gpu |= conf_on_gpu(&c->pools[i]);
    return gpu;
}

static void say(struct findings *r, const char *role, const char *what,
    const char *name, bool there)
{
    char text[256], advice[512];

    snprintf(text, sizeof(text), "mmx-%s is configured for %s, its unit %s",
        role, what, there ? "lets it" : "hides the devices");
    snprintf(advice, sizeof(advice),
        "install -Dm644 -t /etc/systemd/system/mmx-.service.d " MMX_SHARE
        "/%s && systemctl daemon-reload, then restart the daemon",
        name);
    findings_say(r, there ? FINE : FAIL, "unit", text, there ? "" : advice);
}

/* The role is that of the file's name. */
void doctor_unit(struct findings *r, const char *file)
{
    static struct conf c; /* large */
    struct conf_error e;
    bool langd = strstr(file, "langd") != NULL;
    const char *role = langd ? "langd" : "encoded";

    conf_init(&c, langd ? ROLE_LANGD : ROLE_ENCODED);
    if (yaml_load(file, &c, &e) != OK) {
        findings_say(r, WARN, "config", e.text,
            langd ? "mmx-langd --check-config says the same"
                  : "mmx-encoded --check-config says the same");
        return;
    }
    if (!installed(role))
        return;
    if (uses_gpu(&c))
        say(r, role, "GPUs", "mmx-gpu.conf", dropped_in(role, "nvidia"));
    if (uses_rdma(&c))
        say(r, role, "RDMA", "mmx-rdma.conf", dropped_in(role, "infiniband"));
}
