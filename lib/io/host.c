/* host.c - see host.h. Each check looks at a resource that an adapter will use,
 * but does not take it. If that changes before the start, the adapter itself
 * refuses. Keeps no state; any thread.
 *
 * Rejected: starting the whole daemon for --check-config. It would take the
 * memory and the ports of the running one. */
#include "io/host.h"

#include "base/check.h"
#include "core/conf/address.h"
#include "io/cuda.h"
#include "io/data.h"
#include "io/mem.h"
#include "io/unit.h"

#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NODES "/sys/devices/system/node"
#define MIB   (UINT64_C(1) << 20)

struct look {
    const struct conf *c;
    bool now;
    void (*say)(void *ud, const struct host_finding *f);
    void *ud;
};

PRINTF_LIKE(4, 5)
static void found(
    const struct look *l, bool fatal, const char *mend, const char *fmt, ...)
{
    struct host_finding f = {.fatal = fatal};
    va_list ap;

    CHECK(mend[0], "a finding without a mend: %s", fmt);
    va_start(ap, fmt);
    vsnprintf(f.text, sizeof(f.text), fmt, ap);
    va_end(ap);
    snprintf(f.mend, sizeof(f.mend), "%s", mend);
    l->say(l->ud, &f);
}

/* devices, ports, cores */

static void look_at_devices(const struct look *l)
{
    const char *at = l->c->transfer_devices;

    while (*at) {
        struct span one = span_of(at, strcspn(at, ",;"));

        if (!span_eq(one, span_str("all")) && !data_tcp_device(one) &&
            (l->c->transfer_carrier == CARRIER_TCP || !data_ucx_device(one)))
            found(l, true, "`ip -br address` lists those that there are",
                "transfer.devices: this host has no device `%.*s`",
                (int)one.len, (const char *)one.p);
        at += one.len + (at[one.len] != 0);
    }
}

static void look_at_carrier(const struct look *l)
{
    if (l->c->transfer_carrier == CARRIER_UCX && !data_ucx.open)
        found(l, true, "auto or tcp, or the daemons of the packages",
            "transfer.carrier: `ucx`: " DATA_NO_UCX);
}

/* Returns 0 if this host can listen at the address, else errno. */
static int try_bind(const struct sockaddr *a, socklen_t len)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, e = 0;

    if (fd < 0)
        return 0; /* the start will report it */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a, len) != 0 || listen(fd, 1) != 0)
        e = errno;
    close(fd);
    return e;
}

/* Tries to bind the host of tcp://host:port. Returns 0 or errno; 0 also if the
 * host is a name, which the start looks up. */
static int try_address(const char *text, const char *port)
{
    const struct addrinfo hints = {
        .ai_flags = AI_PASSIVE | AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct address at;
    struct addrinfo *a;
    char host[128];
    int e;

    CHECK(address_split(span_str(text), &at), "no address: %s", text);
    span_copy_str(at.host, host, sizeof(host));
    if (getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints, &a) !=
        0)
        return 0;
    e = try_bind(a->ai_addr, a->ai_addrlen);
    freeaddrinfo(a);
    return e;
}

static void look_at_listen(const struct look *l)
{
    const char *mend = "";
    int e;

    if (conf_lands(l->c))
        return;
    e = try_address(
        l->c->control_listen, strrchr(l->c->control_listen, ':') + 1);
    if (e == EADDRINUSE && l->now)
        mend = "another program, or another daemon, listens there: "
               "`ss -ltnp` says which; take another port";
    else if (e == EADDRNOTAVAIL)
        mend = "`ip -br address` lists the addresses of this host";
    else if (e == EACCES)
        mend = "take a port above 1023";
    if (mend[0])
        found(l, true, mend, "control.listen: `%s`: %s", l->c->control_listen,
            strerror(e));
}

/* Not fatal: another carrier than TCP may bring the encoder's rows. */
static void look_at_peers(const struct look *l)
{
    for (uint32_t i = 0; i < l->c->peers_count; i++)
        if (strcmp(l->c->transfer_devices, "lo") == 0 &&
            try_address(l->c->peers[i].address, "0") == EADDRNOTAVAIL)
            found(l, false,
                "name the devices that the other host reaches, or all",
                "transfer.devices: rows of %s, which is another host (%s), "
                "cannot come by `lo`",
                l->c->peers[i].name, l->c->peers[i].address);
}

/* Not fatal: a port in use at one address is free at another. */
static void look_at_ports(const struct look *l)
{
    uint64_t unused = 0;
    unsigned from, to;

    if (!l->now || sscanf(l->c->transfer_ports, "%u-%u", &from, &to) != 2)
        return;
    for (unsigned p = from; p <= to && unused < l->c->transfer_shards; p++) {
        struct sockaddr_in any = {
            .sin_family = AF_INET, .sin_port = htons((uint16_t)p)};

        unused += try_bind((struct sockaddr *)&any, sizeof(any)) == 0;
    }
    if (unused < l->c->transfer_shards)
        found(l, false,
            "`ss -ltnp` says who has the others; a wider range, or another",
            "transfer.ports: %llu of `%s` are free, transfer.shards needs %llu",
            (unsigned long long)unused, l->c->transfer_ports,
            (unsigned long long)l->c->transfer_shards);
}

