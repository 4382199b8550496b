/* mem_host.c - host memory, one memfd per pool: created, mapped, populated and
 * only then sealed, so that our own map stays writable when no new map may be.
 *
 * Invariants: after open every page is present, and the size is sealed for
 * good. A process that may write can still punch a hole: the page then reads as
 * zeros, or raises SIGBUS if huge pages have run out (guard.h). The pool has
 * the huge pages and the node that were requested, or open fails.
 *
 * Any thread may open a pool, best one pool at a time; shards only read base.
 * Rejected: MAP_POPULATE, which hides failures and would run before mbind;
 * files in /dev/shm, whose names outlive us; libnuma, for a single call. */
#include "io/mem.h"

#include "base/check.h"
#include "base/log.h"
#include "io/mem/mem_room.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024
#define MIB       (UINT64_C(1) << 20)
#define CREW_MAX  3 /* threads besides the one that opens */

static uint64_t host_page(const struct mem_opt *opt)
{
    uint64_t kib;

    if (!opt->huge_pages)
        return (uint64_t)sysconf(_SC_PAGESIZE);
    return mem_room_info("Hugepagesize", &kib) && kib ? kib * 1024 : 2 * MIB;
}

/* If the kernel reports no limit, populate() finds out. */
uint64_t mem_host_room(bool huge_pages, bool now, const char **where)
{
    const struct mem_opt opt = {.huge_pages = huge_pages};
    uint64_t have = UINT64_MAX, page = host_page(&opt), n;

    *where = "in huge pages (vm.nr_hugepages)";
    if (huge_pages) {
        have = mem_room_info(now ? "HugePages_Free" : "HugePages_Total", &n)
                   ? n * page
                   : 0;
        if (now && mem_room_info("HugePages_Rsvd", &n))
            have -= min_u64(have, n * page);
        return have;
    }
    *where = "on this machine";
    if (mem_room_info(now ? "MemAvailable" : "MemTotal", &n))
        have = n * 1024;
    n = mem_room_cgroup("/proc/self/cgroup", "/sys/fs/cgroup", now);
    if (n < have)
        *where = "in this control group (memory.max)";
    return min_u64(have, n);
}

/* Refuses a pool that does not fit now. The kernel would not refuse it, but
 * kill a process. */
static enum err check_room(const struct mem_opt *opt, uint64_t bytes)
{
    const char *where;
    uint64_t have = mem_host_room(opt->huge_pages, true, &where);

    if (bytes <= have)
        return OK;
    log_error("pool %s: %lu MiB asked for (blocks x block_rows x row), %lu MiB "
              "are available %s",
        opt->name, (unsigned long)((bytes + MIB - 1) / MIB),
        (unsigned long)(have / MIB), where);
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

/* Binds the pool to its node, before the first page is present. The policy of a
 * shared mapping belongs to the file, so it holds for every process. */
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

/* Shared by the threads that populate a pool. */
struct crew {
    struct mem *m;
    const struct mem_opt *opt;
    uint64_t piece;
    _Atomic uint64_t next; /* first byte of the next piece */
    _Atomic int error;     /* errno of the first failure, 0: none */
};

static bool stopped(const struct mem_opt *opt)
{
    return opt->watch &&
           atomic_load_explicit(&opt->watch->stop, memory_order_relaxed);
}

static void *crew_member(void *ud)
{
    struct crew *c = ud;
    uint64_t at;

    while (!stopped(c->opt) && atomic_load(&c->error) == 0 &&
           (at = atomic_fetch_add(&c->next, c->piece)) < c->m->bytes) {
        uint64_t n = min_u64(c->piece, c->m->bytes - at);

        if (madvise(c->m->base + at, n, MADV_POPULATE_WRITE) != 0)
            atomic_store(&c->error, errno);
        else if (c->opt->watch)
            atomic_fetch_add(&c->opt->watch->bytes, n);
    }
    return NULL;
}

/* Populates the pool, a large one by several threads: the kernel clears the
 * pages, at only some GB/s per core. */
static enum err populate(struct mem *m, const struct mem_opt *opt)
{
    struct crew c = {.m = m, .opt = opt, .piece = max_u64(MEM_PIECE, m->page)};
    uint64_t pieces = (m->bytes + c.piece - 1) / c.piece;
    pthread_t others[CREW_MAX];
    uint32_t n = 0;

    CHECK(c.piece % m->page == 0, "pieces of %lu bytes, pages of %lu",
        (unsigned long)c.piece, (unsigned long)m->page);
    for (; n < CREW_MAX && n + 1 < pieces; n++)
        if (pthread_create(&others[n], NULL, crew_member, &c) != 0)
            break; /* fewer threads do the work */
    crew_member(&c);
    while (n > 0)
        pthread_join(others[--n], NULL);
    errno = atomic_load(&c.error);
    if (errno != 0)
        return failed(opt, "populate the memory (as Linux 5.14 can)", m->bytes);
    return stopped(opt) ? ERR_ABORTED : OK;
}

static enum err seal(struct mem *m, const struct mem_opt *opt)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW;

    CHECK(m->base, "sealed before it was mapped");
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
    e = check_room(opt, m.bytes);
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

const struct mem_ops mem_host = {.name = "host",
    .any_thread = true,
    .page = host_page,
    .open = host_open,
    .close = host_close};
