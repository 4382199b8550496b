/* mem_test.c - what engines and shards need of a pool's memory: all pages are
 * there, the size is fixed, and only the daemon can write if only it may. */
#include "io/mem.h"
#include "test/t.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static struct mem_opt some(uint64_t bytes, bool engines_write)
{
    return (struct mem_opt){.name = "test",
        .bytes = bytes,
        .engines_write = engines_write,
        .numa_node = -1};
}

static void *map_fd(int fd, uint64_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

TEST(kinds_by_name)
{
    T_TRUE(mem_kind("host") == &mem_host);
    T_TRUE(mem_kind("hos") == NULL);
    T_TRUE(mem_kind("") == NULL);
    T_TRUE(mem_kind("cuda:zero") == NULL);
}

TEST(size_is_whole_pages_and_resident)
{
    struct mem_opt opt = some(1000001, false);
    struct mem m;
    unsigned char there[1024];

    T_OK(mem_host.open(&m, &opt));
    T_EQ_U64(m.page, mem_host.page(&opt));
    T_EQ_U64(m.bytes % m.page, 0);
    T_TRUE(m.bytes >= opt.bytes && m.bytes < opt.bytes + m.page);
    T_TRUE(m.ops == &mem_host);
    T_HAS(m.text, "host");
    T_EQ_I64(mincore(m.base, m.bytes, there), 0);
    for (uint64_t i = 0; i < m.bytes / m.page; i++)
        T_CHECK(there[i] & 1, "page %lu is not there", (unsigned long)i);
    for (uint64_t i = 0; i < m.bytes; i++)
        T_CHECK(m.base[i] == 0, "byte %lu is not 0", (unsigned long)i);
    mem_host.close(&m);
    T_TRUE(m.base == NULL);
    T_EQ_I64(m.fd, -1);
}

TEST(mode_seals_and_close_on_exec)
{
    struct mem_opt opt = some(1 << 20, false);
    struct mem m;
    struct stat st;
    int wanted =
        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

    T_OK(mem_host.open(&m, &opt));
    T_EQ_I64(fstat(m.fd, &st), 0);
    T_EQ_U64(st.st_mode & 0777, 0600);
    T_EQ_U64(st.st_size, m.bytes);
    T_EQ_I64(fcntl(m.fd, F_GET_SEALS), wanted);
    T_TRUE(fcntl(m.fd, F_GETFD) & FD_CLOEXEC);
    mem_host.close(&m);

    opt.engines_write = true;
    T_OK(mem_host.open(&m, &opt));
    T_EQ_I64(fcntl(m.fd, F_GET_SEALS), wanted & ~F_SEAL_FUTURE_WRITE);
    mem_host.close(&m);
}

/* Root may reopen a descriptor for writing; the seal still prevents it. */
TEST(readers_see_and_cannot_write)
{
    struct mem_opt opt = some(1 << 20, false);
    struct mem m;
    uint8_t *reader;
    char path[64];
    int again;

    T_OK(mem_host.open(&m, &opt));
    T_TRUE(map_fd(m.fd, m.bytes, PROT_READ | PROT_WRITE) == NULL);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", m.fd);
    again = open(path, O_RDWR | O_CLOEXEC);
    T_TRUE(again >= 0);
    T_TRUE(map_fd(again, m.bytes, PROT_READ | PROT_WRITE) == NULL);
    T_EQ_I64(pwrite(again, "x", 1, 0), -1);
    close(again);

    reader = map_fd(m.fd, m.bytes, PROT_READ);
    T_TRUE(reader != NULL);
    T_EQ_I64(mprotect(reader, m.bytes, PROT_READ | PROT_WRITE), -1);
    memset(m.base, 0x5a, m.bytes); /* the daemon's map is older than the seal */
    T_EQ_MEM(reader, m.base, m.bytes);
    mem_host.close(&m);
    T_EQ_U64(reader[m.bytes - 1], 0x5a); /* the pages outlive the daemon */
    munmap(reader, m.bytes);
}

/* F40 */
TEST(writers_write_and_nobody_resizes)
{
    struct mem_opt opt = some(1 << 20, true);
    struct mem m;
    uint8_t *writer;

    T_OK(mem_host.open(&m, &opt));
    writer = map_fd(m.fd, m.bytes, PROT_READ | PROT_WRITE);
    T_TRUE(writer != NULL);
    writer[12345] = 7;
    T_EQ_U64(m.base[12345], 7);
    T_EQ_I64(ftruncate(m.fd, 0), -1);
    T_EQ_I64(ftruncate(m.fd, (off_t)m.bytes * 2), -1);
    T_EQ_I64(fallocate(m.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                 (off_t)m.page),
        /* pages of writable pools may be removed, but never under a reader */
        0);
    T_EQ_U64(m.base[0], 0);
    munmap(writer, m.bytes);
    mem_host.close(&m);
}

/* F40 */
TEST(more_than_the_machine_has_is_refused)
{
    struct mem_opt opt = some(UINT64_C(1) << 50, false);
    struct mem m = {.fd = -77};

    T_ERR(mem_host.open(&m, &opt), ERR_INTERNAL);
    T_EQ_I64(m.fd, -77); /* *m is unchanged */
}

/* F40 */
TEST(huge_pages_are_had_or_refused)
{
    struct mem_opt opt = some(1 << 20, false);
    struct mem m;

    opt.huge_pages = true;
    T_TRUE(mem_host.page(&opt) > (uint64_t)sysconf(_SC_PAGESIZE));
    if (mem_host.open(&m, &opt) != OK)
        return; /* refused with a log line, never small pages instead */
    T_EQ_U64(m.bytes, mem_host.page(&opt));
    m.base[m.bytes - 1] = 1;
    mem_host.close(&m);
}

TEST(a_node_is_had_or_refused)
{
    struct mem_opt opt = some(1 << 20, false);
    struct mem m;

    opt.numa_node = 1023;
    T_ERR(mem_host.open(&m, &opt), ERR_INTERNAL);
    opt.numa_node = 100000;
    T_ERR(mem_host.open(&m, &opt), ERR_INTERNAL);
    opt.numa_node = 0;
    if (mem_host.open(&m, &opt) != OK)
        t_skip("this kernel binds no memory to node 0");
    T_HAS(m.text, "node 0");
    mem_host.close(&m);
}