static void look_at_cores(const struct look *l)
{
    long cores = sysconf(_SC_NPROCESSORS_CONF);

    for (uint32_t i = 0; i < l->c->transfer_cpus.count; i++)
        if (cores > 0 && atol(l->c->transfer_cpus.items[i]) >= cores)
            found(l, false,
                "its shard runs on any core until it is one of them",
                "transfer.cpus[%u]: this host has %ld cores, none is number %s",
                i, cores, l->c->transfer_cpus.items[i]);
}

/* memory */

static void look_at_numa(const struct look *l, uint32_t i)
{
    const struct conf_pool *p = &l->c->pools[i];
    char path[64];

    if (conf_on_gpu(p) || strcmp(p->numa, "any") == 0)
        return;
    snprintf(path, sizeof(path), NODES "/node%s", p->numa);
    if (access(path, F_OK) != 0 &&
        (access(NODES, F_OK) == 0 || strcmp(p->numa, "0") != 0))
        found(l, true, "numa: any, or a node that `lscpu` lists",
            "pools[%u].numa: this host has no NUMA node %s", i, p->numa);
}

static void look_at_gpu(const struct look *l, uint32_t i)
{
    uint32_t gpu = mem_gpu(l->c->pools[i].memory);
    const char *why = gpu == NONE ? NULL : cuda_lacks(gpu);

    if (why)
        found(l, true,
            "`nvidia-smi -L` lists those that there are; memory: host needs "
            "none",
            "pools[%u].memory: GPU %u cannot be used: %s", i, gpu, why);
}

/* Returns the bytes of a pool; 0: an engine decides. */
static uint64_t bytes_of(const struct conf_pool *p)
{
    const struct mem_opt opt = {.name = p->name, .huge_pages = p->huge_pages};
    uint64_t offsets[LAYOUT_FIELDS_MAX], bytes;
    struct layout layout;
    uint32_t at;

    if (layout_parse(span_str(p->layout), &layout, &at) != OK ||
        !layout_place(&layout, p->blocks * p->block_rows, mem_host.page(&opt),
            offsets, &bytes))
        return 0;
    return bytes;
}

/* Checks whether the pools in one kind of memory fit together. */
static void look_at_room(const struct look *l, bool huge)
{
    const char *where;
    uint64_t have = mem_host_room(huge, l->now, &where), sum = 0;

    for (uint32_t i = 0; i < l->c->pools_count; i++) {
        const struct conf_pool *p = &l->c->pools[i];

        if (conf_on_gpu(p) || p->huge_pages != huge)
            continue;
        if (__builtin_add_overflow(sum, bytes_of(p), &sum))
            sum = UINT64_MAX;
        if (sum > have) {
            found(l, true,
                huge ? "sysctl vm.nr_hugepages, or huge_pages: false, or fewer "
                       "blocks"
                     : "fewer blocks; a pool has blocks x block_rows x row",
                "pools[%u].blocks: %llu MiB asked for with the pools before "
                "it, %llu MiB %s %s",
                i, (unsigned long long)((sum + MIB - 1) / MIB),
                (unsigned long long)(have / MIB),
                l->now ? "are available" : "is all that there is", where);
            return;
        }
    }
}

/* the rest */

static void look_at_group(const struct look *l)
{
    if (l->c->socket_group[0] && !getgrnam(l->c->socket_group))
        found(l, true, "groupadd --system makes one, or leave socket.group out",
            "socket.group: this host has no group %s", l->c->socket_group);
}

/* Keeps the time in ns that systemd gives the unit to end; the last line
 * counts. UINT64_MAX: unknown, or no limit. */
static void keep_stop(void *ud, const char *line)
{
    uint64_t *ns = ud;
    unsigned long v;
    char unit[8] = "";

    if (strncmp(line, "TimeoutStopSec=", 15) != 0)
        return;
    *ns = UINT64_MAX;
    if (sscanf(line + 15, "%lu%7[a-z]", &v, unit) < 1)
        return;
    if (!unit[0] || strcmp(unit, "s") == 0 || strcmp(unit, "sec") == 0)
        *ns = v * NS_PER_S;
    else if (strcmp(unit, "m") == 0 || strcmp(unit, "min") == 0)
        *ns = v * 60 * NS_PER_S;
}

static void look_at_drain(const struct look *l)
{
    const char *role = role_name(l->c->role);
    uint64_t stop_ns = UINT64_MAX;

    unit_lines(role, keep_stop, &stop_ns);
    if (l->c->timeout_drain >= stop_ns)
        found(l, false,
            "a shorter one, or a longer TimeoutStopSec by `systemctl edit`",
            "timeouts.drain: %llu s, but the unit mmx-%s is killed after "
            "TimeoutStopSec, %llu s",
            (unsigned long long)(l->c->timeout_drain / NS_PER_S), role,
            (unsigned long long)(stop_ns / NS_PER_S));
}

void host_check(const struct conf *c, bool now,
    void (*say)(void *ud, const struct host_finding *f), void *ud)
{
    const struct look l = {c, now, say, ud};

    CHECK(
        c->pools_count > 0 && c->socket_path[0], "a conf that is not finished");
    look_at_group(&l);
    look_at_listen(&l);
    look_at_peers(&l);
    look_at_carrier(&l);
    look_at_devices(&l);
    look_at_ports(&l);
    look_at_cores(&l);
    for (uint32_t i = 0; i < c->pools_count; i++) {
        look_at_numa(&l, i);
        look_at_gpu(&l, i);
    }
    look_at_room(&l, false);
    look_at_room(&l, true);
    look_at_drain(&l);
}
