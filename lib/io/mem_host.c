/* mem_host.c - host memory as one memfd per pool: created, mapped, populated
 * and only then sealed, so that our own map stays writable when nobody else's
 * may be.
 *
 * Invariants: after open every page is there; the size is sealed for good.
 * Who may write can still punch a hole: a page less, which comes back as zeros,
 * or as SIGBUS where huge pages have run out (guard.h); what was asked for
 * (huge pages, a node) was had, or open failed.
 *
 * The loop's thread opens and closes; shards only read base. Rejected:
 * MAP_POPULATE, which hides that it failed and would run before mbind; files
 * in /dev/shm, which have names that outlive us; libnuma, for one call. */
#include "io/mem.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024
#define MIB       (UINT64_C(1) << 20)

/* A number of /proc/meminfo: KiB, or a count. false: no such line. */
static bool meminfo(const char *key, uint64_t *out)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    size_t len = strlen(key);
    unsigned long long n = 0;
    bool found = false;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f))
        found = strncmp(line, key, len) == 0 && line[len] == ':' &&
                sscanf(line + len + 1, "%llu", &n) == 1;
    fclose(f);
    if (found)
        *out = n;
    return found;
}

static uint64_t host_page(const struct mem_opt *opt)
{
    uint64_t kib;

    if (!opt->huge_pages)
        return (uint64_t)sysconf(_SC_PAGESIZE);
    return meminfo("Hugepagesize", &kib) && kib ? kib * 1024 : 2 * MIB;
}

/* Refuses what the machine cannot have now: the kernel would not say no, it
 * would kill somebody. Where it does not tell, the populating decides. */
static enum err check_room(
    const struct mem_opt *opt, uint64_t bytes, uint64_t page)
{
    uint64_t have, n;

    if (opt->huge_pages) {
        have = meminfo("HugePages_Free", &n) ? n * page : 0;
        if (meminfo("HugePages_Rsvd", &n))
            have -= min_u64(have, n * page);
    } else {
        if (!meminfo("MemAvailable", &n))
            return OK;
        have = n * 1024;
    }
    if (bytes <= have)
        return OK;
    log_error("pool %s: %lu MiB of %s asked for, %lu MiB are available",
        opt->name, (unsigned long)((bytes + MIB - 1) / MIB),
        opt->huge_pages ? "huge pages" : "memory", (unsigned long)(have / MIB));
    return ERR_INTERNAL;
}

static enum err failed(
    const struct mem_opt *opt, const char *what, uint64_t bytes)
{
    log_error("pool %s: cannot %s (%lu bytes): %s", opt->name, what,
        (unsigned long)bytes, strerror(errno));
    return ERR_INTERNAL;
}

static enum err create(struct mem *m, const struct mem_opt *opt)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    char name[80];

    snprintf(name, sizeof(name), "mmx-%s", opt->name);
    m->fd = memfd_create(name, flags | (opt->huge_pages ? MFD_HUGETLB : 0));
    if (m->fd < 0)
        return failed(opt, "create a memfd", m->bytes);
    if (fchmod(m->fd, 0600) != 0)
        return failed(opt, "set the mode of the memfd", m->bytes);
    if (ftruncate(m->fd, (off_t)m->bytes) != 0)
        return failed(opt, "size the memfd", m->bytes);
    return OK;
}

static enum err map(struct mem *m, const struct mem_opt *opt)
{
    void *p =
        mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);

    if (p == MAP_FAILED)
        return failed(opt, "map the memfd", m->bytes);
    m->base = p;
    if (madvise(p, m->bytes, MADV_DONTDUMP) != 0)
        return failed(opt, "keep the memory out of core dumps", m->bytes);
    return OK;
}

/* Before the first page is there. The policy of a shared mapping belongs to
 * the file, so it holds for whoever touches the page. */
static enum err bind_node(struct mem *m, const struct mem_opt *opt)
{
    unsigned long mask[NODES_MAX / 64] = {0};
    unsigned node = (unsigned)opt->numa_node;

    if (opt->numa_node < 0)
        return OK;
    if (node >= NODES_MAX) {
        log_error("pool %s: no NUMA node %u", opt->name, node);
        return ERR_INTERNAL;
    }
    mask[node / 64] = 1ul << (node % 64);
    if (syscall(SYS_mbind, m->base, m->bytes, MPOL_BIND, mask,
            (unsigned long)NODES_MAX + 1, MPOL_MF_STRICT) == 0)
        return OK;
    log_error("pool %s: cannot bind %lu bytes to NUMA node %u: %s", opt->name,
        (unsigned long)m->bytes, node, strerror(errno));
    return ERR_INTERNAL;
}

static enum err populate(struct mem *m, const struct mem_opt *opt)
{
    volatile uint8_t *p = m->base;

    if (madvise(m->base, m->bytes, MADV_POPULATE_WRITE) == 0)
        return OK;
    if (errno != EINVAL)
        return failed(opt, "populate the memory", m->bytes);
    /* Linux before 5.14: allocate, which fails in words, then touch. */
    if (fallocate(m->fd, 0, 0, (off_t)m->bytes) != 0)
        return failed(opt, "allocate the memory", m->bytes);
    for (uint64_t at = 0; at < m->bytes; at += m->page)
        p[at] = 0;
    return OK;
}

static enum err seal(struct mem *m, const struct mem_opt *opt)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW;

    if (!opt->engines_write)
        seals |= F_SEAL_FUTURE_WRITE;
    if (fcntl(m->fd, F_ADD_SEALS, seals) != 0 ||
        fcntl(m->fd, F_ADD_SEALS, F_SEAL_SEAL) != 0)
        return failed(opt, "seal the memfd", m->bytes);
    return OK;
}

static void host_close(struct mem *m)
{
    if (m->base)
        munmap(m->base, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    m->base = NULL;
    m->fd = -1;
}

static void describe(struct mem *m, const struct mem_opt *opt)
{
    char node[24] = "any node";

    if (opt->numa_node >= 0)
        snprintf(node, sizeof(node), "node %d", opt->numa_node);
    snprintf(m->text, sizeof(m->text), "host, %lu KiB pages, %s",
        (unsigned long)(m->page / 1024), node);
}

static enum err host_open(struct mem *out, const struct mem_opt *opt)
{
    struct mem m = {
        .ops = &mem_host, .page = host_page(opt), .fd = -1, .share = "memfd"};
    enum err e;

    CHECK(opt->bytes > 0 && opt->bytes <= INT64_MAX - m.page, "%lu bytes",
        (unsigned long)opt->bytes);
    m.bytes = (opt->bytes + m.page - 1) / m.page * m.page;
    e = check_room(opt, m.bytes, m.page);
    if (e == OK)
        e = create(&m, opt);
    if (e == OK)
        e = map(&m, opt);
    if (e == OK)
        e = bind_node(&m, opt);
    if (e == OK)
        e = populate(&m, opt);
    if (e == OK)
        e = seal(&m, opt);
    if (e != OK) {
        host_close(&m);
        return e;
    }
    describe(&m, opt);
    *out = m;
    return OK;
}

const struct mem_ops mem_host = {
    .name = "host", .page = host_page, .open = host_open, .close = host_close};
