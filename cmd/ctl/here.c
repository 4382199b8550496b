/* here.c - the doctor's checks of this process: limits and environment, which
 * an engine started in the same way would share. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MIB (UINT64_C(1) << 20)

extern char **environ;

static void limit_text(rlim_t v, uint64_t unit, char out[32])
{
    CHECK(unit > 0, "a limit in no unit");
    if (v == RLIM_INFINITY)
        snprintf(out, 32, "unlimited");
    else
        snprintf(out, 32, "%llu", (unsigned long long)(v / unit));
}

static void say_memlock(struct findings *r, uint64_t pool_bytes)
{
    struct rlimit l;
    char have[32], text[128];

    if (getrlimit(RLIMIT_MEMLOCK, &l) != 0)
        return;
    limit_text(l.rlim_cur, MIB, have);
    snprintf(text, sizeof(text), "%s MiB may be locked, the pools have %llu",
        have, (unsigned long long)(pool_bytes / MIB));
    findings_hold(r, l.rlim_cur >= pool_bytes, WARN, "memlock", text,
        "an engine that locks the pools, or registers them for RDMA, needs "
        "ulimit -l unlimited (docker --ulimit memlock=-1)");
}

static void say_nofile(struct findings *r)
{
    struct rlimit l;
    char have[32], text[128];

    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return;
    limit_text(l.rlim_cur, 1, have);
    snprintf(text, sizeof(text), "%s descriptors", have);
    findings_hold(r, l.rlim_cur >= 1024, WARN, "nofile", text,
        "raise it: ulimit -n 4096");
}

static void say_environment(struct findings *r)
{
    char text[512] = "";
    size_t len = 0;

    for (char **e = environ; *e; e++) {
        bool ours = !strncmp(*e, "MMX_", 4);
        size_t n = ours ? strlen(*e) : strcspn(*e, "=");

        if ((ours || !strncmp(*e, "UCX_", 4)) && len + n + 3 < sizeof(text))
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%.*s",
                len ? ", " : "", (int)n, *e);
    }
    findings_hold(r, !getenv("UCX_TLS") && !getenv("UCX_NET_DEVICES"), WARN,
        "env", text[0] ? text : "no UCX_, no MMX_",
        "UCX_ variables do not reach the daemons (their YAML says tls and "
        "devices), only a UCX that this engine has itself");
}

void doctor_here(struct findings *r, uint64_t pool_bytes)
{
    say_memlock(r, pool_bytes);
    say_nofile(r);
    say_environment(r);
}
